// A launch of emitted code: its frame, panels of operands that have to be copied, parts of folds.
// Included by code.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "bytecode/bytecode.h"
#include "exec/launch.h"
#include "exec/native/frame.h"
#include "exec/native/functions.h"
#include "exec/native/native.h"
#include "exec/plane.h"

namespace tilevm::exec::native {

using bytecode::Fold;
using bytecode::OperandInfo;
using bytecode::Role;
using std::int64_t;

using Entry = int (*)(Frame*);

inline constexpr int64_t kPanelBytes = 64 << 10;      // copies of operands that are alive at once
inline constexpr int64_t kStreamedBytes = 128 << 10;  // the same, where results go past the caches
inline constexpr int64_t kRowsAhead = 8;  // that a fold over rows fetches before it needs them
// A fold over rows that are far apart goes through so many rows of all columns at a time, so that
// memory is read in order; accumulators are kept in between.
inline constexpr int64_t kRowsAtOnce = 16;
inline constexpr int64_t kBytesAtOnce = 64 << 10;
inline constexpr int64_t kKeptBytes = 64 << 10;
inline constexpr int64_t kRowsPerKept = 6;  // at least, a vector that is kept: read and written
inline constexpr int64_t kCachedBytes = 512 << 10;  // that later passes find in the second cache
inline constexpr int64_t kLeastLine = 1 << 10;      // of a row, to be read in order
inline constexpr int64_t kCacheLine = 64;

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }
inline std::uint64_t address(const std::byte* p) { return reinterpret_cast<std::uint64_t>(p); }
inline int64_t up_to_line(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }
inline bool over_x(bytecode::Cls cls) { return (static_cast<int>(cls) & 1) != 0; }
inline bool over_y(bytecode::Cls cls) { return (static_cast<int>(cls) & 2) != 0; }

// Code, and what a launch needs to know of the program that it is of.
struct Emitted {
  Entry entry = nullptr;
  std::size_t size = 0;
  std::vector<OperandInfo> operands;
  Fold fold = Fold::kNone;
  bool streams = false;
  int lanes = 0;
  int passes = 0;
  int kept = 0;              // vectors of accumulators of a vector of columns
  std::vector<int> packed;   // operands whose columns are copied side by side for a launch
  std::vector<int> scratch;  // operands that live in our memory

  bool folds_columns() const { return (static_cast<int>(fold) & 1) != 0; }
  bool folds_rows() const { return (static_cast<int>(fold) & 2) != 0; }

  // Elements that one operand has in one sweep of a pass, and in all of them.
  static int64_t sweeps(const Space& space) { return space.n_reduced == 0 ? 1 : space.reduced[0]; }
  int64_t in_sweep(const Space& space) const {
    return (folds_rows() ? space.rows : 1) * space.cols;
  }

  int64_t scratch_bytes(const Space& space) const {
    int64_t sum = 0;
    for (const int i : scratch) sum += bytes_of_scratch(i, space);
    return sum;
  }
  // The last vector of a row is stored whole.
  int64_t bytes_of_scratch(int i, const Space& space) const {
    const int64_t bytes = bytecode::storage_bytes(operands[at(i)].storage);
    return up_to_line((in_sweep(space) * sweeps(space) + lanes) * bytes);
  }
};

// One launch: the frame, and panels of it where operands have to be copied.
class Run {
 public:
  Run(const Emitted& impl, const Launch& launch) : impl_(impl), launch_(launch) {}

