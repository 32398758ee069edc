#include "fuse/chain.h"

#include <algorithm>
#include <optional>

#include "fuse/causal.h"

namespace tilevm::fuse {
namespace {

using Kind = Step::Kind;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

class Joining {
 public:
  explicit Joining(Plan& plan) : plan_(plan), program_(plan.program) {
    const std::size_t n = program_.values.size();
    readers_.resize(n);
    is_output_.resize(n);
    is_part_.resize(n);
    tail_of_.assign(n, -1);
    inside_.assign(n, -1);
    for (const ValueId v : program_.outputs) is_output_[at(v)] = true;
    for (int i = 0; i < static_cast<int>(plan_.steps.size()); ++i) read(i);
  }

  void run() {
    for (int i = 0; i < static_cast<int>(plan_.steps.size()); ++i) {
      const Step& step = plan_.steps[at(i)];
      if (step.kind == Kind::kKernel) join_kernel(i, step.kernel);
      if (step.kind == Kind::kChain) join_product(i, step.chain);
    }
    for (Chain& chain : plan_.chains) {
      chain.columns_too = by_columns(chain);
      chain.causal = causal(chain);
    }
    drop();
  }

 private:
  const Shape& shape(ValueId v) const { return program_.type(v).shape; }

  void read(int i) {
    const Step& step = plan_.steps[at(i)];
    if (step.in >= 0) readers_[at(step.in)].push_back(i);
    if (step.kind == Kind::kSlice) is_part_[at(step.out)] = true;
    if (step.kind == Kind::kKernel) {
      for (const OperandRef& operand : plan_.kernels[at(step.kernel)].operands) {
        if (operand.value >= 0 && operand.role != bytecode::Role::kOutput)
          readers_[at(operand.value)].push_back(i);
      }
    } else if (step.kind == Kind::kChain) {
      const Chain::Stage& product = plan_.chains[at(step.chain)].stages[0];
      readers_[at(product.a)].push_back(i);
      readers_[at(product.b)].push_back(i);
      const ValueId ends = ends_of_groups(program_, plan_.chains[at(step.chain)]);
      if (ends >= 0) readers_[at(ends)].push_back(i);
      tail_of_[at(product.out)] = step.chain;
    } else if (step.kind == Kind::kCall || step.kind == Kind::kLoop) {
      for (const ValueId v : program_.nodes[at(step.node)].inputs) readers_[at(v)].push_back(i);
    }
  }

  // Nobody but step i looks at v, any number of times.
  bool only_for(ValueId v, int i) const {
    return !is_output_[at(v)] && !is_part_[at(v)] &&
           std::ranges::all_of(readers_[at(v)], [i](int reader) { return reader == i; });
  }

  // The chain may run where step i stands, which takes `joined` from it and, if it is a kernel,
  // becomes stage `next`: till then nobody reads what the chain stores, and i reads its rows only.
  bool can_move(const Chain& chain, int i, ValueId joined, const Chain::Stage* next) const {
    const auto unread = [&](ValueId v) {
      if (v == joined || std::ranges::find(chain.panels, v) != chain.panels.end()) return true;
      return !is_part_[at(v)] &&
             std::ranges::all_of(readers_[at(v)], [i](int reader) { return reader > i; });
    };
    return std::ranges::all_of(chain.stages, [&](const Chain::Stage& stage) {
      if (stage.kernel < 0) return unread(stage.out);
      return std::ranges::all_of(
          plan_.kernels[at(stage.kernel)].operands, [&](const OperandRef& operand) {
            const ValueId v = operand.value;
            return operand.role != bytecode::Role::kOutput || unread(v) ||
                   (next != nullptr && only_for(v, i) && reads_rows(*next, stage, operand));
          });
    });
  }

