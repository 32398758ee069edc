// lower(): composites become their parts, implicit conversions become casts, equal nodes one node.
#include "program/lower.h"

#include <bit>
#include <cstring>

#include "program/passes.h"

namespace tilevm {
namespace lowering {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15ULL;
  return h ^ (h >> 32);
}

std::uint64_t hash_of(const Attr& a) {
  std::uint64_t h = static_cast<std::uint64_t>(a.number_kind);
  for (std::int64_t i : a.ints) h = mix(h, static_cast<std::uint64_t>(i));
  h = mix(h, a.ints.size());
  for (SizeId s : a.sizes) h = mix(h, static_cast<std::uint64_t>(s));
  return mix(mix(h, std::bit_cast<std::uint64_t>(a.number)), static_cast<std::uint64_t>(a.integer));
}

// By bits: -0.0 differs from 0.0, and NaN equals itself.
bool same(const Attr& a, const Attr& b) {
  return a.ints == b.ints && a.sizes == b.sizes && a.number_kind == b.number_kind &&
         a.integer == b.integer &&
         std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number);
}

}  // namespace

bool keeps_values(DType from, DType to) {
  if (from == to || from == DType::kBool) return true;
  switch (from) {
    case DType::kBFloat16:
    case DType::kFloat16:
      return to == DType::kFloat32 || to == DType::kFloat64;
    case DType::kFloat32:
      return to == DType::kFloat64;
    case DType::kInt32:
      return to == DType::kInt64 || to == DType::kFloat64;
    case DType::kInt16:
      return to == DType::kInt32 || to == DType::kInt64 || to == DType::kFloat32 ||
             to == DType::kFloat64;
    case DType::kInt8:
    case DType::kUInt8:
      return to == DType::kInt16 || keeps_values(DType::kInt16, to);
    default:
      return false;
  }
}

std::int64_t truncated(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? static_cast<std::int64_t>(x)
                                                                  : INT64_MIN;
}

Attr in_dtype(const Number& n, DType dtype) {
  if (is_float(dtype)) return Attr::of_number(as_double(n));
  const bool was_float = n.kind == NumberKind::kFloat;
  if (dtype == DType::kBool) return Attr::of_bool(was_float ? n.number != 0 : n.integer != 0);
  const std::int64_t value = was_float ? truncated(n.number) : n.integer;
  switch (dtype_bytes(dtype)) {
    case 1:
      return Attr::of_integer(dtype == DType::kUInt8 ? static_cast<std::uint8_t>(value)
                                                     : static_cast<std::int8_t>(value));
    case 2:
      return Attr::of_integer(static_cast<std::int16_t>(value));
    case 4:
      return Attr::of_integer(static_cast<std::int32_t>(value));
    default:
      return Attr::of_integer(value);
  }
}

// ---- Nodes of the result

ValueId Lowering::emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(op), static_cast<std::uint64_t>(type.dtype));
  for (ValueId v : in) hash = mix(hash, static_cast<std::uint64_t>(v));
  for (const Attr& a : attrs) hash = mix(hash, hash_of(a));
  std::size_t mask = table_.size() - 1, slot = hash & mask;
  for (; table_[slot] >= 0; slot = (slot + 1) & mask) {
    const auto i = static_cast<std::size_t>(table_[slot]);
    const Node& node = out_.nodes[i];
    if (hashes_[i] == hash && node.op == op && node.inputs == in &&
        std::ranges::equal(node.attrs, attrs, same) && out_.type(node.out).dtype == type.dtype) {
      return node.out;
    }
  }
  if (2 * out_.nodes.size() >= mask) {
    table_.assign(2 * table_.size(), -1);
    mask = table_.size() - 1;
    for (std::size_t i = 0; i < out_.nodes.size(); ++i) {
      if (out_.nodes[i].op == Op::call) continue;
      std::size_t s = hashes_[i] & mask;
      while (table_[s] >= 0) s = (s + 1) & mask;
      table_[s] = static_cast<std::int32_t>(i);
    }
    slot = hash & mask;
    while (table_[slot] >= 0) slot = (slot + 1) & mask;
  }
  const auto id = static_cast<ValueId>(out_.values.size());
  const auto index = static_cast<std::int32_t>(out_.nodes.size());
  table_[slot] = index;
  hashes_.push_back(hash);
  out_.values.push_back({type, index});
  out_.nodes.push_back({op, std::move(in), std::move(attrs), id, 1, line_});
  return id;
}

ValueId Lowering::cast(ValueId v, DType to) {
  const Type type = out_.type(v);
  if (type.dtype == to && !type.weak) return v;
  const std::int32_t def = out_.values[static_cast<std::size_t>(v)].node;
  if (def >= 0) {
    const Node& node = out_.nodes[static_cast<std::size_t>(def)];
    if (node.op == Op::cast) {
      const Type from = out_.type(node.inputs[0]);
      if (!from.weak && keeps_values(from.dtype, type.dtype)) return cast(node.inputs[0], to);
    }
  }
  return emit(Op::cast, {v}, {Attr::of_dtype(to)}, {to, false, type.shape});
}

