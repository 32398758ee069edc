// Python's objects as the recorder sees them where it is entered without PyTorch's parser and
// dispatcher: when nothing but recording could see the difference.
#pragma once

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>

#include "eager/torch/record.h"

namespace tilevm::eager {

// Switches recording on or off for this thread; returns what was.
bool record_here(bool on);
// Puts what makes blocks into the module, and what leaves them.
bool add_blocks(PyObject* module);

// Whether what the dispatcher would do is to record: this thread records, and no mode, transform,
// autocast or profiler is on.
bool only_recording();
// A tensor whose operators autograd does not want to see, or null.
const at::Tensor* tensor_of(PyObject* object);
// A tensor like that, or a number.
std::optional<Operand> operand_of(PyObject* object);

PyObject* wrapped(at::Tensor made);
// Sets Python's error to what is being caught.
void translate_exception();

// Runs `body`, which may throw what running segments throws, and returns what it does; null without
// an error: the original should do it.
template <class Body>
PyObject* recorded(Body&& body) {
  try {
    return body();
  } catch (...) {
    translate_exception();
    return nullptr;
  }
}
inline PyObject* wrapped_if_defined(at::Tensor made) {
  return made.defined() ? wrapped(std::move(made)) : nullptr;
}
// Whether `result` of recorded() is final.
inline bool is_decided(PyObject* result) { return result != nullptr || PyErr_Occurred(); }

// What autograd's kernels below the dispatcher's door do besides: they count writes to a tensor,
// and say of a view whose it is. `several`: the view is one of several results.
bool can_write_in_place(const at::Tensor& self);
void count_write(const at::Tensor& self);
bool can_view(const at::Tensor& base);
at::Tensor as_view_of(const at::Tensor& base, at::Tensor made, bool several);

// `self op= other`, and counts it. False if PyTorch should do it: nothing has happened.
bool write_in_place(Op op, const at::Tensor& self, const Operand& other);

// A function whose entry was exchanged, and a method: each calls the original where it must.
struct Function {
  const char *module, *name;
  vectorcallfunc ours;
  PyObject** original;
};
// The function stays the object that compilers and tables know, of equal hash: only the way that
// the interpreter enters it is exchanged. False: Python's error says why.
bool exchange(const Function& function);
// Puts a method of this definition onto torch.Tensor.
bool exchange(PyMethodDef& definition, PyObject** original);
// The type of torch.nn.Parameter.
PyTypeObject* type_of_parameters();

bool install_slots();      // operators and indices of torch.Tensor
bool install_functions();  // functions and methods that are rows
bool install_modules();    // calls of modules that do one thing

}  // namespace tilevm::eager
