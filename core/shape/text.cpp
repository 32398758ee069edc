// Sizes as text, and back.
#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "shape/table.h"

namespace tilevm::shape {

namespace {

enum Precedence { kSum, kProduct, kAtom };

}  // namespace

void SizeTable::Impl::print_atom(SizeId a, int precedence, std::string& out) const {
  // Atoms that share parts print them each time.
  check_size(out.size(), kMostText, "characters");
  const Entry& e = at(a);
  const auto operands = [&](const char* name) {
    std::vector<SizeId> all;
    flatten(e.kind, a, all);
    out += name;
    for (std::size_t i = 0; i < all.size(); ++i) {
      out += i == 0 ? "(" : ", ";
      print(terms_of(all[i]), kSum, out);
    }
    out += ")";
  };
  switch (e.kind) {
    case Entry::Kind::kSymbol:
      out += names[static_cast<std::size_t>(e.a)];
      return;
    case Entry::Kind::kMin:
      operands("min");
      return;
    case Entry::Kind::kMax:
      operands("max");
      return;
    default:
      break;
  }
  if (precedence > kSum) out += "(";
  if (at(SizeId{e.a}).kind == Entry::Kind::kSymbol) {
    out += names[static_cast<std::size_t>(at(SizeId{e.a}).a)];
  } else {
    print(terms_of(SizeId{e.a}), kProduct, out);
  }
  out += e.kind == Entry::Kind::kMod ? " % " : "//";
  print(terms_of(SizeId{e.b}), kAtom, out);
  if (precedence > kSum) out += ")";
}

// k*x - k*c*(x // c) prints as (x % c) * k.
bool SizeTable::Impl::print_mod(Terms poly, int precedence, std::string& out) const {
  for (const Term& t : poly) {
    const auto factors = atoms_of(t.mono);
    if (factors.size() != 1) continue;
    const Entry& e = at(factors[0]);
    if (e.kind != Entry::Kind::kFloorDiv) continue;
    const auto c = value(SizeId{e.b});
    if (!c || t.coeff % *c != 0) continue;
    const std::int64_t k = -(t.coeff / *c);
    Poly without(poly.begin(), poly.end()), rest;
    std::erase(without, t);
    add_scaled(rest, without, terms_of(SizeId{e.a}), -k);
    if (rest.size() >= without.size()) continue;
    const bool alone = rest.empty() && k == 1;
    if (precedence > (alone ? kSum : rest.empty() ? kProduct : kSum)) out += "(";
    if (!rest.empty()) {
      print(rest, kSum, out);
      out += k < 0 ? " - " : " + ";
    } else if (k < 0) {
      out += "-";
    }
    const std::int64_t times = k < 0 ? -k : k;
    const bool inner = times != 1 || (rest.empty() && k < 0);
    if (inner) out += "(";
    print(terms_of(SizeId{e.a}), kProduct, out);
    out += " % " + std::to_string(*c);
    if (inner) out += ")";
    if (times != 1) out += "*" + std::to_string(times);
    if (precedence > (alone ? kSum : rest.empty() ? kProduct : kSum)) out += ")";
    return true;
  }
  return false;
}

void SizeTable::Impl::print(Terms poly, int precedence, std::string& out) const {
  if (poly.empty()) {
    out += "0";
    return;
  }
  if (print_mod(poly, precedence, out)) return;
  // Products before sums, constants last.
  Poly sorted(poly.begin(), poly.end());
  std::ranges::stable_sort(sorted, [this](const Term& a, const Term& b) {
    const auto degree = [this](const Term& t) { return atoms_of(t.mono).size(); };
    if (degree(a) != degree(b)) return degree(a) > degree(b);
    return mono_before(a.mono, b.mono);
  });
  if (sorted[0].coeff < 0) {
    const auto positive = std::ranges::find_if(sorted, [](const Term& t) { return t.coeff > 0; });
    if (positive != sorted.end()) std::rotate(sorted.begin(), positive, positive + 1);
  }
  const bool sum = sorted.size() > 1;
  const bool negative = sorted[0].coeff < 0;
  const bool word = !sum && is_word(sorted[0]);
  const bool bracket = !word && precedence > (sum || negative ? kSum : kProduct);
  if (bracket) out += "(";
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t coeff = sorted[i].coeff;
    const auto factors = atoms_of(sorted[i].mono);
    if (i > 0) {
      out += coeff < 0 ? " - " : " + ";
    } else if (coeff < 0) {
      out += "-";
    }
    std::uint64_t times =
        coeff < 0 ? 0 - static_cast<std::uint64_t>(coeff) : static_cast<std::uint64_t>(coeff);
    // A hidden quotient q of symbol = m * q absorbs the factor m.
    std::vector<bool> whole(factors.size());
    for (std::size_t f = 0; f < factors.size(); ++f) {
      const Entry& e = at(factors[f]);
      if (e.kind != Entry::Kind::kQuotient) continue;
      const auto m = static_cast<std::uint64_t>(*value(SizeId{e.b}));
      whole[f] = times % m == 0;
      if (whole[f]) times /= m;
    }
    // -a//b would be (-a)//b.
    const bool unary_minus = i == 0 && negative;
    const bool alone = factors.size() == 1 && times == 1 && !unary_minus;
    for (std::size_t f = 0; f < factors.size(); ++f) {
      if (f > 0) out += "*";
      if (whole[f]) {
        out += names[static_cast<std::size_t>(at(SizeId{at(factors[f]).a}).a)];
      } else {
        print_atom(factors[f], alone && (sum || precedence == kSum) ? kSum : kProduct, out);
      }
    }
    if (factors.empty()) {
      out += std::to_string(times);
    } else if (times != 1) {
      out += "*" + std::to_string(times);
    }
  }
  if (bracket) out += ")";
}

