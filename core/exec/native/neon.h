// NEON of ARMv8.0: vectors of 4 lanes of 32 bits, 64-bit lanes as pairs of them, masks as vectors
// of all ones or zeros. Operands are registers. See avx2.h, which has the same members.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/exec/math/math.h"
#include "exec/native/a64.h"
#include "exec/native/constants.h"

namespace tilevm::exec::native {

class Neon : public A64 {
 public:
  using F = Handle<VectorKind>;
  using I = F;
  using M = Handle<MaskKind>;
  struct Pair {
    F lo, hi;
  };

  static constexpr int kLanes = 4;
  static constexpr bool kScalesFar = false;
  static constexpr bool kManyRegisters = true;  // more than 16
  static constexpr bool kMaskRegisters = false;
  static constexpr bool kMasksAreCheap = false;
  static constexpr bool kStreams = false;
  static constexpr bool kInterleaves = false;
  static constexpr bool kConverts64 = true;
  static constexpr bool kRoundsBf16 = false;

  Neon(asmjit::CodeHolder& holder, Owner& owner)
      : A64(holder, owner, kLanes), vectors_(slots_, 0x3fffffff) {}

  // Registers -----------------------------------------------------------------------------------

  F fresh() { return A64::fresh<F>(vectors_); }
  M fresh_mask() { return A64::fresh<M>(vectors_); }
  static bool is_mask_file(const Registers&) { return false; }

  template <class Kind>
  static a64::Vec vec(const Handle<Kind>& f) {
    return a64::VecV(number(f.reg(), 0));
  }
  template <class Kind>
  static a64::Vec s4(const Handle<Kind>& f) {
    return vec(f).s4();
  }
  template <class Kind>
  static a64::Vec d2(const Handle<Kind>& f) {
    return vec(f).d2();
  }
  template <class Kind>
  static a64::Vec b16(const Handle<Kind>& f) {
    return vec(f).b16();
  }

  template <class Kind>
  Handle<Kind> in_register(const Handle<Kind>& f) {
    if (f.reg() >= 0) return f;
    auto r = A64::fresh<Handle<Kind>>(vectors_);
    if (f.slot() >= 0) {
      a.ldr(vec(r).q(), memory(in_slot(f.slot())));
    } else if (const auto all = bits_of_all(f); all == 0 || all == -1) {
      a.movi(d2(r), all);
    } else {
      a.ldr(vec(r).q(), a64::ptr(kConstants, kBytes * std::max(f.constant(), 0)));
    }
    return r;
  }
  template <class Kind>
  bool move_out(Handle<Kind>& f) {
    const int slot = slots_.take();
    if (slot < 0) return false;
    a.str(vec(f).q(), memory(in_slot(slot)));
    f = Handle<Kind>::in_slot(vectors_, slot);
    return true;
  }
  template <class Kind>
  void move_in(Handle<Kind>& f, int reg) {
    vectors_.take(reg);
    auto r = Handle<Kind>::in_register(vectors_, reg);
    a.ldr(vec(r).q(), memory(in_slot(f.slot())));
    f = std::move(r);
  }

  // All lanes, into memory and back into the same register.
  template <class Kind>
  void keep(const Address& to, const Handle<Kind>& f) {
    a.str(vec(f).q(), memory(to));
  }
  template <class Kind>
  void recall(Handle<Kind>& f, const Address& from) {
    a.ldr(vec(f).q(), memory(from));
  }

  // float32 and int32: the contract of exec/math ------------------------------------------------

  F f32(float c) { return i32(std::bit_cast<std::int32_t>(c)); }
  I i32(std::int32_t c) { return constant({c, c, c, c}); }
  F i64(std::int64_t c) {
    const auto lo = static_cast<std::int32_t>(c);
    const auto hi = static_cast<std::int32_t>(c >> 32);
    return constant({lo, hi, lo, hi});
  }

