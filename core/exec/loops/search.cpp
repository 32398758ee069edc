#include <algorithm>

#include "exec/loops/elements.h"

namespace tilevm::exec::loops {
namespace {

constexpr std::size_t kLanes = 8;  // searches at a time: each step waits for a load

// Halves what is left of the row until nothing is, for each of `count` elements. Which elements are
// looked at is PyTorch's choice: rows that are in no order, or have NaN, give what they give there.
template <bool right, std::size_t count, class T>
void find(const T* row, std::int64_t n, std::int64_t step, const T* x, std::int64_t x_step,
          std::int64_t* out, std::int64_t out_step) {
  std::array<std::int64_t, count> first{}, left;
  std::array<Wide<T>, count> wanted;
  left.fill(n);
  for (std::size_t l = 0; l < count; ++l)
    wanted[l] = static_cast<Wide<T>>(x[static_cast<std::int64_t>(l) * x_step]);
  for (std::int64_t steps = n; steps > 0; steps /= 2) {
#pragma GCC unroll 8
    for (std::size_t l = 0; l < count; ++l) {
      const std::int64_t half = left[l] / 2;
      const auto element = static_cast<Wide<T>>(row[std::min(first[l] + half, n - 1) * step]);
      const bool behind = right ? element > wanted[l] : element >= wanted[l];
      // No branches: what they depend on is as good as random.
      const auto before = static_cast<std::int64_t>((left[l] > 0) & !behind);
      first[l] += -before & (half + 1);
      left[l] = half - (before & ~left[l]);  // one less of an even number
    }
  }
  for (std::size_t l = 0; l < count; ++l) out[static_cast<std::int64_t>(l) * out_step] = first[l];
}

template <bool right, class T>
void search_all(const Loop& loop) {
  const Array &x = loop.in[1], &out = loop.out;
  const int axis = loop.axis;
  const std::int64_t n = loop.in[0].sizes[at(axis)], step = loop.in[0].strides[at(axis)];
  const std::int64_t x_step = x.strides[at(axis)], out_step = out.strides[at(axis)];
  for_rows(x, axis, std::array{&loop.in[0], &x, &out}, [&](const auto& offset) {
    const T* row = reinterpret_cast<const T*>(loop.in[0].data) + offset[0];
    const T* from = reinterpret_cast<const T*>(x.data) + offset[1];
    auto* to = reinterpret_cast<std::int64_t*>(out.data) + offset[2];
    const std::int64_t m = x.sizes[at(axis)];
    std::int64_t i = 0;
    for (; i + static_cast<std::int64_t>(kLanes) <= m; i += kLanes)
      find<right, kLanes>(row, n, step, from + i * x_step, x_step, to + i * out_step, out_step);
    for (; i < m; ++i)
      find<right, 1>(row, n, step, from + i * x_step, x_step, to + i * out_step, out_step);
  });
}

}  // namespace

void search(const Loop& loop) {
  with_type(loop.storage, [&]<class T>(T) {
    loop.right ? search_all<true, T>(loop) : search_all<false, T>(loop);
  });
}

}  // namespace tilevm::exec::loops
