// Launches of kernels that copy and do no more, where the C library's memcpy or exec/plane.h is
// quicker than a loop over vectors: long lines, and elements that are repeated a few times.
#pragma once

#include "exec/launch.h"
#include "fuse/plan.h"

namespace tilevm::schedule {

// What a kernel copies: operands, and the bytes of an element; 0: it does something else.
struct Copy {
  std::size_t from = 0, to = 0;
  int bytes = 0;
};

Copy copy_of(const fuse::KernelGraph& graph);

// Whether this launch is such a copy; then it is done.
bool run_copy(const Copy& copy, const exec::Launch& launch) noexcept;

}  // namespace tilevm::schedule
