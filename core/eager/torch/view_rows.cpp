// What is recorded for operators that make views of pending tensors.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>

#include "eager/torch/call.h"
#include "eager/torch/indexing.h"

namespace tilevm::eager {
namespace {

void reshaped(Call& c) {
  const host::Geometry from = geometry_of(c.tensor(0));
  Axes sizes = c.integers(1);
  std::int64_t known = 1;
  int open = -1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1) {
      if (open >= 0) Call::refuse("several sizes to find");
      open = static_cast<int>(i);
    } else if (sizes[i] < 0) {
      Call::refuse("a negative size");
    } else if (__builtin_mul_overflow(known, sizes[i], &known)) {
      Call::refuse("sizes beyond numbers");
    }
  }
  const std::int64_t elements = from.elements();
  if (open >= 0) {
    if (known == 0 || elements % known != 0) Call::refuse("sizes do not divide");
    sizes[static_cast<std::size_t>(open)] = elements / known;
    known = elements;
  }
  if (known != elements || sizes.size() > static_cast<std::size_t>(kMaxRank)) {
    Call::refuse("another number of elements");
  }
  const auto rank = static_cast<std::size_t>(from.rank);
  const auto strides =
      at::detail::computeStride(at::IntArrayRef(from.sizes.data(), rank),
                                at::IntArrayRef(from.strides.data(), rank), at::IntArrayRef(sizes));
  if (!strides) Call::refuse("no view");
  host::Geometry to;
  to.rank = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, to.sizes.begin());
  std::ranges::copy(*strides, to.strides.begin());
  c.view(0, c.op(Op::reshape, {c.value(std::size_t{0})}, {Param::sizes(sizes)}), to, 0);
}

void expanded(Call& c) {
  const host::Geometry from = geometry_of(c.tensor(0));
  Axes sizes = c.integers(1);
  const int rank = static_cast<int>(sizes.size()), more = rank - from.rank;
  if (more < 0 || rank > kMaxRank) Call::refuse("fewer dims");
  host::Geometry to;
  to.rank = rank;
  for (int d = 0; d < rank; ++d) {
    std::int64_t& size = sizes[static_cast<std::size_t>(d)];
    const std::int64_t own = d < more ? 1 : from.size(d - more);
    if (size == -1 && d >= more) size = own;
    if (size < 0 || (own != 1 && size != own)) Call::refuse("sizes do not expand");
    to.size(d) = size;
    to.stride(d) = d >= more && own == size ? from.stride(d - more) : 0;
  }
  // A new dim of size 1 has the stride that a dense tensor's would have.
  for (int d = more - 1; d >= 0 && from.rank > 0; --d) {
    if (to.size(d) == 1) to.stride(d) = to.size(d + 1) * to.stride(d + 1);
  }
  c.view(0, c.op(Op::expand, {c.value(std::size_t{0})}, {Param::sizes(sizes)}), to, 0);
}

void permuted(Call& c, const Axes& order) {
  const host::Geometry from = geometry_of(c.tensor(0));
  host::Geometry to = from;
  for (int d = 0; d < from.rank; ++d) {
    const int o = static_cast<int>(order[static_cast<std::size_t>(d)]);
    to.size(d) = from.size(o);
    to.stride(d) = from.stride(o);
  }
  c.view(0, c.op(Op::permute, {c.value(std::size_t{0})}, {axes(order)}), to, 0);
}

void permute(Call& c) {
  const int rank = static_cast<int>(c.tensor(0).dim());
  Axes order = c.integers(1);
  if (static_cast<int>(order.size()) != rank) Call::refuse("dims are missing");
  unsigned seen = 0;
  for (std::int64_t& d : order) {
    d = Call::wrap(d, rank);
    seen |= 1u << d;
  }
  if (rank == 0 || seen != (1u << rank) - 1) Call::refuse("a dim is repeated");
  permuted(c, order);
}

void transpose(Call& c, std::int64_t i, std::int64_t j) {
  const int rank = static_cast<int>(c.tensor(0).dim());
  if (rank == 0) Call::refuse("a scalar");
  Axes order;
  for (int d = 0; d < rank; ++d) order.push_back(d);
  std::swap(order[static_cast<std::size_t>(Call::wrap(i, rank))],
            order[static_cast<std::size_t>(Call::wrap(j, rank))]);
  permuted(c, order);
}

void t(Call& c) {
  if (c.tensor(0).dim() != 2) Call::refuse("not a matrix");
  transpose(c, 0, 1);
}

