#include "exec/gemm/tiles.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "exec/gemm/units.h"
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/gemm/tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include "exec/gemm/loads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::gemm::HWY_NAMESPACE {
namespace {

constexpr int kRegisters = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64 ? 32 : 16;
constexpr int kVectors = 2;    // of a tile's row
constexpr int kPackAhead = 8;  // rows of B that packing prefetches
// GCC loads a step's elements of A ahead of their use, one a register: on AArch64, 12 would spill.
constexpr int kRows = HWY_ARCH_ARM_A64 ? 10 : kRegisters == 32 ? 12 : 6;

// Into the second cache: the first has too few reads under way for what comes from memory.
HWY_INLINE void fetch(const float* at) { __builtin_prefetch(at, 0, 2); }

// kM x kN vectors of the product stay in registers while k goes by.
template <int kM, int kN, bool kOffsets>
HWY_INLINE void tile_of(const Block& t) {
  const D d;
  V acc[kM][kN];
  const bool whole = t.n == kN * kLanes;
  float edge[kM * kN * hn::MaxLanes(D())];
  float* c = whole ? t.c : edge;
  const std::int64_t c_stride = whole ? t.c_stride : kN * kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) acc[i][j] = hn::Zero(d);
  }
  // Three rows of A an address register: what addressing modes reach.
  constexpr int kBases = (kM + 2) / 3;
  const float* a[kBases];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) a[i] = t.a + 3 * i * t.a_stride;
  const float* b = static_cast<const float*>(t.b);
  const std::int64_t stride = t.a_stride;
#pragma GCC unroll 1
  for (std::int64_t p = 0; p < t.k; ++p) {
    V row[kN];
    const std::int64_t q = kOffsets ? t.offsets[p] : p;
    // The processor's own guess ends with a page. One or two rows of A leave it the time.
    if constexpr (kM > 2) {
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) fetch(b + t.ahead + j * kLanes);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
      const V x = hn::Set(d, a[i / 3][(i % 3) * stride + q]);
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) acc[i][j] = hn::MulAdd(x, row[j], acc[i][j]);
    }
    b += t.b_stride;
  }
  if (t.add && whole) {
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j)
        acc[i][j] = hn::Add(acc[i][j], hn::LoadU(d, c + i * c_stride + j * kLanes));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) hn::StoreU(acc[i][j], d, c + i * c_stride + j * kLanes);
  }
  if (whole) return;
  for (int i = 0; i < kM; ++i) {
    float* to = t.c + i * t.c_stride;
    const float* from = edge + i * c_stride;
    for (std::int64_t j = 0; j < t.n; ++j) to[j] = t.add ? to[j] + from[j] : from[j];
  }
}

// Columns that one vector holds need no second one.
template <int kM, bool kOffsets>
void tile(const Block& t) {
  if (t.n > kLanes) {
    tile_of<kM, kVectors, kOffsets>(t);
  } else {
    tile_of<kM, 1, kOffsets>(t);
  }
}

// kP vectors of positions and kN columns; of the last vector, only so many positions are stored.
template <int kN, int kP>
HWY_INLINE void line_some(const LineBlock& t, std::int64_t position, std::int64_t last) {
  const D d;
  V acc[kN][kP];
#pragma GCC unroll 4
  for (int j = 0; j < kN; ++j) {
#pragma GCC unroll 4
    for (int i = 0; i < kP; ++i) acc[j][i] = hn::Zero(d);
  }
  const float* a = t.a + position;
  const float* b = t.b;
#pragma GCC unroll 1
  for (std::int64_t p = 0; p < t.k; ++p, b += t.b_stride) {
    const float* from = a + t.offsets[p];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) {
      const V w = hn::Set(d, b[j]);
#pragma GCC unroll 4
      for (int i = 0; i < kP; ++i)
        acc[j][i] = hn::MulAdd(w, hn::LoadU(d, from + i * kLanes), acc[j][i]);
    }
  }
  float* c = t.c + position * t.c_stride;
  if (t.c_stride == 1) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j, c += t.c_column) {
#pragma GCC unroll 4
      for (int i = 0; i + 1 < kP; ++i) hn::StoreU(acc[j][i], d, c + i * kLanes);
      if (last == kLanes) {
        hn::StoreU(acc[j][kP - 1], d, c + (kP - 1) * kLanes);
      } else {
        store_some(acc[j][kP - 1], c + (kP - 1) * kLanes, last);
      }
    }
    return;
  }
  float columns[kN][kP * hn::MaxLanes(D())];
