// Branches, and loops over graphs: parts are executables that run on memory of this call.
#include "host/nest.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "host/item.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;

// After so many turns of a loop, other Python threads may run.
constexpr int kTurns = 32;

struct Owned {
  Framework& framework;
  Object object;
  ~Owned() {
    if (object != nullptr) framework.drop(object);
  }
};

// The bits of a Python number that lies in memory.
std::int64_t bits_of(const Record& record, bytecode::Storage storage, DType dtype) {
  const Number read = read_number(record.data, storage);
  return is_float(dtype) ? std::bit_cast<std::int64_t>(read.real) : read.integer;
}

}  // namespace

// Finds the steps that run parts, and compares these with what the program says of the step.
void Executable::compile_nests(const Options& options) {
  const Program& program = plan_.program;
  for (HostStep& step : steps_) {
    if (step.kind != Kind::kCall) continue;
    const auto found =
        std::ranges::find(options.nests, step.target, [](const auto& nest) { return nest.first; });
    if (found == options.nests.end()) continue;
    const Nest& nest = found->second;
    const bool repeats = nest.kind == Nest::Kind::kRepeat;
    const auto same = [](const Type& a, const Type& b) {
      return a.dtype == b.dtype && a.weak == b.weak && a.shape.rank == b.shape.rank;
    };
    bool fits = nest.parts.size() == 2 &&
                (!repeats || static_cast<std::size_t>(step.n_out) <= step.args.size());
    for (std::size_t p = 0; fits && p < nest.parts.size(); ++p) {
      const Part& part = nest.parts[p];
      const Program& inner = part.executable->plan_.program;
      const bool tests = repeats && p == 0;
      // What a part leaves in its frame is told to one step.
      const bool free = part.executable->holder_ == nullptr;
      fits = free && part.executable->nested_ && part.inputs.size() == inner.inputs.size() &&
             inner.outputs.size() == (tests ? 1 : static_cast<std::size_t>(step.n_out));
      for (std::size_t i = 0; fits && i < part.inputs.size(); ++i) {
        const auto arg = static_cast<std::size_t>(part.inputs[i] + nest.first_operand());
        fits = part.inputs[i] >= 0 && arg < step.args.size() &&
               same(program.type(step.args[arg].value), inner.type(inner.inputs[i]));
      }
      for (std::size_t o = 0; fits && o < inner.outputs.size(); ++o) {
        const auto result = static_cast<ValueId>(o);
        const Type& made = inner.type(inner.outputs[o]);
        fits = !made.weak && made.dtype != DType::kOpaque &&
               (tests || same(made, program.type(step.out + result)));
      }
    }
    if (!fits) throw ShapeError("nests: a part is no executable for its step");
    for (const Part& part : nest.parts) part.executable->holder_ = this;
    step.nest = static_cast<std::int32_t>(nests_.size());
    nests_.push_back(nest);
  }
}

// Results that nobody takes as tensors stay where parts make them. `last`: by root, the last step
// that needs it; `escapes`: whether somebody takes it.
void Executable::compile_held(const std::vector<int>& last, const std::vector<bool>& escapes) {
  for (const HostStep& step : steps_) {
    if (step.nest < 0) continue;
    const Nest& nest = nests_[index(step.nest)];
    const bool repeats = nest.kind == Nest::Kind::kRepeat;
    std::vector<bool> stays;
    int until = static_cast<int>(&step - steps_.data());
    for (int r = 0; r < step.n_out; ++r) {
      const std::size_t value = index(step.out + r);
      stays.push_back(!escapes[value] &&
                      !(repeats && is_argument(step, static_cast<std::size_t>(r))));
      if (stays.back()) until = std::max(until, last[value]);
    }
    steps_[static_cast<std::size_t>(until)].let_go.push_back(step.nest);
    nest.parts[0].executable->hold(repeats ? std::vector<bool>{true} : stays);
    nest.parts[1].executable->hold(stays);
  }
}

// Leaves these outputs in memory of the frame, if each is a buffer of its own.
void Executable::hold(const std::vector<bool>& outputs) {
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const ValueId value = outputs_[o].value;
    if (!outputs[o] || held_[o] || separate_[o] != Separate::kNo || taken_[index(value)]) continue;
    for (HostStep& step : steps_) {
      if (step.kind != Kind::kAlloc || step.out != value) continue;
      step.held = n_held_++;
      held_[o] = true;
    }
  }
}

// Whether a step takes this argument as a tensor of the framework's.
bool Executable::is_argument(const HostStep& step, std::size_t arg) const {
  if (step.nest < 0) return step.target != kItemTarget;
  const Nest& nest = nests_[static_cast<std::size_t>(step.nest)];
  const int operand = static_cast<int>(arg) - nest.first_operand();
  return std::ranges::any_of(nest.parts, [&](const Part& part) {
    for (std::size_t i = 0; i < part.inputs.size(); ++i) {
      if (part.inputs[i] == operand && part.executable->needs_tensor(i)) return true;
    }
    return false;
  });
}

// What a part is given of an argument of its step.
Passed Executable::passed(Frame& frame, const Source& source, bool as_tensor) const {
  const Record& record = frame.records[index(source.value)];
  switch (source.kind) {
    case Source::Kind::kTensor:
      return {&record, 0, as_tensor ? tensor(frame, source.value) : nullptr};
    case Source::Kind::kInput:
      return {nullptr, frame.numbers[index(source.value)], nullptr};
    case Source::Kind::kSize:
      return {nullptr, frame.regs[static_cast<std::size_t>(source.size)], nullptr};
    case Source::Kind::kConstant:
      return {nullptr, source.bits, nullptr};
    case Source::Kind::kNumber:
      break;
  }
  const DType dtype = plan_.program.type(source.value).dtype;
  return {nullptr, bits_of(record, source.storage, dtype), nullptr};
}

