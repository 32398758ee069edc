// Factors of products that are repeated along a batch axis, as heads of keys are that several heads
// of queries share, taken as they are: the axis becomes two, groups and members, in all that is
// computed between such products, and the factor has one member. Nothing is copied, and a group's
// members are rows of one product. Batch axes that are merged for a product alone, as PyTorch's
// matmul merges them, stay two likewise.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "program/passes.h"

namespace tilevm {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr int kMostOperators = 32;  // that are computed with two axes for one that needs them so

// An axis of a value, of `size` elements, which is groups * members.
struct Axis {
  int axis = 0;
  SizeId size = shape::kNoSize, groups = shape::kNoSize, members = shape::kNoSize;
  friend bool operator==(const Axis&, const Axis&) = default;
};

// What `permute` makes of the axis.
Axis permuted(Axis axis, const Node& permute) {
  const Ints& axes = permute.attrs[0].ints;
  axis.axis = static_cast<int>(std::ranges::find(axes, axis.axis) - axes.begin());
  return axis;
}

// The axis of `one` that is two in a reshape of it, or from it, which leaves the others as they
// are.
std::optional<Axis> joined(shape::SizeTable& sizes, const Shape& one, const Shape& two) {
  if (one.rank != two.rank - 1) return {};
  int axis = 0;
  while (axis < one.rank - 1 && one[axis] == two[axis]) ++axis;
  for (int d = axis + 1; d < one.rank; ++d) {
    if (one[d] != two[d + 1]) return {};
  }
  // Of no elements, a reshape may change any size.
  if (sizes.mul(two[axis], two[axis + 1]) != one[axis]) return {};
  return Axis{axis, one[axis], two[axis], two[axis + 1]};
}

// A reshape that makes one axis of two.
struct Merge {
  Axis axis;
  ValueId of;            // what has two; of what is repeated, with one member
  bool repeats = false;  // along the second: reshape(expand(of))
};

std::optional<Merge> merge(const Program& program, shape::SizeTable& sizes, const Node& node) {
  if (node.op != Op::reshape) return {};
  const Shape& two = program.type(node.inputs[0]).shape;
  const std::optional<Axis> axis = joined(sizes, program.type(node.out).shape, two);
  if (!axis) return {};
  const Merge result{*axis, node.inputs[0]};
  const Node* const expand = defining(program, node.inputs[0]);
  // Of one group, the reshape is a view by itself.
  if (expand == nullptr || expand->op != Op::expand || sizes.is(axis->groups, 1)) return result;
  const Shape& x = program.type(expand->inputs[0]).shape;
  const int members = axis->axis + 1;
  if (x.rank != two.rank || !sizes.is(x[members], 1) || x[members] == two[members]) return result;
  for (int d = 0; d < x.rank; ++d) {
    if (d != members && x[d] != two[d]) return result;
  }
  return Merge{*axis, expand->inputs[0], true};
}

// What v, or what it is a cast or another order of, merges.
std::optional<Merge> merged(const Program& program, shape::SizeTable& sizes, ValueId v) {
  const Node* const node = defining(program, v);
  if (node == nullptr) return {};
  if (node->op != Op::cast && node->op != Op::permute) return merge(program, sizes, *node);
  std::optional<Merge> result = merged(program, sizes, node->inputs[0]);
  if (result && node->op == Op::permute) result->axis = permuted(result->axis, *node);
  return result;
}

class SharedFactors {
 public:
  explicit SharedFactors(Program source) : source_(std::move(source)), out_(successor_of(source_)) {
    held_.resize(source_.values.size(), -1);
    split_.resize(source_.values.size());
    readers_.resize(source_.values.size());
    for (const ValueId v : source_.outputs) ++readers_[at(v)];
    others_.resize(source_.values.size());
    taken_apart_.resize(source_.values.size());
    for (auto node = source_.nodes.rbegin(); node != source_.nodes.rend(); ++node) count(*node);
  }

  Program run() {
    for (const ValueId v : source_.inputs) held_[at(v)] = out_.input(source_.type(v));
    for (const Node& node : source_.nodes) {
      line_ = node.line;
      if (follow(node)) continue;
      for (const ValueId v : node.inputs) whole(v);
      append_copy(out_, source_, node, held_);
    }
    line_ = -1;
    for (const ValueId v : source_.outputs) out_.outputs.push_back(whole(v));
    sweep(out_);
    return std::move(out_);
  }

