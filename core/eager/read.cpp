#include <algorithm>
#include <bit>

#include "eager/trace.h"
#include "eager/words.h"

namespace tilevm::eager {
namespace {

std::size_t at(Value v) { return static_cast<std::size_t>(v); }

// Goes over the words twice: for the sizes that reshapes relate, then for the operators.
class Reader {
 public:
  Reader(std::span<const std::uint32_t> words) : words_(words) {}

  Program run(std::vector<int>& symbols, std::vector<OutputPlace>& outputs) {
    walk(
        [&](std::uint32_t, std::span<const std::uint32_t> dims) {
          for (const std::uint32_t s : dims) see(s, true);
        },
        [&](Op op, std::span<const std::uint32_t>) { scan(op); },
        [&](const Template& made, std::span<const std::uint32_t>) {
          for (const std::uint32_t s : take(made.n_numbers())) see(s, false);
        },
        [](auto&&...) {});
    symbol_.resize(used_.size(), shape::kNoSize);
    for (std::uint32_t s = 0; s < used_.size(); ++s) resolve(s);
    Program& p = program_;
    walk(
        [&](std::uint32_t word, std::span<const std::uint32_t> dims) {
          Type type{static_cast<DType>(word & 0xff), (word >> 8 & 1) != 0, {}};
          for (const std::uint32_t s : dims) type.shape.push(size(s));
          values_.push_back(p.input(type));
        },
        [&](Op op, std::span<const std::uint32_t> in) {
          Operands operands;
          for (const std::uint32_t v : in) operands.push_back(values_[v]);
          values_.push_back(p.add(op, operands, attributes(op)));
        },
        [&](const Template& made, std::span<const std::uint32_t> in) {
          Operands operands;
          for (const std::uint32_t v : in) operands.push_back(values_[v]);
          std::vector<SizeId> numbers;
          for (const std::uint32_t s : take(made.n_numbers())) numbers.push_back(size(s));
          const auto results = made.append_to(p, operands, numbers);
          values_.insert(values_.end(), results.begin(), results.end());
        },
        [&](Value v, std::span<const std::uint32_t> order, Value target) {
          p.outputs.push_back(values_[at(v)]);
          OutputPlace& place = outputs.emplace_back();
          place.order.assign(order.begin(), order.end());
          if (target == kNoValue) return;
          const auto input = std::ranges::find(p.inputs, values_[at(target)]);
          place.target = static_cast<int>(input - p.inputs.begin());
        });
    symbols.assign(used_.size(), -1);
    for (std::size_t s = 2; s < used_.size(); ++s) {
      if (!used_[s] || !factors_[s].empty() || bound_[s]) continue;
      symbols[s] = static_cast<int>(p.inputs.size());
      p.input({DType::kInt64, true, {}});
    }
    return std::move(program_);
  }

 private:
  template <class OnInput, class OnOperator, class OnTemplate, class OnOutput>
  void walk(OnInput&& on_input, OnOperator&& on_operator, OnTemplate&& on_template,
            OnOutput&& on_output) {
    next_ = 0;
    while (next_ < words_.size()) {
      const std::uint32_t word = words_[next_++];
      const std::uint32_t n = word >> 16 & 0x3fff;
      if ((word & kInputWord) != 0) {
        on_input(word, take(n));
        continue;
      }
      if ((word & 0xffff) == kTemplateWord) {
        const auto operands = take(n);
        on_template(find_template(static_cast<std::int32_t>(take(1)[0])), operands);
        continue;
      }
      const auto op = static_cast<Op>(word & 0xffff);
      if (op == Op::call) {
        const auto value = static_cast<Value>(words_[next_++]);
        const bool targets = (word & kTargetWord) != 0;
        const Value target = targets ? static_cast<Value>(words_[next_++]) : kNoValue;
        on_output(value, take(n), target);
        continue;
      }
      on_operator(op, take(n));
    }
  }

  std::span<const std::uint32_t> take(std::size_t n) {
    next_ += n;
    return words_.subspan(next_ - n, n);
  }