// Runs a part. carried: where the first operands lie, and their tensors; null: they are those of
// the step, too.
void Executable::run_part(Frame& frame, const HostStep& step, const Part& part,
                          const Record* carried, const Object* tensors, std::span<Object> results,
                          Record* records, Kept& kept) const {
  const int first = nests_[static_cast<std::size_t>(step.nest)].first_operand();
  if (frame.passed.size() < part.inputs.size()) frame.passed.resize(part.inputs.size());
  const Program& inner = part.executable->plan_.program;
  for (std::size_t i = 0; i < part.inputs.size(); ++i) {
    const int operand = part.inputs[i];
    const auto at = static_cast<std::size_t>(operand);
    if (carried != nullptr && operand < step.n_out) {
      const Type& type = inner.type(inner.inputs[i]);
      if (type.weak) {  // an int
        const std::int64_t bits = bits_of(carried[at], fuse::storage_of(type.dtype), type.dtype);
        frame.passed[i] = {nullptr, bits, nullptr};
      } else {
        frame.passed[i] = {carried + at, 0, tensors[at]};
      }
    } else {
      frame.passed[i] = passed(frame, step.args[at + static_cast<std::size_t>(first)],
                               part.executable->needs_tensor(i));
    }
  }
  Call call{{}, results};
  call.passed = frame.passed.data();
  call.results = records;
  part.executable->run(call, &kept);
}

void Executable::branch(Frame& frame, const HostStep& step, const Nest& nest) const {
  const ValueId decides = step.args[0].value;
  const bool first =
      is_true(frame.records[index(decides)], plan_.program.type(decides).dtype, "a branch");
  const auto n = static_cast<std::size_t>(step.n_out);
  const std::span<Object> results(frame.args.data() + most_args_, n);
  run_part(frame, step, nest.parts[first ? 0 : 1], nullptr, nullptr, results,
           &frame.records[index(step.out)], frame.kept[index(step.nest)]);
  std::ranges::copy(results, frame.tensors.begin() + step.out);
}

void Executable::repeat(Frame& frame, const HostStep& step, const Nest& nest) const {
  const auto n = static_cast<std::size_t>(step.n_out);
  const Part &test = nest.parts[0], &body = nest.parts[1];
  const Type& decides =
      test.executable->plan_.program.type(test.executable->plan_.program.outputs[0]);
  if (frame.carried.size() < 2 * n) frame.carried.resize(2 * n);
  Record *now = frame.carried.data(), *next = now + n;
  std::span<Object> held(frame.args.data(), n), made(frame.args.data() + most_args_, n);
  bool any = false;
  Kept kept;  // where what is carried lies that is no tensor
  const auto drop_held = [&] {
    for (std::size_t r = 0; any && r < n; ++r) {
      if (held[r] != nullptr) framework_.drop(held[r]);
    }
  };
  try {
    for (int turn = 1;; ++turn) {
      Object truth = nullptr;
      Record where;  // of what decides
      Kept kept_truth, kept_next;
      run_part(frame, step, test, any ? now : nullptr, held.data(), {&truth, 1}, &where,
               kept_truth);
      const Owned owned{framework_, truth};
      if (!is_true(where, decides.dtype, "the test of a loop")) break;
      run_part(frame, step, body, any ? now : nullptr, held.data(), made, next, kept_next);
      drop_held();
      kept = std::move(kept_next);
      std::swap(held, made);
      std::swap(now, next);
      any = true;
      framework_.pause(turn % kTurns == 0);
    }
    for (std::size_t r = 0; !any && r < n; ++r) {
      // What was given to the step is not its to give away.
      const ValueId value = step.args[r].value;
      const Type& type = plan_.program.type(value);
      std::int64_t bits = 0;
      Record number;
      if (type.weak) {
        bits = passed(frame, step.args[r], false).number;
        number.data = reinterpret_cast<std::byte*>(&bits);
      }
      Object& tensor = frame.tensors[index(step.out) + r];
      tensor = copied(type.weak ? number : frame.records[index(value)], type.dtype, {}, false,
                      &frame.records[index(step.out) + r]);
    }
  } catch (...) {
    drop_held();
    throw;
  }
  if (!any) return;
  frame.kept[index(step.nest)] = std::move(kept);
  std::ranges::copy(held, frame.tensors.begin() + step.out);
  std::copy_n(now, n, frame.records.begin() + step.out);
}

void Executable::run_nest(Frame& frame, const HostStep& step) const {
  const Nest& nest = nests_[static_cast<std::size_t>(step.nest)];
  const trace::Span span(nest.kind == Nest::Kind::kBranch ? "branch" : "repeat");
  nest.kind == Nest::Kind::kBranch ? branch(frame, step, nest) : repeat(frame, step, nest);
  for (ValueId value = step.out; value < step.out + step.n_out; ++value)
    frame.records[index(value)].root = frame.tensors[index(value)] != nullptr ? value : -1;
  if (step.stage >= 0) run_stage(frame, step.stage);
}

}  // namespace tilevm::host
