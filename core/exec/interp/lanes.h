// Loops over lanes, compiled once per target: included by each family of handlers.
// (Highway's per-target include guard: the file is read once for every target.)
#if defined(TILEVM_EXEC_INTERP_LANES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEVM_EXEC_INTERP_LANES_H_
#undef TILEVM_EXEC_INTERP_LANES_H_
#else
#define TILEVM_EXEC_INTERP_LANES_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "exec/interp/tables.h"

// Iterations are independent even where a destination is a source in place.
#undef TILEVM_INDEPENDENT
#if defined(__clang__)
#define TILEVM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TILEVM_INDEPENDENT _Pragma("GCC ivdep")
#endif

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;
using F64 = hn::ScalableTag<double>;
template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using VecOf = hn::Vec<Tag<T>>;

// The first n lanes; the others are 0. Reads nothing behind them. 0 < n < Lanes(d).
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_n(D d, const T* from, std::int64_t n) {
#if HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, from);
#else
  alignas(64) T lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(n) * sizeof(T));
  return hn::Load(d, lanes);
#endif
}

// Writes the first n lanes and nothing behind them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_n(hn::Vec<D> v, D d, T* to, std::int64_t n) {
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(n)), d, to);
#else
  alignas(64) T lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(n) * sizeof(T));
#endif
}

// Instructions on vectors of Op::T. One copy of Op's code a loop; cheap ones get an unrolled loop
// besides.
template <class Op>
bool unary_vector(void* dst, const void* a_, const void*, const void*, std::int64_t n) {
  using T = typename Op::T;
  using Vec = VecOf<T>;
  const Tag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* HWY_RESTRICT a = static_cast<const T*>(a_);
  T* to = static_cast<T*>(dst);
  std::int64_t i = 0;
  if constexpr (Op::kCheap) {
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      const Vec v0 = Op::run(d, hn::LoadU(d, a + i));
      const Vec v1 = Op::run(d, hn::LoadU(d, a + i + lanes));
      const Vec v2 = Op::run(d, hn::LoadU(d, a + i + 2 * lanes));
      const Vec v3 = Op::run(d, hn::LoadU(d, a + i + 3 * lanes));
      hn::StoreU(v0, d, to + i);
      hn::StoreU(v1, d, to + i + lanes);
      hn::StoreU(v2, d, to + i + 2 * lanes);
      hn::StoreU(v3, d, to + i + 3 * lanes);
    }
  }
  for (; i < n; i += lanes) {
    const bool whole = n - i >= lanes;
    const Vec v = Op::run(d, whole ? hn::LoadU(d, a + i) : load_n(d, a + i, n - i));
    if (whole) {
      hn::StoreU(v, d, to + i);
    } else {
      store_n(v, d, to + i, n - i);
    }
  }
  return true;
}

// kSplat: bit 0, a is one value; bit 1, b is.
template <class Op, int kSplat>
bool binary_vector(void* dst, const void* a_, const void* b_, const void*, std::int64_t n) {
  using T = typename Op::T;
  using Vec = VecOf<T>;
  const Tag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* a = static_cast<const T*>(a_);
  const T* b = static_cast<const T*>(b_);
  T* to = static_cast<T*>(dst);
  Vec splat = hn::Zero(d);
  if constexpr (kSplat == 1) splat = hn::Set(d, *a);
  if constexpr (kSplat == 2) splat = hn::Set(d, *b);
  std::int64_t i = 0;
  if constexpr (Op::kCheap) {
    const auto at = [&](std::int64_t j) HWY_ATTR {
      if constexpr (kSplat == 1) return Op::run(d, splat, hn::LoadU(d, b + j));
      if constexpr (kSplat == 2) return Op::run(d, hn::LoadU(d, a + j), splat);
      if constexpr (kSplat == 0) return Op::run(d, hn::LoadU(d, a + j), hn::LoadU(d, b + j));
    };
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      const Vec v0 = at(i);
      const Vec v1 = at(i + lanes);
      const Vec v2 = at(i + 2 * lanes);
      const Vec v3 = at(i + 3 * lanes);
      hn::StoreU(v0, d, to + i);
      hn::StoreU(v1, d, to + i + lanes);
      hn::StoreU(v2, d, to + i + 2 * lanes);
      hn::StoreU(v3, d, to + i + 3 * lanes);
    }
  }
  for (; i < n; i += lanes) {
    const bool whole = n - i >= lanes;
    Vec va = splat;
    Vec vb = splat;
    if constexpr (kSplat != 1) va = whole ? hn::LoadU(d, a + i) : load_n(d, a + i, n - i);
    if constexpr (kSplat != 2) vb = whole ? hn::LoadU(d, b + i) : load_n(d, b + i, n - i);
    const Vec v = Op::run(d, va, vb);
    if (whole) {
      hn::StoreU(v, d, to + i);
    } else {
      store_n(v, d, to + i, n - i);
    }
  }
  return true;
}

