// Accuracy of core/exec/math/float64.h with every Highway target of this machine, whose bits must
// be the same.
//
//   math_float64_test            special values and a stratified sample
//   math_float64_test POINTS     a longer sample
//
// The judge is the C library in long double, which is 11 bits more precise on x86-64 and 60 on
// AArch64. Prints the largest error of each function; returns 1 if one is over its limit.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tests/math_float64_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format off
#include "core/exec/math/float64.h"
// clang-format on

#ifndef TILEVM_CORE_TESTS_MATH_FLOAT64_ROWS
#define TILEVM_CORE_TESTS_MATH_FLOAT64_ROWS
#define TILEVM_UNARY(ROW)                                                                  \
  ROW(exp)                                                                                 \
  ROW(exp2)                                                                                \
  ROW(expm1)                                                                               \
  ROW(log) ROW(log2) ROW(log1p) ROW(sin) ROW(cos) ROW(tan) ROW(tanh) ROW(sigmoid) ROW(erf) \
      ROW(silu) ROW(gelu) ROW(gelu_tanh)
#define TILEVM_BINARY(ROW) ROW(pow) ROW(atan2) ROW(fmod) ROW(remainder) ROW(floor_div)

enum class MathFn {
#define TILEVM_ROW(name) k_##name,
  TILEVM_UNARY(TILEVM_ROW) TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
};
#endif

HWY_BEFORE_NAMESPACE();
namespace tilevm::math::float64::HWY_NAMESPACE {

// n: a multiple of 8. y is ignored by unary functions.
HWY_ATTR void apply(MathFn fn, const double* x, const double* y, double* out, size_t n) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const V v = hn::LoadU(d, x + i), w = hn::LoadU(d, y + i);
    V result = v;
    switch (fn) {
#define TILEVM_ROW(name) \
  case MathFn::k_##name: \
    result = name(v);    \
    break;
      TILEVM_UNARY(TILEVM_ROW)
#undef TILEVM_ROW
#define TILEVM_ROW(name) \
  case MathFn::k_##name: \
    result = name(v, w); \
    break;
      TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
    }
    hn::StoreU(result, d, out + i);
  }
}

}  // namespace tilevm::math::float64::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace tilevm::math::float64 {
HWY_EXPORT(apply);

namespace {

using Long = long double;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  MathFn fn;
  const char* name;
  bool binary;
};
const Row kRows[] = {
#define TILEVM_ROW(name) {MathFn::k_##name, #name, false},
    TILEVM_UNARY(TILEVM_ROW)
#undef TILEVM_ROW
#define TILEVM_ROW(name) {MathFn::k_##name, #name, true},
        TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
};

double floor_of_quotient(double x, double y) {
  if (y == 0) return x / y;
  const double m = std::fmod(x, y);
  double d = (x - m) / y;
  if (m != 0 && (y < 0) != (m < 0)) d -= 1;
  if (d == 0) return std::copysign(0.0, x / y);
  const double whole = std::floor(d);
  return d - whole > 0.5 ? whole + 1 : whole;
}

Long sigmoid_of(Long x) { return 1 / (1 + std::exp(-x)); }

Long judge(MathFn fn, double a, double b) {
  const Long x = a, y = b;
  switch (fn) {
    case MathFn::k_exp:
      return std::exp(x);
    case MathFn::k_exp2:
      return std::exp2(x);
    case MathFn::k_expm1:
      return std::expm1(x);
    case MathFn::k_log:
      return std::log(x);
    case MathFn::k_log2:
      return std::log2(x);
    case MathFn::k_log1p:
      return std::log1p(x);
    case MathFn::k_sin:
      return std::sin(x);
    case MathFn::k_cos:
      return std::cos(x);
    case MathFn::k_tan:
      return std::tan(x);
    case MathFn::k_tanh:
      return std::tanh(x);
    case MathFn::k_sigmoid:
      return sigmoid_of(x);
    case MathFn::k_erf:
      return std::erf(x);
    case MathFn::k_silu:
      return x * sigmoid_of(x);
    case MathFn::k_gelu:
      return x / 2 * std::erfc(-x * 0.707106781186547524400844362104849039L);
    case MathFn::k_gelu_tanh:
      return x * sigmoid_of(1.59576912160573071175978423973752747L * (x + 0.044715L * x * x * x));
    case MathFn::k_pow:
      return std::pow(x, y);
    case MathFn::k_atan2:
      return std::atan2(x, y);
    case MathFn::k_fmod:
      return std::fmod(a, b);
    case MathFn::k_remainder: {
      const double m = std::fmod(a, b);
      return m != 0 && (b < 0) != (m < 0) ? m + b : m;
    }
    case MathFn::k_floor_div:
      return floor_of_quotient(a, b);
  }
  return 0;
}

// Units in the last place that are allowed at x; 0: equal.
double limit(MathFn fn, double x) {
  switch (fn) {
    case MathFn::k_fmod:
    case MathFn::k_remainder:
    case MathFn::k_floor_div:
      return 0;
    case MathFn::k_gelu:
      return 8;
    // Of its argument, which is rounded, most of the error far below 0.
    case MathFn::k_gelu_tanh:
      return x > 0 ? 4 : 4 + 4 * std::abs(x * (1 + x * x));
    case MathFn::k_silu:
      return 3;
    default:
      return 2;
  }
}

// Products with a factor that may be denormal lose what that is rounded by.
bool may_underflow(MathFn fn) {
  return fn == MathFn::k_silu || fn == MathFn::k_gelu || fn == MathFn::k_gelu_tanh;
}

