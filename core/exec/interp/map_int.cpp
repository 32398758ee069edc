// Integer arithmetic: wraps, and never has undefined behaviour.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/map_int.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

template <class T>
using Bits = std::make_unsigned_t<T>;

template <class T>
HWY_INLINE Bits<T> bits(T x) {
  return static_cast<Bits<T>>(x);
}

// Quotient towards zero and its remainder; the lowest value by -1 wraps. False: b is 0.
template <class T>
HWY_INLINE bool divide(T a, T b, T& quotient, T& remainder) {
  if (b == 0) return false;
  quotient = b == -1 ? static_cast<T>(0 - bits(a)) : static_cast<T>(a / b);
  remainder = b == -1 ? T{0} : static_cast<T>(a % b);
  return true;
}

// The quotient rounded down, what it leaves, and what the quotient towards zero leaves.
enum class Division { kFloor, kRemainder, kTruncated };

template <class T, Division kWhat>
struct Divide {
  static constexpr Loop kLoop = Loop::kBinaryChecked;
  using D = T;
  static HWY_INLINE bool run(T a, T b, T& dst) {
    T q = 0;
    T r = 0;
    if (!divide(a, b, q, r)) return false;
    const bool other_side = r != 0 && (r < 0) != (b < 0);
    if (kWhat == Division::kFloor) dst = static_cast<T>(q - (other_side ? 1 : 0));
    if (kWhat == Division::kRemainder) dst = static_cast<T>(r + (other_side ? b : 0));
    if (kWhat == Division::kTruncated) dst = r;
    return true;
  }

  // In doubles, if all are below 2^53: then a quotient is rounded to an integer only if it is one,
  // and its product with the divisor is exact.
  static HWY_INLINE bool some(VecOf<T> a, VecOf<T> b, VecOf<T>& dst)
    requires(sizeof(T) == 8)
  {
    const Tag<T> d;
    const F64 f;
    const auto most = hn::Set(d, std::int64_t{1} << 53);
    const auto holds = [&](VecOf<T> x) HWY_ATTR {
      return hn::And(hn::Lt(x, most), hn::Lt(hn::Neg(most), x));
    };
    if (!hn::AllTrue(d, hn::And(hn::And(holds(a), holds(b)), hn::Ne(b, hn::Zero(d))))) return false;
    const auto x = hn::ConvertTo(f, a);
    const auto y = hn::ConvertTo(f, b);
    const auto q = hn::Trunc(hn::Div(x, y));
    const auto r = hn::NegMulAdd(q, y, x);
    const auto zero = hn::Zero(f);
    const auto other_side =
        hn::And(hn::Ne(r, zero), hn::Xor(hn::Lt(r, zero), hn::Lt(y, zero)));
    const auto one = hn::Set(f, 1.0);
    auto result = r;
    if (kWhat == Division::kFloor) result = hn::Sub(q, hn::IfThenElseZero(other_side, one));
    if (kWhat == Division::kRemainder) result = hn::Add(r, hn::IfThenElseZero(other_side, y));
    dst = hn::ConvertTo(d, result);
    return true;
  }
};

template <class T>
HWY_INLINE T power(T a, T b) {
  if (b < 0) {
    if (a == 1) return 1;
    if (a == -1) return (b & 1) != 0 ? -1 : 1;
    return 0;
  }
  Bits<T> result = 1;
  for (Bits<T> base = bits(a); b != 0; b = static_cast<T>(b >> 1), base *= base) {
    if (b & 1) result *= base;
  }
  return static_cast<T>(result);
}

template <class T>
HWY_INLINE T shift_left(T a, T b) {
  constexpr Bits<T> kWidth = sizeof(T) * 8;
  const T shifted = static_cast<T>(bits(a) << (bits(b) & (kWidth - 1)));
  return bits(b) < kWidth ? shifted : T{0};
}
template <class T>
HWY_INLINE T shift_right(T a, T b) {
  constexpr Bits<T> kWidth = sizeof(T) * 8;
  const Bits<T> by = bits(b) < kWidth ? bits(b) : kWidth - 1;
  return static_cast<T>(a >> by);
}
}  // namespace

#define TILEVM_UNARY(name, type, value)                            \
  template <>                                                      \
  struct Map<Op::name> {                                           \
    static constexpr Loop kLoop = Loop::kUnary;                    \
    using A = type;                                                \
    using D = type;                                                \
    static HWY_INLINE D run(A a) { return static_cast<D>(value); } \
  };
#define TILEVM_BINARY(name, type, value)                                \
  template <>                                                           \
  struct Map<Op::name> {                                                \
    static constexpr Loop kLoop = Loop::kBinary;                        \
    using A = type;                                                     \
    using B = type;                                                     \
    using D = type;                                                     \
    static HWY_INLINE D run(A a, B b) { return static_cast<D>(value); } \
  };
#define TILEVM_DIVIDE(name, type, what) \
  template <>                           \
  struct Map<Op::name> : Divide<type, Division::what> {};
#define TILEVM_INTEGER(suffix, type)                                \
  TILEVM_UNARY(abs_##suffix, type, a < 0 ? 0 - bits(a) : bits(a))   \
  TILEVM_UNARY(neg_##suffix, type, 0 - bits(a))                     \
  TILEVM_UNARY(sign_##suffix, type, (a > 0) - (a < 0))              \
  TILEVM_UNARY(not_##suffix, type, ~a)                              \
  TILEVM_BINARY(add_##suffix, type, bits(a) + bits(b))              \
  TILEVM_BINARY(sub_##suffix, type, bits(a) - bits(b))              \
  TILEVM_BINARY(mul_##suffix, type, bits(a) * bits(b))              \
  TILEVM_DIVIDE(floor_div_##suffix, type, kFloor)                   \
  TILEVM_DIVIDE(remainder_##suffix, type, kRemainder)               \
  TILEVM_DIVIDE(fmod_##suffix, type, kTruncated)                    \
  TILEVM_BINARY(pow_##suffix, type, power(a, b))                    \
  TILEVM_BINARY(maximum_##suffix, type, a > b ? a : b)              \
  TILEVM_BINARY(minimum_##suffix, type, a < b ? a : b)              \
  TILEVM_BINARY(and_##suffix, type, a& b)                           \
  TILEVM_BINARY(or_##suffix, type, a | b)                           \
  TILEVM_BINARY(xor_##suffix, type, a ^ b)                          \
  TILEVM_BINARY(shl_##suffix, type, shift_left(a, b))               \
  TILEVM_BINARY(shr_##suffix, type, shift_right(a, b))
TILEVM_INTEGER(i32, std::int32_t)
TILEVM_INTEGER(i64, std::int64_t)
TILEVM_UNARY(wrap_i8, std::int32_t, static_cast<std::int8_t>(a))
TILEVM_UNARY(wrap_u8, std::int32_t, static_cast<std::uint8_t>(a))
TILEVM_UNARY(wrap_i16, std::int32_t, static_cast<std::int16_t>(a))
#undef TILEVM_INTEGER
#undef TILEVM_DIVIDE
#undef TILEVM_BINARY
#undef TILEVM_UNARY

void fill_int(Tables& tables) { fill_family<Family::kInt>(tables); }

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_int);
void fill_map_int(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_int)(tables); }
}  // namespace tilevm::exec::interp
#endif
