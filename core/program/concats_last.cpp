// Concatenations moved behind the elementwise operators that read them: f(concat(a, b), y) becomes
// concat(f(a, y's part), f(b, y's rest)), so that kernels store the parts of the result straight
// into their places, and what was joined before is never in memory. A rotary embedding is that.
#include <algorithm>
#include <array>
#include <vector>

#include "program/passes.h"

namespace tilevm {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Each part is a kernel of its own, unless parts are of one size.
constexpr std::size_t kMostParts = 4;
constexpr std::size_t kMostOperators = 32;

class ConcatsLast {
 public:
  explicit ConcatsLast(Program source)
      : source_(std::move(source)), out_(successor_of(source_)) {
    held_.resize(source_.values.size(), -1);
    users_.resize(source_.values.size());
    region_of_.resize(source_.nodes.size(), -1);
    for (std::size_t n = 0; n < source_.nodes.size(); ++n) {
      for (const ValueId v : source_.nodes[n].inputs)
        users_[at(v)].push_back(static_cast<std::int32_t>(n));
    }
    is_output_.resize(source_.values.size());
    for (const ValueId v : source_.outputs) is_output_[at(v)] = true;
  }

  Program run() {
    for (std::size_t n = 0; n < source_.nodes.size(); ++n) {
      const Node& node = source_.nodes[n];
      if (node.op == Op::concat && node.inputs.size() <= kMostParts && region_of_[n] < 0) {
        find_region(static_cast<std::int32_t>(n));
      }
    }
    for (const ValueId v : source_.inputs) held_[at(v)] = out_.input(source_.type(v));
    for (std::size_t n = 0; n < source_.nodes.size(); ++n) {
      const Node& node = source_.nodes[n];
      line_ = node.line;
      if (region_of_[n] < 0) {
        copy(node);
      } else if (leaves_region(static_cast<std::int32_t>(n))) {
        join(node, regions_[at(region_of_[n])]);
      }
    }
    line_ = -1;
    for (const ValueId v : source_.outputs) out_.outputs.push_back(held_[at(v)]);
    sweep(out_);
    return std::move(out_);
  }

 private:
  // A concatenation and the elementwise operators that are computed part by part.
  struct Region {
    std::int32_t concat;
    std::vector<std::array<ValueId, kMostParts>> parts;  // by place; -1: not made yet
    std::vector<std::int32_t> nodes;                     // the concatenation first
  };
  struct Slice {
    ValueId of;
    int axis;
    SizeId start, stop;
    ValueId value;
  };

  const Shape& shape(ValueId v) const { return source_.type(v).shape; }
  const Node& node(std::int32_t n) const { return source_.nodes[at(n)]; }
  static bool is_elementwise(const Node& node) {
    return info(node.op).cls == OpClass::kElementwise;
  }
  static int axis_of(const Node& concat) { return static_cast<int>(concat.attrs[0].ints[0]); }

  // The dim of v that lies along the concatenation's axis; -1: v is the same for all parts.
  int along(ValueId v, const Node& concat) const {
    const int d = axis_of(concat) - shape(concat.out).rank + shape(v).rank;
    return d < 0 || out_.sizes.is(shape(v)[d], 1) ? -1 : d;
  }

  bool in_region(std::int32_t n, int region) const { return region_of_[at(n)] == region; }
  bool leaves_region(std::int32_t n) const {
    const ValueId v = node(n).out;
    return is_output_[at(v)] || std::ranges::any_of(users_[at(v)], [&](std::int32_t user) {
             return !in_region(user, region_of_[at(n)]);
           });
  }

  // Elementwise operators that read the concatenation, and those that only they need; none, if
  // something else reads it, or if what comes behind would no longer be in a kernel with them.
  void find_region(std::int32_t concat) {
    if (along(node(concat).out, node(concat)) < 0) return;  // of one element: all others are empty
    const int id = static_cast<int>(regions_.size());
    std::vector<std::int32_t> nodes{concat};
    region_of_[at(concat)] = id;
    bool good = true;
    const auto take = [&](std::int32_t n) {
      region_of_[at(n)] = id;
      nodes.push_back(n);
      good = good && nodes.size() <= kMostOperators;
    };
    const Shape& whole = shape(node(concat).out);
    for (std::size_t i = 0; i < nodes.size() && good; ++i) {  // grows
      const Node& reader = node(nodes[i]);
      if (i > 0) pull(reader, concat, id, take);
      const bool makes_whole = std::ranges::equal(shape(reader.out).span(), whole.span());
      for (const std::int32_t user : users_[at(reader.out)]) {
        if (region_of_[at(user)] >= 0) continue;
        if (makes_whole && is_elementwise(node(user)) &&
            std::ranges::equal(shape(node(user).out).span(), whole.span()))
          take(user);
      }
    }
    good = good && nodes.size() > 1 && !leaves_region(concat);
    for (std::size_t i = 0; i < nodes.size() && good; ++i) good = may_move(nodes[i], concat, id);
    if (good) {
      regions_.push_back({concat, {}, std::move(nodes)});
      regions_.back().parts.resize(regions_.back().nodes.size());
      for (auto& parts : regions_.back().parts) parts.fill(-1);
      return;
    }
    for (const std::int32_t n : nodes) region_of_[at(n)] = -1;
  }

