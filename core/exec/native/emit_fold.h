// Folds: an accumulator a lane, and what is left across lanes at the end. Included by emitter.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "exec/native/emitter.h"

namespace tilevm::exec::native {

inline bool sums_doubles(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::sum_f32 || op == Op::mean_f32 || op == Op::total_f32 || op == Op::prod_f32;
}
// Two registers a lane half: the sum, and what its rounding lost.
inline bool compensated(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::sum_f64 || op == Op::mean_f64;
}
// In lo and hi the sum of values less `shift`, in index_lo and index_hi that of their squares, the
// latter times kRowsInTree.
inline bool is_deviations(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::deviations_f32 || op == Op::variance_f32;
}
inline bool is_extremum(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::max_f32 || op == Op::min_f32;
}
inline bool is_sum(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::sum_f32 || op == Op::mean_f32 || op == Op::total_f32;
}
// What copies fold among themselves before the accumulator sees it.
inline bool in_trees(bytecode::Op op) { return is_sum(op) || is_extremum(op) || compensated(op); }
inline bool is_arg(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::argmax_f64 || op == Op::argmin_f64 || op == Op::argmax_f32 ||
         op == Op::argmin_f32 || op == Op::argmax_i32 || op == Op::argmin_i32 ||
         op == Op::argmax_i64 || op == Op::argmin_i64;
}
inline bool wants_largest(bytecode::Op op) {
  using bytecode::Op;
  return op == Op::max_f32 || op == Op::max_i32 || op == Op::max_i64 || op == Op::argmax_f32 ||
         op == Op::argmax_i32 || op == Op::argmax_i64 || op == Op::max_f64 || op == Op::argmax_f64;
}

// Two copies, or two rows of a tree, are asked at once whether one is NaN.
template <class T>
bool Emitter<T>::masks_nan(Op op) const {
  return is_extremum(op) && (lanes_fold() || (T::kMaskRegisters && grows_trees_));
}
// The fold that asks for an extremum whether there is a NaN: the first one of the same values.
template <class T>
int Emitter<T>::asks_nan(int begin, int i) const {
  while (!is_extremum(op(begin)) || p_.code[at(begin)].a != p_.code[at(i)].a) ++begin;
  return begin;
}

// Are rows of a pass folded in trees? What makes a variance is, however long.
template <class T>
bool Emitter<T>::grows_trees(int begin, int end) const {
  if (p_.header->fold != Fold::kRows) return false;
  const auto any = [&](auto what) {
    return std::any_of(p_.code.begin() + begin, p_.code.begin() + end,
                       [&](const Instr& instr) { return what(static_cast<Op>(instr.op)); });
  };
  if (any(is_deviations)) return T::kManyRegisters || tries_trees_;
  return T::kManyRegisters && any(is_sum) &&
         weight(begin, end, [](const Instr&) { return true; }) <= kShortBody;
}

// Are rows added in float32 first? That takes one more register.
template <class T>
bool Emitter<T>::adds_rows(Op op) const {
  return T::kManyRegisters && is_sum(op) && p_.header->fold == Fold::kRows && !grows_trees_;
}
template <class T>
bool Emitter<T>::any_adds_rows(int begin, int end) const {
  return std::any_of(p_.code.begin() + begin, p_.code.begin() + end, [&](const Instr& instr) {
    return info(instr).cls == Class::kFold && adds_rows(static_cast<Op>(instr.op));
  });
}

// Whether all folds of a pass are such.
template <class T>
bool Emitter<T>::all_in_trees(int begin, int end) const {
  return std::all_of(p_.code.begin() + begin, p_.code.begin() + end, [](const Instr& instr) {
    return info(instr).cls != Class::kFold || in_trees(static_cast<Op>(instr.op));
  });
}

// The value that changes nothing; of sums and products of floats, a double.
template <class T>
typename T::F Emitter<T>::neutral(Op op) {
  const bool largest = wants_largest(op);
  switch (op) {
    case Op::sum_f32:
    case Op::mean_f32:
    case Op::total_f32:
    case Op::sum_i64:
    case Op::sum_f64:
    case Op::mean_f64:
    case Op::deviations_f32:
    case Op::variance_f32:
      return t_.i64(0);
    case Op::prod_f64:
    case Op::prod_f32:
      return t_.i64(std::bit_cast<std::int64_t>(1.0));
    case Op::prod_i64:
      return t_.i64(1);
    case Op::max_f32:
    case Op::min_f32:
    case Op::argmax_f32:
    case Op::argmin_f32:
      return t_.f32(largest ? -HUGE_VALF : HUGE_VALF);
    case Op::max_f64:
    case Op::min_f64:
    case Op::argmax_f64:
    case Op::argmin_f64:
      return t_.i64(std::bit_cast<std::int64_t>(largest ? -HUGE_VAL : HUGE_VAL));
    case Op::max_i32:
    case Op::min_i32:
    case Op::argmax_i32:
    case Op::argmin_i32:
      return t_.i32(largest ? INT32_MIN : INT32_MAX);
    case Op::max_i64:
    case Op::min_i64:
    case Op::argmax_i64:
    case Op::argmin_i64:
      return t_.i64(largest ? INT64_MIN : INT64_MAX);
    default:
      throw Unsupported{std::string(bytecode::kIsa[static_cast<int>(op)].name)};
  }
}

template <class T>
void Emitter<T>::start(int begin, int i, Accumulator& acc) {
  const Op op = this->op(i);
  const auto type = info(p_.code[at(i)]).fields[1].type;
  if (type == bytecode::RegType::kB8) {
    acc.mask = t_.all_lanes(op == Op::all_b8);
    return;
  }
  const bool wide = type == bytecode::RegType::kI64 || type == bytecode::RegType::kF64 ||
                    sums_doubles(op) || is_deviations(op);
  // What a tree makes is added once in so many rows; beside functions an addition costs little.
  const auto own_wide = [&](const F& x) {
    if constexpr (!T::kManyRegisters) {
      if (grows_trees_ || (sums_apart_ && sums_doubles(op))) return t_.own_apart(x);
    }
    return t_.own(x, true);
  };
  acc.lo = wide ? own_wide(neutral(op)) : t_.own(neutral(op), false);
  if (wide) acc.hi = own_wide(neutral(op));
  if (is_deviations(op)) {
    if (p_.header->fold != Fold::kRows) throw Unsupported{"a variance of columns in one sweep"};
    acc.shift = t_.own(t_.f32(HUGE_VALF), false);  // there was no value
  }
  if (is_arg(op) || compensated(op) || is_deviations(op)) {
    const F first = t_.i64(is_arg(op) ? INT64_MAX : 0);
    acc.index_lo = own_wide(first);
    acc.index_hi = own_wide(first);
  }
  if (masks_nan(op) && asks_nan(begin, i) == i) acc.mask = t_.all_lanes(false);
  if (adds_rows(op)) acc.even = t_.own(t_.f32(0), false);
}

// Registers of an accumulator that calls for some rows leave to the next one.
template <class T>
int Emitter<T>::kept(int begin, int i) const {
  const Op op = this->op(i);
  const auto type = info(p_.code[at(i)]).fields[1].type;
  if (type == bytecode::RegType::kB8) return 1;
  if (is_deviations(op)) return 5;
  const bool wide =
      type == bytecode::RegType::kI64 || type == bytecode::RegType::kF64 || sums_doubles(op);
  int end = i;
  while (this->op(end) != Op::end) ++end;
  const bool asks = T::kMaskRegisters && is_extremum(op) && grows_trees(begin, end) &&
                    asks_nan(begin, i) == i;
  return (wide ? 2 : 1) + (is_arg(op) || compensated(op) ? 2 : 0) + (asks ? 1 : 0);
}

template <class T>
void Emitter<T>::start_folds(int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const Instr& instr = p_.code[at(i)];
    if (info(instr).cls != Class::kFold) continue;
    const bool shared = copy_ > 0 && lanes_fold() && in_trees(op(i));  // with the first copy
    if (shared) continue;
    note(i, "start");
    start(begin, i, fold(instr.dst));
  }
}

