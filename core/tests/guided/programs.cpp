// Guided by coverage (libFuzzer): bytes are a program. What verify() accepts survives a round trip
// through text, and stays inside its operands on every tier.
#include <cstdlib>

#include "tests/guarded_runs.h"
#include "tests/mutator.h"

namespace {

using namespace tilevm;
using Bytes = std::vector<std::byte>;

// Launches depend on the program alone, so that a file of the corpus always does the same.
std::uint64_t seed_of(const Bytes& bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 1099511628211u;
  return hash;
}

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  const Bytes bytes(first, first + size);
  if (!bytecode::verify(bytes).empty()) return 0;
  check(bytecode::assemble(bytecode::disassemble(bytes)) == bytes);
  test::ProgramGenerator random(seed_of(bytes));
  test::GuardedRuns runs(random);
  check(runs.run(bytes, static_cast<int>(test::ProgramOptions{}.gathered)) == 0);
  return 0;
}

// Half of the mutants know what a program is.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  test::ProgramGenerator random(seed);
  Bytes bytes(reinterpret_cast<std::byte*>(data), reinterpret_cast<std::byte*>(data) + size);
  if (size == 0 || seed % 64 == 1) bytes = random.next({.max_instrs = 20});
  test::Mutator(random).mutate(bytes);
  bytes.resize(std::min(bytes.size(), most));
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}
