#include <algorithm>
#include <bit>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;

bool is_call(const Node& node) {
  return kOps[static_cast<std::size_t>(node.op)].cls == OpClass::kCall;
}

}  // namespace

// A value that is no view is a group; views belong to the group of what they look at.
void set_groups(const Program& program, Options& options) {
  const auto group = [&](ValueId value) {
    for (;;) {
      const std::int32_t node = program.values[static_cast<std::size_t>(value)].node;
      if (node < 0) return value;
      const Node& n = program.nodes[static_cast<std::size_t>(node)];
      if (kOps[static_cast<std::size_t>(n.op)].cls != OpClass::kView) return value;
      value = n.inputs[0];
    }
  };
  for (const ValueId input : program.inputs) options.input_groups.push_back(input);
  for (const ValueId output : program.outputs) options.output_groups.push_back(group(output));
}

namespace {

// The source line of the first operator that has one.
std::string first_line(const Program& program, const fuse::KernelGraph& graph) {
  for (const fuse::KernelNode& node : graph.nodes) {
    const std::string line = program.line_of(node.line);
    if (!line.empty()) return line;
  }
  return {};
}

}  // namespace

Executable::Executable(fuse::Plan plan, const Options& options, Framework& framework)
    : plan_(std::move(plan)),
      framework_(framework),
      constants_(framework),
      tier_(options.settings.tier) {
  kernels_.reserve(plan_.kernels.size());
  for (fuse::KernelGraph& graph : plan_.kernels) {
    most_operands_ = std::max(most_operands_, graph.operands.size());
    std::string where = first_line(plan_.program, graph);
    kernels_.emplace_back(std::move(graph), std::move(where), options.settings);
  }
  plan_.kernels.clear();
  for (std::size_t i = 0; i < n_inputs(); ++i) names_.push_back(input_name(options, i));
  compile_inputs(options);
  compile_complex(options);
  frozen_.resize(plan_.program.values.size());
  for (const int input : options.frozen) {
    if (input < 0 || static_cast<std::size_t>(input) >= n_inputs())
      throw ShapeError("frozen: there is no input " + std::to_string(input));
    frozen_[index(plan_.program.inputs[static_cast<std::size_t>(input)])] = true;
  }
  if (!options.frozen.empty()) packings_.resize(plan_.program.values.size());
  nested_ = options.nested;
  held_.assign(n_outputs(), false);
  order_steps();
  compile_steps();
  compile_nests(options);
  compile_orders(options);
  compile_targets(options);
  scatter_in_place();
  find_dense_reshapes();
  separate_outputs(options);
  compile_memory();
  compile_complex_results();
  compile_sizes();
  compile_tapes(options);
  asks_pieces_ = exec::gemm::tiles().units != nullptr && multiplies_float32();
}

Executable::~Executable() { delete spare_.load(); }

bool Executable::multiplies_float32() const {
  const auto is_float32 = [&](ValueId v) { return plan_.program.type(v).dtype == DType::kFloat32; };
  for (const fuse::Chain& chain : plan_.chains) {
    for (const fuse::Chain::Stage& stage : chain.stages)
      if (stage.kernel < 0 && is_float32(stage.a) && is_float32(stage.b)) return true;
  }
  return false;
}

std::string Executable::input_name(const Options& options, std::size_t i) const {
  if (i < options.input_names.size()) return "input '" + options.input_names[i] + "'";
  return "input " + std::to_string(i);
}

