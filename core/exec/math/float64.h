// float64 functions over Highway vectors, for files that are compiled once per target. Machine code
// calls them, a vector in and a vector out; there is one definition for it and the interpreter, and
// all operations are IEEE's or fused, so that every target gives the same bits.
//
// Accuracy: at most 2 units in the last place, gelu, gelu_tanh and silu apart; tests:
// core/tests/math_float64_test.cpp. Coefficients: tools/math/fit_float64.py. What the C library is
// asked for, lane by lane: sin, cos, tan beyond 2^30, fmod with quotients beyond 2^53, and pow of
// zeros, infinities, NaN, and of negative numbers to powers that are not integers.

#if defined(TILEVM_CORE_EXEC_MATH_FLOAT64_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEVM_CORE_EXEC_MATH_FLOAT64_H_
#undef TILEVM_CORE_EXEC_MATH_FLOAT64_H_
#else
#define TILEVM_CORE_EXEC_MATH_FLOAT64_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/exec/math/float64.gen.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::math::float64::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<double>;
using I = hn::ScalableTag<std::int64_t>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

// The unevaluated sum of two.
struct Sum {
  V hi, lo;
};

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kLog2e = 0x1.71547652b82fep+0;
inline constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2Low = 0x1.abc9e3b39803fp-56;
inline constexpr double kLn2Short = 0x1.62e42feep-1;  // times any exponent is exact
inline constexpr double kLn2Rest = 0x1.a39ef35793c76p-33;
inline constexpr double kLog2eLow = 0x1.777d0ffda0d24p-56;
inline constexpr double kShift = 0x1.8p52;  // x + kShift has the integer nearest to x as low bits
inline constexpr double kPi2 = 0x1.921fb54442d18p+0, kPi2Low = 0x1.1a62633145c07p-54;

HWY_INLINE V f64(double c) { return hn::Set(D(), c); }
HWY_INLINE V keep_zero(V x, V y) { return hn::IfThenElse(hn::Eq(x, f64(0)), x, y); }

#if HWY_NATIVE_FMA
HWY_INLINE V fma(V x, V y, V z) { return hn::MulAdd(x, y, z); }
#else  // SSE2 to SSE4, lane by lane: slow, and right.
HWY_INLINE V fma(V x, V y, V z) {
  HWY_ALIGN double a[hn::MaxLanes(D())], b[hn::MaxLanes(D())], c[hn::MaxLanes(D())];
  hn::Store(x, D(), a), hn::Store(y, D(), b), hn::Store(z, D(), c);
  for (size_t i = 0; i < hn::Lanes(D()); ++i) a[i] = std::fma(a[i], b[i], c[i]);
  return hn::Load(D(), a);
}
#endif
HWY_INLINE V fnma(V x, V y, V z) { return fma(hn::Neg(x), y, z); }

// c[0] + c[1] x + ...: halves of a power of two, which need not wait for each other (G. Estrin,
// "Organization of computer systems", 1960). powers: x, x^2, x^4, ...
template <std::size_t n>
HWY_INLINE V estrin(const V* powers, const double* c) {
  if constexpr (n == 1) {
    return f64(c[0]);
  } else {
    constexpr std::size_t kLow = std::bit_ceil(n) / 2;
    const V high = estrin<n - kLow>(powers, c + kLow);
    return fma(high, powers[std::countr_zero(kLow)], estrin<kLow>(powers, c));
  }
}

template <std::size_t n>
HWY_INLINE V polynomial(V x, const double (&c)[n]) {
  V powers[std::bit_width(n - 1)];
  powers[0] = x;
  for (std::size_t i = 1; i < std::bit_width(n - 1); ++i) {
    powers[i] = hn::Mul(powers[i - 1], powers[i - 1]);
  }
  return estrin<n>(powers, c);
}

// a + b, for |a| >= |b| or a = 0.
HWY_INLINE Sum two_sum(V a, V b) {
  const V hi = hn::Add(a, b);
  return {hi, hn::Add(hn::Sub(a, hi), b)};
}

