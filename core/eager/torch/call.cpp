#include "eager/torch/call.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <cstdlib>

#include "eager/torch/record.h"

namespace tilevm::eager {

std::vector<std::int64_t> Call::integers(std::size_t i) const {
  const c10::IValue& v = arg(i);
  if (v.isIntList()) return v.toIntVector();
  if (v.isList() && v.toListRef().empty()) return {};
  if (v.isInt()) return {v.toInt()};
  refuse("symbolic sizes");
}

int Call::wrap(std::int64_t axis, int rank) {
  const int n = rank == 0 ? 1 : rank;
  if (axis < -n || axis >= n) refuse("no such axis");
  return static_cast<int>(axis < 0 ? axis + n : axis);
}

std::vector<std::int64_t> Call::axes(std::size_t i, int rank) const {
  std::vector<std::int64_t> axes;
  if (!none(i)) axes = integers(i);
  if (rank == 0) return {};
  if (axes.empty()) {
    for (int d = 0; d < rank; ++d) axes.push_back(d);
    return axes;
  }
  for (std::int64_t& a : axes) a = wrap(a, rank);
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end()) refuse("an axis is named twice");
  return axes;
}

DType Call::dtype(std::size_t i, DType otherwise) const {
  if (none(i)) return otherwise;
  const DType dtype = dtype_of(arg(i).toScalarType());
  if (dtype == DType::kOpaque) refuse("a dtype that kernels do not have");
  return dtype;
}

Value Call::value(const at::Tensor& tensor) {
  const Value v = value_of(recording_, tensor);
  if (v == kNoValue) refuse("a tensor that no kernel takes");
  return v;
}

Value Call::pairs(const at::Tensor& tensor) {
  const Value v = pairs_of(recording_, tensor);
  if (v == kNoValue) refuse("complex numbers that no kernel takes");
  return v;
}

Value Call::value(std::size_t i) {
  const c10::IValue& v = arg(i);
  if (v.isTensor()) return value(v.toTensor());
  if (v.isDouble()) {
    need_fit(v.toDouble());
    return trace().number(v.toDouble());
  }
  if (v.isBool()) return trace().boolean(v.toBool());
  if (v.isInt()) {
    need_fit(v.toInt());
    return trace().number(v.toInt());
  }
  refuse("an argument that is no tensor and no number");
}

// Operators that take a number in the dtype of a tensor raise if that has no such number. Some take
// it in another one: they are left to PyTorch as well.
template <class Number>
void Call::need_fit(Number number) const {
  constexpr bool kWhole = std::is_integral_v<Number>;  // -1 is 255 in uint8; -1.5 is nothing
  if (number >= (kWhole ? -128 : 0) && number <= 127) return;
  at::ScalarType type = at::kBool;
  for (std::size_t i = 0; i < n_args_ && type == at::kBool; ++i) {
    if (is_tensor(i)) type = tensor(i).scalar_type();
  }
  if (!fits(number, beside(number, type))) refuse("a number that the dtype does not have");
}

void Call::push(const Result& result) {
  if (results_.size() == kMostResults) refuse("very many results");
  results_.push_back(result);
}

void Call::result(Value v, const host::Geometry& geometry, bool complex) {
  push({v, geometry, -1, 0, complex});
}

void Call::contiguous(Value v) {
  const Meta& m = meta(v);
  host::Geometry g;
  g.rank = m.rank;
  g.sizes = m.sizes;
  set_dense_strides(g);
  push({v, g});
}

void Call::preserve(Value v) {
  const at::Tensor& x = tensor(0);
  host::Geometry g = geometry_of(x);
  if (!x.is_non_overlapping_and_dense()) {
    std::ranges::copy(at::infer_dense_strides(x.sizes(), x.strides()), g.strides.begin());
  }
  result(v, g);
}

void Call::in_format(Value v, std::size_t i) {
  const Meta& m = meta(v);
  const at::MemoryFormat format = none(i) ? at::MemoryFormat::Preserve : arg(i).toMemoryFormat();
  if (format == at::MemoryFormat::Preserve) return preserve(v);
  if (format == at::MemoryFormat::Contiguous) return contiguous(v);
  if (m.rank != (format == at::MemoryFormat::ChannelsLast ? 4 : 5)) {
    refuse("a memory format of other ranks");
  }
  host::Geometry g;
  g.rank = m.rank;
  g.sizes = m.sizes;
  const auto strides = m.rank == 4 ? at::get_channels_last_strides_2d(m.shape())
                                   : at::get_channels_last_strides_3d(m.shape());
  std::ranges::copy(strides, g.strides.begin());
  result(v, g);
}

void Call::elementwise(Value v) {
  constexpr std::array<std::size_t, 4> kOrder{0, 1, 2, 3};
  elementwise(v, std::span(kOrder).first(std::min(n_args_, kOrder.size())));
}

