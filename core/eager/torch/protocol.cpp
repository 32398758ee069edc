#include "eager/torch/protocol.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "eager/torch/record.h"

namespace tilevm::eager {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

PyTypeObject* parameter_type = nullptr;

const std::uint64_t kRecordingKeys =
    DispatchKeySet({DispatchKey::BackendSelect, DispatchKey::ADInplaceOrView, kKey}).raw_repr();

// Whether what the dispatcher would do is to record: this thread records, and no mode, transform,
// autocast or profiler is on.
bool only_recording() {
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  return tls.included_.has(kKey) && (tls.included_.raw_repr() & ~kRecordingKeys) == 0 &&
         tls.excluded_.has(DispatchKey::AutocastCPU) && !tls.excluded_.has(kKey) &&
         !at::impl::torch_function_mode_enabled() && !at::hasCallbacks();
}

// A tensor whose operators autograd does not want to see, or null.
const at::Tensor* tensor_of(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (type != reinterpret_cast<PyTypeObject*>(THPVariableClass) && type != parameter_type) {
    return nullptr;
  }
  const at::Tensor& t = THPVariable_Unpack(object);
  if (C10_LIKELY(t.unsafeGetTensorImpl()->autograd_meta() == nullptr)) return &t;
  if (c10::GradMode::is_enabled() && t.requires_grad()) return nullptr;
  return t._fw_grad(0).defined() ? nullptr : &t;
}

std::optional<Operand> operand_of(PyObject* object) {
  if (PyFloat_CheckExact(object)) return Operand(PyFloat_AS_DOUBLE(object));
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) return std::nullopt;
    return Operand(static_cast<std::int64_t>(value));
  }
  if (PyBool_Check(object)) return Operand(object == Py_True);
  if (const at::Tensor* const t = tensor_of(object)) return Operand(*t);
  return std::nullopt;
}

PyObject* wrapped(at::Tensor made) {
  try {
    return THPVariable_Wrap(std::move(made));
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
}

// The method that was there before.
template <int kIndex>
PyObject* original = nullptr;

template <int kIndex>
PyObject* call_original(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  std::array<PyObject*, 8> all{self};
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (n + named >= static_cast<Py_ssize_t>(all.size())) {
    PyErr_SetString(PyExc_TypeError, "too many arguments");
    return nullptr;
  }
  std::copy(args, args + n + named, all.begin() + 1);
  return PyObject_Vectorcall(original<kIndex>, all.data(), static_cast<std::size_t>(n) + 1, names);
}

// Runs `body`, which may throw what flushing throws; an undefined tensor means the original.
template <class Body>
PyObject* recorded(Body&& body, bool& decided) {
  decided = true;
  try {
    at::Tensor made = body();
    if (C10_LIKELY(made.defined())) return wrapped(std::move(made));
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
    return nullptr;
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
    return nullptr;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
  decided = false;
  return nullptr;
}

template <int kIndex, Op kOp, bool kReflected>
PyObject* binary(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY(n == 1 && names == nullptr && only_recording())) {
    const at::Tensor* const x = tensor_of(self);
    const std::optional<Operand> y = operand_of(args[0]);
    if (C10_LIKELY(x != nullptr && y.has_value())) {
      bool decided;
      PyObject* const result = recorded(
          [&] {
            const Operand straight[] = {Operand(*x), *y}, reflected[] = {*y, Operand(*x)};
            return record_elementwise(kOp, kReflected ? reflected : straight);
          },
          decided);
      if (decided) return result;
    }
  }
  return call_original<kIndex>(self, args, n, names);
}

template <int kIndex, Op kOp>
PyObject* unary(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY(n == 0 && names == nullptr && only_recording())) {
    if (const at::Tensor* const x = tensor_of(self)) {
      bool decided;
      PyObject* const result = recorded(
          [&] {
            const Operand given[] = {Operand(*x)};
            return record_elementwise(kOp, given);
          },
          decided);
      if (decided) return result;
    }
  }
  return call_original<kIndex>(self, args, n, names);
}

