// Machine code from bytecode. So far x86-64 with AVX-512 and the part of the instruction table that
// kernels over float32 use most; a program with anything else is refused and is interpreted.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "exec/interp/interp.h"
#include "exec/launch.h"

namespace tilevm::exec::native {

// Can this processor run what we emit, and may memory be made executable?
bool available();

class Code {
 public:
  // Null if the program has an instruction, an operand or a structure that is not emitted yet, or
  // needs more registers than there are. `why`, if given, says which.
  static std::unique_ptr<Code> emit(std::span<const std::byte> program, std::string* why = nullptr);
  ~Code();

  // Not launches with reduced axes beside rows and columns, nor where the interpreter is faster.
  bool can_run(const Launch& launch) const noexcept;
  Status run(const Launch& launch, interp::Scratch& scratch) const noexcept;

  std::span<const std::byte> machine_code() const;

 private:
  struct Impl;
  explicit Code(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilevm::exec::native
