#include <algorithm>

#include "eager/trace.h"

namespace tilevm::eager {
namespace {

using host::Geometry;

// Dims of an image with its channels last, innermost first.
constexpr std::array<int, 4> kChannelsLast{1, 3, 2, 0};

bool channels_last(const Geometry& g) {
  if (g.rank != 4) return false;
  std::int64_t next = 1;
  for (const int d : kChannelsLast) {
    if (g.size(d) == 1) continue;
    if (g.stride(d) != next) return false;
    next *= g.size(d);
  }
  return true;
}

}  // namespace

bool dense(const Geometry& g) {
  // Innermost first; dims of sizes 0 and 1 do not count.
  std::array<int, kMaxRank> order{};
  int n = 0;
  for (int d = 0; d < g.rank; ++d) {
    if (g.size(d) < 2) continue;
    int i = n++;
    for (; i > 0 && g.stride(order[static_cast<std::size_t>(i - 1)]) > g.stride(d); --i) {
      order[static_cast<std::size_t>(i)] = order[static_cast<std::size_t>(i - 1)];
    }
    order[static_cast<std::size_t>(i)] = d;
  }
  std::int64_t next = 1;
  for (int i = 0; i < n; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    if (g.stride(d) != next) return false;
    next *= g.size(d);
  }
  return true;
}

void elementwise_strides(std::span<const Geometry* const> operands, Geometry& out) {
  bool same = true, all_row_major = true, equal = true;
  for (const Geometry* g : operands) {
    same = same && host::equal_dims(g->shape(), out.shape());
    all_row_major = all_row_major && g->row_major();
  }
  if (same && !operands.empty()) {
    if (all_row_major) return host::set_dense_strides(out);
    if (std::ranges::all_of(operands, [](const Geometry* g) { return channels_last(*g); })) {
      std::int64_t next = 1;
      for (const int d : kChannelsLast) {
        out.stride(d) = next;
        next *= out.size(d);
      }
      return;
    }
    const Geometry& first = *operands[0];
    for (const Geometry* g : operands) {
      equal = equal &&
              std::equal(g->strides.begin(), g->strides.begin() + g->rank, first.strides.begin());
    }
    if (equal && dense(first)) {
      out.strides = first.strides;
      return;
    }
  }
  const int n = out.rank;
  const auto stride = [&](const Geometry& g, int d) -> std::int64_t {
    const int own = d - (n - g.rank);
    if (own < 0 || (g.size(own) == 1 && out.size(d) != 1)) return 0;
    return g.stride(own);
  };
  std::array<int, kMaxRank> perm{};  // innermost first
  for (int i = 0; i < n; ++i) perm[static_cast<std::size_t>(i)] = n - 1 - i;
  const auto at = [&](int i) -> int& { return perm[static_cast<std::size_t>(i)]; };
  const auto compare = [&](int a, int b) {
    for (const Geometry* g : operands) {
      const std::int64_t x = stride(*g, a), y = stride(*g, b);
      if (x == 0 || y == 0) continue;
      if (x < y) return -1;
      if (x > y) return 1;
      if (out.size(a) > out.size(b)) return 1;
    }
    return 0;
  };
  for (int i = 1; i < n; ++i) {
    int inner = i;
    for (int outer = i - 1; outer >= 0; --outer) {
      const int order = compare(at(outer), at(inner));
      if (order > 0) {
        std::swap(at(outer), at(inner));
        inner = outer;
      } else if (order < 0) {
        break;
      }
    }
  }
  bool unchanged = true;
  for (int i = 0; i < n; ++i) unchanged = unchanged && at(i) == n - 1 - i;
  if (unchanged) return host::set_dense_strides(out);
  std::int64_t next = 1;
  for (int i = 0; i < n; ++i) {
    out.stride(at(i)) = next;
    next *= out.size(at(i));
  }
}

}  // namespace tilevm::eager
