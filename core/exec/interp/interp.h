// The tile interpreter: runs bytecode through precompiled handlers, on any processor.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "exec/launch.h"

namespace tilevm::exec::interp {

struct Prepared;

// Working memory of one thread. Grows to the largest launch it has seen and stays that large.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  // At least `bytes`, aligned to a cache line, contents undefined; null if there is no memory.
  std::byte* reserve(std::size_t bytes) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// A program made ready to run: decoded, handlers chosen, registers assigned to buffers.
// Immutable: any number of threads may run it, each with its own Scratch.
class Kernel {
 public:
  // `program` is copied. It must be one that verify() accepts.
  explicit Kernel(std::span<const std::byte> program);
  ~Kernel();
  Kernel(Kernel&&) noexcept;
  Kernel& operator=(Kernel&&) noexcept;

  // Borrows every operand until it returns. Allocates only to grow `scratch`.
  // An output may be an input in place (same base and strides), never overlap one otherwise.
  // After an error outputs are partly written.
  Status run(const Launch& launch, Scratch& scratch) const noexcept;

 private:
  std::unique_ptr<const Prepared> prepared_;
};

// The instruction set that the handlers were chosen for, such as "AVX3".
const char* target_name();

}  // namespace tilevm::exec::interp