Source Executable::source_of(ValueId value) {
  const Program& program = plan_.program;
  const Value& v = program.values[index(value)];
  Source source;
  source.value = value;
  if (!v.type.weak) return source;
  if (v.node < 0 && !nested_) {
    source.kind = Source::Kind::kInput;
    return source;
  }
  const auto storage = [&] {
    return v.type.dtype == DType::kBool    ? bytecode::Storage::kB8
           : v.type.dtype == DType::kInt64 ? bytecode::Storage::kI64
                                           : bytecode::Storage::kF64;
  };
  if (v.node < 0) {
    source.kind = Source::Kind::kNumber;
    source.storage = storage();
    return source;
  }
  const Node& node = program.nodes[static_cast<std::size_t>(v.node)];
  if (node.op == Op::size_value) {
    source.kind = Source::Kind::kSize;
    source.size = node.attrs[0].sizes[0];
  } else if (node.op == Op::scalar) {
    const Attr& attr = node.attrs[0];
    source.kind = Source::Kind::kConstant;
    source.bits = attr.number_kind == Attr::NumberKind::kFloat
                      ? std::bit_cast<std::int64_t>(attr.number)
                      : attr.integer;
    source.constant = constants_.keep([&] {
      return attr.number_kind == Attr::NumberKind::kInt ? framework_.from_integer(attr.integer)
             : attr.number_kind == Attr::NumberKind::kBool
                 ? framework_.from_boolean(attr.integer != 0)
                 : framework_.from_real(attr.number);
    });
  } else if (!is_call(node)) {
    source.kind = Source::Kind::kNumber;
    source.storage = number_storage_[index(value)];
  } else if (node.op == Op::call && node.attrs[0].ints[0] == kItemTarget) {
    source.kind = Source::Kind::kNumber;
    source.storage = storage();
  }
  return source;
}

// Resolves the plan's steps, and for each value the buffers it may lie in.
void Executable::compile_steps() {
  const Program& program = plan_.program;
  roots_.resize(program.values.size());
  is_panel_.resize(program.values.size());
  for (const fuse::Chain& chain : plan_.chains) {
    for (const ValueId v : chain.panels) is_panel_[index(v)] = !chain.stages.empty();
  }
  number_storage_.resize(program.values.size(), bytecode::Storage::kI64);
  for (const schedule::Kernel& kernel : kernels_) {
    for (const fuse::OperandRef& operand : kernel.graph().operands) {
      if (operand.role == bytecode::Role::kOutput && operand.value >= 0) {
        number_storage_[index(operand.value)] = operand.storage;
      }
    }
  }
  for (const ValueId input : program.inputs) roots_[index(input)] = {input};
  for (const fuse::Step& from : plan_.steps) {
    HostStep& step = steps_.emplace_back();
    step.kind = from.kind;
    step.in = from.in;
    step.out = from.out;
    step.kernel = from.kernel;
    step.axis = from.axis;
    step.offset = from.offset;
    step.chain = from.chain;
    if (from.kind == Kind::kLoop) step.node = from.node;
    if (from.out >= 0) {
      // Of tensors that only call-outs understand, addresses count elements.
      const DType dtype = program.type(from.out).dtype;
      step.item_bytes = dtype == DType::kOpaque ? 1 : dtype_bytes(dtype);
    }
    switch (from.kind) {
      case Kind::kAlloc:
        roots_[index(from.out)] = {from.out};
        break;
      case Kind::kView:
        step.view = make_view(program, program.nodes[static_cast<std::size_t>(from.node)]);
        roots_[index(from.out)] = roots_[index(from.in)];
        break;
      case Kind::kReshape: {
        const Shape& shape = program.type(from.out).shape;
        step.view.op = Op::reshape;
        step.view.sizes.assign(shape.span().begin(), shape.span().end());
        roots_[index(from.out)] = roots_[index(from.in)];
        roots_[index(from.out)].push_back(from.out);
        break;
      }
      case Kind::kSlice:
        roots_[index(from.out)] = roots_[index(from.in)];
        break;
      case Kind::kKernel:
      case Kind::kChain:
      case Kind::kLoop:
        break;
      case Kind::kCall: {
        const Node& node = program.nodes[static_cast<std::size_t>(from.node)];
        step.target = node.op == Op::matmul ? kMatmulTarget : node.attrs[0].ints[0];
        step.out = node.out;
        step.n_out = node.n_out;
        for (const ValueId in : node.inputs) step.args.push_back(source_of(in));
        for (int i = 0; i < node.n_out; ++i) {
          roots_[index(node.out + i)] = {node.out + i};
          step.names.push_back("result " + std::to_string(i) + " of the call-out at step " +
                               std::to_string(steps_.size() - 1));
        }
        most_args_ =
            std::max({most_args_, node.inputs.size(), static_cast<std::size_t>(node.n_out)});
        break;
      }
    }
  }
  for (const ValueId output : program.outputs) outputs_.push_back(source_of(output));
}

