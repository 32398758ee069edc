// Calls of modules of torch.nn that do one thing: while a thread records, without the Python code
// around it, where none of it has anything to do.
#include <algorithm>
#include <array>

#include "eager/torch/call.h"
#include "eager/torch/python.h"

namespace tilevm::eager {
namespace {

using torch::jit::Stack;

PyObject* name_of(const char* text) { return PyUnicode_InternFromString(text); }

// A module while it is called: its attributes, borrowed.
struct Called {
  PyObject* dict;
  PyObject* parameters;
  PyObject* const* args;
  Py_ssize_t n;

  PyObject* attribute(PyObject* name) const { return PyDict_GetItemWithError(dict, name); }
  // Null without a value: there is none, or another than tensors.
  const at::Tensor* parameter(PyObject* name, bool& absent) const {
    PyObject* const found = PyDict_GetItemWithError(parameters, name);
    absent = found == Py_None;
    return found == nullptr || absent ? nullptr : tensor_of(found);
  }
  const at::Tensor* input() const { return n == 1 ? tensor_of(args[0]) : nullptr; }
};

// Each returns null without an error if Python should run.

PyObject* linear(const Called& m) {
  static PyObject* const weight = name_of("weight");
  static PyObject* const bias = name_of("bias");
  bool absent = false, unbiased = false;
  const at::Tensor *const x = m.input(), *const w = m.parameter(weight, absent);
  const at::Tensor* const b = m.parameter(bias, unbiased);
  if (x == nullptr || w == nullptr || (b == nullptr && !unbiased)) return nullptr;
  return wrapped_if_defined(record_linear(*x, *w, b));
}

PyObject* of_row(const char* name, Stack& stack) {
  const Row& row = installed_rows().at(name);
  const std::size_t n = stack.size();
  if (!record_row(row, Place::kNew, false, stack, n)) return nullptr;
  return wrapped(std::move(stack.back()).toTensor());
}

PyObject* layer_norm(const Called& m) {
  static PyObject* const weight = name_of("weight");
  static PyObject* const bias = name_of("bias");
  static PyObject* const shape = name_of("normalized_shape");
  static PyObject* const eps = name_of("eps");
  bool plain = false, unbiased = false;
  const at::Tensor *const x = m.input(), *const w = m.parameter(weight, plain);
  const at::Tensor* const b = m.parameter(bias, unbiased);
  PyObject *const sizes = m.attribute(shape), *const least = m.attribute(eps);
  if (x == nullptr || (w == nullptr && !plain) || (b == nullptr && !unbiased) ||
      sizes == nullptr || !PyTuple_CheckExact(sizes) || least == nullptr ||
      !PyFloat_CheckExact(least)) {
    return nullptr;
  }
  c10::List<std::int64_t> over;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); ++i) {
    PyObject* const size = PyTuple_GET_ITEM(sizes, i);
    if (!PyLong_CheckExact(size)) return nullptr;
    over.push_back(PyLong_AsLongLong(size));
  }
  Stack stack;
  stack.reserve(5);
  stack.emplace_back(*x);
  stack.emplace_back(std::move(over));
  stack.push_back(w == nullptr ? c10::IValue() : c10::IValue(*w));
  stack.push_back(b == nullptr ? c10::IValue() : c10::IValue(*b));
  stack.emplace_back(PyFloat_AS_DOUBLE(least));
  return of_row("layer_norm", stack);
}

PyObject* embedding(const Called& m) {
  static PyObject* const weight = name_of("weight");
  static PyObject* const most = name_of("max_norm");
  bool absent = false;
  const at::Tensor *const index = m.input(), *const w = m.parameter(weight, absent);
  // What else there is concerns gradients, which nobody wants here.
  if (index == nullptr || w == nullptr || m.attribute(most) != Py_None) return nullptr;
  Stack stack;
  stack.reserve(5);
  stack.emplace_back(*w);
  stack.emplace_back(*index);
  stack.emplace_back(std::int64_t{-1});
  stack.emplace_back(false);
  stack.emplace_back(false);
  return of_row("embedding", stack);
}

