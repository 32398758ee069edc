#include "exec/plane.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tilevm::exec {
namespace {

using std::int64_t;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Squares of this many elements: a line of one side is used up before the next is read, so that
// strides that are powers of two, whose lines fall on each other in the caches, do no harm.
constexpr int64_t kSquare = 16;
constexpr int64_t kLineBytes = 64;

std::byte* element(const Plane& p, int64_t y, int64_t x) {
  return p.base + y * p.y_stride + x * p.x_stride;
}

template <class T>
void copy_by_element(const Plane& to, const Plane& from, int64_t rows, int64_t cols) noexcept {
  if (std::max(std::abs(to.x_stride), std::abs(from.x_stride)) < kLineBytes) {
    for (int64_t y = 0; y < rows; ++y) {
      std::byte* target = element(to, y, 0);
      const std::byte* source = element(from, y, 0);
      for (int64_t x = 0; x < cols; ++x, target += to.x_stride, source += from.x_stride) {
        std::memcpy(target, source, sizeof(T));
      }
    }
    return;
  }
  for (int64_t x = 0; x < cols; ++x) {
    for (int64_t y = 0; y < rows; ++y) {
      std::memcpy(element(to, y, x), element(from, y, x), sizeof(T));
    }
  }
}

// Rows are in registers only where loops over them are gone.
#define TILEVM_UNROLL _Pragma("GCC unroll 16")

using Row4 = std::uint32_t __attribute__((vector_size(16)));
using Row8 = std::uint32_t __attribute__((vector_size(32)));
using Row16 = std::uint32_t __attribute__((vector_size(64)));

template <class T>
T load(const std::byte* from) {
  T v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class T>
void store(std::byte* to, const T& v) {
  std::memcpy(to, &v, sizeof(v));
}

// Elements that lie side by side in lines `from_step` apart, to lines `to_step` apart across them.
// What is asked of the processor is what every one of its architecture has: vectors of 16 bytes.
template <class T>
struct Sixteen {
  static constexpr int kBytes = sizeof(T);
  static constexpr int kSize = 16 / kBytes;
  using Row __attribute__((vector_size(16))) = T;

  static void transpose(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step) {
    Row r[kSize];
    TILEVM_UNROLL for (int i = 0; i < kSize; ++i) r[i] = load<Row>(from + i * from_step);
    // Line i and line i + n / 2 element by element, log2(n) times.
    TILEVM_UNROLL for (int done = 1; done < kSize; done *= 2) {
      Row next[kSize];
      TILEVM_UNROLL for (int i = 0; i < kSize / 2; ++i) {
        next[2 * i] = mixed<0>(r[i], r[i + kSize / 2], std::make_index_sequence<kSize>());
        next[2 * i + 1] =
            mixed<kSize / 2>(r[i], r[i + kSize / 2], std::make_index_sequence<kSize>());
      }
      TILEVM_UNROLL for (int i = 0; i < kSize; ++i) r[i] = next[i];
    }
    TILEVM_UNROLL for (int i = 0; i < kSize; ++i) store(to + i * to_step, r[i]);
  }

  // x[first], y[first], x[first + 1], ...
  template <int first, std::size_t... i>
  static Row mixed(Row x, Row y, std::index_sequence<i...>) {
    return __builtin_shufflevector(x, y, (first + static_cast<int>(i / 2 + i % 2 * at(kSize)))...);
  }
};

#if defined(__x86_64__)
#define TILEVM_AVX2 __attribute__((target("avx2")))
bool has_eight() { return __builtin_cpu_supports("avx2") != 0; }

// The same for 32 bits.
struct Eight {
  static constexpr int kBytes = 4;
  static constexpr int kSize = 8;
  TILEVM_AVX2 static void transpose(std::byte* to, int64_t to_step, const std::byte* from,
                                    int64_t from_step) {
    // Halves of lines i and i + 4 beside each other: then all is done within halves.
    Row8 r[8];
    TILEVM_UNROLL for (int i = 0; i < 4; ++i) {
      TILEVM_UNROLL for (int half = 0; half < 2; ++half) {
        const Row4 low = load<Row4>(from + i * from_step + 16 * half);
        const Row4 high = load<Row4>(from + (i + 4) * from_step + 16 * half);
        r[4 * half + i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
      }
    }
    TILEVM_UNROLL for (int half = 0; half < 2; ++half) {
      const Row8* const q = r + 4 * half;
      const Row8 low01 = __builtin_shufflevector(q[0], q[1], 0, 8, 1, 9, 4, 12, 5, 13);
      const Row8 high01 = __builtin_shufflevector(q[0], q[1], 2, 10, 3, 11, 6, 14, 7, 15);
      const Row8 low23 = __builtin_shufflevector(q[2], q[3], 0, 8, 1, 9, 4, 12, 5, 13);
      const Row8 high23 = __builtin_shufflevector(q[2], q[3], 2, 10, 3, 11, 6, 14, 7, 15);
      const Row8 rows[] = {__builtin_shufflevector(low01, low23, 0, 1, 8, 9, 4, 5, 12, 13),
                           __builtin_shufflevector(low01, low23, 2, 3, 10, 11, 6, 7, 14, 15),
                           __builtin_shufflevector(high01, high23, 0, 1, 8, 9, 4, 5, 12, 13),
                           __builtin_shufflevector(high01, high23, 2, 3, 10, 11, 6, 7, 14, 15)};
      TILEVM_UNROLL for (int i = 0; i < 4; ++i)
          std::memcpy(to + (4 * half + i) * to_step, &rows[i], sizeof(Row8));
    }
  }
};

// And with vectors that are whole lines, which can be stored past the caches.
#define TILEVM_AVX512 __attribute__((target("avx512f")))
bool has_sixteen() { return __builtin_cpu_supports("avx512f") != 0; }

template <bool streams>
struct Line {
  static constexpr int kBytes = 4;
  static constexpr int kSize = 16;

  TILEVM_AVX512 static void transpose(std::byte* to, int64_t to_step, const std::byte* from,
                                      int64_t from_step) {
    // Eight columns at a time. Quarters of a vector: those of line i, then those of line i + 4.
    TILEVM_UNROLL for (int half = 0; half < 2; ++half) {
      Row16 column[2][4];  // of the upper lines, of the lower ones: column c, and column c + 4
      TILEVM_UNROLL for (int part = 0; part < 2; ++part) {
        Row16 q[4];
        TILEVM_UNROLL for (int i = 0; i < 4; ++i) {
          const auto* line = from + (8 * part + i) * from_step + 32 * half;
          Row8 one, other;
          std::memcpy(&one, line, sizeof(one));
          std::memcpy(&other, line + 4 * from_step, sizeof(other));
          q[i] = __builtin_shufflevector(one, other, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                         14, 15);
        }
        const Row16 low01 = low(q[0], q[1]), high01 = high(q[0], q[1]);
        const Row16 low23 = low(q[2], q[3]), high23 = high(q[2], q[3]);
        column[part][0] = low_pairs(low01, low23);
        column[part][1] = high_pairs(low01, low23);
        column[part][2] = low_pairs(high01, high23);
        column[part][3] = high_pairs(high01, high23);
      }
      TILEVM_UNROLL for (int i = 0; i < 4; ++i) {
        const Row16 upper = column[0][i], lower = column[1][i];
        auto* const line = to + (8 * half + i) * to_step;
        put(line, __builtin_shufflevector(upper, lower, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19,
                                          24, 25, 26, 27));
        put(line + 4 * to_step,
            __builtin_shufflevector(upper, lower, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28,
                                    29, 30, 31));
      }
    }
  }

 private:
  TILEVM_AVX512 static void put(std::byte* to, const Row16& x) {
    if constexpr (streams) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<const __m512i&>(x));
    } else {
      std::memcpy(to, &x, sizeof(x));
    }
  }
  // x[0], y[0], x[1], y[1] of each quarter, and the other two; the same of pairs.
  TILEVM_AVX512 static Row16 low(const Row16& x, const Row16& y) {
    return __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  }
  TILEVM_AVX512 static Row16 high(const Row16& x, const Row16& y) {
    return __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                   31);
  }
  TILEVM_AVX512 static Row16 low_pairs(const Row16& x, const Row16& y) {
    return __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  }
  TILEVM_AVX512 static Row16 high_pairs(const Row16& x, const Row16& y) {
    return __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                   31);
  }
};
#endif