 private:
  struct Split {
    ValueId value = -1;  // with two axes; -1: none
    Axis axis;
  };

  // Readers come first.
  void count(const Node& node) {
    const bool reshapes = node.op == Op::reshape;
    const bool passes = node.op == Op::cast && others_[at(node.out)] == 0;
    for (const ValueId v : node.inputs) {
      ++readers_[at(v)];
      others_[at(v)] += !reshapes && !passes;
      const std::optional<Axis> axis =
          reshapes ? joined(out_.sizes, shape(v), shape(node.out)) : taken_apart_[at(node.out)];
      if (axis && (reshapes || passes)) taken_apart_[at(v)] = axis;
    }
  }

  const Shape& shape(ValueId v) const { return source_.type(v).shape; }
  const Node* made_by(ValueId v) const { return defining(source_, v); }
  bool is_one(SizeId size) const { return out_.sizes.is(size, 1); }
  static bool is_elementwise(const Node& node) {
    return info(node.op).cls == OpClass::kElementwise;
  }

  ValueId emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type) {
    return append(out_, op, std::move(in), std::move(attrs), type, line_);
  }

  Type split_type(ValueId v, const Axis& axis) const {
    Type type = source_.type(v);
    type.shape = Shape();
    for (int d = 0; d < shape(v).rank; ++d) {
      if (d != axis.axis) {
        type.shape.push(shape(v)[d]);
      } else if (is_one(shape(v)[d])) {
        type.shape.push(shape(v)[d]);
        type.shape.push(shape(v)[d]);
      } else {
        type.shape.push(axis.groups);
        type.shape.push(axis.members);
      }
    }
    return type;
  }

  // v with one axis.
  ValueId whole(ValueId v) {
    ValueId& held = held_[at(v)];
    if (held < 0)
      held = emit(Op::reshape, {split_[at(v)].value}, {Attr::of_sizes(shape(v).span())},
                  source_.type(v));
    return held;
  }

  // Which axis that is in a value of another rank, counted from the last; below 0: none.
  static Axis in_operand(Axis axis, int from_rank, int rank) {
    axis.axis += rank - from_rank;
    return axis;
  }

  static Attr permuted_axes(const Axis& axis, const Node& permute) {
    Ints axes;
    for (const std::int64_t from : permute.attrs[0].ints) {
      axes.push_back(from + (from > axis.axis));
      if (from == axis.axis) axes.push_back(from + 1);
    }
    return Attr::of_ints(std::move(axes));
  }

  // Merged factors -----------------------------------------------------------------------------

  std::optional<Merge> merged(ValueId v) { return tilevm::merged(source_, out_.sizes, v); }

  // v, which is merged, with two axes; what is repeated has one member in each group.
  ValueId apart(ValueId v) {
    const Node& node = *made_by(v);
    const Merge whole_merge = *merged(v);
    if (node.op == Op::reshape) return whole(whole_merge.of);
    const ValueId of = apart(node.inputs[0]);
    const Axis axis = whole_merge.axis;
    Type type = split_type(v, axis);
    if (whole_merge.repeats) type.shape[axis.axis + 1] = out_.sizes.constant(1);
    std::vector<Attr> attrs = node.attrs;
    if (node.op == Op::permute) attrs = {permuted_axes(merged(node.inputs[0])->axis, node)};
    return emit(node.op, {of}, std::move(attrs), type);
  }

  // Operands -----------------------------------------------------------------------------------

  // Whether it costs nothing to have v with two axes: it is that, or lies in memory, or is made for
  // one reader of what is.
  bool may_split(ValueId v, const Axis& axis, int& room) const {
    if (axis.axis < 0 || is_one(shape(v)[axis.axis])) return true;
    if (shape(v)[axis.axis] != axis.size) return false;
    if (split_[at(v)].value >= 0) return split_[at(v)].axis == axis;
    const Node* const node = made_by(v);
    if (node == nullptr) return true;
    if (is_small(v, axis)) return true;
    if (is_made_again(*node)) {
      return --room >= 0 && std::ranges::all_of(node->inputs, [&](ValueId in) {
        return may_split(in, in_operand(axis, shape(v).rank, shape(in).rank), room);
      });
    }
    return in_memory(*node);
  }

