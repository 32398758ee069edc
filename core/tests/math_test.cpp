// Accuracy of core/exec/math with the scalar backend and with every Highway target of this machine.
//
//   math_test                      stratified sample and special values
//   math_test --exhaustive [name]  all 2^32 inputs of each unary function (or of the named one) and
//                                  a long sample for binary ones, best target
//   math_test --bench              ns per vector of 16 floats, best target
//
// The judge is double-precision libm. Prints the largest error of each function; returns 1 if one
// is over its limit.
// Vectors of SVE have no size, so that structs cannot hold them.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tests/math_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format off
#include "core/exec/math/hwy_backend.h"
// clang-format on

#ifndef TILEVM_CORE_TESTS_MATH_TEST_ROWS
#define TILEVM_CORE_TESTS_MATH_TEST_ROWS
#define TILEVM_UNARY(ROW)                                                                 \
  ROW(exp) ROW(exp_weight)                                                                \
  ROW(exp2) ROW(expm1) ROW(log) ROW(log2) ROW(log1p) ROW(sin) ROW(cos) ROW(tan) ROW(tanh) \
      ROW(sigmoid) ROW(erf) ROW(silu) ROW(gelu) ROW(gelu_tanh) ROW(rsqrt)
#define TILEVM_BINARY(ROW) ROW(pow) ROW(atan2) ROW(fmod) ROW(remainder) ROW(floor_div)

enum class MathFn {
#define TILEVM_ROW(name) k_##name,
  TILEVM_UNARY(TILEVM_ROW) TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
};
#endif

HWY_BEFORE_NAMESPACE();
namespace tilevm::math::HWY_NAMESPACE {

template <class Apply>
HWY_ATTR HWY_INLINE void each_vector(const float* x, const float* y, float* out, size_t n,
                                     const Apply& apply) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(apply(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, out + i);
  }
}

// n: a multiple of 16. y is ignored by unary functions.
HWY_ATTR void apply_math(MathFn fn, const float* x, const float* y, float* out, size_t n) {
  HwyBackend<hn::ScalableTag<float>> b;
  using V = hn::Vec<hn::ScalableTag<float>>;
  switch (fn) {
#define TILEVM_ROW(name)                                                    \
  case MathFn::k_##name:                                                    \
    each_vector(x, y, out, n, [&](V v, V) HWY_ATTR { return name(b, v); }); \
    break;
    TILEVM_UNARY(TILEVM_ROW)
#undef TILEVM_ROW
#define TILEVM_ROW(name)                                                         \
  case MathFn::k_##name:                                                         \
    each_vector(x, y, out, n, [&](V v, V w) HWY_ATTR { return name(b, v, w); }); \
    break;
    TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
  }
}

}  // namespace tilevm::math::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/exec/math/scalar_backend.h"

namespace tilevm::math {
HWY_EXPORT(apply_math);

namespace {

void apply_scalar(MathFn fn, const float* x, const float* y, float* out, size_t n) {
  ScalarBackend b;
  for (size_t i = 0; i < n; ++i) {
    switch (fn) {
#define TILEVM_ROW(name)          \
  case MathFn::k_##name:          \
    out[i] = math::name(b, x[i]); \
    break;
      TILEVM_UNARY(TILEVM_ROW)
#undef TILEVM_ROW
#define TILEVM_ROW(name)                \
  case MathFn::k_##name:                \
    out[i] = math::name(b, x[i], y[i]); \
    break;
      TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
    }
  }
}

double judge_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double torch_remainder(float x, float y) {
  float m = std::fmod(x, y);
  if (m != 0 && (y < 0) != (m < 0)) m += y;
  return m;
}

double torch_floor_divide(float x, float y) {
  if (y == 0) return x / y;
  float m = std::fmod(x, y), d = (x - m) / y;
  if (m != 0 && (y < 0) != (m < 0)) d -= 1;
  if (d == 0) return std::copysign(0.0f, x / y);
  float whole = std::floor(d);
  return d - whole > 0.5f ? whole + 1 : whole;
}

double judge(MathFn fn, float x, float y) {
  const double v = x;
  switch (fn) {
    case MathFn::k_exp:
      return std::exp(v);
    case MathFn::k_exp_weight:
      return v < -87.3f ? 0 : std::exp(v > 88 ? 88 : v);
    case MathFn::k_exp2:
      return std::exp2(v);
    case MathFn::k_expm1:
      return std::expm1(v);
    case MathFn::k_log:
      return std::log(v);
    case MathFn::k_log2:
      return std::log2(v);
    case MathFn::k_log1p:
      return std::log1p(v);
    case MathFn::k_sin:
      return std::sin(v);
    case MathFn::k_cos:
      return std::cos(v);
    case MathFn::k_tan:
      return std::tan(v);
    case MathFn::k_tanh:
      return std::tanh(v);
    case MathFn::k_sigmoid:
      return judge_sigmoid(v);
    case MathFn::k_erf:
      return std::erf(v);
    case MathFn::k_silu:
      return v * judge_sigmoid(v);
    case MathFn::k_gelu:
      return v * 0.5 * std::erfc(-v * 0.70710678118654752);
    case MathFn::k_gelu_tanh:
      return v * judge_sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v));
    case MathFn::k_rsqrt:
      return 1.0f / std::sqrt(x);
    case MathFn::k_pow:
      return std::pow(v, double{y});
    case MathFn::k_atan2:
      return std::atan2(v, double{y});
    case MathFn::k_fmod:
      return std::fmod(v, double{y});
    case MathFn::k_remainder:
      return torch_remainder(x, y);
    case MathFn::k_floor_div:
      return torch_floor_divide(x, y);
  }
  return 0;
}

