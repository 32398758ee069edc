// The typing rules. Shapes follow NumPy and PyTorch; where two sizes must be equal and nothing
// proves it, the rule accepts and leaves a check for run time.
#include <numeric>

#include "program/program.h"

namespace tilevm {

namespace {

using shape::Answer;
using shape::kNoSize;
using shape::SizeTable;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;  // slice bounds beyond mean "the end"

bool is_integer(DType d) { return !is_float(d) && d != DType::kBool && d != DType::kOpaque; }
DType floating(DType d, bool weak) {
  if (is_float(d)) return d;
  return weak ? DType::kFloat64 : DType::kFloat32;
}
// What a weak scalar is once it stops being weak.
DType settled(const Type& t) {
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

Type Rules::reshape() {
  Sizes& dims = sizes_at(0);
  const SizeId total = sizes_.product(in_[0].shape.span());
  const char* remedy = "The new shape must have as many elements.";
  int open = -1;
  SizeId known = sizes_.constant(1);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!sizes_.is(dims[i], -1)) {
      known = sizes_.mul(known, dims[i]);
    } else if (open >= 0) {
      bad_shape("two sizes are -1", "One size may be left open.");
    } else {
      open = static_cast<int>(i);
    }
  }
  if (open >= 0) {
    if (sizes_.is(known, 0)) {
      bad_shape("the size of -1 is ambiguous", "Say the size, as others are 0.");
    }
    const auto exact = sizes_.quotient(total, known);
    const SizeId missing = exact ? *exact : sizes_.floordiv(total, known);
    dims[static_cast<std::size_t>(open)] = missing;
    known = sizes_.mul(known, missing);
  }
  const Shape shape = shape_of(dims);
  if (known != total) {
    check(
        total, known,
        "numbers of elements differ (" + sizes_.print(total) + " and " + sizes_.print(known) + ")",
        remedy);
  }
  return {in_[0].dtype, false, shape};
}

Type Rules::permute() {
  Ints& axes = ints_at(0);
  const Shape& from = in_[0].shape;
  if (axes.size() != from.rank) {
    bad_shape(std::to_string(axes.size()) + " axes given", "Name every axis once.");
  }
  Type result{in_[0].dtype, false, {}};
  unsigned seen = 0;
  for (std::int64_t& a : axes) {
    const int i = axis(a, from.rank);
    if ((seen >> i & 1u) != 0) {
      bad_shape("axis " + std::to_string(a) + " is named twice", "Name every axis once.");
    }
    seen |= 1u << i;
    result.shape.push(from[i]);
  }
  return result;
}

Type Rules::expand() {
  Sizes& dims = sizes_at(0);
  const Shape& from = in_[0].shape;
  const int more = static_cast<int>(dims.size()) - from.rank;
  if (more < 0) {
    bad_shape("the new shape has fewer axes", "Give a size for every axis; -1 keeps one.");
  }
  for (int i = 0; i < static_cast<int>(dims.size()); ++i) {
    SizeId& want = dims[static_cast<std::size_t>(i)];
    const bool keep = sizes_.is(want, -1);
    if (i < more) {
      if (keep) bad_shape("-1 for a new axis", "Say the size of a new axis.");
      continue;
    }
    const SizeId have = from[i - more];
    if (keep) {
      want = have;
    } else if (have != want && !sizes_.is(have, 1)) {
      want = same_size(want, have, "a size cannot be expanded", "Only sizes of 1 expand.");
    }
  }
  return {in_[0].dtype, false, shape_of(dims)};
}

// A bound as Python's slice: negative counts from the end, then clamped to 0..size.
SizeId Rules::slice_bound(SizeId bound, SizeId size) {
  const SizeId zero = sizes_.constant(0);
  if (const auto c = sizes_.value(bound)) {
    if (*c >= kHuge) return size;
    if (*c <= -kHuge) return zero;
    if (*c < 0) return sizes_.max(sizes_.add(size, bound), zero);
    return sizes_.min(bound, size);
  }
  const shape::Range range = sizes_.range(bound);
  if (range.max < 0) return sizes_.max(sizes_.add(size, bound), zero);
  if (range.min < 0) {
    const SizeId positive = sizes_.max(bound, zero);
    check(bound, positive, "the bound " + sizes_.print(bound) + " is negative",
          "Bounds that are computed count from the start.");
    bound = positive;
  }
  return sizes_.min(bound, size);
}

Type Rules::slice() {
  const int at = axis(int_at(0), in_[0].shape.rank);
  const std::int64_t step = int_at(3);
  if (step < 1) bad_shape("step " + std::to_string(step), "Steps are at least 1; see flip.");
  Type result{in_[0].dtype, false, in_[0].shape};
  const SizeId size = in_[0].shape[at];
  SizeId& start = size_at(1);
  SizeId& stop = size_at(2);
  start = slice_bound(start, size);
  stop = slice_bound(stop, size);
  SizeId length = sizes_.max(sizes_.sub(stop, start), sizes_.constant(0));
  if (step > 1) {
    length = sizes_.floordiv(sizes_.add(length, sizes_.constant(step - 1)), sizes_.constant(step));
  }
  result.shape[at] = length;
  return result;
}

Type Rules::select() {
  const int at = axis(int_at(0), in_[0].shape.rank);
  const SizeId size = in_[0].shape[at];
  SizeId& index = size_at(1);
  const std::string problem = "index " + sizes_.print(index) + " is out of range";
  const char* remedy = "Indices are in -size..size-1.";
  if (sizes_.range(index).max < 0) index = sizes_.add(size, index);
  const SizeId zero = sizes_.constant(0), last = sizes_.sub(size, sizes_.constant(1));
  if (sizes_.less_equal(zero, index) == Answer::kNo ||
      sizes_.less_equal(index, last) == Answer::kNo) {
    bad_shape(problem, remedy);
  }
  check(index, sizes_.min(sizes_.max(index, zero), last), problem, remedy);
  return reduce(in_[0].dtype, 1u << at, false);
}

Type Rules::unsqueeze() {
  Type result{in_[0].dtype, false, in_[0].shape};
  const int at = axis(int_at(0), in_[0].shape.rank + 1);
  set_rank(result.shape, in_[0].shape.rank + std::size_t{1});
  const auto dims = result.shape.dims.begin();
  std::copy_backward(dims + at, dims + in_[0].shape.rank, dims + result.shape.rank);
  result.shape[at] = sizes_.constant(1);
  return result;
}

Type Rules::squeeze() {
  const Shape& from = in_[0].shape;
  const unsigned axes = axis_set(ints_at(0), from.rank, false);
  for (int i = 0; i < from.rank; ++i) {
    if ((axes >> i & 1u) == 0) continue;
    check(from[i], sizes_.constant(1), "axis " + std::to_string(i) + " is not of size 1",
          "Only axes of size 1 can be dropped.");
  }
  return reduce(in_[0].dtype, axes, false);
}

Type Rules::concat() {
  const DType dtype =
      std::ranges::all_of(in_, [this](const Type& t) { return t.dtype == in_[0].dtype && !t.weak; })
          ? in_[0].dtype
          : common();
  Shape shape = in_[0].shape;
  const int at = axis(int_at(0), shape.rank);
  for (const Type& t : in_.subspan(1)) {
    if (t.shape.rank != shape.rank) bad_shape("ranks differ", "Join tensors of equal rank.");
    for (int i = 0; i < shape.rank; ++i) {
      shape[i] = i == at ? sizes_.add(shape[i], t.shape[i])
                         : same_size(shape[i], t.shape[i], "sizes differ",
                                     "Only the axis that is joined may differ.");
    }
  }
  return {dtype, false, shape};
}

Type Rules::pad() {
  Type result{settled(in_[0]), false, in_[0].shape};
  const std::size_t rank = result.shape.rank;
  const SizeId zero = sizes_.constant(0);
  for (int side = 0; side < 2; ++side) {
    Sizes& widths = sizes_at(side);
    if (widths.size() != rank) {
      bad_shape(std::to_string(widths.size()) + " widths given", "Give one for each axis.");
    }
    for (std::size_t i = 0; i < rank; ++i) {
      check(widths[i], sizes_.max(widths[i], zero),
            "the width " + sizes_.print(widths[i]) + " is negative", "Use slice to crop.");
      SizeId& dim = result.shape.dims[i];
      dim = sizes_.add(dim, widths[i]);
    }
  }
  return result;
}

Type Rules::gather() {
  need_index(in_[1]);
  const Shape &from = in_[0].shape, &index = in_[1].shape;
  const int at = axis(int_at(0), from.rank);
  if (index.rank != from.rank) bad_shape("ranks differ", "gather needs equal ranks; see take.");
  for (int i = 0; i < from.rank; ++i) {
    if (i == at) continue;
    check(index[i], sizes_.min(index[i], from[i]),
          "the index is larger than x on axis " + std::to_string(i),
          "Beside the axis of gather, sizes of the index are at most those of x.");
  }
  return {in_[0].dtype, false, index};
}

Type Rules::take() {
  need_index(in_[1]);
  const Shape &from = in_[0].shape, &index = in_[1].shape;
  const int at = axis(int_at(0), from.rank);
  Type result{in_[0].dtype, false, {}};
  set_rank(result.shape, from.rank + std::size_t{index.rank} - 1);
  auto out = result.shape.dims.begin();
  out = std::copy_n(from.dims.begin(), at, out);
  out = std::copy_n(index.dims.begin(), index.rank, out);
  std::copy(from.dims.begin() + at + 1, from.dims.begin() + from.rank, out);
  return result;
}

Type Rules::scatter() {
  const Type &x = in_[0], &index = in_[1], &source = in_[2];
  common();
  need_index(index);
  if (x.dtype != source.dtype || x.weak || source.weak) {
    bad_dtype("dtypes of x and z differ", "Cast one to the dtype of the other.");
  }
  const int at = axis(int_at(0), x.shape.rank);
  if (index.shape.rank != x.shape.rank || source.shape.rank != x.shape.rank) {
    bad_shape("ranks differ", "scatter needs equal ranks.");
  }
  for (int i = 0; i < x.shape.rank; ++i) {
    same_size(index.shape[i], source.shape[i], "sizes of y and z differ",
              "Slice z to the sizes of the index.");
    if (i == at) continue;
    check(index.shape[i], sizes_.min(index.shape[i], x.shape[i]),
          "the index is larger than x on axis " + std::to_string(i),
          "Beside the axis of scatter, sizes of the index are at most those of x.");
  }
  return {x.dtype, false, x.shape};
}

Type Rules::argtopk() {
  const Shape& from = in_[0].shape;
  const int at = axis(int_at(0), from.rank);
  Type result{DType::kInt64, false, from};
  const SizeId k = attrs_[1].sizes[0];
  check(k, sizes_.min(k, from[at]), "k is larger than the axis", "Take at most all elements.");
  check(k, sizes_.max(k, sizes_.constant(0)), "k is negative", "Take no element, or more.");
  result.shape[at] = k;
  return result;
}

Type Rules::search() {
  const Shape &row = in_[0].shape, &x = in_[1].shape;
  if (in_[0].dtype != in_[1].dtype)
    bad_dtype("dtypes of x and y differ", "Cast one to the dtype of the other.");
  const int at = axis(int_at(0), row.rank);
  if (x.rank != row.rank) bad_shape("ranks differ", "searchsorted needs equal ranks.");
  for (int i = 0; i < row.rank; ++i) {
    if (i != at) same_size(row[i], x[i], "sizes of x and y differ", "Expand one of them.");
  }
  return {DType::kInt64, false, x};
}

Type Rules::matmul() {
  const Type &x = in_[0], &y = in_[1];
  if (x.dtype != y.dtype || x.weak || y.weak) {
    bad_dtype("dtypes differ", "Cast one operand to the dtype of the other.");
  }
  need_number(common());
  const int a = x.shape.rank, b = y.shape.rank;
  if (a == 0 || b == 0) bad_shape("an operand has rank 0", "Use mul for scalars.");
  const SizeId inner = x.shape[a - 1];
  const SizeId other = y.shape[b == 1 ? 0 : b - 2];
  if (inner != other) {
    const bool transposed = b >= 2 && sizes_.equal(inner, y.shape[b - 1]) == Answer::kYes;
    same_size(inner, other, "inner dimensions differ",
              transposed ? "Did you mean `x @ y.T`?"
                         : "The last size of x must be the last but one of y.");
  }
  Shape batch, batch_y;
  for (int i = 0; i < a - 2; ++i) batch.push(x.shape[i]);
  for (int i = 0; i < b - 2; ++i) batch_y.push(y.shape[i]);
  broadcast_into(batch, batch_y);
  Type result{x.dtype, false, batch};
  set_rank(result.shape, std::size_t{batch.rank} + (a > 1) + (b > 1));
  int at = batch.rank;
  if (a > 1) result.shape[at++] = x.shape[a - 2];
  if (b > 1) result.shape[at] = y.shape[b - 1];
  return result;
}

Type Rules::grouped_matmul() {
  const Type &x = in_[0], &y = in_[1], &ends = in_[2];
  need_factors("products of groups");
  need_index(ends);
  if (x.shape.rank != 2 || y.shape.rank != 3 || ends.shape.rank != 1) {
    bad_shape("the operands have rank " + std::to_string(x.shape.rank) + ", " +
                  std::to_string(y.shape.rank) + " and " + std::to_string(ends.shape.rank),
              "They are [M, K], [G, K, N] and [G].");
  }
  same_size(x.shape[1], y.shape[1], "inner dimensions differ",
            "The last size of x must be the last but one of y.");
  same_size(y.shape[0], ends.shape[0], "numbers of groups differ",
            "Give the end of each matrix's rows.");
  Type result{x.dtype, false, x.shape};
  result.shape[1] = y.shape[2];
  return result;
}

// Parameter of a convolution: one integer an axis of the image, all `value` if there are none.
void Rules::set_default(int parameter, int count, std::int64_t value, std::int64_t least) {
  Ints& ints = attrs_[static_cast<std::size_t>(parameter)].ints;
  if (ints.empty()) {
    for (int i = 0; i < count; ++i) ints.push_back(value);
  }
  const std::string name(info(op_).params()[static_cast<std::size_t>(parameter)].name);
  if (std::ssize(ints) != count) {
    bad_shape(name + " has " + std::to_string(ints.size()) + " numbers for " +
                  std::to_string(count) + " axes",
              "Give one for each axis of the image, or none.");
  }
  if (*std::ranges::min_element(ints) < least) {
    bad_shape(name + " has a number below " + std::to_string(least), "Give larger ones.");
  }
}

// Two factors of one dtype, which is computed in float32.
void Rules::need_factors(const std::string& what) {
  const Type &x = in_[0], &y = in_[1];
  if (x.dtype != y.dtype || x.weak || y.weak) {
    bad_dtype("dtypes differ", "Cast one operand to the dtype of the other.");
  }
  if (!is_float(x.dtype) || x.dtype == DType::kFloat64) {
    bad_dtype(what + " are of float32, bfloat16 and float16", "Cast both operands.");
  }
}

// Two operands of a convolution.
void Rules::need_images() {
  need_factors("convolutions");
  const Type &x = in_[0], &y = in_[1];
  const int rank = x.shape.rank, axes = rank - 2;
  if (axes < 1 || axes > kMaxImageAxes || y.shape.rank != rank) {
    bad_shape(
        "the operands have rank " + std::to_string(rank) + " and " + std::to_string(y.shape.rank),
        "Both are of the same rank, from 3 to 5.");
  }
}

// Of windows with so many taps on an axis of the image; stride, dilation, low and high are the
// attributes from `parameters` on.
SizeId Rules::positions(int axis, SizeId taps, int parameters) {
  const auto parameter = [&](int which) {
    const auto& ints = attrs_[static_cast<std::size_t>(parameters + which)].ints;
    return sizes_.constant(ints[static_cast<std::size_t>(axis)]);
  };
  const SizeId one = sizes_.constant(1);
  const SizeId extent = sizes_.add(sizes_.mul(sizes_.sub(taps, one), parameter(1)), one);
  const SizeId padded = sizes_.add(sizes_.add(in_[0].shape[axis + 1], parameter(2)), parameter(3));
  check(padded, sizes_.max(padded, extent),
        "the window is larger than the padded image on axis " + std::to_string(axis + 1),
        "Pad more, or take a smaller window.");
  return sizes_.add(sizes_.floordiv(sizes_.sub(padded, extent), parameter(0)), one);
}

Type Rules::conv() {
  const Type &x = in_[0], &w = in_[1];
  need_images();
  const int rank = x.shape.rank, axes = rank - 2;
  set_default(0, axes, 1, 1);
  set_default(1, axes, 1, 1);
  set_default(2, axes, 0, 0);
  set_default(3, axes, 0, 0);
  const bool depthwise = attrs_[4].ints[0] != 0;
  const int last = rank - 1;
  if (depthwise) {
    same_size(x.shape[last], w.shape[0], "numbers of channels differ",
              "Each channel of x has a window of its own: w has as many as x has channels.");
    same_size(w.shape[last], sizes_.constant(1), "windows have several channels",
              "Windows of one channel each have a last size of 1.");
  } else {
    same_size(x.shape[last], w.shape[last], "numbers of channels differ",
              "The last sizes of x and w must be equal.");
  }
  Type result{x.dtype, false, x.shape};
  result.shape[last] = w.shape[0];
  for (int i = 0; i < axes; ++i) result.shape[i + 1] = positions(i, w.shape[i + 1], 0);
  return result;
}

Type Rules::conv_windows() {
  const Type &x = in_[0], &y = in_[1];
  need_images();
  const int rank = x.shape.rank, axes = rank - 2;
  for (const int parameter : {0, 1, 2}) set_default(parameter, axes, 1, 1);
  set_default(3, axes, 0, 0);
  set_default(4, axes, 0, 0);
  same_size(x.shape[0], y.shape[0], "numbers of images differ",
            "The first sizes of x and y must be equal.");
  Type result{x.dtype, false, x.shape};
  result.shape[0] = y.shape[rank - 1];
  for (int i = 0; i < axes; ++i) {
    result.shape[i + 1] = sizes_.constant(attrs_[0].ints[static_cast<std::size_t>(i)]);
    same_size(y.shape[i + 1], positions(i, result.shape[i + 1], 1), "numbers of positions differ",
              "y has a number for each position of the windows.");
  }
  return result;
}

Type Rules::apply() {
  const OpInfo& op = info(op_);
  switch (op.rule) {
    case Rule::kSame:
      return unary(common());
    case Rule::kSameNumber:
    case Rule::kRoundUnary:
      need_number(common());
      return unary(in_[0].dtype);
    case Rule::kSameInteger:
    case Rule::kPromoteInteger:
    case Rule::kPromoteShift: {
      const DType d = common();
      const bool ok = is_integer(d) || (d == DType::kBool && op.rule != Rule::kPromoteShift);
      if (!ok) bad_dtype("not defined for " + std::string(dtype_name(d)), "Cast to int64 first.");
      return elementwise(d);
    }
    case Rule::kFloatUnary:
      return unary(floating(common(), in_[0].weak));
    case Rule::kPredicate:
      common();
      return unary(DType::kBool);
    case Rule::kPromote:
      return elementwise(common());
    case Rule::kPromoteNumber: {
      const DType d = common();
      need_number(d);
      return elementwise(d);
    }
    case Rule::kPromoteFloat:
      return elementwise(floating(common(), all_weak()));
    case Rule::kCompare:
    case Rule::kLogical:
      common();
      return elementwise(DType::kBool);
    case Rule::kWhere: {
      if (in_[0].dtype != DType::kBool) bad_dtype("x must be bool", "Compare it with 0.");
      DType d = promote(in_.subspan(1));
      if (d == DType::kOpaque) common();
      const bool weak = all_weak();
      if (!weak && in_[1].weak && in_[2].weak && d == DType::kFloat64) d = DType::kFloat32;
      return {d, weak, broadcast()};
    }
    case Rule::kCast: {
      const auto dtype = static_cast<DType>(int_at(0));
      if (dtype == DType::kOpaque || in_[0].dtype == DType::kOpaque) {
        bad_dtype("no rule for this dtype", "Leave the operator to its framework.");
      }
      return {dtype, false, in_[0].shape};
    }
    case Rule::kFull:
      return {static_cast<DType>(int_at(2)), false, shape_of(sizes_at(0))};
    case Rule::kIota:
      return {DType::kInt64, false, shape_of({size_at(0)})};
    case Rule::kScalar: {
      const auto kind = attrs_[0].number_kind;
      const DType d = kind == Attr::NumberKind::kFloat ? DType::kFloat64
                      : kind == Attr::NumberKind::kInt ? DType::kInt64
                                                       : DType::kBool;
      return {d, true, {}};
    }
    case Rule::kSizeValue:
      return {DType::kInt64, true, {}};
    case Rule::kReduceSum:
      common();
      return reduce_axes(is_float(in_[0].dtype) ? settled(in_[0]) : DType::kInt64);
    case Rule::kReduceSame: {
      common();
      const Type result = reduce_axes(settled(in_[0]));
      need_elements(ints_at(0));
      return result;
    }
    case Rule::kReduceBool:
      common();
      return reduce_axes(DType::kBool);
    case Rule::kReduceFloat:
      common();
      return reduce_axes(floating(settled(in_[0]), false));
    case Rule::kReduceIndex: {
      common();
      const int at = axis(int_at(0), in_[0].shape.rank, true);
      need_elements(ints_at(0));
      return reduce(DType::kInt64, 1u << at, int_at(1) != 0);
    }
    case Rule::kFloatAxis:
      common();
      axis(int_at(0), in_[0].shape.rank, true);
      return {floating(settled(in_[0]), false), false, in_[0].shape};
    case Rule::kFloatAxes:
      common();
      axis_set(ints_at(0), in_[0].shape.rank, true);
      return {floating(settled(in_[0]), false), false, in_[0].shape};
    case Rule::kReshape:
      return reshape();
    case Rule::kPermute:
      return permute();
    case Rule::kExpand:
      return expand();
    case Rule::kSlice:
      return slice();
    case Rule::kSelect:
      return select();
    case Rule::kUnsqueeze:
      return unsqueeze();
    case Rule::kSqueeze:
      return squeeze();
    case Rule::kFlip:
      axis_set(ints_at(0), in_[0].shape.rank, false);
      return {in_[0].dtype, false, in_[0].shape};
    case Rule::kConcat:
      return concat();
    case Rule::kPad:
      return pad();
    case Rule::kGather:
      return gather();
    case Rule::kTake:
      return take();
    case Rule::kScan:
      common();
      axis(int_at(0), in_[0].shape.rank);
      return {is_float(in_[0].dtype) ? settled(in_[0]) : DType::kInt64, false, in_[0].shape};
    case Rule::kScanSame:
      need_number(common());
      axis(int_at(0), in_[0].shape.rank);
      return {settled(in_[0]), false, in_[0].shape};
    case Rule::kScatter:
      return scatter();
    case Rule::kScatterNumber:
      need_number(in_[0].dtype);
      return scatter();
    case Rule::kArgsort:
      common();
      axis(int_at(0), in_[0].shape.rank);
      return {DType::kInt64, false, in_[0].shape};
    case Rule::kArgtopk:
      common();
      return argtopk();
    case Rule::kSearch:
      need_number(common());
      return search();
    case Rule::kMatmul:
      return matmul();
    case Rule::kGroupedMatmul:
      return grouped_matmul();
    case Rule::kConv:
      return conv();
    case Rule::kConvWindows:
      return conv_windows();
    case Rule::kCall:
      break;
  }
  throw std::invalid_argument("the types of a call's results are given, not inferred");
}

}  // namespace

Type infer(SizeTable& sizes, Op op, std::span<const Type> in, std::span<Attr> attrs,
           std::vector<Check>& checks, bool in_composite) {
  Type type = Rules(sizes, op, in, attrs, checks, in_composite).apply();
  // A view of a weak scalar is a tensor.
  if (!type.weak && in.size() >= 1 && in[0].weak && type.dtype == DType::kFloat64 &&
      info(op).cls != OpClass::kElementwise) {
    type.dtype = DType::kFloat32;
  }
  return type;
}

}  // namespace tilevm
