// What a thread records, from the first tensor that waits till all are filled.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/COW.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <iterator>

#include "eager/torch/lazy.h"
#include "host/views.h"

namespace tilevm::eager {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

void give_back(void* owner) { engine().release(owner); }

struct Idle {
  std::mutex mutex;
  std::vector<Recording*> recordings;
};
Idle& idle() {
  static auto* const made = new Idle;
  return *made;
}

thread_local Recording* of_thread = nullptr;

// Of a thread that has recorded.
struct AtItsEnd {
  bool alive = true;
  ~AtItsEnd() {
    const std::lock_guard lock(idle().mutex);
    idle().recordings.push_back(of_thread);
  }
};
thread_local AtItsEnd at_its_end;

Recording& first_of_thread() {
  const std::lock_guard lock(idle().mutex);
  if (idle().recordings.empty()) {
    of_thread = new Recording;
  } else {
    of_thread = idle().recordings.back();
    idle().recordings.pop_back();
  }
  at_its_end.alive = true;  // makes it
  return *of_thread;
}

}  // namespace

Recording& Recording::mine() {
  Recording* const mine = of_thread;
  return C10_LIKELY(mine != nullptr) ? *mine : first_of_thread();
}

bool Recording::can_capture(const at::TensorBase& tensor) const {
  // Others may write there without our noticing.
  const c10::Storage& storage = tensor.storage();
  return !(!exported_.empty() && is_exported(storage.data())) && !is_foreign(storage.data_ptr());
}

namespace {

bool is_expanded(const host::Geometry& g, int d) { return g.stride(d) == 0 && g.size(d) > 1; }

bool is_expanded(const host::Geometry& g) {
  for (int d = 0; d < g.rank; ++d) {
    if (is_expanded(g, d)) return true;
  }
  return false;
}

// The tensor that was expanded.
host::Geometry unexpanded(host::Geometry g) {
  for (int d = 0; d < g.rank; ++d) {
    if (is_expanded(g, d)) g.sizes[static_cast<std::size_t>(d)] = 1;
  }
  return g;
}

}  // namespace

Value Recording::current(const at::TensorBase& tensor, DType dtype, const host::Geometry& geometry,
                         std::int64_t first) {
  const std::optional<Value> last = last_write(tensor, dtype, geometry, first);
  if (!last) return kNoValue;
  if (*last != kNoValue) return *last;
  if (!can_capture(tensor)) return kNoValue;
  auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(tensor.const_data_ptr()));
  if (!is_expanded(geometry)) return held_input(tensor.storage(), dtype, geometry, data);
  // What is expanded the program knows as that: products need no copy of it.
  const Value input = held_input(tensor.storage(), dtype, unexpanded(geometry), data);
  const std::span sizes(geometry.sizes.data(), static_cast<std::size_t>(geometry.rank));
  return trace.add(Op::expand, {input}, {Param::sizes(sizes)});
}

Value Recording::held_input(const c10::Storage& storage, DType dtype,
                            const host::Geometry& geometry, std::byte* data) {
  const std::size_t before = trace.inputs().size();
  const Value value = trace.input(dtype, geometry, data);
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

bool Recording::written(const at::TensorBase& tensor) const {
  if (written_.empty()) return false;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return (storage && written_by_storage_.contains(storage.unsafeGetStorageImpl())) ||
         reaches_others(tensor);
}

bool Recording::knows(const at::TensorBase& tensor) const {
  if (written(tensor)) return true;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return (storage && captured(storage.unsafeGetStorageImpl())) ||
         (!held_.empty() && reaches_others(tensor));
}

namespace {

void set_geometry(c10::TensorImpl& impl, const host::Geometry& g) {
  const auto rank = static_cast<std::size_t>(g.rank);
  impl.set_sizes_and_strides({g.sizes.data(), rank}, {g.strides.data(), rank});
}

// Whether what is made now goes to nodes of a backward pass that pass it on. What goes to leaves
// may become their gradient as it is, if nobody else holds it.
bool is_inner_gradient() {
  if (C10_LIKELY(torch::autograd::get_current_graph_task_id() == -1)) return false;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  return std::ranges::all_of(node->next_edges(), [](const torch::autograd::Edge& edge) {
    return edge.function == nullptr || edge.function->num_outputs() > 0;
  });
}

}  // namespace

at::Tensor Recording::make(Value value, const host::Geometry& geometry,
                           const std::optional<at::Scalar>& constant) {
  const DType dtype = trace.meta(value).dtype;
  const std::int64_t bytes = geometry.empty() ? 0 : geometry.elements() * dtype_bytes(dtype);
  auto storage = c10::make_intrusive<LazyStorage>(static_cast<std::size_t>(bytes), *this, value);
  storage->geometry_ = geometry;
  if (C10_UNLIKELY(constant.has_value())) {
    storage->constant_ = constant;
    storage->constant_type_ = scalar_type(dtype);
  }
  (constant ? constants_ : made_).push_back(storage);
  auto impl =
      c10::make_intrusive<LazyImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                    c10::scalarTypeToTypeMeta(scalar_type(dtype)));
  impl->set_value(value);
  set_geometry(*impl, geometry);
  if (C10_UNLIKELY(!constant && is_inner_gradient())) {
    gradients_.emplace_back(made_.size() - 1, impl);
  }
  return at::Tensor(std::move(impl));
}

