// asmjit's assembler, with a short way for the vector instructions that emitted code is mostly made
// of: their operands' types are known when this is compiled, so that nothing is looked up. Their
// bytes are those that asmjit would write. All others, and all while a logger looks on, are left to
// asmjit.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2, 2.1 (ModR/M), 2.3
// (VEX), 2.7 (EVEX), and the instructions' pages.
#pragma once

#include <asmjit/x86.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "exec/native/listing.h"

namespace tilevm::exec::native {

namespace x86 = asmjit::x86;

class Encoder : public x86::Assembler {
 public:
  using Error = asmjit::Error;
  using Zmm = x86::Zmm;
  using Ymm = x86::Ymm;
  using Xmm = x86::Xmm;
  using Mem = x86::Mem;

  explicit Encoder(asmjit::CodeHolder* holder)
      : x86::Assembler(holder), pool_(Listing::label(*this, Listing::kConstants)) {}

  // Where the constants are. They are read without asmjit's links from labels to users.
  const asmjit::Label& pool() const { return pool_; }
  void bind_pool() {
    bind(pool_);
    const auto here = static_cast<std::int32_t>(offset());
    for (const Reference& r : references_) {
      const std::int32_t distance = here - static_cast<std::int32_t>(r.at) + r.plus;
      std::memcpy(_bufferData + r.at, &distance, sizeof(distance));
    }
  }

  // Masking, for the next instruction.
  Encoder& k(const x86::KReg& mask) {
    x86::Assembler::k(mask);
    return *this;
  }
  Encoder& z() {
    x86::Assembler::z();
    return *this;
  }

 private:
  // What VEX and EVEX say of an instruction: map of opcodes, implied prefix, W (of VEX, too).
  struct Code {
    std::uint8_t byte, map, prefix, w = 0, digit = 0;
    bool vex_w = false;  // else VEX leaves W at 0
  };

 public:
#define TILEVM_RVM(name, type, vex, ...)                       \
  Error name(const type& d, const type& s, const type& t) {    \
    if (!quick()) return x86::Assembler::name(d, s, t);        \
    return vex<Code{__VA_ARGS__}>(d.id(), s.id(), t.id(), -1); \
  }                                                            \
  Error name(const type& d, const type& s, const Mem& t) {     \
    if (!quick(t)) return x86::Assembler::name(d, s, t);       \
    return vex<Code{__VA_ARGS__}>(d.id(), s.id(), t, -1);      \
  }
#define TILEVM_RM(name, type, vex, ...)                   \
  Error name(const type& d, const type& t) {              \
    if (!quick()) return x86::Assembler::name(d, t);      \
    return vex<Code{__VA_ARGS__}>(d.id(), 0, t.id(), -1); \
  }                                                       \
  Error name(const type& d, const Mem& t) {               \
    if (!quick(t)) return x86::Assembler::name(d, t);     \
    return vex<Code{__VA_ARGS__}>(d.id(), 0, t, -1);      \
  }
#define TILEVM_STORE(name, type, vex, ...)            \
  Error name(const Mem& t, const type& s) {           \
    if (!quick(t)) return x86::Assembler::name(t, s); \
    return vex<Code{__VA_ARGS__}>(s.id(), 0, t, -1);  \
  }
#define TILEVM_RMI(name, type, vex, ...)                   \
  Error name(const type& d, const type& t, int imm) {      \
    if (!quick()) return x86::Assembler::name(d, t, imm);  \
    return vex<Code{__VA_ARGS__}>(d.id(), 0, t.id(), imm); \
  }                                                        \
  Error name(const type& d, const Mem& t, int imm) {       \
    if (!quick(t)) return x86::Assembler::name(d, t, imm); \
    return vex<Code{__VA_ARGS__}>(d.id(), 0, t, imm);      \
  }
#define TILEVM_VMI(name, type, vex, ...)                                         \
  Error name(const type& d, const type& t, int imm) {                            \
    if (!quick()) return x86::Assembler::name(d, t, imm);                        \
    return vex<Code{__VA_ARGS__}>(Code{__VA_ARGS__}.digit, d.id(), t.id(), imm); \
  }
#define TILEVM_WHOLE(name, load, store)                         \
  using x86::Assembler::name;                                   \
  Error name(const x86::Gp& d, const Mem& t) {                  \
    if (!quick(d, t)) return x86::Assembler::name(d, t);        \
    return rex<load>(d.id(), t);                                \
  }                                                             \
  Error name(const Mem& t, const x86::Gp& s) {                  \
    if (!quick(s, t)) return x86::Assembler::name(t, s);        \
    return rex<store>(s.id(), t);                               \
  }
#define TILEVM_ONE(kind, name, type, vex, ...) \
  using x86::Assembler::name;                  \
  kind(name, type, vex, __VA_ARGS__)
#define TILEVM_BOTH(kind, name, ...) \
  using x86::Assembler::name;        \
  kind(name, Zmm, evex512, __VA_ARGS__) kind(name, Ymm, vex256, __VA_ARGS__)

