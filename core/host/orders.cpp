// Orders of dims in memory: those that outputs ask for, and those of inputs that outputs follow.
#include <algorithm>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"

namespace tilevm::host {

using Kind = fuse::Step::Kind;

// The order of dims in memory that an output asks for, followed back through permutes.
void Executable::compile_orders(const Options& options) {
  const Program& program = plan_.program;
  separate_order_.assign(outputs_.size(), -1);
  ordered_.assign(outputs_.size(), false);
  const Uses uses = count_uses();
  std::vector<std::int32_t> order_of(program.values.size(), -1);
  for (std::size_t o = 0; o < outputs_.size() && o < options.output_orders.size(); ++o) {
    if (!options.output_orders[o] || outputs_[o].kind != Source::Kind::kTensor) continue;
    std::vector<std::int32_t> order = *options.output_orders[o];
    ValueId value = outputs_[o].value;
    const auto rank = static_cast<std::size_t>(program.type(value).shape.rank);
    std::vector<bool> seen(rank, false);
    for (const std::int32_t d : order) {
      if (d >= 0 && static_cast<std::size_t>(d) < rank) seen[static_cast<std::size_t>(d)] = true;
    }
    if (order.size() != rank || std::find(seen.begin(), seen.end(), false) != seen.end()) {
      throw ShapeError("output_orders: output " + std::to_string(o) + " needs each of its " +
                       std::to_string(rank) + " dims once");
    }
    const bool row_major = std::is_sorted(order.begin(), order.end());
    if (!row_major) {
      separate_order_[o] = static_cast<std::int32_t>(orders_.size());
      orders_.push_back(order);
    }
    bool alone = true;  // nobody else reads the buffer
    for (std::size_t i = steps_.size(); i-- > 0;) {
      const HostStep& step = steps_[i];
      if (step.out != value || step.kind != Kind::kView || step.view.op != Op::permute) continue;
      for (std::int32_t& d : order) d = step.view.axes[static_cast<std::size_t>(d)];
      alone = alone && uses.readers[index(value)] == 1;
      value = step.in;
    }
    const HostStep* made = uses.made_by[index(value)];
    if (row_major && !std::is_sorted(order.begin(), order.end())) {
      ordered_[o] = true;
      if (!alone || uses.readers[index(value)] != 1 || made == nullptr ||
          made->kind != Kind::kAlloc)
        continue;
    }
    // A reshape may be a view of what has its channels last.
    if (made != nullptr && made->kind != Kind::kAlloc &&
        (!row_major || made->kind == Kind::kReshape))
      ordered_[o] = true;
    if (order_of[index(value)] >= 0 || std::is_sorted(order.begin(), order.end())) continue;
    order_of[index(value)] = static_cast<std::int32_t>(orders_.size());
    orders_.push_back(std::move(order));
  }
  order_for_reshapes(order_of, uses);
  for (HostStep& step : steps_) {
    if (step.kind == Kind::kAlloc) step.order = order_of[index(step.out)];
  }
  if (options.follow_inputs) follow_inputs();
}

// A buffer that is only read with its dims permuted and then reshaped, as the heads of attention
// are, lies in memory so that the reshape copies nothing. Its last dim stays where it is.
void Executable::order_for_reshapes(std::vector<std::int32_t>& order_of, const Uses& uses) {
  const auto& [readers, made_by] = uses;
  for (const HostStep& reshape : steps_) {
    if (reshape.kind != Kind::kReshape) continue;
    ValueId value = reshape.in;
    const int rank = plan_.program.type(value).shape.rank;
    std::vector<std::int32_t> order;
    for (int d = 0; d < rank; ++d) order.push_back(d);
    const HostStep* from = made_by[index(value)];
    while (from != nullptr && readers[index(value)] == 1 && from->kind == Kind::kView &&
           from->view.op == Op::permute) {
      for (std::int32_t& d : order) d = from->view.axes[static_cast<std::size_t>(d)];
      value = from->in;
      from = made_by[index(value)];
    }
    if (from == nullptr || from->kind != Kind::kAlloc || readers[index(value)] != 1) continue;
    if (order_of[index(value)] >= 0 || std::is_sorted(order.begin(), order.end()) ||
        order.back() != rank - 1)
      continue;
    order_of[index(value)] = static_cast<std::int32_t>(orders_.size());
    orders_.push_back(std::move(order));
  }
}

// Results made operator by operator of elements lie in memory as their first operand of the same
// shape does, as NumPy's and PyTorch's do: which input or permuted input that is. Left out is what
// anybody else sees as a view.
void Executable::follow_inputs() {
  const Program& program = plan_.program;
  std::vector<bool> seen_otherwise(program.values.size(), false), may(program.values.size(), false);
  std::vector<ValueId> first(program.values.size(), -1);
  for (const ValueId input : program.inputs) {
    if (!program.type(input).weak && program.type(input).shape.rank > 1)
      first[index(input)] = input;
  }
  for (const HostStep& step : steps_) {
    if (step.in >= 0) seen_otherwise[index(step.in)] = true;
    if (step.kind == Kind::kView && step.view.op == Op::permute && first[index(step.in)] == step.in)
      first[index(step.out)] = step.out;
    if (step.kind != Kind::kKernel) continue;
    visit_operands(step, [&](ValueId value, bool written) {
      if (written) may[index(value)] = true;
    });
  }
  // Sizes of other names are equal, too, unless one is 1 and stands for all.
  const auto fits = [&](SizeId in, SizeId out) { return in == out || !program.sizes.is(in, 1); };
  for (const Node& node : program.nodes) {
    if (info(node.op).cls != OpClass::kElementwise) continue;
    const auto same = std::ranges::find_if(node.inputs, [&](ValueId in) {
      return std::ranges::equal(program.type(in).shape.span(), program.type(node.out).shape.span(),
                                fits);
    });
    if (same != node.inputs.end()) first[index(node.out)] = first[index(*same)];
  }
  for (HostStep& step : steps_) {
    if (step.kind != Kind::kAlloc || step.order >= 0 || !may[index(step.out)]) continue;
    const bool is_output = std::ranges::any_of(outputs_, [&](const Source& output) {
      return output.kind == Source::Kind::kTensor && output.value == step.out;
    });
    if (is_output && !seen_otherwise[index(step.out)]) step.follows = first[index(step.out)];
  }
}

}  // namespace tilevm::host
