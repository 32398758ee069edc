#include "eager/torch/lazy.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/overflows.h>

#include <string_view>

namespace tilevm::eager {
namespace {

Engine* the_engine = nullptr;

const c10::Device kCpu(c10::DeviceType::CPU);

}  // namespace

[[noreturn]] void raise(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kIndex:
      TORCH_CHECK_INDEX(false, failure.message);
    case Failure::Kind::kMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, failure.message);
    default:
      TORCH_CHECK(false, failure.message);
  }
}

namespace {

const void* vtable_of_lazy() {
  Recording recording;
  const auto made = c10::make_intrusive<LazyImpl>(
      c10::make_intrusive<LazyStorage>(0, recording, kNoValue),
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
  return *reinterpret_cast<const void* const*>(static_cast<c10::TensorImpl*>(made.get()));
}

}  // namespace

extern const void* const lazy_vtable;
const void* const lazy_vtable = vtable_of_lazy();

Engine& engine() { return *the_engine; }
void set_engine(Engine* engine) { the_engine = engine; }

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kBool:
      return at::kBool;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt8:
      return at::kChar;
    case DType::kUInt8:
      return at::kByte;
    case DType::kOpaque:
      break;
  }
  return at::ScalarType::Undefined;
}

DType dtype_of(at::ScalarType type) {
  for (int d = 0; d < static_cast<int>(DType::kOpaque); ++d) {
    if (scalar_type(static_cast<DType>(d)) == type) return static_cast<DType>(d);
  }
  return DType::kOpaque;
}

namespace {

template <class Number>
bool is_one_of(Number number, at::ScalarType type) {
  switch (type) {
#define TILEVM_CASE(name, cpp) \
  case at::name:               \
    return !c10::overflows<cpp, Number>(number);
    TILEVM_CASE(kByte, std::uint8_t)
    TILEVM_CASE(kChar, std::int8_t)
    TILEVM_CASE(kShort, std::int16_t)
    TILEVM_CASE(kInt, std::int32_t)
    TILEVM_CASE(kLong, std::int64_t)
    TILEVM_CASE(kHalf, c10::Half)
    TILEVM_CASE(kBFloat16, c10::BFloat16)
    TILEVM_CASE(kFloat, float)
#undef TILEVM_CASE
    default:
      return true;
  }
}

}  // namespace

bool fits(double number, at::ScalarType type) { return is_one_of(number, type); }
bool fits(std::int64_t number, at::ScalarType type) { return is_one_of(number, type); }

std::optional<at::Scalar> number_in(const at::TensorBase& tensor) {
  if (dtype_of(tensor.scalar_type()) == DType::kOpaque) return std::nullopt;
  switch (tensor.scalar_type()) {
#define TILEVM_CASE(cpp, name)     \
  case at::ScalarType::name:       \
    return at::Scalar(*static_cast<const cpp*>(tensor.const_data_ptr()));
    AT_FORALL_SCALAR_TYPES_AND3(Bool, Half, BFloat16, TILEVM_CASE)
#undef TILEVM_CASE
    default:
      return std::nullopt;
  }
}

namespace {

host::Geometry geometry_of_impl(const c10::TensorImpl& tensor) {
  host::Geometry g;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  g.rank = static_cast<int>(sizes.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    g.sizes[d] = sizes[d];
    g.strides[d] = strides[d];
  }
  return g;
}

}  // namespace

host::Geometry geometry_of(const at::TensorBase& tensor) {
  return geometry_of_impl(*tensor.unsafeGetTensorImpl());
}

host::Geometry parts_of(host::Geometry g) {
  for (int d = 0; d < g.rank; ++d) g.stride(d) *= 2;
  g.size(g.rank) = 2;
  g.stride(g.rank) = 1;
  ++g.rank;
  return g;
}

host::Geometry complex_of(host::Geometry g) {
  --g.rank;
  for (int d = 0; d < g.rank; ++d) g.stride(d) /= 2;
  return g;
}

// All such memory has a function that gives it back, which only its type tells from those of
// PyTorch's own.
bool is_foreign(const at::DataPtr& memory) {
  using Context = at::InefficientStdFunctionContext;
  static const c10::DeleterFnPtr by_function =
      Context::makeDataPtr(nullptr, [](void*) {}, kCpu).get_deleter();
  const auto* const context = memory.cast_context<Context>(by_function);
  if (C10_LIKELY(context == nullptr)) return false;
  const std::string_view name = context->deleter_.target_type().name();
  // torch::utils::tensor_from_numpy, tensor_frombuffer, tensor_fromDLPackImpl
  return name.find("tensor_from") != name.npos;
}

bool reaches_others(const at::TensorBase& tensor) {
  if (tensor.layout() != c10::kStrided) return true;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return storage && is_foreign(storage.data_ptr());
}

// ---- Memory

LazyStorage::LazyStorage(std::size_t bytes, Recording& recording, Value value)
    : StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(bytes)),
                  at::DataPtr(nullptr, kCpu), c10::GetCPUAllocator(), true),
      recording_(&recording),
      value_(value) {}

