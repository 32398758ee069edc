// The targets of AArch64, where every processor has NEON.
#include "exec/native/emit.h"

namespace tilevm::exec::native {

bool processor_has(Target target) { return target == Target::kNeon; }

int lanes(Target) { return 4; }

void emit(Target, asmjit::CodeHolder& holder, bytecode::View program, int copies) {
  emit_neon(holder, program, copies);
}

}  // namespace tilevm::exec::native
