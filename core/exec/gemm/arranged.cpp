#include "exec/gemm/arranged.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "exec/gemm/convolve.h"
#include "exec/gemm/factors.h"
#include "exec/gemm/pieces.h"
#include "exec/gemm/units.h"

namespace tilevm::exec::gemm {
namespace {

// A panel of B as deep as this is in the first cache, a block of A in the second.
constexpr std::int64_t kPairDepth = 256;
constexpr std::int64_t kPieceDepth = 256;
constexpr std::int64_t kBlockRows = 256;
constexpr std::int64_t kPanelRows = 2 * kUnitRows;
constexpr std::int64_t kTwoLines = 64;  // cache lines, in elements
// Panels that are together larger come from further away, and are fetched while many rows meet the
// one before.
constexpr std::int64_t kPanelsFar = 512 << 10;
constexpr std::int64_t kFarRows = 32;

std::int64_t pieces_of(const Tiles& tiles, Way way) {
  return way == Way::kPackedPieces ? tiles.units->pieces : 1;
}
std::int64_t depth_of(Way way) { return way == Way::kPackedPieces ? kPieceDepth : kPairDepth; }

// Rows of A as registers take them: where they lie, or in `room`.
class Arranged {
 public:
  Arranged(const Tiles& tiles, const Units& units, Way way, const Matrix& a, float* room)
      : tiles_(tiles), units_(units), way_(way), a_(a), room_(room) {}

  // Rows i0 .. i0 + rows, elements p .. p + depth of each.
  void take(std::int64_t i0, std::int64_t rows, std::int64_t p, std::int64_t depth) {
    next_ = parts(depth, kUnitDepth) * kUnitElements * pieces_of(tiles_, way_);
    whole_ = 0;
    auto* const to = reinterpret_cast<Brain*>(room_);
    float* const copied = room_ + parts(rows, kUnitRows) * next_ / 2;
    if (way_ == Way::kPackedPieces) {
      take_floats(i0, rows, p, depth, copied, to);
    } else {
      take_pairs(i0, rows, p, depth, reinterpret_cast<Brain*>(copied), to);
    }
  }
  // Up to kPanelRows of them, from row i on.
  UnitBlock from(std::int64_t i) const {
    UnitBlock block{};
    if (i < whole_) {
      block.a = lies_ + i * a_.row_stride;
      block.a_stride = a_.row_stride;
      block.a_step = kUnitDepth;
      block.a_next = kUnitRows * a_.row_stride;
    } else {
      block.a = reinterpret_cast<const Brain*>(room_) + (i - whole_) / kUnitRows * next_;
      block.a_stride = kUnitDepth;
      block.a_step = kUnitElements * pieces_of(tiles_, way_);
      block.a_next = next_;
    }
    return block;
  }
  const Range& range(std::int64_t i) const { return ranges_[at(i)]; }

 private:
  void take_floats(std::int64_t i0, std::int64_t rows, std::int64_t p, std::int64_t depth,
                   float* copied, Brain* to) {
    const bool plain = a_.windows == nullptr;
    if (plain && a_.column_stride == 1 && a_.storage == Storage::kF32) {
      const auto* from = reinterpret_cast<const float*>(element(a_, i0, p));
      return units_.split(from, a_.row_stride, rows, depth, to, ranges_.data());
    }
    const std::int64_t stride = rounded_up(depth, kUnitDepth) + 16;
    if (plain) {
      gemm::take(tiles_, a_, i0, p, rows, depth, copied, stride);
    } else {
      copy_windows(tiles_, a_, i0, rows, p, depth, copied, stride);
    }
    units_.split(copied, stride, rows, depth, to, ranges_.data());
  }

  void take_pairs(std::int64_t i0, std::int64_t rows, std::int64_t p, std::int64_t depth,
                  Brain* copied, Brain* to) {
    const bool plain = a_.windows == nullptr;
    if (plain && a_.column_stride == 1) {
      lies_ = reinterpret_cast<const Brain*>(element(a_, i0, p));
      if (depth % kUnitDepth == 0) whole_ = rows / kPanelRows * kPanelRows;
      return units_.arrange(lies_ + whole_ * a_.row_stride, a_.row_stride, rows - whole_, depth,
                            to);
    }
    const std::int64_t stride = rounded_up(depth, kUnitDepth) + kUnitDepth;
    if (plain) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto* from = reinterpret_cast<const Brain*>(element(a_, i0 + i, p));
        for (std::int64_t q = 0; q < depth; ++q)
          copied[i * stride + q] = from[q * a_.column_stride];
      }
    } else {
      copy_windows(a_, i0, rows, p, depth, copied, stride);
    }
    units_.arrange(copied, stride, rows, depth, to);
  }