HWY_INLINE Sum two_product(V a, V b) {
  const V hi = hn::Mul(a, b);
  return {hi, fma(a, b, hn::Neg(hi))};
}

// What a function of the C library gives, where `wanted`.
template <class Fn>
HWY_INLINE V each_where(M wanted, V current, V x, V y, const Fn& fn) {
  if (HWY_LIKELY(hn::AllFalse(D(), wanted))) return current;
  HWY_ALIGN double a[hn::MaxLanes(D())], b[hn::MaxLanes(D())];
  hn::Store(x, D(), a), hn::Store(y, D(), b);
  for (size_t i = 0; i < hn::Lanes(D()); ++i) a[i] = fn(a[i], b[i]);
  return hn::IfThenElse(wanted, hn::Load(D(), a), current);
}

// Exponential ------------------------------------------------------------------------------------

// 2^n for an integral n in [-1022, 1023].
HWY_INLINE V power_of_two(V n) {
  const auto bits = hn::BitCast(I(), hn::Add(n, f64(kShift)));
  return hn::BitCast(D(), hn::ShiftLeft<52>(hn::Add(bits, hn::Set(I(), 1023))));
}

// x 2^n, rounded once, for x in [1/4, 4] and an integral n in [-1100, 1100].
HWY_INLINE V scale2(V x, V n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) return V{_mm512_scalef_pd(x.raw, n.raw)};
#endif
  const V half = hn::Trunc(hn::Mul(n, f64(0.5)));
  return hn::Mul(hn::Mul(x, power_of_two(half)), power_of_two(hn::Sub(n, half)));
}

HWY_INLINE V clamp(V x, double low, double high) {  // NaN stays
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2          // the second, if one is NaN
  return hn::Max(f64(low), hn::Min(f64(high), x));
#else
  x = hn::IfThenElse(hn::Gt(x, f64(high)), f64(high), x);
  return hn::IfThenElse(hn::Lt(x, f64(low)), f64(low), x);
#endif
}

struct Reduced {
  V n;    // integral
  Sum r;  // x - n ln 2, at most about ln 2 / 2
};

// Source: W. J. Cody and W. Waite, "Software manual for the elementary functions", 1980, ch. 6.
HWY_INLINE Reduced exp_reduce(V x) {
  const V n = hn::Round(hn::Mul(x, f64(kLog2e)));
  const V first = fnma(n, f64(kLn2), x);  // exact
  const V hi = fnma(n, f64(kLn2Low), first);
  return {n, {hi, fnma(n, f64(kLn2Low), hn::Sub(first, hi))}};
}

// e^r - 1.
HWY_INLINE V expm1_of(Sum r) {
  const V rest = fma(hn::Mul(r.hi, r.hi), polynomial(r.hi, kExp), fma(r.hi, r.lo, r.lo));
  return hn::Add(r.hi, rest);
}

// e^(x + low) for |low| below 2^-40.
HWY_INLINE V exp_of_sum(V x, V low) {
  const Reduced x_n = exp_reduce(x);
  const V value = hn::Add(f64(1), expm1_of(x_n.r));
  return scale2(fma(value, low, value), x_n.n);
}

HWY_INLINE V exp(V x) {
  const Reduced x_n = exp_reduce(clamp(x, -746, 710));
  const V r = x_n.r.hi;  // what the rest adds is a tenth of a unit
  const V above_1 = fma(hn::Mul(r, r), polynomial(r, kExp), r);
  return scale2(hn::Add(f64(1), above_1), x_n.n);
}

HWY_INLINE V exp2(V x) {
  x = clamp(x, -1076, 1025);
  const V n = hn::Round(x);
  Sum r = two_product(hn::Sub(x, n), f64(kLn2));
  r.lo = fma(hn::Sub(x, n), f64(kLn2Low), r.lo);
  return scale2(hn::Add(f64(1), expm1_of(r)), n);
}

