#include <asmjit/x86.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/exec/math/math.h"
#include "exec/native/avx512_backend.h"
#include "exec/native/native.h"
#include "isa.gen.h"

namespace tilevm::exec::native {
namespace {

using bytecode::Cls;
using bytecode::Fold;
using bytecode::Instr;
using bytecode::Op;
using bytecode::Role;
using bytecode::Storage;
using F = Avx512::F;
using M = Avx512::M;

constexpr int kMaxOperands = 9;  // one pointer register each
constexpr int kLanes = 16;
constexpr int kMaxCopies = 4;

// What emitted code reads: extents of the two inner loops, an address and a row stride an operand.
struct Frame {
  std::int64_t rows;
  std::int64_t cols;
  double count;  // of points that a fold sees
  std::byte* base[kMaxOperands];
  std::int64_t y_stride[kMaxOperands];
};
using Entry = void (*)(const Frame*);

bool varies_x(Cls c) { return (static_cast<int>(c) & 1) != 0; }

// A virtual register's place while code is emitted. All lanes are equal if it does not vary over x.
struct Value {
  F f;
  M mask;
  int scalar_operand = -1;  // an int64 in memory, not loaded yet
};

struct Unsupported {
  std::string what;
};

class Emitter {
 public:
  // `copies`: vectors of columns side by side in a fold over rows, so that a row is read in runs.
  Emitter(asmjit::CodeHolder& holder, bytecode::View program, int copies)
      : a_(&holder),
        b_(a_),
        p_(program),
        last_use_(program.header->n_registers, -1),
        copies_(copies) {
    for (auto& c : columns_) {
      c.values.resize(program.header->n_registers);
      c.accumulators.resize(program.header->n_registers);
    }
  }

  void emit() {
    if (p_.operands.size() > kMaxOperands) throw Unsupported{"more than 9 operands"};
    for (const auto& operand : p_.operands) {
      if (operand.role == Role::kGather || operand.role == Role::kIota)
        throw Unsupported{"gathers and iota"};
      if (varies_x(operand.cls) && !operand.contiguous)
        throw Unsupported{"columns that are not contiguous"};
    }
    const int n = static_cast<int>(p_.code.size());
    for (int i = 0; i < n; ++i) {
      for (const int r : sources(p_.code[at(i)]))
        last_use_[at(r)] = std::max(last_use_[at(r)], order(i));
    }
    for (const auto& reg : kSaved) a_.push(reg);
    a_.mov(kCols, x86::qword_ptr(kFrame, offsetof(Frame, cols)));
    switch (p_.header->fold) {
      case Fold::kNone:
        rows_outside([&] { map_row(n); });
        break;
      case Fold::kColumns:
        rows_outside([&] { fold_row(n); });
        break;
      case Fold::kRows:
        columns_outside(n);
        break;
      case Fold::kBoth:
        throw Unsupported{"a fold over rows and columns"};
    }
    for (auto reg = std::rbegin(kSaved); reg != std::rend(kSaved); ++reg) a_.pop(*reg);
    a_.vzeroupper();
    a_.ret();
    b_.emit_constants();
    if (b_.failed)
      throw Unsupported{"more registers than there are, or a call out of emitted code"};
  }

 private:
  static constexpr x86::Gp kFrame = x86::rdi;
  static constexpr x86::Gp kRows = x86::rsi;
  static constexpr x86::Gp kCols = x86::rdx;
  static constexpr x86::Gp kX = x86::rcx;
  static constexpr x86::Gp kTemp = x86::rax;
  static constexpr x86::Gp kPointers[kMaxOperands] = {
      x86::r8, x86::r9, x86::r10, x86::r11, x86::r12, x86::r13, x86::r14, x86::r15, x86::rbx};
  static constexpr x86::Gp kTemp2 = x86::rbp;
  static constexpr x86::Gp kSaved[] = {x86::rbx, x86::rbp, x86::r12, x86::r13, x86::r14, x86::r15};

