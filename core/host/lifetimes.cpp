// Who owns the memory of each value, and from which step to which it is needed.
#include <algorithm>

#include "host/executable.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;

constexpr int kForever = INT32_MAX;

}  // namespace

// Who owns each buffer, how long it lives, and where it lies.
void Executable::compile_memory() {
  Program& program = plan_.program;
  std::vector<int> last(program.values.size(), -1);
  std::vector<bool> escapes(program.values.size(), false);
  std::vector<int> last_tensor(program.values.size(), -1);  // step that takes the value as a tensor
  const auto touch = [&](ValueId value, int step) {
    for (const ValueId root : roots_[index(value)]) {
      last[index(root)] = std::max(last[index(root)], step);
    }
  };
  const auto escape = [&](const Source& source, int step) {
    if (source.kind != Source::Kind::kTensor) {
      if (source.kind == Source::Kind::kNumber) touch(source.value, step);
      return;
    }
    touch(source.value, step);
    last_tensor[index(source.value)] = step;
    for (const ValueId root : roots_[index(source.value)]) escapes[index(root)] = true;
  };
  is_read_.assign(program.values.size(), false);
  const auto read = [&](ValueId value) {
    for (const ValueId root : roots_[index(value)]) is_read_[index(root)] = true;
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const HostStep& step = steps_[i];
    const int now = static_cast<int>(i);
    if (step.in >= 0) touch(step.in, now);
    if (step.kind == Kind::kReshape) read(step.in);
    if (step.kind == Kind::kCall) {
      for (std::size_t a = 0; a < step.args.size(); ++a) {
        read(step.args[a].value);
        if (is_argument(step, a)) {
          escape(step.args[a], now);
        } else {
          touch(step.args[a].value, now);
        }
      }
      for (int r = 0; r < step.n_out; ++r) touch(step.out + r, now);
    } else if (step.out >= 0) {
      touch(step.out, now);
    }
    visit_operands(step, [&](ValueId value, bool written) {
      touch(value, now);
      if (!written) read(value);
    });
  }
  taken_ = escapes;
  // What is written to an input escapes if it lies in other memory first.
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    const bool may_take_place =
        targets_[o] >= 0 && outputs_[o].kind == Source::Kind::kTensor &&
        roots_[index(outputs_[o].value)] == std::vector<ValueId>{outputs_[o].value};
    if (!may_take_place) escape(outputs_[o], kForever);
  }
  if (writes_) place_targets(last, escapes);
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (targets_[o] >= 0) escape(outputs_[o], kForever);
  }

  compile_held(last, escapes);
  for (HostStep& step : steps_) {
    if (step.kind != Kind::kAlloc && step.kind != Kind::kReshape) continue;
    step.owned = escapes[index(step.out)];
    if (step.owned) holders_.push_back(step.out);
    places_ = places_ || step.place >= 0;
  }
  for (const HostStep& step : steps_) {
    for (int r = 0; step.kind == Kind::kCall && r < step.n_out; ++r)
      holders_.push_back(step.out + r);
  }
  // Views made for call-outs and outputs hold tensors too.
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    if (last_tensor[v] < 0 || roots_[v].empty() || roots_[v].front() == value) continue;
    if (std::find(holders_.begin(), holders_.end(), value) == holders_.end())
      holders_.push_back(value);
  }
  for (const ValueId holder : holders_) {
    const bool is_root = std::find(roots_[index(holder)].begin(), roots_[index(holder)].end(),
                                   holder) != roots_[index(holder)].end();
    const int until = std::max(is_root ? last[index(holder)] : -1, last_tensor[index(holder)]);
    if (until >= 0 && until != kForever)
      steps_[static_cast<std::size_t>(until)].release.push_back(holder);
  }

  const std::vector<int> writer = writers();
  std::vector<std::vector<std::size_t>> dying(steps_.size());  // lifetimes, by their last step
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const HostStep& step = steps_[i];
    if ((step.kind != Kind::kAlloc && step.kind != Kind::kReshape) || step.owned || step.is_view)
      continue;
    const SizeId elements = program.sizes.product(program.type(step.out).shape.span());
    const SizeId bytes = program.sizes.mul(elements, program.sizes.constant(step.item_bytes));
    Lifetime life{step.out, bytes, 0, static_cast<int>(i), last[index(step.out)], step.order};
    const int at = writer[index(step.out)];
    if (step.kind == Kind::kAlloc && at >= 0) {
      for (const std::size_t other : dying[static_cast<std::size_t>(at)]) {
        Lifetime& dies = lifetimes_[other];
        if (life.over >= 0 || dies.is_replaced || dies.order != step.order) continue;
        if (roots_[index(dies.value)].size() != 1) continue;
        if (!may_replace(steps_[static_cast<std::size_t>(at)], dies.value, step.out)) continue;
        life.over = dies.value;
        dies.is_replaced = true;
      }
    }
    dying[static_cast<std::size_t>(life.last)].push_back(lifetimes_.size());
    lifetimes_.push_back(life);
  }
}

}  // namespace tilevm::host
