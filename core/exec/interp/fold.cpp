// Folds: accumulators over the reduced axes. Nothing here depends on how many groups a block has,
// so results do not depend on how kept axes are cut.
#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/interp/fold.cpp"
#include <hwy/foreach_target.h>
#include "exec/interp/lanes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

using std::int64_t;

// sum_f32, mean_f32, total_f32 --------------------------------------------------------------------
// In double throughout: the sum of equal numbers is exact, so that a constant row has that mean.

inline constexpr int64_t kShortRow = 16;  // rows up to here are combined from left to right
inline constexpr int64_t kNarrow = 64;    // columns up to here are summed several rows at a time
// Four short rows at once: out[r] = a[r*n] op a[r*n + 1] op ..., from left to right. (Vectors of
// shifted neighbours cross a cache line at each load, and were slower.)
inline constexpr int64_t kShortRows = 4;
template <class T, class Combine>
HWY_INLINE void combine_short_rows(const T* a, int64_t n, T* out, const Combine& combine) {
  T v0 = a[0];
  T v1 = a[n];
  T v2 = a[2 * n];
  T v3 = a[3 * n];
  for (int64_t i = 1; i < n; ++i) {
    v0 = combine(v0, a[i]);
    v1 = combine(v1, a[n + i]);
    v2 = combine(v2, a[2 * n + i]);
    v3 = combine(v3, a[3 * n + i]);
  }
  out[0] = v0;
  out[1] = v1;
  out[2] = v2;
  out[3] = v3;
}

using HalfF32 = hn::Rebind<float, F64>;

HWY_INLINE hn::Vec<F64> load_double(const float* a) {
  return hn::PromoteTo(F64(), hn::LoadU(HalfF32(), a));
}

// acc[i] += a[i].
HWY_INLINE void add_doubles(double* acc, const float* a, int64_t n) {
  const F64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, acc + i), load_double(a + i)), d, acc + i);
  }
  for (; i < n; ++i) acc[i] += static_cast<double>(a[i]);
}

HWY_INLINE double sum_row(const float* a, int64_t n) {
  const F64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, load_double(a + i));
    s1 = hn::Add(s1, load_double(a + i + lanes));
    s2 = hn::Add(s2, load_double(a + i + 2 * lanes));
    s3 = hn::Add(s3, load_double(a + i + 3 * lanes));
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += static_cast<double>(a[i]);
  return sum;
}

void sum_reset(FoldBlock& f) {
  std::memset(f.acc, 0, static_cast<std::size_t>(f.groups) * sizeof(double));
}

void sum_along(FoldBlock& f) {
  double* acc = static_cast<double*>(f.acc);
  const float* a = static_cast<const float*>(f.a);
  const int64_t n = f.n;
  int64_t g = 0;
  if (n <= kShortRow) {
    for (; g + kShortRows <= f.groups; g += kShortRows, a += kShortRows * n) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < kShortRows; ++k) {
          acc[g + k] += static_cast<double>(a[k * n + i]);
        }
      }
    }
  }
  for (; g < f.groups; ++g, a += n) acc[g] += sum_row(a, n);
}

// Narrow blocks: `lanes` rows are one run of groups * lanes elements, summed vector by vector.
HWY_INLINE void sum_down_narrow(FoldBlock& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F64()));
  const int64_t run = f.groups * lanes;
  alignas(64) double runs[kNarrow * static_cast<int64_t>(hn::MaxLanes(F64()))];
  const float* a = static_cast<const float*>(f.a);
  double* acc = static_cast<double*>(f.acc);
  std::memset(runs, 0, static_cast<std::size_t>(run) * sizeof(double));
  int64_t y = 0;
  for (; y + lanes <= f.n; y += lanes, a += run) add_doubles(runs, a, run);
  for (int64_t k = 0; k < lanes; ++k) {
    for (int64_t g = 0; g < f.groups; ++g) acc[g] += runs[k * f.groups + g];
  }
  for (; y < f.n; ++y, a += f.groups) add_doubles(acc, a, f.groups);
}

