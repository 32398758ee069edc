// Matrix products and gradients of windows: of float32, whose factors are as they lie in memory.
#include "program/lower.h"

namespace tilevm::lowering {

// As a product: of y, whose positions become one axis, turned round, and windows of the image, a
// row for each position; its columns are taps and channels.
ValueId Lowering::conv_windows(const Operands& in, const std::vector<Attr>& attrs,
                               const Type& type) {
  const auto product = [&](std::span<const SizeId> sizes) {
    SizeId all = out_.sizes.constant(1);
    for (const SizeId size : sizes) all = out_.sizes.mul(all, size);
    return all;
  };
  const ValueId x = factor(in[0]);
  ValueId y = factor(in[1]);
  const auto sizes = out_.type(y).shape.span();
  Type rows{out_.type(y).dtype, false, {}};
  rows.shape.push(product(sizes.first(sizes.size() - 1)));
  rows.shape.push(sizes.back());
  y = emit(Op::reshape, {y}, {Attr::of_sizes(rows.shape.span())}, rows);
  Type whole{DType::kFloat32, false, {}};
  whole.shape.push(type.shape[0]);
  whole.shape.push(product(type.shape.span().subspan(1)));
  const ValueId sum = cast(emit(Op::conv_windows, {x, y}, attrs, whole), type.dtype);
  return emit(Op::reshape, {sum}, {Attr::of_sizes(type.shape.span())}, type);
}

// A factor of a product as it lies in memory: what widened it, before or after views, is left out.
ValueId Lowering::factor(ValueId v) {
  const std::int32_t def = out_.values[static_cast<std::size_t>(v)].node;
  if (def < 0) return v;
  const Node node = out_.nodes[static_cast<std::size_t>(def)];
  const Type type = out_.type(v);
  if (node.op == Op::cast) {
    const Type from = out_.type(node.inputs[0]);
    const bool exact = from.dtype == DType::kInt8 || keeps_values(from.dtype, type.dtype);
    return exact && !from.weak && is_factor(from.dtype) ? node.inputs[0] : v;
  }
  if (node.op != Op::permute && node.op != Op::unsqueeze && node.op != Op::squeeze) return v;
  const ValueId source = factor(node.inputs[0]);
  if (source == node.inputs[0]) return v;
  return emit(node.op, {source}, node.attrs, {out_.type(source).dtype, false, type.shape});
}

// A right factor w s of int8 weights w and a scale s that is the same along the axis that a product
// sums over: then a (w s) is (a w) s, and the weights need not be widened in memory.
std::optional<Lowering::Scaled> Lowering::scaled(ValueId v, int inner) {
  const std::int32_t def = out_.values[static_cast<std::size_t>(v)].node;
  if (def < 0) return {};
  const Node node = out_.nodes[static_cast<std::size_t>(def)];
  const int rank = out_.type(v).shape.rank;
  if (node.op == Op::permute) {
    const auto from = static_cast<int>(node.attrs[0].ints[static_cast<std::size_t>(inner)]);
    std::optional<Scaled> source = scaled(node.inputs[0], from);
    if (!source || out_.type(source->scale).shape.rank != rank) return {};
    for (ValueId* x : {&source->weights, &source->scale}) {
      Type type{out_.type(*x).dtype, false, {}};
      for (const std::int64_t d : node.attrs[0].ints)
        type.shape.push(out_.type(*x).shape[static_cast<int>(d)]);
      *x = emit(Op::permute, {*x}, node.attrs, type);
    }
    return source;
  }
  if (node.op != Op::mul) return {};
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const ValueId weights = factor(node.inputs[i]), scale = node.inputs[1 - i];
    const Shape& shape = out_.type(scale).shape;
    const int d = inner - (rank - shape.rank);
    const bool same = d < 0 || out_.sizes.is(shape[d], 1);
    if (same && out_.type(weights).dtype == DType::kInt8 &&
        out_.type(weights).shape == out_.type(v).shape)
      return Scaled{weights, scale};
  }
  return {};
}

// A matrix product over tensors of rank 2 and more, in float32, cast to the dtype that it has.
ValueId Lowering::product(ValueId a, ValueId b, const Type& type) {
  const auto with_axis = [&](ValueId v, int axis) {
    Shape shape;
    for (int d = 0; d < 2; ++d)
      shape.push(d == axis ? out_.sizes.constant(1) : out_.type(v).shape[0]);
    return emit(Op::unsqueeze, {v}, {Attr::of_ints({axis})}, {out_.type(v).dtype, false, shape});
  };
  if (out_.type(b).shape.rank >= 2) {
    const bool vector = out_.type(a).shape.rank == 1;  // then scales have a dim too many
    if (const auto parts = vector ? std::nullopt : scaled(b, out_.type(b).shape.rank - 2)) {
      Type exact = type;
      exact.dtype = DType::kFloat32;
      const ValueId unscaled = product(a, parts->weights, exact);
      const ValueId scale = cast(parts->scale, DType::kFloat32);
      return cast(emit(Op::mul, {unscaled, scale}, {}, exact), type.dtype);
    }
  }
  a = factor(a);
  b = factor(b);
  Type whole{DType::kFloat32, false, type.shape};
  const bool vector_a = out_.type(a).shape.rank == 1, vector_b = out_.type(b).shape.rank == 1;
  Ints gone;
  if (vector_a || vector_b) {
    const int batch = type.shape.rank - (vector_a ? 0 : 1) - (vector_b ? 0 : 1);
    const SizeId rows = vector_a ? out_.sizes.constant(1) : type.shape[batch];
    const SizeId columns = vector_b ? out_.sizes.constant(1) : type.shape[type.shape.rank - 1];
    whole.shape = Shape();
    for (int d = 0; d < batch; ++d) whole.shape.push(type.shape[d]);
    whole.shape.push(rows);
    whole.shape.push(columns);
    if (vector_a) a = with_axis(a, 0), gone.push_back(batch);
    if (vector_b) b = with_axis(b, 1), gone.push_back(batch + 1);
  }
  ValueId result = emit(Op::matmul, {a, b}, {}, whole);
  result = cast(result, type.dtype);
  if (!gone.empty()) result = emit(Op::squeeze, {result}, {Attr::of_ints(gone)}, type);
  return result;
}

}  // namespace tilevm::lowering
