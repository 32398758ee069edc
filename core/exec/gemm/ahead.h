// Right factors that do not change, packed once for all products that read them. One store for the
// process; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// Who owns the memory of a factor: a number that stands for it until forget(). 0: nobody knows.
using Owner = std::uint64_t;
Owner new_owner();

// What is packed. Equal ones are packed once.
struct Factor {
  Owner owner = 0;
  Matrix b{};  // k x n
  std::int64_t n = 0, k = 0;
  Way way = Way::kPacked;
  const Tiles* tiles = nullptr;

  bool operator==(const Factor&) const = default;
};

// A packed factor. Its memory goes with the last who shares it, or when its owner is forgotten.
struct Ahead;
using SharedAhead = std::shared_ptr<const Ahead>;

// Packs the factor, on up to `threads` threads, unless somebody has it already. Null if it does not
// fit in what is allowed, or has no owner.
SharedAhead share(const Tiles& tiles, const Factor& factor, int threads);

// What was packed, to be held while it is read; null once its owner is forgotten.
std::shared_ptr<const float> memory(const Ahead& ahead);
const Factor& factor(const Ahead& ahead);

// The memory of the owner is another's from now on, or nobody's.
void forget(Owner owner) noexcept;

// A number that changes whenever share() may answer otherwise than before.
std::uint64_t ahead_changes() noexcept;

// Bytes that are packed now, and those that may be; 0: no limit.
std::int64_t ahead_bytes() noexcept;
void set_ahead_limit(std::int64_t bytes) noexcept;

}  // namespace tilevm::exec::gemm
