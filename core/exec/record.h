// Launches with what they read and wrote, in a file: core/tests/replay_launches.cpp runs them again
// on other tiers and processors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bytecode/bytecode.h"
#include "exec/launch.h"

namespace tilevm::exec {

struct RecordedLaunch {
  std::vector<std::byte> program;
  Space space;
  Status status = Status::kOk;
  std::vector<Binding> bindings;  // without addresses
  struct Memory {
    std::int64_t base = 0;                 // offset of the first element
    std::vector<std::byte> before, after;  // empty for scratch and iota; after: of outputs
  };
  std::vector<Memory> memory;
};

// Records into a file until it is called with an empty path.
void record_launches(const std::string& path);
bool recording();

// Runs a launch by `run`, and writes it if it is small and its program not yet known well.
Status record(std::span<const std::byte> program, const Launch& launch,
              const std::function<Status()>& run);

std::vector<RecordedLaunch> read_launches(const std::string& path);  // throws std::runtime_error

}  // namespace tilevm::exec