// A line the other way round, `bytes` of it at once.
template <class T, std::size_t bytes>
[[gnu::always_inline]] inline void reverse_line(std::byte* to, const std::byte* from,
                                                int64_t count) {
  using Row __attribute__((vector_size(bytes))) = T;
  constexpr int64_t kBytes = sizeof(T), n = sizeof(Row) / kBytes;
  const auto turn = []<std::size_t... i>(Row& x, std::index_sequence<i...>) {
    x = __builtin_shufflevector(x, x, static_cast<int>(sizeof...(i) - 1 - i)...);
  };
  int64_t i = 0;
  for (; i + n <= count; i += n) {
    Row row;
    std::memcpy(&row, from + (count - n - i) * kBytes, sizeof(row));
    turn(row, std::make_index_sequence<at(n)>());
    std::memcpy(to + i * kBytes, &row, sizeof(row));
  }
  for (; i < count; ++i) std::memcpy(to + i * kBytes, from + (count - 1 - i) * kBytes, sizeof(T));
}

template <class T>
void reverse16(std::byte* to, const std::byte* from, int64_t count) {
  reverse_line<T, 16>(to, from, count);
}

#if defined(__x86_64__)
template <class T>
TILEVM_AVX2 void reverse32(std::byte* to, const std::byte* from, int64_t count) {
  reverse_line<T, 32>(to, from, count);
}
#endif

