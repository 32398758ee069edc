// AVX2 with FMA: vectors of 8 lanes of 32 bits in ymm registers, 64-bit lanes as pairs of them,
// masks as vectors of all ones or zeros. See avx512.h, which has the same members.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/exec/math/math.h"
#include "exec/native/constants.h"
#include "exec/native/x86.h"

namespace tilevm::exec::native {

class Avx2 : public X86 {
 public:
  using F = Handle<VectorKind>;
  using I = F;
  using M = Handle<MaskKind>;
  struct Pair {
    F lo, hi;
  };

  static constexpr int kLanes = 8;
  static constexpr const char* kName = "avx2";
  static constexpr bool kScalesFar = false;
  static constexpr bool kMaskRegisters = false;
  static constexpr bool kMasksAreCheap = false;
  static constexpr bool kManyRegisters = false;
  static constexpr bool kInterleaves = true;
  static constexpr bool kConverts64 = true;
  static constexpr bool kRoundsBf16 = false;

  Avx2(asmjit::CodeHolder& holder, Owner& owner)
      : X86(holder, owner, kLanes), vectors_(slots_, 0x7fff) {}  // ymm15 is the rest's mask

  // Registers -----------------------------------------------------------------------------------

  F fresh() { return X86::fresh<F>(vectors_); }
  // False: so many registers cannot be had, since values that cannot wait are in the others.
  bool make_room(int registers) {
    const int missing = registers - vectors_.left();
    return missing <= 0 || (owner_.make_room(vectors_, missing) && vectors_.left() >= registers);
  }
  int most_registers() const { return vectors_.most(); }
  M fresh_mask() { return X86::fresh<M>(vectors_); }
  static bool is_mask_file(const Registers&) { return false; }

  template <class Kind>
  static x86::Ymm ymm(const Handle<Kind>& f) {
    return x86::ymm(number(f.reg(), 0));
  }
  template <class Kind>
  static x86::Xmm xmm(const Handle<Kind>& f) {
    return x86::xmm(number(f.reg(), 0));
  }

  template <class Kind>
  Handle<Kind> in_register(const Handle<Kind>& f, bool = false) {
    if (f.reg() >= 0) return f;
    auto r = X86::fresh<Handle<Kind>>(vectors_);
    source(f, [&](const auto& s) { a.vmovaps(ymm(r), s); });
    return r;
  }
  template <class Kind>
  bool move_out(Handle<Kind>& f) {
    const int slot = slots_.take();
    if (slot < 0) return false;
    a.vmovaps(in_slot(slot), ymm(f));
    f = Handle<Kind>::in_slot(vectors_, slot);
    return true;
  }
  template <class Kind>
  void move_in(Handle<Kind>& f, int reg) {
    vectors_.take(reg);
    auto r = Handle<Kind>::in_register(vectors_, reg);
    a.vmovaps(ymm(r), in_slot(f.slot()));
    f = std::move(r);
  }

  // All lanes, into memory and back into the same register.
  template <class Kind>
  void keep(const Address& to, const Handle<Kind>& f) {
    a.vmovaps(to, ymm(in_register(f)));
  }
  template <class Kind>
  void recall(Handle<Kind>& f, const Address& from) {
    const auto r = f.reg() >= 0 ? f : X86::fresh<Handle<Kind>>(vectors_);
    a.vmovaps(ymm(r), from);
    if (f.reg() < 0) a.vmovaps(in_slot(f.slot()), ymm(r));
  }

  // float32 and int32: the contract of exec/math ------------------------------------------------

  F f32(float c) { return i32(std::bit_cast<std::int32_t>(c)); }
  I i32(std::int32_t c) {
    std::array<std::int32_t, kLanes> lanes;
    lanes.fill(c);
    return constant(lanes);
  }
  F i64(std::int64_t c) {
    std::array<std::int32_t, kLanes> lanes;
    for (std::size_t i = 0; i < kLanes; ++i)
      lanes[i] = static_cast<std::int32_t>(i % 2 == 0 ? c : c >> 32);
    return constant(lanes);
  }

