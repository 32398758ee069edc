#include "fuse/groups.h"

#include <algorithm>
#include <ranges>

namespace tilevm::fuse {
namespace {
constexpr int kTranscendentalCost = 8;
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
  is_output_.resize(p.values.size());
  loaders_.resize(p.values.size());
  reduce_map.resize(p.nodes.size());
  list_users();
  for (const ValueId v : p.outputs) is_output_[at(v)] = true;
  for (const ValueId v : p.inputs) {
    if (!p.type(v).weak) continue;
    info[at(v)].where = Where::kFree;
    info[at(v)].source = v;
  }
  for (int n = 0; n < static_cast<int>(p.nodes.size()); ++n) place(n);
  for (const ValueId v : p.outputs) {
    if (p.type(v).weak) continue;  // the host returns numbers itself
    need_buffer(v, -1, -1, {Bar::kResult});
  }
}

void Grouping::list_users() {
  users_end_.assign(program.values.size() + 1, 0);
  for (const Node& node : program.nodes) {
    for (const ValueId v : node.inputs) ++users_end_[at(v) + 1];
  }
  for (std::size_t v = 1; v < users_end_.size(); ++v) users_end_[v] += users_end_[v - 1];
  users_.resize(at(users_end_.back()));
  users_end_.pop_back();  // holds where each value's users begin, until they are filled in
  for (int n = 0; n < static_cast<int>(program.nodes.size()); ++n) {
    for (const ValueId v : program.nodes[at(n)].inputs) users_[at(users_end_[at(v)]++)] = n;
  }
}

std::span<const int> Grouping::users(ValueId v) const {
  if (at(v) >= users_end_.size()) return {};  // appended since
  const int begin = v == 0 ? 0 : users_end_[at(v - 1)];
  return std::span(users_).subspan(at(begin), at(users_end_[at(v)] - begin));
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
  groups.emplace_back().alive = false;
  of_unit_.emplace_back();
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
    case OpClass::kLoop:
    case OpClass::kCall:
      return place_call(n);
    case OpClass::kCreate: {
      auto& v = info[at(node.out)];
      v.where = Where::kFree;
      v.source = node.out;
      v.brought = brought_by(node);
      if (node.op == Op::iota) v.free_dim = 0;
      return;
    }
    case OpClass::kComposite:
      throw std::logic_error("fuse: composite operator was not lowered");
  }
}

void Grouping::set_unit(ValueId value, int unit) {
  info[at(value)].unit = unit;
  if (unit >= 0) of_unit_[at(unit)].push_back(value);
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
  }
  for (const ValueId v : std::exchange(of_unit_[at(from)], {})) {
    if (info[at(v)].unit == from) set_unit(v, into);  // also views of what `from` stores
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
  set_unit(node.out, unit);
  auto& v = info[at(node.out)];
  v.where = Where::kKernel;
  v.source = node.out;
  v.map = out;
  order.depend(unit, brought_by(node));
}