Executable::Uses Executable::count_uses() const {
  Uses uses;
  std::vector<int>& readers = uses.readers;
  readers.resize(plan_.program.values.size());
  uses.made_by.resize(plan_.program.values.size());
  for (const HostStep& step : steps_) {
    if (step.in >= 0) ++readers[index(step.in)];
    if (step.out >= 0) uses.made_by[index(step.out)] = &step;
    for (const Source& arg : step.args) {
      if (arg.value >= 0) ++readers[index(arg.value)];
    }
    visit_operands(step, [&](ValueId value, bool written) {
      if (!written) ++readers[index(value)];
    });
  }
  for (const Source& output : outputs_) {
    if (output.value >= 0) ++readers[index(output.value)];
  }
  return uses;
}

// Which outputs are written to inputs.
void Executable::compile_targets(const Options& options) {
  const Program& program = plan_.program;
  targets_.assign(outputs_.size(), -1);
  for (std::size_t o = 0; o < std::min(outputs_.size(), options.targets.size()); ++o) {
    const int input = options.targets[o];
    if (input < 0) continue;
    if (static_cast<std::size_t>(input) >= n_inputs())
      throw ShapeError("targets: there is no input " + std::to_string(input));
    const ValueId target = program.inputs[static_cast<std::size_t>(input)];
    const Type &to = program.type(target), &from = program.type(outputs_[o].value);
    if (to.weak || from.weak || to.dtype != from.dtype || to.shape.rank != from.shape.rank)
      throw ShapeError("targets: output " + std::to_string(o) + " is no tensor like " +
                       names_[static_cast<std::size_t>(input)]);
    targets_[o] = target;
    writes_ = true;
  }
  refuses_shared_ = writes_ && options.apart;
}

void Executable::separate_outputs(const Options& options) {
  separate_.assign(outputs_.size(), Separate::kNo);
  whole_ = options.whole_outputs;
  whole_.resize(outputs_.size(), false);
  is_input_.assign(plan_.program.values.size(), false);
  for (const ValueId input : plan_.program.inputs) is_input_[index(input)] = true;
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (targets_[o] < 0 || outputs_[o].kind != Source::Kind::kTensor) continue;
    // Else it would be read when the memory of inputs has changed already.
    if (std::ranges::any_of(roots_[index(outputs_[o].value)],
                            [&](ValueId root) { return is_input_[index(root)]; }))
      separate_[o] = Separate::kFromInputs;
  }
  if (options.output_groups.empty()) return;
  constexpr std::int32_t kFree = -1, kNested = -2;  // and below: each output a group of its own
  std::vector<std::int32_t> group_of(plan_.program.values.size(), kFree);
  for (std::size_t i = 0; i < n_inputs(); ++i) {
    group_of[index(plan_.program.inputs[i])] = options.input_groups[i];
  }
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (outputs_[o].kind != Source::Kind::kTensor) continue;
    const std::int32_t group =
        nested_ ? kNested - static_cast<std::int32_t>(o) : options.output_groups[o];
    const std::vector<ValueId>& roots = roots_[index(outputs_[o].value)];
    for (const ValueId root : roots) {
      const std::int32_t taken = group_of[index(root)];
      if (taken == kFree || taken == group) continue;
      separate_[o] = is_input_[index(root)] ? std::max(separate_[o], Separate::kFromInputs)
                                            : Separate::kAlways;
    }
    if (separate_[o] == Separate::kAlways) continue;
    for (const ValueId root : roots) {
      if (separate_[o] == Separate::kNo || !is_input_[index(root)]) group_of[index(root)] = group;
    }
  }
}

