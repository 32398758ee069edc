// What is recorded for operators whose arguments need more than text says. The order of arguments
// is the schema's.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>

#include <cmath>
#include <limits>

#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

bool row_major(const at::Tensor& t) { return t.is_contiguous(); }

Param keep(bool keepdims) { return Param::integer(keepdims ? 1 : 0); }

Value cast_of(Call& c, std::size_t i, std::size_t dtype) {
  const Value x = c.value(i);
  return c.trace().cast(x, c.dtype(dtype, c.meta(x).dtype));
}

void need_float(Call& c, Value x) {
  if (!is_float(c.meta(x).dtype)) Call::refuse("not floating point");
}

// ---- Reductions

// `dims`, `keepdims` and `dtype` are positions of arguments, or -1.
Row fold(Op op, int dims, int keepdims, int dtype, bool floats = false) {
  return [=](Call& c) {
    Value x = dtype >= 0 ? cast_of(c, 0, static_cast<std::size_t>(dtype)) : c.value(std::size_t{0});
    if (floats) need_float(c, x);
    const Meta& m = c.meta(x);
    if (m.dtype == DType::kUInt8 && (op == Op::any || op == Op::all)) Call::refuse("of bytes");
    Axes over;
    if (dims >= 0) {
      over = c.axes(static_cast<std::size_t>(dims), m.rank);
    } else {
      for (int d = 0; d < m.rank; ++d) over.push_back(d);
    }
    const bool kept = keepdims >= 0 && c.flag(static_cast<std::size_t>(keepdims));
    if (m.rank == 0) Call::refuse("a scalar");
    Value y = c.op(op, {x}, {axes(over), keep(kept)});
    if (dtype >= 0) {
      y = c.trace().cast(y, c.dtype(static_cast<std::size_t>(dtype), c.meta(y).dtype));
    }
    c.contiguous(y);
  };
}

Row extreme(Op value, Op index) {
  return [=](Call& c) {
    const Value x = c.value(std::size_t{0});
    if (c.meta(x).rank == 0) Call::refuse("a scalar");
    const Axes axis{c.axis(1, c.meta(x).rank)};
    const bool kept = c.flag(2);
    c.contiguous(c.op(value, {x}, {axes(axis), keep(kept)}));
    c.contiguous(c.op(index, {x}, {Param::integer(axis[0]), keep(kept)}));
  };
}

Row place(Op op) {
  return [=](Call& c) {
    Value x = c.value(std::size_t{0});
    if (c.meta(x).rank == 0) Call::refuse("a scalar");
    if (c.meta(x).dtype == DType::kBool) Call::refuse("of bools");
    int axis = 0;
    if (c.none(1)) {
      if (c.flag(2)) Call::refuse("all axes kept");
      const Axes flat{c.meta(x).elements()};
      x = c.op(Op::reshape, {x}, {Param::sizes(flat)});
    } else {
      axis = c.axis(1, c.meta(x).rank);
    }
    c.contiguous(c.op(op, {x}, {Param::integer(axis), keep(c.flag(2))}));
  };
}

Value variance(Call& c, Value x, const Axes& over, std::size_t correction, bool kept) {
  need_float(c, x);
  if (c.meta(x).rank == 0) Call::refuse("a scalar");
  const double by = c.none(correction) ? 1 : c.real(correction);
  double count = c.meta(x).elements() == 0 ? 0 : 1;
  for (const std::int64_t a : over) {
    count *= static_cast<double>(c.meta(x).size(static_cast<int>(a)));
  }
  if (count <= by) Call::refuse("no degrees of freedom, of which PyTorch warns");
  return c.op(Op::var, {x}, {axes(over), keep(kept), Param::of_number(by)});
}

void norm(Call& c) {  // self, ord, dim, keepdim, dtype
  if (c.real(1) != 2 || !c.none(4)) Call::refuse("a norm other than the Euclidean one");
  const Value x = c.value(std::size_t{0});
  need_float(c, x);
  if (c.meta(x).rank == 0) Call::refuse("a scalar");
  const Axes over = c.axes(2, c.meta(x).rank);
  const DType dtype = c.meta(x).dtype;
  // Squares are beyond what narrow types hold long before norms are.
  const Value wide = dtype == DType::kFloat64 ? x : c.trace().cast(x, DType::kFloat32);
  const Value squares = c.op(Op::mul, {wide, wide});
  const Value root = c.op(Op::sqrt, {c.op(Op::sum, {squares}, {axes(over), keep(c.flag(3))})});
  c.contiguous(c.trace().cast(root, dtype));
}

