// What one call took, step by step, and the sizes that it had.
#pragma once

#include <string>
#include <vector>

#include "host/record.h"

namespace tilevm::host {

class Executable;

struct Profile {
  std::int64_t begin_ns = 0;           // inputs and sizes
  std::vector<std::int64_t> steps_ns;  // by step
  std::int64_t end_ns = 0;             // outputs
  std::vector<std::int64_t> sizes;     // by SizeId: those that the size program computes
  std::vector<Record> records;         // by value; addresses are of the past
};

// What a step had to do at least: each operand once, and the operations of its elements.
struct Work {
  double read_bytes = 0, written_bytes = 0;
  double flops = 0;                                        // of matrix products
  std::string factors;                                     // their dtype
  std::vector<std::pair<std::string, double>> operations;  // elements by instruction
};

// Of every step of the call. Call-outs count the bytes of their tensors alone.
std::vector<Work> work(const Executable& executable, const Profile& profile);

}  // namespace tilevm::host
