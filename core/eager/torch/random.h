// Random numbers of PyTorch's generator of the CPU, drawn many at a time.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <span>

#include "eager/torch/call.h"

namespace tilevm::eager {

// What is drawn for each element.
enum class Draws : std::uint8_t {
  kWords,      // int32
  kFractions,  // float64 from 0 to below 1
  kNormals,    // float32, standard normal, made as PyTorch fills tensors of 16 elements and more
  kWideNormals,  // the same of float64
  kPairs,      // float64, standard normal, made as PyTorch does one by one
};

// What an operator fills tensors with.
struct Distribution {
  const char* name;  // the operator that fills a tensor: `self`, numbers, a generator
  std::size_t n_numbers;
  // Whether PyTorch finds nothing wrong with the numbers, and they are within what `build` knows.
  bool (*knows)(at::ScalarType self, const double* numbers);
  Draws draws;
  void (*build)(Call&);           // of `self`, the draws and the numbers
  // The same of one draw.
  double (*of)(double draw, const double* numbers);
  std::array<double, 2> numbers;  // some that PyTorch takes
  mutable std::once_flag asked{};
  mutable bool as_eager = false;
};
std::span<const Distribution> distributions();

// Draws at once what the operator, whose arguments are the last of `stack`, would draw, and records
// the rest. False: nothing has happened.
bool record_draw(const Distribution& distribution, torch::jit::Stack& stack);

// `bernoulli_(p)` with a chance for each element.
bool record_chances(torch::jit::Stack& stack);

// draw(out, kind): fills a tensor; draws_as_eager(name): whether draws are eager code's here.
PyObject* py_draw(PyObject* self, PyObject* arguments);
PyObject* py_draws_as_eager(PyObject* self, PyObject* arguments);

}  // namespace tilevm::eager