// ---- Rows of softmax and norms

Row softmax(Op op) {
  return [=](Call& c) {
    const Value x = c.value(std::size_t{0});
    need_float(c, x);
    if (c.meta(x).rank == 0 || c.flag(2)) Call::refuse("a scalar, or half_to_float");
    c.contiguous(c.op(op, {x}, {Param::integer(c.axis(1, c.meta(x).rank))}));
  };
}

void softmax_backward(Call& c) {  // grad, output, dim, input_dtype
  const Value g = c.value(std::size_t{0}), y = c.value(1);
  if (c.dtype(3, c.meta(y).dtype) != c.meta(y).dtype || c.meta(y).rank == 0) {
    Call::refuse("other dtypes");
  }
  const Axes over{c.axis(2, c.meta(y).rank)};
  const Value p = c.op(Op::mul, {g, y});
  const Value s = c.op(Op::sum, {p}, {axes(over), keep(true)});
  c.contiguous(c.op(Op::sub, {p, c.op(Op::mul, {y, s})}));
}

void log_softmax_backward(Call& c) {
  const Value g = c.value(std::size_t{0}), y = c.value(1);
  if (c.dtype(3, c.meta(y).dtype) != c.meta(y).dtype || c.meta(y).rank == 0) {
    Call::refuse("other dtypes");
  }
  const Axes over{c.axis(2, c.meta(y).rank)};
  const Value s = c.op(Op::sum, {g}, {axes(over), keep(true)});
  c.contiguous(c.op(Op::sub, {g, c.op(Op::mul, {c.op(Op::exp, {y}), s})}));
}

struct NormAxes {
  Axes inner, outer;
};
NormAxes norm_axes(Call& c, Value x, std::size_t shape) {
  const int rank = c.meta(x).rank, n = static_cast<int>(c.integers(shape).size());
  if (n == 0 || n > rank) Call::refuse("the normalised shape is too long");
  const Axes sizes = c.integers(shape);
  NormAxes result;
  for (int d = 0; d < rank; ++d) {
    const bool inner = d >= rank - n;
    if (inner && sizes[static_cast<std::size_t>(d - rank + n)] != c.meta(x).size(d)) {
      Call::refuse("the normalised shape is another");
    }
    (inner ? result.inner : result.outer).push_back(d);
  }
  return result;
}

void same_dtype(Call& c, Value x, std::size_t i) {
  if (!c.none(i) && dtype_of(c.tensor(i).scalar_type()) != c.meta(x).dtype) {
    Call::refuse("mixed dtypes");
  }
}

Axes layer_norm_alone(Call& c) {  // input, normalized_shape, weight, bias, eps
  const Value x = c.value(std::size_t{0});
  need_float(c, x);
  const Axes over = norm_axes(c, x, 1).inner;
  same_dtype(c, x, 2);
  same_dtype(c, x, 3);
  const Param eps = Param::of_number(c.real(4));
  Value y = c.op(Op::layer_norm, {x}, {axes(over), eps});
  if (!c.none(2)) y = c.op(Op::mul, {y, c.value(2)});
  if (!c.none(3)) y = c.op(Op::add, {y, c.value(3)});
  c.contiguous(y);
  return over;
}

void native_layer_norm(Call& c) {
  const Axes over = layer_norm_alone(c);
  const Value x = c.value(std::size_t{0});
  c.contiguous(c.op(Op::mean, {x}, {axes(over), keep(true)}));
  const Value var = c.op(Op::var, {x}, {axes(over), keep(true), Param::of_number(0)});
  c.contiguous(c.op(Op::rsqrt, {c.op(Op::add, {var, c.trace().constant(c.real(4))})}));
}

// grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
void layer_norm_backward(Call& c) {
  const Value g = c.value(std::size_t{0}), x = c.value(1), mean = c.value(3), rstd = c.value(4);
  need_float(c, x);
  for (const std::size_t i : {0, 3, 4, 5, 6}) same_dtype(c, x, i);
  const auto [inner, outer] = norm_axes(c, x, 2);
  const auto mask = c.arg(7).toBoolList();
  const Value hat = c.op(Op::mul, {c.op(Op::sub, {x, mean}), rstd});
  if (!mask.get(0) || !mask.get(1) || !mask.get(2)) Call::refuse("a gradient nobody needs");
  const Value gw = c.none(5) ? g : c.op(Op::mul, {g, c.value(5)});
  const auto mean_of = [&](Value v) { return c.op(Op::mean, {v}, {axes(inner), keep(true)}); };
  const Value rest = c.op(Op::sub, {c.op(Op::sub, {gw, mean_of(gw)}),
                                    c.op(Op::mul, {hat, mean_of(c.op(Op::mul, {gw, hat}))})});
  c.contiguous(c.op(Op::mul, {rest, rstd}));
  if (outer.empty()) Call::refuse("one row");
  c.contiguous(c.op(Op::sum, {c.op(Op::mul, {g, hat})}, {axes(outer), keep(false)}));
  c.contiguous(c.op(Op::sum, {g}, {axes(outer), keep(false)}));
}

// ---- Element by element

void gelu(Call& c) {
  const Value x = c.value(std::size_t{0});
  need_float(c, x);
  c.elementwise(c.op(c.arg(1).toStringRef() == "tanh" ? Op::gelu_tanh : Op::gelu, {x}));
}

void gelu_backward(Call& c) {  // grad, self, approximate
  const Value g = c.value(std::size_t{0}), x = c.value(1);
  const auto number = [&](double v) { return c.trace().constant(v); };
  const auto mul = [&](Value a, Value b) { return c.op(Op::mul, {a, b}); };
  const auto add = [&](Value a, Value b) { return c.op(Op::add, {a, b}); };
  Value slope;
  if (c.arg(2).toStringRef() == "tanh") {
    const double beta = std::sqrt(2 / M_PI), kappa = 0.044715;
    const Value squared = mul(x, x);
    const Value inner = mul(mul(x, number(beta)), add(mul(squared, number(kappa)), number(1)));
    const Value t = c.op(Op::tanh, {inner});
    const Value left = mul(number(0.5), add(t, number(1)));
    const Value dt = c.op(Op::sub, {number(1), mul(t, t)});
    const Value dinner = mul(number(beta), add(mul(squared, number(3 * kappa)), number(1)));
    slope = add(left, mul(mul(mul(x, number(0.5)), dt), dinner));
  } else {
    const Value cdf = mul(number(0.5), add(c.op(Op::erf, {mul(x, number(M_SQRT1_2))}), number(1)));
    const Value pdf =
        mul(c.op(Op::exp, {mul(mul(x, x), number(-0.5))}), number(0.5 * M_2_SQRTPI * M_SQRT1_2));
    slope = add(cdf, mul(x, pdf));
  }
  c.elementwise(mul(g, slope));
}

void clamp(Call& c) {
  Value x = c.value(std::size_t{0});
  if (c.none(1) && c.none(2)) Call::refuse("no bounds");
  if (!c.none(1) && !c.none(2)) {  // in one dtype from the start
    const Value low = c.value(1), high = c.value(2);
    if (c.meta(low).dtype != c.meta(high).dtype && c.is_tensor(1)) Call::refuse("mixed bounds");
    const Value bounds = c.op(Op::maximum, {low, high});
    x = c.trace().cast(x, c.trace().common_dtype(Op::maximum, std::array{x, bounds}));
  }
  if (!c.none(1)) x = c.op(Op::maximum, {x, c.value(1)});
  if (!c.none(2)) x = c.op(Op::minimum, {x, c.value(2)});
  if (c.meta(x).dtype == DType::kBool) Call::refuse("bounds of bools");
  c.elementwise(x);
}