void unsqueeze(Call& c) {
  const host::Geometry from = geometry_of(c.tensor(0));
  if (from.rank == kMaxRank) Call::refuse("too many dims");
  const int axis = Call::wrap(c.integer(1), from.rank + 1);
  host::Geometry to;
  to.rank = from.rank + 1;
  for (int d = 0; d < to.rank; ++d) {
    if (d == axis) {
      to.size(d) = 1;
      to.stride(d) = axis < from.rank ? from.size(axis) * from.stride(axis) : 1;
    } else {
      to.size(d) = from.size(d - (d > axis ? 1 : 0));
      to.stride(d) = from.stride(d - (d > axis ? 1 : 0));
    }
  }
  c.view(0, c.op(Op::unsqueeze, {c.value(std::size_t{0})}, {Param::integer(axis)}), to, 0);
}

void squeeze(Call& c) {
  const host::Geometry from = geometry_of(c.tensor(0));
  Axes gone;
  Axes asked;
  if (c.n_args() > 1) {
    asked = c.integers(1);
    for (std::int64_t& a : asked) a = Call::wrap(a, from.rank);
  }
  host::Geometry to;
  for (int d = 0; d < from.rank; ++d) {
    const bool wanted = c.n_args() == 1 || std::find(asked.begin(), asked.end(), d) != asked.end();
    if (wanted && from.size(d) == 1) {
      gone.push_back(d);
      continue;
    }
    to.size(to.rank) = from.size(d);
    to.stride(to.rank++) = from.stride(d);
  }
  const Value x = c.value(std::size_t{0});
  c.view(0, gone.empty() ? x : c.op(Op::squeeze, {x}, {axes(gone)}), to, 0);
}

void select(Call& c) {  // self, dim, index
  const host::Geometry from = geometry_of(c.tensor(0));
  if (from.rank == 0) Call::refuse("a scalar");
  const int axis = c.axis(1, from.rank);
  std::int64_t i = c.integer(2);
  if (i < -from.size(axis) || i >= from.size(axis)) Call::refuse("out of range");
  if (i < 0) i += from.size(axis);
  host::Geometry to;
  for (int d = 0; d < from.rank; ++d) {
    if (d == axis) continue;
    to.size(to.rank) = from.size(d);
    to.stride(to.rank++) = from.stride(d);
  }
  const Value x = c.value(std::size_t{0});
  c.view(0, c.op(Op::select, {x}, {Param::integer(axis), Param::size(i)}), to,
         i * from.stride(axis));
}

void slice(Call& c) {  // self, dim, start, end, step
  const host::Geometry from = geometry_of(c.tensor(0));
  if (from.rank == 0) Call::refuse("a scalar");
  const int axis = c.axis(1, from.rank);
  const std::int64_t size = from.size(axis), step = c.integer(4);
  if (step <= 0 || step > kMostStep) Call::refuse("the step");
  const auto bound = [&](std::size_t arg, std::int64_t otherwise) {
    std::int64_t v = c.none(arg) ? otherwise : c.integer(arg);
    if (v < 0) v += size;
    return std::clamp<std::int64_t>(v, 0, size);
  };
  const std::int64_t start = bound(2, 0), end = std::max(start, bound(3, size));
  host::Geometry to = from;
  to.size(axis) = (end - start + step - 1) / step;
  if (__builtin_mul_overflow(from.stride(axis), step, &to.stride(axis))) {
    Call::refuse("a stride beyond numbers");
  }
  Value x = c.value(std::size_t{0});
  if (to.size(axis) == 1) {
    // Of size 1 for certain.
    x = c.op(Op::select, {x}, {Param::integer(axis), Param::size(start)});
    x = c.op(Op::unsqueeze, {x}, {Param::integer(axis)});
  } else if (start != 0 || end != size || step != 1) {
    x = c.op(Op::slice, {x},
             {Param::integer(axis), Param::size(start), Param::size(end), Param::integer(step)});
  }
  c.view(0, x, to, start * from.stride(axis));
}

