// Which axes of a kernel become columns and rows, for which sizes and registers.
#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "fuse/plan.h"
#include "program/program.h"
#include "schedule/kernel.h"
#include "schedule/layout.h"

using namespace tilevm;

namespace {

using bytecode::Fold;

struct Case {
  Program p;
  ValueId x;  // of rows and columns

  explicit Case(DType dtype = DType::kFloat32) {
    Type type;
    type.dtype = dtype;
    for (const char* name : {"B", "D"}) type.shape.push(p.sizes.symbol(name));
    x = p.input(type);
  }
  ValueId add(Op op, std::vector<ValueId> in, std::vector<Attr> attrs = {}) {
    return p.add(op, in, std::move(attrs));
  }
  ValueId folded(Op op, bool keep = false) {
    return add(op, {x}, {Attr::of_ints({1}), Attr::of_ints({keep})});
  }

  // How the one kernel that makes `outputs` folds where all lies row after row.
  // `all`: of how many rows these are some.
  Fold fold(std::vector<ValueId> outputs, std::int64_t rows, std::int64_t columns, int lanes = 0,
            std::int64_t all = 0) {
    p.outputs = std::move(outputs);
    const auto plan = fuse::fuse(lower(std::move(p)));
    if (plan.kernels.size() != 1) throw std::logic_error("not one kernel");
    const auto& k = plan.kernels[0];
    std::vector<schedule::OperandView> views(k.operands.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      const auto bytes = bytecode::storage_bytes(k.operands[i].storage);
      const bool whole = k.operands[i].dim[1] >= 0;
      views[i].stride[0] = whole ? columns * bytes : bytes;
      views[i].stride[1] = whole ? bytes : 0;
    }
    std::vector<exec::Binding> bindings(256);
    const std::vector<std::int64_t> sizes{rows, columns}, whole{std::max(rows, all), columns};
    return schedule::lay_out(k, sizes, views, bindings, lanes, whole).cls.fold;
  }
};

// Several results do not draw the loop away from the rows that their folds read.
int results_are_small() {
  Case c;
  CHECK(c.fold({c.folded(Op::amax), c.folded(Op::amin)}, 40, 30) == Fold::kColumns);
  return 0;
}

// Few elements are folded across vectors of other axes, by machine code: fewer where less happens
// at the end of a row, and where what comes of each element is stored.
int short_rows() {
  struct Expected {
    std::int64_t columns;
    int lanes;
    Fold sum, shares, scaled, logarithm;
  };
  const Expected table[] = {
      {7, 0, Fold::kRows, Fold::kRows, Fold::kRows, Fold::kRows},
      {8, 0, Fold::kColumns, Fold::kColumns, Fold::kColumns, Fold::kColumns},
      {8, 4, Fold::kColumns, Fold::kColumns, Fold::kColumns, Fold::kColumns},
      {8, 8, Fold::kColumns, Fold::kColumns, Fold::kRows, Fold::kRows},
      {19, 8, Fold::kColumns, Fold::kColumns, Fold::kRows, Fold::kRows},
      {20, 8, Fold::kColumns, Fold::kColumns, Fold::kColumns, Fold::kRows},
      {15, 16, Fold::kColumns, Fold::kRows, Fold::kRows, Fold::kRows},
      {39, 16, Fold::kRows, Fold::kRows, Fold::kRows, Fold::kRows},
      {63, 16, Fold::kRows, Fold::kColumns, Fold::kColumns, Fold::kRows},
      {71, 16, Fold::kColumns, Fold::kColumns, Fold::kColumns, Fold::kRows},
      {72, 16, Fold::kColumns, Fold::kColumns, Fold::kColumns, Fold::kColumns}};
  for (const Expected& e : table) {
    for (const std::int64_t rows : {16, 15}) {  // fewer than 16 are no vector
      const auto expected = [&](Fold fold) { return rows < 16 ? Fold::kColumns : fold; };
      Case sum, shares, scaled, logarithm;
      CHECK(sum.fold({sum.folded(Op::sum)}, rows, e.columns, e.lanes) == expected(e.sum));
      const ValueId share = shares.add(Op::mul, {shares.x, shares.folded(Op::sum, true)});
      CHECK(shares.fold({share}, rows, e.columns, e.lanes) == expected(e.shares));
      const ValueId by = scaled.add(Op::log, {scaled.folded(Op::sum, true)});
      CHECK(scaled.fold({scaled.add(Op::mul, {scaled.x, by})}, rows, e.columns, e.lanes) ==
            expected(e.scaled));
      const ValueId log = logarithm.add(Op::log, {logarithm.folded(Op::sum)});
      CHECK(logarithm.fold({log}, rows, e.columns, e.lanes) == expected(e.logarithm));
    }
  }
  return 0;
}

// With AVX2, the last elements of a row of small ones go one by one.
int rows_of_small_elements() {
  for (const auto& [columns, fold] : {std::pair{10, Fold::kRows},
                                      {16, Fold::kColumns},
                                      {71, Fold::kRows},
                                      {72, Fold::kColumns}}) {
    Case c(DType::kBFloat16), floats;
    CHECK(c.fold({c.folded(Op::amax)}, 16, columns, 8) == fold);
    CHECK(floats.fold({floats.folded(Op::amax)}, 16, columns, 8) == Fold::kColumns);
  }
  return 0;
}

// Threads take rows as they come to it: the last ones may be few, and are folded as the others are.
int parts_of_rows() {
  for (const std::int64_t rows : {1, 2, 15, 16}) {
    Case some, none;
    CHECK(some.fold({some.folded(Op::sum)}, rows, 7, 16, 16) == Fold::kRows);
    CHECK(none.fold({none.folded(Op::sum)}, rows, 7, 16) ==
          (rows < 16 ? Fold::kColumns : Fold::kRows));
  }
  return 0;
}

// Where columns are copied side by side, a few rows at a time would cost more than they are: the
// longest axis becomes rows.
int rows_of_copies() {
  for (const auto& [gap, columns, rows] :
       {std::tuple{1, 32, 8}, {2, 32, 50}, {2, 255, 50}, {2, 256, 8}}) {
    Program p;
    Type type;
    for (const char* name : {"A", "B", "C"}) type.shape.push(p.sizes.symbol(name));
    const ValueId x[] = {p.input(type)};
    p.outputs = {p.add(Op::neg, x)};
    const auto plan = fuse::fuse(lower(std::move(p)));
    const auto& k = plan.kernels.at(0);
    std::vector<schedule::OperandView> views(2);
    for (std::size_t i = 0; i < views.size(); ++i) {
      const bool out = k.operands[i].role == bytecode::Role::kOutput;
      const std::int64_t step = out ? 4 : 4 * gap, row = step * (out ? columns : columns + 8);
      views[i].stride = {9 * row, row, step};
    }
    std::vector<exec::Binding> bindings(256);
    const std::vector<std::int64_t> sizes{50, 8, columns};
    const auto layout = schedule::lay_out(k, sizes, views, bindings, 16, sizes);
    CHECK(layout.space.cols == columns);
    CHECK(layout.space.rows == rows);
  }
  return 0;
}

}  // namespace

int main() {
  return results_are_small() + short_rows() + rows_of_small_elements() + parts_of_rows() +
         rows_of_copies();
}
