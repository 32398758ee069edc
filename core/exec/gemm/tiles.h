// Micro-kernels of matrix products: one set a processor, compiled by Highway, used by every tier.
// All of them compute in float32 and write float32.
#pragma once

#include <cstdint>

#include "bytecode/bytecode.h"

namespace tilevm::exec::gemm {

using bytecode::Storage;

inline constexpr int kMostColumns = 32;  // of a tile
inline constexpr int kMostRows = 12;     // of a tile
inline constexpr int kMostSweeps = 4;    // rows of A that a sweep takes
inline constexpr int kMostDots = 6;      // rows of A that dots take
inline constexpr int kLineBehind = 16;
// bfloat16 that a float32 is taken to be the sum of, see units.h: all of it, and where PyTorch is
// asked for the precisions "high" and "medium".
inline constexpr int kMostPieces = 3, kHighPieces = 2, kMediumPieces = 1;
inline constexpr int kStorages = 4;      // f32, bf16, f16, i8: see storage_index
inline constexpr int kLineColumns = 4;   // of a product whose vectors are of positions
inline constexpr int kDotColumns = 4;    // columns of the product that dots make side by side
// From so many bytes of B on, dots take columns, and sweeps rows, that are far apart: memory is
// quicker where it is read in several places at once, each in order.
inline constexpr std::int64_t kFarBytes = 64 << 10;

// Index of a storage that factors may have, or -1.
constexpr int storage_index(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return 0;
    case Storage::kBF16:
      return 1;
    case Storage::kF16:
      return 2;
    case Storage::kI8:
      return 3;
    default:
      return -1;
  }
}

// A block of a product. Strides are in elements, between rows as they lie in memory.
struct Block {
  const float* a;  // m x k, rows contiguous
  std::int64_t a_stride;
  const void* b;  // see each kind
  std::int64_t b_stride;
  float* c;  // m x n, rows contiguous
  std::int64_t c_stride;
  std::int64_t k;
  std::int64_t n;
  bool add;  // to what c holds
  std::int64_t ahead = 0;  // elements of b that tiles fetch ahead
  // Of the kDotColumns columns that dots take at once, or 0: side by side. Sweeps take rows as far
  // apart as there are, if it is not 0.
  std::int64_t apart = 0;
  // By element of k, where it lies from a row's first; null: one after the other.
  const std::int64_t* offsets = nullptr;
};

// Positions of a convolution that lie side by side, as do the elements that one multiplies.
struct LineBlock {
  const float* a;               // of the first position; vectors are read behind the last one
  const std::int64_t* offsets;  // by element of k, from a position
  std::int64_t k;
  const float* b;  // k rows of as many columns as the kernel takes, b_stride apart
  std::int64_t b_stride;
  float* c;  // positions x columns
  std::int64_t c_stride, c_column;
  std::int64_t positions;
};

// Positions of a convolution whose channels are products of their own. Taps may be left out.
struct EachBlock {
  const void* from;             // channels of the first position, contiguous
  std::int64_t step;            // elements from one position to the next
  const std::int64_t* offsets;  // by tap, of what it multiplies from a position
  const std::int64_t* rows_of;  // by tap, the row of `packed`
  std::int64_t taps;
  const float* packed;  // panels of Tiles::columns channels, panel_stride apart
  std::int64_t panel_stride;
  float* c;  // positions x n, rows contiguous
  std::int64_t c_stride;
  std::int64_t positions;
  std::int64_t n;
};

struct Units;  // see units.h

struct Tiles {
  int lanes;    // of a vector of float32
  int rows;     // the most rows of a tile
  int columns;  // of a tile, and of a panel of packed B: two vectors
  // By number of rows. b: k rows of `columns` float32 each, b_stride apart; n <= columns.
  void (*tile[kMostRows + 1])(const Block& block);
  void (*tile_at[kMostRows + 1])(const Block& block);  // the same, of a block with offsets
  // By columns. Reads up to kLineBehind elements behind those of the last position.
  void (*line[kLineColumns + 1])(const LineBlock& block);
  // By rows of A and storage of B. b: k rows of n; all of c in rows of k, a few at a time.
  void (*sweep[kMostSweeps + 1][kStorages])(const Block& block);
  // By rows of A and storage of B. b: n rows of k: the product of A and the transpose of b.
  void (*dots[kMostDots + 1][kStorages])(const Block& block);
  // By storage. `to` (float32, rows of `columns` elements, to_stride apart) = rows x columns of
  // from.
  void (*copy[kStorages])(const void* from, std::int64_t from_stride, float* to,
                          std::int64_t to_stride, std::int64_t rows, std::int64_t columns);
  // The same for packed B: panels of Tiles::columns elements a row, each rows x Tiles::columns and
  // panel_stride after the one before; the last is filled up with zeros.
  void (*pack[kStorages])(const void* from, std::int64_t from_stride, float* to,
                          std::int64_t panel_stride, std::int64_t rows, std::int64_t columns);
  // As copy, where `from` is columns x rows.
  void (*transpose[kStorages])(const void* from, std::int64_t from_stride, float* to,
                               std::int64_t to_stride, std::int64_t rows, std::int64_t columns);
  // By storage of the image.
  void (*each[kStorages])(const EachBlock& block);
  const Units* units = nullptr;  // if these are to be used, and there are such
};

// Those of this processor; narrow: with vectors of at most 256 bits; units: with units.h, which
// make so many pieces of a float32: of fewer than all, products are less precise. The same object
// each time.
const Tiles& tiles(bool narrow = false, bool units = true, int pieces = kMostPieces);

}  // namespace tilevm::exec::gemm
