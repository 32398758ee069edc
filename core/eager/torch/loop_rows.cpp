// What is recorded for operators that are loops of their own: scans, scatters, orders.
#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

// Of a result, or of the elements that are written there: a scatter copies what it does not write.
constexpr std::int64_t kMostCopied = 8;

int axis_of(Call& c, std::size_t i, Value x) {
  if (c.meta(x).rank == 0) Call::refuse("a scalar");
  return c.axis(i, c.meta(x).rank);
}

Row scan(Op op) {
  return [=](Call& c) {  // self, dim, dtype
    Value x = c.value(std::size_t{0});
    const int axis = axis_of(c, 1, x);
    x = c.trace().cast(x, c.dtype(2, c.meta(x).dtype));
    const Value y = c.op(op, {x}, {Param::integer(axis)});
    const DType dtype = c.dtype(2, c.meta(y).dtype);
    if (dtype == DType::kBool) Call::refuse("sums that are bools");
    c.contiguous(c.trace().cast(y, dtype));
  };
}

void logcumsumexp(Call& c) {
  if (!is_float(c.meta(c.value(std::size_t{0})).dtype)) Call::refuse("not floating point");
  scan(Op::logcumsumexp)(c);
}

void in_order(Call& c, Value x, int axis, Value index) {
  c.contiguous(c.op(Op::gather, {x, index}, {Param::integer(axis)}));
  c.contiguous(index);
}

// Where it need not be stable, PyTorch has an order of its own for equal elements.
void sort(Call& c) {  // self, stable, dim, descending
  if (c.none(1) || !c.flag(1) || !c.tensor(0).is_contiguous()) return c.decline();
  const Value x = c.value(std::size_t{0});
  const int axis = axis_of(c, 2, x);
  if (c.meta(x).elements() == 0) Call::refuse("no elements");
  const Param descending = Param::integer(c.flag(3) ? 1 : 0);
  in_order(c, x, axis, c.op(Op::argsort, {x}, {Param::integer(axis), descending}));
}

void topk(Call& c) {  // self, k, dim, largest, sorted
  const Value x = c.value(std::size_t{0});
  const int axis = axis_of(c, 2, x);
  const std::int64_t k = c.integer(1);
  if (c.meta(x).dtype == DType::kBool || c.meta(x).elements() == 0 || k < 0 ||
      k > c.meta(x).size(axis) || !c.flag(4))
    Call::refuse("bools, no elements, or in no order");
  const Param largest = Param::integer(c.flag(3) ? 1 : 0);
  in_order(c, x, axis, c.op(Op::argtopk, {x}, {Param::integer(axis), Param::size(k), largest}));
}

bool narrow(DType d) { return d == DType::kBFloat16 || d == DType::kFloat16; }

// `op` of x, index and what covers it. 16-bit floats are added in float32, as PyTorch does.
void scattered(Call& c, Op op, Value x, Value index, Value source, int axis) {
  const DType dtype = c.meta(x).dtype;
  const bool wide = op != Op::scatter && narrow(dtype);
  if (op != Op::scatter && dtype == DType::kBool) Call::refuse("of bools");
  if (wide) {
    x = c.trace().cast(x, DType::kFloat32);
    source = c.trace().cast(source, DType::kFloat32);
  }
  c.contiguous(c.trace().cast(c.op(op, {x, index, source}, {Param::integer(axis)}), dtype));
}

void check_places(Call& c, Value x, Value index, int axis) {
  const Meta &m = c.meta(x), &n = c.meta(index);
  if (n.dtype != DType::kInt64 || m.rank != n.rank || n.elements() == 0)
    Call::refuse("a scalar, or no elements");
  for (int d = 0; d < m.rank; ++d) {
    if (d != axis && n.size(d) > m.size(d)) Call::refuse("sizes");
  }
}

bool copies_much(Call& c, Value x, Value index) {
  return c.meta(x).elements() / kMostCopied > c.meta(index).elements();
}

Row scatter(Op op) {
  return [=](Call& c) {  // self, dim, index, src
    const Value x = c.value(std::size_t{0}), index = c.value(2);
    const int axis = axis_of(c, 1, x);
    check_places(c, x, index, axis);
    if (copies_much(c, x, index)) return c.decline();
    Value source = c.value(3);
    if (c.meta(source).dtype != c.meta(x).dtype || c.meta(source).rank != c.meta(x).rank)
      Call::refuse("another dtype");
    for (int d = 0; d < c.meta(x).rank; ++d) {
      const std::int64_t n = c.meta(index).size(d);
      if (c.meta(source).size(d) < n) Call::refuse("sizes");
      if (c.meta(source).size(d) > n) {
        source = c.op(Op::slice, {source},
                      {Param::integer(d), Param::size(0), Param::size(n), Param::integer(1)});
      }
    }
    scattered(c, op, x, index, source, axis);
  };
}

