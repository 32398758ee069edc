#include "exec/gemm/multiply.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/gemm/arranged.h"
#include "exec/gemm/brain.h"
#include "exec/gemm/convolve.h"
#include "exec/gemm/factors.h"
#include "exec/gemm/library.h"
#include "exec/gemm/lines.h"
#include "exec/gemm/pieces.h"
#include "exec/gemm/units.h"

namespace tilevm::exec::gemm {

void take(const Tiles& tiles, const Matrix& x, std::int64_t row, std::int64_t column,
          std::int64_t rows, std::int64_t columns, float* to, std::int64_t to_stride) {
  const std::byte* from = element(x, row, column);
  if (x.column_stride == 1 || columns == 1) {
    tiles.copy[index(x.storage)](from, x.row_stride, to, to_stride, rows, columns);
  } else if (x.row_stride == 1 || rows == 1) {
    tiles.transpose[index(x.storage)](from, x.column_stride, to, to_stride, rows, columns);
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j)
        to[i * to_stride + j] = read(element(x, row + i, column + j), tiles, x.storage);
    }
  }
}

namespace {

// A panel of B is kDepth x 2 vectors, in the first cache; a block of A is kBlockRows x kDepth, in
// the second.
constexpr std::int64_t kPairDepth = 512;  // of bfloat16: as many bytes
constexpr std::int64_t kBlockRows = 240;
// Columns of B that dots take at a time stay in the first cache for all rows of A.
constexpr std::int64_t kDotBytes = 16 << 10;
// Rows of B that sweeps take at a time stay in the second.
constexpr std::int64_t kSweepBytes = 256 << 10;
constexpr std::int64_t kSweepRows = 8;
// How many rows of B tiles fetch ahead; of panels that follow each other, which come from memory
// for few rows of A.
constexpr std::int64_t kTileAhead = 16;
constexpr std::int64_t kStreamAhead = 256;
// Up to how many tiles of rows B goes by in its own order, and how many bytes of them, since all
// pass by for each panel.
constexpr std::int64_t kStreamTiles = 4;
constexpr std::int64_t kStreamBytes = 512 << 10;
// A block of A as tiles read it: where it is, or a copy in room.
struct Rows {
  const float* data;
  std::int64_t stride;
};

// Rows a multiple of 1 KiB apart would meet in few sets of the first cache.
bool readable(const Matrix& a, std::int64_t rows) {
  return a.windows == nullptr && a.storage == Storage::kF32 && a.column_stride == 1 &&
         (rows <= 4 || a.row_stride % 256 != 0);
}

// Whether vectors of a row lie in one cache line each.
bool in_whole_lines(const Matrix& a) {
  return (reinterpret_cast<std::uintptr_t>(a.data) |
          static_cast<std::uintptr_t>(a.row_stride * 4)) %
             64 ==
         0;
}

// in_lines: vectors must not lie in two cache lines.
Rows rows_of(const Tiles& tiles, const Matrix& a, std::int64_t row, std::int64_t rows,
             std::int64_t p, std::int64_t depth, float* room, bool in_lines = false) {
  if (readable(a, rows) && (!in_lines || rows == 1 || in_whole_lines(a)))
    return {reinterpret_cast<const float*>(element(a, row, p)), a.row_stride};
  const std::int64_t stride = rounded_up(depth, tiles.lanes) + tiles.lanes;
  if (a.windows != nullptr) {
    copy_windows(tiles, a, row, rows, p, depth, room, stride);
  } else {
    take(tiles, a, row, p, rows, depth, room, stride);
  }
  return {room, stride};
}

// The most rows of A, of so many bytes an element, that are few.
std::int64_t few_rows(const Tiles& tiles, std::int64_t k, std::int64_t item) {
  return std::min(kStreamTiles * tiles.rows, kStreamBytes / item / k);
}

// Of k, at a time. Where a sum of n parts loses as much as each of them does, as positive numbers
// lose it, n^3 is 2k; so both lose least.
std::int64_t packed_step(const Sizes& sizes) {
  constexpr std::int64_t kShort = 64, kLeast = 40;
  if (!sizes.short_sums || sizes.k <= kShort) return even(sizes.k, kDepth);
  const auto k = static_cast<double>(sizes.k);
  return even(sizes.k, std::clamp(static_cast<std::int64_t>(std::cbrt(k * k / 2)), kLeast, kDepth));
}

// Few rows: B goes by once, in the order of its memory.
void multiply_streamed(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                       float* room, float* c, std::int64_t c_stride) {
  const std::int64_t width = tiles.columns;
  const std::int64_t step = packed_step(sizes);
  const std::int64_t tile_rows = even(sizes.m, tiles.rows);
  const Rows from = rows_of(tiles, a, 0, sizes.m, 0, sizes.k, room);
  for (std::int64_t j = 0; j < sizes.n; j += width) {
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      const float* panel = packed + j * sizes.packed_rows() + p * width;
      for (std::int64_t i = 0; i < sizes.m; i += tile_rows) {
        const std::int64_t r = std::min(tile_rows, sizes.m - i);
        tiles.tile[at(r)]({from.data + i * from.stride + p, from.stride, panel, width,
                           c + i * c_stride + j, c_stride, std::min(step, sizes.k - p),
                           std::min(width, sizes.n - j), p > 0, kStreamAhead * width});
      }
    }
  }
}

