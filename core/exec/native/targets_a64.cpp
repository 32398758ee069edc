// The targets of AArch64, where every processor has NEON.
#include "exec/native/emit.h"

namespace tilevm::exec::native {

bool processor_has(Target target) { return target == Target::kNeon; }

bool can_stream(Target) { return false; }

int lanes(Target target) { return target == Target::kNone ? 0 : 4; }

int emit(Target, asmjit::CodeHolder& holder, bytecode::View program, How how) {
  return emit_neon(holder, program, how);
}

}  // namespace tilevm::exec::native
