// Convolutions of images with few channels, or whose channels do not lie side by side: windows of a
// few elements a line cost more to copy than to multiply. Lines of the image are copied with their
// padding, and read where every position finds them.
#pragma once

#include <cstdint>

#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// Whether a product of windows is computed so, also where columns of the result lie apart; of
// channels by themselves.
bool reads_lines(const Windows& windows);
bool reads_lines_to_planes(const Windows& windows);
bool reads_lines_each(const Windows& windows);
bool in_lines(Way way, const Windows& windows);  // any of these

// As multiply(), by Way::kPacked, of windows that are read so; by Way::kEach. c_column: how far
// apart columns of c are; other than 1 where reads_lines_to_planes().
void multiply_lines(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                    float* c, std::int64_t c_stride, std::int64_t c_column = 1);
void multiply_lines_each(const Tiles& tiles, const Sizes& sizes, const Matrix& a,
                         const float* packed, float* c, std::int64_t c_stride,
                         std::int64_t c_column = 1);

}  // namespace tilevm::exec::gemm