// Where x beats the accumulator of an arg fold: a NaN beats all, then the lower index of equals.
template <class T>
typename T::M Emitter<T>::wins(Op op, const Accumulator& acc, const Accumulator& x) {
  const M earlier = t_.lt64({x.index_lo, x.index_hi}, {acc.index_lo, acc.index_hi});
  switch (op) {  // few masks at a time
    case Op::argmax_f32:
    case Op::argmin_f32: {
      M r = t_.mand(t_.eq(acc.lo, x.lo), earlier);
      r = t_.mor(r, op == Op::argmax_f32 ? t_.lt(acc.lo, x.lo) : t_.lt(x.lo, acc.lo));
      M first_nan = t_.mnot(t_.unordered(acc.lo, acc.lo));
      first_nan = t_.mor(first_nan, earlier);
      first_nan = t_.mand(first_nan, t_.unordered(x.lo, x.lo));
      return t_.mor(first_nan, r);
    }
    case Op::argmax_i32:
    case Op::argmin_i32: {
      const M tie = t_.mand(t_.ieq(acc.lo, x.lo), earlier);
      return t_.mor(tie, op == Op::argmax_i32 ? t_.ilt(acc.lo, x.lo) : t_.ilt(x.lo, acc.lo));
    }
    case Op::argmax_f64:
    case Op::argmin_f64: {
      const Pair best{acc.lo, acc.hi};
      const Pair value{x.lo, x.hi};
      M r = t_.mand(t_.eq_pd(best, value), earlier);
      r = t_.mor(r, op == Op::argmax_f64 ? t_.lt_pd(best, value) : t_.lt_pd(value, best));
      M first_nan = t_.mnot(t_.unordered_pd(best, best));
      first_nan = t_.mor(first_nan, earlier);
      first_nan = t_.mand(first_nan, t_.unordered_pd(value, value));
      return t_.mor(first_nan, r);
    }
    default: {
      const Pair best{acc.lo, acc.hi};
      const Pair value{x.lo, x.hi};
      const M tie = t_.mand(t_.eq64(best, value), earlier);
      return t_.mor(tie, op == Op::argmax_i64 ? t_.lt64(best, value) : t_.lt64(value, best));
    }
  }
}

