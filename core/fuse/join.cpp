// Where elementwise operators go: into a group that makes an operand, merging groups where several
// do, into a sibling that loads one, or into a new group.
#include <algorithm>
#include <ranges>
#include <optional>

#include "fuse/groups.h"

namespace tilevm::fuse {
namespace {
AxisMask bit(int axis) { return static_cast<AxisMask>(1U << axis); }
AxisMask first(std::size_t n) { return static_cast<AxisMask>((1U << n) - 1U); }
bool has(AxisMask mask, int axis) { return ((mask >> axis) & 1) != 0; }
}  // namespace

Why Grouping::too_large(const Group& g, int more_nodes, std::size_t more_loads) const {
  const int nodes = static_cast<int>(g.nodes.size()) + more_nodes;
  const std::size_t loads = g.loads.size() + more_loads;
  if (nodes > kMaxGroupNodes) return {.bar = Bar::kOperators, .number = nodes};
  if (loads > kMaxGroupLoads) return {.bar = Bar::kLoads, .number = static_cast<int>(loads)};
  return {};
}

// What has to run after one of the two units and before the other.
Why Grouping::between(int unit, int other) const {
  for (int u = 0; u < order.count(); ++u) {
    const int node = node_of(u);
    if (node < 0 || u == unit || u == other) continue;
    if ((order.precedes(unit, u) && order.precedes(u, other)) ||
        (order.precedes(other, u) && order.precedes(u, unit)))
      return {.bar = Bar::kOrder, .node = node};
  }
  return {.bar = Bar::kAfter};
}

int Grouping::node_of(int unit) const {
  const Group& g = groups[at(unit)];
  return g.node >= 0 || g.nodes.empty() ? g.node : g.nodes.back();
}

Bar Grouping::again(int unit, int node) const {
  const Group& g = groups[at(unit)];
  if (g.has_fold) return Bar::kAgainFold;
  if (g.cost > kCheapCost) return Bar::kAgainCost;
  if (!g.fills.empty()) return Bar::kAgainUsed;
  const bool alone = std::ranges::all_of(g.values, [&](ValueId v) {
    return !is_output_[at(v)] && !info[at(info[at(v)].source)].stored &&
           std::ranges::all_of(users(v), [&](int user) {
             return user == node || (user < node && std::ranges::binary_search(g.nodes, user)) ||
                    (user < node &&
                     std::ranges::find(g.values, program.nodes[at(user)].out) != g.values.end());
           });
  });
  return alone ? Bar::kNone : Bar::kAgainUsed;
}

// Axes of the dims of elementwise node n inside the group: those of its operands there, axes that
// were folded to a size of 1, and new ones (appended to `new_axes`) along which no operand varies.
std::optional<AxisMap> Grouping::result_map(int n, int unit, std::vector<SizeId>& new_axes,
                                            Why& why) const {
  const Node& node = program.nodes[at(n)];
  const Shape& out = shape(node.out);
  const Group& g = groups[at(unit)];
  AxisMap map;
  AxisMask used = 0;
  for (int d = 0; d < out.rank; ++d) {
    for (const ValueId v : node.inputs) {
      const auto& in = info[at(v)];
      const int i = aligned(d, shape(v).rank, out.rank);
      if (i < 0 || in.where != Where::kKernel || in.unit != unit) continue;
      const int axis = in.map.axis[at(i)];
      const int ghost = in.map.ghost[at(i)];
      if (axis >= 0 && map.axis[at(d)] >= 0 && map.axis[at(d)] != axis) {
        why = {.bar = Bar::kDisagree, .a = out[d]};
        return std::nullopt;
      }
      if (axis >= 0) map.axis[at(d)] = static_cast<std::int8_t>(axis);
      if (ghost >= 0) map.ghost[at(d)] = static_cast<std::int8_t>(ghost);
    }
    const int axis = map.axis[at(d)];
    if (axis < 0) continue;
    if (has(used, axis)) {  // x[i] * x[j]: one axis cannot be both
      why = {.bar = Bar::kDiagonal, .a = out[d]};
      return std::nullopt;
    }
    used = static_cast<AxisMask>(used | bit(axis));
  }
  for (int d = 0; d < out.rank; ++d) {
    const int axis = map.ghost[at(d)];
    if (map.axis[at(d)] >= 0 || one(out[d]) || axis < 0) continue;
    if (has(used, axis)) continue;
    if (g.axes[at(axis)] != out[d]) {
      why.a = out[d];  // in the way, if the group may not have another axis
      why.b = g.axes[at(axis)];
      continue;
    }
    map.axis[at(d)] = static_cast<std::int8_t>(axis);
    used = static_cast<AxisMask>(used | bit(axis));
  }
  if (!fits(n, unit, map, new_axes, why)) return std::nullopt;
  return map;
}

// Gives the dims of node n that have no axis yet new ones of the group (appended to `new_axes`).
bool Grouping::fits(int n, int unit, AxisMap& map, std::vector<SizeId>& new_axes, Why& why) const {
  const Shape& out = shape(program.nodes[at(n)].out);
  const Group& g = groups[at(unit)];
  for (int d = 0; d < out.rank; ++d) {
    if (map.axis[at(d)] < 0 && !one(out[d])) {
      map.axis[at(d)] = static_cast<std::int8_t>(g.axes.size() + new_axes.size());
      new_axes.push_back(out[d]);
    }
    if (map.axis[at(d)] >= 0) map.ghost[at(d)] = -1;
  }
  if (const auto axes = g.axes.size() + new_axes.size(); axes > kMaxAxes) {
    why = {.bar = Bar::kAxes, .number = static_cast<int>(axes)};
    return false;
  }
  if (const Bar bar = new_axes.empty() ? Bar::kNone : again(unit, n); bar != Bar::kNone) {
    why.bar = bar;
    why.number = g.cost;
    if (why.a == shape::kNoSize) why.a = new_axes.front();
    return false;
  }
  // A result that varies over part of the space only would be stored many times.
  const auto kept = static_cast<AxisMask>(first(g.axes.size() + new_axes.size()) & ~g.reduced);
  const auto mask = mask_of(map, out.rank);
  const auto swept = static_cast<AxisMask>(mask & g.reduced);
  if ((mask & kept) != kept || (swept != 0 && swept != g.reduced)) {
    why.bar = (mask & kept) != kept ? Bar::kPart : Bar::kPartOfFold;
    return false;
  }
  return true;
}

// How group `from`, which makes operands of node n, becomes part of group `unit`, where the dims of
// n run along `map`; nothing if it cannot. The joint space so far: n_axes axes, `reduced` folded.
std::optional<Grouping::Merge> Grouping::plan_merge(int n, int unit, int from, const AxisMap& map,
                                                    std::size_t n_axes, AxisMask reduced,
                                                    Why& why) const {
  const Node& node = program.nodes[at(n)];
  const auto no = [&](const Why& because) {
    why = because;
    return std::nullopt;
  };
  const int rank = shape(node.out).rank;
  const Group& g = groups[at(unit)];
  const Group& other = groups[at(from)];
  why = too_large(g, static_cast<int>(other.nodes.size()) + 1,
                  other.loads.size() + node.inputs.size());
  if (why.bar != Bar::kNone) return std::nullopt;
  Merge m{from, std::vector<std::int8_t>(other.axes.size(), -1), {}, reduced};

  // Axes along which n varies: every operand from there must agree, and no two may fall together.
  for (const ValueId v : node.inputs) {
    if (info[at(v)].where != Where::kKernel || info[at(v)].unit != from) continue;
    for (int d = 0; d < rank; ++d) {
      const int i = aligned(d, shape(v).rank, rank);
      const int axis = i < 0 ? -1 : info[at(v)].map.axis[at(i)];
      if (axis < 0) continue;
      auto& to = m.axis_of[at(axis)];
      if (to >= 0 && to != map.axis[at(d)]) return no({.bar = Bar::kDisagree});
      to = map.axis[at(d)];
    }
  }
  AxisMask covered = 0;
  for (const auto to : m.axis_of) {
    if (to < 0) continue;
    if (has(covered, to)) return no({.bar = Bar::kDiagonal});
    covered = static_cast<AxisMask>(covered | bit(to));
  }
  // The others must be folded there: they are our folded axes of that size, or new ones.
  for (std::size_t a = 0; a < other.axes.size(); ++a) {
    if (m.axis_of[a] >= 0) continue;
    if (!has(other.reduced, static_cast<int>(a)))
      return no({.bar = Bar::kOtherAxis, .a = other.axes[a]});
    int to = -1;
    Why fold{.bar = Bar::kNoFold, .a = other.axes[a]};
    if (reduced == 0) {
      to = static_cast<int>(n_axes + m.extra_axes.size());
      m.extra_axes.push_back(other.axes[a]);
    }
    for (int b = 0; to < 0 && b < static_cast<int>(g.axes.size()); ++b) {
      if (!has(reduced, b) || has(covered, b)) continue;
      fold.b = g.axes[at(b)];
      if (g.axes[at(b)] == other.axes[a]) to = b;
    }
    if (to < 0) return no(fold);
    m.axis_of[a] = static_cast<std::int8_t>(to);
    covered = static_cast<AxisMask>(covered | bit(to));
  }
  const std::size_t all_axes = n_axes + m.extra_axes.size();
  if (all_axes > kMaxAxes) return no({.bar = Bar::kAxes, .number = static_cast<int>(all_axes)});

  AxisMask other_reduced = 0;
  for (std::size_t a = 0; a < other.axes.size(); ++a) {
    if (!has(other.reduced, static_cast<int>(a))) continue;
    other_reduced = static_cast<AxisMask>(other_reduced | bit(m.axis_of[a]));
  }
  if (reduced != 0 && other_reduced != 0 && reduced != other_reduced)
    return no({.bar = Bar::kOtherFold});
  m.reduced = static_cast<AxisMask>(reduced | other_reduced);
  const auto kept = static_cast<AxisMask>(first(all_axes) & ~m.reduced);
  // Whoever lacks kept axes of the joint space is computed again along them; values that vary over
  // some of the folded axes only must not need storing.
  const auto strains = [&](AxisMask covers) {
    const auto swept = static_cast<AxisMask>(covers & m.reduced);
    return (covers & kept) != kept || (swept != 0 && swept != m.reduced);
  };
  for (const auto& [who, covers] : {std::pair{from, covered}, std::pair{unit, first(n_axes)}}) {
    const Bar bar = strains(covers) ? again(who, n) : Bar::kNone;
    if (bar != Bar::kNone) return no({.bar = bar, .number = groups[at(who)].cost});
  }
  return m;
}

bool Grouping::join_elementwise(int n, int unit) {
  const Node& node = program.nodes[at(n)];
  Group& g = groups[at(unit)];
  const auto no = [&](const Why& why) {
    refuse(unit, why);
    return false;
  };
  Why why = too_large(g, 1, node.inputs.size());
  if (why.bar != Bar::kNone) return no(why);
  std::vector<SizeId> new_axes;
  const auto map = result_map(n, unit, new_axes, why);
  if (!map) return no(why);

  // Operands from other groups: merge those where that is possible, else load.
  std::vector<Merge> merges;
  std::size_t n_axes = g.axes.size() + new_axes.size();
  AxisMask reduced = g.reduced;
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where != Where::kKernel || in.unit == unit) continue;
    if (std::ranges::find(merges, in.unit, &Merge::from) != merges.end()) continue;
    const bool apart =
        order.can_merge(unit, in.unit) && std::ranges::all_of(merges, [&](const Merge& m) {
          return order.can_merge(m.from, in.unit);
        });
    auto m = apart ? plan_merge(n, unit, in.unit, *map, n_axes, reduced, why) : std::nullopt;
    if (!m) refuse(in.unit, apart ? why : between(unit, in.unit));
    if (m) {
      n_axes += m->extra_axes.size();
      reduced = m->reduced;
      merges.push_back(std::move(*m));
    } else if (!order.can_depend(unit, in.unit)) {
      return no(between(unit, in.unit));  // it would have to run both before and after us
    }
  }
  // What is loaded, and sizes, must be ready before any part of the joint group.
  const auto waits_for = [&](int needs) {
    return needs >= 0 &&
           (!order.can_depend(unit, needs) || std::ranges::any_of(merges, [&](const Merge& m) {
             return !order.can_depend(m.from, needs);
           }));
  };
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    const bool inside =
        in.where == Where::kKernel &&
        (in.unit == unit || std::ranges::find(merges, in.unit, &Merge::from) != merges.end());
    const int needs = awaited(in);
    if (!inside && waits_for(needs)) return no({.bar = Bar::kOrder, .node = node_of(needs)});
  }
  if (const int bringer = brought_by(node); waits_for(bringer))
    return no({.bar = Bar::kOrder, .node = node_of(bringer)});

  g.axes.insert(g.axes.end(), new_axes.begin(), new_axes.end());
  for (const auto& m : merges) {
    g.axes.insert(g.axes.end(), m.extra_axes.begin(), m.extra_axes.end());
    merge(unit, m.from, m.axis_of);
  }
  add_node(unit, n, *map);
  add_loads(unit, n, *map);
  return true;
}

