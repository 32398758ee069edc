// Tensors that are filled when somebody looks. They are ordinary tensors of the CPU; only their
// `has_storage()` and `storage()`, which everything asks before it touches memory, first run what
// was recorded.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "eager/engine.h"
#include "eager/spares.h"
#include "eager/torch/parts.h"

namespace tilevm::eager {

class Recording;

// A part of some memory that an operator in place gave another value.
struct Written {
  Value value = kNoValue;
  host::Geometry geometry;
  std::int64_t offset = 0;  // elements from the start of the memory
  std::uint32_t generation = 0;
};

// Memory of one recorded result. Everything but `pending` is guarded by the recording's mutex until
// it is filled, and constant afterwards.
class LazyStorage final : public c10::StorageImpl {
 public:
  LazyStorage(std::size_t bytes, Recording& recording, Value value);

  static void* operator new(std::size_t bytes) { return Spares<LazyStorage, 256>::take(bytes); }
  static void operator delete(void* memory) noexcept { Spares<LazyStorage, 256>::give(memory); }

  // Runs what was recorded, if this is not filled yet. Throws what running threw.
  void fill(const char* reason) {
    if (C10_UNLIKELY(pending_.load(std::memory_order_acquire))) fill_slowly(reason);
  }
  bool pending() const { return pending_.load(std::memory_order_acquire); }
  bool failed() const { return failure_.kind != Failure::Kind::kNone; }
  Recording& recording() const { return *recording_; }

 private:
  friend class Recording;
  friend class LazyImpl;
  void fill_slowly(const char* reason);
  void fill_with_constant();

  std::atomic<bool> pending_{true};
  Recording* recording_;
  Value value_;                   // what it will hold, but for `parts_`
  host::Geometry geometry_;       // of `value_` in this memory, dense
  std::uint32_t generation_ = 0;  // how often an operator in place gave it another value
  std::uint32_t whole_ = 0;       // when `value_` was set
  std::vector<Written> parts_;    // later ones win
  // What all elements are, of a dtype that has it: nothing has to run for those.
  std::optional<at::Scalar> constant_;
  at::ScalarType constant_type_ = at::ScalarType::Undefined;
  Failure failure_;
};

class LazyImpl final : public c10::TensorImpl {
 public:
  // The tensor that the memory was made for, or a view of it.
  LazyImpl(c10::intrusive_ptr<LazyStorage> storage, c10::DispatchKeySet keys,
           caffe2::TypeMeta type);
  LazyImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta type,
           LazyStorage* lazy);

  static void* operator new(std::size_t bytes) { return Spares<LazyImpl, 64>::take(bytes); }
  static void operator delete(void* memory) noexcept { Spares<LazyImpl, 64>::give(memory); }

  bool has_storage() const override {
    look();
    return storage_;
  }
  const c10::Storage& storage() const override {
    look();
    return TensorImpl::storage();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

  // The unfilled memory that it lies in, or null.
  LazyStorage* pending() const {
    return storage_.unsafeGetStorageImpl() == lazy_ && lazy_->pending() ? lazy_ : nullptr;
  }
  // Under the recording's mutex: what it holds; kNoValue for a view of memory that has changed in
  // a way that it is not known for, and for complex numbers.
  Value value() { return is_complex() ? kNoValue : held(); }
  // The same of complex numbers: their parts, along one more dim.
  Value pairs() { return is_complex() ? held() : kNoValue; }
  void set_value(Value value);
  bool spans() const;  // its memory, all of it, as it was made
  // In elements of the memory, which are the parts of complex numbers.
  host::Geometry geometry() const;
  bool is_complex() const { return c10::isComplexType(c10::typeMetaToScalarType(data_type_)); }
  std::int64_t first() const { return storage_offset() * (is_complex() ? 2 : 1); }

 private:
  void look() const {
    if (storage_.unsafeGetStorageImpl() == lazy_) lazy_->fill("looked at");
  }
  Value held();
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const;

  LazyStorage* lazy_;
  Value value_ = kNoValue;
  std::uint32_t generation_ = 0;
};

// The tensor as one of ours, or null.
extern const void* const lazy_vtable;
inline LazyImpl* lazy(const at::TensorBase& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return *reinterpret_cast<const void* const*>(impl) == lazy_vtable ? static_cast<LazyImpl*>(impl)
                                                                    : nullptr;
}

host::Geometry geometry_of(const at::TensorBase& tensor);
// Of the parts of complex numbers, which lie beside each other, and back.
host::Geometry parts_of(host::Geometry complex);
host::Geometry complex_of(host::Geometry parts);

// Whether a number is one of `type`'s, rounded if need be: PyTorch's kernels raise where it is not.
bool fits(double number, at::ScalarType type);
bool fits(std::int64_t number, at::ScalarType type);
// What a number becomes beside tensors of a type: bools take its kind.
inline at::ScalarType beside(double, at::ScalarType type) {
  return type == at::kBool ? at::kFloat : type;
}
inline at::ScalarType beside(std::int64_t, at::ScalarType type) { return type; }

// The number in a tensor of one, whose memory holds what it should; nothing if kernels have no such
// numbers.
std::optional<at::Scalar> number_in(const at::TensorBase& tensor);

// As PyTorch's own error.
[[noreturn]] void raise(const Failure& failure);

// Memory that NumPy, a buffer of Python or another library owns, which writes to it as it likes.
bool is_foreign(const at::DataPtr& memory);

// Whether its elements may lie in memory of other tensors without our knowing: memory that is not
// PyTorch's own, as NumPy's, and what sparse tensors consist of.
bool reaches_others(const at::TensorBase& tensor);

// What a thread has recorded. Never freed: when a thread ends, the next new one takes it over.
class Recording {
 public:
  static Recording& mine();

