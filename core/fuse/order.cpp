#include "fuse/groups.h"

#include <algorithm>

namespace tilevm::fuse {
namespace {
bool test(const std::vector<std::uint64_t>& bits, int i) {
  const auto word = static_cast<std::size_t>(i) / 64;
  return word < bits.size() && ((bits[word] >> (i % 64)) & 1) != 0;
}
void set(std::vector<std::uint64_t>& bits, int i) {
  const auto word = static_cast<std::size_t>(i) / 64;
  if (word >= bits.size()) bits.resize(word + 1);
  bits[word] |= std::uint64_t{1} << (i % 64);
}
void unite(std::vector<std::uint64_t>& into, const std::vector<std::uint64_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] |= from[i];
}
}  // namespace

int Order::add() {
  before_.emplace_back();
  return count() - 1;
}

bool Order::precedes(int before, int after) const {
  return test(before_[static_cast<std::size_t>(after)], before);
}

bool Order::none_before(int unit, const std::vector<std::uint64_t>& set) const {
  const auto& before = before_[static_cast<std::size_t>(unit)];
  for (std::size_t i = 0; i < std::min(before.size(), set.size()); ++i) {
    if ((before[i] & set[i]) != 0) return false;
  }
  return true;
}

void Order::depend(int unit, int on) {
  if (on < 0 || precedes(on, unit)) return;
  auto added = before_[static_cast<std::size_t>(on)];
  set(added, on);
  for (int u = 0; u < count(); ++u) {
    if (u == unit || precedes(unit, u)) unite(before_[static_cast<std::size_t>(u)], added);
  }
}

void Order::merge(int into, int from) {
  const auto added = before_[static_cast<std::size_t>(from)];
  unite(before_[static_cast<std::size_t>(into)], added);
  const auto all = before_[static_cast<std::size_t>(into)];
  for (int u = 0; u < count(); ++u) {
    if (u == into || u == from) continue;
    if (precedes(from, u) || precedes(into, u)) {
      auto& bits = before_[static_cast<std::size_t>(u)];
      unite(bits, all);
      set(bits, into);
    }
  }
}

}  // namespace tilevm::fuse
