#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "exec/interp/tables.h"
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

template <What what, std::size_t count, class A, class T>
void advance(std::array<A, count>& so_far, const std::array<const T*, kLanes>& x,
             const std::array<T*, kLanes>& out, std::int64_t n, std::int64_t step,
             std::int64_t out_step) {
  for (std::int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (std::size_t l = 0; l < count; ++l) {
      so_far[l] = next<what>(so_far[l], x[l][i * step]);
      out[l][i * out_step] = stored<T>(so_far[l]);
    }
  }
}

// Rows of 16-bit floats that lie along memory, or side by side: some of each at a time, which are
// converted in vectors.
template <What what, std::size_t count, class A, class T>
void advance_narrow(std::array<A, count>& so_far, const std::array<const T*, kLanes>& x,
                    const std::array<T*, kLanes>& out, std::int64_t n, std::int64_t step,
                    std::int64_t out_step) {
  constexpr std::int64_t kAtOnce = 128, kBytes = sizeof(T);
  constexpr int kStorage = static_cast<int>(
      std::is_same_v<T, BFloat16> ? bytecode::Storage::kBF16 : bytecode::Storage::kF16);
  const auto& access = interp::tables().access;
  const auto load = access[static_cast<std::size_t>(bytecode::kLoadOf[kStorage])].load;
  const auto store = access[static_cast<std::size_t>(bytecode::kStoreOf[kStorage])].store;
  const bool along = step == 1 && out_step == 1;
  alignas(64) float wide[count * kAtOnce + interp::kPadBytes / sizeof(float)];
  std::array<const float*, kLanes> from{};
  std::array<float*, kLanes> to{};
  for (std::size_t l = 0; l < count; ++l) from[l] = to[l] = wide + (along ? l * kAtOnce : l);
  const std::int64_t wide_step = along ? 1 : static_cast<std::int64_t>(count);
  const auto grid = [&](const T* first, std::int64_t size, std::int64_t of_step) {
    auto* base = reinterpret_cast<std::byte*>(const_cast<T*>(first));
    if (along) return interp::Grid{base, 1, size, 0, kBytes};
    return interp::Grid{base, size, static_cast<std::int64_t>(count), of_step * kBytes, kBytes};
  };
  const std::size_t lines = along ? count : 1;
  for (std::int64_t i = 0; i < n; i += kAtOnce) {
    const std::int64_t size = std::min(kAtOnce, n - i);
    for (std::size_t l = 0; l < lines; ++l) load(to[l], grid(x[l] + i * step, size, step));
    advance<what, count>(so_far, from, to, size, wide_step, wide_step);
    for (std::size_t l = 0; l < lines; ++l)
      store(grid(out[l] + i * out_step, size, out_step), {to[l], along ? size : wide_step, 1});
  }
}

template <std::size_t count, class T>
bool side_by_side(const std::array<T*, kLanes>& rows) {
  for (std::size_t l = 1; l < count; ++l) {
    if (rows[l] != rows[0] + l) return false;
  }
  return count == kLanes;
}

template <What what, std::size_t count, class T>
void rows(const std::array<const T*, kLanes>& x, const std::array<T*, kLanes>& out, std::int64_t n,
          std::int64_t step, std::int64_t out_step) {
  std::array<decltype(nothing<what>(*x[0])), count> so_far;
  for (std::size_t l = 0; l < count; ++l) so_far[l] = nothing<what>(*x[l]);
  constexpr std::int64_t kFew = 16;  // for vectors
  if constexpr (kNarrow<T>) {
    // bfloat16 is converted one by one faster than some at a time.
    const bool beside =
        std::is_same_v<T, Float16> && side_by_side<count>(x) && side_by_side<count>(out);
    if (n > kFew && ((step == 1 && out_step == 1) || beside))
      return advance_narrow<what, count>(so_far, x, out, n, step, out_step);
  }
  advance<what, count>(so_far, x, out, n, step, out_step);
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