// Needs no brackets anywhere: a number, a name, or an atom that brackets itself.
bool SizeTable::Impl::is_word(const Term& t) const {
  if (t.mono == kOne) return t.coeff >= 0;
  const auto factors = atoms_of(t.mono);
  if (factors.size() != 1) return false;
  const Entry& e = at(factors[0]);
  return t.coeff == (e.kind == Entry::Kind::kQuotient ? *value(SizeId{e.b}) : 1) ||
         (t.coeff == 1 && e.kind == Entry::Kind::kQuotient);
}

std::string SizeTable::print(SizeId a) const {
  std::string out;
  impl_->print(impl_->terms_of(a), kSum, out);
  return out;
}

// ---- Parsing: + - * // % with Python's precedence, min(...), max(...), names, integers.

namespace {

class Parser {
 public:
  Parser(SizeTable& sizes, std::string_view text) : sizes_(sizes), text_(text) {}

  SizeId all() {
    const SizeId result = sum();
    skip();
    if (at_ != text_.size()) fail();
    return result;
  }

 private:
  [[noreturn]] void fail() const {
    throw std::invalid_argument("not a size: '" + std::string(text_) + "', at position " +
                                std::to_string(at_) +
                                "; write it as B*2 + 1, n//4, n % 4, "
                                "min(a, b) or max(a, b)");
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  SizeId sum() {
    SizeId left = product();
    for (;;) {
      if (take("+")) {
        left = sizes_.add(left, product());
      } else if (take("-")) {
        left = sizes_.sub(left, product());
      } else {
        return left;
      }
    }
  }

  SizeId product() {
    SizeId left = factor();
    for (;;) {
      if (take("*")) {
        left = sizes_.mul(left, factor());
      } else if (take("//")) {
        left = sizes_.floordiv(left, factor());
      } else if (take("%")) {
        left = sizes_.mod(left, factor());
      } else {
        return left;
      }
    }
  }

  SizeId factor() {
    if (++depth_ > kMaxDepth) fail();
    const SizeId result = bare();
    --depth_;
    return result;
  }

  SizeId bare() {
    if (take("-")) return sizes_.sub(sizes_.constant(0), factor());
    if (take("(")) {
      const SizeId inner = sum();
      if (!take(")")) fail();
      return inner;
    }
    skip();
    const std::size_t start = at_;
    const auto word = [&](char c) {
      return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    while (at_ < text_.size() && word(text_[at_])) ++at_;
    const std::string_view name = text_.substr(start, at_ - start);
    if (name.empty()) fail();
    if (name[0] >= '0' && name[0] <= '9') {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
      if (error != std::errc() || end != name.data() + name.size()) fail();
      return sizes_.constant(value);
    }
    if ((name == "min" || name == "max") && take("(")) {
      SizeId result = sum();
      while (take(",")) {
        const SizeId next = sum();
        result = name == "min" ? sizes_.min(result, next) : sizes_.max(result, next);
      }
      if (!take(")")) fail();
      return result;
    }
    return sizes_.symbol(name);
  }

  static constexpr int kMaxDepth = 200;
  SizeTable& sizes_;
  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

SizeId SizeTable::parse(std::string_view text) { return Parser(*this, text).all(); }

}  // namespace tilevm::shape