  // Rows and columns of the copies that are made at once. Axes that are folded stay whole.
  void plan() {
    const auto& space = launch_.space;
    rows_ = space.rows;
    cols_ = space.cols;
    if (impl_.packed.empty()) return plan_parts();
    find_pairs();
    int64_t bytes = 0;  // of one point
    for (const int i : impl_.packed) {
      bytes += bytecode::storage_bytes(impl_.operands[at(i)].storage);
    }
    bytes *= Emitted::sweeps(space);
    constexpr int64_t kColumnsAtOnce = 128;
    const int64_t at_once = impl_.streams ? kStreamedBytes : kPanelBytes;
    if (!impl_.folds_columns()) cols_ = std::min(cols_, kColumnsAtOnce);
    if (!impl_.folds_rows()) {
      const int64_t fit = at_once / std::max<int64_t>(1, cols_ * bytes);
      rows_ = std::min(rows_, std::max<int64_t>(1, fit));
      // A few long rows: the copies of a call are to be as large as those of many.
      if (!impl_.folds_columns()) {
        const int64_t fill = at_once / std::max<int64_t>(1, rows_ * bytes);
        // Panels begin at whole lines of other operands, as stores past the caches must.
        cols_ = std::min(space.cols, std::max(cols_, fill / kCacheLine * kCacheLine));
      }
    }
  }

  // Of copies, or of accumulators that are kept.
  int64_t panel_bytes() const {
    if (in_parts_) return up_to_line((cols_ + impl_.lanes - 1) / impl_.lanes * vector_bytes());
    int64_t sum = 0;
    for (const int i : impl_.packed) {
      sum += up_to_line(rows_ * cols_ * Emitted::sweeps(launch_.space) *
                        bytecode::storage_bytes(impl_.operands[at(i)].storage));
    }
    return sum;
  }

  Status run(std::byte* memory) noexcept {
    if (nothing_kept()) return Status::kOk;
    begin(memory);
    if (in_parts_) return over_outer([&] { return parts(); });
    if (impl_.packed.empty()) return over_outer([&] { return call(); });
    const Status status = over_outer([&] { return panels(); });
    if (impl_.streams) end_streams();
    return status;
  }

 private:
  // Of the accumulators of a vector of columns.
  int64_t vector_bytes() const { return int64_t{4} * impl_.lanes * impl_.kept; }

  // Rows and columns of a call, in a fold over rows.
  void plan_parts() {
    const auto& space = launch_.space;
    if (impl_.kept == 0 || !impl_.scratch.empty()) return;
    if (space.rows < 2 * kRowsAtOnce || space.cols == 0 || Emitted::sweeps(space) == 0) return;
    const int64_t wide = int64_t{kMaxCopies} * impl_.lanes;  // what code reads of a row at once
    const auto whole = [&](int64_t columns) { return std::max(columns / wide * wide, wide); };
    int64_t bytes = 0;     // of one point
    int64_t distance = 0;  // of rows
    for (std::size_t i = 0; i < impl_.operands.size(); ++i) {
      if (!is_plane(impl_.operands[i])) continue;
      bytes += bytecode::storage_bytes(impl_.operands[i].storage);
      distance = std::max(distance, std::abs(launch_.bindings[i].y_stride));
    }
    bytes = std::max<int64_t>(bytes, 1);
    // Later passes find in the second cache what the first one read.
    if (impl_.passes > 1 && space.rows * Emitted::sweeps(space) * wide * bytes <= kCachedBytes)
      return;
    cols_ = std::min(cols_, whole(kKeptBytes * impl_.lanes / vector_bytes()));
    apart_ = cols_ * bytes < kLeastLine && distance > 2 * cols_ * bytes;
    const int64_t rows =
        apart_ ? 1 : std::max(kBytesAtOnce / (cols_ * bytes), kRowsPerKept * impl_.kept);
    rows_ = std::max(rows / kRowsAtOnce, int64_t{1}) * kRowsAtOnce;
    in_parts_ = rows_ < space.rows && (cols_ > wide || apart_);
    if (!in_parts_) cols_ = space.cols;
  }
  static bool is_plane(const OperandInfo& operand) {
    const bool moves = operand.role == Role::kInput || operand.role == Role::kOutput;
    return moves && over_x(operand.cls) && over_y(operand.cls);
  }

  // Which packed operands lie between each other's elements, as parts of complex numbers do.
  void find_pairs() {
    pair_of_.fill(-1);
    for (std::size_t k = 0; k < impl_.packed.size(); ++k) {
      const int i = impl_.packed[k];
      for (std::size_t l = k + 1; l < impl_.packed.size() && pair_of_[at(i)] < 0; ++l) {
        const int j = impl_.packed[l];
        if (pair_of_[at(j)] >= 0 || !are_pairs(i, j)) continue;
        pair_of_[at(i)] = static_cast<std::int16_t>(j);
        pair_of_[at(j)] = static_cast<std::int16_t>(i);
      }
    }
  }