  // A number for each head, as slopes are: stored in no time.
  bool is_small(ValueId v, const Axis& axis) const {
    for (int d = 0; d < shape(v).rank; ++d) {
      if (d != axis.axis && !is_one(shape(v)[d])) return false;
    }
    return true;
  }

  bool is_made_again(const Node& node) const {
    return node.op == Op::expand || node.op == Op::cast ||
           (is_elementwise(node) && readers_[at(node.out)] == 1);
  }

  bool in_memory(const Node& node) const {
    switch (info(node.op).cls) {
      case OpClass::kView: {
        if (node.op == Op::reshape) return true;
        const Node* const of = made_by(node.inputs[0]);
        return of == nullptr || in_memory(*of);
      }
      case OpClass::kLayout:
      case OpClass::kLoop:
      case OpClass::kCall:
        return true;
      default:
        return false;
    }
  }

  // v, whose axis it is, with two.
  ValueId split(ValueId v, const Axis& axis) {
    if (axis.axis < 0) return whole(v);
    const Type type = split_type(v, axis);
    if (is_one(shape(v)[axis.axis])) {
      Operands in{whole(v)};
      return emit(Op::unsqueeze, std::move(in), {Attr::of_ints({axis.axis})}, type);
    }
    if (split_[at(v)].value >= 0 && split_[at(v)].axis == axis) return split_[at(v)].value;
    const Node* const node = made_by(v);
    if (node == nullptr || !is_made_again(*node)) {
      Operands in{whole(v)};
      return emit(Op::reshape, std::move(in), {Attr::of_sizes(type.shape.span())}, type);
    }
    Operands in;
    for (const ValueId operand : node->inputs)
      in.push_back(split(operand, in_operand(axis, shape(v).rank, shape(operand).rank)));
    return emit(
        node->op, std::move(in),
        node->op == Op::expand ? std::vector{Attr::of_sizes(type.shape.span())} : node->attrs,
        type);
  }

  // Operators ----------------------------------------------------------------------------------

  // Emits `node` with two axes for one, if an operand has them already, or is a factor that is
  // repeated. False: it is as it was.
  bool follow(const Node& node) {
    if (node.n_out != 1) return false;
    if (node.op == Op::matmul) return product(node);
    if (node.inputs.empty()) return false;
    if (is_elementwise(node)) return elementwise(node);
    const Split& of = split_[at(node.inputs[0])];
    if (of.value < 0) return false;
    switch (node.op) {
      case Op::reshape:
        return reshape(node, of);
      case Op::permute:
        put(node, {permuted_axes(of.axis, node)}, {of.value}, permuted(of.axis, node));
        return true;
      case Op::amax:
      case Op::sum:
        return fold(node, of);
      default:
        return false;
    }
  }

  void put(const Node& node, std::vector<Attr> attrs, Operands in, const Axis& axis) {
    const ValueId value =
        emit(node.op, std::move(in), std::move(attrs), split_type(node.out, axis));
    split_[at(node.out)] = {value, axis};
  }

  // The axis of the result that is two in an operand.
  std::optional<Axis> axis_of(const Node& node) const {
    for (const ValueId v : node.inputs) {
      if (split_[at(v)].value < 0) continue;
      return in_operand(split_[at(v)].axis, shape(v).rank, shape(node.out).rank);
    }
    return {};
  }

  // Likewise of a product, or the one along which a factor is repeated; or that is taken apart
  // behind it, or merged for it in both factors, if nothing reads the product as it is.
  std::optional<Axis> axis_of_product(const Node& node) {
    std::optional<Axis> axis = axis_of(node);
    if (axis) return axis;
    bool all = true;
    for (const ValueId v : node.inputs) {
      const std::optional<Merge> of = merged(v);
      all = all && of.has_value();
      if (!of) continue;
      const Axis own = in_operand(of->axis, shape(v).rank, shape(node.out).rank);
      if (of->repeats) return own;
      all = all && (!axis || *axis == own);
      axis = own;
    }
    if (others_[at(node.out)] > 0) return {};
    return taken_apart_[at(node.out)] ? taken_apart_[at(node.out)] : all ? axis : std::nullopt;
  }

