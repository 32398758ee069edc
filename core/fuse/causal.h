// Kernels that do not look at what comes later in a row, as that of causal attention.
#pragma once

#include "fuse/plan.h"

namespace tilevm::fuse {

// Whether, in row i, nothing depends on columns of `panel` behind i, and `result`, which is all
// that the kernel stores for them, is zero there: then it may be run without them. Axes are the
// kernel's.
bool is_causal(const shape::SizeTable& sizes, const KernelGraph& kernel, ValueId panel,
               ValueId result, int row_axis, int column_axis);

}  // namespace tilevm::fuse
