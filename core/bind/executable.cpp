// `_core.compile` and the callable that it returns. The call itself is written against CPython's
// C interface; nanobind serves what happens once per program.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <tuple>

#include "bind/executable.h"
#include "bind/gdb.h"
#include "bind/torch_direct.h"
#include "eager/engine.h"
#include "exec/gemm/library.h"
#include "exec/gemm/units.h"
#include "exec/native/native.h"
#include "exec/native/symbols.h"
#include "exec/record.h"
#include "exec/threads.h"
#include "schedule/kernel.h"

#include "structmember.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

ExecutableObject* as_executable(PyObject* self) {
  return reinterpret_cast<ExecutableObject*>(self);
}

PyObject* wrong_count(std::size_t wanted, std::size_t given) {
  PyErr_Format(PyExc_TypeError, "this program takes %zu arguments, but %zu were given", wanted,
               given);
  return nullptr;
}

PyObject* run(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* names) try {
  ExecutableObject& object = *as_executable(self);
  if (names != nullptr && PyTuple_GET_SIZE(names) != 0) {
    PyErr_SetString(PyExc_TypeError, "this program takes no keyword arguments");
    return nullptr;
  }
  const auto n = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
  host::Executable& exe = *object.executable;
  if (n != exe.n_inputs()) return wrong_count(exe.n_inputs(), n);
  const std::size_t n_out = exe.n_outputs();
  std::array<Object, 16> few;
  std::vector<Object> many;
  Object* outputs = few.data();
  if (n_out > few.size()) {
    many.resize(n_out);
    outputs = many.data();
  }
  host::Call call{{reinterpret_cast<const Object*>(args), n}, {outputs, n_out}};
  if (!execute(object, call)) return nullptr;
  if (object.single) return py(outputs[0]);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(n_out));
  for (std::size_t i = 0; i < n_out; ++i) {
    if (tuple != nullptr) {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), py(outputs[i]));
    } else {
      drop_reference(py(outputs[i]));
    }
  }
  return tuple;
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const ExecutableObject& object = *as_executable(self);
  for (const Ref& part : object.parts) Py_VISIT(part.get());
  return object.framework ? object.framework->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  // A call-out that is gone raises; nobody can call what the collector found unreachable. Parts
  // stay: the executable has their addresses, and what cycles go through them is cleared elsewhere.
  if (as_executable(self)->framework) as_executable(self)->framework->clear();
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  ExecutableObject& object = *as_executable(self);
  object.executable.~unique_ptr();
  object.framework.~unique_ptr();
  object.parts.~vector();
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ExecutableObject, vectorcall), READONLY, nullptr},
    {"lower_us", T_DOUBLE, offsetof(ExecutableObject, lower_us), READONLY,
     "The part of compile_us that lowered the program."},
    {"fuse_us", T_DOUBLE, offsetof(ExecutableObject, fuse_us), READONLY,
     "The part of compile_us that made kernels of it."},
    {"compile_us", T_DOUBLE, offsetof(ExecutableObject, compile_us), READONLY,
     "Microseconds that making this took."},
    {nullptr, 0, 0, 0, nullptr}};

// What `on_internal_error` was given, or null.
PyObject* failure_hook = nullptr;

// Lets Python save a call that failed inside tilevm. The error may be another one afterwards.
void report(ExecutableObject& object, const host::Call& call) noexcept {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* const cls = error_class("InternalError", nullptr);
  if (failure_hook == nullptr || cls == nullptr || PyErr_GivenExceptionMatches(type, cls) == 0) {
    return PyErr_Restore(type, value, trace);
  }
  in_python([&] { PyErr_NormalizeException(&type, &value, &trace); });
  const Ref inputs(PyTuple_New(static_cast<Py_ssize_t>(call.inputs.size())));
  for (std::size_t i = 0; inputs && i < call.inputs.size(); ++i) {
    Py_INCREF(py(call.inputs[i]));
    PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(i), py(call.inputs[i]));
  }
  PyObject* given[] = {reinterpret_cast<PyObject*>(&object), inputs.get(), value};
  const Ref done(inputs ? call_object(failure_hook, given, 3) : nullptr);
  if (!done) PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

}  // namespace

bool execute(ExecutableObject& object, host::Call& call) noexcept {
  try {
    eager::Failure failure;
    if (!eager::finish_writes(failure)) {
      if (failure.kind == eager::Failure::Kind::kIndex) throw host::IndexError(failure.message);
      throw host::InternalError(failure.message);
    }
    object.executable->run(call);
    return true;
  } catch (...) {
    set_python_error();
    report(object, call);
    return false;
  }
}

