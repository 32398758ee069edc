// The Python object that a compiled program is.
#pragma once

#include <memory>

#include "bind/framework.h"
#include "host/executable.h"

namespace tilevm::bind {

struct ExecutableObject {
  PyObject base;
  vectorcallfunc vectorcall;
  std::unique_ptr<PythonFramework> framework;  // outlives executable
  std::unique_ptr<host::Executable> executable;
  bool single;  // return the only output itself, not a tuple
  double compile_us;
};

PyTypeObject* executable_type();

// Runs `call`. False, with a Python error set, if it raised.
bool execute(ExecutableObject& object, host::Call& call) noexcept;

// Methods `steps`, `kernels`, `cuts`, `plan_text`, `callouts`: what explain shows.
extern PyMethodDef explain_methods[];

}  // namespace tilevm::bind
