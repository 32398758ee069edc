// AArch64: general registers, loops and calls.
//
//   x19 frame | x20 rows | x21 columns | x22 x, the column at hand | x23 constants
//   x24 columns of the rest, below a vector's | x16 x17 temporary
//   x25-x28 x8-x15 pointers of the first twelve operands; those of others are in the frame
#pragma once

#include <asmjit/arm/a64assembler.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "bytecode/bytecode.h"
#include "exec/launch.h"
#include "exec/native/frame.h"
#include "exec/native/functions.h"
#include "exec/native/listing.h"
#include "exec/native/processor.h"

namespace tilevm::exec::native {

namespace a64 = asmjit::a64;

class A64 : public Processor {
 public:
  struct Address {
    a64::Gp base;
    int offset;
  };
  using Label = asmjit::Label;

  A64(asmjit::CodeHolder& holder, Owner& owner, int lanes)
      : Processor(owner),
        a(&holder),
        pool_(Listing::label(a, Listing::kConstants)),
        lanes_(lanes),
        exit_(Listing::label(a, "exit")),
        call_(Listing::label(a, "call_function")),
        failures_{Listing::label(a, "index_out_of_range"), Listing::label(a, "division_by_zero")} {}

  a64::Assembler a;

  void prologue() {
    a.stp(a64::x29, a64::x30, a64::ptr_pre(a64::sp, -kSavedBytes));
    each_saved([&](auto first, auto second, int at) { a.stp(first, second, on_stack(at)); });
    a.mov(kFrame, a64::x0);
    a.ldr(kCols, field(offsetof(Frame, cols)));
    a.adr(kConstants, pool_);
  }
  // The functions that save and load vectors around calls are the processor's.
  template <class Save, class Load>
  void epilogue(Save save, Load load) {
    a.mov(a64::w0, 0);
    a.bind(exit_);
    each_saved([&](auto first, auto second, int at) { a.ldp(first, second, on_stack(at)); });
    a.ldp(a64::x29, a64::x30, a64::ptr_post(a64::sp, kSavedBytes));
    a.ret(a64::x30);
    const int codes[] = {static_cast<int>(Status::kIndexOutOfRange),
                         static_cast<int>(Status::kDivisionByZero)};
    for (int i = 0; i < 2; ++i) {
      if (!fails_[i]) continue;
      a.bind(failures_[i]);
      a.mov(a64::w0, codes[i]);
      a.b(exit_);
    }
    if (calls_) call_stub(save, load);
  }

  // Operands ------------------------------------------------------------------------------------

