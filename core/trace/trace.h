// What happens in the process: spans of time while a trace is taken, and lines for whoever listens.
// Off, which both are unless Python switches them on, each place costs a relaxed load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tilevm::trace {

struct Event {
  const char* kind = "";        // a literal: "launch"
  std::array<char, 56> name{};  // what was launched, cut to fit, with a 0 behind it
  std::int64_t begin_ns = 0;    // of the steady clock
  std::int64_t end_ns = 0;
  std::int64_t thread = 0;  // as the system numbers it
};

namespace state {
extern std::atomic<bool> taking;
extern std::atomic<int> level;
}  // namespace state

inline bool taking() noexcept { return state::taking.load(std::memory_order_relaxed); }

// Keeps spans that begin from now on, `most` of them; later ones are counted as dropped. False: a
// trace is being taken already.
bool start(std::size_t most);

struct Taken {
  std::vector<Event> events;
  std::int64_t dropped = 0;
};
// Ends it. Spans that have not ended are not in it.
Taken stop();

// In the child of a fork: takes no trace, whatever its parent did.
void after_fork() noexcept;

// The time from its making to its end, if a trace is taken. `name` must live as long.
class Span {
 public:
  explicit Span(const char* kind, std::string_view name = {}) noexcept {
    if (taking()) [[unlikely]]
      begin(kind, name);
  }
  ~Span() {
    if (kind_ != nullptr) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(const char* kind, std::string_view name) noexcept;
  void end() noexcept;

  const char* kind_ = nullptr;
  std::string_view name_;
  std::int64_t begin_ns_ = 0;
};

// Keeps a span that somebody else has timed.
void add(const char* kind, std::string_view name, std::int64_t begin_ns,
         std::int64_t end_ns) noexcept;

// ---- Lines: 2 programs compiled, 3 kernels and cuts, 4 bytecode

inline bool tells(int level) noexcept {
  return state::level.load(std::memory_order_relaxed) >= level;
}

// From now on lines up to `level` go to `listener`, which may be called on any thread, with locks
// of ours held.
void listen(int level, void (*listener)(int level, std::string line));
void tell(int level, std::string line);

}  // namespace tilevm::trace
