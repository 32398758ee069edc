// What a thread's recorded operators ran as, for explain.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/executable.h"

namespace tilevm::eager {

// A segment that a thread ran, and what made it run.
struct SegmentRun {
  std::string reason;
  std::shared_ptr<host::Executable> executable;
  std::optional<host::Profile> profile;
};
// What a thread noted: its segments, and the operators on tensors that it did not record.
struct Watched {
  std::vector<SegmentRun> segments;
  std::vector<std::string> eager;
};
// The calling thread notes what it runs from now on, or gives back what it has noted.
void watch_segments();
Watched watched_segments();
// How many segments and operators it has noted so far.
std::pair<std::size_t, std::size_t> watched_so_far();

}  // namespace tilevm::eager
