#include "shape/size.h"

#include <algorithm>
#include <stdexcept>

#include "shape/table.h"

namespace tilevm::shape {

namespace {

std::int32_t index(SizeId a) { return static_cast<std::int32_t>(a); }

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15ULL;
  return h ^ (h >> 32);
}

std::uint64_t hash_terms(Terms poly) {
  std::uint64_t h = poly.size();
  for (const Term& t : poly) {
    h = mix(mix(h, static_cast<std::uint64_t>(t.mono)), static_cast<std::uint64_t>(t.coeff));
  }
  return h;
}

std::uint64_t hash_atom(Entry::Kind kind, std::int32_t a, std::int32_t b) {
  return mix(mix(static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(a)),
             static_cast<std::uint64_t>(b));
}

std::uint64_t hash_mono(std::span<const SizeId> atoms) {
  std::uint64_t h = atoms.size();
  for (SizeId a : atoms) h = mix(h, static_cast<std::uint64_t>(a));
  return h;
}

SizeStep::Kind recipe_of(Entry::Kind kind) {
  switch (kind) {
    case Entry::Kind::kMod:
      return SizeStep::Kind::kMod;
    case Entry::Kind::kMin:
      return SizeStep::Kind::kMin;
    case Entry::Kind::kMax:
      return SizeStep::Kind::kMax;
    default:
      return SizeStep::Kind::kFloorDiv;
  }
}

}  // namespace

void check_size(std::size_t count, std::size_t most, const char* what) {
  if (count <= most) return;
  throw std::invalid_argument("a size has more than " + std::to_string(most) + " " + what);
}

// ---- Interning

SizeTable::Impl::Impl() {
  entries.reserve(32);
  terms.reserve(48);
  monos.reserve(8);
  atoms.reserve(8);
  monos.push_back({0, 0, kNoSize});
  by_mono.insert(hash_mono({}), kOne, [](std::int32_t) { return std::uint64_t{0}; });
  monos[kOne].id = constant(1);
}

SizeId SizeTable::Impl::constant(std::int64_t value) {
  if (value == 0) return intern({});
  const Term term{kOne, value};
  return intern({&term, 1});
}

// `poly` may not point into `terms`.
SizeId SizeTable::Impl::intern(Terms poly) {
  const std::uint64_t hash = hash_terms(poly);
  const std::int32_t found = by_terms.find(hash, [&](std::int32_t i) {
    const Entry& e = entries[static_cast<std::size_t>(i)];
    return e.n == static_cast<std::int32_t>(poly.size()) &&
           std::equal(poly.begin(), poly.end(), terms.begin() + e.first);
  });
  if (found >= 0) return SizeId{found};

  check_size(poly.size(), kMostTerms, "terms");
  // A single term's monomial is counted already, and must not be left without its entry.
  if (poly.size() > 1) check_size(terms.size(), kMostTogether, "terms together with all others");
  Entry e{};
  if (poly.empty() || (poly.size() == 1 && poly[0].mono == kOne)) {
    e.kind = Entry::Kind::kConst;
    e.recipe = SizeStep::Kind::kConst;
    e.a = e.b = -1;
    e.min = e.max = poly.empty() ? 0 : poly[0].coeff;
  } else {
    e.kind = Entry::Kind::kPoly;
    // Parts first: a recipe's operands have smaller ids.
    if (poly.size() > 1) {
      e.recipe = SizeStep::Kind::kAdd;
      e.a = index(intern(poly.first(poly.size() - 1)));
      e.b = index(intern(poly.last(1)));
    } else if (poly[0].coeff != 1) {
      e.recipe = SizeStep::Kind::kMul;
      e.a = index(mono(poly[0].mono).id);
      e.b = index(constant(poly[0].coeff));
    } else {
      const std::span<const SizeId> factors = atoms_of(poly[0].mono);
      e.recipe = SizeStep::Kind::kMul;
      e.b = index(factors.back());
      const std::int32_t rest =
          intern_mono(std::vector<SizeId>(factors.begin(), factors.end() - 1));
      e.a = index(mono(rest).id);
    }
    const Interval range = bounds(poly);
    e.min = range.min;
    e.max = range.max;
  }
  e.mono = -1;
  e.first = static_cast<std::int32_t>(terms.size());
  e.n = static_cast<std::int32_t>(poly.size());
  terms.insert(terms.end(), poly.begin(), poly.end());
  const auto id = static_cast<std::int32_t>(entries.size());
  entries.push_back(e);
  by_terms.insert(hash, id, [&](std::int32_t i) { return hash_terms(terms_of(SizeId{i})); });
  return SizeId{id};
}

