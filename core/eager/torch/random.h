// Random numbers of PyTorch's default generator, drawn many at a time.
#pragma once

#include <Python.h>

namespace tilevm::eager {

// Fills a tensor of int32 or float64; a method of the module.
PyObject* py_draw(PyObject* self, PyObject* tensor);

}  // namespace tilevm::eager
