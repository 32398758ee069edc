#include "eager/torch/python.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <bit>
#include <type_traits>

namespace tilevm::eager {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

PyTypeObject* parameter_type = nullptr;

const std::uint64_t kRecordingKeys =
    DispatchKeySet({DispatchKey::BackendSelect, DispatchKey::ADInplaceOrView, kKey}).raw_repr();

// Whether the dispatcher would come by ADInplaceOrView.
bool counts_writes(const at::Tensor& t) {
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  return ((t.key_set() | tls.included_) - tls.excluded_).has(DispatchKey::ADInplaceOrView);
}

}  // namespace

bool only_recording() {
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  return tls.included_.has(kKey) && (tls.included_.raw_repr() & ~kRecordingKeys) == 0 &&
         tls.excluded_.has(DispatchKey::AutocastCPU) && !tls.excluded_.has(kKey) &&
         at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

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

PyObject* wrapped(at::Tensor made) { return THPVariable_Wrap(std::move(made)); }

void translate_exception() {
  try {
    throw;
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

bool can_write_in_place(const at::Tensor& self) {
  return !self.is_inference() || c10::InferenceMode::is_enabled();
}

void count_write(const at::Tensor& self) {
  if (counts_writes(self)) self.unsafeGetTensorImpl()->bump_version();
}

bool can_view(const at::Tensor& base) {
  return base.unsafeGetTensorImpl()->support_as_strided() &&
         !c10::AutogradState::get_tls_state().get_view_replay_enabled();
}

at::Tensor as_view_of(const at::Tensor& base, at::Tensor made, bool several) {
  using torch::autograd::CreationMeta;
  if (!counts_writes(base)) return made;
  CreationMeta meta = several ? CreationMeta::MULTI_OUTPUT_NODE : CreationMeta::DEFAULT;
  if (!c10::GradMode::is_enabled()) meta = CreationMeta::NO_GRAD_MODE;
  if (c10::InferenceMode::is_enabled()) meta = CreationMeta::INFERENCE_MODE;
  return torch::autograd::as_view(base, made, true, true, nullptr, nullptr, meta);
}

namespace {

template <class T>
bool computed(Op op, T& held, T other) {
  switch (op) {
    case Op::add:
      held += other;
      return true;
    case Op::sub:
      held -= other;
      return true;
    case Op::mul:
      held *= other;
      return true;
    case Op::div:
      if constexpr (!std::is_floating_point_v<T>) return false;
      held /= other;
      return true;
    default:
      return false;
  }
}

// Of one number in memory that nothing recorded knows, by a number: less than an operator's call.
bool compute(Op op, const at::Tensor& self, const Operand& other) {
  const bool floats = other.kind == Operand::Kind::kFloat;
  if (!floats && other.kind != Operand::Kind::kInt) return false;
  const double real = floats ? std::bit_cast<double>(other.bits) : 0;
  switch (self.scalar_type()) {
    case at::kFloat:
      return computed(op, *self.mutable_data_ptr<float>(),
                      floats ? static_cast<float>(real) : static_cast<float>(other.bits));
    case at::kDouble:
      return computed(op, *self.mutable_data_ptr<double>(),
                      floats ? real : static_cast<double>(other.bits));
    default:
      return false;
  }
}

}  // namespace

bool write_in_place(Op op, const at::Tensor& self, const Operand& other) {
  if (!is_plain(self) || !can_write_in_place(self)) return false;
  bool done = false;
  const at::TensorBase* const read = other.kind == Operand::Kind::kTensor ? other.tensor : &self;
  if (is_lone_number(self, {read})) {
    done = compute(op, self, other);
  } else {
    const Operand given[] = {Operand(self), other};
    done = record_in_place(op, given);
  }
  if (done) count_write(self);
  return done;
}

PyTypeObject* type_of_parameters() {
  if (parameter_type != nullptr) return parameter_type;
  PyObject* const nn = PyImport_ImportModule("torch.nn.parameter");
  if (nn == nullptr) return nullptr;
  parameter_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(nn, "Parameter"));
  Py_DECREF(nn);
  return parameter_type;
}

bool exchange(const Function& f) {
  if (*f.original != nullptr) return true;
  PyObject* const module = PyImport_ImportModule(f.module);
  if (module == nullptr) return false;
  PyObject* const found = PyObject_GetAttrString(module, f.name);
  Py_DECREF(module);
  if (found == nullptr) return false;
  auto* const function = reinterpret_cast<PyCFunctionObject*>(found);
  // What somebody else has put there stays.
  if (!PyCFunction_CheckExact(found) || function->vectorcall != nullptr) return true;
  // Another object calls what it called.
  *f.original = PyCFunction_NewEx(function->m_ml, function->m_self, function->m_module);
  if (*f.original == nullptr) return false;
  function->vectorcall = f.ours;
  return true;
}

bool exchange(PyMethodDef& definition, PyObject** original) {
  if (*original != nullptr) return true;
  auto* const type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  *original = PyObject_GetAttrString(THPVariableClass, definition.ml_name);
  if (*original == nullptr) return false;
  PyObject* const doc = PyObject_GetAttrString(*original, "__doc__");
  definition.ml_doc = doc != nullptr && PyUnicode_Check(doc) ? PyUnicode_AsUTF8(doc) : nullptr;
  PyErr_Clear();
  PyObject* const ours = PyDescr_NewMethod(type, &definition);
  if (ours == nullptr) return false;
  const int failed = PyObject_SetAttrString(THPVariableClass, definition.ml_name, ours);
  Py_DECREF(ours);
  return failed == 0;
}

}  // namespace tilevm::eager