  bool product(const Node& node) {
    const std::optional<Axis> axis = axis_of_product(node);
    const int rank = shape(node.out).rank;
    // Vectors are factors of other ranks.
    if (!axis || axis->axis < 0 || axis->axis > rank - 3 || rank == kMaxRank) return false;
    bool has_members = false;
    Operands apart_of;  // factors that are merged for this
    for (const ValueId v : node.inputs) {
      const Axis own = in_operand(*axis, rank, shape(v).rank);
      if (shape(v).rank < 2) return false;
      const std::optional<Merge> of = split_[at(v)].value < 0 ? merged(v) : std::nullopt;
      const bool is_merged = of && of->axis == own;
      int room = kMostOperators;
      if (!is_merged && !may_split(v, own, room)) return false;
      if (is_merged) apart_of.push_back(v);
      const bool one = own.axis < 0 || is_one(shape(v)[own.axis]);
      has_members = has_members || !(one || (is_merged && of->repeats));
    }
    if (!has_members) return false;
    Operands in;
    for (const ValueId v : node.inputs) {
      const bool is_merged = std::ranges::find(apart_of, v) != apart_of.end();
      in.push_back(is_merged ? apart(v) : split(v, in_operand(*axis, rank, shape(v).rank)));
    }
    put(node, node.attrs, std::move(in), *axis);
    return true;
  }

  bool elementwise(const Node& node) {
    const std::optional<Axis> axis = axis_of(node);
    const int rank = shape(node.out).rank;
    if (!axis || rank == kMaxRank) return false;
    for (const ValueId v : node.inputs) {
      int room = kMostOperators;
      if (!may_split(v, in_operand(*axis, rank, shape(v).rank), room)) return false;
    }
    Operands in;
    for (const ValueId v : node.inputs)
      in.push_back(split(v, in_operand(*axis, rank, shape(v).rank)));
    put(node, node.attrs, std::move(in), *axis);
    return true;
  }

  bool fold(const Node& node, const Split& of) {
    const Ints& axes = node.attrs[0].ints;
    if (std::ranges::find(axes, of.axis.axis) != axes.end()) return false;
    Ints shifted;
    Axis axis = of.axis;
    const bool keeps = node.attrs[1].ints[0] != 0;
    for (const std::int64_t d : axes) {
      shifted.push_back(d + (d > of.axis.axis));
      axis.axis -= !keeps && d < of.axis.axis;
    }
    put(node, {Attr::of_ints(std::move(shifted)), node.attrs[1]}, {of.value}, axis);
    return true;
  }

  bool reshape(const Node& node, const Split& of) {
    const Type& type = source_.type(node.out);
    const bool same = type.shape == split_type(node.inputs[0], of.axis).shape;
    held_[at(node.out)] = same ? of.value : emit(Op::reshape, {of.value}, node.attrs, type);
    return true;
  }

  Program source_, out_;
  std::vector<ValueId> held_;  // by value of the source: as it was; -1: not made, or only split
  std::vector<Split> split_;   // the same
  std::vector<int> readers_;   // the same
  std::vector<int> others_;    // the same; of them, operators that are no reshapes
  std::vector<std::optional<Axis>> taken_apart_;  // the same: the axis that a reader makes two of
  int line_ = -1;
};

}  // namespace

Program with_shared_factors(Program lowered) {
  const auto rank = [&](ValueId v) { return lowered.type(v).shape.rank; };
  const auto concerns = [&](const Node& node) {
    if (node.op == Op::matmul) {
      return rank(node.out) > 2 && std::ranges::any_of(node.inputs, [&](ValueId v) {
               const std::optional<Merge> of = merged(lowered, lowered.sizes, v);
               return of && of->axis.axis <= rank(v) - 3;
             });
    }
    const Node* const of = node.op == Op::reshape ? defining(lowered, node.inputs[0]) : nullptr;
    return of != nullptr && of->op == Op::matmul && rank(of->out) > 2;
  };
  // Twice: what is merged for a product may be repeated before.
  for (int i = 0; i < 2 && std::ranges::any_of(lowered.nodes, concerns); ++i)
    lowered = SharedFactors(std::move(lowered)).run();
  return lowered;
}

}  // namespace tilevm
