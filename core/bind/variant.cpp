#include "bind/variant.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace tilevm::bind {
namespace {

namespace dlpack = host::dlpack;
using Kind = Argument::Kind;
using Op = GuardStep::Op;

bool is_contiguous(const dlpack::Tensor& t) {
  std::int64_t next = 1;
  bool dense = true;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] == 1) continue;
    dense &= t.strides[d] == next;
    next *= t.shape[d];
  }
  return dense;
}

bool is_floating(dlpack::DataType dtype) {
  return dtype.code == dlpack::kFloat || dtype.code == dlpack::kBfloat;
}

bool is_complex(dlpack::DataType dtype) { return dtype.code == dlpack::kComplex; }

// Whether memory alone does not say what elements are: they may be negated, or conjugated.
bool has_bits(const TorchDirect& torch, dlpack::DataType dtype, PyObject* tensor) {
  if (is_complex(dtype)) return torch.is_conj(tensor) || torch.is_neg(tensor);
  return torch.is_neg(tensor);
}

bool is_known(dlpack::DataType dtype) {
  return dtype.lanes == 1 &&
         (is_floating(dtype) || is_complex(dtype) || dtype.code == dlpack::kInt ||
          dtype.code == dlpack::kUInt || dtype.code == dlpack::kBool);
}

// Dims by decreasing stride, equal ones in order; ~dim where the stride is 0.
std::array<std::int8_t, kMaxRank> layout_of(const dlpack::Tensor& t) {
  std::array<std::int8_t, kMaxRank> order{};
  for (int d = 0; d < t.ndim; ++d) order[static_cast<std::size_t>(d)] = static_cast<std::int8_t>(d);
  std::stable_sort(order.begin(), order.begin() + t.ndim,
                   [&](int a, int b) { return t.strides[a] > t.strides[b]; });
  for (int i = 0; i < t.ndim; ++i) {
    std::int8_t& d = order[static_cast<std::size_t>(i)];
    if (t.strides[d] == 0) d = static_cast<std::int8_t>(~d);
  }
  return order;
}

// Python's floor division. False where it has no answer.
bool floor_div(std::int64_t a, std::int64_t b, std::int64_t& quotient, std::int64_t& rest) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  quotient = a / b;
  rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return true;
}

bool apply(Op op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  std::int64_t other = 0;
  switch (op) {
    case Op::kAdd:
      return !__builtin_add_overflow(a, b, &out);
    case Op::kSub:
      return !__builtin_sub_overflow(a, b, &out);
    case Op::kMul:
      return !__builtin_mul_overflow(a, b, &out);
    case Op::kFloorDiv:
      return floor_div(a, b, out, other);
    case Op::kMod:
      return floor_div(a, b, other, out);
    case Op::kMin:
      out = std::min(a, b);
      return true;
    case Op::kMax:
      out = std::max(a, b);
      return true;
    case Op::kEqual:
      out = a == b;
      return true;
    case Op::kNotEqual:
      out = a != b;
      return true;
    case Op::kLess:
      out = a < b;
      return true;
    case Op::kLessEqual:
      out = a <= b;
      return true;
    case Op::kGreater:
      out = a > b;
      return true;
    case Op::kGreaterEqual:
      out = a >= b;
      return true;
    case Op::kAnd:
      out = a != 0 && b != 0;
      return true;
    case Op::kOr:
      out = a != 0 || b != 0;
      return true;
    default:
      return false;
  }
}

// The first argument that is the same object as argument `i`.
std::int16_t first_like(const Arguments& args, std::size_t i) {
  std::size_t first = 0;
  while (args[first] != args[i]) ++first;
  return static_cast<std::int16_t>(first);
}

// Whether an object is equal to others of its type by what it holds, as torch.device's are, and
// comparing them runs no code of anybody's.
bool is_plain(PyTypeObject* type) {
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0 && type->tp_richcompare != nullptr;
}

bool is_same(const Argument& want, PyObject* object) {
  if (object == want.value.get()) return true;
  return want.equal && Py_TYPE(object) == want.type &&
         PyObject_RichCompareBool(object, want.value.get(), Py_EQ) == 1;
}