void multiply_packed(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                     float* room, float* c, std::int64_t c_stride) {
  if (a.windows != nullptr && reads_lines(*a.windows))
    return multiply_lines(tiles, sizes, a, packed, c, c_stride);
  if (sizes.m <= few_rows(tiles, sizes.k, sizeof(float)))
    return multiply_streamed(tiles, sizes, a, packed, room, c, c_stride);
  const std::int64_t width = tiles.columns;
  const std::int64_t step = packed_step(sizes);
  const std::int64_t block_rows = even(sizes.m, kBlockRows);
  for (std::int64_t i0 = 0; i0 < sizes.m; i0 += block_rows) {
    const std::int64_t rows = std::min(block_rows, sizes.m - i0);
    const std::int64_t tile_rows = even(rows, tiles.rows);
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      const std::int64_t depth = std::min(step, sizes.k - p);
      const Rows from = rows_of(tiles, a, i0, rows, p, depth, room);
      for (std::int64_t j = 0; j < sizes.n; j += width) {
        const float* panel = packed + j * sizes.packed_rows() + p * width;
        for (std::int64_t i = 0; i < rows; i += tile_rows) {
          const std::int64_t r = std::min(tile_rows, rows - i);
          tiles.tile[at(r)]({from.data + i * from.stride, from.stride, panel, width,
                             c + (i0 + i) * c_stride + j, c_stride, depth,
                             std::min(width, sizes.n - j), p > 0,
                             kTileAhead * width});
        }
      }
    }
  }
}

void multiply_tiles(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                    float* room, float* c, std::int64_t c_stride) {
  const std::int64_t width = tiles.columns;
  const std::int64_t step = even(sizes.k, kDepth);
  const std::int64_t tile_rows = even(sizes.m, tiles.rows);
  float* edge = room;  // the last columns, as a panel
  float* copied = room + step * width;
  for (std::int64_t p = 0; p < sizes.k; p += step) {
    const std::int64_t depth = std::min(step, sizes.k - p);
    const Rows from = rows_of(tiles, a, 0, sizes.m, p, depth, copied);
    for (std::int64_t j = 0; j < sizes.n; j += width) {
      const std::int64_t columns = std::min(width, sizes.n - j);
      const void* panel = element(b, p, j);
      std::int64_t stride = b.row_stride;
      if (columns < width) {
        std::fill_n(edge, depth * width, 0.0f);
        take(tiles, b, p, j, depth, columns, edge, width);
        panel = edge;
        stride = width;
      }
      for (std::int64_t i = 0; i < sizes.m; i += tile_rows) {
        const std::int64_t r = std::min(tile_rows, sizes.m - i);
        tiles.tile[at(r)]({from.data + i * from.stride, from.stride, panel, stride,
                           c + i * c_stride + j, c_stride, depth, columns, p > 0,
                           kTileAhead * stride});
      }
    }
  }
}

