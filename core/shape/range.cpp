// What can be said of a size for all values of its symbols.
#include <algorithm>

#include "shape/table.h"

namespace tilevm::shape {

namespace {

using Wide = __int128;

std::int64_t saturate(Wide x) {
  if (x >= kInf) return kInf;
  if (x <= kMinusInf) return kMinusInf;
  return static_cast<std::int64_t>(x);
}

bool infinite(std::int64_t x) { return x == kInf || x == kMinusInf; }

// Ends of intervals: 0 * infinity is 0.
std::int64_t end_mul(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (infinite(a) || infinite(b)) return (a < 0) == (b < 0) ? kInf : kMinusInf;
  return saturate(static_cast<Wide>(a) * b);
}

// Infinities of one sign only.
std::int64_t end_add(std::int64_t a, std::int64_t b) {
  if (infinite(a)) return a;
  if (infinite(b)) return b;
  return saturate(static_cast<Wide>(a) + b);
}

Interval interval_mul(Interval a, Interval b) {
  const std::int64_t ends[] = {end_mul(a.min, b.min), end_mul(a.min, b.max), end_mul(a.max, b.min),
                               end_mul(a.max, b.max)};
  return {*std::ranges::min_element(ends), *std::ranges::max_element(ends)};
}

}  // namespace

Interval SizeTable::Impl::mono_interval(std::int32_t m) const {
  Interval all{1, 1};
  for (SizeId a : atoms_of(m)) all = interval_mul(all, {at(a).min, at(a).max});
  return all;
}

Interval SizeTable::Impl::interval(Terms poly) const {
  Interval all{0, 0};
  for (const Term& t : poly) {
    const Interval one = interval_mul(mono_interval(t.mono), {t.coeff, t.coeff});
    all = {end_add(all.min, one.min), end_add(all.max, one.max)};
  }
  return all;
}

// Beside the intervals, replaces an atom by what bounds it: c * (x // c) is within x - c + 1 .. x,
// a minimum is at most each operand, a maximum at least.
std::int64_t SizeTable::Impl::lower_bound(Terms poly, int depth) const {
  std::int64_t best = interval(poly).min;
  if (depth == 0) return best;
  constexpr std::size_t kMany = 8;  // terms: keeps the search small
  if (poly.size() > kMany) depth = 1;
  for (const Term& t : poly) {
    const auto factors = atoms_of(t.mono);
    if (factors.size() != 1) continue;
    const Entry& e = at(factors[0]);
    const bool extremum = (e.kind == Entry::Kind::kMin && t.coeff < 0) ||
                          (e.kind == Entry::Kind::kMax && t.coeff > 0);
    if (!extremum && e.kind != Entry::Kind::kFloorDiv) continue;
    Poly rest(poly.begin(), poly.end());
    std::erase(rest, t);
    Poly next;
    if (extremum) {
      for (std::int32_t operand : {e.a, e.b}) {
        add_scaled(next, rest, terms_of(SizeId{operand}), t.coeff);
        best = std::max(best, lower_bound(next, depth - 1));
      }
    } else {
      const auto c = value(SizeId{e.b});
      if (!c || *c <= 0 || *c > INT32_MAX) continue;
      // Of scale * poly, so that scale * coeff is a multiple of c.
      const std::int64_t scale = *c / common_divisor(*c, t.coeff);
      if (std::ranges::any_of(
              poly, [](const Term& u) { return u.coeff > INT32_MAX || u.coeff < -INT32_MAX; })) {
        continue;
      }
      for (Term& u : rest) u.coeff *= scale;
      const std::int64_t times = t.coeff * scale / *c;
      add_scaled(next, rest, terms_of(SizeId{e.a}), times);
      const std::int64_t slack = times > 0 ? end_mul(times, *c - 1) : 0;
      const std::int64_t low = lower_bound(next, depth - 1);
      if (low != kMinusInf && low != kInf) {
        const Wide least = static_cast<Wide>(low) - slack;
        best = std::max(best, saturate(least / scale + (least % scale > 0)));  // rounded up
      }
    }
  }
  return best;
}

Interval SizeTable::Impl::bounds(Terms poly) const {
  Poly negated;
  add_scaled(negated, {}, poly, -1);
  const std::int64_t low = lower_bound(poly), high = lower_bound(negated);
  return {low, high == kMinusInf ? kInf : -high};
}

Answer SizeTable::Impl::less_equal(SizeId a, SizeId b) const {
  if (a == b) return Answer::kYes;
  const Entry &x = at(a), &y = at(b);
  if (x.max <= y.min && x.max != kInf) return Answer::kYes;
  if (x.min > y.max) return Answer::kNo;
  if (x.kind == Entry::Kind::kConst && y.kind == Entry::Kind::kConst) return Answer::kNo;
  Poly gap;
  add_scaled(gap, terms_of(b), terms_of(a), -1);
  const Interval range = bounds(gap);
  if (range.min >= 0) return Answer::kYes;
  return range.max < 0 ? Answer::kNo : Answer::kUnknown;
}

Answer SizeTable::Impl::equal(SizeId a, SizeId b) const {
  if (a == b) return Answer::kYes;
  const Entry &x = at(a), &y = at(b);
  if (x.kind == Entry::Kind::kConst && y.kind == Entry::Kind::kConst) return Answer::kNo;
  if (x.max < y.min || y.max < x.min) return Answer::kNo;
  Poly gap;
  add_scaled(gap, terms_of(a), terms_of(b), -1);
  std::int64_t gcd = 0, constant = 0;
  for (const Term& t : gap) {
    if (t.mono == kOne) {
      constant = t.coeff;
    } else {
      gcd = common_divisor(gcd, t.coeff);
    }
  }
  if (gcd == 0 || constant % gcd != 0) return Answer::kNo;
  const Interval range = bounds(gap);
  if (range.min == 0 && range.max == 0) return Answer::kYes;
  return range.min > 0 || range.max < 0 ? Answer::kNo : Answer::kUnknown;
}

Range SizeTable::range(SizeId a) const {
  const Entry& e = impl_->at(a);
  std::int64_t gcd = 0;
  for (const Term& t : impl_->terms_of(a)) gcd = common_divisor(gcd, t.coeff);
  return {e.min, e.max, gcd == 0 ? 1 : gcd};
}

}  // namespace tilevm::shape
