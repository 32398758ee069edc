#include "exec/gemm/pieces.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "exec/gemm/arranged.h"

namespace tilevm::exec::gemm {
namespace {

// Of k, at a time: pieces of 32 rows or columns are then read from the second cache, as are those
// of all rows of A, and sums are not too long.
constexpr std::int64_t kPieceDepth = 256;

// A step of a panel: elements p .. p + depth of columns j .. j + columns; what is behind is zero.
Range split_step(const Tiles& tiles, const Matrix& b, std::int64_t p, std::int64_t j,
                 std::int64_t depth, std::int64_t columns, Brain* to) {
  const Units& unit = *tiles.units;
  const bool whole = depth == kUnitDepth && columns == kUnitColumns;
  if (whole && b.column_stride == 1 && b.storage == Storage::kF32) {
    const auto* from = reinterpret_cast<const float*>(element(b, p, j));
    return unit.split_panel(from, b.row_stride, to);
  }
  alignas(64) std::array<float, kUnitDepth * kUnitColumns> block;
  if (!whole) block.fill(0.0f);
  take(tiles, b, p, j, depth, columns, block.data(), kUnitColumns);
  return unit.split_panel(block.data(), kUnitColumns, to);
}

}  // namespace

void Mending::take_columns(std::int64_t p, std::int64_t j, std::int64_t depth,
                           std::int64_t columns) const {
  if (b_.count_taps() == 1) return take(tiles_, b_, p, j, depth, columns, room_, kUnitColumns);
  for (std::int64_t q = 0; q < depth; ++q) {
    for (std::int64_t i = 0; i < columns; ++i)
      room_[q * kUnitColumns + i] = read(element(b_, p + q, j + i), tiles_, b_.storage);
  }
}

void pack_pieces(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                 std::int64_t count, float* packed) {
  const std::int64_t panel = panel_elements(tiles, Way::kPackedPieces, sizes.k);
  const std::int64_t steps = parts(sizes.k, kUnitDepth);
  for (std::int64_t j = first; j < first + count; j += kUnitColumns) {
    float* const to = packed + j / kUnitColumns * panel;
    const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes.n - j);
    // Taps are packed as float32 at the end of the panel, in front of which pieces then grow.
    const std::int64_t rows = steps * kUnitDepth;
    float* const floats = to + panel - rows * kUnitColumns;
    const bool taps = b.count_taps() > 1;
    if (taps) pack_taps(tiles, sizes, b, j, columns, floats - j * sizes.k);
    alignas(64) std::array<float, kUnitDepth * kUnitColumns> step;
    const Matrix of_step{reinterpret_cast<const std::byte*>(step.data()), kUnitColumns, 1,
                         Storage::kF32};
    Range range;
    for (std::int64_t s = 0; s < steps; ++s) {
      const std::int64_t p = s * kUnitDepth;
      const std::int64_t depth = std::min<std::int64_t>(kUnitDepth, sizes.k - p);
      auto* const target =
          reinterpret_cast<Brain*>(to) + s * tiles.units->pieces * 2 * kUnitElements;
      if (!taps) {
        range.add(split_step(tiles, b, p, j, depth, columns, target));
        continue;
      }
      std::memcpy(step.data(), floats + p * kUnitColumns, at(depth * kUnitColumns) * sizeof(float));
      range.add(split_step(tiles, of_step, 0, 0, depth, kUnitColumns, target));
    }
    std::memcpy(to + panel - kRangeElements, &range, sizeof(range));
  }
}

namespace {

// Rows of A, which are few, meet B, which goes by once: for some of k, A is split, and then as much
// of B at a time as registers take.
class Passing {
 public:
  Passing(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b, float* room,
          float* c, std::int64_t c_stride)
      : tiles_(tiles),
        unit_(*tiles.units),
        sizes_(sizes),
        a_(a),
        b_(b),
        c_(c),
        c_stride_(c_stride),
        turned_(turned(b)),
        blocks_(*tiles.units) {
    const Room parts_of(tiles, sizes);
    few_ = reinterpret_cast<Brain*>(room);
    passing_ = reinterpret_cast<Brain*>(room + parts_of.few);
    copied_ = room + parts_of.few + parts_of.passing;
    row_ranges_ = reinterpret_cast<Range*>(copied_ + parts_of.copied);
    panel_ranges_ = row_ranges_ + sizes.m;
  }

