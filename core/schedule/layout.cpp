#include "schedule/layout.h"

#include <algorithm>
#include <cstdlib>

#include "isa.gen.h"
#include "schedule/kernel.h"

namespace tilevm::schedule {
namespace {

using bytecode::Fold;
using bytecode::RegType;
using bytecode::Role;
using fuse::kMaxAxes;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// One axis after merging: its extent, of how much that is a part, and the axis of the graph whose
// strides it has.
struct Run {
  std::int64_t size, whole;
  int axis;
};
struct Runs {
  std::array<Run, kMaxAxes> run;
  int count = 0;
  Run& operator[](int i) { return run[at(i)]; }
};

// Should axis a be outside axis b? Outputs decide first: writes that jump cost most.
bool outside(int a, int b, const fuse::KernelGraph& graph, std::span<const OperandView> operands) {
  for (const bool outputs : {true, false}) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if ((graph.operands[i].role == Role::kOutput) != outputs) continue;
      const auto sa = std::abs(operands[i].stride[at(a)]);
      const auto sb = std::abs(operands[i].stride[at(b)]);
      if (sa != 0 && sb != 0 && sa != sb) return sa > sb;
    }
  }
  return a < b;
}

void sort(Runs& runs, const fuse::KernelGraph& graph, std::span<const OperandView> operands) {
  for (int i = 1; i < runs.count; ++i) {
    for (int j = i; j > 0 && outside(runs[j].axis, runs[j - 1].axis, graph, operands); --j) {
      std::swap(runs[j], runs[j - 1]);
    }
  }
}

void merge(Runs& runs, std::span<const OperandView> operands) {
  int n = 0;
  for (int i = 0; i < runs.count; ++i) {
    const bool one_run =
        n > 0 && std::ranges::all_of(operands, [&](const OperandView& v) {
          return v.stride[at(runs[n - 1].axis)] == v.stride[at(runs[i].axis)] * runs[i].size;
        });
    if (one_run) {
      runs[n - 1] = {runs[n - 1].size * runs[i].size, runs[n - 1].whole * runs[i].whole,
                     runs[i].axis};
    } else {
      runs[n++] = runs[i];
    }
  }
  runs.count = n;
}

// Of fewer elements than this, most lanes of a vector would have nothing to do. Copies that put
// another axis side by side cost less than that.
constexpr std::int64_t kShort = 8, kLong = 16;

bool is_short(const Run& run, const Run& other, std::int64_t below = kShort) {
  return run.size < below && other.whole >= kLong;
}

// The same of elements that are folded. At its end a row waits for itself, through all steps of a
// fold and what is computed once a row; the copies cost by the element, and again where results are
// copied back. `lanes`: none, or 4, which was not measured.
bool is_short_fold(const fuse::KernelGraph& graph, const Run& folded, const Run& other, int lanes) {
  using Kind = fuse::KernelNode::Kind;
  constexpr std::int64_t kLongest = 72;
  constexpr int kSomeEnd = 4, kLongEnd = 8;  // operations
  if (lanes < 8) return is_short(folded, other);
  if (!is_short(folded, other, kLongest)) return false;
  int end = 0;
  bool stores = false, wide = false, small = false;
  for (const fuse::KernelNode& node : graph.nodes) {
    const bool swept = (node.axes & graph.reduced) != 0;
    if (node.kind == Kind::kFold) end += node.type == RegType::kF32 ? 1 : kLongEnd;
    if (node.kind == Kind::kMap && !swept && node.axes != 0)
      end += bytecode::info(static_cast<bytecode::Op>(node.instr)).cost;
    if (!swept || (node.kind != Kind::kLoad && node.kind != Kind::kStore)) continue;
    const int bytes = bytecode::storage_bytes(graph.operands[at(node.operand)].storage);
    stores = stores || node.kind == Kind::kStore;
    wide = wide || bytes == 8;
    small = small || bytes < 4;
  }
  const bool few_registers = lanes < 16;  // AVX2
  // There, the last elements of a row go through memory, one by one, if they are of 2 bytes or 1.
  if (few_registers && small && folded.size % lanes != 0) return true;
  if (stores && wide) return folded.size < 2 * lanes;
  if (stores) return folded.size < (few_registers && end < kSomeEnd ? kShort : 5 * lanes / 2);
  if (end >= kLongEnd) return !wide || folded.size < 4 * lanes;
  const bool many = !few_registers && (end > 1 || folded.size >= lanes);
  return folded.size < (many ? 4 * lanes : kShort);
}

}  // namespace