// ((e^r - 1) + (1 - 2^-n)) 2^n.
HWY_INLINE V expm1(V x) {
  const Reduced x_n = exp_reduce(clamp(x, -40, 710));
  const V n = x_n.n;
  const V inverse = power_of_two(hn::Neg(hn::IfThenElse(hn::Gt(n, f64(1000)), f64(1000), n)));
  const V sum = hn::Add(hn::Sub(f64(1), inverse), expm1_of(x_n.r));
  const V half = hn::Trunc(hn::Mul(n, f64(0.5)));
  const V scaled = hn::Mul(hn::Mul(sum, power_of_two(half)), power_of_two(hn::Sub(n, half)));
  return keep_zero(x, scaled);
}

// e^-|x|.
HWY_INLINE V exp_of_minus_abs(V x) { return exp(hn::Neg(hn::Abs(x))); }

// a / b, where b is the sum of two.
HWY_INLINE V quotient(V a, Sum b) {
  const V inverse = hn::Div(f64(1), b.hi);
  const V q = hn::Mul(a, inverse);
  const V rest = fnma(q, b.lo, fnma(q, b.hi, a));
  return fma(rest, inverse, q);
}

// Not by e^-x for x < 0: it overflows where the result is denormal.
HWY_INLINE V sigmoid(V x) {
  const V e = exp_of_minus_abs(x);
  return quotient(hn::IfThenElse(hn::Lt(x, f64(0)), e, f64(1)), two_sum(f64(1), e));
}

HWY_INLINE V silu(V x) { return hn::Mul(x, sigmoid(x)); }

// tanh |x| = t / (t + 2), t = e^2|x| - 1.
HWY_INLINE V tanh(V x) {
  const V a = clamp(hn::Abs(x), 0, 20);
  const V t = expm1(hn::Add(a, a));
  const V below = hn::Add(t, f64(2));
  const V lost = hn::Sub(t, hn::Sub(below, f64(2)));
  return hn::CopySign(quotient(t, {below, lost}), x);
}

// x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for x < 0.
HWY_INLINE V gelu_tanh(V x) {
  const V square = hn::Mul(x, x);
  const V u =
      hn::Mul(hn::Mul(f64(2.0 * 0.7978845608028654), x), fma(f64(0.044715), square, f64(1)));
  return hn::Mul(x, sigmoid(u));
}

// Logarithm --------------------------------------------------------------------------------------

// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt 2, for positive finite x.
struct Parts {
  V k, f;
};

HWY_INLINE Parts parts_of(V x) {
  const auto denormal = hn::Lt(x, f64(0x1p-1022));
  x = hn::IfThenElse(denormal, hn::Mul(x, f64(0x1p54)), x);
  const auto root = hn::BitCast(I(), f64(0x1.6a09e667f3bcdp-1));
  const auto bits = hn::BitCast(I(), x);
  const auto k = hn::ShiftRight<52>(hn::Sub(bits, root));
  const auto one_f = hn::BitCast(D(), hn::Sub(bits, hn::ShiftLeft<52>(k)));
  const auto shift = hn::BitCast(I(), f64(kShift));
  const V exponent = hn::Sub(hn::BitCast(D(), hn::Add(k, shift)), f64(kShift));
  const V more = hn::IfThenElseZero(denormal, f64(-54));
  return {hn::Add(exponent, more), hn::Sub(one_f, f64(1))};
}

// log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R)), s = f / (2 + f), R = 2 (atanh s - s) / s. Source:
// P. T. P. Tang, "Table-driven implementation of the logarithm function", ACM TOMS 1990, whose
// polynomial in s stands here without a table.
struct LogParts {
  V half_square;  // f^2 / 2
  V rest;         // s (f^2 / 2 + R)
};

HWY_INLINE LogParts log_parts(V f) {
  const V s = hn::Div(f, hn::Add(f64(2), f));
  const V z = hn::Mul(s, s);
  const V half_square = hn::Mul(hn::Mul(f64(0.5), f), f);
  return {half_square, hn::Mul(s, fma(z, polynomial(z, kLog), half_square))};
}

