// Programs with convolutions, whose images have their channels last: what surrounds them is brought
// into the same order, so that a program whose images are [N, C, sizes] is not transposed at each
// convolution. Permutes that come from convolutions are moved behind what reads them, until they
// meet others that undo them.
#include <algorithm>

#include "program/passes.h"

namespace tilevm {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Axes of a permute that brings the channels, axis 1, behind all others, and back.
Ints to_last(int rank) {
  Ints axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  axes.push_back(1);
  return axes;
}
Ints from_last(int rank) {
  Ints axes{0, rank - 1};
  for (int axis = 1; axis < rank - 1; ++axis) axes.push_back(axis);
  return axes;
}

class ChannelsLast {
 public:
  explicit ChannelsLast(Program source)
      : source_(std::move(source)), out_(successor_of(source_)) {
    held_.resize(source_.values.size());
  }

  Program run() {
    for (const ValueId v : source_.inputs) held_[at(v)].value = out_.input(source_.type(v));
    for (const Node& node : source_.nodes) {
      line_ = node.line;
      add(node);
    }
    line_ = -1;
    for (const ValueId v : source_.outputs) out_.outputs.push_back(as_it_is(v));
    sweep(out_);
    return std::move(out_);
  }

 private:
  // Of a value of the source: itself, or `last`: with its axis 1, the channels, behind all others.
  struct Held {
    ValueId value = -1;
    bool last = false;
    ValueId other = -1;  // the other form, once it was asked for
  };

  // What convolutions read of an image.
  struct Copied {
    ValueId image, copy;
  };

  const Type& type(ValueId v) const { return source_.type(v); }
  int rank(ValueId v) const { return type(v).shape.rank; }
  bool last(ValueId v) const { return held_[at(v)].last; }

  // Where an axis of a value lies when its channels are last, and back.
  static std::int64_t place(std::int64_t axis, int rank) {
    return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
  }
  template <class List>
  static List reordered(const List& list, const Ints& axes) {
    List result;
    for (const std::int64_t axis : axes) result.push_back(list[at(axis)]);
    return result;
  }
  static Shape reordered(const Shape& shape, const Ints& axes) {
    Shape result;
    for (const std::int64_t axis : axes) result.push(shape[static_cast<int>(axis)]);
    return result;
  }
  Type last_type(ValueId v) const {
    Type result = type(v);
    result.shape = reordered(result.shape, to_last(result.shape.rank));
    return result;
  }

  ValueId emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type) {
    return append(out_, op, std::move(in), std::move(attrs), type, line_);
  }
  ValueId permuted(ValueId v, const Ints& axes) {
    const Type from = out_.type(v);
    return emit(Op::permute, {v}, {Attr::of_ints(axes)},
                {from.dtype, from.weak, reordered(from.shape, axes)});
  }

  ValueId as_it_is(ValueId v) {
    Held& h = held_[at(v)];
    if (!h.last) return h.value;
    if (h.other < 0) h.other = permuted(h.value, from_last(rank(v)));
    return h.other;
  }

  // With channels last, as an operand of an operator of this rank.
  ValueId with_last(ValueId v, int rank_of_result) {
    Held& h = held_[at(v)];
    if (h.last || rank(v) == 0) return h.value;
    if (h.other >= 0) return h.other;
    const std::int32_t def = out_.values[at(h.value)].node;
    if (def >= 0 && out_.nodes[at(def)].op == Op::full && rank(v) == rank_of_result) {
      std::vector<Attr> attrs = out_.nodes[at(def)].attrs;
      attrs[0].sizes = reordered(attrs[0].sizes, to_last(rank_of_result));
      h.other = emit(Op::full, {}, std::move(attrs), last_type(v));
      return h.other;
    }
    ValueId x = h.value;
    while (out_.type(x).shape.rank < rank_of_result) {
      Type wider = out_.type(x);
      wider.shape = Shape();
      wider.shape.push(out_.sizes.constant(1));
      for (const SizeId size : out_.type(x).shape.span()) wider.shape.push(size);
      x = emit(Op::unsqueeze, {x}, {Attr::of_ints({0})}, wider);
    }
    x = permuted(x, to_last(rank_of_result));
    if (rank(v) == rank_of_result) h.other = x;
    return x;
  }

  void hold(const Node& node, ValueId value, bool last) { held_[at(node.out)] = {value, last, -1}; }

  void add(const Node& node) {
    const Type& result = type(node.out);
    const OpClass cls = info(node.op).cls;
    const auto is_last = [&](ValueId v) { return last(v) && rank(v) == result.shape.rank; };
    if (node.op == Op::permute) return permute(node);
    if (is_convolution(node.op)) return convolution(node);
    const bool any = std::ranges::any_of(node.inputs, is_last);
    if (any && (cls == OpClass::kElementwise || node.op == Op::concat)) {
      Operands in;
      for (const ValueId v : node.inputs) in.push_back(with_last(v, result.shape.rank));
      std::vector<Attr> attrs = node.attrs;
      if (node.op == Op::concat) attrs[0].ints[0] = place(attrs[0].ints[0], result.shape.rank);
      return hold(node, emit(node.op, std::move(in), std::move(attrs), last_type(node.out)), true);
    }
    if (any && (node.op == Op::slice || node.op == Op::flip || node.op == Op::expand))
      return view(node);
    if (node.op == Op::reshape && last(node.inputs[0]) && keeps_channels(node)) {
      std::vector<Attr> attrs{Attr::of_sizes(last_type(node.out).shape.span())};
      return hold(
          node, emit(node.op, {held_[at(node.inputs[0])].value}, attrs, last_type(node.out)), true);
    }
    if (cls == OpClass::kReduce && last(node.inputs[0]) && reduction(node)) return;
    copy(node);
  }

