#include "exec/threads.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace tilevm::exec {
namespace {

// GNU OpenMP's entry points (libgomp ABI); the Intel and LLVM runtimes offer them as well.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using ThreadNumber = int (*)();
using TeamSize = int (*)();

struct Runtime {
  Parallel parallel = nullptr;
  ThreadNumber thread = nullptr;
  TeamSize size = nullptr;
};

std::atomic<bool> forked{false};

// The loaded library whose name says it is an OpenMP runtime.
int find(dl_phdr_info* info, std::size_t, void* result) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  if (std::strncmp(name, "libgomp", 7) != 0 && std::strncmp(name, "libomp", 6) != 0 &&
      std::strncmp(name, "libiomp", 7) != 0)
    return 0;
  void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  auto* runtime = static_cast<Runtime*>(result);
  runtime->parallel = reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel"));
  runtime->thread = reinterpret_cast<ThreadNumber>(dlsym(library, "omp_get_thread_num"));
  runtime->size = reinterpret_cast<TeamSize>(dlsym(library, "omp_get_num_threads"));
  if (runtime->parallel != nullptr && runtime->thread != nullptr && runtime->size != nullptr)
    return 1;
  *runtime = {};
  return 0;
}

// Looked for again until one is there: torch may be imported after us.
const Runtime* runtime() {
  static std::atomic<const Runtime*> found{nullptr};
  if (const Runtime* r = found.load(std::memory_order_acquire)) return r;
  static Runtime storage[2];  // a race fills both alike
  static std::atomic<int> next{0};
  Runtime candidate;
  dl_iterate_phdr(find, &candidate);
  if (candidate.parallel == nullptr) return nullptr;
  const int slot = next.fetch_add(1);
  if (slot > 1) return found.load(std::memory_order_acquire);
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  (void)at_fork;
  storage[slot] = candidate;
  found.store(&storage[slot], std::memory_order_release);
  return &storage[slot];
}

// A team's threads begin and end by futexes of libgomp, which ThreadSanitizer does not see: it is
// told that what a thread did before one is done when another is behind the other.
void hand_over([[maybe_unused]] void* job) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(job);
#endif
}
void take_over([[maybe_unused]] void* job) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(job);
#endif
}

void run_team(const Runtime& runtime, void (*member)(void*), void* job, int n) {
  hand_over(job);
  runtime.parallel(member, job, static_cast<unsigned>(n), 0);
  take_over(job);
}

struct Job {
  void (*work)(void*, int);
  void* data;
  int n;
  const Runtime* runtime;
};

void member(void* argument) {
  take_over(argument);
  const auto* job = static_cast<const Job*>(argument);
  const int team = job->runtime->size();  // may be smaller than asked for
  for (int i = job->runtime->thread(); i < job->n; i += team) job->work(job->data, i);
  hand_over(argument);
}

constexpr int kMostShares = 64;

// What each thread has to do, and how far it is.
struct Shares {
  void (*work)(void*, int);
  void* data;
  int n, each;
  const Runtime* runtime;
  struct alignas(64) Share {
    std::atomic<int> next{0};
  } share[kMostShares];
};

void sharing_member(void* argument) {
  take_over(argument);
  auto* shares = static_cast<Shares*>(argument);
  const int own = shares->runtime->thread();
  for (int k = 0; k < shares->n; ++k) {
    const int t = (own + k) % shares->n;
    std::atomic<int>& next = shares->share[t].next;
    for (int i = next++; i < shares->each; i = next++)
      shares->work(shares->data, t * shares->each + i);
  }
  hand_over(argument);
}

}  // namespace

bool has_team() noexcept { return !forked.load(std::memory_order_relaxed) && runtime() != nullptr; }

void parallel(int n, void (*work)(void*, int), void* data) noexcept {
  parallel(n, 1, work, data);
}

void parallel(int n, int each, void (*work)(void*, int), void* data) noexcept {
  const Runtime* r = n > 1 && !forked.load(std::memory_order_relaxed) ? runtime() : nullptr;
  if (r == nullptr) {
    for (int i = 0; i < n * each; ++i) work(data, i);
  } else if (each == 1 || n > kMostShares) {
    Job job{work, data, n * each, r};
    run_team(*r, member, &job, n);
  } else {
    Shares shares{work, data, n, each, r, {}};
    run_team(*r, sharing_member, &shares, n);
  }
}

}  // namespace tilevm::exec