  bool are_pairs(int i, int j) const {
    const auto &one = impl_.operands[at(i)], &other = impl_.operands[at(j)];
    const auto &a = launch_.bindings[at(i)], &b = launch_.bindings[at(j)];
    const int bytes = bytecode::storage_bytes(one.storage);
    return bytes == 4 && one.storage == other.storage && one.role == other.role &&
           one.cls == other.cls && a.x_stride == 8 && b.x_stride == 8 && a.y_stride == b.y_stride &&
           a.reduced[0] == b.reduced[0] &&
           std::equal(a.outer, a.outer + launch_.space.n_outer, b.outer) &&
           (a.base != nullptr && b.base != nullptr) &&
           (a.base == b.base + bytes || b.base == a.base + bytes);
  }

  // No point to write: what is read once may not be there either.
  bool nothing_kept() const {
    const auto& space = launch_.space;
    bool nothing =
        (space.rows == 0 && !impl_.folds_rows()) || (space.cols == 0 && !impl_.folds_columns());
    for (int i = 0; i < space.n_outer; ++i) nothing = nothing || space.outer[i] == 0;
    return nothing;
  }

  void begin(std::byte* memory) {
    const auto& space = launch_.space;
    frame_.rows = space.rows;
    frame_.cols = space.cols;
    frame_.reduced = Emitted::sweeps(space);
    frame_.count = static_cast<double>(frame_.reduced * (impl_.folds_rows() ? space.rows : 1) *
                                       (impl_.folds_columns() ? space.cols : 1));
    frame_.functions = functions();
    frame_.kept = memory;
    frame_.passes_finished = frame_.pass_resumed = 0;
    frame_.keep_in_pass = frame_.keep_behind_pass = 0;
    int iota = 0;
    for (std::size_t i = 0; i < impl_.operands.size(); ++i) {
      const auto& operand = impl_.operands[i];
      if (operand.role == Role::kScratch) {
        const int64_t bytes = bytecode::storage_bytes(operand.storage);
        frame_.base[i] = address(memory);
        place(i, impl_.folds_rows() ? space.cols * bytes : 0, impl_.in_sweep(space) * bytes,
              space.rows);
        memory += impl_.bytes_of_scratch(static_cast<int>(i), space);
        continue;
      }
      const auto& b = launch_.bindings[i];
      frame_.base[i] = address(b.base);
      place(i, b.y_stride, b.reduced[0], space.rows);
      frame_.x_stride[i] = b.x_stride;
      frame_.gather_stride[i] = b.gather_stride;
      frame_.gather_size[i] = b.gather_size;
      const bool near = std::in_range<std::int32_t>(b.gather_size) &&
                        std::in_range<std::int32_t>(b.gather_stride);
      frame_.gather_near[i] = near ? b.gather_size : 0;
      const bool close = near && std::in_range<std::int32_t>(b.gather_size * b.gather_stride);
      frame_.gather_close[i] = close ? b.gather_size : 0;
      if (operand.role == Role::kIota) {
        frame_.base[i] = static_cast<std::uint64_t>(b.start);
        for (int lane = 0; lane < kMaxLanes; ++lane) {
          frame_.iota_lanes[iota][lane] = lane * b.x_stride;
        }
        ++iota;
      }
    }
    panel_ = memory;
  }

  // Strides of an operand for sweeps of so many rows.
  void place(std::size_t i, int64_t y_stride, int64_t reduced_stride, int64_t rows) {
    frame_.y_stride[i] = y_stride;
    frame_.reduced_step[i] = reduced_stride - (impl_.folds_rows() ? rows * y_stride : 0);
    frame_.reduced_back[i] = reduced_stride * (frame_.reduced - 1);
    // The next part, unless all is in the second cache.
    const bool cached = rows * std::abs(y_stride) <= kCachedBytes;
    frame_.ahead[i] = (!in_parts_ ? kRowsAhead : cached ? 0 : rows_) * y_stride;
  }