// Which inputs and outputs are complex outside.
void Executable::compile_complex(const Options& options) {
  complex_of_.assign(plan_.program.values.size(), -1);
  complex_.assign(n_outputs(), false);
  const auto check = [](int place, std::size_t n) {
    if (place < 0 || static_cast<std::size_t>(place) >= n)
      throw ShapeError("complex: there is no input or output " + std::to_string(place));
  };
  for (const int input : options.complex_inputs) {
    check(input, n_inputs());
    const ValueId value = plan_.program.inputs[static_cast<std::size_t>(input)];
    complex_of_[index(value)] = input;
    holders_.push_back(value);
  }
  for (const int output : options.complex_outputs) {
    check(output, n_outputs());
    complex_[static_cast<std::size_t>(output)] = true;
  }
}

// Results that nobody takes as pairs are complex tensors from the start.
void Executable::compile_complex_results() {
  const Program& program = plan_.program;
  made_complex_.assign(program.values.size(), false);
  if (std::ranges::find(complex_, true) == complex_.end()) return;
  const auto lies_in = [&](ValueId value, ValueId root) {
    return std::ranges::find(roots_[index(value)], root) != roots_[index(value)].end();
  };
  const auto is_argument = [&](ValueId root) {
    return std::ranges::any_of(steps_, [&](const HostStep& step) {
      return std::ranges::any_of(step.args, [&](const Source& arg) {
        return arg.kind == Source::Kind::kTensor && lies_in(arg.value, root);
      });
    });
  };
  for (const HostStep& step : steps_) {
    if (!step.owned) continue;
    const int last = program.type(step.out).shape.rank - 1;
    bool all = step.follows < 0 &&
               (step.order < 0 || orders_[static_cast<std::size_t>(step.order)].back() == last);
    for (std::size_t o = 0; o < outputs_.size() && all; ++o) {
      if (outputs_[o].kind != Source::Kind::kTensor || !lies_in(outputs_[o].value, step.out))
        continue;
      all = complex_[o] && targets_[o] < 0 && outputs_[o].value == step.out;
    }
    made_complex_[index(step.out)] = all && !is_argument(step.out);
  }
}

// Symbols that inputs bind.
void Executable::compile_inputs(const Options& options) {
  Program& program = plan_.program;
  std::vector<Arrival> arrivals;
  for (std::size_t i = 0; i < n_inputs(); ++i) {
    if (!program.type(program.inputs[i]).weak) arrivals.push_back({program.inputs[i], names_[i]});
  }
  std::vector<IntSymbol> ints;
  for (const auto& [input, symbol] : options.int_symbols) {
    const auto i = static_cast<std::size_t>(input);
    if (input < 0 || i >= n_inputs()) {
      throw ShapeError("int_symbols: there is no input " + std::to_string(input));
    }
    const Type& type = program.type(program.inputs[i]);
    if (!type.weak || type.dtype != DType::kInt64) {
      throw ShapeError("int_symbols: " + names_[i] + " is not a Python int");
    }
    ints.push_back({program.inputs[i], program.sizes.symbol(symbol), names_[i]});
  }
  sizes_.add_stage(program, arrivals, ints);
}

namespace {

// What sizes may be, by register: to plan for, not to rely on.
std::vector<std::int64_t> typical_sizes(const shape::SizeTable& sizes,
                                        std::span<const SizeId> wanted) {
  constexpr std::int64_t kTypical = 128;
  std::vector<std::int64_t> regs(static_cast<std::size_t>(sizes.count()));
  for (const SizeId symbol : sizes.symbols()) {
    const shape::Range range = sizes.range(symbol);
    regs[static_cast<std::size_t>(symbol)] = std::clamp(kTypical, range.min, range.max);
  }
  shape::evaluate(sizes.compile(wanted), regs);
  return regs;
}

}  // namespace

