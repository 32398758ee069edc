// float64 functions of exec/math/float64.h, and the modulo family.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_math_f64.cpp"
#include <hwy/foreach_target.h>
#include "core/exec/math/float64.h"
#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {

#define TILEVM_UNARY(name)                                      \
  template <>                                                   \
  struct Map<Op::name##_f64> {                                  \
    using T = double;                                           \
    static constexpr Loop kLoop = Loop::kUnaryVector;           \
    static constexpr bool kCheap = false;                       \
    static HWY_INLINE VecOf<double> run(F64, VecOf<double> a) { \
      return math::float64::HWY_NAMESPACE::name(a);             \
    }                                                           \
  };
#define TILEVM_BINARY(name)                                                      \
  template <>                                                                    \
  struct Map<Op::name##_f64> {                                                   \
    using T = double;                                                            \
    static constexpr Loop kLoop = Loop::kBinaryVector;                           \
    static constexpr bool kCheap = false;                                        \
    static HWY_INLINE VecOf<double> run(F64, VecOf<double> a, VecOf<double> b) { \
      return math::float64::HWY_NAMESPACE::name(a, b);                           \
    }                                                                            \
  };
TILEVM_UNARY(exp)
TILEVM_UNARY(exp2)
TILEVM_UNARY(expm1)
TILEVM_UNARY(log)
TILEVM_UNARY(log2)
TILEVM_UNARY(log1p)
TILEVM_UNARY(sin)
TILEVM_UNARY(cos)
TILEVM_UNARY(tan)
TILEVM_UNARY(tanh)
TILEVM_UNARY(sigmoid)
TILEVM_UNARY(erf)
TILEVM_UNARY(silu)
TILEVM_UNARY(gelu)
TILEVM_UNARY(gelu_tanh)
TILEVM_BINARY(floor_div)
TILEVM_BINARY(remainder)
TILEVM_BINARY(fmod)
TILEVM_BINARY(pow)
TILEVM_BINARY(atan2)
#undef TILEVM_UNARY
#undef TILEVM_BINARY

void fill_math_f64(Tables& tables) { fill_family<Family::kMathF64>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_math_f64);
void fill_map_math_f64(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_math_f64)(tables); }
}  // namespace tilevm::exec::interp
#endif
