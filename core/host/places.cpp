// Which results of kernels take the place of something that the kernel reads: of an input that the
// program changes, or of a buffer that nobody needs afterwards.
#include <algorithm>
#include <numeric>
#include <optional>

#include "host/executable.h"
#include "host/frame.h"
#include "isa.gen.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;
using bytecode::Role;

// Whether elements are read once: what is made of folds is not read by a sweep of its own.
bool sweeps_once(const fuse::KernelGraph& graph) {
  std::vector<bool> after(graph.nodes.size(), false);  // a fold
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const fuse::KernelNode& node = graph.nodes[n];
    for (const std::int32_t in : node.in) {
      if (in < 0) continue;
      const auto i = static_cast<std::size_t>(in);
      if (after[i] || graph.nodes[i].kind == fuse::KernelNode::Kind::kFold) after[n] = true;
    }
    const bool folds = node.kind == fuse::KernelNode::Kind::kFold;
    if (after[n] && (folds || (node.axes & graph.reduced) != 0)) return false;
  }
  return true;
}

}  // namespace

// For each value that one step alone writes, and whole: the step. -1: none, or several.
std::vector<int> Executable::writers() const {
  constexpr int kSeveral = -2;
  std::vector<int> writer(plan_.program.values.size(), -1);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    visit_operands(steps_[i], [&](ValueId value, bool written) {
      if (!written) return;
      const auto& roots = roots_[index(value)];
      for (const ValueId root : roots) {
        int& step = writer[index(root)];
        step = root == value && step == -1 ? static_cast<int>(i) : kSeveral;
      }
    });
  }
  std::ranges::replace(writer, kSeveral, -1);
  return writer;
}

// Whether a step may write `out` where `in` lies: each element of `in` is read for that element of
// `out` alone, before it is written. The two must have equal sizes.
bool Executable::may_replace(const HostStep& step, ValueId in, ValueId out) const {
  const Program& program = plan_.program;
  if (program.type(in).shape != program.type(out).shape ||
      dtype_bytes(program.type(in).dtype) != dtype_bytes(program.type(out).dtype)) {
    return false;
  }
  const auto overlaps = [&](ValueId value) {
    return std::ranges::find(roots_[index(value)], in) != roots_[index(value)].end();
  };
  if (step.kind == Kind::kLoop) {
    const Node& node = program.nodes[static_cast<std::size_t>(step.node)];
    const bool scatters =
        info(node.op).rule == Rule::kScatter || info(node.op).rule == Rule::kScatterNumber;
    return scatters && node.inputs[0] == in && !overlaps(node.inputs[1]) &&
           !overlaps(node.inputs[2]);
  }
  bool may = true;
  const fuse::OperandRef* target = nullptr;
  visit_kernels(step, [&](int k) {
    const fuse::KernelGraph& graph = kernels_[static_cast<std::size_t>(k)].graph();
    for (const fuse::OperandRef& operand : graph.operands) {
      if (operand.role != Role::kOutput || operand.value != out) continue;
      may = may && target == nullptr && sweeps_once(graph);
      target = &operand;
    }
  });
  if (target == nullptr || !may) return false;
  visit_kernels(step, [&](int k) {
    const fuse::KernelGraph& graph = kernels_[static_cast<std::size_t>(k)].graph();
    const bool same_kernel =
        target >= graph.operands.data() && target < graph.operands.data() + graph.operands.size();
    for (const fuse::OperandRef& operand : graph.operands) {
      if (operand.value < 0 || !overlaps(operand.value)) continue;
      may = may && same_kernel && operand.value == in && operand.role == Role::kInput &&
            operand.dim == target->dim;
    }
  });
  if (step.kind != Kind::kChain) return may;
  const fuse::Chain& chain = plan_.chains[static_cast<std::size_t>(step.chain)];
  const ValueId ends = fuse::ends_of_groups(plan_.program, chain);
  if (ends >= 0) may = may && !overlaps(ends);
  for (const auto& stage : chain.stages) {
    if (stage.kernel < 0) may = may && !overlaps(stage.a) && !overlaps(stage.b);
  }
  return may;
}

