// What is recorded for losses and their gradients.
#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

enum Reduction : std::int64_t { kNone, kMean, kSum };

Value reduced(Call& c, Value x, std::int64_t reduction) {
  if (reduction == kNone) return x;
  Axes over;
  for (int d = 0; d < c.meta(x).rank; ++d) over.push_back(d);
  return c.op(reduction == kMean ? Op::mean : Op::sum, {x}, {axes(over), Param::integer(0)});
}

// Of each row of `self`, [N, C], with a class each in `target`, [N].
struct Classes {
  Value x, target, ignored;  // the latter two [N, 1]
  std::int64_t count;        // C
};
Classes classes_of(Call& c, std::size_t self, std::size_t target, std::size_t weight,
                   std::size_t ignore) {
  const Value x = c.value(self);
  Value t = c.value(target);
  const Meta &m = c.meta(x), &k = c.meta(t);
  if (!c.none(weight)) Call::refuse("weights of classes");
  if (!is_float(m.dtype) || m.rank != 2 || k.rank != 1 || k.dtype != DType::kInt64 ||
      k.size(0) != m.size(0) || m.elements() == 0) {
    Call::refuse("other ranks or dtypes, or no elements");
  }
  const std::int64_t count = m.size(1);
  const Axes column{m.size(0), 1};
  t = c.op(Op::reshape, {t}, {Param::sizes(column)});
  return {x, t, c.op(Op::eq, {t, c.trace().number(c.integer(ignore))}), count};
}

// self, target, weight, reduction, ignore_index -> the loss, and how many rows it is the mean of.
void nll_loss(Call& c) {
  if (c.integer(3) == kNone) Call::refuse("the loss of each row");
  const Classes of = classes_of(c, 0, 1, 2, 4);
  const DType dtype = c.meta(of.x).dtype;
  const Value none = c.trace().constant(0);
  const Value place = c.op(Op::where, {of.ignored, c.trace().number(std::int64_t{0}), of.target});
  const Value chosen = c.op(Op::gather, {of.x, place}, {Param::integer(1)});
  const Value losses = c.op(Op::where, {of.ignored, none, c.op(Op::neg, {chosen})});
  const Value total = reduced(c, losses, kSum);
  const Value counted = c.op(Op::where, {of.ignored, none, c.trace().constant(1)});
  const Value rows = reduced(c, c.trace().cast(counted, dtype), kSum);
  c.contiguous(c.integer(3) == kMean ? c.op(Op::div, {total, rows}) : total);
  c.contiguous(rows);
}

// grad, self, target, weight, reduction, ignore_index, total_weight: without a scatter, so that
// what reads the gradient is computed with it.
void nll_loss_backward(Call& c) {
  if (c.integer(4) == kNone) Call::refuse("the loss of each row");
  const Classes of = classes_of(c, 1, 2, 3, 5);
  Value g = c.value(std::size_t{0});
  if (c.meta(g).rank != 0 || c.meta(g).dtype != c.meta(of.x).dtype) Call::refuse("a gradient");
  if (c.integer(4) == kMean) g = c.op(Op::div, {g, c.value(6)});
  const Value place = c.op(Op::iota, {}, {Param::size(of.count), Param::size(0), Param::size(1)});
  const Value hit = c.op(Op::logical_and, {c.op(Op::eq, {place, of.target}),
                                           c.op(Op::logical_not, {of.ignored})});
  const Value r = c.op(Op::where, {hit, c.op(Op::neg, {g}), c.trace().constant(0)});
  c.contiguous(c.trace().cast(r, c.meta(of.x).dtype));
}

void mse_loss(Call& c) {  // self, target, reduction
  const Value x = c.value(std::size_t{0}), y = c.value(1);
  if (!is_float(c.meta(x).dtype) || c.meta(x).dtype != c.meta(y).dtype) Call::refuse("dtypes");
  const Value away = c.op(Op::sub, {x, y});
  const Value squares = c.op(Op::mul, {away, away});
  if (c.integer(2) == kNone) return c.elementwise(squares);
  if (c.meta(squares).rank == 0 || c.meta(squares).elements() == 0) Call::refuse("few elements");
  c.contiguous(reduced(c, squares, c.integer(2)));
}

void mse_loss_backward(Call& c) {  // grad, self, target, reduction
  const Value g = c.value(std::size_t{0}), x = c.value(1), y = c.value(2);
  if (!is_float(c.meta(x).dtype) || c.meta(x).dtype != c.meta(y).dtype ||
      c.meta(g).dtype != c.meta(x).dtype || c.meta(x).elements() == 0) {
    Call::refuse("dtypes, or no elements");
  }
  const auto count = static_cast<double>(c.meta(x).elements());
  const double factor = c.integer(3) == kMean ? 2 / count : 2.0;
  const Value slope = c.op(Op::mul, {c.op(Op::sub, {x, y}), c.trace().number(factor)});
  const Value r = c.op(Op::mul, {slope, g});
  constexpr std::array<std::size_t, 3> kOrder{1, 2, 0};
  c.elementwise(r, kOrder);
}

}  // namespace

const std::map<std::string, Row>& loss_rows() {
  static const auto* const rows = new std::map<std::string, Row>{
      {"nll_loss_forward", nll_loss},
      {"nll_loss_backward", nll_loss_backward},
      {"mse_loss", mse_loss},
      {"mse_loss_backward", mse_loss_backward},
  };
  return *rows;
}

}  // namespace tilevm::eager
