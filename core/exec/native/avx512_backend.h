// The emitting backend of exec/math: every primitive appends AVX-512 instructions. A handle owns a
// vector register for as long as copies of it live, so registers need no separate allocation pass.
#pragma once

#include <asmjit/x86.h>

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace tilevm::exec::native {

namespace x86 = asmjit::x86;

class Avx512 {
 public:
  explicit Avx512(x86::Assembler& assembler) : a(assembler), pool_(assembler.newLabel()) {}

  // A handle on a zmm register or on a constant in memory; empty if registers ran out.
  template <std::uint32_t Avx512::*Free, std::uint8_t (Avx512::*Refs)[32]>
  class Handle {
   public:
    Handle() = default;
    Handle(Avx512* owner, int reg, int constant = -1)
        : owner_(owner), reg_(reg), constant_(constant) {
      if (reg_ >= 0) (owner_->*Refs)[reg_] = 1;
    }
    Handle(const Handle& o) : owner_(o.owner_), reg_(o.reg_), constant_(o.constant_) {
      if (reg_ >= 0) ++(owner_->*Refs)[reg_];
    }
    Handle(Handle&& o) noexcept
        : owner_(o.owner_),
          reg_(std::exchange(o.reg_, -1)),
          constant_(std::exchange(o.constant_, -1)) {}
    Handle& operator=(Handle o) noexcept {
      std::swap(owner_, o.owner_);
      std::swap(reg_, o.reg_);
      std::swap(constant_, o.constant_);
      return *this;
    }
    ~Handle() {
      if (reg_ >= 0 && --(owner_->*Refs)[reg_] == 0) owner_->*Free |= 1U << reg_;
    }
    int reg() const { return reg_; }
    int constant() const { return constant_; }

   private:
    Avx512* owner_ = nullptr;
    int reg_ = -1;
    int constant_ = -1;
  };

 private:
  std::uint32_t free_zmm_ = 0xffffffffU;
  std::uint8_t zmm_refs_[32] = {};
  std::uint32_t free_k_ = 0x3e;  // k1-k5; k6 is for passing use, k7 holds the tail's mask
  std::uint8_t k_refs_[32] = {};

 public:
  using F = Handle<&Avx512::free_zmm_, &Avx512::zmm_refs_>;
  using I = F;
  using M = Handle<&Avx512::free_k_, &Avx512::k_refs_>;

  x86::Assembler& a;
  bool failed = false;

  F fresh() {
    if (free_zmm_ == 0) {
      failed = true;
      return {};
    }
    const int reg = std::countr_zero(free_zmm_);
    free_zmm_ &= ~(1U << reg);
    return F(this, reg);
  }
  M fresh_mask() {
    if (free_k_ == 0) {
      failed = true;
      return {};
    }
    const int reg = std::countr_zero(free_k_);
    free_k_ &= ~(1U << reg);
    return M(this, reg);
  }

  // Registers. A failed emission goes on with register 0: its code is thrown away.
  static x86::Zmm zmm(const F& f) {
    return x86::zmm(static_cast<std::uint32_t>(f.reg() < 0 ? 0 : f.reg()));
  }
  static x86::Ymm ymm(const F& f) {
    return x86::ymm(static_cast<std::uint32_t>(f.reg() < 0 ? 0 : f.reg()));
  }
  static x86::Xmm xmm(const F& f) {
    return x86::xmm(static_cast<std::uint32_t>(f.reg() < 0 ? 0 : f.reg()));
  }
  static x86::KReg k(const M& m) {
    return x86::k(static_cast<std::uint32_t>(m.reg() < 0 ? 1 : m.reg()));
  }

  F in_register(const F& f) {
    if (f.constant() < 0) return f;
    F r = fresh();
    a.vbroadcastss(zmm(r), x86::dword_ptr(pool_, 4 * f.constant()));
    return r;
  }

  F f32(float c) { return constant(std::bit_cast<std::uint32_t>(c)); }
  I i32(std::int32_t c) { return constant(static_cast<std::uint32_t>(c)); }

  // clang-format off
  F add(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vaddps(d, s, t); }); }
  F mul(const F& x, const F& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vmulps(d, s, t); }); }
  F sub(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vsubps(d, s, t); }); }
  F div(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vdivps(d, s, t); }); }
  F min(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vminps(d, s, t); }); }
  F max(const F& x, const F& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vmaxps(d, s, t); }); }
  F sqrt(const F& x) { return unary(x, [&](auto d, auto s) { a.vsqrtps(d, s); }); }
  F round_even(const F& x) { return unary(x, [&](auto d, auto s) { a.vrndscaleps(d, s, 8); }); }
  F floor(const F& x) { return unary(x, [&](auto d, auto s) { a.vrndscaleps(d, s, 9); }); }
  F ceil(const F& x) { return unary(x, [&](auto d, auto s) { a.vrndscaleps(d, s, 10); }); }
  F trunc(const F& x) { return unary(x, [&](auto d, auto s) { a.vrndscaleps(d, s, 11); }); }
  I to_int(const F& x) { return unary(x, [&](auto d, auto s) { a.vcvtps2dq(d, s); }); }
  F to_float(const I& x) { return unary(x, [&](auto d, auto s) { a.vcvtdq2ps(d, s); }); }
  F scale2(const F& x, const F& n) { return binary(x, n, [&](auto d, auto s, const auto& t) { a.vscalefps(d, s, t); }); }
  static I bits(const F& x) { return x; }
  static F from_bits(const I& x) { return x; }
  I iadd(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpaddd(d, s, t); }); }
  I isub(const I& x, const I& y) { return binary(x, y, [&](auto d, auto s, const auto& t) { a.vpsubd(d, s, t); }); }
  I iand(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpandd(d, s, t); }); }
  I ior(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpord(d, s, t); }); }
  I ixor(const I& x, const I& y) { return commute(x, y, [&](auto d, auto s, const auto& t) { a.vpxord(d, s, t); }); }
  template <int k> I ishl(const I& x) { return unary(x, [&](auto d, auto s) { a.vpslld(d, s, k); }); }
  template <int k> I ishr(const I& x) { return unary(x, [&](auto d, auto s) { a.vpsrld(d, s, k); }); }
  template <int k> I isar(const I& x) { return unary(x, [&](auto d, auto s) { a.vpsrad(d, s, k); }); }
  M lt(const F& x, const F& y) { return compare(x, y, 17); }   // ordered, quiet predicates
  M le(const F& x, const F& y) { return compare(x, y, 18); }
  M eq(const F& x, const F& y) { return compare(x, y, 0); }
  M unordered(const F& x, const F& y) { return compare(x, y, 3); }
  M ilt(const I& x, const I& y) { return test(x, y, [&](auto d, auto s, const auto& t) { a.vpcmpgtd(d, t, s); }, true); }
  M ieq(const I& x, const I& y) { return test(x, y, [&](auto d, auto s, const auto& t) { a.vpcmpeqd(d, s, t); }, false); }
  M mand(const M& x, const M& y) { M r = fresh_mask(); a.kandw(k(r), k(x), k(y)); return r; }
  M mor(const M& x, const M& y) { M r = fresh_mask(); a.korw(k(r), k(x), k(y)); return r; }
  M mnot(const M& x) { M r = fresh_mask(); a.knotw(k(r), k(x)); return r; }
  // clang-format on

  F select(const M& m, const F& yes, const F& no) {
    const F n = in_register(no);
    F r = fresh();
    source(yes, [&](const auto& y) { a.k(k(m)).vblendmps(zmm(r), zmm(n), y); });
    return r;
  }
  I iselect(const M& m, const I& yes, const I& no) { return select(m, yes, no); }

  F fma(const F& x, const F& y, const F& z) {
    return fused(
        x, y, z, [&](auto... o) { a.vfmadd213ps(o...); }, [&](auto... o) { a.vfmadd132ps(o...); });
  }
  F fnma(const F& x, const F& y, const F& z) {
    return fused(
        x, y, z, [&](auto... o) { a.vfnmadd213ps(o...); },
        [&](auto... o) { a.vfnmadd132ps(o...); });
  }

  // Calls out of emitted code are not emitted yet.
  template <class Fn>
  F when_any(const M&, const F& current, Fn) {
    failed = true;
    return current;
  }

  // Behind the code: the constants.
  void emit_constants() {
    a.align(asmjit::AlignMode::kData, 4);
    a.bind(pool_);
    if (!constants_.empty()) a.embed(constants_.data(), constants_.size() * 4);
  }

 private:
  F constant(std::uint32_t bits) {
    std::size_t i = 0;
    while (i < constants_.size() && constants_[i] != bits) ++i;
    if (i == constants_.size()) constants_.push_back(bits);
    return F(this, -1, static_cast<int>(i));
  }

  template <class Emit>
  void source(const F& f, Emit emit) {
    if (f.constant() >= 0) {
      emit(x86::dword_ptr(pool_, 4 * f.constant())._1to16());
    } else {
      emit(zmm(f));
    }
  }
  template <class Emit>
  F unary(const F& x, Emit emit) {
    const F s = in_register(x);
    F r = fresh();
    emit(zmm(r), zmm(s));
    return r;
  }
  template <class Emit>
  F binary(const F& x, const F& y, Emit emit) {
    const F s = in_register(x);
    F r = fresh();
    source(y, [&](const auto& t) { emit(zmm(r), zmm(s), t); });
    return r;
  }
  template <class Emit>
  F commute(const F& x, const F& y, Emit emit) {
    return x.constant() >= 0 ? binary(y, x, emit) : binary(x, y, emit);
  }
  M compare(const F& x, const F& y, int predicate) {
    const F s = in_register(x);
    M r = fresh_mask();
    source(y, [&](const auto& t) { a.vcmpps(k(r), zmm(s), t, predicate); });
    return r;
  }
  template <class Emit>
  M test(const I& x, const I& y, Emit emit, bool) {
    const F s = in_register(x);
    const F t = in_register(y);
    M r = fresh_mask();
    emit(k(r), zmm(s), zmm(t));
    return r;
  }
  template <class E213, class E132>
  F fused(const F& x, const F& y, const F& z, E213 e213, E132 e132) {
    if (x.constant() >= 0 && y.constant() < 0) return fused(y, x, z, e213, e132);
    F r = fresh();
    if (x.constant() >= 0) {
      a.vbroadcastss(zmm(r), x86::dword_ptr(pool_, 4 * x.constant()));
    } else {
      a.vmovaps(zmm(r), zmm(x));
    }
    if (y.constant() >= 0) {
      const F addend = in_register(z);
      source(y, [&](const auto& t) { e132(zmm(r), zmm(addend), t); });
    } else {
      source(z, [&](const auto& t) { e213(zmm(r), zmm(y), t); });
    }
    return r;
  }

  asmjit::Label pool_;
  std::vector<std::uint32_t> constants_;
};

}  // namespace tilevm::exec::native
