// Everything that one running call of an executable writes. Frames are kept for later calls, so
// that a call allocates nothing but its outputs.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "host/executable.h"
#include "host/tape.h"

namespace tilevm::host {

// Arenas up to this size stay with their frame between calls.
inline constexpr std::size_t kKeepBytes = 64 << 10;

// A frame whose memory has results that the call's caller reads.
class Executable::Kept {
 public:
  Kept();
  Kept(Executable& of, std::unique_ptr<Frame> frame);
  Kept(Kept&& other) noexcept;
  Kept& operator=(Kept&& other) noexcept;  // other: what this was
  ~Kept();
  void let_go() noexcept;

 private:
  Executable* of_ = nullptr;
  std::unique_ptr<Frame> frame_;
};

struct Executable::Frame {
  std::vector<std::int64_t> regs;  // size program
  std::vector<Record> records;     // by value
  std::vector<Object> tensors;     // by value; inputs are borrowed, holders_ owned
  std::span<const Object> inputs;
  std::vector<std::int64_t> numbers;  // by value: weak inputs as float64, int64 or bool
  std::vector<schedule::OperandView> operands;
  std::vector<schedule::ChainLaunch> chains;         // by chain: what one launch is made of
  std::vector<std::shared_ptr<const float>> packed;  // that a running chain reads
  std::vector<Object> args;                          // of a call-out, then its results
  std::vector<Passed> passed;                        // to a part of a step
  std::vector<Record> carried;                       // by a loop: twice as many as it has results
  std::vector<std::int64_t> offsets, ends;           // by buffer of the arena, in its block
  std::vector<exec::Block> blocks;                   // by stage: memory of its buffers
  std::vector<exec::Block> held;                     // results that are no tensors
  std::vector<Kept> kept;                            // by nest: where its results are
  int pieces = exec::gemm::kMostPieces;              // of float32 in products of this call
  std::int64_t output_bytes = 0;                     // allocated for results in this call
  // Memory of an input, and by value whether it is an input that shares memory with no other.
  struct Range {
    const std::byte *first, *end;
    ValueId input;
  };
  std::vector<Range> ranges;
  std::vector<bool> apart;

  std::vector<std::int64_t> key;                 // what this call is like
  std::array<std::uint64_t, kMostTapes> seen{};  // hashes of keys without a tape, the last first
  std::vector<std::unique_ptr<Tape>> tapes;      // of calls before, the last first
  Tape* tape = nullptr;                          // that this call is noted on

  ~Frame() {
    for (const exec::Block& block : blocks) exec::release(block);
    for (const exec::Block& block : held) exec::release(block);
  }
};

inline Executable::Kept::Kept() = default;
inline Executable::Kept::Kept(Executable& of, std::unique_ptr<Frame> frame)
    : of_(&of), frame_(std::move(frame)) {}
inline Executable::Kept::Kept(Kept&& other) noexcept = default;
inline Executable::Kept& Executable::Kept::operator=(Kept&& other) noexcept {
  std::swap(of_, other.of_);
  std::swap(frame_, other.frame_);
  return *this;
}
inline Executable::Kept::~Kept() { let_go(); }
inline void Executable::Kept::let_go() noexcept {
  if (frame_) of_->give_frame(std::move(frame_));
}

}  // namespace tilevm::host
