// Products of float32 by pieces of bfloat16 (units.h): right factors as panels, products that make
// pieces as they go, and what pieces cannot tell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "exec/gemm/convolve.h"
#include "exec/gemm/factors.h"
#include "exec/gemm/multiply.h"
#include "exec/gemm/units.h"

namespace tilevm::exec::gemm {

// Float32 elements at the end of a packed panel, which hold its range.
inline constexpr std::int64_t kRangeElements = 16;
static_assert(sizeof(Range) <= kRangeElements * sizeof(float));

// As functions of multiply.h, for kPackedPieces and kPieces.
void pack_pieces(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                 std::int64_t count, float* packed);
std::int64_t pieces_room(const Tiles& tiles, const Sizes& sizes);
void multiply_pieces(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     float* room, float* c, std::int64_t c_stride);

// Blocks of a product by pieces: the sums of one are put to c while the next one runs.
class PieceBlocks {
 public:
  explicit PieceBlocks(const Units& units) : units_(units) {}

  // turned: c is the transpose of the block's product.
  void run(UnitBlock block, bool turned) {
    UnitSums sums{sums_[count_ % 2], block.c,   block.c_stride, block.rows,
                  block.columns,     block.add, turned};
    if (turned) std::swap(sums.rows, sums.columns);
    block.c = sums_[count_ % 2];
    block.c_stride = kUnitColumns;
    block.before = count_ > 0 ? &before_ : nullptr;
    units_.multiply_pieces(block);
    before_ = sums;
    ++count_;
  }
  void finish() {
    if (count_ > 0) units_.put(before_);
    count_ = 0;
  }

 private:
  const Units& units_;
  std::int64_t count_ = 0;
  UnitSums before_{};
  alignas(64) float sums_[2][kUnitColumns * kUnitColumns];
};

// Rows of products that pieces do not tell, by float32.
class Mending {
 public:
  // room: room() elements of memory to work in.
  Mending(const Tiles& tiles, std::int64_t k, const Matrix& a, const Matrix& b, float* room)
      : tiles_(tiles), k_(k), a_(a), b_(b), room_(room) {}

  // c (rows x columns, of a's row i0 and b's column j on): rows of which `wrong(i)` tells some; at
  // most kUnitColumns columns.
  template <class Wrong>
  void panel(std::int64_t i0, std::int64_t rows, std::int64_t j, std::int64_t columns, float* c,
             std::int64_t c_stride, const Wrong& wrong) const {
    std::int64_t first = 0;
    while (first < rows && !wrong(first)) ++first;
    if (first == rows) return;
    const std::int64_t step = even(k_, kMendDepth);
    float* const left = room_ + kMendDepth * kUnitColumns;
    for (std::int64_t p = 0; p < k_; p += step) {
      const std::int64_t depth = std::min(step, k_ - p);
      std::fill_n(room_, depth * kUnitColumns, 0.0f);
      take_columns(p, j, depth, columns);
      for (std::int64_t i = first; i < rows; ++i) {
        if (!wrong(i)) continue;
        if (a_.windows != nullptr) {
          copy_windows(tiles_, a_, i0 + i, 1, p, depth, left, kMendStride);
        } else {
          take(tiles_, a_, i0 + i, p, 1, depth, left, kMendStride);
        }
        tiles_.tile[1]({left, kMendStride, room_, kUnitColumns, c + i * c_stride, c_stride, depth,
                        columns, p > 0});
      }
    }
  }

  static std::int64_t room(const Tiles& tiles) {
    return kMendDepth * kUnitColumns + kMendStride + tiles.lanes;
  }

 private:
  static constexpr std::int64_t kMendDepth = 256;
  static constexpr std::int64_t kMendStride = kMendDepth + 16;

  void take_columns(std::int64_t p, std::int64_t j, std::int64_t depth, std::int64_t columns) const;

  const Tiles& tiles_;
  std::int64_t k_;
  const Matrix& a_;
  const Matrix& b_;
  float* room_;
};

}  // namespace tilevm::exec::gemm