SizeId SizeTable::Impl::atom(Entry::Kind kind, SizeId a, SizeId b, Interval range) {
  const std::uint64_t hash = hash_atom(kind, index(a), index(b));
  const std::int32_t found = by_atom.find(hash, [&](std::int32_t i) {
    const Entry& e = entries[static_cast<std::size_t>(i)];
    return e.kind == kind && e.a == index(a) && e.b == index(b);
  });
  if (found >= 0) return SizeId{found};

  std::size_t depth = 0;
  if (kind != Entry::Kind::kSymbol && kind != Entry::Kind::kQuotient) {
    depth = 1 + std::max(depth_of(a), depth_of(b));
    check_size(depth, kMostDepth, "operations inside of each other");
  }
  const auto id = static_cast<std::int32_t>(entries.size());
  Entry e{};
  e.kind = kind;
  e.depth = static_cast<std::int32_t>(depth);
  e.recipe = recipe_of(kind);
  e.a = index(a);
  e.b = index(b);
  e.min = range.min;
  e.max = range.max;
  e.first = static_cast<std::int32_t>(terms.size());
  e.n = 1;
  e.mono = static_cast<std::int32_t>(monos.size());
  monos.push_back({static_cast<std::int32_t>(atoms.size()), 1, SizeId{id}});
  atoms.push_back(SizeId{id});
  terms.push_back({e.mono, 1});
  entries.push_back(e);
  const auto rehash_terms = [&](std::int32_t i) { return hash_terms(terms_of(SizeId{i})); };
  by_terms.insert(rehash_terms(id), id, rehash_terms);
  by_mono.insert(hash_mono(atoms_of(e.mono)), e.mono,
                 [&](std::int32_t m) { return hash_mono(atoms_of(m)); });
  by_atom.insert(hash, id, [&](std::int32_t i) {
    const Entry& other = entries[static_cast<std::size_t>(i)];
    return hash_atom(other.kind, other.a, other.b);
  });
  return SizeId{id};
}

std::size_t SizeTable::Impl::depth_of(SizeId a) const {
  std::int32_t depth = 0;
  for (const Term& t : terms_of(a)) {
    for (SizeId atom : atoms_of(t.mono)) depth = std::max(depth, at(atom).depth);
  }
  return static_cast<std::size_t>(depth);
}

// `factors` is sorted and may not point into `atoms`.
std::int32_t SizeTable::Impl::intern_mono(std::span<const SizeId> factors) {
  const std::uint64_t hash = hash_mono(factors);
  const std::int32_t found =
      by_mono.find(hash, [&](std::int32_t m) { return std::ranges::equal(atoms_of(m), factors); });
  if (found >= 0) return found;
  check_size(factors.size(), kMostFactors, "factors");
  check_size(atoms.size(), kMostTogether, "factors together with all others");
  const auto id = static_cast<std::int32_t>(monos.size());
  monos.push_back({static_cast<std::int32_t>(atoms.size()),
                   static_cast<std::int32_t>(factors.size()), kNoSize});
  atoms.insert(atoms.end(), factors.begin(), factors.end());
  by_mono.insert(hash, id, [&](std::int32_t m) { return hash_mono(atoms_of(m)); });
  const Term term{id, 1};
  const SizeId entry = intern({&term, 1});
  monos[static_cast<std::size_t>(id)].id = entry;
  return id;
}

std::int32_t SizeTable::Impl::mul_mono(std::int32_t a, std::int32_t b) {
  if (a == kOne) return b;
  if (b == kOne) return a;
  const auto x = atoms_of(a), y = atoms_of(b);
  std::vector<SizeId> factors(x.size() + y.size());
  std::ranges::merge(x, y, factors.begin());
  return intern_mono(factors);
}

std::int32_t SizeTable::Impl::div_mono(std::int32_t a, std::int32_t b) {
  if (b == kOne) return a;
  const auto x = atoms_of(a), y = atoms_of(b);
  if (!std::ranges::includes(x, y)) return -1;
  std::vector<SizeId> factors;
  std::ranges::set_difference(x, y, std::back_inserter(factors));
  return intern_mono(factors);
}