template <Op kOp>
PyObject* activation(const Called& m) {
  static PyObject* const in_place = name_of("inplace");
  PyObject* const writes = m.attribute(in_place);
  const at::Tensor* const x = m.input();
  if (x == nullptr || (writes != nullptr && writes != Py_False)) return nullptr;
  const Operand given[] = {Operand(*x)};
  return wrapped_if_defined(record_elementwise(kOp, given));
}

bool weights_of_cell(const Called& m, std::array<const at::Tensor*, 4>& out) {
  static PyObject* const names[] = {name_of("weight_ih"), name_of("weight_hh"),
                                    name_of("bias_ih"), name_of("bias_hh")};
  for (std::size_t i = 0; i < out.size(); ++i) {
    bool absent = false;
    out[i] = m.parameter(names[i], absent);
    if (out[i] == nullptr && (i < 2 || !absent)) return false;
  }
  return true;
}

PyObject* gru_cell(const Called& m) {
  std::array<const at::Tensor*, 4> w{};
  if (m.n != 2 || !weights_of_cell(m, w)) return nullptr;
  const at::Tensor *const x = tensor_of(m.args[0]), *const h = tensor_of(m.args[1]);
  if (x == nullptr || h == nullptr) return nullptr;
  return wrapped_if_defined(record_gru_cell(*x, *h, *w[0], *w[1], w[2], w[3]));
}

PyObject* lstm_cell(const Called& m) {
  std::array<const at::Tensor*, 4> w{};
  if (m.n != 2 || !PyTuple_CheckExact(m.args[1]) || PyTuple_GET_SIZE(m.args[1]) != 2 ||
      !weights_of_cell(m, w)) {
    return nullptr;
  }
  const at::Tensor* const x = tensor_of(m.args[0]);
  const at::Tensor* const h = tensor_of(PyTuple_GET_ITEM(m.args[1], 0));
  const at::Tensor* const c = tensor_of(PyTuple_GET_ITEM(m.args[1], 1));
  if (x == nullptr || h == nullptr || c == nullptr) return nullptr;
  std::vector<at::Tensor> made = record_lstm_cell(*x, *h, *c, *w[0], *w[1], w[2], w[3]);
  if (made.empty()) return nullptr;
  PyObject* const state = wrapped(std::move(made[0]));
  PyObject* const cell = wrapped(std::move(made[1]));
  const bool made_both = state != nullptr && cell != nullptr;
  PyObject* const both = made_both ? PyTuple_Pack(2, state, cell) : nullptr;
  Py_XDECREF(state);
  Py_XDECREF(cell);
  return both;
}

// One module after the other, as torch.nn.Sequential.forward.
PyObject* sequence(const Called& m) {
  static PyObject* const modules = name_of("_modules");
  PyObject* const all = m.attribute(modules);
  if (m.n != 1 || all == nullptr || !PyDict_CheckExact(all) || PyDict_GET_SIZE(all) == 0) {
    return nullptr;
  }
  PyObject* x = Py_NewRef(m.args[0]);
  // A list, since a module may change what it is part of.
  PyObject* const parts = PyDict_Values(all);
  for (Py_ssize_t i = 0; parts != nullptr && x != nullptr && i < PyList_GET_SIZE(parts); ++i) {
    PyObject* const next = PyObject_CallOneArg(PyList_GET_ITEM(parts, i), x);
    Py_DECREF(x);
    x = next;
  }
  Py_XDECREF(parts);
  return x;
}

// A class of torch.nn whose calls are ours. `function`: of torch.nn.functional, which its forward()
// calls, and which must be what it was.
struct Class {
  const char* name;
  const char* function;
  PyObject* (*call)(const Called&);
  PyTypeObject* type = nullptr;
  ternaryfunc before = nullptr;
  PyObject *forward = nullptr, *impl = nullptr, *called = nullptr;
};
std::array classes{
    Class{"Linear", "linear", linear},
    Class{"LayerNorm", "layer_norm", layer_norm},
    Class{"Embedding", "embedding", embedding},
    Class{"GRUCell", nullptr, gru_cell},
    Class{"LSTMCell", nullptr, lstm_cell},
    Class{"ReLU", "relu", activation<Op::relu>},
    Class{"SiLU", "silu", activation<Op::silu>},
    Class{"Tanh", nullptr, activation<Op::tanh>},
    Class{"Sigmoid", nullptr, activation<Op::sigmoid>},
    Class{"Sequential", nullptr, sequence},
};