// What PyTorch eager computes in float32 (aten/src/ATen/native/cpu/Activation.cpp).
float eager(MathFn fn, float x) {
  switch (fn) {
    case MathFn::k_silu:
      return x / (1 + std::exp(-x));
    case MathFn::k_gelu:
      return x * 0.5f * (1 + std::erf(x * 0.70710678f));
    default: {
      const float inner = 0.79788456f * (x + 0.044715f * (x * x * x));
      return 0.5f * x * (1 + std::tanh(inner));
    }
  }
}

struct Row {
  MathFn fn;
  const char* name;
  bool binary;
  double limit_ulp;  // 0: equal to the judge; negative: absolute error, against eager's
};

double limit_of(MathFn fn) {
  switch (fn) {
    case MathFn::k_exp_weight:
      return 0x1p-17 / 0x1p-23;
    case MathFn::k_silu:
    case MathFn::k_gelu:
    case MathFn::k_gelu_tanh:
      return -1;
    case MathFn::k_rsqrt:
    case MathFn::k_fmod:
    case MathFn::k_remainder:
    case MathFn::k_floor_div:
      return 0;
    default:
      return 2;
  }
}

const Row kRows[] = {
#define TILEVM_ROW(name) {MathFn::k_##name, #name, false, limit_of(MathFn::k_##name)},
    TILEVM_UNARY(TILEVM_ROW)
#undef TILEVM_ROW
#define TILEVM_ROW(name) {MathFn::k_##name, #name, true, limit_of(MathFn::k_##name)},
        TILEVM_BINARY(TILEVM_ROW)
#undef TILEVM_ROW
};

// Half the distance of floats near x.
double half_unit_of(double x) {
  return std::ldexp(1.0, (x == 0 ? -126 : std::max(std::ilogb(x), -126)) - 24);
}

// Distance in units in the last place of the float nearest to `want`; infinite when one is NaN and
// the other is not, or a zero has the wrong sign. Overflow counts as 2^128.
double ulp_error(float got, double want) {
  const double kBad = std::numeric_limits<double>::infinity();
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : kBad;
  if (got == 0 && std::signbit(got) != std::signbit(want)) return kBad;
  if (static_cast<float>(want) == got) {
    if (std::isinf(got)) return 0;
  }
  if (std::isinf(want) || std::isinf(got)) {
    if (std::isinf(want) && std::abs(want) > 1e300 && std::isinf(got)) return kBad;
    const double g = std::isinf(got) ? std::copysign(0x1p128, got) : got;
    const double w = std::clamp(want, -0x1p128, 0x1p128);
    return std::abs(g - w) / 0x1p104;
  }
  return std::abs(got - want) / (2 * half_unit_of(want));
}

struct Worst {
  double ulp = 0;
  float x = 0, y = 0, got = 0;
  // Absolute errors for each sign and exponent of x: ours and eager's.
  double ours[512] = {}, theirs[512] = {}, half_unit[512] = {};
  bool bad = false;

  void note(MathFn fn, float a, float c, float result, bool absolute) {
    const double want = judge(fn, a, c);
    if (!absolute) {
      const double e = ulp_error(result, want);
      if (e > ulp) ulp = e, x = a, y = c, got = result;
      return;
    }
    const float other = eager(fn, a);
    if (std::isnan(result) != std::isnan(other)) bad = true, x = a, got = result;
    if (std::isnan(result)) return;
    if (std::isinf(result) && result == other) return;
    const uint32_t k = std::bit_cast<uint32_t>(a) >> 23;
    const double mine = std::abs(result - want);
    if (mine > ours[k] && mine > 1.1 * ours[k]) x = a, got = result;
    ours[k] = std::max(ours[k], mine);
    half_unit[k] = std::max(half_unit[k], half_unit_of(want));
    if (std::isfinite(other)) theirs[k] = std::max(theirs[k], std::abs(other - want));
  }

