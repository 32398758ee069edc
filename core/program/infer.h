// The typing rules. Shapes follow NumPy and PyTorch; where two sizes must be equal and nothing
// proves it, the rule accepts and leaves a check for run time.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>

#include "program/program.h"

namespace tilevm::typing {

using shape::Answer;
using shape::kNoSize;
using shape::SizeTable;

inline constexpr std::int64_t kHuge = std::int64_t{1} << 62;  // slice bounds beyond mean "the end"

inline bool is_integer(DType d) { return !is_float(d) && d != DType::kBool && d != DType::kOpaque; }
inline DType floating(DType d, bool weak) {
  if (is_float(d)) return d;
  return weak ? DType::kFloat64 : DType::kFloat32;
}
// What a weak scalar is once it stops being weak.
inline DType settled(const Type& t) {
  return t.weak && t.dtype == DType::kFloat64 ? DType::kFloat32 : t.dtype;
}

class Rules {
 public:
  Rules(SizeTable& sizes, Op op, std::span<const Type> in, std::span<Attr> attrs,
        std::vector<Check>& checks, bool in_composite)
      : sizes_(sizes),
        op_(op),
        in_(in),
        attrs_(attrs),
        checks_(checks),
        in_composite_(in_composite) {}

  Type apply();

 private:
  // ---- Messages

