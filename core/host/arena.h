// Where intermediate buffers lie: those that live at the same time above each other, for any sizes.
#pragma once

#include <span>
#include <vector>

#include "program/program.h"

namespace tilevm::host {

// A buffer that lives from step `first` to step `last`, both included.
struct Lifetime {
  ValueId value;
  SizeId bytes;
  int stage;  // after which the size is known
  int first, last;
  std::int32_t order = -1;   // of its dims in memory: see HostStep
  ValueId over = -1;         // lies where this one does, which dies in the step that writes it
  bool is_replaced = false;  // is that of another
};

// Memory of one buffer, or of several that replace each other. It begins where the highest of those
// below it ends.
struct Placed {
  SizeId bytes;
  int stage;
  int first, last;
  std::vector<std::int32_t> below;  // of the same stage, that live at the same time; not those that
                                    // are below one of these
};

struct ArenaPlan {
  std::vector<Placed> buffers;          // what is below something comes before it
  std::vector<std::int32_t> buffer_of;  // by value; -1: not in the arena
  std::vector<Lifetime> lives;          // what it was made for
};

// Which buffers lie below which is decided for typical sizes, by register as `typical` has them:
// the largest first, each at the lowest place where it fits. With other sizes all move up or down,
// and none lies over another.
ArenaPlan plan_arena(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> typical,
                     std::size_t n_values);

}  // namespace tilevm::host
