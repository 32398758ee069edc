// The text form reads back, and the verifier rejects what breaks each of its rules.
#include "bytecode/bytecode.h"

#include <functional>
#include <stdexcept>

#include "bytecode/builder.h"
#include "tests/check.h"
#include "tests/random_program.h"

namespace tilevm::test {
namespace {

using namespace bytecode;
using Bytes = std::vector<std::byte>;

constexpr std::string_view kSoftmaxLike = R"(kernel fold=columns
m0 input f32 r contiguous
m1 output f32 r contiguous
m2 output f32 u
m3 scratch f32 r contiguous
pass
  load_f32 r0, m0
  exp_f32 r1, r0
  store_f32 m3, r1
  sum_f32 u2, r1
end
store_f32 m2, u2
pass
  load_f32 r3, m3
  div_f32 r4, r3, u2
  store_f32 m1, r4
end
halt
)";

int test_builder_and_text_agree() {
  Builder b(Fold::kColumns);
  const auto x = b.operand(Role::kInput, Storage::kF32, Cls::kFull, true);
  const auto y = b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true);
  const auto total = b.operand(Role::kOutput, Storage::kF32, Cls::kRow);
  const auto saved = b.operand(Role::kScratch, Storage::kF32, Cls::kFull, true);
  b.begin_pass();
  const Reg e = b.map(Op::exp_f32, b.load(Op::load_f32, x));
  b.store(Op::store_f32, saved, e);
  const Reg sum = b.fold(Op::sum_f32, e);
  b.end_pass();
  b.store(Op::store_f32, total, sum);
  b.begin_pass();
  b.store(Op::store_f32, y, b.map(Op::div_f32, b.load(Op::load_f32, saved), sum));
  b.end_pass();
  const Bytes bytes = b.finish();
  CHECK(verify(bytes).empty());
  CHECK(assemble(kSoftmaxLike) == bytes);
  CHECK(disassemble(bytes).find("\n0008    load_f32 r3, m3  ") != std::string::npos);
  CHECK(disassemble(bytes).find("; r4 = r3 / u2\n") != std::string::npos);
  const std::vector<std::string> lines = {"model.py:41"};
  const std::string text = disassemble(bytes, lines);
  CHECK(text.find("start a sweep over the reduced axes  ; model.py:41\n") != std::string::npos);
  CHECK(assemble(text) == bytes);
  CHECK(hash(bytes) == hash(assemble(text)));
  return 0;
}

int test_random_programs_read_back() {
  ProgramGenerator random(1);
  std::vector<int> seen(kOpCount);
  for (int i = 0; i < 5000; ++i) {
    const Bytes bytes = random.next({.traps = i % 2 == 0});
    CHECK(verify(bytes) == "");
    CHECK(assemble(disassemble(bytes)) == bytes);
    for (const Instr& instr : view(bytes).code) ++seen[instr.op];
  }
  for (int op = 0; op < kOpCount; ++op) CHECK(seen[op] > 0);
  return 0;
}

Bytes constant_program(Op op, std::uint64_t imm, Op store, Storage storage) {
  Builder b;
  const auto out = b.operand(Role::kOutput, storage, Cls::kScalar);
  b.store(store, out, b.constant(op, imm));
  return b.finish();
}

int test_constants_are_exact() {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 100000; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(rng());
    if (i % 4 == 0) bits |= 0x7f800000;  // infinities and NaN
    if (i % 4 == 1) bits &= 0x807fffff;  // denormals and zeros
    const Bytes f = constant_program(Op::const_f32, bits, Op::store_f32, Storage::kF32);
    CHECK(assemble(disassemble(f)) == f);
    std::uint64_t wide = rng();
    if (i % 4 == 0) wide |= 0x7ff0000000000000;
    if (i % 4 == 1) wide &= 0x800fffffffffffff;
    const Bytes d = constant_program(Op::const_f64, wide, Op::store_f64, Storage::kF64);
    CHECK(assemble(disassemble(d)) == d);
    const Bytes n = constant_program(Op::const_i64, rng(), Op::store_i64, Storage::kI64);
    CHECK(assemble(disassemble(n)) == n);
  }
  const auto text = [](std::uint32_t bits) {
    const std::string s =
        disassemble(constant_program(Op::const_f32, bits, Op::store_f32, Storage::kF32));
    const std::size_t at = s.find("const_f32 s0, ") + 14;
    return s.substr(at, s.find(' ', at) - at);
  };
  CHECK(text(0x3f800000) == "1.0");
  CHECK(text(0x80000000) == "-0.0");
  CHECK(text(0x3dcccccd) == "0.1");
  CHECK(text(0xff800000) == "-inf");
  CHECK(text(0x7fc00000) == "nan");
  CHECK(text(0xffc00001) == "nan:0xffc00001");
  CHECK(text(0x00000001) == "1e-45");
  const Bytes i32 = constant_program(Op::const_i32, 0x80000000, Op::store_i32, Storage::kI32);
  CHECK(disassemble(i32).find("const_i32 s0, -2147483648") != std::string::npos);
  CHECK(assemble(disassemble(i32)) == i32);
  return 0;
}

