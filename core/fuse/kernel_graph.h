// A group of operators as a kernel's graph: memory operands, instructions, rounding.
#pragma once

#include "fuse/groups.h"

namespace tilevm::fuse {

KernelGraph build_kernel(Grouping& grouping, int unit);

// Copies operand 0 into operand 1, both of `type`.
KernelGraph copy_kernel(const Type& type);

}  // namespace tilevm::fuse
