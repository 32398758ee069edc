// The ABI of DLPack 1.x tensors and of its C exchange interface, as far as we use it.
// Source: DLPack 1.3, include/dlpack/dlpack.h. Layouts are fixed for major version 1.
#pragma once

#include <cstdint>

namespace tilevm::host::dlpack {

inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::int32_t kCpu = 1;
inline constexpr const char* kCapsuleName = "dlpack_exchange_api";

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6
};

struct Version {
  std::uint32_t major, minor;
};
struct Device {
  std::int32_t type, id;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements
  std::uint64_t byte_offset;
};

struct Managed {
  Version version;
  void* manager_ctx;
  void (*deleter)(Managed* self);
  std::uint64_t flags;
  Tensor tensor;
};

// Found as a capsule at type(tensor).__dlpack_c_exchange_api__; lives as long as the process.
// Functions return 0, or -1 with a Python exception set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, Managed** out, void* error_context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*to_managed)(void* object, Managed** out);
  int (*from_managed)(Managed* tensor, void** object);  // takes the tensor
  int (*describe)(void* object, Tensor* out);           // borrowed; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 80 && sizeof(ExchangeApi) == 56);

}  // namespace tilevm::host::dlpack
