// Folds in trees, of copies and of rows: what they add together before the accumulator sees it.
// Included by emitter.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "exec/native/emitter.h"

namespace tilevm::exec::native {

// Elements of two, four or eight copies are added in their own type, with an error of less than a
// unit in the last place of each, and then to the accumulator: conversions to double, or the six
// additions of an exact one, cost more than additions. Of extrema, whether one is NaN is asked of
// two copies at once. `level` has what is complete to the left of x.
template <class T>
void Emitter<T>::accumulate_tree(Op op, Accumulator& acc, const Value<T>& x) {
  const bool wide = compensated(op);
  const auto joined = [&](const F& a, const F& b) {
    return wide                ? t_.addpd(a, b)
           : op == Op::max_f32 ? t_.max(a, b)
           : op == Op::min_f32 ? t_.min(a, b)
                               : t_.add(a, b);
  };
  F sum = t_.in_register(x.lo), upper;
  if (wide) upper = t_.in_register(x.hi);
  for (int k = 0; 1 << k < in_trees_; ++k) {
    F &left = acc.level[at(k)], &left_upper = acc.level_hi[at(k)];
    if ((copy_ >> k) % 2 == 0) {
      left = std::move(sum);
      left_upper = std::move(upper);
      return;
    }
    if (k == 0 && !acc.mask.empty()) t_.set(acc.mask, t_.mor(acc.mask, t_.unordered(left, sum)));
    sum = joined(std::exchange(left, {}), sum);
    if (wide) upper = joined(std::exchange(left_upper, {}), upper);
  }
  if (op == Op::max_f32) return t_.max_to(acc.lo, sum);
  if (op == Op::min_f32) return t_.min_to(acc.lo, sum);
  if (wide) {
    add_exactly(acc.lo, acc.index_lo, sum, {});
    return add_exactly(acc.hi, acc.index_hi, upper, {});
  }
  const Pair doubles = t_.to_double(sum);
  t_.add_double_to(acc.lo, doubles.lo);
  t_.add_double_to(acc.hi, doubles.hi);
}

// The shift is the first value, if it is infinite so far.
template <class T>
void Emitter<T>::find_shift(Accumulator& acc, const F& x) {
  t_.set(acc.shift, t_.select(t_.eq(acc.shift, t_.f32(HUGE_VALF)), x, acc.shift));
}

// The rows of a tree, one after the other: `level` has what is complete to the left of x. A sum of
// equal numbers is exact, since each addition doubles. Squared deviations of two parts of n rows
// are those of each from its own mean, and (sum - sum)^2 / 2n. Source: T. F. Chan, G. H. Golub,
// R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
// COMPSTAT 1982. So nothing is lost where the mean is large, nor where one value is.
template <class T>
void Emitter<T>::accumulate_in_tree(Op op, Accumulator& acc, const F& x) {
  if (masks_nan(op)) {
    op == Op::max_f32 ? t_.max_to(acc.lo, x) : t_.min_to(acc.lo, x);
    if (acc.mask.empty()) return;
    if (row_ % 2 == 0) {
      acc.even = x;
    } else {
      t_.set(acc.mask, t_.mor(acc.mask, t_.unordered(std::exchange(acc.even, {}), x)));
    }
    return;
  }
  const bool deviates = is_deviations(op);
  F sum = x;
  if (deviates) {
    if (row_ == 0) {
      find_shift(acc, x);
      acc.odd = t_.mul(x, t_.f32(0));
    } else {
      t_.add_product_to(acc.odd, x, t_.f32(0));
    }
    sum = t_.sub(x, acc.shift);
    if (row_ == kRowsInTree - 1) t_.add_to(acc.shift, std::exchange(acc.odd, {}));
  }
  // Beside a variance few registers are left for another sum: its trees are of two rows.
  const int levels = deviates || T::kManyRegisters ? kTreeLevels : 1;
  for (int k = 0; k < levels; ++k) {
    if ((row_ >> k) % 2 == 0) {
      acc.level[at(k)] = std::move(sum);
      return;
    }
    const F left = std::exchange(acc.level[at(k)], {});
    if (deviates) {
      // Of pairs in `even`, whose half counts; of others, which count less, in `pair`.
      const F apart = t_.sub(left, sum);
      const F share = k == 0 ? apart : t_.mul(apart, t_.f32(std::ldexp(1.0F, -k - 1)));
      F& squares = k == 0 ? acc.even : acc.pair;
      squares.empty() ? static_cast<void>(squares = t_.mul(share, apart))
                      : t_.add_product_to(squares, share, apart);
    }
    sum = t_.add(left, sum);
  }
  const Pair doubles = t_.to_double(sum);
  t_.add_double_to(acc.lo, doubles.lo);
  t_.add_double_to(acc.hi, doubles.hi);
  if (!deviates) return;
  t_.add_product_to(acc.pair, std::exchange(acc.even, {}), t_.f32(0.5F));
  const Pair squares = t_.to_double(std::exchange(acc.pair, {}));
  const F rows = t_.i64(std::bit_cast<std::int64_t>(double{kRowsInTree}));
  t_.add_double_to(acc.index_lo, t_.mulpd(doubles.lo, doubles.lo));
  t_.add_double_to(acc.index_hi, t_.mulpd(doubles.hi, doubles.hi));
  t_.add_double_to(acc.index_lo, t_.mulpd(squares.lo, rows));
  t_.add_double_to(acc.index_hi, t_.mulpd(squares.hi, rows));
}

}  // namespace tilevm::exec::native