ValueId Lowering::materialise(const High& h, DType dtype) {
  switch (h.kind) {
    case High::Kind::kNumber:
      return full(h.type.shape, h.number, dtype);
    case High::Kind::kSize:
      return cast(emit(Op::size_value, {}, {Attr::of_sizes({h.size})}, h.type), dtype);
    default:
      return cast(h.op && dtype == DType::kFloat64 ? widened(h) : h.value, dtype);
  }
}

// What a call-out is given: Python's ints stay what they are, and no kernel computes them.
ValueId Lowering::argument(const High& h) {
  if (!h.type.weak || h.type.dtype != DType::kInt64) return materialise(h);
  if (h.kind == High::Kind::kSize)
    return emit(Op::size_value, {}, {Attr::of_sizes({h.size})}, h.type);
  if (h.number.kind != NumberKind::kInt) return materialise(h);
  return emit(Op::scalar, {}, {Attr::of_integer(h.number.integer)}, h.type);
}

// Arithmetic of Python floats as Python does it.
ValueId Lowering::widened(const High& h) {
  const bool before = std::exchange(wide_, true);
  const ValueId v = compute(*h.op, {h.in.data(), h.n_in}, h.type).value;
  wide_ = before;
  return v;
}

// ---- Operators

ValueId Lowering::add(Op op, std::initializer_list<ValueId> in, std::initializer_list<Attr> list) {
  std::vector<Attr> attrs(list);
  std::array<Type, kFewOperands> types;
  std::size_t n = 0;
  for (ValueId h : in) types[n++] = at(h).type;
  std::vector<Check> found;
  const Type type = infer(out_.sizes, op, std::span<const Type>(types.data(), n), attrs, found,
                          /*in_composite=*/true);
  for (Check& c : found) out_.check(c.a, c.b, std::move(c.message));
  return push(lower(op, {in.begin(), in.size()}, attrs, type));
}

ValueId Lowering::count(ValueId x, const Attr& axes) {
  const Shape& shape = at(x).type.shape;
  SizeId n = out_.sizes.constant(1);
  for (std::int64_t a : axes.ints) {
    if (shape.rank > 0) n = out_.sizes.mul(n, shape[static_cast<int>(a)]);
  }
  return push(size(n));
}

ValueId Lowering::decompose(Op op, std::span<const ValueId> in, const std::vector<Attr>& attrs) {
  Lowering& b = *this;
  switch (op) {
#include "decompose.gen.inc"
    default:
      throw std::logic_error(std::string(info(op).name) + " has no decomposition");
  }
}

bool Lowering::changes_nothing(Op op, const Type& in, const std::vector<Attr>& attrs,
                               const Type& out) const {
  if (in.weak || in.dtype != out.dtype || in.shape != out.shape) return false;
  switch (op) {
    case Op::reshape:
    case Op::expand:
    case Op::pad:
    case Op::squeeze:
      return true;
    case Op::flip:
      return attrs[0].ints.empty();
    case Op::permute:
      return std::ranges::is_sorted(attrs[0].ints);
    case Op::slice:
      return attrs[3].ints[0] == 1 && out_.sizes.is(attrs[1].sizes[0], 0);
    default:
      return false;
  }
}

// pad x = concat(filled, x, filled) on every axis that is padded.
ValueId Lowering::pad(ValueId x, const std::vector<Attr>& attrs, const Type& type) {
  Type grown = out_.type(x);
  for (int axis = 0; axis < type.shape.rank; ++axis) {
    const auto side = [&](std::size_t which) {
      return attrs[which].sizes[static_cast<std::size_t>(axis)];
    };
    Operands parts;
    const auto fill = [&](SizeId width) {
      if (out_.sizes.is(width, 0)) return;
      Shape shape = grown.shape;
      shape[axis] = width;
      parts.push_back(full(shape, number_of(attrs[2]), type.dtype));
    };
    fill(side(0));
    parts.push_back(x);
    fill(side(1));
    if (parts.size() == 1) continue;
    grown.shape[axis] = type.shape[axis];
    x = emit(Op::concat, std::move(parts), {Attr::of_ints({axis})}, grown);
  }
  return x;
}

