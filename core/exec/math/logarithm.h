// log, log2, log1p, pow. Included by math.h only: no include guard.

TILEVM_MATH_BEGIN

inline constexpr int32_t kTwoThirds = 0x3f2aaaab;  // bits of 2/3
inline constexpr int32_t kSqrtHalf = 0x3f3504f3;   // bits of sqrt(1/2)
inline constexpr int32_t kExponent = INT32_C(-0x800000);
inline constexpr float kMinNormal = 0x1p-126f;
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class B>
struct LogReduced {
  typename B::F e, m;  // x = m 2^e
};

template <class B>
struct LogNormal {
  typename B::I bits;
  typename B::F exponent;
};

// The bits of x 2^-exponent, which is normal.
template <class B>
TILEVM_MATH_FN LogNormal<B> log_normal(B& b, const typename B::F& x) {
  auto tiny = b.lt(x, b.f32(kMinNormal));
  auto i = b.bits(b.select(tiny, b.mul(x, b.f32(0x1p23f)), x));
  return {i, b.select(tiny, b.f32(-23.0f), b.f32(0.0f))};
}

// m in [low, 2 low), `low` given by its bits; x positive and finite, or the result is arbitrary.
template <class B>
TILEVM_MATH_FN LogReduced<B> log_reduce(B& b, const typename B::F& x, int32_t low) {
  auto [i, shift] = log_normal(b, x);
  auto e = b.iand(b.isub(i, b.i32(low)), b.i32(kExponent));
  i = b.isub(i, e);
  return {b.fma(b.to_float(e), b.f32(0x1p-23f), shift), b.from_bits(i)};
}

// log(1 + f) + e ln2, f in [-1/3, 1/3].
template <class B>
TILEVM_MATH_FN typename B::F log_of_parts(B& b, typename B::F e, typename B::F f) {
  auto p = horner(b, f, kLog);
  p = b.fma(std::move(p), f, b.f32(-0.5f));
  f = b.fma(std::move(p), b.mul(f, f), f);
  return b.fma(std::move(e), b.f32(kLn2Hi), std::move(f));
}

// The result r of a logarithm of x, put right where x is NaN, infinite, negative, or zero.
template <class B>
TILEVM_MATH_FN typename B::F log_special(B& b, const typename B::F& x, typename B::F r) {
  auto zero = b.f32(0.0f);
  r = b.select(b.lt(x, b.f32(kInf)), r, x);
  r = b.select(b.lt(x, zero), b.f32(kNan), r);
  return b.select(b.eq(x, zero), b.f32(-kInf), r);
}

template <class B>
TILEVM_MATH_FN typename B::F log(B& b, const typename B::F& x) {
  auto [e, f] = log_reduce(b, x, kTwoThirds);
  f = b.sub(f, b.f32(1.0f));
  f = log_of_parts(b, std::move(e), std::move(f));
  return log_special(b, x, std::move(f));
}

template <class B>
TILEVM_MATH_FN typename B::F log2(B& b, const typename B::F& x) {
  constexpr float kLog2eLo = 0x1.4ae0bep-26f;
  auto [e, f] = log_reduce(b, x, kSqrtHalf);
  f = b.sub(f, b.f32(1.0f));
  auto p = horner(b, f, kLog2);
  p = b.mul(b.mul(f, f), p);
  p = b.fma(f, b.f32(kLog2eLo), std::move(p));
  p = b.fma(f, b.f32(kLog2e), std::move(p));
  p = b.add(e, p);
  return log_special(b, x, std::move(p));
}

// u = 1 + x = (1 + f) 2^e, where f = x 2^-e + (2^-e - 1): no bit of a small x is lost.
// Source: N. Juffa's log1pf (forums.developer.nvidia.com, 2017).
template <class B>
TILEVM_MATH_FN LogReduced<B> log1p_reduce(B& b, const typename B::F& x, const typename B::F& u) {
  auto e = b.iand(b.isub(b.bits(u), b.i32(kTwoThirds)), b.i32(kExponent));
  auto s = b.from_bits(b.isub(b.bits(b.f32(4.0f)), e));  // 4 and not 1: stays normal
  s = b.fma(std::move(s), b.f32(0.25f), b.f32(-1.0f));
  s = b.add(b.from_bits(b.isub(b.bits(x), e)), s);
  return {b.mul(b.to_float(e), b.f32(0x1p-23f)), s};
}

template <class B>
TILEVM_MATH_FN typename B::F log1p(B& b, const typename B::F& x) {
  auto u = b.add(x, b.f32(1.0f));
  auto [e, f] = log1p_reduce(b, x, u);
  f = log_of_parts(b, std::move(e), std::move(f));
  f = log_special(b, u, std::move(f));
  return keep_zero(b, x, f);
}

template <class B>
struct TwoFloats {
  typename B::F hi, lo;
};

