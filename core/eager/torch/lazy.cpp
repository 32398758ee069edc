#include "eager/torch/lazy.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "host/views.h"

namespace tilevm::eager {
namespace {

Engine* the_engine = nullptr;

const c10::Device kCpu(c10::DeviceType::CPU);

void give_back(void* owner) { the_engine->release(owner); }

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

host::Geometry geometry_of(const at::TensorBase& tensor) {
  host::Geometry g;
  g.rank = static_cast<int>(tensor.dim());
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  std::copy(sizes.begin(), sizes.end(), g.sizes.begin());
  std::copy(strides.begin(), strides.end(), g.strides.begin());
  return g;
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
  if (failure_.kind == Failure::Kind::kNone) recording_->flush(lock, reason);
  if (failure_.kind != Failure::Kind::kNone) raise(failure_);
}

// ---- Tensors

LazyImpl::LazyImpl(c10::intrusive_ptr<LazyStorage> storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta type)
    : TensorImpl(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(storage)), keys, type),
      lazy_(storage.get()) {}

LazyImpl::LazyImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta type, LazyStorage* lazy)
    : TensorImpl(view, std::move(storage), keys, type), lazy_(lazy) {}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> LazyImpl::copy(Version&& version, bool allow_change) const {
  auto made = c10::make_intrusive<LazyImpl>(VIEW, c10::Storage(storage_), key_set_, data_type_,
                                            lazy_);
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

bool LazyImpl::spans() const {
  const host::Geometry own = geometry();
  const host::Geometry& whole = lazy_->geometry_;
  return storage_offset() == 0 && own.rank == whole.rank && own.sizes == whole.sizes &&
         own.strides == whole.strides;
}

Value LazyImpl::value() {
  if (generation_ == lazy_->generation_) return value_;
  if (!spans() || dtype_of(c10::typeMetaToScalarType(data_type_)) !=
                   lazy_->recording().trace.meta(lazy_->value_).dtype) {
    return kNoValue;
  }
  set_value(lazy_->value_);
  return value_;
}

void LazyImpl::set_value(Value value) {
  value_ = value;
  generation_ = lazy_->generation_;
}

host::Geometry LazyImpl::geometry() const {
  host::Geometry g;
  g.rank = static_cast<int>(dim());
  const auto sizes = this->sizes(), strides = this->strides();
  std::copy(sizes.begin(), sizes.end(), g.sizes.begin());
  std::copy(strides.begin(), strides.end(), g.strides.begin());
  return g;
}

// ---- Recording

namespace {

struct Idle {
  std::mutex mutex;
  std::vector<Recording*> recordings;
};
Idle& idle() {
  static auto* const made = new Idle;
  return *made;
}

struct OfThread {
  Recording* recording = nullptr;
  ~OfThread() {
    if (recording == nullptr) return;
    const std::lock_guard lock(idle().mutex);
    idle().recordings.push_back(recording);
  }
};
thread_local OfThread of_thread;

}  // namespace

Recording& Recording::mine() {
  if (C10_LIKELY(of_thread.recording != nullptr)) return *of_thread.recording;
  const std::lock_guard lock(idle().mutex);
  if (idle().recordings.empty()) {
    of_thread.recording = new Recording;
  } else {
    of_thread.recording = idle().recordings.back();
    idle().recordings.pop_back();
  }
  return *of_thread.recording;
}

Value Recording::capture(const at::TensorBase& tensor, DType dtype) {
  const c10::Storage& storage = tensor.storage();
  const std::size_t before = trace.inputs().size();
  auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(tensor.const_data_ptr()));
  const Value value = trace.input(dtype, geometry_of(tensor), data);
  if (trace.inputs().size() == before) return value;
  held_.push_back(storage);
  const c10::StorageImpl* const key = storage.unsafeGetStorageImpl();
  std::size_t slot = (reinterpret_cast<std::uintptr_t>(key) >> 4) * 0x9E3779B97F4A7C15u >> 53;
  while (known_[slot].generation == generation_ && known_[slot].storage != key) {
    slot = (slot + 1) % known_.size();
  }
  known_[slot] = {generation_, key};
  return value;
}

