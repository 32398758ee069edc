// exp, exp2, expm1, tanh, sigmoid, silu, gelu_tanh. Included by math.h only: no include guard.
//
// Reduction: x = n ln2 + r, |r| <= ln2/2, with ln2 in two floats; n ln2_hi is subtracted without
// error because of fma (W. J. Cody and W. Waite, "Software manual for the elementary functions",
// 1980, ch. 6).

TILEVM_MATH_BEGIN

inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLn2Hi = 0x1.62e430p-1f;
inline constexpr float kLn2Lo = -0x1.05c610p-29f;
// exp and exp2 round to 0 from -104 and -151 down. Processors take 2 to 400 times as long for a
// vector in which that happens, or a result is a denormal, but not where scale2 is told at once
// that nothing is left, as it is of these, or leaves an element out.
inline constexpr float kExpFar = -176.0f;  // -254 ln2
template <class B>
inline constexpr float kExp2Far = B::kScalesFar ? -1440.0f : -254.0f;
inline constexpr float kExpDenormal = -87.3f;  // below, exp is

template <class B>
struct ExpReduced {
  typename B::F n, r;
};

// |x| < 2^21, or NaN: then adding 1.5 * 2^23 rounds x log2 e to an integer, and that takes one
// operation less than to multiply and round, which is two for most processors.
inline constexpr float kToInteger = 0x1.8p+23f;

template <class B>
TILEVM_MATH_FN ExpReduced<B> exp_reduce(B& b, typename B::F x) {
  auto n = b.fma(x, b.f32(kLog2e), b.f32(kToInteger));
  n = b.sub(std::move(n), b.f32(kToInteger));
  x = b.fnma(n, b.f32(kLn2Hi), std::move(x));
  x = b.fnma(n, b.f32(kLn2Lo), std::move(x));
  return {std::move(n), std::move(x)};
}

// e^r for |r| <= ln2/2.
template <class B>
TILEVM_MATH_FN typename B::F exp_of_reduced(B& b, typename B::F r) {
  auto p = horner(b, r, kExp);
  p = b.fma(std::move(p), r, b.f32(1.0f));
  return b.fma(std::move(p), std::move(r), b.f32(1.0f));
}

// exp(x) for x in [kExpFar, 89] or NaN.
template <class B>
TILEVM_MATH_FN typename B::F exp_in_range(B& b, typename B::F x) {
  auto parts = exp_reduce(b, std::move(x));
  auto p = exp_of_reduced(b, std::move(parts.r));
  return b.scale2(std::move(p), std::move(parts.n));
}

// exp(x) for x in [low, 89] or NaN, 0 below.
template <class B>
TILEVM_MATH_FN typename B::F exp_from(B& b, float low, typename B::F x) {
  if constexpr (B::kScalesFar) {
    auto some = b.not_lt(x, b.f32(low));
    auto parts = exp_reduce(b, std::move(x));
    auto p = exp_of_reduced(b, std::move(parts.r));
    return b.scale2_of(some, std::move(p), std::move(parts.n));
  } else {
    x = b.select(b.lt(x, b.f32(low)), b.f32(kExpFar), x);
    return exp_in_range(b, std::move(x));
  }
}

// exp(x) for x <= 89 or NaN.
template <class B>
TILEVM_MATH_FN typename B::F exp_below_89(B& b, typename B::F x) {
  if constexpr (B::kScalesFar) {
    return exp_from(b, -104.0f, std::move(x));
  } else {
    x = b.max(b.f32(kExpFar), x);
    return exp_in_range(b, std::move(x));
  }
}

// The same, with 0 for denormals: where a sum or product hides these, and they would take long.
template <class B>
TILEVM_MATH_FN typename B::F exp_or_zero(B& b, typename B::F x) {
  return exp_from(b, kExpDenormal, std::move(x));
}

template <class B>
TILEVM_MATH_FN typename B::F exp(B& b, typename B::F x) {
  x = b.min(b.f32(89.0f), x);
  return exp_below_89(b, std::move(x));
}

// exp(x), of 88 where x is more, wrong by 2^-17 of it at most, 0 for denormals: of weights that are
// then rounded to 16 bits.
template <class B>
TILEVM_MATH_FN typename B::F exp_weight(B& b, typename B::F x) {
  x = b.min(b.f32(88.0f), x);
  auto shifted = b.fma(x, b.f32(kLog2e), b.f32(kToInteger));
  auto n = b.sub(shifted, b.f32(kToInteger));
  auto r = b.fnma(x, b.f32(kLog2e), n);
  auto p = horner(b, r, kExpWeight);
  p = b.fma(std::move(p), std::move(r), b.f32(1.0f));
  if constexpr (B::kScalesFar) {
    return b.scale2_of(b.not_lt(x, b.f32(kExpDenormal)), std::move(p), std::move(n));
  } else {
    p = b.mul(p, power_of_two(b, b.bits(shifted)));
    return b.select(b.lt(x, b.f32(kExpDenormal)), b.f32(0.0f), p);
  }
}

// 2^f for |f| <= 1/2.
template <class B>
TILEVM_MATH_FN typename B::F exp2_of_reduced(B& b, typename B::F f) {
  auto p = horner(b, f, kExp2);
  return b.fma(std::move(p), std::move(f), b.f32(1.0f));
}

// 2^(n + f), n integral, |f| <= 1/2.
template <class B>
TILEVM_MATH_FN typename B::F exp2_of_parts(B& b, typename B::F n, typename B::F f) {
  f = exp2_of_reduced(b, std::move(f));
  return b.scale2(std::move(f), std::move(n));
}

