// Views of memory: which elements they are, and whether two have some in common. Offsets are in
// elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "host/record.h"

namespace tilevm::eager {

// Indices first .. first + size of each dim of `whole`.
struct Box {
  std::array<std::int64_t, kMaxRank> first{}, size{};
};

// The elements of a view as a box of the dense tensor `whole`, if that is what they are.
std::optional<Box> box_of(const host::Geometry& view, std::int64_t offset,
                          const host::Geometry& whole);
// Whether a view is all of the dense tensor `whole`, row by row, in other sizes.
bool reshaped(const host::Geometry& view, std::int64_t offset, const host::Geometry& whole);
// Whether two views of the dense tensor `whole` are known to have no element in common.
bool disjoint(const host::Geometry& a, std::int64_t a_offset, const host::Geometry& b,
              std::int64_t b_offset, const host::Geometry& whole);
// Whether two views of memory, offsets in elements, are known to have no element in common.
bool apart(const host::Geometry& a, std::int64_t a_offset, const host::Geometry& b,
           std::int64_t b_offset);
// Whether some elements certainly lie in memory of their own: dense, or dense rows apart.
bool no_overlap(const host::Geometry& g);

}  // namespace tilevm::eager
