// A chain's launch with fewer axes, columns or rows, and what is decided before it runs.
#pragma once

#include "schedule/chain.h"

namespace tilevm::schedule {

// What passes between stages stays in the second cache.
inline constexpr std::int64_t kPanelBytes = 256 << 10;
// By AMX, so much of a factor is packed at a time. For each part, the left factor is read again, or
// split again, and that costs more than what comes from the last cache.
inline constexpr std::int64_t kPackedUnitBytes = 2 << 20;
// The most rows of an item of products by AMX.
inline constexpr std::int64_t kUnitBlockRows = 256;

// Fewer axes, where that changes nothing: no axes of size 1 but the rows, and no neighbours that
// are one run. A batch that shares its right factors is rows.
void simplify(ChainLaunch& launch);

// Columns first .. first + n of a launch that may be divided so.
void narrow(ChainLaunch& launch, const exec::gemm::Tiles& tiles, std::int64_t first,
            std::int64_t n);

// Of a launch with one axis of rows: rows first .. first + n.
void narrow_rows(ChainLaunch& launch, std::int64_t first, std::int64_t n);

// The factors without the product's first columns.
inline void skip_columns(exec::gemm::Matrix& a, exec::gemm::Matrix& b, std::int64_t count) {
  if (b.windows != nullptr) {
    b.first_column += count;
  } else {
    b.data += count * b.column_stride * bytecode::storage_bytes(b.storage);
  }
  if (a.windows != nullptr && a.windows->depthwise)
    a.data += count * a.windows->channel_stride * bytecode::storage_bytes(a.storage);
}

// The operand some bytes further (iota: counts).
inline void move(OperandView& view, std::int64_t by) {
  if (view.base != nullptr) {
    view.base += by;
  } else {
    view.start += by;
  }
}

}  // namespace tilevm::schedule