  void load_pointers(int n) {
    for (int i = 0; i < n; ++i) {
      const auto from = field(offsetof(Frame, base) + 8 * at(i));
      if (i < kPointers) {
        a.ldr(kPointer[i], from);
      } else {
        a.ldr(kTemp, from);
        a.str(kTemp, moving(i));
      }
    }
  }
  // Every pointer by what the frame has at `array`.
  void advance(int n, std::size_t array, bool back = false) {
    for (int i = 0; i < n; ++i) {
      if (stays(i, array)) continue;
      const a64::Gp moved = pointer(i, kTemp);
      a.ldr(kTemp2, field(array + 8 * at(i)));
      back ? a.sub(moved, moved, kTemp2) : a.add(moved, moved, kTemp2);
      if (i >= kPointers) a.str(moved, moving(i));
    }
  }
  // An operand's element of this row, or of this row and column x, the vector number `copy` from
  // there. Good until kTemp is used.
  Address address(int mem, bool over_x, int bytes, int copy) {
    const a64::Gp base = pointer(mem, kTemp);
    return over_x ? at_column(base, bytes, copy) : Address{base, 0};
  }
  // kTemp is an index: the element of a gathered operand, as address().
  Address gathered(int mem, bool over_x, int bytes, int copy) {
    a.ldr(kTemp2, field(offsetof(Frame, gather_size) + 8 * at(mem)));
    a.cmp(kTemp, kTemp2);
    a.b_hs(failure(Status::kIndexOutOfRange));
    a.ldr(kTemp2, field(offsetof(Frame, gather_stride) + 8 * at(mem)));
    a.mul(kTemp, kTemp, kTemp2);
    a.add(kTemp, kTemp, pointer(mem, kTemp2));
    return over_x ? at_column(kTemp, bytes, copy) : Address{kTemp, 0};
  }
  // The elements of a gathered operand at the indices of argument 0, in place of a result.
  // Registers of functions' arguments are free between calls.
  void gather_lanes(int mem, bool over_x, int bytes, int copy) {
    const a64::Gp size = a64::x0, stride = a64::x1, base = a64::x2, x_stride = a64::x3;
    const a64::Gp left = a64::x4;
    const a64::Gp from = a64::x5, to = a64::x6;
    const auto loop = a.newLabel();
    a.ldr(size, field(offsetof(Frame, gather_size) + 8 * at(mem)));
    a.ldr(stride, field(offsetof(Frame, gather_stride) + 8 * at(mem)));
    a.mov(base, pointer(mem, kTemp));
    if (over_x) {
      a.ldr(x_stride, field(offsetof(Frame, x_stride) + 8 * at(mem)));
      a.add(kTemp, kX, copy * lanes_);
      a.madd(base, kTemp, x_stride, base);
    }
    to_address(from, argument(0));
    to_address(to, result());
    masked ? a.mov(left, kLeft) : a.mov(left, lanes_);
    a.bind(loop);
    a.ldr(kTemp, a64::ptr_post(from, 8));
    a.cmp(kTemp, size);
    a.b_hs(failure(Status::kIndexOutOfRange));
    a.madd(kTemp, kTemp, stride, base);
    switch (bytes) {
      case 1:
        a.ldrb(kTemp2.w(), a64::ptr(kTemp));
        a.strb(kTemp2.w(), a64::ptr_post(to, 1));
        break;
      case 2:
        a.ldrh(kTemp2.w(), a64::ptr(kTemp));
        a.strh(kTemp2.w(), a64::ptr_post(to, 2));
        break;
      case 4:
        a.ldr(kTemp2.w(), a64::ptr(kTemp));
        a.str(kTemp2.w(), a64::ptr_post(to, 4));
        break;
      default:
        a.ldr(kTemp2, a64::ptr(kTemp));
        a.str(kTemp2, a64::ptr_post(to, 8));
    }
    if (over_x) a.add(base, base, x_stride);
    a.subs(left, left, 1);
    a.b_ne(loop);
  }
  // kTemp = an iota's value in the first lane.
  void iota_start(int mem, bool over_x, int copy) {
    if (over_x) {
      a.add(kTemp, kX, copy * lanes_);
      a.ldr(kTemp2, field(offsetof(Frame, x_stride) + 8 * at(mem)));
      a.mul(kTemp, kTemp, kTemp2);
      a.add(kTemp, kTemp, pointer(mem, kTemp2));
    } else if (const a64::Gp from = pointer(mem, kTemp); from != kTemp) {
      a.mov(kTemp, from);
    }
  }
  void fetch_ahead(int mem, int bytes, int copy) {
    a.ldr(kTemp2, field(offsetof(Frame, ahead) + 8 * at(mem)));
    a.add(kTemp, pointer(mem, kTemp), kTemp2);
    const Address there = at_column(kTemp, bytes, copy);
    // prfm pldl1keep, [base, #offset]: not in the assembler. The offset is counted in 8 bytes.
    const std::uint32_t offset = static_cast<std::uint32_t>(there.offset) / 8;
    a.embedUInt32(0xf9800000 | offset << 10 | there.base.id() << 5);
  }
  // Some rows from those on that are so far ahead; nothing if that is 0.
  void fetch_rows(int mem, int bytes, int copies, int rows) {
    const auto over = a.newLabel();
    a.ldr(kTemp2, field(offsetof(Frame, ahead) + 8 * at(mem)));
    a.cbz(kTemp2, over);
    a.add(kTemp2, pointer(mem, kTemp), kTemp2);
    for (int row = 0; row < rows; ++row) {
      if (row > 0) {
        a.ldr(kTemp, field(offsetof(Frame, y_stride) + 8 * at(mem)));
        a.add(kTemp2, kTemp2, kTemp);
      }
      a.mov(kTemp, kTemp2);
      const Address there = at_column(kTemp, bytes, 0);
      for (int byte = 0; byte < copies * lanes_ * bytes; byte += 64) {
        const std::uint32_t offset = static_cast<std::uint32_t>(there.offset + byte) / 8;
        a.embedUInt32(0xf9800000 | offset << 10 | there.base.id() << 5);
      }
    }
    a.bind(over);
  }

  // Loops ---------------------------------------------------------------------------------------
  // What values are in which registers is the same at the end of a body as at its start.

  // `once` runs before the first row, if there is one.
  void for_rows(int operands, auto once, auto body) {
    for_rows(operands, body, 0, [] {}, once);
  }
  // `then` runs after each `group` rows, a power of two, and after the last one; 0: never.
  void for_rows(int operands, auto body, int group, auto then, auto once) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.ldr(kRows, field(offsetof(Frame, rows)));
    a.cmp(kRows, 0);
    a.b_le(done);
    once();
    a.bind(loop);
    same_state(body);
    advance(operands, offsetof(Frame, y_stride));
    a.sub(kRows, kRows, 1);
    if (group > 0) {  // the first group may be smaller
      a.tst(kRows, group - 1);
      a.b_ne(loop);
      same_state(then);
    }
    a.cbnz(kRows, loop);
    a.bind(done);
  }

