// What a thread's recorded operators ran as, for explain.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/executable.h"

namespace tilevm::eager {

// A segment that a thread ran, and what made it run.
struct SegmentRun {
  std::string reason;
  std::shared_ptr<host::Executable> executable;
  std::optional<host::Profile> profile;
};
// The calling thread notes what it runs from now on, or gives back what it has noted.
void watch_segments();
std::vector<SegmentRun> watched_segments();

}  // namespace tilevm::eager
