// Elements as they lie in memory, and all of a tensor, a row at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "exec/loops/loops.h"

namespace tilevm::exec::loops {

// 16-bit floats, computed with as float32. (No arithmetic: conversions alone.)
struct BFloat16 {
  std::uint16_t bits;
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  static BFloat16 of(float x) {
    const auto b = std::bit_cast<std::uint32_t>(x);
    const bool nan = (b & 0x7FFFFFFFu) > 0x7F800000u;
    const std::uint32_t rounded = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16;
    return {static_cast<std::uint16_t>(nan ? (b >> 16) | 0x40u : rounded)};
  }
};
struct Float16 {
  std::uint16_t bits;
  operator float() const {
    const float magnitude =
        std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x7FFFu) << 13) * 0x1p112f;
    const bool special = (bits & 0x7C00u) == 0x7C00u;
    const float wide = !special               ? magnitude
                       : (bits & 0x3FFu) == 0 ? std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::quiet_NaN();
    return std::copysign(wide, (bits & 0x8000u) != 0 ? -1.0f : 1.0f);
  }
  static Float16 of(float x) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
    const float a = std::fabs(x);
    std::uint16_t bits;
    if (std::isnan(x)) {
      bits = 0x7E00;
    } else if (a >= 65520.0f) {  // halfway from the largest number to the next power of two
      bits = 0x7C00;
    } else if (a < 0x1p-14f) {  // denormal: rounded at the last bit of 0.5 + x
      bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(a + 0.5f) - 0x3F000000u);
    } else {
      const auto b = std::bit_cast<std::uint32_t>(a);
      bits = static_cast<std::uint16_t>((b + 0xFFFu + ((b >> 13) & 1u) - (112u << 23)) >> 13);
    }
    return {static_cast<std::uint16_t>(sign | bits)};
  }
};

template <class T>
inline constexpr bool kNarrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
template <class T>
inline constexpr bool kFloating = kNarrow<T> || std::is_floating_point_v<T>;
// What arithmetic on elements is done in.
template <class T>
using Wide = std::conditional_t<kNarrow<T>, float, T>;

template <class T, class From>
T narrowed(From x) {
  if constexpr (kNarrow<T>) {
    return T::of(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
bool is_nan(T x) {
  if constexpr (kFloating<T>) return std::isnan(static_cast<Wide<T>>(x));
  return false;
}

// Calls f(T()) with the type of the storage.
template <class F>
decltype(auto) with_type(bytecode::Storage storage, F&& f) {
  using S = bytecode::Storage;
  switch (storage) {
    case S::kF32:
      return f(float());
    case S::kF64:
      return f(double());
    case S::kBF16:
      return f(BFloat16());
    case S::kF16:
      return f(Float16());
    case S::kI64:
      return f(std::int64_t());
    case S::kI32:
      return f(std::int32_t());
    case S::kI16:
      return f(std::int16_t());
    case S::kI8:
      return f(std::int8_t());
    case S::kU8:
    case S::kB8:
      break;
  }
  return f(std::uint8_t());
}

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Calls visit(offsets) for each row of `sizes` without `axis`, with the offset in elements of its
// first element in each of the arrays.
template <std::size_t n, class Visit>
void for_rows(const Array& like, int axis, const std::array<const Array*, n>& arrays,
              Visit&& visit) {
  std::array<std::int64_t, kMaxRank> position{};
  std::array<std::int64_t, n> offset{};
  for (int d = 0; d < like.rank; ++d) {
    if (d != axis && like.sizes[at(d)] == 0) return;
  }
  for (;;) {
    visit(offset);
    int d = like.rank - 1;
    for (; d >= 0; --d) {
      if (d == axis) continue;
      for (std::size_t a = 0; a < n; ++a) offset[a] += arrays[a]->strides[at(d)];
      if (++position[at(d)] < like.sizes[at(d)]) break;
      for (std::size_t a = 0; a < n; ++a)
        offset[a] -= arrays[a]->strides[at(d)] * like.sizes[at(d)];
      position[at(d)] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace tilevm::exec::loops
