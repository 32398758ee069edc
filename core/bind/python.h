// CPython's C interface, for the paths where every nanosecond counts.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "host/errors.h"

namespace tilevm::bind {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    Py_XDECREF(std::exchange(object_, std::exchange(other.object_, nullptr)));
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// `owned`, or ForeignError if it is null.
inline Ref checked(PyObject* owned) {
  if (owned == nullptr) throw host::ForeignError();
  return Ref(owned);
}

inline Ref attribute(PyObject* object, const char* name) {
  return checked(PyObject_GetAttrString(object, name));
}

// module.a.b
Ref import(const char* module, std::initializer_list<const char*> attributes = {});

inline Ref invoke(PyObject* callable, std::initializer_list<PyObject*> args) {
  return checked(PyObject_Vectorcall(callable, args.begin(), args.size(), nullptr));
}

std::string text_of(PyObject* object);  // str(object); never fails

// Sets the Python error for the C++ exception that is being handled.
void set_python_error() noexcept;

// A class of tilevm.errors, or `fallback` where the package is not importable. Borrowed.
PyObject* error_class(const char* name, PyObject* fallback) noexcept;

}  // namespace tilevm::bind
