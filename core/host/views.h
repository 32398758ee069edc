// View operators on records: other sizes and strides, same memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/record.h"

namespace tilevm::host {

// One view operator with everything static resolved. `sizes` are registers of the size program.
struct View {
  Op op = Op::reshape;
  std::vector<std::int32_t> axes;
  std::vector<SizeId> sizes;  // reshape, expand: result; slice: start, result's size; select: index
  std::int64_t step = 1;      // slice
};

View make_view(const Program& program, const Node& node);

// Fills sizes, strides, data and root of `out`. Throws ShapeError or IndexError: what `in` looks
// like contradicts the operator.
void apply(const View& view, std::span<const std::int64_t> regs, const Record& in, int item_bytes,
           Record& out);

// `in` narrowed on `axis` to `size` elements from `start`.
void narrow(const Record& in, int axis, std::int64_t start, std::int64_t size, int item_bytes,
            Record& out);

// Elements of a buffer. Throws ShapeError where a size is negative, MemoryError where the bytes do
// not fit in 63 bits.
std::int64_t checked_elements(const Geometry& g, int item_bytes);

// Strides that make `in` look like `out.sizes` without a copy, if there are any.
// Source: PyTorch, ATen/TensorUtils.cpp, computeStride.
bool reshape_strides(const Geometry& in, Geometry& out) noexcept;

// out[i] = in[i] for equal sizes; any strides; large ones on `threads` threads. For the cases that
// no kernel covers.
void copy(const Record& in, const Record& out, int item_bytes, int threads) noexcept;

// Strides of a dense tensor whose dims lie in `order`, outermost first.
void set_strides_in_order(Geometry& g, std::span<const std::int32_t> order);

// Strides without holes, dims in the order of another's; row-major, if that repeats elements or has
// other sizes.
void set_strides_like(Geometry& g, const Geometry& other);

}  // namespace tilevm::host
