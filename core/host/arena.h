// Which intermediate buffers share memory.
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

// Memory for buffers whose lives do not overlap; as large as the largest of `bytes`.
struct Slot {
  std::vector<SizeId> bytes;  // none provably at most another
  int stage;
  int busy_until;
  ValueId occupant;  // the latest
};

struct ArenaPlan {
  std::vector<Slot> slots;
  std::vector<std::int32_t> slot_of;  // by value; -1: not in the arena
};

// Greedy over lifetimes in order of `first`; takes the slot of what it may replace, else the free
// slot that fits best: equal size expressions, then provably large enough, then provably smaller,
// then unknown.
ArenaPlan plan_arena(const shape::SizeTable& sizes, std::span<const Lifetime> lifetimes,
                     std::size_t n_values);

}  // namespace tilevm::host
