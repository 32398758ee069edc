// What is recorded for concatenations, gathers, and gradients of views.
#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

std::vector<at::Tensor> tensors(Call& c, std::size_t i) { return c.arg(i).toTensorVector(); }

void join(Call& c, const std::vector<at::Tensor>& parts, bool stacked) {
  if (parts.empty() || parts.size() > 200) Call::refuse("no tensors, or very many");
  std::vector<Value> values;
  for (const at::Tensor& part : parts) {
    if (part.dim() != parts[0].dim() || part.scalar_type() != parts[0].scalar_type()) {
      Call::refuse("tensors of several kinds");
    }
    if (part.dim() > 3 && !part.is_contiguous()) Call::refuse("a memory format");
    values.push_back(c.value(part));
  }
  const int rank = c.meta(values[0]).rank + (stacked ? 1 : 0);
  if (rank == 0) Call::refuse("scalars");
  const int axis = c.axis(1, rank);
  if (stacked) {
    for (Value& v : values) v = c.op(Op::unsqueeze, {v}, {Param::integer(axis)});
  }
  const Meta first = c.meta(values[0]);
  for (const Value v : values) {
    for (int d = 0; d < rank; ++d) {
      const bool along = d == axis && !stacked;
      if (!along && c.meta(v).size(d) != first.size(d)) Call::refuse("sizes differ");
    }
  }
  const Param params[] = {Param::integer(axis)};
  c.contiguous(c.trace().add(Op::concat, values, params));
}

void need_index(Call& c, Value index) {
  const DType d = c.meta(index).dtype;
  if (d != DType::kInt64 && d != DType::kInt32) Call::refuse("an index that is no integer");
}

void embedding(Call& c) {  // weight, indices, padding_idx, scale_grad, sparse
  const Value w = c.value(std::size_t{0}), index = c.value(1);
  need_index(c, index);
  if (c.meta(w).rank != 2 || c.meta(w).elements() == 0) Call::refuse("no table");
  c.contiguous(c.op(Op::take, {w, index}, {Param::integer(0)}));
}

void index_select(Call& c) {  // self, dim, index
  const Value x = c.value(std::size_t{0}), index = c.value(2);
  need_index(c, index);
  if (c.meta(x).elements() == 0) Call::refuse("nothing to select from");
  if (c.meta(x).rank == 0 || c.meta(index).rank != 1) Call::refuse("a scalar");
  c.contiguous(c.op(Op::take, {x, index}, {Param::integer(c.axis(1, c.meta(x).rank))}));
}

void gather(Call& c) {  // self, dim, index, sparse_grad
  const Value x = c.value(std::size_t{0}), index = c.value(2);
  const Meta &m = c.meta(x), &n = c.meta(index);
  if (n.dtype != DType::kInt64 || m.rank == 0 || m.rank != n.rank) Call::refuse("a scalar");
  if (m.elements() == 0) Call::refuse("nothing to gather from");
  const int axis = c.axis(1, m.rank);
  for (int d = 0; d < m.rank; ++d) {
    if (d != axis && n.size(d) > m.size(d)) Call::refuse("sizes");
  }
  c.contiguous(c.op(Op::gather, {x, index}, {Param::integer(axis)}));
}

// Of what indices on the axes from `first` on choose. PyTorch's kernel goes over the tensor and the
// indices side by side: the tensor does not move along the indices' dims, nor they along its.
host::Geometry indexed_geometry(const Meta& meta, const at::Tensor& self,
                                const std::vector<at::Tensor>& chosen, int first) {
  host::Geometry out;
  out.rank = meta.rank;
  out.sizes = meta.sizes;
  const int n = static_cast<int>(chosen.size());
  const int inner = meta.rank - static_cast<int>(self.dim()) + n;  // dims of the indices
  std::vector<host::Geometry> operands(chosen.size() + 1, out);
  for (int d = 0; d < meta.rank; ++d) {
    const bool of_index = d >= first && d < first + inner;
    operands[0].stride(d) = of_index ? 0 : self.stride(d < first ? d : d - inner + n);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const at::Tensor& index = chosen[i];
      const std::int64_t own = d - first - inner + index.dim();
      const bool moves = of_index && own >= 0 && index.size(own) == out.size(d);
      std::int64_t& stride = operands[i + 1].stride(d);
      stride = moves ? index.stride(own) : 0;
      if (of_index || out.size(d) != 1) continue;
      // A dim of size 1 has the stride that it gets where the index is reshaped to all dims.
      const std::int64_t last = index.dim() - 1;
      if (last < 0) {
        stride = 1;
      } else {
        stride = d < first ? index.size(0) * index.stride(0) : index.stride(last);
      }
    }
  }
  std::vector<const host::Geometry*> seen;
  for (const host::Geometry& g : operands) seen.push_back(&g);
  elementwise_strides(seen, out);
  return out;
}

