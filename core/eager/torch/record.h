// Recording one elementwise operator without a table between: what the unboxed kernels and the
// replacements of Python's number protocol do.
#pragma once

#include <ATen/ATen.h>

#include "eager/torch/lazy.h"

namespace tilevm::eager {

// Of a segment. One that has some operators ends where a product comes: kernels reach from a
// product to the next one, and segments that begin alike are found again.
inline constexpr int kMostOperators = 256;
inline constexpr int kSomeOperators = 16;
inline constexpr int kWeightOperators = 10;  // from a softmax to the product of its result

// The functionality key whose kernels record. It lies below autograd and Python's modes; PyTorch
// itself has no kernels for it in this version.
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// A tensor like any other: dense on the CPU, of no subclass, under no transform.
bool is_plain(const at::TensorBase& t);
// The same but for a bit that says that its complex numbers are conjugated when they are read.
bool is_plain_but_conjugated(const at::TensorBase& t);

struct Operand {
  enum class Kind : std::uint8_t { kTensor, kFloat, kInt, kBool } kind = Kind::kTensor;
  const at::TensorBase* tensor = nullptr;
  std::int64_t bits = 0;  // of a number

  Operand(const at::TensorBase& t) : tensor(&t) {}
  explicit Operand(double v);
  explicit Operand(std::int64_t v) : kind(Kind::kInt), bits(v) {}
  explicit Operand(bool v) : kind(Kind::kBool), bits(v ? 1 : 0) {}
  explicit Operand(const c10::Scalar& v);  // of a kind that is real
};

// Whether PyTorch refuses to write to `self` while it reads `other`, or what it then reads depends
// on its order: tensors in the same memory that share some elements, but not each with its like.
bool overlaps_in_part(const at::TensorBase& self, const at::TensorBase& other);

// Where elements lie once they are of `dtype`: PyTorch converts operands before it looks at their
// strides, and copies keep those of dense tensors alone.
host::Geometry geometry_in(const at::TensorBase& tensor, DType dtype);

// The value of a tensor or a number that it wraps; kNoValue if it cannot be recorded. Under the
// recording's mutex.
Value value_of(Recording& recording, const at::TensorBase& tensor);
// The same of the parts of complex numbers, along one more dim.
Value pairs_of(Recording& recording, const at::TensorBase& tensor);
// Fills what other threads have recorded of `tensor`.
void fill_foreign(const Recording& mine, const at::TensorBase& tensor);

// Before something reads memory that this thread's operators in place should have written: any, or
// that of a tensor.
void finish_writes(const char* reason);
void finish_writes(const at::TensorBase& tensor, const char* reason);
// Before something else writes to a tensor: what waits to be written there, or was recorded as an
// operand, is run.
void settle_write(const at::Tensor& tensor);
// Whether a tensor waits to be filled, or its memory to be written.
bool waits(const at::TensorBase& tensor);
// Whether an operator in place on `self` that reads `others` is not worth recording: it is one
// number, that nothing recorded reads or writes, and nothing recorded has to run first.
bool is_lone_number(const at::TensorBase& self,
                    std::initializer_list<const at::TensorBase*> others = {});

// Whether products of these are recorded.
bool can_multiply(const at::TensorBase& x, const at::TensorBase& y);
host::Geometry dense_geometry(const Meta& meta);
// x w^T + b, of rows.
Value product_of_rows(Trace& trace, Value x, Value w, Value b);

// Before a product is recorded.
void begin_product(Recording& recording, std::unique_lock<std::mutex>& lock);

// x w^T + b as torch.nn.functional.linear; undefined if it must be computed eagerly.
at::Tensor record_linear(const at::TensorBase& x, const at::TensorBase& w, const at::TensorBase* b);
// x y of two matrices, or x y + b; undefined if it must be computed eagerly.
at::Tensor record_product(const at::TensorBase& x, const at::TensorBase& y,
                          const at::TensorBase* b = nullptr);

// torch.gru_cell, and torch.lstm_cell with its two results, of batches; undefined, or none, if they
// must be computed eagerly.
at::Tensor record_gru_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& w_ih,
                           const at::Tensor& w_hh, const at::Tensor* b_ih, const at::Tensor* b_hh);
std::vector<at::Tensor> record_lstm_cell(const at::Tensor& x, const at::Tensor& h,
                                         const at::Tensor& c, const at::Tensor& w_ih,
                                         const at::Tensor& w_hh, const at::Tensor* b_ih,
                                         const at::Tensor* b_hh);

// The result of `op`; undefined if it must be computed eagerly. `alpha`, a
// number, multiplies the last operand.
at::Tensor record_elementwise(Op op, std::span<const Operand> operands,
                              const Operand* alpha = nullptr);
// The same with the first operand, a tensor, for the result. False if it must be done eagerly.
bool record_in_place(Op op, std::span<const Operand> operands, const Operand* alpha = nullptr);
// Makes `made` what a tensor holds. Under the recording's mutex; may throw Unrecorded.
bool assign(Recording& recording, const at::TensorBase& self, Value made);

}  // namespace tilevm::eager
