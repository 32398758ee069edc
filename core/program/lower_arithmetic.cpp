// Elementwise operators: the dtype in which they compute, arithmetic of Python numbers, bools.
#include "program/lower.h"

#include <bit>
#include <cmath>

namespace tilevm::lowering {

// Arithmetic of Python numbers and of sizes, where it needs no node.
bool Lowering::fold(Op op, std::span<const ValueId> in, High& result) {
  bool sizes = false, floats = false;
  for (ValueId i : in) {
    const High& h = at(i);
    if (h.kind == High::Kind::kSize) {
      sizes = true;
    } else if (h.kind != High::Kind::kNumber || !h.type.weak) {
      return false;
    } else {
      floats = floats || h.number.kind == NumberKind::kFloat;
    }
  }
  if (in.size() > 2 || (sizes && floats)) return false;
  shape::SizeTable& t = out_.sizes;
  if (op == Op::div) floats = !sizes;
  if (floats) {
    const double x = as_double(at(in[0]).number);
    const double y = in.size() > 1 ? as_double(at(in[1]).number) : 0.0;
    double r = 0;
    switch (op) {
      case Op::neg:
        r = -x;
        break;
      case Op::add:
        r = x + y;
        break;
      case Op::sub:
        r = x - y;
        break;
      case Op::mul:
        r = x * y;
        break;
      case Op::div:
        r = x / y;
        break;
      case Op::sqrt:
        r = std::sqrt(x);
        break;
      case Op::maximum:
        r = x != x || x > y ? x : y;
        break;
      case Op::minimum:
        r = x != x || x < y ? x : y;
        break;
      default:
        return false;
    }
    result = number({r, 0, NumberKind::kFloat}, {DType::kFloat64, true, {}});
    return true;
  }
  // Integers are constant sizes: one arithmetic, which wraps.
  const auto as_size = [&](std::size_t i) {
    const High& h = at(in[i]);
    return h.kind == High::Kind::kSize ? h.size : t.constant(h.number.integer);
  };
  for (ValueId i : in) {
    if (at(i).kind == High::Kind::kNumber && at(i).number.kind == NumberKind::kBool) {
      return false;
    }
  }
  if (in.empty()) return false;
  const SizeId x = as_size(0), y = in.size() > 1 ? as_size(1) : x;
  switch (op) {
    case Op::neg:
      result = size(t.sub(t.constant(0), x));
      return true;
    case Op::add:
      result = size(t.add(x, y));
      return true;
    case Op::sub:
      result = size(t.sub(x, y));
      return true;
    case Op::mul:
      result = size(t.mul(x, y));
      return true;
    case Op::floor_div:
      result = size(t.floordiv(x, y));
      return true;
    case Op::remainder:
      result = size(t.mod(x, y));
      return true;
    case Op::maximum:
      result = size(t.max(x, y));
      return true;
    case Op::minimum:
      result = size(t.min(x, y));
      return true;
    default:
      return false;
  }
}

// PyTorch's special cases of a constant exponent (aten/src/ATen/native/cpu/PowKernel.cpp).
bool Lowering::power(const High& base, const High& exponent, const Type& type, High& result) {
  if (exponent.kind != High::Kind::kNumber) return false;
  const double e = as_double(exponent.number);
  const DType d = settled(type);
  const bool whole = e == 0 || e == 1 || e == 2 || e == 3;
  const bool root = std::abs(e) == 0.5 && d != DType::kFloat16;  // others of -0 and -inf
  if (!whole && !(is_float(d) && (root || e == -1 || e == -2))) return false;
  const Type to{d, type.weak, type.shape};
  const auto unary = [&](Op op, ValueId v) { return emit(op, {v}, {}, to); };
  ValueId v = -1;
  if (e == 0) {
    v = full(type.shape, {0, 1, NumberKind::kInt}, d);
  } else {
    const ValueId x = materialise(base, d);
    if (e == 1) v = x;
    if (e == 0.5) v = unary(Op::sqrt, x);
    if (e == -0.5) v = unary(Op::rsqrt, x);
    if (e == -1) v = unary(Op::reciprocal, x);
    if (v < 0) {
      v = emit(Op::mul, {x, x}, {}, to);
      if (e == 3) v = emit(Op::mul, {v, x}, {}, to);
      if (e == -2) v = unary(Op::reciprocal, v);
    }
  }
  result = value(v, type);
  return true;
}

// Arithmetic and comparisons of bools are logic. `x`, `y` are bools of the result.
High Lowering::of_bools(Op op, ValueId x, ValueId y, const Type& type) {
  const Type to{DType::kBool, type.weak, type.shape};
  const auto logic = [&](Op logical, ValueId a, ValueId b) {
    return value(emit(logical, {a, b}, {}, to), type);
  };
  const auto inverse = [&](ValueId a) {
    return emit(Op::logical_not, {a}, {}, {DType::kBool, type.weak, out_.type(a).shape});
  };
  switch (op) {
    case Op::add:
    case Op::maximum:
    case Op::bitwise_or:
    case Op::logical_or:
      return logic(Op::logical_or, x, y);
    case Op::mul:
    case Op::minimum:
    case Op::bitwise_and:
    case Op::logical_and:
      return logic(Op::logical_and, x, y);
    case Op::ne:
    case Op::bitwise_xor:
    case Op::logical_xor:
      return logic(Op::logical_xor, x, y);
    case Op::eq:
      return logic(Op::logical_xor, x, inverse(y));
    case Op::lt:
      return logic(Op::logical_and, inverse(x), y);
    case Op::le:
      return logic(Op::logical_or, inverse(x), y);
    case Op::gt:
      return logic(Op::logical_and, x, inverse(y));
    case Op::ge:
      return logic(Op::logical_or, x, inverse(y));
    default:
      throw std::logic_error(std::string(info(op).name) + " of bools");
  }
}

High Lowering::elementwise(Op op, std::span<const ValueId> in, const Type& type) {
  High result;
  if (type.weak && fold(op, in, result)) return result;
  result = compute(op, in, type);
  if (type.weak && is_float(type.dtype) && result.kind == High::Kind::kValue) {
    result.op = op;
    result.n_in = in.size();
    std::ranges::copy(in, result.in.begin());
  }
  return result;
}

High Lowering::compute(Op op, std::span<const ValueId> in, const Type& type) {
  const Type to{settled(type), type.weak, type.shape};
  const auto in_types = [&](std::size_t from) {
    std::array<Type, kFewOperands> types;
    for (std::size_t i = from; i < in.size(); ++i) types[i - from] = at(in[i]).type;
    return promote(std::span<const Type>(types.data(), in.size() - from));
  };
  DType d = to.dtype;  // of the operands
  switch (info(op).rule) {
    case Rule::kCast:
      return value(materialise(at(in[0]), d), type);
    case Rule::kWhere: {
      const ValueId x = materialise(at(in[0]), DType::kBool);
      const ValueId y = materialise(at(in[1]), d), z = materialise(at(in[2]), d);
      return value(emit(op, {x, y, z}, {}, to), type);
    }
    case Rule::kPredicate:
      d = settled(at(in[0]).type);
      if (op == Op::logical_not) {
        d = DType::kBool;
      } else if (!is_float(d)) {
        const Number answer{0, op == Op::isfinite, NumberKind::kBool};
        return value(full(type.shape, answer, DType::kBool), type);
      }
      break;
    case Rule::kLogical:
      d = DType::kBool;
      break;
    case Rule::kCompare:
      d = settled(in_types(0), type.weak);
      break;
    case Rule::kRoundUnary:
      if (!is_float(d)) return at(in[0]);
      break;
    default:
      if (d == DType::kBool) {
        if (op == Op::abs || op == Op::sign) return at(in[0]);
        if (op == Op::bitwise_not) op = Op::logical_not;
      }
      break;
  }
  High special;
  if (op == Op::pow && power(at(in[0]), at(in[1]), type, special)) return special;
  // A number that is too small for the type that both are of, as 1e-9 is for float16, is false.
  const auto operand = [&](ValueId v) {
    if (info(op).rule == Rule::kLogical) {
      const DType own = settled(at(v).type), both = settled(in_types(0), type.weak);
      if (is_float(own) && own != both && dtype_bytes(both) <= dtype_bytes(own))
        return materialise(value(materialise(at(v), both), {both, false, at(v).type.shape}), d);
    }
    return materialise(at(v), d);
  };
  const ValueId x = operand(in[0]);
  if (in.size() == 1) return value(emit(op, {x}, {}, to), type);
  const ValueId y = operand(in[1]);
  if (d == DType::kBool) return of_bools(op, x, y, type);
  // Numbers first: beside one that is no NaN, the other operand need not be asked for it.
  const auto is_number = [&](ValueId v) { return at(v).kind == High::Kind::kNumber; };
  const bool is_extremum = op == Op::maximum || op == Op::minimum;
  const bool turns = is_extremum && is_number(in[1]) && !is_number(in[0]);
  return value(emit(op, turns ? Operands{y, x} : Operands{x, y}, {}, to), type);
}

}  // namespace tilevm::lowering