// Others: Op::run takes and gives scalars, and the compiler makes vectors of chunks of a fixed
// length. Tails go through a chunk on the stack, so that there is one loop.
inline constexpr std::int64_t kChunk = 64;

template <class T, bool kSplat>
struct Source {
  const T* at;
  T value = T{};
  T tail[kSplat ? 1 : kChunk];

  explicit HWY_INLINE Source(const void* data) : at(static_cast<const T*>(data)) {
    if constexpr (kSplat) value = *at;
  }
  HWY_INLINE T get(const T* from, std::int64_t j) const {
    if constexpr (kSplat) return value;
    if constexpr (!kSplat) return from[j];
  }
  HWY_INLINE const T* chunk(std::int64_t i) const { return kSplat ? at : at + i; }
  HWY_INLINE const T* last(std::int64_t i, std::int64_t n) {
    if constexpr (!kSplat) {
      std::memset(tail, 0, sizeof(tail));
      std::memcpy(tail, at + i, static_cast<std::size_t>(n) * sizeof(T));
    }
    return tail;
  }
};

template <class Op>
bool unary(void* dst, const void* a_, const void*, const void*, std::int64_t n) {
  using D = typename Op::D;
  D* to = static_cast<D*>(dst);
  Source<typename Op::A, false> a(a_);
  std::int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    D* d = to + i;
    const auto* pa = a.chunk(i);
    TILEVM_INDEPENDENT
    for (std::int64_t j = 0; j < kChunk; ++j) d[j] = Op::run(pa[j]);
  }
  if (i < n) {
    D d[kChunk];
    const auto* pa = a.last(i, n - i);
    TILEVM_INDEPENDENT
    for (std::int64_t j = 0; j < kChunk; ++j) d[j] = Op::run(pa[j]);
    std::memcpy(to + i, d, static_cast<std::size_t>(n - i) * sizeof(D));
  }
  return true;
}

template <class Op, int kSplat>
bool binary(void* dst, const void* a_, const void* b_, const void*, std::int64_t n) {
  using D = typename Op::D;
  D* to = static_cast<D*>(dst);
  Source<typename Op::A, (kSplat & 1) != 0> a(a_);
  Source<typename Op::B, (kSplat & 2) != 0> b(b_);
  std::int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    D* d = to + i;
    const auto* pa = a.chunk(i);
    const auto* pb = b.chunk(i);
    TILEVM_INDEPENDENT
    for (std::int64_t j = 0; j < kChunk; ++j) d[j] = Op::run(a.get(pa, j), b.get(pb, j));
  }
  if (i < n) {
    D d[kChunk];
    const auto* pa = a.last(i, n - i);
    const auto* pb = b.last(i, n - i);
    TILEVM_INDEPENDENT
    for (std::int64_t j = 0; j < kChunk; ++j) d[j] = Op::run(a.get(pa, j), b.get(pb, j));
    std::memcpy(to + i, d, static_cast<std::size_t>(n - i) * sizeof(D));
  }
  return true;
}