// Lines of `from` to lines of `to`, which run against each other.
template <class T>
void reverse(const Plane& to, const Plane& from, int64_t rows, int64_t cols) {
  auto* line = reverse16<T>;
#if defined(__x86_64__)
  if (has_eight()) line = reverse32<T>;
#endif
  // Each from where it begins in memory.
  std::byte* target = to.x_stride < 0 ? element(to, 0, cols - 1) : to.base;
  const std::byte* source = from.x_stride < 0 ? element(from, 0, cols - 1) : from.base;
  for (int64_t y = 0; y < rows; ++y, target += to.y_stride, source += from.y_stride) {
    line(target, source, cols);
  }
}

// A square; `down`: lines of `from` are used up one after the other, else those of `to`. `later` is
// a square that is soon needed, or null: its lines are more than the processor follows by itself.
template <class Block>
void transpose_square(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step,
                      bool down, const std::byte* later) {
  constexpr int64_t n = Block::kSize;
  if (later != nullptr) {
    for (int64_t i = 0; i < kSquare; ++i) {
      for (int64_t byte = 0; byte < kSquare * Block::kBytes; byte += kLineBytes) {
        __builtin_prefetch(later + i * from_step + byte);
      }
    }
  }
  for (int64_t i = 0; i < kSquare; i += n) {
    for (int64_t j = 0; j < kSquare; j += n) {
      const int64_t line = down ? i : j, within = down ? j : i;
      Block::transpose(to + within * to_step + Block::kBytes * line, to_step,
                       from + line * from_step + Block::kBytes * within, from_step);
    }
  }
}

void transpose4(Row4 (&r)[4]) {
  const Row4 low01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const Row4 high01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Row4 low23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Row4 high23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// Every second element of a line. What lies between is read, but not behind the last one.
void every_second(std::byte* to, const std::byte* from, int64_t count) {
  int64_t i = 0;
  for (; i + 4 < count; i += 4) {
    const Row4 low = load<Row4>(from + 8 * i), high = load<Row4>(from + 8 * i + 16);
    const Row4 found = __builtin_shufflevector(low, high, 0, 2, 4, 6);
    std::memcpy(to + 4 * i, &found, sizeof(found));
  }
  for (; i < count; ++i) std::memcpy(to + 4 * i, from + 8 * i, 4);
}

// The other way. What lies between is not touched: another thread may be writing it.
void to_every_second(std::byte* to, const std::byte* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + 8 * i, from + 4 * i, 4);
}

