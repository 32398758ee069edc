// Two vectors as one backend of exec/math: each instruction is emitted for the one and then for the
// other. A function's instructions wait for each other, and a processor looks only so many ahead:
// of one vector at a time it computes less than it could (exp with AVX2 on AMD Zen 3: 18 cycles a
// vector alone, 10 so). It has what such functions need of the contract; `when_any`, as for sin, is
// not of it.
#pragma once

#include <cstdint>
#include <utility>

#include "core/exec/math/math.h"

namespace tilevm::exec::native {

template <class T>
class Interleaved {
 public:
  struct F {
    typename T::F first, second;
  };
  using I = F;
  struct M {
    typename T::M first, second;
  };
  static constexpr bool kScalesFar = T::kScalesFar;

  explicit Interleaved(T& t) : t_(t) {}

  F f32(float c) { return both(t_.f32(c)); }
  I i32(std::int32_t c) { return both(t_.i32(c)); }

  // clang-format off
  F add(const F& x, const F& y) { return each([&](auto part) { return t_.add(x.*part, y.*part); }); }
  F sub(const F& x, const F& y) { return each([&](auto part) { return t_.sub(x.*part, y.*part); }); }
  F mul(const F& x, const F& y) { return each([&](auto part) { return t_.mul(x.*part, y.*part); }); }
  F div(const F& x, const F& y) { return each([&](auto part) { return t_.div(x.*part, y.*part); }); }
  F min(const F& x, const F& y) { return each([&](auto part) { return t_.min(x.*part, y.*part); }); }
  F max(const F& x, const F& y) { return each([&](auto part) { return t_.max(x.*part, y.*part); }); }
  F sqrt(const F& x) { return each([&](auto part) { return t_.sqrt(x.*part); }); }
  F fma(F x, F y, F z) { return each([&](auto part) { return t_.fma(std::move(x.*part), std::move(y.*part), std::move(z.*part)); }); }
  F fnma(F x, F y, F z) { return each([&](auto part) { return t_.fnma(std::move(x.*part), std::move(y.*part), std::move(z.*part)); }); }
  F round_even(const F& x) { return each([&](auto part) { return t_.round_even(x.*part); }); }
  I to_int(const F& x) { return each([&](auto part) { return t_.to_int(x.*part); }); }
  F to_float(const I& x) { return each([&](auto part) { return t_.to_float(x.*part); }); }
  static I bits(const F& x) { return x; }
  static F from_bits(const I& x) { return x; }
  I iadd(const I& x, const I& y) { return each([&](auto part) { return t_.iadd(x.*part, y.*part); }); }
  I isub(const I& x, const I& y) { return each([&](auto part) { return t_.isub(x.*part, y.*part); }); }
  I iand(const I& x, const I& y) { return each([&](auto part) { return t_.iand(x.*part, y.*part); }); }
  I ior(const I& x, const I& y) { return each([&](auto part) { return t_.ior(x.*part, y.*part); }); }
  I ixor(const I& x, const I& y) { return each([&](auto part) { return t_.ixor(x.*part, y.*part); }); }
  template <int n> I ishl(const I& x) { return each([&](auto part) { return t_.template ishl<n>(x.*part); }); }
  template <int n> I isar(const I& x) { return each([&](auto part) { return t_.template isar<n>(x.*part); }); }
  M lt(const F& x, const F& y) { return each_mask([&](auto part) { return t_.lt(x.*part, y.*part); }); }
  M not_lt(const F& x, const F& y) { return each_mask([&](auto part) { return t_.not_lt(x.*part, y.*part); }); }
  M eq(const F& x, const F& y) { return each_mask([&](auto part) { return t_.eq(x.*part, y.*part); }); }
  // clang-format on
  F select(const M& m, const F& yes, const F& no) {
    return {t_.select(m.first, yes.first, no.first), t_.select(m.second, yes.second, no.second)};
  }
  F scale2_of(const M& m, F x, F n) {
    return {t_.scale2_of(m.first, x.first, n.first), t_.scale2_of(m.second, x.second, n.second)};
  }
  F scale2(F x, F n) {
    if constexpr (kScalesFar) {
      return each([&](auto part) { return t_.scale2(x.*part, n.*part); });
    } else {
      return math::scale2_by_bits(*this, std::move(x), std::move(n));
    }
  }

 private:
  static F both(const typename T::F& x) { return {x, x}; }
  template <class Work>
  static F each(Work work) {
    auto first = work(&F::first);
    return {std::move(first), work(&F::second)};
  }
  template <class Work>
  static M each_mask(Work work) {
    auto first = work(&F::first);
    return {std::move(first), work(&F::second)};
  }

  T& t_;
};

}  // namespace tilevm::exec::native
