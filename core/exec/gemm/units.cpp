#include "exec/gemm/units.h"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#ifdef __clang__
#pragma clang attribute push(                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#endif

namespace tilevm::exec::gemm {
namespace {

// What LDTILECFG reads: palette 1, and of each register the bytes of a row and the rows.
struct alignas(64) Shape {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr Shape kShape;

void begin() { asm volatile("ldtilecfg %0" ::"m"(kShape)); }
void end() { asm volatile("tilerelease"); }

// The compiler knows nothing of what these read: multiply() begins with a barrier.
#define TILEVM_LOAD(to, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #to ::"r"(from), "r"(std::int64_t{stride}))
#define TILEVM_STORE(from, to, stride) \
  asm volatile("tilestored %%tmm" #from ", (%0,%1,1)" ::"r"(to), "r"(std::int64_t{stride}) \
               : "memory")
#define TILEVM_ZERO(to) asm volatile("tilezero %%tmm" #to ::)
#define TILEVM_MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

// A mask of the first `left` lanes.
__mmask16 first_lanes(std::int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1U << left) - 1);
}

// 16 x 16: pairs, then quarters, of rows that are 1, 2, 4 and 8 apart.
void turn_square(__m512 (&x)[16]) {
  __m512 y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  const auto pairs = [](__m512 a, __m512 b, auto high) {
    const __m512d first = _mm512_castps_pd(a), second = _mm512_castps_pd(b);
    if constexpr (decltype(high)::value) return _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
    return _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = pairs(y[i], y[i + 2], std::false_type{});
    x[i + 1] = pairs(y[i], y[i + 2], std::true_type{});
    x[i + 2] = pairs(y[i + 1], y[i + 3], std::false_type{});
    x[i + 3] = pairs(y[i + 1], y[i + 3], std::true_type{});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xDD);
    y[i + 8] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0xDD);
    x[i + 4] = _mm512_shuffle_f32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_f32x4(y[i + 4], y[i + 12], 0xDD);
  }
}

constexpr int kParts = 8;  // of sums, as they are put

// Inlined by force: the sums that it is given are in registers.
[[gnu::always_inline]] inline void put_row(const UnitSums& t, int i, int j, __m512 sum) {
  const __mmask16 mask = i < t.rows ? first_lanes(t.columns - j) : 0;
  float* const to = t.c + i * t.c_stride + j;
  if (t.add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
  _mm512_mask_storeu_ps(to, mask, sum);
}

void put_part(const UnitSums& t, int part) {
  if (!t.turned) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const int i = part * 4 + r;
      put_row(t, i, 0, _mm512_loadu_ps(t.sums + i * kUnitColumns));
      put_row(t, i, 16, _mm512_loadu_ps(t.sums + i * kUnitColumns + 16));
    }
    return;
  }
  const int i = part / 4 * 16, j = part / 2 % 2 * 16;
  if (part % 2 != 0 || i >= t.rows || j >= t.columns) return;
  __m512 x[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) x[r] = _mm512_loadu_ps(t.sums + (j + r) * kUnitColumns + i);
  turn_square(x);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) put_row(t, i + r, j, x[r]);
}

void put(const UnitSums& t) {
  for (int part = 0; part < kParts; ++part) put_part(t, part);
}

// Steps that rows of A are fetched ahead if they come from memory. From the second cache, that
// takes longer than it saves.
constexpr std::int64_t kAhead = 8;

// What registers multiply that are no pieces of float32.
constexpr int kPairs = 0;

// Registers 0 to 3 are of C, 4 and 5 of A, 6 and 7 of B; kR of A and kC of B are used. kOf: pieces,
// or kPairs.
template <int kR, int kC, int kOf, bool kFar>
struct Products {
  static constexpr std::int64_t kStepB = std::max(kOf, 1) * 2 * kUnitElements;

  const UnitBlock& t;