  std::mutex mutex;

  // All of the following under the mutex.

  Trace trace;
  // A new tensor that will hold `value`, laid out as `geometry` says, which is dense; `constant`:
  // what all its elements are.
  at::Tensor make(Value value, const host::Geometry& geometry,
                  const std::optional<at::Scalar>& constant = std::nullopt);
  // A view of a tensor of ours that is pending, in elements of its memory; `complex`: as numbers of
  // which these are the parts.
  at::Tensor view(const at::Tensor& of, Value value, const host::Geometry& geometry,
                  std::int64_t offset, bool complex = false);
  // Whether assign() may be asked for a tensor, which must be pending or plain: what it holds is
  // known or nobody else's.
  bool can_assign(const at::TensorBase& tensor, DType dtype) const;
  // Gives it another value of its sizes and dtype. False if its memory is too intricate: nothing
  // has happened.
  bool assign(const at::TensorBase& tensor, Value value);
  // The value that operators in place gave a plain tensor, or that its memory holds, which must not
  // change until the trace has run; the tensor as `geometry` from element `first` of its memory on.
  Value current(const at::TensorBase& tensor, DType dtype, const host::Geometry& geometry,
                std::int64_t first);
  // Whether the memory of a plain tensor waits to be written.
  bool written(const at::TensorBase& tensor) const;
  // Whether that of any does.
  bool writes() const { return writes_.load(std::memory_order_relaxed); }
  bool captured(const c10::StorageImpl* storage) const;
  // Whether recorded operators read or write the memory of a tensor that does not wait.
  bool knows(const at::TensorBase& tensor) const;

  // That others have the address of a tensor's memory until the block ends. Not under the mutex.
  void exported(const at::TensorBase& tensor);
  // Runs everything. Not under the mutex. quietly: errors wait until somebody looks.
  void end_block(bool quietly);

  // Runs everything; gives the lock back before it frees what it held on to.
  void flush(std::unique_lock<std::mutex>& lock, const char* reason);

 private:
  friend class LazyStorage;
  struct Known {
    std::uint32_t generation = 0;
    const c10::StorageImpl* storage = nullptr;
  };
  // A plain tensor that operators in place have written to.
  struct Write : Written {
    c10::Storage storage;
    DType dtype{};
  };

  bool can_capture(const at::TensorBase& tensor) const;
  // A tensor in memory that is kept until the trace has run.
  Value held_input(const c10::Storage& storage, DType dtype, const host::Geometry& geometry,
                   std::byte* data);
  // What the last write to the elements of a plain tensor was, kNoValue if there is none; nothing
  // if they are known only in part.
  std::optional<Value> last_write(const at::TensorBase& tensor, DType dtype,
                                  const host::Geometry& geometry, std::int64_t first) const;
  // Fills what is one number alone. Under the mutex.
  void fill_constant(LazyStorage& storage);
  void fill_constants();
  void no_constant(LazyStorage& storage);
  void drop_dead_writes();
  void capture_targets();
  void want_writes();
  std::vector<Failure> retry(const Failure& failure, std::span<Filled> filled);

  // Memory by its first byte, none within another: tensors may be made of what was exported.
  struct Exported {
    const std::byte* end = nullptr;
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    bool lives() const;
  };
  std::map<const std::byte*, Exported> exported_;
  bool is_exported(const void* data) const;
  void drop_unused_exports();
  static constexpr std::size_t kFewExports = 64;
  std::size_t most_exports_ = kFewExports;  // before those that nobody holds any more are dropped
  std::vector<c10::intrusive_ptr<LazyStorage>> made_;
  std::vector<c10::intrusive_ptr<LazyStorage>> constants_;  // made of one number, not in `made_`
  // Tensors made in a backward pass, by position in `made_`, so that autograd, where it adds
  // gradients, sees that it is not the only one to hold them, and does not ask for their memory.
  std::vector<std::pair<std::size_t, c10::intrusive_ptr<c10::TensorImpl>>> gradients_;
  std::vector<LazyStorage*> live_;  // of a flush: those of `made_` that somebody still holds
  std::vector<Filled> filled_;      // ... and their memory
  std::vector<c10::Storage> held_;  // memory of inputs
  std::vector<Write> written_;      // later ones win
  std::vector<Value> targets_;      // of a flush: the inputs that these are
  std::unordered_map<const c10::StorageImpl*, std::vector<std::size_t>> written_by_storage_;
  std::vector<Write> dead_;  // were in `written_`
  // What a flush has done with. Kept empty for the next one, which then allocates nothing; another
  // has its own while `freeing_`.
  struct Gone {
    decltype(made_) made, constants;
    decltype(gradients_) gradients;
    decltype(held_) held;
    decltype(written_) written, dead;
    void clear();
  };
  Gone gone_;
  std::atomic<bool> freeing_{false};
  std::atomic<bool> writes_{false};
  std::vector<Known> known_ = std::vector<Known>(2048);
  std::uint32_t generation_ = 1;
};

Engine& engine();
void set_engine(Engine* engine);

at::ScalarType scalar_type(DType dtype);
DType dtype_of(at::ScalarType type);  // kOpaque: none of ours

}  // namespace tilevm::eager
