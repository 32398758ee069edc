// exp, exp2, expm1, tanh, sigmoid, silu, gelu_tanh. Included by math.h only: no include guard.
//
// Reduction: x = n ln2 + r, |r| <= ln2/2, with ln2 in two floats; n ln2_hi is subtracted without
// error because of fma (W. J. Cody and W. Waite, "Software manual for the elementary functions",
// 1980, ch. 6).

TILEVM_MATH_BEGIN

inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLn2Hi = 0x1.62e430p-1f;
inline constexpr float kLn2Lo = -0x1.05c610p-29f;
// exp and exp2 round to 0 from -104 and -151 down. Some processors take 400 times as long for a
// vector in which that happens, or a result is a denormal, but not where scale2 is told at once
// that nothing is left: then what is masked by a large negative number costs nothing.
template <class B>
inline constexpr float kExpLow = B::kScalesFar ? -1000.0f : -104.0f;
template <class B>
inline constexpr float kExp2Low = B::kScalesFar ? -1440.0f : -151.0f;

template <class B>
struct ExpReduced {
  typename B::F n, r;
};

template <class B>
TILEVM_MATH_FN ExpReduced<B> exp_reduce(B& b, const typename B::F& x) {
  auto n = b.round_even(b.mul(x, b.f32(kLog2e)));
  auto r = b.fnma(n, b.f32(kLn2Hi), x);
  return {n, b.fnma(n, b.f32(kLn2Lo), r)};
}

// exp(x) for x <= 89 or NaN; faster than exp by one operation.
template <class B>
TILEVM_MATH_FN typename B::F exp_below_89(B& b, const typename B::F& x) {
  auto [n, r] = exp_reduce(b, b.max(b.f32(kExpLow<B>), x));
  auto p = horner(b, r, kExp);
  p = b.fma(b.fma(p, r, b.f32(1.0f)), r, b.f32(1.0f));
  return b.scale2(p, n);
}

template <class B>
TILEVM_MATH_FN typename B::F exp(B& b, const typename B::F& x) {
  return exp_below_89(b, b.min(b.f32(89.0f), x));
}

// 2^(n + f), n integral, |f| <= 1/2.
template <class B>
TILEVM_MATH_FN typename B::F exp2_of_parts(B& b, const typename B::F& n, const typename B::F& f) {
  return b.scale2(b.fma(horner(b, f, kExp2), f, b.f32(1.0f)), n);
}

template <class B>
TILEVM_MATH_FN typename B::F exp2(B& b, typename B::F x) {
  x = b.max(b.f32(kExp2Low<B>), b.min(b.f32(129.0f), x));
  auto n = b.round_even(x);
  return exp2_of_parts(b, n, b.sub(x, n));
}

// (e^r - 1) for |r| <= ln2/2.
template <class B>
TILEVM_MATH_FN typename B::F expm1_of_reduced(B& b, const typename B::F& r) {
  return b.fma(b.mul(r, r), horner(b, r, kExpm1), r);
}

// (e^x - 1) / 2 = 2^(n-1) (e^r - 1) + (2^(n-1) - 1/2), without overflow for n <= 128.
template <class B>
TILEVM_MATH_FN typename B::F half_expm1(B& b, const typename B::F& n, const typename B::F& em1) {
  auto s = b.from_bits(b.template ishl<23>(b.iadd(b.to_int(n), b.i32(126))));
  return b.fma(s, em1, b.sub(s, b.f32(0.5f)));
}

template <class B>
TILEVM_MATH_FN typename B::F expm1(B& b, const typename B::F& x) {
  auto [n, r] = exp_reduce(b, b.max(b.f32(-20.0f), b.min(b.f32(89.0f), x)));
  auto em1 = expm1_of_reduced(b, r);
  auto half = half_expm1(b, n, em1);
  auto scaled = b.add(half, half);
  return keep_zero(b, x, b.select(b.eq(n, b.f32(0.0f)), em1, scaled));
}

// h / (1 + h) for h >= 0, with the rounding error of 1 + h made good: since
// 1 / (1 + h) = 1 - h / (1 + h), that takes no second division. `rest` is 1 - h / (1 + h).
template <class B>
struct Share {
  typename B::F value, rest;
};

template <class B>
TILEVM_MATH_FN Share<B> share_of_one_plus(B& b, const typename B::F& h) {
  auto one = b.f32(1.0f);
  auto d = b.add(h, one);
  auto d_lo = b.sub(h, b.sub(d, one));
  auto q = b.div(h, d);
  auto rest = b.sub(one, q);
  return {b.fnma(q, b.mul(d_lo, rest), q), rest};
}

// tanh a = h / (1 + h), h = (e^2a - 1) / 2.
template <class B>
TILEVM_MATH_FN typename B::F tanh(B& b, const typename B::F& x) {
  auto a = b.min(b.f32(9.1f), abs(b, x));
  auto [n, r] = exp_reduce(b, b.add(a, a));
  auto h = half_expm1(b, n, expm1_of_reduced(b, r));
  auto t = b.min(b.f32(1.0f), share_of_one_plus(b, h).value);  // d_lo is rough from h = 2^23 up
  return with_sign(b, t, x);
}

// e^-|x|.
template <class B>
TILEVM_MATH_FN typename B::F exp_of_minus_abs(B& b, const typename B::F& x) {
  return exp_below_89(b, b.from_bits(b.ior(b.bits(x), b.i32(INT32_MIN))));
}

// w = e / (1 + e), e = e^-|x|, is sigmoid(-|x|); 1 - w is sigmoid(|x|).
template <class B>
TILEVM_MATH_FN typename B::F sigmoid(B& b, const typename B::F& x) {
  auto [w, rest] = share_of_one_plus(b, exp_of_minus_abs(b, x));
  return b.select(b.lt(x, b.f32(0.0f)), w, rest);
}

// The same expression as eager's, to have its errors. Where e^-x overflows the result is -0, which
// is right to an absolute 1e-36; NaN at -inf.
template <class B>
TILEVM_MATH_FN typename B::F silu(B& b, const typename B::F& x) {
  return b.div(x, b.add(exp(b, neg(b, x)), b.f32(1.0f)));
}

// x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for x < 0.
template <class B>
TILEVM_MATH_FN typename B::F gelu_tanh(B& b, const typename B::F& x) {
  constexpr float kScale = 1.5957691216057308f;            // 2 sqrt(2/pi)
  constexpr float kCubic = 1.5957691216057308 * 0.044715;  // rounded once
  auto u = b.mul(x, b.fma(b.mul(x, x), b.f32(kCubic), b.f32(kScale)));
  auto e = exp_of_minus_abs(b, u);
  auto one = b.f32(1.0f);
  auto w = b.div(e, b.add(e, one));
  return b.mul(x, b.select(b.lt(u, b.f32(0.0f)), w, b.sub(one, w)));
}

TILEVM_MATH_END