void sum_down(FoldBlock& f) {
  if (f.groups <= kNarrow) {
    sum_down_narrow(f);
    return;
  }
  const float* a = static_cast<const float*>(f.a);
  for (int64_t y = 0; y < f.n; ++y, a += f.groups) {
    add_doubles(static_cast<double*>(f.acc), a, f.groups);
  }
}

template <bool kMean>
void sum_finish(FoldBlock& f, void* dst) {
  const double* acc = static_cast<const double*>(f.acc);
  float* to = static_cast<float*>(dst);
  for (int64_t g = 0; g < f.groups; ++g) {
    to[g] = static_cast<float>(kMean ? acc[g] / f.count : acc[g]);
  }
}

void total_finish(FoldBlock& f, void* dst) {
  std::memcpy(dst, f.acc, static_cast<std::size_t>(f.groups) * sizeof(double));
}

// sum_f64, mean_f64 -------------------------------------------------------------------------------
// Two numbers a group: acc the sum as double has it, extra what its additions lost, each found by
// Knuth's TwoSum (The Art of Computer Programming 2, 4.2.2, theorem B).

template <class D, class V>
HWY_INLINE void add_exactly(D, V& sum, V& lost, V a) {
  const V more = hn::Add(sum, a);
  const V of_a = hn::Sub(more, sum);
  const V error = hn::Add(hn::Sub(sum, hn::Sub(more, of_a)), hn::Sub(a, of_a));
  sum = more;
  lost = hn::Add(lost, error);
}

using OneF64 = hn::CappedTag<double, 1>;

HWY_INLINE void add_exactly(double& sum, double& lost, double a) {
  const OneF64 d;
  auto s = hn::Set(d, sum);
  auto l = hn::Set(d, lost);
  add_exactly(d, s, l, hn::Set(d, a));
  sum = hn::GetLane(s);
  lost = hn::GetLane(l);
}

void exact_reset(FoldBlock& f) {
  std::memset(f.acc, 0, static_cast<std::size_t>(f.groups) * sizeof(double));
  std::memset(f.extra, 0, static_cast<std::size_t>(f.groups) * sizeof(double));
}

void exact_along(FoldBlock& f) {
  const F64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  double* acc = static_cast<double*>(f.acc);
  double* extra = static_cast<double*>(f.extra);
  const double* a = static_cast<const double*>(f.a);
  const int64_t n = f.n;
  for (int64_t g = 0; g < f.groups; ++g, a += n) {
    int64_t i = 0;
    if (n >= 4 * lanes) {
      auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      auto l0 = s0, l1 = s0, l2 = s0, l3 = s0;
      for (; i + 4 * lanes <= n; i += 4 * lanes) {
        add_exactly(d, s0, l0, hn::LoadU(d, a + i));
        add_exactly(d, s1, l1, hn::LoadU(d, a + i + lanes));
        add_exactly(d, s2, l2, hn::LoadU(d, a + i + 2 * lanes));
        add_exactly(d, s3, l3, hn::LoadU(d, a + i + 3 * lanes));
      }
      add_exactly(d, s0, l0, s1);
      add_exactly(d, s2, l2, s3);
      add_exactly(d, s0, l0, s2);
      l0 = hn::Add(hn::Add(l0, l1), hn::Add(l2, l3));
      alignas(64) double sums[hn::MaxLanes(F64())];
      hn::Store(s0, d, sums);
      for (int64_t k = 0; k < lanes; ++k) add_exactly(acc[g], extra[g], sums[k]);
      extra[g] += hn::GetLane(hn::SumOfLanes(d, l0));
    }
    for (; i < n; ++i) add_exactly(acc[g], extra[g], a[i]);
  }
}

