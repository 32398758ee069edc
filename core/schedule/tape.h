// What launches came to, one after the other on one thread, to be done again at other addresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "exec/gemm/multiply.h"
#include "exec/launch.h"
#include "exec/loops/loops.h"
#include "exec/memory.h"

namespace tilevm::schedule {

struct Variant;

// A product of a chain, or of some of its rows and columns.
struct Multiplied {
  exec::gemm::Way way;
  exec::gemm::Sizes sizes;
  exec::gemm::Matrix a, b;
  const float* packed;  // b, if the way packs
  float* room;
  std::byte* out;  // float32
  std::int64_t row_bytes, column_bytes;
};

// Columns first .. first + count of a right factor, copied for its product.
struct Packed {
  exec::gemm::Way way;
  exec::gemm::Sizes sizes;
  exec::gemm::Matrix b;
  std::int64_t first, count;
  float* to;
};

struct Launched {
  const Variant* variant;
  exec::Space space;
  std::size_t first, count;  // of the tape's bindings: as KernelGraph::operands, then scratch
};

struct Tape {
  // Memory that it keeps for what passes between the stages of chains. Those that keep more than a
  // few share a limit.
  static constexpr std::size_t kFewBytes = 64 << 10;
  static constexpr std::size_t kMostBytes = 256 << 10;
  static constexpr std::size_t kMostOfAll = std::size_t{64} << 20;
  static constexpr std::size_t kMostBindings = 2048;

  struct Action {
    std::variant<Launched, Packed, Multiplied, exec::loops::Loop> what;
    std::size_t stage;  // of the chain; 0: of a kernel by itself
    bool is_long = false;
  };

  // What a caller does around actions that are long: others run meanwhile, or no more.
  struct Others {
    void (*let)(void* caller, bool run) noexcept;
    void* caller;
  };

  Tape() = default;
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // So much memory for what passes between the stages of a chain, which the next chain has too.
  // Null: there is no room on a tape, which is refused then.
  enum class Room : std::uint8_t { kShared, kOwn };
  std::byte* room(Room which, std::size_t size) noexcept;
  void note(const Variant& variant, const exec::Launch& launch, std::size_t stage) noexcept;
  void note(Action action) noexcept;
  // All actions. `failed`: the one that the status is of, if it is not kOk.
  exec::Status run(std::size_t& failed, const Others& others) const noexcept;

  std::vector<Action> actions;
  std::vector<exec::Binding> bindings;
  const exec::gemm::Tiles* tiles = nullptr;
  std::vector<exec::Block> blocks;
  std::array<exec::Block, 2> rooms{};  // of `blocks`, by Room
  std::size_t bytes = 0;               // that were asked for; blocks may be larger
  std::size_t kept_bytes = 0;          // of blocks
  std::size_t shared_bytes = 0;        // of the limit
  bool is_long = false;                // the launch whose actions are noted now
  bool refused = false;                // something was done that is not on it
};

void run(const exec::gemm::Tiles& tiles, const Multiplied& product);
inline void run(const exec::gemm::Tiles& tiles, const Packed& factor) {
  pack(tiles, factor.way, factor.sizes, factor.b, factor.first, factor.count, factor.to);
}

// A launch of a variant that Kernel::run() had found.
exec::Status run_again(const Variant& variant, const exec::Launch& launch) noexcept;

}  // namespace tilevm::schedule
