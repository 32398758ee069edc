// What one thread has recorded and not run yet: operators with the sizes that they were called
// with, and the words that say which program they are. Two traces with the same words are the same
// program: operators, links, dtypes, ranks and which sizes are equal, never values.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "eager/template.h"
#include "host/record.h"
#include "program/program.h"

namespace tilevm::eager {

using Value = std::int32_t;  // of a trace
inline constexpr Value kNoValue = -1;
inline constexpr std::size_t kMostResults = 16;  // of an operator

// The operator stays eager: what it is called with has no rule here, or is an error that the
// framework words better.
struct Unrecorded : std::runtime_error {
  using runtime_error::runtime_error;
};

// A value: what the operators that read it must know.
struct Meta {
  DType dtype = DType::kFloat32;
  bool weak = false;  // a Python number
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::int64_t size(int d) const { return sizes[static_cast<std::size_t>(d)]; }
  std::span<const std::int64_t> shape() const {
    return {sizes.data(), static_cast<std::size_t>(rank)};
  }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t s : shape()) n *= s;
    return n;
  }
};

// A parameter of an operator as it is recorded. Sizes become symbols; everything else is part of
// what the program is.
struct Param {
  enum class Kind : std::uint8_t { kInts, kSizes, kNumber } kind = Kind::kInts;
  bool single = true;
  std::int64_t one = 0;
  std::span<const std::int64_t> many;
  double number = 0;

  static Param integer(std::int64_t v) { return {Kind::kInts, true, v, {}, 0}; }
  static Param integers(std::span<const std::int64_t> v) { return {Kind::kInts, false, 0, v, 0}; }
  static Param size(std::int64_t v) { return {Kind::kSizes, true, v, {}, 0}; }
  static Param sizes(std::span<const std::int64_t> v) { return {Kind::kSizes, false, 0, v, 0}; }
  static Param of_number(double v) { return {Kind::kNumber, true, 0, {}, v}; }
  static Param dtype(DType d) { return integer(static_cast<std::int64_t>(d)); }
};

// A tensor that came in, or a number. Its memory must stay as it is until the trace has run.
struct Input {
  Value value = kNoValue;
  host::Geometry geometry;
  std::byte* data = nullptr;
  std::int64_t number = 0;  // of weak values: int64, bool, or the bits of a float64
};

class Trace {
 public:
  Trace();

  // A tensor in memory; the same value for the same memory seen in the same way. Throws Unrecorded
  // for a dtype that kernels do not have.
  Value input(DType dtype, const host::Geometry& geometry, std::byte* data);
  // Python numbers: they do not become part of the program.
  Value number(double value);
  Value number(std::int64_t value);
  Value boolean(bool value);
  // A number that is part of the program.
  Value constant(double value) { return add(Op::scalar, {}, {Param::of_number(value)}); }

  // Appends an operator, parameters in the order of the table. Throws Unrecorded and appends
  // nothing.
  Value add(Op op, std::initializer_list<Value> in, std::initializer_list<Param> params = {}) {
    return add(op, std::span<const Value>(in.begin(), in.size()),
               std::span<const Param>(params.begin(), params.size()));
  }
  Value add(Op op, std::span<const Value> in, std::span<const Param> params = {});
  Value cast(Value x, DType dtype);
  // Appends what template `number` consists of, and gives its results. As add().
  void add(std::int32_t number, const Template& made, std::span<const Value> in, Extents numbers,
           std::span<Value> results);
  // In which an elementwise operator computes. Throws Unrecorded.
  DType common_dtype(Op op, std::span<const Value> in) const { return infer(op, in, {}).dtype; }

  // That `value` has to be in memory after the run, dense with its dims in `order` (outermost
  // first), or row-major if that is empty. Only when nothing will be appended any more.
  void output(Value value, std::span<const std::int32_t> order);
  // The same, for a value to be written to the memory of an input, which is the latest write to it.
  void output_to(Value value, Value input);
  void drop_outputs();

  const Meta& meta(Value v) const { return metas_[static_cast<std::size_t>(v)]; }
  bool empty() const { return operators_ == 0; }
  int operators() const { return operators_; }
  // How many came behind the last softmax; all, if there is none.
  int operators_after_softmax() const { return operators_ - softmax_; }
  std::size_t n_outputs() const { return outputs_; }
  std::span<const Input> inputs() const { return inputs_; }
  std::span<const std::int64_t> sizes() const { return sizes_; }  // by symbol
  std::span<const std::uint32_t> words() const { return words_; }
  std::uint64_t hash() const;
  void clear();

 private:
  Meta infer(Op op, std::span<const Value> in, std::span<const Param> params) const;
  void need_room() const;
  bool known_not_zero(Value v) const;
  Value append(const Meta& meta);
  std::uint32_t symbol(std::int64_t size);
  void word(std::uint64_t w) { words_.push_back(static_cast<std::uint32_t>(w)); }
  void write(const Param& param);
  void relate(const Meta& from, const Meta& to);
  Value number_input(DType dtype, std::int64_t bits);

  std::vector<std::uint32_t> words_;
  std::vector<Meta> metas_;
  std::vector<Input> inputs_;
  std::vector<std::int64_t> sizes_;
  int operators_ = 0;
  int softmax_ = 0;  // how many there were with the last one
  std::size_t outputs_ = 0, before_outputs_ = 0;
  // Inputs by their memory: open addressing, an entry counts if it is of this generation.
  struct Known {
    std::uint32_t generation = 0;
    std::int32_t input = -1;
  };
  std::vector<Known> known_;
  std::uint32_t generation_ = 1;
};

// The program that words say. `symbols` gets, by symbol, the index of the weak input of the program
// that binds it, or -1 where a tensor does.
// `outputs` gets how they lie, and which input of the program they are written to.
struct OutputPlace {
  std::vector<std::int32_t> order;  // outermost first; empty: row-major
  int target = -1;                  // an input's index
};
Program read(std::span<const std::uint32_t> words, std::vector<int>& symbols,
             std::vector<OutputPlace>& outputs);

// Every element in memory of its own, without holes.
bool dense(const host::Geometry& g);
// The strides, in elements, that PyTorch gives the result of an elementwise operator: those of dims
// sorted as the operands' are. Source: PyTorch, ATen/native/TensorIterator.cpp.
void elementwise_strides(std::span<const host::Geometry* const> operands, host::Geometry& out);

}  // namespace tilevm::eager
