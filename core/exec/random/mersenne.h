// Random words as PyTorch's generator on CPUs draws them, many at a time.
// Source: M. Matsumoto and T. Nishimura, Mersenne Twister, ACM Transactions on Modeling and
// Computer Simulation 8 (1998); std::mt19937 draws the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tilevm::exec {

struct MersenneTwister {
  static constexpr int kWords = 624;

  std::array<std::uint32_t, kWords> words;
  int next = kWords;  // which word is the next to be drawn; kWords: all are, of these

  void draw(std::uint32_t* out, std::size_t n);
  // From 0 to below 1, of two words each: the upper 21 bits of 53 are of the first.
  void draw(double* out, std::size_t n);
};

}  // namespace tilevm::exec
