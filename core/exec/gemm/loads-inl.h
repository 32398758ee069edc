// Vectors of float32 from the memory types of factors. Included once for each target.
#if defined(TILEVM_EXEC_GEMM_LOADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEVM_EXEC_GEMM_LOADS_INL_H_
#undef TILEVM_EXEC_GEMM_LOADS_INL_H_
#else
#define TILEVM_EXEC_GEMM_LOADS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::gemm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));

// Memory types of factors.
struct Half {  // float16
  std::uint16_t bits;
};
struct Brain {  // bfloat16
  std::uint16_t bits;
};
using Byte = std::int8_t;

// Vectors of memory types as float32: of as many lanes as Of has.
template <class Of>
HWY_INLINE hn::Vec<Of> widen(Of d, hn::Vec<hn::Rebind<std::uint16_t, Of>> bits, const Brain*) {
  const hn::RebindToUnsigned<Of> wide;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}
// Without instructions for it, Highway's own makes infinity and NaN finite.
template <class Of>
HWY_INLINE hn::Vec<Of> widen(Of d, hn::Vec<hn::Rebind<std::uint16_t, Of>> bits, const Half*) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Of>(), bits));
#else
  // As exec/interp/memory.cpp does: denormals are the fraction over 2^-14, less 2^-14.
  const hn::RebindToUnsigned<Of> wide;
  const auto x = hn::PromoteTo(wide, bits);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(x, hn::Set(wide, 0x7FFFu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(x, hn::Set(wide, 0x8000u)));
  const auto finite = hn::Lt(magnitude, hn::Set(wide, 0x0F800000u));
  const auto more = hn::IfThenElse(finite, hn::Set(wide, 112u << 23), hn::Set(wide, 224u << 23));
  const auto over = hn::BitCast(d, hn::Add(magnitude, hn::Set(wide, 113u << 23)));
  const auto tiny = hn::BitCast(wide, hn::Sub(over, hn::Set(d, 0x1p-14f)));
  const auto is_tiny = hn::Lt(magnitude, hn::Set(wide, 0x00800000u));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_tiny, tiny, hn::Add(magnitude, more))));
#endif
}
template <class Of>
HWY_INLINE hn::Vec<Of> widen(Of d, hn::Vec<hn::Rebind<Byte, Of>> bytes, const Byte*) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<Of>(), bytes));
}
template <class Of>
HWY_INLINE hn::Vec<Of> widen(Of, hn::Vec<Of> v, const float*) {
  return v;
}

// What elements of a memory type are loaded as.
template <class T>
using Loaded = std::conditional_t<sizeof(T) == 2, std::uint16_t, T>;

template <class Of, class T>
HWY_INLINE hn::Vec<Of> load_as(Of d, const T* from) {
  const hn::Rebind<Loaded<T>, Of> narrow;
  return widen(d, hn::LoadU(narrow, reinterpret_cast<const Loaded<T>*>(from)), from);
}
template <class T>
HWY_INLINE V load(const T* from) {
  return load_as(D(), from);
}

// Whether a masked load or store of T touches nothing outside its mask.
template <class T>
constexpr bool kMasks =
    HWY_TARGET == HWY_AVX3 || (HWY_TARGET == HWY_AVX2 && std::is_same_v<T, float>);

// The first n elements, fewer than a vector has, then zeros. Reads nothing else.
template <class Of, class T>
HWY_INLINE hn::Vec<Of> load_some_as(Of d, const T* from, std::int64_t n) {
  if constexpr (kMasks<T>) {
    const hn::Rebind<Loaded<T>, Of> narrow;
    const auto mask = hn::FirstN(narrow, static_cast<std::size_t>(n));
    return widen(d, hn::MaskedLoad(mask, narrow, reinterpret_cast<const Loaded<T>*>(from)), from);
  }
  T some[hn::MaxLanes(d)] = {};
  for (std::int64_t i = 0; i < std::min<std::int64_t>(n, hn::MaxLanes(d)); ++i) some[i] = from[i];
  return load_as(d, some);
}
template <class T>
HWY_INLINE V load_some(const T* from, std::int64_t n) {
  return load_some_as(D(), from, n);
}
HWY_INLINE void store_some(V v, float* to, std::int64_t n) {
  if constexpr (kMasks<float>) {
    hn::BlendedStore(v, hn::FirstN(D(), static_cast<std::size_t>(n)), D(), to);
    return;
  }
  float some[hn::MaxLanes(D())];
  hn::StoreU(v, D(), some);
  for (std::int64_t i = 0; i < std::min(n, kLanes); ++i) to[i] = some[i];
}

}  // namespace
}  // namespace tilevm::exec::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
