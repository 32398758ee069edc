// From groups to a plan: kernels and host steps in an order that respects every dependence.
#include <algorithm>
#include <memory>

#include "fuse/chain.h"
#include "fuse/groups.h"
#include "fuse/kernel_graph.h"

namespace tilevm::fuse {
namespace {

class Scheduler {
 public:
  explicit Scheduler(Plan& plan) : plan_(plan), g_(plan.program) {
    const auto n = g_.program.values.size();
    ready_.resize(n);
    part_step_.assign(n, -1);
    for (std::size_t i = 0; i < g_.parts.size(); ++i)
      part_step_[at(g_.parts[i].out)] = static_cast<int>(i);
    for (const ValueId v : g_.program.inputs) ready_[at(v)] = true;
  }

  void run() {
    struct Unit {
      int unit;
      int key;   // where the unit stands in program order
      int node;  // -1: a group
    };
    std::vector<Unit> waiting;
    std::vector<int> node_of(at(g_.order.count()), -1);
    for (const auto& [node, unit] : g_.unit_of_node) node_of[at(unit)] = node;
    for (int u = 0; u < g_.order.count(); ++u) {
      const Group& group = g_.groups[at(u)];
      if (node_of[at(u)] >= 0) {
        waiting.push_back({u, node_of[at(u)], node_of[at(u)]});
      } else if (group.alive) {
        waiting.push_back({u, group.nodes.empty() ? -1 : group.nodes.front(), -1});
      }
    }
    std::ranges::stable_sort(waiting, {}, &Unit::key);
    std::vector<std::uint64_t> left(at(g_.order.count()) / 64 + 1);  // bit set of units
    for (const Unit& u : waiting) left[at(u.unit) / 64] |= std::uint64_t{1} << (u.unit % 64);
    std::vector<bool> done(waiting.size(), false);
    for (std::size_t first = 0; first < waiting.size();) {
      std::size_t next = first;
      while (next < waiting.size() &&
             (done[next] || !g_.order.none_before(waiting[next].unit, left))) {
        ++next;
      }
      if (next == waiting.size())
        throw std::logic_error("fuse: units depend on each other in a circle");
      const Unit unit = waiting[next];
      done[next] = true;
      left[at(unit.unit) / 64] &= ~(std::uint64_t{1} << (unit.unit % 64));
      while (first < waiting.size() && done[first]) ++first;
      if (unit.node < 0) {
        emit_group(unit.unit);
      } else if (const auto cls = info(g_.program.nodes[at(unit.node)].op).cls;
                 cls == OpClass::kCall || cls == OpClass::kLoop) {
        emit_call(unit.node);
      } else {
        ensure_target(g_.program.nodes[at(unit.node)].out);  // a concat of nothing but empty parts
      }
    }
    for (const ValueId v : g_.program.outputs) {
      if (!g_.program.type(v).weak) ensure(v);
    }
    plan_.decisions = std::move(g_.decisions);
  }

 private:
  Step step(Step::Kind kind) { return {kind, -1, -1, -1, -1, -1, shape::kNoSize, -1}; }

  // Emits the views that lead to v; what v is a view of has been produced by now.
  void ensure(ValueId v) {
    if (ready_[at(v)]) return;
    ready_[at(v)] = true;
    const int n = g_.program.values[at(v)].node;
    if (n < 0 || info(g_.program.nodes[at(n)].op).cls != OpClass::kView) return;
    const Node& node = g_.program.nodes[at(n)];
    ensure(node.inputs[0]);
    Step s = step(node.op == Op::reshape ? Step::Kind::kReshape : Step::Kind::kView);
    s.in = node.inputs[0];
    s.out = v;
    s.node = n;
    if (s.kind == Step::Kind::kReshape) {
      if (in_kernels(g_.program.type(s.in).dtype)) {
        s.kernel = static_cast<int>(plan_.kernels.size());
        plan_.kernels.push_back(copy_kernel(g_.program.type(s.in)));
        plan_.kernels.back().operands[0].value = s.in;
        plan_.kernels.back().operands[1].value = v;
      }
    }
    plan_.steps.push_back(s);
  }

  void ensure_target(ValueId v) {
    if (ready_[at(v)]) return;
    ready_[at(v)] = true;
    const int p = part_step_[at(v)];
    if (p >= 0) {
      if (g_.parts[at(p)].in >= 0) ensure_target(g_.parts[at(p)].in);
      plan_.steps.push_back(g_.parts[at(p)]);
      return;
    }
    Step s = step(Step::Kind::kAlloc);
    s.out = v;
    plan_.steps.push_back(s);
  }

  void emit_group(int unit) {
    KernelGraph kernel = build_kernel(g_, unit);
    for (const auto& ref : kernel.operands) {
      if (ref.role == bytecode::Role::kOutput) {
        ensure_target(ref.value);
      } else if (ref.value >= 0) {
        ensure(ref.value);
      }
    }
    Step s = step(Step::Kind::kKernel);
    s.kernel = static_cast<int>(plan_.kernels.size());
    plan_.kernels.push_back(std::move(kernel));
    plan_.steps.push_back(s);
  }

  void emit_call(int n) {
    const Node& node = g_.program.nodes[at(n)];
    for (const ValueId v : node.inputs) {
      if (!g_.program.type(v).weak) ensure(v);
    }
    if (is_product(g_.program, node)) return emit_product(node);
    const bool loop = info(node.op).cls == OpClass::kLoop;
    if (loop) ensure_target(node.out);
    Step s = step(loop ? Step::Kind::kLoop : Step::Kind::kCall);
    s.node = n;
    plan_.steps.push_back(s);
    for (int i = 0; i < node.n_out; ++i) ready_[at(node.out + i)] = true;
  }

  void emit_product(const Node& node) {
    ensure_target(node.out);
    Chain chain;
    Chain::Stage& stage = chain.stages.emplace_back();
    const bool windows_right = node.op == Op::conv_windows;
    stage.a = node.inputs[windows_right ? 1 : 0];
    stage.b = node.inputs[windows_right ? 0 : 1];
    stage.out = node.out;
    if (is_convolution(node.op))
      stage.conv = static_cast<std::int32_t>(&node - g_.program.nodes.data());
    if (node.op == Op::grouped_matmul)
      chain.grouped = static_cast<std::int32_t>(&node - g_.program.nodes.data());
    const Shape& shape = g_.program.type(node.out).shape;
    chain.rows.assign(shape.dims.begin(), shape.dims.begin() + shape.rank - 1);
    Step s = step(Step::Kind::kChain);
    s.node = static_cast<std::int32_t>(&node - g_.program.nodes.data());
    s.chain = static_cast<std::int32_t>(plan_.chains.size());
    plan_.chains.push_back(std::move(chain));
    plan_.steps.push_back(s);
  }

  Plan& plan_;
  Grouping g_;
  std::vector<bool> ready_;
  std::vector<int> part_step_;
};

}  // namespace

Plan fuse(Program lowered) {
  Plan plan{std::move(lowered), {}, {}, {}, {}};
  Scheduler(plan).run();
  join_chains(plan);
  return plan;
}

}  // namespace tilevm::fuse