void LazyStorage::fill_slowly(const char* reason) {
  // Dropped last: running may free the only other reference.
  const auto self = c10::intrusive_ptr<LazyStorage>::reclaim_copy(this);
  std::unique_lock lock(recording_->mutex);
  if (!pending_.load(std::memory_order_acquire)) return;
  if (constant_) return recording_->fill_constant(*this);
  if (failure_.kind == Failure::Kind::kNone) recording_->flush(lock, reason);
  if (failure_.kind != Failure::Kind::kNone) raise(failure_);
}

namespace {

template <class Item>
void fill_items(void* data, std::int64_t n, Item item) {
  auto* const items = static_cast<Item*>(data);
  at::parallel_for(0, n, at::internal::GRAIN_SIZE, [&](std::int64_t from, std::int64_t to) {
    std::fill(items + from, items + to, item);
  });
}

}  // namespace

void LazyStorage::fill_with_constant() {
  at::DataPtr data = c10::GetCPUAllocator()->allocate(nbytes());
  const std::int64_t n = geometry_.empty() ? 0 : geometry_.elements();
  switch (constant_type_) {
#define TILEVM_CASE(cpp, name)                            \
  case at::ScalarType::name:                              \
    fill_items<cpp>(data.get(), n, constant_->to<cpp>()); \
    break;
    AT_FORALL_SCALAR_TYPES_AND3(Bool, Half, BFloat16, TILEVM_CASE)
#undef TILEVM_CASE
    default:
      break;
  }
  constant_.reset();
  set_data_ptr_noswap(std::move(data));
  pending_.store(false, std::memory_order_release);
}

// ---- Tensors

LazyImpl::LazyImpl(c10::intrusive_ptr<LazyStorage> storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta type)
    : TensorImpl(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(std::move(storage))), keys,
                 type),
      lazy_(static_cast<LazyStorage*>(storage_.unsafeGetStorageImpl())) {}

LazyImpl::LazyImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta type, LazyStorage* lazy)
    : TensorImpl(view, std::move(storage), keys, type), lazy_(lazy) {}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> LazyImpl::copy(Version&& version, bool allow_change) const {
  auto made =
      c10::make_intrusive<LazyImpl>(VIEW, c10::Storage(storage_), key_set_, data_type_, lazy_);
  copy_tensor_metadata(this, made.get(), std::forward<Version>(version), allow_change);
  made->value_ = value_;
  made->generation_ = generation_;
  return made;
}

c10::intrusive_ptr<c10::TensorImpl> LazyImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_change) const {
  if (pending() == nullptr) return TensorImpl::shallow_copy_and_detach(version, allow_change);
  return copy(version, allow_change);
}
c10::intrusive_ptr<c10::TensorImpl> LazyImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_change) const {
  if (pending() == nullptr) {
    return TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
  }
  return copy(std::move(version), allow_change);
}

void LazyImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  impl->has_storage();  // what it looks like afterwards must not wait for anything
  TensorImpl::shallow_copy_from(impl);
}

bool LazyImpl::spans() const { return first() == 0 && same(geometry(), lazy_->geometry_); }

Value LazyImpl::held() {
  LazyStorage& memory = *lazy_;
  const auto find = [&]() -> Value {
    const host::Geometry own = geometry();
    for (auto part = memory.parts_.rbegin(); part != memory.parts_.rend(); ++part) {
      if (part->generation <= generation_) break;
      if (part->offset == first() && same(part->geometry, own)) {
        set_value(part->value);
        return value_;
      }
      if (!disjoint(own, first(), part->geometry, part->offset, memory.geometry_)) {
        return kNoValue;
      }
    }
    if (memory.whole_ > generation_) {
      if (spans()) {
        value_ = memory.value_;
      } else if (reshaped(own, first(), memory.geometry_)) {
        value_ =
            memory.recording().trace.add(Op::reshape, {memory.value_}, {Param::sizes(own.shape())});
      } else {
        return kNoValue;
      }
    }
    generation_ = memory.generation_;
    return value_;
  };
  const Value value = generation_ == memory.generation_ ? value_ : find();
  if (value == kNoValue) return value;
  // PyTorch's own code makes a result that it was given smaller without a word.
  const Meta& meta = memory.recording().trace.meta(value);
  const auto sizes = this->sizes();
  const std::size_t more = is_complex() ? 1 : 0;
  const bool whole =
      static_cast<std::size_t>(meta.rank) == sizes.size() + more &&
      host::equal_dims({sizes.data(), sizes.size()}, meta.shape().first(sizes.size()));
  return C10_LIKELY(whole) ? value : kNoValue;
}

void LazyImpl::set_value(Value value) {
  value_ = value;
  generation_ = lazy_->generation_;
}

host::Geometry LazyImpl::geometry() const {
  const host::Geometry g = geometry_of_impl(*this);
  return is_complex() ? parts_of(g) : g;
}

}  // namespace tilevm::eager