// (m - 1) / (m + 1), in two floats.
template <class B>
TILEVM_MATH_FN TwoFloats<B> log2_argument(B& b, typename B::F m) {
  auto one = b.f32(1.0f);
  auto r = b.div(one, b.add(m, one));
  m = b.sub(m, one);
  auto q = b.mul(m, r);
  return {q, b.mul(r, b.fnma(q, m, b.fma(q, b.f32(-2.0f), m)))};  // r (m - q (m + 2)), exact inside
}

// What log2((1 + q) / (1 - q)) has beyond 2 q / ln 2. Of q^2 and q^3, too, the low floats matter.
template <class B>
TILEVM_MATH_FN typename B::F log2_tail(B& b, const TwoFloats<B>& q) {
  auto s = b.mul(q.hi, q.hi);
  auto s_lo = b.fma(q.hi, b.add(q.lo, q.lo), b.fma(q.hi, q.hi, neg(b, s)));
  auto cube = b.mul(s, q.hi);
  auto cube_lo = b.fma(s, q.lo, b.fma(s_lo, q.hi, b.fma(s, q.hi, neg(b, cube))));
  auto p = horner(b, s, kAtanhLog2);
  return b.fma(p, cube, b.mul(p, cube_lo));
}

// log2(x) for positive finite x, to about 2^-31 of its value.
// log2 m = log2((1 + q) / (1 - q)), q = (m - 1) / (m + 1), in two floats as far as it matters.
// Source: N. Juffa's my_logf_ext (stackoverflow.com/a/40519989), moved to base 2.
template <class B>
TILEVM_MATH_FN TwoFloats<B> log2_extended(B& b, const typename B::F& x) {
  constexpr float kTwoLog2e = 0x1.715476p+1f, kTwoLog2eLo = 0x1.4ae0bep-25f;
  auto [e, m] = log_reduce(b, x, kSqrtHalf);
  const auto q = log2_argument(b, std::move(m));
  auto tail = log2_tail(b, q);
  auto scale = b.f32(kTwoLog2e);
  auto a = b.mul(q.hi, scale);
  auto a_lo = b.fma(q.hi, scale, neg(b, a));
  a_lo = b.fma(q.hi, b.f32(kTwoLog2eLo), b.fma(q.lo, scale, a_lo));
  auto hi = b.add(e, a);
  auto lo = b.add(b.add(b.sub(e, hi), a), b.add(a_lo, tail));  // e = 0 or |e| > |a|
  auto sum = b.add(hi, lo);
  return {sum, b.add(b.sub(hi, sum), lo)};
}

// y log2(ax) as an integer and what is left of it; any y but NaN beyond 2^35 acts as 2^35.
template <class B>
TILEVM_MATH_FN TwoFloats<B> pow_exponent(B& b, const typename B::F& ax, typename B::F y) {
  auto [hi, lo] = log2_extended(b, ax);
  y = b.max(b.f32(-0x1p35f), b.min(b.f32(0x1p35f), y));
  auto t = b.mul(y, hi);
  auto t_lo = b.fma(y, lo, b.fma(y, hi, neg(b, t)));
  t = exp2_clamped(b, b.min(b.f32(129.0f), t));
  t_lo = b.max(b.f32(-0.01f), b.min(b.f32(0.01f), t_lo));
  auto n = b.round_even(t);
  return {n, b.add(b.sub(t, n), t_lo)};
}

// |x|^y without the special cases of pow.
template <class B>
TILEVM_MATH_FN typename B::F pow_magnitude(B& b, const typename B::F& ax, const typename B::F& y) {
  auto [n, f] = pow_exponent(b, ax, y);
  return exp2_of_parts(b, n, f);
}

// C pow (C17 F.10.4.4).
template <class B>
TILEVM_MATH_FN typename B::F pow(B& b, const typename B::F& x, const typename B::F& y) {
  auto zero = b.f32(0.0f), one = b.f32(1.0f), inf = b.f32(kInf);
  auto ax = abs(b, x);
  auto r = pow_magnitude(b, ax, y);

  // Masks live no longer than they have to: an emitter has few registers for them.
  {
    auto y_negative = b.lt(y, zero);
    r = b.select(b.eq(ax, zero), b.select(y_negative, inf, zero), r);
    r = b.select(b.eq(ax, inf), b.select(y_negative, zero, inf), r);
  }
  {
    auto half = b.mul(y, b.f32(0.5f));
    auto odd = b.mnot(b.eq(b.trunc(half), half));
    odd = b.mand(odd, b.eq(b.trunc(y), y));
    r = b.from_bits(b.ior(b.bits(r), b.iselect(odd, sign_bit(b, x), b.i32(0))));
  }
  {
    auto invalid = b.mand(b.lt(x, zero), b.lt(ax, inf));
    invalid = b.mand(invalid, b.mnot(b.eq(b.trunc(y), y)));
    r = b.select(invalid, b.f32(kNan), r);
  }

  r = b.select(b.mand(b.eq(x, x), b.eq(y, y)), r, b.add(x, y));
  return b.select(b.mor(b.eq(x, one), b.eq(y, zero)), one, r);
}

TILEVM_MATH_END
