// fmod, remainder, floor_div. Included by math.h only: no include guard.

TILEVM_MATH_BEGIN

// C fmod: the result is exact and has the sign of x.
// q = |x| / |y| rounded, then cut to an integer, is the true quotient or one more (rounding never
// passes an integer), and below 2^24 the rest |x| - q |y| is exact. Larger quotients go to libm.
template <class B>
TILEVM_MATH_FN typename B::F fmod(B& b, const typename B::F& x, const typename B::F& y) {
  auto ax = abs(b, x), ay = abs(b, y);
  auto q = b.trunc(b.div(ax, ay));
  auto r = b.fnma(q, ay, ax);
  r = b.select(b.lt(r, b.f32(0.0f)), b.add(r, ay), r);
  r = b.select(b.lt(ax, ay), ax, r);  // y may be infinite
  r = with_sign(b, abs(b, r), x);
  auto huge = b.le(b.f32(0x1p24f), q);
  auto fn = static_cast<double (*)(double, double)>(std::fmod);
  return b.when_any(huge, r, [&]() TILEVM_MATH_ATTR { return b.out_of_line(fn, x, y); });
}

// Whether m, the fmod by y, has to move by y to get the sign of y.
template <class B>
TILEVM_MATH_FN typename B::M wrong_side(B& b, const typename B::F& m, const typename B::F& y) {
  auto zero = b.f32(0.0f);
  auto below = b.mand(b.lt(m, zero), b.lt(zero, y));
  return b.mor(below, b.mand(b.lt(zero, m), b.lt(y, zero)));
}

// torch.remainder: as fmod, but with the sign of y (Python's %).
template <class B>
TILEVM_MATH_FN typename B::F remainder(B& b, const typename B::F& x, const typename B::F& y) {
  auto m = fmod(b, x, y);
  return b.select(wrong_side(b, m, y), b.add(m, y), m);
}

// torch.floor_divide. Source: c10::div_floor_floating (c10/util/generic_math.h), itself CPython's
// float_divmod: (x - mod) / y is nearly integral and is snapped to the nearest integer.
template <class B>
TILEVM_MATH_FN typename B::F floor_div(B& b, const typename B::F& x, const typename B::F& y) {
  auto m = fmod(b, x, y);
  auto zero = b.f32(0.0f), one = b.f32(1.0f);
  auto d = b.div(b.sub(x, m), y);
  d = b.select(wrong_side(b, m, y), b.sub(d, one), d);
  auto whole = b.floor(d);
  whole = b.select(b.lt(b.f32(0.5f), b.sub(d, whole)), b.add(whole, one), whole);
  auto exact = b.div(x, y);
  auto signed_zero = b.from_bits(sign_bit(b, exact));
  auto r = b.select(b.eq(d, zero), signed_zero, whole);
  return b.select(b.eq(y, zero), exact, r);
}

TILEVM_MATH_END