std::array<PyObject*, 4> global_hooks;
PyObject* functional = nullptr;  // the dict of torch.nn.functional

bool is_empty(PyObject* dict) {
  return dict != nullptr && PyDict_Check(dict) && PyDict_GET_SIZE(dict) == 0;
}

// Whether Module.__call__ would only call forward(), and that is the class's own.
bool only_forwards(const Class& c, PyObject* dict) {
  static PyObject* const forward = name_of("forward");
  static PyObject* const impl = name_of("_call_impl");
  static PyObject* const compiled = name_of("_compiled_call_impl");
  static PyObject* const hooks[] = {name_of("_forward_hooks"), name_of("_forward_pre_hooks"),
                                    name_of("_backward_hooks"), name_of("_backward_pre_hooks")};
  const PyThreadState* const thread = PyThreadState_Get();
  if (thread->c_tracefunc != nullptr || thread->c_profilefunc != nullptr) return false;
  if (_PyType_Lookup(c.type, forward) != c.forward || _PyType_Lookup(c.type, impl) != c.impl) {
    return false;
  }
  if (PyDict_Contains(dict, forward) != 0 || PyDict_Contains(dict, compiled) != 0) return false;
  return std::ranges::all_of(hooks,
                             [&](PyObject* h) {
                               return is_empty(PyDict_GetItemWithError(dict, h));
                             }) &&
         std::ranges::all_of(global_hooks, is_empty);
}

template <std::size_t kIndex>
PyObject* call(PyObject* self, PyObject* args, PyObject* names) {
  const Class& c = classes[kIndex];
  if (C10_LIKELY(Py_TYPE(self) == c.type && names == nullptr && only_recording())) {
    static PyObject* const parameters = name_of("_parameters");
    PyObject* const dict = PyObject_GenericGetDict(self, nullptr);
    if (dict == nullptr) return nullptr;
    PyObject* result = nullptr;
    PyObject* const own = PyDict_GetItemWithError(dict, parameters);
    const bool same = c.function == nullptr ||
                      PyDict_GetItemString(functional, c.function) == c.called;
    if (own != nullptr && PyDict_Check(own) && same && only_forwards(c, dict)) {
      result = recorded([&] {
        return c.call({dict, own, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args)});
      });
    }
    Py_DECREF(dict);
    if (is_decided(result)) return result;
  }
  return c.before(self, args, names);
}

template <std::size_t... kIndices>
bool install(std::index_sequence<kIndices...>) {
  PyObject* const nn = PyImport_ImportModule("torch.nn");
  PyObject* const module = PyImport_ImportModule("torch.nn.modules.module");
  PyObject* const f = PyImport_ImportModule("torch.nn.functional");
  if (nn == nullptr || module == nullptr || f == nullptr) return false;
  functional = PyModule_GetDict(f);
  constexpr const char* kHooks[] = {"_global_forward_hooks", "_global_forward_pre_hooks",
                                    "_global_backward_hooks", "_global_backward_pre_hooks"};
  for (std::size_t i = 0; i < global_hooks.size(); ++i) {
    global_hooks[i] = PyObject_GetAttrString(module, kHooks[i]);
    if (global_hooks[i] == nullptr) return false;
  }
  for (Class& c : classes) {
    c.type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(nn, c.name));
    if (c.type == nullptr) return false;
    c.before = c.type->tp_call;
    c.forward = _PyType_Lookup(c.type, name_of("forward"));
    c.impl = _PyType_Lookup(c.type, name_of("_call_impl"));
    if (c.function != nullptr) c.called = PyDict_GetItemString(functional, c.function);
  }
  ((classes[kIndices].type->tp_call = &call<kIndices>), ...);
  return true;
}

}  // namespace

bool install_modules() {
  static const bool done = install(std::make_index_sequence<classes.size()>());
  return done;
}

}  // namespace tilevm::eager
