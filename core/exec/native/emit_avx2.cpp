#include "exec/native/avx2.h"
#include "exec/native/emit.h"
#include "exec/native/emitter.h"

namespace tilevm::exec::native {

int emit_avx2(asmjit::CodeHolder& holder, bytecode::View program, How how) {
  return Emitter<Avx2>(holder, program, how).emit();
}

}  // namespace tilevm::exec::native
