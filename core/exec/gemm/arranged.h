// Products by units.h: factors arranged as registers read them, and blocks for the caches.
#pragma once

#include <cstdint>

#include "exec/gemm/brain.h"
#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// Rows of packed pairs are a multiple of it: a step of registers where these are used.
std::int64_t pair_rows(const Tiles& tiles);

// Float32 elements of a panel of 32 columns.
std::int64_t panel_elements(const Tiles& tiles, Way way, std::int64_t k);

// As functions of multiply.h, for kPackedPieces, kTurnedPairs, and kPackedPairs where there are
// units().
std::int64_t arranged_room(const Tiles& tiles, Way way, const Sizes& sizes);
// (In multiply.cpp: where there are no units, panels are the same but for their last rows.)
void pack_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                std::int64_t count, Brain* packed);
void multiply_arranged(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a,
                       const Matrix& b, const float* packed, float* room, float* c,
                       std::int64_t c_stride);
void multiply_turned(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     float* room, float* c, std::int64_t c_stride);

}  // namespace tilevm::exec::gemm
