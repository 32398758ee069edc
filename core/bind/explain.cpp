// What a compiled program says about itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <charconv>

#include "bind/executable.h"
#include "bind/explain.h"
#include "bytecode/bytecode.h"
#include "bytecode/text.h"
#include "isa.gen.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

using Kind = fuse::Step::Kind;

host::Executable& executable(PyObject* self) {
  return *reinterpret_cast<ExecutableObject*>(self)->executable;
}

const PythonFramework& framework(PyObject* self) {
  return *reinterpret_cast<ExecutableObject*>(self)->framework;
}

const char* kind_name(const host::Executable& exe, const host::HostStep& step) {
  switch (step.kind) {
    case Kind::kAlloc:
      return "alloc";
    case Kind::kView:
      return "view";
    case Kind::kReshape:
      return "reshape";
    case Kind::kSlice:
      return "slice";
    case Kind::kKernel:
      return "kernel";
    case Kind::kChain:
      return "chain";
    case Kind::kLoop:
      return "loop";
    case Kind::kCall:
      if (step.nest < 0) return "call";
      return exe.nests()[static_cast<std::size_t>(step.nest)].kind == host::Nest::Kind::kBranch
                 ? "branch"
                 : "repeat";
  }
  return "?";
}

const PythonFramework& framework(const host::Executable& exe) {
  return static_cast<const PythonFramework&>(exe.framework());
}

// Values that a kernel reads or writes.
std::vector<ValueId> operands(const fuse::KernelGraph& graph, bool outputs) {
  std::vector<ValueId> values;
  for (const fuse::OperandRef& operand : graph.operands) {
    if (operand.value >= 0 && (operand.role == bytecode::Role::kOutput) == outputs) {
      values.push_back(operand.value);
    }
  }
  return values;
}

std::string join(const Program& program, const std::vector<ValueId>& values) {
  std::string text;
  for (const ValueId value : values) text += (text.empty() ? "" : ", ") + typed(program, value);
  return text;
}

// The stages, one a line; what one stage makes of some rows, the next finds in the cache.
std::string chain_text(host::Executable& exe, int which) {
  const Program& program = exe.plan().program;
  const fuse::Chain& chain = exe.plan().chains[static_cast<std::size_t>(which)];
  std::string text = "chain over rows [";
  for (const SizeId size : chain.rows)
    text += (text.back() == '[' ? "" : ", ") + program.sizes.print(size);
  text += "]";
  if (chain.grouped >= 0)
    text += ", in groups that end at " + typed(program, fuse::ends_of_groups(program, chain));
  for (const fuse::Chain::Stage& stage : chain.stages) {
    text += "\n      ";
    if (stage.kernel < 0) {
      text += typed(program, stage.out) + " = product of " + typed(program, stage.a) + " and " +
              typed(program, stage.b);
      continue;
    }
    const fuse::KernelGraph& graph = exe.kernels()[static_cast<std::size_t>(stage.kernel)].graph();
    text += join(program, operands(graph, true)) + " = kernel " + graph.name + "(" +
            join(program, operands(graph, false)) + ")";
  }
  if (chain.causal >= 0) text += "\n      causal: without the columns that come later than all rows";
  for (const std::string& way : exe.ways(which)) text += "\n      last: " + way;
  return text;
}