// A scatter's result is the buffer that it scatters into, if nobody else reads that: nothing is
// copied, also where the result is the framework's.
void Executable::scatter_in_place() {
  const Program& program = plan_.program;
  const Uses uses = count_uses();
  const auto dense_buffer = [&](ValueId value) {
    const HostStep* const made = uses.made_by[index(value)];
    return made != nullptr && made->kind == Kind::kAlloc && made->order < 0 && made->follows < 0;
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].kind != Kind::kLoop) continue;
    const Node& node = program.nodes[static_cast<std::size_t>(steps_[i].node)];
    const ValueId in = node.inputs[0], out = node.out;
    const bool may_have_target =
        writes_ && std::ranges::find(outputs_, out, &Source::value) != outputs_.end();
    if (may_have_target || !dense_buffer(in) || !dense_buffer(out) || uses.readers[index(in)] != 1 ||
        !may_replace(steps_[i], in, out))
      continue;
    const auto made = std::find_if(steps_.begin(), steps_.end(), [&](const HostStep& step) {
      return step.kind == Kind::kAlloc && step.out == out;
    });
    made->kind = Kind::kView;
    made->in = in;
    made->view.op = Op::permute;
    made->view.axes.resize(static_cast<std::size_t>(program.type(in).shape.rank));
    std::iota(made->view.axes.begin(), made->view.axes.end(), 0);
    for (std::vector<ValueId>& roots : roots_) std::ranges::replace(roots, out, in);
  }
}

// Reshapes of what lies row by row are views whatever the sizes are: they need no memory.
void Executable::find_dense_reshapes() {
  const Program& program = plan_.program;
  // By value the dims that lie in memory without holes, from the outermost; none: not known.
  std::vector<std::optional<std::vector<std::int32_t>>> layout(program.values.size());
  const auto in_order = [&](ValueId value) {
    std::vector<std::int32_t> dims(static_cast<std::size_t>(program.type(value).shape.rank));
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  };
  std::vector<bool> may_move(program.values.size(), false);  // to the memory of an input
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (targets_[o] >= 0) may_move[index(outputs_[o].value)] = true;
  }
  std::vector<bool> is_view(program.values.size(), false);
  for (HostStep& step : steps_) {
    if (step.kind == Kind::kAlloc && !may_move[index(step.out)] && step.follows < 0) {
      layout[index(step.out)] =
          step.order < 0 ? in_order(step.out) : orders_[static_cast<std::size_t>(step.order)];
    }
    if (step.in < 0 || !layout[index(step.in)]) continue;
    const std::vector<std::int32_t>& from = *layout[index(step.in)];
    if (step.kind == Kind::kView && step.view.op == Op::permute) {
      std::vector<std::int32_t> to;
      for (const std::int32_t dim : from) {
        const auto d = std::ranges::find(step.view.axes, dim) - step.view.axes.begin();
        to.push_back(static_cast<std::int32_t>(d));
      }
      layout[index(step.out)] = std::move(to);
    } else if (std::ranges::is_sorted(from) &&
               (step.kind == Kind::kReshape ||
                (step.kind == Kind::kView &&
                 (step.view.op == Op::unsqueeze || step.view.op == Op::squeeze)))) {
      layout[index(step.out)] = in_order(step.out);
      step.is_view = step.kind == Kind::kReshape;
      if (step.is_view) is_view[index(step.out)] = true;
    }
  }
  for (std::vector<ValueId>& roots : roots_) {
    std::erase_if(roots, [&](ValueId root) { return is_view[index(root)]; });
  }
}

// Whether a loop finds no index out of range, since an earlier one has found none: it takes the
// same indices, for an axis of the same size.
bool Executable::repeats_indices(std::size_t step) const {
  const Program& program = plan_.program;
  const auto scatter = [&](const HostStep& s) -> const Node* {
    if (s.kind != Kind::kLoop) return nullptr;
    const Node& node = program.nodes[static_cast<std::size_t>(s.node)];
    return info(node.op).rule == Rule::kScatter ? &node : nullptr;
  };
  const auto size = [&](const Node& node) {
    return program.type(node.out).shape[static_cast<std::size_t>(node.attrs[0].ints[0])];
  };
  const Node* const node = scatter(steps_[step]);
  if (node == nullptr) return false;
  return std::any_of(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(step),
                     [&](const HostStep& s) {
                       const Node* const other = scatter(s);
                       return other != nullptr && other->inputs[1] == node->inputs[1] &&
                              size(*other) == size(*node);
                     });
}

