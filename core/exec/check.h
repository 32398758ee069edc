// The launch's half of memory safety: verify() proves a program's structure, this proves that the
// sizes and strides at hand keep what it touches inside its operands.
#pragma once

#include <span>
#include <string>

#include "bytecode/bytecode.h"
#include "exec/launch.h"

namespace tilevm::exec {

// The memory an operand may touch: lo <= address < hi. Not used for scratch and iota.
struct Extent {
  std::byte* lo = nullptr;
  std::byte* hi = nullptr;
};

// Returns "" if the launch is sound, else which operand breaks what. For a program that verify()
// accepted. Proves, without overflow:
// - every element an operand may touch lies in its extent, and an iota's values fit in 64 bits;
// - strides are as OperandInfo promises, on every axis that has more than one point;
// - operands used in section code do not move over the reduced axes;
// - an output overlaps no operand that is read, unless both are the same elements in the same
//   order, each point has its own, and every load comes before the store; nor another output.
// Gathers check their indices when they run. Does not allocate if the launch is sound.
std::string check_launch(const bytecode::View& program, const Launch& launch,
                         std::span<const Extent> extents);

}  // namespace tilevm::exec
