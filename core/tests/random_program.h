// Random valid programs, drawn from the instruction table.
#pragma once

#include <array>
#include <bit>
#include <random>
#include <vector>

#include "bytecode/builder.h"

namespace tilevm::test {

struct ProgramOptions {
  int max_instrs = 24;        // about: sources that have to be made first come on top
  int fold = -1;              // a Fold, or -1 for any
  bool traps = true;          // instructions that may stop the launch
  bool scratch = true;        // values saved in one pass and read in a later one
  std::int64_t gathered = 4;  // without traps, indices are clamped to 0 .. gathered - 1
};

class ProgramGenerator {
 public:
  using Bytes = std::vector<std::byte>;

  explicit ProgramGenerator(std::uint64_t seed) : rng_(seed) {}

  Bytes next(const ProgramOptions& options = {}) {
    using namespace bytecode;
    options_ = options;
    fold_ = options.fold < 0 ? below(4) : options.fold;
    builder_.reset(static_cast<Fold>(fold_));
    section_.clear();
    body_.clear();
    operands_.clear();
    saved_.clear();
    pass_ = 0;
    n_stored_ = 0;
    const int n_passes = fold_ == 0 ? 0 : 1 + below(3);
    const int steps = 1 + below(options.max_instrs) / (2 * n_passes + 1);
    emit(below(steps + 1));
    for (int p = 1; p <= n_passes; ++p) {
      builder_.begin_pass();
      pass_ = p;
      emit(steps);
      store_recent();
      builder_.end_pass();
      pass_ = 0;
      section_.insert(section_.end(), folds_.begin(), folds_.end());
      folds_.clear();
      body_.clear();
      emit(below(steps + 1));
    }
    store_recent();
    while (n_stored_ == 0) emit_row(pick_of(InstrClass::kStore));
    return builder_.finish();
  }