// B is windows: as much of a panel as a tile takes is copied for a block of A, and used up.
void multiply_windows(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                      float* room, float* c, std::int64_t c_stride) {
  const std::int64_t width = tiles.columns;
  const std::int64_t step = even(sizes.k, kDepth);
  const std::int64_t block_rows = even(sizes.m, kBlockRows);
  float* panel = room;
  float* copied = room + step * width;
  for (std::int64_t p = 0; p < sizes.k; p += step) {
    const std::int64_t depth = std::min(step, sizes.k - p);
    for (std::int64_t i0 = 0; i0 < sizes.m; i0 += block_rows) {
      const std::int64_t rows = std::min(block_rows, sizes.m - i0);
      const std::int64_t tile_rows = even(rows, tiles.rows);
      const Rows from = rows_of(tiles, a, i0, rows, p, depth, copied);
      for (std::int64_t j = 0; j < sizes.n; j += width) {
        const std::int64_t columns = std::min(width, sizes.n - j);
        if (columns < width) std::fill_n(panel, depth * width, 0.0f);
        copy_windows(tiles, b, p, depth, b.first_column + j, columns, panel, width);
        for (std::int64_t i = 0; i < rows; i += tile_rows) {
          const std::int64_t r = std::min(tile_rows, rows - i);
          tiles.tile[at(r)]({from.data + i * from.stride, from.stride, panel, width,
                             c + (i0 + i) * c_stride + j, c_stride, depth, columns, p > 0,
                             kTileAhead * width});
        }
      }
    }
  }
}

void multiply_sweep(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                    float* room, float* c, std::int64_t c_stride) {
  const Rows from = rows_of(tiles, a, 0, sizes.m, 0, sizes.k, room);
  const std::int64_t rows = even(sizes.m, kMostSweeps);
  const std::int64_t row_bytes = sizes.n * bytecode::storage_bytes(b.storage);
  const std::int64_t step =
      rows == sizes.m
          ? sizes.k
          : std::max<std::int64_t>(kSweepBytes / row_bytes / kSweepRows, 1) * kSweepRows;
  // Which rows are added first must not depend on how many columns a thread has, as `step` does.
  const std::int64_t bytes = sizes.k * b.row_stride * bytecode::storage_bytes(b.storage);
  const std::int64_t apart = rows == sizes.m && bytes >= kFarBytes ? 1 : 0;
  for (std::int64_t p = 0; p < sizes.k; p += step) {
    for (std::int64_t i = 0; i < sizes.m; i += rows) {
      const std::int64_t r = std::min(rows, sizes.m - i);
      tiles.sweep[at(r)][index(b.storage)]({from.data + i * from.stride + p, from.stride,
                                            element(b, p, 0), b.row_stride, c + i * c_stride,
                                            c_stride, std::min(step, sizes.k - p), sizes.n, p > 0,
                                            0, apart});
    }
  }
}

// Calls call(first column, how many, how far apart) for all columns that dots take; some at a time,
// if `rows`, which dots take at a time, are not all of A.
template <class Call>
void for_dots(const Sizes& sizes, std::int64_t rows, const Matrix& b, Call&& call) {
  const std::int64_t bytes = sizes.k * bytecode::storage_bytes(b.storage);
  const std::int64_t step =
      rows == sizes.m ? sizes.n : std::max<std::int64_t>(kDotBytes / bytes / kDotColumns, 1);
  const std::int64_t apart = sizes.n * bytes >= kFarBytes ? sizes.n / kDotColumns : 0;
  for (std::int64_t j = 0; j < apart; j += step)
    call(j, std::min(step, apart - j) * kDotColumns, apart);
  for (std::int64_t j = apart * kDotColumns; j < sizes.n; j += step * kDotColumns)
    call(j, std::min(step * kDotColumns, sizes.n - j), std::int64_t{0});
}