// a is a vector of bools; kSplat: bit 0 is b, bit 1 is c.
template <class T, int kSplat>
bool select(void* dst, const void* a_, const void* b_, const void* c_, std::int64_t n) {
  T* to = static_cast<T*>(dst);
  Source<std::uint8_t, false> a(a_);
  Source<T, (kSplat & 1) != 0> b(b_);
  Source<T, (kSplat & 2) != 0> c(c_);
  std::int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    T* d = to + i;
    const auto* pa = a.chunk(i);
    const auto* pb = b.chunk(i);
    const auto* pc = c.chunk(i);
    TILEVM_INDEPENDENT
    for (std::int64_t j = 0; j < kChunk; ++j) {
      const T vb = b.get(pb, j);
      const T vc = c.get(pc, j);
      d[j] = pa[j] != 0 ? vb : vc;
    }
  }
  for (; i < n; ++i) {
    const T vb = b.get(b.chunk(i), 0);
    const T vc = c.get(c.chunk(i), 0);
    to[i] = a.at[i] != 0 ? vb : vc;
  }
  return true;
}

// One element at a time; Op::run(a, b, dst) gives false to stop. Op::some(a, b, dst), if there is
// such, takes a vector, or gives false to leave that to Op::run.
template <class Op, int kSplat>
bool binary_checked(void* dst, const void* a_, const void* b_, const void*, std::int64_t n) {
  using T = typename Op::D;
  T* to = static_cast<T*>(dst);
  const T* a = static_cast<const T*>(a_);
  const T* b = static_cast<const T*>(b_);
  const auto each = [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      if (!Op::run(a[kSplat & 1 ? 0 : i], b[kSplat & 2 ? 0 : i], to[i])) return false;
    }
    return true;
  };
  std::int64_t i = 0;
  if constexpr (requires(VecOf<T> v) { Op::some(v, v, v); }) {
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes) {
      const VecOf<T> x = kSplat & 1 ? hn::Set(d, *a) : hn::LoadU(d, a + i);
      const VecOf<T> y = kSplat & 2 ? hn::Set(d, *b) : hn::LoadU(d, b + i);
      VecOf<T> r;
      if (Op::some(x, y, r)) {
        hn::StoreU(r, d, to + i);
      } else if (!each(i, i + lanes)) {
        return false;
      }
    }
  }
  return each(i, n);
}

// The table's entry of an instruction, from the shape of Map<op>, which says how it is looped:
// a missing Map does not compile.
enum class Loop { kUnaryVector, kBinaryVector, kUnary, kBinary, kBinaryChecked, kSelect };

template <bytecode::Op>
struct Map;

template <class M>
constexpr MapEntry map_entry() {
  if constexpr (M::kLoop == Loop::kUnaryVector) return {{unary_vector<M>}};
  if constexpr (M::kLoop == Loop::kBinaryVector) {
    return {{binary_vector<M, 0>, binary_vector<M, 1>, binary_vector<M, 2>}};
  }
  if constexpr (M::kLoop == Loop::kUnary) return {{unary<M>}};
  if constexpr (M::kLoop == Loop::kBinary) return {{binary<M, 0>, binary<M, 1>, binary<M, 2>}};
  if constexpr (M::kLoop == Loop::kBinaryChecked) {
    return {{binary_checked<M, 0>, binary_checked<M, 1>, binary_checked<M, 2>}};
  }
  if constexpr (M::kLoop == Loop::kSelect) {
    using T = typename M::D;
    return {{select<T, 0>, select<T, 1>, select<T, 2>, select<T, 3>}};
  }
}

template <Family kFamily, bytecode::Op op>
void fill_one(Tables& tables) {
  if constexpr (family(op) == kFamily) {
    tables.map[static_cast<std::size_t>(op)] = map_entry<Map<op>>();
  }
}

template <Family kFamily>
void fill_family(Tables& tables) {
#define TILEVM_FILL(name) fill_one<kFamily, bytecode::Op::name>(tables);
  TILEVM_ISA_ALL(TILEVM_FILL)
#undef TILEVM_FILL
}

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
