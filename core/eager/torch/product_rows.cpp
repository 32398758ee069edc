// What is recorded for matrix products.
#include "eager/torch/call.h"

namespace tilevm::eager {
namespace {

bool multiplies(DType d) {
  return d == DType::kFloat32 || d == DType::kBFloat16 || d == DType::kFloat16;
}

Value product(Call& c, std::size_t a, std::size_t b, int rank) {
  const Value x = c.value(a), y = c.value(b);
  const Meta &m = c.meta(x), &n = c.meta(y);
  if (!multiplies(m.dtype) || m.dtype != n.dtype) Call::refuse("a product that no kernel computes");
  if (m.rank != rank || n.rank != rank) Call::refuse("other dims");
  if (rank == 3 && m.size(0) != n.size(0)) Call::refuse("other batches");
  return c.op(Op::matmul, {x, y});
}

Row multiply(int rank) {
  return [=](Call& c) { c.contiguous(product(c, 0, 1, rank)); };
}

void matrix_vector(Call& c) {  // self, vec
  if (c.tensor(0).dim() != 2 || c.tensor(1).dim() != 1) Call::refuse("other dims");
  const Value x = c.value(std::size_t{0});
  const Value v = c.op(Op::unsqueeze, {c.value(1)}, {Param::integer(1)});
  if (!multiplies(c.meta(x).dtype) || c.meta(x).dtype != c.meta(v).dtype) Call::refuse("dtypes");
  const Axes last{1};
  c.contiguous(c.op(Op::squeeze, {c.op(Op::matmul, {x, v})}, {axes(last)}));
}

// PyTorch's kernel wants rows, or columns, that begin at multiples of 16 bytes.
bool is_aligned(const at::Tensor& x) {
  const std::int64_t last = x.stride(-1), before = x.stride(-2);
  const std::int64_t apart = last == 1 ? before : last;
  return (last == 1 || before == 1) && apart * x.element_size() % 16 == 0;
}

void grouped_product(Call& c) {  // self, mat2, offs, bias, out_dtype
  if (c.none(2) || !c.none(3) || !c.none(4)) Call::refuse("no groups, a bias or a dtype");
  const Value x = c.value(std::size_t{0}), y = c.value(1), ends = c.value(2);
  const Meta &m = c.meta(x), &n = c.meta(y), &e = c.meta(ends);
  if (!multiplies(m.dtype) || m.dtype != n.dtype) Call::refuse("a product that no kernel computes");
  if (m.rank != 2 || n.rank != 3 || e.rank != 1) Call::refuse("other dims");
  if (m.size(1) != n.size(1) || n.size(0) != e.size(0)) Call::refuse("other sizes");
  if (e.dtype != DType::kInt32 || !is_aligned(c.tensor(0)) || !is_aligned(c.tensor(1)))
    Call::refuse("ends that are not int32, or rows that are not aligned");
  if (n.size(2) * c.tensor(0).element_size() % 16 != 0) Call::refuse("a result with gaps");
  c.contiguous(c.op(Op::grouped_matmul, {x, y, ends}));
}

Value scaled(Call& c, Value v, std::size_t factor) {
  return c.real(factor) == 1 ? v : c.op(Op::mul, {v, c.value(factor)});
}

Row multiply_add(int rank) {  // self, a, b, beta, alpha
  return [=](Call& c) {
    Value y = scaled(c, product(c, 1, 2, rank), 4);
    if (dtype_of(c.tensor(0).scalar_type()) != c.meta(y).dtype) Call::refuse("mixed dtypes");
    if (c.real(3) != 0) {
      const Meta before = c.meta(y);
      y = c.op(Op::add, {scaled(c, c.value(std::size_t{0}), 3), y});
      if (!std::ranges::equal(c.meta(y).shape(), before.shape())) Call::refuse("sizes");
    }
    c.contiguous(y);
  };
}

}  // namespace

const std::map<std::string, Row>& product_rows() {
  static const auto* const rows = new std::map<std::string, Row>{
      {"mm", multiply(2)},
      {"mv", matrix_vector},
      {"bmm", multiply(3)},
      {"_grouped_mm", grouped_product},
      {"addmm", multiply_add(2)},
      {"baddbmm", multiply_add(3)},
  };
  return *rows;
}

}  // namespace tilevm::eager