Layout lay_out(const fuse::KernelGraph& graph, std::span<const std::int64_t> axis_sizes,
               std::span<const OperandView> operands, std::span<exec::Binding> bindings,
               int lanes, std::span<const std::int64_t> whole) {
  Layout layout;
  Runs kept;
  Runs reduced;
  bool nothing_to_reduce = false;
  for (int a = 0; a < static_cast<int>(axis_sizes.size()); ++a) {
    const std::int64_t size = axis_sizes[at(a)];
    const bool folds = ((graph.reduced >> a) & 1) != 0;
    if (size == 0 && !folds) layout.empty = true;
    if (size == 0 && folds) nothing_to_reduce = true;
    const std::int64_t all = whole.empty() ? size : whole[at(a)];
    if (all == 1) continue;
    auto& runs = folds ? reduced : kept;
    runs[runs.count++] = {size, all, a};
  }
  if (layout.empty) return layout;
  if (nothing_to_reduce) {
    const auto* zero = std::find_if(reduced.run.begin(), reduced.run.begin() + reduced.count,
                                    [](const Run& r) { return r.size == 0; });
    reduced[0] = *zero;
    reduced.count = 1;
  }
  sort(kept, graph, operands);
  sort(reduced, graph, operands);
  merge(kept, operands);
  merge(reduced, operands);

  // Operands that run along the folded axes are the large ones; results are small beside them. So
  // is what is gathered by indices that run along them: it counts twice, since one index for a
  // whole vector makes a load of it.
  const auto contiguous = [&](int axis) {
    int n = 0;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const auto& ref = graph.operands[i];
      const bool gathered = ref.role == Role::kGather &&
                            std::ranges::any_of(graph.nodes, [&](const fuse::KernelNode& node) {
                              return node.kind == fuse::KernelNode::Kind::kGather &&
                                     static_cast<std::size_t>(node.operand) == i &&
                                     (node.axes & graph.reduced) != 0;
                            });
      bool swept = gathered;
      for (int a = 0; a < kMaxAxes; ++a) {
        swept = swept || (((graph.reduced >> a) & 1) != 0 && ref.dim[at(a)] >= 0);
      }
      if (!swept || ref.role == Role::kIota) continue;
      if (operands[i].stride[at(axis)] == bytecode::storage_bytes(ref.storage))
        n += gathered ? 2 : 1;
    }
    return n;
  };

  const auto is_short_fold = [&](const Run& folded, const Run& other) {
    return schedule::is_short_fold(graph, folded, other, lanes);
  };

  // Without a fold, columns are too few only where something is computed once a row, not once a
  // column.
  const auto once_a_row = [&](const Run& columns, const Run& rows) {
    return std::ranges::any_of(graph.nodes, [&](const fuse::KernelNode& node) {
      return node.kind == fuse::KernelNode::Kind::kMap && ((node.axes >> columns.axis) & 1) == 0 &&
             ((node.axes >> rows.axis) & 1) != 0;
    });
  };

  const auto longest = [](Runs& runs) {
    return std::max_element(runs.run.begin(), runs.run.begin() + runs.count,
                            [](const Run& a, const Run& b) { return a.whole < b.whole; });
  };
  const auto bring_longest_inside = [&](Runs& runs) {
    auto* const run = longest(runs);
    std::rotate(run, run + 1, runs.run.begin() + runs.count);
  };

  // Whether an operand would be copied side by side along this axis.
  const auto copies = [&](const Run& run) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::int64_t stride = operands[i].stride[at(run.axis)];
      if (graph.operands[i].role != Role::kIota && stride != 0 &&
          stride != bytecode::storage_bytes(graph.operands[i].storage))
        return true;
    }
    return false;
  };
  // ... a few elements each time.
  const auto copies_short_runs = [&](Runs& runs) {
    return runs.count > 0 && is_short(runs[runs.count - 1], *longest(runs)) &&
           copies(runs[runs.count - 1]);
  };

  // A fold of a few elements, beside a few others.
  if (reduced.count > 0 && kept.count > 0) {
    const Run& folded = reduced[reduced.count - 1];
    if (!is_short_fold(folded, kept[kept.count - 1]) && is_short_fold(folded, *longest(kept)))
      bring_longest_inside(kept);
  }

  // Columns and rows come off the inner ends of the two lists.
  Run columns{1, 1, -1};
  Run rows{1, 1, -1};
  Fold fold = Fold::kNone;
  if (graph.reduced == 0) {
    if (copies_short_runs(kept)) bring_longest_inside(kept);
    if (kept.count > 0) columns = kept[--kept.count];
    // To set out for copies takes longer than to copy a few elements.
    constexpr std::int64_t kFewPoints = 2048;
    if (kept.count > 1 && columns.whole * kept[kept.count - 1].whole < kFewPoints &&
        copies(columns))
      bring_longest_inside(kept);
    if (kept.count > 0) rows = kept[--kept.count];
    if (is_short(columns, rows) && once_a_row(columns, rows)) std::swap(columns, rows);
  } else if (reduced.count > 0 &&
             (kept.count == 0 ||
              (contiguous(reduced[reduced.count - 1].axis) >=
                   contiguous(kept[kept.count - 1].axis) &&
               !is_short_fold(reduced[reduced.count - 1], kept[kept.count - 1])))) {
    columns = reduced[--reduced.count];
    fold = Fold::kColumns;
    if (kept.count > 0) {
      rows = kept[--kept.count];
    } else if (reduced.count > 0) {
      rows = reduced[--reduced.count];
      fold = Fold::kBoth;
    }
  } else {
    if (kept.count > 0) columns = kept[--kept.count];
    if (reduced.count > 0) rows = reduced[--reduced.count];
    fold = Fold::kRows;
  }

  auto& space = layout.space;
  space.rows = rows.size;
  space.cols = columns.size;
  space.n_outer = kept.count;
  space.n_reduced = reduced.count;
  for (int i = 0; i < kept.count; ++i) space.outer[i] = kept[i].size;
  for (int i = 0; i < reduced.count; ++i) space.reduced[i] = reduced[i].size;

  // Of an operand without elements, strides may be anything: it counts as moving wherever it has a
  // dim, so that none of it is taken for a scalar and read before the loop that does not run.
  const auto stride = [&](std::size_t i, int axis) -> std::int64_t {
    if (axis < 0) return 0;
    const auto& ref = graph.operands[i];
    const std::int64_t given = operands[i].stride[at(axis)];
    if (!nothing_to_reduce || given != 0 || ref.dim[at(axis)] < 0) return given;
    for (int a = 0; a < static_cast<int>(axis_sizes.size()); ++a) {
      if (axis_sizes[at(a)] == 0 && ref.dim[at(a)] >= 0) {
        return bytecode::storage_bytes(ref.storage);
      }
    }
    return given;
  };

  layout.cls.fold = fold;
  layout.cls.n_operands = static_cast<int>(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& view = operands[i];
    const auto& ref = graph.operands[i];
    auto& b = bindings[i];
    b.base = view.base;
    b.gather_stride = view.gather_stride;
    b.gather_size = view.gather_size;
    b.start = view.start;
    b.x_stride = stride(i, columns.axis);
    b.y_stride = stride(i, rows.axis);
    for (int k = 0; k < kept.count; ++k) b.outer[k] = stride(i, kept[k].axis);
    for (int k = 0; k < reduced.count; ++k) b.reduced[k] = stride(i, reduced[k].axis);
    const bool unit = ref.role != Role::kIota && b.x_stride == bytecode::storage_bytes(ref.storage);
    // One row is no rows; but scratch has rows, and what comes from there may be stored.
    const bool one_row = fold == Fold::kColumns && rows.axis < 0 && ref.role == Role::kOutput;
    layout.cls.operand[i] = static_cast<std::uint8_t>(
        (b.x_stride != 0 ? 1 : 0) | (b.y_stride != 0 || one_row ? 2 : 0) | (unit ? 4 : 0));
  }
  return layout;
}

}  // namespace tilevm::schedule
