// The targets of x86-64.
#include <asmjit/core.h>

#include "exec/native/emit.h"

namespace tilevm::exec::native {

bool processor_has(Target target) {
  const auto& features = asmjit::CpuInfo::host().features().x86();
  switch (target) {
    case Target::kAvx2:
      return features.hasAVX2() && features.hasFMA() && features.hasF16C();
    case Target::kAvx512:
      return features.hasAVX512_F() && features.hasAVX512_DQ() && features.hasAVX512_BW() &&
             features.hasAVX512_VL() && features.hasBMI2();
    default:
      return false;
  }
}

bool can_stream(Target target) { return target != Target::kNone; }

int lanes(Target target) {
  return target == Target::kNone ? 0 : target == Target::kAvx512 ? 16 : 8;
}

int emit(Target target, asmjit::CodeHolder& holder, bytecode::View program, How how) {
  return target == Target::kAvx512 ? emit_avx512(holder, program, how)
                                   : emit_avx2(holder, program, how);
}

}  // namespace tilevm::exec::native