void Call::elementwise(Value v, std::span<const std::size_t> order) {
  const Meta& m = meta(v);
  if (m.weak) refuse("a result that is a number");
  std::array<host::Geometry, 4> geometries;
  std::array<const host::Geometry*, 4> operands{};
  std::size_t n = 0;
  for (const std::size_t i : order) {
    if (arg(i).isTensor()) {
      const at::Tensor& x = tensor(i);
      const bool converted = i > 0 || !condition_;
      geometries[n] = converted ? geometry_in(x, computed_.value_or(m.dtype)) : geometry_of(x);
    } else if (!arg(i).isScalar() || !numbers_ || i > 1) {
      continue;
    }
    operands[n] = &geometries[n];
    ++n;
  }
  host::Geometry g;
  g.rank = m.rank;
  g.sizes = m.sizes;
  elementwise_strides({operands.data(), n}, g);
  push({v, g});
}

void Call::view(std::size_t of, Value v, const host::Geometry& geometry, std::int64_t offset,
                bool complex) {
  push({v, geometry, static_cast<int>(of), offset, complex});
}

void Call::conjugate_view(std::size_t of) {
  const at::Tensor& x = tensor(of);
  if (!x.is_complex() || x.dim() == kMaxRank) refuse("not complex, or too many dims");
  push({pairs(x), parts_of(geometry_of(x)), static_cast<int>(of), 0, true, true});
}

// ---- Recording

std::map<std::string, Row>& installed_rows() {
  static auto* const rows = new std::map<std::string, Row>;
  return *rows;
}

namespace {

// Whether its operands are tensors that can be recorded. Those that another thread recorded are
// filled.
bool prepare(Place place, const torch::jit::Stack& stack, std::size_t n_args,
             const Recording& mine) {
  bool any = place == Place::kMaker;
  if (c10::get_default_dtype_as_scalartype() != at::kFloat) return false;
  for (std::size_t i = stack.size() - n_args; i < stack.size(); ++i) {
    const bool ok = every_tensor(stack[i], [&](const at::Tensor& t) {
      any = true;
      if (!is_plain(t) && !is_plain_but_conjugated(t)) return false;
      if (place != Place::kMaker) fill_foreign(mine, t);
      return true;
    });
    if (!ok) return false;
  }
  return any;
}

}  // namespace

bool record_row(const Row& row, Place place, bool product, torch::jit::Stack& stack,
                std::size_t n_args) {
  const c10::IValue& first = stack[stack.size() - n_args];
  const LazyImpl* viewed = nullptr;
  if (place == Place::kView) {
    if (!first.isTensor() || !first.toTensor().defined()) return false;
    viewed = lazy(first.toTensor());
    if (viewed == nullptr || viewed->pending() == nullptr) return false;
  }
  Recording& mine = Recording::mine();
  if (!prepare(place, stack, n_args, mine)) return false;
  for (std::size_t i = stack.size() - n_args + 1; in_place(place) && i < stack.size(); ++i) {
    const bool apart = every_tensor(
        stack[i], [&](const at::Tensor& t) { return !overlaps_in_part(first.toTensor(), t); });
    if (!apart) return false;
  }
  std::unique_lock lock(mine.mutex);
  // Another thread may have filled it since.
  if (viewed != nullptr && viewed->pending() == nullptr) return false;
  if (product) begin_product(mine, lock);
  Call call(stack, n_args, mine);
  std::array<at::Tensor, kMostResults> results;
  std::size_t n = 0;
  try {
    row(call);
    if (call.declined()) return false;
    if (in_place(place)) {
      if (!assign(mine, first.toTensor(), call.results()[0].value)) return false;
      results[n++] = first.toTensor();
    } else {
      for (const Call::Result& r : call.results()) {
        at::Tensor& made = results[n++];
        if (r.of >= 0) {
          made = mine.view(call.tensor(static_cast<std::size_t>(r.of)), r.value, r.geometry,
                           r.offset, r.complex);
          if (r.turned) made._set_conj(!made.is_conj());
        } else {
          made = mine.make(r.value, r.geometry, call.constant());
          if (r.complex) made = mine.view(made, r.value, r.geometry, 0, true);
        }
      }
    }
  } catch (const Unrecorded&) {
    return false;
  }
  if (mine.trace.operators() >= kMostOperators) {
    mine.flush(lock, "length");
  } else {
    lock.unlock();  // what goes now may need Python's lock, whose holder may wait for this one
  }
  const bool list = call.as_list();
  torch::jit::drop(stack, n_args);
  if (list) {
    stack.emplace_back(std::vector<at::Tensor>(
        std::make_move_iterator(results.begin()),
        std::make_move_iterator(results.begin() + static_cast<std::ptrdiff_t>(n))));
  } else {
    for (std::size_t i = 0; i < n; ++i) stack.emplace_back(std::move(results[i]));
  }
  return true;
}

