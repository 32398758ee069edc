// The generator is left where PyTorch's own draws would have left it.
#include "eager/torch/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>

#include "eager/torch/python.h"
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

}  // namespace

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
