// Fuzzes every tier of this processor with random programs and mutants; see guarded_runs.h.
//
//   fuzz_launch [iterations] [seed]
#include <cstdio>
#include <cstdlib>

#include "tests/guarded_runs.h"
#include "tests/mutator.h"

namespace tilevm::test {
namespace {

using Bytes = std::vector<std::byte>;

int run(long iterations, std::uint64_t seed) {
  ProgramGenerator random(seed);
  Mutator mutator(random);
  GuardedRuns runs(random);
  long mutants = 0;
  for (long i = 0; i < iterations;) {
    ProgramOptions options;
    options.max_instrs = 30;
    options.traps = random.chance(40);
    Bytes bytes = random.next(options);
    const bool mutant = random.chance(90);  // few of them are valid
    if (mutant) mutator.mutate(bytes);
    if (!bytecode::verify(bytes).empty()) continue;
    const int gathered = random.chance(5) ? 0 : static_cast<int>(options.gathered);
    if (runs.run(bytes, gathered) != 0) {
      std::fprintf(stderr, "seed %llu, iteration %ld:\n%s", static_cast<unsigned long long>(seed),
                   i, bytecode::disassemble(bytes).c_str());
      return 1;
    }
    mutants += mutant;
    ++i;
  }
  const GuardedRuns::Counts& counts = runs.counts();
  std::printf(
      "%ld programs (%ld mutants) ran twice on every tier, %d times as machine code, %d in place: "
      "%d ok, %d index, %d division, %d memory\n",
      iterations, mutants, counts.native, counts.in_place, counts.by_status[0], counts.by_status[1],
      counts.by_status[2], counts.by_status[3]);
  return 0;
}

}  // namespace
}  // namespace tilevm::test

int main(int argc, char** argv) {
  const long iterations = argc > 1 ? std::atol(argv[1]) : 10000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return tilevm::test::run(iterations, seed);
}
