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
TILEVM_MATH_FN typename B::F erfc_tail(B& b, typename B::F t) {
  t = b.mul(horner(b, t, kErfTail), t);
  return exp_or_zero(b, std::move(t));
}

template <class B>
TILEVM_MATH_FN typename B::F erf(B& b, const typename B::F& x) {
  auto tail = erfc_tail(b, abs(b, x));
  tail = b.sub(b.f32(1.0f), tail);
  tail = with_sign(b, tail, x);
  auto near = erf_small(b, x);
  return b.select(b.lt(b.f32(kErfSplit), abs(b, x)), tail, near);
}

// log(erfc(t / sqrt 2) / 2).
template <class B>
TILEVM_MATH_FN typename B::F gelu_exponent(B& b, const typename B::F& t) {
  constexpr float kLogHalf = -0.69314718056f;
  return b.fma(horner(b, t, kGeluTail), t, b.f32(kLogHalf));
}

// x Phi(x); Phi(-|x|) = erfc(|x| / sqrt 2) / 2 by the form of erfc_tail for all x: near 0 an error
// relative to x is as small as is wanted, and none is left of Phi(0) = 1/2. Eager's is -0 from -6
// down, this from -13 down.
template <class B>
TILEVM_MATH_FN typename B::F gelu(B& b, const typename B::F& x) {
  auto below = gelu_exponent(b, abs(b, x));
  below = exp_or_zero(b, std::move(below));
  auto share = b.select(b.lt(x, b.f32(0.0f)), below, b.sub(b.f32(1.0f), below));
  return b.mul(x, share);
}

TILEVM_MATH_END
