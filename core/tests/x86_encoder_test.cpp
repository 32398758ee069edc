// Emitted code has the bytes that asmjit alone would write, and listings are of the code that runs:
// random programs, emitted for a listing, where asmjit encodes every instruction, and without.
#include "exec/native/x86_encoder.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include "exec/native/emit.h"
#include "exec/native/frame.h"
#include "exec/native/listing.h"
#include "tests/check.h"
#include "tests/random_program.h"

namespace {

using namespace tilevm;
using namespace tilevm::exec::native;

template <class Emit>
int compare(const bytecode::View& program, int copies, bool streams, Emit emit, int& compared) {
  asmjit::CodeHolder slow, quick;
  std::optional<Listing> listing;
  for (auto* holder : {&slow, &quick}) {
    holder->init(asmjit::Environment::host());
    if (holder == &slow) listing.emplace(slow);
    try {
      emit(*holder, program, {copies, streams});
    } catch (const Unsupported&) {
      return 0;
    }
  }
  const auto& a = slow.textSection()->buffer();
  const auto& b = quick.textSection()->buffer();
  const bool same = a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
  if (!same) {
    std::size_t i = 0;
    while (i < a.size() && i < b.size() && a.data()[i] == b.data()[i]) ++i;
    std::printf("differs at byte %zu of %zu and %zu:\n", i, a.size(), b.size());
    for (const Line& line : listing->take())
      std::printf("%4x %s\n", line.offset, line.text.c_str());
  }
  CHECK(same);
  ++compared;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 1500;
  test::ProgramGenerator generator(1);
  int compared = 0;
  for (int i = 0; i < n; ++i) {
    test::ProgramOptions options;
    options.max_instrs = i % 3 == 0 ? 90 : 24;
    const auto bytes = generator.next(options);
    const auto view = bytecode::view(bytes);
    for (const int copies : {1, kMaxCopies}) {
      if (compare(view, copies, i % 4 == 0, emit_avx512, compared) != 0) return 1;
      if (compare(view, copies, i % 4 == 0, emit_avx2, compared) != 0) return 1;
    }
  }
  std::printf("%d emissions alike\n", compared);
  CHECK(compared > n);
  return 0;
}
