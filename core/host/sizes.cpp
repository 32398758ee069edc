#include "host/sizes.h"

#include <algorithm>

#include "host/errors.h"

namespace tilevm::host {
namespace {

constexpr int kNever = -1;
constexpr int kUnbound = -1;

std::size_t at(SizeId id) { return static_cast<std::size_t>(id); }

}  // namespace

void SizeProgram::bind(const shape::SizeTable& sizes, const Dim& source, SizeId symbol, int stage) {
  bound_[at(symbol)] = stage;
  const shape::Range range = sizes.range(symbol);
  // Later stages bring items of tensors too, which may be negative.
  const bool is_dim = source.dim >= 0 && source.size == symbol && stage == 0;
  const std::int64_t least = is_dim ? 0 : INT64_MIN;
  if (range.min > least || range.max != INT64_MAX || range.multiple_of > 1) {
    stages_.back().ranges.push_back({source, symbol, range});
  }
}

int SizeProgram::add_stage(const Program& program, std::span<const Arrival> arrivals,
                           std::span<const IntSymbol> ints) {
  const shape::SizeTable& sizes = program.sizes;
  const int index = stages();
  bound_.resize(static_cast<std::size_t>(sizes.count()), kUnbound);
  Stage& stage = stages_.emplace_back();
  for (const IntSymbol& source : ints) {
    stage.ints.push_back(source);
    if (bound_[at(source.symbol)] != kUnbound) continue;
    const auto name = static_cast<std::int32_t>(names_.size());
    names_.push_back(source.name);
    bind(sizes, {source.value, -1, source.symbol, name}, source.symbol, index);
  }
  for (const Arrival& arrival : arrivals) {
    const Type& type = program.type(arrival.value);
    const auto name = static_cast<std::int32_t>(names_.size());
    names_.push_back(arrival.name);
    for (int d = 0; d < type.shape.rank; ++d) {
      const SizeId size = type.shape[d];
      const Dim dim{arrival.value, d, size, name};
      if (sizes.is_symbol(size) && bound_[at(size)] == kUnbound) {
        stage.binds.push_back(dim);
        bind(sizes, dim, size, index);
      } else {
        stage.dims.push_back(dim);
      }
    }
  }
  solve(sizes, index);
  return index;
}

// A symbol may occur only inside an expression, as in an input of 2*n rows. Solves those that are
// linear in one unbound symbol; the equality check of the dim then covers the remainder.
void SizeProgram::solve(const shape::SizeTable& sizes, int index) {
  Stage& stage = stages_.back();
  std::vector<std::int64_t> regs;
  bool progress = true;
  while (progress) {
    progress = false;
    for (const Dim& dim : stage.dims) {
      if (sizes.value(dim.size)) continue;
      const SizeId wanted[] = {dim.size};
      const std::vector<shape::SizeStep> steps = sizes.compile(wanted);
      SizeId unknown = shape::kNoSize;
      int n_symbols = 0;
      std::size_t n = at(dim.size) + 1;
      for (const shape::SizeStep& s : steps) {
        n = std::max(n, static_cast<std::size_t>(std::max({s.out, s.a, s.b})) + 1);
      }
      const auto look = [&](std::int32_t r) {
        if (r < 0 || r >= sizes.count() || !sizes.is_symbol(SizeId{r})) return;
        if (SizeId{r} == unknown) return;
        if (bound_[static_cast<std::size_t>(r)] == kUnbound) unknown = SizeId{r};
        ++n_symbols;
      };
      for (const shape::SizeStep& s : steps) {
        if (s.kind == shape::SizeStep::Kind::kConst) continue;
        look(s.a);
        look(s.b);
      }
      if (unknown == shape::kNoSize || n_symbols != 1) continue;
      const auto value = [&](std::int64_t x) {
        regs.assign(n, 0);
        regs[at(unknown)] = x;
        shape::evaluate(steps, regs);
        return regs[at(dim.size)];
      };
      const std::int64_t b = value(0), a = value(1) - b, far = 1'000'003;
      if (a == 0 || value(2) != 2 * a + b || value(far) != far * a + b) continue;
      stage.solved.push_back({dim, unknown, a, b});
      bind(sizes, dim, unknown, index);
      progress = true;
    }
  }
}

void SizeProgram::compile(const Program& program, std::span<const SizeId> wanted) {
  const shape::SizeTable& sizes = program.sizes;
  bound_.resize(static_cast<std::size_t>(sizes.count()), kUnbound);
  std::vector<SizeId> all(wanted.begin(), wanted.end());
  for (const Stage& stage : stages_) {
    for (const Dim& dim : stage.dims) all.push_back(dim.size);
  }
  for (const Check& check : program.checks) {
    all.push_back(check.a);
    all.push_back(check.b);
    messages_.push_back(check.message);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const std::vector<shape::SizeStep> steps = sizes.compile(all);

  n_registers_ = sizes.count();
  for (const shape::SizeStep& step : steps) n_registers_ = std::max(n_registers_, step.out + 1);
  initial_.assign(static_cast<std::size_t>(n_registers_), 0);
  stage_.assign(static_cast<std::size_t>(n_registers_), kNever);
  for (std::size_t i = 0; i < bound_.size(); ++i) {
    if (bound_[i] != kUnbound) stage_[i] = bound_[i];
  }
  for (const SizeId size : all) {
    if (const auto value = sizes.value(size)) {
      initial_[at(size)] = *value;
      stage_[at(size)] = 0;
    }
  }
  const auto stage_of_register = [&](std::int32_t r) {
    const int stage = stage_[static_cast<std::size_t>(r)];
    if (stage == kNever) {
      throw ShapeError("size " + (r < sizes.count() ? sizes.print(SizeId{r}) : std::string("?")) +
                       " is not determined by the sizes of any input or call-out");
    }
    return stage;
  };
  for (const shape::SizeStep& step : steps) {
    const auto out = static_cast<std::size_t>(step.out);
    if (step.kind == shape::SizeStep::Kind::kConst) {
      initial_[out] = step.value;
      stage_[out] = 0;
      continue;
    }
    const int stage = std::max(stage_of_register(step.a), stage_of_register(step.b));
    stage_[out] = stage;
    stages_[static_cast<std::size_t>(stage)].steps.push_back(step);
  }
  for (const SizeId size : all) stage_of_register(static_cast<std::int32_t>(size));
  for (std::size_t i = 0; i < program.checks.size(); ++i) {
    const Check& check = program.checks[i];
    if (check.a == check.b) continue;
    const int stage = std::max(stage_of(check.a), stage_of(check.b));
    stages_[static_cast<std::size_t>(stage)].equal.push_back(
        {check.a, check.b, static_cast<std::int32_t>(i)});
  }
}

void SizeProgram::fail(const Dim& dim, const shape::SizeTable& sizes, std::int64_t expected,
                       std::int64_t actual) const {
  std::string what =
      names_[static_cast<std::size_t>(dim.name)] + ": dim " + std::to_string(dim.dim) + " must be ";
  if (!sizes.value(dim.size)) what += sizes.print(dim.size) + " = ";
  throw ShapeError(what + std::to_string(expected) + ", but is " + std::to_string(actual));
}

void SizeProgram::run(int index, const shape::SizeTable& sizes, std::span<const Record> records,
                      std::span<const std::int64_t> ints, std::span<std::int64_t> regs) const {
  const Stage& stage = stages_[static_cast<std::size_t>(index)];
  const auto actual = [&](const Dim& dim) {
    return records[static_cast<std::size_t>(dim.value)].size(dim.dim);
  };
  for (const IntSymbol& source : stage.ints) {
    regs[at(source.symbol)] = ints[static_cast<std::size_t>(source.value)];
  }
  for (const Dim& dim : stage.binds) regs[at(dim.size)] = actual(dim);
  for (const Linear& linear : stage.solved) {
    regs[at(linear.symbol)] = (actual(linear.dim) - linear.b) / linear.a;
  }
  for (const Bound& bound : stage.ranges) {
    const std::int64_t value = regs[at(bound.symbol)];
    const shape::Range& range = bound.range;
    if (value >= range.min && value <= range.max &&
        (range.multiple_of <= 1 || value % range.multiple_of == 0)) {
      continue;
    }
    std::string what = names_[static_cast<std::size_t>(bound.source.name)] + ": ";
    if (bound.source.dim >= 0) what += "dim " + std::to_string(bound.source.dim) + ", ";
    what += sizes.print(bound.symbol) + ", must be ";
    what += range.max == INT64_MAX ? "at least " + std::to_string(range.min)
                                   : std::to_string(range.min) + " to " + std::to_string(range.max);
    if (range.multiple_of > 1) what += " and a multiple of " + std::to_string(range.multiple_of);
    throw ShapeError(what + ", but is " + std::to_string(value));
  }
  shape::evaluate(stage.steps, regs);
  for (const Dim& dim : stage.dims) {
    if (regs[at(dim.size)] != actual(dim)) fail(dim, sizes, regs[at(dim.size)], actual(dim));
  }
  for (const IntSymbol& source : stage.ints) {
    if (regs[at(source.symbol)] != ints[static_cast<std::size_t>(source.value)]) {
      throw ShapeError("two integers for one size, " + sizes.print(source.symbol));
    }
  }
  for (const Equal& equal : stage.equal) {
    if (regs[at(equal.a)] == regs[at(equal.b)]) continue;
    throw ShapeError(messages_[static_cast<std::size_t>(equal.check)] + ": " +
                     sizes.print(equal.a) + " = " + std::to_string(regs[at(equal.a)]) + " and " +
                     sizes.print(equal.b) + " = " + std::to_string(regs[at(equal.b)]));
  }
}

}  // namespace tilevm::host
