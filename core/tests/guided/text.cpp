// Guided by coverage (libFuzzer): bytes are text. assemble() refuses it with std::invalid_argument,
// or makes a program of it; one that verify() accepts is the same after another round trip.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bytecode/bytecode.h"
#include "tests/random_program.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

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

// Some mutants begin with the text of a program.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  using namespace tilevm;
  if (size > 1 && seed % 64 != 0) return LLVMFuzzerMutate(data, size, most);
  test::ProgramGenerator random(seed);
  const std::string text = bytecode::disassemble(random.next({.max_instrs = 6}));
  size = std::min(text.size(), most);
  std::memcpy(data, text.data(), size);
  return seed % 128 == 0 ? size : LLVMFuzzerMutate(data, size, most);
}
