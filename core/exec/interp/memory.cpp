// Loads, stores and gathers of one block, conversions between storage and register types.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/memory.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

using std::int64_t;

// How an element lies in memory (S) and in a register (R).
template <class T>
struct AsIs {
  using S = T;
  using R = T;
  static constexpr bool kSame = true;
  static HWY_INLINE R load(S x) { return x; }
  static HWY_INLINE S store(R x) { return x; }
};
// Converted as C++ does: integers to fewer bits wrap.
template <class Memory, class Register>
struct Converted {
  using S = Memory;
  using R = Register;
  static constexpr bool kSame = false;
  static HWY_INLINE R load(S x) { return static_cast<R>(x); }
  static HWY_INLINE S store(R x) { return static_cast<S>(x); }
};
struct AsB8 {
  using S = std::uint8_t;
  using R = std::uint8_t;
  static constexpr bool kSame = false;
  static HWY_INLINE R load(S x) { return x != 0; }
  static HWY_INLINE S store(R x) { return x; }
};
struct AsBF16 {
  using S = std::uint16_t;
  using R = std::uint32_t;  // the bits of a float
  static constexpr bool kSame = false;
  static HWY_INLINE R load(S x) { return static_cast<R>(x) << 16; }
  static HWY_INLINE S store(R x) {
    const R rounded = (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
    const R quiet = (x >> 16) | 0x40u;
    return static_cast<S>((x & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
};
// 1 sign, 5 exponent, 10 fraction bits. Denormal halves are normal floats: the fraction over the
// exponent of 2^-14, less 2^-14; and back, the last bits of 0.5 + x, as round_f16 does.
struct AsF16 {
  using S = std::uint16_t;
  using R = std::uint32_t;  // the bits of a float
  static constexpr bool kSame = false;
  static HWY_INLINE float of_bits(R x) {
    float f;
    std::memcpy(&f, &x, sizeof(f));
    return f;
  }
  static HWY_INLINE R bits_of(float f) {
    R x;
    std::memcpy(&x, &f, sizeof(x));
    return x;
  }
  static HWY_INLINE R load(S half) {
    const R x = half;
    const R magnitude = (x & 0x7FFFu) << 13;
    const R more = magnitude >= 0x0F800000u ? (224u << 23) : (112u << 23);  // infinity, NaN
    const R tiny = bits_of(of_bits(magnitude + (113u << 23)) - 0x1p-14f);
    const R value = magnitude < 0x00800000u ? tiny : magnitude + more;
    return value | (x & 0x8000u) << 16;
  }
  static HWY_INLINE S store(R x) {
    const R magnitude = x & 0x7FFFFFFFu;
    const R rounded = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const R tiny = bits_of(of_bits(magnitude) + 0.5f) - (126u << 23);
    const R nan = ((magnitude >> 13) & 0x3FFu) | 0x7E00u;
    R half = magnitude < (113u << 23) ? tiny : rounded;
    half = magnitude >= 0x477FF000u ? 0x7C00u : half;  // 65520 and more
    half = magnitude > 0x7F800000u ? nan : half;
    return static_cast<S>(half | (x >> 16 & 0x8000u));
  }
};

// By the types in memory and in the register; a pair that has none does not compile.
template <Storage, RegType>
struct As;
template <>
struct As<Storage::kF32, RegType::kF32> : AsIs<float> {};
template <>
struct As<Storage::kF64, RegType::kF64> : AsIs<double> {};
template <>
struct As<Storage::kI32, RegType::kI32> : AsIs<std::int32_t> {};
template <>
struct As<Storage::kI64, RegType::kI64> : AsIs<int64_t> {};
template <>
struct As<Storage::kB8, RegType::kB8> : AsB8 {};
template <>
struct As<Storage::kBF16, RegType::kF32> : AsBF16 {};
template <>
struct As<Storage::kF16, RegType::kF32> : AsF16 {};
template <>
struct As<Storage::kF64, RegType::kF32> : Converted<double, float> {};
template <>
struct As<Storage::kI8, RegType::kI32> : Converted<std::int8_t, std::int32_t> {};
template <>
struct As<Storage::kU8, RegType::kI32> : Converted<std::uint8_t, std::int32_t> {};
template <>
struct As<Storage::kI16, RegType::kI32> : Converted<std::int16_t, std::int32_t> {};

template <class T>
HWY_INLINE T read(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof(T));
  return x;
}

// to[i] = from[i] for n dense elements, both exact at the end.
template <class T>
HWY_INLINE void copy(T* to, const T* from, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n * static_cast<int64_t>(sizeof(T)) >= 2048) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    return;
  }
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  if (i < n) store_n(load_n(d, from + i, n - i), d, to + i, n - i);
}

// Fills n elements and up to a vector behind them: rows are written in order, into padding at last.
template <class T>
HWY_INLINE void fill(T* to, T value, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto v = hn::Set(d, value);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) hn::StoreU(v, d, to + i);
}