// A bound that is a number is no operand, unlike those of Python's operators.
Row bound(Op op) {
  return [=](Call& c) {
    const Value y = c.op(op, {c.value(std::size_t{0}), c.value(1)});
    if (c.meta(y).dtype == DType::kBool) Call::refuse("bounds of bools");
    c.elementwise(y);
  };
}

void power(Call& c) {
  Value x = c.value(std::size_t{0});
  if (c.is_tensor(1) || !c.is_tensor(0)) {
    const Value y = c.value(1);
    const Value r = c.op(Op::pow, {x, y});
    need_float(c, r);
    return c.is_tensor(0) ? c.elementwise(r) : c.contiguous(r);
  }
  const double y = c.real(1);
  if (c.meta(x).dtype == DType::kBool) Call::refuse("a power of bools, whose dtype is another");
  const bool floats = is_float(c.meta(x).dtype);
  if (!floats && (c.arg(1).isDouble() || c.arg(1).isBool() || y < 0)) {
    Call::refuse("integers to a power that is none");
  }
  const auto square = [&] { return c.op(Op::mul, {x, x}); };
  if (y == 2) return c.elementwise(square());
  if (y == 3) return c.elementwise(c.op(Op::mul, {square(), x}));
  if (floats) {
    if (y == 0.5) return c.elementwise(c.op(Op::sqrt, {x}));
    if (y == -0.5) return c.elementwise(c.op(Op::rsqrt, {x}));
    if (y == -1) return c.elementwise(c.op(Op::reciprocal, {x}));
    if (y == -2) return c.elementwise(c.op(Op::reciprocal, {square()}));
  }
  c.elementwise(c.op(Op::pow, {x, c.value(1)}));
}

void threshold_backward(Call& c) {  // grad, self, threshold
  const Value g = c.value(std::size_t{0}), x = c.value(1);
  const Value off = c.op(Op::le, {x, c.value(2)});
  constexpr std::array<std::size_t, 2> kOrder{1, 0};
  c.elementwise(c.op(Op::where, {off, c.trace().constant(0), g}), kOrder);
}

void lerp(Call& c) {  // self, end, weight
  const Value x = c.value(std::size_t{0}), end = c.value(1);
  need_float(c, x);
  same_dtype(c, x, 1);
  if (c.is_tensor(2)) same_dtype(c, x, 2);
  const Value span = c.op(Op::sub, {end, x}), w = c.value(2);
  const auto near = [&] { return c.op(Op::add, {x, c.op(Op::mul, {w, span})}); };
  const auto far = [&] {
    const Value rest = c.op(Op::sub, {c.trace().constant(1), w});
    return c.op(Op::sub, {end, c.op(Op::mul, {span, rest})});
  };
  if (!c.is_tensor(2)) return c.elementwise(std::abs(c.real(2)) < 0.5 ? near() : far());
  const Value small = c.op(Op::lt, {c.op(Op::abs, {w}), c.trace().constant(0.5)});
  c.elementwise(c.op(Op::where, {small, near(), far()}));
}

void masked_fill(Call& c) {  // self, mask, value
  const Value x = c.value(std::size_t{0}), mask = c.value(1);
  Value filler = c.value(2);
  const Meta &m = c.meta(x), &k = c.meta(mask);
  if (k.dtype != DType::kBool) Call::refuse("the mask is not bool");
  if (c.is_tensor(2) && c.meta(filler).rank != 0) Call::refuse("several values");
  if (!c.meta(filler).weak) {
    if (is_float(c.meta(filler).dtype) && !is_float(m.dtype)) Call::refuse("floats into integers");
    filler = c.trace().cast(filler, m.dtype);
  } else if (c.meta(filler).dtype != m.dtype && !is_float(m.dtype)) {
    if (c.meta(filler).dtype == DType::kFloat64) Call::refuse("floats into integers");
    filler = c.trace().cast(filler, m.dtype);
  }
  const Value r = c.op(Op::where, {mask, filler, x});
  if (c.meta(r).dtype != m.dtype) Call::refuse("the dtype changes");
  c.contiguous(r);
}

// As the first argument lies in memory if that is dense, else with its dims sorted alike.
void preserve(Call& c, Value v) {
  const at::Tensor& x = c.tensor(0);
  host::Geometry g = geometry_of(x);
  if (!x.is_non_overlapping_and_dense()) {
    std::ranges::copy(at::infer_dense_strides(x.sizes(), x.strides()), g.strides.begin());
  }
  c.result(v, g);
}

