// A kernel's graph as bytecode, for one class of layouts.
#pragma once

#include <vector>

#include "fuse/plan.h"
#include "schedule/layout.h"

namespace tilevm::schedule {

struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<std::int32_t> lines;  // an instruction's index into Program::lines, or -1
};

// Places every node: what does not vary over the reduced axes runs between the passes, the rest in
// the earliest pass that needs it. A value that a later pass needs again is computed again if that
// is cheap, else kept in scratch memory while the row is in cache.
Encoded encode(const fuse::KernelGraph& graph, const LayoutClass& cls);

}  // namespace tilevm::schedule
