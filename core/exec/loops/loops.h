// Operators that are a loop of their own: scans, scatters, orders, searches. Nothing fuses with
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "bytecode/bytecode.h"
#include "exec/launch.h"

namespace tilevm::exec::loops {

inline constexpr int kMaxRank = 8;

// A tensor; strides in elements, any. No two elements of what is written share memory.
struct Array {
  std::byte* data = nullptr;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{}, strides{};

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= sizes[static_cast<std::size_t>(d)];
    return n;
  }
};

// What is written, to `out`:
enum class What : std::uint8_t {
  // in[0][0] op ... op in[0][i] along `axis`. Sums and products of 16-bit floats are kept in
  // float32, those of others in float64, and of integers in int64, as PyTorch's are. NaN stays.
  kSum,
  kProd,
  kMax,
  kMin,
  // Of floats, log(e^in[0][0] + ... + e^in[0][i]); sums in float64. NaN stays.
  kLogSumExp,
  // in[0], which may be where `out` is; then for each element of in[2], in row-major order: what is
  // at the same place, but at in[1][...] along `axis`, becomes that element, or itself op that
  // element. in[1], of int32 or int64, has the sizes of in[2].
  kScatter,
  kScatterAdd,
  kScatterMul,
  kScatterMax,
  kScatterMin,
  // int64: where the elements of each row along `axis` are, the least first or, if `descending`,
  // the largest; equal ones stay in their order. NaN is the largest.
  kArgSort,
  // The first of that order that `out` has room for along `axis`; which of equal ones, and in which
  // order, is what PyTorch's choice is.
  kArgTopK,
  // int64, of the sizes of in[1]: how many elements of the row of in[0] along `axis` come before
  // each element of the same row of in[1] or, if `right`, do not come behind it. Rows of in[0] are
  // in ascending order, without NaN, which all come before.
  kSearch,
};

struct Loop {
  What what;
  bytecode::Storage storage;  // of in[0]
  bytecode::Storage index = bytecode::Storage::kI64;
  int axis = 0;
  bool descending = false;
  bool right = false;
  std::array<Array, 3> in;
  Array out;
};

// On `threads` threads at most: large ones are cut along an axis that they keep, rows are not.
// kIndexOutOfRange: some index is not in 0 .. size; nothing was written. kNoMemory.
Status run(const Loop& loop, int threads) noexcept;

// Of each kind, on one.
void scan(const Loop& loop);
Status check_indices(const Loop& loop);  // of a scatter: kOk or kIndexOutOfRange
void scatter(const Loop& loop);          // indices have been checked
void order(const Loop& loop);            // throws std::bad_alloc
void search(const Loop& loop);

}  // namespace tilevm::exec::loops
