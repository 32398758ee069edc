// What products need that are convolutions: rows that are windows of an image, right factors whose
// taps lie apart, channels by themselves.
#pragma once

#include <cstdint>

#include "exec/gemm/brain.h"
#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// to (rows x depth) = elements p .. p + depth of windows row .. row + rows, as float32 or as they
// are.
void copy_windows(const Tiles& tiles, const Matrix& a, std::int64_t row, std::int64_t rows,
                  std::int64_t p, std::int64_t depth, float* to, std::int64_t to_stride);
void copy_windows(const Matrix& a, std::int64_t row, std::int64_t rows, std::int64_t p,
                  std::int64_t depth, Brain* to, std::int64_t to_stride);

// As pack(), of a right factor with taps that lie apart.
void pack_taps(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
               std::int64_t count, float* packed);

// The same of bfloat16, for pairs: packed_rows rows a panel, behind sizes.k zeros.
void pack_taps_in_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                        std::int64_t count, std::int64_t packed_rows, Brain* packed);

// As multiply(), by Way::kEach: sizes.k is the number of taps.
void multiply_each(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                   float* c, std::int64_t c_stride);

}  // namespace tilevm::exec::gemm