  template <int kPiece>
  void load_a(std::int64_t step) const {
    const Brain* from = t.a + step * t.a_step + kPiece * kUnitElements;
    TILEVM_LOAD(4, from, t.a_stride * 2);
    if constexpr (kR == 2) TILEVM_LOAD(5, from + t.a_next, t.a_stride * 2);
    if constexpr (kFar) {
      const Brain* ahead = from + kAhead * t.a_step;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i, ahead += t.a_stride) {
        _mm_prefetch(ahead, _MM_HINT_T0);
        if constexpr (kR == 2) _mm_prefetch(ahead + t.a_next, _MM_HINT_T0);
      }
    }
  }
  template <int kPiece>
  void load_b(std::int64_t step) const {
    const Brain* from = t.b + step * kStepB + kPiece * 2 * kUnitElements;
    TILEVM_LOAD(6, from, 128);
    if constexpr (kC == 2) TILEVM_LOAD(7, from + kUnitDepth, 128);
  }
  static void multiply() {
    TILEVM_MULTIPLY(0, 4, 6);
    if constexpr (kC == 2) TILEVM_MULTIPLY(1, 4, 7);
    if constexpr (kR == 2) TILEVM_MULTIPLY(2, 5, 6);
    if constexpr (kR == 2 && kC == 2) TILEVM_MULTIPLY(3, 5, 7);
  }

  void run() const {
    const std::byte* from = t.ahead.from;
    const auto fetch = [&] {
      for (int i = 0; i < t.ahead.rows; ++i) {
        _mm_prefetch(from + i * t.ahead.row_bytes, _MM_HINT_T1);
        _mm_prefetch(from + i * t.ahead.row_bytes + 64, _MM_HINT_T1);
      }
      from += t.ahead.step_bytes;
    };
    if constexpr (kOf == kPairs) {
      for (std::int64_t s = 0; s < t.steps; ++s) {
        load_a<0>(s), load_b<0>(s), multiply();
        fetch();
      }
    } else {
      int part = t.before == nullptr ? kParts : 0;
      const auto put_some = [&] {
        if (part < kParts) put_part(*t.before, part++);
      };
      // What is small.
      for (std::int64_t s = 0; kOf > 1 && s < t.steps; ++s) {
        fetch();
        if constexpr (kOf == 2) {
          load_a<0>(s), load_b<1>(s), multiply();
          load_a<1>(s), load_b<0>(s), multiply();
        }
        if constexpr (kOf == 3) {
          load_a<0>(s), load_b<2>(s), multiply();
          load_b<1>(s), multiply();
          load_a<1>(s), multiply();
          load_b<0>(s), multiply();
          load_a<2>(s), multiply();
        }
        if (s > 0) put_some();
      }
      for (std::int64_t s = 0; s < t.steps; ++s) {
        if (kOf == 1) fetch();
        load_a<0>(s), load_b<0>(s), multiply();
        put_some();
      }
      while (part < kParts) put_some();
    }
  }
};

// c: of whole registers.
template <int kR, int kC, int kOf, bool kFar>
void whole(const UnitBlock& t, float* c, std::int64_t c_stride, bool add) {
  const std::int64_t bytes = c_stride * 4;
  float* const below = c + kUnitRows * c_stride;
  if (add) {
    TILEVM_LOAD(0, c, bytes);
    if constexpr (kC == 2) TILEVM_LOAD(1, c + 16, bytes);
    if constexpr (kR == 2) TILEVM_LOAD(2, below, bytes);
    if constexpr (kR == 2 && kC == 2) TILEVM_LOAD(3, below + 16, bytes);
  } else {
    TILEVM_ZERO(0);
    if constexpr (kC == 2) TILEVM_ZERO(1);
    if constexpr (kR == 2) TILEVM_ZERO(2);
    if constexpr (kR == 2 && kC == 2) TILEVM_ZERO(3);
  }
  Products<kR, kC, kOf, kFar>{t}.run();
  TILEVM_STORE(0, c, bytes);
  if constexpr (kC == 2) TILEVM_STORE(1, c + 16, bytes);
  if constexpr (kR == 2) TILEVM_STORE(2, below, bytes);
  if constexpr (kR == 2 && kC == 2) TILEVM_STORE(3, below + 16, bytes);
}