  // All rows: those that make no group run `body` first, a row at a time.
  template <class Body>
  void for_odd_rows(int operands, int group, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.ldr(kRows, field(offsetof(Frame, rows)));
    a.tst(kRows, group - 1);
    a.b_eq(done);
    a.bind(loop);
    same_state(body);
    advance(operands, offsetof(Frame, y_stride));
    a.sub(kRows, kRows, 1);
    a.tst(kRows, group - 1);
    a.b_ne(loop);
    a.bind(done);
  }
  // The others, behind for_odd_rows: `body` goes through a group, pointers included.
  template <class Body>
  void for_row_groups(int group, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.cbz(kRows, done);
    a.bind(loop);
    same_state(body);
    a.sub(kRows, kRows, group);
    a.cbnz(kRows, loop);
    a.bind(done);
  }

  // Sweeps of one pass. Pointers end where they were if `back`.
  template <class Body>
  void for_sweeps(int operands, bool back, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.ldr(kTemp, field(offsetof(Frame, reduced)));
    a.str(kTemp, field(offsetof(Frame, reduced_left)));
    a.cmp(kTemp, 0);
    a.b_le(done);
    a.bind(loop);
    same_state(body);
    a.ldr(kTemp, field(offsetof(Frame, reduced_left)));
    a.subs(kTemp, kTemp, 1);
    a.str(kTemp, field(offsetof(Frame, reduced_left)));
    a.b_eq(done);
    advance(operands, offsetof(Frame, reduced_step));
    a.b(loop);
    a.bind(done);
    if (!back) return;
    const auto one = a.newLabel();
    a.ldr(kTemp, field(offsetof(Frame, reduced)));
    a.cmp(kTemp, 1);
    a.b_le(one);
    advance(operands, offsetof(Frame, reduced_back), /*back=*/true);
    a.bind(one);
  }

  // Runs the body if the frame's number there is n.
  template <class Body>
  void if_equal(std::size_t offset, int n, Body body) {
    const auto over = a.newLabel();
    a.ldr(kTemp, field(offset));
    a.cmp(kTemp, n);
    a.b_ne(over);
    same_state(body);
    a.bind(over);
  }
  // Runs one of two bodies: `otherwise` if the frame's number there is not less than n.
  template <class Less, class Otherwise>
  void if_less(std::size_t offset, int n, Less less, Otherwise otherwise) {
    const auto more = a.newLabel();
    const auto done = a.newLabel();
    a.ldr(kTemp, field(offset));
    a.cmp(kTemp, n);
    a.b_ge(more);
    same_state(less);
    a.b(done);
    a.bind(more);
    same_state(otherwise);
    a.bind(done);
  }
  void go_to(const Label& label) { a.b(label); }

  // kTemp = where so many accumulators of the vector at x are kept between calls.
  void find_kept(int vectors) {
    a.mov(kTemp, 4 * vectors);
    a.ldr(kTemp2, field(offsetof(Frame, kept)));
    a.madd(kTemp, kX, kTemp, kTemp2);
  }
  Address in_kept(int vector) { return {kTemp, 4 * lanes_ * vector}; }

  void first_column() { a.mov(kX, 0); }

  // x, in steps of `vectors` whole vectors, while there are so many.
  template <class Body>
  void for_whole(int vectors, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    const int step = vectors * lanes_;
    a.add(kTemp, kX, step);
    a.cmp(kTemp, kCols);
    a.b_gt(done);
    a.align(asmjit::AlignMode::kCode, 16);
    a.bind(loop);
    same_state(body);
    a.add(kX, kX, step);
    a.add(kTemp, kX, step);
    a.cmp(kTemp, kCols);
    a.b_le(loop);
    a.bind(done);
  }

  // What is left, if something is. `mask` makes a mask of kLeft lanes.
  template <class Mask, class Body>
  void for_rest(Mask mask, Body body) {
    const auto done = a.newLabel();
    a.subs(kLeft, kCols, kX);
    a.b_le(done);
    mask();
    masked = true;
    same_state(body);
    masked = false;
    a.bind(done);
  }

  // Calls ---------------------------------------------------------------------------------------

  // result = function(argument 0, 1, 2), all lanes; to `failure` if it returns false.
  void call(int function) {
    a.ldr(kTemp, field(offsetof(Frame, functions)));
    a.ldr(kTemp, a64::ptr(kTemp, 8 * function));
    a.bl(call_);
    calls_ = true;
  }
  void fail_if_false(Status status) {
    a.tst(a64::w0, 0xff);
    a.b_eq(failure(status));
  }
  const Label& failure(Status status) {
    const int i = status == Status::kDivisionByZero ? 1 : 0;
    fails_[i] = true;
    return failures_[i];
  }
  static Address result() { return in_frame(offsetof(Frame, result)); }
  static Address argument(int i) {
    return in_frame(offsetof(Frame, argument) + sizeof(Argument) * at(i));
  }
  static Address in_slot(int slot) { return in_frame(offsetof(Frame, slot) + 64 * at(slot)); }
  static a64::Mem field(std::size_t offset) { return memory(in_frame(offset)); }