int test_misaligned_bytes() {
  const Bytes bytes = assemble(kSoftmaxLike);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Bytes moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    CHECK(verify(std::span(moved).subspan(shift)).empty());
    CHECK(assemble(disassemble(std::span(moved).subspan(shift))) == bytes);
  }
  for (std::size_t n = 0; n < bytes.size(); ++n) CHECK(!verify(std::span(bytes).first(n)).empty());
  return 0;
}

// The message holds `expected`; prints both if it does not.
bool says(const std::string& message, std::string_view expected) {
  if (message.find(expected) != std::string::npos) return true;
  std::fprintf(stderr, "expected: %.*s\nsaid:     %s\n", static_cast<int>(expected.size()),
               expected.data(), message.c_str());
  return false;
}

struct Rejected {
  std::string_view text;
  std::string_view error;
};

// One program for each rule that text can break.
constexpr Rejected kRejectedText[] = {
    {"kernel fold=none\n", "header: no instructions"},
    {"kernel fold=none\nconst_f32 s0, 1\n", "the last instruction is not halt"},
    {"kernel fold=none\nhalt\nhalt\n", "instruction 1 (halt): follows halt"},
    {"kernel fold=columns\nhalt\n", "passes exactly if it has a fold"},
    {"kernel fold=none\npass\nend\nhalt\n", "passes exactly if it has a fold"},
    {"kernel fold=rows\npass\npass\nend\nend\nhalt\n", "instruction 1 (pass): passes do not nest"},
    {"kernel fold=rows\npass\nend\nend\nhalt\n", "instruction 2 (end): no pass to end"},
    {"kernel fold=rows\npass\nhalt\n", "instruction 1 (halt): inside a pass"},
    // the operand table
    {"kernel fold=none\nm0 input f32 u contiguous\nhalt\n", "operand m0: contiguous, but"},
    {"kernel fold=rows\nm0 scratch f32 u\npass\nend\nhalt\n", "scratch must be of class r"},
    {"kernel fold=rows\nm0 scratch f32 r\npass\nend\nhalt\n", "scratch must be of class r"},
    {"kernel fold=none\nm0 iota f32 r\nhalt\n", "operand m0: iota must be i64"},
    {"kernel fold=none\nm0 iota i64 r contiguous\nhalt\n", "operand m0: iota must be i64"},
    {"kernel fold=none\nm0 output f32 r\nhalt\n", "operand m0: an output that nothing is stored"},
    // registers
    {"kernel fold=none\nconst_f32 s1, 1\nhalt\n", "dst: register 1 is not the next one, 0"},
    {"kernel fold=none\nabs_f32 s0, s0\nhalt\n", "a: register 0 is not defined yet"},
    {"kernel fold=none\nconst_i32 s0, 1\nabs_f32 s1, s0\nhalt\n",
     "(abs_f32): a: register 0 has another type"},
    {"kernel fold=none\nconst_f32 s0, 1\nadd_f32 r1, s0, r0\nhalt\n", "b: register 0 has class s"},
    {"kernel fold=none\nconst_f32 s0, 1\nabs_f32 r1, s0\nhalt\n", "dst: the class must be s"},
    {"kernel fold=none\nm0 input f32 u\nm1 input f32 c\nload_f32 u0, m0\nload_f32 c1, m1\n"
     "add_f32 u2, u0, c1\nhalt\n",
     "dst: the class must be r"},
    // memory
    {"kernel fold=none\nload_f32 r0, m0\nhalt\n", "mem: m0 is not in the operand table"},
    {"kernel fold=none\nm0 gather f32 r\nload_f32 r0, m0\nhalt\n",
     "m0 has a role that does not fit"},
    {"kernel fold=none\nm0 input f32 r\nconst_f32 s0, 1\nstore_f32 m0, s0\nhalt\n",
     "m0 has a role"},
    {"kernel fold=none\nm0 input f32 r\nconst_i64 s0, 1\ngather_f32 r1, m0, s0\nhalt\n",
     "m0 has a role"},
    {"kernel fold=none\nm0 input i64 r\niota_i64 r0, m0\nhalt\n", "m0 has a role"},
    {"kernel fold=none\nm0 input bf16 r\nload_f32 r0, m0\nhalt\n", "m0 has another storage"},
    {"kernel fold=none\nm0 input f32 u\nload_f32 r0, m0\nhalt\n", "dst: the class must be u"},
    {"kernel fold=none\nm0 input f32 r\nm1 output f32 u\nload_f32 r0, m0\nstore_f32 m1, r0\nhalt\n",
     "a: varies over an axis that the operand"},
    {"kernel fold=none\nm0 gather f32 u\nm1 iota i64 c\niota_i64 c0, m1\ngather_f32 u1, m0, "
     "c0\nhalt\n",
     "dst: the class must be r"},
    {"kernel fold=none\nm0 iota i64 c\niota_i64 s0, m0\nhalt\n", "dst: the class must be c"},
    // sections and passes
    {"kernel fold=columns\nm0 input f32 r\nload_f32 r0, m0\npass\nend\nhalt\n",
     "instruction 0 (load_f32): dst: varies over the reduced axes, outside a pass"},
    {"kernel fold=columns\nm0 output f32 r\nconst_f32 s0, 1\nstore_f32 m0, s0\npass\nend\nhalt\n",
     "mem: varies over the reduced axes, outside a pass"},
    {"kernel fold=none\nconst_f32 s0, 1\nsum_f32 s1, s0\nhalt\n", "(sum_f32): outside a pass"},
    {"kernel fold=rows\nconst_f32 s0, 1\nsum_f32 s1, s0\npass\nend\nhalt\n",
     "(sum_f32): outside a pass"},
    {"kernel fold=rows\nm0 input f32 r\npass\nload_f32 r0, m0\nsum_f32 u1, r0\nend\nhalt\n",
     "dst: the class must be c"},
    {"kernel fold=rows\nm0 input f32 r\npass\nload_f32 r0, m0\nsum_f32 c1, r0\nabs_f32 c2, "
     "c1\nend\nhalt\n",
     "a: register 1 is a fold, read before its end"},
    {"kernel fold=rows\npass\nconst_f32 s0, 1\nend\nabs_f32 s1, s0\nhalt\n",
     "a: register 0 belongs to a pass that ended"},
    {"kernel fold=rows\npass\nconst_f32 s0, 1\nend\npass\nabs_f32 s1, s0\nend\nhalt\n",
     "a: register 0 belongs to a pass that ended"},
    {"kernel fold=columns\nm0 input f32 c\nm1 iota i64 r\npass\nload_f32 c0, m0\niota_i64 r1, m1\n"
     "argmax_f32 s2, c0, r1\nend\nhalt\n",
     "b: varies over a kept axis that a does not"},
    {"kernel fold=rows\nm0 scratch f32 r contiguous\npass\nload_f32 r0, m0\nend\nhalt\n",
     "scratch is read before it is written"},
    {"kernel fold=rows\nm0 scratch f32 r contiguous\npass\nconst_f32 s0, 1\nstore_f32 m0, s0\n"
     "load_f32 r1, m0\nend\nhalt\n",
     "scratch is read in the pass that writes it"},
    {"kernel fold=rows\nm0 scratch f32 r contiguous\npass\nconst_f32 s0, 1\nstore_f32 m0, s0\nend\n"
     "load_f32 r1, m0\nhalt\n",
     "varies over the reduced axes, outside a pass"},
    {"kernel fold=rows\nm0 scratch f32 r contiguous\nconst_f32 s0, 1\nstore_f32 m0, "
     "s0\npass\nend\nhalt\n",
     "scratch is written outside a pass"},
    {"kernel fold=rows\nm0 scratch f32 r contiguous\npass\nconst_f32 s0, 1\nstore_f32 m0, s0\n"
     "store_f32 m0, s0\nend\nhalt\n",
     "scratch is written twice"},
};