// Joins a group that loads one of the operands over the very same space.
bool Grouping::join_sibling(int n, int unit, ValueId shared, const AxisMap& map) {
  Group& g = groups[at(unit)];
  const Node& node = program.nodes[at(n)];
  if (!g.alive || g.nodes.size() >= kMaxGroupNodes ||
      g.loads.size() + node.inputs.size() > kMaxGroupLoads)
    return false;
  const auto all = static_cast<AxisMask>((1U << g.axes.size()) - 1U);
  const Shape& in = shape(shared);
  if (mask_of(map, in.rank) != all) return false;
  for (const ValueId v : node.inputs) {
    const int needs = awaited(info[at(v)]);
    if (needs >= 0 && !order.can_depend(unit, needs)) return false;
  }
  if (const int bringer = brought_by(node); bringer >= 0 && !order.can_depend(unit, bringer))
    return false;
  if (tilevm::info(node.op).cls == OpClass::kReduce) {
    AxisMask over = 0;
    for (const auto a : node.attrs[0].ints) {
      const int axis = map.axis[at(static_cast<int>(a))];
      if (axis >= 0) over = static_cast<AxisMask>(over | (1U << axis));
    }
    if (g.reduced != 0 && g.reduced != over) return false;
    if (over == 0) return false;
    return true;
  }
  const Shape& out = shape(node.out);
  if (out.rank != in.rank) return false;
  for (int d = 0; d < out.rank; ++d) {
    if (map.axis[at(d)] < 0 && !one(out[d])) return false;
  }
  return true;
}

