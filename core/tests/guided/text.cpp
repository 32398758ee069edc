// Guided by coverage (libFuzzer): bytes are text. assemble() refuses it with std::invalid_argument,
// or makes a program of it; one that verify() accepts is the same after another round trip.
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "bytecode/bytecode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tilevm;
  std::vector<std::byte> bytes;
  try {
    bytes = bytecode::assemble({reinterpret_cast<const char*>(data), size});
  } catch (const std::invalid_argument&) {
    return 0;
  }
  if (!bytecode::verify(bytes).empty()) return 0;
  if (bytecode::assemble(bytecode::disassemble(bytes)) != bytes) std::abort();
  return 0;
}