void multiply_dots(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                   float* room, float* c, std::int64_t c_stride) {
  // A matrix by a vector is the vector by the matrix's rows, of which dots take several at a time.
  if (sizes.n == 1 && sizes.m > 1 && c_stride == 1 && a.column_stride == 1 &&
      a.windows == nullptr) {
    const Matrix vector{b.data, sizes.k, b.row_stride, b.storage};
    const Matrix rows{a.data, 1, a.row_stride, a.storage};
    return multiply_dots(tiles, {1, sizes.m, sizes.k}, vector, rows, room, c, sizes.m);
  }
  const Rows from = rows_of(tiles, a, 0, sizes.m, 0, sizes.k, room, true);
  const std::int64_t rows = even(sizes.m, kMostDots);
  for_dots(sizes, rows, b, [&](std::int64_t j, std::int64_t columns, std::int64_t apart) {
    for (std::int64_t i = 0; i < sizes.m; i += rows) {
      const std::int64_t r = std::min(rows, sizes.m - i);
      tiles.dots[at(r)][index(b.storage)](
          {from.data + i * from.stride, from.stride, element(b, 0, j), b.column_stride,
           c + i * c_stride + j, c_stride, sizes.k, columns, false, 0, apart});
    }
  });
}

// ---- Pairs of bfloat16

const Brain* brain(const Matrix& x, std::int64_t row, std::int64_t column) {
  return reinterpret_cast<const Brain*>(element(x, row, column));
}

// An even number of elements of k at a time; the last may have one more, which is zero.
std::int64_t pair_step(std::int64_t k) { return rounded_up(even(k, kPairDepth - 1), 2); }

struct BrainRows {
  const Brain* data;
  std::int64_t stride;
};

// A block of A whose rows are contiguous and, where tiles read pairs, of even length.
BrainRows brain_rows(const Matrix& a, std::int64_t row, std::int64_t rows, std::int64_t p,
                     std::int64_t depth, bool in_pairs, float* room) {
  const bool apart = a.windows != nullptr || (rows > 4 && a.row_stride % 512 == 0);
  if (a.column_stride == 1 && !apart && !(in_pairs && depth % 2 != 0))
    return {brain(a, row, p), a.row_stride};
  auto* to = reinterpret_cast<Brain*>(room);
  const std::int64_t stride = rounded_up(depth, 32) + 32;
  if (a.windows != nullptr) {
    copy_windows(a, row, rows, p, depth, to, stride);
    for (std::int64_t i = 0; i < rows && depth % 2 != 0; ++i) to[i * stride + depth] = 0;
    return {to, stride};
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    if (a.column_stride == 1) {
      std::memcpy(to + i * stride, brain(a, row + i, p), at(depth) * sizeof(Brain));
    } else {
      for (std::int64_t q = 0; q < depth; ++q) to[i * stride + q] = *brain(a, row + i, p + q);
    }
    if (depth % 2 != 0) to[i * stride + depth] = 0;
  }
  return {to, stride};
}

// One panel, whatever the strides: the pairs of a column side by side.
void pack_panel(const Tiles& tiles, const Matrix& b, std::int64_t p, std::int64_t j,
                std::int64_t pairs, std::int64_t columns, Brain* panel) {
  const std::int64_t width = tiles.columns;
  if (b.row_stride == 1) {
    // A pair is 32 bits that move as one; columns an odd number apart are copied first.
    constexpr std::int64_t kStride = kPairDepth + 32;
    alignas(64) Brain copied[kMostColumns * kStride];
    const Brain* from = brain(b, p, j);
    std::int64_t stride = b.column_stride;
    if (stride % 2 != 0) {
      for (std::int64_t c = 0; c < columns; ++c)
        std::memcpy(copied + c * kStride, from + c * stride, at(2 * pairs) * sizeof(Brain));
      from = copied;
      stride = kStride;
    }
    tiles.transpose[index(Storage::kF32)](from, stride / 2, reinterpret_cast<float*>(panel), width,
                                          pairs, columns);
  } else {
    for (std::int64_t q = 0; q < 2 * pairs; ++q) {
      for (std::int64_t c = 0; c < columns; ++c)
        panel[(q / 2 * width + c) * 2 + q % 2] = *brain(b, p + q, j + c);
    }
  }
}

