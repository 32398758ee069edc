// Decodes a program: picks handlers and assigns buffers to registers by linear scan.
#include <algorithm>
#include <array>

#include "exec/interp/prepared.h"

namespace tilevm::exec::interp {
namespace {

using bytecode::Instr;
using bytecode::OperandInfo;
using bytecode::Role;

// Blocks are sized so that live buffers and the operands at hand stay in L1. Columns are summed
// faster in longer runs of memory, at less of L1's speed. (Measured: interp_bench.cpp.)
constexpr std::int64_t kTileBudgetBytes = 16 * 1024;
constexpr std::int64_t kRowsTileBudgetBytes = 32 * 1024;
constexpr std::int64_t kMinTile = 256;
constexpr std::int64_t kMaxTile = 2048;
constexpr std::int64_t kRowsMaxTile = 4096;

constexpr std::uint32_t kNone = ~std::uint32_t{0};

class Preparer {
 public:
  explicit Preparer(Prepared& p) : p_(p) {}

  void run() {
    const std::size_t n = p_.code.size();
    p_.steps.reserve(n + p_.operands.size());
    p_.pool.assign(p_.n_registers, kNoPool);
    p_.place.assign(p_.n_registers, 0);
    live_.assign(p_.n_registers, {});
    expiring_.assign(n, kNone);
    free_.fill(kNone);
    find_live_ranges();
    begin_segment(false);
    for (std::uint32_t i = 0; i < n; ++i) {
      emit(i);
      release_at(i);  // those not released by emit
    }
    end_segment();
    choose_tile();
  }

 private:
  // A register: its type, where it is defined and last read, and what else to know of it.
  struct Live {
    std::uint32_t end = 0;   // instruction after which nothing reads it
    std::uint32_t pass = 0;  // defined in; 0 is section code
    std::uint32_t def = 0;
    std::uint32_t next = kNone;  // in a list of expiring or free registers
    std::int32_t resident = -1;  // scratch operand that it lives in
    std::int32_t aimed = -1;     // output that it is stored to
    bool from_scratch = false;   // loaded from scratch memory, which it may point into
    RegType type = RegType::kF32;
    std::uint8_t cls = 0;
    InstrClass by = InstrClass::kMap;
  };

  static const InstrInfo& row(const Instr& instr) { return kIsa[instr.op]; }
  static Op op(const Instr& instr) { return static_cast<Op>(instr.op); }

  void find_live_ranges() {
    std::uint32_t pass = 0;
    std::uint32_t n_passes = 0;
    std::uint32_t n = static_cast<std::uint32_t>(p_.code.size());
    pass_end_.clear();
    pass_end_.push_back(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      if (op(p_.code[i]) == Op::end) pass_end_.push_back(i);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      const Instr& instr = p_.code[i];
      if (op(instr) == Op::pass) pass = ++n_passes;
      if (op(instr) == Op::end) pass = 0;
      const std::uint16_t sources[] = {instr.a, instr.b, instr.c};
      int s = 0;
      for (int f = 0; f < row(instr).n_fields; ++f) {
        const auto& field = row(instr).fields[f];
        if (field.kind == bytecode::FieldKind::kSrc) {
          Live& source = live_[sources[s++]];
          // Passes loop: what comes from outside is read until the end of the last turn.
          source.end = source.pass == pass ? i : pass_end_[pass];
        }
        if (field.kind == bytecode::FieldKind::kDst) {
          Live& dst = live_[instr.dst];
          dst.type = field.type;
          dst.by = row(instr).cls;
          dst.cls =
              dst.by == InstrClass::kConst ? 0 : static_cast<std::uint8_t>(bits(instr.cls_dst()));
          dst.pass = pass;
          dst.def = dst.end = i;
          dst.from_scratch =
              dst.by == InstrClass::kLoad && p_.operands[instr.mem].role == Role::kScratch;
          if (dst.by == InstrClass::kFold) {  // written at the end of its pass
            dst.def = dst.end = pass_end_[pass];
            dst.pass = 0;
          }
        }
      }
      if (row(instr).cls == InstrClass::kStore) find_home(instr, pass);
    }
    for (std::uint32_t r = 0; r < live_.size(); ++r) {
      live_[r].next = expiring_[live_[r].end];
      expiring_[live_[r].end] = r;
    }
  }

  // A stored register may be made where it is stored to. (Where an output is an input in place,
  // the launch decides otherwise: Runner::find_direct.)
  void find_home(const Instr& store, std::uint32_t pass) {
    const OperandInfo& info = p_.operands[store.mem];
    Live& value = live_[store.a];
    ++stores_[store.mem];
    if (!bytecode::lies_as(info.storage, value.type) || value.cls != bits(info.cls)) return;
    if (value.by == InstrClass::kConst || value.by == InstrClass::kFold) return;
    if (info.role == Role::kScratch) {
      if (value.pass == pass && value.resident < 0 && !value.from_scratch) {
        value.resident = store.mem;
      }
    } else if (value.pass == pass && value.by == InstrClass::kMap && value.aimed < 0) {
      value.aimed = store.mem;
    }
  }