void hardtanh(Call& c) {  // self, min, max
  const Value x = c.value(std::size_t{0});
  need_float(c, x);
  preserve(c, c.op(Op::minimum, {c.op(Op::maximum, {x, c.value(1)}), c.value(2)}));
}

void square(Call& c) {
  const Value x = c.value(std::size_t{0});
  if (c.meta(x).dtype == DType::kBool) Call::refuse("of bools");
  c.elementwise(c.op(Op::mul, {x, x}));
}

// self, other, alpha; `reversed`: other - alpha * self.
Row sum(Op op, bool reversed) {
  return [=](Call& c) {
    const Value x = c.value(std::size_t{0}), y = c.value(1);
    const Value left = reversed ? y : x;
    Value right = reversed ? x : y;
    const DType common = c.trace().common_dtype(Op::add, std::array{x, y});
    if (op == Op::sub && (c.meta(x).dtype == DType::kBool || c.meta(y).dtype == DType::kBool)) {
      Call::refuse("bools have no difference");
    }
    const c10::IValue& alpha = c.arg(2);
    if (alpha.isBool() || (alpha.isDouble() && !is_float(common))) {
      Call::refuse("a factor of another kind");
    }
    if (c.real(2) != 1) {
      if (common == DType::kBool) Call::refuse("bools");
      right = c.op(Op::mul, {c.trace().cast(right, common), c.value(2)});
    }
    c.numbers_are_operands();
    constexpr std::array<std::size_t, 2> kOrder{0, 1}, kReversed{1, 0};
    c.elementwise(c.op(op, {left, right}), reversed ? kReversed : kOrder);
  };
}

// A copy of one number that does not wait is quicker made than recorded.
bool is_copied_at_once(Call& c) {
  const at::Tensor& t = c.tensor(0);
  if (t.numel() != 1) return false;
  const LazyImpl* const z = lazy(t);
  return (z == nullptr || z->pending() == nullptr) && !c.recording().knows(t);
}

void clone(Call& c) {  // self, memory_format
  if (is_copied_at_once(c)) return c.decline();
  const Value x = c.value(std::size_t{0});
  if (c.none(1) || c.arg(1).toMemoryFormat() == at::MemoryFormat::Preserve) {
    preserve(c, x);
  } else if (c.arg(1).toMemoryFormat() == at::MemoryFormat::Contiguous) {
    c.contiguous(x);
  } else {
    Call::refuse("a memory format");
  }
}

// self, dtype, layout, device, pin_memory, non_blocking, memory_format
void to_copy(Call& c) {
  if (!c.none(2) && c.arg(2).toLayout() != at::kStrided) Call::refuse("a layout");
  if (!c.none(3) && !c.arg(3).toDevice().is_cpu()) Call::refuse("a device");
  if (!c.none(4) && c.flag(4)) Call::refuse("pinned memory");
  if (is_copied_at_once(c)) return c.decline();
  const Value x = c.value(std::size_t{0});
  const Value y = c.trace().cast(x, c.dtype(1, c.meta(x).dtype));
  if (c.none(6) || c.arg(6).toMemoryFormat() == at::MemoryFormat::Preserve) return preserve(c, y);
  if (c.arg(6).toMemoryFormat() != at::MemoryFormat::Contiguous) Call::refuse("a memory format");
  c.contiguous(y);
}

// ---- Products

bool multiplies(DType d) {
  return d == DType::kFloat32 || d == DType::kBFloat16 || d == DType::kFloat16;
}

Value product(Call& c, std::size_t a, std::size_t b, int rank) {
  const Value x = c.value(a), y = c.value(b);
  const Meta &m = c.meta(x), &n = c.meta(y);
  if (!multiplies(m.dtype) || m.dtype != n.dtype) Call::refuse("a product that no kernel computes");
  if (m.rank != rank || n.rank != rank) Call::refuse("other dims");
  if (rank == 3 && m.size(0) != n.size(0)) Call::refuse("other batches");
  return c.op(Op::matmul, {x, y});
}