  void join(const Worst& o) {
    if (o.ulp > ulp) ulp = o.ulp, x = o.x, y = o.y, got = o.got;
    if (o.bad) bad = true, x = o.x, got = o.got;
    for (int k = 0; k < 512; ++k) {
      ours[k] = std::max(ours[k], o.ours[k]);
      theirs[k] = std::max(theirs[k], o.theirs[k]);
      half_unit[k] = std::max(half_unit[k], o.half_unit[k]);
    }
  }
};

// Prints one line; false: over the limit.
bool report(const char* where, const Row& row, const Worst& w, size_t points) {
  bool good;
  if (row.limit_ulp < 0) {
    // Over all x no more than eager's error; in each binade of x 1.5 times eager's and one unit.
    double ratio = 0, ours = 0, theirs = 0;
    int at = 0;
    for (int k = 0; k < 512; ++k) {
      ours = std::max(ours, w.ours[k]), theirs = std::max(theirs, w.theirs[k]);
      const double allowed = 1.5 * w.theirs[k] + 2 * w.half_unit[k];
      const double r = allowed == 0 ? 0 : w.ours[k] / allowed;
      if (r > ratio) ratio = r, at = k;
    }
    const double global = ours / theirs;
    good = !w.bad && global <= 1 && ratio <= 1;
    std::printf("%-8s %-10s abs err %.3g of eager's; worst binade (%s2^%d) %.2f of the limit%s",
                where, row.name, global, at > 255 ? "-" : "", (at & 255) - 127, ratio,
                good ? "" : "  FAIL");
    std::printf("  %zu points\n", points);
    if (w.bad) std::printf("         NaN differs from eager at x=%a got=%a\n", w.x, w.got);
  } else {
    good = w.ulp <= row.limit_ulp;
    std::printf("%-8s %-10s max %.3f ulp at x=%a y=%a got=%a want=%a%s  %zu points\n", where,
                row.name, w.ulp, w.x, w.y, w.got, judge(row.fn, w.x, w.y), good ? "" : "  FAIL",
                points);
  }
  std::fflush(stdout);
  return good;
}

float from_bits(uint32_t u) { return std::bit_cast<float>(u); }

std::vector<float> special_values() {
  std::vector<float> v;
  const float inf = std::numeric_limits<float>::infinity();
  for (float x : {0.0f,
                  1.0f,
                  inf,
                  std::numeric_limits<float>::quiet_NaN(),
                  0x1p-149f,
                  0x1p-126f,
                  0x1.fffffep-127f,
                  0x1.fffffep+127f,
                  0.5f,
                  2.0f,
                  3.0f,
                  0.1f,
                  0.999999f,
                  1.000001f,
                  0x1p23f,
                  0x1p24f,
                  16777215.0f,
                  88.72283f,
                  88.72284f,
                  103.97f,
                  104.0f,
                  127.0f,
                  128.0f,
                  149.0f,
                  150.0f,
                  1.5f,
                  2.5f,
                  1e5f,
                  100001.0f,
                  1e10f,
                  0.9375f,
                  33.0f,
                  0.34657359f,
                  0.69314718f,
                  0.70710678f,
                  1.41421356f,
                  0.66666667f,
                  1.33333337f,
                  1.57079637f,
                  0.785398185f,
                  9.0f,
                  5.0f,
                  0.3f,
                  7.0f,
                  0x1.921fb4p+1f}) {
    for (float s : {x, -x}) {
      v.push_back(s);
      if (!std::isnan(s)) {
        v.push_back(std::nextafter(s, inf));
        v.push_back(std::nextafter(s, -inf));
      }
    }
  }
  return v;
}

void pad16(std::vector<float>* x, std::vector<float>* y) {
  while (x->size() % 16 != 0) x->push_back(1.0f), y->push_back(1.0f);
}

