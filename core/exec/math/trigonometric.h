// sin, cos, tan, atan2. Included by math.h only: no include guard.
//
// Reduction: x = n pi/2 + r, pi/2 in three floats (Cody and Waite), good to |x| = kTrigLimit;
// above, libm is called lane by lane.

TILEVM_MATH_BEGIN

inline constexpr float kTrigLimit = 1.0e5f;
inline constexpr float kHalfPi[] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
inline constexpr float kPiLoRatio = static_cast<float>(-0x1.777a5cp-25 / 0x1.921fb6p+0);

template <class B>
struct TrigReduced {
  typename B::I quadrant;
  typename B::F r, lo;  // the argument is r + lo
};

template <class B>
TILEVM_MATH_FN TrigReduced<B> trig_reduce(B& b, const typename B::F& x) {
  constexpr float kTwoOverPi = 0x1.45f306p-1f;
  auto q = b.to_int(b.mul(x, b.f32(kTwoOverPi)));
  auto n = b.to_float(q);
  auto first = b.fnma(n, b.f32(kHalfPi[0]), x);  // exact
  auto p = b.mul(n, b.f32(kHalfPi[1]));
  auto r = b.sub(first, p);
  auto lo = b.sub(b.sub(first, r), p);
  lo = b.add(lo, b.fnma(n, b.f32(kHalfPi[1]), p));
  return {q, r, b.fnma(n, b.f32(kHalfPi[2]), lo)};
}

// sin(x + turn pi/2).
template <class B>
TILEVM_MATH_FN typename B::F sin_turned(B& b, const typename B::F& x, int32_t turn) {
  auto [q, r_hi, lo] = trig_reduce(b, x);
  q = b.iadd(q, b.i32(turn));
  auto r = b.add(r_hi, lo);
  auto s = b.mul(r, r);
  auto sine = b.fma(b.mul(r, s), horner(b, s, kSin), r);
  auto cosine = b.fma(b.fma(horner(b, s, kCos), s, b.f32(-0.5f)), s, b.f32(1.0f));
  auto even = b.ieq(b.iand(q, b.i32(1)), b.i32(0));
  auto sign = b.template ishl<30>(b.iand(q, b.i32(2)));
  return b.from_bits(b.ixor(b.bits(b.select(even, sine, cosine)), sign));
}

// `near`, and where |x| is above the limit fn(x).
template <class B>
TILEVM_MATH_FN typename B::F far_out_of_line(B& b, const typename B::F& x, const typename B::F& near,
                                             double (*fn)(double)) {
  auto far = b.lt(b.f32(kTrigLimit), abs(b, x));
  return b.when_any(far, near, [&]() TILEVM_MATH_ATTR { return b.out_of_line(fn, x); });
}

template <class B>
TILEVM_MATH_FN typename B::F sin(B& b, const typename B::F& x) {
  auto near = keep_zero(b, x, sin_turned(b, x, 0));
  return far_out_of_line(b, x, near, static_cast<double (*)(double)>(std::sin));
}

template <class B>
TILEVM_MATH_FN typename B::F cos(B& b, const typename B::F& x) {
  return far_out_of_line(b, x, sin_turned(b, x, 1), static_cast<double (*)(double)>(std::cos));
}

template <class B>
TILEVM_MATH_FN typename B::F tan(B& b, const typename B::F& x) {
  auto [q, r_hi, lo] = trig_reduce(b, x);
  auto r = b.add(r_hi, lo);
  lo = b.add(b.sub(r_hi, r), lo);
  auto s = b.mul(r, r);
  auto t_lo = b.mul(b.mul(r, s), horner(b, s, kTan));
  t_lo = b.fma(lo, b.fma(r, r, b.f32(1.0f)), t_lo);
  auto t = b.add(r, t_lo);
  t_lo = b.add(b.sub(r, t), t_lo);
  auto odd = b.ieq(b.iand(q, b.i32(1)), b.i32(1));
  // -1 / (t + t_lo) = w + w (1 + w (t + t_lo)), w near -1 / t
  auto w = b.div(b.f32(-1.0f), t);
  auto rest = b.fma(w, t_lo, b.fma(w, t, b.f32(1.0f)));
  w = b.fma(w, rest, w);
  auto near = keep_zero(b, x, b.select(odd, w, t));
  return far_out_of_line(b, x, near, static_cast<double (*)(double)>(std::tan));
}

template <class B>
TILEVM_MATH_FN typename B::F atan2(B& b, const typename B::F& y, const typename B::F& x) {
  auto ax = abs(b, x), ay = abs(b, y);
  auto num = b.min(ax, ay), den = b.max(ay, ax);  // a NaN reaches one of them
  auto a = b.div(num, b.max(b.f32(std::numeric_limits<float>::denorm_min()), den));
  auto inf = b.f32(kInf);
  a = b.select(b.mand(b.eq(ax, inf), b.eq(ay, inf)), b.f32(1.0f), a);
  auto s = b.mul(a, a);
  auto r = b.fma(b.mul(a, s), horner(b, s, kAtan), a);

  // Octants: atan of the swapped quotient is pi/2 - r; x < 0 mirrors at pi/2.
  auto swapped = b.lt(ax, ay);
  auto zero = b.f32(0.0f);
  auto left = b.select(b.ilt(b.bits(x), b.i32(0)), b.f32(2 * kHalfPi[0]), zero);
  auto base = b.select(swapped, b.f32(kHalfPi[0]), left);
  auto flip = b.ixor(sign_bit(b, x), b.iselect(swapped, b.i32(INT32_MIN), b.i32(0)));
  r = b.from_bits(b.ixor(b.bits(r), flip));
  r = b.add(base, b.fma(base, b.f32(kPiLoRatio), r));
  return with_sign(b, abs(b, r), y);
}

TILEVM_MATH_END
