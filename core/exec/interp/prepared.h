// What the constructor of a Kernel makes of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bytecode/bytecode.h"
#include "exec/interp/tables.h"

namespace tilevm::exec::interp {

// Class of a register or operand as bits.
inline constexpr int kColumnBit = 1;
inline constexpr int kRowBit = 2;
inline int bits(Cls c) { return static_cast<int>(c); }

// Buffers are grouped by class and element size, so that a register may take over the buffer of
// a source in place: equal pool, equal layout.
inline constexpr int kPools = 16;
inline int pool_of(int cls, RegType type) {
  const int bytes = bytecode::reg_bytes(type);
  return cls * 4 + (bytes == 1 ? 0 : bytes == 4 ? 1 : 2);
}
inline constexpr int pool_bytes(int pool) {
  constexpr int bytes[] = {1, 4, 8, 0};
  return bytes[pool % 4];
}
inline constexpr std::uint8_t kNoPool = 255;  // constants, and registers that live in scratch

enum class StepKind : std::uint8_t {
  kMap,          // every source is dense in the destination's class, or scalar
  kMapMixed,     // row or column sources of a full destination
  kMapExpanded,  // no handler for the splats at hand: broadcast sources are written out first
  kAim,          // the next map's destination is an output's memory, where that is possible
  kLoad,
  kLoadCopied,  // into the register's own buffer always
  kLoadScratch,
  kStore,
  kStoreScratch,
  kGather,
  kIota,
  kFold
};

struct Step {
  StepKind kind;
  std::uint8_t cls;  // of the destination; of a store, of the value
  std::uint8_t n_sources;
  std::uint8_t a_cls, b_cls, c_cls;
  bool converts;  // of a load: elements do not lie in memory as in the register
  std::uint16_t op, dst, a, b, c, mem;
  MapFn fn;  // kMap: over dense elements. kMapMixed: along x
  const MapEntry* entry;
  const MemoryEntry* access;
};

struct FoldStep {
  const FoldEntry* entry;
  std::uint16_t dst, a, b;
  std::uint8_t dst_cls, a_cls, b_cls, a_bytes;
  bool has_index;
};

struct Constant {
  std::uint64_t bits;
  std::uint16_t reg;
};

// A register that lives in a scratch operand's memory for its pass.
struct Resident {
  std::uint16_t reg, mem;
};

// Section code, or one pass.
struct Segment {
  std::uint32_t begin, end;            // steps
  std::uint32_t fold_begin, fold_end;  // of a pass
  std::uint32_t resident_begin, resident_end;
  bool is_pass;
};

struct Prepared {
  std::vector<std::byte> program;  // the copy that `operands` points into
  std::span<const bytecode::OperandInfo> operands;
  std::span<const bytecode::Instr> code;
  int fold = 0;
  int n_registers = 0;
  std::vector<Step> steps;
  std::vector<FoldStep> folds;
  std::vector<Constant> constants;
  std::vector<Resident> residents;
  std::vector<Segment> segments;
  std::vector<std::uint16_t> scratch;  // operands with Role::kScratch
  std::vector<std::uint8_t> pool;      // by register
  std::vector<std::uint16_t> place;    // by register: which buffer of its pool
  int pool_size[kPools] = {};
  bool needs_temporaries = false;
  std::int64_t tile = 0;  // elements of a block
};

Prepared prepare(std::span<const std::byte> program);

}  // namespace tilevm::exec::interp
