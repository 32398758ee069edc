// Helpers of the math functions. Included by math.h only, once per target: no include guard.
//
// Where machine code is emitted, what a function names holds a register until it returns, and AVX2
// has 16 for two vectors at a time. So steps are functions, what is read last is handed over, and
// few calls are nested: a statement's values, too, stay until it ends.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

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
  for (std::size_t i = n - 1; i-- > 0;) p = b.fma(std::move(p), x, b.f32(c[i]));
  return p;
}

template <class B>
TILEVM_MATH_FN typename B::F rsqrt(B& b, const typename B::F& x) {
  return b.div(b.f32(1.0f), b.sqrt(x));
}

// 2^n, n in [-126, 127]; 0 for -127.
template <class B>
TILEVM_MATH_FN typename B::F power_of_two(B& b, typename B::I n) {
  n = b.template ishl<23>(n);
  return b.from_bits(b.iadd(n, b.i32(0x3f800000)));
}

// x * 2^n in two steps, of which the first is exact; see scale2 in the contract.
template <class B>
TILEVM_MATH_FN typename B::F scale2_by_bits(B& b, typename B::F x, typename B::F n) {
  n = b.from_bits(b.to_int(n));
  auto half = b.template isar<1>(b.bits(n));
  n = b.from_bits(b.isub(b.bits(n), half));
  auto factor = power_of_two(b, std::move(half));
  x = b.mul(x, factor);
  factor = power_of_two(b, b.bits(n));
  return b.mul(x, factor);
}

TILEVM_MATH_END