  const Tiles& tiles_;
  const Units& units_;
  Way way_;
  const Matrix& a_;
  float* room_;
  const Brain* lies_ = nullptr;  // a row that is not in room
  std::int64_t whole_ = 0;       // such rows
  std::int64_t next_ = 0;        // in room, from 16 rows to the next
  std::array<Range, kBlockRows> ranges_{};
};

// The last step of a panel of which only some rows are used, the others zero.
const Brain* cut(const Brain* step, Way way, std::int64_t pieces, std::int64_t rows, Brain* to) {
  std::memcpy(to, step, at(pieces * 2 * kUnitElements) * sizeof(Brain));
  for (std::int64_t q = 0; q < pieces; ++q) {
    for (std::int64_t row = rows; row < kUnitDepth; ++row) {
      const bool pairs = way == Way::kPackedPairs;
      const std::int64_t of_pair = pairs ? row % 2 : row / kUnitRows;
      const std::int64_t pair_row = pairs ? row / 2 : row % kUnitRows;
      Brain* pair = to + q * 2 * kUnitElements + pair_row * 2 * kUnitColumns + of_pair;
      for (std::int64_t j = 0; j < kUnitColumns; ++j) pair[2 * j] = 0;
    }
  }
  return to;
}

}  // namespace

std::int64_t pair_rows(const Tiles& tiles) { return tiles.units == nullptr ? 2 : kUnitDepth; }

std::int64_t panel_elements(const Tiles& tiles, Way way, std::int64_t k) {
  if (way == Way::kPackedPieces)
    return rounded_up(k, kUnitDepth) * kUnitColumns * tiles.units->pieces / 2 + kRangeElements;
  return rounded_up(k, pair_rows(tiles)) * kUnitColumns / 2;
}

std::int64_t arranged_room(const Tiles& tiles, Way way, const Sizes& sizes) {
  if (way == Way::kPieces) return pieces_room(tiles, sizes);
  if (way == Way::kTurnedPairs)
    return (rounded_up(sizes.m, kUnitColumns) + kPanelRows) * rounded_up(sizes.k, kUnitDepth) / 2;
  const std::int64_t rows = rounded_up(std::min(sizes.m, kBlockRows), kUnitRows);
  const std::int64_t depth = rounded_up(std::min(sizes.k, depth_of(way)), kUnitDepth);
  const std::int64_t arranged =
      rows * depth * pieces_of(tiles, way) / 2 + rows * (depth + kUnitDepth);
  return std::max(arranged, Mending::room(tiles));
}

void multiply_arranged(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a,
                       const Matrix& b, const float* packed, float* room, float* c,
                       std::int64_t c_stride) {
  const Units& unit = *tiles.units;
  const std::int64_t pieces = pieces_of(tiles, way);
  const std::int64_t panel = panel_elements(tiles, way, sizes.packed_rows());
  const std::int64_t step = rounded_up(even(sizes.k, depth_of(way)), kUnitDepth);
  const bool some = sizes.packed_rows() > sizes.k && sizes.k % kUnitDepth != 0;
  const bool far =
      sizes.m >= kFarRows && parts(sizes.n, kUnitColumns) * panel * 4 > kPanelsFar;
  PieceBlocks blocks(unit);
  const auto run = [&](const UnitBlock& block) {
    way == Way::kPackedPieces ? blocks.run(block, false) : unit.multiply(block);
  };
  const std::int64_t block_rows = rounded_up(even(sizes.m, kBlockRows), kPanelRows);
  alignas(64) std::array<Brain, kMostPieces * 2 * kUnitElements> edge;
  for (std::int64_t i0 = 0; i0 < sizes.m; i0 += block_rows) {
    const std::int64_t rows = std::min(block_rows, sizes.m - i0);
    Arranged rows_of(tiles, unit, way, a, room);
    unit.begin();
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      const std::int64_t depth = std::min(step, sizes.k - p);
      const std::int64_t steps = parts(depth, kUnitDepth);
      const bool last = some && p + depth == sizes.k;
      const std::int64_t whole = steps - last;
      rows_of.take(i0, rows, p, depth);
      for (std::int64_t j = 0; j < sizes.n; j += kUnitColumns) {
        const auto* from = reinterpret_cast<const Brain*>(packed + j / kUnitColumns * panel) +
                           p * kUnitColumns * pieces;
        const Brain* const end = last ? cut(from + whole * pieces * 2 * kUnitElements, way, pieces,
                                            depth % kUnitDepth, edge.data())
                                      : nullptr;
        for (std::int64_t i = 0; i < rows; i += kPanelRows) {
          UnitBlock block = rows_of.from(i);
          block.b = from;
          block.steps = whole;
          block.c = c + (i0 + i) * c_stride + j;
          block.c_stride = c_stride;
          block.rows = std::min(kPanelRows, rows - i);
          block.columns = std::min<std::int64_t>(kUnitColumns, sizes.n - j);
          block.add = p > 0;
          if (far && j + kUnitColumns < sizes.n) {
            const auto pairs =
                parts(pieces * kUnitRows, parts(rows, kPanelRows));  // of lines, a step
            const Brain* next = from + panel * 2 + i / kPanelRows * steps * pairs * kTwoLines;
            block.ahead = {reinterpret_cast<const std::byte*>(next), 2 * kTwoLines,
                           pairs * 2 * kTwoLines, static_cast<int>(pairs)};
          }
          if (whole > 0) run(block);
          if (!last) continue;
          block.a += whole * block.a_step;
          block.b = end;
          block.steps = 1;
          block.add = p > 0 || whole > 0;
          run(block);
        }
      }
    }
    unit.end();
    if (way != Way::kPackedPieces) continue;
    blocks.finish();
    Range all;
    for (std::int64_t i = 0; i < rows; ++i) all.add(rows_of.range(i));
    const Mending mending{tiles, sizes.k, a, b, room};
    for (std::int64_t j = 0; j < sizes.n; j += kUnitColumns) {
      Range of;
      const float* const end = packed + (j / kUnitColumns + 1) * panel;
      std::memcpy(static_cast<void*>(&of), end - kRangeElements, sizeof(of));
      if (in_pieces(all, of, sizes.k)) continue;
      const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes.n - j);
      mending.panel(i0, rows, j, columns, c + i0 * c_stride + j, c_stride, [&](std::int64_t i) {
        return !pieces_tell(rows_of.range(i), of, sizes.k);
      });
    }
  }
}

