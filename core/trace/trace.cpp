#include "trace/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>

namespace tilevm::trace {

namespace state {
std::atomic<bool> taking{false};
std::atomic<int> level{0};
}  // namespace state

namespace {

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t thread_number() noexcept {
  thread_local const std::int64_t number = syscall(SYS_gettid);
  return number;
}

struct Kept {
  std::mutex mutex;
  std::vector<Event> events;  // has its memory from the start
  std::size_t most = 0;
  std::int64_t began_ns = 0;
  std::int64_t dropped = 0;
};

Kept& kept() {
  static auto* const made = new Kept;
  return *made;
}

std::atomic<void (*)(int, std::string)> listener_of_lines{nullptr};

}  // namespace

bool start(std::size_t most) {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  if (taking()) return false;
  k.events.reserve(most);
  k.most = most;
  k.dropped = 0;
  k.began_ns = now_ns();
  state::taking.store(true);
  return true;
}

Taken stop() {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  state::taking.store(false);
  Taken taken{std::move(k.events), k.dropped};
  k.events = {};
  return taken;
}

void after_fork() noexcept { state::taking.store(false); }

void Span::begin(const char* kind, std::string_view name) noexcept {
  kind_ = kind;
  name_ = name;
  begin_ns_ = now_ns();
}

void Span::end() noexcept { add(kind_, name_, begin_ns_, now_ns()); }

void add(const char* kind, std::string_view name, std::int64_t begin_ns,
         std::int64_t end_ns) noexcept {
  Event event{kind, {}, begin_ns, end_ns, thread_number()};
  name = name.substr(0, event.name.size() - 1);
  std::ranges::copy(name, event.name.begin());
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  if (!taking() || begin_ns < k.began_ns) return;  // the trace that it began in has ended
  if (k.events.size() < k.most) {
    k.events.push_back(event);
  } else {
    ++k.dropped;
  }
}

void listen(int level, void (*listener)(int level, std::string line)) {
  listener_of_lines.store(listener);
  state::level.store(level);
}

void tell(int level, std::string line) {
  const auto listener = listener_of_lines.load();
  if (listener != nullptr) listener(level, std::move(line));
}

}  // namespace tilevm::trace
