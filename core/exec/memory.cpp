#include "exec/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace tilevm::exec {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLeast = 256;
constexpr std::size_t kMost = std::size_t{1} << 46;
// Capacities are 4, 5, 6 or 7 quarters of a power of two, so that at most a fifth is not used.
constexpr int kClasses = 4 * 48;
constexpr int kFirstLarge = 4 * 8;  // 64 KiB

int class_of(std::size_t bytes) {
  if (bytes <= kLeast) return 0;
  const int exponent = std::bit_width(bytes - 1) - 1;  // 2^exponent < bytes <= 2^(exponent + 1)
  const std::size_t quarter = std::size_t{1} << (exponent - 2);
  const auto quarters = static_cast<int>((bytes + quarter - 1) / quarter);  // 5 to 8
  return 4 * (exponent - 8) + quarters - 4;
}

std::size_t capacity_of(int cls) {
  return (std::size_t{64} << (cls / 4)) * static_cast<std::size_t>(4 + cls % 4);
}

struct Idle {
  Idle* next;
};

// Never destroyed: tensors may outlive every static object.
struct Pool {
  std::mutex mutex;
  std::array<Idle*, kClasses> idle{};
  std::int64_t budget = 0;
  MemoryStats stats;
};

Pool& pool() {
  static Pool* const instance = [] {
    static Pool* made = new Pool;
    // A fork may happen while another thread holds the lock.
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *instance;
}

std::byte* fresh(std::size_t bytes) {
  if (bytes < kHugePage) return static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
  void* at = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  if (at != nullptr) madvise(at, bytes, MADV_HUGEPAGE);  // only a hint
#endif
  return static_cast<std::byte*>(at);
}

void trim(Pool& p, std::int64_t limit) {
  for (int cls = kClasses - 1; cls >= 0 && p.stats.idle_bytes > limit; --cls) {
    Idle*& head = p.idle[static_cast<std::size_t>(cls)];
    while (head != nullptr && p.stats.idle_bytes > limit) {
      Idle* const block = head;
      head = block->next;
      p.stats.idle_bytes -= static_cast<std::int64_t>(capacity_of(cls));
      std::free(block);
    }
  }
}

std::atomic<bool> poisons{false};

// Of the first class from that of `bytes` on that has one, up to `more` classes larger; else new.
Block take(std::size_t bytes, int more) noexcept {
  if (bytes > kMost) return {};
  const int cls = class_of(bytes);
  const int last = cls < kFirstLarge ? cls : std::min(cls + more, kClasses - 1);
  Pool& p = pool();
  Block block{nullptr, capacity_of(cls)};
  {
    const std::lock_guard lock(p.mutex);
    for (int c = cls; c <= last; ++c) {
      Idle*& head = p.idle[static_cast<std::size_t>(c)];
      if (head == nullptr) continue;
      block = {reinterpret_cast<std::byte*>(head), capacity_of(c)};
      head = head->next;
      p.stats.idle_bytes -= static_cast<std::int64_t>(block.bytes);
      break;
    }
    p.stats.used_bytes += static_cast<std::int64_t>(block.bytes);
    p.stats.peak_bytes = std::max(p.stats.peak_bytes, p.stats.used_bytes);
  }
  if (block.data != nullptr) return block;
  block.data = fresh(block.bytes);
  if (block.data == nullptr) {
    free_idle_memory();
    block.data = fresh(block.bytes);
  }
  if (block.data != nullptr) return block;
  const std::lock_guard lock(p.mutex);
  p.stats.used_bytes -= static_cast<std::int64_t>(block.bytes);
  return {};
}

}  // namespace

void set_poison(bool on) noexcept { poisons = on; }

void poison(Block block) noexcept {
  if (poisons.load(std::memory_order_relaxed) && block.data != nullptr)
    std::memset(block.data, 0xff, block.bytes);
}

Block acquire(std::size_t bytes) noexcept {
  // Sizes that change from call to call shall not fill every class with large blocks.
  const Block block = take(bytes, 4);
  poison(block);
  return block;
}

Block acquire_for_launch(std::size_t bytes) noexcept {
  const Block block = take(bytes, kClasses);
  if (block.data != nullptr) poison({block.data, bytes});
  return block;
}

void release(Block block) noexcept {
  if (block.data == nullptr) return;
  const auto count = static_cast<std::int64_t>(block.bytes);
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.stats.used_bytes -= count;
  p.stats.idle_bytes += count;
  Idle*& head = p.idle[static_cast<std::size_t>(class_of(block.bytes))];
  head = new (block.data) Idle{head};
  if (p.budget > 0 && p.stats.idle_bytes > p.budget) trim(p, p.budget);
}

MemoryStats memory_stats() noexcept {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  return p.stats;
}

void reset_memory_peak() noexcept {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.stats.peak_bytes = p.stats.used_bytes;
}

void set_memory_budget(std::int64_t bytes) noexcept {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.budget = bytes;
  if (bytes > 0) trim(p, bytes);
}

void free_idle_memory() noexcept {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  trim(p, 0);
}

}  // namespace tilevm::exec
