// Bools, comparisons, selects and conversions: instructions that mix element sizes.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_logic.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

using f32 = float;
using f64 = double;
using i32 = std::int32_t;
using i64 = std::int64_t;
using b8 = std::uint8_t;

template <class F>
constexpr F kInfinity = std::numeric_limits<F>::infinity();

// Towards zero; the lowest T if out of range or NaN.
template <class T, class F>
HWY_INLINE T truncated(F a) {
  constexpr F kLowest = static_cast<F>(std::numeric_limits<T>::min());
  const bool in_range = (a >= kLowest) & (a < -kLowest);
  const T low = static_cast<T>(in_range ? a : F{0});
  return in_range ? low : std::numeric_limits<T>::min();
}
}  // namespace

#define TILEVM_UNARY(name, to, from, value)                        \
  template <>                                                      \
  struct Map<Op::name> {                                           \
    static constexpr Loop kLoop = Loop::kUnary;                    \
    using A = from;                                                \
    using D = to;                                                  \
    static HWY_INLINE D run(A a) { return static_cast<D>(value); } \
  };
#define TILEVM_BINARY(name, to, from, value)                            \
  template <>                                                           \
  struct Map<Op::name> {                                                \
    static constexpr Loop kLoop = Loop::kBinary;                        \
    using A = from;                                                     \
    using B = from;                                                     \
    using D = to;                                                       \
    static HWY_INLINE D run(A a, B b) { return static_cast<D>(value); } \
  };
#define TILEVM_COMPARE(type)                 \
  TILEVM_BINARY(eq_##type, b8, type, a == b) \
  TILEVM_BINARY(ne_##type, b8, type, a != b) \
  TILEVM_BINARY(lt_##type, b8, type, a < b)  \
  TILEVM_BINARY(le_##type, b8, type, a <= b) \
  TILEVM_BINARY(gt_##type, b8, type, a > b)  \
  TILEVM_BINARY(ge_##type, b8, type, a >= b)
#define TILEVM_SELECT(type)                      \
  template <>                                    \
  struct Map<Op::select_##type> {                \
    static constexpr Loop kLoop = Loop::kSelect; \
    using D = type;                              \
  };

#define TILEVM_FLOAT(type)                                                               \
  TILEVM_COMPARE(type)                                                                   \
  TILEVM_SELECT(type)                                                                    \
  TILEVM_UNARY(isnan_##type, b8, type, a != a)                                           \
  TILEVM_UNARY(isinf_##type, b8, type, (a == kInfinity<type>) | (a == -kInfinity<type>)) \
  TILEVM_UNARY(isfinite_##type, b8, type, (a < kInfinity<type>)&(a > -kInfinity<type>))  \
  TILEVM_UNARY(cast_##type##_i32, i32, type, truncated<i32>(a))                          \
  TILEVM_UNARY(cast_##type##_i64, i64, type, truncated<i64>(a))                          \
  TILEVM_UNARY(cast_##type##_b8, b8, type, a != type{0})                                 \
  TILEVM_UNARY(cast_i32_##type, type, i32, a)                                            \
  TILEVM_UNARY(cast_i64_##type, type, i64, a)                                            \
  TILEVM_UNARY(cast_b8_##type, type, b8, a)

TILEVM_FLOAT(f32)
TILEVM_FLOAT(f64)
TILEVM_UNARY(cast_f32_f64, f64, f32, a)
TILEVM_UNARY(cast_f64_f32, f32, f64, a)
TILEVM_COMPARE(i32)
TILEVM_COMPARE(i64)
TILEVM_SELECT(i32)
TILEVM_SELECT(i64)
TILEVM_SELECT(b8)
TILEVM_UNARY(not_b8, b8, b8, a ^ 1)
TILEVM_BINARY(and_b8, b8, b8, a& b)
TILEVM_BINARY(or_b8, b8, b8, a | b)
TILEVM_BINARY(xor_b8, b8, b8, a ^ b)
TILEVM_UNARY(cast_i32_i64, i64, i32, a)
TILEVM_UNARY(cast_i32_b8, b8, i32, a != 0)
TILEVM_UNARY(cast_i64_i32, i32, i64, static_cast<std::uint32_t>(a))
TILEVM_UNARY(cast_i64_b8, b8, i64, a != 0)
TILEVM_UNARY(cast_b8_i32, i32, b8, a)
TILEVM_UNARY(cast_b8_i64, i64, b8, a)
#undef TILEVM_FLOAT
#undef TILEVM_SELECT
#undef TILEVM_COMPARE
#undef TILEVM_BINARY
#undef TILEVM_UNARY

void fill_logic(Tables& tables) { fill_family<Family::kLogic>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_logic);
void fill_map_logic(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_logic)(tables); }
}  // namespace tilevm::exec::interp
#endif
