// What emitted code reads and writes beside the operands: its one argument.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/launch.h"
#include "exec/native/registers.h"

namespace tilevm::exec::native {

inline constexpr int kMaxOperands = 64;
inline constexpr int kMaxIotas = 4;
inline constexpr int kMaxLanes = 16;
inline constexpr int kMaxCopies = 4;

// Operands of a function that emitted code calls, lane by lane; 64-bit lanes fill all of it.
struct alignas(64) Argument {
  std::byte bytes[kMaxLanes * 8 + 128];  // functions may write a vector behind their results
};

struct alignas(64) Frame {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t reduced;  // sweeps of a pass: the extent of a reduced axis beside rows and columns
  std::int64_t reduced_left;
  double count;                  // of points that a fold sees
  const void* const* functions;  // see functions.h
  std::int64_t rows_left;        // while their register is used for something else
  // A fold over rows can go through some rows of a pass at a call, for all columns.
  std::byte* kept;                      // between calls: vectors of a vector of columns, in turn
  std::int64_t passes_finished;         // so many have their folds there
  std::int64_t pass_resumed;            // this one its accumulators; 0: none
  std::int64_t keep_in_pass;            // the call ends in this pass, and accumulators are kept
  std::int64_t keep_behind_pass;        // or at its end, and folds are; both 0: it is the last call
  std::uint64_t base[kMaxOperands];     // an address; of an iota the first value
  std::uint64_t pointer[kMaxOperands];  // as base, moving; only of those without a register
  std::int64_t y_stride[kMaxOperands];
  std::int64_t x_stride[kMaxOperands];      // of iotas and gathers
  std::int64_t reduced_step[kMaxOperands];  // from the end of a sweep to the next one's start
  std::int64_t reduced_back[kMaxOperands];  // from the last sweep's start to the first's
  std::int64_t ahead[kMaxOperands];         // how far down a fold over rows fetches ahead
  std::int64_t gather_stride[kMaxOperands];
  std::int64_t gather_size[kMaxOperands];
  std::int64_t gather_near[kMaxOperands];  // the size; 0, if it or a stride need more than 32 bits
  std::int64_t gather_close[kMaxOperands];  // the same; 0 also, if distances need more
  alignas(64) std::int64_t iota_lanes[kMaxIotas][kMaxLanes];  // lane times x stride
  Argument result;
  Argument argument[3];
  std::byte saved[32][64];  // registers, during calls
  std::uint64_t saved_masks[8];
  alignas(64) std::byte slot[kMaxSlots][64];
};

}  // namespace tilevm::exec::native
