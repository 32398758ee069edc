#include "schedule/chain_axes.h"

#include <algorithm>

namespace tilevm::schedule {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Axis i disappears: `to`, an axis that stays, stands for both.
void drop_axis(ChainLaunch& launch, int i, int to, bool take_strides) {
  const auto erase = [&](auto& list, auto fill) {
    if (take_strides) list[at(to)] = list[at(i)];
    std::copy(list.begin() + i + 1, list.begin() + launch.n_rows, list.begin() + i);
    list[at(launch.n_rows - 1)] = fill;
  };
  for (Stage& stage : launch.stages) {
    if (stage.kernel != nullptr) {
      const int gone = stage.row_axis[at(take_strides ? to : i)];
      if (gone >= 0) stage.axis_sizes[at(gone)] = 1;
      erase(stage.row_axis, std::int8_t{-1});
    } else {
      erase(stage.a_rows, std::int64_t{0});
      erase(stage.b_rows, std::int64_t{0});
      erase(stage.out_rows, std::int64_t{0});
    }
  }
  std::copy(launch.rows.begin() + i + 1, launch.rows.begin() + launch.n_rows,
            launch.rows.begin() + i);
  --launch.n_rows;
}

// Whether axes i and i + 1 are one run in everything that is not a panel.
bool one_run(const ChainLaunch& launch, int i) {
  const std::int64_t size = launch.rows[at(i + 1)];
  const auto run = [&](std::int64_t outer, std::int64_t inner) { return outer == inner * size; };
  return std::ranges::all_of(launch.stages, [&](const Stage& stage) {
    if (stage.kernel == nullptr) {
      return (stage.a_panel >= 0 || run(stage.a_rows[at(i)], stage.a_rows[at(i + 1)])) &&
             run(stage.b_rows[at(i)], stage.b_rows[at(i + 1)]) &&
             (stage.out_panel >= 0 || run(stage.out_rows[at(i)], stage.out_rows[at(i + 1)]));
    }
    const int outer = stage.row_axis[at(i)], inner = stage.row_axis[at(i + 1)];
    if (outer < 0 || inner < 0) return false;
    for (std::size_t o = 0; o < stage.operands.size(); ++o) {
      const OperandView& view = stage.operands[o];
      if (stage.panel[o] < 0 && !run(view.stride[at(outer)], view.stride[at(inner)])) return false;
    }
    return true;
  });
}

}  // namespace

void simplify(ChainLaunch& launch) {
  for (int i = launch.n_rows - 2; i >= 0; --i) {
    if (launch.rows[at(i)] == 1) drop_axis(launch, i, i + 1, false);
  }
  while (launch.n_rows > 1 && launch.rows[at(launch.n_rows - 1)] == 1) {
    const int i = launch.n_rows - 2;
    if (!std::ranges::all_of(launch.stages, [i](const Stage& stage) {
          return stage.kernel != nullptr || stage.b_rows[at(i)] == 0;
        }))
      break;
    launch.rows[at(i + 1)] = launch.rows[at(i)];
    drop_axis(launch, i, i + 1, true);
  }
  for (int i = launch.n_rows - 2; i >= 0; --i) {
    if (!one_run(launch, i)) continue;
    const std::int64_t size = launch.rows[at(i)] * launch.rows[at(i + 1)];
    launch.rows[at(i + 1)] = size;
    for (Stage& stage : launch.stages) {
      if (stage.kernel == nullptr) continue;
      const int inner = stage.row_axis[at(i + 1)];
      if (inner >= 0) stage.axis_sizes[at(inner)] = size;
    }
    drop_axis(launch, i, i + 1, false);
  }
}

void choose_way(Stage& stage, const exec::gemm::Tiles& tiles) noexcept {
  stage.way = choose(tiles, stage.sizes, stage.a, stage.b, stage.fixed, stage.once);
}