std::string step_text(host::Executable& exe, const PythonFramework* python,
                      const host::HostStep& step) {
  const Program& program = exe.plan().program;
  switch (step.kind) {
    case Kind::kAlloc: {
      std::string where = "the framework's";
      if (!step.owned) {
        const std::int32_t buffer = exe.arena().buffer_of[static_cast<std::size_t>(step.out)];
        where = "buffer " + std::to_string(buffer) + " of the arena";
      }
      if (step.held >= 0) where = "memory of its own";
      if (step.place >= 0) where = "in the place of %" + std::to_string(step.place);
      return typed(program, step.out) + " = alloc, " + where;
    }
    case Kind::kView:
      return typed(program, step.out) + " = " + kOps[static_cast<std::size_t>(step.view.op)].name +
             " " + name(step.in) + ", a view";
    case Kind::kReshape:
      return typed(program, step.out) + " = reshape " + name(step.in) +
             ", a view where its strides allow one";
    case Kind::kSlice:
      return typed(program, step.out) + " = part of " + name(step.in) + " on axis " +
             std::to_string(step.axis) + " from " + program.sizes.print(step.offset);
    case Kind::kKernel: {
      const fuse::KernelGraph& graph = exe.kernels()[static_cast<std::size_t>(step.kernel)].graph();
      return join(program, operands(graph, true)) + " = kernel " + graph.name + "(" +
             join(program, operands(graph, false)) + ")";
    }
    case Kind::kChain:
      return chain_text(exe, step.chain);
    case Kind::kLoop: {
      const Node& node = program.nodes[static_cast<std::size_t>(step.node)];
      return typed(program, node.out) + " = loop " + print(program, node);
    }
    case Kind::kCall: {
      std::vector<ValueId> results, args;
      for (int r = 0; r < step.n_out; ++r) results.push_back(step.out + r);
      for (const host::Source& arg : step.args) args.push_back(arg.value);
      return join(program, results) + " = " + kind_name(exe, step) + " " +
             python->target_name(step.target) + "(" + join(program, args) + ")";
    }
  }
  return "?";
}

nb::list kernels_of(const host::Executable& exe, const host::HostStep& step) {
  nb::list result;
  if (step.kernel >= 0) result.append(step.kernel);
  if (step.kind != Kind::kChain) return result;
  for (const auto& stage : exe.plan().chains[static_cast<std::size_t>(step.chain)].stages) {
    if (stage.kernel >= 0) result.append(stage.kernel);
  }
  return result;
}

nb::list step_rows(host::Executable& exe, const PythonFramework* python) {
  const Program& program = exe.plan().program;
  nb::list result;
  for (const host::HostStep& step : exe.steps()) {
    nb::dict row;
    row["kind"] = kind_name(exe, step);
    row["text"] = step_text(exe, python, step);
    row["name"] = "";
    row["kernels"] = kernels_of(exe, step);
    row["ways"] = nb::list();
    if (step.kind == Kind::kChain) {
      for (const std::string& way : exe.ways(step.chain)) row["ways"].attr("append")(way.c_str());
    }
    if (step.kind == Kind::kKernel || (step.kind == Kind::kReshape && step.kernel >= 0)) {
      row["kernel"] = step.kernel;
      row["name"] = exe.kernels()[static_cast<std::size_t>(step.kernel)].graph().name;
    } else if (step.kind == Kind::kLoop) {
      const Node& node = program.nodes[static_cast<std::size_t>(step.node)];
      row["name"] = std::string(info(node.op).name).c_str();
    } else if (step.kind == Kind::kCall) {
      row["name"] = python->target_name(step.target);
    }
    nb::list shapes;
    for (int r = 0; step.out >= 0 && r < std::max(1, step.n_out); ++r) {
      shapes.append(print(program.sizes, program.type(step.out + r)));
    }
    row["shapes"] = shapes;
    result.append(row);
  }
  return result;
}

const char* node_kind(fuse::KernelNode::Kind kind) {
  constexpr const char* names[] = {"load", "gather", "iota", "const", "map", "fold", "store"};
  return names[static_cast<std::size_t>(kind)];
}

std::string node_text(const fuse::KernelGraph& graph, std::size_t i) {
  const fuse::KernelNode& node = graph.nodes[i];
  std::string text = "n" + std::to_string(i) + " = ";
  text += node.kind == fuse::KernelNode::Kind::kConst
              ? "const " + bytecode::imm_text(node.type, node.imm)
              : std::string(bytecode::kIsa[node.instr].name);
  for (const std::int32_t in : node.in) {
    if (in >= 0) text += " n" + std::to_string(in);
  }
  if (node.operand >= 0) {
    const ValueId value = graph.operands[static_cast<std::size_t>(node.operand)].value;
    text += " [" + (value >= 0 ? name(value) : "m" + std::to_string(node.operand)) + "]";
  }
  text += "  axes:";
  for (std::size_t a = 0; a < graph.axes.size(); ++a) {
    if ((node.axes >> a & 1) != 0) text += " " + std::to_string(a);
  }
  return text;
}

