// The emitters, one a processor: machine code for `program` into `holder`, with up to `copies`
// vectors of columns side by side. They throw Unsupported.
#pragma once

#include <asmjit/core.h>

#include <string>

#include "bytecode/bytecode.h"

namespace tilevm::exec::native {

struct Unsupported {
  std::string what;
};

void emit_avx2(asmjit::CodeHolder& holder, bytecode::View program, int copies);
void emit_avx512(asmjit::CodeHolder& holder, bytecode::View program, int copies);

}  // namespace tilevm::exec::native
