// What the words of a trace are: `trace.cpp` writes them, `read.cpp` makes programs of them.
#pragma once

#include <cstdint>

namespace tilevm::eager {

// The two sizes that programs know; all others are symbols, equal where their values are.
inline constexpr std::uint32_t kOne = 0, kZero = 1;
inline constexpr std::uint32_t kInputWord = 0x80000000;
inline constexpr std::uint32_t kTargetWord = 0x40000000;  // of an output: written to an input
inline constexpr std::uint32_t kTemplateWord = 0xffff;    // in the place of an operator

}  // namespace tilevm::eager