  // Structure ----------------------------------------------------------------------------------

  void load_pointers() {
    for (std::size_t i = 0; i < p_.operands.size(); ++i) {
      a_.mov(kPointers[i], x86::qword_ptr(kFrame, static_cast<int>(offsetof(Frame, base) + 8 * i)));
    }
  }
  void advance_pointers() {
    for (std::size_t i = 0; i < p_.operands.size(); ++i) {
      a_.add(kPointers[i],
             x86::qword_ptr(kFrame, static_cast<int>(offsetof(Frame, y_stride) + 8 * i)));
    }
  }

  template <class Row>
  void rows_outside(Row row) {
    const auto loop = a_.newLabel();
    const auto done = a_.newLabel();
    load_pointers();
    a_.mov(kRows, x86::qword_ptr(kFrame, offsetof(Frame, rows)));
    a_.test(kRows, kRows);
    a_.jle(done);
    a_.bind(loop);
    row();
    advance_pointers();
    a_.dec(kRows);
    a_.jnz(loop);
    a_.bind(done);
  }

  // x = 0, 16, ...: whole vectors, then what is left under a mask.
  template <class Body>
  void columns(Body body, bool from_zero = true) {
    const auto loop = a_.newLabel();
    const auto tail = a_.newLabel();
    const auto done = a_.newLabel();
    if (from_zero) a_.xor_(kX.r32(), kX.r32());
    a_.lea(kTemp, x86::ptr(kX, kLanes));
    a_.cmp(kTemp, kCols);
    a_.jg(tail);
    a_.align(asmjit::AlignMode::kCode, 32);
    a_.bind(loop);
    body(false);
    a_.add(kX, kLanes);
    a_.lea(kTemp, x86::ptr(kX, kLanes));
    a_.cmp(kTemp, kCols);
    a_.jle(loop);
    a_.bind(tail);
    tail_mask(done);
    body(true);
    a_.bind(done);
  }

  // k7 = the columns left over; jumps to `none` if there are none.
  void tail_mask(const asmjit::Label& none) {
    a_.mov(kTemp, kCols);
    a_.sub(kTemp, kX);
    a_.jle(none);
    a_.mov(kTemp2.r32(), -1);
    a_.bzhi(kTemp2.r32(), kTemp2.r32(), kTemp.r32());
    a_.kmovw(x86::k7, kTemp2.r32());
  }

  // No folds: what does not vary over x once a row, the rest at every column.
  void map_row(int n) {
    range(0, n, [&](const Instr& instr) { return !at_columns(instr); }, false);
    columns([&](bool masked) {
      range(0, n, [&](const Instr& instr) { return at_columns(instr); }, masked);
    });
    clear();
  }

  // Folds over columns: sections once a row, passes over the columns of the row.
  void fold_row(int n) {
    sections(n, false, [&](int begin, int end) {
      columns([&](bool masked) {
        range(begin, end, [](const Instr&) { return true; }, masked);
        forget(begin, end);
      });
    });
    clear();
  }

  // Folds over rows: 64 columns at a time, then 16, then what is left; passes over the rows.
  void columns_outside(int n) {
    const auto block = [&](bool masked) {
      load_pointers();
      sections(n, masked, [&](int begin, int end) {
        const auto loop = a_.newLabel();
        const auto done = a_.newLabel();
        a_.mov(kRows, x86::qword_ptr(kFrame, offsetof(Frame, rows)));
        a_.test(kRows, kRows);
        a_.jle(done);
        a_.align(asmjit::AlignMode::kCode, 32);
        a_.bind(loop);
        for (each_copy(); more_copies(); next_copy()) {
          range(begin, end, [](const Instr&) { return true; }, masked);
          forget(begin, end);
        }
        advance_pointers();
        a_.dec(kRows);
        a_.jnz(loop);
        a_.bind(done);
        load_pointers();
      });
      clear();
    };
    if (copies_ > 1) {
      const auto loop = a_.newLabel();
      const auto rest = a_.newLabel();
      a_.xor_(kX.r32(), kX.r32());
      a_.bind(loop);
      a_.lea(kTemp, x86::ptr(kX, copies_ * kLanes));
      a_.cmp(kTemp, kCols);
      a_.jg(rest);
      block(false);
      a_.add(kX, copies_ * kLanes);
      a_.jmp(loop);
      a_.bind(rest);
      const int wide = std::exchange(copies_, 1);
      columns(block, /*from_zero=*/false);
      copies_ = wide;
    } else {
      columns(block);
    }
  }

