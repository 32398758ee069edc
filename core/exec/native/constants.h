// Constants that a program reads from memory, each of them once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilevm::exec::native {

// T: an integer, or an array of those of a vector's lanes.
template <class T>
class Constants {
 public:
  // The place of what is equal to x.
  int of(const T& x) {
    if (2 * all_.size() >= places_.size()) grow();
    std::uint16_t& place = find(x);
    if (place == 0) {
      all_.push_back(x);
      place = static_cast<std::uint16_t>(all_.size());
    }
    return place - 1;
  }
  // The place of the first of two that are neighbours.
  int of(const T& first, const T& second) {
    for (std::size_t i = 0; i + 1 < all_.size(); ++i) {
      if (all_[i] == first && all_[i + 1] == second) return static_cast<int>(i);
    }
    all_.push_back(first);
    all_.push_back(second);
    return static_cast<int>(all_.size()) - 2;
  }

  const T& operator[](int place) const { return all_[static_cast<std::size_t>(place)]; }
  bool empty() const { return all_.empty(); }
  const T* data() const { return all_.data(); }
  std::size_t bytes() const { return all_.size() * sizeof(T); }

 private:
  static std::size_t hash(std::uint32_t x) { return x * std::size_t{0x9e3779b97f4a7c15} >> 40; }
  template <std::size_t n>
  static std::size_t hash(const std::array<std::int32_t, n>& lanes) {
    return hash(static_cast<std::uint32_t>(lanes[0]) ^ 31 * static_cast<std::uint32_t>(lanes[1]));
  }

  // Where the place of x is, plus one, or will be: 0 so far.
  std::uint16_t& find(const T& x) {
    for (std::size_t i = hash(x);; ++i) {
      std::uint16_t& place = places_[i & (places_.size() - 1)];
      if (place == 0 || all_[place - 1U] == x) return place;
    }
  }
  void grow() {
    places_.assign(places_.empty() ? kFewest : 2 * places_.size(), 0);
    for (std::size_t i = 0; i < all_.size(); ++i) {
      std::uint16_t& place = find(all_[i]);
      if (place == 0) place = static_cast<std::uint16_t>(i + 1);
    }
  }

  static constexpr std::size_t kFewest = 128;  // a power of two
  std::vector<T> all_;
  std::vector<std::uint16_t> places_;  // a table with open addressing
};

}  // namespace tilevm::exec::native
