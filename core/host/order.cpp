#include <algorithm>
#include <iterator>

#include "host/errors.h"
#include "host/executable.h"

namespace tilevm::host {

using Kind = fuse::Step::Kind;

// Moves steps behind the call-outs that bring the sizes they need: a size can be all that a step
// takes from a call-out, as in iota(u0).
void Executable::order_steps() {
  const Program& program = plan_.program;
  const auto n_steps = static_cast<int>(plan_.steps.size());
  const auto node_of = [&](const fuse::Step& step) -> const Node* {
    return step.node < 0 ? nullptr : &program.nodes[static_cast<std::size_t>(step.node)];
  };
  // Symbols that no input has, and the call-out that brings each.
  std::vector<int> brought(static_cast<std::size_t>(program.sizes.count()), -1);
  bool any = false;
  for (int i = 0; i < n_steps; ++i) {
    const fuse::Step& step = plan_.steps[static_cast<std::size_t>(i)];
    if (step.kind != Kind::kCall) continue;
    const Node& node = *node_of(step);
    for (int r = 0; r < node.n_out; ++r) {
      for (const SizeId size : program.type(node.out + r).shape.span()) {
        const auto at = static_cast<std::size_t>(size);
        if (!program.sizes.is_symbol(size) || sizes_.binds(size) || brought[at] >= 0) continue;
        brought[at] = i;
        any = true;
      }
    }
  }
  if (!any) return;
  const auto needs = [&](std::span<const SizeId> sizes) {
    int latest = -1;
    std::vector<SizeId> wanted;
    std::ranges::copy_if(sizes, std::back_inserter(wanted),
                         [](SizeId size) { return size != shape::kNoSize; });
    const auto look = [&](std::int32_t r) {
      if (r >= 0 && static_cast<std::size_t>(r) < brought.size()) {
        latest = std::max(latest, brought[static_cast<std::size_t>(r)]);
      }
    };
    for (const SizeId size : wanted) look(static_cast<std::int32_t>(size));
    for (const shape::SizeStep& s : program.sizes.compile(wanted)) {
      if (s.kind == shape::SizeStep::Kind::kConst) continue;
      look(s.a);
      look(s.b);
    }
    return latest;
  };
  std::vector<fuse::Step> order;
  std::vector<bool> done(plan_.steps.size(), false);
  std::vector<bool> late(program.values.size(), false);   // a step that waits defines it
  std::vector<ValueId> whole(program.values.size(), -1);  // what a part is a part of
  for (const fuse::Step& step : plan_.steps) {
    if (step.kind == Kind::kSlice) whole[index(step.out)] = step.in;
  }
  std::vector<int> waiting;
  const auto visit = [&](int i) {
    const fuse::Step& step = plan_.steps[static_cast<std::size_t>(i)];
    std::vector<SizeId> sizes = {step.offset};
    std::vector<ValueId> reads, writes;
    const auto add_shape = [&](ValueId value) {
      for (const SizeId size : program.type(value).shape.span()) sizes.push_back(size);
    };
    if (step.in >= 0) reads.push_back(step.in);
    if (step.out >= 0) {
      writes.push_back(step.out);
      add_shape(step.out);
    }
    if (const Node* node = node_of(step)) {
      for (const Attr& attr : node->attrs)
        sizes.insert(sizes.end(), attr.sizes.begin(), attr.sizes.end());
      for (const ValueId in : node->inputs) {
        reads.push_back(in);
        if (step.kind != Kind::kCall || !program.type(in).weak) continue;
        const std::int32_t from = program.values[index(in)].node;
        if (from < 0) continue;
        for (const Attr& attr : program.nodes[static_cast<std::size_t>(from)].attrs) {
          sizes.insert(sizes.end(), attr.sizes.begin(), attr.sizes.end());
        }
      }
      for (int r = 0; step.kind == Kind::kCall && r < node->n_out; ++r)
        writes.push_back(node->out + r);
    }
    visit_operands(step, [&](ValueId value, bool written) {
      reads.push_back(value);  // what is written has been allocated
      if (written) writes.push_back(value);
      if (step.kind == Kind::kChain) add_shape(value);
    });
    visit_kernels(step, [&](int kernel) {
      const fuse::KernelGraph& graph = kernels_[static_cast<std::size_t>(kernel)].graph();
      sizes.insert(sizes.end(), graph.axes.begin(), graph.axes.end());
      for (const fuse::OperandRef& operand : graph.operands)
        sizes.insert(sizes.end(), {operand.size, operand.start, operand.step});
    });
    const int call = needs(sizes);
    bool ready = call < 0 || done[static_cast<std::size_t>(call)];
    for (const ValueId value : reads) ready = ready && !late[index(value)];
    for (ValueId value : writes) {
      for (; !ready && value >= 0; value = whole[index(value)]) late[index(value)] = true;
    }
    if (ready) {
      order.push_back(step);
      done[static_cast<std::size_t>(i)] = true;
    }
    return ready;
  };
  for (int i = 0; i < n_steps; ++i) {
    if (!visit(i)) {
      waiting.push_back(i);
    } else if (plan_.steps[static_cast<std::size_t>(i)].kind == Kind::kCall && !waiting.empty()) {
      late.assign(late.size(), false);  // the steps that wait set it again, in their order
      std::erase_if(waiting, visit);
    }
  }
  if (order.size() != plan_.steps.size())
    throw InternalError("steps wait for sizes that never come");
  plan_.steps = std::move(order);
}

}  // namespace tilevm::host
