#include "exec/native/emit.h"
#include "exec/native/emitter.h"
#include "exec/native/neon.h"

namespace tilevm::exec::native {

int emit_neon(asmjit::CodeHolder& holder, bytecode::View program, How how) {
  return Emitter<Neon>(holder, program, how).emit();
}

}  // namespace tilevm::exec::native