void exact_down(FoldBlock& f) {
  const F64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  double* acc = static_cast<double*>(f.acc);
  double* extra = static_cast<double*>(f.extra);
  const double* a = static_cast<const double*>(f.a);
  int64_t g = 0;
  for (; g + lanes <= f.groups; g += lanes) {
    auto sum = hn::LoadU(d, acc + g);
    auto lost = hn::LoadU(d, extra + g);
    for (int64_t y = 0; y < f.n; ++y) {
      add_exactly(d, sum, lost, hn::LoadU(d, a + y * f.groups + g));
    }
    hn::StoreU(sum, d, acc + g);
    hn::StoreU(lost, d, extra + g);
  }
  for (; g < f.groups; ++g) {
    for (int64_t y = 0; y < f.n; ++y) add_exactly(acc[g], extra[g], a[y * f.groups + g]);
  }
}

// (sum + lost) / count, rounded once but for rare ties: a constant row has that mean.
double exact_mean(double sum, double lost, double count) {
  const double high = sum + lost;
  const double low = (sum - high) + lost;
  const double mean = high / count;
  const double rest = std::fma(-mean, count, high) + low;
  return std::isfinite(rest) ? mean + rest / count : mean;
}

template <bool kMean>
void exact_finish(FoldBlock& f, void* dst) {
  const double* acc = static_cast<const double*>(f.acc);
  const double* extra = static_cast<const double*>(f.extra);
  double* to = static_cast<double*>(dst);
  for (int64_t g = 0; g < f.groups; ++g) {
    const double lost = std::isfinite(acc[g]) ? extra[g] : 0.0;  // NaN, of infinities
    to[g] = kMean ? exact_mean(acc[g], lost, f.count) : acc[g] + lost;
  }
}

// deviations_f32, variance_f32 -------------------------------------------------------------------
// In double, value by value, so that nothing depends on how a sweep is cut: acc is the mean of what
// was seen, extra the sum of squared deviations from it. Source: B. P. Welford, "Note on a method
// for calculating corrected sums of squares and products", Technometrics 4 (3), 1962.

void deviations_reset(FoldBlock& f) {
  sum_reset(f);
  std::memset(f.extra, 0, static_cast<std::size_t>(f.groups) * sizeof(double));
  *f.depth = 0;
}

HWY_INLINE void deviate(double& mean, double& squares, double a, double share) {
  const double before = a - mean;
  mean += before * share;
  squares += before * (a - mean);
}

void deviations_along(FoldBlock& f) {
  double* mean = static_cast<double*>(f.acc);
  double* squares = static_cast<double*>(f.extra);
  const float* a = static_cast<const float*>(f.a);
  for (int64_t i = 0; i < f.n; ++i) {
    const double share = 1.0 / static_cast<double>(*f.depth + i + 1);
    for (int64_t g = 0; g < f.groups; ++g) {
      deviate(mean[g], squares[g], static_cast<double>(a[g * f.n + i]), share);
    }
  }
  *f.depth += f.n;
}

void deviations_down(FoldBlock& f) {
  double* mean = static_cast<double*>(f.acc);
  double* squares = static_cast<double*>(f.extra);
  const float* a = static_cast<const float*>(f.a);
  for (int64_t y = 0; y < f.n; ++y, a += f.groups) {
    const double share = 1.0 / static_cast<double>(++*f.depth);
    for (int64_t g = 0; g < f.groups; ++g) {
      deviate(mean[g], squares[g], static_cast<double>(a[g]), share);
    }
  }
}

template <bool kMean>
void deviations_finish(FoldBlock& f, void* dst) {
  const double* squares = static_cast<const double*>(f.extra);
  float* to = static_cast<float*>(dst);
  for (int64_t g = 0; g < f.groups; ++g) {
    to[g] = static_cast<float>(kMean ? squares[g] / f.count : squares[g]);
  }
}

// max, min of floats -----------------------------------------------------------------------------

template <class Float>
struct Max {
  using T = Float;
  using V = VecOf<T>;
  static constexpr T kEmpty = -std::numeric_limits<T>::infinity();
  static HWY_INLINE V run(V acc, V a) {
    const V m = hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, acc));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
    return m;  // a NaN in acc is the second operand, which x86 keeps
#else
    return hn::IfThenElse(hn::IsNaN(acc), acc, m);