PyTypeObject* executable_type() {
  static PyTypeObject* const type = [] {
    PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear)},
                           {Py_tp_methods, explain_methods},
                           {Py_tp_members, members},
                           {0, nullptr}};
    PyType_Spec spec = {"tilevm._core.Executable", static_cast<int>(sizeof(ExecutableObject)), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                            Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        slots};
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  }();
  return type;
}

namespace {

std::unique_ptr<PythonFramework> framework_named(const std::string& name, bool allow_grad,
                                                 bool detached) {
  if (name == "torch") return torch_framework(allow_grad, detached);
  if (name == "numpy") return numpy_framework();
  throw nb::value_error("framework must be \"torch\" or \"numpy\"");
}

// The interpreter runs what is not native. Throws ValueError.
schedule::Tier tier_named(const std::string& tier) {
  using exec::native::Target;
  const bool units = tier == "auto" || tier == "amx";
  Target target = tier == "auto" ? exec::native::best() : Target::kNone;
  if (tier == "amx" && exec::gemm::units() != nullptr) target = Target::kAvx512;
  for (const Target named : exec::native::kTargets) {
    if (tier == exec::native::name(named)) target = named;
  }
  if (!exec::native::available(target) || (tier == "amx" && target == Target::kNone)) {
    const std::string error = "tier " + tier +
                              ": this processor has no such instructions, or memory may not be "
                              "made executable; use auto or interp";
    throw nb::value_error(error.c_str());
  }
  return {target, tier == "interp" || tier == "reference", units};
}

using Order = std::optional<std::vector<std::int32_t>>;
using Groups = std::optional<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>>;

// ("branch" or "repeat", (executable, operands) of each part). Throws ValueError, TypeError.
host::Nest nest_of(nb::handle given, std::vector<Ref>& parts) {
  const auto [kind, all] = nb::cast<std::pair<std::string, nb::list>>(given);
  host::Nest nest;
  if (kind != "branch" && kind != "repeat") throw nb::value_error("nests: branch or repeat");
  nest.kind = kind == "branch" ? host::Nest::Kind::kBranch : host::Nest::Kind::kRepeat;
  for (const nb::handle one : all) {
    auto [part, inputs] = nb::cast<std::pair<nb::object, std::vector<int>>>(one);
    if (!Py_IS_TYPE(part.ptr(), executable_type())) throw nb::type_error("nests: no executable");
    nest.parts.push_back({as_executable(part.ptr())->executable.get(), std::move(inputs)});
    parts.emplace_back(part.release().ptr());
  }
  return nest;
}

PyObject* compile(const Program& program, nb::list targets, std::vector<std::string> sources,
                  const std::string& framework, std::optional<std::vector<std::string>> input_names,
                  nb::dict int_symbols, std::optional<std::vector<Order>> output_orders,
                  bool follow_inputs, std::vector<bool> whole_outputs, Groups memory_groups,
                  std::vector<int> frozen, std::vector<int> written_to, bool apart,
                  std::vector<int> complex_inputs, std::vector<int> complex_outputs, bool nested,
                  nb::dict nests, bool allow_grad, bool detached, bool single,
                  const std::optional<std::string>& tier, int threads, std::optional<bool> verify) {
  host::Options options;
  options.frozen = std::move(frozen);
  options.targets = std::move(written_to);
  options.apart = apart;
  options.complex_inputs = std::move(complex_inputs);
  options.complex_outputs = std::move(complex_outputs);
  options.nested = nested;
  std::vector<Ref> parts;
  for (const auto& [target, nest] : nests)
    options.nests.emplace_back(nb::cast<std::int64_t>(target), nest_of(nest, parts));
  if (tier) options.settings.tier = tier_named(*tier);
  options.settings.verify = verify;
  if (input_names) options.input_names = std::move(*input_names);
  options.whole_outputs = std::move(whole_outputs);
  if (output_orders) options.output_orders = std::move(*output_orders);
  options.follow_inputs = follow_inputs;
  for (const auto& [input, symbol] : int_symbols) {
    options.int_symbols.emplace_back(nb::cast<int>(input), nb::cast<std::string>(symbol));
  }
  std::unique_ptr<PythonFramework> python = framework_named(framework, allow_grad, detached);
  python->set_own_threads(threads);
  sources.resize(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    python->add_target(nb::object(targets[i]).ptr(), std::move(sources[i]));
  }
  if (single && program.outputs.size() != 1) {
    throw nb::value_error("single: the program has not one output");
  }

  const auto begin = std::chrono::steady_clock::now();
  host::set_groups(program, options);
  if (memory_groups) {
    if (memory_groups->first.size() != options.input_groups.size() ||
        memory_groups->second.size() != options.output_groups.size()) {
      throw nb::value_error("memory_groups: not one for each input and output");
    }
    std::tie(options.input_groups, options.output_groups) = std::move(*memory_groups);
  }
  host::Phases phases;
  auto made = host::build(program, options, *python, &phases);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;

  PyTypeObject* type = executable_type();
  auto* self = reinterpret_cast<ExecutableObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) throw nb::python_error();
  self->vectorcall = run;
  new (&self->framework) std::unique_ptr<PythonFramework>(std::move(python));
  new (&self->executable) std::unique_ptr<host::Executable>(std::move(made));
  new (&self->parts) std::vector<Ref>(std::move(parts));
  self->single = single;
  self->lower_us = phases.lower_us;
  self->fuse_us = phases.fuse_us;
  self->compile_us = took.count();
  return reinterpret_cast<PyObject*>(self);
}

