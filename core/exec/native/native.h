// Machine code from bytecode: x86-64 with AVX-512 or AVX2, AArch64. A program that cannot be
// emitted is refused with the reason, and interpreted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/interp/interp.h"
#include "exec/launch.h"

namespace tilevm::exec::native {

// What code is emitted for. kNone: nothing, all is interpreted.
enum class Target : std::uint8_t { kNone, kAvx2, kAvx512, kNeon };
inline constexpr Target kTargets[] = {Target::kNone, Target::kNeon, Target::kAvx2, Target::kAvx512};

// Can this processor run it, and may memory be made executable?
bool available(Target target);
// Of 32 bits, in a register; kNone has none.
int lanes(Target target);
Target best();  // the widest that is available: the last of kTargets
// Why best() is kNone; "" if it is not.
const char* why_none();
const char* name(Target target);

// Memory that holds machine code, of the process.
struct CodeMemory {
  std::int64_t used_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t limit_bytes = 0;  // of used_bytes; 0: none
};
CodeMemory code_memory() noexcept;
// Programs that would need more are refused until others are gone.
void set_code_memory_limit(std::int64_t bytes) noexcept;

inline constexpr std::int64_t kStreamAlignment = 64;
bool can_stream(Target target);

class Code {
 public:
  // Null if the program has an instruction, an operand or a structure that is not emitted, or
  // needs more registers than there are. `why`, if given, says which. `streams`: whole vectors of
  // outputs go past the caches; launches must then have those at multiples of kStreamAlignment.
  static std::unique_ptr<Code> emit(std::span<const std::byte> program, Target target,
                                    std::string* why = nullptr, bool streams = false);
  ~Code();

  // Not launches with several reduced axes beside rows and columns, nor those whose strided
  // operands would need more than some megabytes as copies.
  bool can_run(const Launch& launch) const noexcept;
  Status run(const Launch& launch, interp::Scratch& scratch) const noexcept;

  std::span<const std::byte> machine_code() const;

 private:
  struct Impl;
  explicit Code(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A line of what list() says.
struct Line {
  enum class Kind : std::uint8_t {
    kBegin,        // of a loop or section: text is its name
    kEnd,          // of the same; what follows steps the loop around
    kInstruction,  // of the bytecode: the lines that follow are what was emitted for it
    kHost,         // an instruction or a label
    kData          // constants
  };
  Kind kind;
  int offset = -1;       // kHost, kData: bytes from the first
  int instruction = -1;  // kInstruction: its index. It may come several times: unrolled, in tails
  std::string text;
};

// What emit() makes of `program`, emitted anew. Empty if it is refused.
std::vector<Line> list(std::span<const std::byte> program, Target target, bool streams = false);

}  // namespace tilevm::exec::native