bool Recording::captured(const c10::StorageImpl* storage) const {
  std::size_t slot = (reinterpret_cast<std::uintptr_t>(storage) >> 4) * 0x9E3779B97F4A7C15u >> 53;
  for (; known_[slot].generation == generation_; slot = (slot + 1) % known_.size()) {
    if (known_[slot].storage == storage) return true;
  }
  return false;
}

namespace {

// Row-major is the common case, and costs less to say.
void set_geometry(c10::TensorImpl& impl, const host::Geometry& g) {
  const auto rank = static_cast<std::size_t>(g.rank);
  impl.set_sizes_and_strides({g.sizes.data(), rank}, {g.strides.data(), rank});
}

}  // namespace

at::Tensor Recording::make(Value value, const host::Geometry& geometry) {
  const DType dtype = trace.meta(value).dtype;
  const std::int64_t bytes = geometry.empty() ? 0 : geometry.elements() * dtype_bytes(dtype);
  auto storage =
      c10::make_intrusive<LazyStorage>(static_cast<std::size_t>(bytes), *this, value);
  storage->geometry_ = geometry;
  made_.push_back(storage);
  auto impl = c10::make_intrusive<LazyImpl>(std::move(storage),
                                            c10::DispatchKeySet(c10::DispatchKey::CPU),
                                            c10::scalarTypeToTypeMeta(scalar_type(dtype)));
  impl->set_value(value);
  set_geometry(*impl, geometry);
  return at::Tensor(std::move(impl));
}

at::Tensor Recording::view(const at::Tensor& of, Value value, const host::Geometry& geometry,
                           std::int64_t offset) {
  LazyImpl* const from = lazy(of);
  auto impl = c10::make_intrusive<LazyImpl>(
      c10::TensorImpl::VIEW, c10::Storage(from->unsafe_storage()), from->key_set(), from->dtype(),
      from->pending());
  impl->set_storage_offset(from->storage_offset() + offset);
  impl->set_value(value);
  set_geometry(*impl, geometry);
  return at::Tensor(std::move(impl));
}

void Recording::rebind(LazyImpl& tensor, Value value) {
  LazyStorage& storage = *tensor.pending();
  storage.value_ = value;
  ++storage.generation_;
  tensor.set_value(value);
}

void Recording::flush(std::unique_lock<std::mutex>& lock, const char* reason) {
  if (made_.empty() && trace.inputs().empty()) return;
  std::vector<c10::intrusive_ptr<LazyStorage>> live;
  for (auto& storage : made_) {
    if (storage.use_count() > 1) live.push_back(storage);
  }
  Failure failure;
  std::vector<Filled> filled(live.size());
  bool ok = true;
  if (!live.empty()) {
    for (const auto& storage : live) {
      // The dims from the outermost to the innermost, if that is not the order they have.
      std::array<std::int32_t, kMaxRank> order{};
      const host::Geometry& g = storage->geometry_;
      const auto rank = static_cast<std::size_t>(g.rank);
      for (int d = 0; d < g.rank; ++d) order[static_cast<std::size_t>(d)] = d;
      std::stable_sort(order.begin(), order.begin() + g.rank,
                       [&](auto a, auto b) { return g.stride(a) > g.stride(b); });
      host::Geometry dense = g;
      set_dense_strides(dense);
      const bool row_major = g.empty() || std::equal(g.strides.begin(), g.strides.begin() + g.rank,
                                                     dense.strides.begin());
      trace.output(storage->value_, {order.data(), row_major ? 0 : rank});
    }
    engine().count_flush(reason);
    ok = engine().run(trace, filled, at::get_num_threads(), failure);
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    LazyStorage& storage = *live[i];
    if (!ok) {
      storage.failure_ = failure;
      continue;
    }
    storage.set_data_ptr_noswap(at::DataPtr(filled[i].data, filled[i].owner, give_back, kCpu));
    storage.pending_.store(false, std::memory_order_release);
  }
  trace.clear();
  ++generation_;
  // Freed without the lock: what owns the memory of an input may need Python's.
  const auto made = std::exchange(made_, {});
  const auto held = std::exchange(held_, {});
  made_.reserve(made.capacity());
  held_.reserve(held.capacity());
  lock.unlock();
}

}  // namespace tilevm::eager
