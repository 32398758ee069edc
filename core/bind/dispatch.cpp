// `_core.Dispatch`, a callable whose calls run without Python where one of its variants is for
// them, and else its method `_call`; and `_core.Variants`, the list of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>

#include "bind/variant.h"
#include "bind/watch.h"

#include "structmember.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

constexpr std::size_t kMostVariants = 32;
constexpr std::size_t kFewArguments = 16;  // of calls that need no memory

struct VariantsObject {
  PyObject base;
  // A call holds the variant that it runs: call-outs may change the list meanwhile.
  std::vector<std::shared_ptr<const Variant>> list;
  PyObject* watch;  // a Watch that must hold, or null
  PyObject* reads;  // a set of ids of what is read besides arguments, or null
  bool checked;     // some variant needs the modes
};

struct DispatchObject {
  PyObject base;
  vectorcallfunc vectorcall;
  PyObject* ready;  // Variants; may be shared with another Dispatch
};

VariantsObject* as_variants(PyObject* self) { return reinterpret_cast<VariantsObject*>(self); }
DispatchObject* as_dispatch(PyObject* self) { return reinterpret_cast<DispatchObject*>(self); }

// ---- Calling

PyObject* call_slowly(PyObject* self, const Given& given) try {
  static PyObject* const name = PyUnicode_InternFromString("_call");
  std::array<PyObject*, kFewArguments + 1> few;
  std::vector<PyObject*> many;
  PyObject** all = few.data();
  if (given.size() + 1 > few.size()) {
    many.resize(given.size() + 1);
    all = many.data();
  }
  all[0] = self;
  std::copy(given.args, given.args + given.size(), all + 1);
  return PyObject_VectorcallMethod(name, all, given.n + 1, given.names);
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

Watch* watch_of(const VariantsObject& variants) {
  if (variants.watch == nullptr) return nullptr;
  return reinterpret_cast<WatchObject*>(variants.watch)->watch;
}

// Whether the variants may run at all now. modes: filled if they count.
bool is_open(const VariantsObject& variants, const TorchDirect* torch, Modes& modes) {
  if (!variants.checked) return true;
  modes = torch->modes();
  if (modes.special) return false;
  if (variants.watch == nullptr) return true;
  Watch* watch = watch_of(variants);
  return watch != nullptr && watch->same();
}

// Whether it is for the modes, and for what requires gradients besides arguments. wanted: whether
// anything does.
bool is_for(const Variant& variant, const Modes& modes, const Watch* watch, bool wanted) {
  if (!variant.checked) return true;
  if (!(variant.modes == modes)) return false;
  return variant.gradients ? watch->wants(variant.wanted) : !wanted;
}

// The result; null without a Python error: no variant is for this call.
PyObject* call_variant(VariantsObject& variants, const Given& given) {
  const TorchDirect* torch = variants.checked ? &TorchDirect::get() : nullptr;
  Modes modes;
  if (!is_open(variants, torch, modes)) return nullptr;
  const Watch* watch = watch_of(variants);
  const bool wanted = watch != nullptr && modes.grad && watch->wants_gradient();
  Arguments all(given);
  for (std::size_t i = 0; i < variants.list.size(); ++i) {
    const std::shared_ptr<const Variant> variant = variants.list[i];
    if (!is_for(*variant, modes, watch, wanted)) continue;
    if (!all.read(variant->form.get(), variants.reads) || !variant->matches(torch, all)) continue;
    if (i > 0 && i < variants.list.size()) std::swap(variants.list[i], variants.list[i - 1]);
    bool began = false;
    PyObject* result = variant->call(all, began);
    // What watches modules can run eagerly what fails, so its `_call` is asked there too.
    const bool again = !began || (variants.watch != nullptr && variant->executable != nullptr);
    // `_call` says what is wrong, or finds another; but an interrupt is no error.
    if (result == nullptr && again && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
    return result;
  }
  return nullptr;
}

PyObject* call(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* names) {
  const Given given{args, static_cast<std::size_t>(PyVectorcall_NARGS(nargsf)), names};
  PyObject* ready = as_dispatch(self)->ready;
  if (ready != nullptr && !as_variants(ready)->list.empty()) {
    try {
      PyObject* result = call_variant(*as_variants(ready), given);
      if (result != nullptr || PyErr_Occurred() != nullptr) return result;
    } catch (...) {
      set_python_error();
      return nullptr;
    }
  }
  return call_slowly(self, given);
}

// ---- Adding variants

GuardStep::Op op_named(std::string_view name) {
  using Op = GuardStep::Op;
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"size", Op::kSize},       {"stride", Op::kStride},
      {"number", Op::kNumber},   {"constant", Op::kConstant},
      {"require", Op::kRequire}, {"+", Op::kAdd},
      {"-", Op::kSub},           {"*", Op::kMul},
      {"//", Op::kFloorDiv},     {"%", Op::kMod},
      {"min", Op::kMin},         {"max", Op::kMax},
      {"==", Op::kEqual},        {"!=", Op::kNotEqual},
      {"<", Op::kLess},          {"<=", Op::kLessEqual},
      {">", Op::kGreater},       {">=", Op::kGreaterEqual},
      {"and", Op::kAnd},         {"or", Op::kOr},
      {"not", Op::kNot}};
  for (const auto& [known, op] : kOps) {
    if (known == name) return op;
  }
  throw nb::value_error("no such step of a guard");
}