  Status call() { return static_cast<Status>(impl_.entry(&frame_)); }

  // The odometer of the outer axes. Iotas move as operands do.
  template <class Work>
  Status over_outer(Work work) {
    const auto& space = launch_.space;
    int64_t position[kMaxOuter] = {};
    for (;;) {
      const Status status = work();
      if (status != Status::kOk) return status;
      int axis = space.n_outer - 1;
      for (; axis >= 0; --axis) {
        const bool more = ++position[axis] < space.outer[axis];
        for (std::size_t i = 0; i < impl_.operands.size(); ++i) {
          if (impl_.operands[i].role == Role::kScratch) continue;
          const int64_t stride = launch_.bindings[i].outer[axis];
          frame_.base[i] +=
              static_cast<std::uint64_t>(more ? stride : -stride * (space.outer[axis] - 1));
        }
        if (more) break;
        position[axis] = 0;
      }
      if (axis < 0) return Status::kOk;
    }
  }

  Status parts() {
    const auto& space = launch_.space;
    std::uint64_t base[kMaxOperands];
    std::copy_n(frame_.base, impl_.operands.size(), base);
    Status status = Status::kOk;
    for (int64_t x = 0; x < space.cols && status == Status::kOk; x += cols_) {
      frame_.cols = std::min(cols_, space.cols - x);
      for (int pass = 1; pass <= impl_.passes && status == Status::kOk; ++pass) {
        status = parts_of(pass, base, x);
      }
    }
    std::copy_n(base, impl_.operands.size(), frame_.base);
    return status;
  }