void scatter_value(Call& c) {  // self, dim, index, value
  const Value x = c.value(std::size_t{0}), index = c.value(2);
  const int axis = axis_of(c, 1, x);
  check_places(c, x, index, axis);
  if (copies_much(c, x, index)) return c.decline();
  const Value number = c.trace().cast(c.value(3), c.meta(x).dtype);
  const Value source = c.op(Op::expand, {number}, {Param::sizes(c.meta(index).shape())});
  scattered(c, Op::scatter, x, index, source, axis);
}

// The index along `axis`, beside the other sizes of `like`.
Value along(Call& c, Value index, Value like, int axis) {
  const Meta& m = c.meta(like);
  std::vector<std::int64_t> flat(static_cast<std::size_t>(m.rank), 1);
  flat[static_cast<std::size_t>(axis)] = c.meta(index).elements();
  const Value row = c.op(Op::reshape, {index}, {Param::sizes(flat)});
  return c.op(Op::expand, {row}, {Param::sizes(m.shape())});
}

void index_add(Call& c) {  // self, dim, index, source, alpha
  const Value x = c.value(std::size_t{0}), index = c.value(2), source = c.value(3);
  const int axis = axis_of(c, 1, x);
  const Meta &m = c.meta(x), &s = c.meta(source);
  const DType places = c.meta(index).dtype;
  if (s.dtype != m.dtype || s.rank != m.rank || c.real(4) != 1 || narrow(m.dtype) ||
      m.dtype == DType::kBool || (places != DType::kInt64 && places != DType::kInt32) ||
      s.elements() == 0 || c.meta(index).elements() != s.size(axis))
    Call::refuse("other dtypes or sizes");
  for (int d = 0; d < m.rank; ++d) {
    if (d != axis && s.size(d) != m.size(d)) Call::refuse("sizes");
  }
  if (copies_much(c, x, source)) return c.decline();
  scattered(c, Op::scatter_add, x, along(c, index, source, axis), source, axis);
}

void embedding_backward(Call& c) {  // grad, indices, num_weights, padding_idx, scale_by_freq
  const Value grad = c.value(std::size_t{0}), index = c.value(1);
  const Meta& g = c.meta(grad);
  const std::int64_t rows = c.integer(2);
  if (c.flag(4) || !is_float(g.dtype) || narrow(g.dtype) || g.rank < 1 || g.elements() == 0)
    Call::refuse("gradients over counts, or none");
  if (c.meta(index).dtype != DType::kInt64) Call::refuse("another index");
  const std::int64_t width = g.size(g.rank - 1), count = g.elements() / width;
  if (rows / kMostCopied > count) return c.decline();
  const std::vector<std::int64_t> flat{count, width}, column{count, 1}, whole{rows, width};
  Value source = c.op(Op::reshape, {grad}, {Param::sizes(flat)});
  Value places = c.op(Op::reshape, {index}, {Param::sizes(column)});
  const std::int64_t padding = c.integer(3);
  if (padding >= 0) {
    const Value is_padding = c.op(Op::eq, {places, c.trace().number(padding)});
    source = c.op(Op::where, {is_padding, c.trace().number(std::int64_t{0}), source});
  }
  places = c.op(Op::expand, {places}, {Param::sizes(flat)});
  const Value zero = c.trace().cast(c.trace().number(std::int64_t{0}), g.dtype);
  const Value start = c.op(Op::expand, {zero}, {Param::sizes(whole)});
  scattered(c, Op::scatter_add, start, places, source, 0);
}

}  // namespace

const std::map<std::string, Row>& loop_rows() {
  static const auto* const rows = new std::map<std::string, Row>{
      {"cumsum", scan(Op::cumsum)},
      {"cumprod", scan(Op::cumprod)},
      {"_logcumsumexp", logcumsumexp},
      {"sort.stable", sort},
      {"topk", topk},
      {"scatter.src", scatter(Op::scatter)},
      {"scatter.value", scatter_value},
      {"scatter_add", scatter(Op::scatter_add)},
      {"index_add", index_add},
      {"embedding_dense_backward", embedding_backward},
  };
  return *rows;
}

}  // namespace tilevm::eager