// A line of pairs to a line of first and one of second elements, from the `i`-th pair on; and back.
// With the widest vectors that there are: a load that spans several stores waits for all of them.
void split_rest(std::byte* first, std::byte* second, const std::byte* pairs, int64_t i,
                int64_t count) {
  for (; i + 4 <= count; i += 4) {
    const Row4 low = load<Row4>(pairs + 8 * i), high = load<Row4>(pairs + 8 * i + 16);
    store(first + 4 * i, __builtin_shufflevector(low, high, 0, 2, 4, 6));
    store(second + 4 * i, __builtin_shufflevector(low, high, 1, 3, 5, 7));
  }
  for (; i < count; ++i) {
    std::memcpy(first + 4 * i, pairs + 8 * i, 4);
    std::memcpy(second + 4 * i, pairs + 8 * i + 4, 4);
  }
}

void join_rest(std::byte* pairs, const std::byte* first, const std::byte* second, int64_t i,
               int64_t count) {
  for (; i + 4 <= count; i += 4) {
    const Row4 even = load<Row4>(first + 4 * i), odd = load<Row4>(second + 4 * i);
    store(pairs + 8 * i, __builtin_shufflevector(even, odd, 0, 4, 1, 5));
    store(pairs + 8 * i + 16, __builtin_shufflevector(even, odd, 2, 6, 3, 7));
  }
  for (; i < count; ++i) {
    std::memcpy(pairs + 8 * i, first + 4 * i, 4);
    std::memcpy(pairs + 8 * i + 4, second + 4 * i, 4);
  }
}

struct Lines {
  static void split(std::byte* first, std::byte* second, const std::byte* pairs, int64_t count) {
    split_rest(first, second, pairs, 0, count);
  }
  static void join(std::byte* pairs, const std::byte* first, const std::byte* second,
                   int64_t count) {
    join_rest(pairs, first, second, 0, count);
  }
};

#if defined(__x86_64__)
struct Lines8 {
  TILEVM_AVX2 static void split(std::byte* first, std::byte* second, const std::byte* pairs,
                                int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      Row8 low, high;
      std::memcpy(&low, pairs + 8 * i, sizeof(low));
      std::memcpy(&high, pairs + 8 * i + 32, sizeof(high));
      const Row8 even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
      const Row8 odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
      std::memcpy(first + 4 * i, &even, sizeof(even));
      std::memcpy(second + 4 * i, &odd, sizeof(odd));
    }
    split_rest(first, second, pairs, i, count);
  }
  TILEVM_AVX2 static void join(std::byte* pairs, const std::byte* first, const std::byte* second,
                               int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      Row8 even, odd;
      std::memcpy(&even, first + 4 * i, sizeof(even));
      std::memcpy(&odd, second + 4 * i, sizeof(odd));
      const Row8 low = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
      const Row8 high = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
      std::memcpy(pairs + 8 * i, &low, sizeof(low));
      std::memcpy(pairs + 8 * i + 32, &high, sizeof(high));
    }
    join_rest(pairs, first, second, i, count);
  }
};

struct Lines16 {
  TILEVM_AVX512 static void split(std::byte* first, std::byte* second, const std::byte* pairs,
                                  int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      Row16 low, high;
      std::memcpy(&low, pairs + 8 * i, sizeof(low));
      std::memcpy(&high, pairs + 8 * i + 64, sizeof(high));
      const Row16 even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                                 22, 24, 26, 28, 30);
      const Row16 odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21,
                                                23, 25, 27, 29, 31);
      std::memcpy(first + 4 * i, &even, sizeof(even));
      std::memcpy(second + 4 * i, &odd, sizeof(odd));
    }
    split_rest(first, second, pairs, i, count);
  }
  TILEVM_AVX512 static void join(std::byte* pairs, const std::byte* first, const std::byte* second,
                                 int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      Row16 even, odd;
      std::memcpy(&even, first + 4 * i, sizeof(even));
      std::memcpy(&odd, second + 4 * i, sizeof(odd));
      const Row16 low = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                                6, 22, 7, 23);
      const Row16 high = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                 13, 29, 14, 30, 15, 31);
      std::memcpy(pairs + 8 * i, &low, sizeof(low));
      std::memcpy(pairs + 8 * i + 64, &high, sizeof(high));
    }
    join_rest(pairs, first, second, i, count);
  }
};
#endif

