// The backend of math.h for Highway vectors, and math.h itself for the current Highway target.
// For files that are compiled once per target (foreach_target.h) or only for the static one.

#if defined(TILEVM_CORE_EXEC_MATH_HWY_BACKEND_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEVM_CORE_EXEC_MATH_HWY_BACKEND_H_
#undef TILEVM_CORE_EXEC_MATH_HWY_BACKEND_H_
#else
#define TILEVM_CORE_EXEC_MATH_HWY_BACKEND_H_
#endif

#include <hwy/highway.h>

#define TILEVM_MATH_PER_TARGET
#include "core/exec/math/math.h"
#undef TILEVM_MATH_PER_TARGET

HWY_BEFORE_NAMESPACE();
namespace tilevm::math::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// D: a tag of float lanes, of any number.
template <class D>
struct HwyBackend {
  using DI = hn::RebindToSigned<D>;
  using F = hn::Vec<D>;
  using I = hn::Vec<DI>;
  using M = hn::Mask<D>;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  static constexpr bool kScalesFar = sizeof(F) == 64;
#else
  static constexpr bool kScalesFar = false;
#endif

  static HWY_ATTR HWY_INLINE F f32(float c) { return hn::Set(D(), c); }
  static HWY_ATTR HWY_INLINE I i32(int32_t c) { return hn::Set(DI(), c); }

  static HWY_ATTR HWY_INLINE F add(F x, F y) { return hn::Add(x, y); }
  static HWY_ATTR HWY_INLINE F sub(F x, F y) { return hn::Sub(x, y); }
  static HWY_ATTR HWY_INLINE F mul(F x, F y) { return hn::Mul(x, y); }
  static HWY_ATTR HWY_INLINE F div(F x, F y) { return hn::Div(x, y); }
  static HWY_ATTR HWY_INLINE F sqrt(F x) { return hn::Sqrt(x); }

#if HWY_NATIVE_FMA
  static HWY_ATTR HWY_INLINE F fma(F x, F y, F z) { return hn::MulAdd(x, y, z); }
  static HWY_ATTR HWY_INLINE F fnma(F x, F y, F z) { return hn::NegMulAdd(x, y, z); }
#else  // SSE2 to SSE4, lane by lane: slow, and right.
  static HWY_ATTR HWY_INLINE F fma(F x, F y, F z) {
    HWY_ALIGN float a[hn::MaxLanes(D())], b[hn::MaxLanes(D())], c[hn::MaxLanes(D())];
    hn::Store(x, D(), a), hn::Store(y, D(), b), hn::Store(z, D(), c);
    for (size_t i = 0; i < hn::Lanes(D()); ++i) a[i] = std::fma(a[i], b[i], c[i]);
    return hn::Load(D(), a);
  }
  static HWY_ATTR HWY_INLINE F fnma(F x, F y, F z) { return fma(hn::Neg(x), y, z); }
#endif

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_ARCH_ARM  // Min and Max drop NaN
  static HWY_ATTR HWY_INLINE F min(F x, F y) { return select(lt(x, y), x, y); }
  static HWY_ATTR HWY_INLINE F max(F x, F y) { return select(lt(y, x), x, y); }
#else
  static HWY_ATTR HWY_INLINE F min(F x, F y) { return hn::Min(x, y); }
  static HWY_ATTR HWY_INLINE F max(F x, F y) { return hn::Max(x, y); }
#endif
  static HWY_ATTR HWY_INLINE F round_even(F x) { return hn::Round(x); }
  static HWY_ATTR HWY_INLINE F floor(F x) { return hn::Floor(x); }
  static HWY_ATTR HWY_INLINE F trunc(F x) { return hn::Trunc(x); }

  // The intrinsics leave out what NearestInt adds to saturate.
  static HWY_ATTR HWY_INLINE I to_int(F x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if constexpr (kScalesFar) return I{_mm512_cvtps_epi32(x.raw)};
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    if constexpr (sizeof(F) == 32) return I{_mm256_cvtps_epi32(x.raw)};
#endif
    return hn::NearestInt(x);
  }
  static HWY_ATTR HWY_INLINE F to_float(I x) { return hn::ConvertTo(D(), x); }
  static HWY_ATTR HWY_INLINE I bits(F x) { return hn::BitCast(DI(), x); }
  static HWY_ATTR HWY_INLINE F from_bits(I x) { return hn::BitCast(D(), x); }

