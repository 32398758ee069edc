// Elements of factors where they lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// Rows of a packed panel of float32 that tiles take at a time. Sums over more are sums of such sums,
// which loses less.
inline constexpr std::int64_t kDepth = 192;

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
inline std::size_t index(Storage storage) { return at(storage_index(storage)); }

// Not of windows.
inline const std::byte* element(const Matrix& x, std::int64_t row, std::int64_t column) {
  std::int64_t offset = column * x.column_stride;
  if (x.count_taps() > 1) {
    offset += row % x.channels * x.row_stride;
    std::int64_t tap = row / x.channels;
    for (std::size_t axis = kImageAxes; axis-- > 0; tap /= x.taps[axis])
      offset += tap % x.taps[axis] * x.tap_stride[axis];
  } else {
    offset += row * x.row_stride;
  }
  return x.data + offset * bytecode::storage_bytes(x.storage);
}

inline float read(const std::byte* from, const Tiles& tiles, Storage storage) {
  float value;
  tiles.copy[index(storage)](from, 0, &value, 0, 1, 1);
  return value;
}

// to (float32, rows x columns) = the block of x that begins at (row, column). Neither windows nor
// taps.
void take(const Tiles& tiles, const Matrix& x, std::int64_t row, std::int64_t column,
          std::int64_t rows, std::int64_t columns, float* to, std::int64_t to_stride);

inline std::int64_t parts(std::int64_t x, std::int64_t most) { return (x + most - 1) / most; }
inline std::int64_t rounded_up(std::int64_t x, std::int64_t to) { return parts(x, to) * to; }

// Of `count` rows in blocks of at most `most`, those of a block: all alike, up to one.
inline std::int64_t even(std::int64_t count, std::int64_t most) {
  return parts(count, std::max<std::int64_t>(parts(count, most), 1));
}

}  // namespace tilevm::exec::gemm
