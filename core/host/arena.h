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
};

// Memory for buffers whose lives do not overlap; as large as the largest of `bytes`.
struct Slot {
  std::vector<SizeId> bytes;  // none provably at most another
  int stage;
  int busy_until;
};

// How well a slot that was free suits a buffer, best first; kNone: none was free.
enum class Fit : std::uint8_t { kEqual, kLarger, kSmaller, kUnknown, kNone };

// Where a buffer went, in the order in which that was decided.
struct Placement {
  Lifetime life;
  std::int32_t slot;
  Fit fit;
};

struct ArenaPlan {
  std::vector<Slot> slots;
  std::vector<Placement> placements;
  std::vector<std::int32_t> slot_of;  // by value; -1: not in the arena
};

// Greedy over lifetimes in order of `first`; takes the free slot that fits best: equal size
// expressions, then provably large enough, then provably smaller, then unknown.
ArenaPlan plan_arena(const shape::SizeTable& sizes, std::span<const Lifetime> lifetimes,
                     std::size_t n_values);

}  // namespace tilevm::host
