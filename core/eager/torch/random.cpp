// The generator is left where PyTorch's own draws would have left it.
#include "eager/torch/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "eager/torch/python.h"
#include "eager/torch/record.h"
#include "exec/random/mersenne.h"
#include "exec/random/normal.h"

namespace tilevm::eager {
namespace {

// PyTorch counts how many draws are left before the words are renewed, that one included.
exec::MersenneTwister read(const at::mt19937_data_pod& data) {
  exec::MersenneTwister twister;
  twister.words = data.state_;
  twister.next = data.left_ == 1 ? exec::MersenneTwister::kWords : static_cast<int>(data.next_);
  return twister;
}

void write(const exec::MersenneTwister& twister, at::mt19937_data_pod& data) {
  data.state_ = twister.words;
  data.next_ = static_cast<std::uint32_t>(twister.next);
  data.left_ = at::MERSENNE_STATE_N + 1 - twister.next;
}

struct Kind {
  const char* name;
  at::ScalarType type;
};

constexpr Kind kKinds[] = {{"words", at::kInt},
                           {"fractions", at::kDouble},
                           {"normals", at::kFloat},
                           {"wide_normals", at::kDouble},
                           {"pairs", at::kDouble}};

const Kind& kind_of(Draws draws) { return kKinds[static_cast<std::size_t>(draws)]; }

void fill(const at::Tensor& out, Draws draws, at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
  at::mt19937 engine = own->engine();
  at::mt19937_data_pod data = engine.data();
  exec::MersenneTwister twister = read(data);
  const auto n = static_cast<std::size_t>(out.numel());
  if (n == 0) return;
  switch (draws) {
    case Draws::kWords:
      twister.draw(reinterpret_cast<std::uint32_t*>(out.mutable_data_ptr<std::int32_t>()), n);
      break;
    case Draws::kFractions:
      twister.draw(out.mutable_data_ptr<double>(), n);
      break;
    case Draws::kNormals:
      exec::draw_normals(twister, out.mutable_data_ptr<float>(), n);
      break;
    case Draws::kWideNormals:
      exec::draw_normals(twister, out.mutable_data_ptr<double>(), n);
      break;
    case Draws::kPairs:
      std::optional<double> spare = own->next_double_normal_sample();
      exec::draw_normals(twister, spare, out.mutable_data_ptr<double>(), n);
      own->set_next_double_normal_sample(spare);
      break;
  }
  write(twister, data);
  engine.set_data(data);
  own->set_engine(engine);
}

// Whether eager code leaves its generator as we do: PyTorch leaves some draws to libraries where it
// has them. Asked of generators of our own, in a thread that is in the middle of nothing.
bool draws_as_eager(const Distribution& distribution) {
  std::call_once(distribution.asked, [&] {
    const auto ask = [&] {
      constexpr std::int64_t kMany = 700;
      auto ours = at::make_generator<at::CPUGeneratorImpl>(7);
      auto eagers = at::make_generator<at::CPUGeneratorImpl>(7);
      fill(at::empty({kMany}, kind_of(distribution.draws).type), distribution.draws, ours);
      torch::jit::Stack stack{at::empty({kMany})};
      const std::string name = std::string("aten::") + distribution.name;
      const std::size_t dot = name.find('.');
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
          name.substr(0, dot).c_str(),
          dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
      for (std::size_t i = 0; i < distribution.n_numbers; ++i) {
        const double number = distribution.numbers[i];
        const bool real = op.schema().arguments()[1 + i].type()->kind() == c10::TypeKind::FloatType;
        if (real)
          stack.emplace_back(number);
        else
          stack.emplace_back(static_cast<std::int64_t>(number));
      }
      stack.emplace_back(eagers);
      op.callBoxed(stack);
      distribution.as_eager = ours.get_state().equal(eagers.get_state());
    };
    std::thread([&] {
      try {
        ask();
      } catch (const std::exception&) {  // then it stays PyTorch's
      }
    }).join();
  });
  return distribution.as_eager;
}

// Draws for all elements of `self`, in their order, and records what becomes of them: `row` gets
// `self`, the draws, `numbers` and `other`. False: nothing has happened.
bool record_drawn(const at::Tensor& self, Draws drawn, const Row& row,
                  std::span<const double> numbers, const at::Tensor* other = nullptr) {
  if (!is_plain(self) || !self.is_contiguous() || self.numel() < 2) return false;
  {
    Recording& mine = Recording::mine();
    const std::lock_guard lock(mine.mutex);
    if (!mine.can_assign(self, dtype_of(self.scalar_type()))) return false;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
  const auto [before, spare] = [&] {
    const std::lock_guard lock(generator.mutex());
    return std::pair(own->engine(), own->next_double_normal_sample());
  }();
  torch::jit::Stack stack{self};
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
    const at::Tensor draws = at::empty(self.sizes(), kind_of(drawn).type);
    fill(draws, drawn, generator);
    stack.emplace_back(draws);
  }
  for (const double number : numbers) stack.emplace_back(number);
  if (other != nullptr) stack.emplace_back(*other);
  if (record_row(row, Place::kInPlace, false, stack, stack.size())) return true;
  const std::lock_guard lock(generator.mutex());
  own->set_engine(before);
  own->set_next_double_normal_sample(spare);
  return false;
}

// As the dtype of `self`.
void give(Call& c, Value v) {
  c.contiguous(c.trace().cast(v, dtype_of(c.tensor(0).scalar_type())));
}

void choose(Call& c) {  // self, draws, p
  give(c, c.op(Op::lt, {c.value(1), c.value(2)}));
}

constexpr std::int64_t kFraction = (1 << 24) - 1;  // what float32 takes of a word

// Of float32, from 0 to below 1, of a word.
Value fraction(Call& c, Value word) {
  const Value bits = c.op(Op::bitwise_and, {word, c.trace().number(kFraction)});
  return c.op(Op::mul, {c.trace().cast(bits, DType::kFloat32), c.trace().constant(0x1p-24)});
}

void spread(Call& c) {  // self, draws, from, to
  Value v = fraction(c, c.value(1));
  const auto from = static_cast<float>(c.real(2)), to = static_cast<float>(c.real(3));
  if (from != 0 || to != 1) {  // the sum is rounded once, as by a multiplication that adds
    v = c.op(Op::mul, {c.trace().cast(v, DType::kFloat64), c.trace().number(double{to - from})});
    v = c.trace().cast(c.op(Op::add, {v, c.trace().number(double{from})}), DType::kFloat32);
    const Value first = c.trace().cast(c.trace().number(double{from}), DType::kFloat32);
    v = c.op(Op::where, {c.op(Op::eq, {v, c.trace().number(double{to})}), first, v});
  }
  c.contiguous(v);
}

// self, draws, from, to. In float64, where all but the quotient of unsigned words is exact, and
// that at most one off: integers are divided one by one.
void divide(Call& c) {
  const auto from = static_cast<std::int64_t>(c.real(2));
  const double count = c.real(3) - c.real(2);
  const auto number = [&](double v) { return c.trace().number(v); };
  const auto moved = [&](Op where, Value v, double bound, double by) {
    const Value there = c.op(Op::add, {v, number(by)});
    return c.op(Op::where, {c.op(where, {v, number(bound)}), there, v});
  };
  const Value word = c.trace().cast(c.value(1), DType::kFloat64);
  Value v = moved(Op::lt, word, 0, 4294967296.0);
  const Value times = c.op(Op::floor, {c.op(Op::mul, {v, number(1 / count)})});
  v = c.op(Op::sub, {v, c.op(Op::mul, {times, number(count)})});
  v = moved(Op::ge, moved(Op::lt, v, 0, count), count, -count);
  give(c, c.op(Op::add, {c.trace().cast(v, DType::kInt64), c.trace().number(from)}));
}

// `v` times argument `scale`, plus argument `shift`.
Value scaled(Call& c, Value v, std::size_t scale, std::size_t shift) {
  if (c.real(scale) != 1) v = c.op(Op::mul, {v, c.value(scale)});
  return c.real(shift) != 0 ? c.op(Op::add, {v, c.value(shift)}) : v;
}

void move(Call& c) { give(c, scaled(c, c.value(1), 3, 2)); }  // self, draws, mean, deviation

void raise(Call& c) {  // self, draws, mean, deviation
  give(c, c.op(Op::exp, {scaled(c, c.value(1), 3, 2)}));
}

void wait(Call& c) {  // self, draws, rate
  const Value log = c.op(Op::log1p, {c.op(Op::neg, {c.value(1)})});
  give(c, c.op(Op::mul, {log, c.trace().number(-1 / c.real(2))}));
}

void turn(Call& c) {  // self, draws, median, sigma
  const auto number = [&](double v) { return c.trace().constant(v); };
  const Value angle = c.op(Op::mul, {c.op(Op::sub, {c.value(1), number(0.5)}), number(M_PI)});
  give(c, scaled(c, c.op(Op::tan, {angle}), 3, 2));
}

void count(Call& c) {  // self, draws, p
  const Value log = c.op(Op::log, {c.value(1)});
  give(c, c.op(Op::ceil, {c.op(Op::div, {log, c.trace().number(std::log1p(-c.real(2)))})}));
}

bool is_float(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

bool knows_range(at::ScalarType self, const double* n) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return self == at::kFloat && -kMost <= n[0] && n[0] <= n[1] && n[1] <= kMost &&
         n[1] - n[0] <= kMost;
}

bool knows_integers(at::ScalarType self, const double* n) {
  constexpr double kMostInAWord = 1 << 28;  // integers from more are made of two words
  const bool known =
      self == at::kLong || self == at::kInt || self == at::kFloat || self == at::kDouble;
  const double most = self == at::kFloat ? 0x1p24 : 0x1p31;
  return known && -most <= n[0] && n[0] < n[1] && n[1] <= most && n[1] - n[0] < kMostInAWord;
}

// ---- One number

double spread_one(double word, const double* n) {
  const auto from = static_cast<float>(n[0]), to = static_cast<float>(n[1]);
  const float v = static_cast<float>(static_cast<std::int64_t>(word) & kFraction) * 0x1p-24f;
  const auto made = static_cast<float>(double{v} * double{to - from} + double{from});
  return made == to ? from : made;
}

double divide_one(double word, const double* n) {
  return n[0] + static_cast<double>(static_cast<std::uint64_t>(word) %
                                    static_cast<std::uint64_t>(n[1] - n[0]));
}

constexpr std::size_t kUniform = 1;  // of these
const Distribution kDistributions[] = {
    {"bernoulli_.float", 1,
     [](at::ScalarType self, const double* n) {
       return self == at::kFloat && 0 <= n[0] && n[0] <= 1;
     },
     Draws::kFractions, choose, [](double v, const double* n) { return v < n[0] ? 1.0 : 0.0; },
     {0.3}},
    {"uniform_", 2, knows_range, Draws::kWords, spread, spread_one, {0, 1}},
    {"random_.from", 2, knows_integers, Draws::kWords, divide, divide_one, {0, 9}},
    {"normal_", 2,
     [](at::ScalarType self, const double* n) { return is_float(self) && n[1] >= 0; },
     Draws::kNormals, move, [](double v, const double* n) { return v * n[1] + n[0]; }, {0, 1}},
    {"log_normal_", 2,
     [](at::ScalarType self, const double* n) { return is_float(self) && n[1] > 0; },
     Draws::kPairs, raise, [](double v, const double* n) { return std::exp(v * n[1] + n[0]); },
     {1, 2}},
    {"exponential_", 1,
     [](at::ScalarType self, const double* n) {
       return is_float(self) && n[0] > 0 && std::isfinite(n[0]);
     },
     Draws::kFractions, wait,
     [](double v, const double* n) { return -1.0 / n[0] * std::log1p(-v); }, {1}},
    {"cauchy_", 2,
     [](at::ScalarType self, const double* n) { return is_float(self) && n[1] > 0; },
     Draws::kFractions, turn,
     [](double v, const double* n) { return n[0] + n[1] * std::tan(M_PI * (v - 0.5)); }, {0, 1}},
    {"geometric_", 1,
     [](at::ScalarType self, const double* n) { return is_float(self) && 0 < n[0] && n[0] < 1; },
     Draws::kFractions, count,
     [](double v, const double* n) { return std::ceil(std::log(v) / std::log1p(-n[0])); }, {0.5}},
};

double draw_one(Draws drawn) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
  if (drawn == Draws::kWords) return own->random();
  constexpr std::uint64_t kFractions = (1ULL << 53) - 1;
  const auto fraction = [&] { return static_cast<double>(own->random64() & kFractions) * 0x1p-53; };
  if (drawn == Draws::kFractions) return fraction();
  if (const std::optional<double> spare = own->next_double_normal_sample()) {
    own->set_next_double_normal_sample(std::nullopt);
    return *spare;
  }
  const double angle = 2 * M_PI * fraction(), radius = std::sqrt(-2 * std::log1p(-fraction()));
  own->set_next_double_normal_sample(radius * std::sin(angle));
  return radius * std::cos(angle);
}

// Fills a tensor of one number that nothing recorded knows of: that is quicker than to record it.
void fill_one(const at::Tensor& self, const Distribution& distribution, Draws drawn,
              const double* numbers) {
  const double made = distribution.of(draw_one(drawn), numbers);
  switch (self.scalar_type()) {
    case at::kFloat:
      *self.mutable_data_ptr<float>() = static_cast<float>(made);
      break;
    case at::kDouble:
      *self.mutable_data_ptr<double>() = made;
      break;
    case at::kLong:
      *self.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(made);
      break;
    default:
      *self.mutable_data_ptr<std::int32_t>() = static_cast<std::int32_t>(made);
  }
}

}  // namespace

