// Operators that make tensors of sizes and numbers, reading none, and those that write over all of
// one. A tensor of one number needs nothing to run where somebody looks at it: it fills itself.
#include <cmath>

#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

// Where arguments of a maker are: -1 for what it has not. Behind `dtype` come layout, device and
// pin_memory; of a tensor that is like another one, its memory format, too.
struct Places {
  int size = -1, number = -1, dtype = 0;
  bool like = false;
};

std::size_t index(int place) { return static_cast<std::size_t>(place); }

void need_plain(const Call& c, int dtype) {
  const std::size_t i = index(dtype);
  if (!c.none(i + 1) && c.arg(i + 1).toLayout() != at::kStrided) Call::refuse("a layout");
  if (!c.none(i + 2) && !c.arg(i + 2).toDevice().is_cpu()) Call::refuse("a device");
  if (!c.none(i + 3) && c.flag(i + 3)) Call::refuse("pinned memory");
}

at::Scalar number_at(const Call& c, std::size_t i) {
  const c10::IValue& v = c.arg(i);
  if (!v.isDouble() && !v.isInt() && !v.isBool()) Call::refuse("a number of another kind");
  return v.toScalar();
}

DType dtype_of_number(const at::Scalar& v) {
  if (v.isBoolean()) return DType::kBool;
  return v.isIntegral(false) ? DType::kInt64 : DType::kFloat32;  // the default dtype
}

bool fits_in(const at::Scalar& v, DType dtype) {
  const at::ScalarType type = scalar_type(dtype);
  return v.isFloatingPoint() ? fits(v.toDouble(), type) : fits(v.toLong(), type);
}

// The number, which the dtype has, in all elements.
Value full(Call& c, const at::Scalar& number, DType dtype, at::IntArrayRef sizes) {
  Trace& trace = c.trace();
  Value v = kNoValue;
  if (number.isFloatingPoint()) {
    v = trace.number(number.toDouble());
  } else {
    v = number.isBoolean() ? trace.boolean(number.toBool()) : trace.number(number.toLong());
  }
  c.all_are(number);
  return c.op(Op::expand, {trace.cast(v, dtype)}, {Param::sizes(sizes)});
}

// All elements are one number, `known` or an argument.
Row filled(Places p, std::optional<double> known) {
  return [=](Call& c) {
    need_plain(c, p.dtype);
    const at::Scalar number = known ? at::Scalar(*known) : number_at(c, index(p.number));
    const bool of_tensor = c.is_tensor(0);
    DType own = known ? DType::kFloat32 : dtype_of_number(number);
    if (of_tensor) own = dtype_of(c.tensor(0).scalar_type());
    const DType dtype = c.dtype(index(p.dtype), own);
    if (dtype == DType::kOpaque) Call::refuse("a dtype that kernels do not have");
    if (!fits_in(number, dtype)) Call::refuse("a number that the dtype does not have");
    Axes sizes;
    if (p.like) {
      sizes = c.tensor(0).sizes().vec();
    } else if (p.size >= 0) {
      sizes = c.integers(index(p.size));
    }
    for (const std::int64_t size : sizes) {
      if (size < 0) Call::refuse("a negative size");
    }
    Value v = kNoValue;
    if (known) {
      const Param shape = Param::sizes(sizes);
      v = c.op(Op::full, {}, {shape, Param::of_number(*known), Param::dtype(dtype)});
      c.all_are(number);
    } else {
      v = full(c, number, dtype, sizes);
    }
    if (p.like) {
      c.in_format(v, index(p.dtype) + 4);
    } else {
      c.contiguous(v);
    }
  };
}

// ---- Rows of numbers

Value places(Call& c, std::int64_t n) {
  return c.op(Op::iota, {}, {Param::size(n), Param::size(0), Param::size(1)});
}

bool is_wide_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

bool has_exactly(std::int64_t v, DType dtype) {
  if (!is_float(dtype)) return fits(v, scalar_type(dtype));
  return is_wide_float(dtype) && std::abs(v) <= 1 << 24;
}

