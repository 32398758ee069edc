// float32 arithmetic: one or a few vector instructions an element.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_f32.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

// NaN if either is: x86 gives the second operand if one is NaN, others differ.
HWY_INLINE VecF32 maximum(VecF32 a, VecF32 b) {
  const VecF32 larger = hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, b));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return larger;
#else
  return hn::IfThenElse(hn::IsNaN(b), b, larger);
#endif
}
HWY_INLINE VecF32 minimum(VecF32 a, VecF32 b) {
  const VecF32 smaller = hn::IfThenElse(hn::IsNaN(a), a, hn::Min(a, b));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return smaller;
#else
  return hn::IfThenElse(hn::IsNaN(b), b, smaller);
#endif
}

HWY_INLINE VecF32 sign(F32 d, VecF32 a) {
  const VecF32 zero = hn::Zero(d);
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 below = hn::IfThenElseZero(hn::Lt(a, zero), hn::Set(d, -1.0f));
  return hn::IfThenElse(hn::Gt(a, zero), one, below);
}

HWY_INLINE VecF32 round_bf16(F32 d, VecF32 a) {
  const hn::RebindToUnsigned<F32> du;
  const auto bits = hn::BitCast(du, a);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
  const VecF32 rounded = hn::BitCast(d, hn::And(up, hn::Set(du, 0xFFFF0000u)));
  return hn::IfThenElse(hn::IsNaN(a), hn::BitCast(d, hn::Set(du, 0x7FC00000u)), rounded);
}

#define TILEVM_UNARY(name, value)                                                    \
  template <>                                                                        \
  struct Map<Op::name> {                                                             \
    static constexpr Loop kLoop = Loop::kUnaryF32;                                   \
    static constexpr bool kCheap = true;                                             \
    static HWY_INLINE VecF32 run([[maybe_unused]] F32 d, VecF32 a) { return value; } \
  };
#define TILEVM_BINARY(name, value)                                          \
  template <>                                                               \
  struct Map<Op::name> {                                                    \
    static constexpr Loop kLoop = Loop::kBinaryF32;                         \
    static constexpr bool kCheap = true;                                    \
    static HWY_INLINE VecF32 run(F32, VecF32 a, VecF32 b) { return value; } \
  };
}  // namespace

TILEVM_UNARY(abs_f32, hn::Abs(a))
TILEVM_UNARY(neg_f32, hn::Neg(a))
TILEVM_UNARY(sign_f32, sign(d, a))
TILEVM_UNARY(sqrt_f32, hn::Sqrt(a))
TILEVM_UNARY(rsqrt_f32, hn::Div(hn::Set(d, 1.0f), hn::Sqrt(a)))
TILEVM_UNARY(reciprocal_f32, hn::Div(hn::Set(d, 1.0f), a))
TILEVM_UNARY(floor_f32, hn::Floor(a))
TILEVM_UNARY(ceil_f32, hn::Ceil(a))
TILEVM_UNARY(round_f32, hn::Round(a))
TILEVM_UNARY(trunc_f32, hn::Trunc(a))
TILEVM_UNARY(round_bf16, round_bf16(d, a))
TILEVM_BINARY(add_f32, hn::Add(a, b))
TILEVM_BINARY(sub_f32, hn::Sub(a, b))
TILEVM_BINARY(mul_f32, hn::Mul(a, b))
TILEVM_BINARY(div_f32, hn::Div(a, b))
TILEVM_BINARY(maximum_f32, maximum(a, b))
TILEVM_BINARY(minimum_f32, minimum(a, b))
#undef TILEVM_UNARY
#undef TILEVM_BINARY

void fill_f32(Tables& tables) { fill_family<Family::kF32>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_f32);
void fill_map_f32(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_f32)(tables); }
}  // namespace tilevm::exec::interp
#endif
