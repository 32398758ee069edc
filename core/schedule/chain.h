// Matrix products and kernels that run together: some rows at a time, through all stages.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/gemm/multiply.h"
#include "schedule/kernel.h"

namespace tilevm::schedule {

inline constexpr int kMaxRows = kMaxRank;

// Byte strides along the rows of a chain.
using RowStrides = std::array<std::int64_t, kMaxRows>;

// One stage at a launch: a product, or a kernel.
struct Stage {
  Kernel* kernel = nullptr;

  // Of a product. Strides of rows in bytes; those of b along the last row axis are 0.
  exec::gemm::Matrix a{}, b{};  // without batches: m x k and k x n, strides in elements
  RowStrides a_rows{}, b_rows{}, out_rows{};
  exec::gemm::Windows
      windows{};             // a.windows points here, and a_rows counts rows; or b.windows does
  std::byte* out = nullptr;  // float32
  std::int64_t out_column = 0;
  std::int64_t n = 0, k = 0;
  bool fixed = false;             // b does not change, so that it may be packed ahead
  const float* packed = nullptr;  // b, if it was
  bool once = true;               // all rows that meet b do so at a time
  exec::gemm::Sizes sizes{};      // of the last launch, and how it was computed
  exec::gemm::Way way{};
  int a_panel = -1, out_panel = -1;  // that a is, that the product goes to: index of panels

  // Of a kernel, as Kernel::run takes them; `panel`: by operand, which panel it is, or -1.
  std::vector<std::int64_t> axis_sizes;
  std::vector<OperandView> operands;
  std::vector<int> panel;
  std::array<std::int8_t, kMaxRows> row_axis{};
  int column_axis = -1;
};

// What passes between two stages: rows of `columns` elements.
struct Panel {
  std::int64_t columns = 0;
  int item_bytes = 4;
};

struct ChainLaunch {
  std::vector<Stage> stages;
  std::vector<Panel> panels;
  std::array<std::int64_t, kMaxRows> rows{};
  int n_rows = 0;
  bool columns_too = false;  // as fuse::Chain
  // As in causal attention: of what the products before stage `masks` make, row i needs columns up
  // to i + causal; what that kernel makes of others is zero. INT64_MAX: all of them.
  std::int64_t causal = INT64_MAX;
  std::size_t masks = 0;
  bool passes = false;  // right factors are split for each item; see Way::kPieces
  const exec::gemm::Tiles* tiles = nullptr;  // that it was prepared for
};

// Fewer axes, and how each product is computed: what does not depend on threads. A product whose
// way packs and whose right factor is fixed may be given what was packed ahead.
void prepare(ChainLaunch& launch, const exec::gemm::Tiles& tiles) noexcept;
// The way of a product whose right factor is not packed ahead after all.
void choose_way(Stage& stage, const exec::gemm::Tiles& tiles) noexcept;

// The micro-kernels for a tier (none: what is set) and float32 in so many pieces; see
// exec/gemm/units.h.
const exec::gemm::Tiles& tiles_of(std::optional<Tier> tier,
                                  int pieces = exec::gemm::kMostPieces) noexcept;

// Runs what was prepared, on up to `threads` threads. Results do not depend on their number, nor on
// how rows are divided. Changes the launch: what it says is used up. What one thread did is noted
// on `tape`, if there is one.
exec::Status run_chain(ChainLaunch& launch, const exec::gemm::Tiles& tiles, int threads,
                       Tape* tape = nullptr) noexcept;

// Floating-point operations of the launch's products.
double flops(const ChainLaunch& launch) noexcept;

}  // namespace tilevm::schedule