// Sizes that anything needs, in stages; then the arena, which needs to know the stages.
void Executable::compile_sizes() {
  Program& program = plan_.program;
  std::vector<Arrival> arrivals;
  for (HostStep& step : steps_) {
    if (step.kind != Kind::kCall) continue;
    arrivals.clear();
    for (int r = 0; r < step.n_out; ++r) {
      const Type& type = program.type(step.out + r);
      if (type.weak || type.shape.rank == 0) continue;
      arrivals.push_back({step.out + r, step.names[static_cast<std::size_t>(r)]});
    }
    if (!arrivals.empty()) step.stage = sizes_.add_stage(program, arrivals);
  }

  std::vector<SizeId> wanted;
  const auto want = [&](SizeId size) {
    if (size != shape::kNoSize) wanted.push_back(size);
  };
  const auto want_source = [&](const Source& source) {
    if (source.kind == Source::Kind::kSize) want(source.size);
  };
  for (const HostStep& step : steps_) {
    for (const SizeId size : step.view.sizes) want(size);
    want(step.offset);
    for (const Source& arg : step.args) want_source(arg);
    if (step.out < 0 || step.kind == Kind::kCall) continue;
    for (const SizeId size : program.type(step.out).shape.span()) want(size);
  }
  for (const HostStep& step : steps_) {
    if (step.kind != Kind::kChain) continue;
    visit_operands(step, [&](ValueId value, bool) {
      for (const SizeId size : program.type(value).shape.span()) want(size);
    });
  }
  for (const Source& output : outputs_) want_source(output);
  for (const schedule::Kernel& kernel : kernels_) {
    for (const SizeId size : kernel.graph().axes) want(size);
    for (const fuse::OperandRef& operand : kernel.graph().operands) {
      want(operand.size);
      want(operand.start);
      want(operand.step);
    }
  }
  for (const Lifetime& life : lifetimes_) want(life.bytes);
  sizes_.compile(program, wanted);
  for (Lifetime& life : lifetimes_) life.stage = sizes_.stage_of(life.bytes);
  check_stages();
  arena_ = plan_arena(lifetimes_, typical_sizes(program.sizes, wanted), program.values.size());
  lifetimes_.clear();
}

// No step may read a size before it is known.
void Executable::check_stages() const {
  int reached = 0;
  const auto check = [&](SizeId size) {
    if (size == shape::kNoSize || sizes_.stage_of(size) <= reached) return;
    throw InternalError("size " + plan_.program.sizes.print(size) +
                        " is used before the call-out that brings it");
  };
  for (const HostStep& step : steps_) {
    for (const SizeId size : step.view.sizes) check(size);
    check(step.offset);
    for (const Source& arg : step.args) {
      if (arg.kind == Source::Kind::kSize) check(arg.size);
    }
    if (step.out >= 0 && step.kind != Kind::kCall) {
      for (const SizeId size : plan_.program.type(step.out).shape.span()) check(size);
    }
    if (step.kind == Kind::kChain) {
      visit_operands(step, [&](ValueId value, bool) {
        for (const SizeId size : plan_.program.type(value).shape.span()) check(size);
      });
    }
    visit_kernels(step, [&](int kernel) {
      const fuse::KernelGraph& graph = kernels_[static_cast<std::size_t>(kernel)].graph();
      for (const SizeId size : graph.axes) check(size);
      for (const fuse::OperandRef& operand : graph.operands) {
        check(operand.size);
        check(operand.start);
        check(operand.step);
      }
    });
    reached = std::max(reached, step.stage);
  }
}

}  // namespace tilevm::host
