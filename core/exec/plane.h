// Copies between two axes and the same two in another order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilevm::exec {

// Two axes of an operand in memory; strides in bytes.
struct Plane {
  std::byte* base;
  std::int64_t y_stride, x_stride;
};

// rows x cols elements of `bytes` (1, 2, 4 or 8) each; planes do not overlap.
void copy_plane(const Plane& to, const Plane& from, std::int64_t rows, std::int64_t cols,
                int bytes) noexcept;

}  // namespace tilevm::exec