// Where there are instructions for it: Highway's own way makes infinity and NaN finite.
constexpr bool kConvertsHalves =
    HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64 != 0;

using Wide = hn::ScalableTag<float>;  // of a vector of halves
using WideBits = hn::RebindToUnsigned<Wide>;
using Half = hn::Rebind<hwy::float16_t, Wide>;
using HalfBits = hn::RebindToUnsigned<Half>;

// Whole vectors of halves: how many elements that were.
HWY_INLINE int64_t load_halves(std::uint32_t* to, const std::byte* from, int64_t n) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Wide()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto* at = reinterpret_cast<const std::uint16_t*>(from) + i;
    const auto wide = hn::PromoteTo(Wide(), hn::BitCast(Half(), hn::LoadU(HalfBits(), at)));
    hn::StoreU(hn::BitCast(WideBits(), wide), WideBits(), to + i);
  }
  return i;
}
HWY_INLINE int64_t store_halves(std::byte* to, const std::uint32_t* from, int64_t n) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Wide()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto wide = hn::BitCast(Wide(), hn::LoadU(WideBits(), from + i));
    auto* at = reinterpret_cast<std::uint16_t*>(to) + i;
    hn::StoreU(hn::BitCast(HalfBits(), hn::DemoteTo(Half(), wide)), HalfBits(), at);
  }
  return i;
}

template <class M>
HWY_INLINE void load_dense(typename M::R* to, const std::byte* from, int64_t n) {
  using S = typename M::S;
  if constexpr (M::kSame) {
    copy(to, reinterpret_cast<const S*>(from), n);
  } else {
    int64_t i = 0;
    if constexpr (kConvertsHalves && std::is_base_of_v<AsF16, M>) i = load_halves(to, from, n);
    for (; i + kChunk <= n; i += kChunk) {
      const std::byte* at = from + i * static_cast<int64_t>(sizeof(S));
      TILEVM_INDEPENDENT
      for (int64_t j = 0; j < kChunk; ++j) {
        to[i + j] = M::load(read<S>(at + j * static_cast<int64_t>(sizeof(S))));
      }
    }
    for (; i < n; ++i) {
      to[i] = M::load(read<S>(from + i * static_cast<int64_t>(sizeof(S))));
    }
  }
}

template <class M>
void load(void* dst, const Grid& g) {
  using S = typename M::S;
  auto* to = static_cast<typename M::R*>(dst);
  constexpr int64_t kBytes = sizeof(S);
  const bool dense = g.x_stride == kBytes || g.nx == 1;
  if (dense && (g.ny == 1 || (g.nx == 1 ? g.y_stride == kBytes : g.y_stride == g.nx * kBytes))) {
    load_dense<M>(to, g.base, g.ny * g.nx);
    return;
  }
  if (dense && g.nx > 1) {
    for (int64_t y = 0; y < g.ny; ++y) {
      load_dense<M>(to + y * g.nx, g.base + y * g.y_stride, g.nx);
    }
    return;
  }
  for (int64_t y = 0; y < g.ny; ++y) {
    const std::byte* row = g.base + y * g.y_stride;
    if (g.x_stride == 0 && g.nx > 1) {
      fill(to + y * g.nx, M::load(read<S>(row)), g.nx);
      continue;
    }
    for (int64_t x = 0; x < g.nx; ++x) {
      to[y * g.nx + x] = M::load(read<S>(row + x * g.x_stride));
    }
  }
}

template <class M>
HWY_INLINE void store_dense(std::byte* to, const typename M::R* from, int64_t n) {
  using S = typename M::S;
  if constexpr (sizeof(S) == sizeof(typename M::R)) {
    copy(reinterpret_cast<S*>(to), reinterpret_cast<const S*>(from), n);
  } else {
    S* HWY_RESTRICT at = reinterpret_cast<S*>(to);
    int64_t i = 0;
    if constexpr (kConvertsHalves && std::is_base_of_v<AsF16, M>) i = store_halves(to, from, n);
    for (; i + kChunk <= n; i += kChunk) {
      TILEVM_INDEPENDENT
      for (int64_t j = 0; j < kChunk; ++j) at[i + j] = M::store(from[i + j]);
    }
    for (; i < n; ++i) at[i] = M::store(from[i]);
  }
}

