// Why values are stored between kernels: what kept an operator out of a kernel, as the fuser met
// it. Recording is a few words; text is made when somebody reads it.
#pragma once

#include <cstdint>
#include <string>

#include "program/program.h"

namespace tilevm::fuse {

enum class Bar : std::uint8_t {
  kNone,
  // Who reads the value needs memory.
  kResult,
  kCallOut,
  kFactor,
  kTable,
  kIndices,
  kLayout,  // a, b: dims that would have to be equal, if it is that
  kPlace,   // stored straight into its part of a concatenation
  // Limits of a kernel. number: how much it would have been
  kOperators,
  kLoads,
  kAxes,
  // Axes. a, b: sizes that were compared
  kDisagree,
  kDiagonal,
  kOtherAxis,
  kOtherFold,
  kNoFold,
  kPart,
  kPartOfFold,
  // It would be computed again at every point of a larger space. a: the axis; number: its cost
  kAgainFold,
  kAgainCost,
  kAgainUsed,
  kOrder,  // node: what has to run between the two
  kAfter,
  // Behind a product, for some rows at a time.
  kReadElsewhere,
  kNotByRows,
  kOtherRows,
  kTooEarly,
  kOneFactor,
};

struct Why {
  Bar bar = Bar::kNone;
  SizeId a = shape::kNoSize, b = shape::kNoSize;
  std::int32_t number = 0;
  std::int32_t node = -1;  // of the program
};

// `value` is in memory for the operator `reader`, -1: for whoever called.
struct Decision {
  ValueId value;
  std::int32_t reader;
  Why why;
};

// What was decided, as a sentence without its dot; and the fact, or the unknown, behind it: empty
// where the sentence says it all.
std::string reason(const Why& why);
std::string fact(const Program& program, const Why& why);

}  // namespace tilevm::fuse
