#include "exec/native/symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <new>

namespace tilevm::exec::native {
namespace {

// Source of the formats: Linux, tools/perf/Documentation, jit-interface.txt (map) and
// jitdump-specification.txt.
struct DumpHeader {
  std::uint32_t magic = 0x4A695444;  // "JiTD"
  std::uint32_t version = 1;
  std::uint32_t total_size = sizeof(DumpHeader);
#if defined(__aarch64__)
  std::uint32_t machine = EM_AARCH64;
#else
  std::uint32_t machine = EM_X86_64;
#endif
  std::uint32_t pad = 0;
  std::uint32_t pid;
  std::uint64_t timestamp;
  std::uint64_t flags = 0;
};
static_assert(sizeof(DumpHeader) == 40);

struct CodeLoad {
  std::uint32_t id = 0;  // JIT_CODE_LOAD
  std::uint32_t total_size;
  std::uint64_t timestamp;
  std::uint32_t pid, tid;
  std::uint64_t vma, code_address, code_size, index;
};
static_assert(sizeof(CodeLoad) == 56);

std::uint64_t now() {  // as `perf record --clockid mono`
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// The file that perf looks for, by this process's number; another one after a fork.
class File {
 public:
  // -1 if it cannot be opened. It belongs to us: nobody else's link is followed.
  int open(Perf perf) {
    if (pid_ == getpid() && perf_ == perf) return file_;
    if (file_ >= 0) close(file_);
    pid_ = getpid();
    perf_ = perf;
    char path[64];
    std::snprintf(path, sizeof path, perf == Perf::kMap ? "/tmp/perf-%d.map" : "/tmp/jit-%d.dump",
                  static_cast<int>(pid_));
    const int how = perf == Perf::kMap ? O_APPEND | O_WRONLY : O_TRUNC | O_RDWR;
    file_ = ::open(path, O_CREAT | O_CLOEXEC | O_NOFOLLOW | how, 0600);
    if (perf == Perf::kJitdump && file_ >= 0) begin_dump();
    return file_;
  }

 private:
  void begin_dump() {
    DumpHeader header;
    header.pid = static_cast<std::uint32_t>(pid_);
    header.timestamp = now();
    if (write(file_, &header, sizeof header) != sizeof header) return;
    // Never read: perf sees the file being mapped, and knows by it where the dump is.
    const long page = sysconf(_SC_PAGESIZE);
    mmap(nullptr, static_cast<std::size_t>(page), PROT_READ | PROT_EXEC, MAP_PRIVATE, file_, 0);
  }

  pid_t pid_ = 0;
  Perf perf_ = Perf::kOff;
  int file_ = -1;
};

struct State {
  std::atomic<Perf> perf{Perf::kOff};
  std::mutex mutex;
  std::atomic<const Debugger*> debugger{nullptr};
  std::atomic<const Debugger*> told{nullptr};  // of some function
  File file;
  std::uint64_t functions = 0;
};

// Never destroyed: threads may emit while the process ends.
State& state() {
  static State* const instance = [] {
    static State* made = new State;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *instance;
}

void write_map_line(int file, std::span<const std::byte> code, std::string_view name) {
  char line[512];
  const int n = std::snprintf(line, sizeof line, "%llx %zx %.*s\n",
                              reinterpret_cast<unsigned long long>(code.data()), code.size(),
                              static_cast<int>(name.size()), name.data());
  // perf takes a line that was cut short as it is, but it must end.
  if (n >= static_cast<int>(sizeof line)) line[sizeof line - 2] = '\n';
  const auto bytes = std::min(static_cast<std::size_t>(n), sizeof line - 1);
  if (write(file, line, bytes) < 0) return;
}

void write_dump_record(int file, std::span<const std::byte> code, std::string_view name,
                       std::uint64_t index) {
  CodeLoad record;
  record.total_size = static_cast<std::uint32_t>(sizeof record + name.size() + 1 + code.size());
  record.timestamp = now();
  record.pid = static_cast<std::uint32_t>(getpid());
  record.tid = static_cast<std::uint32_t>(syscall(SYS_gettid));
  record.vma = record.code_address = reinterpret_cast<std::uint64_t>(code.data());
  record.code_size = code.size();
  record.index = index;
  char zero = 0;
  const iovec parts[] = {{&record, sizeof record},
                         {const_cast<char*>(name.data()), name.size()},
                         {&zero, 1},
                         {const_cast<std::byte*>(code.data()), code.size()}};
  if (writev(file, parts, 4) < 0) return;
}

}  // namespace

void set_perf(Perf perf) noexcept { state().perf = perf; }

void set_debugger(const Debugger* debugger) noexcept { state().debugger = debugger; }

bool wants_names() noexcept {
  const State& s = state();
  return s.perf.load(std::memory_order_relaxed) != Perf::kOff ||
         s.debugger.load(std::memory_order_relaxed) != nullptr;
}

void announce(std::span<const std::byte> code, std::string_view name) noexcept {
  State& s = state();
  const Perf perf = s.perf.load();
  const std::lock_guard lock(s.mutex);
  if (const Debugger* debugger = s.debugger.load(); debugger != nullptr) {
    s.told = debugger;
    try {
      debugger->add(code, name);
    } catch (const std::bad_alloc&) {  // it runs without a name
    }
  }
  if (perf == Perf::kOff) return;
  const int file = s.file.open(perf);
  if (file < 0) return;
  if (perf == Perf::kMap) return write_map_line(file, code, name);
  write_dump_record(file, code, name, s.functions++);
}

void withdraw(const void* code) noexcept {
  State& s = state();
  const Debugger* told = s.told.load(std::memory_order_relaxed);
  if (told == nullptr) return;
  const std::lock_guard lock(s.mutex);
  told->remove(code);
}

}  // namespace tilevm::exec::native