#endif
  }
  static HWY_INLINE V across(Tag<T> d, V m) { return hn::MaxOfLanes(d, m); }
  static HWY_INLINE T of_numbers(T acc, T a) { return a > acc ? a : acc; }
};
template <class Float>
struct Min {
  using T = Float;
  using V = VecOf<T>;
  static constexpr T kEmpty = std::numeric_limits<T>::infinity();
  static HWY_INLINE V run(V acc, V a) {
    const V m = hn::IfThenElse(hn::IsNaN(a), a, hn::Min(a, acc));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
    return m;
#else
    return hn::IfThenElse(hn::IsNaN(acc), acc, m);
#endif
  }
  static HWY_INLINE V across(Tag<T> d, V m) { return hn::MinOfLanes(d, m); }
  static HWY_INLINE T of_numbers(T acc, T a) { return a < acc ? a : acc; }
};

template <class Best>
void best_reset(FoldBlock& f) {
  std::fill_n(static_cast<typename Best::T*>(f.acc), f.groups, Best::kEmpty);
}

template <class Best>
HWY_INLINE typename Best::T best_row(const typename Best::T* a, int64_t n) {
  using T = typename Best::T;
  using V = typename Best::V;
  const Tag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V m0 = hn::Set(d, Best::kEmpty);
  V m1 = m0;
  V m2 = m0;
  V m3 = m0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = Best::run(m0, hn::LoadU(d, a + i));
    m1 = Best::run(m1, hn::LoadU(d, a + i + lanes));
    m2 = Best::run(m2, hn::LoadU(d, a + i + 2 * lanes));
    m3 = Best::run(m3, hn::LoadU(d, a + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) m0 = Best::run(m0, hn::LoadU(d, a + i));
  if (i < n) {
    const auto some = hn::FirstN(d, static_cast<std::size_t>(n - i));
    const V rest = load_n(d, a + i, n - i);
    m1 = Best::run(m1, hn::IfThenElse(some, rest, hn::Set(d, Best::kEmpty)));
  }
  m0 = Best::run(Best::run(m0, m1), Best::run(m2, m3));
  if (!hn::AllFalse(d, hn::IsNaN(m0))) return std::numeric_limits<typename Best::T>::quiet_NaN();
  return hn::GetLane(Best::across(d, m0));
}

// Short rows, without branches on values: a NaN is noticed apart.
template <class Best>
HWY_INLINE typename Best::T best_short_row(typename Best::T best, const typename Best::T* a,
                                           int64_t n) {
  int nan = best != best;
  for (int64_t i = 0; i < n; ++i) {
    nan |= a[i] != a[i];
    best = Best::of_numbers(best, a[i]);
  }
  return nan != 0 ? std::numeric_limits<typename Best::T>::quiet_NaN() : best;
}

template <class T>
HWY_INLINE bool any_nan(const T* a, int64_t n) {
  const Tag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto nan = hn::IsNaN(hn::Zero(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) nan = hn::Or(nan, hn::IsNaN(hn::LoadU(d, a + i)));
  if (i < n) nan = hn::Or(nan, hn::IsNaN(load_n(d, a + i, n - i)));
  return !hn::AllFalse(d, nan);
}

template <class Best>
void best_along(FoldBlock& f) {
  using T = typename Best::T;
  T* acc = static_cast<T*>(f.acc);
  const T* a = static_cast<const T*>(f.a);
  const int64_t n = f.n;
  if (n <= kShortRow) {
    int64_t g = 0;
    if (!any_nan(a, f.groups * n) && !any_nan(acc, f.groups)) {
      T best[kShortRows];
      for (; g + kShortRows <= f.groups; g += kShortRows) {
        combine_short_rows(a + g * n, n, best, [](T x, T y) { return Best::of_numbers(x, y); });
        for (int64_t k = 0; k < kShortRows; ++k) {
          acc[g + k] = Best::of_numbers(acc[g + k], best[k]);
        }
      }
    }
    for (; g < f.groups; ++g) {
      acc[g] = best_short_row<Best>(acc[g], a + g * n, n);
    }
    return;
  }
  for (int64_t g = 0; g < f.groups; ++g) {
    const T best = best_row<Best>(a + g * n, n);
    acc[g] = best_short_row<Best>(acc[g], &best, 1);
  }
}

template <class Best>
void best_down(FoldBlock& f) {
  using T = typename Best::T;
  using V = typename Best::V;
  const Tag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  T* acc = static_cast<T*>(f.acc);
  const T* a = static_cast<const T*>(f.a);
  for (int64_t g = 0; g < f.groups; g += lanes) {
    const int64_t left = f.groups - g;
    if (left >= lanes) {
      V m = hn::LoadU(d, acc + g);
      for (int64_t y = 0; y < f.n; ++y) {
        m = Best::run(m, hn::LoadU(d, a + y * f.groups + g));
      }
      hn::StoreU(m, d, acc + g);
    } else {
      V m = load_n(d, acc + g, left);
      for (int64_t y = 0; y < f.n; ++y) {
        m = Best::run(m, load_n(d, a + y * f.groups + g, left));
      }
      store_n(m, d, acc + g, left);
    }
  }
}

template <class T>
void finish_as_is(FoldBlock& f, void* dst) {
  std::memcpy(dst, f.acc, static_cast<std::size_t>(f.groups) * sizeof(T));
}

// Others: run(acc, a) is associative and commutative, lane by lane --------------------------------

template <class T>
struct ProdFloat {
  using Acc = double;
  using A = T;
  using D = T;
  static constexpr Acc kEmpty = 1.0;
  static HWY_INLINE Acc run(Acc acc, Acc a) { return acc * a; }
};
struct SumI64 {
  using Acc = std::uint64_t;
  using A = int64_t;
  using D = int64_t;
  static constexpr Acc kEmpty = 0;
  static HWY_INLINE Acc run(Acc acc, Acc a) { return acc + a; }
};
struct ProdI64 {
  using Acc = std::uint64_t;
  using A = int64_t;
  using D = int64_t;
  static constexpr Acc kEmpty = 1;
  static HWY_INLINE Acc run(Acc acc, Acc a) { return acc * a; }
};
template <class T>
struct MaxInt {
  using Acc = T;
  using A = T;
  using D = T;
  static constexpr Acc kEmpty = std::numeric_limits<T>::min();
  static HWY_INLINE Acc run(Acc acc, Acc a) { return acc > a ? acc : a; }
};
template <class T>
struct MinInt {
  using Acc = T;
  using A = T;
  using D = T;
  static constexpr Acc kEmpty = std::numeric_limits<T>::max();
  static HWY_INLINE Acc run(Acc acc, Acc a) { return acc < a ? acc : a; }
};
struct AnyB8 {
  using Acc = std::uint8_t;
  using A = std::uint8_t;
  using D = std::uint8_t;
  static constexpr Acc kEmpty = 0;
  static HWY_INLINE Acc run(Acc acc, Acc a) { return static_cast<Acc>(acc | a); }
};
struct AllB8 {
  using Acc = std::uint8_t;
  using A = std::uint8_t;
  using D = std::uint8_t;
  static constexpr Acc kEmpty = 1;
  static HWY_INLINE Acc run(Acc acc, Acc a) { return static_cast<Acc>(acc & a); }
};

template <class M>
void reset(FoldBlock& f) {
  std::fill_n(static_cast<typename M::Acc*>(f.acc), f.groups, M::kEmpty);
}

template <class M>
void along(FoldBlock& f) {
  using Acc = typename M::Acc;
  constexpr int64_t kLanes = 32;
  Acc* acc = static_cast<Acc*>(f.acc);
  const auto* a = static_cast<const typename M::A*>(f.a);
  const int64_t n = f.n;
  for (int64_t g = 0; g < f.groups; ++g, a += n) {
    Acc total = acc[g];
    int64_t i = 0;
    if (n >= 2 * kLanes) {
      Acc lanes[kLanes];
      for (int64_t k = 0; k < kLanes; ++k) lanes[k] = static_cast<Acc>(a[k]);
      for (i = kLanes; i + kLanes <= n; i += kLanes) {
        for (int64_t k = 0; k < kLanes; ++k) {
          lanes[k] = M::run(lanes[k], static_cast<Acc>(a[i + k]));
        }
      }
      for (int64_t k = 0; k < kLanes; ++k) total = M::run(total, lanes[k]);
    }
    for (; i < n; ++i) total = M::run(total, static_cast<Acc>(a[i]));
    acc[g] = total;
  }
}

template <class M>
void down(FoldBlock& f) {
  using Acc = typename M::Acc;
  Acc* HWY_RESTRICT acc = static_cast<Acc*>(f.acc);
  const auto* HWY_RESTRICT a = static_cast<const typename M::A*>(f.a);
  for (int64_t y = 0; y < f.n; ++y, a += f.groups) {
    int64_t g = 0;
    for (; g + kChunk <= f.groups; g += kChunk) {
      TILEVM_INDEPENDENT
      for (int64_t k = 0; k < kChunk; ++k) {
        acc[g + k] = M::run(acc[g + k], static_cast<Acc>(a[g + k]));
      }
    }
    for (; g < f.groups; ++g) acc[g] = M::run(acc[g], static_cast<Acc>(a[g]));
  }
}

template <class M>
void finish(FoldBlock& f, void* dst) {
  const auto* acc = static_cast<const typename M::Acc*>(f.acc);
  auto* to = static_cast<typename M::D*>(dst);
  for (int64_t g = 0; g < f.groups; ++g) to[g] = static_cast<typename M::D>(acc[g]);
}

// argmax, argmin ---------------------------------------------------------------------------------
// acc is the best value; extra its index, or -1 where nothing was seen.

template <class T, bool kMax>
struct ArgBest {
  static HWY_INLINE bool is_nan(T x) { return x != x; }  // integers: never
  static HWY_INLINE bool better(T a, T b) { return kMax ? a > b : a < b; }

  static HWY_INLINE void take(T& value, int64_t& index, bool& seen, T a, int64_t b) {
    const bool nan = is_nan(a);
    const bool wins =
        !seen ||
        (is_nan(value) ? nan && b < index : nan || better(a, value) || (a == value && b < index));
    if (!wins) return;
    value = a;
    index = b;
    seen = true;
  }
};

template <class T, bool kMax>
void arg_reset(FoldBlock& f) {
  std::memset(f.acc, 0, static_cast<std::size_t>(f.groups) * 8);
  std::memset(f.extra, 0, static_cast<std::size_t>(f.groups) * 8);
  *f.depth = 0;
}

template <class T, bool kMax>
void arg_along(FoldBlock& f) {
  T* acc = static_cast<T*>(f.acc);
  int64_t* indices = static_cast<int64_t*>(f.extra);
  const T* a = static_cast<const T*>(f.a);
  for (int64_t g = 0; g < f.groups; ++g, a += f.n) {
    T value = acc[g];
    int64_t index = indices[g];
    bool seen = *f.depth != 0;
    const int64_t* b = f.b + g * f.b_group;
    for (int64_t i = 0; i < f.n; ++i) {
      // Most elements lose; the rest is decided in full. Never true of NaN.
      if (seen && (kMax ? a[i] < value : a[i] > value)) continue;
      ArgBest<T, kMax>::take(value, index, seen, a[i], b[i * f.b_step]);
    }
    acc[g] = value;
    indices[g] = index;
  }
  *f.depth = 1;
}

template <class T, bool kMax>
void arg_down(FoldBlock& f) {
  T* acc = static_cast<T*>(f.acc);
  int64_t* indices = static_cast<int64_t*>(f.extra);
  const T* a = static_cast<const T*>(f.a);
  for (int64_t y = 0; y < f.n; ++y, a += f.groups) {
    const int64_t* b = f.b + y * f.b_step;
    for (int64_t g = 0; g < f.groups; ++g) {
      bool seen = *f.depth != 0;
      ArgBest<T, kMax>::take(acc[g], indices[g], seen, a[g], b[g * f.b_group]);
    }
    *f.depth = 1;
  }
}

template <class T, bool kMax>
void arg_finish(FoldBlock& f, void* dst) {
  std::memcpy(dst, f.extra, static_cast<std::size_t>(f.groups) * sizeof(int64_t));
}

template <bytecode::Op>
struct Fold;
#define TILEVM_FOLD(name, ...)                         \
  template <>                                          \
  struct Fold<Op::name> {                              \
    static constexpr FoldEntry kEntry = {__VA_ARGS__}; \
  };
#define TILEVM_FOLD_OF(name, ...) \
  TILEVM_FOLD(name, reset<__VA_ARGS__>, along<__VA_ARGS__>, down<__VA_ARGS__>, finish<__VA_ARGS__>)
#define TILEVM_BEST(name, ...)                                                                \
  TILEVM_FOLD(name, best_reset<__VA_ARGS__>, best_along<__VA_ARGS__>, best_down<__VA_ARGS__>, \
              finish_as_is<__VA_ARGS__::T>)
#define TILEVM_ARG(name, ...)                                                              \
  TILEVM_FOLD(name, arg_reset<__VA_ARGS__>, arg_along<__VA_ARGS__>, arg_down<__VA_ARGS__>, \
              arg_finish<__VA_ARGS__>)
TILEVM_FOLD(sum_f32, sum_reset, sum_along, sum_down, sum_finish<false>)
TILEVM_FOLD(mean_f32, sum_reset, sum_along, sum_down, sum_finish<true>)
TILEVM_FOLD(total_f32, sum_reset, sum_along, sum_down, total_finish)
TILEVM_FOLD(sum_f64, exact_reset, exact_along, exact_down, exact_finish<false>)
TILEVM_FOLD(mean_f64, exact_reset, exact_along, exact_down, exact_finish<true>)
TILEVM_FOLD(deviations_f32, deviations_reset, deviations_along, deviations_down,
            deviations_finish<false>)
TILEVM_FOLD(variance_f32, deviations_reset, deviations_along, deviations_down,
            deviations_finish<true>)
TILEVM_BEST(max_f32, Max<float>)
TILEVM_BEST(max_f64, Max<double>)
TILEVM_BEST(min_f32, Min<float>)
TILEVM_BEST(min_f64, Min<double>)
TILEVM_FOLD_OF(sum_i64, SumI64)
TILEVM_FOLD_OF(prod_f32, ProdFloat<float>)
TILEVM_FOLD_OF(prod_f64, ProdFloat<double>)
TILEVM_FOLD_OF(prod_i64, ProdI64)
TILEVM_FOLD_OF(max_i32, MaxInt<std::int32_t>)
TILEVM_FOLD_OF(max_i64, MaxInt<int64_t>)
TILEVM_FOLD_OF(min_i32, MinInt<std::int32_t>)
TILEVM_FOLD_OF(min_i64, MinInt<int64_t>)
TILEVM_FOLD_OF(any_b8, AnyB8)
TILEVM_FOLD_OF(all_b8, AllB8)
TILEVM_ARG(argmax_f32, float, true)
TILEVM_ARG(argmax_f64, double, true)
TILEVM_ARG(argmax_i32, std::int32_t, true)
TILEVM_ARG(argmax_i64, int64_t, true)
TILEVM_ARG(argmin_f32, float, false)
TILEVM_ARG(argmin_f64, double, false)
TILEVM_ARG(argmin_i32, std::int32_t, false)
TILEVM_ARG(argmin_i64, int64_t, false)
#undef TILEVM_ARG
#undef TILEVM_BEST
#undef TILEVM_FOLD_OF
#undef TILEVM_FOLD

}  // namespace

void fill_folds(Tables& tables) {
#define TILEVM_FILL(name, ...) \
  tables.fold[static_cast<std::size_t>(Op::name)] = Fold<Op::name>::kEntry;
  TILEVM_ISA_FOLD(TILEVM_FILL)
#undef TILEVM_FILL
}

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec::interp {
HWY_EXPORT(fill_folds);
void fill_fold(Tables& tables) { HWY_DYNAMIC_DISPATCH(fill_folds)(tables); }
}  // namespace tilevm::exec::interp
#endif
