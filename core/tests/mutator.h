// Breaks programs: mutants of valid ones, near enough that some are valid too, and random bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "bytecode/bytecode.h"
#include "tests/random_program.h"

namespace tilevm::test {

class Mutator {
 public:
  using Bytes = std::vector<std::byte>;

  explicit Mutator(ProgramGenerator& random) : random_(random) {}

  void mutate(Bytes& bytes) {
    for (int n = 1 + random_.below(3); n > 0; --n) mutate_once(bytes);
  }

  Bytes random_bytes() {
    Bytes bytes(static_cast<std::size_t>(random_.below(200)));
    for (std::byte& b : bytes) b = any_byte();
    if (bytes.size() >= sizeof(Header) && random_.chance(80)) {
      Header header;
      header.n_instrs = static_cast<std::uint16_t>((bytes.size() - 16) / 16);
      std::memcpy(bytes.data(), &header, sizeof(header));
    }
    return bytes;
  }

 private:
  using Header = bytecode::Header;
  using Instr = bytecode::Instr;
  using OperandInfo = bytecode::OperandInfo;

  std::byte any_byte() {
    return static_cast<std::byte>(random_.chance(50) ? random_.below(8) : random_.below(256));
  }

  void mutate_once(Bytes& bytes) {
    if (bytes.empty()) return;
    const int n = static_cast<int>(bytes.size());
    const int code_at = code_start(bytes);
    const int n_instrs = (n - code_at) / static_cast<int>(sizeof(Instr));
    switch (random_.below(9)) {
      case 0:
        bytes[random_.below(n)] ^= static_cast<std::byte>(1 << random_.below(8));
        return;
      case 1:
        bytes[random_.below(n)] = any_byte();
        return;
      case 2:
        bytes.resize(random_.below(n + 8));
        return;
      case 3:
        bytes[random_.below(std::min(n, 16))] = any_byte();
        return;
      case 4:  // another field of an instruction
        if (n_instrs > 0) {
          const int at = code_at + 16 * random_.below(n_instrs) + 2 * random_.below(8);
          const auto value = static_cast<std::uint16_t>(random_.below(40));
          std::memcpy(bytes.data() + at, &value, sizeof(value));
        }
        return;
      case 5:  // another instruction with the same operands
        if (n_instrs > 0) {
          const int at = code_at + 16 * random_.below(n_instrs);
          const auto op = static_cast<std::uint16_t>(random_.below(bytecode::kOpCount));
          std::memcpy(bytes.data() + at, &op, sizeof(op));
        }
        return;
      case 6:  // one instruction over another, with its dst kept
        if (n_instrs > 0) {
          std::byte* to = bytes.data() + code_at + 16 * random_.below(n_instrs);
          Instr instr, old;
          std::memcpy(&old, to, 16);
          std::memcpy(&instr, bytes.data() + code_at + 16 * random_.below(n_instrs), 16);
          if (instr.dst != 0) instr.dst = old.dst;
          std::memcpy(to, &instr, 16);
        }
        return;
      case 7:  // two neighbours swapped
        if (n_instrs > 1) {
          std::byte* at = bytes.data() + code_at + 16 * random_.below(n_instrs - 1);
          std::swap_ranges(at, at + 16, at + 16);
        }
        return;
      case 8:  // another operand table entry
        if (code_at > 16) {
          const int at = 16 + random_.below(code_at - 16);
          bytes[at] = static_cast<std::byte>(random_.below(bytecode::kStorages));
        }
        return;
    }
  }

  static int code_start(const Bytes& bytes) {
    Header header;
    if (bytes.size() < sizeof(header)) return static_cast<int>(bytes.size());
    std::memcpy(&header, bytes.data(), sizeof(header));
    const std::size_t at = sizeof(Header) + sizeof(OperandInfo) * header.n_operands;
    return static_cast<int>(std::min(at, bytes.size()));
  }

  ProgramGenerator& random_;
};

}  // namespace tilevm::test