// sum + lost = sum + lost + x + rest. Source: D. E. Knuth, "The art of computer programming", vol.
// 2, 4.2.2, theorem B. What a sum that is not finite has lost is NaN, and not asked for.
template <class T>
void Emitter<T>::add_exactly(F& sum, F& lost, const F& x, const F& rest) {
  const F total = t_.addpd(sum, x);
  const F added = t_.subpd(total, sum);
  const F error = t_.addpd(t_.subpd(sum, t_.subpd(total, added)), t_.subpd(x, added));
  t_.set(lost, t_.addpd(lost, error));
  if (!rest.empty()) t_.set(lost, t_.addpd(lost, rest));
  t_.set(sum, total);
}

// acc = acc op x, lane by lane; sums of floats are of doubles.
template <class T>
void Emitter<T>::combine(Op op, Accumulator& acc, const Accumulator& x) {
  const auto both = [&](auto half) {
    t_.set(acc.lo, half(acc.lo, x.lo));
    t_.set(acc.hi, half(acc.hi, x.hi));
  };
  switch (op) {
    case Op::sum_f32:
    case Op::mean_f32:
    case Op::total_f32:
      t_.add_double_to(acc.lo, x.lo);
      t_.add_double_to(acc.hi, x.hi);
      return;
    case Op::prod_f32:
    case Op::prod_f64:
      return both([&](const F& s, const F& t) { return t_.mulpd(s, t); });
    case Op::sum_f64:
    case Op::mean_f64:
      add_exactly(acc.lo, acc.index_lo, x.lo, x.index_lo);
      return add_exactly(acc.hi, acc.index_hi, x.hi, x.index_hi);
    case Op::max_f64:
    case Op::min_f64: {
      const Pair r = extremum64({x.lo, x.hi}, {acc.lo, acc.hi}, op == Op::max_f64);
      t_.set(acc.lo, r.lo);
      return t_.set(acc.hi, r.hi);
    }
    case Op::sum_i64:
      return both([&](const F& s, const F& t) { return t_.add64(s, t); });
    case Op::max_f32:
    case Op::min_f32:
      if (!masks_nan(op)) return t_.extremum_to(acc.lo, x.lo, op == Op::max_f32);
      if (!acc.mask.empty()) t_.set(acc.mask, t_.mor(acc.mask, x.mask));
      return op == Op::max_f32 ? t_.max_to(acc.lo, x.lo) : t_.min_to(acc.lo, x.lo);
    case Op::max_i32:
      return t_.set(acc.lo, t_.imax(acc.lo, x.lo));
    case Op::min_i32:
      return t_.set(acc.lo, t_.imin(acc.lo, x.lo));
    case Op::any_b8:
      return t_.set(acc.mask, t_.mor(acc.mask, x.mask));
    case Op::all_b8:
      return t_.set(acc.mask, t_.mand(acc.mask, x.mask));
    default:
      break;
  }
  if (is_arg(op)) {
    const M better = wins(op, acc, x);
    const Pair index = t_.select64(better, {x.index_lo, x.index_hi}, {acc.index_lo, acc.index_hi});
    t_.set(acc.index_lo, index.lo);
    t_.set(acc.index_hi, index.hi);
    if (acc.hi.empty()) return t_.set(acc.lo, t_.select(better, x.lo, acc.lo));
    const Pair value = t_.select64(better, {x.lo, x.hi}, {acc.lo, acc.hi});
    t_.set(acc.lo, value.lo);
    return t_.set(acc.hi, value.hi);
  }
  switch (op) {
    case Op::prod_i64:
      return both([&](const F& s, const F& t) { return t_.mul64(s, t); });
    case Op::max_i64:
      return both([&](const F& s, const F& t) { return t_.max64(s, t); });
    case Op::min_i64:
      return both([&](const F& s, const F& t) { return t_.min64(s, t); });
    default:
      throw Unsupported{std::string(bytecode::kIsa[static_cast<int>(op)].name)};
  }
}