// As multiply_streamed().
void stream_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Brain* packed,
                  float* room, float* c, std::int64_t c_stride) {
  const std::int64_t width = tiles.columns;
  const std::int64_t packed_rows = rounded_up(sizes.packed_rows(), pair_rows(tiles));
  const std::int64_t step = pair_step(sizes.k);
  const std::int64_t tile_rows = even(sizes.m, tiles.rows);
  const BrainRows from = brain_rows(a, 0, sizes.m, 0, sizes.k, true, room);
  for (std::int64_t j = 0; j < sizes.n; j += width) {
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      const Brain* panel = packed + j * packed_rows + p * width;
      const std::int64_t depth = rounded_up(std::min(step, sizes.k - p), 2);
      for (std::int64_t i = 0; i < sizes.m; i += tile_rows) {
        const std::int64_t r = std::min(tile_rows, sizes.m - i);
        brain_tiles()->tile[at(r)]({from.data + i * from.stride + p, from.stride, panel, width,
                                    c + i * c_stride + j, c_stride, depth,
                                    std::min(width, sizes.n - j), p > 0,
                                    2 * kStreamAhead * width});
      }
    }
  }
}

void multiply_packed_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& a,
                           const Brain* packed, float* room, float* c, std::int64_t c_stride) {
  if (sizes.m <= few_rows(tiles, sizes.k, sizeof(Brain)))
    return stream_pairs(tiles, sizes, a, packed, room, c, c_stride);
  const std::int64_t width = tiles.columns;
  const std::int64_t packed_rows = rounded_up(sizes.packed_rows(), pair_rows(tiles));
  const std::int64_t step = pair_step(sizes.k);
  const std::int64_t block_rows = even(sizes.m, kBlockRows);
  for (std::int64_t i0 = 0; i0 < sizes.m; i0 += block_rows) {
    const std::int64_t rows = std::min(block_rows, sizes.m - i0);
    const std::int64_t tile_rows = even(rows, tiles.rows);
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      const std::int64_t depth = std::min(step, sizes.k - p);
      const std::int64_t whole = rounded_up(depth, 2);
      const BrainRows from = brain_rows(a, i0, rows, p, depth, true, room);
      for (std::int64_t j = 0; j < sizes.n; j += width) {
        const Brain* panel = packed + j * packed_rows + p * width;
        for (std::int64_t i = 0; i < rows; i += tile_rows) {
          const std::int64_t r = std::min(tile_rows, rows - i);
          brain_tiles()->tile[at(r)]({from.data + i * from.stride, from.stride, panel, width,
                                      c + (i0 + i) * c_stride + j, c_stride, whole,
                                      std::min(width, sizes.n - j), p > 0});
        }
      }
    }
  }
}

void multiply_pair_dots(const Sizes& sizes, const Matrix& a, const Matrix& b, float* room, float* c,
                        std::int64_t c_stride) {
  const BrainRows from = brain_rows(a, 0, sizes.m, 0, sizes.k, false, room);
  const std::int64_t rows = even(sizes.m, kMostDots);
  for_dots(sizes, rows, b, [&](std::int64_t j, std::int64_t columns, std::int64_t apart) {
    for (std::int64_t i = 0; i < sizes.m; i += rows) {
      const std::int64_t r = std::min(rows, sizes.m - i);
      brain_tiles()->dots[at(r)]({from.data + i * from.stride, from.stride, brain(b, 0, j),
                                  b.column_stride, c + i * c_stride + j, c_stride, sizes.k, columns,
                                  false, 0, apart});
    }
  });
}