// Makes "size size == require" at the end of the guards one comparison.
void shorten(Variant& variant) {
  using Op = GuardStep::Op;
  std::vector<GuardStep>& g = variant.guards;
  if (g.size() < 4) return;
  const GuardStep* last = &g[g.size() - 4];
  if (last[0].op != Op::kSize || last[1].op != Op::kSize || last[2].op != Op::kEqual ||
      last[3].op != Op::kRequire) {
    return;
  }
  variant.equal.push_back({last[0].argument, last[0].axis, last[1].argument, last[1].axis});
  g.resize(g.size() - 4, GuardStep{Op::kRequire});
}

// Reads the guards into `variant`, whose arguments were learnt before. False: one is about an
// argument of another kind, or too deep.
bool read_guards(nb::handle steps, Variant& variant) {
  using Op = GuardStep::Op;
  int depth = 0;
  const auto argument_of = [&](nb::handle step, Argument::Kind kind, std::int32_t& index) {
    index = nb::cast<std::int32_t>(step[1]);
    return index >= 0 && static_cast<std::size_t>(index) < variant.arguments.size() &&
           variant.arguments[static_cast<std::size_t>(index)].kind == kind;
  };
  for (nb::handle step : steps) {
    const auto name = nb::cast<std::string>(step[0]);
    if (name == "real") {
      RealGuard made{0, nb::cast<double>(step[2])};
      if (!argument_of(step, Argument::Kind::kReal, made.argument)) return false;
      variant.reals.push_back(made);
      continue;
    }
    GuardStep made{op_named(name)};
    if (made.op == Op::kSize || made.op == Op::kStride) {
      if (!argument_of(step, Argument::Kind::kTensor, made.argument)) return false;
      made.axis = nb::cast<std::int32_t>(step[2]);
      const auto& argument = variant.arguments[static_cast<std::size_t>(made.argument)];
      if (made.axis < 0 || made.axis >= argument.rank) return false;
    } else if (made.op == Op::kNumber) {
      if (!argument_of(step, Argument::Kind::kInteger, made.argument)) return false;
    } else if (made.op == Op::kConstant) {
      made.value = nb::cast<std::int64_t>(step[1]);
    }
    const bool pushes = made.op <= Op::kConstant;
    depth += pushes ? 1 : made.op == Op::kNot ? 0 : -1;
    if (depth > static_cast<int>(kMostDepth)) return false;
    if (depth < (made.op == Op::kRequire ? 0 : 1)) throw nb::value_error("a guard lacks operands");
    variant.guards.push_back(made);
    shorten(variant);
  }
  return true;
}

Variant::Result result_named(const std::string& name) {
  if (name == "single") return Variant::Result::kSingle;
  if (name == "tuple") return Variant::Result::kTuple;
  if (name == "list") return Variant::Result::kList;
  if (name == "rebuilt") return Variant::Result::kRebuilt;
  throw nb::value_error("result must be single, tuple, list or rebuilt");
}

Ref owned(nb::handle object) { return Ref(object.inc_ref().ptr()); }

struct Wiring {
  nb::handle inputs, bound, outputs, rebuild;
  std::string result;
};

void wire(const Wiring& wiring, Variant& variant) {
  variant.executable = reinterpret_cast<ExecutableObject*>(variant.run.get());
  const host::Executable& executable = *variant.executable->executable;
  const auto within = [](std::int64_t i, std::size_t n) {
    return i >= 0 && static_cast<std::size_t>(i) < n;
  };
  if (!PyTuple_Check(wiring.bound.ptr())) throw nb::type_error("bound must be a tuple");
  variant.bound = owned(wiring.bound);
  const auto n_bound = static_cast<std::size_t>(PyTuple_GET_SIZE(variant.bound.get()));
  for (nb::handle input : wiring.inputs) {
    const auto i = nb::cast<std::int32_t>(input);
    const bool known = i >= 0 ? within(i, variant.arguments.size()) : within(~i, n_bound);
    if (!known) throw nb::value_error("inputs: no such argument");
    variant.inputs.push_back(i);
  }
  variant.result = result_named(wiring.result);
  for (nb::handle output : wiring.outputs) {
    const auto i = nb::cast<std::int32_t>(output);
    if (!within(i, executable.n_outputs())) throw nb::value_error("outputs: no such output");
    variant.outputs.push_back(i);
  }
  const bool single = variant.result == Variant::Result::kSingle;
  if (variant.inputs.size() != executable.n_inputs() || (single && variant.outputs.size() != 1)) {
    throw nb::value_error("inputs or outputs are not those of the executable");
  }
  variant.rebuild = owned(wiring.rebuild);
}

