// Copies between layouts, of what no kernel computes: results that must lie in another order.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "exec/plane.h"
#include "exec/threads.h"
#include "host/views.h"

namespace tilevm::host {
namespace {

// An axis of both tensors; steps in bytes.
struct Axis {
  std::int64_t size, from, to;
};

// Lines of a plane at once: their pages are what the processor can have at hand.
constexpr std::int64_t kLinesAtOnce = 256;

template <std::int64_t item>
void copy_elements(std::byte* to, const std::byte* from, Axis x) {
  const auto copy = [&](std::int64_t i, std::int64_t to_step, std::int64_t from_step) {
    std::memcpy(to + i * to_step, from + i * from_step, item);
  };
  if (x.to == item && x.from == -item) {  // steps that the compiler knows: vectors
    for (std::int64_t i = 0; i < x.size; ++i) copy(i, item, -item);
  } else {
    for (std::int64_t i = 0; i < x.size; ++i) copy(i, x.to, x.from);
  }
}

void copy_row(std::byte* to, const std::byte* from, const Axis& x, int item) {
  if (x.from == item && x.to == item) {
    std::memcpy(to, from, static_cast<std::size_t>(x.size * item));
    return;
  }
  switch (item) {
    case 1:
      return copy_elements<1>(to, from, x);
    case 2:
      return copy_elements<2>(to, from, x);
    case 4:
      return copy_elements<4>(to, from, x);
    default:
      return copy_elements<8>(to, from, x);
  }
}

// Below this many bytes, another thread is not worth it.
constexpr std::int64_t kBytesOfThread = 512 << 10;

// Elements of one tensor lie side by side along x, those of the other along y.
void copy_plane(std::byte* to, std::byte* from, const Axis& y, const Axis& x, int item) {
  for (std::int64_t line = 0; line < y.size; line += kLinesAtOnce) {
    exec::copy_plane({to + line * y.to, y.to, x.to}, {from + line * y.from, y.from, x.from},
                     std::min(kLinesAtOnce, y.size - line), x.size, item);
  }
}

void copy_all(const Record& in, const Record& out, int item_bytes) noexcept {
  if (in.empty()) return;
  std::array<Axis, kMaxRank> axes{};
  std::size_t n = 0;
  for (int d = 0; d < in.rank; ++d) {
    if (in.size(d) > 1)
      axes[n++] = {in.size(d), in.stride(d) * item_bytes, out.stride(d) * item_bytes};
  }
  // Outermost first, as `out` lies; neighbours that are one run in both are one axis.
  std::stable_sort(axes.begin(), axes.begin() + n,
                   [](const Axis& a, const Axis& b) { return std::abs(a.to) > std::abs(b.to); });
  std::size_t merged = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool one_run = merged > 0 && axes[merged - 1].from == axes[i].from * axes[i].size &&
                         axes[merged - 1].to == axes[i].to * axes[i].size;
    if (one_run) {
      axes[merged - 1] = {axes[merged - 1].size * axes[i].size, axes[i].from, axes[i].to};
    } else {
      axes[merged++] = axes[i];
    }
  }
  n = merged;
  const Axis x = n == 0 ? Axis{1, item_bytes, item_bytes} : axes[--n];
  const auto side_by_side = [&](const Axis& a) { return a.from == item_bytes; };
  const auto y = std::find_if(axes.begin(), axes.begin() + n, side_by_side);
  const bool plane = y != axes.begin() + n && !side_by_side(x);
  const Axis lines = plane ? *y : Axis{};
  if (plane) n = static_cast<std::size_t>(std::copy(y + 1, axes.begin() + n, y) - axes.begin());
  std::array<std::int64_t, kMaxRank> index{};
  std::byte* from = in.data;
  std::byte* to = out.data;
  for (;;) {
    plane ? copy_plane(to, from, lines, x, item_bytes) : copy_row(to, from, x, item_bytes);
    std::size_t d = n;
    for (; d > 0; --d) {
      const Axis& axis = axes[d - 1];
      const bool more = ++index[d - 1] < axis.size;
      from += more ? axis.from : axis.from * (1 - axis.size);
      to += more ? axis.to : axis.to * (1 - axis.size);
      if (more) break;
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

// A copy cut where the result's elements are furthest apart.
struct Cut {
  const Record &in, &out;
  int item_bytes;
  int dim;
  std::int64_t parts;

  void run(std::int64_t i) const noexcept {
    Record from = in, to = out;
    const std::int64_t size = in.size(dim), begin = size * i / parts;
    from.size(dim) = to.size(dim) = size * (i + 1) / parts - begin;
    from.data += begin * in.stride(dim) * item_bytes;
    to.data += begin * out.stride(dim) * item_bytes;
    copy_all(from, to, item_bytes);
  }
};

}  // namespace

void copy(const Record& in, const Record& out, int item_bytes, int threads) noexcept {
  int dim = -1;
  for (int d = 0; d < in.rank; ++d) {
    const bool further = dim < 0 || std::abs(out.stride(d)) > std::abs(out.stride(dim));
    if (in.size(d) > 1 && further) dim = d;
  }
  const std::int64_t worth = in.empty() ? 0 : in.elements() * item_bytes / kBytesOfThread;
  const auto parts = dim < 0 ? 1 : std::min({worth, in.size(dim), std::int64_t{threads}});
  if (parts < 2) return copy_all(in, out, item_bytes);
  Cut cut{in, out, item_bytes, dim, parts};
  exec::parallel(
      static_cast<int>(parts), [](void* data, int i) { static_cast<Cut*>(data)->run(i); }, &cut);
}

}  // namespace tilevm::host
