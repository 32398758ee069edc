// One operator as it is called, while a row of the table says what is recorded for it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "eager/torch/lazy.h"

namespace tilevm::eager {

class Call {
 public:
  Call(const torch::jit::Stack& stack, std::size_t n_args, Recording& recording)
      : stack_(stack), first_(stack.size() - n_args), n_args_(n_args), recording_(recording) {}

  // ---- Arguments, in the order of the schema

  std::size_t n_args() const { return n_args_; }
  const c10::IValue& arg(std::size_t i) const { return stack_[first_ + i]; }
  bool none(std::size_t i) const {
    return i >= n_args_ || arg(i).isNone() || (arg(i).isTensor() && !arg(i).toTensor().defined());
  }
  bool is_tensor(std::size_t i) const { return arg(i).isTensor(); }
  const at::Tensor& tensor(std::size_t i) const { return arg(i).toTensor(); }
  std::int64_t integer(std::size_t i) const { return arg(i).toInt(); }
  double real(std::size_t i) const {
    const at::Scalar number = arg(i).toScalar();
    if (number.isComplex()) refuse("a complex number");
    return number.toDouble();
  }
  bool flag(std::size_t i) const { return arg(i).toBool(); }
  std::vector<std::int64_t> integers(std::size_t i) const;
  // The axes of a reduction, from 0, sorted: none given means all.
  std::vector<std::int64_t> axes(std::size_t i, int rank) const;
  int axis(std::size_t i, int rank) const { return wrap(integer(i), rank); }
  static int wrap(std::int64_t axis, int rank);
  // A dtype argument; `otherwise` if there is none.
  DType dtype(std::size_t i, DType otherwise) const;

  // ---- Values

  Trace& trace() { return recording_.trace; }
  Recording& recording() { return recording_; }
  Value value(const at::Tensor& tensor);
  Value value(std::size_t i);             // of a tensor or a number
  Value pairs(const at::Tensor& tensor);  // of complex numbers
  const Meta& meta(Value v) const { return recording_.trace.meta(v); }
  Value op(Op op, std::initializer_list<Value> in, std::initializer_list<Param> params = {}) {
    return recording_.trace.add(op, in, params);
  }
  template <class Number>
  void need_fit(Number number) const;
  [[noreturn]] static void refuse(const char* why) { throw Unrecorded(why); }

  // ---- Results, in order

  void elementwise(Value v);  // laid out as its operands are
  // The same with arguments in the order in which PyTorch's kernel has them.
  void elementwise(Value v, std::span<const std::size_t> order);
  // Numbers among the arguments count as operands of rank 0.
  void numbers_are_operands() { numbers_ = true; }
  // The dtype that operands are converted to, where it is not the result's.
  void computed_in(DType dtype) { computed_ = dtype; }
  // The first argument is a condition, which is not converted.
  void condition_first() { condition_ = true; }
  void contiguous(Value v);  // row-major
  // As the first argument lies in memory if that is dense, else with its dims sorted alike.
  void preserve(Value v);
  void in_format(Value v, std::size_t i);  // as argument `i` says, a memory format
  // Dense; `complex`: numbers whose parts these are, along the last dim.
  void result(Value v, const host::Geometry& geometry, bool complex = false);
  // A view of argument `of`, which must be pending.
  void view(std::size_t of, Value v, const host::Geometry& geometry, std::int64_t offset,
            bool complex = false);
  // The complex numbers of argument `of`, which must be pending, conjugated where they are read.
  void conjugate_view(std::size_t of);

  struct Result {
    Value value = kNoValue;
    host::Geometry geometry;
    int of = -1;  // a view of this argument
    std::int64_t offset = 0;
    bool complex = false;
    bool turned = false;  // conjugated where its argument is not
  };
  // Leaves the operator to PyTorch, as refuse() does, where that is not rare.
  void decline() { declined_ = true; }
  bool declined() const { return declined_; }
  // All elements of the result are this number, which its dtype has.
  void all_are(const at::Scalar& number) { constant_ = number; }
  const std::optional<at::Scalar>& constant() const { return constant_; }
  // The results are a list of tensors.
  void list() { list_ = true; }
  bool as_list() const { return list_; }
  std::span<const Result> results() const { return {results_.data(), results_.size()}; }

 private:
  const torch::jit::Stack& stack_;
  std::size_t first_, n_args_;
  Recording& recording_;
  bool numbers_ = false, condition_ = false, list_ = false, declined_ = false;
  std::optional<DType> computed_;
  std::optional<at::Scalar> constant_;
  void push(const Result& result);
  c10::SmallVector<Result, 4> results_;
};

using Axes = std::vector<std::int64_t>;
inline Param axes(const Axes& a) { return Param::integers(a); }

using Row = std::function<void(Call&)>;

// How the results of an operator relate to its arguments.
// kFill: in place, with nothing computed: worth recording only where memory is waited for anyway.
// kMaker: new ones, of sizes and numbers; no tensor is read.
enum class Place : std::uint8_t { kNew, kView, kInPlace, kFill, kMaker };
inline bool in_place(Place place) { return place == Place::kInPlace || place == Place::kFill; }

// Visits the tensors of an argument until `visit` says no.
template <class Visit>
bool every_tensor(const c10::IValue& v, Visit&& visit) {
  if (v.isTensor()) return !v.toTensor().defined() || visit(v.toTensor());
  if (!v.isList()) return true;
  for (const c10::IValue& item : v.toListRef()) {
    if (item.isTensor() && item.toTensor().defined() && !visit(item.toTensor())) return false;
  }
  return true;
}

// Records what a row says of the operator whose arguments are the last of `stack`, and puts its
// results in their place. False: nothing has happened. `product`: as begin_product() has it.
bool record_row(const Row& row, Place place, bool product, torch::jit::Stack& stack,
                std::size_t n_args);

// The rows of operators whose arguments need more than text says, by their name and overload.
const std::map<std::string, Row>& coded_rows();
const std::map<std::string, Row>& product_rows();
const std::map<std::string, Row>& gather_rows();
const std::map<std::string, Row>& loop_rows();
const std::map<std::string, Row>& loss_rows();
const std::map<std::string, Row>& maker_rows();
const std::map<std::string, Row>& fill_rows();  // Place::kFill
// The result is of one number that is known, laid out as the first argument, or as argument
// `format` says.
void fill_with(Call& c, const at::Scalar& number, DType dtype, std::size_t format);
// Rows that besides write arguments, by their places.
struct WritingRow {
  Row row;
  std::vector<std::size_t> written;
};
const std::map<std::string, WritingRow>& norm_rows();
// Of operators that PyTorch makes of others above us: only functions of Python record them whole.
const std::map<std::string, Row>& composite_rows();
// All rows that the dispatcher has kernels for, with those that are text.
std::map<std::string, Row>& installed_rows();
// Views: only those of pending tensors are recorded.
const std::map<std::string, Row>& view_rows();
// A row from text: `p = mul y, z; r = add x, p`. x, y, z, w are the arguments; `scale a, b` is a *
// b, or a where b is the number 1. Throws std::invalid_argument.
Row text_row(const std::string& text);
// The operator of a row that is `r = op x` or `r = op x, y`.
std::optional<Op> single_operator(const std::string& text);

}  // namespace tilevm::eager