  std::string operands() const {
    std::string text;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!text.empty()) text += ", ";
      text += in_.size() <= 3 ? std::string(1, "xyz"[i]) : "x" + std::to_string(i);
      text += " is " + print(sizes_, in_[i]);
    }
    return text;
  }
  std::string message(const std::string& problem, const std::string& remedy) const {
    std::string text = std::string(info(op_).name) + ": " + problem;
    if (!in_.empty()) text += ": " + operands();
    return text + ". " + remedy;
  }
  [[noreturn]] void bad_shape(const std::string& problem, const std::string& remedy) const {
    throw ShapeError(message(problem, remedy));
  }
  [[noreturn]] void bad_dtype(const std::string& problem, const std::string& remedy) const {
    throw DTypeError(message(problem, remedy));
  }

  // ---- Sizes

  void check(SizeId a, SizeId b, const std::string& problem, const std::string& remedy) {
    switch (sizes_.equal(a, b)) {
      case Answer::kYes:
        return;
      case Answer::kNo:
        bad_shape(problem, remedy);
      case Answer::kUnknown:
        break;
    }
    checks_.push_back({a, b, message(problem, remedy)});
  }

  // One of two sizes that must be equal: the constant, else the first.
  SizeId same_size(SizeId a, SizeId b, const char* problem, const char* remedy) {
    if (a == b) return a;
    check(a, b, std::string(problem) + " (" + sizes_.print(a) + " and " + sizes_.print(b) + ")",
          remedy);
    return sizes_.value(b) ? b : a;
  }

  SizeId broadcast_size(SizeId a, SizeId b) {
    if (a == b || sizes_.is(b, 1)) return a;
    if (sizes_.is(a, 1)) return b;
    return same_size(a, b, "shapes do not broadcast",
                     "Sizes must be equal or 1, counted from the last axis.");
  }

  void set_rank(Shape& shape, std::size_t rank) const {
    if (rank > static_cast<std::size_t>(kMaxRank)) {
      bad_shape("the result would have rank " + std::to_string(rank),
                "Ranks go up to " + std::to_string(kMaxRank) + ".");
    }
    shape.rank = static_cast<std::uint8_t>(rank);
  }

  void broadcast_into(Shape& out, const Shape& other) {
    if (out == other) return;
    if (other.rank > out.rank) {
      const int more = other.rank - out.rank;
      std::copy_backward(out.dims.begin(), out.dims.begin() + out.rank,
                         out.dims.begin() + other.rank);
      std::copy_n(other.dims.begin(), more, out.dims.begin());
      for (int i = more; i < other.rank; ++i) out[i] = broadcast_size(out[i], other[i]);
      out.rank = other.rank;
      return;
    }
    const int offset = out.rank - other.rank;
    for (int i = 0; i < other.rank; ++i) {
      out[offset + i] = broadcast_size(out[offset + i], other[i]);
    }
  }

  Shape broadcast() {
    Shape shape = in_[0].shape;
    for (const Type& t : in_.subspan(1)) broadcast_into(shape, t.shape);
    return shape;
  }

  Shape shape_of(const Sizes& dims) const {
    Shape shape;
    set_rank(shape, dims.size());
    std::ranges::copy(dims, shape.dims.begin());
    for (SizeId d : dims) {
      if (sizes_.range(d).max < 0) bad_shape("a size is negative", "Sizes are at least 0.");
    }
    return shape;
  }

  // ---- Parameters

  std::int64_t& int_at(int i) { return attrs_[static_cast<std::size_t>(i)].ints[0]; }
  Ints& ints_at(int i) { return attrs_[static_cast<std::size_t>(i)].ints; }
  SizeId& size_at(int i) { return attrs_[static_cast<std::size_t>(i)].sizes[0]; }
  Sizes& sizes_at(int i) { return attrs_[static_cast<std::size_t>(i)].sizes; }

  // Brings an axis into 0..rank-1. A tensor of rank 0 has axis 0 for PyTorch's reductions.
  int axis(std::int64_t& value, int rank, bool scalar_ok = false) {
    const int n = rank == 0 && scalar_ok ? 1 : rank;
    if (value < -n || value >= n) {
      bad_shape("axis " + std::to_string(value) + " does not exist",
                "Axes are in " + std::to_string(-n) + ".." + std::to_string(n - 1) + ".");
    }
    if (value < 0) value += n;
    return static_cast<int>(value);
  }

  // The set of axes as bits; the list becomes sorted and, if it was empty, complete.
  unsigned axis_set(Ints& axes, int rank, bool empty_is_all) {
    unsigned set = 0;
    if (axes.empty() && empty_is_all) {
      axes.resize(static_cast<std::size_t>(rank));
      std::iota(axes.begin(), axes.end(), 0);
    }
    for (std::int64_t& a : axes) {
      const unsigned bit = 1u << axis(a, rank, true);
      if ((set & bit) != 0) {
        bad_shape("axis " + std::to_string(a) + " is named twice", "Name each axis once.");
      }
      set |= bit;
    }
    if (rank == 0) axes.clear();
    std::ranges::sort(axes);
    return set;
  }

  // ---- Dtypes

  DType common() {
    const DType d = promote(in_);
    if (d == DType::kOpaque) {
      bad_dtype("no rule for this dtype", "Cast it first, or leave the operator to its framework.");
    }
    return d;
  }
  bool all_weak() const {
    return std::ranges::all_of(in_, [](const Type& t) { return t.weak; });
  }
  Type elementwise(DType dtype) { return {dtype, all_weak(), broadcast()}; }
  Type unary(DType dtype) { return {dtype, in_[0].weak, in_[0].shape}; }
  void need_number(DType d) {
    if (d == DType::kBool) {
      bad_dtype("not defined for bool", "Use the logical operators, or cast to a number first.");
    }
  }
  void need_index(const Type& t) {
    if (!is_integer(t.dtype)) {
      bad_dtype("an index must be an integer", "Cast it to int64.");
    }
  }

  // ---- Rules

  Type reduce(DType dtype, unsigned axes, bool keepdims) {
    Type result{dtype, false, {}};
    const Shape& from = in_[0].shape;
    for (int i = 0; i < from.rank; ++i) {
      if ((axes >> i & 1u) == 0) {
        result.shape.push(from[i]);
      } else if (keepdims) {
        result.shape.push(sizes_.constant(1));
      }
    }
    return result;
  }
  // An extremum is one of the elements: PyTorch raises if there are none.
  void need_elements(std::span<const std::int64_t> axes) {
    const Shape& from = in_[0].shape;
    if (in_composite_ || from.rank == 0) return;
    for (const std::int64_t a : axes) {
      const SizeId size = from[static_cast<int>(a)];
      check(size, sizes_.max(size, sizes_.constant(1)),
            "there is no element on axis " + std::to_string(a),
            "Axes that are reduced need a size of at least 1.");
    }
  }
  Type reduce_axes(DType dtype) {
    const unsigned axes = axis_set(ints_at(0), in_[0].shape.rank, true);
    return reduce(dtype, axes, int_at(1) != 0);
  }
  Type reshape();
  Type permute();
  Type expand();
  SizeId slice_bound(SizeId bound, SizeId size);
  Type slice();
  Type select();
  Type unsqueeze();
  Type squeeze();
  Type concat();
  Type pad();
  Type gather();
  Type take();
  Type scatter();
  Type argtopk();
  Type search();
  Type matmul();
  Type grouped_matmul();
  Type conv();
  Type conv_windows();
  void need_factors(const std::string& what);
  void need_images();
  SizeId positions(int axis, SizeId taps, int parameters);
  void set_default(int parameter, int count, std::int64_t value, std::int64_t least);

  SizeTable& sizes_;
  Op op_;
  std::span<const Type> in_;
  std::span<Attr> attrs_;
  std::vector<Check>& checks_;
  bool in_composite_;
};

}  // namespace tilevm::typing
