// The Python object that a compiled program is.
#pragma once

#include <memory>
#include <vector>

#include "bind/framework.h"
#include "host/executable.h"

namespace tilevm::bind {

struct ExecutableObject {
  PyObject base;
  vectorcallfunc vectorcall;
  std::unique_ptr<PythonFramework> framework;  // outlives executable
  std::unique_ptr<host::Executable> executable;
  std::vector<Ref> parts;                // executables that steps of this one run
  bool single;                           // return the only output itself, not a tuple
  double lower_us, fuse_us, compile_us;  // compile_us: both, and the host program
};

PyTypeObject* executable_type();

// Runs `call`. False, with a Python error set, if it raised.
bool execute(ExecutableObject& object, host::Call& call) noexcept;

// What explain shows: see explain.cpp.
extern PyMethodDef explain_methods[];

}  // namespace tilevm::bind
