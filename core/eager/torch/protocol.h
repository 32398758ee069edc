// Replacements of methods of torch.Tensor that record without PyTorch's argument parser and
// dispatcher, where nothing but recording could happen there; otherwise they call the original.
#pragma once

#include <Python.h>

namespace tilevm::eager {

// Puts them into the class torch.Tensor. Returns false with Python's error set.
bool install_protocol();

// The same for functions of modules, but only while some thread records: so that outside of blocks,
// and for compilers that know functions by their identity, PyTorch is as it was.
void functions_on();
void functions_off();

}  // namespace tilevm::eager