// Tensors of integers on neighbouring axes: one gather, at the position that they say together.
void index(Call& c) {
  std::vector<at::Tensor> chosen;
  int first = -1, d = 0;
  for (const c10::IValue& v : c.arg(1).toListRef()) {
    if (!v.isNone() && v.toTensor().defined()) {
      const at::ScalarType type = v.toTensor().scalar_type();
      if (first < 0) first = d;
      if (d != first + static_cast<int>(chosen.size())) return c.decline();
      if (type != at::kLong && type != at::kInt) return c.decline();
      chosen.push_back(v.toTensor());
    }
    ++d;
  }
  const at::Tensor& self = c.tensor(0);
  const int last = first + static_cast<int>(chosen.size()) - 1;
  if (first < 0 || last >= self.dim() || self.numel() == 0) return c.decline();
  if (chosen.size() > 1 && !self.is_contiguous()) return c.decline();
  Value x = c.value(std::size_t{0}), position = kNoValue, inside = kNoValue;
  const auto number = [&](std::int64_t v) { return c.trace().number(v); };
  std::int64_t all = 1;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Value at = c.value(chosen[i]);
    const std::int64_t n = self.size(first + static_cast<int>(i));
    const Value size = number(n), zero = number(std::int64_t{0});
    const Value wrapped =
        c.op(Op::where, {c.op(Op::lt, {at, zero}), c.op(Op::add, {at, size}), at});
    all *= n;
    if (chosen.size() == 1) {
      position = wrapped;
      break;
    }
    const Value ok =
        c.op(Op::logical_and, {c.op(Op::ge, {wrapped, zero}), c.op(Op::lt, {wrapped, size})});
    inside = i == 0 ? ok : c.op(Op::logical_and, {inside, ok});
    position = i == 0 ? wrapped : c.op(Op::add, {c.op(Op::mul, {position, size}), wrapped});
  }
  if (chosen.size() > 1) {
    // Behind the last one, where some index is out of its own range.
    position = c.op(Op::where, {inside, position, number(all)});
    Axes sizes;
    for (int i = 0; i < self.dim(); ++i) {
      if (i == first) sizes.push_back(all);
      if (i < first || i > last) sizes.push_back(self.size(i));
    }
    x = c.op(Op::reshape, {x}, {Param::sizes(sizes)});
  }
  const Value taken = c.op(Op::take, {x, position}, {Param::integer(first)});
  if (c.meta(taken).elements() == 0) Call::refuse("nothing is chosen");
  c.result(taken, indexed_geometry(c.meta(taken), self, chosen, first));
}

// ---- Gradients of views: zeros around what came

Value zeros(Call& c, const Axes& sizes, DType dtype) {
  return c.op(Op::full, {}, {Param::sizes(sizes), Param::of_number(0), Param::dtype(dtype)});
}

// `part` between zeros, from `start` on along an axis of `sizes`.
Value between_zeros(Call& c, Value part, const Axes& sizes, int axis, std::int64_t start) {
  const auto a = static_cast<std::size_t>(axis);
  const DType dtype = c.meta(part).dtype;
  const std::int64_t end = start + c.meta(part).size(axis);
  std::array<Value, 3> parts{};
  std::size_t n = 0;
  Axes rest = sizes;
  if (start > 0) {
    rest[a] = start;
    parts[n++] = zeros(c, rest, dtype);
  }
  parts[n++] = part;
  if (end < sizes[a]) {
    rest[a] = sizes[a] - end;
    parts[n++] = zeros(c, rest, dtype);
  }
  const Param params[] = {Param::integer(axis)};
  return n == 1 ? part : c.trace().add(Op::concat, std::span<const Value>(parts.data(), n), params);
}

bool is_of_sizes(Call& c, Value v, const Axes& sizes) {
  return std::ranges::equal(c.meta(v).shape(), sizes);
}

// A number of elements that copying zeros costs less than running what waits.
constexpr std::int64_t kFewElements = 1 << 16;

std::int64_t product_of(const Axes& sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}

void select_backward(Call& c) {  // grad, input_sizes, dim, index
  const Axes sizes = c.integers(1);
  const int rank = static_cast<int>(sizes.size());
  if (rank == 0 || product_of(sizes) > kFewElements) return c.decline();
  const int axis = c.axis(2, rank);
  const std::int64_t size = sizes[static_cast<std::size_t>(axis)], given = c.integer(3);
  if (given < -size || given >= size) Call::refuse("an index out of range");
  const Value part =
      c.op(Op::unsqueeze, {c.value(std::size_t{0})}, {Param::integer(axis)});
  Axes own = sizes;
  own[static_cast<std::size_t>(axis)] = 1;
  if (!is_of_sizes(c, part, own)) Call::refuse("other sizes");
  c.contiguous(between_zeros(c, part, sizes, axis, given < 0 ? given + size : given));
}

void slice_backward(Call& c) {  // grad, input_sizes, dim, start, end, step
  const Axes sizes = c.integers(1);
  const int rank = static_cast<int>(sizes.size());
  if (rank == 0 || product_of(sizes) > kFewElements || c.integer(5) != 1) return c.decline();
  const int axis = c.axis(2, rank);
  const std::int64_t size = sizes[static_cast<std::size_t>(axis)];
  const auto within = [size](std::int64_t v) {
    return std::clamp<std::int64_t>(v < 0 ? v + size : v, 0, size);
  };
  const std::int64_t start = within(c.integer(3)), end = std::max(start, within(c.integer(4)));
  if (start == end) return c.decline();
  const Value part = c.value(std::size_t{0});
  Axes own = sizes;
  own[static_cast<std::size_t>(axis)] = end - start;
  if (!is_of_sizes(c, part, own)) Call::refuse("other sizes");
  c.contiguous(between_zeros(c, part, sizes, axis, start));
}

}  // namespace

const std::map<std::string, Row>& gather_rows() {
  static const auto* const rows = new std::map<std::string, Row>{
      {"cat", [](Call& c) { join(c, tensors(c, 0), false); }},
      {"stack", [](Call& c) { join(c, tensors(c, 0), true); }},
      {"embedding", embedding},
      {"select_backward", select_backward},
      {"slice_backward", slice_backward},
      {"index_select", index_select},
      {"gather", gather},
      {"index.Tensor", index},
  };
  return *rows;
}

}  // namespace tilevm::eager
