#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "exec/loops/elements.h"
#include "exec/memory.h"

namespace tilevm::exec::loops {
namespace {

template <class T>
using Item = std::pair<Wide<T>, std::int64_t>;

// Whether a comes before b. NaN is the largest.
template <bool descending, class W>
bool before(W a, W b) {
  if constexpr (descending) return (is_nan(a) && !is_nan(b)) || a > b;
  return (!is_nan(a) && is_nan(b)) || a < b;
}

// A block of the pool: fresh pages would take as long as a choice among many does.
struct Room {
  Block block;
  explicit Room(std::size_t bytes) : block(acquire(bytes)) {
    if (block.data == nullptr) throw std::bad_alloc();
  }
  ~Room() { release(block); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

// Calls order(items) for each row, and writes the places of the first ones.
template <class T, class Order>
void each_row(const Array& x, int axis, const Array& out, Order&& order) {
  const std::int64_t n = x.sizes[at(axis)], kept = out.sizes[at(axis)];
  const Room room(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)) * sizeof(Item<T>));
  const std::span items(reinterpret_cast<Item<T>*>(room.block.data), static_cast<std::size_t>(n));
  for_rows(x, axis, std::array{&x, &out}, [&](const auto& offset) {
    const T* row = reinterpret_cast<const T*>(x.data) + offset[0];
    for (std::int64_t i = 0; i < n; ++i)
      new (&items[static_cast<std::size_t>(i)]) Item<T>(row[i * x.strides[at(axis)]], i);
    order(items);
    auto* to = reinterpret_cast<std::int64_t*>(out.data) + offset[1];
    for (std::int64_t i = 0; i < kept; ++i)
      to[i * out.strides[at(axis)]] = items[static_cast<std::size_t>(i)].second;
  });
}

template <bool descending, class T>
void sort_rows(const Array& x, int axis, const Array& out) {
  each_row<T>(x, axis, out, [](auto items) {
    std::ranges::stable_sort(
        items, [](const auto& a, const auto& b) { return before<descending>(a.first, b.first); });
  });
}

// Source of which way, and so of the order of equal ones: PyTorch, ATen/native/TopKImpl.h.
template <bool largest, class T>
void top_rows(const Array& x, int axis, const Array& out) {
  const std::int64_t n = x.sizes[at(axis)], k = out.sizes[at(axis)];
  if (k == 0) return;
  each_row<T>(x, axis, out, [n, k](auto items) {
    const auto less = [](const auto& a, const auto& b) {
      return before<largest>(a.first, b.first);
    };
    const auto end = items.begin() + k;
    if (k * 64 <= n) {
      std::partial_sort(items.begin(), end, items.end(), less);
    } else {
      std::nth_element(items.begin(), end - 1, items.end(), less);
      std::sort(items.begin(), end - 1, less);
    }
  });
}

}  // namespace

void order(const Loop& loop) {
  const Array &x = loop.in[0], &out = loop.out;
  with_type(loop.storage, [&]<class T>(T) {
    if (loop.what == What::kArgTopK) {
      loop.descending ? top_rows<true, T>(x, loop.axis, out)
                      : top_rows<false, T>(x, loop.axis, out);
    } else {
      loop.descending ? sort_rows<true, T>(x, loop.axis, out)
                      : sort_rows<false, T>(x, loop.axis, out);
    }
  });
}

Status run(const Loop& loop) noexcept try {
  switch (loop.what) {
    case What::kSum:
    case What::kProd:
    case What::kMax:
    case What::kMin:
      scan(loop);
      return Status::kOk;
    case What::kArgSort:
    case What::kArgTopK:
      order(loop);
      return Status::kOk;
    default:
      return scatter(loop);
  }
} catch (const std::bad_alloc&) {
  return Status::kNoMemory;
}

}  // namespace tilevm::exec::loops