template <class T>
void Emitter<T>::accumulate(const Instr& instr) {
  const auto op = static_cast<Op>(instr.op);
  const bool rest = t_.masked && lanes_fold();  // lanes that are not of the operands fold too
  const auto& given = operand(instr.a);
  if (in_trees_ > 1 && in_trees(op)) return accumulate_tree(op, fold(0, instr.dst), given);
  if (adds_rows(op)) return t_.add_to(fold(instr.dst).even, given.lo);
  if (in_tree_ && (is_sum(op) || is_deviations(op) || masks_nan(op))) {
    return accumulate_in_tree(op, fold(instr.dst), t_.in_register(given.lo));
  }
  if (is_deviations(op)) {
    Accumulator& acc = fold(instr.dst);
    const F one = t_.in_register(given.lo);
    find_shift(acc, one);
    const Pair doubles = t_.to_double(t_.sub(one, acc.shift));
    t_.add_product_to(acc.shift, one, t_.f32(0));
    const F rows = t_.i64(std::bit_cast<std::int64_t>(double{kRowsInTree}));
    t_.add_double_to(acc.lo, doubles.lo);
    t_.add_double_to(acc.hi, doubles.hi);
    t_.add_double_to(acc.index_lo, t_.mulpd(t_.mulpd(doubles.lo, doubles.lo), rows));
    t_.add_double_to(acc.index_hi, t_.mulpd(t_.mulpd(doubles.hi, doubles.hi), rows));
    return;
  }
  Accumulator x;
  if (sums_doubles(op)) {
    const F none = t_.f32(op == Op::prod_f32 ? 1.0F : 0.0F);
    const Pair doubles = t_.to_double(rest ? t_.or_else(given.lo, none) : given.lo);
    x.lo = doubles.lo;
    x.hi = doubles.hi;
  } else if (!given.mask.empty()) {
    x.mask = rest ? t_.or_else(given.mask, op == Op::all_b8) : given.mask;
  } else if (!given.hi.empty()) {
    const Pair some{given.lo, given.hi};
    const Pair value = rest ? t_.or_else(some, neutral(op)) : some;
    x.lo = value.lo;
    x.hi = value.hi;
  } else {
    x.lo = rest ? t_.or_else(given.lo, neutral(op)) : given.lo;
    if (masks_nan(op) && !fold(instr.dst).mask.empty()) x.mask = t_.unordered(x.lo, x.lo);
  }
  if (is_arg(op)) {
    const Pair index = rest ? t_.or_else(pair(instr.b), t_.i64(INT64_MAX)) : pair(instr.b);
    x.index_lo = index.lo;
    x.index_hi = index.hi;
  }
  combine(op, fold(instr.dst), x);
}