  TILEVM_BOTH(TILEVM_RVM, vaddps, 0x58, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vmulps, 0x59, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vsubps, 0x5c, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vminps, 0x5d, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vdivps, 0x5e, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vmaxps, 0x5f, 1, 0)
  TILEVM_BOTH(TILEVM_RVM, vaddpd, 0x58, 1, 1, 1)
  TILEVM_BOTH(TILEVM_RVM, vmulpd, 0x59, 1, 1, 1)
  TILEVM_BOTH(TILEVM_RVM, vsubpd, 0x5c, 1, 1, 1)
  TILEVM_BOTH(TILEVM_RVM, vpaddd, 0xfe, 1, 1)
  TILEVM_BOTH(TILEVM_RVM, vpsubd, 0xfa, 1, 1)
  TILEVM_BOTH(TILEVM_RVM, vpmulld, 0x40, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vpminsd, 0x39, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vpmaxsd, 0x3d, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfmadd132ps, 0x98, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfmadd213ps, 0xa8, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfmadd231ps, 0xb8, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfnmadd132ps, 0x9c, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfnmadd213ps, 0xac, 2, 1)
  TILEVM_BOTH(TILEVM_RVM, vfnmadd231ps, 0xbc, 2, 1)
  TILEVM_ONE(TILEVM_RVM, vscalefps, Zmm, evex512, 0x2c, 2, 1)
  TILEVM_ONE(TILEVM_RVM, vblendmps, Zmm, evex512, 0x65, 2, 1)
  TILEVM_ONE(TILEVM_RVM, vpandd, Zmm, evex512, 0xdb, 1, 1)
  TILEVM_ONE(TILEVM_RVM, vpord, Zmm, evex512, 0xeb, 1, 1)
  TILEVM_ONE(TILEVM_RVM, vpxord, Zmm, evex512, 0xef, 1, 1)
  TILEVM_ONE(TILEVM_RVM, vpand, Ymm, vex256, 0xdb, 1, 1)
  TILEVM_ONE(TILEVM_RVM, vpor, Ymm, vex256, 0xeb, 1, 1)
  TILEVM_ONE(TILEVM_RVM, vpxor, Ymm, vex256, 0xef, 1, 1)
  TILEVM_BOTH(TILEVM_RM, vsqrtps, 0x51, 1, 0)
  TILEVM_BOTH(TILEVM_RM, vcvtdq2ps, 0x5b, 1, 0)
  TILEVM_BOTH(TILEVM_RM, vcvtps2dq, 0x5b, 1, 1)
  TILEVM_BOTH(TILEVM_RM, vmovaps, 0x28, 1, 0)
  TILEVM_STORE(vmovaps, Zmm, evex512, 0x29, 1, 0)
  TILEVM_STORE(vmovaps, Ymm, vex256, 0x29, 1, 0)
  TILEVM_BOTH(TILEVM_RM, vmovups, 0x10, 1, 0)
  TILEVM_STORE(vmovups, Zmm, evex512, 0x11, 1, 0)
  TILEVM_STORE(vmovups, Ymm, vex256, 0x11, 1, 0)
  TILEVM_ONE(TILEVM_RMI, vrndscaleps, Zmm, evex512, 0x08, 3, 1)
  TILEVM_ONE(TILEVM_RMI, vroundps, Ymm, vex256, 0x08, 3, 1)
  TILEVM_BOTH(TILEVM_VMI, vpslld, 0x72, 1, 1, 0, 6)
  TILEVM_BOTH(TILEVM_VMI, vpsrld, 0x72, 1, 1, 0, 2)
  TILEVM_BOTH(TILEVM_VMI, vpsrad, 0x72, 1, 1, 0, 4)

