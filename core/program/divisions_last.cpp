// Divisions of a softmax, moved behind the product that takes it as left factor, as in attention:
// (e / s) v becomes (e v) / s, with as many divisions as the product has elements, and e is stored
// while it is summed. e is in 0 to 1, so that its products are no more than v's columns add up to.
// It is rounded to 16 bits, and divided by the sum of what it was: a few bits more are enough.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "program/passes.h"

namespace tilevm {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

const Node* made_by(const Program& program, ValueId v, Op op) {
  const Node* const node = defining(program, v);
  return node != nullptr && node->op == op ? node : nullptr;
}

// A product's left factor: cast(where(empty, 0, e / s)), of which where may be missing.
struct Weights {
  const Node* cast = nullptr;
  const Node* where = nullptr;   // empty: most == -inf, as of rows that a mask leaves nothing of
  const Node* scaled = nullptr;  // e / s, or e * by
  const Node* by = nullptr;      // 1 / s, if scaled is a product
  const Node* sum = nullptr;     // s, which keeps the last axis, along which it is
  const Node* exp = nullptr;     // e
  const Node* sub = nullptr;     // x - most
  const Node* most = nullptr;    // amax(x), likewise

  bool read(const Program& program, const Node& node) {
    if (node.op != Op::matmul || program.type(node.out).dtype != DType::kFloat32) return false;
    ValueId v = node.inputs[0];
    const int rank = program.type(v).shape.rank;
    if (rank < 2 || program.type(node.inputs[1]).shape.rank < 2) return false;
    if ((cast = made_by(program, v, Op::cast)) == nullptr) return false;
    v = cast->inputs[0];
    if ((where = made_by(program, v, Op::where)) != nullptr) {
      if (!is_full(program, where->inputs[1], 0)) return false;
      v = where->inputs[2];
    }
    if ((scaled = made_by(program, v, Op::div)) != nullptr) {
      sum = made_by(program, scaled->inputs[1], Op::sum);
    } else if ((scaled = made_by(program, v, Op::mul)) != nullptr &&
               (by = made_by(program, scaled->inputs[1], Op::reciprocal)) != nullptr) {
      sum = made_by(program, by->inputs[0], Op::sum);
    }
    if (sum == nullptr || sum->inputs[0] != scaled->inputs[0] || !along_last(*sum, rank))
      return false;
    // Of narrower dtypes, sums would be rounded when they are stored.
    if (program.type(sum->out).dtype != DType::kFloat32) return false;
    if ((exp = made_by(program, sum->inputs[0], Op::exp)) == nullptr) return false;
    if ((sub = made_by(program, exp->inputs[0], Op::sub)) == nullptr) return false;
    most = made_by(program, sub->inputs[1], Op::amax);
    return most != nullptr && most->inputs[0] == sub->inputs[0] && along_last(*most, rank) &&
           (where == nullptr || is_empty(program, where->inputs[0]));
  }

 private:
  static bool along_last(const Node& fold, int rank) {
    const Ints& axes = fold.attrs[0].ints;
    return axes.size() == 1 && axes[0] == rank - 1 && fold.attrs[1].ints[0] != 0;
  }
  static bool is_full(const Program& program, ValueId v, double value) {
    const Node* const full = made_by(program, v, Op::full);
    return full != nullptr && program.type(v).shape.rank == 0 && full->attrs[1].number == value;
  }
  bool is_empty(const Program& program, ValueId v) const {
    const Node* const eq = made_by(program, v, Op::eq);
    return eq != nullptr && eq->inputs[0] == most->out &&
           is_full(program, eq->inputs[1], -std::numeric_limits<double>::infinity());
  }
};

class DivisionsLast {
 public:
  explicit DivisionsLast(Program source)
      : source_(std::move(source)), out_(successor_of(source_)) {
    held_.resize(source_.values.size(), -1);
    readers_.resize(source_.values.size());
    for (const ValueId v : source_.outputs) ++readers_[at(v)];
    for (const Node& node : source_.nodes) {
      for (const ValueId v : node.inputs) ++readers_[at(v)];
    }
  }

  Program run() {
    for (const ValueId v : source_.inputs) held_[at(v)] = out_.input(source_.type(v));
    for (const Node& node : source_.nodes) {
      Weights weights;
      if (weights.read(source_, node) && nobody_else_reads(weights, node)) {
        move(weights, node);
      } else {
        append_copy(out_, source_, node, held_);
      }
    }
    for (const ValueId v : source_.outputs) out_.outputs.push_back(held_[at(v)]);
    sweep(out_);
    return std::move(out_);
  }

 private:
  bool nobody_else_reads(const Weights& w, const Node& product) const {
    for (const Node* const node : {w.cast, w.where, w.scaled, w.by, w.sum, w.sub}) {
      if (node != nullptr && readers_[at(node->out)] != 1) return false;
    }
    return readers_[at(w.exp->out)] == 2 && product.inputs[0] != product.inputs[1];
  }

  void move(const Weights& w, const Node& product) {
    const auto again = [&](const Node& node, Operands in) {
      return append(out_, node.op, std::move(in), node.attrs, source_.type(node.out), node.line);
    };
    ValueId most = held_[at(w.most->out)];
    if (w.where != nullptr) {  // exp(-inf - 0) is the 0 that is wanted
      const ValueId zero = held_[at(w.where->inputs[1])];
      most = append(out_, Op::where, {held_[at(w.where->inputs[0])], zero, most}, w.where->attrs,
                    source_.type(w.most->out), w.where->line);
    }
    const ValueId e = again(*w.exp, {again(*w.sub, {held_[at(w.sub->inputs[0])], most})});
    out_.nodes.back().of_weights = source_.type(w.exp->out).dtype == DType::kFloat32 &&
                                   is_narrow_float(source_.type(w.cast->out).dtype);
    // 0: of no columns, or of rows that a mask leaves nothing of. What is divided is 0, too.
    const ValueId sum = again(*w.sum, {e});
    Type type = source_.type(w.sum->out);
    const ValueId one = full(1, w.sum->line);
    type.dtype = DType::kBool;
    const ValueId none = append(out_, Op::eq, {sum, full(0, w.sum->line)}, {}, type, w.sum->line);
    ValueId by =
        append(out_, Op::where, {none, one, sum}, {}, source_.type(w.sum->out), w.sum->line);
    if (w.by != nullptr) by = again(*w.by, {by});
    const ValueId all = again(product, {again(*w.cast, {e}), held_[at(product.inputs[1])]});
    held_[at(product.out)] = append(out_, w.scaled->op, {all, by}, w.scaled->attrs,
                                    source_.type(product.out), w.scaled->line);
  }

  ValueId full(double value, std::int32_t line) {
    return append(out_, Op::full, {},
                  {Attr::of_sizes({}), Attr::of_number(value), Attr::of_dtype(DType::kFloat32)}, {},
                  line);
  }

  Program source_, out_;
  std::vector<ValueId> held_;  // by value of the source
  std::vector<int> readers_;   // the same
};

}  // namespace

Program with_divisions_last(Program lowered) {
  const bool any = std::ranges::any_of(
      lowered.nodes, [&](const Node& node) { return Weights().read(lowered, node); });
  return any ? DivisionsLast(std::move(lowered)).run() : std::move(lowered);
}

}  // namespace tilevm
