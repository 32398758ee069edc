// Operators of the framework that are programs of the core: what they are made of is put into a
// segment's program wherever they were called.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "program/program.h"

namespace tilevm::eager {

using Extents = std::span<const std::int64_t>;  // of a tensor, a dim each

// What a template is called with: sizes of its operands, and sizes among the other arguments.
struct Sized {
  std::span<const Extents> operands;
  Extents numbers;
};

// A condition on sizes that a template takes for granted.
struct Condition {
  enum class Relation : std::uint8_t { kEqual, kNotEqual, kLess, kLessEqual } relation;
  SizeId a, b;
};

// No element of an operand is above `most`, which a template takes for granted as well.
struct Limit {
  std::int32_t operand;
  double most;
};

// A program whose inputs are tensors. Each of its symbols is a size of one or among the numbers,
// which may be expressions as well. It has no call-outs.
class Template {
 public:
  // orders: how results lie in memory, by dims from outermost; complex: by result, whether it
  // consists of the parts of complex numbers. Throws std::invalid_argument where the program is not
  // like that.
  Template(Program program, std::vector<Condition> conditions, std::vector<SizeId> numbers,
           std::vector<std::vector<std::int32_t>> orders, std::vector<bool> complex,
           std::vector<Limit> limits = {});

  struct Result {
    DType dtype = DType::kFloat32;
    int rank = 0;
    std::array<std::int64_t, kMaxRank> sizes{};
  };
  std::size_t n_operands() const { return program_.inputs.size(); }
  std::size_t n_numbers() const { return numbers_.size(); }
  std::size_t n_results() const { return program_.outputs.size(); }
  int operators() const { return static_cast<int>(program_.nodes.size()); }
  bool has_product() const { return has_product_; }

  std::span<const std::int32_t> order(std::size_t result) const { return orders_[result]; }
  bool is_complex(std::size_t result) const { return complex_[result]; }
  std::span<const Limit> limits() const { return limits_; }

  // Whether it is for these sizes.
  bool fits(const Sized& given) const { return infer(given, {}); }
  // What it makes of operands of these sizes. False: it is not for them.
  bool infer(const Sized& given, std::span<Result> results) const;

  // Appends its operators to `program`, with these operands and sizes. Gives the results.
  std::vector<ValueId> append_to(Program& program, std::span<const ValueId> operands,
                                 std::span<const SizeId> numbers) const;

 private:
  template <class Visit>
  void visit_sizes(Visit&& visit) const;

  Program program_;
  std::vector<Condition> conditions_;
  std::vector<SizeId> numbers_;
  std::vector<std::vector<std::int32_t>> orders_;
  std::vector<bool> complex_;
  std::vector<Limit> limits_;
  struct Symbol {
    SizeId id;
    std::int64_t least, most;
  };
  std::vector<Symbol> symbols_;
  std::vector<shape::SizeStep> shown_;  // what infer() needs
  std::vector<shape::SizeStep> all_;    // what append_to() needs
  bool has_product_ = false;
};

// Templates by number, kept for good. Any thread.
std::int32_t add_template(std::unique_ptr<const Template> made);
const Template& find_template(std::int32_t number);  // throws std::out_of_range

}  // namespace tilevm::eager
