// Runs a program that verify() accepted on every tier of this processor: whatever check_launch()
// accepts runs without touching memory outside its operands. Operands end at a page that faults, in
// a second run they begin at one.
#pragma once

#include <cstdio>
#include <vector>

#include "exec/check.h"
#include "tests/check.h"
#include "tests/random_launch.h"
#include "tests/tier.h"

namespace tilevm::test {

class GuardedRuns {
 public:
  using Bytes = std::vector<std::byte>;
  struct Counts {
    int by_status[4] = {};
    int in_place = 0;
    int native = 0;
  };

  explicit GuardedRuns(ProgramGenerator& random) : launches_(random) {}

  const Counts& counts() const { return counts_; }

  // 0 if the program runs as it must, with operands at either side of their guard pages.
  int run(const Bytes& bytes, int gathered) {
    const bytecode::View program = bytecode::view(bytes);
    const RandomLaunch launch = launches_.next(program, gathered);
    for (const exec::native::Target target : exec::native::kTargets) {
      if (!exec::native::available(target)) continue;
      if (run(program, Ready(bytes, target), launch) != 0) {
        std::fprintf(stderr, "on %s\n", exec::native::name(target));
        return 1;
      }
    }
    return 0;
  }

 private:
  // What the operands hold after a run.
  static std::vector<Bytes> contents(const RandomLaunch& launch) {
    std::vector<Bytes> result;
    for (const exec::Extent& extent : launch.extents) result.emplace_back(extent.lo, extent.hi);
    return result;
  }

  int run(const bytecode::View& program, const Ready& kernel, RandomLaunch launch) {
    counts_.native += kernel.native(launch.launch());
    exec::Status status[2];
    std::vector<Bytes> after[2];
    for (const Side side : {Side::kRight, Side::kLeft}) {
      launches_.place(launch, side);
      CHECK(exec::check_launch(program, launch.launch(), launch.extents) == "");
      const int s = static_cast<int>(side);
      status[s] = kernel.run(launch.launch(), scratch_);
      CHECK(LaunchGenerator::only_outputs_changed(program, launch));
      after[s] = contents(launch);
    }
    CHECK(status[0] == status[1]);
    ++counts_.by_status[static_cast<int>(status[0])];
    if (status[0] != exec::Status::kOk) return 0;
    CHECK(after[0] == after[1]);
    for (std::size_t out = 0; out < program.operands.size(); ++out) {
      for (std::size_t in = 0; in < program.operands.size(); ++in) {
        if (run_in_place(program, kernel, launch, out, in) != 0) return 1;
      }
    }
    return 0;
  }

  // Where check_launch lets output `out` be input `in`, the results are those of separate memory.
  int run_in_place(const bytecode::View& program, const Ready& kernel, RandomLaunch launch,
                   std::size_t out, std::size_t in) {
    const bytecode::OperandInfo& from = program.operands[in];
    const bytecode::OperandInfo& to = program.operands[out];
    if (to.role != bytecode::Role::kOutput || from.role != bytecode::Role::kInput ||
        to.storage != from.storage || to.cls != from.cls || to.contiguous != from.contiguous) {
      return 0;
    }
    launch.bindings[in] = launch.bindings[out];
    launch.memory[in].base = launch.memory[out].base;
    std::vector<std::byte>& image = launch.memory[in].image;
    const std::size_t bytes = launch.memory[out].image.size();
    while (image.size() < bytes) image.insert(image.end(), image.begin(), image.end());
    image.resize(bytes);
    launch.memory[out].image = image;
    launches_.place(launch, Side::kRight);
    if (!exec::check_launch(program, launch.launch(), launch.extents).empty()) return 0;
    const exec::Status status = kernel.run(launch.launch(), scratch_);
    std::vector<Bytes> separate = contents(launch);
    separate[in] = separate[out];

    launch.memory[in].same_as = static_cast<int>(out);
    launches_.place(launch, Side::kRight);
    if (!exec::check_launch(program, launch.launch(), launch.extents).empty()) return 0;
    CHECK(kernel.run(launch.launch(), scratch_) == status);
    if (status == exec::Status::kOk) CHECK(contents(launch) == separate);
    ++counts_.in_place;
    return 0;
  }

  LaunchGenerator launches_;
  exec::interp::Scratch scratch_;
  Counts counts_;
};

}  // namespace tilevm::test
