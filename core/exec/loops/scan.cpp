#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "exec/loops/elements.h"

namespace tilevm::exec::loops {
namespace {

constexpr std::size_t kLanes = 8;  // rows at a time: one addition waits for the one before

template <class T>
using Sum =
    std::conditional_t<kNarrow<T>, float, std::conditional_t<kFloating<T>, double, std::uint64_t>>;

// log(e^x[0] + ... + e^x[i]): the largest so far, and the sum of what is over that. F: what
// functions are computed in.
template <class F>
struct LogSum {
  F largest = -std::numeric_limits<F>::infinity();
  double sum = 0;

  LogSum plus(F x) const {
    if (x == largest) return {largest, sum + 1};  // of infinities the difference is NaN
    if (x < largest) return {largest, sum + static_cast<double>(std::exp(x - largest))};
    return {x, sum * static_cast<double>(std::exp(largest - x)) + 1};
  }
  F value() const { return largest + std::log1p(static_cast<F>(sum - 1)); }
};

// Of equal ones the later: 0 of either sign.
template <What what, class A, class T>
A next(A so_far, T x) {
  if constexpr (what == What::kLogSumExp) {
    return so_far.plus(static_cast<Wide<T>>(x));
  } else {
    const auto wide = static_cast<A>(static_cast<Wide<T>>(x));
    if constexpr (what == What::kSum) return so_far + wide;
    if constexpr (what == What::kProd) return so_far * wide;
    if (is_nan(so_far)) return so_far;
    if (is_nan(x)) return wide;
    return (what == What::kMax ? wide >= so_far : wide <= so_far) ? wide : so_far;
  }
}

template <class T, class A>
T stored(const A& so_far) {
  if constexpr (std::is_arithmetic_v<A>) {
    return narrowed<T>(so_far);
  } else {
    return narrowed<T>(so_far.value());
  }
}

template <What what, class T>
auto nothing(T first) {
  constexpr bool kFolds = what == What::kSum || what == What::kProd;
  using A = std::conditional_t<kFolds, Sum<T>, Wide<T>>;
  if constexpr (what == What::kLogSumExp) {
    return LogSum<Wide<T>>{};
  } else {
    return kFolds ? static_cast<A>(what == What::kProd ? 1 : 0)
                  : static_cast<A>(static_cast<Wide<T>>(first));
  }
}

template <What what, std::size_t count, class T>
void rows(std::array<const T*, kLanes> x, std::array<T*, kLanes> out, std::int64_t n,
          std::int64_t step, std::int64_t out_step) {
  std::array<decltype(nothing<what>(*x[0])), count> so_far;
  for (std::size_t l = 0; l < count; ++l) so_far[l] = nothing<what>(*x[l]);
  for (std::int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (std::size_t l = 0; l < count; ++l) {
      so_far[l] = next<what>(so_far[l], x[l][i * step]);
      out[l][i * out_step] = stored<T>(so_far[l]);
    }
  }
}

template <What what, class T>
void scan_all(const Array& x, int axis, const Array& out) {
  const std::int64_t n = x.sizes[at(axis)];
  if (n == 0) return;
  const std::int64_t step = x.strides[at(axis)], out_step = out.strides[at(axis)];
  std::array<const T*, kLanes> from{};
  std::array<T*, kLanes> to{};
  std::size_t count = 0;
  for_rows(x, axis, std::array{&x, &out}, [&](const auto& offset) {
    from[count] = reinterpret_cast<const T*>(x.data) + offset[0];
    to[count] = reinterpret_cast<T*>(out.data) + offset[1];
    if (++count < kLanes) return;
    rows<what, kLanes>(from, to, n, step, out_step);
    count = 0;
  });
  for (std::size_t l = 0; l < count; ++l) {
    from[0] = from[l];
    to[0] = to[l];
    rows<what, 1>(from, to, n, step, out_step);
  }
}

}  // namespace

void scan(const Loop& loop) {
  const Array &x = loop.in[0], &out = loop.out;
  with_type(loop.storage, [&]<class T>(T) {
    switch (loop.what) {
      case What::kSum:
        return scan_all<What::kSum, T>(x, loop.axis, out);
      case What::kProd:
        return scan_all<What::kProd, T>(x, loop.axis, out);
      case What::kMax:
        return scan_all<What::kMax, T>(x, loop.axis, out);
      case What::kLogSumExp:
        if constexpr (kFloating<T>) return scan_all<What::kLogSumExp, T>(x, loop.axis, out);
        return;
      default:
        return scan_all<What::kMin, T>(x, loop.axis, out);
    }
  });
}

}  // namespace tilevm::exec::loops