  void release_at(std::uint32_t i) {
    for (std::uint32_t r = expiring_[i]; r != kNone;) {
      const std::uint32_t next = live_[r].next;
      // A destination that nothing reads expires where it is defined: not before emit.
      if (p_.pool[r] != kNoPool) {
        live_[r].next = free_[p_.pool[r]];
        free_[p_.pool[r]] = r;
      }
      r = next;
    }
    expiring_[i] = kNone;
  }

  void take(std::uint16_t r) {
    const Live& reg = live_[r];
    if (reg.resident >= 0) return;
    const int pool = pool_of(reg.cls, reg.type);
    p_.pool[r] = static_cast<std::uint8_t>(pool);
    if (free_[pool] != kNone) {
      const std::uint32_t from = free_[pool];
      free_[pool] = live_[from].next;
      p_.place[r] = p_.place[from];
    } else {
      p_.place[r] = static_cast<std::uint16_t>(p_.pool_size[pool]++);
    }
  }

  // Sources that die here give their buffers to the destination.
  void take_in_place(std::uint32_t i, std::uint16_t r) {
    if (live_[r].end != i) {
      release_at(i);
      take(r);
      return;
    }
    take(r);  // never read: must not take over itself
  }

  void begin_segment(bool is_pass) {
    Segment& s = p_.segments.emplace_back();
    s.begin = static_cast<std::uint32_t>(p_.steps.size());
    s.fold_begin = static_cast<std::uint32_t>(p_.folds.size());
    s.resident_begin = static_cast<std::uint32_t>(p_.residents.size());
    s.is_pass = is_pass;
  }
  void end_segment() {
    Segment& s = p_.segments.back();
    s.end = static_cast<std::uint32_t>(p_.steps.size());
    s.fold_end = static_cast<std::uint32_t>(p_.folds.size());
    s.resident_end = static_cast<std::uint32_t>(p_.residents.size());
    if (!s.is_pass && s.begin == s.end) p_.segments.pop_back();
  }

  Step& step(StepKind kind, const Instr& instr) {
    Step& s = p_.steps.emplace_back();
    s.kind = kind;
    s.op = instr.op;
    s.dst = instr.dst;
    s.a = instr.a;
    s.b = instr.b;
    s.c = instr.c;
    s.mem = instr.mem;
    s.cls = static_cast<std::uint8_t>(bits(instr.cls_dst()));
    s.a_cls = static_cast<std::uint8_t>(bits(instr.cls_a()));
    s.b_cls = static_cast<std::uint8_t>(bits(instr.cls_b()));
    s.c_cls = static_cast<std::uint8_t>(bits(instr.cls_c()));
    s.access = &tables().access[instr.op];
    s.converts = row(instr).cls == InstrClass::kLoad &&
                 !bytecode::lies_as(row(instr).storage, row(instr).fields[0].type);
    s.n_sources = static_cast<std::uint8_t>(row(instr).n_fields - 1);
    return s;
  }

  void emit(std::uint32_t i) {
    const Instr& instr = p_.code[i];
    switch (row(instr).cls) {
      case InstrClass::kMap:
        emit_map(i, instr);
        break;
      case InstrClass::kConst:
        p_.constants.push_back({instr.imm, instr.dst});
        break;
      case InstrClass::kLoad:
        emit_load(instr);
        break;
      case InstrClass::kStore:
        emit_store(instr);
        break;
      case InstrClass::kGather:
        step(StepKind::kGather, instr);
        take_in_place(i, instr.dst);
        settle(instr.dst);
        break;
      case InstrClass::kIota:
        step(StepKind::kIota, instr);
        take(instr.dst);
        settle(instr.dst);
        break;
      case InstrClass::kFold:
        emit_fold(instr);
        break;
      case InstrClass::kMark:
        emit_mark(i, instr);
        break;
    }
  }

  // A register that lives in scratch moves from block to block.
  void settle(std::uint16_t r) {
    if (live_[r].resident < 0) return;
    p_.residents.push_back({r, static_cast<std::uint16_t>(live_[r].resident)});
  }

  void emit_load(const Instr& instr) {
    const bool scratch = p_.operands[instr.mem].role == Role::kScratch;
    Step& s = step(scratch ? StepKind::kLoadScratch : StepKind::kLoad, instr);
    if (!scratch && (s.converts || live_[instr.dst].resident >= 0)) s.kind = StepKind::kLoadCopied;
    if (!scratch || s.converts) take(instr.dst);
    settle(instr.dst);
  }

