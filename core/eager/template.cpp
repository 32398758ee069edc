#include "eager/template.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

namespace tilevm::eager {
namespace {

using Relation = Condition::Relation;

std::size_t at(SizeId id) { return static_cast<std::size_t>(id); }

bool holds(Relation relation, std::int64_t a, std::int64_t b) {
  switch (relation) {
    case Relation::kEqual:
      return a == b;
    case Relation::kNotEqual:
      return a != b;
    case Relation::kLess:
      return a < b;
    case Relation::kLessEqual:
      return a <= b;
  }
  return false;
}

// One step of a size program, on sizes of another table.
SizeId apply(shape::SizeTable& sizes, const shape::SizeStep& step, SizeId a, SizeId b) {
  using Kind = shape::SizeStep::Kind;
  switch (step.kind) {
    case Kind::kConst:
      return sizes.constant(step.value);
    case Kind::kAdd:
      return sizes.add(a, b);
    case Kind::kMul:
      return sizes.mul(a, b);
    case Kind::kFloorDiv:
      return sizes.floordiv(a, b);
    case Kind::kMod:
      return sizes.mod(a, b);
    case Kind::kMin:
      return sizes.min(a, b);
    case Kind::kMax:
      return sizes.max(a, b);
  }
  return shape::kNoSize;
}

}  // namespace

// All sizes that the program and its conditions name.
template <class Visit>
void Template::visit_sizes(Visit&& visit) const {
  for (const tilevm::Value& value : program_.values) {
    for (const SizeId s : value.type.shape.span()) visit(s);
  }
  for (const Node& node : program_.nodes) {
    for (const Attr& attr : node.attrs) {
      for (const SizeId s : attr.sizes) visit(s);
    }
  }
  for (const Check& check : program_.checks) {
    visit(check.a);
    visit(check.b);
  }
}

Template::Template(Program program, std::vector<Condition> conditions, std::vector<SizeId> numbers,
                   std::vector<std::vector<std::int32_t>> orders, std::vector<bool> complex,
                   std::vector<Limit> limits)
    : program_(std::move(program)),
      conditions_(std::move(conditions)),
      numbers_(std::move(numbers)),
      orders_(std::move(orders)),
      complex_(std::move(complex)),
      limits_(std::move(limits)) {
  if (orders_.size() != n_results() || complex_.size() != n_results()) {
    throw std::invalid_argument("an order for each result, and whether it is complex");
  }
  for (const Limit& limit : limits_) {
    if (limit.operand < 0 || static_cast<std::size_t>(limit.operand) >= n_operands()) {
      throw std::invalid_argument("a limit of no operand");
    }
  }
  std::vector<bool> bound(static_cast<std::size_t>(program_.sizes.count()));
  std::vector<SizeId> shown;
  for (const ValueId input : program_.inputs) {
    const Type& type = program_.type(input);
    if (type.weak || type.dtype == DType::kOpaque) throw std::invalid_argument("no tensor");
    for (const SizeId s : type.shape.span()) {
      if (program_.sizes.is_symbol(s)) bound[at(s)] = true;
      shown.push_back(s);
    }
  }
  for (const SizeId s : numbers_) {
    if (program_.sizes.is_symbol(s)) bound[at(s)] = true;
    shown.push_back(s);
  }
  for (const SizeId s : program_.sizes.symbols()) {
    if (!bound[at(s)]) throw std::invalid_argument("a size that no operand shows");
    const shape::Range range = program_.sizes.range(s);
    symbols_.push_back({s, range.min, range.max});
  }
  for (std::size_t r = 0; r < n_results(); ++r) {
    const Type& type = program_.type(program_.outputs[r]);
    if (type.weak || type.dtype == DType::kOpaque || orders_[r].size() != type.shape.rank) {
      throw std::invalid_argument("a result that is no tensor");
    }
    const int last = type.shape.rank - 1;
    if (complex_[r] && (last < 0 || program_.sizes.value(type.shape[last]) != 2 ||
                        orders_[r].back() != last)) {
      throw std::invalid_argument("a result that is no complex numbers");
    }
    for (const SizeId s : type.shape.span()) shown.push_back(s);
  }
  for (const Node& node : program_.nodes) {
    if (node.op == Op::call) throw std::invalid_argument("a call-out");
    has_product_ = has_product_ || node.op == Op::matmul || is_convolution(node.op);
  }
  for (const Condition& c : conditions_) shown.insert(shown.end(), {c.a, c.b});
  for (const Check& c : program_.checks) shown.insert(shown.end(), {c.a, c.b});
  std::vector<SizeId> all;
  visit_sizes([&](SizeId s) { all.push_back(s); });
  shown_ = program_.sizes.compile(shown);
  all_ = program_.sizes.compile(all);
}

bool Template::infer(const Sized& given, std::span<Result> results) const {
  thread_local std::vector<std::int64_t> sizes;
  sizes.assign(static_cast<std::size_t>(program_.sizes.count()), -1);
  const std::span<const Extents> operands = given.operands;
  if (operands.size() != n_operands() || given.numbers.size() != n_numbers()) return false;
  const auto shape_of = [&](std::size_t i) -> const Shape& {
    return program_.type(program_.inputs[i]).shape;
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].size() != shape_of(i).rank) return false;
    for (int d = 0; d < shape_of(i).rank; ++d) {
      const SizeId s = shape_of(i)[d];
      if (program_.sizes.is_symbol(s)) sizes[at(s)] = operands[i][static_cast<std::size_t>(d)];
    }
  }
  for (std::size_t i = 0; i < n_numbers(); ++i) {
    if (program_.sizes.is_symbol(numbers_[i])) sizes[at(numbers_[i])] = given.numbers[i];
  }
  for (const Symbol& s : symbols_) {
    if (sizes[at(s.id)] < s.least || sizes[at(s.id)] > s.most) return false;
  }
  shape::evaluate(shown_, sizes);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (int d = 0; d < shape_of(i).rank; ++d) {
      if (sizes[at(shape_of(i)[d])] != operands[i][static_cast<std::size_t>(d)]) return false;
    }
  }
  for (std::size_t i = 0; i < n_numbers(); ++i) {
    if (sizes[at(numbers_[i])] != given.numbers[i]) return false;
  }
  for (const Condition& c : conditions_) {
    if (!holds(c.relation, sizes[at(c.a)], sizes[at(c.b)])) return false;
  }
  for (const Check& c : program_.checks) {
    if (sizes[at(c.a)] != sizes[at(c.b)]) return false;
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    const Type& type = program_.type(program_.outputs[r]);
    results[r] = {type.dtype, type.shape.rank, {}};
    for (int d = 0; d < type.shape.rank; ++d) {
      const std::int64_t size = sizes[at(type.shape[d])];
      if (size < 0) return false;
      results[r].sizes[static_cast<std::size_t>(d)] = size;
    }
  }
  return true;
}