  // Whether a kernel reads what another one wrote for the same rows of the chain.
  bool reads_rows(const Chain::Stage& reader, const Chain::Stage& writer,
                  const OperandRef& written) const {
    const auto dim = [](const Chain::Stage& stage, const OperandRef& operand, std::size_t row) {
      const int axis = stage.row_axis[row];
      return axis < 0 ? -1 : operand.dim[at(axis)];
    };
    return std::ranges::all_of(plan_.kernels[at(reader.kernel)].operands,
                               [&](const OperandRef& read) {
                                 if (read.value != written.value) return true;
                                 bool same = read.role == bytecode::Role::kInput;
                                 for (std::size_t d = 0; d < kMaxRank; ++d)
                                   same = same && dim(writer, written, d) == dim(reader, read, d);
                                 return same;
                               });
  }

  // The operator of a kernel that reads v.
  std::int32_t reader_in(int kernel, ValueId v) const {
    const std::vector<std::int32_t>& nodes = plan_.kernels[at(kernel)].from;
    const auto found = std::ranges::find_if(nodes, [&](std::int32_t n) {
      const auto& inputs = program_.nodes[at(n)].inputs;
      return std::ranges::find(inputs, v) != inputs.end();
    });
    return found == nodes.end() ? -1 : *found;
  }

  // The kernel as a stage behind a product's result v; nothing if it does not run row by row.
  std::optional<Chain::Stage> stage_of(int kernel, ValueId v) const {
    const KernelGraph& graph = plan_.kernels[at(kernel)];
    const int rank = shape(v).rank;
    Chain::Stage stage;
    stage.kernel = kernel;
    stage.row_axis.fill(-1);
    bool found = false;
    for (const OperandRef& operand : graph.operands) {
      if (operand.value != v) continue;
      if (operand.role != bytecode::Role::kInput) return {};
      std::array<std::int8_t, kMaxRank> axis_of;
      axis_of.fill(-1);
      for (std::size_t a = 0; a < graph.axes.size(); ++a) {
        if (operand.dim[a] >= 0) axis_of[at(operand.dim[a])] = static_cast<std::int8_t>(a);
      }
      for (int d = 0; d < rank; ++d) {
        const int axis = axis_of[at(d)];
        if (axis < 0 ? !program_.sizes.is(shape(v)[d], 1) : graph.axes[at(axis)] != shape(v)[d])
          return {};
        const bool row = d < rank - 1;
        if (row && axis >= 0 && ((graph.reduced >> axis) & 1) != 0) return {};
        std::int8_t& held = row ? stage.row_axis[at(d)] : stage.column_axis;
        if (found && held != axis) return {};
        held = static_cast<std::int8_t>(axis);
      }
      found = true;
    }
    if (!found || !std::ranges::all_of(graph.operands, [&](const OperandRef& operand) {
          return operand.role != bytecode::Role::kOutput || follows_rows(stage, operand);
        }))
      return {};
    return stage;
  }

  static bool follows_rows(const Chain::Stage& stage, const OperandRef& operand) {
    return std::ranges::all_of(stage.row_axis,
                               [&](int axis) { return axis < 0 || operand.dim[at(axis)] >= 0; });
  }

  bool same_rows(const Chain& chain, ValueId v) const {
    const Shape& s = shape(v);
    return chain.rows.size() == at(s.rank - 1) &&
           std::equal(chain.rows.begin(), chain.rows.end(), s.dims.begin());
  }

  bool same_groups(const Chain& x, const Chain& y) const {
    return ends_of_groups(program_, x) == ends_of_groups(program_, y);
  }

