#include "eager/torch/parts.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace tilevm::eager {

std::optional<Box> box_of(const host::Geometry& view, std::int64_t offset,
                          const host::Geometry& whole) {
  Box box;
  std::array<int, kMaxRank> order{};
  for (int d = 0; d < whole.rank; ++d) {
    order[static_cast<std::size_t>(d)] = d;
    box.size[static_cast<std::size_t>(d)] = 1;
  }
  std::stable_sort(order.begin(), order.begin() + whole.rank,
                   [&](int a, int b) { return whole.stride(a) > whole.stride(b); });
  for (int i = 0; i < whole.rank; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    if (whole.size(d) < 2) continue;
    if (whole.stride(d) < 1) return std::nullopt;  // without elements, it may have such strides
    box.first[static_cast<std::size_t>(d)] = offset / whole.stride(d);
    offset %= whole.stride(d);
  }
  if (offset != 0) return std::nullopt;
  for (int v = 0; v < view.rank; ++v) {
    if (view.size(v) == 1) continue;
    int found = -1;
    for (int d = 0; d < whole.rank; ++d) {
      if (whole.size(d) > 1 && whole.stride(d) == view.stride(v)) found = d;
    }
    if (found < 0 || box.size[static_cast<std::size_t>(found)] != 1) return std::nullopt;
    box.size[static_cast<std::size_t>(found)] = view.size(v);
  }
  for (int d = 0; d < whole.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (box.first[i] + box.size[i] > whole.size(d)) return std::nullopt;
  }
  return box;
}

bool reshaped(const host::Geometry& view, std::int64_t offset, const host::Geometry& whole) {
  if (offset != 0 || view.empty() || view.elements() != whole.elements()) return false;
  host::Geometry a = view, b = whole;
  set_dense_strides(a);
  set_dense_strides(b);
  return same(a, view) && same(b, whole);
}

bool disjoint(const host::Geometry& a, std::int64_t a_offset, const host::Geometry& b,
              std::int64_t b_offset, const host::Geometry& whole) {
  const std::optional<Box> x = box_of(a, a_offset, whole), y = box_of(b, b_offset, whole);
  if (!x || !y) return false;
  for (std::size_t d = 0; d < static_cast<std::size_t>(whole.rank); ++d) {
    if (x->first[d] + x->size[d] <= y->first[d] || y->first[d] + y->size[d] <= x->first[d]) {
      return true;
    }
  }
  return false;
}

namespace {

// The first element of a view with elements, and one behind its last.
std::pair<std::int64_t, std::int64_t> span_of(const host::Geometry& g, std::int64_t offset) {
  std::int64_t first = offset, last = offset;
  for (int d = 0; d < g.rank; ++d) {
    (g.stride(d) < 0 ? first : last) += (g.size(d) - 1) * g.stride(d);
  }
  return {first, last + 1};
}

}  // namespace

// Nothing else is known of the memory: where they interleave, the strides of both, taken together,
// must be the places of a number system in which neither view carries.
bool apart(const host::Geometry& a, std::int64_t a_offset, const host::Geometry& b,
           std::int64_t b_offset) {
  if (a.empty() || b.empty()) return true;
  const auto [a_first, a_end] = span_of(a, a_offset);
  const auto [b_first, b_end] = span_of(b, b_offset);
  if (a_end <= b_first || b_end <= a_first) return true;
  std::vector<std::int64_t> places;
  for (const host::Geometry* g : {&a, &b}) {
    for (int d = 0; d < g->rank; ++d) {
      if (g->size(d) > 1) places.push_back(g->stride(d));
    }
  }
  places.push_back(1);
  std::ranges::sort(places, std::greater<>());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  if (places.back() < 1) return false;
  const std::int64_t start = std::min(a_offset, b_offset);
  using Digits = std::vector<std::pair<std::int64_t, std::int64_t>>;  // first, size
  const auto digits = [&](const host::Geometry& g, std::int64_t offset) -> std::optional<Digits> {
    Digits result;
    offset -= start;
    for (const std::int64_t place : places) {
      result.emplace_back(offset / place, 1);
      offset %= place;
    }
    for (int d = 0; d < g.rank; ++d) {
      if (g.size(d) < 2) continue;
      const auto i = std::ranges::find(places, g.stride(d)) - places.begin();
      if (result[static_cast<std::size_t>(i)].second != 1) return std::nullopt;
      result[static_cast<std::size_t>(i)].second = g.size(d);
    }
    for (std::size_t i = 1; i < places.size(); ++i) {
      if ((result[i].first + result[i].second) * places[i] > places[i - 1]) return std::nullopt;
    }
    return result;
  };
  const auto x = digits(a, a_offset), y = digits(b, b_offset);
  if (!x || !y) return false;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto &p = (*x)[i], &q = (*y)[i];
    if (p.first + p.second <= q.first || q.first + q.second <= p.first) return true;
  }
  return false;
}

bool no_overlap(const host::Geometry& g) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (int d = 0; d < g.rank; ++d) {
    if (g.size(d) > 1) dims.emplace_back(g.stride(d), g.size(d));
  }
  std::ranges::sort(dims);
  std::int64_t reach = 0;  // of the dims before
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += (size - 1) * stride;
  }
  return true;
}

}  // namespace tilevm::eager