// Joins a group that loads all of the operands already, if not in this order of dims: x + y.T where
// x.T + y is. By itself, it would read them again, and one of them across its lines.
bool Grouping::join_permuted(int n) {
  const Node& node = program.nodes[at(n)];
  const auto in_memory = [&](ValueId v) { return info[at(v)].where == Where::kBuffer; };
  const auto shared = std::ranges::find_if(node.inputs, in_memory);
  if (shared == node.inputs.end()) return false;
  const auto differs = [&](ValueId v) { return in_memory(v) && v != *shared; };
  if (std::ranges::none_of(node.inputs, differs)) return false;
  const ValueId root = unpermuted({*shared, {}}).value;
  SmallVector<ValueId, 4> views{root};
  for (const int user : users(root)) {
    if (program.nodes[at(user)].op == Op::permute) views.push_back(program.nodes[at(user)].out);
  }
  for (const ValueId view : views) {
    for (const int unit : loaders_[at(view)] | std::views::reverse) {
      const Group& g = groups[at(unit)];
      if (!g.alive || g.has_fold) continue;
      for (const Load& load : g.loads) {
        if (load.value != view) continue;
        const auto map = permuted_map(n, *shared, load);
        if (!map || !loads_same(n, g, *map) || !join_sibling(n, unit, *shared, *map)) continue;
        add_node(unit, n, *map);
        add_loads(unit, n, *map);
        return true;
      }
    }
  }
  return false;
}

