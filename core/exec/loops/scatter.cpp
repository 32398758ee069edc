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

template <What how, class T, class I>
Status scatter_all(const Array& index, const Array& src, int axis, const Array& out) {
  const int last = src.rank - 1;
  const std::int64_t n = src.sizes[at(last)];
  const std::int64_t size = out.sizes[at(axis)], stride = out.strides[at(axis)];
  Array places = out;  // beside `axis`, src's positions
  places.strides[at(axis)] = 0;
  const std::int64_t to = places.strides[at(last)], from = src.strides[at(last)];
  const std::int64_t step = index.strides[at(last)];
  bool inside = true;
  for_rows(src, last, std::array{&index, &src, static_cast<const Array*>(&places)},
           [&](const auto& offset) {
             const I* place = reinterpret_cast<const I*>(index.data) + offset[0];
             const T* x = reinterpret_cast<const T*>(src.data) + offset[1];
             T* y = reinterpret_cast<T*>(out.data) + offset[2];
             const auto ok = [&](std::int64_t i) { return i >= 0 && i < size; };
             if (step == 0 && last != axis) {  // whole rows
               if (n == 0) return;
               inside = inside && ok(*place);
               if (!inside) return;
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
               const std::int64_t at_axis = place[i * step];
               inside = inside && ok(at_axis);
               if (!inside) return;
               T& old = y[i * to + at_axis * stride];
               old = changed<how>(old, x[i * from]);
             }
           });
  return inside ? Status::kOk : Status::kIndexOutOfRange;
}

template <What how, class T>
Status scatter_by(const Loop& loop) {
  if (loop.index == bytecode::Storage::kI32)
    return scatter_all<how, T, std::int32_t>(loop.in[1], loop.in[2], loop.axis, loop.out);
  return scatter_all<how, T, std::int64_t>(loop.in[1], loop.in[2], loop.axis, loop.out);
}

}  // namespace

Status scatter(const Loop& loop) {
  return with_type(loop.storage, [&]<class T>(T) {
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
