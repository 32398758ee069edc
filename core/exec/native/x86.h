// x86-64: general registers, loops and calls, the same for AVX-512 and AVX2.
//
//   rdi frame | rsi rows | rdx columns | rcx x, the column at hand | rax rbp temporary
//   r8-r15 rbx pointers of the first nine operands; those of others are in the frame
#pragma once

#include <asmjit/x86.h>

#include <cstddef>
#include <cstdint>

#include "bytecode/bytecode.h"
#include "exec/launch.h"
#include "exec/native/frame.h"
#include "exec/native/functions.h"
#include "exec/native/listing.h"
#include "exec/native/processor.h"
#include "exec/native/x86_encoder.h"

namespace tilevm::exec::native {

class X86 : public Processor {
 public:
  using Address = x86::Mem;
  using Label = asmjit::Label;

  X86(asmjit::CodeHolder& holder, Owner& owner, int lanes)
      : Processor(owner),
        a(&holder),
        lanes_(lanes),
        exit_(Listing::label(a, "exit")),
        call_(Listing::label(a, "call_function")),
        failures_{Listing::label(a, "index_out_of_range"), Listing::label(a, "division_by_zero")} {}

  Encoder a;

  void prologue() {
    for (const auto& reg : kSaved) a.push(reg);
    a.mov(kCols, field(offsetof(Frame, cols)));
  }
  // The functions that save and load vectors around calls are the processor's.
  template <class Save, class Load>
  void epilogue(Save save, Load load) {
    a.xor_(x86::eax, x86::eax);
    a.bind(exit_);
    for (auto reg = std::rbegin(kSaved); reg != std::rend(kSaved); ++reg) a.pop(*reg);
    a.vzeroupper();
    a.ret();
    const int codes[] = {static_cast<int>(Status::kIndexOutOfRange),
                         static_cast<int>(Status::kDivisionByZero)};
    for (int i = 0; i < 2; ++i) {
      if (!fails_[i]) continue;
      a.bind(failures_[i]);
      a.mov(x86::eax, codes[i]);
      a.jmp(exit_);
    }
    if (calls_) call_stub(save, load);
  }

  static constexpr bool kStreams = true;
  // Others see what was stored past the caches.
  void end_streams() { a.sfence(); }

  // Operands ------------------------------------------------------------------------------------

