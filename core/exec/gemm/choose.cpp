#include <optional>

#include "exec/gemm/brain.h"
#include "exec/gemm/factors.h"
#include "exec/gemm/library.h"
#include "exec/gemm/lines.h"
#include "exec/gemm/multiply.h"
#include "exec/gemm/units.h"

namespace tilevm::exec::gemm {
namespace {

// So many bytes come from memory, which is quicker in the huge pages of what is packed ahead.
constexpr std::int64_t kHugeBytes = 2 << 20;
// Up to how many rows of A packing B costs more than it saves.
constexpr std::int64_t kTileRows = 256;
constexpr std::int64_t kDotRows = 128;
constexpr std::int64_t kPairDotRows = 64;
constexpr std::int64_t kSweepsBeforePacking = 16;
constexpr std::int64_t kPairDotsAhead = 3;  // if it costs nothing
// The same where there are units.h.
constexpr std::int64_t kSweepsBeforeUnits = 8;
constexpr std::int64_t kPairDotsBeforeUnits = 2;
constexpr std::int64_t kPairsAsTheyLie = 2;  // from memory, also where they could be packed ahead
constexpr std::int64_t kTurnedRows = 96;
constexpr std::int64_t kLongTurnedRows = 192;  // ... of more than kLongTurned elements
constexpr std::int64_t kLongTurned = 1024;
constexpr std::int64_t kPassedRows = 256;  // a block's
constexpr std::int64_t kTurnedDepth = 192;  // below, turning the sums costs more than it saves
constexpr std::int64_t kTurnedPassed = 1 << 18;  // elements; fewer stay in a cache when packed

// From how many rows and columns on a product of float32 is quicker in pieces of bfloat16: where
// many rows meet many columns, since it costs to make them.
struct Crossings {
  std::int64_t rows;
  std::int64_t rows_ahead;  // B being packed already
  std::int64_t columns;
  std::int64_t few_columns, many_rows, deep;  // ... of many rows and long sums
  // Up to kPassedRows rows, B is split as it is used; by whether its columns or rows are
  // contiguous.
  std::int64_t passed_columns, passed_rows;
};
constexpr Crossings kCrossings[kMostPieces] = {{32, 3, 96, 32, 64, 64, 24, 24},
                                               {64, 12, 96, 48, 128, 64, 40, 32},
                                               {96, 40, 96, 64, 128, 256, 48, 64}};

std::optional<Way> in_pieces(const Tiles& tiles, const Sizes& sizes, const Matrix& a,
                             const Matrix& b, bool ahead, bool once) {
  if (a.storage != b.storage || tiles.units == nullptr) return std::nullopt;
  const bool halves = a.storage == Storage::kF16 && tiles.units->pieces == kHighPieces;
  if (a.storage != Storage::kF32 && !halves) return std::nullopt;
  const Crossings& from = kCrossings[tiles.units->pieces - 1];
  const bool plain = a.windows == nullptr && b.count_taps() == 1;
  const bool wide = sizes.n >= from.columns || (plain && sizes.n >= from.few_columns &&
                                                sizes.m >= from.many_rows && sizes.k >= from.deep);
  if (!wide || sizes.k < kUnitDepth) return std::nullopt;
  const bool turned = b.row_stride == 1;
  const bool passes = turned ? sizes.m >= from.passed_columns && sizes.k >= kTurnedDepth &&
                                   sizes.n * sizes.k >= kTurnedPassed
                             : sizes.m >= from.passed_rows;
  if (plain && once && !ahead && passes && sizes.m <= kPassedRows) return Way::kPieces;
  if (sizes.m >= (ahead ? from.rows_ahead : from.rows)) return Way::kPackedPieces;
  return std::nullopt;
}

}  // namespace

// Measured with core/bench/gemm_bench.cpp on AMD Zen 4, what is by units.h on an Intel Xeon; the
// crossings are flat. Where B is packed ahead, that is quicker from a few rows on, but for narrower
// storages: what they become as float32 is as quick in a cache, and slower where B comes from
// memory.
Way choose_ours(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                bool ahead, bool once) {
  if (a.windows != nullptr && a.windows->depthwise) return Way::kEach;
  if (b.windows != nullptr) return Way::kWindows;
  const bool pairs = a.storage == Storage::kBF16 && b.storage == Storage::kBF16 &&
                     tiles.lanes == 16 && brain_tiles() != nullptr;
  if (pairs) {
    if (b.count_taps() > 1) return Way::kPackedPairs;
    const bool rows = b.column_stride == 1 && sizes.n > 1;
    if (tiles.units != nullptr) {
      if (ahead && (sizes.m > kPairsAsTheyLie || 2 * sizes.n * sizes.k < kHugeBytes))
        return Way::kPackedPairs;
      if (rows && sizes.m <= kSweepsBeforeUnits) return Way::kSweep;
      const std::int64_t turned = sizes.k > kLongTurned ? kLongTurnedRows : kTurnedRows;
      if (rows || b.row_stride != 1 || sizes.m > turned || a.windows != nullptr)
        return Way::kPackedPairs;
      const std::int64_t dots = sizes.k >= 128 ? kPairDotsBeforeUnits : 1;
      return sizes.m <= dots ? Way::kPairDots : Way::kTurnedPairs;
    }
    if (ahead && (rows || sizes.m > kPairDotsAhead || 2 * sizes.n * sizes.k >= kHugeBytes))
      return Way::kPackedPairs;
    if (rows && sizes.m <= kMostSweeps) return Way::kSweep;
    if (!rows && b.row_stride == 1 && sizes.k >= (sizes.m <= kMostSweeps ? 32 : 128) &&
        sizes.m <= kPairDotRows)
      return Way::kPairDots;
    return Way::kPackedPairs;
  }
  if (const auto way = in_pieces(tiles, sizes, a, b, ahead, once)) return *way;
  if (b.count_taps() > 1) return Way::kPacked;
  if (a.windows != nullptr && reads_lines(*a.windows)) return Way::kPacked;
  const std::int64_t item = bytecode::storage_bytes(b.storage);
  const std::int64_t m = sizes.m;
  const bool huge = sizes.n * sizes.k * item >= kHugeBytes && tiles.units == nullptr;
  if (ahead && b.storage == Storage::kF32 && (m > kMostSweeps || huge)) return Way::kPacked;
  // Of one column a tile would use one lane; the sums of dots are shorter, too.
  if (sizes.n == 1 && b.row_stride == 1 && sizes.k >= tiles.lanes) return Way::kDots;
  if (b.column_stride == 1 || (sizes.n == 1 && b.row_stride != 1)) {
    // Rows of B a multiple of 4 KiB apart are each on a page of their own, in few sets of a cache.
    const bool apart = b.row_stride * item % 4096 == 0 && sizes.k >= 256;
    if (m <= kMostSweeps) return Way::kSweep;
    if (b.storage == Storage::kF32 && m <= (apart ? kTileRows / 2 : kTileRows) &&
        sizes.n >= tiles.columns)
      return Way::kTiles;
    if (m <= kSweepsBeforePacking) return Way::kSweep;
  } else if (b.row_stride == 1 || sizes.k == 1) {
    if (m <= kMostDots && (m <= 4 || sizes.k >= 128)) return Way::kDots;
    if (m <= kDotRows && sizes.k >= 256) return Way::kDots;
  }
  return Way::kPacked;
}

Way choose(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b, bool ahead,
           bool once) {
  if (prefers_library(tiles, sizes, a, b, ahead)) return Way::kLibrary;
  return choose_ours(tiles, sizes, a, b, ahead, once);
}

}  // namespace tilevm::exec::gemm