// A few rows were added in float32, as copies are: to the double with them.
template <class T>
void Emitter<T>::add_rows(int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const Instr& instr = p_.code[at(i)];
    if (info(instr).cls != Class::kFold || !adds_rows(op(i))) continue;
    note(i, "rows");
    Accumulator& acc = fold(instr.dst);
    const Pair doubles = t_.to_double(acc.even);
    t_.add_double_to(acc.lo, doubles.lo);
    t_.add_double_to(acc.hi, doubles.hi);
    t_.set(acc.even, t_.f32(0));
  }
}

template <class T>
void Emitter<T>::join_copies(int begin, int end, int copies) {
  for (int i = begin; i < end; ++i) {
    const Instr& instr = p_.code[at(i)];
    if (info(instr).cls != Class::kFold || in_trees(op(i))) continue;
    note(i, "join the vectors");
    for (int copy = 1; copy < copies; ++copy) {
      combine(op(i), fold(0, instr.dst), std::exchange(fold(copy, instr.dst), {}));
    }
  }
}

// All lanes become the fold of all lanes.
template <class T>
void Emitter<T>::fold_lanes(Op op, Accumulator& acc) {
  if (op == Op::any_b8 || op == Op::all_b8) {
    const bool all = op == Op::all_b8;
    acc.mask = all ? t_.mnot(t_.any(t_.mnot(acc.mask))) : t_.any(acc.mask);
    return;
  }
  const bool wide = !acc.hi.empty();
  if (wide || is_arg(op)) {  // the halves first
    Accumulator upper{acc.hi, acc.hi, acc.index_hi, acc.index_hi, {}, {}, {}, {}, {}, {}, {}};
    if (!wide) upper.lo = t_.turned(acc.lo, T::kLanes / 2);
    combine(op, acc, upper);
    if (is_sum(op)) {  // one half is enough from here on
      for (int n = T::kLanes / 4; n >= 1; n /= 2) t_.add_double_to(acc.lo, t_.turned64(acc.lo, n));
      acc.lo = acc.hi = t_.first64(acc.lo);
      return;
    }
    for (int n = T::kLanes / 4; n >= 1; n /= 2) {
      Accumulator turned;
      turned.lo = wide ? t_.turned64(acc.lo, n) : t_.turned(acc.lo, n);
      if (wide) turned.hi = turned.lo;
      if (!acc.index_lo.empty()) turned.index_lo = turned.index_hi = t_.turned64(acc.index_lo, n);
      combine(op, acc, turned);
    }
    if (wide) acc.lo = acc.hi = t_.first64(acc.lo);
    if (!acc.index_lo.empty()) acc.index_lo = acc.index_hi = t_.first64(acc.index_lo);
    return;
  }
  if (masks_nan(op)) {
    if (!acc.mask.empty()) acc.mask = t_.any(acc.mask);
    for (int n = T::kLanes / 2; n >= 1; n /= 2) {
      const F turned = t_.turned(acc.lo, n);
      acc.lo = op == Op::max_f32 ? t_.max(turned, acc.lo) : t_.min(turned, acc.lo);
    }
    return;
  }
  for (int n = T::kLanes / 2; n >= 1; n /= 2) {
    Accumulator turned;
    turned.lo = t_.turned(acc.lo, n);
    combine(op, acc, turned);
  }
}

// With what the division leaves, so that the mean of equal numbers is that number.
template <class T>
typename T::F Emitter<T>::mean_of(const F& sum, const F& lost) {
  const F mean = t_.over_count(sum);
  const F rest = t_.addpd(t_.left_by_count(sum, mean), lost);
  return t_.addpd(mean, t_.finite_or_zero(t_.over_count(rest)));
}

