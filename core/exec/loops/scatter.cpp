#include <algorithm>

#include "exec/loops/elements.h"

namespace tilevm::exec::loops {
namespace {

template <What how, class T>
T changed(T old, T by) {
  if constexpr (how == What::kScatter) {
    return by;
  } else {
    const Wide<T> a = old, b = by;
    if constexpr (how == What::kScatterAdd || how == What::kScatterMul) {
      if constexpr (kFloating<T>) {
        return narrowed<T>(how == What::kScatterAdd ? a + b : a * b);
      } else {  // wraps
        const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
        return static_cast<T>(how == What::kScatterAdd ? x + y : x * y);
      }
    } else {
      if (is_nan(old)) return old;
      if (is_nan(by)) return by;
      return narrowed<T>(how == What::kScatterMax ? std::max(a, b) : std::min(a, b));
    }
  }
}

template <class T>
void copy(const Array& x, const Array& out) {
  const int last = x.rank - 1;
  const std::int64_t n = x.sizes[at(last)], from = x.strides[at(last)], to = out.strides[at(last)];
  for_rows(x, last, std::array{&x, &out}, [&](const auto& offset) {
    const T* a = reinterpret_cast<const T*>(x.data) + offset[0];
    T* b = reinterpret_cast<T*>(out.data) + offset[1];
    if (from == 1 && to == 1) {
      std::copy_n(a, n, b);
    } else {
      for (std::int64_t i = 0; i < n; ++i) b[i * to] = a[i * from];
    }
  });
}

template <class I>
bool all_inside(Array index, std::int64_t size) {
  for (int d = 0; d < index.rank; ++d) {
    if (index.strides[at(d)] == 0)
      index.sizes[at(d)] = std::min<std::int64_t>(index.sizes[at(d)], 1);
  }
  const int last = index.rank - 1;
  bool inside = true;
  for_rows(index, last, std::array{static_cast<const Array*>(&index)}, [&](const auto& offset) {
    const I* row = reinterpret_cast<const I*>(index.data) + offset[0];
    for (std::int64_t i = 0; i < index.sizes[at(last)]; ++i) {
      const std::int64_t place = row[i * index.strides[at(last)]];
      inside = inside && place >= 0 && place < size;
    }
  });
  return inside;
}

template <What how, class T, class I>
void scatter_all(const Array& index, const Array& src, int axis, const Array& out) {
  const int last = src.rank - 1;
  const std::int64_t n = src.sizes[at(last)];
  const std::int64_t stride = out.strides[at(axis)];
  Array places = out;  // beside `axis`, src's positions
  places.strides[at(axis)] = 0;
  const std::int64_t to = places.strides[at(last)], from = src.strides[at(last)];
  const std::int64_t step = index.strides[at(last)];
  for_rows(src, last, std::array{&index, &src, static_cast<const Array*>(&places)},
           [&](const auto& offset) {
             const I* place = reinterpret_cast<const I*>(index.data) + offset[0];
             const T* x = reinterpret_cast<const T*>(src.data) + offset[1];
             T* y = reinterpret_cast<T*>(out.data) + offset[2];
             if (step == 0 && last != axis) {  // whole rows
               if (n == 0) return;
               y += *place * stride;
               if (to == 1 && from == 1) {
                 for (std::int64_t i = 0; i < n; ++i) y[i] = changed<how>(y[i], x[i]);
               } else {
                 for (std::int64_t i = 0; i < n; ++i)
                   y[i * to] = changed<how>(y[i * to], x[i * from]);
               }
               return;
             }
             for (std::int64_t i = 0; i < n; ++i) {
               T& old = y[i * to + place[i * step] * stride];
               old = changed<how>(old, x[i * from]);
             }
           });
}

template <What how, class T>
void scatter_by(const Loop& loop) {
  if (loop.index == bytecode::Storage::kI32)
    return scatter_all<how, T, std::int32_t>(loop.in[1], loop.in[2], loop.axis, loop.out);
  scatter_all<how, T, std::int64_t>(loop.in[1], loop.in[2], loop.axis, loop.out);
}

}  // namespace

Status check_indices(const Loop& loop) {
  const std::int64_t size = loop.out.sizes[at(loop.axis)];
  const bool inside = loop.index == bytecode::Storage::kI32
                          ? all_inside<std::int32_t>(loop.in[1], size)
                          : all_inside<std::int64_t>(loop.in[1], size);
  return inside ? Status::kOk : Status::kIndexOutOfRange;
}

void scatter(const Loop& loop) {
  with_type(loop.storage, [&]<class T>(T) {
    if (loop.in[0].data != loop.out.data) copy<T>(loop.in[0], loop.out);
    switch (loop.what) {
      case What::kScatterAdd:
        return scatter_by<What::kScatterAdd, T>(loop);
      case What::kScatterMul:
        return scatter_by<What::kScatterMul, T>(loop);
      case What::kScatterMax:
        return scatter_by<What::kScatterMax, T>(loop);
      case What::kScatterMin:
        return scatter_by<What::kScatterMin, T>(loop);
      default:
        return scatter_by<What::kScatter, T>(loop);
    }
  });
}

}  // namespace tilevm::exec::loops