nb::dict stats() {
  const schedule::CompileStats compiles = schedule::compile_stats();
  nb::dict callouts;
  for (const auto& [name, count] : callout_counts()) callouts[name.c_str()] = count;
  nb::dict interpreted;
  for (const auto& [reason, count] : compiles.interpreted) interpreted[reason.c_str()] = count;
  nb::dict result;
  result["compiles"] = compiles.compiles;
  result["interpreted"] = interpreted;
  result["compile_total_us"] = compiles.total_us;
  result["compile_max_us"] = compiles.max_us;
  result["cache_hits"] = compiles.hits + eager::engine_stats().hits;
  nb::dict flushes;
  for (const auto& [reason, count] : eager::flush_counts()) flushes[reason.c_str()] = count;
  result["flushes"] = flushes;
  result["launches"] = host::launches();
  result["repeated_calls"] = host::repeated_calls();
  result["library_products"] = exec::gemm::library_products();
  result["callouts"] = callouts;
  result["packed_bytes"] = exec::gemm::ahead_bytes();
  result["peak_bytes"] = exec::memory_stats().peak_bytes;
  return result;
}

// Raises ValueError.
template <std::size_t kCount>
std::size_t index_of(const char* const (&names)[kCount], const std::string& name) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return i;
  }
  throw nb::value_error(name.c_str());
}

constexpr const char* kUses[] = {"off", "measured", "always"};
constexpr const char* kLie[] = {"rows", "columns", "ahead"};

// Of what the library makes products. Other dtypes raise ValueError.
constexpr const char* kMultiplied = "float32";
void need_multiplied(const std::string& dtype) {
  if (dtype != kMultiplied) throw nb::value_error(dtype.c_str());
}

void set_measured(std::array<std::vector<std::int64_t>, 3> sizes, const nb::dict& ratios) {
  exec::gemm::Measured measured{std::move(sizes), {}};
  for (const auto& [name, list] : ratios) {
    const auto [dtype, lies] = nb::cast<std::pair<std::string, std::string>>(name);
    need_multiplied(dtype);
    measured.ratios[index_of(kLie, lies)] = nb::cast<std::vector<float>>(list);
  }
  if (!exec::gemm::set_measured(std::move(measured)))
    throw nb::value_error("lists that do not belong together");
}

std::optional<std::pair<double, double>> measure_product(std::int64_t m, std::int64_t n,
                                                         std::int64_t k, const std::string& dtype,
                                                         const std::string& lies) {
  constexpr std::int64_t kMost = 1 << 15;
  if (std::min({m, n, k}) < 1 || std::max({m, n, k}) > kMost) throw nb::value_error("sizes");
  need_multiplied(dtype);
  const auto how = static_cast<exec::gemm::Lies>(index_of(kLie, lies));
  const nb::gil_scoped_release unlocked;
  const auto seconds = exec::gemm::measure({m, n, k}, how);
  if (!seconds) return std::nullopt;
  return std::pair{seconds->ours, seconds->library};
}

std::vector<std::string> library_dtypes() {
  TorchDirect::get();
  std::vector<std::string> found;
  if (exec::gemm::library().f32 != nullptr) found.emplace_back(kMultiplied);
  return found;
}