template <int kR, int kC, int kOf, bool kFar>
void multiply_of(const UnitBlock& t) {
  asm volatile("" ::: "memory");
  // Pieces are not added to what c holds one by one: small ones would be lost in it.
  if constexpr (kOf != kPairs) return whole<kR, kC, kOf, kFar>(t, t.c, t.c_stride, false);
  if (t.rows == kR * 16 && t.columns == kC * 16)
    return whole<kR, kC, kOf, kFar>(t, t.c, t.c_stride, t.add);
  alignas(64) float edge[32 * 32];
  whole<kR, kC, kOf, kFar>(t, edge, 32, false);
  for (int i = 0; i < t.rows; ++i) {
    for (int j = 0; j < kC; ++j) {
      const __mmask16 mask = first_lanes(t.columns - j * 16);
      float* to = t.c + i * t.c_stride + j * 16;
      __m512 sum = _mm512_load_ps(edge + i * 32 + j * 16);
      if (t.add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
  }
}

template <int kOf, bool kFar>
void multiply(const UnitBlock& t) {
  if (t.rows > 16) {
    t.columns > 16 ? multiply_of<2, 2, kOf, kFar>(t) : multiply_of<2, 1, kOf, kFar>(t);
  } else {
    t.columns > 16 ? multiply_of<1, 2, kOf, kFar>(t) : multiply_of<1, 1, kOf, kFar>(t);
  }
}

void arrange(const Brain* from, std::int64_t from_stride, std::int64_t rows, std::int64_t depth,
             Brain* to) {
  const std::int64_t whole = depth / kUnitDepth, left = depth % kUnitDepth;
  const std::int64_t steps = whole + (left > 0);
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    const Brain* row = from + i * from_stride;
    Brain* target = to + (i / kUnitRows * steps * kUnitRows + i % kUnitRows) * kUnitDepth;
    for (std::int64_t s = 0; s < whole; ++s)
      _mm512_storeu_si512(target + s * kUnitElements, _mm512_loadu_si512(row + s * kUnitDepth));
    if (left > 0)
      _mm512_storeu_si512(target + whole * kUnitElements,
                          _mm512_maskz_loadu_epi16(mask, row + whole * kUnitDepth));
  }
}

template <int kOf>
struct Pieces {
  // Written out: one that the compiler makes is not for this processor.
  Pieces() {}
  __m512i piece[kOf];  // pairs: an element of the first vector, and its of the second
};

// Halves are rounded away from zero.
template <int kOf>
Pieces<kOf> pieces_of(__m512 first, __m512 second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  Pieces<kOf> result;
#pragma GCC unroll 3
  for (int i = 0; i < kOf; ++i) {
    __m512i low = _mm512_castps_si512(first), high = _mm512_castps_si512(second);
    if (i + 1 < kMostPieces) {  // what is left of the third is one already
      low = _mm512_and_si512(_mm512_add_epi32(low, half), upper);
      high = _mm512_and_si512(_mm512_add_epi32(high, half), upper);
    }
    if (i + 1 < kOf) {
      first = _mm512_sub_ps(first, _mm512_castsi512_ps(low));
      second = _mm512_sub_ps(second, _mm512_castsi512_ps(high));
    }
    // low >> 16 | (high & upper)
    constexpr int kAndOr = 0xF8;
    result.piece[i] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, upper, kAndOr);
  }
  return result;
}

// Magnitudes are twice what bits say; zero is the most there is, less one.
struct Ranges {
  Ranges() : least(_mm512_set1_epi32(-1)), most(_mm512_setzero_si512()) {}

  __m512i least, most;
  unsigned zeros = 0;

  // Lanes behind the mask are zero, and no elements.
  void add(__m512 x, __mmask16 mask = 0xFFFF) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i twice = _mm512_add_epi32(bits, bits);
    most = _mm512_max_epu32(most, twice);
    least = _mm512_min_epu32(least, _mm512_sub_epi32(twice, _mm512_set1_epi32(1)));
    zeros |= _mm512_mask_testn_epi32_mask(mask, twice, twice);
  }
  Range all() const {
    const std::uint32_t smallest = _mm512_reduce_min_epu32(least);
    return {smallest == UINT32_MAX ? smallest : smallest / 2 + 1,
            _mm512_reduce_max_epu32(most) / 2, zeros != 0};
  }
};

// Rows whose elements are fetched ahead, since what is split comes from far: of those that are split
// one after the other, and of a panel's (the next step's).
constexpr int kRowsAhead = 4, kStepAhead = kUnitDepth;