  // A kernel behind the products that only it reads.
  void join_kernel(int i, int kernel) {
    std::vector<ValueId> found;
    std::optional<Chain::Stage> stage;
    for (const OperandRef& operand : plan_.kernels[at(kernel)].operands) {
      const ValueId v = operand.value;
      if (v < 0 || tail_of_[at(v)] < 0) continue;
      if (std::ranges::find(found, v) != found.end()) continue;
      const Chain& chain = plan_.chains[at(tail_of_[at(v)])];
      if (chain.stages.back().out != v) continue;  // made by a kernel
      const std::optional<Chain::Stage> fits = stage_of(kernel, v);
      const Bar bar = [&] {
        if (!only_for(v, i)) return Bar::kReadElsewhere;
        if (!found.empty() && !same_rows(chain, found[0])) return Bar::kOtherRows;
        if (!found.empty() && !same_groups(chain, plan_.chains[at(tail_of_[at(found[0])])]))
          return Bar::kOtherRows;
        if (!fits) return Bar::kNotByRows;
        if (!can_move(chain, i, v, &*fits)) return Bar::kTooEarly;
        const bool same = !stage || (fits->row_axis == stage->row_axis &&
                                     fits->column_axis == stage->column_axis);
        return same ? Bar::kNone : Bar::kOtherRows;
      }();
      if (bar != Bar::kNone) {
        plan_.decisions.push_back({v, reader_in(kernel, v), {bar}});
        continue;
      }
      stage = fits;
      found.push_back(v);
    }
    if (found.empty()) return;
    const int into = tail_of_[at(found[0])];
    Chain& chain = plan_.chains[at(into)];
    for (const ValueId v : found) {
      const int from = tail_of_[at(v)];
      if (from != into) {
        Chain& other = plan_.chains[at(from)];
        chain.stages.insert(chain.stages.end(), other.stages.begin(), other.stages.end());
        chain.panels.insert(chain.panels.end(), other.panels.begin(), other.panels.end());
        other.stages.clear();
      }
      chain.panels.push_back(v);
      tail_of_[at(v)] = -1;
    }
    chain.stages.push_back(*stage);
    for (const OperandRef& operand : plan_.kernels[at(kernel)].operands) {
      if (operand.role == bytecode::Role::kOutput) tail_of_[at(operand.value)] = into;
    }
    place(i, into);
  }

  // The stage of a chain, a kernel, that makes v; null: none.
  const Chain::Stage* maker(const Chain& chain, ValueId v) const {
    const auto makes = [&](const OperandRef& operand) {
      return operand.value == v && operand.role == bytecode::Role::kOutput;
    };
    for (const Chain::Stage& stage : chain.stages) {
      if (stage.kernel >= 0 && std::ranges::any_of(plan_.kernels[at(stage.kernel)].operands, makes))
        return &stage;
    }
    return nullptr;
  }

  bool has_one_matrix(ValueId v) const {
    const auto batches = shape(v).span().first(at(shape(v).rank - 2));
    return std::ranges::all_of(batches, [this](SizeId size) { return program_.sizes.is(size, 1); });
  }

  // A product of what a kernel of a chain made of its rows, as in attention and its gradients:
  // there what passes is large, and right factors are small, one for each batch. With one right
  // factor for all rows, two products do better one after the other, each some columns at a time.
  void join_product(int i, int own) {
    const Chain::Stage product = plan_.chains[at(own)].stages[0];
    const int into = std::max(tail_of_[at(product.a)], inside_[at(product.a)]);
    if (into < 0 || into == own || product.a == product.b || !only_for(product.a, i)) return;
    if (product.conv >= 0) return;  // its windows reach into other rows
    Chain& chain = plan_.chains[at(into)];
    if (chain.grouped >= 0 || plan_.chains[at(own)].grouped >= 0) return;
    const Chain::Stage* const kernel = maker(chain, product.a);
    if (kernel == nullptr || !can_move(chain, i, product.a, nullptr)) return;
    const bool folds = plan_.kernels[at(kernel->kernel)].reduced != 0;
    if (shape(product.b).rank == 2 || (!folds && has_one_matrix(product.b))) {
      for (Decision& decision : plan_.decisions) {
        if (decision.value == product.a && decision.why.bar == Bar::kFactor)
          decision.why = {Bar::kOneFactor};
      }
      return;
    }
    const Shape &a = shape(product.a), &out = shape(product.out);
    if (!same_rows(chain, product.a) || a.rank != out.rank || !same_rows(chain, product.out))
      return;
    for (const OperandRef& operand : plan_.kernels[at(kernel->kernel)].operands) {
      if (operand.value != product.a) continue;
      const int columns = static_cast<int>(chain.rows.size());
      for (int d = 0; d < columns; ++d) {
        const int axis = kernel->row_axis[at(d)];
        if (axis >= 0 && operand.dim[at(axis)] != d) return;
      }
      for (int axis = 0; axis < kMaxAxes; ++axis) {
        if ((operand.dim[at(axis)] == columns) != (axis == kernel->column_axis)) return;
      }
    }
    chain.panels.push_back(product.a);
    chain.stages.push_back(product);
    plan_.chains[at(own)].stages.clear();
    for (std::size_t v = 0; v < tail_of_.size(); ++v) {
      if (tail_of_[v] != into) continue;
      tail_of_[v] = -1;
      if (maker(chain, static_cast<ValueId>(v)) != nullptr) inside_[v] = into;
    }
    tail_of_[at(product.out)] = into;
    place(i, into);
  }