std::span<const Distribution> distributions() { return kDistributions; }

bool record_draw(const Distribution& distribution, torch::jit::Stack& stack) {
  const std::size_t n_args = distribution.n_numbers + 2, first = stack.size() - n_args;
  const at::Tensor& self = stack[first].toTensor();
  if (!stack.back().isNone()) return false;
  double numbers[2];
  for (std::size_t i = 0; i < distribution.n_numbers; ++i) {
    const c10::IValue& number = stack[first + 1 + i];
    if (!number.isDouble() && !number.isInt()) return false;
    numbers[i] = number.isInt() ? static_cast<double>(number.toInt()) : number.toDouble();
  }
  if (!distribution.knows(self.scalar_type(), numbers) || !draws_as_eager(distribution)) {
    return false;
  }
  Draws draws = distribution.draws;
  if (draws == Draws::kNormals && self.scalar_type() == at::kDouble) draws = Draws::kWideNormals;
  if (distribution.draws == Draws::kNormals && self.numel() < 16) draws = Draws::kPairs;
  if (is_lone_number(self)) {
    fill_one(self, distribution, draws, numbers);
  } else {
    const Row row(distribution.build);
    if (!record_drawn(self, draws, row, {numbers, distribution.n_numbers})) return false;
  }
  torch::jit::drop(stack, n_args - 1);
  return true;
}

