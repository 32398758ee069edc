// Loads, stores, gathers, iota, constants. Included by emitter.h.
#pragma once

#include "exec/native/emitter.h"

namespace tilevm::exec::native {

// One element for all lanes.
template <class T>
Value<T> Emitter<T>::splat(const Instr& instr, typename T::Address from) {
  using bytecode::Storage;
  if (static_cast<Op>(instr.op) == Op::load_f64_f32) return {t_.splat_f64_as_f32(from), {}, {}};
  switch (info(instr).storage) {
    case Storage::kF32:
    case Storage::kI32:
      return {t_.splat32(from), {}, {}};
    case Storage::kBF16:
      return {t_.splat_bf16(from), {}, {}};
    case Storage::kF16:
      return {t_.splat_f16(from), {}, {}};
    case Storage::kI8:
    case Storage::kU8:
    case Storage::kI16:
      return {t_.splat_small(from, info(instr).storage), {}, {}};
    case Storage::kF64:
    case Storage::kI64: {
      const Pair r = t_.splat64(from);
      return {r.lo, r.hi, {}};
    }
    case Storage::kB8:
      return {{}, {}, t_.splat_b8(from)};
  }
  throw Unsupported{std::string(info(instr).name)};
}

template <class T>
Value<T> Emitter<T>::vector(const Instr& instr, typename T::Address from) {
  using bytecode::Storage;
  if (static_cast<Op>(instr.op) == Op::load_f64_f32) {
    return {t_.from_double(t_.load64(from)), {}, {}};
  }
  switch (info(instr).storage) {
    case Storage::kF32:
    case Storage::kI32:
      return {t_.load32(from), {}, {}};
    case Storage::kBF16:
      return {t_.load_bf16(from), {}, {}};
    case Storage::kF16:
      return {t_.load_f16(from), {}, {}};
    case Storage::kI8:
    case Storage::kU8:
    case Storage::kI16:
      return {t_.load_small(from, info(instr).storage), {}, {}};
    case Storage::kF64:
    case Storage::kI64: {
      const Pair r = t_.load64(from);
      return {r.lo, r.hi, {}};
    }
    case Storage::kB8:
      return {{}, {}, t_.load_b8(from)};
  }
  throw Unsupported{std::string(info(instr).name)};
}

template <class T>
void Emitter<T>::load(const Instr& instr) {
  const bool over_x = this->over_x(p_.operands[instr.mem].cls);
  const int bytes = bytecode::storage_bytes(info(instr).storage);
  // Several passes go down some columns before the next ones: the processor does not foresee that.
  const bool down = fetches_ && over_x && over_y(p_.operands[instr.mem].cls) &&
                    copy_ * T::kLanes * bytes % 64 == 0;
  if (down) t_.fetch_ahead(instr.mem, bytes, copy_);
  const auto from = t_.address(instr.mem, over_x, bytes, copy_);
  value(instr.dst) = over_x ? vector(instr, from) : splat(instr, from);
}

template <class T>
void Emitter<T>::store(const Instr& instr) {
  using bytecode::Storage;
  const bool over_x = this->over_x(p_.operands[instr.mem].cls);
  const auto storage = info(instr).storage;
  const int bytes = bytecode::storage_bytes(storage);
  const auto to = [&] { return t_.address(instr.mem, over_x, bytes, copy_); };
  // Where columns do not lie side by side, this is a copy that stays in the caches.
  t_.streaming = streams_ && p_.operands[instr.mem].role == bytecode::Role::kOutput &&
                 p_.operands[instr.mem].contiguous != 0;
  switch (storage) {
    case Storage::kF32:
    case Storage::kI32: {
      const F x = t_.in_register(vector(instr.a));
      return over_x ? t_.store32(to(), x) : t_.put32(to(), x);
    }
    case Storage::kBF16: {
      const F& x = vector(instr.a);
      if constexpr (T::kRoundsBf16) {
        const auto slowly = [&] { return bf16_bits(x); };
        const bool normal = op(made_at_[at(instr.a)]) == Op::exp_weight_f32;
        if (over_x && t_.rounds_bf16()) return t_.store_bf16(to(), x, normal, slowly);
      }
      const F bits = bf16_bits(x);
      return over_x ? t_.store16(to(), bits) : t_.put16(to(), bits);
    }
    case Storage::kF16: {
      const F bits = t_.to_f16(vector(instr.a));
      return over_x ? t_.store_f16(to(), bits) : t_.put16(to(), bits);
    }
    case Storage::kI16: {
      const F bits = t_.iand(vector(instr.a), t_.i32(0xffff));
      return over_x ? t_.store16(to(), bits) : t_.put16(to(), bits);
    }
    case Storage::kI8:
    case Storage::kU8: {
      const F bits = t_.iand(vector(instr.a), t_.i32(0xff));
      return over_x ? t_.store8(to(), bits) : t_.put8(to(), bits);
    }
    case Storage::kF64:
    case Storage::kI64:
      return over_x ? t_.store64(to(), pair(instr.a)) : t_.put64(to(), pair(instr.a));
    case Storage::kB8:
      return over_x ? t_.store_b8(to(), mask(instr.a)) : t_.put_b8(to(), mask(instr.a));
  }
  throw Unsupported{std::string(info(instr).name)};
}

// The nearest bfloat16, ties to even; NaN becomes the quiet NaN.
template <class T>
typename T::F Emitter<T>::bf16_bits(const F& given) {
  const F x = t_.in_register(given);
  const F odd = t_.iand(t_.template ishr<16>(x), t_.i32(1));
  const F up = t_.template ishr<16>(t_.iadd(x, t_.iadd(odd, t_.i32(0x7fff))));
  return t_.select(t_.unordered(x, x), t_.i32(0x7fc0), up);
}
template <class T>
typename T::F Emitter<T>::rounded_bf16(const F& x) {
  if constexpr (T::kRoundsBf16) return t_.rounded_bf16(x);
  return t_.template ishl<16>(bf16_bits(x));
}

template <class T>
void Emitter<T>::gather(const Instr& instr) {
  const bool over_x = this->over_x(p_.operands[instr.mem].cls);
  const int bytes = bytecode::storage_bytes(info(instr).storage);
  if (!this->over_x(instr.cls_a()) && (!over_x || p_.operands[instr.mem].contiguous != 0)) {
    t_.to_general(pair(instr.a));
    const auto from = t_.gathered(instr.mem, over_x, bytes, copy_);
    value(instr.dst) = over_x ? vector(instr, from) : splat(instr, from);
    return;
  }
  const bool widens = widened_late_[instr.a];
  if constexpr (T::kGathers) {
    if (!t_.masked && gathers_whole(instr)) {
      const Pair r = widens ? t_.gather_whole(vector(instr.a), instr.mem, bytes, copy_)
                            : t_.gather_whole(pair(instr.a), instr.mem, bytes, copy_);
      value(instr.dst) = {r.lo, r.hi, {}};
      return;
    }
  }
  t_.gather(widens ? t_.widen(vector(instr.a)) : pair(instr.a), instr.mem, over_x,
            p_.operands[instr.mem].contiguous != 0, bytes, copy_);
  value(instr.dst) = vector(instr, t_.result());
}

template <class T>
void Emitter<T>::iota(const Instr& instr) {
  int number = 0;
  for (int i = 0; i < instr.mem; ++i) {
    number += p_.operands[at(i)].role == bytecode::Role::kIota ? 1 : 0;
  }
  const bool over_x = this->over_x(p_.operands[instr.mem].cls);
  t_.iota_start(instr.mem, over_x, copy_);
  Pair r = t_.splat64();
  if (over_x) {
    const Pair lanes = t_.iota_lanes(number);
    r = {t_.add64(r.lo, lanes.lo), t_.add64(r.hi, lanes.hi)};
  }
  value(instr.dst) = {r.lo, r.hi, {}};
}

template <class T>
void Emitter<T>::constant(const Instr& instr) {
  auto& r = value(instr.dst);
  switch (static_cast<Op>(instr.op)) {
    case Op::const_f32:
      r.lo = t_.f32(std::bit_cast<float>(static_cast<std::uint32_t>(instr.imm)));
      return;
    case Op::const_i32:
      r.lo = t_.i32(static_cast<std::int32_t>(instr.imm));
      return;
    case Op::const_i64:
      r.lo = r.hi = t_.i64(static_cast<std::int64_t>(instr.imm));
      return;
    case Op::const_f64:
      r.lo = r.hi = t_.i64(static_cast<std::int64_t>(instr.imm));
      return;
    case Op::const_b8:
      r.mask = t_.all_lanes(instr.imm != 0);
      return;
    default:
      throw Unsupported{std::string(info(instr).name)};
  }
}

}  // namespace tilevm::exec::native