  // Several neighbouring vectors of columns side by side, each with registers of its own.
  void each_copy() { copy_ = 0; }
  bool more_copies() {
    if (copy_ < copies_) return true;
    copy_ = 0;
    return false;
  }
  void next_copy() { ++copy_; }
  void clear() {
    for (auto& c : columns_) c.values.assign(c.values.size(), {});
  }
  std::vector<Value>& values() { return columns_[at(copy_)].values; }
  std::array<F, 2>& accumulator(int reg) { return columns_[at(copy_)].accumulators[at(reg)]; }

  // Section code inline; `sweep` loops over the body of each pass.
  template <class Sweep>
  void sections(int n, bool masked, Sweep sweep) {
    int i = 0;
    while (i < n) {
      const int begin = i;
      while (i < n && op(i) != Op::pass) ++i;
      for (each_copy(); more_copies(); next_copy())
        range(begin, i, [](const Instr&) { return true; }, masked);
      if (i == n) return;
      const int body = ++i;
      while (op(i) != Op::end) ++i;
      for (each_copy(); more_copies(); next_copy()) start_folds(body, i);
      sweep(body, i);
      for (each_copy(); more_copies(); next_copy()) finish_folds(body, i);
      ++i;
    }
  }

  // Instructions --------------------------------------------------------------------------------

  Op op(int i) const { return static_cast<Op>(p_.code[at(i)].op); }
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static const bytecode::InstrInfo& info(const Instr& instr) { return bytecode::kIsa[instr.op]; }

  static std::vector<int> sources(const Instr& instr) {
    std::vector<int> result;
    const auto& row = info(instr);
    const std::uint16_t fields[] = {instr.a, instr.b, instr.c};
    std::size_t next = 0;
    for (std::size_t f = 0; f < row.n_fields; ++f) {
      if (row.fields[f].kind == bytecode::FieldKind::kSrc) result.push_back(fields[next++]);
    }
    return result;
  }

  // Does the instruction belong into the loop over columns (of a program without folds)?
  bool at_columns(const Instr& instr) const {
    switch (info(instr).cls) {
      case bytecode::InstrClass::kStore:
        return varies_x(p_.operands[instr.mem].cls);
      case bytecode::InstrClass::kConst:
        return false;
      default:
        return varies_x(instr.cls_dst());
    }
  }

  // When an instruction runs: without folds, what is once a row runs before the rest.
  int order(int i) const {
    const bool late = p_.header->fold == Fold::kNone && at_columns(p_.code[at(i)]);
    return late ? i + static_cast<int>(p_.code.size()) : i;
  }

  template <class Filter>
  void range(int begin, int end, Filter filter, bool masked) {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (!filter(instr)) continue;
      one(instr, masked);
      if (b_.failed)
        throw Unsupported{"more registers than there are, or a call out of emitted code"};
      // A value made and last used in this very stretch of code is done with.
      for (const int r : sources(instr)) {
        if (last_use_[at(r)] == order(i) && made_in(r, begin, end, filter)) values()[at(r)] = {};
      }
    }
  }

  template <class Filter>
  bool made_in(int r, int begin, int end, Filter filter) const {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (info(instr).n_fields > 0 && info(instr).fields[0].kind == bytecode::FieldKind::kDst &&
          instr.dst == r) {
        return filter(instr) && info(instr).cls != bytecode::InstrClass::kFold;
      }
    }
    return false;
  }