at::Tensor Recording::view(const at::Tensor& of, Value value, const host::Geometry& geometry,
                           std::int64_t offset, bool complex) {
  LazyImpl* const from = lazy(of);
  const at::ScalarType part = scalar_type(trace.meta(value).dtype);
  const at::ScalarType type = complex ? c10::toComplexType(part) : part;
  auto impl = c10::make_intrusive<LazyImpl>(
      c10::TensorImpl::VIEW, c10::Storage(from->unsafe_storage()), from->key_set(),
      c10::scalarTypeToTypeMeta(type), from->pending());
  impl->set_storage_offset((from->first() + offset) / (complex ? 2 : 1));
  set_geometry(*impl, complex ? complex_of(geometry) : geometry);
  impl->set_value(value);
  return at::Tensor(std::move(impl));
}

bool Recording::can_assign(const at::TensorBase& tensor, DType dtype) const {
  if (const LazyImpl* const z = lazy(tensor)) {
    if (const LazyStorage* const memory = z->pending()) {
      return &memory->recording() == this && !memory->failed();
    }
  }
  return tensor.dim() <= kMaxRank &&
         !tensor.unsafeGetTensorImpl()->is_wrapped_number() && can_capture(tensor) &&
         last_write(tensor, dtype, geometry_of(tensor), tensor.storage_offset()).has_value();
}

bool Recording::assign(const at::TensorBase& tensor, Value value) {
  if (LazyImpl* const z = lazy(tensor)) {
    if (LazyStorage* const memory = z->pending()) {
      const host::Geometry g = z->geometry(), &whole = memory->geometry_;
      const bool all = z->spans() || reshaped(g, z->first(), whole);
      // What is filled part by part is filled where it is, not part by part elsewhere.
      if (!all && memory->constant_) {
        fill_constant(*memory);
        return assign(tensor, value);
      }
      if (memory->constant_) no_constant(*memory);
      if (all) {
        memory->value_ =
            z->spans() ? value : trace.add(Op::reshape, {value}, {Param::sizes(whole.shape())});
        memory->parts_.clear();
        memory->whole_ = ++memory->generation_;
      } else {
        if (!box_of(g, z->first(), whole)) return false;
        memory->parts_.push_back({value, g, z->first(), ++memory->generation_});
      }
      z->set_value(value);
      return true;
    }
  }
  Write write;
  write.geometry = geometry_of(tensor);
  write.offset = tensor.storage_offset();
  write.value = value;
  write.dtype = trace.meta(value).dtype;
  if (!no_overlap(write.geometry)) return false;
  write.storage = tensor.storage();
  std::vector<std::size_t>& of = written_by_storage_[write.storage.unsafeGetStorageImpl()];
  for (const std::size_t i : of) {
    Write& known = written_[i];
    // The last write to this memory, if it is to the same part, has no meaning any more.
    if (i == of.back() && known.offset == write.offset && known.dtype == write.dtype &&
        same(known.geometry, write.geometry)) {
      known.value = value;
      return true;
    }
  }
  of.push_back(written_.size());
  written_.push_back(std::move(write));
  writes_.store(true, std::memory_order_relaxed);
  return true;
}

