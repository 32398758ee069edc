// Questions that PyTorch's own C++ answers in nanoseconds, and Python in tens of them: what a
// tensor is, and which modes are on. PyTorch is not linked. Its functions are looked up by name in
// the process, and used only if they give the right answers when tried; else Python is asked.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bind/python.h"
#include "host/dlpack.h"

namespace tilevm::bind {

// Modes that decide what `tilevm.compile` runs.
struct Modes {
  bool grad = false;
  bool inference = false;
  bool special = false;           // autocast, or a mode that sees every function or operator
  std::intptr_t default_dtype{};  // only to be compared
  friend bool operator==(const Modes&, const Modes&) = default;
};

class TorchDirect {
 public:
  // Imports torch when it is called first. Throws ForeignError where there is none.
  static const TorchDirect& get();

  // torch.Tensor or torch.nn.Parameter, not a subclass.
  bool is_tensor(PyTypeObject* type) const { return type == tensor_ || type == parameter_; }
  // Memory of a tensor, borrowed. False where it has none that can be described: sparse, on
  // another device, a wrapper.
  bool look(PyObject* tensor, host::dlpack::Tensor& out) const noexcept;
  bool is_neg(PyObject* tensor) const;
  bool is_conj(PyObject* tensor) const;
  bool requires_grad(PyObject* tensor) const;
  // A tensor that owns `managed`. Throws ForeignError; `managed` is then the caller's.
  PyObject* make(host::dlpack::Managed* managed) const;
  Modes modes() const;
  // As host::Framework has it, by `torch.set_float32_matmul_precision`.
  int float32_pieces() const noexcept;
  bool grad_enabled() const;

  // Whether tensors can be looked at at all.
  bool usable() const { return api_ != nullptr; }
  const host::dlpack::ExchangeApi* api() const { return api_; }
  // What Python is asked for, since this torch has no such C++ function, or one that answers
  // otherwise.
  std::vector<std::string> asked_in_python() const;

 private:
  TorchDirect();
  void find();
  void find_make();
  void find_modes();
  void find_precision();
  bool layout_is_known(PyObject* tensor) const;

  // A torch.Tensor object is the Python header, then an at::Tensor, which is a TensorImpl*.
  static const void* tensor_of(PyObject* object) { return object + 1; }
  static const void* impl_of(PyObject* object) {
    return *static_cast<void* const*>(tensor_of(object));
  }

  PyTypeObject* tensor_ = nullptr;
  PyTypeObject* parameter_ = nullptr;
  const host::dlpack::ExchangeApi* api_ = nullptr;
  // An at::Tensor that is returned by value and moved from, and so has nothing to destroy.
  struct Moved {
    void* impl = nullptr;
    Moved() {}
    Moved(const Moved& other) : impl(other.impl) {}
    ~Moved() {}
  };
  PyObject* make_directly(host::dlpack::Managed* managed) const;

  // Null where the name is not there, or gave a wrong answer.
  Moved (*from_managed_)(host::dlpack::Managed*, std::function<void(void*)>) = nullptr;
  PyObject* (*wrap_)(Moved*) = nullptr;
  void (*look_)(const void* tensor, host::dlpack::Tensor* out) = nullptr;
  bool (*is_neg_)(const void* tensor) = nullptr;
  bool (*is_conj_)(const void* tensor) = nullptr;
  bool (*requires_grad_)(const void* impl) = nullptr;
  bool (*grad_)() = nullptr;
  bool (*inference_)() = nullptr;
  bool (*autocast_)(std::int8_t device) = nullptr;
  bool (*function_mode_)() = nullptr;
  std::int64_t (*dispatch_modes_)() = nullptr;
  std::int8_t (*default_dtype_)() = nullptr;
  // The precision of an operator of a backend, and at's numbers of those that are asked for.
  const void* (*context_)() = nullptr;
  int (*precision_)(const void* context, int backend, int op) = nullptr;
  int backend_ = 0, op_ = 0, tf32_ = 0, bf16_ = 0;
  // The same questions in Python.
  PyObject *py_is_neg_, *py_is_conj_, *py_requires_grad_, *py_grad_, *py_inference_, *py_autocast_,
      *py_function_modes_, *py_dispatch_modes_, *py_default_dtype_, *py_precision_;
};

}  // namespace tilevm::bind
