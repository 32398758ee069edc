// Handlers by opcode, chosen once for this processor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "bytecode/bytecode.h"
#include "isa.gen.h"

namespace tilevm::exec::interp {

using bytecode::Cls;
using bytecode::InstrClass;
using bytecode::InstrInfo;
using bytecode::kIsa;
using bytecode::Op;
using bytecode::RegType;
using bytecode::Storage;

// Applies a map instruction to n elements. A source is a vector of n or a splat: one value for
// all. dst may be one of the vectors. False: division by zero.
using MapFn = bool (*)(void* dst, const void* a, const void* b, const void* c, std::int64_t n);

// By which of the sources are splats. Two sources: bit 0 is a, bit 1 is b, never both.
// Three: bit 0 is b, bit 1 is c; a is a vector.
struct MapEntry {
  MapFn fn[4] = {};
};

// One block of values to fold into `groups` accumulators.
struct FoldBlock {
  void* acc;              // groups of 8 bytes
  void* extra;            // the same again: indices
  std::int64_t* depth;    // values that an arg fold or a variance has seen: of the former 0 or 1
  const void* a;          // dense
  const std::int64_t* b;  // index of element i of group g: b[g * b_group + i * b_step]
  std::int64_t groups;
  std::int64_t n;
  std::int64_t b_group;
  std::int64_t b_step;
  double count;  // points folded into one group over the whole sweep
};

struct FoldEntry {
  void (*reset)(FoldBlock& f);
  void (*along)(FoldBlock& f);  // group g is a[g * n + i]
  void (*down)(FoldBlock& f);   // group g is a[i * groups + g]
  void (*finish)(FoldBlock& f, void* dst);
};

// A block's address pattern in memory: element (y, x) is at base + y * y_stride + x * x_stride.
struct Grid {
  std::byte* base;
  std::int64_t ny, nx;
  std::int64_t y_stride, x_stride;  // bytes
};

// An index register, or a register to broadcast: element (y, x) is at data[y * y_step + x *
// x_step].
struct Steps {
  const void* data;
  std::int64_t y_step, x_step;  // elements
};

// Dense destinations are padded: handlers may write up to kPadBytes behind them.
inline constexpr std::size_t kPadBytes = 128;

// Of a load, store or gather, that one.
struct MemoryEntry {
  void (*load)(void* dst, const Grid& from);
  void (*store)(const Grid& to, const Steps& value);
  // False: an index is out of range; nothing was read for it.
  bool (*gather)(void* dst, const Grid& from, const Steps& index, std::int64_t stride,
                 std::int64_t size);
};

// What is not an instruction's alone.
struct MemoryTable {
  void (*iota)(std::int64_t* dst, std::int64_t start, const Grid& steps);
  // dst (dense ny x nx) = value, by size of the element.
  void (*expand1)(void* dst, std::int64_t ny, std::int64_t nx, const Steps& value);
  void (*expand4)(void* dst, std::int64_t ny, std::int64_t nx, const Steps& value);
  void (*expand8)(void* dst, std::int64_t ny, std::int64_t nx, const Steps& value);
};

struct Tables {
  std::array<MapEntry, bytecode::kOpCount> map;
  std::array<FoldEntry, bytecode::kOpCount> fold;
  std::array<MemoryEntry, bytecode::kOpCount> access;  // loads, stores and gathers
  MemoryTable memory;
  const char* target;
};

const Tables& tables();

// Which file has a map instruction: each fills its slice, and does not compile if one is missing.
enum class Family { kNone, kFloat, kMath, kMathF64, kInt, kLogic };

inline constexpr Family family(Op op) {
  const InstrInfo& row = kIsa[static_cast<int>(op)];
  if (row.cls != InstrClass::kMap) return Family::kNone;
  bool uniform = true;
  for (int i = 1; i < row.n_fields; ++i) {
    uniform = uniform && row.fields[i].type == row.fields[0].type;
  }
  const RegType type = row.fields[0].type;
  if (!uniform || type == RegType::kB8 || row.n_fields == 4) return Family::kLogic;
  if (type != RegType::kF32 && type != RegType::kF64) return Family::kInt;
  if (row.cost == 1) return Family::kFloat;
  return type == RegType::kF32 ? Family::kMath : Family::kMathF64;
}

void fill_map_float(Tables& tables);
void fill_map_math(Tables& tables);
void fill_map_math_f64(Tables& tables);
void fill_map_int(Tables& tables);
void fill_map_logic(Tables& tables);
void fill_fold(Tables& tables);
void fill_memory(Tables& tables);

}  // namespace tilevm::exec::interp
