// erf and gelu. Included by math.h only: no include guard.
//
// erf t = t + t P(t^2) for t <= 0.9375, else 1 - exp(t Q(t)).
// Source: the form of N. Juffa's my_erff (stackoverflow.com/a/35966967), our own coefficients.

TILEVM_MATH_BEGIN

inline constexpr float kErfSplit = 0.9375f;

// erf(x), |x| <= kErfSplit.
template <class B>
TILEVM_MATH_FN typename B::F erf_small(B& b, const typename B::F& x) {
  return b.fma(horner(b, b.mul(x, x), kErfSmall), x, x);
}

// erfc(t), t > kErfSplit. The polynomial falls for all t, so that it needs no upper bound.
template <class B>
TILEVM_MATH_FN typename B::F erfc_tail(B& b, const typename B::F& t) {
  return exp_below_89(b, b.mul(horner(b, t, kErfTail), t));
}

template <class B>
TILEVM_MATH_FN typename B::F erf(B& b, const typename B::F& x) {
  auto t = abs(b, x);
  auto tail = with_sign(b, b.sub(b.f32(1.0f), erfc_tail(b, t)), x);
  return b.select(b.lt(b.f32(kErfSplit), t), tail, erf_small(b, x));
}

// x Phi(x); Phi(-|x|) = erfc(|x| / sqrt 2) / 2 by the form of erfc_tail for all x: near 0 an error
// relative to x is as small as is wanted, and none is left of Phi(0) = 1/2.
template <class B>
TILEVM_MATH_FN typename B::F gelu(B& b, const typename B::F& x) {
  constexpr float kLogHalf = -0.69314718056f;
  auto t = abs(b, x);
  auto below = exp_below_89(b, b.fma(horner(b, t, kGeluTail), t, b.f32(kLogHalf)));
  auto share = b.select(b.lt(x, b.f32(0.0f)), below, b.sub(b.f32(1.0f), below));
  return b.mul(x, share);
}

TILEVM_MATH_END