// `value` for positive finite x, else what the logarithm of x is.
HWY_INLINE V log_special(V x, V value) {
  const auto plain = hn::And(hn::Gt(x, f64(0)), hn::Lt(x, f64(kInf)));
  const V zero = hn::IfThenElse(hn::Eq(x, f64(0)), f64(-kInf), f64(kNan));
  return hn::IfThenElse(plain, value, hn::IfThenElse(hn::Eq(x, f64(kInf)), x, zero));
}

// k ln 2 + log(1 + f) + c.
HWY_INLINE V log_of(Parts p, V c) {
  const LogParts l = log_parts(p.f);
  const V low = hn::Add(l.rest, fma(p.k, f64(kLn2Rest), c));
  const V high = hn::Sub(hn::Sub(l.half_square, low), p.f);
  return fma(p.k, f64(kLn2Short), hn::Neg(high));
}

HWY_INLINE V log(V x) { return log_special(x, log_of(parts_of(x), f64(0))); }

// 1 + x is rounded; what that lost is c.
HWY_INLINE V log1p(V x) {
  const V u = hn::Add(f64(1), x);
  const V back = hn::Sub(u, f64(1));
  const V lost = hn::Add(hn::Sub(f64(1), hn::Sub(u, back)), hn::Sub(x, back));
  return keep_zero(x, log_special(u, log_of(parts_of(u), hn::Div(lost, u))));
}

HWY_INLINE V log2(V x) {
  const Parts p = parts_of(x);
  const LogParts l = log_parts(p.f);
  const Sum f = two_sum(p.f, hn::Neg(l.half_square));
  const Sum product = two_product(f.hi, f64(kLog2e));
  const V low = fma(hn::Add(f.lo, l.rest), f64(kLog2e), fma(f.hi, f64(kLog2eLow), product.lo));
  const Sum whole = two_sum(p.k, product.hi);
  return log_special(x, hn::Add(whole.hi, hn::Add(whole.lo, low)));
}

// log x of positive finite x, to about 2^-65 of it.
HWY_INLINE Sum long_log(V x) {
  constexpr double kTwoThirds = 2.0 / 3, kTwoThirdsLow = 0x1.5555555555555p-55;
  const Parts p = parts_of(x);
  const Sum d = two_sum(f64(2), p.f);
  const V inverse = hn::Div(f64(1), d.hi);
  const V s = hn::Mul(p.f, inverse);
  const V s_low = hn::Mul(fnma(s, d.lo, fnma(s, d.hi, p.f)), inverse);
  Sum z = two_product(s, s);
  z.lo = fma(hn::Add(s, s), s_low, z.lo);
  Sum c = two_sum(f64(kTwoThirds), hn::Mul(z.hi, polynomial(z.hi, kLogTail)));
  c.lo = hn::Add(c.lo, f64(kTwoThirdsLow));
  Sum cube = two_product(s, z.hi);
  cube.lo = hn::Add(cube.lo, fma(s, z.lo, hn::Mul(s_low, z.hi)));
  Sum u = two_product(cube.hi, c.hi);
  u.lo = hn::Add(u.lo, fma(cube.hi, c.lo, hn::Mul(cube.lo, c.hi)));
  Sum log = two_sum(hn::Add(s, s), u.hi);
  log.lo = hn::Add(log.lo, fma(f64(2), s_low, u.lo));
  const Sum whole = two_sum(hn::Mul(p.k, f64(kLn2Short)), log.hi);
  return two_sum(whole.hi, hn::Add(whole.lo, fma(p.k, f64(kLn2Rest), log.lo)));
}

