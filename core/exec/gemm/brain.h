// Micro-kernels of products of bfloat16 by bfloat16, for processors that multiply pairs of them.
// Each instruction adds two products, in float32, to each lane; denormals count as zero.
#pragma once

#include <cstdint>

#include "exec/gemm/tiles.h"

namespace tilevm::exec::gemm {

using Brain = std::uint16_t;  // the bits of a bfloat16

// As Block; k is the number of elements.
struct BrainBlock {
  const Brain* a;  // m x k, rows contiguous
  std::int64_t a_stride;
  const Brain* b;  // tile: panel of pairs; dots: n rows of k
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t k;
  std::int64_t n;
  bool add;
  std::int64_t ahead = 0;
  std::int64_t apart = 0;
};

// Tiles have Tiles::columns columns, and as many rows as tiles of float32.
struct BrainTiles {
  // By rows. b: k / 2 rows of a panel, each a pair of elements for every column; k is even.
  void (*tile[kMostRows + 1])(const BrainBlock& block);
  // By rows of A. b: n rows of k: the product of A and the transpose of b.
  void (*dots[kMostDots + 1])(const BrainBlock& block);
  // Panels of pairs, panel_stride apart, from two rows of B a pair: `pairs` pairs of so many
  // columns; the last panel is filled up with zeros.
  void (*pack)(const Brain* from, std::int64_t from_stride, Brain* to, std::int64_t panel_stride,
               std::int64_t pairs, std::int64_t columns);
};

// Null where the processor has no such instruction.
const BrainTiles* brain_tiles();

}  // namespace tilevm::exec::gemm