  // Step i runs the chain from now on.
  void place(int i, int chain) {
    for (Step& step : plan_.steps) {
      if (step.kind == Kind::kChain && step.chain == chain) step.chain = -1;
    }
    Step& step = plan_.steps[at(i)];
    step.kind = Kind::kChain;
    step.chain = chain;
    step.kernel = -1;
  }

  // The kernel between products and a product of nothing but what it makes, if it masks; or -1.
  std::int32_t causal(const Chain& chain) const {
    const auto is_kernel = [](const Chain::Stage& stage) { return stage.kernel >= 0; };
    const auto middle = std::ranges::find_if(chain.stages, is_kernel);
    const auto behind = chain.stages.end() - middle;
    if (behind < 2 || behind > 3 || is_kernel(middle[1]) || (behind == 3 && !is_kernel(middle[2])))
      return -1;
    const bool masks = is_causal(program_.sizes, plan_.kernels[at(middle->kernel)],
                                 chain.stages[0].out, middle[1].a,
                                 middle->row_axis[chain.rows.size() - 1], middle->column_axis);
    return masks ? static_cast<std::int32_t>(middle - chain.stages.begin()) : -1;
  }

  // Products side by side and at most one kernel behind them, which folds no columns.
  bool by_columns(const Chain& chain) const {
    for (std::size_t s = 0; s < chain.stages.size(); ++s) {
      const Chain::Stage& stage = chain.stages[s];
      if (stage.kernel < 0) {
        const SizeId columns = shape(stage.out)[shape(stage.out).rank - 1];
        const Chain::Stage& first = chain.stages[0];
        if (columns != shape(first.out)[shape(first.out).rank - 1]) return false;
        continue;
      }
      const KernelGraph& graph = plan_.kernels[at(stage.kernel)];
      const int axis = stage.column_axis;
      if (s + 1 < chain.stages.size() || axis < 0 || ((graph.reduced >> axis) & 1) != 0)
        return false;
      for (const OperandRef& operand : graph.operands) {
        if (operand.role == bytecode::Role::kOutput && operand.dim[at(axis)] < 0) return false;
      }
    }
    return true;
  }

  // Steps of chains that are part of others now, buffers of panels, and why those were stored.
  void drop() {
    std::vector<bool> is_panel(program_.values.size());
    for (const Chain& chain : plan_.chains) {
      for (const ValueId v : chain.panels) is_panel[at(v)] = !chain.stages.empty();
    }
    std::erase_if(plan_.steps, [&](const Step& step) {
      if (step.kind == Kind::kChain)
        return step.chain < 0 || plan_.chains[at(step.chain)].stages.empty();
      return step.kind == Kind::kAlloc && is_panel[at(step.out)];
    });
    std::erase_if(plan_.decisions, [&](const Decision& d) { return is_panel[at(d.value)]; });
  }

  Plan& plan_;
  const Program& program_;
  std::vector<std::vector<int>> readers_;  // by value: steps
  std::vector<bool> is_output_, is_part_;
  std::vector<int> tail_of_;  // by value: the chain whose last stage makes it
  std::vector<int> inside_;   // by value: the one of which a kernel before the last stage does
};

}  // namespace

bool is_product(const Program& program, const Node& node) {
  return is_convolution(node.op) || node.op == Op::grouped_matmul ||
         (node.op == Op::matmul && program.type(node.out).dtype == DType::kFloat32);
}

void join_chains(Plan& plan) {
  if (!plan.chains.empty()) Joining(plan).run();
}

}  // namespace tilevm::fuse
