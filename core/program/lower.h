// What lower() is made of: values of the source ("high") map to values of the result, except Python
// numbers and sizes: those stay numbers until an operator needs them in a dtype.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "program/passes.h"
#include "program/program.h"

namespace tilevm::lowering {

using NumberKind = Attr::NumberKind;
inline constexpr std::size_t kFewOperands = 4;

// A narrower dtype's values are all values of the wider.
bool keeps_values(DType from, DType to);

// A Python number. As in Attr, `integer` is exact if it was an int or a bool.
struct Number {
  double number = 0;
  std::int64_t integer = 0;
  NumberKind kind = NumberKind::kFloat;
};

inline Number number_of(const Attr& a) { return {a.number, a.integer, a.number_kind}; }
inline double as_double(const Number& n) {
  return n.kind == NumberKind::kFloat ? n.number : static_cast<double>(n.integer);
}

// The number as a constant of `dtype` holds it.
Attr in_dtype(const Number& n, DType dtype);
std::int64_t truncated(double x);  // INT64_MIN, if that is no int64

// Dtypes of matrix products that kernels compute, and of their factors in memory.
inline bool multiplied_in_kernels(DType d) {
  return d == DType::kFloat32 || d == DType::kBFloat16 || d == DType::kFloat16;
}
inline bool is_factor(DType d) { return multiplied_in_kernels(d) || d == DType::kInt8; }

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
      : source_(std::move(source)), out_(successor_of(source_)), table_(kFirst, -1) {
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

}  // namespace tilevm::lowering