// Calls work(lines) with the widest that this processor has.
template <class Work>
void with_lines(Work work) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return work(Lines16());
  if (has_eight()) return work(Lines8());
#endif
  work(Lines());
}

// A few planes whose elements take turns in lines, as the colours of an image do.
template <class T, int kPlanes>
void take_turns(std::byte* to, const Plane& planes, int64_t count) {
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    // Four of each: what a vector has behind its place is written again by the next one.
    for (; i + 4 < count; i += 4) {
      Row4 r[4] = {};
      TILEVM_UNROLL for (int p = 0; p < kPlanes; ++p) r[p] = load<Row4>(element(planes, p, i));
      transpose4(r);
      TILEVM_UNROLL for (int q = 0; q < 4; ++q) store(to + (i + q) * kPlanes * 4, r[q]);
    }
  }
  for (; i < count; ++i) {
    for (int p = 0; p < kPlanes; ++p)
      std::memcpy(to + (i * kPlanes + p) * static_cast<int64_t>(sizeof(T)), element(planes, p, i),
                  sizeof(T));
  }
}
template <class T, int kPlanes>
void part_turns(const Plane& planes, const std::byte* from, int64_t count) {
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    for (; i + 4 < count; i += 4) {
      Row4 r[4];
      TILEVM_UNROLL for (int q = 0; q < 4; ++q) r[q] = load<Row4>(from + (i + q) * kPlanes * 4);
      transpose4(r);
      TILEVM_UNROLL for (int p = 0; p < kPlanes; ++p) store(element(planes, p, i), r[p]);
    }
  }
  for (; i < count; ++i) {
    for (int p = 0; p < kPlanes; ++p)
      std::memcpy(element(planes, p, i), from + (i * kPlanes + p) * static_cast<int64_t>(sizeof(T)),
                  sizeof(T));
  }
}

// Whether that was so: rows of one side are planes, of the other elements side by side.
template <class T>
bool turns(const Plane& to, const Plane& from, int64_t rows, int64_t cols) {
  constexpr int64_t kBytes = sizeof(T);
  if (rows < 2 || rows > 4) return false;
  const bool in = from.y_stride == kBytes && from.x_stride == rows * kBytes;
  const bool out = to.y_stride == kBytes && to.x_stride == rows * kBytes;
  if (in ? to.x_stride != kBytes : !out || from.x_stride != kBytes) return false;
  const auto copy = [&]<int kPlanes>(std::integral_constant<int, kPlanes>) {
    in ? part_turns<T, kPlanes>(to, from.base, cols) : take_turns<T, kPlanes>(to.base, from, cols);
  };
  if (rows == 2) copy(std::integral_constant<int, 2>());
  if (rows == 3) copy(std::integral_constant<int, 3>());
  if (rows == 4) copy(std::integral_constant<int, 4>());
  return true;
}

// The same rows from the last one on, and the same columns.
Plane up(const Plane& p, int64_t rows) {
  return {element(p, rows - 1, 0), -p.y_stride, p.x_stride};
}
Plane leftwards(const Plane& p, int64_t cols) {
  return {element(p, 0, cols - 1), p.y_stride, -p.x_stride};
}

