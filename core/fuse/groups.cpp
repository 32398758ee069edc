#include "fuse/groups.h"

#include <algorithm>

namespace tilevm::fuse {
namespace {

constexpr int kMaxGroupNodes = 256;
constexpr int kMaxGroupLoads = 48;
// A small producer is computed again at every point of a larger space if it costs at most this.
constexpr int kCheapCost = 16;
constexpr int kTranscendentalCost = 8;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

AxisMask mask_of(const AxisMap& map, int rank) {
  AxisMask mask = 0;
  for (int d = 0; d < rank; ++d) {
    if (map.axis[at(d)] >= 0) mask = static_cast<AxisMask>(mask | (1U << map.axis[at(d)]));
  }
  return mask;
}

Grouping::Grouping(Program& p) : program(p) {
  info.resize(p.values.size());
  users_.resize(p.values.size());
  is_output_.resize(p.values.size());
  loaders_.resize(p.values.size());
  reduce_map.resize(p.nodes.size());
  for (int n = 0; n < static_cast<int>(p.nodes.size()); ++n) {
    for (const ValueId v : p.nodes[at(n)].inputs) users_[at(v)].push_back(n);
  }
  for (const ValueId v : p.outputs) is_output_[at(v)] = true;
  for (const ValueId v : p.inputs) {
    if (!p.type(v).weak) continue;
    info[at(v)] = {Where::kFree, -1, v, {}, -1, false};
  }
  for (int n = 0; n < static_cast<int>(p.nodes.size()); ++n) place(n);
  for (const ValueId v : p.outputs) {
    if (p.type(v).weak) continue;  // the host returns numbers itself
    need_buffer(v, -1, "result of the program");
  }
}

int Grouping::op_cost(Op op) const {
  switch (op) {
    case Op::exp:
    case Op::exp2:
    case Op::expm1:
    case Op::log:
    case Op::log2:
    case Op::log1p:
    case Op::sin:
    case Op::cos:
    case Op::tan:
    case Op::tanh:
    case Op::sigmoid:
    case Op::erf:
    case Op::silu:
    case Op::gelu:
    case Op::gelu_tanh:
    case Op::pow:
    case Op::atan2:
    case Op::fmod:
    case Op::remainder:
    case Op::floor_div:
    case Op::take:
    case Op::gather:
      return kTranscendentalCost;
    default:
      return 1;
  }
}

int Grouping::new_unit() {
  groups.emplace_back();
  groups.back().alive = false;
  return order.add();
}

int Grouping::new_group() {
  const int unit = new_unit();
  groups[at(unit)].alive = true;
  return unit;
}

ValueId Grouping::append_value(Type type) {
  program.values.push_back({type, -1});
  info.emplace_back();
  users_.emplace_back();
  is_output_.push_back(false);
  loaders_.emplace_back();
  return static_cast<ValueId>(program.values.size()) - 1;
}

void Grouping::place(int n) {
  const Node& node = program.nodes[at(n)];
  switch (tilevm::info(node.op).cls) {
    case OpClass::kElementwise:
      return place_elementwise(n);
    case OpClass::kReduce:
      return place_reduce(n);
    case OpClass::kGather:
      return place_gather(n);
    case OpClass::kView:
      return place_view(n);
    case OpClass::kLayout:
      return place_concat(n);
    case OpClass::kCall:
      return place_call(n);
    case OpClass::kCreate: {
      auto& v = info[at(node.out)];
      v.where = Where::kFree;
      v.source = node.out;
      if (node.op == Op::iota) v.free_dim = 0;
      return;
    }
    case OpClass::kComposite:
      throw std::logic_error("fuse: composite operator was not lowered");
  }
}

// Elementwise ----------------------------------------------------------------------------------

namespace {
// Dim of an operand of rank `rank` that lines up with dim d of a result of rank `out_rank`, or -1.
int aligned(int d, int rank, int out_rank) {
  const int i = d - (out_rank - rank);
  return i >= 0 ? i : -1;
}
}  // namespace

bool Grouping::self_contained(int unit, int node) const {
  const Group& g = groups[at(unit)];
  if (g.has_fold || g.cost > kCheapCost || !g.fills.empty()) return false;
  return std::ranges::all_of(g.values, [&](ValueId v) {
    return !is_output_[at(v)] && !info[at(info[at(v)].source)].stored &&
           std::ranges::all_of(users_[at(v)], [&](int user) {
             return user == node || (user < node && std::ranges::binary_search(g.nodes, user)) ||
                    (user < node &&
                     std::ranges::find(g.values, program.nodes[at(user)].out) != g.values.end());
           });
  });
}

bool Grouping::join_elementwise(int n, int unit) {
  const Node& node = program.nodes[at(n)];
  const Shape& out = shape(node.out);
  Group& g = groups[at(unit)];
  if (g.nodes.size() >= kMaxGroupNodes || g.loads.size() + node.inputs.size() > kMaxGroupLoads)
    return false;

  // 1. Axes of the result's dims, from operands inside the group.
  AxisMap map;
  AxisMask used = 0;
  for (int d = 0; d < out.rank; ++d) {
    for (const ValueId v : node.inputs) {
      const auto& in = info[at(v)];
      const int i = aligned(d, shape(v).rank, out.rank);
      if (i < 0 || in.where != Where::kKernel || in.unit != unit) continue;
      const int axis = in.map.axis[at(i)];
      const int ghost = in.map.ghost[at(i)];
      if (axis >= 0 && map.axis[at(d)] >= 0 && map.axis[at(d)] != axis) return false;
      if (axis >= 0) map.axis[at(d)] = static_cast<std::int8_t>(axis);
      if (ghost >= 0) map.ghost[at(d)] = static_cast<std::int8_t>(ghost);
    }
    const int axis = map.axis[at(d)];
    if (axis < 0) continue;
    if ((used >> axis) & 1) return false;  // x[i] * x[j]: one axis cannot be both
    used = static_cast<AxisMask>(used | (1U << axis));
  }
  for (int d = 0; d < out.rank; ++d) {
    if (map.axis[at(d)] >= 0 || one(out[d]) || map.ghost[at(d)] < 0) continue;
    const int axis = map.ghost[at(d)];
    if ((used >> axis) & 1 || g.axes[at(axis)] != out[d]) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(axis);
    used = static_cast<AxisMask>(used | (1U << axis));
  }

  // 2. New axes for dims along which no operand inside varies.
  std::vector<SizeId> new_axes;
  for (int d = 0; d < out.rank; ++d) {
    if (map.axis[at(d)] >= 0 || one(out[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(g.axes.size() + new_axes.size());
    new_axes.push_back(out[d]);
  }
  if (g.axes.size() + new_axes.size() > kMaxAxes) return false;
  if (!new_axes.empty() && !self_contained(unit, n)) return false;
  for (int d = 0; d < out.rank; ++d) {
    if (map.axis[at(d)] >= 0) map.ghost[at(d)] = -1;
  }
  // A result that varies over part of the space only would be stored many times.
  const auto kept =
      static_cast<AxisMask>(((1U << (g.axes.size() + new_axes.size())) - 1U) & ~g.reduced);
  const auto mask = mask_of(map, out.rank);
  const auto over_reduced = static_cast<AxisMask>(mask & g.reduced);
  if ((mask & kept) != kept || (over_reduced != 0 && over_reduced != g.reduced)) return false;

  // 3. The other operands: merge their groups where that is possible, else load.
  struct Merge {
    int from;
    std::vector<std::int8_t> axis_of;
    std::vector<SizeId> extra_axes;
    AxisMask extra_reduced = 0;
  };
  std::vector<Merge> merges;
  std::size_t n_axes = g.axes.size() + new_axes.size();
  AxisMask reduced = g.reduced;
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where != Where::kKernel || in.unit == unit) continue;
    if (std::ranges::any_of(merges, [&](const Merge& m) { return m.from == in.unit; })) continue;
    const Group& other = groups[at(in.unit)];
    Merge m{in.unit, std::vector<std::int8_t>(other.axes.size(), -1), {}, 0};
    bool possible = order.can_merge(unit, in.unit) &&
                    std::ranges::all_of(
                        merges, [&](const Merge& o) { return order.can_merge(o.from, in.unit); }) &&
                    g.nodes.size() + other.nodes.size() < kMaxGroupNodes &&
                    g.loads.size() + other.loads.size() + node.inputs.size() <= kMaxGroupLoads;
    for (const ValueId w : node.inputs) {  // every operand from there must agree
      if (!possible || info[at(w)].where != Where::kKernel || info[at(w)].unit != in.unit) continue;
      for (int d = 0; d < out.rank; ++d) {
        const int i = aligned(d, shape(w).rank, out.rank);
        const int axis = i < 0 ? -1 : info[at(w)].map.axis[at(i)];
        if (axis < 0) continue;
        auto& to = m.axis_of[at(axis)];
        if (to >= 0 && to != map.axis[at(d)]) possible = false;
        to = map.axis[at(d)];
      }
    }
    AxisMask taken = 0;
    for (const auto a : m.axis_of) {
      if (a >= 0 && (taken >> a) & 1) possible = false;
      if (a >= 0) taken = static_cast<AxisMask>(taken | (1U << a));
    }
    for (std::size_t a = 0; possible && a < other.axes.size(); ++a) {
      if (m.axis_of[a] >= 0) continue;
      if (!((other.reduced >> a) & 1)) {
        possible = false;
        break;
      }
      if (reduced != 0) {  // reduced there, and n does not vary over it: one of our reduced axes
        for (std::size_t b = 0; b < g.axes.size(); ++b) {
          if (!((reduced >> b) & 1) || (taken >> b) & 1 || g.axes[b] != other.axes[a]) continue;
          m.axis_of[a] = static_cast<std::int8_t>(b);
          taken = static_cast<AxisMask>(taken | (1U << b));
          break;
        }
        if (m.axis_of[a] < 0) possible = false;
      } else {
        m.axis_of[a] = static_cast<std::int8_t>(n_axes + m.extra_axes.size());
        m.extra_axes.push_back(other.axes[a]);
        m.extra_reduced = static_cast<AxisMask>(m.extra_reduced | (1U << m.axis_of[a]));
      }
    }
    if (possible && n_axes + m.extra_axes.size() > kMaxAxes) possible = false;
    if (possible) {
      AxisMask other_reduced = m.extra_reduced;
      AxisMask covered = 0;
      for (std::size_t a = 0; a < other.axes.size(); ++a) {
        covered = static_cast<AxisMask>(covered | (1U << m.axis_of[a]));
        if ((other.reduced >> a) & 1)
          other_reduced = static_cast<AxisMask>(other_reduced | (1U << m.axis_of[a]));
      }
      if (reduced != 0 && other_reduced != 0 && reduced != other_reduced) possible = false;
      const auto all_reduced = static_cast<AxisMask>(reduced | other_reduced);
      const auto all = static_cast<AxisMask>((1U << (n_axes + m.extra_axes.size())) - 1U);
      const auto all_kept = static_cast<AxisMask>(all & ~all_reduced);
      // Whoever lacks kept axes of the joint space is computed again along them.
      if ((covered & all_kept) != all_kept && !self_contained(in.unit, n)) possible = false;
      const auto own = static_cast<AxisMask>((1U << n_axes) - 1U);
      if ((own & all_kept) != all_kept && !self_contained(unit, n)) possible = false;
      // Values that vary over some of the reduced axes only must not need storing.
      const auto partial = [&](AxisMask mask_) {
        const auto r = static_cast<AxisMask>(mask_ & all_reduced);
        return r != 0 && r != all_reduced;
      };
      if (partial(covered) && !self_contained(in.unit, n)) possible = false;
      if (partial(own) && !self_contained(unit, n)) possible = false;
      // A group without folds whose space includes axes reduced now: its values are swept. Fine.
    }
    if (possible) {
      n_axes += m.extra_axes.size();
      reduced = static_cast<AxisMask>(reduced | m.extra_reduced);
      for (std::size_t a = 0; a < other.axes.size(); ++a) {
        if ((other.reduced >> a) & 1)
          reduced = static_cast<AxisMask>(reduced | (1U << m.axis_of[a]));
      }
      merges.push_back(std::move(m));
    } else if (!order.can_depend(unit, in.unit)) {
      return false;  // it would have to run both before and after us
    }
  }
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where == Where::kBuffer && in.unit >= 0 && !order.can_depend(unit, in.unit))
      return false;
    if (in.where == Where::kBuffer && in.unit >= 0) {
      for (const auto& m : merges) {
        if (!order.can_depend(m.from, in.unit)) return false;
      }
    }
    if (in.where == Where::kKernel && in.unit != unit) {
      for (const auto& m : merges) {
        if (m.from != in.unit && !order.can_depend(m.from, in.unit)) return false;
      }
    }
  }