int test_rejected_text() {
  for (const Rejected& rejected : kRejectedText) {
    CHECK(says(verify(assemble(rejected.text)), rejected.error));
  }
  // b may vary over the reduced axes where a does not, and a fold of a scalar counts its points
  CHECK(
      verify(assemble("kernel fold=columns\nm0 iota i64 c\npass\nconst_f32 s0, 1\niota_i64 c1, m0\n"
                      "argmax_f32 s2, s0, c1\nsum_f32 s3, s0\nend\nhalt\n")) == "");
  return 0;
}

struct Patched {
  std::function<void(Header&, OperandInfo*, Instr*)> patch;
  std::string_view error;
};

// One patch of a valid program for each rule that text cannot break.
int test_rejected_bytes() {
  const Patched patches[] = {
      {[](Header& h, auto, auto) { h.magic ^= 1; }, "magic is not TVM1"},
      {[](Header& h, auto, auto) { h.version = 2; }, "header: version 2 is not 1"},
      {[](Header& h, auto, auto) { h.fold = static_cast<Fold>(4); }, "unknown fold"},
      {[](Header& h, auto, auto) { h.reserved = 1; }, "reserved byte is not 0"},
      {[](Header& h, auto, auto) { h.n_registers = 4097; }, "too many registers"},
      {[](Header& h, auto, auto) { h.n_operands = 257; }, "too many operands"},
      {[](Header& h, auto, auto) { h.n_instrs = 16385; }, "too many instructions"},
      {[](Header& h, auto, auto) { ++h.n_operands; }, "its counts make"},
      {[](Header& h, auto, auto) { h.n_registers = 4; }, "more registers than the header says"},
      {[](Header& h, auto, auto) { h.n_registers = 6; }, "more registers than are defined"},
      {[](Header& h, auto, auto) { h.n_passes = 1; }, "more passes than the header says"},
      {[](Header& h, auto, auto) { h.n_passes = 3; }, "more passes than there are"},
      {[](auto&, OperandInfo* o, auto) { o[0].role = static_cast<Role>(5); }, "m0: unknown role"},
      {[](auto&, OperandInfo* o, auto) { o[1].storage = static_cast<Storage>(kStorages); },
       "m1: unknown storage"},
      {[](auto&, OperandInfo* o, auto) { o[1].cls = static_cast<Cls>(4); }, "m1: unknown class"},
      {[](auto&, OperandInfo* o, auto) { o[0].contiguous = 2; }, "contiguous is neither 0 nor 1"},
      {[](auto&, OperandInfo* o, auto) { o[2].reserved = 1; }, "m2: reserved word is not 0"},
      {[](auto&, auto, Instr* c) { c[2].op = kOpCount; }, "instruction 2: unknown opcode"},
      {[](auto&, auto, Instr* c) { c[2].op = 0xffff; }, "unknown opcode 65535"},
      {[](auto&, auto, Instr* c) { c[0].dst = 1; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[1].a = 1; }, "(load_f32): a field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].b = 1; }, "(exp_f32): a field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].c = 1; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].mem = 1; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].zero = 1; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].classes |= 1 << 4; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[2].classes |= 1 << 8; }, "field that it does not use"},
      {[](auto&, auto, Instr* c) { c[3].classes |= 1; }, "(store_f32): a field that it does not"},
      {[](auto&, auto, Instr* c) { c[2].a = 0xffff; }, "register 65535 is not defined yet"},
      {[](auto&, auto, Instr* c) { c[1].mem = 0xffff; }, "m65535 is not in the operand table"},
  };
  for (const Patched& patched : patches) {
    Bytes bytes = assemble(kSoftmaxLike);
    auto* header = reinterpret_cast<Header*>(bytes.data());
    auto* operands = reinterpret_cast<OperandInfo*>(header + 1);
    patched.patch(*header, operands, reinterpret_cast<Instr*>(operands + header->n_operands));
    CHECK(says(verify(bytes), patched.error));
  }
  const auto constant = [](Op op, std::uint64_t imm, Op store, Storage storage) {
    return verify(constant_program(op, imm, store, storage));
  };
  CHECK(says(constant(Op::const_b8, 2, Op::store_b8, Storage::kB8), "imm: a b8 is 0 or 1"));
  CHECK(says(constant(Op::const_f32, 1ull << 32, Op::store_f32, Storage::kF32), "imm: wider than"));
  CHECK(says(constant(Op::const_i32, ~0ull, Op::store_i32, Storage::kI32), "imm: wider than"));
  CHECK(says(verify({}), "header: 0 bytes are too few"));
  return 0;
}

