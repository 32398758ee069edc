// Replacements of methods and functions of PyTorch that record without PyTorch's argument parser
// and dispatcher, where nothing but recording could happen there; otherwise they call the original.
#pragma once

#include <Python.h>

namespace tilevm::eager {

// Puts them into the class torch.Tensor, and into functions like torch.nn.functional.linear, which
// stay the objects that they are. Returns false with Python's error set.
bool install_protocol();

}  // namespace tilevm::eager