std::optional<Value> Recording::last_write(const at::TensorBase& tensor, DType dtype,
                                           const host::Geometry& geometry,
                                           std::int64_t first) const {
  if (C10_LIKELY(written_.empty())) return kNoValue;
  const auto found = written_by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == written_by_storage_.end()) return kNoValue;
  for (auto i = found->second.rbegin(); i != found->second.rend(); ++i) {
    const Write& write = written_[*i];
    if (write.dtype != dtype) return std::nullopt;
    if (write.offset == first && same(write.geometry, geometry)) return write.value;
    if (!apart(geometry, first, write.geometry, write.offset)) return std::nullopt;
  }
  return kNoValue;
}

namespace {

// That a value is wanted, its dims from the outermost to the innermost as `g` has them.
void want(Trace& trace, Value value, const host::Geometry& g) {
  if (g.row_major()) return trace.output(value, {});
  std::vector<std::int32_t> order(static_cast<std::size_t>(g.rank));
  for (int d = 0; d < g.rank; ++d) order[static_cast<std::size_t>(d)] = d;
  std::ranges::stable_sort(order, [&](auto a, auto b) { return g.stride(a) > g.stride(b); });
  trace.output(value, order);
}

// Copies what was computed for a part of `memory`, and gives it back.
void write_part(const Written& part, const Filled& from, std::byte* memory, int item_bytes) {
  host::Record source, target;
  static_cast<host::Geometry&>(source) = part.geometry;
  static_cast<host::Geometry&>(target) = part.geometry;
  set_dense_strides(source);
  source.data = from.data;
  target.data = memory + part.offset * item_bytes;
  if (!same(source, target)) {
    host::copy(source, target, item_bytes, at::get_num_threads());
  } else if (!source.empty()) {
    std::memcpy(target.data, source.data, static_cast<std::size_t>(source.elements() * item_bytes));
  }
  engine().release(from.owner);
}

// Which products want to know.
int wanted_pieces() noexcept try {
  switch (at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL)) {
    case at::Float32Precision::TF32:
      return exec::gemm::kHighPieces;
    case at::Float32Precision::BF16:
      return exec::gemm::kMediumPieces;
    default:
      return exec::gemm::kMostPieces;
  }
} catch (const c10::Error&) {
  return exec::gemm::kMostPieces;
}

Wanted wanted() { return {at::get_num_threads(), wanted_pieces}; }

}  // namespace

// Where running failed because of what an operator was given, each of the results is computed by
// itself, and only those that need that operator fail.
std::vector<Failure> Recording::retry(const Failure& failure, std::span<Filled> filled) {
  std::vector<Failure> failures(filled.size(), failure);
  using Kind = Failure::Kind;
  if (failure.kind != Kind::kIndex && failure.kind != Kind::kDivision) return failures;
  std::size_t i = 0;
  const Wanted now = wanted();
  const auto alone = [&](Value value, const host::Geometry* geometry) {
    trace.drop_outputs();
    if (geometry != nullptr) {
      want(trace, value, *geometry);
    } else {
      trace.output(value, {});
    }
    Failure own;
    engine().run(trace, filled.subspan(i, 1), now, own);
    failures[i++] = own;
  };
  for (const auto& storage : live_) {
    alone(storage->value_, &storage->geometry_);
    for (const Written& part : storage->parts_) alone(part.value, nullptr);
  }
  for (const Write& write : written_) alone(write.value, nullptr);
  return failures;
}

// One among those that are filled when all of them are.
void Recording::no_constant(LazyStorage& storage) {
  const auto found = std::ranges::find(constants_, &storage, [](auto& s) { return s.get(); });
  made_.push_back(std::move(*found));
  *found = std::move(constants_.back());
  constants_.pop_back();
  storage.constant_.reset();
}

