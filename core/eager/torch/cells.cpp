// Recurrent cells, recorded whole. Source: PyTorch, ATen/native/RNN.cpp.
#include <algorithm>

#include "eager/torch/record.h"

namespace tilevm::eager {
namespace {

// Whether operands are those of a cell of `gates` gates over batches of rows, whose results lie row
// by row.
bool is_cell(std::int64_t gates, const at::Tensor& x, const at::Tensor& h, const at::Tensor& w_ih,
             const at::Tensor& w_hh, const at::Tensor* b_ih, const at::Tensor* b_hh) {
  for (const at::Tensor* t : {&x, &h, &w_ih, &w_hh}) {
    if (!is_plain(*t) || t->dim() != 2 || t->numel() == 0 || !can_multiply(x, *t)) return false;
  }
  const std::int64_t all = gates * h.size(1);
  if (x.size(0) != h.size(0) || w_ih.size(0) != all || w_hh.size(0) != all ||
      w_ih.size(1) != x.size(1) || w_hh.size(1) != h.size(1) || !h.is_contiguous()) {
    return false;
  }
  return std::ranges::all_of(std::array{b_ih, b_hh}, [&](const at::Tensor* b) {
    return b == nullptr || (is_plain(*b) && b->dim() == 1 && b->size(0) == all &&
                            b->scalar_type() == x.scalar_type());
  });
}

Value gate(Trace& trace, Value gates, std::int64_t i, std::int64_t width) {
  if (width == 1) {  // for certain
    const Value column =
        trace.add(Op::select, {gates}, {Param::integer(1), Param::size(i)});
    return trace.add(Op::unsqueeze, {column}, {Param::integer(1)});
  }
  return trace.add(
      Op::slice, {gates},
      {Param::integer(1), Param::size(i * width), Param::size((i + 1) * width), Param::integer(1)});
}

// The values of all; nothing if one of them cannot be recorded.
std::vector<Value> values_of(Recording& mine, std::initializer_list<const at::Tensor*> tensors) {
  std::vector<Value> values;
  for (const at::Tensor* t : tensors) {
    values.push_back(t == nullptr ? kNoValue : value_of(mine, *t));
    if (t != nullptr && values.back() == kNoValue) return {};
  }
  return values;
}

}  // namespace

at::Tensor record_gru_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& w_ih,
                           const at::Tensor& w_hh, const at::Tensor* b_ih,
                           const at::Tensor* b_hh) {
  if (!is_cell(3, x, h, w_ih, w_hh, b_ih, b_hh)) return {};
  Recording& mine = Recording::mine();
  const std::initializer_list<const at::Tensor*> operands{&x, &h, &w_ih, &w_hh, b_ih, b_hh};
  for (const at::Tensor* t : operands) {
    if (t != nullptr) fill_foreign(mine, *t);
  }
  std::unique_lock lock(mine.mutex);
  begin_product(mine, lock);
  try {
    const std::vector<Value> v = values_of(mine, operands);
    if (v.empty()) return {};
    Trace& trace = mine.trace;
    const std::int64_t width = h.size(1);
    const Value in = product_of_rows(trace, v[0], v[2], v[4]);
    const Value back = product_of_rows(trace, v[1], v[3], v[5]);
    const auto part = [&](Value gates, std::int64_t i) { return gate(trace, gates, i, width); };
    const auto open = [&](std::int64_t i) {
      return trace.add(Op::sigmoid, {trace.add(Op::add, {part(back, i), part(in, i)})});
    };
    const Value reset = open(0), update = open(1);
    const Value kept = trace.add(Op::mul, {part(back, 2), reset});
    const Value made = trace.add(Op::tanh, {trace.add(Op::add, {part(in, 2), kept})});
    const Value moved = trace.add(Op::mul, {trace.add(Op::sub, {v[1], made}), update});
    const Value next = trace.add(Op::add, {moved, made});
    at::Tensor result = mine.make(next, dense_geometry(trace.meta(next)));
    // PyTorch multiplies and adds in place.
    for (int i = 0; i < 2; ++i) result.unsafeGetTensorImpl()->bump_version();
    return result;
  } catch (const Unrecorded&) {
    return {};
  }
}

std::vector<at::Tensor> record_lstm_cell(const at::Tensor& x, const at::Tensor& h,
                                         const at::Tensor& c, const at::Tensor& w_ih,
                                         const at::Tensor& w_hh, const at::Tensor* b_ih,
                                         const at::Tensor* b_hh) {
  if (!is_cell(4, x, h, w_ih, w_hh, b_ih, b_hh) || !is_plain(c) || !c.is_contiguous() ||
      c.sizes() != h.sizes() || c.scalar_type() != h.scalar_type()) {
    return {};
  }
  Recording& mine = Recording::mine();
  const std::initializer_list<const at::Tensor*> operands{&x, &h, &w_ih, &w_hh, b_ih, b_hh, &c};
  for (const at::Tensor* t : operands) {
    if (t != nullptr) fill_foreign(mine, *t);
  }
  std::unique_lock lock(mine.mutex);
  begin_product(mine, lock);
  try {
    const std::vector<Value> v = values_of(mine, operands);
    if (v.empty()) return {};
    Trace& trace = mine.trace;
    const Value back = product_of_rows(trace, v[1], v[3], v[5]);
    const Value gates = trace.add(Op::add, {back, product_of_rows(trace, v[0], v[2], v[4])});
    const auto part = [&](Op op, std::int64_t i) {
      return trace.add(op, {gate(trace, gates, i, h.size(1))});
    };
    const Value in = part(Op::sigmoid, 0), forget = part(Op::sigmoid, 1);
    const Value made = part(Op::tanh, 2), out = part(Op::sigmoid, 3);
    const Value kept = trace.add(Op::mul, {forget, v[6]});
    const Value cell = trace.add(Op::add, {kept, trace.add(Op::mul, {in, made})});
    const Value state = trace.add(Op::mul, {out, trace.add(Op::tanh, {cell})});
    at::Tensor next = mine.make(state, dense_geometry(trace.meta(state)));
    at::Tensor next_cell = mine.make(cell, dense_geometry(trace.meta(cell)));
    next_cell.unsafeGetTensorImpl()->bump_version();  // PyTorch adds in place
    return {std::move(next), std::move(next_cell)};
  } catch (const Unrecorded&) {
    return {};
  }
}

}  // namespace tilevm::eager