  void forget(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      const auto& row = info(instr);
      if (row.n_fields > 0 && row.fields[0].kind == bytecode::FieldKind::kDst)
        values()[instr.dst] = {};
    }
  }

  x86::Mem address(int mem, Cls cls, int bytes) const {
    const auto& pointer = kPointers[at(mem)];
    if (!varies_x(cls)) return x86::ptr(pointer);
    return x86::ptr(pointer, kX,
                    static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(bytes))),
                    copy_ * kLanes * bytes);
  }

  void one(const Instr& instr, bool masked) {
    switch (info(instr).cls) {
      case bytecode::InstrClass::kMark:
        return;
      case bytecode::InstrClass::kLoad:
        return load(instr, masked);
      case bytecode::InstrClass::kStore:
        return store(instr, masked);
      case bytecode::InstrClass::kConst:
        return constant(instr);
      case bytecode::InstrClass::kMap:
        return map(instr);
      case bytecode::InstrClass::kFold:
        return accumulate(instr, masked);
      default:
        throw Unsupported{std::string(info(instr).name)};
    }
  }

  void constant(const Instr& instr) {
    if (static_cast<Op>(instr.op) != Op::const_f32)
      throw Unsupported{std::string(info(instr).name)};
    values()[instr.dst].f = b_.f32(std::bit_cast<float>(static_cast<std::uint32_t>(instr.imm)));
  }

  void load(const Instr& instr, bool masked) {
    const Cls cls = p_.operands[instr.mem].cls;
    const auto storage = info(instr).storage;
    if (storage == Storage::kI64 && cls == Cls::kScalar) {
      values()[instr.dst].scalar_operand = instr.mem;  // see cast_i64_f32
      return;
    }
    F r = b_.fresh();
    const auto z = b_.zmm(r);
    auto from = address(instr.mem, cls, bytecode::storage_bytes(storage));
    if (storage == Storage::kF32 && varies_x(cls)) {
      if (masked)
        a_.k(x86::k7).z().vmovups(z, from);
      else
        a_.vmovups(z, from);
    } else if (storage == Storage::kF32) {
      from.setSize(4);
      a_.vbroadcastss(z, from);
    } else if (storage == Storage::kBF16 && varies_x(cls)) {
      if (masked)
        a_.k(x86::k7).z().vpmovzxwd(z, from);
      else
        a_.vpmovzxwd(z, from);
      a_.vpslld(z, z, 16);
    } else if (storage == Storage::kBF16) {
      from.setSize(2);
      a_.movzx(kTemp.r32(), from);
      a_.shl(kTemp.r32(), 16);
      a_.vpbroadcastd(z, kTemp.r32());
    } else if (storage == Storage::kF64 && cls == Cls::kScalar) {
      from.setSize(8);
      a_.vxorps(b_.xmm(r), b_.xmm(r), b_.xmm(r));
      a_.vcvtsd2ss(b_.xmm(r), b_.xmm(r), from);
      a_.vbroadcastss(z, b_.xmm(r));
    } else {
      throw Unsupported{std::string(info(instr).name)};
    }
    values()[instr.dst].f = std::move(r);
  }

  void store(const Instr& instr, bool masked) {
    const Cls cls = p_.operands[instr.mem].cls;
    const F value = b_.in_register(values()[instr.a].f);
    const auto to = address(instr.mem, cls, bytecode::storage_bytes(info(instr).storage));
    switch (info(instr).storage) {
      case Storage::kF32:
        if (!varies_x(cls))
          a_.vmovss(to, b_.xmm(value));
        else if (masked)
          a_.k(x86::k7).vmovups(to, b_.zmm(value));
        else
          a_.vmovups(to, b_.zmm(value));
        return;
      case Storage::kBF16: {
        const F bits = b_.ishr<16>(rounded_bf16(value));
        if (!varies_x(cls)) {
          a_.vpextrw(to, b_.xmm(bits), 0);
        } else if (masked) {
          a_.k(x86::k7).vpmovdw(to, b_.zmm(bits));
        } else {
          a_.vpmovdw(to, b_.zmm(bits));
        }
        return;
      }
      default:
        throw Unsupported{std::string(info(instr).name)};
    }
  }

  // Nearest bfloat16, ties to even, as float32 bits; NaN becomes the quiet NaN.
  F rounded_bf16(const F& x) {
    const F odd = b_.iand(b_.ishr<16>(x), b_.i32(1));
    const F up = b_.iand(b_.iadd(x, b_.iadd(odd, b_.i32(0x7fff))),
                         b_.i32(static_cast<std::int32_t>(0xffff0000)));
    return b_.select(b_.unordered(x, x), b_.i32(0x7fc00000), up);
  }

  // NaN if either is NaN.
  F extremum(const F& x, const F& y, bool largest) {
    const F a = b_.in_register(x);
    F r = largest ? b_.max(a, y) : b_.min(a, y);  // y where either is NaN
    a_.k(b_.k(b_.unordered(a, a))).vmovaps(b_.zmm(r), b_.zmm(a));
    return r;
  }

  void map(const Instr& instr) {
    const F& x = values()[instr.a].f;
    const F& y = values()[instr.b].f;
    const F& z = values()[instr.c].f;
    const M& m = values()[instr.a].mask;
    const M& m2 = values()[instr.b].mask;
    Value r;
    const auto unordered_or = [&](int predicate) {
      M k = b_.fresh_mask();
      const F s = b_.in_register(x);
      const F t = b_.in_register(y);
      a_.vcmpps(b_.k(k), b_.zmm(s), b_.zmm(t), predicate);
      return k;
    };
    // clang-format off
    switch (static_cast<Op>(instr.op)) {
      case Op::add_f32: r.f = b_.add(x, y); break;
      case Op::sub_f32: r.f = b_.sub(x, y); break;
      case Op::mul_f32: r.f = b_.mul(x, y); break;
      case Op::div_f32: r.f = b_.div(x, y); break;
      case Op::maximum_f32: r.f = extremum(x, y, true); break;
      case Op::minimum_f32: r.f = extremum(x, y, false); break;
      case Op::abs_f32: r.f = math::abs(b_, x); break;
      case Op::neg_f32: r.f = math::neg(b_, x); break;
      case Op::sqrt_f32: r.f = b_.sqrt(x); break;
      case Op::rsqrt_f32: r.f = b_.div(b_.f32(1.0F), b_.sqrt(x)); break;
      case Op::reciprocal_f32: r.f = b_.div(b_.f32(1.0F), x); break;
      case Op::floor_f32: r.f = b_.floor(x); break;
      case Op::ceil_f32: r.f = b_.ceil(x); break;
      case Op::round_f32: r.f = b_.round_even(x); break;
      case Op::trunc_f32: r.f = b_.trunc(x); break;
      case Op::exp_f32: r.f = math::exp(b_, x); break;
      case Op::exp2_f32: r.f = math::exp2(b_, x); break;
      case Op::expm1_f32: r.f = math::expm1(b_, x); break;
      case Op::log_f32: r.f = math::log(b_, x); break;
      case Op::log2_f32: r.f = math::log2(b_, x); break;
      case Op::log1p_f32: r.f = math::log1p(b_, x); break;
      case Op::tanh_f32: r.f = math::tanh(b_, x); break;
      case Op::sigmoid_f32: r.f = math::sigmoid(b_, x); break;
      case Op::erf_f32: r.f = math::erf(b_, x); break;
      case Op::silu_f32: r.f = math::silu(b_, x); break;
      case Op::gelu_f32: r.f = math::gelu(b_, x); break;
      case Op::gelu_tanh_f32: r.f = math::gelu_tanh(b_, x); break;
      case Op::round_bf16: r.f = rounded_bf16(b_.in_register(x)); break;
      case Op::isnan_f32: r.mask = b_.unordered(x, x); break;
      case Op::eq_f32: r.mask = b_.eq(x, y); break;
      case Op::ne_f32: r.mask = unordered_or(4); break;
      case Op::lt_f32: r.mask = b_.lt(x, y); break;
      case Op::le_f32: r.mask = b_.le(x, y); break;
      case Op::gt_f32: r.mask = unordered_or(30); break;
      case Op::ge_f32: r.mask = unordered_or(29); break;
      case Op::and_b8: r.mask = b_.mand(m, m2); break;
      case Op::or_b8: r.mask = b_.mor(m, m2); break;
      case Op::not_b8: r.mask = b_.mnot(m); break;
      case Op::select_f32: r.f = b_.select(m, y, z); break;
      case Op::cast_i64_f32: r.f = scalar_count(instr); break;
      default: throw Unsupported{std::string(info(instr).name)};
    }
    // clang-format on
    values()[instr.dst] = std::move(r);
  }

  F scalar_count(const Instr& instr) {
    const int mem = values()[instr.a].scalar_operand;
    if (mem < 0) throw Unsupported{"cast_i64_f32 of a vector"};
    F r = b_.fresh();
    a_.vxorps(b_.xmm(r), b_.xmm(r), b_.xmm(r));
    a_.vcvtsi2ss(b_.xmm(r), b_.xmm(r), x86::qword_ptr(kPointers[at(mem)]));
    a_.vbroadcastss(b_.zmm(r), b_.xmm(r));
    return r;
  }

  // Folds ---------------------------------------------------------------------------------------

  static bool is_sum(const Instr& instr) {
    return static_cast<Op>(instr.op) == Op::sum_f32 || static_cast<Op>(instr.op) == Op::mean_f32;
  }

  void start_folds(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (info(instr).cls != bytecode::InstrClass::kFold) continue;
      auto& acc = accumulator(instr.dst);
      switch (static_cast<Op>(instr.op)) {
        case Op::sum_f32:
        case Op::mean_f32:
          for (auto& half : acc) {
            half = b_.fresh();
            a_.vpxord(b_.zmm(half), b_.zmm(half), b_.zmm(half));
          }
          break;
        case Op::max_f32:
          acc[0] = b_.in_register(b_.f32(-std::numeric_limits<float>::infinity()));
          break;
        case Op::min_f32:
          acc[0] = b_.in_register(b_.f32(std::numeric_limits<float>::infinity()));
          break;
        default:
          throw Unsupported{std::string(info(instr).name)};
      }
    }
  }

  void accumulate(const Instr& instr, bool masked) {
    auto& acc = accumulator(instr.dst);
    F x = b_.in_register(values()[instr.a].f);
    const bool lanes_fold = p_.header->fold == Fold::kColumns;
    if (is_sum(instr)) {  // in double: half the lanes each
      F low = b_.fresh();
      if (masked && lanes_fold) {
        F kept = b_.fresh();
        a_.k(x86::k7).z().vmovaps(b_.zmm(kept), b_.zmm(x));
        x = std::move(kept);
      }
      a_.vcvtps2pd(b_.zmm(low), b_.ymm(x));
      a_.vaddpd(b_.zmm(acc[0]), b_.zmm(acc[0]), b_.zmm(low));
      a_.vextractf64x4(b_.ymm(low), b_.zmm(x), 1);
      a_.vcvtps2pd(b_.zmm(low), b_.ymm(low));
      a_.vaddpd(b_.zmm(acc[1]), b_.zmm(acc[1]), b_.zmm(low));
      return;
    }
    const F best = extremum(x, acc[0], static_cast<Op>(instr.op) == Op::max_f32);
    if (masked && lanes_fold) {
      a_.k(x86::k7).vmovaps(b_.zmm(acc[0]), b_.zmm(best));
    } else {
      a_.vmovaps(b_.zmm(acc[0]), b_.zmm(best));
    }
  }

  void finish_folds(int begin, int end) {
    const bool lanes_fold = p_.header->fold == Fold::kColumns;
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (info(instr).cls != bytecode::InstrClass::kFold) continue;
      auto acc = std::exchange(accumulator(instr.dst), {});
      F r = acc[0];
      const bool mean = static_cast<Op>(instr.op) == Op::mean_f32;
      if (is_sum(instr)) {
        if (lanes_fold) {
          const F t = b_.fresh();
          a_.vaddpd(b_.zmm(r), b_.zmm(r), b_.zmm(acc[1]));
          a_.vextractf64x4(b_.ymm(t), b_.zmm(r), 1);
          a_.vaddpd(b_.ymm(r), b_.ymm(r), b_.ymm(t));
          a_.vextractf128(b_.xmm(t), b_.ymm(r), 1);
          a_.vaddpd(b_.xmm(r), b_.xmm(r), b_.xmm(t));
          a_.vpermilpd(b_.xmm(t), b_.xmm(r), 1);
          a_.vaddsd(b_.xmm(r), b_.xmm(r), b_.xmm(t));
          if (mean) a_.vdivsd(b_.xmm(r), b_.xmm(r), x86::qword_ptr(kFrame, offsetof(Frame, count)));
          a_.vcvtsd2ss(b_.xmm(r), b_.xmm(r), b_.xmm(r));
          a_.vbroadcastss(b_.zmm(r), b_.xmm(r));
        } else {
          if (mean) {
            const auto count = x86::qword_ptr(kFrame, offsetof(Frame, count))._1to8();
            a_.vdivpd(b_.zmm(r), b_.zmm(r), count);
            a_.vdivpd(b_.zmm(acc[1]), b_.zmm(acc[1]), count);
          }
          a_.vcvtpd2ps(b_.ymm(r), b_.zmm(r));
          a_.vcvtpd2ps(b_.ymm(acc[1]), b_.zmm(acc[1]));
          a_.vinsertf64x4(b_.zmm(r), b_.zmm(r), b_.ymm(acc[1]), 1);
        }
      } else if (lanes_fold) {
        const bool largest = static_cast<Op>(instr.op) == Op::max_f32;
        for (const int distance : {8, 4, 2, 1}) {  // the lanes turn round by ever fewer
          F turned = b_.fresh();
          a_.valignd(b_.zmm(turned), b_.zmm(r), b_.zmm(r), distance);
          r = extremum(turned, r, largest);
        }
      }
      values()[instr.dst].f = std::move(r);
    }
  }

  asmjit::x86::Assembler a_;
  Avx512 b_;
  bytecode::View p_;
  // Registers of one vector of columns.
  struct Columns {
    std::vector<Value> values;
    std::vector<std::array<F, 2>> accumulators;  // of folds
  };
  std::array<Columns, kMaxCopies> columns_;
  std::vector<int> last_use_;
  int copies_;
  int copy_ = 0;
};

