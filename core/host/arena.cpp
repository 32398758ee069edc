#include "host/arena.h"

#include <algorithm>

namespace tilevm::host {
namespace {

using shape::Answer;

Fit fit(const shape::SizeTable& sizes, const Slot& slot, const Lifetime& life) {
  if (slot.stage != life.stage || slot.busy_until >= life.first) return Fit::kNone;
  if (std::find(slot.bytes.begin(), slot.bytes.end(), life.bytes) != slot.bytes.end()) {
    return slot.bytes.size() == 1 ? Fit::kEqual : Fit::kLarger;
  }
  bool all_smaller = true;
  for (const SizeId bytes : slot.bytes) {
    if (sizes.less_equal(life.bytes, bytes) == Answer::kYes) return Fit::kLarger;
    if (sizes.less_equal(bytes, life.bytes) != Answer::kYes) all_smaller = false;
  }
  return all_smaller ? Fit::kSmaller : Fit::kUnknown;
}

}  // namespace

ArenaPlan plan_arena(const shape::SizeTable& sizes, std::span<const Lifetime> lifetimes,
                     std::size_t n_values) {
  ArenaPlan plan;
  plan.slot_of.assign(n_values, -1);
  for (const Lifetime& life : lifetimes) {
    Fit best = Fit::kNone;
    std::size_t chosen = plan.slots.size();
    for (std::size_t s = 0; s < plan.slots.size() && best != Fit::kEqual; ++s) {
      const Fit f = fit(sizes, plan.slots[s], life);
      if (f < best) {
        best = f;
        chosen = s;
      }
    }
    if (best == Fit::kNone) plan.slots.push_back({{}, life.stage, -1});
    Slot& slot = plan.slots[chosen];
    if (best > Fit::kLarger) {
      std::erase_if(slot.bytes, [&](SizeId bytes) {
        return sizes.less_equal(bytes, life.bytes) == Answer::kYes;
      });
      slot.bytes.push_back(life.bytes);
    }
    slot.busy_until = life.last;
    plan.slot_of[static_cast<std::size_t>(life.value)] = static_cast<std::int32_t>(chosen);
    plan.placements.push_back({life, static_cast<std::int32_t>(chosen), best});
  }
  return plan;
}

}  // namespace tilevm::host
