#include "bind/python.h"

#include <unistd.h>

#include <new>
#include <stdexcept>

#include "program/program.h"

namespace tilevm::bind {

void stay() noexcept {
  for (;;) pause();
}

Ref import_if_there(const char* module) {
  return Ref(in_python([&] { return PyImport_ImportModule(module); }));
}

Ref import(const char* module, std::initializer_list<const char*> attributes) {
  Ref object = import_if_there(module);
  if (!object) throw host::ForeignError();
  for (const char* name : attributes) object = attribute(object.get(), name);
  return object;
}

std::string text_of(PyObject* object) {
  const Ref text(in_python([&] { return PyObject_Str(object); }));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return utf8;
}

PyObject* error_class(const char* name, PyObject* fallback) noexcept {
  const Ref module = import_if_there("tilevm.errors");
  const Ref cls(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
  if (!cls) {
    PyErr_Clear();
    return fallback;
  }
  return cls.get();  // the module keeps it
}

void set_python_error() noexcept {
  const auto set = [](const char* name, PyObject* fallback, const char* what) {
    PyErr_SetString(error_class(name, fallback), what);
  };
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    stay();  // see in_python
  } catch (const host::ForeignError&) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an error that says nothing");
  } catch (const ShapeError& e) {
    set("ShapeError", PyExc_ValueError, e.what());
  } catch (const DTypeError& e) {
    set("DTypeError", PyExc_TypeError, e.what());
  } catch (const host::TypeError& e) {
    set("DTypeError", PyExc_TypeError, e.what());
  } catch (const host::DeviceError& e) {
    set("DeviceError", PyExc_RuntimeError, e.what());
  } catch (const host::GradError& e) {
    set("TilevmError", PyExc_RuntimeError, e.what());
  } catch (const host::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  } catch (const host::MemoryError& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const host::DivisionError& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    set("InternalError", PyExc_RuntimeError, e.what());
  } catch (...) {
    set("InternalError", PyExc_RuntimeError, "unknown exception");
  }
}

}  // namespace tilevm::bind