// Whether it reads panels of pairs.
bool of_panels(Way way) { return way == Way::kPackedPairs || way == Way::kPackedPieces; }

}  // namespace

void pack_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                std::int64_t count, Brain* packed) {
  const std::int64_t width = tiles.columns;
  const std::int64_t step = pair_step(sizes.k);
  const std::int64_t packed_rows = rounded_up(sizes.k, pair_rows(tiles));
  if (b.count_taps() > 1)
    return pack_taps_in_pairs(tiles, sizes, b, first, count, packed_rows, packed);
  const bool rows = b.column_stride == 1;
  for (std::int64_t p = 0; p < sizes.k; p += step) {
    const std::int64_t depth = std::min(step, sizes.k - p);
    const std::int64_t end = p + depth == sizes.k ? packed_rows : p + step;
    const std::int64_t pairs = depth / 2;
    Brain* const panels = packed + first * packed_rows + p * width;
    if (rows)
      brain_tiles()->pack(brain(b, p, first), b.row_stride, panels, packed_rows * width, pairs,
                          count);
    for (std::int64_t j = 0; j < count; j += width) {
      Brain* panel = panels + j * packed_rows;
      const std::int64_t columns = std::min(width, count - j);
      const std::int64_t from = rows || columns == width ? 2 * pairs : 0;
      std::fill_n(panel + from * width, (end - p - from) * width, Brain{0});
      if (!rows) pack_panel(tiles, b, p, first + j, pairs, columns, panel);
      for (std::int64_t c = 0; depth % 2 != 0 && c < columns; ++c)
        panel[(pairs * width + c) * 2] = *brain(b, p + depth - 1, first + j + c);
    }
  }
}

bool by_units(const Tiles& tiles, Way way) {
  return tiles.units != nullptr &&
         (of_panels(way) || way == Way::kTurnedPairs || way == Way::kPieces);
}

const char* name(Way way) {
  constexpr const char* kNames[] = {"sweep",     "dots",         "tiles",    "packed",
                                    "pair dots", "packed pairs", "channels", "windows",
                                    "packed pieces", "turned pairs", "pieces", "library"};
  return kNames[static_cast<std::size_t>(way)];
}

int pieces_of_float32(const Tiles& tiles, Way way) {
  return way == Way::kPackedPieces || way == Way::kPieces ? tiles.units->pieces : 0;
}

std::int64_t packed_bytes(const Tiles& tiles, Way way) {
  constexpr std::int64_t kBytes = sizeof(Brain);
  if (way == Way::kPackedPairs) return kBytes;
  const int pieces = pieces_of_float32(tiles, way);
  return pieces > 0 ? kBytes * pieces : std::int64_t{sizeof(float)};
}

std::int64_t packed_elements(const Tiles& tiles, Way way, const Sizes& sizes) {
  if (of_panels(way)) return parts(sizes.n, kUnitColumns) * panel_elements(tiles, way, sizes.k);
  return rounded_up(sizes.n, tiles.columns) * sizes.k;
}

std::int64_t packed_offset(const Tiles& tiles, Way way, const Sizes& sizes, std::int64_t first) {
  const std::int64_t rows = sizes.packed_rows();
  if (of_panels(way)) return first / kUnitColumns * panel_elements(tiles, way, rows);
  return first * rows;
}

