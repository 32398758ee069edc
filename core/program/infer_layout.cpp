// Rules of views, concatenations, gathers, scatters and orders.
#include "program/infer.h"

namespace tilevm::typing {

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

}  // namespace tilevm::typing