bool SizeTable::Impl::mono_before(std::int32_t a, std::int32_t b) const {
  const auto x = atoms_of(a), y = atoms_of(b);
  if (x.size() != y.size()) return x.size() > y.size();
  return std::ranges::lexicographical_compare(x, y);
}

// ---- Arithmetic

void SizeTable::Impl::add_scaled(Poly& out, Terms a, Terms b, std::int64_t scale) {
  out.clear();
  out.reserve(a.size() + b.size());
  auto x = a.begin(), y = b.begin();
  while (x != a.end() || y != b.end()) {
    if (y == b.end() || (x != a.end() && x->mono < y->mono)) {
      out.push_back(*x++);
    } else if (x == a.end() || y->mono < x->mono) {
      out.push_back({y->mono, wrap_mul(y->coeff, scale)});
      ++y;
    } else {
      const std::int64_t sum = wrap_add(x->coeff, wrap_mul(y->coeff, scale));
      if (sum != 0) out.push_back({x->mono, sum});
      ++x, ++y;
    }
  }
}

Poly SizeTable::Impl::times(Terms a, Terms b) {
  // Copies: multiplying monomials appends to `terms`.
  const Poly x(a.begin(), a.end()), y(b.begin(), b.end());
  check_size(x.size() * y.size(), 16 * kMostTerms, "terms before equal ones are added");
  Poly all;
  all.reserve(x.size() * y.size());
  for (const Term& s : x) {
    for (const Term& t : y) {
      all.push_back({mul_mono(s.mono, t.mono), wrap_mul(s.coeff, t.coeff)});
    }
  }
  std::ranges::sort(all, {}, &Term::mono);
  Poly out;
  for (const Term& t : all) {
    if (!out.empty() && out.back().mono == t.mono) {
      out.back().coeff = wrap_add(out.back().coeff, t.coeff);
    } else {
      out.push_back(t);
    }
  }
  std::erase_if(out, [](const Term& t) { return t.coeff == 0; });
  return out;
}

// Division of polynomials by leading terms; a quotient only if nothing remains.
std::optional<Poly> SizeTable::Impl::divide_exactly(Terms a, Terms b) {
  const auto lead = [this](Terms p) {
    return *std::ranges::min_element(
        p, [this](const Term& s, const Term& t) { return mono_before(s.mono, t.mono); });
  };
  const Poly divisor(b.begin(), b.end());
  const Term by = lead(divisor);
  Poly rest(a.begin(), a.end()), quotient;
  for (int steps = 0; !rest.empty(); ++steps) {
    const Term top = lead(rest);
    if (steps == 32 || top.coeff == kMinusInf || top.coeff % by.coeff != 0) return std::nullopt;
    const std::int32_t mono = div_mono(top.mono, by.mono);
    if (mono < 0) return std::nullopt;
    const Term t{mono, top.coeff / by.coeff};
    quotient.push_back(t);
    Poly next;
    add_scaled(next, rest, times({&t, 1}, divisor), -1);
    rest.swap(next);
  }
  std::ranges::sort(quotient, {}, &Term::mono);
  return quotient;
}