// torch: null where no argument is a tensor of its.
bool fits(const Argument& want, const TorchDirect* torch, Arguments& args, std::size_t i) {
  PyObject* object = args[i];
  switch (want.kind) {
    case Kind::kAny:
      return true;
    case Kind::kSame:
      return is_same(want, object);
    case Kind::kInteger:
      return PyLong_CheckExact(object) != 0;
    case Kind::kReal:
      return PyFloat_CheckExact(object) != 0;
    case Kind::kText:
      return PyUnicode_CheckExact(object) && PyUnicode_Compare(object, want.value.get()) == 0;
    case Kind::kTensor:
      break;
  }
  if (Py_TYPE(object) != want.type) return false;
  const dlpack::Tensor* t = args.tensor(*torch, i);
  if (t == nullptr || t->ndim != want.rank || t->dtype.code != want.dtype.code ||
      t->dtype.bits != want.dtype.bits || torch->requires_grad(object) != want.requires_grad) {
    return false;
  }
  if (first_like(args, i) != want.first || is_contiguous(*t) != want.contiguous) return false;
  if (!want.contiguous && layout_of(*t) != want.layout) return false;
  return !want.floating || !has_bits(*torch, want.dtype, object);
}

}  // namespace

bool Variant::learn(Arguments& args) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    PyObject* object = args[i];
    Argument& want = arguments.emplace_back();
    if (PyLong_CheckExact(object)) {
      want.kind = Kind::kInteger;
    } else if (PyFloat_CheckExact(object)) {
      want.kind = Kind::kReal;
    } else if (object == Py_None || PyBool_Check(object)) {
      want.kind = Kind::kSame;
    } else if (PyUnicode_CheckExact(object)) {
      want.kind = Kind::kText;
    } else if (!checked) {
      want.kind = Kind::kAny;
    } else if (const TorchDirect& torch = TorchDirect::get(); !torch.is_tensor(Py_TYPE(object))) {
      want.kind = Kind::kSame;  // the caller knows that it means the same as long as it lives
      want.type = Py_TYPE(object);
      want.equal = is_plain(Py_TYPE(object));
    } else {
      const dlpack::Tensor* t = args.tensor(torch, i);
      if (t == nullptr || !is_known(t->dtype) || has_bits(torch, t->dtype, object)) {
        return false;
      }
      want.kind = Kind::kTensor;
      want.type = Py_TYPE(object);
      want.rank = static_cast<std::int8_t>(t->ndim);
      want.first = first_like(args, i);
      want.dtype = t->dtype;
      want.floating = is_floating(t->dtype) || is_complex(t->dtype);
      want.requires_grad = torch.requires_grad(object);
      want.contiguous = is_contiguous(*t);
      want.layout = layout_of(*t);
    }
    if (want.kind == Kind::kSame || want.kind == Kind::kText) {
      Py_INCREF(object);
      want.value = Ref(object);
    }
  }
  return true;
}

bool Variant::matches(const TorchDirect* torch, Arguments& args) const {
  if (args.size() != arguments.size()) return false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!fits(arguments[i], torch, args, i)) return false;
  }
  return holds(args);
}

bool Variant::holds(const Arguments& args) const {
  for (const SizesEqual& e : equal) {
    const std::int64_t size = args.seen(static_cast<std::size_t>(e.argument)).shape[e.axis];
    const auto other = static_cast<std::size_t>(e.other_argument);
    if (size != args.seen(other).shape[e.other_axis]) return false;
  }
  for (const RealGuard& guard : reals) {
    const double x = PyFloat_AS_DOUBLE(args[static_cast<std::size_t>(guard.argument)]);
    if (x != guard.value && !(std::isnan(x) && std::isnan(guard.value))) return false;
  }
  std::array<std::int64_t, kMostDepth> stack;
  std::size_t depth = 0;
  for (const GuardStep& step : guards) {
    const auto argument = static_cast<std::size_t>(step.argument);
    switch (step.op) {
      case Op::kSize:
        stack[depth++] = args.seen(argument).shape[step.axis];
        break;
      case Op::kStride:
        stack[depth++] = args.seen(argument).strides[step.axis];
        break;
      case Op::kNumber: {
        int overflow = 0;
        stack[depth++] = PyLong_AsLongLongAndOverflow(args[argument], &overflow);
        if (overflow != 0) return false;
        break;
      }
      case Op::kConstant:
        stack[depth++] = step.value;
        break;
      case Op::kRequire:
        if (stack[--depth] == 0) return false;
        break;
      case Op::kNot:
        stack[depth - 1] = stack[depth - 1] == 0;
        break;
      default:
        --depth;
        if (!apply(step.op, stack[depth - 1], stack[depth], stack[depth - 1])) return false;
    }
  }
  return true;
}