  // 4. Do it.
  g.axes.insert(g.axes.end(), new_axes.begin(), new_axes.end());
  for (const auto& m : merges) {
    groups[at(unit)].axes.insert(groups[at(unit)].axes.end(), m.extra_axes.begin(),
                                 m.extra_axes.end());
    merge(unit, m.from, m.axis_of);
  }
  add_node(unit, n, map);
  add_loads(unit, n, map);
  return true;
}

void Grouping::merge(int into, int from, const std::vector<std::int8_t>& axis_of) {
  Group& a = groups[at(into)];
  Group& b = groups[at(from)];
  const auto remap = [&](AxisMap& map) {
    for (auto& x : map.axis) x = x < 0 ? x : axis_of[at(x)];
    for (auto& x : map.ghost) x = x < 0 ? x : axis_of[at(x)];
  };
  for (std::size_t i = 0; i < b.axes.size(); ++i) {
    if ((b.reduced >> i) & 1) a.reduced = static_cast<AxisMask>(a.reduced | (1U << axis_of[i]));
  }
  for (const int n : b.nodes) {
    if (tilevm::info(program.nodes[at(n)].op).cls == OpClass::kReduce) remap(reduce_map[at(n)]);
  }
  for (const ValueId v : b.values) {
    remap(info[at(v)].map);
    info[at(v)].unit = into;
  }
  for (auto& l : b.loads) {
    remap(l.map);
    loaders_[at(l.value)].push_back(into);
    a.loads.push_back(l);
  }
  for (auto& f : b.fills) {
    remap(f.map);
    a.fills.push_back(f);
  }
  a.targets.insert(a.targets.end(), b.targets.begin(), b.targets.end());
  std::vector<int> nodes;
  nodes.reserve(a.nodes.size() + b.nodes.size());
  std::ranges::merge(a.nodes, b.nodes, std::back_inserter(nodes));
  a.nodes = std::move(nodes);
  a.values.insert(a.values.end(), b.values.begin(), b.values.end());
  a.cost += b.cost;
  a.has_fold = a.has_fold || b.has_fold;
  b = Group{};
  b.alive = false;
  order.merge(into, from);
}

void Grouping::add_node(int unit, int n, const AxisMap& out) {
  Group& g = groups[at(unit)];
  const Node& node = program.nodes[at(n)];
  g.nodes.push_back(n);
  g.values.push_back(node.out);
  g.cost += op_cost(node.op);
  auto& v = info[at(node.out)];
  v.where = Where::kKernel;
  v.unit = unit;
  v.source = node.out;
  v.map = out;
}

// Operands of an elementwise node that come from memory.
void Grouping::add_loads(int unit, int n, const AxisMap& out) {
  const Node& node = program.nodes[at(n)];
  const int rank = shape(node.out).rank;
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where == Where::kFree || (in.where == Where::kKernel && in.unit == unit)) continue;
    need_buffer(v, unit, "kernels that cannot share one loop");
    AxisMap map;
    const Shape& s = shape(v);
    for (int d = 0; d < rank; ++d) {
      const int i = aligned(d, s.rank, rank);
      if (i >= 0 && !one(s[i])) map.axis[at(i)] = out.axis[at(d)];
    }
    Group& g = groups[at(unit)];
    g.loads.push_back({v, map});
    if (loaders_[at(v)].empty() || loaders_[at(v)].back() != unit) loaders_[at(v)].push_back(unit);
  }
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
    const auto& i = info[at(v)];
    if (i.where == Where::kFree) continue;
    if (i.unit >= 0 && !order.can_depend(unit, i.unit)) return false;
  }
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