  // Columns of B that are contiguous become rows of registers, which are not to be transposed. Then
  // A is the panels, and the product is transposed.
  static bool turned(const Matrix& b) { return b.row_stride == 1 && b.column_stride != 1; }

  // Where things lie, in elements of float32.
  struct Room {
    std::int64_t few, passing, copied, ranges;
    Room(const Tiles& tiles, const Sizes& sizes) {
      const std::int64_t depth = rounded_up(std::min(sizes.k, kPieceDepth), kUnitDepth);
      few = rounded_up(sizes.m, kUnitColumns) * depth * tiles.units->pieces / 2;
      passing = kUnitColumns * depth * tiles.units->pieces / 2;
      copied = std::max(rounded_up(sizes.m, kUnitColumns) * (depth + 16), Mending::room(tiles));
      ranges =
          parts((sizes.m + parts(sizes.n, kUnitColumns)) * static_cast<std::int64_t>(sizeof(Range)),
                sizeof(float));
    }
    std::int64_t all() const { return few + passing + copied + ranges; }
  };

  void run() {
    std::fill_n(row_ranges_, sizes_.m, Range{});
    std::fill_n(panel_ranges_, parts(sizes_.n, kUnitColumns), Range{});
    const std::int64_t step = rounded_up(even(sizes_.k, kPieceDepth), kUnitDepth);
    unit_.begin();
    for (std::int64_t p = 0; p < sizes_.k; p += step)
      turned_ ? pass_rows(p, std::min(step, sizes_.k - p))
              : pass_panels(p, std::min(step, sizes_.k - p));
    unit_.end();
    blocks_.finish();
    mend();
  }

 private:
  std::int64_t elements(std::int64_t depth) const {  // of 16 rows
    return parts(depth, kUnitDepth) * kUnitElements * unit_.pieces;
  }

  struct Rows {
    const float* data;
    std::int64_t stride;
  };
  // Where they lie, or a copy.
  Rows rows_of(const Matrix& x, std::int64_t i, std::int64_t rows, std::int64_t p,
               std::int64_t depth) {
    if (x.column_stride == 1 && x.storage == Storage::kF32)
      return {reinterpret_cast<const float*>(element(x, i, p)), x.row_stride};
    const std::int64_t stride = rounded_up(depth, kUnitDepth) + 16;
    take(tiles_, x, i, p, rows, depth, copied_, stride);
    return {copied_, stride};
  }
  Range split_columns(const Matrix& x, std::int64_t p, std::int64_t depth, std::int64_t j,
                      std::int64_t columns, Brain* to) {
    Range range;
    for (std::int64_t q = 0; q < depth; q += kUnitDepth, to += unit_.pieces * 2 * kUnitElements)
      range.add(split_step(tiles_, x, p + q, j, std::min<std::int64_t>(kUnitDepth, depth - q),
                           columns, to));
    return range;
  }

  UnitBlock block(const Brain* rows, const Brain* panel, std::int64_t depth) const {
    UnitBlock block{};
    block.a = rows;
    block.a_stride = kUnitDepth;
    block.a_step = kUnitElements * unit_.pieces;
    block.a_next = elements(depth);
    block.b = panel;
    block.steps = parts(depth, kUnitDepth);
    return block;
  }

  void pass_panels(std::int64_t p, std::int64_t depth) {
    const Rows rows = rows_of(a_, 0, sizes_.m, p, depth);
    unit_.split(rows.data, rows.stride, sizes_.m, depth, few_, row_ranges_);
    for (std::int64_t j = 0; j < sizes_.n; j += kUnitColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes_.n - j);
      panel_ranges_[j / kUnitColumns].add(split_columns(b_, p, depth, j, columns, passing_));
      for (std::int64_t i = 0; i < sizes_.m; i += kUnitColumns) {
        UnitBlock one = block(few_ + i / kUnitRows * elements(depth), passing_, depth);
        one.c = c_ + i * c_stride_ + j;
        one.c_stride = c_stride_;
        one.rows = std::min<std::int64_t>(kUnitColumns, sizes_.m - i);
        one.columns = columns;
        one.add = p > 0;
        blocks_.run(one, false);
      }
    }
  }

