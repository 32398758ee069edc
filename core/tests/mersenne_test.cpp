// Random words against the standard library's, drawn in parts of any length.
#include "exec/random/mersenne.h"

#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "check.h"

namespace {

using tilevm::exec::MersenneTwister;

// The library tells its words, and the place among them, as text.
MersenneTwister like(const std::mt19937& engine) {
  std::stringstream text;
  text << engine;
  MersenneTwister twister;
  for (std::uint32_t& word : twister.words) text >> word;
  text >> twister.next;
  return twister;
}

}  // namespace

int main() {
  std::mt19937 lengths(1);
  for (std::uint32_t seed : {0u, 1u, 5489u, 0xffffffffu}) {
    std::mt19937 engine(seed);
    MersenneTwister ours = like(engine);
    for (int part = 0; part < 200; ++part) {
      const std::size_t n = lengths() % (part % 10 == 0 ? 3000 : 40);
      if (part % 2 == 0) {
        std::vector<std::uint32_t> words(n + 1, 7);
        ours.draw(words.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(words[i] == engine());
        CHECK(words[n] == 7);
        continue;
      }
      std::vector<double> numbers(n + 1, 7);
      ours.draw(numbers.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t upper = engine(), bits = upper << 32 | engine();
        CHECK(numbers[i] == std::ldexp(static_cast<double>(bits & ((1ull << 53) - 1)), -53));
      }
      CHECK(numbers[n] == 7);
    }
    const MersenneTwister same = like(engine);
    CHECK(same.words == ours.words && same.next == ours.next);
  }
  return 0;
}
