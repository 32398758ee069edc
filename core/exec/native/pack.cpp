#include "exec/native/pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tilevm::exec::native {
namespace {

using std::int64_t;

// Both ways in squares: what one pass over a square reads and writes stays in L1.
constexpr int64_t kSquare = 16;

template <class T>
void copy(const Plane& to, const Plane& from, int64_t rows, int64_t cols) noexcept {
  const auto element = [](const Plane& p, int64_t y, int64_t x) {
    return p.base + y * p.y_stride + x * p.x_stride;
  };
  for (int64_t y0 = 0; y0 < rows; y0 += kSquare) {
    const int64_t y1 = std::min(rows, y0 + kSquare);
    for (int64_t x0 = 0; x0 < cols; x0 += kSquare) {
      const int64_t x1 = std::min(cols, x0 + kSquare);
      for (int64_t x = x0; x < x1; ++x) {
        for (int64_t y = y0; y < y1; ++y) {
          std::memcpy(element(to, y, x), element(from, y, x), sizeof(T));
        }
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
