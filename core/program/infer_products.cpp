// Rules of matrix products and convolutions.
#include "program/infer.h"

namespace tilevm::typing {

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

}  // namespace tilevm::typing
