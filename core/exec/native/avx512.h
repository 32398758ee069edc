// AVX-512 (F, BW, DQ, VL): vectors of 16 lanes of 32 bits in zmm registers, 64-bit lanes as pairs
// of them, masks in k registers. It is the emitting backend of exec/math besides: a primitive
// appends an instruction.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "exec/native/constants.h"
#include "exec/native/x86.h"

namespace tilevm::exec::native {

class Avx512 : public X86 {
 public:
  using F = Handle<VectorKind>;
  using I = F;
  using M = Handle<MaskKind>;
  struct Pair {  // 64-bit lanes: the first half, the second half
    F lo, hi;
  };

  static constexpr int kLanes = 16;
  static constexpr const char* kName = "avx512";
  static constexpr bool kScalesFar = true;
  static constexpr bool kManyRegisters = true;  // more than 16
  static constexpr bool kMaskRegisters = true;  // masks are not vectors
  // Loads and stores under a mask cost hardly more than others, so that a long body needs no copy.
  static constexpr bool kMasksAreCheap = true;

  Avx512(asmjit::CodeHolder& holder, Owner& owner)
      : X86(holder, owner, kLanes),
        vectors_(slots_, 0xffffffffU),
        masks_(slots_, 0x7e) {}  // k7 is the rest's mask, k0 is none

  // Registers -----------------------------------------------------------------------------------

  F fresh() { return X86::fresh<F>(vectors_); }
  M fresh_mask() { return X86::fresh<M>(masks_); }
  bool is_mask_file(const Registers& file) const { return &file == &masks_; }

  // A failed emission goes on with some register: its code is thrown away.
  static x86::Zmm zmm(const F& f) { return x86::zmm(number(f.reg(), 0)); }
  static x86::Ymm ymm(const F& f) { return x86::ymm(number(f.reg(), 0)); }
  static x86::Xmm xmm(const F& f) { return x86::xmm(number(f.reg(), 0)); }
  static x86::KReg k(const M& m) { return x86::k(number(m.reg(), 1)); }

  F in_register(const F& f, bool wide = false) {
    if (f.reg() >= 0) return f;
    F r = fresh();
    if (f.constant() < 0) {
      a.vmovaps(zmm(r), in_slot(f.slot()));
    } else if (wide) {
      a.vpbroadcastq(zmm(r), x86::qword_ptr(a.pool(), 4 * f.constant()));
    } else {
      a.vbroadcastss(zmm(r), x86::dword_ptr(a.pool(), 4 * f.constant()));
    }
    return r;
  }
  M in_register(const M& m) {
    if (m.reg() >= 0) return m;
    M r = fresh_mask();
    a.kmovw(k(r), in_slot(m.slot()));
    return r;
  }

  // Out of a register into a slot, and back into that register.
  bool move_out(F& f) {
    const int slot = slots_.take();
    if (slot < 0) return false;
    a.vmovaps(in_slot(slot), zmm(f));
    f = F::in_slot(vectors_, slot);
    return true;
  }
  bool move_out(M& m) {
    const int slot = slots_.take();
    if (slot < 0) return false;
    a.kmovw(in_slot(slot), k(m));
    m = M::in_slot(masks_, slot);
    return true;
  }
  void move_in(F& f, int reg) {
    vectors_.take(reg);
    F r = F::in_register(vectors_, reg);
    a.vmovaps(zmm(r), in_slot(f.slot()));
    f = std::move(r);
  }
  void move_in(M& m, int reg) {
    masks_.take(reg);
    M r = M::in_register(masks_, reg);
    a.kmovw(k(r), in_slot(m.slot()));
    m = std::move(r);
  }

  // All lanes, into memory and back into the same register.
  void keep(const Address& to, const F& f) { a.vmovaps(to, zmm(f)); }
  void keep(const Address& to, const M& m) { a.kmovw(to, k(m)); }
  void recall(F& f, const Address& from) { a.vmovaps(zmm(f), from); }
  void recall(M& m, const Address& from) { a.kmovw(k(m), from); }

  // float32 and int32: the contract of exec/math ------------------------------------------------

  F f32(float c) { return constant(std::bit_cast<std::uint32_t>(c)); }
  I i32(std::int32_t c) { return constant(static_cast<std::uint32_t>(c)); }
  // One a register pair's half: with `wide` primitives only.
  F i64(std::int64_t c) {
    return constant(static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32));
  }

