// The generator is left where PyTorch's own draws would have left it.
#include "eager/torch/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <mutex>

#include "eager/torch/python.h"
#include "eager/torch/record.h"
#include "exec/random/mersenne.h"

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

void fill(const at::Tensor& out, at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
  at::mt19937 engine = own->engine();
  at::mt19937_data_pod data = engine.data();
  exec::MersenneTwister twister = read(data);
  const auto n = static_cast<std::size_t>(out.numel());
  if (n == 0) return;
  if (out.scalar_type() == at::kDouble)
    twister.draw(out.mutable_data_ptr<double>(), n);
  else
    twister.draw(reinterpret_cast<std::uint32_t*>(out.mutable_data_ptr<std::int32_t>()), n);
  write(twister, data);
  engine.set_data(data);
  own->set_engine(engine);
}

// Whether eager code draws like that here, and leaves its generator where we do: PyTorch leaves
// some draws to libraries where it has them. Asked of generators of our own.
// (Captured graphs ask `torch_random`, whose imports a block does not wait for.)
template <class Make, class Eager>
bool same_as_eager(at::ScalarType type, Make&& make, Eager&& eager) {
  constexpr std::int64_t kMany = 700;
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  auto ours = at::make_generator<at::CPUGeneratorImpl>(7);
  auto eagers = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor draws = at::empty({kMany}, type);
  fill(draws, ours);
  const at::Tensor wanted = eager(at::empty({kMany}, at::kFloat), eagers);
  const auto state = [](const at::Generator& generator) { return generator.get_state(); };
  return make(draws).equal(wanted) && state(ours).equal(state(eagers));
}

bool chooses_as_eager() {
  static const bool same = same_as_eager(
      at::kDouble, [](const at::Tensor& draws) { return draws.lt(0.3).to(at::kFloat); },
      [](at::Tensor out, const at::Generator& g) { return out.bernoulli_(0.3, g); });
  return same;
}

constexpr std::int64_t kFraction = (1 << 24) - 1;  // what float32 takes of a word
constexpr double kUlp = 1.0 / (1 << 24);

bool spreads_as_eager() {
  static const bool same = same_as_eager(
      at::kInt,
      [](const at::Tensor& draws) { return draws.bitwise_and(kFraction).to(at::kFloat).mul(kUlp); },
      [](at::Tensor out, const at::Generator& g) { return out.uniform_(0, 1, g); });
  return same;
}

// Draws for all elements of `self`, in their order, and records what becomes of them: `row` gets
// `self`, the draws and `numbers`. False: nothing has happened.
bool record_drawn(const at::Tensor& self, at::ScalarType type, const Row& row,
                  std::initializer_list<double> numbers) {
  if (!is_plain(self) || !self.is_contiguous() || self.numel() < 2) return false;
  {
    Recording& mine = Recording::mine();
    const std::lock_guard lock(mine.mutex);
    if (!mine.can_assign(self, dtype_of(self.scalar_type()))) return false;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const own = at::check_generator<at::CPUGeneratorImpl>(generator);
  const auto engine = [&] {
    const std::lock_guard lock(generator.mutex());
    return own->engine();
  };
  const at::mt19937 before = engine();
  torch::jit::Stack stack{self};
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
    const at::Tensor draws = at::empty(self.sizes(), type);
    fill(draws, generator);
    stack.emplace_back(draws);
  }
  for (const double number : numbers) stack.emplace_back(number);
  if (record_row(row, Place::kInPlace, false, stack, stack.size())) return true;
  const std::lock_guard lock(generator.mutex());
  own->set_engine(before);
  return false;
}

void choose(Call& c) {  // self, draws, p
  const Value chosen = c.op(Op::lt, {c.value(1), c.value(2)});
  c.contiguous(c.trace().cast(chosen, dtype_of(c.tensor(0).scalar_type())));
}

