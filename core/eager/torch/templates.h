// Operators without a row of ours, recorded as what captured graphs make of them.
#pragma once

#include <Python.h>

#include "eager/torch/call.h"

namespace tilevm::eager {

// Whom to ask for templates, `template_of(name, overload, arguments) -> int`, -1: there is none.
// Null: nobody. With Python's lock.
void set_teacher(PyObject* teacher);

// Records the operator whose arguments are the last of `stack`, and puts its results in their
// place, if there is a template for this kind of call or somebody has one. False: nothing has
// happened.
bool record_template(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tilevm::eager