PyObject* Variant::call(Arguments& args, bool& began) const {
  began = true;
  if (executable == nullptr) return call_python(args);
  constexpr std::size_t kFew = 32;
  std::array<Object, kFew> few_objects;
  std::array<host::Seen, kFew> few_seen;
  std::vector<Object> many_objects;
  std::vector<host::Seen> many_seen;
  const std::size_t n_in = inputs.size();
  const std::size_t n_out = executable->executable->n_outputs();
  Object* objects = few_objects.data();
  host::Seen* seen = few_seen.data();
  if (n_in + n_out > kFew) {
    many_objects.resize(n_in + n_out);
    many_seen.resize(n_in);
    objects = many_objects.data();
    seen = many_seen.data();
  }
  for (std::size_t i = 0; i < n_in; ++i) {
    seen[i] = {nullptr, nullptr, nullptr};
    if (inputs[i] < 0) {
      objects[i] = PyTuple_GET_ITEM(bound.get(), ~inputs[i]);
      continue;
    }
    const auto argument = static_cast<std::size_t>(inputs[i]);
    objects[i] = args[argument];
    if (arguments[argument].kind != Kind::kTensor) continue;
    const dlpack::Tensor& t = args.seen(argument);
    seen[i] = {static_cast<std::byte*>(t.data) + t.byte_offset, t.shape, t.strides};
  }
  host::Call made{{objects, n_in}, {objects + n_in, n_out}, seen};
  const bool ok = execute(*executable, made);
  began = made.began;
  return ok ? result_of(objects + n_in, n_out) : nullptr;
}

PyObject* Variant::call_python(const Arguments& args) const {
  const Given& given = args.given();
  const Ref leaves(PyList_New(0));
  const Ref all(PyTuple_New(static_cast<Py_ssize_t>(given.n)));
  const Ref named(PyDict_New());
  if (!leaves || !all || !named) return nullptr;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool is_leaf = arguments[i].kind <= Kind::kReal;
    if (is_leaf && PyList_Append(leaves.get(), args[i]) != 0) return nullptr;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    if (i < given.n) {
      Py_INCREF(given.args[i]);
      PyTuple_SET_ITEM(all.get(), place, given.args[i]);
      continue;
    }
    PyObject* name = PyTuple_GET_ITEM(given.names, place - static_cast<Py_ssize_t>(given.n));
    if (PyDict_SetItem(named.get(), name, given.args[i]) != 0) return nullptr;
  }
  PyObject* whole[] = {leaves.get(), all.get(), named.get()};
  return call_object(run.get(), whole, 3);
}

// Takes the references in `made`.
PyObject* Variant::result_of(Object* made, std::size_t n) const {
  if (result == Result::kSingle && n == 1) return py(made[0]);
  const auto size = static_cast<Py_ssize_t>(outputs.size());
  Ref whole;
  if (result != Result::kSingle) {
    whole = Ref(result == Result::kList ? PyList_New(size) : PyTuple_New(size));
  } else {
    whole = Ref(py(made[static_cast<std::size_t>(outputs[0])]));
    Py_INCREF(whole.get());
  }
  for (Py_ssize_t i = 0; whole && result != Result::kSingle && i < size; ++i) {
    PyObject* item = py(made[static_cast<std::size_t>(outputs[static_cast<std::size_t>(i)])]);
    Py_INCREF(item);
    if (result == Result::kList) {
      PyList_SET_ITEM(whole.get(), i, item);
    } else {
      PyTuple_SET_ITEM(whole.get(), i, item);
    }
  }
  for (std::size_t i = 0; i < n; ++i) drop_reference(py(made[i]));
  if (!whole || result != Result::kRebuilt) return whole.release();
  PyObject* given[] = {whole.get()};
  return call_object(rebuild.get(), given, 1);
}

}  // namespace tilevm::bind
