// What every processor has: vectors and masks as handles, whose registers are taken from values
// that can wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/native/registers.h"

namespace tilevm::exec::native {

struct VectorKind;
struct MaskKind;

class Processor {
 public:
  explicit Processor(Owner& owner) : owner_(owner) {}

  bool failed = false;     // what was emitted is of no use: registers ran out
  bool masked = false;     // the vector at hand may be less than whole
  bool streaming = false;  // whole vectors are stored past the caches
  std::uint64_t down = 0;  // bits of the operands that move from row to row

  bool stays(int operand, std::size_t array) const {
    return array == offsetof(Frame, y_stride) && (down >> operand & 1) == 0;
  }

 protected:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  // A failed emission goes on with some register: its code is thrown away.
  static std::uint32_t number(int reg, std::uint32_t otherwise) {
    return reg < 0 ? otherwise : static_cast<std::uint32_t>(reg);
  }

  template <class H>
  H fresh(Registers& file) {
    int reg = file.take();
    while (reg < 0 && owner_.make_room(file, 1)) reg = file.take();
    if (reg < 0) {
      failed = true;
      return {};
    }
    return H::in_register(file, reg);
  }

  // Values are in the same registers behind the body as before it.
  template <class Body>
  void same_state(Body body) {
    const std::size_t mark = owner_.mark();
    body();
    owner_.undo(mark);
  }

  Slots slots_;
  Owner& owner_;
};

}  // namespace tilevm::exec::native
