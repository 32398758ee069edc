// Micro-kernels for processors with registers of 16 rows of 64 bytes (Intel AMX): an instruction
// adds the 16 x 16 sums of 32 products of bfloat16 each, in float32; denormals count as zero.
//
// A float32 is the sum of three of bfloat16: high, middle, low, each the rounded rest. Of their
// nine products, six are as precise as one of float32, the other three being below half a unit
// in its last place. They are added from small to large, so that a sum is rounded as often as one
// of float32 is. What an exponent is in the way of is told by ranges. Who asks for less has three
// products of two pieces, of 16 bits, or one of one piece, of 8.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "exec/gemm/brain.h"

namespace tilevm::exec::gemm {

inline constexpr int kUnitRows = 16;   // of a register
inline constexpr int kUnitDepth = 32;  // bfloat16 of a row of one
inline constexpr int kUnitElements = kUnitRows * kUnitDepth;
inline constexpr int kUnitColumns = 32;  // of a panel: those of two registers

// Magnitudes, as bits, of float32 that are not zero.
struct Range {
  std::uint32_t least = UINT32_MAX;
  std::uint32_t most = 0;
  bool zeros = false;  // there are some, too

  void add(const Range& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    zeros = zeros || other.zeros;
  }
};

inline int exponent(std::uint32_t magnitude) { return static_cast<int>(magnitude >> 23) - 127; }

// (Standard libraries differ in whether this is signed, as sums of exponents must be.)
inline int bits_of(std::int64_t k) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(k)));
}

// Nothing is infinite or NaN, and no piece or sum of k products overflows. (The high piece of a
// larger one may be infinite, which zero must not meet either.)
inline bool none_overflows(const Range& a, const Range& b, std::int64_t k) {
  const int terms = bits_of(k);
  return exponent(a.most) < 127 && exponent(b.most) < 127 &&
         exponent(a.most) + exponent(b.most) + terms < 126;
}

// Whether sums of k products of what is in these ranges are computed by pieces as by float32: none
// overflows, and none that counts is a denormal, which registers take for 0.
inline bool in_pieces(const Range& a, const Range& b, std::int64_t k) {
  if (a.most == 0 || b.most == 0) return exponent(a.most) < 127 && exponent(b.most) < 127;
  constexpr int kLeast = -102;    // the last bit of it is a power of 2 that is no denormal
  constexpr int kProduct = -100;  // what is lost of smaller ones may be half a unit
  return none_overflows(a, b, k) && exponent(a.least) >= kLeast && exponent(b.least) >= kLeast &&
         exponent(a.least) + exponent(b.least) >= kProduct;
}

// Whether what is lost is nothing beside the product of the row's largest element, which no zero
// meets: a quarter of a unit, at most. Of attention's probabilities, some are as small as floats
// can be, beside one that is not.
inline bool lost_beside(const Range& row, const Range& b, std::int64_t k) {
  if (b.zeros || row.most == 0 || !none_overflows(row, b, k)) return false;
  // Of a term, each factor may lose pieces below 2^-126, and each product of pieces is no denormal.
  constexpr int kOfTerm = -121, kQuarter = -26;
  const int terms = bits_of(k);
  const int lost = terms + kOfTerm + std::max({exponent(row.most), exponent(b.most), 0});
  return lost <= exponent(row.most) + exponent(b.least) + kQuarter;
}

// Whether pieces tell the products of a row and the columns of a panel.
inline bool pieces_tell(const Range& row, const Range& b, std::int64_t k) {
  return in_pieces(row, b, k) || lost_beside(row, b, k);
}

// Sums of pieces, 32 to a row, that are to be put to c, or added to what it holds.
struct UnitSums {
  const float* sums;
  float* c;  // rows x columns, rows contiguous
  std::int64_t c_stride;
  std::int64_t rows, columns;
  bool add;
  bool turned;  // c is the transpose of sums
};

// Cache lines that are fetched into the second cache while a block runs: some a step, two side by
// side in each of some rows.
struct UnitAhead {
  const std::byte* from = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t step_bytes = 0;  // from a step's to the next step's
  int rows = 0;
};

// Up to 32 x 32 of a product. Arranged rows of A are, for each step of 32 elements, a register of
// 16 rows (of float32: one for each piece). A panel has, for each step, 16 pairs of rows of B of 32
// columns: the elements of a pair side by side (of float32: once for each piece; there pairs are
// those of elements i and 16 + i, in registers of A, too).
struct UnitBlock {
  const Brain* a;
  std::int64_t a_stride;  // elements from a row to the next
  std::int64_t a_step;    // ... from a step to the next; of arranged pieces
  std::int64_t a_next;    // ... from 16 rows to the next 16, if there are more
  const Brain* b;         // a panel
  std::int64_t steps;
  float* c;  // rows contiguous
  std::int64_t c_stride;
  std::int64_t rows, columns;
  bool add;  // to what c holds
  UnitAhead ahead;
  // What is put meanwhile, or null: registers would wait for a block's sums to be added.
  const UnitSums* before;
};

struct Units {
  int pieces;  // of a float32
  // On the thread that runs blocks, before the first and after the last of them.
  void (*begin)();
  void (*end)();
  void (*multiply)(const UnitBlock& block);         // bfloat16
  void (*multiply_far)(const UnitBlock& block);     // ... where a is to be fetched ahead
  // float32. c is 32 x 32, of which nothing is kept.
  void (*multiply_pieces)(const UnitBlock& block);
  void (*put)(const UnitSums& sums);
  // Rows of registers from rows x depth of A; what is behind depth is zero.
  void (*arrange)(const Brain* from, std::int64_t from_stride, std::int64_t rows,
                  std::int64_t depth, Brain* to);
  // Ranges of rows x depth of float32 are widened.
  void (*measure)(const float* from, std::int64_t from_stride, std::int64_t rows,
                  std::int64_t depth, Range* ranges);
  // As arrange(), of float32, whose ranges are widened, too.
  void (*split)(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t depth,
                Brain* to, Range* ranges);
  // A step of a panel: 32 rows of B of 32 columns; returns their range.
  Range (*split_panel)(const float* from, std::int64_t from_stride, Brain* to);
};

// Those that make so many pieces. Null where the processor or the system has no such registers.
const Units* units(int pieces = kMostPieces);

}  // namespace tilevm::exec::gemm