// The kernel knows lines by their index in the program.
std::vector<std::string> source_lines(const Program& program, std::vector<std::string> lines) {
  for (std::string& line : lines) {
    std::size_t index = 0;
    const char* end = line.data() + line.size();
    const auto read = std::from_chars(line.data(), end, index);
    if (read.ec == std::errc() && read.ptr == end && index < program.lines.size()) {
      line = program.lines[index];
    }
  }
  return lines;
}

// (kind, offset, instruction, text) of each line of the machine code.
nb::list assembly(const schedule::Kernel::VariantInfo& variant) {
  constexpr const char* kinds[] = {"begin", "end", "instruction", "host", "data"};
  nb::list result;
  for (const exec::native::Line& line :
       exec::native::list(variant.bytes, variant.target, variant.streams)) {
    const char* kind = kinds[static_cast<std::size_t>(line.kind)];
    result.append(nb::make_tuple(kind, line.offset, line.instruction, line.text));
  }
  return result;
}

// with_assembly: emits every variant anew for it.
nb::list kernel_rows(const host::Executable& exe, bool with_assembly) {
  const Program& program = exe.plan().program;
  nb::list result;
  for (const schedule::Kernel& kernel : exe.kernels()) {
    const fuse::KernelGraph& graph = kernel.graph();
    nb::list axes;
    nb::list from;
    for (const std::int32_t node : graph.from) from.append(node);
    for (std::size_t a = 0; a < graph.axes.size(); ++a) {
      const bool reduced = (graph.reduced >> a & 1) != 0;
      axes.append(program.sizes.print(graph.axes[a]) + (reduced ? " (reduced)" : ""));
    }
    nb::list nodes;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      std::string text = node_text(graph, i);
      const std::string line = program.line_of(graph.nodes[i].line);
      if (!line.empty()) text += "  ; " + line;
      nodes.append(std::string(node_kind(graph.nodes[i].kind)) + " " + text);
    }
    nb::list variants;
    for (const schedule::Kernel::VariantInfo& variant : kernel.variants()) {
      nb::dict row;
      row["layout"] = variant.layout;
      row["tier"] = variant.tier;
      row["why_interp"] = variant.why_interp;
      row["disassembly"] =
          bytecode::disassemble(variant.bytes, source_lines(program, variant.lines));
      row["bytes"] = nb::bytes(variant.bytes.data(), variant.bytes.size());
      row["launches"] = variant.launches;
      row["compile_us"] = static_cast<double>(variant.compile_ns) / 1e3;
      if (with_assembly) row["assembly"] = assembly(variant);
      variants.append(row);
    }
    nb::dict row;
    row["name"] = graph.name;
    row["axes"] = axes;
    row["nodes"] = nodes;
    row["operators"] = from;
    row["variants"] = variants;
    result.append(row);
  }
  return result;
}

nb::list steps(PyObject* self) { return step_rows(executable(self), &framework(self)); }
nb::list kernels(PyObject* self) { return kernel_rows(executable(self), false); }

nb::object profile(PyObject* self) {
  const std::optional<host::Profile> last = executable(self).profile();
  if (!last) return nb::none();
  return profile_row(executable(self), *last);
}

nb::str plan_text(PyObject* self) {
  host::Executable& exe = executable(self);
  std::string text = print(exe.plan().program) + "\nsteps:\n";
  for (const host::HostStep& step : exe.steps()) {
    text += "  " + step_text(exe, &framework(self), step) + "\n";
  }
  return nb::str(text.c_str());
}

void add_callouts(const host::Executable& exe, nb::list& result) {
  const Program& program = exe.plan().program;
  for (const host::HostStep& step : exe.steps()) {
    if (step.kind != Kind::kCall || step.target == kItemTarget) continue;
    if (step.nest >= 0) {
      const host::Nest& nest = exe.nests()[static_cast<std::size_t>(step.nest)];
      for (const host::Part& part : nest.parts) add_callouts(*part.executable, result);
      continue;
    }
    if (!framework(exe).is_callout(step.target)) continue;
    const std::int32_t made = program.values[static_cast<std::size_t>(step.out)].node;
    const Node& node = program.nodes[static_cast<std::size_t>(made)];
    result.append(
        nb::make_tuple(framework(exe).target_name(step.target), program.line_of(node.line)));
  }
}