void Grouping::place_elementwise(int n) {
  const Node& node = program.nodes[at(n)];
  const bool constant = std::ranges::all_of(node.inputs, [&](ValueId v) {
    return info[at(v)].where == Where::kFree && info[at(v)].free_dim < 0;
  });
  if (constant) {  // arithmetic on constants, sizes and run-time scalars
    auto& v = info[at(node.out)];
    v.where = Where::kFree;
    v.source = node.out;
    return;
  }
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
    for (auto it = loaders_[at(v)].rbegin(); it != loaders_[at(v)].rend(); ++it) {
      const int unit = *it;
      const auto& loads = groups[at(unit)].loads;
      const auto load = std::ranges::find_if(loads, [&](const Load& l) { return l.value == v; });
      if (load == loads.end() || !join_sibling(n, unit, v, load->map)) continue;
      const AxisMap map = load->map;
      add_node(unit, n, map);
      add_loads(unit, n, map);
      return;
    }
  }
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
    const bool fits = spans && mask == all && over != 0 && (g.reduced == 0 || g.reduced == over) &&
                      g.nodes.size() < kMaxGroupNodes;
    if (fits) {
      // Values stored so far that vary over part of the reduced axes would be stored many times.
      const bool partial = std::ranges::any_of(g.values, [&](ValueId w) {
        const auto m = static_cast<AxisMask>(mask_of(info[at(w)].map, shape(w).rank));
        return (m & over) != 0 && (m & over) != over;
      });
      if (!partial) return finish(in.unit, in.map);
    }
    need_buffer(v, -1, "a reduction over other axes than its producer's kernel can sweep");
  }
  if (in.where == Where::kBuffer) {
    for (auto it = loaders_[at(v)].rbegin(); it != loaders_[at(v)].rend(); ++it) {
      const auto& loads = groups[at(*it)].loads;
      const auto load = std::ranges::find_if(loads, [&](const Load& l) { return l.value == v; });
      if (load == loads.end() || !join_sibling(n, *it, v, load->map)) continue;
      const Group& g = groups[at(*it)];
      const AxisMask over = folded_axes(load->map);
      const bool partial = std::ranges::any_of(g.values, [&](ValueId w) {
        const auto m = static_cast<AxisMask>(mask_of(info[at(w)].map, shape(w).rank));
        const bool whole_kept =
            (m & ~over) == (((1U << g.axes.size()) - 1U) & ~static_cast<unsigned>(over));
        return ((m & over) != 0 && (m & over) != over) || !whole_kept;
      });
      if (partial) continue;
      return finish(*it, AxisMap(load->map));
    }
  }
  const int unit = new_group();
  AxisMap map;
  for (int d = 0; d < in_shape.rank; ++d) {
    if (one(in_shape[d])) continue;
    map.axis[at(d)] = static_cast<std::int8_t>(groups[at(unit)].axes.size());
    groups[at(unit)].axes.push_back(in_shape[d]);
  }
  if (in.where != Where::kFree) {
    need_buffer(v, unit, "a reduction over other axes than its producer's kernel can sweep");
    groups[at(unit)].loads.push_back({v, map});
    loaders_[at(v)].push_back(unit);
  }
  finish(unit, map);
}