// Where the values of a call are. One that is known already is shared, so that a call which tries
// several variants is read once.
std::shared_ptr<const Form> form_of(const VariantsObject& variants, const Given& given,
                                    PyObject* opened) {
  std::shared_ptr<const Form> made = Form::of(given, opened);
  for (const auto& variant : variants.list) {
    if (made != nullptr && variant->form != nullptr && *made == *variant->form) {
      return variant->form;
    }
  }
  return made;
}

// Whether these are the values, in order.
bool are(const Arguments& values, nb::handle expected) {
  if (nb::len(expected) != values.size()) return false;
  std::size_t i = 0;
  for (nb::handle value : expected) {
    if (value.ptr() != values[i++]) return false;
  }
  return true;
}

bool add(nb::handle self, nb::tuple args, nb::dict kwargs, nb::handle run, nb::handle expected,
         nb::handle opened, bool checked, nb::handle guards, nb::handle inputs, nb::handle bound,
         nb::handle outputs, const std::string& result, nb::handle rebuild, bool gradients) {
  VariantsObject& variants = *as_variants(self.ptr());
  auto variant = std::make_shared<Variant>();
  variant->checked = checked;
  variant->run = owned(run);
  if (checked) {
    variant->modes = TorchDirect::get().modes();
    if (variant->modes.special) return false;
  }
  if (gradients) {
    const Watch* watch = watch_of(variants);
    if (watch == nullptr) throw nb::value_error("gradients need a watch");
    variant->gradients = true;
    variant->wanted = watch->wanted();
  }
  std::vector<PyObject*> values(&PyTuple_GET_ITEM(args.ptr(), 0),
                                &PyTuple_GET_ITEM(args.ptr(), 0) + nb::len(args));
  const nb::tuple names(kwargs.keys());
  for (nb::handle name : names) values.push_back(PyDict_GetItem(kwargs.ptr(), name.ptr()));
  const Given given{values.data(), nb::len(args), nb::len(names) > 0 ? names.ptr() : nullptr};
  try {
    variant->opened = owned(opened);
    variant->form = form_of(variants, given, opened.ptr());
  } catch (const std::logic_error&) {
    return false;
  }
  Arguments learnt(given);
  if (!learnt.read(variant->form.get(), variants.reads)) return false;
  if (!expected.is_none() && !are(learnt, expected)) return false;
  if (!variant->learn(learnt)) return false;
  if (!read_guards(guards, *variant)) return false;
  if (!inputs.is_none()) {
    if (Py_TYPE(run.ptr()) != executable_type()) return false;
    wire({inputs, bound, outputs, rebuild, result}, *variant);
  }
  std::vector<std::shared_ptr<const Variant>> dropped;  // may run anything when it ends
  if (!checked) {  // what an executable refuses costs an exception: one a form is enough
    const auto is_other = [&](const std::shared_ptr<const Variant>& known) {
      return known->form != variant->form || known->arguments.size() != variant->arguments.size();
    };
    const auto first = std::stable_partition(variants.list.begin(), variants.list.end(), is_other);
    dropped.assign(first, variants.list.end());
    variants.list.erase(first, variants.list.end());
  }
  if (variants.list.size() >= kMostVariants) return false;
  variants.list.insert(variants.list.begin(), std::move(variant));
  variants.checked |= checked;
  return true;
}

// ---- Types

PyObject* new_variants(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&as_variants(self)->list) decltype(VariantsObject::list);
  return self;
}

int traverse_variants(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_variants(self)->watch);
  Py_VISIT(as_variants(self)->reads);
  for (const auto& variant : as_variants(self)->list) {
    if (variant.use_count() > 1) continue;  // also held by a call that runs
    for (const Argument& argument : variant->arguments) Py_VISIT(argument.value.get());
    Py_VISIT(variant->run.get());
    Py_VISIT(variant->bound.get());
    Py_VISIT(variant->rebuild.get());
    Py_VISIT(variant->opened.get());
  }
  return 0;
}

int clear_variants(PyObject* self) {
  // Dropping a variant may run anything, so the list is empty before.
  const auto dropped = std::exchange(as_variants(self)->list, {});
  as_variants(self)->checked = false;
  Py_CLEAR(as_variants(self)->watch);
  Py_CLEAR(as_variants(self)->reads);
  return 0;
}