// Memory mapped twice, writable here and executable there; freed with the last program.
asmjit::JitRuntime& runtime() {
  static asmjit::JitAllocator::CreateParams params = [] {
    asmjit::JitAllocator::CreateParams p{};
    p.options = asmjit::JitAllocatorOptions::kUseDualMapping;
    return p;
  }();
  static asmjit::JitRuntime instance(&params);
  return instance;
}

}  // namespace

bool available() {
  static const bool yes = [] {
    const auto& features = asmjit::CpuInfo::host().features().x86();
    if (!features.hasAVX512_F() || !features.hasAVX512_DQ() || !features.hasAVX512_BW() ||
        !features.hasAVX512_VL() || !features.hasBMI2())
      return false;
    asmjit::CodeHolder holder;
    holder.init(runtime().environment());
    x86::Assembler a(&holder);
    a.ret();
    void (*probe)() = nullptr;
    if (runtime().add(&probe, &holder) != asmjit::kErrorOk) return false;
    runtime().release(probe);
    return true;
  }();
  return yes;
}

struct Code::Impl {
  Entry entry = nullptr;
  std::size_t size = 0;
  std::vector<bytecode::OperandInfo> operands;
  Fold fold = Fold::kNone;
  ~Impl() {
    if (entry != nullptr) runtime().release(entry);
  }
};