namespace {

// Panels of an item whose right factors pass by, which is in the second cache with what is split.
constexpr std::int64_t kPassedPanelBytes = 1 << 20;

// Whether right factors shall be split for each item instead of packed for all: where rows are one
// item, that is quicker; where the packed factors would not stay in a cache, as quick, and takes no
// memory.
bool right_factors_pass(const ChainLaunch& launch, const exec::gemm::Tiles& tiles,
                        std::int64_t row_bytes) {
  using exec::gemm::Way;
  const std::int64_t rows = launch.rows[at(launch.n_rows - 1)];
  const std::int64_t at_once = std::min(rows, kUnitBlockRows);
  if (tiles.units == nullptr || launch.n_rows > 1 || at_once * row_bytes > kPassedPanelBytes)
    return false;
  std::int64_t packed = 0;
  for (const Stage& stage : launch.stages) {
    if (stage.kernel != nullptr) continue;
    const exec::gemm::Sizes sizes{at_once, stage.n, stage.k};
    if (choose(tiles, sizes, stage.a, stage.b, stage.fixed) != Way::kPieces) return false;
    packed += stage.n * stage.k * packed_bytes(tiles, Way::kPieces);
  }
  return rows == at_once || packed > kPackedUnitBytes;
}

}  // namespace

void prepare(ChainLaunch& launch, const exec::gemm::Tiles& tiles) noexcept {
  // Of one row, the batches may become the rows.
  if (launch.rows[at(launch.n_rows - 1)] == 1) launch.causal = INT64_MAX;
  launch.tiles = &tiles;
  simplify(launch);
  const std::int64_t rows = launch.rows[at(launch.n_rows - 1)];
  std::int64_t items = 1, row_bytes = 0;
  for (int i = 0; i < launch.n_rows - 1; ++i) items *= launch.rows[at(i)];
  for (const Panel& panel : launch.panels) row_bytes += panel.columns * panel.item_bytes;
  const bool in_parts = !launch.columns_too && rows * row_bytes > kPanelBytes;
  for (Stage& stage : launch.stages) {
    if (stage.kernel != nullptr) continue;
    stage.packed = nullptr;
    // One right factor for all rows.
    const bool shared = std::ranges::all_of(stage.b_rows, [](auto stride) { return stride == 0; });
    stage.fixed = stage.fixed && shared;
    stage.once = !in_parts && (items == 1 || !shared);
    stage.sizes = {rows, stage.n, stage.k, 0, rows <= exec::gemm::kShortSumRows};
    if (stage.a.windows == nullptr) {
      const std::int64_t bytes = stage.a_rows[at(launch.n_rows - 1)];
      stage.a.row_stride =
          stage.a_panel >= 0 ? stage.k : bytes / bytecode::storage_bytes(stage.a.storage);
    }
  }
  launch.passes = in_parts && right_factors_pass(launch, tiles, row_bytes);
  for (Stage& stage : launch.stages) {
    if (stage.kernel != nullptr) continue;
    if (launch.passes) {
      stage.way = exec::gemm::Way::kPieces;
    } else {
      choose_way(stage, tiles);
    }
  }
}

void narrow(ChainLaunch& launch, const exec::gemm::Tiles& tiles, std::int64_t first,
            std::int64_t n) {
  for (Stage& stage : launch.stages) {
    if (stage.kernel == nullptr) {
      if (stage.packed != nullptr)
        stage.packed += packed_offset(tiles, stage.way, {0, stage.n, stage.k}, first);
      skip_columns(stage.a, stage.b, first);
      if (stage.out != nullptr) stage.out += first * stage.out_column;
      stage.n = n;
      continue;
    }
    stage.axis_sizes[at(stage.column_axis)] = n;
    for (std::size_t o = 0; o < stage.operands.size(); ++o) {
      if (stage.panel[o] < 0)
        move(stage.operands[o], first * stage.operands[o].stride[at(stage.column_axis)]);
    }
  }
  for (Panel& panel : launch.panels) panel.columns = n;
}

void narrow_rows(ChainLaunch& launch, std::int64_t first, std::int64_t n) {
  for (Stage& stage : launch.stages) {
    if (stage.kernel == nullptr) {
      if (stage.a_panel < 0) stage.a.data += first * stage.a_rows[0];
      if (stage.out_panel < 0) stage.out += first * stage.out_rows[0];
      continue;
    }
    const int axis = stage.row_axis[0];
    if (axis < 0) continue;
    stage.axis_sizes[at(axis)] = n;
    for (std::size_t o = 0; o < stage.operands.size(); ++o) {
      if (stage.panel[o] < 0)
        move(stage.operands[o], first * stage.operands[o].stride[at(axis)]);
    }
  }
  launch.rows[0] = n;
}

}  // namespace tilevm::schedule
