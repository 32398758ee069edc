#include "exec/native/avx512.h"
#include "exec/native/emit.h"
#include "exec/native/emitter.h"

namespace tilevm::exec::native {

int emit_avx512(asmjit::CodeHolder& holder, bytecode::View program, How how) {
  return Emitter<Avx512>(holder, program, how).emit();
}

}  // namespace tilevm::exec::native
