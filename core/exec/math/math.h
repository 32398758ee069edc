// float32 math functions, one definition for every tier. (Those of float64: float64.h.)
//
// Each function is a template over a backend B and takes `B& b` first. A backend either computes
// (scalar_backend.h, hwy_backend.h) or emits machine code, so a function never reads a value: it
// has no data-dependent C++ control flow, only `select` and `when_any`.
//
// The contract of a backend:
//
//   Types        F (float32 vector), I (int32 vector), M (mask of 32-bit lanes); cheap to copy.
//   Constants    F f32(float), I i32(int32_t); asked for repeatedly: an emitter merges equal ones
//   Arithmetic   F add sub mul div (F x, F y), sqrt(F)        IEEE, nearest even, denormals kept
//                F fma(x, y, z) = x*y + z, fnma(x, y, z) = z - x*y      one rounding: required
//   Order        F min max (F x, F y): when either is NaN the result is y (x86), or NaN (NEON).
//                A possible NaN is therefore always passed second.
//   Rounding     F round_even floor trunc (F)
//   Conversion   I to_int(F): nearest even; any value for NaN and outside int32. F to_float(I)
//   Bits         I bits(F), F from_bits(I): no instruction where both share registers
//   Integers     I iadd isub iand ior ixor (I, I), template <int k> ishl ishr isar (I)
//   Comparison   M lt le eq (F, F): false for NaN. M ilt ieq (I, I): signed
//   Masks        M mand mor (M, M), mnot(M)
//   Choice       F select(M, F yes, F no), I iselect(M, I yes, I no)
//   Scaling      F scale2(F x, F n) = x * 2^n rounded once, n integral in [-254, 254] or NaN;
//                x in [2^-2, 2^2] or NaN; at -254, where nothing is left, not by a denormal, which
//                is slow. `scale2_by_bits` below does it with the others; AVX-512 has vscalefps.
//                kScalesFar: n may be as low as -2000; it is quick for all of those. Then there is
//                F scale2_of(M some, F x, F n), 0 for others, whose n may be anything, and
//                M not_lt(F x, F y), true for NaN.
//   Seldom       F when_any(M m, F current, f): select(m, f(), current), f skipped if m is all
//                false. f is a C++ callable without arguments that may use values made before.
//                F out_of_line(double (*)(double), F), out_of_line(double (*)(double, double),
//                F, F): call it for each lane (all, or only those of the enclosing when_any).
//
// The functions are in tilevm::math. A file that is compiled once per Highway target gets them from
// hwy_backend.h, in tilevm::math::HWY_NAMESPACE and with that target's attributes.
//
// Accuracy: at most 2 units in the last place for all but gelu, gelu_tanh and silu; tests:
// core/tests/math_test.cpp. Coefficients: tools/math/fit.py.

#if defined(TILEVM_MATH_PER_TARGET)  // hwy_backend.h defines it, and has the guard
#define TILEVM_MATH_BEGIN \
  HWY_BEFORE_NAMESPACE(); \
  namespace tilevm::math::HWY_NAMESPACE {
#define TILEVM_MATH_END \
  }                     \
  HWY_AFTER_NAMESPACE();
#define TILEVM_MATH_ATTR HWY_ATTR __attribute__((always_inline))
#define TILEVM_MATH_FN HWY_ATTR HWY_INLINE
#include "core/exec/math/math_families.h"
#elif !defined(TILEVM_CORE_EXEC_MATH_MATH_H_)
#define TILEVM_CORE_EXEC_MATH_MATH_H_
#define TILEVM_MATH_BEGIN namespace tilevm::math {
#define TILEVM_MATH_END }
#define TILEVM_MATH_ATTR
#define TILEVM_MATH_FN inline
#include "core/exec/math/math_families.h"
#endif

#undef TILEVM_MATH_BEGIN
#undef TILEVM_MATH_END
#undef TILEVM_MATH_ATTR
#undef TILEVM_MATH_FN
