// The generator is left where PyTorch's own draws would have left it.
#include "eager/torch/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

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

// PyTorch leaves some draws to libraries where it has them: asked once, of generators of our own.
// (Captured graphs ask `torch_random`, whose imports a block does not wait for.)
bool draws_as_eager() {
  static const bool same = [] {
    constexpr std::int64_t kMany = 700;
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
    auto ours = at::make_generator<at::CPUGeneratorImpl>(7);
    auto eagers = at::make_generator<at::CPUGeneratorImpl>(7);
    const at::Tensor numbers = at::empty({kMany}, at::kDouble);
    fill(numbers, ours);
    const at::Tensor wanted = at::empty({kMany}, at::kFloat).bernoulli_(0.3, eagers);
    const auto state = [](const at::Generator& generator) { return generator.get_state(); };
    return numbers.lt(0.3).to(at::kFloat).equal(wanted) && state(ours).equal(state(eagers));
  }();
  return same;
}

void choose(Call& c) {  // self, draws, p
  const Value chosen = c.op(Op::lt, {c.value(1), c.value(2)});
  c.contiguous(c.trace().cast(chosen, c.meta(c.value(std::size_t{0})).dtype));
}

}  // namespace

bool record_bernoulli(torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - 3;
  if (!stack[first + 2].isNone() || !stack[first + 1].isDouble()) return false;
  const at::Tensor self = stack[first].toTensor();
  const double p = stack[first + 1].toDouble();
  if (!is_plain(self) || !self.is_contiguous() || self.numel() < 2 || !(p >= 0 && p <= 1) ||
      self.scalar_type() != at::kFloat || !draws_as_eager()) {
    return false;
  }
  at::Tensor draws;
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
    draws = at::empty(self.sizes(), at::kDouble);
    fill(draws, at::detail::getDefaultCPUGenerator());
  }
  stack[first + 1] = draws;
  stack[first + 2] = p;
  static const auto* const row = new Row(choose);
  if (record_row(*row, Place::kInPlace, false, stack, 3)) return true;
  settle_write(self);  // what is drawn is drawn
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  self.copy_(draws.lt(p));
  torch::jit::drop(stack, 3);
  stack.emplace_back(self);
  return true;
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
  if (!out.device().is_cpu() || !out.is_contiguous() || (dtype != at::kDouble && dtype != at::kInt)) {
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