  // Of 64 bits.
  TILEVM_WHOLE(mov, 0x8b, 0x89)
  TILEVM_WHOLE(add, 0x03, 0x01)
  TILEVM_WHOLE(sub, 0x2b, 0x29)

#undef TILEVM_RVM
#undef TILEVM_RM
#undef TILEVM_STORE
#undef TILEVM_RMI
#undef TILEVM_VMI
#undef TILEVM_WHOLE
#undef TILEVM_ONE
#undef TILEVM_BOTH

  using x86::Assembler::vbroadcastss;
  Error vbroadcastss(const Zmm& d, const Mem& t) {
    if (!quick(t)) return x86::Assembler::vbroadcastss(d, t);
    return evex512<Code{0x18, 2, 1}>(d.id(), 0, t, -1, 2);
  }
  using x86::Assembler::vcmpps;
  Error vcmpps(const x86::KReg& d, const Zmm& s, const Zmm& t, int predicate) {
    if (!quick()) return x86::Assembler::vcmpps(d, s, t, predicate);
    return evex512<Code{0xc2, 1, 0}>(d.id(), s.id(), t.id(), predicate);
  }
  Error vcmpps(const x86::KReg& d, const Zmm& s, const Mem& t, int predicate) {
    if (!quick(t)) return x86::Assembler::vcmpps(d, s, t, predicate);
    return evex512<Code{0xc2, 1, 0}>(d.id(), s.id(), t, predicate);
  }
  Error vcmpps(const Ymm& d, const Ymm& s, const Ymm& t, int predicate) {
    if (!quick()) return x86::Assembler::vcmpps(d, s, t, predicate);
    return vex256<Code{0xc2, 1, 0}>(d.id(), s.id(), t.id(), predicate);
  }
  Error vcmpps(const Ymm& d, const Ymm& s, const Mem& t, int predicate) {
    if (!quick(t)) return x86::Assembler::vcmpps(d, s, t, predicate);
    return vex256<Code{0xc2, 1, 0}>(d.id(), s.id(), t, predicate);
  }
  using x86::Assembler::vblendvps;
  Error vblendvps(const Ymm& d, const Ymm& no, const Ymm& yes, const Ymm& mask) {
    if (!quick()) return x86::Assembler::vblendvps(d, no, yes, mask);
    return vex256<Code{0x4a, 3, 1}>(d.id(), no.id(), yes.id(), in_immediate(mask));
  }
  Error vblendvps(const Ymm& d, const Ymm& no, const Mem& yes, const Ymm& mask) {
    if (!quick(yes)) return x86::Assembler::vblendvps(d, no, yes, mask);
    return vex256<Code{0x4a, 3, 1}>(d.id(), no.id(), yes, in_immediate(mask));
  }
  using x86::Assembler::vmaskmovps;
  Error vmaskmovps(const Ymm& d, const Ymm& mask, const Mem& from) {
    if (!quick(from)) return x86::Assembler::vmaskmovps(d, mask, from);
    return vex256<Code{0x2c, 2, 1}>(d.id(), mask.id(), from, -1);
  }
  Error vmaskmovps(const Mem& to, const Ymm& mask, const Ymm& s) {
    if (!quick(to)) return x86::Assembler::vmaskmovps(to, mask, s);
    return vex256<Code{0x2e, 2, 1}>(s.id(), mask.id(), to, -1);
  }
  using x86::Assembler::vextractf128;
  Error vextractf128(const Xmm& d, const Ymm& s, int half) {
    if (!quick()) return x86::Assembler::vextractf128(d, s, half);
    return vex256<Code{0x19, 3, 1}>(s.id(), 0, d.id(), half);
  }
  using x86::Assembler::vcvtps2pd;
  Error vcvtps2pd(const Ymm& d, const Xmm& s) {
    if (!quick()) return x86::Assembler::vcvtps2pd(d, s);
    return vex256<Code{0x5a, 1, 0}>(d.id(), 0, s.id(), -1);
  }

