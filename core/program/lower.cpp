// lower(): composites become their parts, implicit conversions become casts, equal nodes one node.
//
// Values of the source ("high") map to values of the result, except Python numbers and sizes: those
// stay numbers until an operator needs them in a dtype.
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>

#include "program/passes.h"
#include "program/program.h"

namespace tilevm {

namespace {

using NumberKind = Attr::NumberKind;
constexpr std::size_t kFewOperands = 4;

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

// A narrower dtype's values are all values of the wider.
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

// A Python number. As in Attr, `integer` is exact if it was an int or a bool.
struct Number {
  double number = 0;
  std::int64_t integer = 0;
  NumberKind kind = NumberKind::kFloat;
};

Number number_of(const Attr& a) { return {a.number, a.integer, a.number_kind}; }
double as_double(const Number& n) {
  return n.kind == NumberKind::kFloat ? n.number : static_cast<double>(n.integer);
}

// Dtypes of matrix products that kernels compute, and of their factors in memory.
bool multiplied_in_kernels(DType d) {
  return d == DType::kFloat32 || d == DType::kBFloat16 || d == DType::kFloat16;
}
bool is_factor(DType d) { return multiplied_in_kernels(d) || d == DType::kInt8; }

// The number as a constant of `dtype` holds it.
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

struct High {
  enum class Kind : std::uint8_t { kUnset, kValue, kNumber, kSize } kind = Kind::kUnset;
  Type type;           // in the source; that of `value` may differ if weak
  ValueId value = -1;  // kValue: of the result
  SizeId size{};       // kSize: a size_value
  Number number;       // kNumber
  // kValue that is arithmetic of Python floats: of which, so that it can be done again in float64.
  std::optional<Op> op;
  std::array<ValueId, kFewOperands> in{};
  std::size_t n_in = 0;
};

class Lowering {
 public:
  explicit Lowering(Program source)
      : source_(std::move(source)), out_(std::move(source_.sizes)), table_(kFirst, -1) {
    out_.lines = std::move(source_.lines);
    out_.checks = std::move(source_.checks);
    out_.nodes.reserve(source_.nodes.size() + 8);
    out_.values.reserve(source_.values.size() + 8);
    hashes_.reserve(source_.nodes.size() + 8);
    high_.reserve(source_.values.size() + 16);
    high_.resize(source_.values.size());
  }

  Program run();

  // ---- For the generated decompositions: values are indices of high_.

  ValueId add(Op op, std::initializer_list<ValueId> in, std::initializer_list<Attr> attrs);
  ValueId count(ValueId x, const Attr& axes);
  Attr boolean(bool b) const { return Attr::of_ints({b}); }
  Attr integer(std::int64_t i) const { return Attr::of_integer(i); }
  Attr dtype_of(ValueId x) const { return Attr::of_dtype(settled(at(x).type)); }

 private:
  High& at(ValueId h) { return high_[static_cast<std::size_t>(h)]; }
  const High& at(ValueId h) const { return high_[static_cast<std::size_t>(h)]; }
  ValueId push(High h) {
    high_.push_back(std::move(h));
    return static_cast<ValueId>(high_.size()) - 1;
  }
  High value(ValueId v, const Type& type) const {
    High h;
    h.kind = High::Kind::kValue;
    h.type = type;
    h.value = v;
    return h;
  }
  High number(const Number& n, const Type& type) const {
    High h;
    h.kind = High::Kind::kNumber;
    h.type = type;
    h.number = n;
    return h;
  }
  High size(SizeId s) const {
    if (const auto c = out_.sizes.value(s)) {
      return number({0, *c, NumberKind::kInt}, {DType::kInt64, true, {}});
    }
    High h;
    h.kind = High::Kind::kSize;
    h.type = {DType::kInt64, true, {}};
    h.size = s;
    return h;
  }

  // Of weak scalars, what kernels compute in: float32, except for a result in float64.
  DType settled(DType d, bool weak) const {
    return weak && d == DType::kFloat64 && !wide_ ? DType::kFloat32 : d;
  }
  DType settled(const Type& t) const { return settled(t.dtype, t.weak); }

  // ---- Nodes of the result

  ValueId emit(Op op, Operands in, std::vector<Attr> attrs, const Type& type);
  ValueId pad(ValueId x, const std::vector<Attr>& attrs, const Type& type);
  ValueId full(const Shape& shape, const Number& n, DType dtype) {
    std::vector<Attr> attrs(3);
    attrs[0].sizes = shape.span();
    attrs[1] = in_dtype(n, dtype);
    attrs[2].ints = {static_cast<std::int64_t>(dtype)};
    return emit(Op::full, {}, std::move(attrs), {dtype, false, shape});
  }
  struct Scaled {
    ValueId weights, scale;
  };
  ValueId factor(ValueId v);
  std::optional<Scaled> scaled(ValueId v, int inner);
  ValueId product(ValueId a, ValueId b, const Type& type);
  ValueId conv_windows(const Operands& in, const std::vector<Attr>& attrs, const Type& type);
  ValueId cast(ValueId v, DType to);
  ValueId materialise(const High& h, DType dtype);
  ValueId widened(const High& h);
  ValueId argument(const High& h);
  ValueId materialise(const High& h) { return materialise(h, settled(h.type)); }

  // ---- Operators

  High lower(Op op, std::span<const ValueId> in, const std::vector<Attr>& attrs, const Type& type);
  High elementwise(Op op, std::span<const ValueId> in, const Type& type);
  High compute(Op op, std::span<const ValueId> in, const Type& type);
  High of_bools(Op op, ValueId x, ValueId y, const Type& type);
  bool fold(Op op, std::span<const ValueId> in, High& result);
  bool power(const High& base, const High& exponent, const Type& type, High& result);
  bool changes_nothing(Op op, const Type& in, const std::vector<Attr>& attrs,
                       const Type& out) const;
  ValueId decompose(Op op, std::span<const ValueId> in, const std::vector<Attr>& attrs);

  static constexpr std::size_t kFirst = 128;
  Program source_, out_;
  std::vector<High> high_;
  int line_ = -1;
  bool wide_ = false;  // arithmetic of Python floats is in float64
  // Value numbering: slots hold nodes of out_, by hash.
  std::vector<std::int32_t> table_;
  std::vector<std::uint64_t> hashes_;
};

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
  if (!whole && !(is_float(d) && (e == 0.5 || e == -0.5 || e == -1 || e == -2))) return false;
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
  return value(emit(op, {x, y}, {}, to), type);
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
  const bool narrow = type.dtype == DType::kFloat16 || type.dtype == DType::kBFloat16;
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
      const ValueId first = out_.call(node.attrs[0].ints[0], operands, types, line_);
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

}  // namespace

Program lower(Program program) {
  unify_sizes(program);
  return with_concats_last(with_channels_last(Lowering(std::move(program)).run()));
}

}  // namespace tilevm