int test_parse_errors() {
  constexpr Rejected kTexts[] = {
      {"", "line 1: no program; begin with 'kernel fold=none'"},
      {"halt\n", "line 1: a program begins with a line like"},
      {"kernel fold=cols\n", "line 1: fold 'cols' is not one of none, columns, rows, both"},
      {"kernel fold=none halt\n", "line 1: unexpected 'halt'; remove it"},
      {"kernel fold=none\n\nm1 input f32 r\n",
       "line 3: operands are numbered in order; write 'm0'"},
      {"kernel fold=none\nm0 in f32 r\n", "role 'in' is not one of input, output"},
      {"kernel fold=none\nm0 input f8 r\n", "storage 'f8' is not one of f32, bf16"},
      {"kernel fold=none\nm0 input f32 x\n", "class 'x' is not one of s, c, u, r"},
      {"kernel fold=none\nm0 input f32 r dense\n", "'dense' is not 'contiguous'"},
      {"kernel fold=none\nhalt\nm0 input f32 r\n",
       "line 3: an operand after the first instruction"},
      {"kernel fold=none\n0001 frob r0\n", "no instruction 'frob'; docs/isa.md lists them"},
      {"kernel fold=none\n0001\n", "no instruction ''"},
      {"kernel fold=none\nadd_f32 r0, r1\n", "write 'add_f32 <dst>, <a>, <b>'"},
      {"kernel fold=none\nadd_f32 r0, r1, r2, r3\n", "unexpected ', r3'; remove it"},
      {"kernel fold=none\nload_f32 r0, r1\n", "write 'load_f32 <dst>, <mem>'"},
      {"kernel fold=none\nload_f32 q0, m1\n", "write 'load_f32 <dst>, <mem>'"},
      {"kernel fold=none\nabs_f32 r0, r4096\n", "register '4096' is not a number from 0 to 4095"},
      {"kernel fold=none\nload_f32 r0, m256\n", "operand '256' is not a number from 0 to 255"},
      {"kernel fold=none\nconst_f32 r0, 1\n", "a constant has class s; write 's0'"},
      {"kernel fold=none\nconst_f32 s0, one\n", "'one' is not an f32; write a number"},
      {"kernel fold=none\nconst_f32 s0, 1e99\n", "'1e99' is not an f32"},
      {"kernel fold=none\nconst_f32 s0, nan:0x1\n", "is not a NaN; write bits like"},
      {"kernel fold=none\nconst_i32 s0, 2147483648\n", "is not an i32; write a decimal number"},
      {"kernel fold=none\nconst_b8 s0, 2\n", "'2' is not a b8; write 0 or 1"},
      {"kernel fold=none\n= halt\n", "line 2: unexpected '= halt'"},
  };
  for (const Rejected& rejected : kTexts) {
    std::string message = "nothing";
    try {
      assemble(rejected.text);
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    CHECK(says(message, rejected.error));
  }
  std::string message;
  try {
    disassemble({});
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  CHECK(says(message, "header: 0 bytes are too few"));
  return 0;
}

int test_too_large_is_no_program() {
  Builder b;
  for (int i = 0; i <= kMaxRegisters; ++i) b.constant(1.0f);
  CHECK(b.finish().empty());
  b.reset(Fold::kNone);
  CHECK(!b.finish().empty());
  return 0;
}

int test_hash_spreads() {
  const Bytes bytes = assemble(kSoftmaxLike);
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes other = bytes;
    other[i] ^= std::byte{1};
    CHECK(hash(other) != hash(bytes));
    differ |= hash(other) ^ hash(bytes);
  }
  CHECK(differ == ~0ull);
  CHECK(hash(std::span(bytes).first(1)) != hash(std::span(bytes).first(2)));
  return 0;
}

}  // namespace
}  // namespace tilevm::test

int main() {
  using namespace tilevm::test;
  const int failed = test_builder_and_text_agree() + test_random_programs_read_back() +
                     test_constants_are_exact() + test_misaligned_bytes() + test_rejected_text() +
                     test_rejected_bytes() + test_parse_errors() + test_too_large_is_no_program() +
                     test_hash_spreads();
  if (failed == 0) std::puts("bytecode_test: passed");
  return failed != 0;
}
