// The emitters, one a target: machine code for `program` into `holder`, as `how` says. They return
// how many vectors of accumulators a vector of columns has (Frame::kept; 0: no fold over rows), and
// throw Unsupported. Those of other architectures are not linked.
#pragma once

#include <asmjit/core.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "bytecode/bytecode.h"
#include "exec/native/native.h"
#include "isa.gen.h"

namespace tilevm::exec::native {

struct Unsupported {
  std::string what;
};

struct How {
  int copies = 1;        // vectors of columns side by side, at most
  bool streams = false;  // outputs go past the caches; the launch's are aligned (see Code)
};

// Sweeps over the reduced axes, one after the other.
inline int passes_of(bytecode::View program) {
  return static_cast<int>(std::ranges::count(
      program.code, static_cast<std::uint16_t>(bytecode::Op::pass), &bytecode::Instr::op));
}

int emit_avx2(asmjit::CodeHolder& holder, bytecode::View program, How how);
int emit_avx512(asmjit::CodeHolder& holder, bytecode::View program, How how);
int emit_neon(asmjit::CodeHolder& holder, bytecode::View program, How how);

// What the architecture compiled for knows of targets: targets_x86.cpp or targets_a64.cpp.
bool processor_has(Target target);
int emit(Target target, asmjit::CodeHolder& holder, bytecode::View program, How how);

}  // namespace tilevm::exec::native
