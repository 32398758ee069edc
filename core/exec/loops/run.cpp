// Loops cut over threads: along an axis that they keep, so that no result depends on the cut.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#include "exec/loops/elements.h"
#include "exec/threads.h"

namespace tilevm::exec::loops {
namespace {

// Fewer elements than this are not worth another thread. What orders them does more with each.
constexpr std::int64_t kElements = 1 << 15;
constexpr std::int64_t kOrdered = 1 << 12;
constexpr std::int64_t kLine = 64;  // bytes that no two threads should write
constexpr int kParts = 4;           // of a thread, so that one that is late keeps nobody waiting

bool orders(What what) { return what == What::kArgSort || what == What::kArgTopK; }
bool scatters(What what) {
  return what == What::kScatter || what == What::kScatterAdd || what == What::kScatterMul ||
         what == What::kScatterMax || what == What::kScatterMin;
}

std::int64_t result_bytes(const Loop& loop) {
  const bool places = orders(loop.what) || loop.what == What::kSearch;
  return bytecode::storage_bytes(places ? bytecode::Storage::kI64 : loop.storage);
}

Status run_whole(const Loop& loop) {
  if (orders(loop.what)) {
    order(loop);
  } else if (scatters(loop.what)) {
    scatter(loop);
  } else if (loop.what == What::kSearch) {
    search(loop);
  } else {
    scan(loop);
  }
  return Status::kOk;
}

template <class Work>
Status guarded(Work work) noexcept try {
  return work();
} catch (const std::bad_alloc&) {
  return Status::kNoMemory;
}

// One loop cut along an axis that it keeps.
struct Parts {
  const Loop& loop;
  const Array& counted;  // whose sizes say how much there is to do
  int axis = -1;
  std::int64_t step = 1;  // positions that stay together
  int n = 1;
  int each = 1;
  std::atomic<Status> status{Status::kOk};

  Parts(const Loop& l, int threads) : loop(l), counted(counted_of(l)) {
    const bool copies = scatters(l.what) && l.in[0].data != l.out.data;
    const std::int64_t elements = std::max(counted.elements(), copies ? l.out.elements() : 0);
    const std::int64_t most = elements / (orders(l.what) ? kOrdered : kElements);
    threads = static_cast<int>(std::min<std::int64_t>(threads, most));
    if (threads < 2) return;
    // What the result has furthest apart, if there is enough of it: else the longest.
    std::int64_t best = 0, best_apart = 0;
    for (int d = 0; d < counted.rank; ++d) {
      if (d == l.axis && l.what != What::kSearch) continue;  // each search is by itself
      const std::int64_t apart = std::abs(l.out.strides[at(d)]) * result_bytes(l);
      const std::int64_t together = apart == 0 ? 1 : std::max<std::int64_t>(kLine / apart, 1);
      const std::int64_t size = (counted.sizes[at(d)] + together - 1) / together;
      const bool enough = size >= threads && best >= threads;
      if (enough ? apart <= best_apart : size <= best) continue;
      best = size;
      best_apart = apart;
      axis = d;
      step = together;
    }
    n = static_cast<int>(std::clamp<std::int64_t>(best, 1, threads));
    each = static_cast<int>(std::clamp<std::int64_t>(best / n, 1, kParts));
  }

  // Calls work(part) for each, on threads.
  template <class Work>
  Status run(Work work) {
    struct Job {
      Parts& parts;
      Work& work;
    } job{*this, work};
    parallel(
        n, each,
        [](void* data, int i) {
          const auto& of = *static_cast<Job*>(data);
          const Status s = guarded([&] { return of.work(of.parts.part(i)); });
          if (s != Status::kOk) of.parts.status.store(s, std::memory_order_relaxed);
        },
        &job);
    return status.load();
  }

 private:
  static const Array& counted_of(const Loop& l) {
    return l.in[scatters(l.what) ? 2 : l.what == What::kSearch ? 1 : 0];
  }

  Loop part(int i) const {
    const std::int64_t size = counted.sizes[at(axis)];
    const std::int64_t steps = (size + step - 1) / step, parts = std::int64_t{n} * each;
    const std::int64_t begin = steps * i / parts * step;
    const std::int64_t end = std::min(steps * (i + 1) / parts * step, size);
    // Behind the last position lies what a scatter only copies.
    const auto narrow = [&](Array& array, std::int64_t bytes) {
      if (array.rank == 0) return;
      array.data += begin * array.strides[at(axis)] * bytes;
      array.sizes[at(axis)] = (end == size ? array.sizes[at(axis)] : end) - begin;
    };
    Loop result = loop;
    const std::int64_t item = bytecode::storage_bytes(loop.storage);
    const bool all_of_row = loop.what == What::kSearch && axis == loop.axis;
    if (!all_of_row) narrow(result.in[0], item);
    narrow(result.in[1], scatters(loop.what) ? bytecode::storage_bytes(loop.index) : item);
    narrow(result.in[2], item);
    narrow(result.out, result_bytes(loop));
    return result;
  }
};

}  // namespace

Status run(const Loop& loop, int threads) noexcept {
  Parts parts(loop, threads);
  const bool alone = parts.n < 2;
  if (scatters(loop.what)) {
    // Before anything is written: what fails leaves everything as it was.
    const bool same = alone || loop.in[1].strides[at(parts.axis)] == 0;
    const Status s = same ? check_indices(loop) : parts.run(check_indices);
    if (s != Status::kOk) return s;
  }
  return alone ? guarded([&] { return run_whole(loop); }) : parts.run(run_whole);
}

}  // namespace tilevm::exec::loops