  int below(int n) { return static_cast<int>(rng_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  std::mt19937_64& rng() { return rng_; }

 private:
  using Reg = bytecode::Reg;
  using RegType = bytecode::RegType;
  using Cls = bytecode::Cls;
  using InstrClass = bytecode::InstrClass;
  using InstrInfo = bytecode::InstrInfo;
  using Role = bytecode::Role;

  struct Value {
    Reg reg;
    RegType type;
  };

  static bytecode::Op op_of(const InstrInfo& row) {
    return static_cast<bytecode::Op>(&row - bytecode::kIsa);
  }

  const InstrInfo& pick_of(InstrClass cls) {
    for (;;) {
      const InstrInfo& row = bytecode::kIsa[below(bytecode::kOpCount)];
      if (row.cls == cls) return row;
    }
  }

  // The axes that may vary where we are: section code must not vary over reduced ones.
  int allowed() const { return pass_ == 0 ? 3 & ~fold_ : 3; }

  void emit(int steps) {
    for (int i = 0; i < steps; ++i) {
      constexpr std::array kRare = {InstrClass::kLoad, InstrClass::kGather, InstrClass::kStore,
                                    InstrClass::kIota, InstrClass::kConst};
      if (pass_ != 0 && chance(20)) {
        emit_row(pick_of(InstrClass::kFold));
      } else if (chance(30)) {
        emit_row(pick_of(kRare[below(kRare.size())]));
      } else {
        emit_row(pick_of(InstrClass::kMap));
      }
    }
  }

  void emit_row(const InstrInfo& row) {
    const bool traps = row.effect.find("stops the launch") != std::string_view::npos;
    if (traps && !options_.traps && row.cls != InstrClass::kGather) return;
    std::array<Reg, 3> sources;
    std::size_t n = 0;
    for (int f = 0; f < row.n_fields; ++f) {
      if (row.fields[f].kind == bytecode::FieldKind::kSrc) {
        sources[n++] = value_of(row.fields[f].type);
      }
    }
    const RegType type = row.fields[0].type;
    switch (row.cls) {
      case InstrClass::kMap:
        define(builder_.map(op_of(row), {sources.data(), n}), type);
        break;
      case InstrClass::kFold: {
        const int kept = static_cast<int>(sources[0].cls) & ~fold_;
        if (n == 2 && (static_cast<int>(sources[1].cls) & ~fold_ & ~kept)) return;
        const Reg dst = n == 1 ? builder_.fold(op_of(row), sources[0])
                               : builder_.fold(op_of(row), sources[0], sources[1]);
        folds_.push_back({dst, type});
        break;
      }
      case InstrClass::kStore:
        store(row, sources[0]);
        break;
      case InstrClass::kGather:
        gather(row, sources[0]);
        break;
      default:
        source(row);
    }
  }

  // Most programs should keep what they computed: stores a few of the last values.
  void store_recent() {
    const std::vector<Value> values = pass_ == 0 ? section_ : body_;
    for (std::size_t i = 0; i < values.size() && i < 4; ++i) {
      const Value& value = values[values.size() - 1 - i];
      const InstrInfo& row = pick_of(InstrClass::kStore);
      if (row.fields[1].type == value.type) store(row, value.reg);
    }
  }

  // A register of this type, perhaps a new one.
  Reg value_of(RegType type) {
    std::vector<Reg> found;
    for (const auto* values : {&section_, &body_}) {
      for (const Value& value : *values) {
        if (value.type == type) found.push_back(value.reg);
      }
    }
    if (!found.empty() && chance(85)) {
      const int last = static_cast<int>(found.size()) - 1;
      return found[chance(50) ? last : below(last + 1)];
    }
    for (;;) {
      const InstrClass cls = chance(70)   ? InstrClass::kLoad
                             : chance(70) ? InstrClass::kConst
                                          : InstrClass::kIota;
      const InstrInfo& row = pick_of(cls);
      if (row.fields[0].type == type) return source(row);
    }
  }

  // An instruction without register sources: load, iota, const.
  Reg source(const InstrInfo& row) {
    const RegType type = row.fields[0].type;
    if (row.cls == InstrClass::kConst) {
      return define(builder_.constant(op_of(row), random_imm(type)), type);
    }
    if (row.cls == InstrClass::kIota) {
      return define(builder_.iota(operand(Role::kIota, row.storage, 0)), type);
    }
    for (const Saved& saved : saved_) {
      if (pass_ > saved.pass && saved.storage == row.storage && chance(50)) {
        return define(builder_.load(op_of(row), saved.mem), type);
      }
    }
    return define(builder_.load(op_of(row), operand(Role::kInput, row.storage, 0)), type);
  }

  void store(const InstrInfo& row, Reg value) {
    if (pass_ != 0 && options_.scratch && chance(40)) {
      const auto mem = builder_.operand(Role::kScratch, row.storage, Cls::kFull, true);
      builder_.store(op_of(row), mem, value);
      saved_.push_back({mem, row.storage, pass_});
      return;
    }
    builder_.store(op_of(row), operand(Role::kOutput, row.storage, static_cast<int>(value.cls)),
                   value);
    ++n_stored_;
  }

  void gather(const InstrInfo& row, Reg index) {
    using bytecode::Op;
    if (!options_.traps || chance(50)) {
      const Reg low = define(builder_.constant(std::int64_t{0}), RegType::kI64);
      const Reg high = define(builder_.constant(options_.gathered - 1), RegType::kI64);
      index = define(builder_.map(Op::maximum_i64, index, low), RegType::kI64);
      index = define(builder_.map(Op::minimum_i64, index, high), RegType::kI64);
    }
    define(builder_.gather(op_of(row), operand(Role::kGather, row.storage, 0), index),
           row.fields[0].type);
  }

  // An operand that fits, new or used before, varying at least over `least`. Every output is
  // stored to once only, so that no two stores race.
  std::uint16_t operand(Role role, bytecode::Storage storage, int least) {
    if (role != Role::kOutput && chance(40)) {
      for (const std::uint16_t mem : operands_) {
        const bytecode::OperandInfo& info = builder_.operand_info(mem);
        const bool fits = (static_cast<int>(info.cls) & ~allowed()) == 0;
        if (info.role == role && info.storage == storage && fits) return mem;
      }
    }
    const int cls = least | (below(4) & allowed());
    const bool contiguous = role != Role::kIota && (cls & 1) && chance(60);
    operands_.push_back(builder_.operand(role, storage, static_cast<Cls>(cls), contiguous));
    return operands_.back();
  }

  Reg define(Reg reg, RegType type) {
    (pass_ == 0 ? section_ : body_).push_back({reg, type});
    return reg;
  }

  // Special values, small ones, and any bits.
  std::uint64_t random_imm(RegType type) {
    constexpr std::array<std::uint32_t, 12> kF32 = {0,          0x80000000, 0x3f800000, 0xbf800000,
                                                    0x3f000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                                    1,          0x7f7fffff, 0x33800000, 0x40490fdb};
    switch (type) {
      case RegType::kF32:
        if (chance(60)) return kF32[below(kF32.size())];
        return static_cast<std::uint32_t>(rng_());
      case RegType::kF64:
        if (!chance(60)) return rng_();
        return std::bit_cast<std::uint64_t>(
            static_cast<double>(std::bit_cast<float>(kF32[below(kF32.size())])));
      case RegType::kI32:
        return static_cast<std::uint32_t>(chance(70) ? below(21) - 10 : rng_());
      case RegType::kI64:
        return chance(70) ? static_cast<std::uint64_t>(below(21) - 10) : rng_();
      case RegType::kB8:
        return rng_() & 1;
    }
    return 0;
  }

  struct Saved {
    std::uint16_t mem;
    bytecode::Storage storage;
    int pass;
  };

  std::mt19937_64 rng_;
  ProgramOptions options_;
  bytecode::Builder builder_;
  int fold_ = 0;
  int pass_ = 0;
  int n_stored_ = 0;
  std::vector<Value> section_;  // readable everywhere from here on
  std::vector<Value> body_;     // readable in this pass
  std::vector<Value> folds_;    // readable after this pass
  std::vector<std::uint16_t> operands_;
  std::vector<Saved> saved_;
};

}  // namespace tilevm::test