  static constexpr a64::Gp kFrame = a64::x19;
  static constexpr a64::Gp kRows = a64::x20;
  static constexpr a64::Gp kCols = a64::x21;
  static constexpr a64::Gp kX = a64::x22;
  static constexpr a64::Gp kConstants = a64::x23;
  static constexpr a64::Gp kLeft = a64::x24;
  static constexpr a64::Gp kTemp = a64::x16;
  static constexpr a64::Gp kTemp2 = a64::x17;

 protected:
  static Address in_frame(std::size_t offset) { return {kFrame, static_cast<int>(offset)}; }
  static a64::Mem memory(const Address& at, int behind = 0) {
    return a64::ptr(at.base, at.offset + behind);
  }

  // The registers of a set, each with its place in the frame.
  template <class Move>
  static void each_live(std::uint32_t live, std::size_t offset, Move move) {
    for (; live != 0; live &= live - 1) {
      const int i = std::countr_zero(live);
      move(static_cast<std::uint32_t>(i), field(offset + 64 * at(i)));
    }
  }

  Label pool_;  // of constants

 private:
  static constexpr int kPointers = 12;
  static constexpr a64::Gp kPointer[kPointers] = {a64::x25, a64::x26, a64::x27, a64::x28,
                                                  a64::x8,  a64::x9,  a64::x10, a64::x11,
                                                  a64::x12, a64::x13, a64::x14, a64::x15};
  static constexpr int kSavedBytes = 160;

  static a64::Mem moving(int mem) { return field(offsetof(Frame, pointer) + 8 * at(mem)); }
  static a64::Mem on_stack(int at) { return a64::ptr(a64::sp, at); }

  // The registers that belong to our caller, in pairs, with their places on the stack.
  template <class Move>
  static void each_saved(Move move) {
    static constexpr a64::Gp kGeneral[] = {a64::x19, a64::x20, a64::x21, a64::x22, a64::x23,
                                           a64::x24, a64::x25, a64::x26, a64::x27, a64::x28};
    int place = 16;
    for (std::size_t i = 0; i < std::size(kGeneral); i += 2, place += 16) {
      move(kGeneral[i], kGeneral[i + 1], place);
    }
    for (std::uint32_t i = 8; i < 16; i += 2, place += 16) move(a64::d(i), a64::d(i + 1), place);
  }

  // The register that has an operand's address: `otherwise` if the frame does.
  a64::Gp pointer(int mem, const a64::Gp& otherwise) {
    if (mem < kPointers) return kPointer[mem];
    a.ldr(otherwise, moving(mem));
    return otherwise;
  }
  void to_address(const a64::Gp& reg, const Address& from) {
    a.mov(reg, from.offset);
    a.add(reg, reg, from.base);
  }
  // Displacements cannot be added to indices here, nor indices scaled by less than a vector.
  Address at_column(const a64::Gp& base, int bytes, int copy) {
    const int shift = std::countr_zero(static_cast<unsigned>(bytes));
    a.add(kTemp, base, kX, a64::lsl(shift));
    return {kTemp, copy * lanes_ * bytes};
  }

  // kTemp: the function. Keeps every register but x0 to x7 and the temporary ones.
  template <class Save, class Load>
  void call_stub(Save save, Load load) {
    constexpr int kBytes = 80;
    constexpr int kFirstKept = 4;  // of kPointer
    const auto each_kept = [](auto move) {
      for (int i = kFirstKept; i < kPointers; i += 2) {
        move(kPointer[i], kPointer[i + 1], on_stack(16 + 8 * (i - kFirstKept)));
      }
    };
    a.bind(call_);
    a.stp(a64::x29, a64::x30, a64::ptr_pre(a64::sp, -kBytes));
    each_kept([&](const auto&... operands) { a.stp(operands...); });
    save();
    to_address(a64::x0, result());
    to_address(a64::x1, argument(0));
    to_address(a64::x2, argument(1));
    to_address(a64::x3, argument(2));
    a.mov(a64::x4, lanes_);
    a.blr(kTemp);
    load();
    each_kept([&](const auto&... operands) { a.ldp(operands...); });
    a.ldp(a64::x29, a64::x30, a64::ptr_post(a64::sp, kBytes));
    a.ret(a64::x30);
  }

  int lanes_;
  Label exit_, call_, failures_[2];
  bool fails_[2] = {};
  bool calls_ = false;
};

}  // namespace tilevm::exec::native
