// Blocks of memory for arenas and outputs, kept for later calls. One pool for the process; all
// functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilevm::exec {

inline constexpr std::size_t kAlignment = 64;

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // capacity
};

// At least `bytes`, 64-byte aligned, contents undefined; data is null if there is no memory.
// Blocks of 2 MiB and more lie in huge pages.
Block acquire(std::size_t bytes) noexcept;
// ... for a launch: may be much larger than that, so that launches share a block.
Block acquire_for_launch(std::size_t bytes) noexcept;
void release(Block block) noexcept;

// For tests: that from now on memory begins as bytes of 0xff, which are NaN and -1. poison() does
// that to memory which is used again without release().
void set_poison(bool on) noexcept;
void poison(Block block) noexcept;

struct MemoryStats {
  std::int64_t used_bytes = 0;  // acquired now
  std::int64_t idle_bytes = 0;  // kept for later
  std::int64_t peak_bytes = 0;  // most that was acquired at once
};
MemoryStats memory_stats() noexcept;
void reset_memory_peak() noexcept;

// Most bytes kept for later calls; 0: no limit. Frees what is above.
void set_memory_budget(std::int64_t bytes) noexcept;
// Frees everything kept.
void free_idle_memory() noexcept;

}  // namespace tilevm::exec
