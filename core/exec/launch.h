// What a tier needs to run a kernel once: extents, and an address with strides for each operand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bytecode/bytecode.h"

namespace tilevm::exec {

inline constexpr int kMaxOuter = 6;

// The iteration space, after axes were permuted and collapsed (schedule/layout.h):
//   for o in outer (odometer, kept axes)
//     for blocks of the kept block axes:  section code;
//       each pass:  for r in reduced (odometer)  for blocks of the reduced block axes:  body
// rows (y) are kept unless fold has kRows; columns (x) are kept unless fold has kColumns.
struct Space {
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  int n_outer = 0;
  int n_reduced = 0;
  std::int64_t outer[kMaxOuter] = {};
  std::int64_t reduced[kMaxOuter] = {};
};

// Strides are in bytes (iota: in counts; `base` is not used, `start` is the first value).
// Scratch operands need no binding; the tier lays them out.
struct Binding {
  std::byte* base = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t x_stride = 0;
  std::int64_t outer[kMaxOuter] = {};
  std::int64_t reduced[kMaxOuter] = {};
  std::int64_t gather_stride = 0;  // bytes between neighbours on the gathered axis
  std::int64_t gather_size = 0;    // valid indices are 0 .. gather_size - 1
  std::int64_t start = 0;          // iota
};

enum class Status : std::uint8_t { kOk, kIndexOutOfRange, kDivisionByZero, kNoMemory, kBadProgram };

// Rows or the first outer axis may be restricted by the caller, by moving bases and cutting
// extents, to spread a launch over threads; every tier is re-entrant on different scratch.
struct Launch {
  Space space;
  std::span<const Binding> bindings;  // one per entry of the program's operand table
};

}  // namespace tilevm::exec
