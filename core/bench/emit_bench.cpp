// How long machine code takes to emit: chains of operators, and rows folded in passes.
//
//   emit_bench [repeats]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bytecode/bytecode.h"
#include "exec/native/native.h"

namespace tilevm::bench {
namespace {

using exec::native::Code;
using exec::native::Target;

// x and y through `n` operators, most of one instruction, every fifth a function.
std::string chain(int n) {
  const char* const ops[] = {"add_f32", "mul_f32", "maximum_f32", "sub_f32", "tanh_f32"};
  std::string text =
      "kernel fold=none\nm0 input f32 c contiguous\nm1 input f32 c contiguous\n"
      "m2 output f32 c contiguous\nload_f32 c0, m0\nload_f32 c1, m1\n";
  for (int i = 0; i < n; ++i) {
    const std::string last = "c" + std::to_string(i + 1);
    const std::string name = ops[i % 5];
    text += name + " c" + std::to_string(i + 2) + ", " + last;
    if (name != "tanh_f32") text += ", c" + std::to_string(i / 2);
    text += "\n";
  }
  return text + "store_f32 m2, c" + std::to_string(n + 1) + "\nhalt\n";
}

constexpr const char* kSoftmax =
    "kernel fold=columns\nm0 input f32 r contiguous\nm1 output f32 r contiguous\n"
    "m2 scratch f32 c contiguous\n"
    "pass\nload_f32 r0, m0\nmax_f32 u1, r0\nend\n"
    "pass\nload_f32 r2, m0\nsub_f32 r3, r2, u1\nexp_f32 r4, r3\nstore_f32 m2, r4\n"
    "sum_f32 u5, r4\nend\nreciprocal_f32 u6, u5\n"
    "pass\nload_f32 r7, m2\nmul_f32 r8, r7, u6\nstore_f32 m1, r8\nend\nhalt\n";

void measure(const char* name, const std::string& text, Target target, int repeats) {
  const std::vector<std::byte> bytes = bytecode::assemble(text);
  std::vector<double> times;
  std::size_t size = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::string why;
    const auto code = Code::emit(bytes, target, &why);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (code == nullptr) {
      std::printf("%-12s %-8s refused: %s\n", name, exec::native::name(target), why.c_str());
      return;
    }
    size = code->machine_code().size();
    times.push_back(took.count());
  }
  std::ranges::sort(times);
  std::printf("%-12s %-8s %8.2f us median, %8.2f best, %6zu bytes\n", name,
              exec::native::name(target), times[times.size() / 2], times.front(), size);
}

}  // namespace
}  // namespace tilevm::bench

int main(int argc, char** argv) {
  using namespace tilevm;
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 2000;
  for (const auto target : exec::native::kTargets) {
    if (target == exec::native::Target::kNone || !exec::native::available(target)) continue;
    bench::measure("chain of 5", bench::chain(5), target, repeats);
    bench::measure("chain of 20", bench::chain(20), target, repeats);
    bench::measure("chain of 40", bench::chain(40), target, repeats);
    bench::measure("softmax", bench::kSoftmax, target, repeats);
  }
}
