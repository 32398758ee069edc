#include "exec/random/normal.h"

#include <algorithm>
#include <array>

#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/random/normal.cpp"
#include <hwy/foreach_target.h>
#include "core/exec/math/float64.h"
#include "core/exec/math/hwy_backend.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Of eight words for radii and eight for angles each.
void make_normals(const std::uint32_t* words, float* out, std::size_t n) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  math::HWY_NAMESPACE::HwyBackend<hn::CappedTag<float, 8>> b;
  const auto fraction = [&](const std::uint32_t* from) HWY_ATTR {
    const auto bits = hn::And(hn::LoadU(di, reinterpret_cast<const std::int32_t*>(from)),
                              hn::Set(di, (1 << 24) - 1));
    return hn::Mul(hn::ConvertTo(d, bits), hn::Set(d, 0x1p-24f));
  };
  for (std::size_t i = 0; i < n; i += 16) {
    for (std::size_t j = i; j < i + 8; j += hn::Lanes(d)) {
      const auto u = hn::Sub(hn::Set(d, 1.0f), fraction(words + j));  // above 0
      const auto log = math::HWY_NAMESPACE::log(b, u);
      const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0f), log));
      const auto angle = hn::Mul(hn::Set(d, 0x1.921fb6p+2f), fraction(words + j + 8));
      hn::StoreU(hn::Mul(radius, math::HWY_NAMESPACE::cos(b, angle)), d, out + j);
      hn::StoreU(hn::Mul(radius, math::HWY_NAMESPACE::sin(b, angle)), d, out + j + 8);
    }
  }
}

// In place, of eight fractions for radii and eight for angles each.
void make_wide_normals(double* numbers, std::size_t n) {
  namespace f64 = math::float64::HWY_NAMESPACE;
  const f64::D d;
  static_assert(hn::MaxLanes(f64::D()) <= 8);
  for (std::size_t i = 0; i < n; i += 16) {
    for (std::size_t j = i; j < i + 8; j += hn::Lanes(d)) {
      const f64::V u = hn::Sub(hn::Set(d, 1.0), hn::LoadU(d, numbers + j));  // above 0
      const f64::V radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), f64::log(u)));
      const f64::V angle = hn::Mul(hn::Set(d, 0x1.921fb54442d18p+2), hn::LoadU(d, numbers + j + 8));
      hn::StoreU(hn::Mul(radius, f64::cos(angle)), d, numbers + j);
      hn::StoreU(hn::Mul(radius, f64::sin(angle)), d, numbers + j + 8);
    }
  }
}

// In place, of pairs of fractions: for an angle, and for a radius. n is even, and there is room for
// a vector's pairs.
void make_normal_pairs(double* numbers, std::size_t n) {
  namespace f64 = math::float64::HWY_NAMESPACE;
  const f64::D d;
  for (std::size_t i = 0; i < n; i += 2 * hn::Lanes(d)) {
    f64::V u1, u2;
    hn::LoadInterleaved2(d, numbers + i, u1, u2);
    const f64::V log = f64::log1p(hn::Neg(u2));
    const f64::V radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), log));
    const f64::V angle = hn::Mul(hn::Set(d, 0x1.921fb54442d18p+2), u1);
    hn::StoreInterleaved2(hn::Mul(radius, f64::cos(angle)), hn::Mul(radius, f64::sin(angle)), d,
                          numbers + i);
  }
}

}  // namespace
}  // namespace tilevm::exec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec {

HWY_EXPORT(make_normals);
HWY_EXPORT(make_wide_normals);
HWY_EXPORT(make_normal_pairs);

void draw_normals(MersenneTwister& twister, float* out, std::size_t n) {
  std::array<std::uint32_t, 512> words;
  const auto draw = [&](float* to, std::size_t count) {
    twister.draw(words.data(), count);
    HWY_DYNAMIC_DISPATCH(make_normals)(words.data(), to, count);
  };
  const std::size_t rest = n % 16;
  for (std::size_t i = 0; i < n - rest; i += words.size()) {
    draw(out + i, std::min(words.size(), n - rest - i));
  }
  if (rest == 0) return;
  twister.draw(words.data(), rest);
  draw(out + n - 16, 16);
}

void draw_normals(MersenneTwister& twister, double* out, std::size_t n) {
  const std::size_t rest = n % 16;
  twister.draw(out, n);
  HWY_DYNAMIC_DISPATCH(make_wide_normals)(out, n - rest);
  if (rest == 0) return;
  twister.draw(out + n - 16, 16);
  HWY_DYNAMIC_DISPATCH(make_wide_normals)(out + n - 16, 16);
}

void draw_normals(MersenneTwister& twister, std::optional<double>& spare, double* out,
                  std::size_t n) {
  std::array<double, 256> pairs{};
  if (n != 0 && spare.has_value()) {
    *out++ = *spare;
    spare.reset();
    --n;
  }
  while (n != 0) {
    const std::size_t count = std::min(n, pairs.size()), drawn = count + count % 2;
    twister.draw(pairs.data(), drawn);
    HWY_DYNAMIC_DISPATCH(make_normal_pairs)(pairs.data(), drawn);
    out = std::copy_n(pairs.data(), count, out);
    if (drawn != count) spare = pairs[count];
    n -= count;
  }
}

}  // namespace tilevm::exec
#endif
