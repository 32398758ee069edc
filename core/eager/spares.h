// Memory of objects that are gone, for the next ones of their type: many end at once where a
// segment has run, which is more than malloc() keeps at hand.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace tilevm::eager {

// Of the calling thread. What a class has for `operator new` and `operator delete`.
template <class T, std::size_t kMost>
class Spares {
 public:
  static void* take(std::size_t bytes) {
    State& own = state_;
    return own.n > 0 ? own.memory[--own.n] : ::operator new(bytes);
  }
  static void give(void* memory) noexcept {
    State& own = state_;
    if (own.n == kMost || own.ended) return ::operator delete(memory);
    if (own.n == 0) end_.alive = true;  // makes it
    own.memory[own.n++] = memory;
  }

 private:
  struct State {
    std::array<void*, kMost> memory;
    std::size_t n;
    bool ended;  // the thread is about to; objects may end after that
  };
  struct End {
    bool alive = true;
    ~End() {
      state_.ended = true;
      while (state_.n > 0) ::operator delete(state_.memory[--state_.n]);
    }
  };
  static inline thread_local constinit State state_{};
  static inline thread_local End end_;
};

}  // namespace tilevm::eager
