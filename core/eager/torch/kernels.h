// What the dispatcher calls for operators below autograd. Included by recorder.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "eager/torch/call.h"
#include "eager/torch/random.h"
#include "eager/torch/record.h"
#include "eager/torch/templates.h"

namespace tilevm::eager {

using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

inline constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, kKey);

// Before an operator that is not recorded: what its operands should hold by now is written.
inline void finish_reads(const Stack& stack, std::size_t n_args) {
  if (C10_LIKELY(!Recording::mine().writes())) return;
  for (std::size_t i = stack.size() - n_args; i < stack.size(); ++i) {
    every_tensor(stack[i], [](const at::Tensor& t) {
      finish_writes(t, "operator not recorded");
      return true;
    });
  }
}

// Before a kernel of somebody else's library, which may reach tensors that are not its operands, or
// write to some that its schema does not say: all that was recorded.
inline void finish_all(const OperatorHandle& op) {
  const auto ns = op.operator_name().getNamespace();
  if (!ns || *ns == "aten" || ns->starts_with("prim") || *ns == "profiler") return;
  Recording& mine = Recording::mine();
  std::unique_lock lock(mine.mutex);
  mine.flush(lock, "operator of a library");
}

inline void redispatch(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & kBelow, stack);
}

// For explain. What has no tensor, or makes a view, is nothing that could be fused.
inline void note_eager(const OperatorHandle& op, const Stack& stack) {
  if (C10_LIKELY(!engine().watching())) return;
  const auto& arguments = op.schema().arguments();
  bool tensors = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const info = arguments[i].alias_info();
    if (info != nullptr && !info->isWrite()) return;
    every_tensor(stack[stack.size() - arguments.size() + i], [&](const at::Tensor& t) {
      tensors = tensors || t.defined();
      return true;
    });
  }
  if (tensors) engine().note_eager(c10::toString(op.operator_name()).c_str());
}

// Runs an operator that is not recorded. What it calls itself is recorded only where it is made of
// operators, not by kernels that do their own work: those take addresses of what they wrote by
// name.
inline void run_eagerly(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  if (composite) return redispatch(op, keys, stack);
  finish_all(op);
  note_eager(op, *stack);
  const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  redispatch(op, keys, stack);
}

class Recorded final : public c10::OperatorKernel {
 public:
  // written: arguments that it writes besides.
  Recorded(Row row, Place place, bool product = false, std::vector<std::size_t> written = {})
      : row_(std::move(row)), place_(place), product_(product), written_(std::move(written)) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const std::size_t n_args = op.schema().arguments().size();
    if (place_ == Place::kFill && untouched(*stack, n_args)) return redispatch(op, keys, stack);
    if (place_ == Place::kInPlace && is_lone_number(*stack, n_args)) {
      return redispatch(op, keys, stack);
    }
    if (C10_LIKELY(record_row(row_, place_, product_, *stack, n_args))) return;
    if (place_ == Place::kNew && written_.empty() && record_template(op, *stack)) return;
    if (place_ == Place::kMaker) return redispatch(op, keys, stack);
    if (in_place(place_)) settle(*stack, n_args);
    for (const std::size_t i : written_) settle(*stack, n_args - i);
    if (place_ == Place::kView) return redispatch(op, keys, stack);
    finish_reads(*stack, n_args);
    run_eagerly(op, keys, stack);
  }

 private:
  static bool is_lone_number(const Stack& stack, std::size_t n_args) {
    const std::size_t first = stack.size() - n_args;
    if (!eager::is_lone_number(stack[first].toTensor())) return false;
    for (std::size_t i = first + 1; i < stack.size(); ++i) {
      if (!every_tensor(stack[i], [](const at::Tensor& t) { return !waits(t); })) return false;
    }
    return true;
  }

  // Whether nothing recorded reads or writes what it writes, nor has to write what it reads.
  static bool untouched(const Stack& stack, std::size_t n_args) {
    Recording& mine = Recording::mine();
    const std::lock_guard lock(mine.mutex);
    const std::size_t first = stack.size() - n_args;
    for (std::size_t i = first; i < stack.size(); ++i) {
      const bool plain = every_tensor(stack[i], [&](const at::Tensor& t) {
        const LazyImpl* const z = lazy(t);
        if (z != nullptr && z->pending() != nullptr) return false;
        return i == first ? !mine.knows(t) : !mine.written(t);
      });
      if (!plain) return false;
    }
    return true;
  }

  // Before an operator writes to memory that was recorded as an operand: the argument that is so
  // many from the end.
  static void settle(const Stack& stack, std::size_t from_end);

  Row row_;
  Place place_;
  bool product_;
  std::vector<std::size_t> written_;
};

inline void Recorded::settle(const Stack& stack, std::size_t from_end) {
  every_tensor(stack[stack.size() - from_end], [](const at::Tensor& t) {
    if (t.defined()) settle_write(t);
    return true;
  });
}

// What writes to its first argument, and was not recorded.
inline void write_eagerly(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  settle_write((*stack)[stack->size() - op.schema().arguments().size()].toTensor());
  run_eagerly(op, keys, stack);
}

// Fills tensors with random numbers.
class Drawn final : public c10::OperatorKernel {
 public:
  explicit Drawn(const Distribution* distribution) : distribution_(*distribution) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (!record_draw(distribution_, *stack)) write_eagerly(op, keys, stack);
  }

 private:
  const Distribution& distribution_;
};

inline void choose_each(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (!record_chances(*stack)) write_eagerly(op, keys, stack);
}