  void pass_rows(std::int64_t p, std::int64_t depth) {
    // Of the transposed product.
    const Matrix left{a_.data, a_.column_stride, a_.row_stride, a_.storage};
    const Matrix right{b_.data, b_.column_stride, b_.row_stride, b_.storage};
    const std::int64_t panel = 2 * elements(depth);
    for (std::int64_t i = 0; i < sizes_.m; i += kUnitColumns)
      split_columns(left, p, depth, i, std::min<std::int64_t>(kUnitColumns, sizes_.m - i),
                    few_ + i / kUnitColumns * panel);
    const Rows of_a = rows_of(a_, 0, sizes_.m, p, depth);
    unit_.measure(of_a.data, of_a.stride, sizes_.m, depth, row_ranges_);
    for (std::int64_t j = 0; j < sizes_.n; j += kUnitColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes_.n - j);
      const Rows rows = rows_of(right, j, columns, p, depth);
      std::array<Range, kUnitColumns> ranges;
      unit_.split(rows.data, rows.stride, columns, depth, passing_, ranges.data());
      for (std::int64_t i = 0; i < columns; ++i) panel_ranges_[j / kUnitColumns].add(ranges[at(i)]);
      for (std::int64_t i = 0; i < sizes_.m; i += kUnitColumns) {
        UnitBlock one = block(passing_, few_ + i / kUnitColumns * panel, depth);
        one.c = c_ + i * c_stride_ + j;
        one.c_stride = c_stride_;
        one.rows = columns;
        one.columns = std::min<std::int64_t>(kUnitColumns, sizes_.m - i);
        one.ahead = next_rows(p, depth, j, i);
        one.add = p > 0;
        blocks_.run(one, true);
      }
    }
  }

  // Rows that pass next, a part for each block of A.
  UnitAhead next_rows(std::int64_t p, std::int64_t depth, std::int64_t j, std::int64_t i) const {
    j += kUnitColumns;
    if (j >= sizes_.n) {
      j = 0;
      p += depth;
    }
    if (p >= sizes_.k) return {};
    const std::int64_t rows = parts(kUnitColumns, parts(sizes_.m, kUnitColumns));
    const std::int64_t bytes = b_.column_stride * bytecode::storage_bytes(b_.storage);
    const std::int64_t step = kUnitDepth * bytecode::storage_bytes(b_.storage);
    return {element(b_, p, j + i / kUnitColumns * rows), bytes, step, static_cast<int>(rows)};
  }

  void mend() {
    Range all;
    for (std::int64_t i = 0; i < sizes_.m; ++i) all.add(row_ranges_[i]);
    const Mending mending{tiles_, sizes_.k, a_, b_, copied_};
    for (std::int64_t j = 0; j < sizes_.n; j += kUnitColumns) {
      const Range& of = panel_ranges_[j / kUnitColumns];
      if (in_pieces(all, of, sizes_.k)) continue;
      const std::int64_t columns = std::min<std::int64_t>(kUnitColumns, sizes_.n - j);
      mending.panel(0, sizes_.m, j, columns, c_ + j, c_stride_,
                    [&](std::int64_t i) { return !pieces_tell(row_ranges_[i], of, sizes_.k); });
    }
  }

  const Tiles& tiles_;
  const Units& unit_;
  const Sizes& sizes_;
  const Matrix& a_;
  const Matrix& b_;
  float* c_;
  std::int64_t c_stride_;
  bool turned_;
  PieceBlocks blocks_;
  Brain* few_;      // pieces of A
  Brain* passing_;  // ... of as much of B as registers take
  float* copied_;
  Range* row_ranges_;
  Range* panel_ranges_;
};

}  // namespace

std::int64_t pieces_room(const Tiles& tiles, const Sizes& sizes) {
  return Passing::Room(tiles, sizes).all();
}

void multiply_pieces(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     float* room, float* c, std::int64_t c_stride) {
  Passing(tiles, sizes, a, b, room, c, c_stride).run();
}

}  // namespace tilevm::exec::gemm