#pragma GCC unroll 4
  for (int j = 0; j < kN; ++j) {
#pragma GCC unroll 4
    for (int i = 0; i < kP; ++i) hn::StoreU(acc[j][i], d, columns[j] + i * kLanes);
  }
  const std::int64_t count = (kP - 1) * kLanes + last;
  for (std::int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) c[i * t.c_stride + j * t.c_column] = columns[j][i];
  }
}

template <int kN>
void line(const LineBlock& t) {
  constexpr int kP = kN > 2 ? 2 : 4;
  std::int64_t i = 0;
  for (; i + kP * kLanes <= t.positions; i += kP * kLanes) line_some<kN, kP>(t, i, kLanes);
  for (; i < t.positions; i += kLanes) line_some<kN, 1>(t, i, std::min(kLanes, t.positions - i));
}

// c += kDepth rows of B, `apart` from each other, each times its elements of A.
template <int kM, int kDepth, class T>
HWY_INLINE void sweep_rows(const Block& t, std::int64_t p, std::int64_t apart, bool add) {
  const D d;
  V x[kM][kDepth];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int q = 0; q < kDepth; ++q) x[i][q] = hn::Set(d, t.a[i * t.a_stride + p + q * apart]);
  }
  const T* b = static_cast<const T*>(t.b) + p * t.b_stride;
  const std::int64_t stride = apart * t.b_stride;
  const auto column = [&](std::int64_t j, auto&& read, auto&& from, auto&& to) HWY_ATTR {
    V acc[kM];
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      acc[i] = hn::Zero(d);
    }
#pragma GCC unroll 8
    for (int q = 0; q < kDepth; ++q) {
      const V row = read(b + q * stride + j);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) acc[i] = hn::MulAdd(x[i][q], row, acc[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      float* c = t.c + i * t.c_stride + j;
      to(add ? hn::Add(from(c), acc[i]) : acc[i], c);
    }
  };
  std::int64_t j = 0;
  for (; j + kLanes <= t.n; j += kLanes) {
    column(
        j, [](const T* from) HWY_ATTR { return load(from); },
        [](const float* from) HWY_ATTR { return load(from); },
        [](V v, float* to) HWY_ATTR { hn::StoreU(v, D(), to); });
  }
  const std::int64_t left = t.n - j;
  if (left == 0) return;
  column(
      j, [left](const T* from) HWY_ATTR { return load_some(from, left); },
      [left](const float* from) HWY_ATTR { return load_some(from, left); },
      [left](V v, float* to) HWY_ATTR { store_some(v, to, left); });
}

template <int kM, class T>
void sweep(const Block& t) {
  constexpr int kDepth = kM * 8 + kM + 1 <= kRegisters ? 8 : kM * 4 + kM + 1 <= kRegisters ? 4 : 2;
  std::int64_t p = 0;
  bool add = t.add;
  if (t.apart > 0) {
    const std::int64_t part = t.k / kDepth;
    for (; p < part; ++p) {
      sweep_rows<kM, kDepth, T>(t, p, part, add);
      add = true;
    }
    p = part * kDepth;
  }
  for (; p + kDepth <= t.k; p += kDepth) {
    sweep_rows<kM, kDepth, T>(t, p, 1, add);
    add = true;
  }
  for (; p < t.k; ++p) {
    sweep_rows<kM, 1, T>(t, p, 1, add);
    add = true;
  }
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void store_sums(V a, V b, V c, V e, float* to) {
  to[0] = a.raw, to[1] = b.raw, to[2] = c.raw, to[3] = e.raw;
}

#else

// The sum of the 128-bit blocks of a vector.
template <class Of>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> folded(Of, hn::Vec<Of> v) {
  if constexpr (hn::MaxLanes(Of()) == 4) {
    return v;
  } else {
    const hn::Half<Of> half;
    return folded(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// to[0 .. 3] = the sums of the lanes of four vectors.
HWY_INLINE void store_sums(V a, V b, V c, V e, float* to) {
  const D d;
  const hn::Repartition<double, D> wide;
  const auto ab =
      hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce =
      hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const V all = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)),
                        hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
  hn::StoreU(folded(d, all), hn::FixedTag<float, 4>(), to);
}

#endif

// kM x four columns, `apart` from each other: rows of A and rows of b go by together.
template <int kM, class T>
HWY_INLINE void dot_columns(const Block& t, std::int64_t j, int columns, std::int64_t apart) {
  if constexpr (kRegisters == 16 && kM > 3) {  // sums of all rows do not fit
    constexpr int kFirst = (kM + 1) / 2;
    Block rest = t;
    rest.a += kFirst * t.a_stride;
    rest.c += kFirst * t.c_stride;
    dot_columns<kFirst, T>(t, j, columns, apart);
    dot_columns<kM - kFirst, T>(rest, j, columns, apart);
    return;
  }
  const D d;
  V acc[kM][kDotColumns];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) acc[i][q] = hn::Zero(d);
  }
  const T* b[kDotColumns];
  for (int q = 0; q < kDotColumns; ++q)
    b[q] = static_cast<const T*>(t.b) + (j + std::min(q, columns - 1) * apart) * t.b_stride;
  std::int64_t p = 0;
  const std::int64_t stride = t.a_stride;
  const float* const lower = t.a;
  const float* const upper = t.a + 3 * stride;
#pragma GCC unroll 1
  for (; p + kLanes <= t.k; p += kLanes) {
    V x[kM];
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) x[i] = load((i < 3 ? lower : upper) + (i % 3) * stride + p);
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) {
      const V row = load(b[q] + p);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) acc[i][q] = hn::MulAdd(x[i], row, acc[i][q]);
    }
  }
  if (const std::int64_t left = t.k - p; left > 0) {
    V x[kM];
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) x[i] = load_some(t.a + i * stride + p, left);
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) {
      const V row = load_some(b[q] + p, left);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) acc[i][q] = hn::MulAdd(x[i], row, acc[i][q]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
    float sums[kDotColumns];
    store_sums(acc[i][0], acc[i][1], acc[i][2], acc[i][3], sums);
    float* c = t.c + i * t.c_stride + j;
    for (int q = 0; q < columns; ++q)
      c[q * apart] = t.add ? c[q * apart] + sums[q] : sums[q];
  }
}