// start, end and step, as far as there are any; `n`: how many. Source of the number of elements:
// PyTorch, ATen/native/RangeUtils.h.
Row range(int n) {
  return [=](Call& c) {
    need_plain(c, n);
    const at::Scalar start = n > 1 ? number_at(c, 0) : at::Scalar(0);
    const at::Scalar end = number_at(c, n > 1 ? 1 : 0);
    const at::Scalar step = n > 2 ? number_at(c, 2) : at::Scalar(1);
    const bool whole = start.isIntegral(false) && end.isIntegral(false) && step.isIntegral(false);
    const DType dtype = c.dtype(index(n), whole ? DType::kInt64 : DType::kFloat32);
    const double from = start.toDouble(), to = end.toDouble(), by = step.toDouble();
    const double many = std::ceil((to - from) / by);
    constexpr double kMost = 1LL << 52;  // so that integers are exact, and wrong signs none
    const bool forwards = by > 0 ? to >= from : to <= from;
    const auto small = [](double v) { return std::abs(v) < kMost; };
    if (!(small(many) && small(from) && small(to) && small(by) && forwards)) {
      Call::refuse("an unusual range");
    }
    const auto count = static_cast<std::int64_t>(many);
    if (whole) {
      const std::int64_t last = start.toLong() + (count - 1) * step.toLong();
      const bool exact = has_exactly(start.toLong(), dtype) && has_exactly(last, dtype);
      if (dtype == DType::kBool || !exact) Call::refuse("numbers that the dtype does not have");
      Value v = places(c, count);
      if (step.toLong() != 1) v = c.op(Op::mul, {v, c.trace().number(step.toLong())});
      if (start.toLong() != 0) v = c.op(Op::add, {v, c.trace().number(start.toLong())});
      return c.contiguous(c.trace().cast(v, dtype));
    }
    if (!is_wide_float(dtype)) Call::refuse("fractions of another dtype");
    const Value i = c.trace().cast(places(c, count), DType::kFloat64);
    const Value v = c.op(
        Op::add, {c.op(Op::mul, {i, c.trace().number(by)}), c.trace().number(from)});
    c.contiguous(c.trace().cast(v, dtype));
  };
}

struct Spaces {
  double start, end, by;
};

// n numbers, from both ends to the middle, as PyTorch's kernels go.
// Source: PyTorch, ATen/native/cpu/RangeFactoriesKernel.cpp and ATen/native/RangeFactories.cpp.
Value from_both_ends(Call& c, Spaces spaces, std::int64_t n, DType dtype) {
  const auto number = [&](double v) { return c.trace().number(v); };
  const auto along = [&](Value v) {
    return c.op(Op::mul, {c.trace().cast(v, dtype), number(spaces.by)});
  };
  const Value i = places(c, n), left = c.op(Op::sub, {c.trace().number(n - 1), i});
  const Value low = c.op(Op::add, {along(i), number(spaces.start)});
  const Value high = c.op(Op::sub, {number(spaces.end), along(left)});
  const Value first = c.op(Op::lt, {i, c.trace().number(n / 2)});
  return c.op(Op::where, {first, low, high});
}

// start, end, steps, dtype
void linspace(Call& c) {
  need_plain(c, 3);
  const DType dtype = c.dtype(3, DType::kFloat32);
  const std::int64_t n = c.integer(2);
  if (!is_wide_float(dtype) || n < 0) Call::refuse("integers, or a negative size");
  const double start = number_at(c, 0).toDouble(), end = number_at(c, 1).toDouble();
  if (!fits(start, scalar_type(dtype)) || !fits(end, scalar_type(dtype)))
    Call::refuse("numbers that the dtype does not have");
  if (n < 2) {
    const Value v = c.trace().cast(c.trace().number(start), dtype);
    return c.contiguous(c.op(Op::expand, {v}, {Param::sizes(Axes{n})}));
  }
  double by = (end - start) / static_cast<double>(n - 1);
  if (dtype == DType::kFloat32) {
    by = (static_cast<float>(end) - static_cast<float>(start)) / static_cast<float>(n - 1);
  }
  c.contiguous(from_both_ends(c, {start, end, by}, n, dtype));
}

// start, end, steps, base, dtype: powers of the base, in float64.
void logspace(Call& c) {
  need_plain(c, 4);
  const DType dtype = c.dtype(4, DType::kFloat32);
  const std::int64_t n = c.integer(2);
  if (!is_wide_float(dtype) || n < 0) Call::refuse("integers, or a negative size");
  double start = number_at(c, 0).toDouble(), end = number_at(c, 1).toDouble();
  double way = end - start;
  if (dtype == DType::kFloat32) {
    const auto from = static_cast<float>(start), to = static_cast<float>(end);
    start = from;
    end = to;
    way = to - from;
  }
  const double by = n < 2 ? 0 : way / static_cast<double>(n - 1);
  if (n < 2) end = start;
  const Value exponents = from_both_ends(c, {start, end, by}, n, DType::kFloat64);
  const Value base = c.trace().cast(c.trace().number(number_at(c, 3).toDouble()), DType::kFloat64);
  c.contiguous(c.trace().cast(c.op(Op::pow, {base, exponents}), dtype));
}

