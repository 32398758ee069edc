// Where reductions, gathers, views, concatenations and call-outs go.
#include <algorithm>
#include <ranges>

#include "fuse/groups.h"

namespace tilevm::fuse {

// Reductions -----------------------------------------------------------------------------------

void Grouping::place_reduce(int n) {
  const Node& node = program.nodes[at(n)];
  const ValueId v = node.inputs[0];
  const Shape& in_shape = shape(v);
  const auto& axes = node.attrs[0].ints;
  const bool keep = node.attrs[1].ints[0] != 0;

  const auto finish = [&](int unit, const AxisMap& in_map) {
    Group& g = groups[at(unit)];
    AxisMap out;
    int o = 0;
    for (int d = 0; d < in_shape.rank; ++d) {
      const bool folded = std::ranges::find(axes, d) != axes.end();
      if (folded && !keep) continue;
      if (folded) {
        out.ghost[at(o)] = in_map.axis[at(d)];
      } else {
        out.axis[at(o)] = in_map.axis[at(d)];
      }
      ++o;
    }
    for (const auto a : axes) {
      const int axis = in_map.axis[at(static_cast<int>(a))];
      if (axis >= 0) g.reduced = static_cast<AxisMask>(g.reduced | (1U << axis));
    }
    g.has_fold = true;
    reduce_map[at(n)] = in_map;
    add_node(unit, n, out);
  };
  const auto folded_axes = [&](const AxisMap& map) {
    AxisMask over = 0;
    for (const auto a : axes) {
      const int axis = map.axis[at(static_cast<int>(a))];
      if (axis >= 0) over = static_cast<AxisMask>(over | (1U << axis));
    }
    return over;
  };

  const auto& in = info[at(v)];
  bool spans = true;  // every dim that is not 1 runs along an axis
  if (in.where == Where::kKernel) {
    for (int d = 0; d < in_shape.rank; ++d)
      spans = spans && (one(in_shape[d]) || in.map.axis[at(d)] >= 0);
    const Group& g = groups[at(in.unit)];
    const AxisMask over = folded_axes(in.map);
    const auto all = static_cast<AxisMask>((1U << g.axes.size()) - 1U);
    const auto mask = mask_of(in.map, in_shape.rank);
    Why why = too_large(g, 1, 0);
    if (!spans || mask != all || over == 0) why.bar = Bar::kPart;
    if (g.reduced != 0 && g.reduced != over) why.bar = Bar::kOtherFold;
    if (why.bar == Bar::kNone) {
      // Values stored so far that vary over part of the reduced axes would be stored many times.
      const bool partial = std::ranges::any_of(g.values, [&](ValueId w) {
        const auto m = static_cast<AxisMask>(mask_of(info[at(w)].map, shape(w).rank));
        return (m & over) != 0 && (m & over) != over;
      });
      if (!partial) return finish(in.unit, in.map);
      why.bar = Bar::kPartOfFold;
    }
    need_buffer(v, -1, n, why);
  }
  if (in.where == Where::kBuffer) {
    for (const int loader : loaders_[at(v)] | std::views::reverse) {
      const auto& loads = groups[at(loader)].loads;
      const auto load = std::ranges::find_if(loads, [&](const Load& l) { return l.value == v; });
      if (load == loads.end() || !join_sibling(n, loader, v, load->map)) continue;
      const Group& g = groups[at(loader)];
      const AxisMask over = folded_axes(load->map);
      const bool partial = std::ranges::any_of(g.values, [&](ValueId w) {
        const auto m = static_cast<AxisMask>(mask_of(info[at(w)].map, shape(w).rank));
        const bool whole_kept =
            (m & ~over) == (((1U << g.axes.size()) - 1U) & ~static_cast<unsigned>(over));
        return ((m & over) != 0 && (m & over) != over) || !whole_kept;
      });
      if (partial) continue;
      return finish(loader, AxisMap(load->map));
    }
  }
  const int unit = new_group();
  AxisMap map;
  for (int d = 0; d < in_shape.rank; ++d) {
    if (one(in_shape[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(groups[at(unit)].axes.size());
    groups[at(unit)].axes.push_back(in_shape[d]);
  }
  if (in.where == Where::kFree) {
    order.depend(unit, in.brought);
  } else {
    order.depend(unit, in.unit);
    groups[at(unit)].loads.push_back({v, map});
    loaders_[at(v)].push_back(unit);
  }
  finish(unit, map);
}

// Gathers --------------------------------------------------------------------------------------

// Joins the group that makes the indices, which are in registers there.
bool Grouping::join_index(int n, Why& why) {
  const Node& node = program.nodes[at(n)];
  const ValueId x = node.inputs[0];
  const ValueInfo& index = info[at(node.inputs[1])];
  if (index.where != Where::kKernel || info[at(x)].where == Where::kFree) return false;
  const int unit = index.unit;
  if (const Why large = too_large(groups[at(unit)], 1, 1); large.bar != Bar::kNone) {
    why = large;
    return false;
  }
  if (const int needs = info[at(x)].unit; needs >= 0 && !order.can_depend(unit, needs)) {
    why = between(unit, needs);
    return false;
  }
  const int first = node.op == Op::take ? static_cast<int>(node.attrs[0].ints[0]) : 0;
  AxisMap map;
  for (int d = 0; d < shape(node.inputs[1]).rank; ++d) {
    map.axis[at(first + d)] = index.map.axis[at(d)];
    map.ghost[at(first + d)] = index.map.ghost[at(d)];
  }
  std::vector<SizeId> new_axes;
  if (!fits(n, unit, map, new_axes, why)) return false;
  Group& g = groups[at(unit)];
  g.axes.insert(g.axes.end(), new_axes.begin(), new_axes.end());
  need_buffer(x, unit, n, {Bar::kTable});
  g.loads.push_back({x, AxisMap()});
  add_node(unit, n, map);
  return true;
}

void Grouping::place_gather(int n) {
  Why why{Bar::kIndices};
  if (join_index(n, why)) return;
  const Node& node = program.nodes[at(n)];
  const ValueId x = node.inputs[0];
  const ValueId index = node.inputs[1];
  const Shape& out = shape(node.out);
  const int unit = new_group();
  AxisMap map;
  for (int d = 0; d < out.rank; ++d) {
    if (one(out[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(groups[at(unit)].axes.size());
    groups[at(unit)].axes.push_back(out[d]);
  }
  need_buffer(x, unit, n, {Bar::kTable});
  groups[at(unit)].loads.push_back({x, AxisMap()});
  if (info[at(index)].where == Where::kFree) {
    order.depend(unit, info[at(index)].brought);
  } else {
    need_buffer(index, unit, n, why);
    groups[at(unit)].loads.push_back({index, AxisMap()});
  }
  add_node(unit, n, map);
}

// Views ----------------------------------------------------------------------------------------

void Grouping::place_view(int n) {
  const Node& node = program.nodes[at(n)];
  const ValueId v = node.inputs[0];
  const ValueInfo in = info[at(v)];
  const Shape& from = shape(v);
  const Shape& to = shape(node.out);
  // source dim of each dim of the result, or -1; only if the view renames dims and does no more
  std::array<int, kMaxRank> dim_of;
  dim_of.fill(-1);
  bool renames = true;
  std::pair other{shape::kNoSize, shape::kNoSize};  // dims that are not known to be the same
  switch (node.op) {
    case Op::permute:
      for (int d = 0; d < to.rank; ++d) dim_of[at(d)] = static_cast<int>(node.attrs[0].ints[at(d)]);
      break;
    case Op::expand:
      for (int d = 0; d < to.rank; ++d) {
        const int i = aligned(d, from.rank, to.rank);
        if (i >= 0 && (!one(from[i]) || one(to[d]))) dim_of[at(d)] = i;
      }
      break;
    case Op::unsqueeze:
    case Op::squeeze:
    case Op::reshape: {
      // The same dims in the same order, apart from dims of size 1.
      int i = 0;
      for (int d = 0; d < to.rank && renames; ++d) {
        if (one(to[d])) {
          if (i < from.rank && one(from[i])) dim_of[at(d)] = i++;
          continue;
        }
        while (i < from.rank && one(from[i])) ++i;
        renames = i < from.rank && from[i] == to[d];
        if (!renames && i < from.rank) other = {from[i], to[d]};
        dim_of[at(d)] = i++;
      }
      while (i < from.rank && one(from[i])) ++i;
      renames = renames && i == from.rank;
      break;
    }
    default:
      renames = false;
  }
  if (in.where == Where::kFree && node.op != Op::flip) {
    const bool constant = in.free_dim < 0;
    if (constant || renames) {
      auto& out = info[at(node.out)];
      out = in;
      out.free_dim = -1;
      for (int d = 0; d < to.rank && !constant; ++d) {
        if (dim_of[at(d)] == in.free_dim) out.free_dim = static_cast<std::int8_t>(d);
      }
      return;
    }
  }
  if (in.where == Where::kKernel && renames) {
    auto& out = info[at(node.out)];
    out = in;
    out.stored = false;
    set_unit(node.out, in.unit);
    for (int d = 0; d < kMaxRank; ++d) {
      const int i = d < to.rank ? dim_of[at(d)] : -1;
      out.map.axis[at(d)] = static_cast<std::int8_t>(i < 0 ? -1 : in.map.axis[at(i)]);
      out.map.ghost[at(d)] = static_cast<std::int8_t>(i < 0 ? -1 : in.map.ghost[at(i)]);
    }
    groups[at(in.unit)].values.push_back(node.out);
    return;
  }
  need_buffer(v, -1, n, {Bar::kLayout, other.first, other.second});
  define_buffer(node.out, later(info[at(v)].unit, brought_by(node)));
}

// Layout and call-outs ---------------------------------------------------------------------------

void Grouping::store_into(ValueId value, ValueId target, int join_unit, int reader) {
  const ValueInfo v = info[at(value)];
  const Shape& s = shape(value);
  if (v.where == Where::kKernel) {
    const Group& g = groups[at(v.unit)];
    bool spans = true;
    for (int d = 0; d < s.rank; ++d) spans = spans && (one(s[d]) || v.map.axis[at(d)] >= 0);
    const auto mask = mask_of(v.map, s.rank);
    const auto kept =
        static_cast<AxisMask>(((1U << g.axes.size()) - 1U) & ~static_cast<unsigned>(g.reduced));
    const auto over = static_cast<AxisMask>(mask & g.reduced);
    if (spans && (mask & kept) == kept && (over == 0 || over == g.reduced)) {
      groups[at(v.unit)].fills.push_back({value, v.map});
      groups[at(v.unit)].targets.push_back(target);
      order.depend(join_unit, v.unit);
      decisions.push_back({v.source, reader, {Bar::kPlace}});
      return;
    }
  }
  const int unit = new_group();
  AxisMap map;
  for (int d = 0; d < s.rank; ++d) {
    if (one(s[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(groups[at(unit)].axes.size());
    groups[at(unit)].axes.push_back(s[d]);
  }
  if (v.where == Where::kFree) {
    order.depend(unit, v.brought);
  } else {
    need_buffer(value, unit, reader, {Bar::kPart});
    groups[at(unit)].loads.push_back({value, map});
  }
  groups[at(unit)].fills.push_back({value, map});
  groups[at(unit)].targets.push_back(target);
  order.depend(join_unit, unit);
}

void Grouping::place_concat(int n) {
  const Node node = program.nodes[at(n)];
  const int join = new_unit();
  unit_of_node[n] = join;
  groups[at(join)].node = n;
  const int axis = static_cast<int>(node.attrs[0].ints[0]);
  parts.push_back({Step::Kind::kAlloc, -1, node.out, n, -1, -1, shape::kNoSize, -1});
  SizeId offset = program.sizes.constant(0);
  for (const ValueId v : node.inputs) {
    const Type type{program.type(node.out).dtype, false, shape(v)};
    const ValueId part = append_value(type);
    parts.push_back({Step::Kind::kSlice, node.out, part, n, -1, axis, offset, -1});
    store_into(v, part, join, n);
    offset = program.sizes.add(offset, type.shape[axis]);
  }
  define_buffer(node.out, join);
}

void Grouping::place_call(int n) {
  const Node& node = program.nodes[at(n)];
  const int unit = new_unit();
  unit_of_node[n] = unit;
  groups[at(unit)].node = n;
  if (node.op == Op::call) {
    bring_sizes(node, unit);
    if (node.attrs[0].ints[1] != 0) {  // it is ordered
      if (last_ordered_ >= 0) order.depend(unit, last_ordered_);
      last_ordered_ = unit;
    }
  }
  const Bar bar = is_product(program, node) ? Bar::kFactor : Bar::kCallOut;
  for (const ValueId v : node.inputs) need_buffer(v, unit, n, {bar});
  for (int i = 0; i < node.n_out; ++i) define_buffer(node.out + i, unit);
}

}  // namespace tilevm::fuse
