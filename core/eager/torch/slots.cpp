// Operators of Python on tensors: the slots of the type, which the interpreter enters before it
// looks for methods.
#include <algorithm>
#include <array>

#include "eager/torch/call.h"
#include "eager/torch/indexing.h"
#include "eager/torch/python.h"

namespace tilevm::eager {
namespace {

// What the slots held before.
PyNumberMethods numbers;
richcmpfunc compare_before;
binaryfunc subscript_before;

// Operators of two operands, whose slots look at what lies in them: what methods do is done here.
struct Names {
  const char *straight, *reflected;
  PyObject *straight_name = nullptr, *reflected_name = nullptr;
};
enum Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kTrueDivide,
  kFloorDivide,
  kRemainder,
  kAnd,
  kOr,
  kXor,
  kPower,
  kMatrixMultiply
};
std::array<Names, 11> names_of{{{"__add__", "__radd__"},
                                {"__sub__", "__rsub__"},
                                {"__mul__", "__rmul__"},
                                {"__truediv__", "__rtruediv__"},
                                {"__floordiv__", "__rfloordiv__"},
                                {"__mod__", "__rmod__"},
                                {"__and__", "__rand__"},
                                {"__or__", "__ror__"},
                                {"__xor__", "__rxor__"},
                                {"__pow__", "__rpow__"},
                                {"__matmul__", "__rmatmul__"}}};

PyObject* call_method(PyObject* self, PyObject* name, PyObject* other) {
  PyObject* const found = _PyType_Lookup(Py_TYPE(self), name);
  if (found == nullptr) return Py_NewRef(Py_NotImplemented);
  if (!PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR)) {
    return PyObject_CallMethodOneArg(self, name, other);
  }
  PyObject* const args[] = {self, other};
  return PyObject_Vectorcall(found, args, 2, nullptr);
}

PyObject* by_methods(Operator which, PyObject* a, PyObject* b) {
  const Names& names = names_of[which];
  if (THPVariable_Check(a)) {
    PyObject* const result = call_method(a, names.straight_name, b);
    if (result != Py_NotImplemented || Py_TYPE(a) == Py_TYPE(b)) return result;
    Py_DECREF(result);
  }
  if (THPVariable_Check(b)) return call_method(b, names.reflected_name, a);
  return Py_NewRef(Py_NotImplemented);
}

PyObject* elementwise(Op op, std::initializer_list<Operand> operands) {
  return recorded([&] {
    return wrapped_if_defined(
        record_elementwise(op, std::span<const Operand>(operands.begin(), operands.size())));
  });
}

template <Op kOp, Operator kWhich>
PyObject* binary(PyObject* a, PyObject* b) {
  if (C10_LIKELY(only_recording())) {
    const std::optional<Operand> x = operand_of(a), y = operand_of(b);
    if (C10_LIKELY(x && y)) {
      PyObject* const result = elementwise(kOp, {*x, *y});
      if (is_decided(result)) return result;
    }
  }
  return by_methods(kWhich, a, b);
}

template <Op kOp, auto kSlot>
PyObject* unary(PyObject* a) {
  if (C10_LIKELY(only_recording())) {
    if (const at::Tensor* const x = tensor_of(a)) {
      PyObject* const result = elementwise(kOp, {Operand(*x)});
      if (is_decided(result)) return result;
    }
  }
  return (numbers.*kSlot)(a);
}

// A number over a tensor is the reciprocal times it, as torch.Tensor.__rtruediv__ has it.
PyObject* divide(PyObject* a, PyObject* b) {
  if (C10_LIKELY(only_recording())) {
    const std::optional<Operand> x = operand_of(a), y = operand_of(b);
    if (C10_LIKELY(x && y)) {
      PyObject* const result = recorded([&]() -> PyObject* {
        if (x->kind == Operand::Kind::kTensor) {
          const Operand given[] = {*x, *y};
          return wrapped_if_defined(record_elementwise(Op::div, given));
        }
        const Operand divisor[] = {*y};
        const at::Tensor inverse = record_elementwise(Op::reciprocal, divisor);
        if (!inverse.defined()) return nullptr;
        const Operand given[] = {Operand(inverse), *x};
        return wrapped_if_defined(record_elementwise(Op::mul, given));
      });
      if (is_decided(result)) return result;
    }
  }
  return by_methods(kTrueDivide, a, b);
}

// Of a tensor by a number or a tensor: the other order has other rules.
template <Op kOp, Operator kWhich>
PyObject* of_tensor(PyObject* a, PyObject* b) {
  if (C10_LIKELY(only_recording())) {
    const at::Tensor* const x = tensor_of(a);
    const std::optional<Operand> y = x == nullptr ? std::nullopt : operand_of(b);
    if (C10_LIKELY(y.has_value())) {
      PyObject* const result = elementwise(kOp, {Operand(*x), *y});
      if (is_decided(result)) return result;
    }
  }
  return by_methods(kWhich, a, b);
}

PyObject* power(PyObject* a, PyObject* b, PyObject* modulus) {
  if (C10_LIKELY(modulus == Py_None && only_recording())) {
    const at::Tensor* const x = tensor_of(a);
    const std::optional<Operand> y = x == nullptr ? std::nullopt : operand_of(b);
    if (y && y->kind != Operand::Kind::kTensor && y->kind != Operand::Kind::kBool) {
      static const Row& row = installed_rows().at("pow.Tensor_Scalar");
      PyObject* const result = recorded([&]() -> PyObject* {
        torch::jit::Stack stack;
        stack.reserve(2);
        stack.emplace_back(*x);
        if (y->kind == Operand::Kind::kFloat) {
          stack.emplace_back(std::bit_cast<double>(y->bits));
        } else {
          stack.emplace_back(y->bits);
        }
        if (!record_row(row, Place::kNew, false, stack, 2)) return nullptr;
        return wrapped(std::move(stack.back()).toTensor());
      });
      if (is_decided(result)) return result;
    }
  }
  if (modulus != Py_None) return Py_NewRef(Py_NotImplemented);
  return by_methods(kPower, a, b);
}