void Recording::fill_constant(LazyStorage& storage) {
  storage.fill_with_constant();
  const auto found = std::ranges::find(constants_, &storage, [](auto& s) { return s.get(); });
  std::swap(*found, constants_.back());
  constants_.pop_back();
}

// Before anything else that a flush does: here memory may lack.
void Recording::fill_constants() {
  for (const auto& storage : constants_) {
    if (storage->pending() && storage.use_count() > 1) storage->fill_with_constant();
  }
}

// Writes to memory that only the recording holds: nobody could read them.
void Recording::drop_dead_writes() {
  constexpr std::size_t kFewHolders = 3;
  const auto is_dead = [&](const Write& write) {
    if (write.storage.use_count() > kFewHolders) return false;
    const c10::StorageImpl* const memory = write.storage.unsafeGetStorageImpl();
    const auto inputs = std::ranges::count_if(
        held_, [&](const c10::Storage& held) { return held.unsafeGetStorageImpl() == memory; });
    const std::size_t writes = written_by_storage_.at(memory).size();
    return write.storage.use_count() == writes + static_cast<std::size_t>(inputs);
  };
  if (std::ranges::none_of(written_, is_dead)) return;
  std::vector<Write> kept;
  for (Write& write : written_) (is_dead(write) ? dead_ : kept).push_back(std::move(write));
  written_ = std::move(kept);
}

// What operators in place made is written to the memory of their tensors by the program itself,
// which knows that memory as an input.
void Recording::capture_targets() {
  targets_.assign(written_.size(), kNoValue);
  for (std::size_t i = 0; i < written_.size(); ++i) {
    const Write& write = written_[i];
    // (To write to memory that is shared until somebody writes gives it another address.)
    if (trace.meta(write.value).weak || c10::impl::cow::is_cow_data_ptr(write.storage.data_ptr())) {
      continue;
    }
    auto* memory = static_cast<std::byte*>(write.storage.mutable_data());
    try {
      targets_[i] = trace.input(write.dtype, write.geometry,
                                memory + write.offset * dtype_bytes(write.dtype));
    } catch (const Unrecorded&) {
      break;  // too many inputs
    }
  }
}

void Recording::want_writes() {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    if (targets_[i] == kNoValue) {
      trace.output(written_[i].value, {});
    } else {
      trace.output_to(written_[i].value, targets_[i]);
    }
  }
}

void Recording::flush(std::unique_lock<std::mutex>& lock, const char* reason) {
  using Kind = Failure::Kind;
  if (made_.empty() && trace.inputs().empty() && trace.empty()) return;
  live_.clear();
  fill_constants();
  drop_dead_writes();
  capture_targets();
  auto gradient = gradients_.begin();
  for (std::size_t i = 0; i < made_.size(); ++i) {
    const auto& storage = made_[i];
    const bool of_gradient = gradient != gradients_.end() && gradient->first == i;
    // Of a gradient, the tensor that is held here holds it, too.
    const bool alone = of_gradient && (gradient++)->second.use_count() == 1;
    if (storage.use_count() == (alone ? 2 : 1)) continue;
    want(trace, storage->value_, storage->geometry_);
    for (const Written& part : storage->parts_) trace.output(part.value, {});
    live_.push_back(storage.get());
  }
  want_writes();
  filled_.assign(trace.n_outputs(), {});
  std::vector<Failure> failures;  // none: all is well
  if (!filled_.empty()) {
    engine().count_flush(reason);
    Failure failure;
    if (!engine().run(trace, filled_, wanted(), failure)) {
      failures = retry(failure, filled_);
    }
  }
  const auto failure_of = [&](std::size_t i) -> const Failure& {
    static const auto* const none = new Failure;  // never destroyed: threads may be in here
    return failures.empty() ? *none : failures[i];
  };
  std::size_t next = 0;
  for (const auto& storage : live_) {
    const std::size_t own = next++;
    Failure failure = failure_of(own);
    const int item = storage->parts_.empty() ? 0 : dtype_bytes(trace.meta(storage->value_).dtype);
    for (const Written& part : storage->parts_) {
      const std::size_t i = next++;
      if (failure.kind == Kind::kNone) failure = failure_of(i);
      if (failure_of(i).kind == Kind::kNone && failure_of(own).kind == Kind::kNone) {
        write_part(part, filled_[i], filled_[own].data, item);
      }
    }
    storage->parts_.clear();
    if (failure.kind != Kind::kNone) {
      storage->failure_ = failure;
      continue;
    }
    storage->set_data_ptr_noswap(
        at::DataPtr(filled_[own].data, filled_[own].owner, give_back, kCpu));
    storage->pending_.store(false, std::memory_order_release);
  }
  Failure lost;  // of a write to a tensor that does not wait: nobody would see it otherwise
  for (const Write& write : written_) {
    const std::size_t i = next++;
    if (failure_of(i).kind != Kind::kNone) {
      lost = failure_of(i);
    } else if (filled_[i].owner != nullptr) {
      write_part(write, filled_[i], static_cast<std::byte*>(write.storage.mutable_data()),
                 dtype_bytes(write.dtype));
    }
  }
  trace.clear();
  ++generation_;
  if (!written_by_storage_.empty()) {
    written_by_storage_.clear();
    writes_.store(false, std::memory_order_relaxed);
  }
  // Freed without the lock: what owns the memory of an input may need Python's.
  Gone own;
  const bool shared = !freeing_.load(std::memory_order_acquire);
  Gone& gone = shared ? gone_ : own;
  if (shared) freeing_.store(true, std::memory_order_relaxed);
  gone.made.swap(made_);
  gone.constants.swap(constants_);
  gone.gradients.swap(gradients_);
  gone.held.swap(held_);
  gone.written.swap(written_);
  gone.dead.swap(dead_);
  lock.unlock();
  gone.clear();
  if (shared) freeing_.store(false, std::memory_order_release);
  if (lost.kind != Kind::kNone) raise(lost);
}

