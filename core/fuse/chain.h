// Which kernels run together with matrix products.
#pragma once

#include "fuse/plan.h"

namespace tilevm::fuse {

// Joins steps of `plan` to chains: at first every product is a chain of its own.
void join_chains(Plan& plan);

}  // namespace tilevm::fuse