// Gathers --------------------------------------------------------------------------------------

void Grouping::place_gather(int n) {
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
  need_buffer(x, unit, "a table that is indexed at run time");
  groups[at(unit)].loads.push_back({x, AxisMap()});
  if (info[at(index)].where != Where::kFree) {
    need_buffer(index, unit, "indices of a gather");
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
    for (int d = 0; d < kMaxRank; ++d) {
      const int i = d < to.rank ? dim_of[at(d)] : -1;
      out.map.axis[at(d)] = static_cast<std::int8_t>(i < 0 ? -1 : in.map.axis[at(i)]);
      out.map.ghost[at(d)] = static_cast<std::int8_t>(i < 0 ? -1 : in.map.ghost[at(i)]);
    }
    groups[at(in.unit)].values.push_back(node.out);
    return;
  }
  need_buffer(v, -1, "a change of layout that needs memory");
  define_buffer(node.out, info[at(v)].unit);
}

void Grouping::define_buffer(ValueId value, int unit) {
  auto& v = info[at(value)];
  v.where = Where::kBuffer;
  v.unit = unit;
}

// Makes sure that `value` is in memory when `user_unit` (if any) runs.
void Grouping::need_buffer(ValueId value, int user_unit, const char* reason) {
  const auto& v = info[at(value)];
  if (v.where == Where::kFree) {
    const Type type = program.type(value);
    if (type.weak) return;  // call-outs get the number
    // Stored once by a kernel of its own; users inside kernels still make it anew.
    if (!v.stored) {
      const int unit = new_group();
      Group& g = groups[at(unit)];
      AxisMap map;
      for (int d = 0; d < type.shape.rank; ++d) {
        if (one(type.shape[d])) continue;
        map.axis[at(d)] = static_cast<std::int8_t>(g.axes.size());
        g.axes.push_back(type.shape[d]);
      }
      g.fills.push_back({value, map});
      g.targets.push_back(value);
      info[at(value)].unit = unit;
      info[at(value)].stored = true;
      parts.push_back({Step::Kind::kAlloc, -1, value, -1, -1, -1, shape::kNoSize});
    }
    if (user_unit >= 0) order.depend(user_unit, v.unit);
    return;
  }
  if (v.where == Where::kKernel) {
    auto& source = info[at(v.source)];
    if (!source.stored) {
      source.stored = true;
      cuts.push_back({v.source, reason});
    }
  }
  const int unit = v.unit;
  if (user_unit >= 0 && unit >= 0 && unit != user_unit) order.depend(user_unit, unit);
}

// Layout and call-outs ---------------------------------------------------------------------------

void Grouping::store_into(ValueId value, ValueId target, int join_unit) {
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
  if (v.where != Where::kFree) {
    need_buffer(value, unit, "part of a concatenation");
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
  const int axis = static_cast<int>(node.attrs[0].ints[0]);
  parts.push_back({Step::Kind::kAlloc, -1, node.out, n, -1, -1, shape::kNoSize});
  SizeId offset = program.sizes.constant(0);
  for (const ValueId v : node.inputs) {
    const Type type{program.type(node.out).dtype, false, shape(v)};
    const ValueId part = append_value(type);
    parts.push_back({Step::Kind::kSlice, node.out, part, n, -1, axis, offset});
    store_into(v, part, join);
    offset = program.sizes.add(offset, type.shape[axis]);
  }
  define_buffer(node.out, join);
}

void Grouping::place_call(int n) {
  const Node& node = program.nodes[at(n)];
  const int unit = new_unit();
  unit_of_node[n] = unit;
  for (const ValueId v : node.inputs) need_buffer(v, unit, "operand of a call-out");
  for (int i = 0; i < node.n_out; ++i) define_buffer(node.out + i, unit);
}

}  // namespace tilevm::fuse
