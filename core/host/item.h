// The one number of a tensor, where it lies.
#pragma once

#include <cstring>
#include <string>

#include "bytecode/bytecode.h"
#include "fuse/plan.h"
#include "host/errors.h"
#include "host/record.h"

namespace tilevm::host {

// A number of memory, in the member that its type asks for.
struct Number {
  std::int64_t integer = 0;
  double real = 0;
};

// Throws InternalError for floats of 16 bits.
inline Number read_number(const std::byte* data, bytecode::Storage storage) {
  const auto read = [&]<typename T>(T x) {
    std::memcpy(&x, data, sizeof(T));
    return x;
  };
  switch (storage) {
    case bytecode::Storage::kF32:
      return {0, read(float{})};
    case bytecode::Storage::kF64:
      return {0, read(double{})};
    case bytecode::Storage::kI64:
      return {read(std::int64_t{}), 0};
    case bytecode::Storage::kI32:
      return {read(std::int32_t{}), 0};
    case bytecode::Storage::kI16:
      return {read(std::int16_t{}), 0};
    case bytecode::Storage::kI8:
      return {read(std::int8_t{}), 0};
    case bytecode::Storage::kU8:
    case bytecode::Storage::kB8:
      return {read(std::uint8_t{}), 0};
    case bytecode::Storage::kBF16:
    case bytecode::Storage::kF16:
      break;
  }
  throw InternalError("a number of " + std::string(bytecode::info(storage).name));
}

// Throws ShapeError for a tensor of no or several elements; `what` asks for its number.
inline void check_one(const Record& record, const char* what) {
  if (record.elements() == 1) return;
  throw ShapeError(std::string(what) + ": a tensor of " + std::to_string(record.elements()) +
                   " elements is not one number");
}

// Whether the one element of a tensor is not 0. Throws ShapeError.
inline bool is_true(const Record& record, DType dtype, const char* what) {
  check_one(record, what);
  const bytecode::Storage storage = fuse::storage_of(dtype);
  if (bytecode::storage_bytes(storage) == 2 && is_float(dtype)) {
    std::uint16_t bits;
    std::memcpy(&bits, record.data, sizeof(bits));
    return (bits & 0x7fff) != 0;  // but for its sign
  }
  const Number number = read_number(record.data, storage);
  return number.integer != 0 || number.real != 0;
}

}  // namespace tilevm::host