HWY_INLINE V pow(V x, V y) {
  const V a = hn::Abs(x);
  const auto finite = hn::And(hn::Lt(a, f64(kInf)), hn::Lt(hn::Abs(y), f64(kInf)));
  const auto negative = hn::Lt(x, f64(0));
  const auto integral = hn::Eq(hn::Trunc(y), y);
  const V half = hn::Mul(y, f64(0.5));
  const auto odd = hn::And(integral, hn::Ne(hn::Trunc(half), half));
  const auto plain =
      hn::And(hn::And(finite, hn::Gt(a, f64(0))), hn::Or(hn::Not(negative), integral));
  const Sum log = long_log(a);
  const V hi = hn::Mul(y, log.hi);
  const auto moderate = hn::Lt(hn::Abs(hi), f64(800));
  const V lo = fma(y, log.lo, fma(y, log.hi, hn::Neg(hi)));
  V value = exp_of_sum(clamp(hi, -800, 800), hn::IfThenElseZero(moderate, lo));
  value = hn::IfThenElse(hn::And(negative, odd), hn::Neg(value), value);
  return each_where(hn::Not(plain), value, x, y,
                    [](double base, double to) { return std::pow(base, to); });
}

// Error function ---------------------------------------------------------------------------------

// erfc(t + low) for t in [1/2, 28] and a low that t is rounded by.
HWY_INLINE V erfc_tail(V t, V low) {
  const V inverse = hn::Div(f64(1), hn::Add(t, f64(2)));
  const V u = hn::Mul(hn::Sub(t, f64(2)), inverse);
  const Sum square = two_product(t, t);
  const V more = fma(hn::Add(t, t), low, square.lo);
  const V exponential = exp_of_sum(hn::Neg(square.hi), hn::Neg(more));
  // (1 - u) / 4 is 1 / (t + 2).
  return hn::Mul(exponential, hn::Mul(polynomial(u, kErfc), inverse));
}

HWY_INLINE V erf_near(V x) { return fma(x, polynomial(hn::Mul(x, x), kErf), x); }

HWY_INLINE V erf(V x) {
  const V a = hn::Abs(x);
  const V tail = hn::Sub(f64(1), erfc_tail(clamp(a, 0.5, 6.5), f64(0)));
  const V far = hn::CopySign(tail, x);
  return hn::IfThenElse(hn::Lt(a, f64(0.875)), erf_near(x), far);
}

// erfc(x + low) for a low that x is rounded by.
HWY_INLINE V erfc(V x, V low) {
  const V a = hn::Abs(x);
  const auto negative = hn::Lt(x, f64(0));
  const V tail = erfc_tail(clamp(a, 0.5, 27.5), hn::IfThenElse(negative, hn::Neg(low), low));
  const V far = hn::IfThenElse(negative, hn::Sub(f64(2), tail), tail);
  return hn::IfThenElse(hn::Lt(a, f64(0.6)), hn::Sub(f64(1), erf_near(x)), far);
}

// x / 2 erfc(-x / sqrt 2), without the cancellation of 1 + erf.
HWY_INLINE V gelu(V x) {
  constexpr double kRoot = 0x1.6a09e667f3bcdp-1, kRootLow = -0x1.bdd3413b26456p-55;
  const V t = hn::Mul(x, f64(-kRoot));
  const V low = fnma(x, f64(kRootLow), fnma(x, f64(kRoot), hn::Neg(t)));
  return hn::Mul(hn::Mul(f64(0.5), x),
                 erfc(t, hn::IfThenElseZero(hn::Lt(hn::Abs(t), f64(28)), low)));
}

// Trigonometric ----------------------------------------------------------------------------------

inline constexpr double kTrigLimit = 0x1p30;

struct Turned {
  V quadrant;  // its low bits
  Sum r;
};

// x = n pi/2 + r, pi/2 in three parts; the first product is subtracted without error.
HWY_INLINE Turned trig_reduce(V x) {
  constexpr double kPi2Third = -0x1.f1976b7ed8fbcp-110;
  const V shifted = hn::Add(hn::Mul(x, f64(0x1.45f306dc9c883p-1)), f64(kShift));
  const V n = hn::Sub(shifted, f64(kShift));
  const V first = fnma(n, f64(kPi2), x);
  const Sum p = two_product(n, f64(kPi2Low));
  const V hi = hn::Sub(first, p.hi);
  const V back = hn::Sub(first, hi);
  // first - p.hi - hi, whichever of the two is larger
  const V lost = hn::Sub(hn::Sub(first, hn::Add(hi, back)), hn::Sub(p.hi, back));
  const V low = fnma(n, f64(kPi2Third), hn::Sub(lost, p.lo));
  return {shifted, two_sum(hi, low)};
}