// Axes of the dims of node n, of which an operand is loaded as `load` has it.
std::optional<AxisMap> Grouping::permuted_map(int n, ValueId shared, const Load& load) const {
  const int rank = shape(shared).rank;
  if (rank != shape(program.nodes[at(n)].out).rank) return std::nullopt;
  const Load found = unpermuted(load);
  AxisMap itself;
  for (int d = 0; d < rank; ++d) itself.axis[at(d)] = static_cast<std::int8_t>(d);
  const Load wanted = unpermuted({shared, itself});
  if (found.value != wanted.value) return std::nullopt;
  AxisMap map;
  for (int d = 0; d < rank; ++d) map.axis[at(wanted.map.axis[at(d)])] = found.map.axis[at(d)];
  return map;
}

// Whether a group loads every operand of node n whose dims run along `out` there.
bool Grouping::loads_same(int n, const Group& group, const AxisMap& out) const {
  const Node& node = program.nodes[at(n)];
  const int rank = shape(node.out).rank;
  return std::ranges::all_of(node.inputs, [&](ValueId v) {
    if (info[at(v)].where == Where::kFree) return info[at(v)].free_dim < 0;
    if (info[at(v)].where != Where::kBuffer) return false;
    const Shape& s = shape(v);
    Load wanted{v, {}};
    for (int i = 0; i < s.rank; ++i) {
      if (!one(s[i])) wanted.map.axis[at(i)] = out.axis[at(i + rank - s.rank)];
    }
    wanted = unpermuted(wanted);
    return std::ranges::any_of(group.loads, [&](const Load& load) {
      const Load found = unpermuted(load);
      return found.value == wanted.value && found.map.axis == wanted.map.axis;
    });
  });
}

