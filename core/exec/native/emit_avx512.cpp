#include "exec/native/avx512.h"
#include "exec/native/emit.h"
#include "exec/native/emitter.h"

namespace tilevm::exec::native {

void emit_avx512(asmjit::CodeHolder& holder, bytecode::View program, How how) {
  Emitter<Avx512>(holder, program, how).emit();
}

}  // namespace tilevm::exec::native
