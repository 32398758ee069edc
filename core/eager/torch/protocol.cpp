#include "eager/torch/protocol.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>

#include "eager/torch/python.h"

namespace tilevm::eager {
namespace {

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

template <int kIndex, Op kOp, bool kReflected>
PyObject* binary(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY(n == 1 && names == nullptr && only_recording())) {
    const at::Tensor* const x = tensor_of(self);
    const std::optional<Operand> y = operand_of(args[0]);
    if (C10_LIKELY(x != nullptr && y.has_value())) {
      PyObject* const result = recorded([&] {
        const Operand straight[] = {Operand(*x), *y}, reflected[] = {*y, Operand(*x)};
        return wrapped_if_defined(record_elementwise(kOp, kReflected ? reflected : straight));
      });
      if (is_decided(result)) return result;
    }
  }
  return call_original<kIndex>(self, args, n, names);
}

template <int kIndex, Op kOp>
PyObject* unary(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  if (C10_LIKELY(n == 0 && names == nullptr && only_recording())) {
    if (const at::Tensor* const x = tensor_of(self)) {
      PyObject* const result = recorded([&] {
        const Operand given[] = {Operand(*x)};
        return wrapped_if_defined(record_elementwise(kOp, given));
      });
      if (is_decided(result)) return result;
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
      export_method<40>("apply_"),
      export_method<41>("map_"),
      export_method<42>("map2_"),
  };
  return *all;
}

template <int kIndex>
PyObject* call_function(PyObject* const* args, std::size_t n, PyObject* names) {
  return PyObject_Vectorcall(original<kIndex>, args, n, names);
}

template <int kIndex>
PyObject* exporting_function(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  try {
    finish_writes("memory looked at");
    const bool tensor = PyVectorcall_NARGS(n) > 0 && THPVariable_Check(args[0]);
    if (tensor && c10::impl::tls_is_dispatch_key_included(kKey)) {
      Recording::mine().exported(THPVariable_Unpack(args[0]));
    }
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
  return call_function<kIndex>(args, n, names);
}

template <int kIndex, Op kOp>
PyObject* unary_function(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  if (C10_LIKELY(PyVectorcall_NARGS(n) == 1 && names == nullptr && only_recording())) {
    if (const at::Tensor* const x = tensor_of(args[0])) {
      PyObject* const result = recorded([&] {
        const Operand given[] = {Operand(*x)};
        return wrapped_if_defined(record_elementwise(kOp, given));
      });
      if (is_decided(result)) return result;
    }
  }
  return call_function<kIndex>(args, n, names);
}

template <int kIndex, Op kOp>
PyObject* binary_function(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  if (C10_LIKELY(PyVectorcall_NARGS(n) == 2 && names == nullptr && only_recording())) {
    const at::Tensor* const x = tensor_of(args[0]);
    const std::optional<Operand> y = operand_of(args[1]);
    if (C10_LIKELY(x != nullptr && y.has_value())) {
      PyObject* const result = recorded([&] {
        const Operand given[] = {Operand(*x), *y};
        return wrapped_if_defined(record_elementwise(kOp, given));
      });
      if (is_decided(result)) return result;
    }
  }
  return call_function<kIndex>(args, n, names);
}

template <int kIndex>
PyObject* linear(PyObject*, PyObject* const* args, std::size_t n_args, PyObject* names) {
  const Py_ssize_t n = PyVectorcall_NARGS(n_args);
  if (C10_LIKELY((n == 2 || n == 3) && names == nullptr && only_recording())) {
    const at::Tensor *const x = tensor_of(args[0]), *const w = tensor_of(args[1]);
    const bool biased = n == 3 && args[2] != Py_None;
    const at::Tensor* const b = biased ? tensor_of(args[2]) : nullptr;
    if (C10_LIKELY(x != nullptr && w != nullptr && (b != nullptr || !biased))) {
      PyObject* const result =
          recorded([&] { return wrapped_if_defined(record_linear(*x, *w, b)); });
      if (is_decided(result)) return result;
    }
  }
  return call_function<kIndex>(args, n_args, names);
}

std::vector<Function>& functions() {
  static auto* const all = new std::vector<Function>{
      {"torch.nn.functional", "linear", linear<60>, &original<60>},
      {"torch._C", "_to_dlpack", exporting_function<59>, &original<59>},
      {"torch", "sigmoid", unary_function<61, Op::sigmoid>, &original<61>},
      {"torch", "tanh", unary_function<62, Op::tanh>, &original<62>},
      {"torch", "relu", unary_function<63, Op::relu>, &original<63>},
      {"torch", "exp", unary_function<64, Op::exp>, &original<64>},
      {"torch", "log", unary_function<65, Op::log>, &original<65>},
      {"torch", "sqrt", unary_function<66, Op::sqrt>, &original<66>},
      {"torch", "rsqrt", unary_function<67, Op::rsqrt>, &original<67>},
      {"torch", "sin", unary_function<68, Op::sin>, &original<68>},
      {"torch", "cos", unary_function<69, Op::cos>, &original<69>},
      {"torch", "abs", unary_function<70, Op::abs>, &original<70>},
      {"torch", "neg", unary_function<71, Op::neg>, &original<71>},
      {"torch", "add", binary_function<72, Op::add>, &original<72>},
      {"torch", "sub", binary_function<73, Op::sub>, &original<73>},
      {"torch", "mul", binary_function<74, Op::mul>, &original<74>},
      {"torch", "div", binary_function<75, Op::div>, &original<75>},
      {"torch", "maximum", binary_function<76, Op::maximum>, &original<76>},
      {"torch", "minimum", binary_function<77, Op::minimum>, &original<77>},
  };
  return *all;
}

}  // namespace

bool install_protocol() {
  if (type_of_parameters() == nullptr) return false;
  for (Method& m : methods()) {
    if (!exchange(m.definition, m.original)) return false;
  }
  return std::ranges::all_of(functions(), [](const Function& f) { return exchange(f); }) &&
         install_functions() && install_slots() && install_modules();
}

}  // namespace tilevm::eager