Row multiply(int rank) {
  return [=](Call& c) { c.contiguous(product(c, 0, 1, rank)); };
}

void matrix_vector(Call& c) {  // self, vec
  if (c.tensor(0).dim() != 2 || c.tensor(1).dim() != 1) Call::refuse("other dims");
  const Value x = c.value(std::size_t{0});
  const Value v = c.op(Op::unsqueeze, {c.value(1)}, {Param::integer(1)});
  if (!multiplies(c.meta(x).dtype) || c.meta(x).dtype != c.meta(v).dtype) Call::refuse("dtypes");
  const Axes last{1};
  c.contiguous(c.op(Op::squeeze, {c.op(Op::matmul, {x, v})}, {axes(last)}));
}

// PyTorch's kernel wants rows, or columns, that begin at multiples of 16 bytes.
bool is_aligned(const at::Tensor& x) {
  const std::int64_t last = x.stride(-1), before = x.stride(-2);
  const std::int64_t apart = last == 1 ? before : last;
  return (last == 1 || before == 1) && apart * x.element_size() % 16 == 0;
}

void grouped_product(Call& c) {  // self, mat2, offs, bias, out_dtype
  if (c.none(2) || !c.none(3) || !c.none(4)) Call::refuse("no groups, a bias or a dtype");
  const Value x = c.value(std::size_t{0}), y = c.value(1), ends = c.value(2);
  const Meta &m = c.meta(x), &n = c.meta(y), &e = c.meta(ends);
  if (!multiplies(m.dtype) || m.dtype != n.dtype) Call::refuse("a product that no kernel computes");
  if (m.rank != 2 || n.rank != 3 || e.rank != 1) Call::refuse("other dims");
  if (m.size(1) != n.size(1) || n.size(0) != e.size(0)) Call::refuse("other sizes");
  if (e.dtype != DType::kInt32 || !is_aligned(c.tensor(0)) || !is_aligned(c.tensor(1)))
    Call::refuse("ends that are not int32, or rows that are not aligned");
  if (n.size(2) * c.tensor(0).element_size() % 16 != 0) Call::refuse("a result with gaps");
  c.contiguous(c.op(Op::grouped_matmul, {x, y, ends}));
}

Value scaled(Call& c, Value v, std::size_t factor) {
  return c.real(factor) == 1 ? v : c.op(Op::mul, {v, c.value(factor)});
}

Row multiply_add(int rank) {  // self, a, b, beta, alpha
  return [=](Call& c) {
    Value y = scaled(c, product(c, 1, 2, rank), 4);
    if (dtype_of(c.tensor(0).scalar_type()) != c.meta(y).dtype) Call::refuse("mixed dtypes");
    if (c.real(3) != 0) {
      const Meta before = c.meta(y);
      y = c.op(Op::add, {scaled(c, c.value(std::size_t{0}), 3), y});
      if (!std::ranges::equal(c.meta(y).shape(), before.shape())) Call::refuse("sizes");
    }
    c.contiguous(y);
  };
}

// ---- Layout and gathers

std::vector<at::Tensor> tensors(Call& c, std::size_t i) { return c.arg(i).toTensorVector(); }