std::vector<ValueId> Template::append_to(Program& program,
                                         std::span<const ValueId> operands,
                                         std::span<const SizeId> numbers) const {
  std::vector<SizeId> sizes(static_cast<std::size_t>(program_.sizes.count()), shape::kNoSize);
  std::vector<ValueId> values(program_.values.size(), -1);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const ValueId input = program_.inputs[i];
    values[static_cast<std::size_t>(input)] = operands[i];
    const Shape& shape = program_.type(input).shape;
    for (int d = 0; d < shape.rank; ++d) {
      SizeId& known = sizes[at(shape[d])];
      if (program_.sizes.is_symbol(shape[d]) && known == shape::kNoSize) {
        known = program.type(operands[i]).shape[d];
      }
    }
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    SizeId& known = sizes[at(numbers_[i])];
    if (program_.sizes.is_symbol(numbers_[i]) && known == shape::kNoSize) known = numbers[i];
  }
  for (const shape::SizeStep& step : all_) {
    const auto operand = [&](std::int32_t r) {
      return step.kind == shape::SizeStep::Kind::kConst ? shape::kNoSize
                                                        : sizes[static_cast<std::size_t>(r)];
    };
    sizes[static_cast<std::size_t>(step.out)] =
        apply(program.sizes, step, operand(step.a), operand(step.b));
  }
  for (const Node& node : program_.nodes) {
    Operands in;
    for (const ValueId v : node.inputs) in.push_back(values[static_cast<std::size_t>(v)]);
    std::vector<Attr> attrs = node.attrs;
    for (Attr& attr : attrs) {
      for (SizeId& s : attr.sizes) s = sizes[at(s)];
    }
    values[static_cast<std::size_t>(node.out)] = program.add(node.op, in, std::move(attrs));
  }
  std::vector<ValueId> results;
  for (const ValueId v : program_.outputs) results.push_back(values[static_cast<std::size_t>(v)]);
  return results;
}

namespace {

struct Templates {
  std::mutex mutex;
  std::vector<std::unique_ptr<const Template>> all;
};
Templates& templates() {
  static auto* const made = new Templates;
  return *made;
}

}  // namespace

std::int32_t add_template(std::unique_ptr<const Template> made) {
  Templates& known = templates();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(std::move(made));
  return static_cast<std::int32_t>(known.all.size() - 1);
}

const Template& find_template(std::int32_t number) {
  Templates& known = templates();
  const std::lock_guard lock(known.mutex);
  return *known.all.at(static_cast<std::size_t>(number));
}

}  // namespace tilevm::eager