// The mask of a step's elements, of which `left` are there.
__mmask32 of_step(std::int64_t left) {
  return static_cast<__mmask32>(left >= kUnitDepth ? UINT32_MAX : (std::uint32_t{1} << left) - 1);
}

void measure(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t depth,
             Range* ranges) {
  for (std::int64_t i = 0; i < rows; ++i) {
    Ranges range;
    for (std::int64_t p = 0; p < depth; p += 16) {
      const auto mask = static_cast<__mmask16>(of_step(depth - p));
      range.add(_mm512_maskz_loadu_ps(mask, from + i * from_stride + p), mask);
    }
    ranges[i].add(range.all());
  }
}

template <int kOf>
void split(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t depth,
           Brain* to, Range* ranges) {
  const std::int64_t steps = (depth + kUnitDepth - 1) / kUnitDepth;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* row = from + i * from_stride;
    Brain* target = to + (i / kUnitRows * steps * kOf * kUnitRows + i % kUnitRows) * kUnitDepth;
    Ranges range;
    for (std::int64_t s = 0; s < steps; ++s, target += kOf * kUnitElements) {
      const __mmask32 mask = of_step(depth - s * kUnitDepth);
      const auto mask_first = static_cast<__mmask16>(mask);
      const auto mask_second = static_cast<__mmask16>(mask >> 16);
      _mm_prefetch(row + kRowsAhead * from_stride + s * kUnitDepth, _MM_HINT_T0);
      _mm_prefetch(row + kRowsAhead * from_stride + s * kUnitDepth + 16, _MM_HINT_T0);
      const __m512 first = _mm512_maskz_loadu_ps(mask_first, row + s * kUnitDepth);
      const __m512 second = _mm512_maskz_loadu_ps(mask_second, row + s * kUnitDepth + 16);
      range.add(first, mask_first);
      range.add(second, mask_second);
      const Pieces<kOf> pieces = pieces_of<kOf>(first, second);
#pragma GCC unroll 3
      for (int q = 0; q < kOf; ++q)
        _mm512_storeu_si512(target + q * kUnitElements, pieces.piece[q]);
    }
    ranges[i].add(range.all());
  }
}

template <int kOf>
Range split_panel(const float* from, std::int64_t from_stride, Brain* to) {
  Ranges range;
  const float* below = from + kUnitDepth / 2 * from_stride;
  for (int p = 0; p < kUnitDepth / 2; ++p, from += from_stride, below += from_stride) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j, to += kUnitDepth) {
      _mm_prefetch(from + kStepAhead * from_stride + j * 16, _MM_HINT_T0);
      _mm_prefetch(below + kStepAhead * from_stride + j * 16, _MM_HINT_T0);
      const __m512 first = _mm512_loadu_ps(from + j * 16);
      const __m512 second = _mm512_loadu_ps(below + j * 16);
      range.add(first);
      range.add(second);
      const Pieces<kOf> pieces = pieces_of<kOf>(first, second);
#pragma GCC unroll 3
      for (int q = 0; q < kOf; ++q)
        _mm512_storeu_si512(to + q * 2 * kUnitElements, pieces.piece[q]);
    }
  }
  return range.all();
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

// Linux lets a process use these registers when it has asked.
bool there() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  asm volatile("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(0), "c"(0));
  if (eax < 7 || brain_tiles() == nullptr) return false;
  asm volatile("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(7), "c"(0));
  constexpr unsigned kBrain = 1U << 22, kTile = 1U << 24;
  if ((edx & kBrain) == 0 || (edx & kTile) == 0) return false;
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

template <int kOf>
constexpr Units kUnits{kOf,
                       &begin,
                       &end,
                       &multiply<kPairs, false>,
                       &multiply<kPairs, true>,
                       &multiply<kOf, false>,
                       &put,
                       &arrange,
                       &measure,
                       &split<kOf>,
                       &split_panel<kOf>};

}  // namespace

const Units* units(int pieces) {
  static const bool can = there();
  if (!can) return nullptr;
  return pieces == 1 ? &kUnits<1> : pieces == 2 ? &kUnits<2> : &kUnits<kMostPieces>;
}

}  // namespace tilevm::exec::gemm

#else

namespace tilevm::exec::gemm {
const Units* units(int) { return nullptr; }
}  // namespace tilevm::exec::gemm

#endif
