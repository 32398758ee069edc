// Kernels that fold rows so long, and so few of them, that threads had better share each: every
// part of the rows is folded by itself, then what the parts came to is joined, in their order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/launch.h"
#include "fuse/plan.h"
#include "schedule/kernel.h"

namespace tilevm::schedule {

class Split {
 public:
  // How a kernel goes through its rows.
  enum class Sweeps : std::uint8_t {
    kWhole,  // it has none, or what parts of them come to does not say what the whole does
    kOnce,   // and leaves nothing of their length
    kAgain,
  };
  static Sweeps sweeps_of(const fuse::KernelGraph& graph);
  // Whether a launch over these axes is for threads to share: by sizes alone, so that no result
  // depends on how many there are.
  static bool takes(Sweeps sweeps, fuse::AxisMask reduced,
                    std::span<const std::int64_t> axis_sizes);

  // Of a kernel whose rows can be joined. `where`, `settings`: as a kernel's.
  Split(const fuse::KernelGraph& graph, const std::string& where, const Settings& settings);

  // As Kernel::run().
  exec::Status run(std::span<const std::int64_t> axis_sizes, std::span<const OperandView> operands,
                   int threads, bool large);

  // For explain: of all that it runs, in this order.
  std::vector<Kernel::VariantInfo> variants() const;

 private:
  // Memory of ours, dense.
  struct Buffer {
    bytecode::Storage storage;
    fuse::AxisMask axes;  // that it has
    bool of_parts;        // is there once a part
  };
  // A kernel's operand: one of the whole kernel's, or a buffer.
  struct Source {
    bool ours;
    std::size_t at;
  };
  struct Fold {
    std::uint16_t instr;       // of the whole
    std::size_t part, result;  // buffers
    std::size_t value;         // of an arg fold: the element that a part's index is of
  };
  struct Stage {
    Kernel kernel;
    std::vector<Source> sources;  // by operand of `kernel`
    std::vector<Fold> folds;      // that are joined behind it
    bool along;                   // has the axes that are folded
  };
  class Maker;
  class Call;

  fuse::AxisMask reduced_;
  std::vector<Buffer> buffers_;
  std::vector<Stage> stages_;
};

}  // namespace tilevm::schedule