PyObject* multiply_matrices(PyObject* a, PyObject* b) {
  if (C10_LIKELY(only_recording())) {
    const at::Tensor *const x = tensor_of(a), *const y = tensor_of(b);
    if (C10_LIKELY(x != nullptr && y != nullptr)) {
      PyObject* const result =
          recorded([&] { return wrapped_if_defined(record_product(*x, *y)); });
      if (is_decided(result)) return result;
    }
  }
  return by_methods(kMatrixMultiply, a, b);
}

template <Op kOp, auto kSlot>
PyObject* in_place(PyObject* a, PyObject* b) {
  if (C10_LIKELY(only_recording())) {
    const at::Tensor* const x = tensor_of(a);
    const std::optional<Operand> y = x == nullptr ? std::nullopt : operand_of(b);
    if (C10_LIKELY(y.has_value())) {
      PyObject* const result =
          recorded([&] { return write_in_place(kOp, *x, *y) ? Py_NewRef(a) : nullptr; });
      if (is_decided(result)) return result;
    }
  }
  return (numbers.*kSlot)(a, b);
}

PyObject* compare(PyObject* a, PyObject* b, int how) {
  constexpr std::array<Op, 6> kOps{Op::lt, Op::le, Op::eq, Op::ne, Op::gt, Op::ge};
  static_assert(Py_LT == 0 && Py_LE == 1 && Py_EQ == 2 && Py_NE == 3 && Py_GT == 4 && Py_GE == 5);
  if (C10_LIKELY(only_recording())) {
    const at::Tensor* const x = tensor_of(a);
    const std::optional<Operand> y = x == nullptr ? std::nullopt : operand_of(b);
    if (C10_LIKELY(y.has_value())) {
      PyObject* const result = elementwise(kOps[static_cast<std::size_t>(how)], {Operand(*x), *y});
      if (is_decided(result)) return result;
    }
  }
  return compare_before(a, b, how);
}

PyObject* subscript(PyObject* self, PyObject* index) {
  if (C10_LIKELY(only_recording())) {
    if (const at::Tensor* const x = tensor_of(self)) {
      PyObject* const result = recorded([&] { return wrapped_if_defined(indexed(*x, index)); });
      if (is_decided(result)) return result;
    }
  }
  return subscript_before(self, index);
}

// Puts `ours` into a slot of a type, if it holds what torch.Tensor's did.
template <class Slot>
void put(Slot& slot, Slot before, Slot ours) {
  if (slot == before && before != nullptr) slot = ours;
}

void put_all(PyTypeObject* type) {
  PyNumberMethods& n = *type->tp_as_number;
#define TILEVM_PUT(slot, ours) put(n.slot, numbers.slot, ours)
  TILEVM_PUT(nb_add, (&binary<Op::add, kAdd>));
  TILEVM_PUT(nb_subtract, (&binary<Op::sub, kSubtract>));
  TILEVM_PUT(nb_multiply, (&binary<Op::mul, kMultiply>));
  TILEVM_PUT(nb_true_divide, &divide);
  TILEVM_PUT(nb_floor_divide, (&of_tensor<Op::floor_div, kFloorDivide>));
  TILEVM_PUT(nb_remainder, (&of_tensor<Op::remainder, kRemainder>));
  TILEVM_PUT(nb_and, (&of_tensor<Op::bitwise_and, kAnd>));
  TILEVM_PUT(nb_or, (&of_tensor<Op::bitwise_or, kOr>));
  TILEVM_PUT(nb_xor, (&of_tensor<Op::bitwise_xor, kXor>));
  TILEVM_PUT(nb_negative, (&unary<Op::neg, &PyNumberMethods::nb_negative>));
  TILEVM_PUT(nb_invert, (&unary<Op::bitwise_not, &PyNumberMethods::nb_invert>));
  TILEVM_PUT(nb_power, &power);
  TILEVM_PUT(nb_matrix_multiply, &multiply_matrices);
  TILEVM_PUT(nb_inplace_add, (&in_place<Op::add, &PyNumberMethods::nb_inplace_add>));
  TILEVM_PUT(nb_inplace_subtract, (&in_place<Op::sub, &PyNumberMethods::nb_inplace_subtract>));
  TILEVM_PUT(nb_inplace_multiply, (&in_place<Op::mul, &PyNumberMethods::nb_inplace_multiply>));
  TILEVM_PUT(nb_inplace_true_divide,
             (&in_place<Op::div, &PyNumberMethods::nb_inplace_true_divide>));
#undef TILEVM_PUT
  put(type->tp_richcompare, compare_before, &compare);
  put(type->tp_as_mapping->mp_subscript, subscript_before, &subscript);
}

}  // namespace

bool install_slots() {
  auto* const type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  if (subscript_before != nullptr) return true;
  numbers = *type->tp_as_number;
  compare_before = type->tp_richcompare;
  subscript_before = type->tp_as_mapping->mp_subscript;
  for (Names& names : names_of) {
    names.straight_name = PyUnicode_InternFromString(names.straight);
    names.reflected_name = PyUnicode_InternFromString(names.reflected);
  }
  for (PyTypeObject* t : {type_of_parameters(), type}) put_all(t);
  return true;
}

}  // namespace tilevm::eager