 private:
  struct Reference {
    std::uint32_t at;   // of four bytes: where in the pool,
    std::int32_t plus;  // less how far behind them the next instruction begins
  };
  static constexpr std::size_t kLongest = 16;

  bool quick() const {
    return remainingSpace() >= kLongest && forcedInstOptions() == asmjit::InstOptions::kNone;
  }
  bool quick(const Mem& mem) const {
    if (!quick()) return false;
    if (mem.hasBaseLabel()) return mem.baseId() == pool_.id() && !mem.hasIndex();
    return mem.baseType() == asmjit::RegType::kX86_Gpq && !mem.hasSegment() &&
           (!mem.hasIndex() || mem.indexType() == asmjit::RegType::kX86_Gpq);
  }

  bool quick(const x86::Gp& reg, const Mem& mem) const {
    return reg.isGpq() && !mem.hasBaseLabel() && quick(mem);
  }

  static int in_immediate(const Ymm& reg) { return static_cast<int>(reg.id() << 4); }
  static unsigned low(unsigned reg) { return reg & 7U; }
  static unsigned bit3(unsigned reg) { return (reg >> 3) & 1U; }
  static unsigned bit4(unsigned reg) { return (reg >> 4) & 1U; }
  static std::uint8_t byte(unsigned bits) { return static_cast<std::uint8_t>(bits); }

  template <Code c>
  Error evex512(unsigned reg, unsigned vvvv, unsigned rm, int imm) {
    std::uint8_t* to = evex_prefix<c>(reg, vvvv, bit4(rm), bit3(rm), false);
    *to++ = byte(0xc0 | low(reg) << 3 | low(rm));
    return done(to, imm);
  }
  template <Code c>
  Error evex512(unsigned reg, unsigned vvvv, const Mem& mem, int imm, unsigned unit = 6) {
    const bool broadcast = mem.hasBroadcast();
    const bool constant = mem.hasBaseLabel();
    const unsigned base = constant ? 0 : mem.baseId(), index = mem.hasIndex() ? mem.indexId() : 0;
    std::uint8_t* to = evex_prefix<c>(reg, vvvv, bit3(index), bit3(base), broadcast);
    return done(memory(to, reg, mem, broadcast ? 2 + c.w : unit, imm >= 0), imm);
  }
  template <Code c>
  Error vex256(unsigned reg, unsigned vvvv, unsigned rm, int imm) {
    std::uint8_t* to = vex_prefix<c>(reg, vvvv, 0, bit3(rm));
    *to++ = byte(0xc0 | low(reg) << 3 | low(rm));
    return done(to, imm);
  }
  template <Code c>
  Error vex256(unsigned reg, unsigned vvvv, const Mem& mem, int imm) {
    const bool constant = mem.hasBaseLabel();
    const unsigned base = constant ? 0 : mem.baseId(), index = mem.hasIndex() ? mem.indexId() : 0;
    return done(memory(vex_prefix<c>(reg, vvvv, bit3(index), bit3(base)), reg, mem, 0, imm >= 0),
                imm);
  }

