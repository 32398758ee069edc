#include "host/profile.h"

#include <algorithm>

#include "host/executable.h"
#include "isa.gen.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;
using fuse::KernelNode;

template <class Index>
std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

class Counter {
 public:
  Counter(const Executable& exe, const Profile& profile) : exe_(exe), profile_(profile) {}

  Work count(const HostStep& step) {
    work_ = {};
    if (step.kind == Kind::kKernel) kernel(step.kernel, {});
    if (step.kind == Kind::kChain) chain(exe_.plan().chains[at(step.chain)]);
    if (step.kind == Kind::kReshape && moved(step)) {
      work_.read_bytes += bytes(step.in);
      work_.written_bytes += bytes(step.out);
    }
    if (step.kind == Kind::kLoop) loop(exe_.plan().program.nodes[at(step.node)]);
    if (step.kind == Kind::kCall) {
      for (const Source& arg : step.args) {
        if (arg.kind == Source::Kind::kTensor) work_.read_bytes += bytes(arg.value);
      }
      for (int r = 0; r < step.n_out; ++r) work_.written_bytes += bytes(step.out + r);
    }
    return std::move(work_);
  }

 private:
  double size(SizeId id) const { return static_cast<double>(profile_.sizes[at(id)]); }

  double bytes(ValueId v) const {
    const Type& type = exe_.plan().program.type(v);
    if (type.weak || type.dtype == DType::kOpaque) return 0;
    const Record& record = profile_.records[at(v)];
    double count = record.elements() == 0 ? 0 : 1;
    for (int d = 0; d < record.rank; ++d) {
      if (!repeats(v, d)) count *= static_cast<double>(record.size(d));
    }
    return count * dtype_bytes(type.dtype);
  }

  // Whether all elements along a dim are one in memory, as of x.expand().
  bool repeats(ValueId v, int dim) const {
    const Record& record = profile_.records[at(v)];
    return dim < record.rank && record.size(dim) > 1 && record.stride(dim) == 0;
  }

  bool moved(const HostStep& step) const {
    return profile_.records[at(step.in)].data != profile_.records[at(step.out)].data;
  }

  void loop(const Node& node) {
    const Record& out = profile_.records[at(node.out)];
    const bool scatters =
        info(node.op).rule == Rule::kScatter || info(node.op).rule == Rule::kScatterNumber;
    if (!scatters || profile_.records[at(node.inputs[0])].data != out.data) {
      for (const ValueId in : node.inputs) work_.read_bytes += bytes(in);
      work_.written_bytes += bytes(node.out);
      return;
    }
    // In the place of what it changes: no element but those that the indices name, at most all.
    const auto named = static_cast<double>(profile_.records[at(node.inputs[2])].elements());
    const double touched = std::min(named * dtype_bytes(exe_.plan().program.type(node.out).dtype),
                                    bytes(node.out));
    work_.read_bytes += bytes(node.inputs[1]) + bytes(node.inputs[2]);
    if (node.op != Op::scatter) work_.read_bytes += touched;
    work_.written_bytes += touched;
  }

  double extent(const fuse::KernelGraph& graph, fuse::AxisMask axes) const {
    double product = 1;
    for (std::size_t a = 0; a < graph.axes.size(); ++a) {
      if (((axes >> a) & 1) != 0) product *= size(graph.axes[a]);
    }
    return product;
  }

  // panels: values that stay in the cache.
  void kernel(int which, std::span<const ValueId> panels) {
    const fuse::KernelGraph& graph = exe_.kernels()[at(which)].graph();
    for (std::size_t o = 0; o < graph.operands.size(); ++o) {
      const fuse::OperandRef& operand = graph.operands[o];
      if (operand.value < 0 || std::ranges::find(panels, operand.value) != panels.end()) continue;
      fuse::AxisMask axes = 0;
      for (std::size_t a = 0; a < graph.axes.size(); ++a) {
        if (operand.dim[a] < 0 || repeats(operand.value, operand.dim[a])) continue;
        axes = static_cast<fuse::AxisMask>(axes | (1U << a));
      }
      double touched = extent(graph, axes) * bytecode::storage_bytes(operand.storage);
      if (operand.gather_dim >= 0) touched = gathered(graph, o, operand);
      const bool output = operand.role == bytecode::Role::kOutput;
      (output ? work_.written_bytes : work_.read_bytes) += touched;
    }
    for (const KernelNode& node : graph.nodes) {
      const bool fold = node.kind == KernelNode::Kind::kFold;
      if (!fold && node.kind != KernelNode::Kind::kMap) continue;
      const KernelNode& swept = fold ? graph.nodes[at(node.in[0])] : node;
      operation(std::string(bytecode::kIsa[node.instr].name), extent(graph, swept.axes));
    }
  }

  // Of a table: an element for each index, but never more than there are.
  double gathered(const fuse::KernelGraph& graph, std::size_t o,
                  const fuse::OperandRef& operand) const {
    double touched = 0;
    for (const KernelNode& node : graph.nodes) {
      if (node.kind != KernelNode::Kind::kGather || node.operand != static_cast<int>(o)) continue;
      touched += extent(graph, node.axes) * bytecode::storage_bytes(operand.storage);
    }
    return std::min(touched, bytes(operand.value));
  }

  void operation(const std::string& name, double elements) {
    const auto known =
        std::ranges::find(work_.operations, name, [](const auto& o) -> auto& { return o.first; });
    if (known == work_.operations.end()) {
      work_.operations.emplace_back(name, elements);
    } else {
      known->second += elements;
    }
  }

  void chain(const fuse::Chain& chain) {
    const Program& program = exe_.plan().program;
    const auto whole = [&](ValueId v, double& to) {
      if (std::ranges::find(chain.panels, v) != chain.panels.end()) return;
      double product = dtype_bytes(program.type(v).dtype);
      for (const SizeId s : program.type(v).shape.span()) product *= size(s);
      to += product;
    };
    for (const fuse::Chain::Stage& stage : chain.stages) {
      if (stage.kernel >= 0) {
        kernel(stage.kernel, chain.panels);
        continue;
      }
      const Shape &a = program.type(stage.a).shape, &out = program.type(stage.out).shape;
      double flops = 2 * size(a[a.rank - 1]);
      for (const SizeId s : out.span()) flops *= size(s);
      work_.flops += flops;
      work_.factors = dtype_name(program.type(stage.a).dtype);
      whole(stage.a, work_.read_bytes);
      whole(stage.b, work_.read_bytes);
      whole(stage.out, work_.written_bytes);
    }
  }

  const Executable& exe_;
  const Profile& profile_;
  Work work_;
};

}  // namespace

std::vector<Work> work(const Executable& executable, const Profile& profile) {
  Counter counter(executable, profile);
  std::vector<Work> result;
  for (const HostStep& step : executable.steps()) result.push_back(counter.count(step));
  return result;
}

void Executable::set_profiled(bool on) noexcept {
  profiled_.store(on, std::memory_order_relaxed);
  for (const Nest& nest : nests_) {
    for (const Part& part : nest.parts) part.executable->set_profiled(on);
  }
  if (on) return;
  const std::lock_guard lock(mutex_);
  profile_.reset();
}

std::optional<Profile> Executable::profile() {
  const std::lock_guard lock(mutex_);
  return profile_ ? std::optional(*profile_) : std::nullopt;
}

}  // namespace tilevm::host
