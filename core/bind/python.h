// CPython's C interface, for the paths where every nanosecond counts.
#pragma once

#include <Python.h>
#include <cxxabi.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "host/errors.h"

namespace tilevm::bind {

// Never returns.
[[noreturn]] void stay() noexcept;

// What `f` returns, in which Python's code runs, or its lock is taken. When a process ends, Python
// before 3.14 ends each other thread that wants the lock, by unwinding its stack: destructors would
// drop references without the lock, and neither `noexcept` nor `catch (...)` lets that pass: the
// process aborts. So the thread stays here, as from 3.14 on Python has it.
template <typename F>
decltype(auto) in_python(F&& f) {
  try {
    return f();
  } catch (const abi::__forced_unwind&) {
    stay();
  }
}

// The last reference may run anything.
inline void drop_reference(PyObject* object) noexcept {
  if (object != nullptr) in_python([&] { Py_DECREF(object); });
}

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    drop_reference(std::exchange(object_, std::exchange(other.object_, nullptr)));
    return *this;
  }
  ~Ref() { drop_reference(object_); }
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
  return checked(in_python([&] { return PyObject_GetAttrString(object, name); }));
}

// A module, or null with Python's error set.
Ref import_if_there(const char* module);

// module.a.b
Ref import(const char* module, std::initializer_list<const char*> attributes = {});

// Null with Python's error set if it raises.
inline PyObject* call_object(PyObject* callable, PyObject* const* args, std::size_t n) {
  return in_python([&] { return PyObject_Vectorcall(callable, args, n, nullptr); });
}

inline Ref invoke(PyObject* callable, std::initializer_list<PyObject*> args) {
  return checked(call_object(callable, args.begin(), args.size()));
}

std::string text_of(PyObject* object);  // str(object); never fails

// Sets the Python error for the C++ exception that is being handled.
void set_python_error() noexcept;

// A class of tilevm.errors, or `fallback` where the package is not importable. Borrowed.
PyObject* error_class(const char* name, PyObject* fallback) noexcept;

}  // namespace tilevm::bind
