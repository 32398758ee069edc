// Random words against the standard library's, drawn in parts of any length, and normal numbers of
// them against the formulas in float64.
#include "exec/random/mersenne.h"

#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "check.h"
#include "exec/random/normal.h"

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

constexpr double kTau = 0x1.921fb54442d18p+2;

// The two numbers of a radius and an angle.
int check_pair(double u_radius, double u_angle, double first, double second, double tolerance) {
  const double radius = std::sqrt(-2 * std::log1p(-u_radius));
  CHECK(std::abs(first - radius * std::cos(kTau * u_angle)) <= tolerance);
  CHECK(std::abs(second - radius * std::sin(kTau * u_angle)) <= tolerance);
  return 0;
}

template <class Number>
Number fraction(std::mt19937& engine) {
  if constexpr (sizeof(Number) == 4) {
    return std::ldexp(static_cast<float>(engine() & 0xffffffu), -24);
  } else {
    const std::uint64_t upper = engine(), bits = upper << 32 | engine();
    return std::ldexp(static_cast<double>(bits & ((1ull << 53) - 1)), -53);
  }
}

template <class Number>
int check_normals(double tolerance) {
  for (std::size_t n : {16, 17, 31, 32, 511, 512, 513, 528, 5003}) {
    std::mt19937 engine(static_cast<std::uint32_t>(n));
    MersenneTwister ours = like(engine);
    std::vector<Number> numbers(n + 1, 7), fractions(n);
    tilevm::exec::draw_normals(ours, numbers.data(), n);
    CHECK(numbers[n] == 7);
    const auto draw = [&](std::size_t from) {
      for (std::size_t i = from; i < n; ++i) {
        fractions[i] = fraction<Number>(engine);
      }
    };
    draw(0);
    const std::size_t whole = n % 16 == 0 ? n : n - 16;
    const auto check = [&](std::size_t i) {
      for (std::size_t j = i; j < i + 8; ++j) {
        const int wrong =
            check_pair(fractions[j], fractions[j + 8], numbers[j], numbers[j + 8], tolerance);
        CHECK(wrong == 0);
      }
      return 0;
    };
    for (std::size_t i = 0; i + 16 <= whole; i += 16) CHECK(check(i) == 0);
    if (whole != n) {  // the last sixteen are drawn anew
      draw(n - 16);
      CHECK(check(n - 16) == 0);
    }
    const MersenneTwister same = like(engine);
    CHECK(same.words == ours.words && same.next == ours.next);
  }
  return 0;
}

int check_pairs() {
  std::mt19937 engine(3), lengths(4);
  MersenneTwister ours = like(engine);
  std::optional<double> spare;
  std::vector<double> numbers;
  for (int part = 0; part < 60; ++part) {
    const std::size_t n = lengths() % (part % 9 == 0 ? 900 : 9), had = numbers.size();
    numbers.resize(had + n + 1, 7);
    tilevm::exec::draw_normals(ours, spare, numbers.data() + had, n);
    CHECK(numbers.back() == 7);
    numbers.pop_back();
  }
  CHECK(spare.has_value() == (numbers.size() % 2 == 1));
  if (spare) numbers.push_back(*spare);
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    const double angle = fraction<double>(engine), radius = fraction<double>(engine);
    CHECK(check_pair(radius, angle, numbers[i], numbers[i + 1], 1e-14) == 0);
  }
  const MersenneTwister same = like(engine);
  CHECK(same.words == ours.words && same.next == ours.next);
  return 0;
}

}  // namespace

int main() {
  CHECK(check_normals<float>(4e-6) == 0);
  CHECK(check_normals<double>(1e-14) == 0);
  CHECK(check_pairs() == 0);
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
        CHECK(numbers[i] == fraction<double>(engine));
      }
      CHECK(numbers[n] == 7);
    }
    const MersenneTwister same = like(engine);
    CHECK(same.words == ours.words && same.next == ours.next);
  }
  return 0;
}