HWY_INLINE Sum sine_of(Sum r) {
  const V z = hn::Mul(r.hi, r.hi);
  const V cosine = fnma(f64(0.5), z, f64(1));  // what r.lo changes, to first order
  return two_sum(r.hi, fma(hn::Mul(r.hi, z), polynomial(z, kSin), hn::Mul(r.lo, cosine)));
}

HWY_INLINE Sum cosine_of(Sum r) {
  const V z = hn::Mul(r.hi, r.hi);
  const V half = hn::Mul(f64(0.5), z);
  const Sum near = two_sum(f64(1), hn::Neg(half));
  const V square_lost = fma(r.hi, r.hi, hn::Neg(z));
  V rest = fma(hn::Mul(z, z), polynomial(z, kCos), fnma(f64(0.5), square_lost, near.lo));
  rest = fnma(r.hi, r.lo, rest);
  return two_sum(near.hi, rest);
}

HWY_INLINE M bit_of(V shifted, std::int64_t bit) {
  const auto bits = hn::And(hn::BitCast(I(), shifted), hn::Set(I(), bit));
  return hn::RebindMask(D(), hn::Ne(bits, hn::Zero(I())));
}

// sin(x + turn pi/2) near 0.
HWY_INLINE V sine_turned(V x, double turn) {
  Turned t = trig_reduce(x);
  t.quadrant = hn::Add(t.quadrant, f64(turn));
  const V value = hn::IfThenElse(bit_of(t.quadrant, 1), cosine_of(t.r).hi, sine_of(t.r).hi);
  return hn::IfThenElse(bit_of(t.quadrant, 2), hn::Neg(value), value);
}

// Infinities among them; NaN is near.
HWY_INLINE M is_far(V x) { return hn::Gt(hn::Abs(x), f64(kTrigLimit)); }

HWY_INLINE V sin(V x) {
  return each_where(is_far(x), keep_zero(x, sine_turned(x, 0)), x, x,
                    [](double a, double) { return std::sin(a); });
}

HWY_INLINE V cos(V x) {
  return each_where(is_far(x), sine_turned(x, 1), x, x,
                    [](double a, double) { return std::cos(a); });
}

HWY_INLINE V tan(V x) {
  const Turned t = trig_reduce(x);
  const Sum sine = sine_of(t.r), cosine = cosine_of(t.r);
  const auto odd = bit_of(t.quadrant, 1);
  const V above = hn::IfThenElse(odd, hn::Neg(cosine.hi), sine.hi);
  const V above_low = hn::IfThenElse(odd, hn::Neg(cosine.lo), sine.lo);
  const V below = hn::IfThenElse(odd, sine.hi, cosine.hi);
  const V below_low = hn::IfThenElse(odd, sine.lo, cosine.lo);
  const V inverse = hn::Div(f64(1), below);
  const V q = hn::Mul(above, inverse);
  const V rest = hn::Add(fnma(q, below, above), fnma(q, below_low, above_low));
  const V near = keep_zero(x, fma(rest, inverse, q));
  return each_where(is_far(x), near, x, x, [](double a, double) { return std::tan(a); });
}

