// float32 functions of exec/math/math.h, and the modulo family.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_math.cpp"
#include <hwy/foreach_target.h>
#include "core/exec/math/hwy_backend.h"
#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {

#define TILEVM_UNARY(name)                            \
  template <>                                         \
  struct Map<Op::name##_f32> {                        \
    using T = float;                                  \
    static constexpr Loop kLoop = Loop::kUnaryVector; \
    static constexpr bool kCheap = false;             \
    static HWY_INLINE VecF32 run(F32, VecF32 a) {     \
      math::HWY_NAMESPACE::HwyBackend<F32> backend;   \
      return math::HWY_NAMESPACE::name(backend, a);   \
    }                                                 \
  };
#define TILEVM_BINARY(name)                                 \
  template <>                                               \
  struct Map<Op::name##_f32> {                              \
    using T = float;                                        \
    static constexpr Loop kLoop = Loop::kBinaryVector;      \
    static constexpr bool kCheap = false;                   \
    static HWY_INLINE VecF32 run(F32, VecF32 a, VecF32 b) { \
      math::HWY_NAMESPACE::HwyBackend<F32> backend;         \
      return math::HWY_NAMESPACE::name(backend, a, b);      \
    }                                                       \
  };
TILEVM_UNARY(exp)
TILEVM_UNARY(exp_weight)
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

void fill_math(Tables& tables) { fill_family<Family::kMath>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_math);
void fill_map_math(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_math)(tables); }
}  // namespace tilevm::exec::interp
#endif