  // clang-format off
  F add(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vaddps(d, s, t); }); }
  F mul(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vmulps(d, s, t); }); }
  F sub(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vsubps(d, s, t); }); }
  F div(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vdivps(d, s, t); }); }
  F min(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vminps(d, s, t); }); }
  F max(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vmaxps(d, s, t); }); }
  F sqrt(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vsqrtps(d, s); }); }
  F round_even(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundps(d, s, 8); }); }
  F floor(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundps(d, s, 9); }); }
  F ceil(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundps(d, s, 10); }); }
  F trunc(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundps(d, s, 11); }); }
  I to_int(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vcvtps2dq(d, s); }); }
  F to_float(const I& x) { return unary(x, [&](auto d, const auto& s) { a.vcvtdq2ps(d, s); }); }
  F scale2(F x, F n) { return math::scale2_by_bits(*this, std::move(x), std::move(n)); }
  static I bits(const F& x) { return x; }
  static F from_bits(const I& x) { return x; }
  I iadd(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpaddd(d, s, t); }); }
  I isub(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsubd(d, s, t); }); }
  I imul(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmulld(d, s, t); }); }
  I imin(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpminsd(d, s, t); }); }
  I imax(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmaxsd(d, s, t); }); }
  I iand(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpand(d, s, t); }); }
  I ior(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpor(d, s, t); }); }
  I ixor(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpxor(d, s, t); }); }
  I ishlv(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsllvd(d, s, t); }); }
  I isarv(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsravd(d, s, t); }); }
  template <int n> I ishl(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpslld(d, s, n); }); }
  template <int n> I ishr(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpsrld(d, s, n); }); }
  template <int n> I isar(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpsrad(d, s, n); }); }
  M lt(const F& x, const F& y) { return compare(x, y, 17); }
  M le(const F& x, const F& y) { return compare(x, y, 18); }
  M eq(const F& x, const F& y) { return compare(x, y, 0); }
  M unordered(const F& x, const F& y) { return compare(x, y, 3); }
  M ilt(const I& x, const I& y) { return binary(y, x, [&](auto d, auto s, const auto& t) { a.vpcmpgtd(d, s, t); }).template as<MaskKind>(); }
  M ieq(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpcmpeqd(d, s, t); }).template as<MaskKind>(); }
  M mand(const M& x, const M& y) { return mask(iand(vector(x), vector(y))); }
  M mor(const M& x, const M& y) { return mask(ior(vector(x), vector(y))); }
  M mxor(const M& x, const M& y) { return mask(ixor(vector(x), vector(y))); }
  M mnot(const M& x) { return mask(ixor(vector(x), i32(-1))); }
  // clang-format on

  F select(const M& m, const F& yes, const F& no) {
    const M c = in_register(m);
    const F n = in_register(no);
    F r = fresh();
    source(yes, [&](const auto& y) { a.vblendvps(ymm(r), ymm(n), y, ymm(c)); });
    return r;
  }
  I iselect(const M& m, const I& yes, const I& no) { return select(m, yes, no); }

  // What is handed over is where the result is.
  F fma(F x, F y, F z) {
    return fused(
        std::move(x), std::move(y), std::move(z), [&](auto... o) { a.vfmadd213ps(o...); },
        [&](auto... o) { a.vfmadd132ps(o...); }, [&](auto... o) { a.vfmadd231ps(o...); });
  }
  F fnma(F x, F y, F z) {
    return fused(
        std::move(x), std::move(y), std::move(z), [&](auto... o) { a.vfnmadd213ps(o...); },
        [&](auto... o) { a.vfnmadd132ps(o...); }, [&](auto... o) { a.vfnmadd231ps(o...); });
  }
  F where_nan(const F& x, F r) {
    const F s = in_register(x);
    const M nan = unordered(s, s);
    a.vblendvps(ymm(r), ymm(r), ymm(s), ymm(nan));
    return r;
  }

  template <class Fn>
  F when_any(const M& m, const F& current, Fn fn) {
    const M c = in_register(m);
    F r = copied(current);
    const auto skip = a.newLabel();
    a.vtestps(ymm(c), ymm(c));
    a.jz(skip);
    same_state([&] {
      const F other = in_register(fn());
      a.vblendvps(ymm(r), ymm(r), ymm(other), ymm(c));
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
  F add64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpaddq(d, s, t); }); }
  F sub64(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsubq(d, s, t); }); }
  F and64(const F& x, const F& y) { return iand(x, y); }
  F or64(const F& x, const F& y) { return ior(x, y); }
  F xor64(const F& x, const F& y) { return ixor(x, y); }
  F shl64(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsllvq(d, s, t); }); }
  F addpd(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vaddpd(d, s, t); }); }
  F subpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vsubpd(d, s, t); }); }
  F divpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vdivpd(d, s, t); }); }
  F maxpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vmaxpd(d, s, t); }); }
  F minpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vminpd(d, s, t); }); }
  F sqrtpd(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vsqrtpd(d, s); }); }
  F round_evenpd(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundpd(d, s, 8); }); }
  F floorpd(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundpd(d, s, 9); }); }
  F ceilpd(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundpd(d, s, 10); }); }
  F truncpd(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vroundpd(d, s, 11); }); }
  M lt_pd(const Pair& x, const Pair& y) { return compare64(x, y, 17); }
  M le_pd(const Pair& x, const Pair& y) { return compare64(x, y, 18); }
  M eq_pd(const Pair& x, const Pair& y) { return compare64(x, y, 0); }
  M unordered_pd(const Pair& x, const Pair& y) { return compare64(x, y, 3); }
  F mulpd(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vmulpd(d, s, t); }); }
  // clang-format on

  F mul64(const F& x, const F& y) {
    const auto low_halves = [&](auto d, auto s, const auto& t) { a.vpmuludq(d, s, t); };
    const auto upper = [&](const F& v) {
      return in_place(v, [&](auto d, auto s) { a.vpsrlq(d, s, 32); });
    };
    const F across = add64(binary(upper(x), y, low_halves), binary(upper(y), x, low_halves));
    const F shifted = in_place(across, [&](auto d, auto s) { a.vpsllq(d, s, 32); });
    return add64(shifted, binary(x, y, low_halves));
  }
  F max64(const F& x, const F& y) { return blend64(greater64(y, x), y, x); }
  F min64(const F& x, const F& y) { return blend64(greater64(x, y), y, x); }
  F sar64(const F& x, const F& y) {  // shifts zeros into what has no sign
    const F sign = greater64(i64(0), x);
    const F plain = xor64(x, sign);
    return xor64(binary(plain, y, [&](auto d, auto s, const auto& t) { a.vpsrlvq(d, s, t); }),
                 sign);
  }

  M lt64(const Pair& x, const Pair& y) {
    return mask(even_lanes({greater64(y.lo, x.lo), greater64(y.hi, x.hi)}));
  }
  M eq64(const Pair& x, const Pair& y) {
    const auto equal = [&](auto d, auto s, const auto& t) { a.vpcmpeqq(d, s, t); };
    return mask(even_lanes({commute(x.lo, y.lo, equal), commute(x.hi, y.hi, equal)}));
  }
  Pair select64(const M& m, const Pair& yes, const Pair& no) {
    const Pair c = widen(vector(m));
    return {blend64(c.lo, yes.lo, no.lo), blend64(c.hi, yes.hi, no.hi)};
  }

  Pair widen(const I& x) {
    return halves(x, [&](auto d, auto s) { a.vpmovsxdq(d, s); });
  }
  I narrow(const Pair& x) { return even_lanes(x); }
  Pair to_double(const F& x) {
    return halves(x, [&](auto d, auto s) { a.vcvtps2pd(d, s); });
  }
  F from_double(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vcvtpd2ps(d, s); });
  }
  I to_i32(const F& x) {
    return unary(x, [&](auto d, const auto& s) { a.vcvttps2dq(d, s); });
  }
  I idiv(const I& x, const I& y) {
    const auto doubles = [&](auto d, auto s) { a.vcvtdq2pd(d, s); };
    const Pair n = halves(x, doubles);
    const Pair d = halves(y, doubles);
    a.vdivpd(ymm(n.lo), ymm(n.lo), ymm(d.lo));
    a.vdivpd(ymm(n.hi), ymm(n.hi), ymm(d.hi));
    return joined(n, [&](auto to, auto s) { a.vcvttpd2dq(to, s); });
  }
  Pair i32_to_double(const I& x) {
    return halves(x, [&](auto d, auto s) { a.vcvtdq2pd(d, s); });
  }
  I double_to_i32(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vcvttpd2dq(d, s); });
  }
  // AVX2 converts no int64: they go through the mantissas of doubles, 32 and 48 bits at a time.
  Pair double_to_i64(const Pair& x) { return {integer64(x.lo), integer64(x.hi)}; }
  Pair i64_to_double(const Pair& x) { return {real64(x.lo), real64(x.hi)}; }
  Pair to_i64(const F& x) { return double_to_i64(to_double(x)); }
  // By way of doubles, which round nothing: what float32 has no place for decides there.
  F to_f32(const Pair& x) {
    return from_double(i64_to_double({sticky64(x.lo), sticky64(x.hi)}));
  }
  F finite_or_zero(const F& x) {  // x - x is 0 for what is finite, else NaN
    const F s = in_register(x);
    const F zero = subpd(s, s);
    F r = fresh();
    a.vcmppd(ymm(r), ymm(zero), ymm(zero), 7);
    a.vandpd(ymm(r), ymm(r), ymm(s));
    return r;
  }
  F over_count(const F& x) {
    F r = fresh();
    a.vbroadcastsd(ymm(r), field(offsetof(Frame, count)));
    a.vdivpd(ymm(r), ymm(in_register(x)), ymm(r));
    return r;
  }
  F left_by_count(const F& x, const F& mean) {
    F r = copied(x);
    const F count = fresh();
    a.vbroadcastsd(ymm(count), field(offsetof(Frame, count)));
    a.vfnmadd231pd(ymm(r), ymm(mean), ymm(count));
    return r;
  }

  F own(const F& x, bool) { return copied(x); }
  // In a slot for good: what is seldom added to leaves its register to others.
  F own_apart(const F& x) {
    F r = in_register(x);
    if (!move_out(r)) failed = true;
    return r;
  }
  template <class Kind>
  void set(Handle<Kind>& acc, const Handle<Kind>& x) {
    const auto s = in_register(x);
    acc.reg() >= 0 ? a.vmovaps(ymm(acc), ymm(s)) : a.vmovaps(in_slot(acc.slot()), ymm(s));
  }
  // acc where x is NaN.
  void max_to(F& acc, const F& x) { a.vmaxps(ymm(acc), ymm(in_register(x)), ymm(acc)); }
  void min_to(F& acc, const F& x) { a.vminps(ymm(acc), ymm(in_register(x)), ymm(acc)); }
  // NaN where either is.
  void extremum_to(F& acc, const F& x, bool largest) {
    const F s = in_register(x);
    largest ? max_to(acc, s) : min_to(acc, s);
    a.vblendvps(ymm(acc), ymm(acc), ymm(s), ymm(unordered(s, s)));
  }
  void add_to(F& acc, const F& x) { a.vaddps(ymm(acc), ymm(acc), ymm(in_register(x))); }
  // acc += x * y
  void add_product_to(F& acc, const F& x, const F& y) {
    const F s = in_register(x);
    source(y, [&](const auto& t) { a.vfmadd231ps(ymm(acc), ymm(s), t); });
  }
  void add_double_to(F& acc, const F& x) {
    if (acc.reg() >= 0) {
      a.vaddpd(ymm(acc), ymm(acc), ymm(in_register(x)));
    } else {
      set(acc, addpd(x, acc));
    }
  }

  // Across lanes --------------------------------------------------------------------------------

  F turned(const F& x, int n) {
    std::array<std::int32_t, kLanes> from;
    for (int i = 0; i < kLanes; ++i) from[at(i)] = (i + n) % kLanes;
    const F index = in_register(constant(from));
    F r = fresh();
    source(x, [&](const auto& s) { a.vpermd(ymm(r), ymm(index), s); });
    return r;
  }
  F turned64(const F& x, int n) {
    return in_place(x, [&](auto d, auto s) { a.vpermq(d, s, n == 2 ? 0x4e : 0x39); });
  }
  F first64(const F& x) {
    return in_place(x, [&](auto d, auto s) { a.vpbroadcastq(d, s.xmm()); });
  }
  M any(const M& m) {
    a.vmovmskps(kTemp.r32(), ymm(in_register(m)));
    return all_or_none();
  }
  void fail_if_any(const M& m, Status status) {
    const M c = in_register(m);
    a.vtestps(ymm(c), ymm(c));
    a.jnz(failure(status));
  }

  // The rest ------------------------------------------------------------------------------------

  void mask_some() {
    a.mov(kTemp2, kLanes);
    a.cmp(kTemp, kTemp2);
    a.cmovg(kTemp, kTemp2);
    mask_rest();
  }
  void mask_rest() {  // kTemp <= 8
    std::array<std::int32_t, kLanes> ones;
    std::array<std::int32_t, kLanes> zeros;
    ones.fill(-1);
    zeros.fill(0);
    const int window = constants_.of(ones, zeros);
    a.shl(kTemp, 2);
    a.lea(kTemp2, x86::ptr(a.pool(), kBytes * (window + 1)));
    a.sub(kTemp2, kTemp);
    a.vmovups(kRest, x86::ptr(kTemp2));
  }
  F or_else(const F& x, const F& other) {
    if (!masked) return x;
    const F n = in_register(other);
    F r = fresh();
    source(x, [&](const auto& s) { a.vblendvps(ymm(r), ymm(n), s, kRest); });
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

  F load32(const Address& from) {
    F r = fresh();
    masked ? a.vmaskmovps(ymm(r), kRest, from) : a.vmovups(ymm(r), from);
    return r;
  }
  F load_bf16(Address from) {
    if (masked) from = fetched(from, 2);
    F r = fresh();
    a.vpmovzxwd(ymm(r), from);
    a.vpslld(ymm(r), ymm(r), 16);
    return r;
  }
  F load_f16(Address from) {
    if (masked) from = fetched(from, 2);
    F r = fresh();
    a.vcvtph2ps(ymm(r), from);
    return r;
  }
  I load_small(Address from, bytecode::Storage storage) {
    if (masked) from = fetched(from, bytecode::storage_bytes(storage));
    F r = fresh();
    if (storage == bytecode::Storage::kI8) {
      a.vpmovsxbd(ymm(r), from);
    } else if (storage == bytecode::Storage::kU8) {
      a.vpmovzxbd(ymm(r), from);
    } else {
      a.vpmovsxwd(ymm(r), from);
    }
    return r;
  }
  Pair load64(const Address& from) {
    const auto second = from.cloneAdjusted(kBytes);
    if (masked) {
      const Pair m = widen(vector(rest()));
      Pair r{fresh(), fresh()};
      a.vpmaskmovq(ymm(r.lo), ymm(m.lo), from);
      a.vpmaskmovq(ymm(r.hi), ymm(m.hi), second);
      return r;
    }
    Pair r{fresh(), fresh()};
    a.vmovups(ymm(r.lo), from);
    a.vmovups(ymm(r.hi), second);
    return r;
  }
  M load_b8(Address from) {
    if (masked) from = fetched(from, 1);
    return bools(from);
  }
  F splat32(Address from) {
    F r = fresh();
    from.setSize(4);
    a.vbroadcastss(ymm(r), from);
    return r;
  }
  F splat_bf16(Address from) {
    from.setSize(2);
    a.movzx(kTemp.r32(), from);
    a.shl(kTemp.r32(), 16);
    F r = fresh();
    a.vmovd(xmm(r), kTemp.r32());
    a.vpbroadcastd(ymm(r), xmm(r));
    return r;
  }
  F splat_f16(Address from) {
    F r = fresh();
    from.setSize(2);
    a.vpbroadcastw(xmm(r), from);
    a.vcvtph2ps(ymm(r), xmm(r));
    return r;
  }
  I splat_small(const Address& from, bytecode::Storage storage) {
    general_small(from, storage);
    F r = fresh();
    a.vmovd(xmm(r), kTemp.r32());
    a.vpbroadcastd(ymm(r), xmm(r));
    return r;
  }
  Pair splat64(Address from) {
    F r = fresh();
    from.setSize(8);
    a.vpbroadcastq(ymm(r), from);
    return {r, r};
  }
  Pair splat64() {
    F r = fresh();
    a.vmovq(xmm(r), kTemp);
    a.vpbroadcastq(ymm(r), xmm(r));
    return {r, r};
  }
  F splat_f64_as_f32(Address from) {
    F r = fresh();
    from.setSize(8);
    a.vxorps(xmm(r), xmm(r), xmm(r));
    a.vcvtsd2ss(xmm(r), xmm(r), from);
    a.vbroadcastss(ymm(r), xmm(r));
    return r;
  }
  M splat_b8(Address from) {
    from.setSize(1);
    a.movzx(kTemp.r32(), from);
    return all_or_none();
  }
  M all_lanes(bool value) { return mask(in_register(i32(value ? -1 : 0))); }

  void store32(const Address& to, const F& x) {
    const F s = in_register(x);
    if (masked) {
      a.vmaskmovps(to, kRest, ymm(s));
    } else {
      streaming ? a.vmovntps(to, ymm(s)) : a.vmovups(to, ymm(s));
    }
  }
  void store16(const Address& to, const I& x) {
    const F s = in_register(x);
    const F upper = fresh();
    const F words = fresh();
    a.vextracti128(xmm(upper), ymm(s), 1);
    a.vpackusdw(xmm(words), xmm(s), xmm(upper));
    put_vector(to, words, 2);
  }
  void store8(const Address& to, const I& x) {  // lanes are 0 to 255
    const F s = in_register(x);
    const F bytes = fresh();
    a.vextracti128(xmm(bytes), ymm(s), 1);
    a.vpackusdw(xmm(bytes), xmm(s), xmm(bytes));
    a.vpackuswb(xmm(bytes), xmm(bytes), xmm(bytes));
    put_vector(to, bytes, 1);
  }
  I to_f16(const F& x) {
    return in_place(x, [&](auto d, auto s) { a.vcvtps2ph(d.xmm(), s, 0); });
  }
  F from_f16(const I& x) {
    return in_place(x, [&](auto d, auto s) { a.vcvtph2ps(d, s.xmm()); });
  }
  void store_f16(const Address& to, const I& bits) { put_vector(to, bits, 2); }
  void store64(const Address& to, const Pair& x) {
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    const auto second = to.cloneAdjusted(kBytes);
    if (masked) {
      const Pair m = widen(vector(rest()));
      a.vpmaskmovq(to, ymm(m.lo), ymm(lo));
      a.vpmaskmovq(second, ymm(m.hi), ymm(hi));
    } else {
      a.vmovups(to, ymm(lo));
      a.vmovups(second, ymm(hi));
    }
  }
  void store_b8(const Address& to, const M& m) { put_vector(to, bytes_of(m), 1); }
  void put32(const Address& to, const F& x) { a.vmovss(to, xmm(in_register(x))); }
  void put16(const Address& to, const I& x) { a.vpextrw(to, xmm(in_register(x)), 0); }
  void put8(const Address& to, const I& x) { a.vpextrb(to, xmm(in_register(x)), 0); }
  void put64(const Address& to, const Pair& x) { a.vmovq(to, xmm(in_register(x.lo))); }
  void put_b8(const Address& to, const M& m) { a.vpextrb(to, xmm(bytes_of(m)), 0); }

  // Calls ---------------------------------------------------------------------------------------

  void to_general(const Pair& x) { a.vmovq(kTemp, xmm(in_register(x.lo))); }
  void argue(int i, const F& x) { a.vmovups(argument(i), ymm(in_register(x))); }
  void argue(int i, const Pair& x) {
    a.vmovups(argument(i), ymm(in_register(x.lo)));
    a.vmovups(argument(i).cloneAdjusted(kBytes), ymm(in_register(x.hi)));
  }
  void argue(int i, const M& m) { a.vmovq(argument(i), xmm(bytes_of(m))); }
  F result32() {
    F r = fresh();
    a.vmovups(ymm(r), result());
    return r;
  }
  Pair result64() {
    Pair r{fresh(), fresh()};
    a.vmovups(ymm(r.lo), result());
    a.vmovups(ymm(r.hi), result().cloneAdjusted(kBytes));
    return r;
  }
  M result_b8() { return bools(result()); }
  // Of elements of one or two bytes, as many as fit.
  I add_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.vpaddb(ymm(r), ymm(s), ymm(t)) : a.vpaddw(ymm(r), ymm(s), ymm(t));
    return r;
  }
  I sub_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.vpsubb(ymm(r), ymm(s), ymm(t)) : a.vpsubw(ymm(r), ymm(s), ymm(t));
    return r;
  }
  // 1 for each byte that is not 0.
  I bools_of_bytes(const I& x) {
    const I s = in_register(x), one = in_register(i32(0x01010101)), r = fresh();
    a.vpminub(ymm(r), ymm(s), ymm(one));
    return r;
  }
  // The elements of a gathered operand at these indices, in place of a result.
  void gather(const Pair& indices, int mem, bool over_x, bool contiguous, int bytes, int copy) {
    argue(0, indices);
    if (masked) {
      a.mov(kTemp2, kCols);
      a.sub(kTemp2, kX);
      gather_lanes(mem, over_x, bytes, copy);
      return;
    }
    const F joined = fresh(), part = fresh();
    const int chunk = std::min(kLanes * bytes, kBytes);
    const auto done = [&](int number, int place) {
      const auto to = result().cloneAdjusted(place);
      if (chunk < 16) {
        a.vmovq(to, xmm(joined));
      } else if (chunk == 16) {
        a.vmovups(to, xmm(joined));
      } else if (number == 1) {
        a.vinsertf128(ymm(joined), ymm(joined), xmm(part), 1);
        a.vmovups(to.cloneAdjusted(-16), ymm(joined));
      }
    };
    gather_vector(mem, over_x, contiguous, bytes, copy, chunk, xmm(joined), xmm(part), done);
  }
  // The same of elements of 4 or 8 bytes that are alike in all columns: in registers, read by the
  // processor's own gathers. Half as long as one by one on Zen 3.
  static constexpr bool kGathers = true;
  Pair gather_whole(const Pair& indices, int mem, int bytes, int copy) {
    const Pair at{in_register(indices.lo), in_register(indices.hi)};
    const F s = fresh(), t = fresh();
    const auto inside = [&] {
      a.vpbroadcastq(ymm(s), of_gather(offsetof(Frame, gather_near), mem));
      a.vpcmpgtq(ymm(t), ymm(s), ymm(at.lo));
      a.vpcmpgtq(ymm(s), ymm(s), ymm(at.hi));
      a.vpand(ymm(t), ymm(t), ymm(s));
      a.vpor(ymm(s), ymm(at.lo), ymm(at.hi));
      a.vpandn(ymm(t), ymm(s), ymm(t));  // sign: not negative, and below the size
      a.vmovmskpd(kTemp.r32(), ymm(t));
      a.cmp(kTemp.r32(), 15);
    };
    const auto gathers = [&](const F& all, const F& lo, const F& hi) {
      a.vpbroadcastq(ymm(s), of_gather(offsetof(Frame, gather_stride), mem));
      a.vpmuldq(ymm(t), ymm(at.lo), ymm(s));
      a.vpmuldq(ymm(s), ymm(at.hi), ymm(s));
      const x86::Gp base = pointer(mem);
      a.vpcmpeqd(ymm(all), ymm(all), ymm(all));
      if (bytes == 4) {
        a.vgatherqps(xmm(lo), x86::ptr(base, ymm(t)), xmm(all));
        a.vpcmpeqd(ymm(all), ymm(all), ymm(all));
        a.vgatherqps(xmm(t), x86::ptr(base, ymm(s)), xmm(all));
        a.vinsertf128(ymm(lo), ymm(lo), xmm(t), 1);
      } else {
        a.vgatherqpd(ymm(lo), x86::ptr(base, ymm(t)), ymm(all));
        a.vpcmpeqd(ymm(all), ymm(all), ymm(all));
        a.vgatherqpd(ymm(hi), x86::ptr(base, ymm(s)), ymm(all));
      }
    };
    return gather_or(inside, mem, bytes, copy, [&] { argue(0, at); }, gathers);
  }
  // At indices of 32 bits.
  Pair gather_whole(const I& indices, int mem, int bytes, int copy) {
    const I at = in_register(indices);
    const F s = fresh(), t = fresh();
    const auto inside = [&] {
      a.vpbroadcastd(ymm(s), of_gather(offsetof(Frame, gather_close), mem));
      a.vpcmpgtd(ymm(s), ymm(s), ymm(at));
      a.vpandn(ymm(s), ymm(at), ymm(s));
      a.vmovmskps(kTemp.r32(), ymm(s));
      a.cmp(kTemp.r32(), 255);
    };
    const auto arguments = [&] {
      a.vpmovsxdq(ymm(s), xmm(at));
      a.vmovups(argument(0), ymm(s));
      a.vextracti128(xmm(s), ymm(at), 1);
      a.vpmovsxdq(ymm(s), xmm(s));
      a.vmovups(argument(0).cloneAdjusted(kBytes), ymm(s));
    };
    const auto gathers = [&](const F& all, const F& lo, const F& hi) {
      a.vpbroadcastd(ymm(s), of_gather(offsetof(Frame, gather_stride), mem));
      a.vpmulld(ymm(s), ymm(at), ymm(s));
      const x86::Gp base = pointer(mem);
      a.vpcmpeqd(ymm(all), ymm(all), ymm(all));
      if (bytes == 4) {
        a.vgatherdps(ymm(lo), x86::ptr(base, ymm(s)), ymm(all));
      } else {
        a.vgatherdpd(ymm(lo), x86::ptr(base, xmm(s)), ymm(all));
        a.vextracti128(xmm(t), ymm(s), 1);
        a.vpcmpeqd(ymm(all), ymm(all), ymm(all));
        a.vgatherdpd(ymm(hi), x86::ptr(base, xmm(t)), ymm(all));
      }
    };
    return gather_or(inside, mem, bytes, copy, arguments, gathers);
  }
  Pair iota_lanes(int i) {
    Pair r{fresh(), fresh()};
    const auto from = field(offsetof(Frame, iota_lanes) + sizeof(std::int64_t) * kMaxLanes * at(i));
    a.vmovdqu(ymm(r.lo), from);
    a.vmovdqu(ymm(r.hi), from.cloneAdjusted(kBytes));
    return r;
  }
  void save_registers() {
    each_live(live_, offsetof(Frame, saved), 64,
              [&](std::uint32_t i, auto at) { a.vmovups(at, x86::ymm(i)); });
  }
  void load_registers() {
    each_live(live_, offsetof(Frame, saved), 64,
              [&](std::uint32_t i, auto at) { a.vmovups(x86::ymm(i), at); });
  }
  void call(int function) {
    live_ |= vectors_.used() | 0x8000;
    X86::call(function);
  }

  void emit_constants() {
    a.align(asmjit::AlignMode::kData, kBytes);
    a.bind_pool();
    if (!constants_.empty()) a.embed(constants_.data(), constants_.bytes());
  }

 private:
  using Constant = std::array<std::int32_t, kLanes>;
  static constexpr int kBytes = 4 * kLanes;
  static constexpr x86::Ymm kRest = x86::ymm15;

  static F vector(const M& m) { return m.as<VectorKind>(); }
  static M mask(const F& x) { return x.as<MaskKind>(); }

  F constant(const Constant& lanes) { return F::of_constant(constants_.of(lanes)); }

  template <class Kind, class Emit>
  void source(const Handle<Kind>& f, Emit emit) {
    if (f.constant() >= 0) {
      emit(x86::ptr(a.pool(), kBytes * f.constant(), kBytes));
    } else if (f.reg() < 0 && f.slot() >= 0) {
      emit(in_slot(f.slot()));
    } else {
      emit(ymm(f));
    }
  }
  template <class Emit>
  F unary(const F& x, Emit emit) {
    F r = fresh();
    source(x, [&](const auto& s) { emit(ymm(r), s); });
    return r;
  }
  template <class Emit>
  F in_place(const F& x, Emit emit) {
    const F s = in_register(x);
    F r = fresh();
    emit(ymm(r), ymm(s));
    return r;
  }
  template <class Emit>
  F binary(const F& x, const F& y, Emit emit) {
    const F s = in_register(x);
    F r = fresh();
    source(y, [&](const auto& t) { emit(ymm(r), ymm(s), t); });
    return r;
  }
  template <class Emit>
  F commute(const F& x, const F& y, Emit emit) {
    return x.reg() < 0 ? binary(y, x, emit) : binary(x, y, emit);
  }
  M compare(const F& x, const F& y, int predicate) {
    const F s = in_register(x);
    M r = fresh_mask();
    source(y, [&](const auto& t) { a.vcmpps(ymm(r), ymm(s), t, predicate); });
    return r;
  }
  M compare64(const Pair& x, const Pair& y, int predicate) {
    const auto half = [&](const F& s, const F& t) {
      return binary(s, t, [&](auto d, auto u, const auto& v) { a.vcmppd(d, u, v, predicate); });
    };
    return mask(even_lanes({half(x.lo, y.lo), half(x.hi, y.hi)}));
  }
  F greater64(const F& x, const F& y) {
    return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpcmpgtq(d, s, t); });
  }
  F blend64(const F& condition, const F& yes, const F& no) {
    const F c = in_register(condition);
    const F n = in_register(no);
    F r = fresh();
    source(yes, [&](const auto& y) { a.vblendvpd(ymm(r), ymm(n), y, ymm(c)); });
    return r;
  }
  F f64(double c) { return i64(std::bit_cast<std::int64_t>(c)); }
  // Of doubles, towards zero; the lowest int64 if out of range.
  F integer64(const F& x) {
    const F t = truncpd(x);
    const F upper = floorpd(mulpd(t, f64(0x1p-32)));
    const F lower = subpd(t, mulpd(upper, f64(0x1p32)));
    const F high = in_place(addpd(upper, f64(0x1.8p52)), [&](auto d, auto s) { a.vpsllq(d, s, 32); });
    const F low = and64(addpd(lower, f64(0x1p52)), i64(0xffffffff));
    const auto below = [&](auto d, auto s, const auto& u) { a.vcmppd(d, s, u, 17); };
    const auto at_least = [&](auto d, auto s, const auto& u) { a.vcmppd(d, s, u, 29); };
    const F inside =
        and64(binary(t, f64(0x1p63), below), binary(t, f64(-0x1p63), at_least));
    return blend64(inside, or64(high, low), i64(INT64_MIN));
  }
  // To the nearest double: upper 16 and lower 48 bits, in mantissas whose last place is theirs.
  F real64(const F& x) {
    const F s = in_register(x);
    const F zero = in_register(i64(0));
    const F high = fresh();
    a.vpsrad(ymm(high), ymm(s), 16);
    a.vpblendw(ymm(high), ymm(high), ymm(zero), 0x33);
    const F low = fresh();
    source(f64(0x1p52), [&](const auto& t) { a.vpblendw(ymm(low), ymm(s), t, 0x88); });
    return addpd(subpd(add64(high, f64(0x1.8p68)), f64(0x1.8p68 + 0x1p52)), low);
  }
  // Integers beyond 53 bits with one in the place of their last 11, if any of those is one.
  F sticky64(const F& x) {
    const F rest = add64(and64(x, i64(2047)), i64(2047));
    const F cut = and64(or64(rest, x), i64(-2048));
    const F most = i64((std::int64_t{1} << 53) - 1), least = i64(-(std::int64_t{1} << 53));
    return blend64(or64(greater64(x, most), greater64(least, x)), cut, x);
  }
  // The low halves of 64-bit lanes, in order.
  F even_lanes(const Pair& x) {
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    F r = fresh();
    a.vshufps(ymm(r), ymm(lo), ymm(hi), 0x88);
    a.vpermq(ymm(r), ymm(r), 0xd8);
    return r;
  }
  template <class Emit>
  Pair halves(const F& x, Emit emit) {
    const F s = in_register(x);
    Pair r{fresh(), fresh()};
    a.vextractf128(xmm(r.hi), ymm(s), 1);
    emit(ymm(r.hi), xmm(r.hi));
    emit(ymm(r.lo), xmm(s));
    return r;
  }
  template <class Emit>
  F joined(const Pair& x, Emit emit) {
    const F lo = in_register(x.lo);
    const F hi = in_register(x.hi);
    F r = fresh();
    const F upper = fresh();
    emit(xmm(r), ymm(lo));
    emit(xmm(upper), ymm(hi));
    a.vinsertf128(ymm(r), ymm(r), xmm(upper), 1);
    return r;
  }
  template <class Kind>
  Handle<Kind> copied(const Handle<Kind>& x) {
    if (x.reg() < 0) return in_register(x);
    auto r = X86::fresh<Handle<Kind>>(vectors_);
    a.vmovaps(ymm(r), ymm(x));
    return r;
  }
  template <class E213, class E132, class E231>
  F fused(F x, F y, F z, E213 e213, E132 e132, E231 e231) {
    if (x.reg() < 0 || (y.movable() && !x.movable())) std::swap(x, y);
    if (z.movable() && !x.movable()) {
      x = in_register(x);
      source(y, [&](const auto& t) { e231(ymm(z), ymm(x), t); });
      return z;
    }
    if (!x.movable() && y.reg() < 0) {  // a load instead of a copy
      y = in_register(y);
      std::swap(x, y);
    }
    F r = x.movable() ? std::move(x) : copied(x);
    if (y.reg() < 0) {
      const F addend = in_register(z);
      source(y, [&](const auto& t) { e132(ymm(r), ymm(addend), t); });
    } else {
      source(z, [&](const auto& t) { e213(ymm(r), ymm(y), t); });
    }
    return r;
  }

  M rest() {
    M r = fresh_mask();
    a.vmovaps(ymm(r), kRest);
    return r;
  }
  // All lanes true if kTemp is not 0.
  M all_or_none() {
    a.neg(kTemp.r32());
    a.sbb(kTemp.r32(), kTemp.r32());
    M r = fresh_mask();
    a.vmovd(xmm(r), kTemp.r32());
    a.vpbroadcastd(ymm(r), xmm(r));
    return r;
  }
  M bools(const Address& from) {
    F r = fresh();
    a.vpmovzxbd(ymm(r), from);
    const F zero = in_register(i32(0));
    a.vpcmpgtd(ymm(r), ymm(r), ymm(zero));
    return mask(r);
  }
  F bytes_of(const M& m) {
    const M s = in_register(m);
    F r = fresh();
    a.vextracti128(xmm(r), ymm(s), 1);
    a.vpackssdw(xmm(r), xmm(s), xmm(r));
    a.vpacksswb(xmm(r), xmm(r), xmm(r));
    a.vpabsb(xmm(r), xmm(r));
    return r;
  }

  // Small elements of the rest go through the frame one by one: there are no masks for them.
  template <class Copy>
  void each_of_rest(const Address& memory, Copy copy) {
    const auto loop = a.newLabel();
    a.lea(kTemp2, memory);
    a.mov(kTemp, kCols);
    a.sub(kTemp, kX);
    a.push(kCols);
    a.bind(loop);
    copy();
    a.dec(kTemp);
    a.jnz(loop);
    a.pop(kCols);
  }
  Address fetched(const Address& from, int bytes) {
    each_of_rest(from, [&] {
      move(kCols, element(kTemp2, bytes));
      move(element(kFrame, bytes, offsetof(Frame, result)), kCols);
    });
    return result();
  }
  void put_vector(const Address& to, const F& x, int bytes) {
    if (!masked) {
      bytes == 2 ? a.vmovdqu(to, xmm(x)) : a.vmovq(to, xmm(x));
      return;
    }
    a.vmovdqu(result(), xmm(x));
    each_of_rest(to, [&] {
      move(kCols, element(kFrame, bytes, offsetof(Frame, result)));
      move(element(kTemp2, bytes), kCols);
    });
  }
  static Address element(const x86::Gp& base, int bytes, std::size_t offset = 0) {
    return x86::ptr(base, kTemp, bytes == 2 ? 1 : 0, static_cast<int>(offset) - bytes,
                    static_cast<std::uint32_t>(bytes));
  }
  void move(const x86::Gp& to, const Address& from) { a.movzx(to.r32(), from); }
  void move(const Address& to, const x86::Gp& from) {
    to.size() == 2 ? a.mov(to, from.r16()) : a.mov(to, from.r8());
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

  static Address of_gather(std::size_t array, int mem) {
    return field(array + sizeof(std::int64_t) * static_cast<std::size_t>(mem));
  }
  // What `gathers` reads if `inside` finds that all lanes are; else one by one, for errors and for
  // what is far away.
  template <class Inside, class Arguments, class Gathers>
  Pair gather_or(const Inside& inside, int mem, int bytes, int copy, const Arguments& arguments,
                 const Gathers& gathers) {
    const F all = fresh(), lo = fresh(), hi = bytes == 8 ? fresh() : F();
    const auto one_by_one = a.newLabel(), done = a.newLabel();
    inside();
    a.jne(one_by_one);
    gathers(all, lo, hi);
    a.jmp(done);
    a.bind(one_by_one);
    arguments();
    a.mov(kTemp2, kLanes);
    gather_lanes(mem, false, bytes, copy);
    a.vmovups(ymm(lo), result());
    if (bytes == 8) a.vmovups(ymm(hi), result().cloneAdjusted(kBytes));
    a.bind(done);
    return {lo, hi};
  }

  Registers vectors_;
  Constants<Constant> constants_;
  std::uint32_t live_ = 0;
};

}  // namespace tilevm::exec::native