// Special values (all pairs of them), then random ones: every exponent, and where the function is
// neither flat nor linear.
void sample(const Row& row, size_t points, unsigned seed, std::vector<float>* x,
            std::vector<float>* y) {
  std::mt19937 rng(seed);
  const auto special = special_values();
  for (float a : special) {
    for (float c : special) {
      x->push_back(a), y->push_back(c);
      if (!row.binary) break;
    }
  }
  std::uniform_real_distribution<float> wide(-110.0f, 110.0f), unit(-2.0f, 2.0f);
  std::uniform_real_distribution<float> exponent(-150.0f, 128.0f);
  while (x->size() < points) {
    x->push_back(from_bits(rng())), y->push_back(from_bits(rng()));
    x->push_back(wide(rng)), y->push_back(unit(rng));
    const float a = unit(rng);
    x->push_back(a), y->push_back(wide(rng));
    // pow: a base of any size with a result of any size; a quotient near an integer for modulo
    const float base = std::abs(from_bits(rng() & 0x7f7fffff));
    x->push_back(base);
    y->push_back(exponent(rng) / std::log2(base));
    const float close = 1 + a * 0x1p-10f;
    x->push_back(close), y->push_back(exponent(rng) / std::log2(close));
    const float divisor = unit(rng);
    x->push_back(std::round(wide(rng)) * divisor), y->push_back(divisor);
  }
  pad16(x, y);
}

using Apply = void (*)(MathFn, const float*, const float*, float*, size_t);

void note_sample(const Row& row, Apply apply, size_t points, unsigned seed, Worst* w) {
  std::vector<float> x, y;
  sample(row, points, seed, &x, &y);
  std::vector<float> out(x.size());
  apply(row.fn, x.data(), y.data(), out.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) w->note(row.fn, x[i], y[i], out[i], row.limit_ulp < 0);
}

bool sampled(const char* where, Apply apply, size_t points) {
  bool good = true;
  for (const Row& row : kRows) {
    Worst w;
    note_sample(row, apply, points, 1, &w);
    good &= report(where, row, w, points);
  }
  return good;
}

void apply_best(MathFn fn, const float* x, const float* y, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(apply_math)(fn, x, y, out, n);
}

bool exhaustive(const char* only) {
  bool good = true;
  const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
  for (const Row& row : kRows) {
    if (only != nullptr && std::strcmp(only, row.name) != 0) continue;
    if (row.binary) {
      Worst w;
      constexpr size_t kPart = 2000000, kParts = 50;
      for (unsigned seed = 1; seed <= kParts; ++seed) {
        note_sample(row, apply_best, kPart, seed, &w);
      }
      good &= report("all", row, w, kPart * kParts);
      continue;
    }
    constexpr uint64_t kBlock = 1 << 16;
    std::vector<Worst> worst(workers);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < workers; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> x(kBlock), out(kBlock);
        for (uint64_t start = t * kBlock; start < (uint64_t{1} << 32); start += workers * kBlock) {
          for (uint64_t i = 0; i < kBlock; ++i) x[i] = from_bits(static_cast<uint32_t>(start + i));
          apply_best(row.fn, x.data(), x.data(), out.data(), kBlock);
          for (uint64_t i = 0; i < kBlock; ++i) {
            worst[t].note(row.fn, x[i], 0, out[i], row.limit_ulp < 0);
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (unsigned t = 1; t < workers; ++t) worst[0].join(worst[t]);
    good &= report("all", row, worst[0], size_t{1} << 32);
  }
  return good;
}

void bench() {
  using clock = std::chrono::steady_clock;
  constexpr size_t kCount = 4096;
  std::vector<float> x(kCount), y(kCount), out(kCount);
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> value(0.01f, 8.0f);
  for (size_t i = 0; i < kCount; ++i) x[i] = value(rng), y[i] = value(rng);
  for (const Row& row : kRows) {
    double best = 1e9;
    for (int repeat = 0; repeat < 400; ++repeat) {
      const auto start = clock::now();
      HWY_DYNAMIC_DISPATCH(apply_math)(row.fn, x.data(), y.data(), out.data(), kCount);
      const std::chrono::duration<double, std::nano> took = clock::now() - start;
      best = std::min(best, took.count() / (kCount / 16));
    }
    std::printf("%-10s %6.2f ns per 16 floats\n", row.name, best);
  }
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--bench") return bench(), 0;
  if (mode == "--exhaustive") return exhaustive(argc > 2 ? argv[2] : nullptr) ? 0 : 1;
  bool good = sampled("scalar", apply_scalar, 300000);
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  bool first = true;  // the best target has the lowest bit, and gets the most points
  while (targets != 0) {
    const int64_t target = targets & -targets;
    targets &= ~target;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    good &= sampled(hwy::TargetName(target), apply_best, first ? 2000000 : 300000);
    first = false;
  }
  std::puts(good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tilevm::math

int main(int argc, char** argv) { return tilevm::math::run(argc, argv); }
#endif  // HWY_ONCE
