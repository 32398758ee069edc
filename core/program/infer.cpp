// Which rule an operator has.
#include "program/infer.h"

namespace tilevm {
namespace typing {

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
    case Rule::kScanFloat:
      axis(int_at(0), in_[0].shape.rank);
      return {floating(common(), in_[0].weak), false, in_[0].shape};
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

}  // namespace typing

Type infer(shape::SizeTable& sizes, Op op, std::span<const Type> in, std::span<Attr> attrs,
           std::vector<Check>& checks, bool in_composite) {
  Type type = typing::Rules(sizes, op, in, attrs, checks, in_composite).apply();
  // A view of a weak scalar is a tensor.
  if (!type.weak && in.size() >= 1 && in[0].weak && type.dtype == DType::kFloat64 &&
      info(op).cls != OpClass::kElementwise) {
    type.dtype = DType::kFloat32;
  }
  return type;
}

}  // namespace tilevm