// The halves of acc are done for. Sums of squares are of parts of kRowsInTree rows as they are.
template <class T>
typename T::F Emitter<T>::deviations_of(Op op, const Accumulator& acc) {
  const F share = t_.i64(std::bit_cast<std::int64_t>(1.0 / kRowsInTree));
  const auto half = [&](const F& sum, const F& squares) {
    const F mean = t_.over_count(t_.mulpd(sum, sum));
    const F r = t_.subpd(t_.mulpd(squares, share), mean);
    return op == Op::variance_f32 ? t_.over_count(r) : r;
  };
  F r = t_.from_double({half(acc.lo, acc.index_lo), half(acc.hi, acc.index_hi)});
  // NaN by infinities, although values are finite: they are further apart than roots of infinity.
  const F infinity = t_.f32(HUGE_VALF);
  const M far = t_.mand(t_.unordered(r, r), t_.lt(acc.shift, infinity));
  r = t_.fma(acc.shift, t_.f32(0), t_.select(far, infinity, r));
  if (op == Op::deviations_f32) r = t_.select(t_.eq(acc.shift, infinity), t_.f32(0), r);
  return r;
}

// Accumulators become what they folded. `in_place`: in the registers that they have.
template <class T>
void Emitter<T>::finish_folds(int begin, int end, bool in_place) {
  const auto give = [&](F& to, F x) {
    if (in_place) {
      t_.set(to, x);
    } else {
      to = std::move(x);
    }
  };
  for (int i = begin; i < end; ++i) {
    const Instr& instr = p_.code[at(i)];
    if (info(instr).cls != Class::kFold) continue;
    note(i, "finish");
    Accumulator& acc = fold(instr.dst);
    if (lanes_fold()) fold_lanes(op(i), acc);
    acc.even = {};
    if (is_deviations(op(i))) {
      give(acc.lo, deviations_of(op(i), acc));
      acc.hi = acc.index_lo = acc.index_hi = acc.shift = {};
    } else if (op(i) == Op::total_f32) {
      continue;
    } else if (sums_doubles(op(i))) {
      const bool mean = op(i) == Op::mean_f32;
      Pair sum{std::move(acc.lo), std::move(acc.hi)};
      if (in_place) acc.lo = sum.lo;
      if (mean) {
        F lo = t_.over_count(sum.lo);
        F hi = lanes_fold() ? lo : t_.over_count(sum.hi);
        sum = {std::move(lo), std::move(hi)};
      }
      give(acc.lo, t_.from_double(sum));
    } else if (compensated(op(i))) {
      const bool mean = op(i) == Op::mean_f64;
      const auto result = [&](const F& sum, const F& lost) {
        return mean ? mean_of(sum, lost) : t_.addpd(sum, t_.finite_or_zero(lost));
      };
      give(acc.lo, result(acc.lo, acc.index_lo));
      give(acc.hi, result(acc.hi, acc.index_hi));
      acc.index_lo = acc.index_hi = {};
    } else if (is_arg(op(i))) {
      acc.lo = std::move(acc.index_lo);
      acc.hi = std::move(acc.index_hi);
    } else if (masks_nan(op(i))) {
      const M& nan = fold(p_.code[at(asks_nan(begin, i))].dst).mask;
      give(acc.lo, t_.select(nan, t_.f32(std::numeric_limits<float>::quiet_NaN()), acc.lo));
    }
  }
  for (int i = begin; i < end; ++i) {
    if (info(p_.code[at(i)]).cls == Class::kFold && masks_nan(op(i))) {
      fold(p_.code[at(i)].dst).mask = {};
    }
  }
}

// What was folded is a value from here on.
template <class T>
void Emitter<T>::take_folds(int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const Instr& instr = p_.code[at(i)];
    if (info(instr).cls != Class::kFold) continue;
    Accumulator acc = std::exchange(fold(instr.dst), {});
    value(instr.dst) = {std::move(acc.lo), std::move(acc.hi), std::move(acc.mask)};
  }
}

}  // namespace tilevm::exec::native