// Outputs that are made where they are to be written. `last`: by root, the last step that needs it.
void Executable::place_targets(const std::vector<int>& last, const std::vector<bool>& escapes) {
  const std::vector<int> writer = writers();
  int last_failing = -1;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    // Loops fail before they write: only what comes earlier must not be in place.
    if (steps_[i].kind == Kind::kLoop && !repeats_indices(i)) {
      last_failing = static_cast<int>(i) - 1;
    }
    bool fails = steps_[i].kind == Kind::kCall;
    visit_kernels(steps_[i], [&](int k) {
      fails = fails || can_fail(kernels_[static_cast<std::size_t>(k)].graph());
    });
    if (fails) last_failing = static_cast<int>(i);
  }
  std::vector<int> uses(plan_.program.values.size());  // as a target, or as an output
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (targets_[o] >= 0) ++uses[index(targets_[o])];
    ++uses[index(outputs_[o].value)];
  }
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    const ValueId target = targets_[o];
    const Source& output = outputs_[o];
    if (target < 0 || output.kind != Source::Kind::kTensor) continue;
    const int at = writer[index(output.value)];
    if (at < 0 || uses[index(target)] > 1 || uses[index(output.value)] > 1) continue;
    // A call that fails must leave inputs as they were: somebody may try again.
    if (escapes[index(output.value)] || at <= last_failing || last[index(target)] > at ||
        !may_replace(steps_[static_cast<std::size_t>(at)], target, output.value)) {
      continue;
    }
    for (HostStep& step : steps_) {
      if (step.kind == Kind::kAlloc && step.out == output.value) step.place = target;
    }
  }
}

// Which inputs that are written to share memory with no other input, as far as the first and last
// bytes tell.
void Executable::find_apart(Frame& frame) const {
  const Program& program = plan_.program;
  auto& ranges = frame.ranges;
  ranges.clear();
  for (const ValueId input : program.inputs) {
    if (program.type(input).weak) continue;
    const Record& record = frame.records[index(input)];
    const std::int64_t item = dtype_bytes(program.type(input).dtype);
    frame.apart[index(input)] = true;
    if (record.empty()) continue;
    std::int64_t first = 0, end = std::max<std::int64_t>(item, 1);
    for (int d = 0; d < record.rank; ++d) {
      const std::int64_t reach = (record.size(d) - 1) * record.stride(d) * item;
      (reach < 0 ? first : end) += reach;
    }
    ranges.push_back({record.data + first, record.data + end, input});
  }
  std::ranges::sort(ranges, {}, &Frame::Range::first);
  // Runs of ranges of which each begins within what those before it reach.
  const std::byte* reach = nullptr;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && ranges[i].first < reach) {
      frame.apart[index(ranges[i - 1].input)] = frame.apart[index(ranges[i].input)] = false;
    }
    if (i == 0 || ranges[i].end > reach) reach = ranges[i].end;
  }
}

// What a graph reads after it has written must not have been changed by that.
void Executable::check_apart(const Frame& frame) const {
  const auto& inputs = plan_.program.inputs;
  for (const ValueId target : targets_) {
    if (target < 0) continue;
    const Record& record = frame.records[index(target)];
    bool apart = frame.apart[index(target)];
    for (int d = 0; d < record.rank; ++d)
      apart = apart && (record.stride(d) != 0 || record.size(d) <= 1);
    if (apart) continue;
    const auto i = static_cast<std::size_t>(std::ranges::find(inputs, target) - inputs.begin());
    throw ShapeError(names_[i] +
                     " is changed in place, and shares memory with another input or itself");
  }
}

// Gives the memory of inputs what was made for it elsewhere.
void Executable::write_targets(Frame& frame, std::span<const Object> inputs,
                               std::span<Object> outputs) const {
  const Program& program = plan_.program;
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    const ValueId target = targets_[o];
    if (target < 0) continue;
    if (outputs[o] != nullptr) {
      Record from;
      const Record& to = frame.records[index(target)];
      framework_.describe(outputs[o], program.type(outputs_[o].value), "a result", from);
      if (!std::equal(from.sizes.begin(), from.sizes.begin() + from.rank, to.sizes.begin()))
        throw ShapeError("output " + std::to_string(o) + " has other sizes than its input");
      copy(from, to, dtype_bytes(program.type(target).dtype), framework_.threads());
      framework_.drop(outputs[o]);
    }
    const auto i = std::ranges::find(program.inputs, target) - program.inputs.begin();
    outputs[o] = framework_.retain(inputs[static_cast<std::size_t>(i)]);
  }
}

}  // namespace tilevm::host
