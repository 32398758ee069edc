// Inside of SizeTable, shared by size.cpp, range.cpp and text.cpp.
//
// Every size is a polynomial: terms (monomial, coefficient), sorted by monomial. A monomial is a
// sorted product of atoms. An atom is a symbol, a floor division, remainder, minimum or maximum.
// Polynomials, monomials and atoms are interned, so equal normal forms have equal ids.
//
// Every entry also has a recipe: one operation on two entries with smaller ids. So that a
// polynomial's partial products and sums are entries themselves, and compiling is a copy.
//
// A symbol that is a multiple of m > 1 is the polynomial m * q over a hidden atom q = symbol // m:
// divisibility by the factors of m then follows from coefficients.
#pragma once

#include "shape/size.h"

#include <memory>
#include <numeric>
#include <string>

namespace tilevm::shape {

struct Term {
  std::int32_t mono;
  std::int64_t coeff;
  friend bool operator==(const Term&, const Term&) = default;
};
using Poly = std::vector<Term>;  // a polynomial being worked on
using Terms = std::span<const Term>;

struct Entry {
  enum class Kind : std::uint8_t { kConst, kSymbol, kPoly, kQuotient, kFloorDiv, kMod, kMin, kMax };
  Kind kind;
  SizeStep::Kind recipe;        // meaningless for a symbol
  std::int32_t a = -1, b = -1;  // operands of the recipe; a of a symbol: index of its name
  std::int32_t first, n;        // terms
  std::int32_t mono = -1;       // of an atom
  std::int64_t min, max;        // range; the ends of int64 mean unbounded
  std::int32_t depth = 0;       // of an atom: how many it has below it
};

struct Monomial {
  std::int32_t first, n;  // atoms
  SizeId id = kNoSize;    // the entry with coefficient 1
};

// Flat set of indices, for interning: open addressing, the caller compares.
class IndexSet {
 public:
  template <class Equal>
  std::int32_t find(std::uint64_t hash, Equal equal) const {
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      if (slots_[i] < 0 || equal(slots_[i])) return slots_[i];
    }
  }
  template <class HashOf>
  void insert(std::uint64_t hash, std::int32_t index, HashOf hash_of) {
    if (2 * ++used_ > mask_) grow(hash_of);
    place(hash, index);
  }

 private:
  static constexpr std::size_t kFirst = 64;
  void place(std::uint64_t hash, std::int32_t index) {
    std::size_t i = hash & mask_;
    while (slots_[i] >= 0) i = (i + 1) & mask_;
    slots_[i] = index;
  }
  template <class HashOf>
  void grow(HashOf hash_of) {
    std::vector<std::int32_t> old(2 * (mask_ + 1), -1);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (std::int32_t index : old) {
      if (index >= 0) place(hash_of(index), index);
    }
  }
  std::vector<std::int32_t> slots_ = std::vector<std::int32_t>(kFirst, -1);
  std::size_t mask_ = kFirst - 1, used_ = 0;
};

struct Interval {
  std::int64_t min, max;
};

// Bounds of what a table takes: sizes come from text that anybody may have written, partial sums
// of a polynomial are entries too, and a product of sums has as many terms as both together.
// Beyond, std::invalid_argument.
inline constexpr std::size_t kMostSymbols = 1U << 14U;   // which are looked up one by one
inline constexpr std::size_t kMostTerms = 1024;          // of a polynomial
inline constexpr std::size_t kMostFactors = 256;         // of a monomial
inline constexpr std::size_t kMostOperands = 256;        // of nested minima or maxima
inline constexpr std::size_t kMostDepth = 128;           // atoms in atoms
inline constexpr std::size_t kMostTogether = 1U << 24U;  // terms, and atoms of monomials
inline constexpr std::size_t kMostText = 1U << 16U;      // bytes of a size that is printed
void check_size(std::size_t count, std::size_t most, const char* what);

struct SizeTable::Impl {
  std::vector<Entry> entries;
  std::vector<Term> terms;
  std::vector<Monomial> monos;
  std::vector<SizeId> atoms;  // of monomials
  std::vector<std::string> names;
  std::vector<SizeId> symbols;  // in order of names
  IndexSet by_terms, by_atom, by_mono;

  Impl();

  const Entry& at(SizeId a) const { return entries[static_cast<std::size_t>(a)]; }
  const Monomial& mono(std::int32_t m) const { return monos[static_cast<std::size_t>(m)]; }
  Terms terms_of(SizeId a) const {
    const Entry& e = at(a);
    return {terms.data() + e.first, static_cast<std::size_t>(e.n)};
  }
  std::span<const SizeId> atoms_of(std::int32_t m) const {
    return {atoms.data() + mono(m).first, static_cast<std::size_t>(mono(m).n)};
  }
  std::optional<std::int64_t> value(SizeId a) const {
    const Entry& e = at(a);
    if (e.kind != Entry::Kind::kConst) return std::nullopt;
    return e.min;
  }

  SizeId constant(std::int64_t value);
  SizeId intern(Terms poly);
  SizeId atom(Entry::Kind kind, SizeId a, SizeId b, Interval range);
  std::int32_t intern_mono(std::span<const SizeId> factors);
  std::size_t depth_of(SizeId a) const;  // of the deepest atom
  std::int32_t mul_mono(std::int32_t a, std::int32_t b);
  // a / b, or -1
  std::int32_t div_mono(std::int32_t a, std::int32_t b);
  bool mono_before(std::int32_t a, std::int32_t b) const;  // graded lexicographic

  static void add_scaled(Poly& out, Terms a, Terms b, std::int64_t scale);  // out = a + scale * b
  Poly times(Terms a, Terms b);
  std::optional<Poly> divide_exactly(Terms a, Terms b);
  SizeId floordiv(SizeId a, SizeId b);
  SizeId extremum(Entry::Kind kind, SizeId a, SizeId b);
  // Operands of a nested minimum or maximum.
  void flatten(Entry::Kind kind, SizeId a, std::vector<SizeId>& out) const;

  Interval mono_interval(std::int32_t m) const;
  Interval interval(Terms poly) const;  // term by term
  // The largest lower bound that is found; INT64_MIN: none.
  std::int64_t lower_bound(Terms poly, int depth = 3) const;
  Interval bounds(Terms poly) const;
  bool positive(SizeId a) const { return at(a).min >= 1; }
  Answer less_equal(SizeId a, SizeId b) const;
  Answer equal(SizeId a, SizeId b) const;

  void print(Terms poly, int precedence, std::string& out) const;
  void print_atom(SizeId a, int precedence, std::string& out) const;
  bool is_word(const Term& t) const;
  bool print_mod(Terms poly, int precedence, std::string& out) const;
};

inline constexpr std::int64_t kInf = INT64_MAX;
inline constexpr std::int64_t kMinusInf = INT64_MIN;
inline constexpr std::int32_t kOne = 0;  // the empty monomial

// Sizes wrap, as the size program does.
inline std::int64_t wrap_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t wrap_mul(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrap_mul(a, -1);
  std::int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
inline std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  if (b == 0 || b == -1) return 0;
  std::int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// std::gcd without the overflow of |INT64_MIN|: a common divisor, the greatest that fits.
inline std::int64_t common_divisor(std::int64_t a, std::int64_t b) {
  const auto magnitude = [](std::int64_t x) {
    return x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
  };
  const std::uint64_t gcd = std::gcd(magnitude(a), magnitude(b));
  return static_cast<std::int64_t>(gcd > static_cast<std::uint64_t>(kInf) ? gcd / 2 : gcd);
}

}  // namespace tilevm::shape
