// What the host needs of the framework whose tensors come in and go out. The bindings implement it
// for PyTorch and NumPy.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "exec/gemm/tiles.h"
#include "host/errors.h"
#include "host/record.h"

namespace tilevm::host {

using Object = void*;  // a counted reference of the framework's (a PyObject)

// Call-outs that are ours.
inline constexpr std::int64_t kMatmulTarget = -1;

class Framework {
 public:
  virtual ~Framework() = default;

  // Memory of a tensor of `type`, borrowed. Throws DTypeError, ShapeError (rank), DeviceError,
  // GradError or TypeError, naming `name`. A tensor of kOpaque may have no address.
  virtual void describe(Object tensor, const Type& type, const std::string& name, Record& out) = 0;
  // The same of a complex tensor, as its parts: `type` has one more dim than it, of size 2.
  virtual void describe_complex(Object tensor, const Type& type, const std::string& name,
                                Record& out);
  // A tensor over the same memory: the parts of a complex one, and the complex one of such parts.
  virtual Object parts(Object complex);
  virtual Object complex(Object parts);
  // As empty(), a complex tensor whose parts `out` describes.
  virtual Object empty_complex(DType dtype, std::int64_t elements, Record& out);
  // A new tensor with the sizes and strides of `out`, which are dense in some order of the dims;
  // sets out.data. Throws MemoryError.
  virtual Object empty(DType dtype, std::int64_t elements, Record& out) = 0;
  // A new tensor over memory of `owner`, whose record is `whole`.
  virtual Object view(Object owner, const Record& whole, DType dtype, const Record& part) = 0;
  virtual bool negative_strides() const = 0;
  // A number for the memory of a tensor, until exec::gemm::forget() is called with it: before that
  // memory is freed or is another tensor's. 0: there is none. Throws.
  virtual std::uint64_t owner(Object) { return 0; }

  // Python numbers. The readers throw TypeError; `name` is for the message.
  virtual std::int64_t integer(Object number, const std::string& name) = 0;
  virtual double real(Object number, const std::string& name) = 0;
  virtual bool boolean(Object number, const std::string& name) = 0;
  virtual Object from_integer(std::int64_t value) = 0;
  virtual Object from_real(double value) = 0;
  virtual Object from_boolean(bool value) = 0;

  // Calls call-out `target`; fills `results` with new references. Throws.
  virtual void call(std::int64_t target, std::span<const Object> args,
                    std::span<Object> results) = 0;

  virtual Object retain(Object object) noexcept = 0;
  virtual void drop(Object object) noexcept = 0;

  // Lets other Python threads run during a long kernel.
  virtual void unlock() noexcept = 0;
  virtual void lock() noexcept = 0;
  virtual int threads() noexcept = 0;
  // Of how many bfloat16 a factor of float32 may be taken to be the sum: of all, products are as
  // precise as those of float32.
  virtual int float32_pieces() noexcept { return exec::gemm::kMostPieces; }
  // Between turns of a loop that may never end: throws ForeignError if the user stops it, and lets
  // other Python threads run if it is `time`.
  virtual void pause(bool /*time*/) {}
};

// Where there are no complex tensors.
inline void Framework::describe_complex(Object, const Type&, const std::string& name, Record&) {
  throw TypeError(name + ": is complex");
}
inline Object Framework::parts(Object) { throw TypeError("no complex tensors"); }
inline Object Framework::complex(Object) { throw TypeError("no complex tensors"); }
inline Object Framework::empty_complex(DType, std::int64_t, Record&) {
  throw TypeError("no complex tensors");
}

}  // namespace tilevm::host