// Ways to a tensor's memory that pass no operator: what waits to be written there comes first.
template <int kIndex, bool kWritable>
PyObject* exporting(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  try {
    finish_writes("memory looked at");
    // Outside of blocks nothing waits that this could change.
    if (kWritable && c10::impl::tls_is_dispatch_key_included(kKey) && THPVariable_Check(self)) {
      Recording::mine().exported(THPVariable_Unpack(self));
    }
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
  return call_original<kIndex>(self, args, n, names);
}

struct Method {
  PyMethodDef definition;
  PyObject** original;
  bool patched = false;
};

template <int kIndex, Op kOp, bool kReflected = false>
Method binary_method(const char* name) {
  return {{name,
           reinterpret_cast<PyCFunction>(
               reinterpret_cast<void (*)()>(&binary<kIndex, kOp, kReflected>)),
           METH_FASTCALL | METH_KEYWORDS, nullptr},
          &original<kIndex>};
}
template <int kIndex, Op kOp>
Method unary_method(const char* name) {
  return {{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&unary<kIndex, kOp>)),
           METH_FASTCALL | METH_KEYWORDS, nullptr},
          &original<kIndex>};
}

template <int kIndex, bool kWritable = true>
Method export_method(const char* name) {
  return {
      {name,
       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&exporting<kIndex, kWritable>)),
       METH_FASTCALL | METH_KEYWORDS, nullptr},
      &original<kIndex>};
}

std::vector<Method>& methods() {
  static auto* const all = new std::vector<Method>{
      binary_method<0, Op::add>("__add__"),
      binary_method<1, Op::add, true>("__radd__"),
      binary_method<2, Op::sub>("__sub__"),
      binary_method<3, Op::sub, true>("__rsub__"),
      binary_method<4, Op::mul>("__mul__"),
      binary_method<5, Op::mul, true>("__rmul__"),
      binary_method<6, Op::div>("__truediv__"),
      binary_method<7, Op::lt>("__lt__"),
      binary_method<8, Op::le>("__le__"),
      binary_method<9, Op::gt>("__gt__"),
      binary_method<10, Op::ge>("__ge__"),
      unary_method<11, Op::neg>("__neg__"),
      binary_method<12, Op::add>("add"),
      binary_method<13, Op::sub>("sub"),
      binary_method<14, Op::mul>("mul"),
      binary_method<15, Op::div>("div"),
      binary_method<16, Op::maximum>("maximum"),
      binary_method<17, Op::minimum>("minimum"),
      unary_method<18, Op::relu>("relu"),
      unary_method<19, Op::sigmoid>("sigmoid"),
      unary_method<20, Op::tanh>("tanh"),
      unary_method<21, Op::exp>("exp"),
      unary_method<22, Op::log>("log"),
      unary_method<23, Op::sqrt>("sqrt"),
      unary_method<24, Op::rsqrt>("rsqrt"),
      unary_method<25, Op::sin>("sin"),
      unary_method<26, Op::cos>("cos"),
      unary_method<27, Op::abs>("abs"),
      unary_method<28, Op::neg>("neg"),
      export_method<29>("numpy"),
      export_method<30>("__array__"),
      export_method<31, false>("tolist"),
      export_method<32>("data_ptr"),
      export_method<33>("untyped_storage"),
      export_method<34>("storage"),
      export_method<35>("_typed_storage"),
      export_method<36>("__dlpack__"),
      export_method<37>("share_memory_"),
      export_method<38, false>("__reduce_ex__"),
      export_method<39, false>("__deepcopy__"),
  };
  return *all;
}

struct Function {
  const char* module;
  PyMethodDef definition;
  PyObject** original;
  PyObject *names = nullptr, *key = nullptr, *ours = nullptr;  // the module's dictionary
};

template <int kIndex>
PyObject* call_function(PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return PyObject_Vectorcall(original<kIndex>, args, static_cast<std::size_t>(n), names);
}