// (name, source line) of each call-out, in order, with those of graphs inside.
nb::list callouts(PyObject* self) {
  nb::list result;
  add_callouts(executable(self), result);
  return result;
}

// Text, (name, min, max, multiple_of) of each symbol, sources of the call-outs' targets.
nb::tuple program(PyObject* self) {
  const Program& p = executable(self).plan().program;
  nb::list targets;
  for (std::size_t i = 0; i < framework(self).n_targets(); ++i) {
    targets.append(framework(self).target_source(i));
  }
  return nb::make_tuple(print(p), plan_symbols(p), targets);
}

PyObject* set_profiled(PyObject* self, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  executable(self).set_profiled(wanted != 0);
  Py_RETURN_NONE;
}

template <auto method>
PyObject* guarded(PyObject* self, PyObject*) {
  try {
    return method(self).release().ptr();
  } catch (nb::python_error& e) {
    e.restore();
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

PyObject* explained_method(PyObject* self, PyObject* with_assembly) {
  try {
    const bool asked = nb::cast<bool>(nb::handle(with_assembly));
    return explained(executable(self), &framework(self), asked).release().ptr();
  } catch (nb::python_error& e) {
    e.restore();
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

}  // namespace

namespace {

// Of each part that a step runs: the step, what it does there, and all that explain shows of it.
nb::list parts(host::Executable& exe, bool with_assembly) {
  constexpr const char* kDoes[][2] = {{"if true", "if false"}, {"test", "body"}};
  nb::list result;
  for (std::size_t s = 0; s < exe.steps().size(); ++s) {
    const std::int32_t which = exe.steps()[s].nest;
    if (which < 0) continue;
    const host::Nest& nest = exe.nests()[static_cast<std::size_t>(which)];
    for (std::size_t p = 0; p < nest.parts.size(); ++p) {
      host::Executable& part = *nest.parts[p].executable;
      nb::dict row = explained(part, &framework(part), with_assembly);
      row["step"] = s;
      row["does"] = kDoes[nest.kind == host::Nest::Kind::kBranch ? 0 : 1][p];
      result.append(row);
    }
  }
  return result;
}

}  // namespace

nb::dict explained(host::Executable& exe, const PythonFramework* python, bool with_assembly) {
  const Program& program = exe.plan().program;
  nb::dict result;
  result["graph"] = print(program);
  result["steps"] = step_rows(exe, python);
  result["kernels"] = kernel_rows(exe, with_assembly);
  result["operators"] = plan_operators(exe);
  result["decisions"] = plan_decisions(exe);
  result["interface"] = plan_interface(exe);
  result["memory"] = plan_memory(exe);
  result["symbols"] = plan_symbols(program);
  result["parts"] = parts(exe, with_assembly);
  return result;
}

PyMethodDef explain_methods[] = {
    {"steps", guarded<steps>, METH_NOARGS, "The host program: one dict a step."},
    {"kernels", guarded<kernels>, METH_NOARGS,
     "One dict a kernel: name, axes, nodes, and the variants encoded so far."},
    {"explained", explained_method, METH_O,
     "All that explain shows. If the argument is true, each variant has \"assembly\" besides:\n"
     "(kind, offset, instruction, text)."},
    {"profile", guarded<profile>, METH_NOARGS,
     "What the last call took, step by step, and asked for; None without set_profiled(True)."},
    {"set_profiled", set_profiled, METH_O, "Whether calls note what each of their steps takes."},
    {"plan_text", guarded<plan_text>, METH_NOARGS, "Program and steps as text."},
    {"program", guarded<program>, METH_NOARGS,
     "The program: its text, facts of its symbols, names of what it calls out."},
    {"callouts", guarded<callouts>, METH_NOARGS, "(name, source line) of each call-out."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace tilevm::bind
