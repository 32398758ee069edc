// What running a program can reject; the bindings map each to the class of tilevm.errors.
// ShapeError and DTypeError are those of program.h.
#pragma once

#include <stdexcept>

namespace tilevm::host {

struct DeviceError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct GradError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct IndexError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct TypeError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct MemoryError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct DivisionError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct InternalError : std::runtime_error {
  using runtime_error::runtime_error;
};

// The framework has set its own error (a Python exception).
struct ForeignError {};

}  // namespace tilevm::host