  // One pass over cols_ columns from x on.
  Status parts_of(int pass, const std::uint64_t* base, int64_t x) {
    const auto& space = launch_.space;
    const int64_t sweeps = Emitted::sweeps(space);
    frame_.passes_finished = pass - 1;
    frame_.reduced = 1;
    for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
      // The first part has the odd rows: those that are added in float32 are the same in parts.
      int64_t rows = (space.rows - 1) % rows_ + 1;
      for (int64_t y = 0; y < space.rows; y += rows, rows = rows_) {
        const bool last = sweep == sweeps - 1 && y + rows == space.rows;
        move(base, y, x, sweep);
        frame_.rows = rows;
        frame_.pass_resumed = sweep == 0 && y == 0 ? 0 : pass;
        frame_.keep_in_pass = last ? 0 : pass;
        frame_.keep_behind_pass = last && pass < impl_.passes ? pass : 0;
        if (apart_) fetch(rows, std::min(rows_, space.rows - y - rows));
        const Status status = call();
        if (status != Status::kOk) return status;
      }
    }
    return Status::kOk;
  }

  // Every operand to a row and column, and to a reduced index, seen from `base`.
  void move(const std::uint64_t* base, int64_t y, int64_t x, int64_t sweep = 0) {
    for (std::size_t i = 0; i < impl_.operands.size(); ++i) {
      if (impl_.operands[i].role == Role::kScratch) continue;
      const auto& b = launch_.bindings[i];
      frame_.base[i] = base[i] + static_cast<std::uint64_t>(y * b.y_stride + x * b.x_stride +
                                                            sweep * b.reduced[0]);
    }
  }

  // Short rows that are far apart: the processor does not foresee the next part.
  void fetch(int64_t from, int64_t rows) const {
    for (std::size_t i = 0; i < impl_.operands.size(); ++i) {
      const auto& operand = impl_.operands[i];
      if (!is_plane(operand) || operand.role != Role::kInput) continue;
      const int64_t stride = launch_.bindings[i].y_stride;
      const int64_t line = frame_.cols * bytecode::storage_bytes(operand.storage);
      const auto* row = reinterpret_cast<const std::byte*>(frame_.base[i]) + from * stride;
      for (int64_t y = 0; y < rows; ++y, row += stride) {
        for (int64_t x = 0; x < line; x += kCacheLine) __builtin_prefetch(row + x);
      }
    }
  }

  Status panels() {
    const auto& space = launch_.space;
    Status status = Status::kOk;
    for (int64_t y = 0; y < space.rows && status == Status::kOk; y += rows_) {
      for (int64_t x = 0; x < space.cols && status == Status::kOk; x += cols_) {
        status = panel(y, x, std::min(rows_, space.rows - y), std::min(cols_, space.cols - x));
      }
    }
    return status;
  }

  Status panel(int64_t y, int64_t x, int64_t rows, int64_t cols) {
    std::uint64_t base[kMaxOperands];
    std::copy_n(frame_.base, impl_.operands.size(), base);
    move(base, y, x);
    frame_.rows = rows;
    frame_.cols = cols;
    copies(Role::kInput, base, y, x);
    const Status status = call();
    if (status == Status::kOk) copies(Role::kOutput, base, y, x);
    std::copy_n(base, impl_.operands.size(), frame_.base);
    return status;
  }

  // Copies a panel of every packed operand: inputs in before the call, outputs out behind it.
  void copies(Role role, const std::uint64_t* base, int64_t y, int64_t x) {
    std::byte* memory = panel_;
    for (const int i : impl_.packed) {
      const auto& operand = impl_.operands[at(i)];
      const auto& b = launch_.bindings[at(i)];
      const int bytes = bytecode::storage_bytes(operand.storage);
      const int64_t line = frame_.cols * bytes;
      const bool one_row = b.y_stride == 0 && !over_y(operand.cls);
      const int64_t rows = one_row ? 1 : frame_.rows;
      // Rows that are kept hold all their sweeps; rows that are folded are in each sweep.
      const int64_t sweep = impl_.folds_rows() ? rows * line : line;
      const int64_t row = impl_.folds_rows() ? line : frame_.reduced * line;
      std::byte* const panel = memory;
      panels_[at(i)] = panel;
      memory += up_to_line(rows_ * cols_ * frame_.reduced * bytes);
      if (role == Role::kInput) {
        frame_.base[at(i)] = address(panel);
        place(at(i), one_row ? 0 : row, sweep, frame_.rows);
      }
      const int pair = pair_of_[at(i)];
      if (operand.role != role || pair > i) continue;  // a pair is copied with its second operand
      const bool swept = b.reduced[0] != 0;
      for (int64_t r = 0; r < (swept || role == Role::kInput ? frame_.reduced : 1); ++r) {
        const int64_t offset = y * b.y_stride + x * b.x_stride + r * b.reduced[0];
        Plane memory_plane{reinterpret_cast<std::byte*>(base[i]) + offset, b.y_stride, b.x_stride};
        Plane panel_plane{panel + r * sweep, row, bytes};
        if (pair >= 0) {
          Plane other{panels_[at(pair)] + r * sweep, row, bytes};
          if (base[pair] < base[i]) {
            memory_plane.base -= bytes;
            std::swap(panel_plane, other);
          }
          if (role == Role::kInput) {
            split_pairs(panel_plane, other, memory_plane, rows, frame_.cols);
          } else {
            join_pairs(memory_plane, panel_plane, other, rows, frame_.cols);
          }
        } else if (role == Role::kInput) {
          copy_plane(panel_plane, memory_plane, rows, frame_.cols, bytes);
        } else {
          copy_plane(memory_plane, panel_plane, rows, frame_.cols, bytes, impl_.streams);
        }
      }
    }
  }

  const Emitted& impl_;
  const Launch& launch_;
  int64_t rows_ = 0, cols_ = 0;  // of a panel or part
  bool in_parts_ = false;
  bool apart_ = false;  // short rows, of which many are in no line or page together
  std::byte* panel_ = nullptr;
  std::array<std::int16_t, kMaxOperands> pair_of_;  // by packed operand: another one, or -1
  std::array<std::byte*, kMaxOperands> panels_;     // by packed operand
  Frame frame_;
};

}  // namespace tilevm::exec::native