// Operands of an elementwise node that come from memory.
void Grouping::add_loads(int unit, int n, const AxisMap& out) {
  const Node& node = program.nodes[at(n)];
  const int rank = shape(node.out).rank;
  for (const ValueId v : node.inputs) {
    const auto& in = info[at(v)];
    if (in.where == Where::kFree) order.depend(unit, in.brought);
    if (in.where == Where::kFree || (in.where == Where::kKernel && in.unit == unit)) continue;
    need_buffer(v, unit, n, refusal(in.unit));
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

Load Grouping::unpermuted(Load load) const {
  while (info[at(load.value)].where == Where::kBuffer) {
    const int n = program.values[at(load.value)].node;
    if (n < 0 || program.nodes[at(n)].op != Op::permute) break;
    const Node& node = program.nodes[at(n)];
    const ValueId of = node.inputs[0];
    if (info[at(of)].where != Where::kBuffer) break;
    AxisMap map;
    for (int d = 0; d < shape(of).rank; ++d)
      map.axis[at(static_cast<int>(node.attrs[0].ints[at(d)]))] = load.map.axis[at(d)];
    load = {of, map};
  }
  return load;
}

// Sizes -------------------------------------------------------------------------------------------

namespace {

constexpr int kGiven = -2;  // the inputs' sizes say it
constexpr int kNobody = -1;

// Calls visit(symbol) for each that the sizes are made of.
template <class Visit>
void visit_symbols(const shape::SizeTable& sizes, std::span<const SizeId> of, Visit&& visit) {
  const auto look = [&](std::int32_t r) {
    if (r >= 0 && r < sizes.count() && sizes.is_symbol(SizeId{r})) visit(at(r));
  };
  for (const SizeId size : of) look(static_cast<std::int32_t>(size));
  for (const shape::SizeStep& step : sizes.compile(of)) {
    if (step.kind == shape::SizeStep::Kind::kConst) continue;
    look(step.a);
    look(step.b);
  }
}

}  // namespace

// Call-outs that bring sizes run one after the other, so that who needs several waits for the last.
void Grouping::bring_sizes(const Node& call, int unit) {
  if (bringer_.empty()) {
    bringer_.assign(at(program.sizes.count()), kNobody);
    for (const ValueId input : program.inputs) {
      visit_symbols(program.sizes, shape(input).span(),
                    [&](std::size_t symbol) { bringer_[symbol] = kGiven; });
    }
  }
  bringer_.resize(std::max(bringer_.size(), at(program.sizes.count())), kNobody);
  bool any = false;
  for (int i = 0; i < call.n_out; ++i) {
    visit_symbols(program.sizes, shape(call.out + i).span(), [&](std::size_t symbol) {
      if (bringer_[symbol] != kNobody) return;
      bringer_[symbol] = unit;
      any = true;
    });
  }
  if (!any) return;
  order.depend(unit, last_bringer_);
  last_bringer_ = unit;
}

int Grouping::brought_by(const Node& node) const {
  int latest = -1;
  if (last_bringer_ < 0) return latest;
  const auto look = [&](std::size_t symbol) {
    if (symbol < bringer_.size()) latest = std::max(latest, bringer_[symbol]);
  };
  visit_symbols(program.sizes, shape(node.out).span(), look);
  for (const Attr& attr : node.attrs) {
    visit_symbols(program.sizes, {attr.sizes.begin(), attr.sizes.end()}, look);
  }
  return latest;
}

// Of a unit and a call-out that brings sizes, the one behind the other, which is seen to.
int Grouping::later(int unit, int bringer) {
  if (bringer < 0 || bringer == unit || (unit >= 0 && order.precedes(bringer, unit))) return unit;
  order.depend(bringer, unit);
  return bringer;
}

void Grouping::define_buffer(ValueId value, int unit) {
  info[at(value)].where = Where::kBuffer;
  set_unit(value, unit);
}

Why Grouping::refusal(int unit) const {
  const auto found = std::ranges::find(refused_ | std::views::reverse, unit, &Refusal::unit);
  return found == (refused_ | std::views::reverse).end() ? Why{} : found->why;
}

void Grouping::need_buffer(ValueId value, int user_unit, int reader, const Why& why) {
  const auto& v = info[at(value)];
  if (v.where == Where::kFree) {
    const Type type = program.type(value);
    if (type.weak) return;  // call-outs get the number
    decisions.push_back({value, reader, why});
    // Stored once by a kernel of its own; users inside kernels still make it anew.
    if (!v.stored) {
      const int unit = new_group();
      order.depend(unit, v.brought);
      Group& g = groups[at(unit)];
      AxisMap map;
      for (int d = 0; d < type.shape.rank; ++d) {
        if (one(type.shape[d])) continue;
        map.axis[at(d)] = static_cast<std::int8_t>(g.axes.size());
        g.axes.push_back(type.shape[d]);
      }
      g.fills.push_back({value, map});
      g.targets.push_back(value);
      set_unit(value, unit);
      info[at(value)].stored = true;
      parts.push_back({Step::Kind::kAlloc, -1, value, -1, -1, -1, shape::kNoSize, -1});
    }
    if (user_unit >= 0) order.depend(user_unit, v.unit);
    return;
  }
  if (v.where == Where::kKernel) {
    info[at(v.source)].stored = true;
    decisions.push_back({v.source, reader, why});
  }
  const int unit = v.unit;
  if (user_unit >= 0 && unit >= 0 && unit != user_unit) order.depend(user_unit, unit);
}

}  // namespace tilevm::fuse
