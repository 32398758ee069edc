// Helpers of the math functions. Included by math.h only, once per target: no include guard.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/exec/math/coefficients.gen.h"

TILEVM_MATH_BEGIN

template <class B>
TILEVM_MATH_FN typename B::F abs(B& b, const typename B::F& x) {
  return b.from_bits(b.iand(b.bits(x), b.i32(0x7fffffff)));
}

template <class B>
TILEVM_MATH_FN typename B::I sign_bit(B& b, const typename B::F& x) {
  return b.iand(b.bits(x), b.i32(INT32_MIN));
}

template <class B>
TILEVM_MATH_FN typename B::F neg(B& b, const typename B::F& x) {
  return b.from_bits(b.ixor(b.bits(x), b.i32(INT32_MIN)));
}

// x, which must not be negative, with the sign of y.
template <class B>
TILEVM_MATH_FN typename B::F with_sign(B& b, const typename B::F& x, const typename B::F& y) {
  return b.from_bits(b.ior(b.bits(x), sign_bit(b, y)));
}

// x where it is zero (and so keeps its sign), else y.
template <class B>
TILEVM_MATH_FN typename B::F keep_zero(B& b, const typename B::F& x, const typename B::F& y) {
  return b.select(b.eq(x, b.f32(0.0f)), x, y);
}

// c[0] + c[1] x + c[2] x^2 ...
template <class B, std::size_t n>
TILEVM_MATH_FN typename B::F horner(B& b, const typename B::F& x, const float (&c)[n]) {
  typename B::F p = b.f32(c[n - 1]);
  for (std::size_t i = n - 1; i-- > 0;) p = b.fma(p, x, b.f32(c[i]));
  return p;
}

template <class B>
TILEVM_MATH_FN typename B::F rsqrt(B& b, const typename B::F& x) {
  return b.div(b.f32(1.0f), b.sqrt(x));
}

// x * 2^n in two steps, of which the first is exact; see scale2 in the contract.
template <class B>
TILEVM_MATH_FN typename B::F scale2_by_bits(B& b, const typename B::F& x, const typename B::F& n) {
  auto all = b.to_int(n);
  auto half = b.template isar<1>(all);
  auto one = b.i32(0x3f800000);
  auto first = b.from_bits(b.iadd(b.template ishl<23>(half), one));
  auto second = b.from_bits(b.iadd(b.template ishl<23>(b.isub(all, half)), one));
  return b.mul(b.mul(x, first), second);
}

TILEVM_MATH_END
