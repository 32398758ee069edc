// Fuzzes the verifier: mutants of valid programs, and random bytes. verify() must accept or reject
// every one without reading out of it, and what it accepts must survive a round trip through text.
//
//   fuzz_bytecode [iterations] [seed]
#include <cstdlib>
#include <memory>

#include "bytecode/bytecode.h"
#include "tests/check.h"
#include "tests/mutator.h"
#include "tests/random_program.h"

namespace tilevm::test {
namespace {

using Bytes = std::vector<std::byte>;

// A block of exactly this size, so that the sanitizer sees a read past it; perhaps misaligned.
std::string verify_exactly(const Bytes& bytes, int misaligned) {
  const auto block = std::make_unique<std::byte[]>(bytes.size() + misaligned);
  if (!bytes.empty()) std::memcpy(block.get() + misaligned, bytes.data(), bytes.size());
  return bytecode::verify({block.get() + misaligned, bytes.size()});
}

int run(long iterations, std::uint64_t seed) {
  ProgramGenerator random(seed);
  Mutator mutator(random);
  long accepted = 0;
  long changed = 0;
  for (long i = 0; i < iterations; ++i) {
    Bytes bytes;
    if (i % 16 == 0) {
      bytes = mutator.random_bytes();
    } else {
      const Bytes original = random.next({.max_instrs = 16});
      bytes = original;
      mutator.mutate(bytes);
      changed += bytes != original;
    }
    if (!verify_exactly(bytes, random.below(8)).empty()) continue;
    ++accepted;
    const std::string text = bytecode::disassemble(bytes);
    CHECK(bytecode::assemble(text) == bytes);
  }
  std::printf("%ld byte strings, %ld mutants differ, %ld accepted\n", iterations, changed,
              accepted);
  return 0;
}

}  // namespace
}  // namespace tilevm::test

int main(int argc, char** argv) {
  const long iterations = argc > 1 ? std::atol(argv[1]) : 100000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return tilevm::test::run(iterations, seed);
}