template <int kM, class T>
void dots(const Block& t) {
  if (t.apart > 0) {
    for (std::int64_t j = 0; j < t.n / kDotColumns; ++j)
      dot_columns<kM, T>(t, j, kDotColumns, t.apart);
    return;
  }
  std::int64_t j = 0;
  for (; j + kDotColumns <= t.n; j += kDotColumns) dot_columns<kM, T>(t, j, kDotColumns, 1);
  if (j < t.n) dot_columns<kM, T>(t, j, static_cast<int>(t.n - j), 1);
}

template <class T>
void copy(const void* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
          std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* source = static_cast<const T*>(from) + i * from_stride;
    float* target = to + i * to_stride;
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) hn::StoreU(load(source + j), D(), target + j);
    if (j < columns) store_some(load_some(source + j, columns - j), target + j, columns - j);
  }
}

// Row by row: pages of B are visited once, and what comes next in a row is fetched ahead.
template <class T>
void pack(const void* from, std::int64_t from_stride, float* to, std::int64_t panel_stride,
          std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kWidth = kVectors * kLanes;
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* source = static_cast<const T*>(from) + i * from_stride;
    const T* ahead = source + kPackAhead * from_stride;
    float* target = to + i * kWidth;
    std::int64_t j = 0;
    for (; j + kWidth <= columns; j += kWidth, target += panel_stride) {
#pragma GCC unroll 4
      for (int q = 0; q < kVectors; ++q) {
        hwy::Prefetch(ahead + j + q * kLanes);
        hn::StoreU(load(source + j + q * kLanes), D(), target + q * kLanes);
      }
    }
    if (j == columns) continue;
    for (std::int64_t q = 0; q < kWidth; q += kLanes) {
      const std::int64_t left = columns - j - q;
      const V row = left >= kLanes ? load(source + j + q)
                    : left > 0     ? load_some(source + j + q, left)
                                   : hn::Zero(D());
      hn::StoreU(row, D(), target + q);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

// Block b of vector i is four elements of row 4 b + i: then squares of 4 x 4 are transposed within
// the blocks, and each vector is a row of the result. Rows from `last` on are taken for `last`;
// of `few` elements, if not four, the others are zeros.
template <bool kFour, class T>
HWY_INLINE V gather_rows(const T* from, std::int64_t stride, std::int64_t row, std::int64_t last,
                         std::int64_t few) {
  const auto at = [&](std::int64_t r) HWY_ATTR {
    const hn::FixedTag<float, 4> four;
    const T* start = from + std::min(row + r, last) * stride;
    if constexpr (kFour) return load_as(four, start);
    return load_some_as(four, start, few);
  };
  if constexpr (kLanes == 4) {
    return at(0);
  } else {
    const std::conditional_t<kLanes == 8, D, hn::Half<D>> eight;
    const auto low = hn::Combine(eight, at(4), at(0));
    if constexpr (kLanes == 8) {
      return low;
    } else {
      return hn::Combine(D(), hn::Combine(eight, at(12), at(8)), low);
    }
  }
}

// Four rows of the result, or `few` of them: n <= kLanes columns.
template <bool kFour, class T>
HWY_INLINE void transpose_squares(const T* from, std::int64_t from_stride, float* to,
                                  std::int64_t to_stride, std::int64_t n, std::int64_t few) {
  const D d;
  const hn::Repartition<double, D> wide;
  const V r0 = gather_rows<kFour>(from, from_stride, 0, n - 1, few);
  const V r1 = gather_rows<kFour>(from, from_stride, 1, n - 1, few);
  const V r2 = gather_rows<kFour>(from, from_stride, 2, n - 1, few);
  const V r3 = gather_rows<kFour>(from, from_stride, 3, n - 1, few);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  const V rows[4] = {hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)),
                     hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)),
                     hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)),
                     hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23))};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if (!kFour && i >= few) break;
    if (n == kLanes) {
      hn::StoreU(rows[i], d, to + i * to_stride);
    } else {
      store_some(rows[i], to + i * to_stride, n);
    }
  }
}