  template <std::uint8_t opcode>
  Error rex(unsigned reg, const Mem& mem) {
    std::uint8_t* to = _bufferPtr;
    const unsigned index = mem.hasIndex() ? mem.indexId() : 0;
    *to++ = byte(0x48 | bit3(reg) << 2 | bit3(index) << 1 | bit3(mem.baseId()));
    *to++ = opcode;
    return done(memory(to, reg, mem, 0, false), -1);
  }

  // Numbers of registers are inverted in prefixes.
  template <Code c>
  std::uint8_t* evex_prefix(unsigned reg, unsigned vvvv, unsigned x, unsigned b, bool broadcast) {
    std::uint8_t* to = _bufferPtr;
    unsigned mask = 0;
    if (hasExtraReg()) {
      mask = extraReg().id() | (instOptions() == asmjit::InstOptions::kX86_ZMask ? 0x80U : 0U);
      resetExtraReg();
      resetInstOptions();
    }
    to[0] = 0x62;
    to[1] = byte((0xf0 ^ (bit3(reg) << 7 | x << 6 | b << 5 | bit4(reg) << 4)) | c.map);
    to[2] = byte(c.w << 7 | (0x78 ^ ((vvvv & 15U) << 3)) | 4 | c.prefix);
    to[3] = byte(mask | 0x40 | (broadcast ? 0x10U : 0U) | (0x08 ^ bit4(vvvv) << 3));
    to[4] = c.byte;
    return to + 5;
  }
  template <Code c>
  std::uint8_t* vex_prefix(unsigned reg, unsigned vvvv, unsigned x, unsigned b) {
    std::uint8_t* to = _bufferPtr;
    const unsigned last = (0x78 ^ ((vvvv & 15U) << 3)) | 4 | c.prefix;
    if (c.map == 1 && !c.vex_w && (x | b) == 0) {
      *to++ = 0xc5;
      *to++ = byte((0x80 ^ bit3(reg) << 7) | last);
    } else {
      *to++ = 0xc4;
      *to++ = byte((0xe0 ^ (bit3(reg) << 7 | x << 6 | b << 5)) | c.map);
      *to++ = byte((c.vex_w ? 0x80U : 0U) | last);
    }
    *to++ = c.byte;
    return to;
  }

  // ModR/M, SIB and displacement; short displacements count units of 1 << `unit`.
  std::uint8_t* memory(std::uint8_t* to, unsigned reg, const Mem& mem, unsigned unit, bool imm) {
    const unsigned field = low(reg) << 3;
    if (mem.hasBaseLabel()) {
      *to++ = byte(field | 5);
      references_.push_back({static_cast<std::uint32_t>(to - _bufferData),
                             static_cast<std::int32_t>(mem.offset()) - (imm ? 5 : 4)});
      return to + 4;
    }
    const auto offset = static_cast<std::int32_t>(mem.offset());
    const unsigned base = low(mem.baseId());
    const std::int32_t few = offset >> unit;
    const bool none = offset == 0 && base != 5;
    const bool is_short = few >= -128 && few <= 127 && few * (1 << unit) == offset;
    const unsigned mode = none ? 0x00 : is_short ? 0x40 : 0x80;
    if (mem.hasIndex() || base == 4) {
      *to++ = byte(mode | field | 4);
      *to++ = byte(mem.shift() << 6 | (mem.hasIndex() ? low(mem.indexId()) : 4) << 3 | base);
    } else {
      *to++ = byte(mode | field | base);
    }
    if (none) return to;
    if (is_short) {
      *to++ = byte(static_cast<unsigned>(few));
      return to;
    }
    std::memcpy(to, &offset, sizeof(offset));
    return to + sizeof(offset);
  }

  Error done(std::uint8_t* to, int imm) {
    if (imm >= 0) *to++ = byte(static_cast<unsigned>(imm));
    _bufferPtr = to;
    auto& size = _section->_buffer._size;
    size = std::max(size, static_cast<std::size_t>(to - _bufferData));
    return asmjit::kErrorOk;
  }

  asmjit::Label pool_;
  std::vector<Reference> references_;
};

}  // namespace tilevm::exec::native