  // Takes operands of a reader that nobody outside needs. The concatenation needs its parts whole:
  // one is as large as the result where the others are empty.
  template <class Take>
  void pull(const Node& reader, std::int32_t concat, int id, Take take) {
    for (const ValueId v : reader.inputs) {
      const std::int32_t def = source_.values[at(v)].node;
      if (def < 0 || region_of_[at(def)] >= 0 || !is_elementwise(node(def)) || is_output_[at(v)] ||
          along(v, node(concat)) < 0)
        continue;
      if (std::ranges::all_of(users_[at(v)], [&](std::int32_t u) {
            return u != concat && in_region(u, id);
          }))
        take(def);
    }
  }

  // A fold or another concatenation takes what is in a kernel, not what is in memory; and what a
  // kernel or a product makes for these operators alone would have to be stored for its parts.
  bool may_move(std::int32_t n, std::int32_t concat, int id) const {
    for (const std::int32_t user : users_[at(node(n).out)]) {
      if (in_region(user, id)) continue;
      const Op op = node(user).op;
      if (info(op).cls == OpClass::kReduce || op == Op::concat) return false;
    }
    if (n == concat) return true;
    return std::ranges::all_of(node(n).inputs, [&](ValueId v) {
      const std::int32_t def = source_.values[at(v)].node;
      if (def < 0 || in_region(def, id) || along(v, node(concat)) < 0) return true;
      const OpClass cls = info(node(def).op).cls;
      if (cls == OpClass::kView || node(def).op == Op::call) return true;
      const bool in_memory = cls == OpClass::kLayout || cls == OpClass::kLoop;
      return in_memory || std::ranges::any_of(users_[at(v)], [&](std::int32_t user) {
               return !in_region(user, id);
             });
    });
  }

  ValueId emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type) {
    return append(out_, op, std::move(in), std::move(attrs), type, line_);
  }

  void copy(const Node& node) {
    const ValueId id = append_copy(out_, source_, node, held_);
    if (node.op == Op::slice && node.attrs[3].ints[0] == 1) {
      slices_.push_back({held_[at(node.inputs[0])], static_cast<int>(node.attrs[0].ints[0]),
                         node.attrs[1].sizes[0], node.attrs[2].sizes[0], id});
    }
  }

  void join(const Node& result, Region& region) {
    const Node& concat = node(region.concat);
    Operands parts;
    for (std::size_t i = 0; i < concat.inputs.size(); ++i)
      parts.push_back(part(result.out, i, region));
    held_[at(result.out)] =
        emit(Op::concat, std::move(parts), concat.attrs, source_.type(result.out));
  }

  // The elements of v that part i of the concatenation meets.
  ValueId part(ValueId v, std::size_t i, Region& region) {
    const Node& concat = node(region.concat);
    const std::int32_t def = source_.values[at(v)].node;
    if (def == region.concat) return held_[at(concat.inputs[i])];
    const int d = along(v, concat);
    if (d < 0) return held_[at(v)];
    const auto place = std::ranges::find(region.nodes, def);
    if (def < 0 || place == region.nodes.end()) return slice(v, d, i, concat);
    const auto which = at(place - region.nodes.begin());
    if (region.parts[which][i] >= 0) return region.parts[which][i];
    const Node& op = node(def);
    Operands in;
    for (const ValueId operand : op.inputs) in.push_back(part(operand, i, region));
    line_ = op.line;
    region.parts[which][i] = emit(op.op, std::move(in), op.attrs, part_type(v, d, i, concat));
    return region.parts[which][i];
  }

  Type part_type(ValueId v, int d, std::size_t i, const Node& concat) const {
    Type type = source_.type(v);
    type.shape = Shape();
    for (int k = 0; k < shape(v).rank; ++k)
      type.shape.push(k == d ? shape(concat.inputs[i])[axis_of(concat)] : shape(v)[k]);
    return type;
  }

  ValueId slice(ValueId v, int d, std::size_t i, const Node& concat) {
    const int axis = axis_of(concat);
    SizeId start = out_.sizes.constant(0);
    for (std::size_t k = 0; k < i; ++k)
      start = out_.sizes.add(start, shape(concat.inputs[k])[axis]);
    const SizeId stop = out_.sizes.add(start, shape(concat.inputs[i])[axis]);
    const ValueId of = held_[at(v)];
    const auto known = std::ranges::find_if(slices_, [&](const Slice& s) {
      return s.of == of && s.axis == d && s.start == start && s.stop == stop;
    });
    if (known != slices_.end()) return known->value;
    const ValueId result = emit(
        Op::slice, {of},
        {Attr::of_ints({d}), Attr::of_sizes({start}), Attr::of_sizes({stop}), Attr::of_ints({1})},
        part_type(v, d, i, concat));
    slices_.push_back({of, d, start, stop, result});
    return result;
  }

  Program source_, out_;
  std::vector<ValueId> held_;                     // by value of the source
  std::vector<std::vector<std::int32_t>> users_;  // the same
  std::vector<bool> is_output_;                   // the same
  std::vector<int> region_of_;                    // by node; -1: of none
  std::vector<Region> regions_;
  std::vector<Slice> slices_;
  int line_ = -1;
};

}  // namespace

Program with_concats_last(Program lowered) {
  const auto joins = [](const Node& node) { return node.op == Op::concat; };
  if (std::ranges::none_of(lowered.nodes, joins)) return lowered;
  return ConcatsLast(std::move(lowered)).run();
}

}  // namespace tilevm
