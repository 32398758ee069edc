// Runs what traces have recorded: equal ones share a program, new ones are compiled on the spot.
// The recorder is a module of its own, built against PyTorch: it reaches the core through this
// interface, which therefore throws nothing but where a number is wrong.
#pragma once

#include <memory>
#include <string>

#include "eager/trace.h"
#include "exec/gemm/tiles.h"

namespace tilevm::eager {

inline constexpr int kEngineVersion = 5;  // of this interface; a recorder must have the same
inline constexpr const char* kEngineName = "tilevm._core.eager_engine";  // of its capsule

// Memory of an output. `owner` is given back with release().
struct Filled {
  std::byte* data = nullptr;
  void* owner = nullptr;
};

struct Failure {
  enum class Kind : std::uint8_t { kNone, kIndex, kDivision, kMemory, kShape, kInternal };
  Kind kind = Kind::kNone;
  std::string message;
};

struct EngineStats {
  std::int64_t segments = 0;  // programs held
  std::int64_t hits = 0, misses = 0;
};

// How the framework would run.
struct Wanted {
  int threads = 1;
  int (*pieces)() noexcept = nullptr;  // see host::Framework::float32_pieces(); null: the most
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Runs the operators and fills the outputs, in the order in which they were named, but for those
  // that are written to an input. False: `failure` says why, nothing is filled. Any number of
  // threads may be in here.
  virtual bool run(const Trace& trace, std::span<Filled> outputs, Wanted wanted,
                   Failure& failure) noexcept = 0;
  // Owners may be given back from any thread.
  virtual void release(void* owner) noexcept = 0;
  // Counts a segment that ran, by what made it run.
  virtual void count_flush(const char* reason) noexcept = 0;
  // Whether the calling thread notes what it runs; then, an operator that was not recorded.
  virtual bool watching() noexcept = 0;
  virtual void note_eager(const char* name) noexcept = 0;
  // The template of a number that add_template() gave.
  virtual const Template& template_of(std::int32_t number) = 0;
  // How many calls of a kind there are before a template is asked for; 0: none is.
  virtual std::int64_t template_calls() noexcept = 0;
  // How the calling thread writes what its recorded operators in place still owe to memory.
  virtual void set_finish(bool (*finish)(Failure& failure) noexcept) noexcept = 0;
};

// Before a program of another door reads memory: true at once where nothing was ever recorded.
bool finish_writes(Failure& failure) noexcept;

// `threads` overrides those of the framework, unless it returns 0.
std::unique_ptr<Engine> make_engine(int (*threads)() noexcept);

EngineStats engine_stats() noexcept;
void reset_engine_stats() noexcept;
void set_most_segments(std::int64_t count) noexcept;
void set_template_calls(std::int64_t count) noexcept;
std::vector<std::pair<std::string, std::int64_t>> flush_counts();
// The programs held, most recently used first, as text.
std::vector<std::string> segment_texts();

}  // namespace tilevm::eager
