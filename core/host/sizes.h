// The size program of an executable: symbols bound from the sizes of what comes in, then all other
// sizes evaluated and checked. Call-outs can bring new symbols, so evaluation goes in stages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "host/record.h"
#include "shape/size.h"

namespace tilevm::host {

// A value whose sizes are facts of the call: an input, or a result of a call-out.
struct Arrival {
  ValueId value;
  std::string name;  // for errors
};

// Python ints of the call that bind symbols.
struct IntSymbol {
  ValueId value;
  SizeId symbol;
  std::string name;
};

class SizeProgram {
 public:
  // Arrivals must be added in the order in which they happen; `begin_stage` first. Returns the
  // stage's index. Stage 0 is the inputs.
  int add_stage(const Program& program, std::span<const Arrival> arrivals,
                std::span<const IntSymbol> ints = {});
  // After all stages. `wanted`: every size that a step reads. Throws ShapeError if one of them
  // depends on a symbol that nothing binds.
  void compile(const Program& program, std::span<const SizeId> wanted);

  // Is the symbol bound by a stage that was added?
  bool binds(SizeId symbol) const {
    const auto i = static_cast<std::size_t>(symbol);
    return i < bound_.size() && bound_[i] >= 0;
  }
  int registers() const { return n_registers_; }
  int stages() const { return static_cast<int>(stages_.size()); }
  // First stage after which the size is known.
  int stage_of(SizeId size) const { return stage_[static_cast<std::size_t>(size)]; }
  // Registers as a call starts: constants are set.
  std::span<const std::int64_t> initial() const { return initial_; }

  // Binds, evaluates and checks one stage. `ints` are indexed by value. Throws ShapeError.
  void run(int stage, const shape::SizeTable& sizes, std::span<const Record> records,
           std::span<const std::int64_t> ints, std::span<std::int64_t> regs) const;

 private:
  struct Dim {
    ValueId value;
    std::int32_t dim;
    SizeId size;
    std::int32_t name;  // into names_
  };
  // size = a * symbol + b was solved for the symbol
  struct Linear {
    Dim dim;
    SizeId symbol;
    std::int64_t a, b;
  };
  struct Bound {
    Dim source;  // dim -1: an integer
    SizeId symbol;
    shape::Range range;
  };
  struct Equal {
    SizeId a, b;
    std::int32_t check;  // of Program::checks
  };
  struct Stage {
    std::vector<IntSymbol> ints;
    std::vector<Dim> binds;
    std::vector<Linear> solved;
    std::vector<Bound> ranges;
    std::vector<shape::SizeStep> steps;
    std::vector<Dim> dims;  // equality with what arrived
    std::vector<Equal> equal;
  };

  void bind(const shape::SizeTable& sizes, const Dim& source, SizeId symbol, int stage);
  void solve(const shape::SizeTable& sizes, int stage);
  [[noreturn]] void fail(const Dim& dim, const shape::SizeTable& sizes, std::int64_t expected,
                         std::int64_t actual) const;

  std::vector<Stage> stages_;
  std::vector<std::string> names_;
  std::vector<std::string> messages_;
  std::vector<int> bound_;  // stage by symbol id
  std::vector<int> stage_;  // by register; kNever: not computed
  std::vector<std::int64_t> initial_;
  int n_registers_ = 0;
};

}  // namespace tilevm::host
