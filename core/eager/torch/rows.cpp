// What is recorded for operators whose arguments need more than text says. The order of arguments
// is the schema's.
#include <cmath>
#include <limits>

#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

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
    // Of -0 and -inf they are others than powers, which float16 has.
    const bool roots = c.meta(x).dtype != DType::kFloat16;
    if (roots && y == 0.5) return c.elementwise(c.op(Op::sqrt, {x}));
    if (roots && y == -0.5) return c.elementwise(c.op(Op::rsqrt, {x}));
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

void hardtanh(Call& c) {  // self, min, max
  const Value x = c.value(std::size_t{0});
  need_float(c, x);
  c.preserve(c.op(Op::minimum, {c.op(Op::maximum, {x, c.value(1)}), c.value(2)}));
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

// The one number of a tensor that does not wait: nothing has to run for a copy.
std::optional<at::Scalar> known_number(Call& c) {
  const at::Tensor& t = c.tensor(0);
  if (t.numel() != 1) return std::nullopt;
  const LazyImpl* const z = lazy(t);
  if ((z != nullptr && z->pending() != nullptr) || c.recording().knows(t)) return std::nullopt;
  return number_in(t);
}

// The complex numbers of a tensor that waits, whose bit says that they are to be conjugated.
void conjugate(Call& c) {
  const at::Tensor& x = c.tensor(0);
  const bool as_it_is = c.none(1) || c.arg(1).toMemoryFormat() == at::MemoryFormat::Preserve;
  const LazyImpl* const z = lazy(x);
  const bool waits = z != nullptr && z->pending() != nullptr;
  if (!as_it_is || !x.is_non_overlapping_and_dense() || !waits || x.dim() == kMaxRank) {
    Call::refuse("another layout, or nothing that waits");
  }
  const Value which = c.op(Op::iota, {}, {Param::size(2), Param::size(0), Param::size(1)});
  const Value v = c.pairs(x);
  const Value imaginary = c.op(Op::eq, {which, c.trace().number(std::int64_t{1})});
  c.result(c.op(Op::where, {imaginary, c.op(Op::neg, {v}), v}), parts_of(geometry_of(x)), true);
}

void clone(Call& c) {  // self, memory_format
  const at::Tensor& x = c.tensor(0);
  if (x.is_conj()) return conjugate(c);
  if (const auto number = known_number(c)) {
    return fill_with(c, *number, dtype_of(x.scalar_type()), 1);
  }
  c.in_format(c.value(std::size_t{0}), 1);
}

// self, dtype, layout, device, pin_memory, non_blocking, memory_format
void to_copy(Call& c) {
  if (!c.none(2) && c.arg(2).toLayout() != at::kStrided) Call::refuse("a layout");
  if (!c.none(3) && !c.arg(3).toDevice().is_cpu()) Call::refuse("a device");
  if (!c.none(4) && c.flag(4)) Call::refuse("pinned memory");
  if (const auto number = known_number(c)) {
    return fill_with(c, *number, c.dtype(1, dtype_of(c.tensor(0).scalar_type())), 6);
  }
  const Value x = c.value(std::size_t{0});
  const Value y = c.trace().cast(x, c.dtype(1, c.meta(x).dtype));
  c.in_format(y, 6);
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
