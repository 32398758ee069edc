// Size expressions over symbols, interned: two sizes of one table are provably equal if their ids
// are. Normal form: a polynomial with integer coefficients over atoms (symbols, and floor
// divisions, remainders, minima, maxima of normal forms).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilevm::shape {

enum class SizeId : std::int32_t {};
inline constexpr SizeId kNoSize{-1};

// What is known of a symbol. Sizes are at least 0 unless said otherwise.
struct Range {
  std::int64_t min = 0;
  std::int64_t max = INT64_MAX;
  std::int64_t multiple_of = 1;
};

enum class Answer : std::uint8_t { kNo, kYes, kUnknown };

// One step of the size program: regs[out] = a <kind> b, on int64, operands are registers.
struct SizeStep {
  enum class Kind : std::uint8_t { kConst, kAdd, kMul, kFloorDiv, kMod, kMin, kMax };
  Kind kind;
  std::int32_t out, a, b;
  std::int64_t value;  // kConst
};

class SizeTable {
 public:
  SizeTable();
  ~SizeTable();
  SizeTable(const SizeTable&);
  SizeTable& operator=(const SizeTable&);
  SizeTable(SizeTable&&) noexcept;
  SizeTable& operator=(SizeTable&&) noexcept;

  SizeId constant(std::int64_t value);
  SizeId symbol(std::string_view name, Range range = {});  // the same id for the same name
  SizeId add(SizeId a, SizeId b);
  SizeId sub(SizeId a, SizeId b);
  SizeId mul(SizeId a, SizeId b);
  SizeId floordiv(SizeId a, SizeId b);
  SizeId mod(SizeId a, SizeId b);  // sign of b
  SizeId min(SizeId a, SizeId b);
  SizeId max(SizeId a, SizeId b);
  SizeId product(std::span<const SizeId> sizes);
  // The q with q * b == a as polynomials, whether or not b may be 0; nothing for the constant 0.
  std::optional<SizeId> quotient(SizeId a, SizeId b);

  std::optional<std::int64_t> value(SizeId a) const;  // if it is a constant
  bool is(SizeId a, std::int64_t value) const { return this->value(a) == value; }
  bool is_symbol(SizeId a) const;
  Answer equal(SizeId a, SizeId b) const;  // for every value of the symbols in range
  Answer less_equal(SizeId a, SizeId b) const;
  Range range(SizeId a) const;
  int count() const;  // ids are 0 .. count-1

  // Text as Python prints it: "B*8 + 1", "(n + 3)//2", "n % 4", "max(a, b)". parse throws
  // std::invalid_argument; unknown names become symbols.
  std::string print(SizeId a) const;
  SizeId parse(std::string_view text);

  // Compiles the sizes `wanted` (and all they need) to steps over registers = ids; symbols are
  // inputs. Evaluating costs about a nanosecond a step.
  std::vector<SizeStep> compile(std::span<const SizeId> wanted) const;
  std::vector<SizeId> symbols() const;
  std::string_view symbol_name(SizeId a) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// regs holds one int64 an id; symbols are set. Division by zero yields 0.
void evaluate(std::span<const SizeStep> steps, std::span<std::int64_t> regs) noexcept;

}  // namespace tilevm::shape
