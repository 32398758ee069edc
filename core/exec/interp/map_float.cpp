// Arithmetic of floats: one or a few vector instructions an element.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_float.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

// NaN if either is: x86 gives the second operand if one is NaN, others differ.
template <class V>
HWY_INLINE V maximum(V a, V b) {
  const V larger = hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, b));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return larger;
#else
  return hn::IfThenElse(hn::IsNaN(b), b, larger);
#endif
}
template <class V>
HWY_INLINE V minimum(V a, V b) {
  const V smaller = hn::IfThenElse(hn::IsNaN(a), a, hn::Min(a, b));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return smaller;
#else
  return hn::IfThenElse(hn::IsNaN(b), b, smaller);
#endif
}

template <class D, class V>
HWY_INLINE V sign(D d, V a) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V one = hn::Set(d, T{1});
  const V below = hn::IfThenElseZero(hn::Lt(a, zero), hn::Set(d, T{-1}));
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

// To 11 bits of significand, as round_bf16 does to 8; below float16's least normal number, where
// the unit is 2^-24, by what addition of 0.5 does to the last bits.
HWY_INLINE VecF32 round_f16(F32 d, VecF32 a) {
  const hn::RebindToUnsigned<F32> du;
  const VecF32 x = hn::Abs(a);
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0xFFFu)), odd);
  const VecF32 normal = hn::BitCast(d, hn::And(up, hn::Set(du, 0xFFFFE000u)));
  const VecF32 half = hn::Set(d, 0.5f);
  const VecF32 small = hn::Sub(hn::Add(x, half), half);
  VecF32 rounded = hn::IfThenElse(hn::Lt(x, hn::Set(d, 0x1p-14f)), small, normal);
  const VecF32 infinity = hn::BitCast(d, hn::Set(du, 0x7F800000u));
  rounded = hn::IfThenElse(hn::Gt(rounded, hn::Set(d, 65504.0f)), infinity, rounded);
  rounded = hn::IfThenElse(hn::IsNaN(a), hn::BitCast(d, hn::Set(du, 0x7FC00000u)), rounded);
  return hn::CopySign(rounded, a);
}

#define TILEVM_UNARY_OF(name, type, value)                                       \
  template <>                                                                    \
  struct Map<Op::name> {                                                         \
    using T = type;                                                              \
    using V = VecOf<type>;                                                       \
    static constexpr Loop kLoop = Loop::kUnaryVector;                            \
    static constexpr bool kCheap = true;                                         \
    static HWY_INLINE V run([[maybe_unused]] Tag<type> d, V a) { return value; } \
  };
#define TILEVM_BINARY_OF(name, type, value)                        \
  template <>                                                      \
  struct Map<Op::name> {                                           \
    using T = type;                                                \
    using V = VecOf<type>;                                         \
    static constexpr Loop kLoop = Loop::kBinaryVector;             \
    static constexpr bool kCheap = true;                           \
    static HWY_INLINE V run(Tag<type>, V a, V b) { return value; } \
  };
#define TILEVM_UNARY(name, value)           \
  TILEVM_UNARY_OF(name##_f32, float, value) \
  TILEVM_UNARY_OF(name##_f64, double, value)
#define TILEVM_BINARY(name, value)           \
  TILEVM_BINARY_OF(name##_f32, float, value) \
  TILEVM_BINARY_OF(name##_f64, double, value)
}  // namespace

TILEVM_UNARY(abs, hn::Abs(a))
TILEVM_UNARY(neg, hn::Neg(a))
TILEVM_UNARY(sign, sign(d, a))
TILEVM_UNARY(sqrt, hn::Sqrt(a))
TILEVM_UNARY(rsqrt, hn::Div(hn::Set(d, T{1}), hn::Sqrt(a)))
TILEVM_UNARY(reciprocal, hn::Div(hn::Set(d, T{1}), a))
TILEVM_UNARY(floor, hn::Floor(a))
TILEVM_UNARY(ceil, hn::Ceil(a))
TILEVM_UNARY(round, hn::Round(a))
TILEVM_UNARY(trunc, hn::Trunc(a))
TILEVM_UNARY_OF(round_bf16, float, round_bf16(d, a))
TILEVM_UNARY_OF(round_f16, float, round_f16(d, a))
TILEVM_BINARY(add, hn::Add(a, b))
TILEVM_BINARY(sub, hn::Sub(a, b))
TILEVM_BINARY(mul, hn::Mul(a, b))
TILEVM_BINARY(div, hn::Div(a, b))
TILEVM_BINARY(maximum, maximum(a, b))
TILEVM_BINARY(minimum, minimum(a, b))
TILEVM_BINARY(copysign, hn::CopySign(a, b))
#undef TILEVM_UNARY
#undef TILEVM_BINARY
#undef TILEVM_UNARY_OF
#undef TILEVM_BINARY_OF

void fill_float(Tables& tables) { fill_family<Family::kFloat>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_float);
void fill_map_float(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_float)(tables); }
}  // namespace tilevm::exec::interp
#endif
