// The native module tilevm._core.
#include <nanobind/nanobind.h>

#include "bind/python.h"
#include "schedule/kernel.h"

namespace nb = nanobind;

// Each file of this folder that defines names of the module has one of these.
namespace tilevm::bind {
void bind_program(nb::module_& m);
void bind_executable(nb::module_& m);
void bind_bytecode(nb::module_& m);
void bind_dispatch(nb::module_& m);
void bind_eager(nb::module_& m);
void bind_trace(nb::module_& m);
}  // namespace tilevm::bind

NB_MODULE(_core_of_the_main_interpreter, m) {
  m.doc() = "The compiled core of tilevm.";
  // Threads that run while the process ends, and programs that live until then, are no leaks.
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    if (!error) tilevm::bind::stay();  // no exception, but a thread that is ended: see in_python
    try {
      std::rethrow_exception(error);
    } catch (const std::runtime_error&) {  // ours derive from it; others go on to nanobind
      tilevm::bind::set_python_error();
    }
  });
  tilevm::bind::bind_program(m);
  tilevm::bind::bind_executable(m);
  tilevm::bind::bind_bytecode(m);
  tilevm::bind::bind_dispatch(m);
  tilevm::bind::bind_eager(m);
  tilevm::bind::bind_trace(m);
  tilevm::schedule::warm_up();
}

// nanobind's types are of the process, so a second interpreter must be turned away before it makes
// them anew.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "tilevm runs in the main interpreter alone, since what it compiles, counts and "
                    "sets is of the whole process: import it there, or start a process");
    return nullptr;
  }
  return PyInit__core_of_the_main_interpreter();
}
