// Tests of kernels that are compiled for several instruction sets and chosen once a process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "exec/interp/targets.h"
// clang-format off
#include <hwy/highway.h>
// clang-format on

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tilevm::testing {

// Calls test(name), which returns the number of failures, in a process of its own for each target
// of this machine; `only`: for this one, if it is not empty. Returns what main() does.
template <class Test>
int on_each_target(std::string_view only, const Test& test) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // processes write in turn
  int failed = 0;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const std::int64_t bit = left & -left;
    const char* const name = hwy::TargetName(bit);
    if (!only.empty() && only != name) continue;
    const pid_t child = fork();
    if (child == 0) {
      hwy::SetSupportedTargetsForTest(bit);
      std::exit(test(name) != 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::printf("%s failed: status %d\n", name, status);
      ++failed;
    }
  }
  std::printf(failed == 0 ? "ok\n" : "%d targets failed\n", failed);
  return failed != 0;
}

}  // namespace tilevm::testing
