// Steps that run other executables: branches, and loops whose test and body are graphs.
#pragma once

#include <cstdint>
#include <vector>

#include "host/framework.h"

namespace tilevm::host {

class Executable;

// One of the executables of a step. It is made with Options::nested, and is of this step alone.
struct Part {
  Executable* executable = nullptr;  // borrowed
  std::vector<int> inputs;           // by its input: which operand of the step
};

// What a step runs instead of a call-out.
struct Nest {
  enum class Kind : std::uint8_t {
    // The first of its inputs chooses between two parts, which take the others as operands and
    // whose outputs are the results: the first part if it is true.
    kBranch,
    // Two parts, of which the second runs as long as the only output of the first is true. The
    // first operands are carried: outputs of the second take their place, and are the results.
    kRepeat
  };
  Kind kind = Kind::kBranch;
  std::vector<Part> parts;

  int first_operand() const { return kind == Kind::kBranch ? 1 : 0; }
};

// A value that one executable hands to another.
struct Passed {
  const Record* record = nullptr;  // of a tensor
  std::int64_t number = 0;         // of a Python number, as its bits
  Object tensor = nullptr;         // borrowed; null where its memory is all that is asked for
};

}  // namespace tilevm::host