// Parts of these sizes along an axis.
void split(Call& c, int axis, const Axes& parts) {
  const host::Geometry from = geometry_of(c.tensor(0));
  const Value x = c.value(std::size_t{0});
  std::int64_t start = 0;
  for (const std::int64_t part : parts) {
    if (part < 0 || part > from.size(axis) - start) Call::refuse("parts of other sizes");
    Value v = x;
    if (part == 1) {
      v = c.op(Op::select, {x}, {Param::integer(axis), Param::size(start)});
      v = c.op(Op::unsqueeze, {v}, {Param::integer(axis)});
    } else if (part != from.size(axis)) {
      v = c.op(
          Op::slice, {x},
          {Param::integer(axis), Param::size(start), Param::size(start + part), Param::integer(1)});
    }
    host::Geometry to = from;
    to.size(axis) = part;
    c.view(0, v, to, start * from.stride(axis));
    start += part;
  }
  if (start != from.size(axis)) Call::refuse("parts of other sizes");
  c.list();
}

void split_by_size(Call& c) {  // self, split_size, dim
  const int rank = static_cast<int>(c.tensor(0).dim());
  if (rank == 0) Call::refuse("a scalar");
  const int axis = c.axis(2, rank);
  const std::int64_t size = c.tensor(0).size(axis), step = c.integer(1);
  if (step <= 0 || size == 0) Call::refuse("no parts");
  Axes parts;
  for (std::int64_t start = 0; start < size; start += step) {
    parts.push_back(std::min(step, size - start));
  }
  split(c, axis, parts);
}

void split_by_sizes(Call& c) {  // self, split_sizes, dim
  const int rank = static_cast<int>(c.tensor(0).dim());
  if (rank == 0) Call::refuse("a scalar");
  split(c, c.axis(2, rank), c.integers(1));
}

void unbind(Call& c) {  // self, dim
  const host::Geometry from = geometry_of(c.tensor(0));
  if (from.rank == 0) Call::refuse("a scalar");
  const int axis = c.axis(1, from.rank);
  const Value x = c.value(std::size_t{0});
  host::Geometry to;
  for (int d = 0; d < from.rank; ++d) {
    if (d == axis) continue;
    to.size(to.rank) = from.size(d);
    to.stride(to.rank++) = from.stride(d);
  }
  for (std::int64_t i = 0; i < from.size(axis); ++i) {
    c.view(0, c.op(Op::select, {x}, {Param::integer(axis), Param::size(i)}), to,
           i * from.stride(axis));
  }
  c.list();
}

void alias(Call& c) { c.view(0, c.value(std::size_t{0}), geometry_of(c.tensor(0)), 0); }

void as_real(Call& c) {
  const at::Tensor& x = c.tensor(0);
  if (!x.is_complex() || x.dim() == kMaxRank || x.is_conj()) {
    Call::refuse("not complex, conjugated, or too many dims");
  }
  c.view(0, c.pairs(x), parts_of(geometry_of(x)), 0);
}

void as_complex(Call& c) {
  const host::Geometry g = geometry_of(c.tensor(0));
  const Value x = c.value(std::size_t{0});
  const DType dtype = c.meta(x).dtype;
  bool pairs = g.rank > 0 && g.size(g.rank - 1) == 2 && g.stride(g.rank - 1) == 1 &&
               c.tensor(0).storage_offset() % 2 == 0;
  for (int d = 0; d + 1 < g.rank; ++d) pairs = pairs && g.stride(d) % 2 == 0;
  if (!pairs || (dtype != DType::kFloat32 && dtype != DType::kFloat64)) Call::refuse("no pairs");
  c.view(0, x, g, 0, /*complex=*/true);
}

std::map<std::string, Row> make_views() {
  return {
      {"view", reshaped},
      {"_unsafe_view", reshaped},
      {"_reshape_alias", reshaped},
      {"expand", expanded},
      {"permute", permute},
      {"transpose.int", [](Call& c) { transpose(c, c.integer(1), c.integer(2)); }},
      {"t", t},
      {"unsqueeze", unsqueeze},
      {"squeeze", squeeze},
      {"squeeze.dim", squeeze},
      {"squeeze.dims", squeeze},
      {"select.int", select},
      {"slice.Tensor", slice},
      {"split.Tensor", split_by_size},
      {"unsafe_split.Tensor", split_by_size},
      {"split_with_sizes", split_by_sizes},
      {"unsafe_split_with_sizes", split_by_sizes},
      {"unbind.int", unbind},
      {"detach", alias},
      {"alias", alias},
      {"view_as_real", as_real},
      {"view_as_complex", as_complex},
      {"_conj", [](Call& c) { c.conjugate_view(0); }},
  };
}

}  // namespace

const std::map<std::string, Row>& view_rows() {
  static const auto* const rows = new std::map<std::string, Row>(make_views());
  return *rows;
}

}  // namespace tilevm::eager