bool record_chances(torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - 3;
  const at::Tensor self = stack[first].toTensor(), p = stack[first + 1].toTensor();
  if (!stack.back().isNone() || self.scalar_type() != at::kFloat ||
      p.scalar_type() != at::kFloat || !is_plain(p) || !p.is_contiguous() ||
      p.sizes() != self.sizes() || overlaps_in_part(self, p) ||
      !draws_as_eager(kDistributions[kUniform])) {
    return false;
  }
  finish_writes(p, "looked at");
  const float* const chances = p.const_data_ptr<float>();  // of which PyTorch says what is wrong
  if (!std::all_of(chances, chances + p.numel(), [](float v) { return 0 <= v && v <= 1; })) {
    return false;
  }
  static const auto* const row = new Row([](Call& c) {  // self, draws, p
    give(c, c.op(Op::lt, {fraction(c, c.value(1)), c.value(2)}));
  });
  if (!record_drawn(self, Draws::kWords, *row, {}, &p)) return false;
  torch::jit::drop(stack, 2);
  return true;
}

// draw(out, kind)
PyObject* py_draw(PyObject*, PyObject* arguments) {
  PyObject* object;
  const char* name;
  if (!PyArg_ParseTuple(arguments, "Os", &object, &name)) return nullptr;
  const auto kind = std::ranges::find_if(
      kKinds, [&](const Kind& k) { return std::string_view(k.name) == name; });
  if (kind == std::end(kKinds) || !THPVariable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "draw() takes a tensor and what to draw");
    return nullptr;
  }
  const at::Tensor& out = THPVariable_Unpack(object);
  const auto draws = static_cast<Draws>(kind - kKinds);
  if (!out.device().is_cpu() || !out.is_contiguous() || out.scalar_type() != kind->type) {
    PyErr_Format(PyExc_ValueError, "draw() fills contiguous tensors of %s on the CPU with %s",
                 c10::toString(kind->type), name);
    return nullptr;
  }
  return recorded([&]() -> PyObject* {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const bool many = draws == Draws::kNormals || draws == Draws::kWideNormals;
    if (!many || out.numel() >= 16) {
      fill(out, draws, generator);
    } else {  // as PyTorch fills short tensors
      const at::Tensor pairs = at::empty(out.sizes(), at::kDouble);
      fill(pairs, Draws::kPairs, generator);
      out.copy_(pairs);
    }
    Py_RETURN_NONE;
  });
}

// draws_as_eager(name)
PyObject* py_draws_as_eager(PyObject*, PyObject* arguments) {
  const char* name;
  if (!PyArg_ParseTuple(arguments, "s", &name)) return nullptr;
  const auto it = std::ranges::find_if(
      kDistributions, [&](const Distribution& d) { return std::string_view(d.name) == name; });
  if (it == std::end(kDistributions)) {
    PyErr_Format(PyExc_ValueError, "no distribution %s", name);
    return nullptr;
  }
  return PyBool_FromLong(draws_as_eager(*it) ? 1 : 0);
}

}  // namespace tilevm::eager