template <class M>
void store(const Grid& g, const Steps& value) {
  using S = typename M::S;
  using R = typename M::R;
  const R* from = static_cast<const R*>(value.data);
  constexpr int64_t kBytes = sizeof(S);
  const bool dense = (g.x_stride == kBytes && value.x_step == 1) || g.nx == 1;
  if (dense && (g.ny == 1 || (g.y_stride == g.nx * kBytes && value.y_step == g.nx))) {
    store_dense<M>(g.base, from, g.ny * g.nx);
    return;
  }
  if (dense && g.nx > 1) {
    for (int64_t y = 0; y < g.ny; ++y) {
      store_dense<M>(g.base + y * g.y_stride, from + y * value.y_step, g.nx);
    }
    return;
  }
  for (int64_t y = 0; y < g.ny; ++y) {
    std::byte* row = g.base + y * g.y_stride;
    const R* v = from + y * value.y_step;
    for (int64_t x = 0; x < g.nx; ++x) {
      const S s = M::store(v[x * value.x_step]);
      std::memcpy(row + x * g.x_stride, &s, sizeof(S));
    }
  }
}

template <class M>
bool gather(void* dst, const Grid& g, const Steps& index, int64_t stride, int64_t size) {
  using S = typename M::S;
  auto* to = static_cast<typename M::R*>(dst);
  const auto* indices = static_cast<const int64_t*>(index.data);
  const auto limit = static_cast<std::uint64_t>(size);
  for (int64_t y = 0; y < g.ny; ++y) {
    const std::byte* row = g.base + y * g.y_stride;
    const int64_t* at = indices + y * index.y_step;
    auto* out = to + y * g.nx;
    if (index.x_step == 0) {
      if (static_cast<std::uint64_t>(*at) >= limit) return false;
      const Grid from = {const_cast<std::byte*>(row + *at * stride), 1, g.nx, 0, g.x_stride};
      load<M>(out, from);
      continue;
    }
    for (int64_t x = 0; x < g.nx; ++x) {
      if (static_cast<std::uint64_t>(at[x]) >= limit) return false;
      out[x] = M::load(read<S>(row + x * g.x_stride + at[x] * stride));
    }
  }
  return true;
}

void iota(int64_t* dst, int64_t start, const Grid& steps) {
  using U = std::uint64_t;  // wraps
  for (int64_t y = 0; y < steps.ny; ++y) {
    const U first = static_cast<U>(start) + static_cast<U>(y) * static_cast<U>(steps.y_stride);
    U value = first;
    for (int64_t x = 0; x < steps.nx; ++x, value += static_cast<U>(steps.x_stride)) {
      dst[y * steps.nx + x] = static_cast<int64_t>(value);
    }
  }
}

template <class T>
void expand(void* dst, int64_t ny, int64_t nx, const Steps& value) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  T* to = static_cast<T*>(dst);
  const T* from = static_cast<const T*>(value.data);
  if (value.x_step == 0 && value.y_step == 0) {
    fill(to, *from, ny * nx);
  } else if (value.x_step == 0) {
    for (int64_t y = 0; y < ny; ++y) fill(to + y * nx, from[y * value.y_step], nx);
  } else if (value.y_step == 0 && nx <= lanes) {
    alignas(64) T row[hn::MaxLanes(hn::ScalableTag<T>())] = {};
    std::memcpy(row, from, static_cast<std::size_t>(nx) * sizeof(T));
    const auto v = hn::Load(d, row);
    for (int64_t y = 0; y < ny; ++y) hn::StoreU(v, d, to + y * nx);
  } else {
    for (int64_t y = 0; y < ny; ++y) copy(to + y * nx, from + y * value.y_step, nx);
  }
}

}  // namespace

void fill_table(Tables& tables) {
#define TILEVM_LOAD(name, reg, storage) \
  tables.access[static_cast<std::size_t>(Op::name)].load = load<As<Storage::storage, RegType::reg>>;
#define TILEVM_STORE(name, storage, reg)                    \
  tables.access[static_cast<std::size_t>(Op::name)].store = \
      store<As<Storage::storage, RegType::reg>>;
#define TILEVM_GATHER(name, reg, storage)                    \
  tables.access[static_cast<std::size_t>(Op::name)].gather = \
      gather<As<Storage::storage, RegType::reg>>;
  TILEVM_ISA_LOAD(TILEVM_LOAD)
  TILEVM_ISA_STORE(TILEVM_STORE)
  TILEVM_ISA_GATHER(TILEVM_GATHER)
#undef TILEVM_LOAD
#undef TILEVM_STORE
#undef TILEVM_GATHER
  tables.memory = {iota, expand<std::uint8_t>, expand<float>, expand<int64_t>};
  tables.target = hwy::TargetName(HWY_TARGET);
}

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_table);
void fill_memory(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_table)(tables); }
}  // namespace tilevm::exec::interp
#endif
