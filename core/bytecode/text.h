// Text of parts of the bytecode.
#pragma once

#include <cstdint>
#include <string>

#include "bytecode/bytecode.h"

namespace tilevm::bytecode {

// A constant, in the shortest text that reads back as the same bits.
std::string imm_text(RegType type, std::uint64_t imm);

}  // namespace tilevm::bytecode
