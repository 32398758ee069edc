// Registers as handles: a register belongs to whoever holds a handle on it, and is free when the
// last handle goes. What holds a value across instructions may be asked to give its register up
// (`Owner::make_room`); the value is then in a slot of the frame, where instructions can read it.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace tilevm::exec::native {

inline constexpr int kMaxSlots = 160;

// 64-byte places of the frame, counted like registers.
class Slots {
 public:
  // -1 if there are no more.
  int take() {
    for (int i = 0; i < kMaxSlots; ++i) {
      if (refs_[i] == 0) {
        refs_[i] = 1;
        return i;
      }
    }
    return -1;
  }
  void retain(int slot) { ++refs_[slot]; }
  void release(int slot) { --refs_[slot]; }

 private:
  std::uint8_t refs_[kMaxSlots] = {};
};

// One kind of registers of a processor.
class Registers {
 public:
  Registers(Slots& slots, std::uint32_t usable) : slots(slots), usable_(usable), free_(usable) {}

  Slots& slots;

  // The lowest free one; -1 if there is none.
  int take() {
    if (free_ == 0) return -1;
    const int reg = std::countr_zero(free_);
    take(reg);
    return reg;
  }
  // This one, which is free.
  void take(int reg) {
    free_ &= ~(1U << reg);
    refs_[reg] = 1;
  }
  void retain(int reg) { ++refs_[reg]; }
  void release(int reg) {
    if (--refs_[reg] == 0) free_ |= 1U << reg;
  }
  // Bits of those in use, of the usable ones.
  std::uint32_t used() const { return usable_ & ~free_; }
  bool shared(int reg) const { return refs_[reg] > 1; }

 private:
  std::uint32_t usable_, free_;
  std::uint8_t refs_[32] = {};
};

// A value in a register, in a slot, or a constant of the program's pool; empty at first. `Kind`
// keeps vectors and masks apart.
template <class Kind>
class Handle {
 public:
  Handle() = default;
  static Handle in_register(Registers& file, int reg) { return Handle(&file, reg, -1, -1); }
  static Handle in_slot(Registers& file, int slot) { return Handle(&file, -1, slot, -1); }
  static Handle of_constant(int index) { return Handle(nullptr, -1, -1, index); }

  Handle(const Handle& o) : file_(o.file_), reg_(o.reg_), slot_(o.slot_), constant_(o.constant_) {
    if (reg_ >= 0) file_->retain(reg_);
    if (slot_ >= 0) file_->slots.retain(slot_);
  }
  Handle(Handle&& o) noexcept
      : file_(o.file_),
        reg_(std::exchange(o.reg_, -1)),
        slot_(std::exchange(o.slot_, -1)),
        constant_(std::exchange(o.constant_, -1)) {}
  Handle& operator=(Handle o) noexcept {
    std::swap(file_, o.file_);
    std::swap(reg_, o.reg_);
    std::swap(slot_, o.slot_);
    std::swap(constant_, o.constant_);
    return *this;
  }
  ~Handle() {
    if (reg_ >= 0) file_->release(reg_);
    if (slot_ >= 0) file_->slots.release(slot_);
  }

  bool empty() const { return reg_ < 0 && slot_ < 0 && constant_ < 0; }
  int reg() const { return reg_; }
  int slot() const { return slot_; }
  int constant() const { return constant_; }
  bool same(const Handle& o) const {
    return reg_ == o.reg_ && slot_ == o.slot_ && constant_ == o.constant_;
  }
  // In a register that nobody else holds, so that it may be taken away.
  bool movable() const { return reg_ >= 0 && !file_->shared(reg_); }

  // The same bits, seen as another kind, where both are kept in the same registers.
  template <class Other>
  Handle<Other> as() const {
    if (reg_ >= 0) file_->retain(reg_);
    if (slot_ >= 0) file_->slots.retain(slot_);
    return Handle<Other>(file_, reg_, slot_, constant_);
  }

 private:
  template <class Other>
  friend class Handle;

  Handle(Registers* file, int reg, int slot, int constant)
      : file_(file),
        reg_(static_cast<std::int16_t>(reg)),
        slot_(static_cast<std::int16_t>(slot)),
        constant_(static_cast<std::int16_t>(constant)) {}

  Registers* file_ = nullptr;
  std::int16_t reg_ = -1;
  std::int16_t slot_ = -1;
  std::int16_t constant_ = -1;
};

// Who can free registers, and undo that where control flow meets again.
class Owner {
 public:
  virtual ~Owner() = default;
  // False: nothing can be moved.
  virtual bool make_room(const Registers& file) = 0;
  // Values are where they were at `mark` after undo(mark).
  virtual std::size_t mark() const = 0;
  virtual void undo(std::size_t mark) = 0;
};

}  // namespace tilevm::exec::native
