#include <array>
#include <charconv>

#include "bytecode/bytecode.h"
#include "isa.gen.h"

namespace tilevm::bytecode {
namespace {

constexpr std::string_view kClsNames = "scur";

std::string number(std::uint64_t value) {
  std::array<char, 24> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

int bits(Cls c) { return static_cast<int>(c); }

struct Register {
  RegType type;
  std::uint8_t cls;
  bool is_fold;
  int pass;  // where it is defined: 0 is section code
};

struct Memory {
  OperandInfo info;
  int stored_in = 0;  // scratch: the pass that writes it; 0 is none
  bool stored = false;
};

// One walk over the program. Reads through memcpy, since foreign bytes may be misaligned.
class Verifier {
 public:
  explicit Verifier(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::string run() {
    if (std::string error = check_header(); !error.empty()) return error;
    for (int i = 0; i < header_.n_operands; ++i) {
      if (std::string error = check_operand(i); !error.empty()) {
        return "operand m" + number(i) + ": " + error;
      }
    }
    for (index_ = 0; index_ < header_.n_instrs; ++index_) {
      std::memcpy(&instr_, bytes_.data() + code_at_ + sizeof(Instr) * index_, sizeof(Instr));
      if (std::string error = check_instr(); !error.empty()) {
        std::string where = "instruction " + number(index_);
        if (instr_.op < kOpCount) where.append(" (").append(row().name).append(")");
        return where + ": " + error;
      }
    }
    return check_totals();
  }

 private:
  const InstrInfo& row() const { return kIsa[instr_.op]; }

  std::string check_header() {
    if (bytes_.size() < sizeof(Header)) {
      return "header: " + number(bytes_.size()) + " bytes are too few for a program";
    }
    std::memcpy(&header_, bytes_.data(), sizeof(Header));
    if (header_.magic != kMagic) return "header: magic is not TVM1";
    if (header_.version != kVersion) {
      return "header: version " + number(header_.version) + " is not " + number(kVersion);
    }
    if (static_cast<int>(header_.fold) > 3) return "header: unknown fold";
    if (header_.reserved != 0) return "header: reserved byte is not 0";
    if (header_.n_registers > kMaxRegisters) return "header: too many registers";
    if (header_.n_operands > kMaxOperands) return "header: too many operands";
    if (header_.n_instrs > kMaxInstrs) return "header: too many instructions";
    code_at_ = sizeof(Header) + sizeof(OperandInfo) * header_.n_operands;
    const std::size_t size = code_at_ + sizeof(Instr) * header_.n_instrs;
    if (bytes_.size() != size) {
      return "header: its counts make " + number(size) + " bytes, but there are " +
             number(bytes_.size());
    }
    if (header_.n_instrs == 0) return "header: no instructions; a program ends with halt";
    fold_ = static_cast<int>(header_.fold);
    if ((fold_ != 0) != (header_.n_passes != 0)) {
      return "header: a program has passes exactly if it has a fold";
    }
    return {};
  }

  std::string check_operand(int i) {
    OperandInfo& info = memory_[i].info;
    std::memcpy(&info, bytes_.data() + sizeof(Header) + sizeof(OperandInfo) * i, sizeof(info));
    if (static_cast<int>(info.role) > static_cast<int>(Role::kIota)) return "unknown role";
    if (static_cast<int>(info.storage) >= kStorages) return "unknown storage";
    if (bits(info.cls) > bits(Cls::kFull)) return "unknown class";
    if (info.contiguous > 1) return "contiguous is neither 0 nor 1";
    if (info.reserved != 0) return "reserved word is not 0";
    if (info.contiguous && !(bits(info.cls) & bits(Cls::kColumn))) {
      return "contiguous, but it does not vary over columns";
    }
    if (info.role == Role::kScratch && (info.cls != Cls::kFull || !info.contiguous)) {
      return "scratch must be of class r and contiguous";
    }
    if (info.role == Role::kIota && (info.storage != Storage::kI64 || info.contiguous)) {
      return "iota must be i64 and not contiguous: its strides are counts";
    }
    return {};
  }

  std::string check_instr() {
    if (instr_.op >= kOpCount) return "unknown opcode " + number(instr_.op);
    if (halted_) return "follows halt, which must be last";
    if (std::string error = check_unused(); !error.empty()) return error;
    source_cls_.fill(0);
    std::uint16_t source[] = {instr_.a, instr_.b, instr_.c};
    int n_sources = 0;
    for (int f = 0; f < row().n_fields; ++f) {
      if (row().fields[f].kind != FieldKind::kSrc) continue;
      const int s = n_sources++;
      std::string error = check_source(s, source[s], row().fields[f].type);
      if (!error.empty()) return error;
    }
    switch (row().cls) {
      case InstrClass::kLoad:
        return check_load();
      case InstrClass::kStore:
        return check_store();
      case InstrClass::kGather:
        return check_gather();
      case InstrClass::kIota:
        return check_iota();
      case InstrClass::kConst:
        return check_const();
      case InstrClass::kMap:
        return define(source_cls_[0] | source_cls_[1] | source_cls_[2]);
      case InstrClass::kFold:
        return check_fold();
      case InstrClass::kMark:
        return check_mark();
    }
    return "unknown instruction class";
  }

  // Fields that the instruction does not have are 0, so that equal programs are equal bytes.
  std::string check_unused() {
    Instr rest = instr_;
    rest.op = 0;
    int n_sources = 0;
    for (int f = 0; f < row().n_fields; ++f) {
      switch (row().fields[f].kind) {
        case FieldKind::kDst:
          rest.dst = 0;
          if (row().cls != InstrClass::kConst) rest.classes &= ~3;
          break;
        case FieldKind::kSrc:
          (n_sources == 0 ? rest.a : n_sources == 1 ? rest.b : rest.c) = 0;
          ++n_sources;
          rest.classes &= static_cast<std::uint16_t>(~(3 << (2 * n_sources)));
          break;
        case FieldKind::kMem:
          rest.mem = 0;
          break;
        case FieldKind::kImm:
          rest.imm = 0;
          break;
      }
    }
    if (rest.dst != 0 || rest.a != 0 || rest.b != 0 || rest.imm != 0) {
      return "a field that it does not use is not 0";
    }
    return {};
  }

  std::string check_source(int s, std::uint16_t id, RegType type) {
    const std::string_view field = std::string_view("abc").substr(s, 1);
    const auto fail = [&](std::string_view what) {
      return std::string(field) + ": register " + number(id) + " " + std::string(what);
    };
    if (id >= n_defined_) return fail("is not defined yet");
    const Register& reg = registers_[id];
    if (reg.type != type) return fail("has another type");
    if (reg.cls != ((instr_.classes >> (2 * s + 2)) & 3)) {
      return fail("has class " + std::string(1, kClsNames[reg.cls]) + ", not as written");
    }
    if (reg.pass != 0) {
      if (reg.is_fold && reg.pass == pass_) return fail("is a fold, read before its end");
      if (!reg.is_fold && reg.pass != pass_) return fail("belongs to a pass that ended");
    }
    source_cls_[s] = reg.cls;
    return {};
  }

  std::string define(int cls, bool is_fold = false) {
    if (instr_.dst != n_defined_) {
      return "dst: register " + number(instr_.dst) + " is not the next one, " + number(n_defined_);
    }
    if (n_defined_ >= header_.n_registers) return "dst: more registers than the header says";
    if (row().cls != InstrClass::kConst && bits(instr_.cls_dst()) != cls) {
      return "dst: the class must be " + std::string(1, kClsNames[cls]);
    }
    if (pass_ == 0 && (cls & fold_) != 0) {
      return "dst: varies over the reduced axes, outside a pass";
    }
    registers_[n_defined_++] = {row().fields[0].type, static_cast<std::uint8_t>(cls), is_fold,
                                pass_};
    return {};
  }

  // Checks that `mem` is an operand of one of two roles and of the instruction's storage.
  std::string check_mem(Role role, Role other) {
    const auto fail = [&](std::string_view what) {
      return "mem: m" + number(instr_.mem) + " " + std::string(what);
    };
    if (instr_.mem >= header_.n_operands) return fail("is not in the operand table");
    const OperandInfo& info = memory_[instr_.mem].info;
    if (info.role != role && info.role != other) return fail("has a role that does not fit");
    if (info.storage != row().storage) return fail("has another storage");
    return {};
  }

  std::string check_load() {
    if (std::string error = check_mem(Role::kInput, Role::kScratch); !error.empty()) {
      return error;
    }
    const Memory& mem = memory_[instr_.mem];
    if (mem.info.role == Role::kScratch) {
      if (mem.stored_in == 0) return "mem: scratch is read before it is written";
      if (mem.stored_in == pass_) return "mem: scratch is read in the pass that writes it";
    }
    return define(bits(mem.info.cls));
  }

  std::string check_store() {
    if (std::string error = check_mem(Role::kOutput, Role::kScratch); !error.empty()) {
      return error;
    }
    Memory& mem = memory_[instr_.mem];
    if (source_cls_[0] & ~bits(mem.info.cls)) {
      return "a: varies over an axis that the operand does not vary over";
    }
    if (mem.info.role == Role::kScratch) {
      if (pass_ == 0) return "mem: scratch is written outside a pass";
      if (mem.stored) return "mem: scratch is written twice";
      mem.stored_in = pass_;
    } else if (pass_ == 0 && (bits(mem.info.cls) & fold_)) {
      return "mem: varies over the reduced axes, outside a pass";
    }
    mem.stored = true;
    return {};
  }

  std::string check_gather() {
    std::string error = check_mem(Role::kGather, Role::kGather);
    if (!error.empty()) return error;
    return define(bits(memory_[instr_.mem].info.cls) | source_cls_[0]);
  }

  std::string check_iota() {
    std::string error = check_mem(Role::kIota, Role::kIota);
    if (!error.empty()) return error;
    return define(bits(memory_[instr_.mem].info.cls));
  }

  std::string check_const() {
    const RegType type = row().fields[0].type;
    if (type == RegType::kB8 && instr_.imm > 1) return "imm: a b8 is 0 or 1";
    if (reg_bytes(type) == 4 && (instr_.imm >> 32) != 0) return "imm: wider than its type";
    return define(0);
  }

  std::string check_fold() {
    if (pass_ == 0) return "outside a pass";
    const int kept = source_cls_[0] & ~fold_;
    if (source_cls_[1] & ~fold_ & ~kept) {
      return "b: varies over a kept axis that a does not vary over";
    }
    return define(kept, /*is_fold=*/true);
  }

  std::string check_mark() {
    switch (static_cast<Op>(instr_.op)) {
      case Op::pass:
        if (pass_ != 0) return "passes do not nest";
        if (n_passes_ == header_.n_passes) return "more passes than the header says";
        pass_ = ++n_passes_;
        return {};
      case Op::end:
        if (pass_ == 0) return "no pass to end";
        pass_ = 0;
        return {};
      case Op::halt:
        if (pass_ != 0) return "inside a pass";
        halted_ = true;
        return {};
      default:
        return "unknown mark";
    }
  }

  std::string check_totals() {
    if (!halted_) return "the last instruction is not halt";
    if (n_passes_ != header_.n_passes) return "header: more passes than there are";
    if (n_defined_ != header_.n_registers) return "header: more registers than are defined";
    for (int i = 0; i < header_.n_operands; ++i) {
      if (memory_[i].info.role == Role::kOutput && !memory_[i].stored) {
        return "operand m" + number(i) + ": an output that nothing is stored to";
      }
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  Header header_;
  std::size_t code_at_ = 0;
  int fold_ = 0;
  int index_ = 0;
  Instr instr_;
  std::array<int, 3> source_cls_{};
  int pass_ = 0;  // the pass we are in, from 1; 0 is section code
  int n_passes_ = 0;
  int n_defined_ = 0;
  bool halted_ = false;
  std::array<Register, kMaxRegisters> registers_;  // the first n_defined_ are set
  std::array<Memory, kMaxOperands> memory_;
};

}  // namespace

std::string verify(std::span<const std::byte> bytes) { return Verifier(bytes).run(); }

}  // namespace tilevm::bytecode
