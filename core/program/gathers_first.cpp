// Gathers of one element a row, moved in front of the elementwise operators that make the row:
// gather(f(a, b), i) becomes f(gather(a, i), b) where b is one number a row, so that f's results are
// never in memory. The loss of a classifier, gather(log_softmax(x), target), is that.
#include <algorithm>
#include <utility>
#include <vector>

#include "program/passes.h"

namespace tilevm {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr std::size_t kMostOperators = 32;

class GathersFirst {
 public:
  explicit GathersFirst(Program source)
      : source_(std::move(source)), out_(successor_of(source_)) {
    held_.resize(source_.values.size(), -1);
    is_output_.resize(source_.values.size());
    stays_.resize(source_.values.size());
    for (const ValueId v : source_.outputs) is_output_[at(v)] = true;
    for (const Node& node : source_.nodes) {
      for (const ValueId v : node.inputs) stays_[at(v)] = stays_[at(v)] || !takes_one(node);
    }
  }

  Program run() {
    for (const ValueId v : source_.inputs) held_[at(v)] = out_.input(source_.type(v));
    for (const Node& node : source_.nodes) {
      if (moves(node)) {
        made_.clear();
        line_ = node.line;
        held_[at(node.out)] = gathered(node.inputs[0], node);
      } else {
        append_copy(out_, source_, node, held_);
      }
    }
    for (const ValueId v : source_.outputs) out_.outputs.push_back(held_[at(v)]);
    sweep(out_);
    return std::move(out_);
  }

  static bool takes_one(const Program& program, const shape::SizeTable& sizes, const Node& node) {
    return node.op == Op::gather &&
           sizes.is(program.type(node.inputs[1]).shape[axis_of(node)], 1);
  }

 private:
  const Shape& shape(ValueId v) const { return source_.type(v).shape; }
  static int axis_of(const Node& gather) { return static_cast<int>(gather.attrs[0].ints[0]); }
  bool takes_one(const Node& node) const { return takes_one(source_, out_.sizes, node); }

  // The dim of v along which is gathered; -1: v is the same for all elements of a row.
  int along(ValueId v, const Node& gather) const {
    const int d = axis_of(gather) - shape(gather.out).rank + shape(v).rank;
    return d < 0 || out_.sizes.is(shape(v)[d], 1) ? -1 : d;
  }

  const Node* elementwise(ValueId v) const {
    const std::int32_t def = source_.values[at(v)].node;
    if (def < 0) return nullptr;
    const Node& node = source_.nodes[at(def)];
    return info(node.op).cls == OpClass::kElementwise ? &node : nullptr;
  }

  // Whether nothing else needs the rows that are gathered from, and all that they are made of is as
  // large, or one number a row.
  bool moves(const Node& node) const {
    if (!takes_one(node)) return false;
    const ValueId x = node.inputs[0];
    if (is_output_[at(x)] || stays_[at(x)] || elementwise(x) == nullptr) return false;
    if (along(x, node) < 0) return false;  // of rows of one element, nobody else checks the index
    std::vector<ValueId> seen;
    return may_move(x, node, seen);
  }

  bool may_move(ValueId v, const Node& gather, std::vector<ValueId>& seen) const {
    if (std::ranges::find(seen, v) != seen.end()) return true;
    seen.push_back(v);
    if (seen.size() > kMostOperators || !fits(v, gather)) return false;
    if (along(v, gather) < 0) return true;
    const Node* const made = is_output_[at(v)] ? nullptr : elementwise(v);
    if (made != nullptr) {
      return !can_fail(*made) && std::ranges::all_of(made->inputs, [&](ValueId in) {
        return may_move(in, gather, seen);
      });
    }
    // What a product makes is read row by row, right behind it, where nothing gathers from it.
    const std::int32_t def = source_.values[at(v)].node;
    if (def >= 0 && source_.nodes[at(def)].op == Op::matmul) return false;
    return std::ranges::equal(shape(v).span(), shape(gather.inputs[0]).span());
  }

  // Eager code divides all elements by theirs.
  bool can_fail(const Node& node) const {
    const bool divides =
        node.op == Op::floor_div || node.op == Op::remainder || node.op == Op::fmod;
    return divides && !is_float(source_.type(node.out).dtype);
  }

  // Every dim is that of what is gathered from, or 1.
  bool fits(ValueId v, const Node& gather) const {
    const Shape& x = shape(gather.inputs[0]);
    const int more = x.rank - shape(v).rank;
    for (int d = 0; d < shape(v).rank; ++d) {
      if (shape(v)[d] != x[d + more] && !out_.sizes.is(shape(v)[d], 1)) return false;
    }
    return true;
  }

  // The elements of v that are gathered, or that are the same for these.
  ValueId gathered(ValueId v, const Node& gather) {
    const auto known = std::ranges::find(made_, v, &std::pair<ValueId, ValueId>::first);
    if (known != made_.end()) return known->second;
    const int axis = along(v, gather);
    const Node* const made = is_output_[at(v)] ? nullptr : elementwise(v);
    ValueId result = held_[at(v)];
    if (axis < 0) {
      result = first_rows(v, gather);
    } else if (made == nullptr) {
      result = emit(Op::gather, {result, held_[at(gather.inputs[1])]}, gather.attrs,
                    {source_.type(v).dtype, false, shape(gather.out)});
    } else {
      Operands in;
      for (const ValueId operand : made->inputs) in.push_back(gathered(operand, gather));
      Type type = source_.type(v);
      for (int d = 0; d < type.shape.rank; ++d) type.shape[d] = size_of(type.shape[d], d, v, gather);
      result = emit(made->op, std::move(in), made->attrs, type);
    }
    made_.emplace_back(v, result);
    return result;
  }

  // Of a dim of v: 1, or as many as there are indices.
  SizeId size_of(SizeId size, int d, ValueId v, const Node& gather) const {
    if (out_.sizes.is(size, 1)) return size;
    return shape(gather.out)[d + shape(gather.out).rank - shape(v).rank];
  }

  // There may be fewer indices than rows.
  ValueId first_rows(ValueId v, const Node& gather) {
    ValueId result = held_[at(v)];
    Type type = source_.type(v);
    for (int d = 0; d < type.shape.rank; ++d) {
      const SizeId wanted = size_of(type.shape[d], d, v, gather);
      if (wanted == type.shape[d]) continue;
      type.shape[d] = wanted;
      result = emit(Op::slice, {result},
                    {Attr::of_ints({d}), Attr::of_sizes({out_.sizes.constant(0)}),
                     Attr::of_sizes({wanted}), Attr::of_ints({1})},
                    type);
    }
    return result;
  }

  ValueId emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type) {
    return append(out_, op, std::move(in), std::move(attrs), type, line_);
  }

  Program source_, out_;
  std::vector<ValueId> held_;                       // by value of the source
  std::vector<bool> is_output_, stays_;             // the same; stays: something else reads it
  std::vector<std::pair<ValueId, ValueId>> made_;   // for the gather at hand
  int line_ = -1;
};

}  // namespace

Program with_gathers_first(Program lowered) {
  const bool any = std::ranges::any_of(lowered.nodes, [&](const Node& node) {
    return GathersFirst::takes_one(lowered, lowered.sizes, node);
  });
  return any ? GathersFirst(std::move(lowered)).run() : std::move(lowered);
}

}  // namespace tilevm
