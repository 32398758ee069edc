// Random numbers of PyTorch's generator of the CPU, drawn many at a time.
#pragma once

#include <Python.h>

namespace tilevm::eager {

// Fills a tensor of int32 or float64; a method of the module.
PyObject* py_draw(PyObject* self, PyObject* arguments);

}  // namespace tilevm::eager