  // clang-format off
  F add(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fadd(o...); }); }
  F sub(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fsub(o...); }); }
  F mul(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fmul(o...); }); }
  F div(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fdiv(o...); }); }
  F min(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fmin(o...); }); }
  F max(const F& x, const F& y) { return four(x, y, [&](auto... o) { a.fmax(o...); }); }
  F sqrt(const F& x) { return four(x, [&](auto... o) { a.fsqrt(o...); }); }
  F round_even(const F& x) { return four(x, [&](auto... o) { a.frintn(o...); }); }
  F floor(const F& x) { return four(x, [&](auto... o) { a.frintm(o...); }); }
  F ceil(const F& x) { return four(x, [&](auto... o) { a.frintp(o...); }); }
  F trunc(const F& x) { return four(x, [&](auto... o) { a.frintz(o...); }); }
  I to_int(const F& x) { return four(x, [&](auto... o) { a.fcvtns(o...); }); }
  F to_float(const I& x) { return four(x, [&](auto... o) { a.scvtf(o...); }); }
  F scale2(F x, F n) { return math::scale2_by_bits(*this, std::move(x), std::move(n)); }
  static I bits(const F& x) { return x; }
  static F from_bits(const I& x) { return x; }
  I iadd(const I& x, const I& y) { return four(x, y, [&](auto... o) { a.add(o...); }); }
  I isub(const I& x, const I& y) { return four(x, y, [&](auto... o) { a.sub(o...); }); }
  I imul(const I& x, const I& y) { return four(x, y, [&](auto... o) { a.mul(o...); }); }
  I imin(const I& x, const I& y) { return four(x, y, [&](auto... o) { a.smin(o...); }); }
  I imax(const I& x, const I& y) { return four(x, y, [&](auto... o) { a.smax(o...); }); }
  I iand(const I& x, const I& y) { return bytes(x, y, [&](auto... o) { a.and_(o...); }); }
  I ior(const I& x, const I& y) { return bytes(x, y, [&](auto... o) { a.orr(o...); }); }
  I ixor(const I& x, const I& y) { return bytes(x, y, [&](auto... o) { a.eor(o...); }); }
  template <int n> I ishl(const I& x) { return four(x, [&](auto... o) { a.shl(o..., n); }); }
  template <int n> I ishr(const I& x) { return four(x, [&](auto... o) { a.ushr(o..., n); }); }
  template <int n> I isar(const I& x) { return four(x, [&](auto... o) { a.sshr(o..., n); }); }
  M lt(const F& x, const F& y) { return mask(four(y, x, [&](auto... o) { a.fcmgt(o...); })); }
  M le(const F& x, const F& y) { return mask(four(y, x, [&](auto... o) { a.fcmge(o...); })); }
  M eq(const F& x, const F& y) { return mask(four(x, y, [&](auto... o) { a.fcmeq(o...); })); }
  M ilt(const I& x, const I& y) { return mask(four(y, x, [&](auto... o) { a.cmgt(o...); })); }
  M ieq(const I& x, const I& y) { return mask(four(x, y, [&](auto... o) { a.cmeq(o...); })); }
  M mand(const M& x, const M& y) { return mask(iand(vector(x), vector(y))); }
  M mor(const M& x, const M& y) { return mask(ior(vector(x), vector(y))); }
  M mxor(const M& x, const M& y) { return mask(ixor(vector(x), vector(y))); }
  // clang-format on

  M mnot(const M& x) {
    const M s = in_register(x);
    M r = fresh_mask();
    a.mvn(b16(r), b16(s));
    return r;
  }
  M unordered(const F& x, const F& y) {
    return mnot(x.same(y) ? eq(x, x) : mand(eq(x, x), eq(y, y)));
  }
  // Counts are those of the lowest byte, and negative ones shift right.
  I ishlv(const I& x, const I& y) {
    return four(x, at_most_32(y), [&](auto... o) { a.ushl(o...); });
  }
  I isarv(const I& x, const I& y) {
    const I count = isub(i32(0), at_most_32(y));
    return four(x, count, [&](auto... o) { a.sshl(o...); });
  }

  F select(const M& m, const F& yes, const F& no) {
    const M c = in_register(m);
    const F y = in_register(yes);
    F r = copied(no);
    a.bit(b16(r), b16(y), b16(c));
    return r;
  }
  I iselect(const M& m, const I& yes, const I& no) { return select(m, yes, no); }

  F fma(const F& x, const F& y, const F& z) {
    return onto(z, x, y, [&](auto... o) { a.fmla(o...); });
  }
  F fnma(const F& x, const F& y, const F& z) {
    return onto(z, x, y, [&](auto... o) { a.fmls(o...); });
  }
  static F where_nan(const F&, F r) { return r; }  // min and max are NaN where an operand is

  template <class Fn>
  F when_any(const M& m, const F& current, Fn fn) {
    const M c = in_register(m);
    F r = copied(current);
    const auto skip = a.newLabel();
    any_to_general(c);
    a.cbz(kTemp.w(), skip);
    same_state([&] {
      const F other = in_register(fn());
      a.bit(b16(r), b16(other), b16(c));
    });
    a.bind(skip);
    return r;
  }
  F out_of_line(double (*fn)(double), const F& x) { return libm(number_of(fn), x, nullptr); }
  F out_of_line(double (*fn)(double, double), const F& x, const F& y) {
    return libm(number_of(fn), x, &y);
  }

  // 64-bit lanes --------------------------------------------------------------------------------

  // clang-format off
  F add64(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.add(o...); }); }
  F sub64(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.sub(o...); }); }
  F and64(const F& x, const F& y) { return iand(x, y); }
  F or64(const F& x, const F& y) { return ior(x, y); }
  F xor64(const F& x, const F& y) { return ixor(x, y); }
  F addpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fadd(o...); }); }
  F subpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fsub(o...); }); }
  F mulpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fmul(o...); }); }
  F divpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fdiv(o...); }); }
  F maxpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fmax(o...); }); }
  F minpd(const F& x, const F& y) { return two(x, y, [&](auto... o) { a.fmin(o...); }); }
  F sqrtpd(const F& x) { return two(x, [&](auto... o) { a.fsqrt(o...); }); }
  F round_evenpd(const F& x) { return two(x, [&](auto... o) { a.frintn(o...); }); }
  F floorpd(const F& x) { return two(x, [&](auto... o) { a.frintm(o...); }); }
  F ceilpd(const F& x) { return two(x, [&](auto... o) { a.frintp(o...); }); }
  F truncpd(const F& x) { return two(x, [&](auto... o) { a.frintz(o...); }); }
  M lt_pd(const Pair& x, const Pair& y) { return both(y, x, [&](auto... o) { a.fcmgt(o...); }); }
  M le_pd(const Pair& x, const Pair& y) { return both(y, x, [&](auto... o) { a.fcmge(o...); }); }
  M eq_pd(const Pair& x, const Pair& y) { return both(x, y, [&](auto... o) { a.fcmeq(o...); }); }
  M lt64(const Pair& x, const Pair& y) { return both(y, x, [&](auto... o) { a.cmgt(o...); }); }
  M eq64(const Pair& x, const Pair& y) { return both(x, y, [&](auto... o) { a.cmeq(o...); }); }
  F max64(const F& x, const F& y) { return blend64(greater64(x, y), x, y); }
  F min64(const F& x, const F& y) { return blend64(greater64(x, y), y, x); }
  // clang-format on

  M unordered_pd(const Pair& x, const Pair& y) { return mnot(mand(eq_pd(x, x), eq_pd(y, y))); }
  // The low halves by each other, and above them the halves that meet crosswise.
  F mul64(const F& x, const F& y) {
    const F s = in_register(x);
    const F t = in_register(y);
    F r = fresh();
    const F low = fresh();
    const F other = fresh();
    a.rev64(s4(r), s4(t));
    a.mul(s4(r), s4(r), s4(s));
    a.uaddlp(d2(r), s4(r));
    a.shl(d2(r), d2(r), 32);
    a.xtn(vec(low).s2(), d2(s));
    a.xtn(vec(other).s2(), d2(t));
    a.umlal(d2(r), vec(low).s2(), vec(other).s2());
    return r;
  }
  F shl64(const F& x, const F& y) {
    return iand(two(x, y, [&](auto... o) { a.ushl(o...); }), below_64(y));
  }
  F sar64(const F& x, const F& y) {
    const F count = blend64(below_64(y), y, i64(63));
    return two(x, sub64(i64(0), count), [&](auto... o) { a.sshl(o...); });
  }
  Pair select64(const M& m, const Pair& yes, const Pair& no) {
    const Pair c = widen(vector(m));
    return {blend64(c.lo, yes.lo, no.lo), blend64(c.hi, yes.hi, no.hi)};
  }

  // clang-format off
  Pair widen(const I& x) { return halves(x, [&](auto... o) { a.sxtl(o...); }, [&](auto... o) { a.sxtl2(o...); }); }
  Pair to_double(const F& x) { return halves(x, [&](auto... o) { a.fcvtl(o...); }, [&](auto... o) { a.fcvtl2(o...); }); }
  F from_double(const Pair& x) { return joined(x, [&](auto... o) { a.fcvtn(o...); }, [&](auto... o) { a.fcvtn2(o...); }); }
  I narrow(const Pair& x) { return four(x.lo, x.hi, [&](auto... o) { a.uzp1(o...); }); }
  F converted64(const F& x) { return two(x, [&](auto... o) { a.scvtf(o...); }); }
  F truncated64(const F& x) { return two(x, [&](auto... o) { a.fcvtzs(o...); }); }
  // clang-format on

  // Conversions saturate, and NaN becomes 0: only what is too large or NaN is to be the least
  // value.
  I to_i32(const F& x) {
    const I r = four(x, [&](auto... o) { a.fcvtzs(o...); });
    return iselect(lt(x, f32(0x1p31F)), r, i32(INT32_MIN));
  }
  I double_to_i32(const Pair& x) {
    const double above = 0x1p31;
    const F limit = i64(std::bit_cast<std::int64_t>(above));
    const I r = joined(
        {truncated64(x.lo), truncated64(x.hi)}, [&](auto... o) { a.sqxtn(o...); },
        [&](auto... o) { a.sqxtn2(o...); });
    return iselect(lt_pd(x, {limit, limit}), r, i32(INT32_MIN));
  }
  Pair double_to_i64(const Pair& x) {
    const double above = 0x1p63;
    const auto half = [&](const F& s) {
      const F limit = i64(std::bit_cast<std::int64_t>(above));
      const F fits = two(limit, s, [&](auto... o) { a.fcmgt(o...); });
      return blend64(fits, truncated64(s), i64(INT64_MIN));
    };
    return {half(x.lo), half(x.hi)};
  }
  Pair i64_to_double(const Pair& x) { return {converted64(x.lo), converted64(x.hi)}; }
  Pair i32_to_double(const I& x) { return i64_to_double(widen(x)); }
  Pair to_i64(const F& x) { return double_to_i64(to_double(x)); }
  F to_f32(const Pair& x) {  // by way of doubles it would be rounded twice
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    F r = fresh();
    const F one = fresh();
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      a.umov(kTemp, vec(lane < 2 ? lo : hi).d(lane % 2));
      a.scvtf(vec(one).s(), kTemp);
      a.ins(vec(r).s(lane), vec(one).s(0));
    }
    return r;
  }
  I idiv(const I& x, const I& y) {
    const Pair n = i32_to_double(x);
    const Pair d = i32_to_double(y);
    return narrow({truncated64(divpd(n.lo, d.lo)), truncated64(divpd(n.hi, d.hi))});
  }
  F finite_or_zero(const F& x) {  // x - x is 0 for what is finite, else NaN
    const F zero = subpd(x, x);
    return iand(two(zero, zero, [&](auto... o) { a.fcmeq(o...); }), x);
  }
  F over_count(const F& x) { return divpd(x, count()); }
  F left_by_count(const F& x, const F& mean) {
    const F n = count();
    const F m = in_register(mean);
    F r = copied(x);
    a.fmls(d2(r), d2(m), d2(n));
    return r;
  }

  F own(const F& x, bool) { return copied(x); }
  template <class Kind>
  void set(Handle<Kind>& acc, const Handle<Kind>& x) {
    a.mov(b16(acc), b16(in_register(x)));
  }
  // acc where x is NaN.
  void max_to(F& acc, const F& x) { a.fmaxnm(s4(acc), s4(acc), s4(in_register(x))); }
  void min_to(F& acc, const F& x) { a.fminnm(s4(acc), s4(acc), s4(in_register(x))); }
  // NaN where either is.
  void extremum_to(F& acc, const F& x, bool largest) {
    const F s = in_register(x);
    largest ? a.fmax(s4(acc), s4(s), s4(acc)) : a.fmin(s4(acc), s4(s), s4(acc));
  }
  void add_to(F& acc, const F& x) { a.fadd(s4(acc), s4(acc), s4(in_register(x))); }
  // acc += x * y
  void add_product_to(F& acc, const F& x, const F& y) {
    a.fmla(s4(acc), s4(in_register(x)), s4(in_register(y)));
  }
  void add_double_to(F& acc, const F& x) { a.fadd(d2(acc), d2(acc), d2(in_register(x))); }

  // Across lanes --------------------------------------------------------------------------------

  F turned(const F& x, int n) {
    return bytes(x, x, [&](auto... o) { a.ext(o..., 4 * n); });
  }
  F turned64(const F& x, int n) { return turned(x, 2 * n); }
  F first64(const F& x) {
    const F s = in_register(x);
    F r = fresh();
    a.dup(d2(r), vec(s).d(0));
    return r;
  }
  M any(const M& m) {
    const M s = in_register(m);
    M r = fresh_mask();
    a.umaxv(vec(r).s(), s4(s));
    a.dup(s4(r), vec(r).s(0));
    return r;
  }
  void fail_if_any(const M& m, Status status) {
    any_to_general(in_register(m));
    a.cbnz(kTemp.w(), failure(status));
  }

  // The rest ------------------------------------------------------------------------------------

  void mask_rest() {
    const F lanes = constant({0, 1, 2, 3});
    a.ldr(kFree.q(), a64::ptr(kConstants, kBytes * lanes.constant()));
    a.dup(kRest.s4(), kLeft.w());
    a.cmgt(kRest.s4(), kRest.s4(), kFree.s4());
  }
  F or_else(const F& x, const F& other) {
    if (!masked) return x;
    const F s = in_register(x);
    F r = copied(other);
    a.bit(b16(r), b16(s), kRest.b16());
    return r;
  }
  Pair or_else(const Pair& x, const F& other) {
    return masked ? select64(rest(), x, {other, other}) : x;
  }
  M or_else(const M& m, bool other) {
    if (!masked) return m;
    return other ? mor(m, mnot(rest())) : mand(m, rest());
  }

  // Memory --------------------------------------------------------------------------------------

  F load32(const Address& from) { return fetched(from, 4); }
  F load_bf16(const Address& from) {
    F r = fetched(from, 2);
    a.shll(s4(r), vec(r).h4(), 16);
    return r;
  }
  F load_f16(const Address& from) { return from_f16(fetched(from, 2)); }
  I load_small(const Address& from, bytecode::Storage storage) {
    F r = fetched(from, bytecode::storage_bytes(storage));
    if (storage == bytecode::Storage::kU8) {
      bytes_to_lanes(r);
    } else {
      if (storage == bytecode::Storage::kI8) a.sxtl(vec(r).h8(), vec(r).b8());
      a.sxtl(s4(r), vec(r).h4());
    }
    return r;
  }
  Pair load64(const Address& from) {
    Pair r{fresh(), fresh()};
    if (!masked) {
      a.ldr(vec(r.lo).q(), memory(from));
      a.ldr(vec(r.hi).q(), memory(from, kBytes));
      return r;
    }
    a.movi(d2(r.hi), 0);
    each_of_rest([&] { a.ldr(vec(r.lo).d(), memory(from)); },
                 [&] { a.ldr(vec(r.lo).q(), memory(from)); },
                 [&] { a.ldr(vec(r.hi).d(), memory(from, kBytes)); });
    return r;
  }
  M load_b8(const Address& from) { return bools(fetched(from, 1)); }
  F splat32(const Address& from) {
    F r = fresh();
    a.ld1r(s4(r), memory(from));
    return r;
  }
  F splat_bf16(const Address& from) {
    F r = fresh();
    a.ld1r(vec(r).h4(), memory(from));
    a.shll(s4(r), vec(r).h4(), 16);
    return r;
  }
  F splat_f16(const Address& from) {
    F r = fresh();
    a.ld1r(vec(r).h4(), memory(from));
    return from_f16(r);
  }
  I splat_small(const Address& from, bytecode::Storage storage) {
    if (storage == bytecode::Storage::kI8) {
      a.ldrsb(kTemp.w(), memory(from));
    } else if (storage == bytecode::Storage::kU8) {
      a.ldrb(kTemp.w(), memory(from));
    } else {
      a.ldrsh(kTemp.w(), memory(from));
    }
    F r = fresh();
    a.dup(s4(r), kTemp.w());
    return r;
  }
  Pair splat64(const Address& from) {
    F r = fresh();
    a.ld1r(d2(r), memory(from));
    return {r, r};
  }
  Pair splat64() {
    F r = fresh();
    a.dup(d2(r), kTemp);
    return {r, r};
  }
  F splat_f64_as_f32(const Address& from) {
    F r = fresh();
    a.ldr(vec(r).d(), memory(from));
    a.fcvt(vec(r).s(), vec(r).d());
    a.dup(s4(r), vec(r).s(0));
    return r;
  }
  M splat_b8(const Address& from) {
    M r = fresh_mask();
    a.ldrb(kTemp.w(), memory(from));
    a.dup(s4(r), kTemp.w());
    a.cmtst(s4(r), s4(r), s4(r));
    return r;
  }
  M all_lanes(bool value) { return mask(in_register(i32(value ? -1 : 0))); }

  void store32(const Address& to, const F& x) { put(to, in_register(x), 4); }
  void store16(const Address& to, const I& x) {
    const F s = in_register(x);
    const F words = fresh();
    a.xtn(vec(words).h4(), s4(s));
    put(to, words, 2);
  }
  void store8(const Address& to, const I& x) { put(to, lanes_to_bytes(in_register(x)), 1); }
  I to_f16(const F& x) {
    const F s = in_register(x);
    F r = fresh();
    a.fcvtn(vec(r).h4(), s4(s));
    return r;
  }
  F from_f16(const I& x) {
    const F s = in_register(x);
    F r = fresh();
    a.fcvtl(s4(r), vec(s).h4());
    return r;
  }
  void store_f16(const Address& to, const I& bits) { put(to, in_register(bits), 2); }
  void store64(const Address& to, const Pair& x) {
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    if (!masked) {
      a.str(vec(lo).q(), memory(to));
      a.str(vec(hi).q(), memory(to, kBytes));
      return;
    }
    each_of_rest([&] { a.str(vec(lo).d(), memory(to)); }, [&] { a.str(vec(lo).q(), memory(to)); },
                 [&] { a.str(vec(hi).d(), memory(to, kBytes)); });
  }
  void store_b8(const Address& to, const M& m) { put(to, bytes_of(m), 1); }
  void put32(const Address& to, const F& x) { a.str(vec(in_register(x)).s(), memory(to)); }
  void put16(const Address& to, const I& x) { a.str(vec(in_register(x)).h(), memory(to)); }
  void put8(const Address& to, const I& x) { a.str(vec(in_register(x)).b(), memory(to)); }
  void put64(const Address& to, const Pair& x) { a.str(vec(in_register(x.lo)).d(), memory(to)); }
  void put_b8(const Address& to, const M& m) { a.str(vec(bytes_of(m)).b(), memory(to)); }

  // Calls ---------------------------------------------------------------------------------------

  void to_general(const Pair& x) { a.umov(kTemp, vec(in_register(x.lo)).d(0)); }
  void argue(int i, const F& x) { a.str(vec(in_register(x)).q(), memory(argument(i))); }
  void argue(int i, const Pair& x) {
    a.str(vec(in_register(x.lo)).q(), memory(argument(i)));
    a.str(vec(in_register(x.hi)).q(), memory(argument(i), kBytes));
  }
  static constexpr bool kGathers = false;
  // The elements of a gathered operand at these indices, in place of a result.
  void gather(const Pair& indices, int mem, bool over_x, bool /*contiguous*/, int bytes, int copy) {
    argue(0, indices);
    gather_lanes(mem, over_x, bytes, copy);
  }
  void argue(int i, const M& m) { a.str(vec(bytes_of(m)).s(), memory(argument(i))); }
  F result32() {
    F r = fresh();
    a.ldr(vec(r).q(), memory(result()));
    return r;
  }
  Pair result64() { return two_of(result()); }
  M result_b8() {
    F r = fresh();
    a.ldr(vec(r).s(), memory(result()));
    return bools(r);
  }
  // Of elements of one or two bytes, as many as fit.
  I add_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.add(b16(r), b16(s), b16(t)) : a.add(vec(r).h8(), vec(s).h8(), vec(t).h8());
    return r;
  }
  I sub_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.sub(b16(r), b16(s), b16(t)) : a.sub(vec(r).h8(), vec(s).h8(), vec(t).h8());
    return r;
  }
  // 1 for each byte that is not 0.
  I bools_of_bytes(const I& x) {
    const I s = in_register(x), one = in_register(i32(0x01010101)), r = fresh();
    a.umin(b16(r), b16(s), b16(one));
    return r;
  }
  Pair iota_lanes(int i) {
    return two_of(in_frame(offsetof(Frame, iota_lanes) + sizeof(std::int64_t) * kMaxLanes * at(i)));
  }
  void save_registers() {
    each_live(live_, offsetof(Frame, saved),
              [&](std::uint32_t i, const auto& at) { a.str(a64::VecV(i).q(), at); });
  }
  void load_registers() {
    each_live(live_, offsetof(Frame, saved),
              [&](std::uint32_t i, const auto& at) { a.ldr(a64::VecV(i).q(), at); });
  }
  void call(int function) {
    live_ |= vectors_.used() | 1U << kRest.id();
    A64::call(function);
  }

  void emit_constants() {
    a.align(asmjit::AlignMode::kData, kBytes);
    a.bind(pool_);
    if (!constants_.empty()) a.embed(constants_.data(), constants_.bytes());
  }

 private:
  using Constant = std::array<std::int32_t, kLanes>;
  static constexpr int kBytes = 4 * kLanes;
  // Not for values: the mask of the rest, and one for mask_rest, which may not move values.
  static constexpr a64::VecV kRest = a64::v31;
  static constexpr a64::VecV kFree = a64::v30;

  static F vector(const M& m) { return m.as<VectorKind>(); }
  static M mask(const F& x) { return x.as<MaskKind>(); }

  F constant(const Constant& lanes) { return F::of_constant(constants_.of(lanes)); }
  // What all bits of a constant are: 0 or -1; else 1.
  template <class Kind>
  std::int64_t bits_of_all(const Handle<Kind>& f) const {
    if (f.constant() < 0) return 1;
    const Constant& lanes = constants_[f.constant()];
    const std::int32_t first = lanes[0];
    return (first == 0 || first == -1) && lanes == Constant{first, first, first, first} ? first : 1;
  }

  template <class Shape, class Emit>
  F unary(const F& x, Shape shape, Emit emit) {
    const F s = in_register(x);
    F r = fresh();
    emit(shape(r), shape(s));
    return r;
  }
  template <class Shape, class Emit>
  F binary(const F& x, const F& y, Shape shape, Emit emit) {
    const F s = in_register(x);
    const F t = x.same(y) ? s : in_register(y);
    F r = fresh();
    emit(shape(r), shape(s), shape(t));
    return r;
  }
  // Four lanes of 32 bits, two of 64, or 16 bytes.
  template <class Emit>
  F four(const F& x, Emit emit) {
    return unary(x, s4<VectorKind>, emit);
  }
  template <class Emit>
  F four(const F& x, const F& y, Emit emit) {
    return binary(x, y, s4<VectorKind>, emit);
  }
  template <class Emit>
  F two(const F& x, Emit emit) {
    return unary(x, d2<VectorKind>, emit);
  }
  template <class Emit>
  F two(const F& x, const F& y, Emit emit) {
    return binary(x, y, d2<VectorKind>, emit);
  }
  template <class Emit>
  F bytes(const F& x, const F& y, Emit emit) {
    return binary(x, y, b16<VectorKind>, emit);
  }
  // A comparison of 64-bit lanes: a mask of 32-bit ones.
  template <class Emit>
  M both(const Pair& x, const Pair& y, Emit emit) {
    const F lo = two(x.lo, y.lo, emit);
    return mask(narrow({lo, two(x.hi, y.hi, emit)}));
  }
  template <class Emit>
  F onto(const F& z, const F& x, const F& y, Emit emit) {
    const F s = in_register(x);
    const F t = in_register(y);
    F r = copied(z);
    emit(s4(r), s4(s), s4(t));
    return r;
  }
  template <class Lower, class Upper>
  Pair halves(const F& x, Lower lower, Upper upper) {
    const F s = in_register(x);
    Pair r{fresh(), fresh()};
    lower(d2(r.lo), vec(s).s2());
    upper(d2(r.hi), s4(s));
    return r;
  }
  template <class Lower, class Upper>
  F joined(const Pair& x, Lower lower, Upper upper) {
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    F r = fresh();
    lower(vec(r).s2(), d2(lo));
    upper(s4(r), d2(hi));
    return r;
  }
  template <class Kind>
  Handle<Kind> copied(const Handle<Kind>& x) {
    if (x.reg() < 0) return in_register(x);
    auto r = A64::fresh<Handle<Kind>>(vectors_);
    a.mov(b16(r), b16(x));
    return r;
  }
  I at_most_32(const I& count) {
    return four(count, i32(32), [&](auto... o) { a.umin(o...); });
  }
  F below_64(const F& count) {
    return two(i64(64), count, [&](auto... o) { a.cmhi(o...); });
  }
  F greater64(const F& x, const F& y) {
    return two(x, y, [&](auto... o) { a.cmgt(o...); });
  }
  F blend64(const F& condition, const F& yes, const F& no) {
    return select(mask(condition), yes, no);
  }
  F count() {
    F r = fresh();
    a.ldr(vec(r).d(), field(offsetof(Frame, count)));
    a.dup(d2(r), vec(r).d(0));
    return r;
  }
  Pair two_of(const Address& from) {
    Pair r{fresh(), fresh()};
    a.ldr(vec(r.lo).q(), memory(from));
    a.ldr(vec(r.hi).q(), memory(from, kBytes));
    return r;
  }
  // kTemp is not 0 if a lane is true.
  void any_to_general(const M& m) {
    const M lane = fresh_mask();
    a.umaxv(vec(lane).s(), s4(m));
    a.umov(kTemp.w(), vec(lane).s(0));
  }
  M rest() {
    M r = fresh_mask();
    a.mov(b16(r), kRest.b16());
    return r;
  }
  void bytes_to_lanes(const F& r) {
    a.uxtl(vec(r).h8(), vec(r).b8());
    a.uxtl(s4(r), vec(r).h4());
  }
  F lanes_to_bytes(const F& s) {
    F r = fresh();
    a.xtn(vec(r).h4(), s4(s));
    a.xtn(vec(r).b8(), vec(r).h8());
    return r;
  }
  M bools(const F& r) {
    bytes_to_lanes(r);
    a.cmtst(s4(r), s4(r), s4(r));
    return mask(r);
  }
  F bytes_of(const M& m) {
    F r = lanes_to_bytes(vector(in_register(m)));
    a.neg(vec(r).b8(), vec(r).b8());
    return r;
  }

  // There are no masks for memory: of one to three elements that are left, one or the first two
  // together, then the third.
  template <class One, class Two, class Third>
  void each_of_rest(One one, Two two, Third third) {
    const auto single = a.newLabel();
    const auto done = a.newLabel();
    a.tbz(kLeft, 1, single);
    two();
    a.tbz(kLeft, 0, done);
    third();
    a.b(done);
    a.bind(single);
    one();
    a.bind(done);
  }
  static a64::Vec scalar(const F& r, int bytes) {
    switch (bytes) {
      case 1:
        return vec(r).b();
      case 2:
        return vec(r).h();
      case 4:
        return vec(r).s();
      case 8:
        return vec(r).d();
      default:
        return vec(r).q();
    }
  }
  static a64::Vec third(const F& r, int bytes) {
    return bytes == 1 ? vec(r).b(2) : bytes == 2 ? vec(r).h(2) : vec(r).s(2);
  }
  // Elements of up to 4 bytes, side by side at the low end of a register.
  F fetched(const Address& from, int bytes) {
    F r = fresh();
    if (!masked) {
      a.ldr(scalar(r, 4 * bytes), memory(from));
      return r;
    }
    each_of_rest([&] { a.ldr(scalar(r, bytes), memory(from)); },
                 [&] { a.ldr(scalar(r, 2 * bytes), memory(from)); },
                 [&] { a.ld1(third(r, bytes), third_place(from, bytes)); });
    return r;
  }
  void put(const Address& to, const F& x, int bytes) {
    if (!masked) {
      a.str(scalar(x, 4 * bytes), memory(to));
      return;
    }
    each_of_rest([&] { a.str(scalar(x, bytes), memory(to)); },
                 [&] { a.str(scalar(x, 2 * bytes), memory(to)); },
                 [&] { a.st1(third(x, bytes), third_place(to, bytes)); });
  }
  a64::Mem third_place(const Address& first, int bytes) {
    a.add(kTemp2, first.base, first.offset + 2 * bytes);
    return a64::ptr(kTemp2);
  }

  F libm(int number, const F& x, const F* y) {
    if (number < 0) {
      failed = true;
      return x;
    }
    argue(0, x);
    if (y != nullptr) argue(1, *y);
    call(number);
    return result32();
  }

  Registers vectors_;
  Constants<Constant> constants_;
  std::uint32_t live_ = 0;
};

}  // namespace tilevm::exec::native