  void load_pointers(int n) {
    for (int i = 0; i < n; ++i) {
      const auto from = field(offsetof(Frame, base) + 8 * at(i));
      if (i < kPointers) {
        a.mov(kPointer[i], from);
      } else {
        a.mov(kTemp, from);
        a.mov(moving(i), kTemp);
      }
    }
  }
  // Every pointer by what the frame has at `array`.
  void advance(int n, std::size_t array, bool back = false) {
    for (int i = 0; i < n; ++i) {
      if (stays(i, array)) continue;
      const auto by = field(array + 8 * at(i));
      if (i < kPointers) {
        back ? a.sub(kPointer[i], by) : a.add(kPointer[i], by);
      } else {
        a.mov(kTemp, by);
        back ? a.sub(moving(i), kTemp) : a.add(moving(i), kTemp);
      }
    }
  }
  // An operand's element of this row, or of this row and column x, the vector number `copy` from
  // there. Good until kTemp is used.
  Address address(int mem, bool over_x, int bytes, int copy) {
    const auto pointer = this->pointer(mem);
    if (!over_x) return x86::ptr(pointer);
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    return x86::ptr(pointer, kX, shift, copy * lanes_ * bytes);
  }
  // kTemp is an index: the element of a gathered operand, as address().
  Address gathered(int mem, bool over_x, int bytes, int copy) {
    element_at_index(mem);
    if (!over_x) return x86::ptr(kTemp);
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    return x86::ptr(kTemp, kX, shift, copy * lanes_ * bytes);
  }
  // The elements at the indices of argument 0, side by side where functions leave their results:
  // kTemp2 lanes, at least one.
  void gather_lanes(int mem, bool over_x, int bytes, int copy) {
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    const auto in_frame = [&](const Address& first, std::uint32_t scale, int size) {
      return x86::ptr(kFrame, kTemp2, scale, static_cast<std::int32_t>(first.offset()) - size);
    };
    const auto loop = a.newLabel();
    if (over_x) start_lanes(mem, x86::ptr(kX, kTemp2, 0, copy * lanes_ - 1));
    a.bind(loop);
    a.mov(kTemp, in_frame(argument(0), 3, 8));
    element_at_index(mem);
    const Address from = over_x ? x86::ptr(kTemp, kRows) : x86::ptr(kTemp);
    const Address to = in_frame(result(), shift, bytes);
    switch (bytes) {
      case 1:
        a.movzx(kTemp.r32(), sized(from, 1));
        a.mov(to, kTemp.r8());
        break;
      case 2:
        a.movzx(kTemp.r32(), sized(from, 2));
        a.mov(to, kTemp.r16());
        break;
      case 4:
        a.mov(kTemp.r32(), from);
        a.mov(to, kTemp.r32());
        break;
      default:
        a.mov(kTemp, from);
        a.mov(to, kTemp);
    }
    if (over_x) a.sub(kRows, field(offsetof(Frame, x_stride) + 8 * at(mem)));
    a.dec(kTemp2);
    a.jnz(loop);
    if (over_x) end_lanes();
  }
  // The same of a whole vector, through registers: a load of all lanes would wait until the stores
  // of each are in the cache. Sixteen bytes at a time, of `chunk`, which is what is stored at once:
  // in `first`, or else in `next`, and then done(their number in the chunk, their place).
  template <class Done>
  void gather_vector(int mem, bool over_x, bool contiguous, int bytes, int copy, int chunk,
                     const x86::Xmm& first, const x86::Xmm& next, Done done) {
    constexpr int kPart = 16;
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    const bool walks = over_x && !contiguous;
    if (walks) start_lanes(mem, x86::ptr(kX, copy * lanes_));
    for (int lane = 0; lane < lanes_; ++lane) {
      const int in_part = lane * bytes % kPart, part = lane * bytes % chunk / kPart;
      const x86::Xmm& to = part == 0 ? first : next;
      a.mov(kTemp, sized(argument(0).cloneAdjusted(8 * lane), 8));
      element_at_index(mem);
      put_lane(to, in_part / bytes, bytes,
               walks    ? x86::ptr(kTemp, kRows)
               : over_x ? x86::ptr(kTemp, kX, shift, (copy * lanes_ + lane) * bytes)
                        : x86::ptr(kTemp));
      if (walks && lane + 1 < lanes_) a.add(kRows, field(offsetof(Frame, x_stride) + 8 * at(mem)));
      if (in_part + bytes == kPart || lane + 1 == lanes_) done(part, lane * bytes - in_part);
    }
    if (walks) end_lanes();
  }
  // kTemp = an iota's value in the first lane.
  void iota_start(int mem, bool over_x, int copy) {
    if (over_x) {
      a.lea(kTemp, x86::ptr(kX, copy * lanes_));
      a.imul(kTemp, field(offsetof(Frame, x_stride) + 8 * at(mem)));
      mem < kPointers ? a.add(kTemp, kPointer[mem]) : a.add(kTemp, moving(mem));
    } else {
      a.mov(kTemp, pointer(mem));
    }
  }
  // kTemp = a small integer.
  void general_small(Address from, bytecode::Storage storage) {
    from.setSize(storage == bytecode::Storage::kI16 ? 2 : 1);
    storage == bytecode::Storage::kU8 ? a.movzx(kTemp.r32(), from) : a.movsx(kTemp.r32(), from);
  }
  void fetch_ahead(int mem, int bytes, int copy) {
    a.mov(kTemp2, field(offsetof(Frame, ahead) + 8 * at(mem)));
    a.add(kTemp2, pointer(mem));
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    a.prefetcht0(x86::ptr(kTemp2, kX, shift, copy * lanes_ * bytes));
  }
  // Some rows from those on that are so far ahead, into the second cache; nothing if that is 0.
  void fetch_rows(int mem, int bytes, int copies, int rows) {
    const auto over = a.newLabel();
    a.mov(kTemp2, field(offsetof(Frame, ahead) + 8 * at(mem)));
    a.test(kTemp2, kTemp2);
    a.jz(over);
    a.add(kTemp2, pointer(mem));
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes)));
    a.lea(kTemp2, x86::ptr(kTemp2, kX, shift));
    for (int row = 0; row < rows; ++row) {
      if (row > 0) a.add(kTemp2, field(offsetof(Frame, y_stride) + 8 * at(mem)));
      for (int byte = 0; byte < copies * lanes_ * bytes; byte += 64) {
        a.prefetcht1(x86::ptr(kTemp2, byte));
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
    a.mov(kRows, field(offsetof(Frame, rows)));
    a.test(kRows, kRows);
    a.jle(done);
    once();
    a.align(asmjit::AlignMode::kCode, 16);
    a.bind(loop);
    same_state(body);
    advance(operands, offsetof(Frame, y_stride));
    a.dec(kRows);
    if (group > 0) {  // the first group may be smaller
      a.test(kRows.r32(), group - 1);
      a.jnz(loop);
      same_state(then);
      a.test(kRows, kRows);
    }
    a.jnz(loop);
    a.bind(done);
  }

  // All rows: those that make no group run `body` first, a row at a time.
  template <class Body>
  void for_odd_rows(int operands, int group, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.mov(kRows, field(offsetof(Frame, rows)));
    a.test(kRows.r32(), group - 1);
    a.jz(done);
    a.bind(loop);
    same_state(body);
    advance(operands, offsetof(Frame, y_stride));
    a.dec(kRows);
    a.test(kRows.r32(), group - 1);
    a.jnz(loop);
    a.bind(done);
  }
  // The others, behind for_odd_rows: `body` goes through a group, pointers included.
  template <class Body>
  void for_row_groups(int group, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.test(kRows, kRows);
    a.jz(done);
    a.align(asmjit::AlignMode::kCode, 16);
    a.bind(loop);
    same_state(body);
    a.sub(kRows, group);
    a.jnz(loop);
    a.bind(done);
  }

  // Sweeps of one pass. Pointers end where they were if `back`.
  template <class Body>
  void for_sweeps(int operands, bool back, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.mov(kTemp, field(offsetof(Frame, reduced)));
    a.mov(field(offsetof(Frame, reduced_left)), kTemp);
    a.test(kTemp, kTemp);
    a.jle(done);
    a.bind(loop);
    same_state(body);
    a.dec(field(offsetof(Frame, reduced_left)));
    a.jz(done);
    advance(operands, offsetof(Frame, reduced_step));
    a.jmp(loop);
    a.bind(done);
    if (!back) return;
    const auto one = a.newLabel();
    a.cmp(field(offsetof(Frame, reduced)), 1);
    a.jle(one);
    advance(operands, offsetof(Frame, reduced_back), /*back=*/true);
    a.bind(one);
  }

  // Runs the body if the frame's number there is n.
  template <class Body>
  void if_equal(std::size_t offset, int n, Body body) {
    const auto over = a.newLabel();
    a.cmp(field(offset), n);
    a.jne(over);
    same_state(body);
    a.bind(over);
  }
  // Runs one of two bodies: `otherwise` if the frame's number there is not less than n.
  template <class Less, class Otherwise>
  void if_less(std::size_t offset, int n, Less less, Otherwise otherwise) {
    const auto more = a.newLabel();
    const auto done = a.newLabel();
    a.cmp(field(offset), n);
    a.jge(more);
    same_state(less);
    a.jmp(done);
    a.bind(more);
    same_state(otherwise);
    a.bind(done);
  }
  void go_to(const Label& label) { a.jmp(label); }

  // kTemp = where so many accumulators of the vector at x are kept between calls.
  void find_kept(int vectors) {
    a.imul(kTemp, kX, 4 * vectors);
    a.add(kTemp, field(offsetof(Frame, kept)));
  }
  Address in_kept(int vector) { return x86::ptr(kTemp, 4 * lanes_ * vector); }

  void first_column() { a.xor_(kX.r32(), kX.r32()); }

  // x, in steps of `vectors` whole vectors, while there are so many.
  template <class Body>
  void for_whole(int vectors, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    const int step = vectors * lanes_;
    a.lea(kTemp, x86::ptr(kX, step));
    a.cmp(kTemp, kCols);
    a.jg(done);
    a.align(asmjit::AlignMode::kCode, 32);
    a.bind(loop);
    same_state(body);
    a.add(kX, step);
    a.lea(kTemp, x86::ptr(kX, step));
    a.cmp(kTemp, kCols);
    a.jle(loop);
    a.bind(done);
  }

  // What is left, if something is. `mask` makes a mask of kTemp lanes, a number below a vector's.
  template <class Mask, class Body>
  void for_rest(Mask mask, Body body) {
    const auto done = a.newLabel();
    a.mov(kTemp, kCols);
    a.sub(kTemp, kX);
    a.jle(done);
    mask();
    masked = true;
    same_state(body);
    masked = false;
    a.bind(done);
  }

  // Whole vectors and the rest by one body, under a mask that is mostly full. `mask` takes kTemp.
  template <class Mask, class Body>
  void for_masked(Mask mask, Body body) {
    const auto loop = a.newLabel();
    const auto done = a.newLabel();
    a.mov(kTemp, kCols);
    a.sub(kTemp, kX);
    a.jle(done);
    a.align(asmjit::AlignMode::kCode, 32);
    a.bind(loop);
    mask();
    masked = true;
    same_state(body);
    masked = false;
    a.add(kX, lanes_);
    a.mov(kTemp, kCols);
    a.sub(kTemp, kX);
    a.jg(loop);
    a.bind(done);
  }

  // Calls ---------------------------------------------------------------------------------------

  // result = function(argument 0, 1, 2), all lanes; to `failure` if it returns false.
  void call(int function) {
    a.mov(kTemp, field(offsetof(Frame, functions)));
    a.mov(kTemp, x86::qword_ptr(kTemp, 8 * function));
    a.call(call_);
    calls_ = true;
  }
  void fail_if_false(Status status) {
    a.test(x86::al, x86::al);
    a.jz(failure(status));
  }
  const Label& failure(Status status) {
    const int i = status == Status::kDivisionByZero ? 1 : 0;
    fails_[i] = true;
    return failures_[i];
  }
  static Address result() { return x86::ptr(kFrame, offsetof(Frame, result)); }
  static Address argument(int i) {
    return x86::ptr(kFrame, static_cast<int>(offsetof(Frame, argument) + sizeof(Argument) * at(i)));
  }
  static Address in_slot(int slot) {
    return x86::ptr(kFrame, static_cast<int>(offsetof(Frame, slot)) + 64 * slot);
  }
  static Address field(std::size_t offset) {
    return x86::qword_ptr(kFrame, static_cast<int>(offset));
  }

  static constexpr x86::Gp kFrame = x86::rdi;
  static constexpr x86::Gp kRows = x86::rsi;
  static constexpr x86::Gp kCols = x86::rdx;
  static constexpr x86::Gp kX = x86::rcx;
  static constexpr x86::Gp kTemp = x86::rax;
  static constexpr x86::Gp kTemp2 = x86::rbp;

  // The register that has an operand's address; kTemp if the frame does.
  x86::Gp pointer(int mem) {
    if (mem < kPointers) return kPointer[mem];
    a.mov(kTemp, moving(mem));
    return kTemp;
  }

 protected:
  // The registers of a set, each with its place in the frame.
  template <class Move>
  static void each_live(std::uint32_t live, std::size_t offset, int bytes, Move move) {
    for (; live != 0; live &= live - 1) {
      const int i = std::countr_zero(live);
      move(static_cast<std::uint32_t>(i), x86::ptr(kFrame, static_cast<int>(offset) + bytes * i));
    }
  }

 private:
  static constexpr int kPointers = 9;
  static constexpr x86::Gp kPointer[kPointers] = {x86::r8,  x86::r9,  x86::r10, x86::r11, x86::r12,
                                                  x86::r13, x86::r14, x86::r15, x86::rbx};
  static constexpr x86::Gp kSaved[] = {x86::rbx, x86::rbp, x86::r12, x86::r13, x86::r14, x86::r15};

  // kTemp is an index, and then the address of a gathered operand's element in the first column.
  x86::Gp element_at_index(int mem) {
    a.cmp(kTemp, field(offsetof(Frame, gather_size) + 8 * at(mem)));
    a.jae(failure(Status::kIndexOutOfRange));
    a.imul(kTemp, field(offsetof(Frame, gather_stride) + 8 * at(mem)));
    mem < kPointers ? a.add(kTemp, kPointer[mem]) : a.add(kTemp, moving(mem));
    return kTemp;
  }
  // Around a walk over lanes: kRows is how far from the first column's element the lane's is.
  void start_lanes(int mem, const Address& column) {
    a.mov(field(offsetof(Frame, rows_left)), kRows);
    a.lea(kRows, column);
    a.imul(kRows, field(offsetof(Frame, x_stride) + 8 * at(mem)));
  }
  void end_lanes() { a.mov(kRows, field(offsetof(Frame, rows_left))); }
  // The first lane that is put empties the others.
  void put_lane(const x86::Xmm& to, int lane, int bytes, const Address& from) {
    if (lane == 0 && bytes < 4) a.vpxor(to, to, to);
    switch (bytes) {
      case 1:
        a.vpinsrb(to, to, from, lane);
        break;
      case 2:
        a.vpinsrw(to, to, from, lane);
        break;
      case 4:
        lane == 0 ? a.vmovd(to, from) : a.vpinsrd(to, to, from, lane);
        break;
      default:
        lane == 0 ? a.vmovq(to, from) : a.vpinsrq(to, to, from, lane);
    }
  }
  static Address sized(Address from, std::uint32_t bytes) {
    from.setSize(bytes);
    return from;
  }

  static Address moving(int mem) { return field(offsetof(Frame, pointer) + 8 * at(mem)); }

  // rax: the function. Keeps every register but rax.
  template <class Save, class Load>
  void call_stub(Save save, Load load) {
    static constexpr x86::Gp kKept[] = {x86::rdi, x86::rsi, x86::rdx, x86::rcx, x86::r8,
                                        x86::r9,  x86::r10, x86::r11, x86::rbp};
    a.bind(call_);
    for (const auto& reg : kKept) a.push(reg);
    a.mov(x86::rbp, x86::rsp);
    a.and_(x86::rsp, -16);
    save();
    a.mov(x86::r8d, lanes_);
    a.lea(x86::rcx, argument(2));
    a.lea(x86::rdx, argument(1));
    a.lea(x86::rsi, argument(0));
    a.lea(x86::rdi, result());
    a.vzeroupper();
    a.call(x86::rax);
    a.mov(x86::rsp, x86::rbp);
    for (auto reg = std::rbegin(kKept); reg != std::rend(kKept); ++reg) a.pop(*reg);
    load();
    a.ret();
  }

  int lanes_;
  Label exit_, call_, failures_[2];
  bool fails_[2] = {};
  bool calls_ = false;
};

}  // namespace tilevm::exec::native