// `sizes`: how many of the first arguments are n and m.
Row eye(int sizes) {
  return [=](Call& c) {
    need_plain(c, sizes);
    const DType dtype = c.dtype(index(sizes), DType::kFloat32);
    const std::int64_t n = c.integer(0), m = sizes > 1 ? c.integer(1) : n;
    if (n < 0 || m < 0) Call::refuse("a negative size");
    const Value row = c.op(Op::unsqueeze, {places(c, n)}, {Param::integer(1)});
    c.contiguous(c.trace().cast(c.op(Op::eq, {row, places(c, m)}), dtype));
  };
}

// ---- What is written over is not read

DType written_dtype(Call& c) {
  const DType dtype = dtype_of(c.tensor(0).scalar_type());
  if (dtype == DType::kOpaque) Call::refuse("a dtype that kernels do not have");
  return dtype;
}

void fill_value(Call& c) {
  const Value v = c.value(1);
  if (c.meta(v).rank != 0) Call::refuse("several values");
  const at::Tensor& self = c.tensor(0);
  const Value y = c.trace().cast(v, written_dtype(c));
  c.contiguous(c.op(Op::expand, {y}, {Param::sizes(self.sizes())}));
}

void zero(Call& c) {
  const at::Tensor& self = c.tensor(0);
  c.contiguous(c.op(Op::full, {}, {Param::sizes(self.sizes()), Param::of_number(0),
                                   Param::dtype(written_dtype(c))}));
}

void copy_from(Call& c) {  // self, src, non_blocking
  const at::Tensor& self = c.tensor(0);
  const Value r = c.trace().cast(c.value(1), written_dtype(c));
  const Meta& from = c.meta(r);
  const int rank = static_cast<int>(self.dim());
  if (from.rank > rank) Call::refuse("more dims");
  for (int d = 1; d <= from.rank; ++d) {
    const std::int64_t size = from.size(from.rank - d);
    if (size != 1 && size != self.size(rank - d)) Call::refuse("sizes differ");
  }
  c.contiguous(c.op(Op::expand, {r}, {Param::sizes(self.sizes())}));
}

std::map<std::string, Row> make_rows() {
  constexpr Places kSized{.size = 0, .dtype = 1}, kNew{.size = 1, .dtype = 2};
  constexpr Places kLike{.dtype = 1, .like = true};
  return {
      {"zeros", filled(kSized, 0)},
      {"ones", filled(kSized, 1)},
      {"full", filled({.size = 0, .number = 1, .dtype = 2}, {})},
      {"new_zeros", filled(kNew, 0)},
      {"new_ones", filled(kNew, 1)},
      {"new_full", filled({.size = 1, .number = 2, .dtype = 3}, {})},
      {"zeros_like", filled(kLike, 0)},
      {"ones_like", filled(kLike, 1)},
      {"full_like", filled({.number = 1, .dtype = 2, .like = true}, {})},
      {"scalar_tensor", filled({.number = 0, .dtype = 1}, {})},
      {"arange", range(1)},
      {"arange.start", range(2)},
      {"arange.start_step", range(3)},
      {"linspace", linspace},
      {"logspace", logspace},
      {"eye", eye(1)},
      {"eye.m", eye(2)},
  };
}

}  // namespace

const std::map<std::string, Row>& maker_rows() {
  static const auto* const rows = new std::map<std::string, Row>(make_rows());
  return *rows;
}

void fill_with(Call& c, const at::Scalar& number, DType dtype, std::size_t format) {
  if (!fits_in(number, dtype)) Call::refuse("a number that the dtype does not have");
  c.in_format(full(c, number, dtype, c.tensor(0).sizes()), format);
}

const std::map<std::string, Row>& fill_rows() {
  static const auto* const rows = new std::map<std::string, Row>{{"fill_.Scalar", fill_value},
                                                                 {"fill_.Tensor", fill_value},
                                                                 {"zero_", zero},
                                                                 {"copy_", copy_from}};
  return *rows;
}

}  // namespace tilevm::eager