SizeId SizeTable::Impl::floordiv(SizeId a, SizeId b) {
  if (const auto c = value(b)) {
    if (*c == 0) return constant(0);
    if (*c == 1) return a;
    if (const auto x = value(a)) return constant(floor_div(*x, *c));
    if (*c < 0) {
      if (*c == kMinusInf) return atom(Entry::Kind::kFloorDiv, a, b, {kMinusInf, kInf});
      Poly negated;
      add_scaled(negated, {}, terms_of(a), -1);
      const SizeId numerator = intern(negated);
      return floordiv(numerator, constant(-*c));
    }
    // (c*q + r) // c = q + r // c, and (g*x + k) // (g*d) = (x + k // g) // d.
    Poly quotient, rest;
    std::int64_t gcd = *c, offset = 0;
    for (const Term& t : terms_of(a)) {
      if (t.coeff % *c == 0) {
        quotient.push_back({t.mono, t.coeff / *c});
      } else if (t.mono == kOne) {
        offset = floor_mod(t.coeff, *c);
        if (const std::int64_t q = floor_div(t.coeff, *c); q != 0) quotient.push_back({kOne, q});
      } else {
        gcd = common_divisor(gcd, t.coeff);
        rest.push_back(t);
      }
    }
    if (rest.empty()) return intern(quotient);
    for (Term& t : rest) t.coeff /= gcd;
    if (offset / gcd != 0) rest.insert(rest.begin(), {kOne, offset / gcd});
    const std::int64_t d = *c / gcd;
    const Interval range = bounds(rest);
    const std::int64_t low = range.min == kMinusInf ? kMinusInf : floor_div(range.min, d);
    const std::int64_t high = range.max == kInf ? kInf : floor_div(range.max, d);
    Poly tail;
    if (low == high) {
      if (low != 0) tail.push_back({kOne, low});
    } else {
      const SizeId numerator = intern(rest);
      const SizeId by = constant(d);
      tail.push_back({at(atom(Entry::Kind::kFloorDiv, numerator, by, {low, high})).mono, 1});
    }
    Poly sum;
    add_scaled(sum, quotient, tail, 1);
    return intern(sum);
  }

  if (value(a) == 0) return a;
  const Entry divisor = at(b);
  if (positive(b)) {
    if (auto quotient = divide_exactly(terms_of(a), terms_of(b))) return intern(*quotient);
    if (divisor.n == 1) {
      // (q*b + r) // b = q + r // b for a product b.
      const Term by = terms_of(b)[0];
      const Poly numerator(terms_of(a).begin(), terms_of(a).end());
      Poly quotient, rest;
      for (const Term& t : numerator) {
        const bool divides = t.coeff != kMinusInf && t.coeff % by.coeff == 0;
        const std::int32_t mono = divides ? div_mono(t.mono, by.mono) : -1;
        if (mono >= 0) {
          quotient.push_back({mono, t.coeff / by.coeff});
        } else {
          rest.push_back(t);
        }
      }
      if (!quotient.empty()) {
        std::ranges::sort(quotient, {}, &Term::mono);
        const SizeId remaining = intern(rest);
        const SizeId tail = floordiv(remaining, b);
        Poly sum;
        add_scaled(sum, quotient, terms_of(tail), 1);
        return intern(sum);
      }
    }
    const Entry& numerator = at(a);
    if (numerator.min >= 0) {
      Poly gap;
      add_scaled(gap, terms_of(b), terms_of(a), -1);
      if (lower_bound(gap) >= 1) return constant(0);
      return atom(Entry::Kind::kFloorDiv, a, b, {0, numerator.max});
    }
  }
  return atom(Entry::Kind::kFloorDiv, a, b, {kMinusInf, kInf});
}

void SizeTable::Impl::flatten(Entry::Kind kind, SizeId a, std::vector<SizeId>& out) const {
  const Entry& e = at(a);
  if (e.kind != kind) {
    check_size(out.size() + 1, kMostOperands, "operands of min or max");
    out.push_back(a);
    return;
  }
  flatten(kind, SizeId{e.a}, out);
  flatten(kind, SizeId{e.b}, out);
}

SizeId SizeTable::Impl::extremum(Entry::Kind kind, SizeId a, SizeId b) {
  if (a == b) return a;
  const bool least = kind == Entry::Kind::kMin;
  const auto beats = [&](SizeId x, SizeId y) {
    return (least ? less_equal(x, y) : less_equal(y, x)) == Answer::kYes;
  };
  std::vector<SizeId> all;
  flatten(kind, a, all);
  flatten(kind, b, all);
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  std::vector<SizeId> kept;
  for (SizeId x : all) {
    if (std::ranges::any_of(kept, [&](SizeId y) { return beats(y, x); })) continue;
    std::erase_if(kept, [&](SizeId y) { return beats(x, y); });
    kept.push_back(x);
  }
  SizeId result = kept[0];
  for (std::size_t i = 1; i < kept.size(); ++i) {
    const Entry x = at(result), y = at(kept[i]);
    const Interval range = least ? Interval{std::min(x.min, y.min), std::min(x.max, y.max)}
                                 : Interval{std::max(x.min, y.min), std::max(x.max, y.max)};
    result = atom(kind, result, kept[i], range);
  }
  return result;
}

// ---- The table