  void emit_store(const Instr& instr) {
    const bool scratch = p_.operands[instr.mem].role == Role::kScratch;
    if (scratch && live_[instr.a].resident == instr.mem) return;  // is there already
    step(scratch ? StepKind::kStoreScratch : StepKind::kStore, instr);
  }

  void emit_map(std::uint32_t i, const Instr& instr) {
    const Live& dst = live_[instr.dst];
    if (dst.aimed >= 0 && dst.resident < 0 && stores_[dst.aimed] == 1) {
      step(StepKind::kAim, instr).mem = static_cast<std::uint16_t>(dst.aimed);
    }
    Step& s = step(StepKind::kMap, instr);
    s.entry = &tables().map[instr.op];
    const int classes[] = {s.a_cls, s.b_cls, s.c_cls};
    unsigned splats = 0;
    bool mixed = false;
    for (int k = 0; k < s.n_sources; ++k) {
      const int cls = classes[k];
      if (cls == s.cls) continue;
      mixed = mixed || cls != 0;
      if ((cls & kColumnBit) == 0) splats |= 1u << k;
    }
    // Along x: a source without the column bit is one value. Right for flat maps too.
    const bool first = (splats & 1u) != 0;
    if (s.n_sources == 3) {
      s.fn = first ? nullptr : s.entry->fn[splats >> 1];
    } else {
      s.fn = s.entry->fn[splats];
    }
    if (mixed) s.kind = StepKind::kMapMixed;
    if (s.fn == nullptr) s.kind = StepKind::kMapExpanded;
    if (s.kind != StepKind::kMap) p_.needs_temporaries = true;
    take_in_place(i, instr.dst);
    settle(instr.dst);
  }

  void emit_fold(const Instr& instr) {
    FoldStep fold = {};
    fold.entry = &tables().fold[instr.op];
    fold.dst = instr.dst;
    fold.a = instr.a;
    fold.b = instr.b;
    fold.dst_cls = static_cast<std::uint8_t>(bits(instr.cls_dst()));
    fold.a_cls = static_cast<std::uint8_t>(bits(instr.cls_a()));
    fold.b_cls = static_cast<std::uint8_t>(bits(instr.cls_b()));
    fold.a_bytes = static_cast<std::uint8_t>(bytecode::reg_bytes(live_[instr.a].type));
    fold.has_index = row(instr).n_fields == 3;
    if (fold.a_cls != (fold.dst_cls | p_.fold)) p_.needs_temporaries = true;
    if (fold.has_index) p_.needs_temporaries = true;
    Step& s = step(StepKind::kFold, instr);
    s.mem = static_cast<std::uint16_t>(p_.folds.size());
    p_.folds.push_back(fold);
  }

  void emit_mark(std::uint32_t i, const Instr& instr) {
    if (op(instr) == Op::halt) return;
    end_segment();
    if (op(instr) == Op::end) {
      release_at(i);
      const Segment& pass = p_.segments.back();
      for (std::uint32_t f = pass.fold_begin; f < pass.fold_end; ++f) take(p_.folds[f].dst);
    }
    begin_segment(op(instr) == Op::pass);
  }

  void choose_tile() {
    std::int64_t bytes = 0;
    for (int pool = 0; pool < kPools; ++pool) {
      if (pool / 4 == bits(Cls::kFull)) bytes += p_.pool_size[pool] * pool_bytes(pool);
    }
    for (const OperandInfo& info : p_.operands) {
      if (info.cls != Cls::kFull || info.role == Role::kIota) continue;
      bytes += bytecode::storage_bytes(info.storage);
    }
    const bool rows = p_.fold == kRowBit;
    const std::int64_t budget = rows ? kRowsTileBudgetBytes : kTileBudgetBytes;
    const std::int64_t fits = budget / std::max<std::int64_t>(bytes, 1);
    p_.tile = std::clamp(fits / 64 * 64, kMinTile, rows ? kRowsMaxTile : kMaxTile);
  }

  Prepared& p_;
  std::vector<Live> live_;
  std::vector<std::uint32_t> expiring_;  // by instruction: head of the registers that end there
  std::vector<std::uint32_t> pass_end_;  // by pass
  std::array<std::uint32_t, kPools> free_;
  std::array<std::uint16_t, bytecode::kMaxOperands> stores_{};  // by operand
};

}  // namespace

Prepared prepare(std::span<const std::byte> program) {
  Prepared p;
  p.program.assign(program.begin(), program.end());
  const bytecode::View view = bytecode::view(p.program);
  p.operands = view.operands;
  p.code = view.code;
  p.fold = static_cast<int>(view.header->fold);
  p.n_registers = view.header->n_registers;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    if (p.operands[i].role == Role::kScratch) {
      p.scratch.push_back(static_cast<std::uint16_t>(i));
    }
  }
  Preparer(p).run();
  return p;
}

}  // namespace tilevm::exec::interp
