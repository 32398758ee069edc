// What the fuser makes of a program: kernels over one iteration space each, and the host's steps.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bytecode/bytecode.h"
#include "fuse/decisions.h"
#include "program/program.h"

namespace tilevm::fuse {

inline constexpr int kMaxAxes =
    8;  // of a kernel's iteration space; then at most 6 stay outside a block
using AxisMask = std::uint16_t;  // bit i: axis i of the kernel's space

// One value inside a kernel, in static single assignment order.
struct KernelNode {
  enum class Kind : std::uint8_t { kLoad, kGather, kIota, kConst, kMap, kFold, kStore };
  Kind kind;
  bytecode::RegType type;     // of the result (of kStore: of the stored value)
  std::uint16_t instr = 0;    // bytecode opcode; loads, stores and gathers too
  AxisMask axes = 0;          // axes the result varies over; never includes folded ones of a fold
  std::int16_t operand = -1;  // index into KernelGraph::operands for memory nodes
  std::array<std::int32_t, 3> in{-1, -1, -1};  // nodes of this kernel
  std::uint64_t imm = 0;                       // kConst
  std::int32_t line = -1;                      // Program::lines
};

// Memory that a kernel touches: a buffer value of the plan, and which of its dims runs along which
// axis of the kernel (-1: the operand does not move along that axis).
struct OperandRef {
  bytecode::Role role;
  bytecode::Storage storage;
  ValueId value = -1;                       // kIota: -1
  std::array<std::int8_t, kMaxAxes> dim{};  // axis -> dim of value, or -1
  std::int8_t gather_dim = -1;              // kGather: dim addressed by the index register
  SizeId size = shape::kNoSize;  // a scalar operand that is a size (value == -1): the host stores
                                 // it as int64 in a slot of its own
  SizeId start = shape::kNoSize, step = shape::kNoSize;  // kIota: value = start + position*step
  std::int8_t iota_axis = -1;
};

struct KernelGraph {
  std::vector<SizeId> axes;  // extents
  AxisMask reduced = 0;      // axes that its folds reduce
  std::vector<KernelNode> nodes;
  std::vector<OperandRef> operands;
  std::string name;                // e.g. "softmax_3": operators of note, for explain and traces
  std::vector<std::int32_t> from;  // nodes of the program that it computes
};

// Matrix products, and kernels between and behind them, that run for some rows at a time: what one
// stage makes for these rows, the next one finds in the cache.
struct Chain {
  // A product `out` = a b, as NumPy's matmul of tensors of rank 2 and more; or a kernel.
  struct Stage {
    int kernel = -1;  // index of Plan::kernels
    ValueId a = -1, b = -1, out = -1;
    std::int32_t conv = -1;  // node of the program, if the product is its convolution of a with b
    // Of a kernel: its axis along each of the chain's rows, and along the columns of what comes
    // from the stages before; -1: of size 1.
    std::array<std::int8_t, kMaxRank> row_axis{};
    std::int8_t column_axis = -1;
  };
  std::vector<Stage> stages;
  std::int32_t grouped = -1;  // node of the program that says which rows have which right factor
  std::vector<SizeId> rows;     // the axes that all stages have: batches, then rows of a product
  std::vector<ValueId> panels;  // values that exist for some rows at a time only
  bool columns_too = false;     // the stages may also run for some columns at a time
  // Of products, a kernel and a product, as in causal attention: the kernel's stage, which in row i
  // makes zero of columns behind i, whatever is there; -1: none.
  std::int32_t causal = -1;
};

struct Step {
  enum class Kind : std::uint8_t {
    kAlloc,    // out: a new dense buffer of its type's shape
    kView,     // out = view operator `node` of the program applied to in; no copy
    kReshape,  // out = in reshaped; if the strides at hand do not allow a view, kernel copies first
    kSlice,    // out = in narrowed on `axis` from `offset` by out's size there (parts of a concat,
               // pad)
    kKernel,   // run kernels[kernel]; its output operands have been allocated
    kChain,    // run chains[chain]; what it stores has been allocated
    kLoop,     // program node `node`, which is a loop of its own; its result has been allocated
    kCall      // program node `node` through its call-out; defines its results
  };
  Kind kind;
  ValueId in = -1, out = -1;
  std::int32_t node = -1;
  std::int32_t kernel = -1;  // kKernel; kReshape: the copying kernel (input operand 0, output 1)
  std::int32_t axis = -1;    // kSlice
  SizeId offset = shape::kNoSize;
  std::int32_t chain = -1;  // kChain
};

struct Plan {
  Program program;  // lowered; fuse may have appended values (parts of concats), never nodes
  std::vector<KernelGraph> kernels;
  std::vector<Chain> chains;
  std::vector<Step> steps;          // in execution order
  std::vector<Decision> decisions;  // why kernels end where they do: for explain
};

Plan fuse(Program lowered);

// Of a chain whose products are of groups of rows: the value that has where each group ends; else
// -1.
inline ValueId ends_of_groups(const Program& program, const Chain& chain) {
  if (chain.grouped < 0) return -1;
  return program.nodes[static_cast<std::size_t>(chain.grouped)].inputs[2];
}

// How kernels and products find elements of `dtype` in memory.
bytecode::Storage storage_of(DType dtype);

// Whether a node of a lowered program is a product that the core computes: a convolution, or a
// matrix product of float32; others are called out.
bool is_product(const Program& program, const Node& node);

}  // namespace tilevm::fuse