Code::Code(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Code::~Code() = default;

std::unique_ptr<Code> Code::emit(std::span<const std::byte> program, std::string* why) {
  const auto view = bytecode::view(program);
  asmjit::CodeHolder holder;
  // Side by side if the registers suffice, else one vector of columns at a time.
  for (int copies = view.header->fold == Fold::kRows ? kMaxCopies : 1;; copies = 1) {
    holder.reset();
    holder.init(runtime().environment());
    try {
      Emitter(holder, view, copies).emit();
      break;
    } catch (const Unsupported& u) {
      if (copies > 1) continue;
      if (why != nullptr) *why = u.what;
      return nullptr;
    }
  }
  auto impl = std::make_unique<Impl>();
  if (runtime().add(&impl->entry, &holder) != asmjit::kErrorOk) {
    if (why != nullptr) *why = "no executable memory";
    return nullptr;
  }
  impl->size = holder.codeSize();
  impl->operands.assign(view.operands.begin(), view.operands.end());
  impl->fold = view.header->fold;
  return std::unique_ptr<Code>(new Code(std::move(impl)));
}

std::span<const std::byte> Code::machine_code() const {
  return {reinterpret_cast<const std::byte*>(impl_->entry), impl_->size};
}

bool Code::can_run(const Launch& launch) const noexcept {
  // A fold over rows goes down 64 columns at a time; the interpreter, which sweeps whole rows into
  // accumulators in L1, is faster on wider ones (sum over rows of 4096 x 1024: 2.3 against 4.4 ms).
  const bool wide = impl_->fold == Fold::kRows && launch.space.cols > kMaxCopies * kLanes;
  return launch.space.n_reduced == 0 && !wide;
}

Status Code::run(const Launch& launch, interp::Scratch& scratch) const noexcept {
  const auto& space = launch.space;
  Frame frame;
  frame.rows = space.rows;
  frame.cols = space.cols;
  frame.count = static_cast<double>(impl_->fold == Fold::kRows ? space.rows : space.cols);
  std::size_t scratch_bytes = 0;
  for (const auto& operand : impl_->operands) {
    if (operand.role == Role::kScratch)
      scratch_bytes +=
          static_cast<std::size_t>(space.cols * bytecode::storage_bytes(operand.storage) + 63) &
          ~std::size_t{63};
  }
  std::byte* free = scratch_bytes == 0 ? nullptr : scratch.reserve(scratch_bytes);
  if (scratch_bytes != 0 && free == nullptr) return Status::kNoMemory;
  for (std::size_t i = 0; i < impl_->operands.size(); ++i) {
    if (impl_->operands[i].role == Role::kScratch) {
      frame.base[i] = free;
      frame.y_stride[i] = 0;
      free += static_cast<std::size_t>(
                  space.cols * bytecode::storage_bytes(impl_->operands[i].storage) + 63) &
              ~std::size_t{63};
    } else {
      frame.base[i] = launch.bindings[i].base;
      frame.y_stride[i] = launch.bindings[i].y_stride;
    }
  }
  std::int64_t position[kMaxOuter] = {};
  for (;;) {
    impl_->entry(&frame);
    int axis = space.n_outer - 1;
    for (; axis >= 0; --axis) {
      for (std::size_t i = 0; i < impl_->operands.size(); ++i) {
        if (impl_->operands[i].role != Role::kScratch)
          frame.base[i] += launch.bindings[i].outer[axis];
      }
      if (++position[axis] < space.outer[axis]) break;
      for (std::size_t i = 0; i < impl_->operands.size(); ++i) {
        if (impl_->operands[i].role != Role::kScratch)
          frame.base[i] -= launch.bindings[i].outer[axis] * space.outer[axis];
      }
      position[axis] = 0;
    }
    if (axis < 0) return Status::kOk;
  }
}
}  // namespace tilevm::exec::native