#else

template <bool, class T>
HWY_INLINE void transpose_squares(const T* from, std::int64_t, float* to, std::int64_t to_stride,
                                  std::int64_t, std::int64_t) {
  for (std::int64_t i = 0; i < 4; ++i) to[i * to_stride] = load(from + i).raw;
}

#endif

template <class T>
void transpose(const void* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
               std::int64_t rows, std::int64_t columns) {
  const T* source = static_cast<const T*>(from);
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const T* column = source + j * from_stride;
    const std::int64_t n = std::min(kLanes, columns - j);
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
      transpose_squares<true>(column + i, from_stride, to + i * to_stride + j, to_stride, n, 4);
    if (i == rows) continue;
    if (rows >= 4) {  // the last four rows, some of them again
      i = rows - 4;
      transpose_squares<true>(column + i, from_stride, to + i * to_stride + j, to_stride, n, 4);
      continue;
    }
    if constexpr (kMasks<T>) {
      transpose_squares<false>(column, from_stride, to + j, to_stride, n, rows);
      continue;
    }
    for (; i < rows; ++i) {
      for (std::int64_t q = 0; q < n; ++q)
        to[i * to_stride + j + q] = hn::GetLane(load_some(column + q * from_stride + i, 1));
    }
  }
}

// kP positions of kN vectors of channels; the last vector has `left` of them, if not all. Of one
// position, taps are added in two sums, so that one addition need not wait for the last.
template <class T, int kP, int kN>
HWY_INLINE void each_some(const EachBlock& t, const T* from, const float* packed, float* c,
                          std::int64_t left) {
  const D d;
  const bool whole = left >= kN * kLanes;
  const auto some = [&](const T* at, int q) HWY_ATTR {
    return whole || q + 1 < kN ? load(at + q * kLanes)
                               : load_some(at + q * kLanes, left - q * kLanes);
  };
  V acc[kP][kN];
#pragma GCC unroll 4
  for (int i = 0; i < kP; ++i)
#pragma GCC unroll 2
    for (int q = 0; q < kN; ++q) acc[i][q] = hn::Zero(d);
  std::int64_t tap = 0;
  if constexpr (kP == 1) {
    V other[kN];
#pragma GCC unroll 2
    for (int q = 0; q < kN; ++q) other[q] = hn::Zero(d);
    for (; tap + 2 <= t.taps; tap += 2) {
      const float* row = packed + t.rows_of[tap] * kVectors * kLanes;
      const float* next = packed + t.rows_of[tap + 1] * kVectors * kLanes;
#pragma GCC unroll 2
      for (int q = 0; q < kN; ++q) {
        acc[0][q] =
            hn::MulAdd(some(from + t.offsets[tap], q), hn::LoadU(d, row + q * kLanes), acc[0][q]);
        other[q] = hn::MulAdd(some(from + t.offsets[tap + 1], q), hn::LoadU(d, next + q * kLanes),
                              other[q]);
      }
    }
#pragma GCC unroll 2
    for (int q = 0; q < kN; ++q) acc[0][q] = hn::Add(acc[0][q], other[q]);
  }
  for (; tap < t.taps; ++tap) {
    const float* row = packed + t.rows_of[tap] * kVectors * kLanes;
    const T* at = from + t.offsets[tap];
#pragma GCC unroll 2
    for (int q = 0; q < kN; ++q) {
      const V w = hn::LoadU(d, row + q * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kP; ++i) acc[i][q] = hn::MulAdd(some(at + i * t.step, q), w, acc[i][q]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kP; ++i) {
#pragma GCC unroll 2
    for (int q = 0; q < kN; ++q) {
      float* to = c + i * t.c_stride + q * kLanes;
      if (whole || q + 1 < kN) {
        hn::StoreU(acc[i][q], d, to);
      } else {
        store_some(acc[i][q], to, left - q * kLanes);
      }
    }
  }
}

template <class T, int kP>
HWY_INLINE void each_positions(const EachBlock& t, std::int64_t position) {
  const T* from = static_cast<const T*>(t.from) + position * t.step;
  float* c = t.c + position * t.c_stride;
  constexpr std::int64_t kWidth = kVectors * kLanes;
  const float* packed = t.packed;
  for (std::int64_t j = 0; j < t.n; j += kWidth, packed += t.panel_stride) {
    if (t.n - j > kLanes) {
      each_some<T, kP, 2>(t, from + j, packed, c + j, t.n - j);
    } else {
      each_some<T, kP, 1>(t, from + j, packed, c + j, t.n - j);
    }
  }
}

template <class T>
void each(const EachBlock& t) {
  constexpr int kPositions = 4;
  std::int64_t i = 0;
  for (; i + kPositions <= t.positions; i += kPositions) each_positions<T, kPositions>(t, i);
  for (; i < t.positions; ++i) each_positions<T, 1>(t, i);
}

template <int... kM>
void fill_tiles(Tiles& t, std::integer_sequence<int, kM...>) {
  ((t.tile[kM + 1] = kM < kRows ? &tile<std::min(kM + 1, kRows), false> : nullptr), ...);
  ((t.tile_at[kM + 1] = kM < kRows ? &tile<std::min(kM + 1, kRows), true> : nullptr), ...);
}
template <int... kN>
void fill_lines(Tiles& t, std::integer_sequence<int, kN...>) {
  ((t.line[kN + 1] = &line<kN + 1>), ...);
}
template <class T, int... kM>
void fill_sweeps(Tiles& t, int storage, std::integer_sequence<int, kM...>) {
  ((t.sweep[kM + 1][storage] = &sweep<kM + 1, T>), ...);
}
template <class T, int... kM>
void fill_dots(Tiles& t, int storage, std::integer_sequence<int, kM...>) {
  ((t.dots[kM + 1][storage] = &dots<kM + 1, T>), ...);
}

template <class T>
void fill_storage(Tiles& t, Storage storage) {
  const int s = storage_index(storage);
  fill_sweeps<T>(t, s, std::make_integer_sequence<int, kMostSweeps>());
  fill_dots<T>(t, s, std::make_integer_sequence<int, kMostDots>());
  t.copy[s] = &copy<T>;
  t.pack[s] = &pack<T>;
  t.transpose[s] = &transpose<T>;
  t.each[s] = &each<T>;
}

}  // namespace

Tiles make() {
  Tiles t{};
  t.lanes = static_cast<int>(kLanes);
  t.rows = kRows;
  t.columns = kVectors * static_cast<int>(kLanes);
  fill_tiles(t, std::make_integer_sequence<int, kMostRows>());
  fill_lines(t, std::make_integer_sequence<int, kLineColumns>());
  fill_storage<float>(t, Storage::kF32);
  fill_storage<Brain>(t, Storage::kBF16);
  fill_storage<Half>(t, Storage::kF16);
  fill_storage<Byte>(t, Storage::kI8);
  return t;
}

}  // namespace tilevm::exec::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::gemm {

HWY_EXPORT(make);

const Tiles& tiles(bool narrow, bool with_units, int pieces) {
  static const Tiles best = HWY_DYNAMIC_DISPATCH(make)();
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX2)
  if (narrow && best.lanes > 8) {
    static const Tiles avx2 = N_AVX2::make();
    return avx2;
  }
#endif
  (void)narrow;
  (void)pieces;
  if (with_units && best.lanes == 16 && units() != nullptr) {
    static const std::array<Tiles, kMostPieces> more = [] {
      std::array<Tiles, kMostPieces> made;
      for (int i = 0; i < kMostPieces; ++i) {
        Tiles& tiles = made[static_cast<std::size_t>(i)] = best;
        tiles.units = exec::gemm::units(i + 1);
      }
      return made;
    }();
    return more[static_cast<std::size_t>(std::clamp(pieces, 1, kMostPieces) - 1)];
  }
  return best;
}

}  // namespace tilevm::exec::gemm
#endif