void Grouping::place_elementwise(int n) {
  const Node& node = program.nodes[at(n)];
  const bool constant = std::ranges::all_of(node.inputs, [&](ValueId v) {
    return info[at(v)].where == Where::kFree && info[at(v)].free_dim < 0;
  });
  if (constant) {  // arithmetic on constants, sizes and run-time scalars
    auto& v = info[at(node.out)];
    v.where = Where::kFree;
    v.source = node.out;
    for (const ValueId in : node.inputs) v.brought = std::max(v.brought, info[at(in)].brought);
    return;
  }
  refused_.clear();
  std::vector<int> candidates;
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where == Where::kKernel && std::ranges::find(candidates, in.unit) == candidates.end())
      candidates.push_back(in.unit);
  }
  std::ranges::sort(candidates, std::greater<>());
  for (const int unit : candidates) {
    if (join_elementwise(n, unit)) return;
  }
  for (const ValueId v : node.inputs) {
    if (!candidates.empty() || info[at(v)].where != Where::kBuffer) continue;
    for (const int unit : loaders_[at(v)] | std::views::reverse) {
      const auto& loads = groups[at(unit)].loads;
      const auto load = std::ranges::find_if(loads, [&](const Load& l) { return l.value == v; });
      if (load == loads.end() || !join_sibling(n, unit, v, load->map)) continue;
      const AxisMap map = load->map;
      add_node(unit, n, map);
      add_loads(unit, n, map);
      return;
    }
  }
  if (candidates.empty() && join_permuted(n)) return;
  const int unit = new_group();
  AxisMap map;
  const Shape& out = shape(node.out);
  for (int d = 0; d < out.rank; ++d) {
    if (one(out[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(groups[at(unit)].axes.size());
    groups[at(unit)].axes.push_back(out[d]);
  }
  add_node(unit, n, map);
  add_loads(unit, n, map);
}

}  // namespace tilevm::fuse
