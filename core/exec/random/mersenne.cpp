#include "exec/random/mersenne.h"

#include <algorithm>

#include "exec/interp/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exec/random/mersenne.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::ScalableTag<std::uint32_t>;
using Vector = hn::Vec<Words>;

constexpr int kWords = MersenneTwister::kWords;
constexpr int kApart = 397;

// What of a word and of the one behind it goes into the word of the next round.
HWY_INLINE Vector mixed(Words d, const std::uint32_t* word) {
  const Vector own = hn::LoadU(d, word), behind = hn::LoadU(d, word + 1);
  const Vector upper = hn::And(own, hn::Set(d, 0x80000000u));
  const Vector both = hn::Or(upper, hn::And(behind, hn::Set(d, 0x7fffffffu)));
  const Vector odd = hn::Sub(hn::Zero(d), hn::And(behind, hn::Set(d, 1u)));
  return hn::Xor(hn::ShiftRight<1>(both), hn::And(odd, hn::Set(d, 0x9908b0dfu)));
}

std::uint32_t mixed(std::uint32_t own, std::uint32_t behind) {
  const std::uint32_t both = (own & 0x80000000u) | (behind & 0x7fffffffu);
  return (both >> 1) ^ ((0u - (behind & 1u)) & 0x9908b0dfu);
}

// All words of the next round. A vector reads no word that it, or one before it, should not have
// written: words lie at least kWords - kApart apart.
void renew(std::uint32_t* words) {
  const Words d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto run = [&](int from, int to, int other) {
    int i = from;
    for (; i + lanes <= to; i += lanes)
      hn::StoreU(hn::Xor(hn::LoadU(d, words + i + other), mixed(d, words + i)), d, words + i);
    for (; i < to; ++i) words[i] = words[i + other] ^ mixed(words[i], words[i + 1]);
  };
  run(0, kWords - kApart, kApart);
  run(kWords - kApart, kWords - 1, kApart - kWords);
  words[kWords - 1] = words[kApart - 1] ^ mixed(words[kWords - 1], words[0]);
}

void temper(const std::uint32_t* words, std::uint32_t* out, std::size_t n) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    Vector y = hn::LoadU(d, words + i);
    y = hn::Xor(y, hn::ShiftRight<11>(y));
    y = hn::Xor(y, hn::And(hn::ShiftLeft<7>(y), hn::Set(d, 0x9d2c5680u)));
    y = hn::Xor(y, hn::And(hn::ShiftLeft<15>(y), hn::Set(d, 0xefc60000u)));
    hn::StoreU(hn::Xor(y, hn::ShiftRight<18>(y)), d, out + i);
  }
  for (; i < n; ++i) {
    std::uint32_t y = words[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    out[i] = y ^ (y >> 18);
  }
}

// Of two words each, 53 bits; all sums and products are exact.
void widen(const std::uint32_t* words, double* out, std::size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<std::uint32_t, decltype(d)> d_words;
  const hn::RebindToSigned<decltype(d_words)> d_signed;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::Vec<decltype(d_words)> upper, lower;
    hn::LoadInterleaved2(d_words, words + 2 * i, upper, lower);
    upper = hn::And(upper, hn::Set(d_words, 0x1fffffu));
    lower = hn::Xor(lower, hn::Set(d_words, 0x80000000u));  // as a signed one, 2^31 less
    const auto high = hn::PromoteTo(d, hn::BitCast(d_signed, upper));
    const auto low = hn::Add(hn::PromoteTo(d, hn::BitCast(d_signed, lower)), hn::Set(d, 0x1p31));
    const auto bits = hn::Add(hn::Mul(high, hn::Set(d, 0x1p32)), low);
    hn::StoreU(hn::Mul(bits, hn::Set(d, 0x1p-53)), d, out + i);
  }
  for (; i < n; ++i) {
    const double high = words[2 * i] & 0x1fffffu, low = words[2 * i + 1];
    out[i] = (high * 0x1p32 + low) * 0x1p-53;
  }
}

}  // namespace
}  // namespace tilevm::exec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilevm::exec {

HWY_EXPORT(renew);
HWY_EXPORT(temper);
HWY_EXPORT(widen);

void MersenneTwister::draw(std::uint32_t* out, std::size_t n) {
  while (n != 0) {
    if (next == kWords) {
      HWY_DYNAMIC_DISPATCH(renew)(words.data());
      next = 0;
    }
    const std::size_t count = std::min(n, static_cast<std::size_t>(kWords - next));
    HWY_DYNAMIC_DISPATCH(temper)(words.data() + next, out, count);
    next += static_cast<int>(count);
    out += count;
    n -= count;
  }
}

void MersenneTwister::draw(double* out, std::size_t n) {
  std::array<std::uint32_t, 512> pairs;
  while (n != 0) {
    const std::size_t count = std::min(n, pairs.size() / 2);
    draw(pairs.data(), 2 * count);
    HWY_DYNAMIC_DISPATCH(widen)(pairs.data(), out, count);
    out += count;
    n -= count;
  }
}

}  // namespace tilevm::exec
#endif