template <class B>
TILEVM_MATH_FN typename B::F exp2_clamped(B& b, typename B::F x) {
  if constexpr (B::kScalesFar) {
    return b.select(b.lt(x, b.f32(-151.0f)), b.f32(kExp2Far<B>), x);
  } else {
    return b.max(b.f32(kExp2Far<B>), x);
  }
}

template <class B>
TILEVM_MATH_FN typename B::F exp2(B& b, typename B::F x) {
  x = exp2_clamped(b, b.min(b.f32(129.0f), x));
  auto n = b.round_even(x);
  x = b.sub(x, n);
  return exp2_of_parts(b, std::move(n), std::move(x));
}

// (e^r - 1) for |r| <= ln2/2.
template <class B>
TILEVM_MATH_FN typename B::F expm1_of_reduced(B& b, typename B::F r) {
  return b.fma(b.mul(r, r), horner(b, r, kExpm1), r);
}

// (e^x - 1) / 2 = 2^(n-1) (e^r - 1) + (2^(n-1) - 1/2), without overflow for n <= 128.
template <class B>
TILEVM_MATH_FN typename B::F half_expm1(B& b, const typename B::F& n, const typename B::F& em1) {
  auto e = b.iadd(b.to_int(n), b.i32(126));
  e = b.template ishl<23>(e);
  auto s = b.from_bits(e);
  auto rest = b.sub(s, b.f32(0.5f));
  return b.fma(std::move(s), em1, std::move(rest));
}

template <class B>
TILEVM_MATH_FN typename B::F expm1(B& b, const typename B::F& x) {
  auto parts = exp_reduce(b, b.max(b.f32(-20.0f), b.min(b.f32(89.0f), x)));
  auto em1 = expm1_of_reduced(b, std::move(parts.r));
  auto scaled = half_expm1(b, parts.n, em1);
  scaled = b.add(scaled, scaled);
  em1 = b.select(b.eq(parts.n, b.f32(0.0f)), em1, scaled);
  return keep_zero(b, x, em1);
}

// h / (1 + h) for h >= 0, with the rounding error of 1 + h made good: since
// 1 / (1 + h) = 1 - h / (1 + h), that takes no second division. `rest` is 1 - h / (1 + h).
template <class B>
struct Share {
  typename B::F value, rest;
};

template <class B>
TILEVM_MATH_FN Share<B> share_of_one_plus(B& b, typename B::F h) {
  auto one = b.f32(1.0f);
  auto d = b.add(h, one);
  auto d_lo = b.sub(d, one);
  d_lo = b.sub(h, d_lo);
  h = b.div(h, d);
  d = b.sub(one, h);
  d_lo = b.mul(d_lo, d);
  d_lo = b.fnma(h, std::move(d_lo), h);
  return {std::move(d_lo), std::move(d)};
}

// (e^2a - 1) / 2.
template <class B>
TILEVM_MATH_FN typename B::F half_expm1_of_double(B& b, typename B::F a) {
  a = b.add(a, a);
  auto parts = exp_reduce(b, std::move(a));
  auto em1 = expm1_of_reduced(b, std::move(parts.r));
  return half_expm1(b, parts.n, em1);
}

// tanh a = h / (1 + h), h = (e^2a - 1) / 2.
template <class B>
TILEVM_MATH_FN typename B::F tanh(B& b, const typename B::F& x) {
  auto a = b.min(b.f32(9.1f), abs(b, x));
  auto h = half_expm1_of_double(b, std::move(a));
  h = share_of_one_plus(b, std::move(h)).value;
  auto t = b.min(b.f32(1.0f), h);  // d_lo is rough from h = 2^23 up
  return with_sign(b, t, x);
}

template <class B>
TILEVM_MATH_FN typename B::F minus_abs(B& b, const typename B::F& x) {
  return b.from_bits(b.ior(b.bits(x), b.i32(INT32_MIN)));
}

// w = e / (1 + e), e = e^-|x|, is sigmoid(-|x|); 1 - w is sigmoid(|x|).
template <class B>
TILEVM_MATH_FN typename B::F sigmoid(B& b, const typename B::F& x) {
  auto e = exp_below_89(b, minus_abs(b, x));
  auto [w, rest] = share_of_one_plus(b, std::move(e));
  return b.select(b.lt(x, b.f32(0.0f)), w, rest);
}

// The same expression as eager's, to have its errors. Where e^-x overflows the result is -0, which
// is right to an absolute 1e-36; NaN at -inf.
template <class B>
TILEVM_MATH_FN typename B::F silu(B& b, const typename B::F& x) {
  auto e = neg(b, x);
  e = b.min(b.f32(89.0f), e);
  e = exp_or_zero(b, std::move(e));
  e = b.add(e, b.f32(1.0f));
  return b.div(x, e);
}

// x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which has the sign of x: no
// cancellation for x < 0.
template <class B>
TILEVM_MATH_FN typename B::F gelu_tanh(B& b, const typename B::F& x) {
  constexpr float kScale = 1.5957691216057308f;            // 2 sqrt(2/pi)
  constexpr float kCubic = 1.5957691216057308 * 0.044715;  // rounded once
  auto w = b.fma(b.mul(x, x), b.f32(kCubic), b.f32(kScale));
  w = b.mul(x, w);
  w = minus_abs(b, w);
  w = exp_or_zero(b, std::move(w));
  auto one = b.f32(1.0f);
  w = b.div(w, b.add(w, one));
  return b.mul(x, b.select(b.lt(x, b.f32(0.0f)), w, b.sub(one, w)));
}

TILEVM_MATH_END
