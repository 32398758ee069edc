#include <algorithm>
#include <array>
#include <bit>
#include <limits>
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
  explicit Room(std::size_t bytes) : block(acquire_for_launch(bytes)) {
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

// Integers of the elements' width that are in the same order.
template <class T>
using Key = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t,
                       std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

template <bool descending, class T>
Key<T> key_of(T x) {
  using K = Key<T>;
  constexpr auto kSign = static_cast<K>(K{1} << (8 * sizeof(K) - 1));
  auto key = std::bit_cast<K>(x);
  if constexpr (kFloating<T>) {
    if (is_nan(x)) {
      key = static_cast<K>(~K{0});
    } else if (key == kSign) {
      key = kSign;  // -0, which equals 0
    } else {
      key = static_cast<K>((key & kSign) != 0 ? ~key : key | kSign);
    }
  } else if constexpr (std::is_signed_v<T>) {
    key = static_cast<K>(key ^ kSign);
  }
  return descending ? static_cast<K>(~key) : key;
}

template <class T>
struct Entry {
  Key<T> key;
  std::uint32_t place;
};

// Fewer than this are merged: counting the values of a byte takes as long as merging so many.
constexpr std::int64_t kFew = 96;
constexpr std::size_t kValues = 256;  // of a byte

// Sorts `n` entries of a, with b as room, and returns where they are in the end: a or b.
// By counting, a byte of the keys after the other from the lowest on: Knuth, The Art of Computer
// Programming, volume 3, section 5.2.5.
template <class T>
Entry<T>* sort_entries(Entry<T>* a, Entry<T>* b, std::int64_t n) {
  if (n < kFew) {
    std::stable_sort(a, a + n, [](const auto& x, const auto& y) { return x.key < y.key; });
    return a;
  }
  std::array<std::array<std::uint32_t, kValues>, sizeof(Key<T>)> counts{};
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::size_t byte = 0; byte < sizeof(Key<T>); ++byte)
      ++counts[byte][static_cast<std::size_t>(a[i].key >> (8 * byte)) % kValues];
  }
  for (std::size_t byte = 0; byte < sizeof(Key<T>); ++byte) {
    const auto digit = [byte](const Entry<T>& e) {
      return static_cast<std::size_t>(e.key >> (8 * byte)) % kValues;
    };
    auto& place = counts[byte];
    if (place[digit(a[0])] == n) continue;
    std::uint32_t sum = 0;
    for (std::uint32_t& count : place) sum += std::exchange(count, sum);
    for (std::int64_t i = 0; i < n; ++i) b[place[digit(a[i])]++] = a[i];
    std::swap(a, b);
  }
  return a;
}

// Of rows too long for the entries' places.
template <bool descending, class T>
void merge_rows(const Array& x, int axis, const Array& out) {
  each_row<T>(x, axis, out, [](auto items) {
    std::ranges::stable_sort(
        items, [](const auto& a, const auto& b) { return before<descending>(a.first, b.first); });
  });
}

template <bool descending, class T>
void sort_rows(const Array& x, int axis, const Array& out) {
  const std::int64_t n = x.sizes[at(axis)], step = x.strides[at(axis)];
  const std::int64_t out_step = out.strides[at(axis)];
  if (n > std::numeric_limits<std::uint32_t>::max()) return merge_rows<descending, T>(x, axis, out);
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(n, 1));
  const Room room(2 * count * sizeof(Entry<T>));
  auto* const a = reinterpret_cast<Entry<T>*>(room.block.data);
  for_rows(x, axis, std::array{&x, &out}, [&](const auto& offset) {
    const T* row = reinterpret_cast<const T*>(x.data) + offset[0];
    for (std::int64_t i = 0; i < n; ++i)
      new (&a[i]) Entry<T>{key_of<descending>(row[i * step]), static_cast<std::uint32_t>(i)};
    const Entry<T>* const sorted = sort_entries<T>(a, a + count, n);
    auto* to = reinterpret_cast<std::int64_t*>(out.data) + offset[1];
    for (std::int64_t i = 0; i < n; ++i) to[i * out_step] = sorted[i].place;
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

}  // namespace tilevm::exec::loops