SizeTable::SizeTable() : impl_(std::make_unique<Impl>()) {}
SizeTable::~SizeTable() = default;
SizeTable::SizeTable(const SizeTable& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
SizeTable& SizeTable::operator=(const SizeTable& other) { return *this = SizeTable(other); }
SizeTable::SizeTable(SizeTable&&) noexcept = default;
SizeTable& SizeTable::operator=(SizeTable&&) noexcept = default;

SizeId SizeTable::constant(std::int64_t value) { return impl_->constant(value); }

SizeId SizeTable::symbol(std::string_view name, Range range) {
  Impl& t = *impl_;
  for (std::size_t i = 0; i < t.names.size(); ++i) {
    if (t.names[i] == name) return t.symbols[i];
  }
  check_size(t.names.size() + 1, kMostSymbols, "names beside it");
  const std::int64_t m = std::max<std::int64_t>(range.multiple_of, 1);
  const auto name_index = static_cast<std::int32_t>(t.names.size());
  t.names.emplace_back(name);
  const auto up = [m](std::int64_t x) { return x == kMinusInf ? x : -floor_div(-x, m); };
  const auto down = [m](std::int64_t x) { return x == kInf ? x : floor_div(x, m); };
  const Interval count{up(range.min), down(range.max)};
  SizeId id;
  if (m == 1) {
    id = t.atom(Entry::Kind::kSymbol, SizeId{name_index}, kNoSize, count);
  } else {
    // The symbol's entry comes before the quotient's, whose recipe divides it.
    const SizeId by = t.constant(m);
    id = SizeId{static_cast<std::int32_t>(t.entries.size())};
    Entry e{};
    e.kind = Entry::Kind::kSymbol;
    e.recipe = SizeStep::Kind::kConst;
    e.a = name_index;
    e.b = -1;
    e.mono = -1;
    t.entries.push_back(e);
    const SizeId quotient = t.atom(Entry::Kind::kQuotient, id, by, count);
    Entry& symbol = t.entries[static_cast<std::size_t>(id)];
    symbol.first = static_cast<std::int32_t>(t.terms.size());
    symbol.n = 1;
    t.terms.push_back({t.at(quotient).mono, m});
    const Interval all = t.interval(t.terms_of(id));
    symbol.min = all.min;
    symbol.max = all.max;
    const auto hash = [&t](std::int32_t i) { return hash_terms(t.terms_of(SizeId{i})); };
    t.by_terms.insert(hash(index(id)), index(id), hash);
  }
  t.symbols.push_back(id);
  return id;
}

SizeId SizeTable::add(SizeId a, SizeId b) {
  Impl& t = *impl_;
  const Entry &x = t.at(a), &y = t.at(b);
  if (x.n == 0) return b;
  if (y.n == 0) return a;
  if (x.kind == Entry::Kind::kConst && y.kind == Entry::Kind::kConst) {
    return t.constant(wrap_add(x.min, y.min));
  }
  Poly sum;
  Impl::add_scaled(sum, t.terms_of(a), t.terms_of(b), 1);
  return t.intern(sum);
}

SizeId SizeTable::sub(SizeId a, SizeId b) {
  Impl& t = *impl_;
  if (t.at(b).n == 0) return a;
  Poly difference;
  Impl::add_scaled(difference, t.terms_of(a), t.terms_of(b), -1);
  return t.intern(difference);
}

SizeId SizeTable::mul(SizeId a, SizeId b) {
  Impl& t = *impl_;
  const Entry &x = t.at(a), &y = t.at(b);
  if (x.kind == Entry::Kind::kConst && y.kind == Entry::Kind::kConst) {
    return t.constant(wrap_mul(x.min, y.min));
  }
  if (x.kind == Entry::Kind::kConst && x.min == 1) return b;
  if (y.kind == Entry::Kind::kConst && y.min == 1) return a;
  const Poly result = t.times(t.terms_of(a), t.terms_of(b));
  return t.intern(result);
}

SizeId SizeTable::floordiv(SizeId a, SizeId b) { return impl_->floordiv(a, b); }

SizeId SizeTable::mod(SizeId a, SizeId b) {
  Impl& t = *impl_;
  const auto c = t.value(b);
  if (c == 0) return t.constant(0);
  if (c || t.positive(b)) {
    // a - (a // b) * b: so that n + (-n) % 8 is seen to be a multiple of 8.
    const SizeId quotient = t.floordiv(a, b);
    if (t.value(quotient) == 0) return a;
    return sub(a, mul(quotient, b));
  }
  if (a == b || t.value(a) == 0) return t.constant(0);
  return t.atom(Entry::Kind::kMod, a, b, {kMinusInf, kInf});
}

SizeId SizeTable::min(SizeId a, SizeId b) { return impl_->extremum(Entry::Kind::kMin, a, b); }
SizeId SizeTable::max(SizeId a, SizeId b) { return impl_->extremum(Entry::Kind::kMax, a, b); }

SizeId SizeTable::product(std::span<const SizeId> sizes) {
  std::int64_t factor = 1;
  SizeId rest = kNoSize;
  for (SizeId a : sizes) {
    if (const auto c = impl_->value(a)) {
      factor = wrap_mul(factor, *c);
    } else {
      rest = rest == kNoSize ? a : mul(rest, a);
    }
  }
  const SizeId c = constant(factor);
  return rest == kNoSize ? c : mul(rest, c);
}

std::optional<SizeId> SizeTable::quotient(SizeId a, SizeId b) {
  Impl& t = *impl_;
  if (t.at(b).n == 0) return std::nullopt;
  const auto result = t.divide_exactly(t.terms_of(a), t.terms_of(b));
  if (!result) return std::nullopt;
  return t.intern(*result);
}

std::optional<std::int64_t> SizeTable::value(SizeId a) const { return impl_->value(a); }
bool SizeTable::is_symbol(SizeId a) const { return impl_->at(a).kind == Entry::Kind::kSymbol; }
Answer SizeTable::equal(SizeId a, SizeId b) const { return impl_->equal(a, b); }
Answer SizeTable::less_equal(SizeId a, SizeId b) const { return impl_->less_equal(a, b); }
int SizeTable::count() const { return static_cast<int>(impl_->entries.size()); }
std::vector<SizeId> SizeTable::symbols() const { return impl_->symbols; }

std::string_view SizeTable::symbol_name(SizeId a) const {
  return impl_->names[static_cast<std::size_t>(impl_->at(a).a)];
}

// ---- The size program

std::vector<SizeStep> SizeTable::compile(std::span<const SizeId> wanted) const {
  const std::vector<Entry>& entries = impl_->entries;
  std::vector<bool> needed(entries.size());
  for (SizeId a : wanted) needed[static_cast<std::size_t>(a)] = true;
  for (std::size_t i = entries.size(); i-- > 0;) {
    const Entry& e = entries[i];
    if (!needed[i] || e.kind == Entry::Kind::kConst || e.kind == Entry::Kind::kSymbol) continue;
    needed[static_cast<std::size_t>(e.a)] = needed[static_cast<std::size_t>(e.b)] = true;
  }
  std::vector<SizeStep> steps;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    if (!needed[i] || e.kind == Entry::Kind::kSymbol) continue;
    const bool is_const = e.kind == Entry::Kind::kConst;
    steps.push_back({e.recipe, static_cast<std::int32_t>(i), e.a, e.b, is_const ? e.min : 0});
  }
  return steps;
}

void evaluate(std::span<const SizeStep> steps, std::span<std::int64_t> regs) noexcept {
  const auto at = [&](std::int32_t i) -> std::int64_t& {
    return regs[static_cast<std::size_t>(i)];
  };
  for (const SizeStep& s : steps) {
    std::int64_t& out = at(s.out);
    switch (s.kind) {
      case SizeStep::Kind::kConst:
        out = s.value;
        break;
      case SizeStep::Kind::kAdd:
        out = wrap_add(at(s.a), at(s.b));
        break;
      case SizeStep::Kind::kMul:
        out = wrap_mul(at(s.a), at(s.b));
        break;
      case SizeStep::Kind::kFloorDiv:
        out = floor_div(at(s.a), at(s.b));
        break;
      case SizeStep::Kind::kMod:
        out = floor_mod(at(s.a), at(s.b));
        break;
      case SizeStep::Kind::kMin:
        out = std::min(at(s.a), at(s.b));
        break;
      case SizeStep::Kind::kMax:
        out = std::max(at(s.a), at(s.b));
        break;
    }
  }
}

}  // namespace tilevm::shape