High Lowering::lower(Op op, std::span<const ValueId> in, const std::vector<Attr>& attrs,
                     const Type& type) {
  const OpInfo& row = info(op);
  if (row.composite) {
    std::array<ValueId, kFewOperands> operands;
    std::ranges::copy(in, operands.begin());
    const bool rows = row.rule == Rule::kFloatAxis || row.rule == Rule::kFloatAxes;
    const Type& x = at(in[0]).type;
    if ((rows || row.rule == Rule::kReduceFloat) && (x.dtype != type.dtype || x.weak)) {
      const Type as{type.dtype, false, x.shape};
      operands[0] = push(value(materialise(at(in[0]), as.dtype), as));
    }
    High result = at(decompose(op, {operands.data(), in.size()}, attrs));
    result.type = type;
    return result;
  }
  if (row.cls == OpClass::kElementwise) return elementwise(op, in, type);
  if (op == Op::scalar) return number(number_of(attrs[0]), type);
  if (op == Op::size_value) return size(attrs[0].sizes[0]);
  if (op == Op::full) return value(full(type.shape, number_of(attrs[1]), type.dtype), type);

  // The operands' dtype, where the operator has a say.
  std::optional<DType> d;
  switch (row.rule) {
    case Rule::kReduceSum:
    case Rule::kReduceFloat:
    case Rule::kConcat:
    case Rule::kScan:
    case Rule::kScanFloat:
      d = type.dtype;
      break;
    case Rule::kReduceBool:
      d = DType::kBool;
      break;
    case Rule::kReduceIndex:
      if (at(in[0]).type.dtype == DType::kBool) d = DType::kInt32;
      break;
    default:
      break;
  }
  Operands operands;
  operands.reserve(in.size());
  const bool scatters = row.rule == Rule::kScatter || row.rule == Rule::kScatterNumber;
  const bool groups = row.rule == Rule::kGroupedMatmul;
  // Sums and products on the way may need more than a narrow type has.
  const bool narrow = is_narrow_float(type.dtype);
  const bool widens = narrow && (op == Op::scatter_add || op == Op::scatter_mul);
  if (widens) d = DType::kFloat32;
  for (ValueId i : in) {
    const High& h = at(i);
    DType as = d ? *d : settled(h.type);
    // Loops and products read indices of these two types.
    if ((scatters && operands.size() == 1) || (groups && operands.size() == 2)) {
      as = settled(h.type) == DType::kInt32 ? DType::kInt32 : DType::kInt64;
    }
    operands.push_back(materialise(h, as));
  }
  if (!in.empty() && changes_nothing(op, out_.type(operands[0]), attrs, type)) {
    return value(operands[0], type);
  }
  if (op == Op::concat && operands.size() == 1) return value(operands[0], type);
  if (type.dtype == DType::kBool) {
    if (op == Op::amax) op = Op::any;
    if (op == Op::amin) op = Op::all;
  }
  if (op == Op::matmul && multiplied_in_kernels(type.dtype))
    return value(product(operands[0], operands[1], type), type);
  std::vector<Attr> parameters(attrs);
  if (op == Op::conv || groups) {
    operands[0] = factor(operands[0]);
    operands[1] = factor(operands[1]);
    const Type whole{DType::kFloat32, false, type.shape};
    const ValueId sum = emit(op, std::move(operands), std::move(parameters), whole);
    return value(cast(sum, type.dtype), type);
  }
  if (op == Op::conv_windows) return value(conv_windows(operands, parameters, type), type);
  if (op == Op::pad) return value(pad(operands[0], parameters, type), type);
  if (widens) {
    const Type whole{DType::kFloat32, false, type.shape};
    const ValueId wide = emit(op, std::move(operands), std::move(parameters), whole);
    return value(cast(wide, type.dtype), type);
  }
  return value(emit(op, std::move(operands), std::move(parameters), type), type);
}

// ---- Whole programs

Program Lowering::run() {
  const std::vector<bool> needed = live(source_);
  for (ValueId v : source_.inputs) at(v) = value(out_.input(source_.type(v)), source_.type(v));
  for (std::size_t i = 0; i < source_.nodes.size(); ++i) {
    if (!needed[i]) continue;
    const Node& node = source_.nodes[i];
    line_ = node.line;
    if (node.op == Op::call) {
      Operands operands;
      for (ValueId v : node.inputs) {
        const High& h = at(v);
        operands.push_back(h.kind == High::Kind::kValue ? h.value : argument(h));
      }
      std::vector<Type> types;
      for (int k = 0; k < node.n_out; ++k) types.push_back(source_.type(node.out + k));
      const ValueId first = out_.call(node.attrs[0].ints[0], operands, types, line_,
                                       node.attrs[0].ints[1] != 0);
      hashes_.push_back(0);
      for (int k = 0; k < node.n_out; ++k) {
        at(node.out + k) = value(first + k, types[static_cast<std::size_t>(k)]);
      }
      continue;
    }
    // `lower` may grow high_, so the result is stored after it returns.
    High result = lower(node.op, node.inputs, node.attrs, source_.type(node.out));
    at(node.out) = std::move(result);
  }
  line_ = -1;
  for (ValueId v : source_.outputs) out_.outputs.push_back(materialise(at(v)));
  sweep(out_);
  return std::move(out_);
}

}  // namespace lowering

Program lower(Program program) {
  unify_sizes(program);
  Program lowered = with_gathers_first(lowering::Lowering(std::move(program)).run());
  lowered = with_divisions_last(with_shared_factors(std::move(lowered)));
  return with_concats_last(with_channels_last(std::move(lowered)));
}

}  // namespace tilevm
