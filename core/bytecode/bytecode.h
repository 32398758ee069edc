// The bytecode of one kernel: the contract between the encoder, the verifier and every tier.
//
//   Header | OperandInfo[n_operands] | Instr[n_instrs]
//
// little-endian, position-independent, 16-byte instructions. Addresses, extents and strides are
// arguments of a launch (exec/launch.h), so one program serves every shape of its class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "types.gen.h"  // RegType, Storage: generated from src/tilevm/isa/table.py

namespace tilevm::bytecode {

inline constexpr std::uint32_t kMagic = 0x314d5654;  // "TVM1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr int kMaxRegisters = 4096;
inline constexpr int kMaxOperands = 256;
inline constexpr int kMaxInstrs = 16384;

// Which points of a block a register or operand varies over. Bits: 1 = columns (x), 2 = rows (y).
enum class Cls : std::uint8_t { kScalar = 0, kColumn = 1, kRow = 2, kFull = 3 };  // s c u r

inline constexpr const StorageInfo& info(Storage s) { return kStorageInfo[static_cast<int>(s)]; }
inline constexpr const RegTypeInfo& info(RegType t) { return kRegTypeInfo[static_cast<int>(t)]; }
inline constexpr int storage_bytes(Storage s) { return info(s).bytes; }
inline constexpr int reg_bytes(RegType t) { return info(t).bytes; }
// Whether an element lies in memory as in a register of type t; of b8, memory may hold any byte.
inline constexpr bool lies_as(Storage s, RegType t) { return info(t).storage == s; }

enum class Role : std::uint8_t {
  kInput,    // read by loads
  kOutput,   // written by stores
  kScratch,  // written in one pass, read in a later one; the tier supplies the memory
  kGather,   // read by gathers: one axis is addressed by an index register
  kIota      // no memory: a start and strides
};

// Which block axes the kernel's folds reduce. Bits as in Cls. kNone: no passes.
enum class Fold : std::uint8_t { kNone = 0, kColumns = 1, kRows = 2, kBoth = 3 };

// What the encoder promises about an operand's address pattern; the launch must keep it.
// The x stride is 0 exactly if cls lacks the column bit, the y stride is 0 exactly if it lacks the
// row bit (of a gather: of the other axes). contiguous: the x stride is the element's size.
struct OperandInfo {
  Role role;
  Storage storage;
  Cls cls;
  std::uint8_t contiguous;
  std::uint32_t reserved = 0;
  friend bool operator==(const OperandInfo&, const OperandInfo&) = default;
};
static_assert(sizeof(OperandInfo) == 8);

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Fold fold = Fold::kNone;
  std::uint8_t reserved = 0;
  std::uint16_t n_registers = 0;
  std::uint16_t n_operands = 0;
  std::uint16_t n_instrs = 0;
  std::uint16_t n_passes = 0;
};
static_assert(sizeof(Header) == 16);

// Fields an instruction does not use are 0. `mem` indexes the operand table. `classes` packs four
// Cls of 2 bits: dst, a, b, c from the low bits up. const_*: `imm` lies over c, mem, classes, zero,
// so cls_dst() means nothing; its class is kScalar.
struct Instr {
  std::uint16_t op = 0;
  std::uint16_t dst = 0;
  std::uint16_t a = 0;
  std::uint16_t b = 0;
  union {
    struct {
      std::uint16_t c;
      std::uint16_t mem;
      std::uint16_t classes;
      std::uint16_t zero;
    };
    std::uint64_t imm = 0;
  };
  Cls cls_dst() const { return static_cast<Cls>(classes & 3); }
  Cls cls_a() const { return static_cast<Cls>((classes >> 2) & 3); }
  Cls cls_b() const { return static_cast<Cls>((classes >> 4) & 3); }
  Cls cls_c() const { return static_cast<Cls>((classes >> 6) & 3); }
};
static_assert(sizeof(Instr) == 16);

// A program's parts, borrowed from its bytes. The bytes must be 8-byte aligned.
struct View {
  const Header* header;
  std::span<const OperandInfo> operands;
  std::span<const Instr> code;
};

// Only for bytes that verify() accepted or our own encoder wrote.
inline View view(std::span<const std::byte> bytes) {
  const auto* header = reinterpret_cast<const Header*>(bytes.data());
  const auto* operands = reinterpret_cast<const OperandInfo*>(header + 1);
  const auto* code = reinterpret_cast<const Instr*>(operands + header->n_operands);
  return {header, {operands, header->n_operands}, {code, header->n_instrs}};
}

// Accepts or rejects any bytes without reading out of them. Returns "" if they are a program,
// else what is wrong and where. Proves: sizes, known opcodes, unused fields 0, registers defined
// once before use with the right type and class, operand roles and storage, passes not nested,
// folds only in passes and read only after their end, section registers not varying over the
// reduced axes, registers of a pass not read outside it, scratch written before it is read, halt
// last. Registers are numbered as they are defined. There are passes exactly if there is a fold. A
// scratch operand has at most one store, an output at least one. The index of a fold (b) varies
// over no kept axis that a does not vary over. Operands used outside passes do not vary over the
// reduced axes.
std::string verify(std::span<const std::byte> bytes);

// Text form, and back: assemble(disassemble(x)) == x. `lines[i]`, if given, is printed behind
// instruction i (a source location). assemble throws std::invalid_argument naming the line.
std::string disassemble(std::span<const std::byte> bytes, std::span<const std::string> lines = {});
std::vector<std::byte> assemble(std::string_view text);

std::uint64_t hash(std::span<const std::byte> bytes);

}  // namespace tilevm::bytecode
