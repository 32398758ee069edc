// The text form. One line an instruction:
//
//   kernel fold=columns
//   m0 input f32 r contiguous
//   m1 output f32 u
//   0000  pass                            ; start a sweep over the reduced axes
//   0001    load_f32 r0, m0               ; r0 = f32 elements of m0 at this block
//
// Registers are written with the letter of their class. Indices and comments are for the reader.
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <unordered_map>

#include "bytecode/bytecode.h"
#include "isa.gen.h"

namespace tilevm::bytecode {
namespace {

constexpr std::string_view kClsNames = "scur";
constexpr std::array<std::string_view, 4> kFoldNames = {"none", "columns", "rows", "both"};
constexpr std::array<std::string_view, 5> kRoleNames = {"input", "output", "scratch", "gather",
                                                        "iota"};
constexpr std::size_t kCommentColumn = 40;

constexpr std::array<std::string_view, kStorages> storage_names() {
  std::array<std::string_view, kStorages> names;
  for (int s = 0; s < kStorages; ++s) names[static_cast<std::size_t>(s)] = kStorageInfo[s].name;
  return names;
}

template <typename T>
std::string shortest(T value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

std::string hex(std::uint64_t bits) {
  std::array<char, 20> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), bits, 16);
  return "0x" + std::string(text.data(), end.ptr);
}

template <typename Float>
using BitsOf = std::conditional_t<sizeof(Float) == 4, std::uint32_t, std::uint64_t>;

template <typename Float>
Float float_of(std::uint64_t imm) {
  return std::bit_cast<Float>(static_cast<BitsOf<Float>>(imm));
}

template <typename Float>
constexpr std::uint64_t kQuietNaN =
    std::bit_cast<BitsOf<Float>>(std::numeric_limits<Float>::quiet_NaN());

// The shortest text that reads back as the same bits. A NaN but the usual one is its bits.
template <typename Float>
std::string float_text(std::uint64_t bits) {
  const auto value = float_of<Float>(bits);
  if (std::isnan(value)) return bits == kQuietNaN<Float> ? "nan" : "nan:" + hex(bits);
  std::string text = shortest(value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string imm_text(RegType type, std::uint64_t imm) {
  switch (type) {
    case RegType::kF32:
      return float_text<float>(imm);
    case RegType::kF64:
      return float_text<double>(imm);
    case RegType::kI32:
      return shortest(static_cast<std::int32_t>(imm));
    case RegType::kI64:
      return shortest(static_cast<std::int64_t>(imm));
    case RegType::kB8:
      return shortest(imm);
  }
  return {};
}

namespace {

std::string register_text(std::uint16_t id, int cls) {
  return kClsNames[cls & 3] + shortest(int{id});
}

constexpr std::array<std::string_view, 6> kFieldNames = {"dst", "a", "b", "c", "mem", "imm"};

// Where field `f` of an instruction stands in kFieldNames; `n_sources` counts the sources before
// it.
int field_slot(FieldKind kind, int n_sources) {
  switch (kind) {
    case FieldKind::kDst:
      return 0;
    case FieldKind::kSrc:
      return 1 + n_sources;
    case FieldKind::kMem:
      return 4;
    case FieldKind::kImm:
      return 5;
  }
  return 0;
}

// What the operands are called in this instruction, by kFieldNames; empty if it has no such field.
using FieldTexts = std::array<std::string, kFieldNames.size()>;

std::string field_text(const Instr& instr, const InstrInfo& row, int f, int n_sources) {
  const std::uint16_t sources[] = {instr.a, instr.b, instr.c};
  const int dst_cls = row.cls == InstrClass::kConst ? 0 : instr.classes;
  switch (row.fields[f].kind) {
    case FieldKind::kDst:
      return register_text(instr.dst, dst_cls);
    case FieldKind::kSrc:
      return register_text(sources[n_sources], instr.classes >> (2 * n_sources + 2));
    case FieldKind::kMem:
      return "m" + shortest(int{instr.mem});
    case FieldKind::kImm:
      return imm_text(row.fields[f].type, instr.imm);
  }
  return {};
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The effect up to its first semicolon, with the names of this instruction's operands.
std::string effect_text(std::string_view effect, const FieldTexts& texts) {
  effect = effect.substr(0, effect.find(';'));
  std::string result;
  for (std::size_t at = 0; at < effect.size();) {
    std::size_t end = at;
    while (end < effect.size() && is_word(effect[end])) ++end;
    std::string_view word = effect.substr(at, end == at ? 1 : end - at);
    at += word.size();
    for (std::size_t i = 0; i < kFieldNames.size(); ++i) {
      if (word == kFieldNames[i] && !texts[i].empty()) word = texts[i];
    }
    result += word;
  }
  return result;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// Reads text forms line by line; every error names the line and what to write instead.
class Assembler {
 public:
  explicit Assembler(std::string_view text) : text_(text) {
    for (int op = 0; op < kOpCount; ++op) opcodes_.emplace(kIsa[op].name, op);
  }

  std::vector<std::byte> run() {
    while (!text_.empty()) {
      ++line_number_;
      const std::size_t end = text_.find('\n');
      line_ = text_.substr(0, end);
      text_ = end == std::string_view::npos ? std::string_view{} : text_.substr(end + 1);
      line_ = line_.substr(0, line_.find(';'));
      const std::string_view word = next_word();
      if (word.empty()) {
        if (!rest().empty()) fail("unexpected '" + std::string(rest()) + "'; remove it");
        continue;
      }
      if (!has_header_) {
        read_header(word);
      } else if (word.size() > 1 && word[0] == 'm' && is_digit(word[1])) {
        read_operand(word);
      } else {
        read_instr(is_digit(word[0]) ? next_word() : word);
      }
      if (!rest().empty()) fail("unexpected '" + std::string(rest()) + "'; remove it");
    }
    if (!has_header_) {
      ++line_number_;
      fail("no program; begin with 'kernel fold=none'");
    }
    return write();
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("line " + shortest(line_number_) + ": " + what);
  }

  std::string_view rest() {
    const std::size_t at = line_.find_first_not_of(" \t\r");
    line_ = at == std::string_view::npos ? std::string_view{} : line_.substr(at);
    return line_;
  }

  std::string_view next_word() {
    rest();
    std::size_t end = 0;
    while (end < line_.size() && is_word(line_[end])) ++end;
    const std::string_view word = line_.substr(0, end);
    line_ = line_.substr(end);
    return word;
  }

  // Everything up to the next comma or space: numbers have signs and points.
  std::string_view next_literal() {
    rest();
    const std::string_view literal = line_.substr(0, line_.find_first_of(" \t\r,"));
    line_ = line_.substr(literal.size());
    return literal;
  }

  bool take(char c) {
    if (rest().empty() || line_[0] != c) return false;
    line_ = line_.substr(1);
    return true;
  }

  template <std::size_t N>
  int one_of(std::string_view word, const std::array<std::string_view, N>& names,
             std::string_view what) const {
    for (std::size_t i = 0; i < N; ++i) {
      if (word == names[i]) return static_cast<int>(i);
    }
    std::string list;
    for (const std::string_view name : names) list.append(list.empty() ? "" : ", ").append(name);
    fail(std::string(what) + " '" + std::string(word) + "' is not one of " + list);
  }

  int cls_of(std::string_view word) const {
    const std::size_t cls = word.size() == 1 ? kClsNames.find(word[0]) : std::string_view::npos;
    if (cls == std::string_view::npos) {
      fail("class '" + std::string(word) + "' is not one of s, c, u, r");
    }
    return static_cast<int>(cls);
  }

  // `digits` as a number below `limit`.
  std::uint16_t index_of(std::string_view digits, int limit, std::string_view what) const {
    int value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, value);
    if (digits.empty() || error != std::errc() || at != end || value < 0 || value >= limit) {
      fail(std::string(what) + " '" + std::string(digits) + "' is not a number from 0 to " +
           shortest(limit - 1));
    }
    return static_cast<std::uint16_t>(value);
  }

  void read_header(std::string_view word) {
    if (word != "kernel" || next_word() != "fold" || !take('=')) {
      fail("a program begins with a line like 'kernel fold=none'");
    }
    header_.fold = static_cast<Fold>(one_of(next_word(), kFoldNames, "fold"));
    has_header_ = true;
  }

  void read_operand(std::string_view word) {
    if (!code_.empty()) fail("an operand after the first instruction; move it up");
    if (operands_.size() >= static_cast<std::size_t>(kMaxOperands)) {
      fail("more than " + shortest(kMaxOperands) + " operands; split the kernel");
    }
    if (index_of(word.substr(1), kMaxOperands, "operand") != operands_.size()) {
      fail("operands are numbered in order; write 'm" +
           shortest(static_cast<int>(operands_.size())) + "'");
    }
    OperandInfo info{};
    info.role = static_cast<Role>(one_of(next_word(), kRoleNames, "role"));
    info.storage = static_cast<Storage>(one_of(next_word(), storage_names(), "storage"));
    info.cls = static_cast<Cls>(cls_of(next_word()));
    if (const std::string_view flag = next_word(); !flag.empty()) {
      if (flag != "contiguous") {
        fail("'" + std::string(flag) + "' is not 'contiguous'; correct or remove it");
      }
      info.contiguous = 1;
    }
    operands_.push_back(info);
  }

  void read_instr(std::string_view word) {
    const auto found = opcodes_.find(word);
    if (found == opcodes_.end()) {
      fail("no instruction '" + std::string(word) + "'; docs/isa.md lists them");
    }
    if (code_.size() >= static_cast<std::size_t>(kMaxInstrs)) {
      fail("more than " + shortest(kMaxInstrs) + " instructions; split the kernel");
    }
    const InstrInfo& row = kIsa[found->second];
    Instr instr;
    instr.op = static_cast<std::uint16_t>(found->second);
    int n_sources = 0;
    for (int f = 0; f < row.n_fields; ++f) {
      const FieldInfo& field = row.fields[f];
      if (f != 0 && !take(',')) fail(usage(row));
      switch (field.kind) {
        case FieldKind::kDst: {
          const int cls = read_register(instr.dst, row);
          if (row.cls != InstrClass::kConst) {
            instr.classes |= static_cast<std::uint16_t>(cls);
          } else if (cls != 0) {
            fail("a constant has class s; write 's" + shortest(int{instr.dst}) + "'");
          }
          ++header_.n_registers;
          break;
        }
        case FieldKind::kSrc: {
          std::uint16_t& id = n_sources == 0 ? instr.a : n_sources == 1 ? instr.b : instr.c;
          ++n_sources;
          std::uint16_t source = 0;
          const int cls = read_register(source, row);
          id = source;
          instr.classes |= static_cast<std::uint16_t>(cls << (2 * n_sources));
          break;
        }
        case FieldKind::kMem: {
          const std::string_view mem = next_word();
          if (mem.empty() || mem[0] != 'm') fail(usage(row));
          instr.mem = index_of(mem.substr(1), kMaxOperands, "operand");
          break;
        }
        case FieldKind::kImm:
          instr.imm = read_imm(field.type);
          break;
      }
    }
    if (static_cast<Op>(instr.op) == Op::pass) ++header_.n_passes;
    code_.push_back(instr);
  }

  // Reads `r12`: sets the number, returns the class.
  int read_register(std::uint16_t& id, const InstrInfo& row) {
    const std::string_view word = next_word();
    if (word.size() < 2 || kClsNames.find(word[0]) == std::string_view::npos) fail(usage(row));
    id = index_of(word.substr(1), kMaxRegisters, "register");
    return cls_of(word.substr(0, 1));
  }

  static std::string usage(const InstrInfo& row) {
    std::string text = "write '" + std::string(row.name);
    int n_sources = 0;
    for (int f = 0; f < row.n_fields; ++f) {
      const FieldKind kind = row.fields[f].kind;
      text += f == 0 ? " " : ", ";
      text += "<";
      text += kFieldNames[field_slot(kind, n_sources)];
      text += ">";
      n_sources += kind == FieldKind::kSrc;
    }
    return text + "'; registers are like r0 (or u, c, s by class), memory is like m0";
  }

  std::uint64_t read_imm(RegType type) {
    const std::string_view literal = next_literal();
    switch (type) {
      case RegType::kF32:
        return read_float<float>(literal);
      case RegType::kF64:
        return read_float<double>(literal);
      case RegType::kI32:
        return static_cast<std::uint32_t>(read_int<std::int32_t>(literal));
      case RegType::kI64:
        return static_cast<std::uint64_t>(read_int<std::int64_t>(literal));
      case RegType::kB8:
        if (literal == "0" || literal == "1") return literal == "1";
        fail("'" + std::string(literal) + "' is not a b8; write 0 or 1");
    }
    return 0;
  }

  template <typename T>
  T read_int(std::string_view literal) const {
    T value = 0;
    const char* const end = literal.data() + literal.size();
    const auto [at, error] = std::from_chars(literal.data(), end, value);
    if (literal.empty() || error != std::errc() || at != end) {
      fail("'" + std::string(literal) + "' is not an i" +
           shortest(static_cast<int>(sizeof(T) * 8)) + "; write a decimal number in its range");
    }
    return value;
  }

  template <typename Float>
  std::uint64_t read_float(std::string_view literal) const {
    const char* const end = literal.data() + literal.size();
    constexpr std::string_view kBits = "nan:0x";
    BitsOf<Float> bits = static_cast<BitsOf<Float>>(kQuietNaN<Float>);
    if (literal == "nan") return bits;
    if (literal.substr(0, kBits.size()) == kBits) {
      const auto [at, error] = std::from_chars(literal.data() + kBits.size(), end, bits, 16);
      if (error != std::errc() || at != end || !std::isnan(float_of<Float>(bits))) {
        fail("'" + std::string(literal) +
             "' is not a NaN; write bits like nan:" + hex(kQuietNaN<Float> + 1));
      }
      return bits;
    }
    Float value = 0;
    const auto [at, error] = std::from_chars(literal.data(), end, value);
    if (literal.empty() || error != std::errc() || at != end || std::isnan(value)) {
      fail("'" + std::string(literal) + "' is not an f" +
           shortest(static_cast<int>(sizeof(Float) * 8)) +
           "; write a number in its range, inf, -inf or nan");
    }
    return std::bit_cast<BitsOf<Float>>(value);
  }

  std::vector<std::byte> write() {
    header_.n_operands = static_cast<std::uint16_t>(operands_.size());
    header_.n_instrs = static_cast<std::uint16_t>(code_.size());
    std::vector<std::byte> bytes;
    const auto put = [&](const void* from, std::size_t n) {
      const auto* at = static_cast<const std::byte*>(from);
      bytes.insert(bytes.end(), at, at + n);
    };
    put(&header_, sizeof(header_));
    put(operands_.data(), operands_.size() * sizeof(OperandInfo));
    put(code_.data(), code_.size() * sizeof(Instr));
    return bytes;
  }

  std::string_view text_;
  std::string_view line_;  // what is left of the line being read
  int line_number_ = 0;
  std::unordered_map<std::string_view, int> opcodes_;
  bool has_header_ = false;
  Header header_;
  std::vector<OperandInfo> operands_;
  std::vector<Instr> code_;
};

}  // namespace

std::string disassemble(std::span<const std::byte> bytes, std::span<const std::string> lines) {
  if (std::string error = verify(bytes); !error.empty()) throw std::invalid_argument(error);
  std::vector<std::uint64_t> aligned(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const View program = view(std::as_bytes(std::span(aligned)));

  std::string text = "kernel fold=";
  text.append(kFoldNames[static_cast<int>(program.header->fold)]).append("\n");
  for (std::size_t i = 0; i < program.operands.size(); ++i) {
    const OperandInfo& info = program.operands[i];
    text.append("m").append(shortest(i)).append(" ");
    text.append(kRoleNames[static_cast<int>(info.role)]).append(" ");
    text.append(tilevm::bytecode::info(info.storage).name).append(" ");
    text += kClsNames[static_cast<int>(info.cls)];
    text.append(info.contiguous ? " contiguous\n" : "\n");
  }
  bool in_pass = false;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    const InstrInfo& row = kIsa[instr.op];
    const Op op = static_cast<Op>(instr.op);
    if (op == Op::end) in_pass = false;
    const std::string index = shortest(i);
    std::string line(index.size() < 4 ? 4 - index.size() : 0, '0');
    line.append(index).append(in_pass ? "    " : "  ").append(row.name);
    FieldTexts texts;
    int n_sources = 0;
    for (int f = 0; f < row.n_fields; ++f) {
      const FieldKind kind = row.fields[f].kind;
      std::string& text_of_field = texts[field_slot(kind, n_sources)];
      text_of_field = field_text(instr, row, f, n_sources);
      line.append(f == 0 ? " " : ", ").append(text_of_field);
      n_sources += kind == FieldKind::kSrc;
    }
    if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
    line.append("  ; ").append(effect_text(row.effect, texts));
    if (i < lines.size() && !lines[i].empty()) line.append("  ; ").append(one_line(lines[i]));
    text.append(line).append("\n");
    if (op == Op::pass) in_pass = true;
  }
  return text;
}

std::vector<std::byte> assemble(std::string_view text) { return Assembler(text).run(); }

}  // namespace tilevm::bytecode
