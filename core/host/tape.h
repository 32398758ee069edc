// A call like one that was made before: of the same sizes, strides and integers, so that only
// addresses differ. The second such call is noted, launch by launch; later ones run what was noted.
#pragma once

#include <memory>
#include <vector>

#include "host/executable.h"
#include "schedule/tape.h"

namespace tilevm::host {

inline constexpr std::size_t kMostTapes = 16;  // of a frame

struct Executable::Tape {
  enum class State : std::uint8_t {
    kSeen,   // calls were like this, none was noted
    kReady,  // one was noted
    kNever   // what such calls do is not only launches on one thread
  };
  // Which address of an action: an operand of a kernel; of a product or packing 0: a, 1: b, 2: out;
  // of a loop 0 to 2: in, 3: out.
  struct Where {
    std::size_t action;
    int operand;
  };
  // An address that moves with the memory of an input or a result, or with the arena.
  static constexpr ValueId kArena = -2;
  struct Address {
    Where where;
    ValueId base;
    std::int64_t offset;
    void* slot = nullptr;  // of the pointer, once the tape is complete
  };
  // A tensor that the call makes.
  struct Made {
    ValueId value;
    std::int64_t elements;
    Record record;
    std::int32_t held;  // as HostStep
  };
  // A value that outputs are made from. base -1: its address is always the same.
  struct Kept {
    ValueId value;
    Record record;
    ValueId base;
    std::int64_t offset;
  };

  std::vector<std::int64_t> key;
  State state = State::kSeen;
  std::unique_ptr<schedule::Tape> launches;
  std::vector<std::int32_t> kernels;  // by action, for errors; -1: a product; of a loop -2 - node
  std::vector<Address> addresses;
  std::vector<Made> made;
  std::vector<Kept> kept;
  std::vector<std::int64_t> regs;
  std::vector<std::weak_ptr<const float>> packed;  // factors that were packed ahead
  std::size_t arena_bytes = 0;
  std::int64_t n_launches = 0;
};

}  // namespace tilevm::host
