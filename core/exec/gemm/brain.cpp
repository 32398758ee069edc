#include "exec/gemm/brain.h"

#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif

namespace tilevm::exec::gemm {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 2;
constexpr int kWidth = kVectors * kLanes;

__m512bh pairs_at(const Brain* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}
__m512bh pair_at(const Brain* from) {
  int pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}
// The first n < 32 elements, then zeros.
__m512bh some_at(const Brain* from, std::int64_t n) {
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << n) - 1);
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, from));
}

template <int kM>
void tile(const BrainBlock& t) {
  __m512 acc[kM][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  constexpr int kBases = (kM + 2) / 3;
  const Brain* a[kBases];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) a[i] = t.a + 3 * i * t.a_stride;
  const Brain* b = t.b;
  const std::int64_t stride = t.a_stride;
#pragma GCC unroll 1
  for (std::int64_t p = 0; p < t.k; p += 2) {
    __m512bh row[kVectors];
    if constexpr (kM > 2) {  // see tile_of() of tiles.cpp
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) _mm_prefetch(b + t.ahead + j * 2 * kLanes, _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = pairs_at(b + j * 2 * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
      const __m512bh x = pair_at(a[i / 3] + (i % 3) * stride + p);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], x, row[j]);
    }
    b += 2 * kWidth;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const std::int64_t left = t.n - j * kLanes;
      if (left <= 0) continue;
      const auto mask = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
      float* c = t.c + i * t.c_stride + j * kLanes;
      __m512 sum = acc[i][j];
      if (t.add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, c));
      _mm512_mask_storeu_ps(c, mask, sum);
    }
  }
}

// The sums of the lanes of four vectors.
__m128 sums_of(__m512 a, __m512 b, __m512 c, __m512 e) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 ce = _mm512_add_ps(_mm512_unpacklo_ps(c, e), _mm512_unpackhi_ps(c, e));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(ce));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(ce));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

template <int kM>
void dot_columns(const BrainBlock& t, std::int64_t j, int columns, std::int64_t apart) {
  static_assert(kDotColumns == 4);
  __m512 acc[kM][kDotColumns];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) acc[i][q] = _mm512_setzero_ps();
  }
  const Brain* b[kDotColumns];
  for (int q = 0; q < kDotColumns; ++q)
    b[q] = t.b + (j + (q < columns ? q : columns - 1) * apart) * t.b_stride;
  const std::int64_t stride = t.a_stride;
  const Brain* const lower = t.a;
  const Brain* const upper = t.a + 3 * stride;
  std::int64_t p = 0;
#pragma GCC unroll 1
  for (; p + 2 * kLanes <= t.k; p += 2 * kLanes) {
    __m512bh x[kM];
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) x[i] = pairs_at((i < 3 ? lower : upper) + (i % 3) * stride + p);
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) {
      const __m512bh row = pairs_at(b[q] + p);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) acc[i][q] = _mm512_dpbf16_ps(acc[i][q], x[i], row);
    }
  }
  if (const std::int64_t left = t.k - p; left > 0) {
    __m512bh x[kM];
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) x[i] = some_at(t.a + i * stride + p, left);
#pragma GCC unroll 8
    for (int q = 0; q < kDotColumns; ++q) {
      const __m512bh row = some_at(b[q] + p, left);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) acc[i][q] = _mm512_dpbf16_ps(acc[i][q], x[i], row);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
    float* c = t.c + i * t.c_stride + j;
    float sums[kDotColumns];
    _mm_storeu_ps(sums, sums_of(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
    for (int q = 0; q < columns; ++q) c[q * apart] = t.add ? c[q * apart] + sums[q] : sums[q];
  }
}

template <int kM>
void dots(const BrainBlock& t) {
  if (t.apart > 0) {
    for (std::int64_t j = 0; j < t.n / kDotColumns; ++j)
      dot_columns<kM>(t, j, kDotColumns, t.apart);
    return;
  }
  std::int64_t j = 0;
  for (; j + kDotColumns <= t.n; j += kDotColumns) dot_columns<kM>(t, j, kDotColumns, 1);
  if (j < t.n) dot_columns<kM>(t, j, static_cast<int>(t.n - j), 1);
}

// Two rows at a time, whatever panel: pages of B are visited once.
void pack(const Brain* from, std::int64_t from_stride, Brain* to, std::int64_t panel_stride,
          std::int64_t pairs, std::int64_t columns) {
  constexpr int kAhead = 4;  // pairs
  alignas(64) Brain low[32], high[32];
  for (int i = 0; i < 16; ++i) {
    low[2 * i] = static_cast<Brain>(i);
    low[2 * i + 1] = static_cast<Brain>(32 + i);
    high[2 * i] = static_cast<Brain>(16 + i);
    high[2 * i + 1] = static_cast<Brain>(48 + i);
  }
  const __m512i lows = _mm512_load_si512(low), highs = _mm512_load_si512(high);
  for (std::int64_t p = 0; p < pairs; ++p) {
    const Brain* row = from + 2 * p * from_stride;
    const Brain* ahead = row + 2 * kAhead * from_stride;
    Brain* target = to + p * 2 * kWidth;
    for (std::int64_t j = 0; j < columns; j += kWidth, target += panel_stride) {
      const std::int64_t left = columns - j;
      const auto mask =
          static_cast<__mmask32>(left >= kWidth ? ~0U : (std::uint64_t{1} << left) - 1);
      _mm_prefetch(ahead + j, _MM_HINT_T0);
      _mm_prefetch(ahead + from_stride + j, _MM_HINT_T0);
      const __m512i first = _mm512_maskz_loadu_epi16(mask, row + j);
      const __m512i second = _mm512_maskz_loadu_epi16(mask, row + from_stride + j);
      _mm512_storeu_si512(target, _mm512_permutex2var_epi16(first, lows, second));
      _mm512_storeu_si512(target + kWidth, _mm512_permutex2var_epi16(first, highs, second));
    }
  }
}

}  // namespace
}  // namespace tilevm::exec::gemm

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace tilevm::exec::gemm {
namespace {

// Any processor runs these: they stand behind the functions that only some have.
template <int... kM>
void fill_tiles(BrainTiles& t, std::integer_sequence<int, kM...>) {
  ((t.tile[kM + 1] = &tile<kM + 1>), ...);
}
template <int... kM>
void fill_dots(BrainTiles& t, std::integer_sequence<int, kM...>) {
  ((t.dots[kM + 1] = &dots<kM + 1>), ...);
}

}  // namespace

const BrainTiles* brain_tiles() {
  static const BrainTiles tiles = [] {
    BrainTiles t{};
    fill_tiles(t, std::make_integer_sequence<int, kMostRows>());
    fill_dots(t, std::make_integer_sequence<int, kMostDots>());
    t.pack = &pack;
    return t;
  }();
  static const bool there = __builtin_cpu_supports("avx512bf16") != 0 &&
                            __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512dq") != 0;
  return there ? &tiles : nullptr;
}

}  // namespace tilevm::exec::gemm

#else

namespace tilevm::exec::gemm {
const BrainTiles* brain_tiles() { return nullptr; }
}  // namespace tilevm::exec::gemm

#endif
