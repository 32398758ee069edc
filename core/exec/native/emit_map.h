// Instructions that map lanes to lanes. What a processor has no short way for is called: the
// interpreter's function for one vector. Included by emitter.h.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/exec/math/math.h"
#include "exec/native/emitter.h"
#include "exec/native/interleaved.h"

namespace tilevm::exec::native {

// Functions of one vector, or of two as one (interleaved.h). False: not one of them.
template <class B, class X>
bool map_function(B& b, bytecode::Op op, X&& x, typename B::F& r) {
  using bytecode::Op;
  // clang-format off
  switch (op) {
    case Op::rsqrt_f32: r = math::rsqrt(b, x); return true;
    case Op::exp_f32: r = math::exp(b, std::forward<X>(x)); return true;
    case Op::exp_weight_f32: r = math::exp_weight(b, std::forward<X>(x)); return true;
    case Op::exp2_f32: r = math::exp2(b, std::forward<X>(x)); return true;
    case Op::expm1_f32: r = math::expm1(b, x); return true;
    case Op::log_f32: r = math::log(b, x); return true;
    case Op::log2_f32: r = math::log2(b, x); return true;
    case Op::log1p_f32: r = math::log1p(b, x); return true;
    case Op::tanh_f32: r = math::tanh(b, x); return true;
    case Op::sigmoid_f32: r = math::sigmoid(b, x); return true;
    case Op::erf_f32: r = math::erf(b, x); return true;
    case Op::silu_f32: r = math::silu(b, x); return true;
    case Op::gelu_f32: r = math::gelu(b, x); return true;
    case Op::gelu_tanh_f32: r = math::gelu_tanh(b, x); return true;
    default: return false;
  }
  // clang-format on
}

template <class T>
void Emitter<T>::map(const Instr& instr) {
  Value<T> r;
  if (!map_function(t_, static_cast<Op>(instr.op), vector(instr.a), r.lo) && !map_f32(instr, r) &&
      !map_mixed(instr, r) && !map_i32(instr, r) && !map_i64(instr, r) && !map_f64(instr, r) &&
      !map_b8(instr, r)) {
    call_map(instr, r);
  }
  value(instr.dst) = std::move(r);
}

// Registers that a function of two vectors takes, those of its arguments among them unless they are
// in memory: found by emitting it by itself, once in a process.
template <class T>
int registers_of_two(bytecode::Op op, bool in_memory) {
  struct Nobody final : Owner {
    bool make_room(const Registers&, int) override { return false; }
    std::size_t mark() const override { return 0; }
    void undo(std::size_t) override {}
  };
  static std::array<std::array<std::atomic<std::int8_t>, 2>, std::size(bytecode::kIsa)> known{};
  auto& registers = known[static_cast<std::size_t>(op)][in_memory ? 1 : 0];
  if (registers == 0) {
    asmjit::CodeHolder holder;
    holder.init(asmjit::Environment::host());
    Nobody nobody;
    T t(holder, nobody);
    Interleaved<T> two(t);
    typename Interleaved<T>::F x{t.fresh(), t.fresh()}, r;
    if (in_memory) {
      t.move_out(x.first);
      t.move_out(x.second);
    }
    map_function(two, op, std::move(x), r);
    registers = static_cast<std::int8_t>(t.most_registers() + (t.failed ? 1 : 0));
  }
  return registers;
}

// The same function of the first two copies, their instructions in turns. False: there are not
// enough registers.
template <class T>
bool Emitter<T>::map_two(const Instr& instr) {
  if constexpr (T::kInterleaves) {
    const Op op = static_cast<Op>(instr.op);
    F &first = values_[0][at(instr.a)].lo, &second = values_[1][at(instr.a)].lo;
    // What varies over columns was made in this body, and is given up if nothing else reads it.
    const bool last = last_use_[at(instr.a)] == now_;
    const int held = (first.reg() >= 0 ? 1 : 0) + (second.reg() >= 0 ? 1 : 0);
    typename Interleaved<T>::F x{first, second}, r;
    if (!t_.make_room(registers_of_two<T>(op, false) - (last ? held : 0))) {
      x = {};
      for (F* value : {&first, &second}) {
        if (value->reg() >= 0 && !t_.move_out(*value)) return false;
      }
      if (!t_.make_room(registers_of_two<T>(op, true))) return false;
      x = {first, second};
    }
    note(static_cast<int>(&instr - p_.code.data()));
    if (last) first = second = {};
    Interleaved<T> two(t_);
    map_function(two, op, std::move(x), r);
    values_[0][at(instr.dst)].lo = std::move(r.first);
    values_[1][at(instr.dst)].lo = std::move(r.second);
    return true;
  }
  return false;
}

// NaN if either is NaN. The instruction has its second operand where one is NaN: the first is asked
// as well, but for a constant. Lowering puts numbers first.
template <class T>
typename T::F Emitter<T>::extremum(const Instr& instr, bool largest) {
  const F a = t_.in_register(vector(instr.a));
  const F& b = vector(instr.b);
  const F r = largest ? t_.max(a, b) : t_.min(a, b);
  const std::optional<float> number = constant_f32(instr.a);
  return number && !std::isnan(*number) ? r : t_.where_nan(a, r);
}

// Of float32, if that is what the register holds.
template <class T>
std::optional<float> Emitter<T>::constant_f32(int reg) const {
  const Instr& made = p_.code[at(made_at_[at(reg)])];
  if (static_cast<Op>(made.op) != Op::const_f32) return std::nullopt;
  return std::bit_cast<float>(static_cast<std::uint32_t>(made.imm));
}

// clang-format off
template <class T>
bool Emitter<T>::map_f32(const Instr& instr, Value<T>& r) {
  const auto x = [&]() -> const F& { return vector(instr.a); };
  const auto y = [&]() -> const F& { return vector(instr.b); };
  switch (static_cast<Op>(instr.op)) {
    case Op::add_f32: r.lo = t_.add(x(), y()); break;
    case Op::sub_f32: r.lo = t_.sub(x(), y()); break;
    case Op::mul_f32: r.lo = t_.mul(x(), y()); break;
    case Op::div_f32: r.lo = t_.div(x(), y()); break;
    case Op::floor_div_f32: r.lo = math::floor_div(t_, x(), y()); break;
    case Op::remainder_f32: r.lo = math::remainder(t_, x(), y()); break;
    case Op::fmod_f32: r.lo = math::fmod(t_, x(), y()); break;
    case Op::pow_f32: r.lo = math::pow(t_, x(), y()); break;
    case Op::atan2_f32: r.lo = math::atan2(t_, x(), y()); break;
    case Op::maximum_f32: r.lo = extremum(instr, true); break;
    case Op::minimum_f32: r.lo = extremum(instr, false); break;
    case Op::copysign_f32:
      r.lo = t_.ior(t_.iand(x(), t_.i32(INT32_MAX)), t_.iand(y(), t_.i32(INT32_MIN)));
      break;
    case Op::abs_f32: r.lo = math::abs(t_, x()); break;
    case Op::neg_f32: r.lo = math::neg(t_, x()); break;
    case Op::sign_f32: {
      const F zero = t_.f32(0.0F);
      const F below = t_.select(t_.lt(x(), zero), t_.f32(-1.0F), zero);
      r.lo = t_.select(t_.lt(zero, x()), t_.f32(1.0F), below);
      break;
    }
    case Op::sqrt_f32: r.lo = t_.sqrt(x()); break;
    case Op::reciprocal_f32: r.lo = t_.div(t_.f32(1.0F), x()); break;
    case Op::floor_f32: r.lo = t_.floor(x()); break;
    case Op::ceil_f32: r.lo = t_.ceil(x()); break;
    case Op::round_f32: r.lo = t_.round_even(x()); break;
    case Op::trunc_f32: r.lo = t_.trunc(x()); break;
    case Op::sin_f32: r.lo = math::sin(t_, x()); break;
    case Op::cos_f32: r.lo = math::cos(t_, x()); break;
    case Op::tan_f32: r.lo = math::tan(t_, x()); break;
    case Op::round_bf16: r.lo = rounded_bf16(x()); break;
    case Op::round_f16: r.lo = t_.from_f16(t_.to_f16(x())); break;
    case Op::isnan_f32: r.mask = t_.unordered(x(), x()); break;
    case Op::isinf_f32: r.mask = t_.eq(math::abs(t_, x()), t_.f32(HUGE_VALF)); break;
    case Op::isfinite_f32: r.mask = t_.lt(math::abs(t_, x()), t_.f32(HUGE_VALF)); break;
    case Op::eq_f32: r.mask = t_.eq(x(), y()); break;
    case Op::ne_f32: r.mask = t_.mnot(t_.eq(x(), y())); break;
    case Op::lt_f32: r.mask = t_.lt(x(), y()); break;
    case Op::le_f32: r.mask = t_.le(x(), y()); break;
    case Op::gt_f32: r.mask = t_.lt(y(), x()); break;
    case Op::ge_f32: r.mask = t_.le(y(), x()); break;
    case Op::select_f32: r.lo = t_.select(mask(instr.a), vector(instr.b), vector(instr.c)); break;
    default: return false;
  }
  return true;
}

template <class T>
bool Emitter<T>::map_i32(const Instr& instr, Value<T>& r) {
  const auto x = [&]() -> const F& { return vector(instr.a); };
  const auto y = [&]() -> const F& { return vector(instr.b); };
  switch (static_cast<Op>(instr.op)) {
    case Op::floor_div_i32:
    case Op::remainder_i32:
    case Op::fmod_i32: r.lo = divided(static_cast<Op>(instr.op), x(), y()); break;
    case Op::wrap_i8: r.lo = t_.template isar<24>(t_.template ishl<24>(x())); break;
    case Op::wrap_u8: r.lo = t_.iand(x(), t_.i32(0xff)); break;
    case Op::wrap_i16: r.lo = t_.template isar<16>(t_.template ishl<16>(x())); break;
    case Op::add_i32: r.lo = t_.iadd(x(), y()); break;
    case Op::sub_i32: r.lo = t_.isub(x(), y()); break;
    case Op::mul_i32: r.lo = t_.imul(x(), y()); break;
    case Op::maximum_i32: r.lo = t_.imax(x(), y()); break;
    case Op::minimum_i32: r.lo = t_.imin(x(), y()); break;
    case Op::and_i32: r.lo = t_.iand(x(), y()); break;
    case Op::or_i32: r.lo = t_.ior(x(), y()); break;
    case Op::xor_i32: r.lo = t_.ixor(x(), y()); break;
    case Op::shl_i32: r.lo = t_.ishlv(x(), y()); break;
    case Op::shr_i32: r.lo = t_.isarv(x(), y()); break;
    case Op::not_i32: r.lo = t_.ixor(x(), t_.i32(-1)); break;
    case Op::neg_i32: r.lo = t_.isub(t_.i32(0), x()); break;
    case Op::abs_i32: r.lo = t_.imax(x(), t_.isub(t_.i32(0), x())); break;
    case Op::sign_i32: r.lo = t_.imax(t_.imin(x(), t_.i32(1)), t_.i32(-1)); break;
    case Op::eq_i32: r.mask = t_.ieq(x(), y()); break;
    case Op::ne_i32: r.mask = t_.mnot(t_.ieq(x(), y())); break;
    case Op::lt_i32: r.mask = t_.ilt(x(), y()); break;
    case Op::gt_i32: r.mask = t_.ilt(y(), x()); break;
    case Op::le_i32: r.mask = t_.mnot(t_.ilt(y(), x())); break;
    case Op::ge_i32: r.mask = t_.mnot(t_.ilt(x(), y())); break;
    case Op::select_i32: r.lo = t_.iselect(mask(instr.a), vector(instr.b), vector(instr.c)); break;
    default: return false;
  }
  return true;
}
// clang-format on

// Quotients and remainders of int32. What is not of the operands must not stop the launch.
template <class T>
typename T::F Emitter<T>::divided(Op op, const F& x, const F& given) {
  const F y = t_.or_else(given, t_.i32(1));
  t_.fail_if_any(t_.ieq(y, t_.i32(0)), Status::kDivisionByZero);
  const F quotient = t_.idiv(x, y);
  const F rest = t_.isub(x, t_.imul(quotient, y));
  if (op == Op::fmod_i32) return rest;
  const M other_side =
      t_.mand(t_.mnot(t_.ieq(rest, t_.i32(0))), t_.ilt(t_.ixor(rest, y), t_.i32(0)));
  return op == Op::remainder_i32 ? t_.iselect(other_side, t_.iadd(rest, y), rest)
                                 : t_.iselect(other_side, t_.iadd(quotient, t_.i32(-1)), quotient);
}

template <class T>
bool Emitter<T>::map_i64(const Instr& instr, Value<T>& r) {
  const auto x = [&] { return pair(instr.a); };
  const auto y = [&] { return pair(instr.b); };
  const auto each = [&](auto half) {
    const Pair s = x();
    const Pair t = y();
    r.lo = half(s.lo, t.lo);
    r.hi = s.lo.same(s.hi) && t.lo.same(t.hi) ? r.lo : half(s.hi, t.hi);
    return true;
  };
  const auto each_with = [&](std::int64_t c, auto half) {
    const Pair s = x();
    const F t = t_.i64(c);
    r.lo = half(s.lo, t);
    r.hi = s.lo.same(s.hi) ? r.lo : half(s.hi, t);
    return true;
  };
  const auto lower = [&](const F& s, const F& t) { return t_.sub64(t, s); };
  // clang-format off
  switch (static_cast<Op>(instr.op)) {
    case Op::add_i64: return each([&](const F& s, const F& t) { return t_.add64(s, t); });
    case Op::sub_i64: return each([&](const F& s, const F& t) { return t_.sub64(s, t); });
    case Op::and_i64: return each([&](const F& s, const F& t) { return t_.and64(s, t); });
    case Op::or_i64: return each([&](const F& s, const F& t) { return t_.or64(s, t); });
    case Op::xor_i64: return each([&](const F& s, const F& t) { return t_.xor64(s, t); });
    case Op::not_i64: return each_with(-1, [&](const F& s, const F& t) { return t_.xor64(s, t); });
    case Op::neg_i64: return each_with(0, lower);
    case Op::eq_i64: r.mask = t_.eq64(x(), y()); return true;
    case Op::ne_i64: r.mask = t_.mnot(t_.eq64(x(), y())); return true;
    case Op::lt_i64: r.mask = t_.lt64(x(), y()); return true;
    case Op::gt_i64: r.mask = t_.lt64(y(), x()); return true;
    case Op::le_i64: r.mask = t_.mnot(t_.lt64(y(), x())); return true;
    case Op::ge_i64: r.mask = t_.mnot(t_.lt64(x(), y())); return true;
    case Op::select_i64: {
      const Pair s = t_.select64(mask(instr.a), pair(instr.b), pair(instr.c));
      r.lo = s.lo;
      r.hi = s.hi;
      return true;
    }
    case Op::mul_i64: return each([&](const F& s, const F& t) { return t_.mul64(s, t); });
    case Op::maximum_i64: return each([&](const F& s, const F& t) { return t_.max64(s, t); });
    case Op::minimum_i64: return each([&](const F& s, const F& t) { return t_.min64(s, t); });
    case Op::shl_i64: return each([&](const F& s, const F& t) { return t_.shl64(s, t); });
    case Op::shr_i64: return each([&](const F& s, const F& t) { return t_.sar64(s, t); });
    case Op::abs_i64: return each_with(0, [&](const F& s, const F& t) { return t_.max64(s, t_.sub64(t, s)); });
    case Op::sign_i64:
      each_with(1, [&](const F& s, const F& t) { return t_.min64(s, t); });
      r.lo = t_.max64(r.lo, t_.i64(-1));
      r.hi = t_.max64(r.hi, t_.i64(-1));
      return true;
    default: return false;
  }
  // clang-format on
}

// NaN if either is NaN.
template <class T>
typename T::Pair Emitter<T>::extremum64(const Pair& x, const Pair& y, bool largest) {
  const Pair r = largest ? Pair{t_.maxpd(x.lo, y.lo), t_.maxpd(x.hi, y.hi)}
                         : Pair{t_.minpd(x.lo, y.lo), t_.minpd(x.hi, y.hi)};
  return t_.select64(t_.unordered_pd(x, x), x, r);  // r is y where either is NaN
}

template <class T>
bool Emitter<T>::map_f64(const Instr& instr, Value<T>& r) {
  const auto x = [&] { return pair(instr.a); };
  const auto y = [&] { return pair(instr.b); };
  const auto set = [&](const Pair& p) {
    r.lo = p.lo;
    r.hi = p.hi;
    return true;
  };
  const auto each = [&](auto half) {
    const Pair s = x();
    const Pair t = y();
    return set({half(s.lo, t.lo), half(s.hi, t.hi)});
  };
  const auto one = [&](auto half) {
    const Pair s = x();
    return set({half(s.lo), half(s.hi)});
  };
  const auto both = [&](double c) {
    const F f = t_.i64(std::bit_cast<std::int64_t>(c));
    return Pair{f, f};
  };
  const F sign = t_.i64(INT64_MIN);
  const F rest = t_.i64(INT64_MAX);
  const auto magnitude = [&] {
    const Pair s = x();
    return Pair{t_.and64(s.lo, rest), t_.and64(s.hi, rest)};
  };
  // clang-format off
  switch (static_cast<Op>(instr.op)) {
    case Op::add_f64: return each([&](const F& s, const F& t) { return t_.addpd(s, t); });
    case Op::sub_f64: return each([&](const F& s, const F& t) { return t_.subpd(s, t); });
    case Op::mul_f64: return each([&](const F& s, const F& t) { return t_.mulpd(s, t); });
    case Op::div_f64: return each([&](const F& s, const F& t) { return t_.divpd(s, t); });
    case Op::maximum_f64: return set(extremum64(x(), y(), true));
    case Op::minimum_f64: return set(extremum64(x(), y(), false));
    case Op::abs_f64: return set(magnitude());
    case Op::copysign_f64:
      return each([&](const F& s, const F& t) {
        return t_.or64(t_.and64(s, rest), t_.and64(t, sign));
      });
    case Op::neg_f64: return one([&](const F& s) { return t_.xor64(s, sign); });
    case Op::sqrt_f64: return one([&](const F& s) { return t_.sqrtpd(s); });
    case Op::reciprocal_f64: return one([&](const F& s) { return t_.divpd(both(1.0).lo, s); });
    case Op::rsqrt_f64: return one([&](const F& s) { return t_.divpd(both(1.0).lo, t_.sqrtpd(s)); });
    case Op::round_f64: return one([&](const F& s) { return t_.round_evenpd(s); });
    case Op::floor_f64: return one([&](const F& s) { return t_.floorpd(s); });
    case Op::ceil_f64: return one([&](const F& s) { return t_.ceilpd(s); });
    case Op::trunc_f64: return one([&](const F& s) { return t_.truncpd(s); });
    case Op::isnan_f64: r.mask = t_.unordered_pd(x(), x()); return true;
    case Op::isinf_f64: r.mask = t_.eq_pd(magnitude(), both(HUGE_VAL)); return true;
    case Op::isfinite_f64: r.mask = t_.lt_pd(magnitude(), both(HUGE_VAL)); return true;
    case Op::eq_f64: r.mask = t_.eq_pd(x(), y()); return true;
    case Op::ne_f64: r.mask = t_.mnot(t_.eq_pd(x(), y())); return true;
    case Op::lt_f64: r.mask = t_.lt_pd(x(), y()); return true;
    case Op::le_f64: r.mask = t_.le_pd(x(), y()); return true;
    case Op::gt_f64: r.mask = t_.lt_pd(y(), x()); return true;
    case Op::ge_f64: r.mask = t_.le_pd(y(), x()); return true;
    case Op::select_f64: return set(t_.select64(mask(instr.a), pair(instr.b), pair(instr.c)));
    case Op::cast_f32_f64: return set(t_.to_double(vector(instr.a)));
    case Op::cast_f64_f32: r.lo = t_.from_double(x()); return true;
    case Op::cast_i32_f64: return set(t_.i32_to_double(vector(instr.a)));
    case Op::cast_f64_i32: r.lo = t_.double_to_i32(x()); return true;
    case Op::cast_f64_b8: r.mask = t_.mnot(t_.eq_pd(x(), both(0.0))); return true;
    case Op::cast_b8_f64: return set(t_.select64(mask(instr.a), both(1.0), both(0.0)));
    case Op::cast_i64_f64:
      if constexpr (T::kConverts64) return set(t_.i64_to_double(x()));
      return false;
    case Op::cast_f64_i64:
      if constexpr (T::kConverts64) return set(t_.double_to_i64(x()));
      return false;
    default: return false;
  }
  // clang-format on
}

template <class T>
bool Emitter<T>::map_b8(const Instr& instr, Value<T>& r) {
  const auto x = [&]() -> const M& { return mask(instr.a); };
  const auto y = [&]() -> const M& { return mask(instr.b); };
  switch (static_cast<Op>(instr.op)) {
    case Op::and_b8:
      r.mask = t_.mand(x(), y());
      return true;
    case Op::or_b8:
      r.mask = t_.mor(x(), y());
      return true;
    case Op::xor_b8:
      r.mask = t_.mxor(x(), y());
      return true;
    case Op::not_b8:
      r.mask = t_.mnot(x());
      return true;
    case Op::select_b8:
      r.mask = t_.mor(t_.mand(x(), y()), t_.mand(t_.mnot(x()), mask(instr.c)));
      return true;
    default:
      return false;
  }
}

// Casts.
template <class T>
bool Emitter<T>::map_mixed(const Instr& instr, Value<T>& r) {
  const auto set = [&](const Pair& p) {
    r.lo = p.lo;
    r.hi = p.hi;
    return true;
  };
  const auto zero = [&] { return Pair{t_.i64(0), t_.i64(0)}; };
  // clang-format off
  switch (static_cast<Op>(instr.op)) {
    case Op::cast_f32_b8: r.mask = t_.mnot(t_.eq(vector(instr.a), t_.f32(0.0F))); return true;
    case Op::cast_i32_b8: r.mask = t_.mnot(t_.ieq(vector(instr.a), t_.i32(0))); return true;
    case Op::cast_i64_b8: r.mask = t_.mnot(t_.eq64(pair(instr.a), zero())); return true;
    case Op::cast_i32_f32: r.lo = t_.to_float(vector(instr.a)); return true;
    case Op::cast_b8_f32: r.lo = t_.select(mask(instr.a), t_.f32(1.0F), t_.f32(0.0F)); return true;
    case Op::cast_b8_i32: r.lo = t_.iselect(mask(instr.a), t_.i32(1), t_.i32(0)); return true;
    case Op::cast_b8_i64: return set(t_.widen(t_.iselect(mask(instr.a), t_.i32(1), t_.i32(0))));
    case Op::cast_i32_i64:
      if (!widened_late_[instr.dst]) return set(t_.widen(vector(instr.a)));
      r.lo = vector(instr.a);
      return true;
    case Op::cast_i64_i32: r.lo = t_.narrow(pair(instr.a)); return true;
    case Op::cast_f32_i32: r.lo = t_.to_i32(vector(instr.a)); return true;
    default: break;
  }
  if constexpr (T::kConverts64) {
    switch (static_cast<Op>(instr.op)) {
      case Op::cast_i64_f32: r.lo = t_.to_f32(pair(instr.a)); return true;
      case Op::cast_f32_i64: return set(t_.to_i64(vector(instr.a)));
      default: break;
    }
  }
  // clang-format on
  return false;
}

template <class T>
void Emitter<T>::argue(int i, int reg, bytecode::RegType type) {
  switch (type) {
    case bytecode::RegType::kF32:
    case bytecode::RegType::kI32:
      return t_.argue(i, vector(reg));
    case bytecode::RegType::kI64:
    case bytecode::RegType::kF64:
      return t_.argue(i, pair(reg));
    case bytecode::RegType::kB8:
      return t_.argue(i, mask(reg));
  }
  throw Unsupported{"registers of this type"};
}

template <class T>
Value<T> Emitter<T>::result(bytecode::RegType type) {
  switch (type) {
    case bytecode::RegType::kF32:
    case bytecode::RegType::kI32:
      return {t_.result32(), {}, {}};
    case bytecode::RegType::kI64:
    case bytecode::RegType::kF64: {
      const Pair r = t_.result64();
      return {r.lo, r.hi, {}};
    }
    case bytecode::RegType::kB8:
      return {{}, {}, t_.result_b8()};
  }
  throw Unsupported{"registers of this type"};
}

template <class T>
void Emitter<T>::call_map(const Instr& instr, Value<T>& r) {
  const auto& row = info(instr);
  const auto op = static_cast<Op>(instr.op);
  const std::uint16_t sources[] = {instr.a, instr.b, instr.c};
  for (int i = 0; i + 1 < row.n_fields; ++i) {
    argue(i, sources[i], row.fields[i + 1].type);
  }
  bool divides = false;
  switch (op) {
    case Op::floor_div_i64:
    case Op::remainder_i64:
    case Op::fmod_i64:
      divides = true;
      t_.argue(1, t_.or_else(pair(instr.b), t_.i64(1)));
      break;
    default:
      break;
  }
  t_.call(static_cast<int>(op));
  if (divides) t_.fail_if_false(Status::kDivisionByZero);
  r = result(row.fields[0].type);
}

}  // namespace tilevm::exec::native