// Of the numbers around each element of a tensor: the operators it is made of are recorded.
inline void normal_around(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::Tensor mean = (*stack)[first].toTensor();
  if (!at::isFloatingType(mean.scalar_type())) return run_eagerly(op, keys, stack);
  const double deviation = (*stack)[first + 1].toDouble();
  const auto generator = (*stack)[first + 2].toOptional<at::Generator>();
  at::Tensor out = at::empty_like(mean, at::MemoryFormat::Contiguous);
  out.normal_(0, deviation, generator).add_(mean);
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(std::move(out));
}

// Operators that write: what they write to may be waiting, or what recorded operators wait for.
class Writing final : public c10::OperatorKernel {
 public:
  explicit Writing(const c10::FunctionSchema& schema) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::AliasInfo* const info = schema.arguments()[i].alias_info();
      if (info != nullptr && info->isWrite()) written_.push_back(i);
    }
  }
  // Where the schema does not say.
  explicit Writing(std::vector<std::size_t> written) : written_(std::move(written)) {}
  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const std::size_t n_args = op.schema().arguments().size();
    for (const std::size_t i : written_) {
      every_tensor((*stack)[stack->size() - n_args + i], [](const at::Tensor& t) {
        settle_write(t);
        return true;
      });
    }
    finish_reads(*stack, n_args);
    finish_all(op);
    note_eager(op, *stack);
    const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
    redispatch(op, keys, stack);
  }

 private:
  std::vector<std::size_t> written_;
};

// The number that a tensor of one holds.
inline void read_number(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const at::Tensor& self = stack->back().toTensor();
  if (!is_plain(self) || self.numel() != 1) return run_eagerly(op, keys, stack);
  finish_writes(self, "looked at");
  const auto number = number_in(self);
  if (!number) return run_eagerly(op, keys, stack);
  stack->back() = *number;
}

// Operators that are given a tensor for their result, where it is of the result's sizes: `plain`
// makes what is copied there, if that is recorded.
class Given final : public c10::OperatorKernel {
 public:
  Given(const c10::FunctionSchema& schema, const OperatorHandle& plain)
      : writing_(schema), plain_(plain) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const std::size_t n_args = op.schema().arguments().size(), first = stack->size() - n_args;
    const at::Tensor out = stack->back().toTensor();
    bool apart = is_plain(out) && dtype_of(out.scalar_type()) != DType::kOpaque;
    for (std::size_t i = first; i + 1 < stack->size(); ++i) {
      apart = apart && every_tensor((*stack)[i], [&](const at::Tensor& t) {
        return is_plain(t) && !overlaps_in_part(out, t);
      });
    }
    if (apart) {
      Stack given(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end() - 1);
      try {
        plain_.redispatchBoxed(keys & kBelow.add(kKey), &given);
      } catch (const c10::Error&) {  // the operator itself says what is wrong, in its own words
        return writing_(op, keys, stack);
      }
      const at::Tensor made = given.back().toTensor();
      if (made.sizes() == out.sizes() && made.scalar_type() == out.scalar_type()) {
        if (!assigned(out, made)) out.copy_(made);
        torch::jit::drop(*stack, n_args);
        stack->emplace_back(out);
        return;
      }
    }
    writing_(op, keys, stack);
  }

 private:
  // As copy_() would record it, without its way through the dispatcher.
  static bool assigned(const at::Tensor& out, const at::Tensor& made) {
    LazyImpl* const z = lazy(made);
    if (z == nullptr) return false;
    Recording& mine = Recording::mine();
    const std::lock_guard lock(mine.mutex);
    const LazyStorage* const storage = z->pending();
    if (storage == nullptr || &storage->recording() != &mine) return false;
    const Value value = z->value();
    try {
      return value != kNoValue && assign(mine, out, value);
    } catch (const Unrecorded&) {
      return false;
    }
  }

  Writing writing_;
  OperatorHandle plain_;
};

// Operators that make a tensor another view of its memory: `view` is the row of the view.
class Turning final : public c10::OperatorKernel {
 public:
  explicit Turning(Row view) : view_(std::move(view)) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const std::size_t first = stack->size() - op.schema().arguments().size();
    const at::Tensor self = (*stack)[first].toTensor();
    Stack given(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
    const std::size_t n_args = given.size();
    if (!record_row(view_, Place::kView, false, given, n_args)) return redispatch(op, keys, stack);
    const at::Tensor made = std::move(given.back()).toTensor();
    LazyImpl& it = *lazy(self);
    const std::lock_guard lock(Recording::mine().mutex);
    // Filled meanwhile by another thread, it holds the same.
    if (it.pending() != nullptr) it.set_value(lazy(made)->value());
    it.set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    torch::jit::drop(*stack, n_args - 1);
  }

 private:
  Row view_;
};

// Every operator without a kernel of ours. Views read nothing.
inline void unrecorded(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (record_template(op, *stack)) return;
  if (C10_UNLIKELY(Recording::mine().writes())) {
    bool view = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    for (const c10::Argument& argument : op.schema().arguments()) {
      view = view || argument.alias_info() != nullptr;
    }
    if (!view) finish_reads(*stack, op.schema().arguments().size());
  }
  run_eagerly(op, keys, stack);
}

// What one of the commonest operators becomes if its operands are complex, which have no rows, and
// one of them waits: else PyTorch's kernel is quicker. Undefined: nothing.
template <class... Arguments>
at::Tensor record_complex(const OperatorHandle& op,
                          std::initializer_list<const at::Tensor*> tensors,
                          const Arguments&... arguments) {
  const auto complex = [](const at::Tensor* t) { return t->is_complex(); };
  if (C10_LIKELY(std::ranges::none_of(tensors, complex))) return {};
  if (std::ranges::none_of(tensors, [](const at::Tensor* t) { return waits(*t); })) return {};
  Stack stack;
  torch::jit::push(stack, arguments...);
  return record_template(op, stack) ? std::move(stack.back()).toTensor() : at::Tensor();
}

}  // namespace tilevm::eager