  void see(std::uint32_t s, bool bound) {
    if (used_.size() <= s) {
      used_.resize(s + 1);
      factors_.resize(s + 1);
      bound_.resize(s + 1);
    }
    used_[s] = true;
    if (bound) bound_[s] = true;
  }

  // First pass: the sizes that an operator's parameters name, and what a reshape says of them.
  void scan(Op op) {
    for (const ParamInfo& param : info(op).params()) {
      switch (param.kind) {
        case ParamKind::kSize:
          see(take(1)[0], false);
          break;
        case ParamKind::kSizes:
          for (const std::uint32_t s : take(take(1)[0])) see(s, false);
          break;
        case ParamKind::kAxes:
          take(take(1)[0]);
          break;
        case ParamKind::kNumber:
          take(2);
          break;
        default:
          take(1);
      }
    }
    if (op != Op::reshape) return;
    for (std::uint32_t equations = take(1)[0]; equations > 0; --equations) {
      const std::uint32_t n = take(1)[0];
      const std::uint32_t whole = take(1)[0];
      const auto factors = take(n);
      see(whole, false);
      for (const std::uint32_t s : factors) see(s, false);
      if (whole < 2 || !factors_[whole].empty()) continue;
      const bool circular =
          std::ranges::any_of(factors, [&](std::uint32_t s) { return depends(s, whole); });
      if (!circular) factors_[whole].assign(factors.begin(), factors.end());
    }
  }

  bool depends(std::uint32_t s, std::uint32_t on) const {
    return s == on ||
           std::ranges::any_of(factors_[s], [&](std::uint32_t f) { return depends(f, on); });
  }

  SizeId resolve(std::uint32_t s) {
    SizeId& id = symbol_[s];
    if (id != shape::kNoSize) return id;
    shape::SizeTable& sizes = program_.sizes;
    if (s == kOne || s == kZero) return id = sizes.constant(s == kOne ? 1 : 0);
    if (factors_[s].empty()) return id = sizes.symbol("s" + std::to_string(s), {2});
    SizeId product = sizes.constant(1);
    for (const std::uint32_t f : factors_[s]) product = sizes.mul(product, resolve(f));
    return id = product;
  }

  SizeId size(std::uint32_t s) const { return symbol_[s]; }

  std::vector<Attr> attributes(Op op) {
    std::vector<Attr> attrs;
    for (const ParamInfo& param : info(op).params()) {
      switch (param.kind) {
        case ParamKind::kSize:
          attrs.push_back(Attr::of_sizes({size(take(1)[0])}));
          break;
        case ParamKind::kSizes: {
          Sizes sizes;
          for (const std::uint32_t s : take(take(1)[0])) sizes.push_back(size(s));
          attrs.push_back(Attr::of_sizes(std::move(sizes)));
          break;
        }
        case ParamKind::kAxes: {
          Ints ints;
          for (const std::uint32_t v : take(take(1)[0])) {
            ints.push_back(static_cast<std::int32_t>(v));
          }
          attrs.push_back(Attr::of_ints(std::move(ints)));
          break;
        }
        case ParamKind::kNumber: {
          const auto w = take(2);
          attrs.push_back(Attr::of_number(
              std::bit_cast<double>(w[0] | static_cast<std::uint64_t>(w[1]) << 32)));
          break;
        }
        default:
          attrs.push_back(Attr::of_ints({static_cast<std::int32_t>(take(1)[0])}));
      }
    }
    if (op == Op::reshape) {
      for (std::uint32_t equations = take(1)[0]; equations > 0; --equations) take(take(1)[0] + 1);
    }
    return attrs;
  }

  std::span<const std::uint32_t> words_;
  std::size_t next_ = 0;
  std::vector<bool> used_, bound_;
  std::vector<std::vector<std::uint32_t>> factors_;  // by symbol: whose product it is
  std::vector<SizeId> symbol_;
  Program program_;
  std::vector<ValueId> values_;
};

}  // namespace

Program read(std::span<const std::uint32_t> words, std::vector<int>& symbols,
             std::vector<OutputPlace>& outputs) {
  return Reader(words).run(symbols, outputs);
}

}  // namespace tilevm::eager
