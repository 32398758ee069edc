// Numbers of the standard normal distribution as PyTorch makes them of its generator's draws, many
// at a time: within a few units in the last place of its numbers, and of the same draws.
// Source: G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates, Annals
// of Mathematical Statistics 29 (1958).
#pragma once

#include <cstddef>
#include <optional>

#include "exec/random/mersenne.h"

namespace tilevm::exec {

// Of a word each, or two of float64, sixteen at a time; at least sixteen. If n is no multiple, the
// last sixteen are drawn anew, as PyTorch does.
void draw_normals(MersenneTwister& twister, float* out, std::size_t n);
void draw_normals(MersenneTwister& twister, double* out, std::size_t n);

// Of two words each, two at a time. `spare` is the second of two that is still to be given out.
void draw_normals(MersenneTwister& twister, std::optional<double>& spare, double* out,
                  std::size_t n);

}  // namespace tilevm::exec
