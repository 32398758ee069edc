// Where the axes of a kernel go at one launch: outer loops, reduced loops, rows, columns.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/launch.h"
#include "fuse/plan.h"

namespace tilevm::schedule {

struct OperandView;

// Class of layouts: all that the encoded program depends on. One byte an operand: bit 0 varies
// along columns, bit 1 along rows, bit 2 columns are contiguous; then the fold.
struct LayoutClass {
  std::array<std::uint8_t, 256> operand{};
  int n_operands = 0;
  bytecode::Fold fold = bytecode::Fold::kNone;
  friend bool operator==(const LayoutClass& a, const LayoutClass& b) {
    return a.n_operands == b.n_operands && a.fold == b.fold &&
           std::equal(a.operand.begin(), a.operand.begin() + a.n_operands, b.operand.begin());
  }
};

struct Layout {
  exec::Space space;
  LayoutClass cls;
  bool empty = false;  // some kept axis has no extent: nothing runs
};

// Drops axes of size 1, sorts by stride, merges neighbours that are one run in every operand, and
// picks columns: the axis along which most operands are contiguous. Fills `bindings` (one each
// operand). Same result for the same sizes and strides. `lanes`: float32 of a register, where
// machine code is to run. `whole`: of kept axes, of what sizes these are parts, since how elements
// are folded must not depend on that; empty: of themselves.
Layout lay_out(const fuse::KernelGraph& graph, std::span<const std::int64_t> axis_sizes,
               std::span<const OperandView> operands, std::span<exec::Binding> bindings,
               int lanes = 0, std::span<const std::int64_t> whole = {});

}  // namespace tilevm::schedule
