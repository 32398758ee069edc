#include "host/arena.h"

#include <algorithm>
#include <numeric>

namespace tilevm::host {
namespace {

// A buffer at an offset, for typical sizes.
struct Guess {
  Placed placed;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};

// Buffers by the steps at which they live.
class Timeline {
 public:
  explicit Timeline(std::span<const Guess> guesses) : seen_(guesses.size(), -1) {
    int steps = 0;
    for (const Guess& g : guesses) steps = std::max(steps, g.placed.last + 1);
    at_.resize(static_cast<std::size_t>(steps));
  }
  void add(std::size_t i, const Guess& g) {
    for (int step = g.placed.first; step <= g.placed.last; ++step) at(step).push_back(i);
  }
  // What was added and lives at the same time, in the same stage.
  const std::vector<std::size_t>& beside(std::size_t i, std::span<const Guess> guesses) {
    found_.clear();
    const Placed& own = guesses[i].placed;
    for (int step = own.first; step <= own.last; ++step) {
      for (const std::size_t other : at(step)) {
        if (seen_[other] == static_cast<std::int64_t>(i)) continue;
        seen_[other] = static_cast<std::int64_t>(i);
        if (guesses[other].placed.stage == own.stage) found_.push_back(other);
      }
    }
    return found_;
  }

 private:
  std::vector<std::size_t>& at(int step) { return at_[static_cast<std::size_t>(step)]; }

  std::vector<std::vector<std::size_t>> at_;
  std::vector<std::int64_t> seen_;
  std::vector<std::size_t> found_;
};

// The lowest offset at which it is beside none of what is placed already.
std::int64_t lowest(const Guess& guess, std::vector<std::size_t> beside,
                    std::span<const Guess> guesses) {
  std::ranges::sort(beside, {}, [&](std::size_t i) { return guesses[i].offset; });
  std::int64_t offset = 0;
  for (const std::size_t i : beside) {
    if (guesses[i].offset >= offset + guess.bytes) break;
    offset = std::max(offset, guesses[i].offset + guesses[i].bytes);
  }
  return offset;
}

}  // namespace

ArenaPlan plan_arena(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> typical,
                     std::size_t n_values) {
  ArenaPlan plan;
  plan.buffer_of.assign(n_values, -1);
  plan.lives.assign(lifetimes.begin(), lifetimes.end());
  std::vector<Guess> guesses;
  for (const Lifetime& life : lifetimes) {
    std::int32_t& own = plan.buffer_of[static_cast<std::size_t>(life.value)];
    if (life.over >= 0) {
      const std::int32_t other = plan.buffer_of[static_cast<std::size_t>(life.over)];
      Placed& placed = guesses[static_cast<std::size_t>(other)].placed;
      if (placed.bytes == life.bytes && placed.stage == life.stage) {
        placed.last = std::max(placed.last, life.last);
        own = other;
        continue;
      }
    }
    own = static_cast<std::int32_t>(guesses.size());
    const std::int64_t bytes = typical[static_cast<std::size_t>(life.bytes)];
    guesses.push_back(
        {{life.bytes, life.stage, life.first, life.last, {}}, std::max<std::int64_t>(bytes, 1)});
  }

  std::vector<std::size_t> order(guesses.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return guesses[i].bytes; });
  Timeline timeline(guesses);
  for (const std::size_t i : order) {
    guesses[i].offset = lowest(guesses[i], timeline.beside(i, guesses), guesses);
    timeline.add(i, guesses[i]);
  }

  // From here on only who is above whom counts, not how far.
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return guesses[i].offset; });
  std::vector<std::int32_t> place(guesses.size());
  Timeline placed(guesses);
  for (const std::size_t i : order) {
    place[i] = static_cast<std::int32_t>(plan.buffers.size());
    std::vector<std::int32_t> below;
    for (const std::size_t other : placed.beside(i, guesses)) below.push_back(place[other]);
    placed.add(i, guesses[i]);
    std::ranges::sort(below, std::greater<>());
    Placed& own = plan.buffers.emplace_back(std::move(guesses[i].placed));
    for (const std::int32_t b : below) {
      const bool implied = std::ranges::any_of(own.below, [&](std::int32_t above) {
        return std::ranges::find(plan.buffers[static_cast<std::size_t>(above)].below, b) !=
               plan.buffers[static_cast<std::size_t>(above)].below.end();
      });
      if (!implied) own.below.push_back(b);
    }
  }
  for (std::int32_t& buffer : plan.buffer_of) {
    if (buffer >= 0) buffer = place[static_cast<std::size_t>(buffer)];
  }
  return plan;
}

}  // namespace tilevm::host