// C^T = B^T A^T: columns of B, which are contiguous, are rows that registers take as they lie, and
// rows of A, which are few, are panels.
void multiply_turned(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     float* room, float* c, std::int64_t c_stride) {
  const Units& unit = *tiles.units;
  const std::int64_t depth = rounded_up(sizes.k, kUnitDepth), panel = depth * kUnitColumns;
  auto* const panels = reinterpret_cast<Brain*>(room);
  auto* const copied = panels + parts(sizes.m, kUnitColumns) * panel;
  const Matrix turned{a.data, a.column_stride, a.row_stride, a.storage};
  pack_pairs(tiles, {0, sizes.m, sizes.k}, turned, 0, sizes.m, panels);
  const std::int64_t whole = sizes.k / kUnitDepth, left = sizes.k % kUnitDepth;
  alignas(64) std::array<Brain, kPanelRows * kUnitDepth> edge;
  alignas(64) std::array<float, kPanelRows * kUnitColumns> sums;
  unit.begin();
  for (std::int64_t i = 0; i < sizes.n; i += kPanelRows) {
    const std::int64_t rows = std::min(kPanelRows, sizes.n - i);
    const auto* from = reinterpret_cast<const Brain*>(element(b, 0, i));
    // Registers take 16 rows: of a copy where there are not so many, or the last step is not whole.
    const bool some = rows % kUnitRows != 0;
    if (some) {
      unit.arrange(from, b.column_stride, rows, sizes.k, copied);
    } else if (left > 0) {
      unit.arrange(from + whole * kUnitDepth, b.column_stride, rows, left, edge.data());
    }
    for (std::int64_t j = 0; j < sizes.m; j += kUnitColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes.m - j);
      UnitBlock block{some ? copied : from,
                      some ? kUnitDepth : b.column_stride,
                      some ? kUnitElements : kUnitDepth,
                      some ? depth * kUnitRows : kUnitRows * b.column_stride,
                      panels + j / kUnitColumns * panel,
                      some ? depth / kUnitDepth : whole,
                      sums.data(),
                      kUnitColumns,
                      rows,
                      columns,
                      false,
                      {},
                      nullptr};
      if (block.steps > 0) (some ? unit.multiply : unit.multiply_far)(block);
      if (!some && left > 0) {
        block.add = whole > 0;
        block.a = edge.data();
        block.a_stride = kUnitDepth;
        block.a_next = kUnitElements;
        block.b += whole * kUnitDepth * kUnitColumns;
        block.steps = 1;
        unit.multiply(block);
      }
      tiles.transpose[index(Storage::kF32)](sums.data(), kUnitColumns, c + j * c_stride + i,
                                            c_stride, columns, rows);
    }
  }
  unit.end();
}

}  // namespace tilevm::exec::gemm