void dealloc_variants(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_variants(self);
  std::destroy_at(&as_variants(self)->list);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* clear_method(PyObject* self, PyObject*) {
  clear_variants(self);
  Py_RETURN_NONE;
}

PyMethodDef variants_methods[] = {
    {"clear", clear_method, METH_NOARGS, "Drop all variants, and the watch."},
    {nullptr, nullptr, 0, nullptr}};

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(as_variants(self)->list.size());
}

PyTypeObject* variants_type() {
  static PyTypeObject* const type = [] {
    static PyMemberDef members[] = {
        {"watch", T_OBJECT, offsetof(VariantsObject, watch), 0, "A Watch that must hold."},
        {"reads", T_OBJECT, offsetof(VariantsObject, reads), 0,
         "Ids of what is read besides arguments: calls with such a container are others."},
        {nullptr, 0, 0, 0, nullptr}};
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_variants)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_variants)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse_variants)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear_variants)},
                           {Py_tp_methods, variants_methods},
                           {Py_tp_members, members},
                           {Py_sq_length, reinterpret_cast<void*>(length)},
                           {0, nullptr}};
    PyType_Spec spec = {"tilevm._core.Variants", static_cast<int>(sizeof(VariantsObject)), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  }();
  return type;
}

PyObject* new_dispatch(PyTypeObject* type, PyObject*, PyObject*) {
#if PY_VERSION_HEX < 0x030C0000
  // Later Pythons let classes inherit this; without it each call makes a tuple.
  if (type->tp_call == PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
#endif
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_dispatch(self)->vectorcall = call;
  as_dispatch(self)->ready = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(variants_type()));
  if (as_dispatch(self)->ready == nullptr) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

int traverse_dispatch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_dispatch(self)->ready);
  return 0;
}

int clear_dispatch(PyObject* self) {
  Py_CLEAR(as_dispatch(self)->ready);
  return 0;
}

void dealloc_dispatch(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_dispatch(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_ready(PyObject* self, void*) {
  PyObject* ready = as_dispatch(self)->ready;
  Py_XINCREF(ready != nullptr ? ready : Py_None);
  return ready != nullptr ? ready : Py_None;
}

int set_ready(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || Py_TYPE(value) != variants_type()) {
    PyErr_SetString(PyExc_TypeError, "must be Variants");
    return -1;
  }
  Py_INCREF(value);
  Py_XSETREF(as_dispatch(self)->ready, value);
  return 0;
}

PyTypeObject* dispatch_type() {
  static PyTypeObject* const type = [] {
    static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET,
                                     offsetof(DispatchObject, vectorcall), READONLY, nullptr},
                                    {nullptr, 0, 0, 0, nullptr}};
    static PyGetSetDef properties[] = {
        {"_ready", get_ready, set_ready, "Variants that run without Python.", nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr}};
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_dispatch)},
                           {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_dispatch)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse_dispatch)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear_dispatch)},
                           {Py_tp_members, members},
                           {Py_tp_getset, properties},
                           {0, nullptr}};
    PyType_Spec spec = {
        "tilevm._core.Dispatch", static_cast<int>(sizeof(DispatchObject)), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
        slots};
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  }();
  return type;
}

}  // namespace

void bind_dispatch(nb::module_& m) {
  const auto define = [&](const char* name, PyTypeObject* type) {
    m.attr(name) = nb::borrow(reinterpret_cast<PyObject*>(type));
  };
  define("Dispatch", dispatch_type());
  define("Variants", variants_type());
  define("Watch", watch_type());
  m.def(
      "add_variant", add, nb::arg("variants"), nb::arg("args"), nb::arg("kwargs"),
      nb::arg("run").none(), nb::kw_only(), nb::arg("values").none(), nb::arg("opened"),
      nb::arg("checked"), nb::arg("guards"), nb::arg("inputs").none(), nb::arg("bound"),
      nb::arg("outputs"), nb::arg("result"), nb::arg("rebuild").none(), nb::arg("gradients"),
      "Let `variants` have calls like this one, that ran with `args` and `kwargs`. False: they\n"
      "cannot. Arguments are counted as values: those in tuples, lists, dictionaries, and objects\n"
      "of the classes `opened`, in order; `values` are what the caller takes them for, or None.\n"
      "checked: arguments are checked here, not by the executable, and modes of torch count; of\n"
      "others, the last one of each form is kept.\n"
      "guards: steps in postfix order. inputs: of the executable `run`, indices of arguments, or\n"
      "~index of `bound`; None: `run` is called with (leaves, args, kwargs). outputs: indices "
      "that\n"
      "make the result: single, tuple, list, or rebuilt by `rebuild` of a tuple of them.");
}

}  // namespace tilevm::bind