// The angle of the quotient of the smaller by the larger, beyond pi/8 as pi/4 more than another.
HWY_INLINE V atan2(V y, V x) {
  const V ax = hn::Abs(x), ay = hn::Abs(y);
  const auto swapped = hn::Lt(ax, ay);
  V below = hn::IfThenElse(swapped, ay, ax), above = hn::IfThenElse(swapped, ax, ay);
  const auto both = hn::Eq(above, f64(kInf));
  below = hn::IfThenElse(both, f64(1), below), above = hn::IfThenElse(both, f64(1), above);
  // Sums must not overflow, nor products be denormal.
  V scale = hn::IfThenElse(hn::Gt(below, f64(0x1p1000)), f64(0x1p-30), f64(1));
  scale = hn::IfThenElse(hn::Lt(below, f64(0x1p-900)), f64(0x1p120), scale);
  below = hn::Mul(below, scale), above = hn::Mul(above, scale);
  const auto large = hn::Gt(above, hn::Mul(below, f64(0.41421356237309503)));
  const Sum sum = two_sum(below, above);
  const V difference = hn::Sub(above, below);
  const V num = hn::IfThenElse(large, difference, above);
  V den = hn::IfThenElse(large, sum.hi, below);
  den = hn::IfThenElse(hn::Eq(den, f64(0)), f64(1), den);
  const V a = hn::Div(num, den);
  const V s = hn::Mul(a, a);
  V rest = hn::Mul(hn::Mul(a, s), polynomial(s, kAtan));
  // turns pi/4 + a + rest is the angle of the quotient; swapped, it is pi/2 less that; left of 0,
  // pi less that.
  const auto left = hn::Lt(hn::CopySign(f64(1), x), f64(0));
  V turns = hn::IfThenElseZero(large, f64(1));
  turns = hn::IfThenElse(swapped, hn::Sub(f64(2), turns), turns);
  turns = hn::IfThenElse(left, hn::Sub(f64(4), turns), turns);
  const auto minus = hn::Xor(swapped, left);
  const V first = hn::IfThenElse(minus, hn::Neg(a), a);
  rest = hn::IfThenElse(minus, hn::Neg(rest), rest);
  const Sum base = two_product(turns, f64(0.5 * kPi2));
  const Sum angle = two_sum(base.hi, first);
  const V low = fma(turns, f64(0.5 * kPi2Low), hn::Add(base.lo, angle.lo));
  const V value = hn::Add(angle.hi, hn::Add(low, rest));
  const auto nan = hn::Or(hn::IsNaN(x), hn::IsNaN(y));
  return hn::IfThenElse(nan, hn::Add(x, y), hn::CopySign(value, y));
}

// Modulo -----------------------------------------------------------------------------------------

// C fmod, exact, with the sign of x: as in modulo.h.
HWY_INLINE V fmod(V x, V y) {
  const V ax = hn::Abs(x), ay = hn::Abs(y);
  const V q = hn::Trunc(hn::Div(ax, ay));
  V r = fnma(q, ay, ax);
  r = hn::IfThenElse(hn::Lt(r, f64(0)), hn::Add(r, ay), r);
  r = hn::IfThenElse(hn::Lt(ax, ay), ax, r);  // y may be infinite
  r = hn::CopySign(hn::Abs(r), x);
  return each_where(hn::Ge(q, f64(0x1p53)), r, x, y,
                    [](double a, double b) { return std::fmod(a, b); });
}

// Whether m, the fmod by y, has to move by y to get the sign of y.
HWY_INLINE M wrong_side(V m, V y) {
  const V zero = f64(0);
  return hn::Or(hn::And(hn::Lt(m, zero), hn::Lt(zero, y)),
                hn::And(hn::Lt(zero, m), hn::Lt(y, zero)));
}

HWY_INLINE V remainder(V x, V y) {
  const V m = fmod(x, y);
  return hn::IfThenElse(wrong_side(m, y), hn::Add(m, y), m);
}

// Python's: the quotient of what divides exactly, which rounding may leave off an integer.
HWY_INLINE V floor_div(V x, V y) {
  const V m = fmod(x, y);
  V d = hn::Div(hn::Sub(x, m), y);
  d = hn::IfThenElse(wrong_side(m, y), hn::Sub(d, f64(1)), d);
  const V down = hn::Floor(d);
  const V whole = hn::IfThenElse(hn::Gt(hn::Sub(d, down), f64(0.5)), hn::Add(down, f64(1)), down);
  const V exact = hn::Div(x, y);
  const V r = hn::IfThenElse(hn::Eq(d, f64(0)), hn::CopySign(f64(0), exact), whole);
  return hn::IfThenElse(hn::Eq(y, f64(0)), exact, r);
}

}  // namespace tilevm::math::float64::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
