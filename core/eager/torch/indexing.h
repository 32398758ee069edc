// Parts of tensors as Python's indices and a few functions name them, without PyTorch's parser.
#pragma once

#include <Python.h>

#include "eager/torch/record.h"

namespace tilevm::eager {

// Steps and numbers of parts beyond are left to PyTorch: with a size, they may come to more than
// there are numbers for.
inline constexpr std::int64_t kMostStep = std::int64_t{1} << 62;

// x[index]; undefined if PyTorch should do it.
at::Tensor indexed(const at::Tensor& x, PyObject* index);

// Parts of x along an axis, views of it; none if PyTorch should make them. `size`: of each but the
// last, or 0 for parts of one index, without the axis.
std::vector<at::Tensor> parts_of(const at::Tensor& x, std::int64_t axis, std::int64_t size);

// The indices at which `mask` holds, a column for each of its dims; undefined if PyTorch should.
at::Tensor places_of(const at::Tensor& mask);

}  // namespace tilevm::eager
