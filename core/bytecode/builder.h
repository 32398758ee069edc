// Writes one program, instruction by instruction. Classes of results follow from the sources and
// the operand table, registers are numbered as they are defined, and `finish` writes the bytes.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "bytecode/bytecode.h"
#include "isa.gen.h"

namespace tilevm::bytecode {

struct Reg {
  std::uint16_t id = 0;
  Cls cls = Cls::kScalar;
};

// Whoever calls keeps the rules of verify(): types, roles, passes. Nothing is checked here.
// Reuse one builder for many programs: after the first few it allocates in `finish` only.
class Builder {
 public:
  explicit Builder(Fold fold = Fold::kNone) {
    operands_.reserve(32);
    code_.reserve(128);
    reset(fold);
  }

  // Forgets everything but the memory.
  void reset(Fold fold) {
    operands_.clear();
    code_.clear();
    fold_ = fold;
    n_registers_ = 0;
    n_passes_ = 0;
  }

  // Index of a new entry of the operand table.
  std::uint16_t operand(Role role, Storage storage, Cls cls, bool contiguous = false) {
    operands_.push_back({role, storage, cls, static_cast<std::uint8_t>(contiguous)});
    return static_cast<std::uint16_t>(operands_.size() - 1);
  }

  Reg load(Op op, std::uint16_t mem) { return define(op, operands_[mem].cls, {}, mem); }
  Reg iota(std::uint16_t mem) { return define(Op::iota_i64, operands_[mem].cls, {}, mem); }

  Reg gather(Op op, std::uint16_t mem, Reg index) {
    return define(op, join(operands_[mem].cls, index.cls), {&index, 1}, mem);
  }

  void store(Op op, std::uint16_t mem, Reg value) { append(op, {}, {&value, 1}, mem); }

  // `imm` is the bit pattern of the type, zero above it.
  Reg constant(Op op, std::uint64_t imm) {
    const Reg dst = next(Cls::kScalar);
    Instr& instr = code_.emplace_back();
    instr.op = static_cast<std::uint16_t>(op);
    instr.dst = dst.id;
    instr.imm = imm;
    return dst;
  }
  Reg constant(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return constant(Op::const_f32, bits);
  }
  Reg constant(double value) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return constant(Op::const_f64, bits);
  }
  Reg constant(std::int32_t value) {
    return constant(Op::const_i32, static_cast<std::uint32_t>(value));
  }
  Reg constant(std::int64_t value) {
    return constant(Op::const_i64, static_cast<std::uint64_t>(value));
  }
  Reg constant(bool value) { return constant(Op::const_b8, std::uint64_t{value}); }

  // An element-by-element instruction on one to three sources.
  Reg map(Op op, std::span<const Reg> sources) {
    Cls cls = Cls::kScalar;
    for (const Reg& source : sources) cls = join(cls, source.cls);
    return define(op, cls, sources, 0);
  }
  Reg map(Op op, Reg a) { return map(op, {&a, 1}); }
  Reg map(Op op, Reg a, Reg b) {
    const Reg sources[] = {a, b};
    return map(op, sources);
  }
  Reg map(Op op, Reg a, Reg b, Reg c) {
    const Reg sources[] = {a, b, c};
    return map(op, sources);
  }

  Reg fold(Op op, Reg a) { return define(op, kept(a.cls), {&a, 1}, 0); }
  Reg fold(Op op, Reg a, Reg index) {
    const Reg sources[] = {a, index};
    return define(op, kept(a.cls), sources, 0);
  }

  void begin_pass() {
    append(Op::pass, {}, {}, 0);
    ++n_passes_;
  }
  void end_pass() { append(Op::end, {}, {}, 0); }

  std::size_t size() const { return code_.size(); }
  const OperandInfo& operand_info(std::uint16_t mem) const { return operands_[mem]; }

  // Ends the program and returns its bytes; none if it is too large for the format, so that
  // whoever fuses must fuse less. The builder needs a reset() afterwards.
  std::vector<std::byte> finish() {
    append(Op::halt, {}, {}, 0);
    if (n_registers_ > kMaxRegisters || operands_.size() > kMaxOperands ||
        code_.size() > kMaxInstrs) {
      return {};
    }
    Header header;
    header.fold = fold_;
    header.n_registers = static_cast<std::uint16_t>(n_registers_);
    header.n_operands = static_cast<std::uint16_t>(operands_.size());
    header.n_instrs = static_cast<std::uint16_t>(code_.size());
    header.n_passes = static_cast<std::uint16_t>(n_passes_);
    const std::size_t operand_bytes = operands_.size() * sizeof(OperandInfo);
    const std::size_t code_bytes = code_.size() * sizeof(Instr);
    std::vector<std::byte> bytes;
    bytes.reserve(sizeof(header) + operand_bytes + code_bytes);
    const auto put = [&](const void* from, std::size_t n) {
      const auto* at = static_cast<const std::byte*>(from);
      bytes.insert(bytes.end(), at, at + n);
    };
    put(&header, sizeof(header));
    put(operands_.data(), operand_bytes);
    put(code_.data(), code_bytes);
    return bytes;
  }

 private:
  static Cls join(Cls a, Cls b) {
    return static_cast<Cls>(static_cast<int>(a) | static_cast<int>(b));
  }
  Cls kept(Cls a) const { return static_cast<Cls>(static_cast<int>(a) & ~static_cast<int>(fold_)); }
  Reg next(Cls cls) { return {static_cast<std::uint16_t>(n_registers_++), cls}; }

  Reg define(Op op, Cls cls, std::span<const Reg> sources, std::uint16_t mem) {
    const Reg dst = next(cls);
    append(op, dst, sources, mem);
    return dst;
  }

  void append(Op op, Reg dst, std::span<const Reg> sources, std::uint16_t mem) {
    Instr& instr = code_.emplace_back();
    instr.op = static_cast<std::uint16_t>(op);
    instr.dst = dst.id;
    instr.mem = mem;
    int classes = static_cast<int>(dst.cls);
    std::uint16_t* const fields[] = {&instr.a, &instr.b, &instr.c};
    for (std::size_t s = 0; s < sources.size(); ++s) {
      *fields[s] = sources[s].id;
      classes |= static_cast<int>(sources[s].cls) << (2 * s + 2);
    }
    instr.classes = static_cast<std::uint16_t>(classes);
  }

  std::vector<OperandInfo> operands_;
  std::vector<Instr> code_;
  Fold fold_ = Fold::kNone;
  int n_registers_ = 0;
  int n_passes_ = 0;
};

}  // namespace tilevm::bytecode
