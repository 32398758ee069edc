// Operators with where they run, decisions, memory, and what a call took.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/explain.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

using Kind = fuse::Step::Kind;

template <class Index>
std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

constexpr int kNowhere = -1;

// By operator: the kernel that computes it, and the step that runs it.
struct Places {
  std::vector<int> kernel, step;
};

Places places(const host::Executable& exe) {
  const Program& program = exe.plan().program;
  const std::size_t n = program.nodes.size();
  Places result{std::vector<int>(n, kNowhere), std::vector<int>(n, kNowhere)};
  for (std::size_t k = 0; k < exe.kernels().size(); ++k) {
    for (const std::int32_t node : exe.kernels()[k].graph().from)
      result.kernel[at(node)] = static_cast<int>(k);
  }
  std::vector<int> step_of_kernel(exe.kernels().size(), kNowhere);
  const auto made = [&](ValueId value, int step) {
    const std::int32_t node = program.values[at(value)].node;
    if (node >= 0) result.step[at(node)] = step;
  };
  for (std::size_t s = 0; s < exe.steps().size(); ++s) {
    const host::HostStep& step = exe.steps()[s];
    const int here = static_cast<int>(s);
    if (step.kind == Kind::kKernel) step_of_kernel[at(step.kernel)] = here;
    if (step.kind == Kind::kView || step.kind == Kind::kReshape) made(step.out, here);
    if (step.kind == Kind::kLoop) result.step[at(step.node)] = here;
    if (step.kind == Kind::kCall) {
      for (int r = 0; r < step.n_out; ++r) made(step.out + r, here);
    }
    if (step.kind != Kind::kChain) continue;
    for (const auto& stage : exe.plan().chains[at(step.chain)].stages) {
      if (stage.kernel >= 0) {
        step_of_kernel[at(stage.kernel)] = here;
      } else {
        made(stage.out, here);
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (result.kernel[i] >= 0) result.step[i] = step_of_kernel[at(result.kernel[i])];
  }
  return result;
}

nb::list numbers(std::span<const ValueId> values) {
  nb::list result;
  for (const ValueId v : values) result.append(v);
  return result;
}

}  // namespace

nb::list plan_symbols(const Program& program) {
  nb::list result;
  for (const SizeId symbol : program.sizes.symbols()) {
    const shape::Range range = program.sizes.range(symbol);
    const std::string name(program.sizes.symbol_name(symbol));
    result.append(nb::make_tuple(name, range.min, range.max, range.multiple_of));
  }
  return result;
}

nb::list plan_operators(const host::Executable& exe) {
  const Program& program = exe.plan().program;
  const Places where = places(exe);
  nb::list result;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    nb::list types, values;
    for (int r = 0; r < node.n_out; ++r) {
      types.append(print(program.sizes, program.type(node.out + r)));
      values.append(node.out + r);
    }
    nb::dict row;
    row["op"] = info(node.op).name;
    row["text"] = print(program, node);
    row["inputs"] = numbers(std::span(node.inputs.begin(), node.inputs.end()));
    row["values"] = values;
    row["types"] = types;
    row["line"] = program.line_of(node.line);
    row["kernel"] = where.kernel[i];
    row["step"] = where.step[i];
    result.append(row);
  }
  return result;
}

nb::dict plan_interface(const host::Executable& exe) {
  const Program& program = exe.plan().program;
  nb::list inputs, outputs, checks;
  for (const ValueId v : program.inputs)
    inputs.append(nb::make_tuple(v, print(program.sizes, program.type(v))));
  for (const ValueId v : program.outputs)
    outputs.append(nb::make_tuple(v, print(program.sizes, program.type(v))));
  for (const Check& check : program.checks)
    checks.append(program.sizes.print(check.a) + " == " + program.sizes.print(check.b));
  nb::dict result;
  result["inputs"] = inputs;
  result["outputs"] = outputs;
  result["checks"] = checks;
  return result;
}

nb::list plan_decisions(const host::Executable& exe) {
  const Program& program = exe.plan().program;
  nb::list result;
  for (const fuse::Decision& decision : exe.plan().decisions) {
    nb::dict row;
    row["value"] = decision.value;
    row["type"] = print(program.sizes, program.type(decision.value));
    row["maker"] = program.values[at(decision.value)].node;
    row["reader"] = decision.reader;
    row["reason"] = fuse::reason(decision.why);
    row["fact"] = fuse::fact(program, decision.why);
    result.append(row);
  }
  return result;
}

nb::dict plan_memory(const host::Executable& exe) {
  const Program& program = exe.plan().program;
  const host::ArenaPlan& arena = exe.arena();
  nb::list buffers, places;
  for (const host::Lifetime& life : arena.lives) {
    nb::dict row;
    row["value"] = life.value;
    row["type"] = print(program.sizes, program.type(life.value));
    row["size"] = program.sizes.print(life.bytes);
    row["place"] = arena.buffer_of[at(life.value)];
    row["over"] = life.over;
    row["first"] = life.first;
    row["last"] = life.last;
    buffers.append(row);
  }
  for (const host::Placed& placed : arena.buffers) {
    nb::dict row;
    row["stage"] = placed.stage;
    nb::list below;
    for (const std::int32_t place : placed.below) below.append(place);
    row["below"] = below;
    places.append(row);
  }
  nb::dict result;
  result["alignment"] = exec::kAlignment;
  result["buffers"] = buffers;
  result["places"] = places;
  return result;
}

namespace {

// What the parts of steps took when they last ran, in the order of `explained`; None: they have
// not.
nb::list part_rows(const host::Executable& exe) {
  nb::list result;
  for (const host::HostStep& step : exe.steps()) {
    if (step.nest < 0) continue;
    for (const host::Part& part : exe.nests()[at(step.nest)].parts) {
      const std::optional<host::Profile> last = part.executable->profile();
      result.append(last ? nb::object(profile_row(*part.executable, *last)) : nb::none());
    }
  }
  return result;
}

}  // namespace

nb::dict profile_row(const host::Executable& exe, const host::Profile& profile) {
  const Program& program = exe.plan().program;
  nb::list steps;
  const std::vector<host::Work> works = host::work(exe, profile);
  for (std::size_t s = 0; s < works.size(); ++s) {
    const host::Work& work = works[s];
    nb::dict operations;
    for (const auto& [name, elements] : work.operations) operations[name.c_str()] = elements;
    nb::dict row;
    row["ns"] = profile.steps_ns[s];
    row["read_bytes"] = work.read_bytes;
    row["written_bytes"] = work.written_bytes;
    row["flops"] = work.flops;
    row["factors"] = work.factors;
    row["operations"] = operations;
    steps.append(row);
  }
  nb::dict sizes;
  for (const SizeId symbol : program.sizes.symbols()) {
    const std::string key(program.sizes.symbol_name(symbol));
    sizes[key.c_str()] = profile.sizes[at(symbol)];
  }
  nb::list places;
  for (const host::Placed& placed : exe.arena().buffers)
    places.append(profile.sizes[at(placed.bytes)]);
  nb::dict result;
  result["begin_ns"] = profile.begin_ns;
  result["end_ns"] = profile.end_ns;
  result["steps"] = steps;
  result["sizes"] = sizes;
  result["places"] = places;
  result["parts"] = part_rows(exe);
  return result;
}

}  // namespace tilevm::bind