  static HWY_ATTR HWY_INLINE I iadd(I x, I y) { return hn::Add(x, y); }
  static HWY_ATTR HWY_INLINE I isub(I x, I y) { return hn::Sub(x, y); }
  static HWY_ATTR HWY_INLINE I iand(I x, I y) { return hn::And(x, y); }
  static HWY_ATTR HWY_INLINE I ior(I x, I y) { return hn::Or(x, y); }
  static HWY_ATTR HWY_INLINE I ixor(I x, I y) { return hn::Xor(x, y); }
  template <int k>
  static HWY_ATTR HWY_INLINE I ishl(I x) {
    return hn::ShiftLeft<k>(x);
  }
  template <int k>
  static HWY_ATTR HWY_INLINE I ishr(I x) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(DI(), hn::ShiftRight<k>(hn::BitCast(du, x)));
  }
  template <int k>
  static HWY_ATTR HWY_INLINE I isar(I x) {
    return hn::ShiftRight<k>(x);
  }

  static HWY_ATTR HWY_INLINE M lt(F x, F y) { return hn::Lt(x, y); }
  static HWY_ATTR HWY_INLINE M le(F x, F y) { return hn::Le(x, y); }
  static HWY_ATTR HWY_INLINE M eq(F x, F y) { return hn::Eq(x, y); }
  static HWY_ATTR HWY_INLINE M ilt(I x, I y) { return hn::RebindMask(D(), hn::Lt(x, y)); }
  static HWY_ATTR HWY_INLINE M ieq(I x, I y) { return hn::RebindMask(D(), hn::Eq(x, y)); }
  static HWY_ATTR HWY_INLINE M mand(M x, M y) { return hn::And(x, y); }
  static HWY_ATTR HWY_INLINE M mor(M x, M y) { return hn::Or(x, y); }
  static HWY_ATTR HWY_INLINE M mnot(M x) { return hn::Not(x); }
  static HWY_ATTR HWY_INLINE F select(M m, F yes, F no) { return hn::IfThenElse(m, yes, no); }
  static HWY_ATTR HWY_INLINE I iselect(M m, I yes, I no) {
    return hn::IfThenElse(hn::RebindMask(DI(), m), yes, no);
  }

  HWY_ATTR HWY_INLINE F scale2(F x, F n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if constexpr (sizeof(F) == 64) return F{_mm512_scalef_ps(x.raw, n.raw)};
#endif
    return scale2_by_bits(*this, x, n);
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  static HWY_ATTR HWY_INLINE M not_lt(F x, F y) { return hn::Not(hn::Lt(x, y)); }
  static HWY_ATTR HWY_INLINE F scale2_of(M some, F x, F n) {
    return F{_mm512_maskz_scalef_ps(static_cast<__mmask16>(some.raw), x.raw, n.raw)};
  }
#endif

  template <class Fn>
  static HWY_ATTR HWY_INLINE F when_any(M m, F current, const Fn& fn) {
    if (HWY_LIKELY(hn::AllFalse(D(), m))) return current;
    return hn::IfThenElse(m, fn(), current);
  }
  static HWY_ATTR HWY_NOINLINE F out_of_line(double (*fn)(double), F x) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    hn::Store(x, D(), lanes);
    for (size_t i = 0; i < hn::Lanes(D()); ++i) lanes[i] = static_cast<float>(fn(lanes[i]));
    return hn::Load(D(), lanes);
  }
  static HWY_ATTR HWY_NOINLINE F out_of_line(double (*fn)(double, double), F x, F y) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())], others[hn::MaxLanes(D())];
    hn::Store(x, D(), lanes), hn::Store(y, D(), others);
    for (size_t i = 0; i < hn::Lanes(D()); ++i) {
      lanes[i] = static_cast<float>(fn(lanes[i], others[i]));
    }
    return hn::Load(D(), lanes);
  }
};

}  // namespace tilevm::math::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
