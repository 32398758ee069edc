// One fused kernel with all its encoded variants. The layout (which axes are outer, rows, columns)
// is chosen at launch from the run-time sizes and strides; each class of layouts is encoded once.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/launch.h"
#include "exec/native/native.h"
#include "fuse/plan.h"

namespace tilevm::schedule {

// Run-time memory of one operand: byte strides along the kernel's axes (0 where it does not move;
// what is given for axes of size 1 does not matter). Order as KernelGraph::operands.
struct OperandView {
  std::byte* base = nullptr;
  std::array<std::int64_t, fuse::kMaxAxes> stride{};
  std::int64_t gather_stride = 0;
  std::int64_t gather_size = 0;
  std::int64_t start = 0;
};

// What kernels are compiled for. `interpret`: that there is no machine code is as it was asked for.
struct alignas(4) Tier {  // atomic without a lock
  exec::native::Target target = exec::native::Target::kNone;
  bool interpret = false;
  bool units = false;  // products by exec/gemm/units.h, where there are such
};

// What the process's kernels are compiled for; see set_tier().
Tier tier() noexcept;

// What one program wants otherwise than the process.
struct Settings {
  std::optional<Tier> tier;
  std::optional<bool> verify;
};

struct CompileStats {
  std::int64_t compiles = 0;
  std::int64_t hits = 0;
  double total_us = 0, max_us = 0;
  // Programs for which there should be machine code and is none, by the reason.
  std::map<std::string, std::int64_t> interpreted;
};

struct Tape;

// Operands of a kernel, and what its encoder adds.
inline constexpr std::size_t kMaxBindings = 256;

class Kernel {
 public:
  // where: a source line of it, for profilers; may be empty.
  explicit Kernel(fuse::KernelGraph graph, std::string where = {}, const Settings& settings = {});
  ~Kernel();
  Kernel(Kernel&&) noexcept;
  const fuse::KernelGraph& graph() const;

  // Runs on `threads` threads (1: inline). `large`: what it writes, or was written just before, is
  // more than caches keep, so that outputs had better go past them. Thread-safe. Steady state
  // allocates nothing. The ranges of all operands have been proven by the caller or by check_launch
  // in debug mode.
  // A launch on one thread is noted on `tape`, if there is one, as of its stage `stage`.
  // `whole`: as lay_out() takes it.
  exec::Status run(std::span<const std::int64_t> axis_sizes, std::span<const OperandView> operands,
                   int threads, bool large = false, Tape* tape = nullptr,
                   std::size_t stage = 0, std::span<const std::int64_t> whole = {}) noexcept;

  // The same of a kernel that is by itself: rows that are few and long are shared by threads as
  // well (schedule/split.h).
  exec::Status run_alone(std::span<const std::int64_t> axis_sizes,
                         std::span<const OperandView> operands, int threads, bool large,
                         Tape* tape) noexcept;

  // For explain: the encoded variants so far (bytes and a description of the layout class).
  struct VariantInfo {
    std::string layout;
    std::vector<std::byte> bytes;
    std::vector<std::string> lines;
    std::string tier;        // what it is compiled for: native::name(), or "interp"
    std::string why_interp;  // why no machine code was emitted
    exec::native::Target target = exec::native::Target::kNone;  // of the machine code
    bool streams = false;                                       // outputs go past the caches
    std::int64_t launches = 0;  // some may be missed where threads run it at the same time
    std::int64_t compile_ns = 0;
  };
  std::vector<VariantInfo> variants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What kernels are compiled for from now on; at first the best there is.
void set_tier(Tier tier);

// How many classes of layouts a kernel keeps; others are compiled for each launch.
void set_most_variants(int count);

// Whether to verify what our own encoder wrote; what verify() rejects is kBadProgram at run().
void set_verify(bool verify);

// Compiles and runs one small kernel, so that the first compile of a user's program does not pay
// for looking up tables, processor features and executable memory. Called when the module loads.
void warm_up();

CompileStats compile_stats();  // process-wide
void reset_compile_stats();

}  // namespace tilevm::schedule