void reset_stats() {
  schedule::reset_compile_stats();
  host::reset_launches();
  exec::gemm::reset_library_products();
  eager::reset_engine_stats();
  exec::reset_memory_peak();
  reset_callout_counts();
}

}  // namespace

void bind_executable(nb::module_& m) {
  m.attr("Executable") = nb::borrow(reinterpret_cast<PyObject*>(executable_type()));
  m.def(
      "compile",
      [](const Program& program, nb::list targets, std::vector<std::string> sources,
         const std::string& framework, std::optional<std::vector<std::string>> input_names,
         nb::dict int_symbols, std::optional<std::vector<Order>> output_orders, bool follow_inputs,
         std::vector<bool> whole_outputs, Groups memory_groups, std::vector<int> frozen,
         std::vector<int> written_to, bool apart, std::vector<int> complex_inputs,
         std::vector<int> complex_outputs, bool nested, nb::dict nests, bool allow_grad,
         bool detached, bool single, std::optional<std::string> tier, int threads,
         std::optional<bool> verify) {
        try {
          return nb::steal(compile(
              program, targets, std::move(sources), framework, std::move(input_names), int_symbols,
              std::move(output_orders), follow_inputs, std::move(whole_outputs),
              std::move(memory_groups), std::move(frozen), std::move(written_to), apart,
              std::move(complex_inputs), std::move(complex_outputs), nested, nests, allow_grad,
              detached, single, tier, threads, verify));
        } catch (const nb::python_error&) {
          throw;
        } catch (const nb::builtin_exception&) {
          throw;
        } catch (...) {
          set_python_error();
        }
        throw nb::python_error();
      },
      nb::arg("program"), nb::arg("targets") = nb::list(), nb::kw_only(),
      nb::arg("sources") = std::vector<std::string>(), nb::arg("framework") = "torch",
      nb::arg("input_names") = nb::none(), nb::arg("int_symbols") = nb::dict(),
      nb::arg("output_orders") = nb::none(), nb::arg("follow_inputs") = false,
      nb::arg("whole_outputs") = std::vector<bool>(), nb::arg("memory_groups") = nb::none(),
      nb::arg("frozen") = std::vector<int>(), nb::arg("written_to") = std::vector<int>(),
      nb::arg("apart") = false, nb::arg("complex_inputs") = std::vector<int>(),
      nb::arg("complex_outputs") = std::vector<int>(), nb::arg("nested") = false,
      nb::arg("nests") = nb::dict(), nb::arg("allow_grad") = false, nb::arg("detached") = false,
      nb::arg("single") = false, nb::arg("tier") = nb::none(), nb::arg("threads") = 0,
      nb::arg("verify") = nb::none(),
      "Lower, fuse and compile `program`. `targets` are its call-outs.\n"
      "sources: of each what it calls as text, which is kept for whoever asks for the program.\n"
      "int_symbols: {input index: symbol that this Python int binds}. output_orders: per output\n"
      "its dims from outermost to innermost in memory, or None. follow_inputs: outputs without\n"
      "one that are made element by element lie as their first operand does. whole_outputs: for\n"
      "each whether its elements must not share memory with each other. memory_groups: a number "
      "for each\n"
      "input and each output; those with other numbers must not share memory, by default those\n"
      "that the program does not make views of each other. frozen: inputs whose elements do not\n"
      "change, so that they may be packed ahead. written_to: for each output the input that it is\n"
      "written to, and is then, or -1; elements of such an input must not share memory.\n"
      "apart: nor may it share memory with another input: else calls raise, and change nothing.\n"
      "complex_inputs, complex_outputs: which are complex outside, and here pairs of reals along\n"
      "a last dim. nested: for a step of another executable. nests: by target, what runs instead\n"
      "of it: (\"branch\" or \"repeat\", [(nested executable, which operands it takes), ...]).\n"
      "allow_grad: take tensors that\n"
      "require gradients. detached: results that share memory are no views of each other, as\n"
      "autograd sees it. single: return the only output, not a tuple of one. tier, threads,\n"
      "verify: as set_tier, set_threads, set_verify, for this program alone.");
  m.def(
      "on_internal_error",
      [](nb::object hook) { drop_reference(std::exchange(failure_hook, hook.release().ptr())); },
      nb::arg("hook"),
      "Call hook(executable, inputs, error) when a call fails inside tilevm, before it raises.");
  m.def(
      "on_frozen", [](nb::handle hook) { set_owner_hook(hook.ptr()); }, nb::arg("hook"),
      "Call hook(tensor) for a frozen input that is to be packed: it returns the number of what\n"
      "owns the tensor's memory, made by new_owner().");
  m.def("new_owner", exec::gemm::new_owner, "A number that stands for memory, until forget().");
  m.def("forget", exec::gemm::forget, nb::arg("owner"),
        "What was packed of the owner's memory is not used any more.");
  m.def("set_packed_memory", exec::gemm::set_ahead_limit, nb::arg("bytes"),
        "Bytes that frozen inputs may be packed to; 0: no limit.");
  m.def(
      "set_library",
      [](const std::string& use) {
        exec::gemm::set_library_use(static_cast<exec::gemm::Use>(index_of(kUses, use)));
      },
      nb::arg("use"), "Which products may be the library's: off, measured, always.");
  m.def("set_measured", set_measured, nb::arg("sizes"), nb::arg("ratios"),
        "Times of the library over ours, by dtype and how right factors lie.");
  m.def("measure_product", measure_product, nb::arg("m"), nb::arg("n"), nb::arg("k"),
        nb::arg("dtype"), nb::arg("lies"), "Seconds of ours and of the library's, if it has one.");
  m.def("library_dtypes", library_dtypes, "Of what the library makes products; imports torch.");
  m.def(
      "torch_direct",
      [] {
        nb::dict result;
        result["usable"] = TorchDirect::get().usable();
        result["asked_in_python"] = TorchDirect::get().asked_in_python();
        return result;
      },
      "How tensors of torch are looked at; imports torch.");
  m.def(
      "threads",
      [] {
        nb::dict result;
        result["setting"] = threads_setting();
        result["processors"] = processors();
        result["team"] = exec::has_team();
        return result;
      },
      "Threads asked for (0: as many as there are), processors, whether there is an OpenMP team.");
  m.def("stats", stats);
  m.def("reset_stats", reset_stats);
  m.def("set_threads", set_threads, nb::arg("threads"),
        "Threads that kernels use; 0: as many as torch, or all processors.");
  m.def(
      "set_tier", [](const std::string& tier) { schedule::set_tier(tier_named(tier)); },
      nb::arg("tier"));
  m.def(
      "check_tier", [](const std::string& tier) { tier_named(tier); }, nb::arg("tier"),
      "Raises ValueError if there is no such tier here.");
  m.def("set_code_memory", exec::native::set_code_memory_limit, nb::arg("bytes"),
        "Bytes of machine code at most; 0: no limit.");
  m.def("set_most_variants", schedule::set_most_variants, nb::arg("count"),
        "Classes of layouts that a kernel keeps compiled.");
  m.def(
      "code_memory",
      [] {
        const exec::native::CodeMemory memory = exec::native::code_memory();
        nb::dict result;
        result["used_bytes"] = memory.used_bytes;
        result["reserved_bytes"] = memory.reserved_bytes;
        result["limit_bytes"] = memory.limit_bytes;
        result["target"] = exec::native::name(exec::native::best());
        result["why_none"] = exec::native::why_none();
        return result;
      },
      "Memory of machine code; the target it is for, and why there is none.");
  m.def(
      "set_perf",
      [](const std::string& perf) {
        using exec::native::Perf;
        exec::native::set_perf(perf == "map"       ? Perf::kMap
                               : perf == "jitdump" ? Perf::kJitdump
                                                   : Perf::kOff);
      },
      nb::arg("perf"));
  m.def(
      "set_gdb", [](bool on) { exec::native::set_debugger(on ? &gdb : nullptr); }, nb::arg("on"));
  m.def("record_launches", exec::record_launches, nb::arg("path"),
        "Write what the interpreter runs from now on into a file, until the path is empty.");
  m.def("set_verify", schedule::set_verify, nb::arg("verify"));
  m.def("set_memory_budget", exec::set_memory_budget, nb::arg("bytes"),
        "Bytes of buffers kept for later calls; 0: no limit.");
  m.def("set_poison", exec::set_poison, nb::arg("on"),
        "For tests: fill memory with bytes of 0xff before it is used.");
  m.def("free_memory", exec::free_idle_memory, "Free the buffers kept for later calls.");
  m.def("memory", [] {
    const exec::MemoryStats stats = exec::memory_stats();
    nb::dict result;
    result["used_bytes"] = stats.used_bytes;
    result["idle_bytes"] = stats.idle_bytes;
    result["peak_bytes"] = stats.peak_bytes;
    return result;
  });
}

}  // namespace tilevm::bind
