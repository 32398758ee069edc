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

// rows x cols elements of `bytes` (1, 2, 4 or 8) each; planes do not overlap. `streams`: whole
// lines are written past the caches where they can be; end_streams() before others read them.
void copy_plane(const Plane& to, const Plane& from, std::int64_t rows, std::int64_t cols, int bytes,
                bool streams = false) noexcept;
void end_streams() noexcept;

// Elements of 32 bits of which two lie side by side, as parts of complex numbers do: `pairs` is
// where the first ones are, every second element of its lines. The others take a plane each,
// whose columns lie side by side.
void split_pairs(const Plane& first, const Plane& second, const Plane& pairs, std::int64_t rows,
                 std::int64_t cols) noexcept;
void join_pairs(const Plane& pairs, const Plane& first, const Plane& second, std::int64_t rows,
                std::int64_t cols) noexcept;

}  // namespace tilevm::exec