template <class T>
void copy(Plane to, Plane from, int64_t rows, int64_t cols, bool streams) noexcept {
  constexpr int64_t kBytes = sizeof(T);
  if (rows == 0 || cols == 0) return;
  if (rows == 1) to.y_stride = from.y_stride = 0;
  if (cols == 1) to.x_stride = from.x_stride = 0;
  // What lies side by side is to run forwards, for squares below.
  if (to.y_stride == -kBytes || (from.y_stride == -kBytes && std::abs(to.x_stride) == kBytes)) {
    to = up(to, rows);
    from = up(from, rows);
  }
  if (std::abs(to.x_stride) == kBytes && from.x_stride == -to.x_stride) {
    return reverse<T>(to, from, rows, cols);
  }
  if (to.x_stride == -kBytes || (from.x_stride == -kBytes && std::abs(to.y_stride) == kBytes)) {
    to = leftwards(to, cols);
    from = leftwards(from, cols);
  }
  if (turns<T>(to, from, rows, cols)) return;
  if (kBytes == 4 && to.x_stride == 4 && from.x_stride == 8) {
    for (int64_t y = 0; y < rows; ++y) every_second(element(to, y, 0), element(from, y, 0), cols);
    return;
  }
  if (kBytes == 4 && to.x_stride == 8 && from.x_stride == 4) {
    for (int64_t y = 0; y < rows; ++y)
      to_every_second(element(to, y, 0), element(from, y, 0), cols);
    return;
  }
  const bool in = to.x_stride == kBytes && from.y_stride == kBytes;
  const bool out = to.y_stride == kBytes && from.x_stride == kBytes;
  auto* transpose = transpose_square<Sixteen<T>>;
  auto* transpose_lines = transpose;  // where those of `to` begin at lines of the caches
  const int64_t to_step = in ? to.y_stride : to.x_stride;
#if defined(__x86_64__)
  if (kBytes == 4 && has_sixteen()) {
    transpose = transpose_lines = transpose_square<Line<false>>;
    if (streams && to_step % kLineBytes == 0) transpose_lines = transpose_square<Line<true>>;
  } else if (kBytes == 4 && has_eight()) {
    transpose = transpose_lines = transpose_square<Eight>;
  }
#else
  static_cast<void>(streams);
#endif
  const bool squares = (in || out) && rows >= kSquare && cols >= kSquare;
  const int64_t from_step = in ? from.x_stride : from.y_stride;
  for (int64_t i = 0; i < cols; i += kSquare) {
    // The last square may lie over the one before it.
    const int64_t x = squares ? std::min(i, cols - kSquare) : i;
    for (int64_t j = 0; j < rows; j += kSquare) {
      if (!squares) {
        copy_by_element<T>({element(to, j, x), to.y_stride, to.x_stride},
                           {element(from, j, x), from.y_stride, from.x_stride},
                           std::min(kSquare, rows - j), std::min(kSquare, cols - x));
        continue;
      }
      const int64_t y = std::min(j, rows - kSquare);
      const std::byte* later = nullptr;
      if (in && j + 2 * kSquare < rows) {
        later = element(from, j + 2 * kSquare, x);
      } else if (in && i + 2 * kSquare <= cols) {
        later = element(from, j + kSquare < rows ? 0 : kSquare, i + kSquare);
      }
      std::byte* const target = element(to, y, x);
      const bool line = reinterpret_cast<std::uintptr_t>(target) % kLineBytes == 0;
      (line ? transpose_lines : transpose)(target, to_step, element(from, y, x), from_step, in,
                                           later);
    }
  }
}

}  // namespace

void copy_plane(const Plane& to, const Plane& from, int64_t rows, int64_t cols, int bytes,
                bool streams) noexcept {
  switch (bytes) {
    case 1:
      return copy<std::uint8_t>(to, from, rows, cols, streams);
    case 2:
      return copy<std::uint16_t>(to, from, rows, cols, streams);
    case 4:
      return copy<std::uint32_t>(to, from, rows, cols, streams);
    default:
      return copy<std::uint64_t>(to, from, rows, cols, streams);
  }
}

void end_streams() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void split_pairs(const Plane& first, const Plane& second, const Plane& pairs, int64_t rows,
                 int64_t cols) noexcept {
  with_lines([&](auto lines) {
    for (int64_t y = 0; y < rows; ++y)
      lines.split(element(first, y, 0), element(second, y, 0), element(pairs, y, 0), cols);
  });
}

void join_pairs(const Plane& pairs, const Plane& first, const Plane& second, int64_t rows,
                int64_t cols) noexcept {
  with_lines([&](auto lines) {
    for (int64_t y = 0; y < rows; ++y)
      lines.join(element(pairs, y, 0), element(first, y, 0), element(second, y, 0), cols);
  });
}

}  // namespace tilevm::exec
