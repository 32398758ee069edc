// A vector that holds its first few elements itself: an operator's operands and parameters, of
// which there are one or two, and which compiling makes by the hundred.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace tilevm {

template <typename T, std::size_t kInline>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) : SmallVector(values.begin(), values.end()) {}
  SmallVector(std::span<const T> values) : SmallVector(values.begin(), values.end()) {}
  SmallVector(const std::vector<T>& values) : SmallVector(values.begin(), values.end()) {}
  template <std::forward_iterator It>
  SmallVector(It begin, It end) {
    const auto n = static_cast<std::size_t>(std::distance(begin, end));
    reserve(n);
    std::copy(begin, end, data());
    size_ = n;
  }
  SmallVector(const SmallVector& other) : SmallVector(other.begin(), other.end()) {}
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) *this = SmallVector(other);
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }
  ~SmallVector() = default;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return heap_ ? heap_.get() : few_; }
  const T* data() const { return heap_ ? heap_.get() : few_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T& front() const { return data()[0]; }
  const T& back() const { return data()[size_ - 1]; }

  void clear() { size_ = 0; }
  void push_back(T value) {
    if (size_ == room_) reserve(2 * size_);
    data()[size_++] = value;
  }
  void assign(std::size_t n, T value) {
    reserve(n);
    std::fill_n(data(), n, value);
    size_ = n;
  }
  void resize(std::size_t n) {
    reserve(n);
    if (n > size_) std::fill(data() + size_, data() + n, T{});
    size_ = n;
  }
  void reserve(std::size_t n) {
    if (n <= room_) return;
    auto more = std::make_unique_for_overwrite<T[]>(n);
    std::copy_n(data(), size_, more.get());
    heap_ = std::move(more);
    room_ = n;
  }

  operator std::span<const T>() const { return {data(), size_}; }
  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    return std::ranges::equal(a, b);
  }

 private:
  void take(SmallVector& other) noexcept {
    heap_ = std::move(other.heap_);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, kInline);
    if (!heap_) std::copy_n(other.few_, size_, few_);
  }

  std::unique_ptr<T[]> heap_;
  std::size_t size_ = 0;
  std::size_t room_ = kInline;
  T few_[kInline];  // only the first size_ mean something
};

}  // namespace tilevm