std::int64_t room_elements(const Tiles& tiles, Way way, const Sizes& sizes) {
  if (way == Way::kEach || way == Way::kLibrary) return 0;
  if (by_units(tiles, way)) return arranged_room(tiles, way, sizes);
  const bool all_of_k = way == Way::kSweep || way == Way::kDots || way == Way::kPairDots;
  const std::int64_t depth =
      all_of_k ? sizes.k : std::min(sizes.k, way == Way::kPackedPairs ? kPairDepth : kDepth);
  const bool in_blocks = packs(way) || way == Way::kWindows;
  const std::int64_t rows = in_blocks ? std::min(sizes.m, kBlockRows) : sizes.m;
  const bool panel = way == Way::kTiles || way == Way::kWindows;
  // Few rows are copied as a whole, also where a product turns out to have fewer rows or a shorter k.
  const std::int64_t few = std::min<std::int64_t>(sizes.m, kStreamTiles * tiles.rows);
  const bool streams = way == Way::kPacked || way == Way::kPackedPairs;
  const std::int64_t most = streams ? kStreamBytes / std::int64_t{sizeof(Brain)} : 0;
  return std::max(rows * (depth + 2 * tiles.lanes),
                  std::min(few * sizes.k, most) + few * 2 * tiles.lanes) +
         (panel ? depth * tiles.columns : 0);
}

void pack(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& b, std::int64_t first,
          std::int64_t count, float* packed) {
  if (way == Way::kPackedPairs)
    return pack_pairs(tiles, sizes, b, first, count, reinterpret_cast<Brain*>(packed));
  if (way == Way::kPackedPieces) return pack_pieces(tiles, sizes, b, first, count, packed);
  const std::int64_t width = tiles.columns;
  float* panels = packed + first * sizes.k;
  if (b.count_taps() > 1) return pack_taps(tiles, sizes, b, first, count, packed);
  if (b.column_stride == 1) {
    tiles.pack[index(b.storage)](element(b, 0, first), b.row_stride, panels, sizes.k * width,
                                 sizes.k, count);
    return;
  }
  for (std::int64_t j = 0; j < count; j += width) {
    float* panel = panels + j * sizes.k;
    const std::int64_t columns = std::min(width, sizes.n - first - j);
    if (columns < width) std::fill_n(panel, sizes.k * width, 0.0f);
    take(tiles, b, 0, first + j, sizes.k, columns, panel, width);
  }
}

void multiply(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a, const Matrix& b,
              const float* packed, float* room, float* c, std::int64_t c_stride) {
  if (sizes.n == 0) return;
  if (sizes.k == 0) {
    for (std::int64_t i = 0; i < sizes.m; ++i) std::fill_n(c + i * c_stride, sizes.n, 0.0f);
    return;
  }
  if (way == Way::kTurnedPairs) return multiply_turned(tiles, sizes, a, b, room, c, c_stride);
  if (way == Way::kPieces) return multiply_pieces(tiles, sizes, a, b, room, c, c_stride);
  if (by_units(tiles, way))
    return multiply_arranged(tiles, way, sizes, a, b, packed, room, c, c_stride);
  switch (way) {
    case Way::kPackedPieces:  // these are by units alone
    case Way::kTurnedPairs:
    case Way::kPieces:
    case Way::kSweep:
      return multiply_sweep(tiles, sizes, a, b, room, c, c_stride);
    case Way::kDots:
      return multiply_dots(tiles, sizes, a, b, room, c, c_stride);
    case Way::kTiles:
      return multiply_tiles(tiles, sizes, a, b, room, c, c_stride);
    case Way::kPacked:
      return multiply_packed(tiles, sizes, a, packed, room, c, c_stride);
    case Way::kPairDots:
      return multiply_pair_dots(sizes, a, b, room, c, c_stride);
    case Way::kPackedPairs:
      return multiply_packed_pairs(tiles, sizes, a, reinterpret_cast<const Brain*>(packed), room, c,
                                   c_stride);
    case Way::kEach:
      return multiply_each(tiles, sizes, a, packed, c, c_stride);
    case Way::kWindows:
      return multiply_windows(tiles, sizes, a, b, room, c, c_stride);
    case Way::kLibrary:
      return multiply_by_library(sizes, a, b, c, c_stride);
  }
}

}  // namespace tilevm::exec::gemm
