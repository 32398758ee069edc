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

// m in [low, 2 low), `low` given by its bits; x positive and finite, or the result is arbitrary.
template <class B>
TILEVM_MATH_FN LogReduced<B> log_reduce(B& b, const typename B::F& x, int32_t low) {
  auto tiny = b.lt(x, b.f32(kMinNormal));
  auto i = b.bits(b.select(tiny, b.mul(x, b.f32(0x1p23f)), x));
  auto shift = b.select(tiny, b.f32(-23.0f), b.f32(0.0f));
  auto e = b.iand(b.isub(i, b.i32(low)), b.i32(kExponent));
  auto m = b.from_bits(b.isub(i, e));
  return {b.fma(b.to_float(e), b.f32(0x1p-23f), shift), m};
}

// log(1 + f) + e ln2, f in [-1/3, 1/3].
template <class B>
TILEVM_MATH_FN typename B::F log_of_parts(B& b, const typename B::F& e, const typename B::F& f) {
  auto p = b.fma(horner(b, f, kLog), f, b.f32(-0.5f));
  p = b.fma(p, b.mul(f, f), f);
  return b.fma(e, b.f32(kLn2Hi), p);
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
  auto [e, m] = log_reduce(b, x, kTwoThirds);
  return log_special(b, x, log_of_parts(b, e, b.sub(m, b.f32(1.0f))));
}

template <class B>
TILEVM_MATH_FN typename B::F log2(B& b, const typename B::F& x) {
  constexpr float kLog2eLo = 0x1.4ae0bep-26f;
  auto [e, m] = log_reduce(b, x, kSqrtHalf);
  auto f = b.sub(m, b.f32(1.0f));
  auto p = b.mul(b.mul(f, f), horner(b, f, kLog2));
  p = b.fma(f, b.f32(kLog2eLo), p);
  return log_special(b, x, b.add(e, b.fma(f, b.f32(kLog2e), p)));
}

// 1 + x = (1 + f) 2^e, where f = x 2^-e + (2^-e - 1): no bit of a small x is lost.
// Source: N. Juffa's log1pf (forums.developer.nvidia.com, 2017).
template <class B>
TILEVM_MATH_FN typename B::F log1p(B& b, const typename B::F& x) {
  auto one = b.f32(1.0f);
  auto u = b.add(x, one);
  auto e = b.iand(b.isub(b.bits(u), b.i32(kTwoThirds)), b.i32(kExponent));
  auto m = b.from_bits(b.isub(b.bits(x), e));
  auto s = b.from_bits(b.isub(b.bits(b.f32(4.0f)), e));  // 4 and not 1: stays normal
  auto f = b.add(m, b.fma(s, b.f32(0.25f), b.f32(-1.0f)));
  auto r = log_of_parts(b, b.mul(b.to_float(e), b.f32(0x1p-23f)), f);
  return keep_zero(b, x, log_special(b, u, r));
}

template <class B>
struct TwoFloats {
  typename B::F hi, lo;
};

// log2(x) for positive finite x, to about 2^-31 of its value.
// log2 m = log2((1 + q) / (1 - q)), q = (m - 1) / (m + 1), in two floats as far as it matters.
// Source: N. Juffa's my_logf_ext (stackoverflow.com/a/40519989), moved to base 2.
template <class B>
TILEVM_MATH_FN TwoFloats<B> log2_extended(B& b, const typename B::F& x) {
  constexpr float kTwoLog2e = 0x1.715476p+1f, kTwoLog2eLo = 0x1.4ae0bep-25f;
  auto [e, m] = log_reduce(b, x, kSqrtHalf);
  auto one = b.f32(1.0f);
  auto r = b.div(one, b.add(m, one));
  m = b.sub(m, one);
  auto q = b.mul(m, r);
  auto q_lo = b.mul(r, b.fnma(q, m, b.fma(q, b.f32(-2.0f), m)));  // r (m - q (m + 2)), exact inside
  auto s = b.mul(q, q);
  auto s_lo = b.fma(q, b.add(q_lo, q_lo), b.fma(q, q, neg(b, s)));
  auto cube = b.mul(s, q);
  auto cube_lo = b.fma(s, q_lo, b.fma(s_lo, q, b.fma(s, q, neg(b, cube))));
  auto p = horner(b, s, kAtanhLog2);
  auto tail = b.fma(p, cube, b.mul(p, cube_lo));
  auto scale = b.f32(kTwoLog2e);
  auto a = b.mul(q, scale);
  auto a_lo = b.fma(q, scale, neg(b, a));
  a_lo = b.fma(q, b.f32(kTwoLog2eLo), b.fma(q_lo, scale, a_lo));
  auto hi = b.add(e, a);
  auto lo = b.add(b.add(b.sub(e, hi), a), b.add(a_lo, tail));  // e = 0 or |e| > |a|
  auto sum = b.add(hi, lo);
  return {sum, b.add(b.sub(hi, sum), lo)};
}

// |x|^y without the special cases of pow; any y but NaN beyond 2^35 acts as 2^35.
template <class B>
TILEVM_MATH_FN typename B::F pow_magnitude(B& b, const typename B::F& ax, typename B::F y) {
  auto [hi, lo] = log2_extended(b, ax);
  y = b.max(b.f32(-0x1p35f), b.min(b.f32(0x1p35f), y));
  auto t = b.mul(y, hi);
  auto t_lo = b.fma(y, lo, b.fma(y, hi, neg(b, t)));
  t = b.max(b.f32(kExp2Low<B>), b.min(b.f32(129.0f), t));
  t_lo = b.max(b.f32(-0.01f), b.min(b.f32(0.01f), t_lo));
  auto n = b.round_even(t);
  return exp2_of_parts(b, n, b.add(b.sub(t, n), t_lo));
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
