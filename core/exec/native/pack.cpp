#include "exec/native/pack.h"

#include <algorithm>
#include <cstring>

namespace tilevm::exec::native {
namespace {

using std::int64_t;

// Squares of this many elements: a line of one side is used up before the next is read, so that
// strides that are powers of two, whose lines fall on each other in the caches, do no harm.
constexpr int64_t kSquare = 16;

std::byte* element(const Plane& p, int64_t y, int64_t x) {
  return p.base + y * p.y_stride + x * p.x_stride;
}

template <class T>
void copy_by_element(const Plane& to, const Plane& from, int64_t rows, int64_t cols) noexcept {
  for (int64_t x = 0; x < cols; ++x) {
    for (int64_t y = 0; y < rows; ++y) {
      std::memcpy(element(to, y, x), element(from, y, x), sizeof(T));
    }
  }
}

// 128 bits are what every processor of an architecture has.
using Four = std::uint32_t __attribute__((vector_size(16)));

Four load_four(const std::byte* from) {
  Four v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

// Four by four elements of 32 bits that lie side by side along y in `from`, along x in `to`.
void transpose_four(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step) {
  const Four a = load_four(from);
  const Four b = load_four(from + from_step);
  const Four c = load_four(from + 2 * from_step);
  const Four d = load_four(from + 3 * from_step);
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four rows[] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                       __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                       __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                       __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_step, &rows[i], sizeof(Four));
}

template <class T>
void copy(const Plane& to, const Plane& from, int64_t rows, int64_t cols) noexcept {
  constexpr int64_t kBytes = sizeof(T);
  const bool in = to.x_stride == kBytes && from.y_stride == kBytes;
  const bool out = to.y_stride == kBytes && from.x_stride == kBytes;
  for (int64_t y = 0; y < rows; y += kSquare) {
    const int64_t ny = std::min(kSquare, rows - y);
    for (int64_t x = 0; x < cols; x += kSquare) {
      const int64_t nx = std::min(kSquare, cols - x);
      const Plane from_here{element(from, y, x), from.y_stride, from.x_stride};
      const Plane to_here{element(to, y, x), to.y_stride, to.x_stride};
      if (kBytes == 4 && (in || out) && ny == kSquare && nx == kSquare) {
        const int64_t to_step = in ? to.y_stride : to.x_stride;
        const int64_t from_step = in ? from.x_stride : from.y_stride;
        for (int64_t i = 0; i < kSquare; i += 4) {
          for (int64_t j = 0; j < kSquare; j += 4) {
            transpose_four(to_here.base + i * to_step + j * kBytes, to_step,
                           from_here.base + j * from_step + i * kBytes, from_step);
          }
        }
      } else {
        copy_by_element<T>(to_here, from_here, ny, nx);
      }
    }
  }
}

}  // namespace

void copy_plane(const Plane& to, const Plane& from, int64_t rows, int64_t cols,
                int bytes) noexcept {
  switch (bytes) {
    case 1:
      return copy<std::uint8_t>(to, from, rows, cols);
    case 2:
      return copy<std::uint16_t>(to, from, rows, cols);
    case 4:
      return copy<std::uint32_t>(to, from, rows, cols);
    default:
      return copy<std::uint64_t>(to, from, rows, cols);
  }
}

}  // namespace tilevm::exec::native
