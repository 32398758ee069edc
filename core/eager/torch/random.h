// Random numbers of PyTorch's generator of the CPU, drawn many at a time.
#pragma once

#include <Python.h>

#include "eager/torch/call.h"

namespace tilevm::eager {

// `bernoulli_(p)`, `uniform_(from, to)` and `random_(from, to)`, whose arguments with the generator
// are the last of `stack`, drawn at once as eager code draws, the rest recorded. False: nothing has
// happened.
bool record_bernoulli(torch::jit::Stack& stack);
bool record_integers(torch::jit::Stack& stack);
bool record_uniform(torch::jit::Stack& stack);

// Fills a tensor of int32 or float64; a method of the module.
PyObject* py_draw(PyObject* self, PyObject* arguments);

}  // namespace tilevm::eager