void spread(Call& c) {  // self, draws, from, to
  const Value bits = c.op(Op::bitwise_and, {c.value(1), c.trace().number(kFraction)});
  Value v = c.op(Op::mul, {c.trace().cast(bits, DType::kFloat32), c.trace().constant(kUlp)});
  const auto from = static_cast<float>(c.real(2)), to = static_cast<float>(c.real(3));
  if (from != 0 || to != 1) {  // the sum is rounded once, as by a multiplication that adds
    v = c.op(Op::mul, {c.trace().cast(v, DType::kFloat64), c.trace().number(double{to - from})});
    v = c.trace().cast(c.op(Op::add, {v, c.trace().number(double{from})}), DType::kFloat32);
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
  v = c.op(Op::add, {c.trace().cast(v, DType::kInt64), c.trace().number(from)});
  c.contiguous(c.trace().cast(v, dtype_of(c.tensor(0).scalar_type())));
}

// The arguments of an operator in place, of which the first is its result.
bool done(bool recorded, torch::jit::Stack& stack, std::size_t n_args) {
  if (recorded) torch::jit::drop(stack, n_args - 1);
  return recorded;
}

}  // namespace

bool record_bernoulli(torch::jit::Stack& stack) {  // self, p, generator
  const std::size_t first = stack.size() - 3;
  const at::Tensor& self = stack[first].toTensor();
  if (!stack[first + 2].isNone() || self.scalar_type() != at::kFloat) return false;
  const double p = stack[first + 1].toDouble();
  static const auto* const row = new Row(choose);
  return p >= 0 && p <= 1 && chooses_as_eager() &&
         done(record_drawn(self, at::kDouble, *row, {p}), stack, 3);
}

bool record_uniform(torch::jit::Stack& stack) {  // self, from, to, generator
  const std::size_t first = stack.size() - 4;
  const at::Tensor& self = stack[first].toTensor();
  if (!stack[first + 3].isNone() || self.scalar_type() != at::kFloat) return false;
  constexpr double kMost = std::numeric_limits<float>::max();
  const double from = stack[first + 1].toDouble(), to = stack[first + 2].toDouble();
  static const auto* const row = new Row(spread);
  return -kMost <= from && from <= to && to <= kMost && to - from <= kMost &&
         spreads_as_eager() && done(record_drawn(self, at::kInt, *row, {from, to}), stack, 4);
}

bool record_integers(torch::jit::Stack& stack) {  // self, from, to, generator
  const std::size_t first = stack.size() - 4;
  const at::Tensor& self = stack[first].toTensor();
  if (!stack[first + 3].isNone() || stack[first + 2].isNone()) return false;
  constexpr std::int64_t kMostInAWord = 1 << 28;  // integers from more are made of two words
  const std::int64_t from = stack[first + 1].toInt(), to = stack[first + 2].toInt();
  const at::ScalarType type = self.scalar_type();
  const std::int64_t most = type == at::kFloat ? 1 << 24 : 1LL << 31;
  static const auto* const row = new Row(divide);
  const bool known =
      type == at::kLong || type == at::kInt || type == at::kFloat || type == at::kDouble;
  const bool between = -most <= from && from < to && to <= most && to - from < kMostInAWord;
  if (!known || !between || !spreads_as_eager()) return false;
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  return done(record_drawn(self, at::kInt, *row, {real(from), real(to)}), stack, 4);
}

PyObject* py_draw(PyObject*, PyObject* arguments) {
  PyObject *object, *source = nullptr;
  if (!PyArg_ParseTuple(arguments, "O|O", &object, &source)) return nullptr;
  if (!THPVariable_Check(object) || (source != nullptr && !THPGenerator_Check(source))) {
    PyErr_SetString(PyExc_TypeError, "draw() takes a tensor, and a generator");
    return nullptr;
  }
  const at::Tensor& out = THPVariable_Unpack(object);
  const auto dtype = out.scalar_type();
  const bool drawn = dtype == at::kDouble || dtype == at::kInt;
  if (!out.device().is_cpu() || !out.is_contiguous() || !drawn) {
    PyErr_SetString(PyExc_ValueError,
                    "draw() fills contiguous tensors of int32 or float64 on the CPU");
    return nullptr;
  }
  return recorded([&]() -> PyObject* {
    fill(out, source == nullptr ? at::detail::getDefaultCPUGenerator()
                                : THPGenerator_Unwrap(source));
    Py_RETURN_NONE;
  });
}

}  // namespace tilevm::eager