void join(Call& c, const std::vector<at::Tensor>& parts, bool stacked) {
  if (parts.empty() || parts.size() > 200) Call::refuse("no tensors, or very many");
  std::vector<Value> values;
  for (const at::Tensor& part : parts) {
    if (part.dim() != parts[0].dim() || part.scalar_type() != parts[0].scalar_type()) {
      Call::refuse("tensors of several kinds");
    }
    if (part.dim() > 3 && !row_major(part)) Call::refuse("a memory format");
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
  if (chosen.size() > 1 && !row_major(self)) return c.decline();
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

std::map<std::string, Row> make_rows() {
  const auto var = [](std::size_t dims, std::size_t correction, std::size_t kept, bool root,
                      bool with_mean) -> Row {
    return [=](Call& c) {
      const Value x = c.value(std::size_t{0});
      const Axes over = c.axes(dims, c.meta(x).rank);
      const Value v = variance(c, x, over, correction, c.flag(kept));
      c.contiguous(root ? c.op(Op::sqrt, {v}) : v);
      if (with_mean) c.contiguous(c.op(Op::mean, {x}, {axes(over), keep(c.flag(kept))}));
    };
  };
  return {
      {"sum", fold(Op::sum, -1, -1, 1)},
      {"sum.dim_IntList", fold(Op::sum, 1, 2, 3)},
      {"prod", fold(Op::prod, -1, -1, 1)},
      {"prod.dim_int", fold(Op::prod, 1, 2, 3)},
      {"mean", fold(Op::mean, -1, -1, 1, true)},
      {"mean.dim", fold(Op::mean, 1, 2, 3, true)},
      {"amax", fold(Op::amax, 1, 2, -1)},
      {"amin", fold(Op::amin, 1, 2, -1)},
      {"max", fold(Op::amax, -1, -1, -1)},
      {"min", fold(Op::amin, -1, -1, -1)},
      {"any", fold(Op::any, -1, -1, -1)},
      {"all", fold(Op::all, -1, -1, -1)},
      {"any.dim", fold(Op::any, 1, 2, -1)},
      {"all.dim", fold(Op::all, 1, 2, -1)},
      {"max.dim", extreme(Op::amax, Op::argmax)},
      {"min.dim", extreme(Op::amin, Op::argmin)},
      {"argmax", place(Op::argmax)},
      {"argmin", place(Op::argmin)},
      {"var.correction", var(1, 2, 3, false, false)},
      {"std.correction", var(1, 2, 3, true, false)},
      {"var_mean.correction", var(1, 2, 3, false, true)},
      {"linalg_vector_norm", norm},
      {"_softmax", softmax(Op::softmax)},
      {"_log_softmax", softmax(Op::log_softmax)},
      {"_softmax_backward_data", softmax_backward},
      {"_log_softmax_backward_data", log_softmax_backward},
      {"native_layer_norm", native_layer_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"square", square},
      {"hardtanh", hardtanh},
      {"add.Tensor", sum(Op::add, false)},
      {"sub.Tensor", sum(Op::sub, false)},
      {"add.Scalar", sum(Op::add, false)},
      {"sub.Scalar", sum(Op::sub, false)},
      {"rsub.Tensor", sum(Op::sub, true)},
      {"rsub.Scalar", sum(Op::sub, true)},
      {"gelu", gelu},
      {"gelu_backward", gelu_backward},
      {"clamp", clamp},
      {"clamp_min", bound(Op::maximum)},
      {"clamp_max", bound(Op::minimum)},
      {"clamp_min.Tensor", bound(Op::maximum)},
      {"clamp_max.Tensor", bound(Op::minimum)},
      {"clamp.Tensor", clamp},
      {"pow.Tensor_Scalar", power},
      {"pow.Tensor_Tensor", power},
      {"pow.Scalar", power},
      {"threshold_backward", threshold_backward},
      {"lerp.Scalar", lerp},
      {"lerp.Tensor", lerp},
      {"masked_fill.Scalar", masked_fill},
      {"masked_fill.Tensor", masked_fill},
      {"clone", clone},
      {"_to_copy", to_copy},
      {"mm", multiply(2)},
      {"mv", matrix_vector},
      {"bmm", multiply(3)},
      {"_grouped_mm", grouped_product},
      {"addmm", multiply_add(2)},
      {"baddbmm", multiply_add(3)},
      {"cat", [](Call& c) { join(c, tensors(c, 0), false); }},
      {"stack", [](Call& c) { join(c, tensors(c, 0), true); }},
      {"embedding", embedding},
      {"select_backward", select_backward},
      {"slice_backward", slice_backward},
      {"index_select", index_select},
      {"gather", gather},
      {"index.Tensor", index},
  };
}

}  // namespace

const std::map<std::string, Row>& composite_rows() {
  static const auto* const rows = new std::map<std::string, Row>{
      {"layer_norm", [](Call& c) { layer_norm_alone(c); }},
  };
  return *rows;
}

const std::map<std::string, Row>& coded_rows() {
  static const auto* const rows = new std::map<std::string, Row>(make_rows());
  return *rows;
}

}  // namespace tilevm::eager