template <int kIndex, Op kOp>
PyObject* unary_function(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY(n == 1 && names == nullptr && only_recording())) {
    if (const at::Tensor* const x = tensor_of(args[0])) {
      bool decided;
      PyObject* const result = recorded(
          [&] {
            const Operand given[] = {Operand(*x)};
            return record_elementwise(kOp, given);
          },
          decided);
      if (decided) return result;
    }
  }
  return call_function<kIndex>(args, n, names);
}

template <int kIndex>
PyObject* linear(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY((n == 2 || n == 3) && names == nullptr && only_recording())) {
    const at::Tensor *const x = tensor_of(args[0]), *const w = tensor_of(args[1]);
    const bool biased = n == 3 && args[2] != Py_None;
    const at::Tensor* const b = biased ? tensor_of(args[2]) : nullptr;
    if (C10_LIKELY(x != nullptr && w != nullptr && (b != nullptr || !biased))) {
      bool decided;
      PyObject* const result = recorded([&] { return record_linear(*x, *w, b); }, decided);
      if (decided) return result;
    }
  }
  return call_function<kIndex>(args, n, names);
}

template <int kIndex, class Body>
Function function(const char* module, const char* name, Body body) {
  return {module,
          {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(body)),
           METH_FASTCALL | METH_KEYWORDS, nullptr},
          &original<kIndex>};
}

std::vector<Function>& functions() {
  static auto* const all = new std::vector<Function>{
      function<60>("torch.nn.functional", "linear", &linear<60>),
      function<61>("torch", "sigmoid", &unary_function<61, Op::sigmoid>),
      function<62>("torch", "tanh", &unary_function<62, Op::tanh>),
      function<63>("torch", "relu", &unary_function<63, Op::relu>),
  };
  return *all;
}

int threads_recording = 0;  // under Python's lock

bool find_functions() {
  for (Function& f : functions()) {
    PyObject* const module = PyImport_ImportModule(f.module);
    if (module == nullptr) return false;
    f.names = PyModule_GetDict(module);
    f.key = PyUnicode_InternFromString(f.definition.ml_name);
    PyObject* const before = PyDict_GetItem(f.names, f.key);
    Py_DECREF(module);
    if (before == nullptr) {
      PyErr_Format(PyExc_AttributeError, "%s.%s", f.module, f.definition.ml_name);
      return false;
    }
    Py_INCREF(before);
    *f.original = before;
    f.ours = PyCFunction_New(&f.definition, nullptr);
    if (f.ours == nullptr) return false;
  }
  return true;
}

}  // namespace

void functions_on() {
  if (++threads_recording > 1) return;
  for (Function& f : functions()) {
    // What somebody else has put there stays.
    if (PyDict_GetItem(f.names, f.key) == *f.original) PyDict_SetItem(f.names, f.key, f.ours);
  }
}

void functions_off() {
  if (--threads_recording > 0) return;
  for (Function& f : functions()) {
    if (PyDict_GetItem(f.names, f.key) == f.ours) PyDict_SetItem(f.names, f.key, *f.original);
  }
}

bool install_protocol() {
  if (!find_functions()) return false;
  PyObject* const nn = PyImport_ImportModule("torch.nn.parameter");
  if (nn == nullptr) return false;
  parameter_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(nn, "Parameter"));
  Py_DECREF(nn);
  if (parameter_type == nullptr) return false;
  auto* const type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  for (Method& m : methods()) {
    if (m.patched) continue;
    PyObject*& before = *m.original;
    before = PyObject_GetAttrString(THPVariableClass, m.definition.ml_name);
    if (before == nullptr) return false;
    PyObject* const doc = PyObject_GetAttrString(before, "__doc__");
    m.definition.ml_doc = doc != nullptr && PyUnicode_Check(doc) ? PyUnicode_AsUTF8(doc) : nullptr;
    PyErr_Clear();
    PyObject* const ours = PyDescr_NewMethod(type, &m.definition);
    if (ours == nullptr ||
        PyObject_SetAttrString(THPVariableClass, m.definition.ml_name, ours) != 0) {
      return false;
    }
    Py_DECREF(ours);
    m.patched = true;
  }
  return true;
}

}  // namespace tilevm::eager