  // Whether a reshape is of an image's sizes alone: patches become a row, or a row patches.
  bool keeps_channels(const Node& node) const {
    const Shape &from = type(node.inputs[0]).shape, &to = type(node.out).shape;
    return from.rank >= 3 && to.rank >= 3 && from[0] == to[0] && from[1] == to[1];
  }

  void copy(const Node& node) {
    Operands in;
    for (const ValueId v : node.inputs) in.push_back(as_it_is(v));
    const auto id = static_cast<ValueId>(out_.values.size());
    for (int k = 0; k < node.n_out; ++k) {
      out_.values.push_back({type(node.out + k), static_cast<std::int32_t>(out_.nodes.size())});
      held_[at(node.out + k)].value = id + k;
    }
    out_.nodes.push_back(
        {node.op, std::move(in), node.attrs, id, node.n_out, node.line, node.of_weights});
  }

  void permute(const Node& node) {
    const ValueId v = node.inputs[0];
    const Ints& axes = node.attrs[0].ints;
    const int rank = this->rank(v);
    if (!last(v)) {
      if (rank >= 3 && axes == from_last(rank)) return hold(node, held_[at(v)].value, true);
      return copy(node);
    }
    Ints places;
    for (const std::int64_t axis : axes) places.push_back(place(axis, rank));
    const ValueId value = held_[at(v)].value;
    hold(node, std::ranges::is_sorted(places) ? value : permuted(value, places), false);
  }

  // An image whose channels do not lie side by side is copied, once for all convolutions of it.
  // Channels by themselves are read where they lie, if positions are side by side.
  void convolution(const Node& node) {
    const ValueId image = as_it_is(node.inputs[0]);
    const std::int32_t def = out_.values[at(image)].node;
    ValueId dense = image;
    const bool each = node.attrs[4].ints[0] != 0 && node.attrs[0].ints.back() == 1;
    if (!each && def >= 0 && out_.nodes[at(def)].op == Op::permute) {
      const auto found = std::ranges::find(copied_, image, &Copied::image);
      if (found != copied_.end()) {
        dense = found->copy;
      } else {
        // Flat, and back: a view where memory is in this order already, else a copy.
        const Type whole = out_.type(image);
        SizeId count = out_.sizes.constant(1);
        for (const SizeId size : whole.shape.span()) count = out_.sizes.mul(count, size);
        Type flat = whole;
        flat.shape = Shape();
        flat.shape.push(count);
        dense = emit(Op::reshape, {image}, {Attr::of_sizes({count})}, flat);
        dense = emit(Op::reshape, {dense}, {Attr::of_sizes(whole.shape.span())}, whole);
        copied_.push_back({image, dense});
      }
    }
    hold(node, emit(node.op, {dense, as_it_is(node.inputs[1])}, node.attrs, type(node.out)), false);
  }

  void view(const Node& node) {
    const int rank = type(node.out).shape.rank;
    std::vector<Attr> attrs = node.attrs;
    if (node.op == Op::expand) {
      attrs[0].sizes = reordered(attrs[0].sizes, to_last(rank));
    } else {
      for (std::int64_t& axis : attrs[0].ints) axis = place(axis, rank);
      std::ranges::sort(attrs[0].ints);
    }
    hold(node,
         emit(node.op, {held_[at(node.inputs[0])].value}, std::move(attrs), last_type(node.out)),
         true);
  }

  // Not if what remains would be in an order that is neither.
  bool reduction(const Node& node) {
    const ValueId v = node.inputs[0];
    const int rank = this->rank(v);
    const Ints& axes = node.attrs[0].ints;
    const bool keeps = node.attrs[1].ints[0] != 0;
    const auto reduced = [&](std::int64_t axis) {
      return std::ranges::find(axes, axis) != axes.end();
    };
    bool is_last = keeps;
    if (!keeps && !reduced(1)) {
      bool sizes = false;
      for (int axis = 2; axis < rank; ++axis) sizes = sizes || !reduced(axis);
      if (sizes && reduced(0)) return false;
      is_last = sizes;
    }
    std::vector<Attr> attrs = node.attrs;
    for (std::int64_t& axis : attrs[0].ints) axis = place(axis, rank);
    std::ranges::sort(attrs[0].ints);
    const Type result = is_last ? last_type(node.out) : type(node.out);
    hold(node, emit(node.op, {held_[at(v)].value}, std::move(attrs), result), is_last);
    return true;
  }

  Program source_, out_;
  std::vector<Held> held_;  // by value of the source
  std::vector<Copied> copied_;
  int line_ = -1;
};

}  // namespace

Program with_channels_last(Program lowered) {
  // Or somebody has said so, by a permute there and back.
  const auto is_told = [&](const Node& node) {
    if (is_convolution(node.op)) return true;
    const auto axes = [](const Node& permute) { return permute.attrs[0].ints; };
    const std::int32_t def = node.op == Op::permute ? lowered.values[at(node.inputs[0])].node : -1;
    if (def < 0 || lowered.nodes[at(def)].op != Op::permute) return false;
    const int rank = lowered.type(node.out).shape.rank;
    return rank >= 4 && axes(node) == from_last(rank) &&
           axes(lowered.nodes[at(def)]) == to_last(rank);
  };
  if (std::ranges::none_of(lowered.nodes, is_told)) return lowered;
  return ChannelsLast(std::move(lowered)).run();
}

}  // namespace tilevm