double unit_of(MathFn fn, Long x) {
  const int least = may_underflow(fn) ? -1064 : -1074;
  return std::ldexp(1.0, x == 0 ? least : std::max(std::ilogb(x) - 52, least));
}

// In units in the last place of the result; infinite where one is NaN and the other is not, or a
// zero has the wrong sign. Overflow counts as 2^1024.
double error(MathFn fn, double got, Long want) {
  if (std::isnan(got) || std::isnan(want))
    return std::isnan(got) && std::isnan(want) ? 0 : kInfinity;
  if (got == 0 && want == 0 && std::signbit(got) != std::signbit(want)) return kInfinity;
  if (std::isinf(got) && std::isinf(want)) return got == want ? 0 : kInfinity;
  const Long largest = 2 * Long{0x1p1023};
  const Long g = std::isinf(got) ? std::copysign(largest, Long{got}) : Long{got};
  const Long w = std::clamp(want, -largest, largest);
  const double unit = std::abs(w) >= largest ? 0x1p971 : unit_of(fn, w);
  return static_cast<double>(std::abs(g - w) / unit);
}

std::vector<double> special_values() {
  std::vector<double> found;
  for (const double x : {0.0,
                         1.0,
                         kInfinity,
                         std::numeric_limits<double>::quiet_NaN(),
                         0x1p-1074,
                         0x1p-1022,
                         0x1p-1023,
                         0x1.fffffffffffffp1023,
                         0.5,
                         2.0,
                         3.0,
                         0.1,
                         0x1p52,
                         0x1p53,
                         9007199254740991.0,
                         709.78271289338397,
                         745.13321910194122,
                         1023.0,
                         1024.0,
                         1074.0,
                         1075.0,
                         0.25,
                         0.875,
                         6.0,
                         26.5,
                         27.3,
                         38.0,
                         0x1p30,
                         1e10,
                         1e22,
                         0.34657359027997264,
                         0.69314718055994529,
                         0.70710678118654757,
                         1.4142135623730951,
                         1.5707963267948966,
                         0.78539816339744828,
                         3.1415926535897931,
                         0.41421356237309503,
                         20.0,
                         22.0,
                         36.7,
                         5.0,
                         0.3,
                         7.0,
                         1e300,
                         1e-300}) {
    for (const double s : {x, -x}) {
      found.push_back(s);
      if (std::isnan(s)) continue;
      found.push_back(std::nextafter(s, kInfinity));
      found.push_back(std::nextafter(s, -kInfinity));
    }
  }
  return found;
}

// Every exponent, and where the function is neither flat nor linear.
void sample(bool binary, size_t points, std::vector<double>& x, std::vector<double>& y) {
  std::mt19937_64 rng(1);
  const auto special = special_values();
  for (const double a : special) {
    for (const double b : special) {
      x.push_back(a), y.push_back(b);
      if (!binary) break;
    }
  }
  std::uniform_real_distribution<double> wide(-760, 760), unit(-2, 2), small(-40, 40);
  while (x.size() < points || x.size() % 8 != 0) {
    x.push_back(std::bit_cast<double>(rng())), y.push_back(std::bit_cast<double>(rng()));
    x.push_back(wide(rng)), y.push_back(unit(rng));
    const double a = unit(rng);
    x.push_back(a), y.push_back(wide(rng));
    x.push_back(small(rng)), y.push_back(std::round(small(rng)));
    x.push_back(unit(rng)), y.push_back(unit(rng));
    // pow: a base of any size with a result of any size
    const double base = std::abs(std::bit_cast<double>(rng() & 0x7fefffffffffffff));
    x.push_back(base), y.push_back(1.4 * wide(rng) / std::log2(base));
    const double close = 1 + a * 0x1p-20;
    x.push_back(close), y.push_back(1.4 * wide(rng) / std::log2(close));
    // A quotient near an integer; a multiple of pi/2.
    const double divisor = unit(rng);
    x.push_back(std::round(wide(rng)) * divisor), y.push_back(divisor);
    x.push_back(std::round(wide(rng) * 1000) * 1.5707963267948966), y.push_back(small(rng));
  }
}

bool check(size_t points) {
  bool good = true;
  for (const Row& row : kRows) {
    std::vector<double> x, y;
    sample(row.binary, points, x, y);
    std::vector<double> first, out(x.size());
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      HWY_DYNAMIC_DISPATCH(apply)(row.fn, x.data(), y.data(), out.data(), x.size());
      hwy::SetSupportedTargetsForTest(0);
      if (first.empty()) first = out;
      for (size_t i = 0; i < x.size(); ++i) {
        const bool same = out[i] == first[i] || (std::isnan(out[i]) && std::isnan(first[i]));
        if (same) continue;
        std::printf("%s of %a, %a is %a with %s, not %a\n", row.name, x[i], y[i], out[i],
                    hwy::TargetName(target), first[i]);
        good = false;
        break;
      }
    }
    double worst = 0, share = 0;
    size_t at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double off = error(row.fn, first[i], judge(row.fn, x[i], y[i]));
      const double allowed = limit(row.fn, x[i]);
      const double part = off == 0 ? 0 : off / allowed;
      if (part > share) share = part, worst = off, at = i;
    }
    const bool fine = share <= 1;
    std::printf("%-10s %8.3f units at %a, %a: %a, not %a%s\n", row.name, worst, x[at], y[at],
                first[at], static_cast<double>(judge(row.fn, x[at], y[at])), fine ? "" : "  FAIL");
    good = good && fine;
  }
  return good;
}

}  // namespace
}  // namespace tilevm::math::float64

int main(int argc, char** argv) {
  const size_t points = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  return tilevm::math::float64::check(points) ? 0 : 1;
}
#endif