void Recording::Gone::clear() {
  made.clear();
  constants.clear();
  gradients.clear();
  held.clear();
  written.clear();
  dead.clear();
}

void Recording::exported(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  if (!storage) return;
  try {
    if (LazyImpl* const z = lazy(tensor)) z->has_storage();
  } catch (const c10::Error&) {
    return;  // what is called next raises it
  }
  std::unique_lock lock(mutex);
  if (knows(tensor)) flush(lock, "memory looked at");
  if (!lock.owns_lock()) lock.lock();
  if (exported_.size() >= most_exports_) drop_unused_exports();
  const auto* first = static_cast<const std::byte*>(storage.data());
  // Empty memory may lie where other memory begins, whose place it must not take.
  if (first == nullptr || storage.nbytes() == 0) return;
  Exported made;
  made.end = first + storage.nbytes();
  made.storages.emplace_back(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
  // One with what it overlaps.
  auto next = exported_.upper_bound(first);
  if (next != exported_.begin() && std::prev(next)->second.end > first) --next;
  while (next != exported_.end() && next->first < made.end) {
    first = std::min(first, next->first);
    made.end = std::max(made.end, next->second.end);
    for (auto& known : next->second.storages) {  // memory may be exported again and again
      if (known != made.storages.front() && !known.expired())
        made.storages.push_back(std::move(known));
    }
    next = exported_.erase(next);
  }
  exported_.emplace(first, std::move(made));
}

// Somebody holds it still.
bool Recording::Exported::lives() const {
  return !std::ranges::all_of(storages, [](const auto& storage) { return storage.expired(); });
}

void Recording::drop_unused_exports() {
  std::erase_if(exported_, [](const auto& entry) { return !entry.second.lives(); });
  most_exports_ = std::max(kFewExports, 2 * exported_.size());
}

bool Recording::is_exported(const void* data) const {
  const auto* place = static_cast<const std::byte*>(data);
  const auto next = exported_.upper_bound(place);
  if (next == exported_.begin()) return false;
  const Exported& found = std::prev(next)->second;
  return place < found.end && found.lives();
}

void Recording::end_block(bool quietly) {
  decltype(exported_) gone;  // freed without the lock
  try {
    std::unique_lock lock(mutex);
    gone.swap(exported_);
    flush(lock, "end of the block");
  } catch (...) {
    if (!quietly) throw;
  }
}

}  // namespace tilevm::eager
