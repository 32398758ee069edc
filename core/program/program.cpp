#include "program/program.h"

namespace tilevm {

namespace {

// Types of a node's operands without an allocation, as few have more than this.
constexpr std::size_t kFewOperands = 4;

Attr default_of(const ParamInfo& param) {
  switch (param.kind) {
    case ParamKind::kNumber:
      return Attr::of_integer(param.value);
    case ParamKind::kAxes:
    case ParamKind::kSizes:
    case ParamKind::kSize:
      return {};
    default:
      return Attr::of_ints({param.value});
  }
}

void complete(shape::SizeTable& sizes, Op op, std::vector<Attr>& attrs) {
  const OpInfo& row = info(op);
  const auto given = static_cast<int>(attrs.size());
  if (given > row.n_params) {
    throw std::invalid_argument(std::string(row.name) + ": " + std::to_string(given) +
                                " parameters given, it has " + std::to_string(row.n_params));
  }
  for (int i = 0; i < row.n_params; ++i) {
    const ParamInfo& param = row.params()[static_cast<std::size_t>(i)];
    if (i >= given) {
      if (param.required) {
        throw std::invalid_argument(std::string(row.name) + ": parameter " + param.name +
                                    " is missing");
      }
      attrs.push_back(default_of(param));
      if (param.kind == ParamKind::kSize) attrs.back().sizes = {sizes.constant(param.value)};
    }
    const Attr& attr = attrs[static_cast<std::size_t>(i)];
    const bool one_int = param.kind == ParamKind::kAxis || param.kind == ParamKind::kInt ||
                         param.kind == ParamKind::kBool || param.kind == ParamKind::kDtype;
    if ((one_int && attr.ints.size() != 1) ||
        (param.kind == ParamKind::kSize && attr.sizes.size() != 1)) {
      throw std::invalid_argument(std::string(row.name) + ": parameter " + param.name +
                                  " takes one value");
    }
  }
}

void check_operands(const OpInfo& row, std::size_t n) {
  if (row.inputs < 0 ? n >= 1 : n == static_cast<std::size_t>(row.inputs)) return;
  throw std::invalid_argument(std::string(row.name) + ": " + std::to_string(n) +
                              " operands given, it takes " +
                              (row.inputs < 0 ? "at least 1" : std::to_string(row.inputs)));
}

// PyTorch's maximum of nothing is an error; found out before running if the size is known.
void check_not_empty(const Program& p, Op op, const Type& x, const Attr& axes) {
  if (op != Op::amax && op != Op::amin && op != Op::argmax && op != Op::argmin) return;
  for (std::int64_t a : axes.ints) {
    if (x.shape.rank > 0 && p.sizes.is(x.shape[static_cast<int>(a)], 0)) {
      throw ShapeError(std::string(info(op).name) + ": axis " + std::to_string(a) +
                       " is empty: x is " + print(p.sizes, x) +
                       ". A maximum or minimum needs at least one element.");
    }
  }
}

}  // namespace

Program::Program(shape::SizeTable table) : sizes(std::move(table)) {
  // A recorded segment's worth: growing costs more than the memory.
  nodes.reserve(32);
  values.reserve(48);
}

ValueId Program::input(Type type) {
  const auto id = static_cast<ValueId>(values.size());
  values.push_back({type, -1});
  inputs.push_back(id);
  return id;
}

void Program::check(SizeId a, SizeId b, std::string message) {
  for (const Check& c : checks) {
    if ((c.a == a && c.b == b) || (c.a == b && c.b == a)) return;
  }
  checks.push_back({a, b, std::move(message)});
}

ValueId Program::add(Op op, std::span<const ValueId> in, std::vector<Attr> attrs, int line) {
  const OpInfo& row = info(op);
  if (op == Op::call) throw std::invalid_argument("call: use Program::call");
  check_operands(row, in.size());
  if (row.n_params > 0 || !attrs.empty()) complete(sizes, op, attrs);

  std::array<Type, kFewOperands> few;
  std::vector<Type> many;
  std::span<Type> types(few.data(), std::min(in.size(), kFewOperands));
  if (in.size() > kFewOperands) {
    many.resize(in.size());
    types = many;
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] < 0 || static_cast<std::size_t>(in[i]) >= values.size()) {
      throw std::invalid_argument(std::string(row.name) + ": no value " + std::to_string(in[i]));
    }
    types[i] = type(in[i]);
  }

  std::vector<Check> found;
  const auto where = [&] {
    return line < 0 ? std::string() : lines.at(static_cast<std::size_t>(line)) + ": ";
  };
  Type result;
  try {
    result = infer(sizes, op, types, attrs, found);
    if (row.cls == OpClass::kReduce) check_not_empty(*this, op, types[0], attrs[0]);
  } catch (const ShapeError& e) {
    throw ShapeError(where() + e.what());
  } catch (const DTypeError& e) {
    throw DTypeError(where() + e.what());
  }
  for (Check& c : found) check(c.a, c.b, where() + c.message);

  const auto id = static_cast<ValueId>(values.size());
  values.push_back({result, static_cast<std::int32_t>(nodes.size())});
  nodes.push_back({op, {in.begin(), in.end()}, std::move(attrs), id, 1, line});
  return id;
}

ValueId Program::call(std::int64_t target, std::span<const ValueId> in,
                      std::span<const Type> results, int line, bool ordered) {
  const auto id = static_cast<ValueId>(values.size());
  for (const Type& t : results) values.push_back({t, static_cast<std::int32_t>(nodes.size())});
  nodes.push_back({Op::call,
                   {in.begin(), in.end()},
                   {Attr::of_ints({target, ordered})},  // (the table has the first)
                   id,
                   static_cast<std::int32_t>(results.size()),
                   line});
  return id;
}

ValueId Program::item(ValueId in, SizeId symbol, int line) {
  const Type& of = type(in);
  const bool real = is_float(of.dtype);
  std::vector<Type> results;
  results.push_back({real                       ? DType::kFloat64
                     : of.dtype == DType::kBool ? of.dtype
                                                : DType::kInt64,
                     true,
                     {}});
  const bool narrow = is_narrow_float(of.dtype);
  if (of.weak || narrow || of.dtype == DType::kOpaque || (real && symbol != shape::kNoSize)) {
    throw DTypeError("item: " + print(sizes, of) + " is nothing that a number is read from" +
                     (narrow ? "; cast it to float32" : ""));
  }
  if (symbol != shape::kNoSize) {
    Type size{DType::kOpaque, false, {}};
    size.shape.push(symbol);
    results.push_back(size);
  }
  return call(kItemTarget, {&in, 1}, results, line);
}

}  // namespace tilevm