// ---- Rows from text

namespace {

struct Term {
  enum class Kind : std::uint8_t { kArgument, kStep, kLiteral } kind;
  std::size_t index = 0;
  double literal = 0;
};

struct Step {
  Op op = Op::mul;
  bool scale = false;
  std::vector<Term> operands;
};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> result;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    if (const std::string part = trimmed(text.substr(start, end - start)); !part.empty()) {
      result.push_back(part);
    }
    start = end + 1;
  }
  return result;
}

bool is_one(const c10::IValue& v) {
  if (!v.isScalar() || v.isBool()) return false;
  const at::Scalar number = v.toScalar();
  return !number.isComplex() && number.toDouble() == 1;
}

}  // namespace

namespace {

// A factor multiplies in the dtype of the result, and so is computed what it multiplies: of operands
// that all have it.
void need_one_dtype(Call& c, Value scaled) {
  if (!is_float(c.meta(scaled).dtype)) Call::refuse("a factor of integers");
  for (std::size_t i = 0; i < c.n_args(); ++i) {
    if (c.is_tensor(i) && dtype_of(c.tensor(i).scalar_type()) != c.meta(scaled).dtype) {
      Call::refuse("a factor of mixed dtypes");
    }
  }
}

}  // namespace

std::optional<Op> single_operator(const std::string& text) {
  const std::size_t space = text.find(' ', 4);
  if (!text.starts_with("r = ") || space == std::string::npos) return std::nullopt;
  const std::string operands = text.substr(space);
  if (operands != " x" && operands != " x, y") return std::nullopt;
  return op_from_name(text.substr(4, space - 4));
}

Row text_row(const std::string& text) {
  std::vector<Step> steps;
  std::map<std::string, std::size_t> names;
  const std::string arguments = "xyzw";
  for (const std::string& line : parts(text, ';')) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("no `=` in: " + line);
    const std::string right = trimmed(line.substr(equals + 1));
    const std::size_t space = std::min(right.find(' '), right.size());
    Step step;
    const std::string name = right.substr(0, space);
    step.scale = name == "scale";
    if (!step.scale) {
      const auto op = op_from_name(name);
      if (!op) throw std::invalid_argument("no such operator: " + name);
      step.op = *op;
    }
    for (const std::string& operand : parts(right.substr(space), ',')) {
      if (const auto found = names.find(operand); found != names.end()) {
        step.operands.push_back({Term::Kind::kStep, found->second, 0});
      } else if (operand.size() == 1 && arguments.find(operand) != std::string::npos) {
        step.operands.push_back({Term::Kind::kArgument, arguments.find(operand), 0});
      } else {
        char* end = nullptr;
        const double literal = std::strtod(operand.c_str(), &end);
        if (*end != '\0') throw std::invalid_argument("what is `" + operand + "` in: " + line);
        step.operands.push_back({Term::Kind::kLiteral, 0, literal});
      }
    }
    names[trimmed(line.substr(0, equals))] = steps.size();
    steps.push_back(std::move(step));
  }
  if (steps.empty()) throw std::invalid_argument("an empty row");
  const bool numbers = single_operator(text).has_value() && steps[0].operands.size() == 2;
  const bool single = single_operator(text).has_value();
  return [steps, numbers, single](Call& c) {
    if (numbers) c.numbers_are_operands();
    if (steps[0].op == Op::where) c.condition_first();
    std::array<Value, 32> made{};
    std::array<Value, 4> arguments;
    arguments.fill(kNoValue);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      std::array<Value, 4> in{};
      std::size_t n = 0;
      bool skip = false;
      for (const Term& operand : step.operands) {
        if (operand.kind == Term::Kind::kStep) {
          in[n++] = made[operand.index];
        } else if (operand.kind == Term::Kind::kLiteral) {
          in[n++] = c.trace().constant(operand.literal);
        } else if (step.scale && n == 1 && is_one(c.arg(operand.index))) {
          skip = true;
        } else {
          Value& argument = arguments[operand.index];
          if (argument == kNoValue) argument = c.value(operand.index);
          in[n++] = argument;
        }
      }
      const bool of_some = step.operands[0].kind == Term::Kind::kStep;
      if (step.scale && (!skip || of_some)) need_one_dtype(c, in[0]);
      made[s] = skip ? in[0] : c.trace().add(step.op, std::span<const Value>(in.data(), n));
      if (single && c.meta(made[s]).dtype == DType::kBool) {
        c.computed_in(c.trace().common_dtype(Op::add, std::span<const Value>(in.data(), n)));
      }
    }
    c.elementwise(made[steps.size() - 1]);
  };
}

}  // namespace tilevm::eager