  // clang-format off
  F add(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vaddps(d, s, t); }); }
  F mul(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vmulps(d, s, t); }); }
  F sub(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vsubps(d, s, t); }); }
  F div(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vdivps(d, s, t); }); }
  F min(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vminps(d, s, t); }); }
  F max(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vmaxps(d, s, t); }); }
  F sqrt(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vsqrtps(d, s); }); }
  F round_even(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vrndscaleps(d, s, 8); }); }
  F floor(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vrndscaleps(d, s, 9); }); }
  F ceil(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vrndscaleps(d, s, 10); }); }
  F trunc(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vrndscaleps(d, s, 11); }); }
  I to_int(const F& x) { return unary(x, [&](auto d, const auto& s) { a.vcvtps2dq(d, s); }); }
  F to_float(const I& x) { return unary(x, [&](auto d, const auto& s) { a.vcvtdq2ps(d, s); }); }
  F scale2(const F& x, const F& n) { return binary(x, n, [&](auto d, auto s, const auto& t) { a.vscalefps(d, s, t); }); }
  static I bits(const F& x) { return x; }
  static F from_bits(const I& x) { return x; }
  I iadd(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpaddd(d, s, t); }); }
  I isub(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsubd(d, s, t); }); }
  I imul(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmulld(d, s, t); }); }
  I imin(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpminsd(d, s, t); }); }
  I imax(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmaxsd(d, s, t); }); }
  I iand(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpandd(d, s, t); }); }
  I ior(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpord(d, s, t); }); }
  I ixor(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpxord(d, s, t); }); }
  // By lanes; a number that is not in [0, 31] shifts everything out.
  I ishlv(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsllvd(d, s, t); }); }
  I isarv(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsravd(d, s, t); }); }
  template <int n> I ishl(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpslld(d, s, n); }); }
  template <int n> I ishr(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpsrld(d, s, n); }); }
  template <int n> I isar(const I& x) { return in_place(x, [&](auto d, auto s) { a.vpsrad(d, s, n); }); }
  M lt(const F& x, const F& y) { return compare(x, y, 17); }  // ordered, quiet predicates
  M le(const F& x, const F& y) { return compare(x, y, 18); }
  M not_lt(const F& x, const F& y) { return compare(x, y, 21); }
  M eq(const F& x, const F& y) { return compare(x, y, 0); }
  M unordered(const F& x, const F& y) { return compare(x, y, 3); }
  M ilt(const I& x, const I& y) { return test(x, y, 1); }
  M ieq(const I& x, const I& y) { return test(x, y, 0); }
  M mand(const M& x, const M& y) { return masks(x, y, [&](auto d, auto s, auto t) { a.kandw(d, s, t); }); }
  M mor(const M& x, const M& y) { return masks(x, y, [&](auto d, auto s, auto t) { a.korw(d, s, t); }); }
  M mxor(const M& x, const M& y) { return masks(x, y, [&](auto d, auto s, auto t) { a.kxorw(d, s, t); }); }
  M mnot(const M& x) { return masks(x, x, [&](auto d, auto s, auto) { a.knotw(d, s); }); }
  // clang-format on

  F scale2_of(const M& some, const F& x, const F& n) {
    const M c = in_register(some);
    return binary(x, n, [&](auto d, auto s, const auto& t) { a.k(k(c)).z().vscalefps(d, s, t); });
  }
  F select(const M& m, const F& yes, const F& no) {
    const M c = in_register(m);
    const F n = in_register(no);
    F r = fresh();
    source(yes, [&](const auto& y) { a.k(k(c)).vblendmps(zmm(r), zmm(n), y); });
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

  // x where it is NaN, else r, which is a result that nobody else has.
  F where_nan(const F& x, F r) {
    const F s = in_register(x);
    a.k(k(unordered(s, s))).vmovaps(zmm(r), zmm(s));
    return r;
  }

  template <class Fn>
  F when_any(const M& m, const F& current, Fn fn) {
    const M c = in_register(m);
    F r = copied(current);
    const auto skip = a.newLabel();
    a.kortestw(k(c), k(c));
    a.jz(skip);
    same_state([&] {
      const F other = in_register(fn());
      a.k(k(c)).vmovaps(zmm(r), zmm(other));
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
  static constexpr bool kInterleaves = false;
  static constexpr bool kConverts64 = true;  // int64 from and to float32
  F add64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpaddq(d, s, t); }, true); }
  F sub64(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsubq(d, s, t); }, true); }
  F mul64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmullq(d, s, t); }, true); }
  F min64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpminsq(d, s, t); }, true); }
  F max64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpmaxsq(d, s, t); }, true); }
  F and64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpandq(d, s, t); }, true); }
  F or64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vporq(d, s, t); }, true); }
  F xor64(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpxorq(d, s, t); }, true); }
  F shl64(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsllvq(d, s, t); }, true); }
  F sar64(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsravq(d, s, t); }, true); }
  F addpd(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vaddpd(d, s, t); }, true); }
  F subpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vsubpd(d, s, t); }, true); }
  F divpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vdivpd(d, s, t); }, true); }
  F maxpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vmaxpd(d, s, t); }, true); }
  F minpd(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vminpd(d, s, t); }, true); }
  F sqrtpd(const F& x) { return in_place(x, [&](auto d, auto s) { a.vsqrtpd(d, s); }, true); }
  F round_evenpd(const F& x) { return in_place(x, [&](auto d, auto s) { a.vrndscalepd(d, s, 8); }, true); }
  F floorpd(const F& x) { return in_place(x, [&](auto d, auto s) { a.vrndscalepd(d, s, 9); }, true); }
  F ceilpd(const F& x) { return in_place(x, [&](auto d, auto s) { a.vrndscalepd(d, s, 10); }, true); }
  F truncpd(const F& x) { return in_place(x, [&](auto d, auto s) { a.vrndscalepd(d, s, 11); }, true); }
  M lt_pd(const Pair& x, const Pair& y) { return compare64(x, y, 17); }
  M le_pd(const Pair& x, const Pair& y) { return compare64(x, y, 18); }
  M eq_pd(const Pair& x, const Pair& y) { return compare64(x, y, 0); }
  M unordered_pd(const Pair& x, const Pair& y) { return compare64(x, y, 3); }
  F mulpd(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vmulpd(d, s, t); }, true); }
  // clang-format on

  M lt64(const Pair& x, const Pair& y) { return test64(x, y, 1); }
  M eq64(const Pair& x, const Pair& y) { return test64(x, y, 0); }

  Pair select64(const M& m, const Pair& yes, const Pair& no) {
    const M c = in_register(m);
    M upper = fresh_mask();
    a.kshiftrw(k(upper), k(c), 8);
    return {blend64(c, yes.lo, no.lo), blend64(upper, yes.hi, no.hi)};
  }

  Pair widen(const I& x) {
    return halves(x, [&](auto d, const auto& s) { a.vpmovsxdq(d, s); });
  }
  I narrow(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vpmovqd(d, s); });
  }
  F to_f32(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vcvtqq2ps(d, s); });
  }
  // Towards zero; the lowest int64 if out of range.
  Pair to_i64(const F& x) {
    return halves(x, [&](auto d, const auto& s) { a.vcvttps2qq(d, s); });
  }
  // Towards zero; the lowest int32 if out of range.
  I to_i32(const F& x) {
    return unary(x, [&](auto d, const auto& s) { a.vcvttps2dq(d, s); });
  }
  // x / y towards zero, exactly; the lowest int32 where that is no int32.
  I idiv(const I& x, const I& y) {
    const auto doubles = [&](auto d, const auto& s) { a.vcvtdq2pd(d, s); };
    const Pair n = halves(x, doubles);
    const Pair d = halves(y, doubles);
    a.vdivpd(zmm(n.lo), zmm(n.lo), zmm(d.lo));
    a.vdivpd(zmm(n.hi), zmm(n.hi), zmm(d.hi));
    return joined(n, [&](auto to, auto s) { a.vcvttpd2dq(to, s); });
  }
  Pair to_double(const F& x) {
    return halves(x, [&](auto d, const auto& s) { a.vcvtps2pd(d, s); });
  }
  F from_double(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vcvtpd2ps(d, s); });
  }
  Pair i32_to_double(const I& x) {
    return halves(x, [&](auto d, const auto& s) { a.vcvtdq2pd(d, s); });
  }
  I double_to_i32(const Pair& x) {
    return joined(x, [&](auto d, auto s) { a.vcvttpd2dq(d, s); });
  }
  Pair i64_to_double(const Pair& x) {
    const auto half = [&](auto d, auto s) { a.vcvtqq2pd(d, s); };
    return {in_place(x.lo, half, true), in_place(x.hi, half, true)};
  }
  Pair double_to_i64(const Pair& x) {
    const auto half = [&](auto d, auto s) { a.vcvttpd2qq(d, s); };
    return {in_place(x.lo, half, true), in_place(x.hi, half, true)};
  }
  // A double that is not NaN or infinite, or 0.
  F finite_or_zero(const F& x) {
    const F s = in_register(x, true);
    const M odd = fresh_mask();
    F r = fresh();
    a.vfpclasspd(k(odd), zmm(s), 0x99);  // NaN of both kinds, infinity of both signs
    a.knotw(k(odd), k(odd));
    a.k(k(odd)).z().vmovapd(zmm(r), zmm(s));
    return r;
  }
  F over_count(const F& x) {
    F r = fresh();
    a.vdivpd(zmm(r), zmm(in_register(x)), field(offsetof(Frame, count))._1to8());
    return r;
  }
  // x - mean times the count, exactly.
  F left_by_count(const F& x, const F& mean) {
    F r = copied(x);
    a.vfnmadd231pd(zmm(r), zmm(mean), field(offsetof(Frame, count))._1to8());
    return r;
  }

  // Registers that are written again and again: of accumulators.
  F own(const F& x, bool wide) { return x.reg() < 0 ? in_register(x, wide) : copied(x); }
  void set(F& acc, const F& x) { a.vmovaps(zmm(acc), zmm(in_register(x))); }
  void set(M& acc, const M& x) { a.kmovw(k(acc), k(in_register(x))); }
  // acc where x is NaN.
  void max_to(F& acc, const F& x) { a.vmaxps(zmm(acc), zmm(in_register(x)), zmm(acc)); }
  void min_to(F& acc, const F& x) { a.vminps(zmm(acc), zmm(in_register(x)), zmm(acc)); }
  // NaN where either is.
  void extremum_to(F& acc, const F& x, bool largest) {
    const F s = in_register(x);
    largest ? max_to(acc, s) : min_to(acc, s);
    a.k(k(unordered(s, s))).vmovaps(zmm(acc), zmm(s));
  }
  void add_to(F& acc, const F& x) { a.vaddps(zmm(acc), zmm(acc), zmm(in_register(x))); }
  // acc += x * y
  void add_product_to(F& acc, const F& x, const F& y) {
    const F s = in_register(x);
    source(y, [&](const auto& t) { a.vfmadd231ps(zmm(acc), zmm(s), t); });
  }
  void add_double_to(F& acc, const F& x) { a.vaddpd(zmm(acc), zmm(acc), zmm(in_register(x))); }

  // Across lanes --------------------------------------------------------------------------------

  // Lane i becomes lane i + n, of 16, or of 8.
  F turned(const F& x, int n) {
    return in_place(x, [&](auto d, auto s) { a.valignd(d, s, s, n); });
  }
  F turned64(const F& x, int n) {
    return in_place(x, [&](auto d, auto s) { a.valignq(d, s, s, n); });
  }
  F first64(const F& x) {
    return in_place(x, [&](auto d, auto s) { a.vpbroadcastq(d, s.xmm()); });
  }
  // All lanes true if one is.
  M any(const M& m) {
    const M c = in_register(m);
    M r = fresh_mask();
    a.kmovw(kTemp.r32(), k(c));
    a.neg(kTemp.r32());
    a.sbb(kTemp.r32(), kTemp.r32());
    a.kmovw(k(r), kTemp.r32());
    return r;
  }

  void fail_if_any(const M& m, Status status) {
    const M c = in_register(m);
    a.kortestw(k(c), k(c));
    a.jnz(failure(status));
  }

  // The rest ------------------------------------------------------------------------------------

  void mask_rest() {  // kTemp < 16
    a.mov(kTemp2.r32(), -1);
    a.bzhi(kTemp2.r32(), kTemp2.r32(), kTemp.r32());
    a.kmovw(x86::k7, kTemp2.r32());
  }
  void mask_some() {
    const auto full = a.newLabel();
    a.mov(kTemp2.r32(), -1);
    a.cmp(kTemp, kLanes);
    a.jge(full);
    a.bzhi(kTemp2.r32(), kTemp2.r32(), kTemp.r32());
    a.bind(full);
    a.kmovw(x86::k7, kTemp2.r32());
  }
  // x, and where a lane is not of the operands, `other`.
  F or_else(const F& x, const F& other) {
    if (!masked) return x;
    const F n = in_register(other);
    F r = fresh();
    source(x, [&](const auto& y) { a.k(x86::k7).vblendmps(zmm(r), zmm(n), y); });
    return r;
  }
  Pair or_else(const Pair& x, const F& other) {
    if (!masked) return x;
    M lower = fresh_mask();
    a.kmovw(k(lower), x86::k7);
    return select64(lower, x, {other, other});
  }
  M or_else(const M& m, bool other) {
    if (!masked) return m;
    const M c = in_register(m);
    M r = fresh_mask();
    if (other) {
      a.knotw(k(r), x86::k7);
      a.korw(k(r), k(r), k(c));
    } else {
      a.kandw(k(r), x86::k7, k(c));
    }
    return r;
  }

  // Memory --------------------------------------------------------------------------------------

  F load32(const Address& from) {
    F r = fresh();
    masked ? a.k(x86::k7).z().vmovups(zmm(r), from) : a.vmovups(zmm(r), from);
    return r;
  }
  F load_bf16(const Address& from) {
    F r = fresh();
    masked ? a.k(x86::k7).z().vpmovzxwd(zmm(r), from) : a.vpmovzxwd(zmm(r), from);
    a.vpslld(zmm(r), zmm(r), 16);
    return r;
  }
  F load_f16(const Address& from) {
    F r = fresh();
    masked ? a.k(x86::k7).z().vcvtph2ps(zmm(r), from) : a.vcvtph2ps(zmm(r), from);
    return r;
  }
  // int8, uint8, int16.
  I load_small(const Address& from, bytecode::Storage storage) {
    F r = fresh();
    if (masked) a.k(x86::k7).z();
    if (storage == bytecode::Storage::kI8) {
      a.vpmovsxbd(zmm(r), from);
    } else if (storage == bytecode::Storage::kU8) {
      a.vpmovzxbd(zmm(r), from);
    } else {
      a.vpmovsxwd(zmm(r), from);
    }
    return r;
  }
  Pair load64(const Address& from) {
    Pair r{fresh(), fresh()};
    const auto second = from.cloneAdjusted(64);
    if (masked) {
      M upper = fresh_mask();
      a.kshiftrw(k(upper), x86::k7, 8);
      a.k(x86::k7).z().vmovupd(zmm(r.lo), from);
      a.k(k(upper)).z().vmovupd(zmm(r.hi), second);
    } else {
      a.vmovupd(zmm(r.lo), from);
      a.vmovupd(zmm(r.hi), second);
    }
    return r;
  }
  M load_b8(const Address& from) {
    M r = fresh_mask();
    const F t = fresh();
    masked ? a.k(x86::k7).z().vmovdqu8(xmm(t), from) : a.vmovdqu8(xmm(t), from);
    a.vptestmb(k(r), xmm(t), xmm(t));
    return r;
  }
  F splat32(Address from) {
    F r = fresh();
    from.setSize(4);
    a.vbroadcastss(zmm(r), from);
    return r;
  }
  F splat_bf16(Address from) {
    F r = fresh();
    from.setSize(2);
    a.movzx(kTemp.r32(), from);
    a.shl(kTemp.r32(), 16);
    a.vpbroadcastd(zmm(r), kTemp.r32());
    return r;
  }
  F splat_f16(Address from) {
    F r = fresh();
    from.setSize(2);
    a.vpbroadcastw(ymm(r), from);
    a.vcvtph2ps(zmm(r), ymm(r));
    return r;
  }
  I splat_small(const Address& from, bytecode::Storage storage) {
    F r = fresh();
    general_small(from, storage);
    a.vpbroadcastd(zmm(r), kTemp.r32());
    return r;
  }
  Pair splat64(Address from) {
    F r = fresh();
    from.setSize(8);
    a.vpbroadcastq(zmm(r), from);
    return {r, r};
  }
  // All lanes the integer in kTemp.
  Pair splat64() {
    F r = fresh();
    a.vpbroadcastq(zmm(r), kTemp);
    return {r, r};
  }
  F splat_f64_as_f32(Address from) {
    F r = fresh();
    from.setSize(8);
    a.vxorps(xmm(r), xmm(r), xmm(r));
    a.vcvtsd2ss(xmm(r), xmm(r), from);
    a.vbroadcastss(zmm(r), xmm(r));
    return r;
  }
  M splat_b8(Address from) {
    M r = fresh_mask();
    from.setSize(1);
    a.movzx(kTemp.r32(), from);
    a.neg(kTemp.r32());
    a.sbb(kTemp.r32(), kTemp.r32());
    a.kmovw(k(r), kTemp.r32());
    return r;
  }
  M all_lanes(bool value) {
    M r = fresh_mask();
    value ? a.kxnorw(k(r), k(r), k(r)) : a.kxorw(k(r), k(r), k(r));
    return r;
  }

  void store32(const Address& to, const F& x) {
    const F s = in_register(x);
    if (masked) {
      a.k(x86::k7).vmovups(to, zmm(s));
    } else {
      streaming ? a.vmovntps(to, zmm(s)) : a.vmovups(to, zmm(s));
    }
  }
  // The low halves of the lanes.
  void store16(const Address& to, const I& x) {
    const F s = in_register(x);
    masked ? a.k(x86::k7).vpmovdw(to, zmm(s)) : a.vpmovdw(to, zmm(s));
  }
  // The processor's own rounding to bfloat16, which takes denormals for zero: `slowly` makes the
  // bits of those.
  static constexpr bool kRoundsBf16 = true;
  bool rounds_bf16() const { return rounds_bf16_; }
  // The nearest bfloat16 as a float, ties to even; NaN becomes quiet, and loses its low bits as the
  // processor's own rounding has it.
  F rounded_bf16(const F& x) {
    const F s = in_register(x);
    const M odd = fresh_mask();
    F r = fresh();
    source(i32(1 << 16), [&](const auto& bit) { a.vptestmd(k(odd), zmm(s), bit); });
    source(i32(0x7fff), [&](const auto& half) { a.vpaddd(zmm(r), zmm(s), half); });
    source(i32(0x8000), [&](const auto& half) { a.k(k(odd)).vpaddd(zmm(r), zmm(s), half); });
    constexpr std::int32_t kQuietNan = 0x22;  // of NaN of both kinds; all else stays
    source(i32(kQuietNan), [&](const auto& t) { a.vfixupimmps(zmm(r), zmm(s), t, 0); });
    source(i32(-1 << 16), [&](const auto& upper) { a.vpandd(zmm(r), zmm(r), upper); });
    return r;
  }
  // The processor takes denormals for 0: `slowly` does these, unless all lanes are 0, normal or NaN.
  template <class Bits>
  void store_bf16(const Address& to, const F& x, bool normal, Bits slowly) {
    const F s = in_register(x);
    F r = fresh();
    a.vcvtneps2bf16(ymm(r), zmm(s));
    if (!normal) {
      {
        M denormal = fresh_mask();
        a.vfpclassps(k(denormal), zmm(s), 0x20);
        a.kortestw(k(denormal), k(denormal));
      }
      const auto usual = a.newLabel();
      a.jz(usual);
      same_state([&] { a.vpmovdw(ymm(r), zmm(in_register(slowly()))); });
      a.bind(usual);
    }
    if (masked) {
      a.k(x86::k7).vmovdqu16(to, ymm(r));
    } else {
      streaming ? a.vmovntdq(to, ymm(r)) : a.vmovdqu16(to, ymm(r));
    }
  }
  // The low bytes of the lanes.
  void store8(const Address& to, const I& x) {
    const F s = in_register(x);
    masked ? a.k(x86::k7).vpmovdb(to, zmm(s)) : a.vpmovdb(to, zmm(s));
  }
  // Bits of float16 in the lower half of a register, and floats of them.
  I to_f16(const F& x) {
    return in_place(x, [&](auto d, auto s) { a.vcvtps2ph(d.ymm(), s, 0); });
  }
  F from_f16(const I& x) {
    return in_place(x, [&](auto d, auto s) { a.vcvtph2ps(d, s.ymm()); });
  }
  void store_f16(const Address& to, const I& bits) {
    masked ? a.k(x86::k7).vmovdqu16(to, ymm(bits)) : a.vmovdqu16(to, ymm(bits));
  }
  void store64(const Address& to, const Pair& x) {
    const F lo = in_register(x.lo, true);
    const F hi = in_register(x.hi, true);
    const auto second = to.cloneAdjusted(64);
    if (masked) {
      M upper = fresh_mask();
      a.kshiftrw(k(upper), x86::k7, 8);
      a.k(x86::k7).vmovupd(to, zmm(lo));
      a.k(k(upper)).vmovupd(second, zmm(hi));
    } else if (streaming) {
      a.vmovntpd(to, zmm(lo));
      a.vmovntpd(second, zmm(hi));
    } else {
      a.vmovupd(to, zmm(lo));
      a.vmovupd(second, zmm(hi));
    }
  }
  void store_b8(const Address& to, const M& m) {
    const F s = bytes_of(m);
    masked ? a.k(x86::k7).vmovdqu8(to, xmm(s)) : a.vmovdqu8(to, xmm(s));
  }
  // The first lane.
  void put32(const Address& to, const F& x) { a.vmovss(to, xmm(in_register(x))); }
  void put16(const Address& to, const I& x) { a.vpextrw(to, xmm(in_register(x)), 0); }
  void put8(const Address& to, const I& x) { a.vpextrb(to, xmm(in_register(x)), 0); }
  void put64(const Address& to, const Pair& x) { a.vmovq(to, xmm(in_register(x.lo, true))); }
  void put_b8(const Address& to, const M& m) { a.vpextrb(to, xmm(bytes_of(m)), 0); }

  // Calls ---------------------------------------------------------------------------------------

  // kTemp: the first lane.
  void to_general(const Pair& x) { a.vmovq(kTemp, xmm(in_register(x.lo, true))); }
  // Operands and results of functions that are called.
  void argue(int i, const F& x) { a.vmovups(argument(i), zmm(in_register(x))); }
  void argue(int i, const Pair& x) {
    a.vmovups(argument(i), zmm(in_register(x.lo, true)));
    a.vmovups(argument(i).cloneAdjusted(64), zmm(in_register(x.hi, true)));
  }
  void argue(int i, const M& m) { a.vmovdqu8(argument(i), xmm(bytes_of(m))); }
  F result32() {
    F r = fresh();
    a.vmovups(zmm(r), result());
    return r;
  }
  Pair result64() {
    Pair r{fresh(), fresh()};
    a.vmovups(zmm(r.lo), result());
    a.vmovups(zmm(r.hi), result().cloneAdjusted(64));
    return r;
  }
  M result_b8() {
    M r = fresh_mask();
    const F t = fresh();
    a.vmovdqu8(xmm(t), result());
    a.vptestmb(k(r), xmm(t), xmm(t));
    return r;
  }
  // Of elements of one or two bytes, as many as fit.
  I add_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.vpaddb(zmm(r), zmm(s), zmm(t)) : a.vpaddw(zmm(r), zmm(s), zmm(t));
    return r;
  }
  I sub_narrow(const I& x, const I& y, int bytes) {
    const I s = in_register(x), t = in_register(y), r = fresh();
    bytes == 1 ? a.vpsubb(zmm(r), zmm(s), zmm(t)) : a.vpsubw(zmm(r), zmm(s), zmm(t));
    return r;
  }
  // 1 for each byte that is not 0.
  I bools_of_bytes(const I& x) {
    const I s = in_register(x), one = in_register(i32(0x01010101)), r = fresh();
    a.vpminub(zmm(r), zmm(s), zmm(one));
    return r;
  }
  static constexpr bool kGathers = false;
  // The elements of a gathered operand at these indices, in place of a result.
  void gather(const Pair& indices, int mem, bool over_x, bool contiguous, int bytes, int copy) {
    argue(0, indices);
    if (masked) {
      a.kmovw(kTemp2.r32(), x86::k7);
      a.popcnt(kTemp2.r32(), kTemp2.r32());
      gather_lanes(mem, over_x, bytes, copy);
      return;
    }
    const F joined = fresh(), part = fresh();
    const int chunk = std::min(kLanes * bytes, 64);
    const auto done = [&](int number, int place) {
      const auto to = result().cloneAdjusted(place + 16 - chunk);
      if (chunk == 16) return static_cast<void>(a.vmovups(to, xmm(joined)));
      if (number > 0) a.vinsertf32x4(zmm(joined), zmm(joined), xmm(part), number);
      if (16 * (number + 1) == chunk) a.vmovups(to, zmm(joined));
    };
    gather_vector(mem, over_x, contiguous, bytes, copy, chunk, xmm(joined), xmm(part), done);
  }
  Pair iota_lanes(int i) {
    Pair r{fresh(), fresh()};
    const auto from = field(offsetof(Frame, iota_lanes) + sizeof(std::int64_t) * kMaxLanes * at(i));
    a.vmovdqu64(zmm(r.lo), from);
    a.vmovdqu64(zmm(r.hi), from.cloneAdjusted(64));
    return r;
  }

  // Around calls: the registers that were in use at one of them.
  void save_registers() {
    each_live(live_vectors_, offsetof(Frame, saved), 64,
              [&](std::uint32_t i, auto at) { a.vmovups(at, x86::zmm(i)); });
    each_live(live_masks_ | 0x80, offsetof(Frame, saved_masks), 8,
              [&](std::uint32_t i, auto at) { a.kmovq(at, x86::k(i)); });
  }
  void load_registers() {
    each_live(live_vectors_, offsetof(Frame, saved), 64,
              [&](std::uint32_t i, auto at) { a.vmovups(x86::zmm(i), at); });
    each_live(live_masks_ | 0x80, offsetof(Frame, saved_masks), 8,
              [&](std::uint32_t i, auto at) { a.kmovq(x86::k(i), at); });
  }
  void call(int function) {
    live_vectors_ |= vectors_.used();
    live_masks_ |= masks_.used();
    X86::call(function);
  }

  // Behind the code: the constants.
  void emit_constants() {
    a.align(asmjit::AlignMode::kData, 8);
    a.bind_pool();
    if (!constants_.empty()) a.embed(constants_.data(), constants_.bytes());
  }

 private:
  F constant(std::uint32_t bits) { return F::of_constant(constants_.of(bits)); }
  F constant(std::uint32_t low, std::uint32_t high) {
    return F::of_constant(constants_.of(low, high));
  }

  // What an instruction can read as its last operand.
  template <class Emit>
  void source(const F& f, Emit emit, bool wide = false) {
    if (f.constant() >= 0) {
      const int offset = 4 * f.constant();
      wide ? emit(x86::qword_ptr(a.pool(), offset)._1to8())
           : emit(x86::dword_ptr(a.pool(), offset)._1to16());
    } else if (f.reg() < 0 && f.slot() >= 0) {
      emit(in_slot(f.slot()));
    } else {
      emit(zmm(f));
    }
  }
  template <class Emit>
  F unary(const F& x, Emit emit) {
    F r = fresh();
    source(x, [&](const auto& s) { emit(zmm(r), s); });
    return r;
  }
  // Of instructions that read registers only.
  template <class Emit>
  F in_place(const F& x, Emit emit, bool wide = false) {
    const F s = in_register(x, wide);
    F r = fresh();
    emit(zmm(r), zmm(s));
    return r;
  }
  template <class Emit>
  F binary(const F& x, const F& y, Emit emit, bool wide = false) {
    const F s = in_register(x, wide);
    F r = fresh();
    source(y, [&](const auto& t) { emit(zmm(r), zmm(s), t); }, wide);
    return r;
  }
  template <class Emit>
  F commute(const F& x, const F& y, Emit emit, bool wide = false) {
    return x.reg() < 0 ? binary(y, x, emit, wide) : binary(x, y, emit, wide);
  }
  M compare(const F& x, const F& y, int predicate) {
    const F s = in_register(x);
    M r = fresh_mask();
    source(y, [&](const auto& t) { a.vcmpps(k(r), zmm(s), t, predicate); });
    return r;
  }
  M test(const I& x, const I& y, int predicate) {
    const F s = in_register(x);
    M r = fresh_mask();
    source(y, [&](const auto& t) { a.vpcmpd(k(r), zmm(s), t, predicate); });
    return r;
  }
  M compare64(const Pair& x, const Pair& y, int predicate) {
    const F lo = in_register(x.lo, true);
    const F hi = in_register(x.hi, true);
    M r = fresh_mask();
    M upper = fresh_mask();
    source(y.lo, [&](const auto& t) { a.vcmppd(k(r), zmm(lo), t, predicate); }, true);
    source(y.hi, [&](const auto& t) { a.vcmppd(k(upper), zmm(hi), t, predicate); }, true);
    a.kunpckbw(k(r), k(upper), k(r));
    return r;
  }
  M test64(const Pair& x, const Pair& y, int predicate) {
    const F lo = in_register(x.lo, true);
    const F hi = in_register(x.hi, true);
    M r = fresh_mask();
    M upper = fresh_mask();
    source(y.lo, [&](const auto& t) { a.vpcmpq(k(r), zmm(lo), t, predicate); }, true);
    source(y.hi, [&](const auto& t) { a.vpcmpq(k(upper), zmm(hi), t, predicate); }, true);
    a.kunpckbw(k(r), k(upper), k(r));
    return r;
  }
  template <class Emit>
  M masks(const M& x, const M& y, Emit emit) {
    const M s = in_register(x);
    const M t = in_register(y);
    M r = fresh_mask();
    emit(k(r), k(s), k(t));
    return r;
  }
  F blend64(const M& m, const F& yes, const F& no) {
    const F n = in_register(no, true);
    F r = fresh();
    source(yes, [&](const auto& y) { a.k(k(m)).vblendmpd(zmm(r), zmm(n), y); }, true);
    return r;
  }
  // Lanes of 32 bits as lanes of 64, half by half.
  template <class Emit>
  Pair halves(const F& x, Emit emit) {
    const F s = in_register(x);
    Pair r{fresh(), fresh()};
    a.vextractf64x4(ymm(r.hi), zmm(s), 1);
    emit(zmm(r.hi), ymm(r.hi));
    emit(zmm(r.lo), ymm(s));
    return r;
  }
  template <class Emit>
  F joined(const Pair& x, Emit emit) {
    const F lo = in_register(x.lo, true);
    const F hi = in_register(x.hi, true);
    F r = fresh();
    const F upper = fresh();
    emit(ymm(r), zmm(lo));
    emit(ymm(upper), zmm(hi));
    a.vinsertf64x4(zmm(r), zmm(r), ymm(upper), 1);
    return r;
  }
  F bytes_of(const M& m) {
    const M c = in_register(m);
    F r = fresh();
    a.vpmovm2b(xmm(r), k(c));
    a.vpabsb(xmm(r), xmm(r));
    return r;
  }
  F copied(const F& x) {
    if (x.reg() < 0) return in_register(x);
    F r = fresh();
    a.vmovaps(zmm(r), zmm(x));
    return r;
  }
  template <class E213, class E132, class E231>
  F fused(F x, F y, F z, E213 e213, E132 e132, E231 e231) {
    if (x.reg() < 0 || (y.movable() && !x.movable())) std::swap(x, y);
    if (z.movable() && !x.movable()) {
      x = in_register(x);
      source(y, [&](const auto& t) { e231(zmm(z), zmm(x), t); });
      return z;
    }
    if (!x.movable() && y.reg() < 0) {  // a load instead of a copy
      y = in_register(y);
      std::swap(x, y);
    }
    F r = x.movable() ? std::move(x) : copied(x);
    if (y.reg() < 0) {
      const F addend = in_register(z);
      source(y, [&](const auto& t) { e132(zmm(r), zmm(addend), t); });
    } else {
      source(z, [&](const auto& t) { e213(zmm(r), zmm(y), t); });
    }
    return r;
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

  Registers vectors_, masks_;
  bool rounds_bf16_ = asmjit::CpuInfo::host().features().x86().hasAVX512_BF16();
  Constants<std::uint32_t> constants_;
  std::uint32_t live_vectors_ = 0, live_masks_ = 0;
};

}  // namespace tilevm::exec::native
