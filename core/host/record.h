// The memory of one value while a program runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "program/program.h"

namespace tilevm::host {

struct Geometry {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::int64_t, kMaxRank> strides{};  // elements; may be 0 or negative

  std::int64_t size(int dim) const { return sizes[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const { return strides[static_cast<std::size_t>(dim)]; }
  std::int64_t& size(int dim) { return sizes[static_cast<std::size_t>(dim)]; }
  std::int64_t& stride(int dim) { return strides[static_cast<std::size_t>(dim)]; }

  std::span<const std::int64_t> shape() const {
    return {sizes.data(), static_cast<std::size_t>(rank)};
  }
  std::span<const std::int64_t> steps() const {  // the strides of its dims
    return {strides.data(), static_cast<std::size_t>(rank)};
  }
  bool empty() const {
    for (int d = 0; d < rank; ++d) {
      if (size(d) == 0) return true;
    }
    return false;
  }
  // Only for sizes whose product was proven to fit.
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= size(d);
    return product;
  }
  // Whether elements lie as they are counted, without gaps.
  bool row_major() const {
    std::int64_t next = 1;
    bool holds = true;
    for (int d = rank - 1; d >= 0; --d) {
      if (size(d) == 0) return true;
      holds = holds && (size(d) == 1 || stride(d) == next);
      next *= size(d);
    }
    return holds;
  }
};

// Of sizes or strides, which are few: without a call of memcmp().
inline bool equal_dims(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (a[d] != b[d]) return false;
  }
  return true;
}
inline bool same(const Geometry& a, const Geometry& b) {
  return equal_dims(a.shape(), b.shape()) && equal_dims(a.steps(), b.steps());
}

// `root` is the value whose framework tensor owns the memory; -1: the arena or a slot of the call.
struct Record : Geometry {
  std::byte* data = nullptr;
  ValueId root = -1;
};

// Row-major strides, as PyTorch's: a size of 0 counts as 1.
inline void set_dense_strides(Geometry& g) {
  std::int64_t next = 1;
  for (int d = g.rank - 1; d >= 0; --d) {
    g.stride(d) = next;
    next *= g.size(d) > 1 ? g.size(d) : 1;
  }
}

}  // namespace tilevm::host
