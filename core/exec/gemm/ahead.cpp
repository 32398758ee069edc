#include "exec/gemm/ahead.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "exec/memory.h"
#include "exec/threads.h"

namespace tilevm::exec::gemm {

struct Ahead {
  Ahead(const Factor& what, std::shared_ptr<const float> where)
      : factor(what), memory(std::move(where)) {}
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  ~Ahead();

  const Factor factor;
  std::shared_ptr<const float> memory;  // guarded by the store's mutex
};

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kShelf = std::size_t{16} << 20;

// Memory that factors share, one behind the other, so that small ones lie in huge pages, too, of
// which memory is quicker. It goes with the last of them.
struct Shelf {
  explicit Shelf(std::size_t size) {
    if (posix_memalign(&at, kHugePage, size) != 0) at = nullptr;
    if (at == nullptr) return;
    bytes = size;
#ifdef MADV_HUGEPAGE
    madvise(at, size, MADV_HUGEPAGE);  // only a hint
#endif
  }
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;
  ~Shelf() { std::free(at); }

  void* at = nullptr;
  std::size_t bytes = 0, used = 0;
};

// Never destroyed: programs may outlive every static object.
struct Store {
  std::mutex mutex;
  std::vector<std::weak_ptr<Ahead>> all;
  std::weak_ptr<Shelf> open;  // where the next factor is put, if it fits
  std::unordered_set<Owner> owners;
  Owner last = 0;
  std::int64_t limit = 0;
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::uint64_t> changes{1};
};

Store& store() {
  static Store* const instance = [] {
    static Store* made = new Store;
    // A fork may happen while another thread holds the lock.
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *instance;
}

// Null if there is no memory.
std::shared_ptr<float> allocated(Store& s, std::size_t bytes) {
  bytes = (bytes + exec::kAlignment - 1) / exec::kAlignment * exec::kAlignment;
  std::shared_ptr<Shelf> shelf = s.open.lock();
  if (!shelf || shelf->bytes - shelf->used < bytes) {
    const std::size_t size = std::max(kShelf, (bytes + kHugePage - 1) / kHugePage * kHugePage);
    shelf = std::make_shared<Shelf>(size);
    if (shelf->at == nullptr) return nullptr;
    s.open = shelf;
  }
  auto* const from = static_cast<std::byte*>(shelf->at) + shelf->used;
  shelf->used += bytes;
  return {shelf, reinterpret_cast<float*>(from)};
}

// Null if there is no memory for it.
std::shared_ptr<const float> packed(const Tiles& tiles, const Factor& factor, int threads) {
  const auto bytes =
      std::int64_t{sizeof(float)} * packed_elements(tiles, factor.way, {0, factor.n, factor.k});
  Store& s = store();
  if (s.limit > 0 && s.bytes.load(std::memory_order_relaxed) + bytes > s.limit) return nullptr;
  std::shared_ptr<float> place = allocated(s, static_cast<std::size_t>(bytes));
  float* const to = place.get();
  if (to == nullptr) return nullptr;
  s.bytes.fetch_add(bytes, std::memory_order_relaxed);
  std::shared_ptr<const float> memory(to, [place = std::move(place), bytes](const float*) {
    store().bytes.fetch_sub(bytes, std::memory_order_relaxed);
  });
  const std::int64_t width = tiles.columns;
  const std::int64_t panels = (factor.n + width - 1) / width;
  struct Job {
    const Tiles& tiles;
    const Factor& factor;
    float* to;
    std::int64_t panels;
    std::int64_t threads;
  } job{tiles, factor, to, panels, std::clamp<std::int64_t>(threads, 1, panels)};
  parallel(
      static_cast<int>(job.threads),
      [](void* data, int thread) {
        const Job& j = *static_cast<Job*>(data);
        const std::int64_t first = j.panels * thread / j.threads * j.tiles.columns;
        const std::int64_t end = j.panels * (thread + 1) / j.threads * j.tiles.columns;
        pack(j.tiles, j.factor.way, {0, j.factor.n, j.factor.k}, j.factor.b, first,
             std::min(end, j.factor.n) - first, j.to);
      },
      &job);
  return memory;
}

}  // namespace

Ahead::~Ahead() { store().changes.fetch_add(1, std::memory_order_relaxed); }

Owner new_owner() {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  s.owners.insert(++s.last);
  s.changes.fetch_add(1, std::memory_order_relaxed);
  return s.last;
}

SharedAhead share(const Tiles& tiles, const Factor& factor, int threads) {
  if (factor.n <= 0 || factor.k <= 0) return nullptr;
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  if (!s.owners.contains(factor.owner)) return nullptr;
  std::erase_if(s.all, [](const auto& entry) { return entry.expired(); });
  for (const std::weak_ptr<Ahead>& entry : s.all) {
    std::shared_ptr<Ahead> found = entry.lock();
    if (found && found->memory && found->factor == factor) return found;
  }
  std::shared_ptr<const float> memory = packed(tiles, factor, threads);
  if (!memory) return nullptr;
  auto made = std::make_shared<Ahead>(factor, std::move(memory));
  s.all.push_back(made);
  s.changes.fetch_add(1, std::memory_order_relaxed);
  return made;
}

std::shared_ptr<const float> memory(const Ahead& ahead) {
  const std::lock_guard lock(store().mutex);
  return ahead.memory;
}

const Factor& factor(const Ahead& ahead) { return ahead.factor; }

void forget(Owner owner) noexcept {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  s.owners.erase(owner);
  for (const std::weak_ptr<Ahead>& entry : s.all) {
    const std::shared_ptr<Ahead> found = entry.lock();
    if (found && found->factor.owner == owner) found->memory.reset();
  }
  s.changes.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t ahead_changes() noexcept { return store().changes.load(std::memory_order_relaxed); }

std::int64_t ahead_bytes() noexcept { return store().bytes.load(std::memory_order_relaxed); }

void set_ahead_limit(std::int64_t bytes) noexcept {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  s.limit = bytes;
  s.changes.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tilevm::exec::gemm
