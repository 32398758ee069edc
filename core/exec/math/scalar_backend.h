// The backend of math.h for one float: constant folding and tests.
#ifndef TILEVM_CORE_EXEC_MATH_SCALAR_BACKEND_H_
#define TILEVM_CORE_EXEC_MATH_SCALAR_BACKEND_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/exec/math/math.h"

namespace tilevm::math {

struct ScalarBackend {
  using F = float;
  using I = int32_t;
  using M = bool;

  static constexpr bool kScalesFar = false;

  F f32(float c) const { return c; }
  I i32(int32_t c) const { return c; }

  F add(F x, F y) const { return x + y; }
  F sub(F x, F y) const { return x - y; }
  F mul(F x, F y) const { return x * y; }
  F div(F x, F y) const { return x / y; }
  F sqrt(F x) const { return std::sqrt(x); }
  F fma(F x, F y, F z) const { return std::fma(x, y, z); }
  F fnma(F x, F y, F z) const { return std::fma(-x, y, z); }

  F min(F x, F y) const { return x < y ? x : y; }
  F max(F x, F y) const { return x > y ? x : y; }
  F round_even(F x) const { return std::nearbyint(x); }
  F floor(F x) const { return std::floor(x); }
  F trunc(F x) const { return std::trunc(x); }

  I to_int(F x) const {
    return std::abs(x) < 0x1p31f ? static_cast<I>(std::nearbyint(x)) : INT32_MIN;
  }
  F to_float(I x) const { return static_cast<F>(x); }
  I bits(F x) const { return std::bit_cast<I>(x); }
  F from_bits(I x) const { return std::bit_cast<F>(x); }

  I iadd(I x, I y) const { return signed_of(unsigned_of(x) + unsigned_of(y)); }
  I isub(I x, I y) const { return signed_of(unsigned_of(x) - unsigned_of(y)); }
  I iand(I x, I y) const { return x & y; }
  I ior(I x, I y) const { return x | y; }
  I ixor(I x, I y) const { return x ^ y; }
  template <int k>
  I ishl(I x) const {
    return signed_of(unsigned_of(x) << k);
  }
  template <int k>
  I ishr(I x) const {
    return signed_of(unsigned_of(x) >> k);
  }
  template <int k>
  I isar(I x) const {
    return x >> k;
  }

  M lt(F x, F y) const { return x < y; }
  M le(F x, F y) const { return x <= y; }
  M eq(F x, F y) const { return x == y; }
  M ilt(I x, I y) const { return x < y; }
  M ieq(I x, I y) const { return x == y; }
  M mand(M x, M y) const { return x && y; }
  M mor(M x, M y) const { return x || y; }
  M mnot(M x) const { return !x; }
  F select(M m, F yes, F no) const { return m ? yes : no; }
  I iselect(M m, I yes, I no) const { return m ? yes : no; }

  F scale2(F x, F n) const { return scale2_by_bits(*this, x, n); }

  template <class Fn>
  F when_any(M m, F current, Fn fn) const {
    return m ? fn() : current;
  }
  F out_of_line(double (*fn)(double), F x) const { return static_cast<F>(fn(x)); }
  F out_of_line(double (*fn)(double, double), F x, F y) const { return static_cast<F>(fn(x, y)); }

 private:
  static uint32_t unsigned_of(I x) { return static_cast<uint32_t>(x); }
  static I signed_of(uint32_t x) { return static_cast<I>(x); }
};

}  // namespace tilevm::math

#endif
