// Registers as handles: a register belongs to whoever holds a handle on it, and is free when the
// last handle goes. What holds a value across instructions may be asked to give its register up
// (`Owner::make_room`); the value is then in a slot of the frame, where instructions can read it.
#pragma once

#include <algorithm>
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
    taken_ |= 1U << reg;
    refs_[reg] = 1;
  }
  void retain(int reg) { ++refs_[reg]; }
  void release(int reg) {
    if (--refs_[reg] == 0) free_ |= 1U << reg;
  }
  // Bits of those in use, of the usable ones.
  std::uint32_t used() const { return usable_ & ~free_; }
  int left() const { return std::popcount(free_); }
  // How many were ever in use at once, if none was taken by its number: the lowest goes first.
  int most() const { return std::bit_width(taken_); }
  bool shared(int reg) const { return refs_[reg] > 1; }

 private:
  std::uint32_t usable_, free_, taken_ = 0;
  std::uint8_t refs_[32] = {};
};

// A value in a register, in a slot, or a constant of the program's pool; empty at first. `Kind`
// keeps vectors and masks apart.
template <class Kind>
class Handle {
 public:
  Handle() = default;
  static Handle in_register(Registers& file, int reg) { return Handle(&file, reg); }
  static Handle in_slot(Registers& file, int slot) { return Handle(&file, kFirstSlot + slot); }
  static Handle of_constant(int index) { return Handle(nullptr, kNowhere - 1 - index); }

  Handle(const Handle& o) : file_(o.file_), place_(o.place_) {
    if (place_ >= 0) retain();
  }
  Handle(Handle&& o) noexcept : file_(o.file_), place_(std::exchange(o.place_, kNowhere)) {}
  Handle& operator=(Handle o) noexcept {
    std::swap(file_, o.file_);
    std::swap(place_, o.place_);
    return *this;
  }
  ~Handle() {
    if (place_ >= 0) release();
  }

  bool empty() const { return place_ == kNowhere; }
  // Where it is; -1 if not there.
  int reg() const { return place_ < kFirstSlot ? std::max(place_, -1) : -1; }
  int slot() const { return std::max(place_ - kFirstSlot, -1); }
  int constant() const { return std::max(kNowhere - 1 - place_, -1); }
  bool same(const Handle& o) const { return place_ == o.place_; }
  // In a register that nobody else holds, so that it may be taken away.
  bool movable() const { return reg() >= 0 && !file_->shared(place_); }

  // The same bits, seen as another kind, where both are kept in the same registers.
  template <class Other>
  Handle<Other> as() const {
    if (place_ >= 0) retain();
    return Handle<Other>(file_, place_);
  }

 private:
  template <class Other>
  friend class Handle;

  // Registers from 0 on, slots behind them; constants below -1.
  static constexpr int kFirstSlot = 32;
  static constexpr int kNowhere = -1;

  Handle(Registers* file, int place) : file_(file), place_(place) {}

  void retain() const {
    place_ < kFirstSlot ? file_->retain(place_) : file_->slots.retain(place_ - kFirstSlot);
  }
  void release() {
    place_ < kFirstSlot ? file_->release(place_) : file_->slots.release(place_ - kFirstSlot);
  }

  Registers* file_ = nullptr;
  int place_ = kNowhere;
};

// Who can free registers, and undo that where control flow meets again.
class Owner {
 public:
  virtual ~Owner() = default;
  // Gives up so many registers, or as many as it can; false: nothing can be moved.
  virtual bool make_room(const Registers& file, int count) = 0;
  // Values are where they were at `mark` after undo(mark).
  virtual std::size_t mark() const = 0;
  virtual void undo(std::size_t mark) = 0;
};

}  // namespace tilevm::exec::native
