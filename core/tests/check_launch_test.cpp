// check_launch accepts what stays inside and rejects what does not.
#include "exec/check.h"

#include "tests/check.h"
#include "tests/random_launch.h"
#include "tests/random_program.h"

namespace tilevm::test {
namespace {

using namespace bytecode;
using exec::Binding;
using exec::check_launch;
using exec::Extent;
using exec::Space;
using Bytes = std::vector<std::byte>;

bool says(const std::string& message, std::string_view expected) {
  const bool same =
      expected.empty() ? message.empty() : message.find(expected) != std::string::npos;
  if (!same) {
    std::fprintf(stderr, "expected: '%.*s'\nsaid:     '%s'\n", static_cast<int>(expected.size()),
                 expected.data(), message.c_str());
  }
  return same;
}

// A program with its space, bindings and memory, which tests then bend.
struct Case {
  Bytes bytes;
  Space space;
  std::vector<Binding> bindings;
  std::vector<Extent> extents;

  std::string check() const {
    const View program = view(bytes);
    return check_launch(program, {space, bindings}, extents);
  }
};

std::byte* memory() {
  alignas(64) static std::byte bytes[1 << 16];
  return bytes;
}

// y = |x| over 4 rows of 8 columns: x is m0 at 0, y is m1 at 128.
Case elementwise() {
  Case c;
  c.bytes = assemble(
      "kernel fold=none\nm0 input f32 r contiguous\nm1 output f32 r\n"
      "load_f32 r0, m0\nabs_f32 r1, r0\nstore_f32 m1, r1\nhalt\n");
  c.space.rows = 4;
  c.space.cols = 8;
  c.bindings.resize(2);
  for (int m = 0; m < 2; ++m) {
    c.bindings[m].base = memory() + 128 * m;
    c.bindings[m].y_stride = 32;
    c.bindings[m].x_stride = 4;
    c.extents.push_back({memory() + 128 * m, memory() + 128 * (m + 1)});
  }
  return c;
}

// total = sum of x over columns, read again in section code: x is m0, total is m1, w[row] is m2.
Case row_sum() {
  Case c;
  c.bytes = assemble(
      "kernel fold=columns\nm0 input f32 r contiguous\nm1 output f32 u\nm2 input f32 u\n"
      "pass\nload_f32 r0, m0\nsum_f32 u1, r0\nend\n"
      "load_f32 u2, m2\nadd_f32 u3, u1, u2\nstore_f32 m1, u3\nhalt\n");
  c.space.rows = 4;
  c.space.cols = 8;
  c.space.n_reduced = 1;
  c.space.reduced[0] = 2;
  c.bindings.resize(3);
  c.bindings[0] = {.base = memory(), .y_stride = 32, .x_stride = 4};
  c.bindings[0].reduced[0] = 128;
  c.bindings[1] = {.base = memory() + 256, .y_stride = 4};
  c.bindings[2] = {.base = memory() + 272, .y_stride = 4};
  c.extents = {{memory(), memory() + 256},
               {memory() + 256, memory() + 272},
               {memory() + 272, memory() + 288}};
  return c;
}

Case gathering() {
  Case c;
  c.bytes = assemble(
      "kernel fold=none\nm0 gather f32 c contiguous\nm1 iota i64 u\nm2 output f32 r contiguous\n"
      "iota_i64 u0, m1\ngather_f32 r1, m0, u0\nstore_f32 m2, r1\nhalt\n");
  c.space.rows = 3;
  c.space.cols = 4;
  c.bindings.resize(3);
  c.bindings[0] = {.base = memory(), .x_stride = 4, .gather_stride = 16, .gather_size = 5};
  c.bindings[1] = {.y_stride = 1};
  c.bindings[2] = {.base = memory() + 80, .y_stride = 16, .x_stride = 4};
  c.extents = {{memory(), memory() + 80}, {}, {memory() + 80, memory() + 128}};
  return c;
}

int test_ranges() {
  CHECK(says(elementwise().check(), ""));
  Case c = elementwise();
  c.extents[0].hi -= 1;
  CHECK(says(c.check(), "operand m0: ends 128 bytes from its base, behind its memory"));
  c = elementwise();
  c.extents[1].lo += 1;
  CHECK(says(c.check(), "operand m1: its base is outside its memory"));
  c = elementwise();
  c.bindings[1].y_stride = -32;
  CHECK(says(c.check(), "operand m1: begins -96 bytes from its base, before its memory"));
  c.bindings[1].base += 96;
  CHECK(says(c.check(), ""));
  c = elementwise();
  c.bindings[0].base = nullptr;
  CHECK(says(c.check(), "operand m0: its base is outside"));
  c = elementwise();
  c.space.rows = 5;
  CHECK(says(c.check(), "operand m0: ends 160 bytes"));
  c = elementwise();
  c.space.n_outer = 1;
  c.space.outer[0] = 2;
  c.bindings[0].outer[0] = 4;
  CHECK(says(c.check(), "operand m0: ends 132 bytes"));
  c = elementwise();
  c.space.rows = 0;
  c.bindings[0].base = nullptr;  // an empty tensor has no memory
  CHECK(says(c.check(), ""));
  return 0;
}

int test_overflow() {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  Case c = elementwise();
  c.bindings[0].y_stride = kHuge;
  CHECK(says(c.check(), "operand m0: its offsets overflow"));
  c = elementwise();
  c.space.rows = kHuge;
  CHECK(says(c.check(), "launch: more points than 64 bits count"));
  c = elementwise();
  c.space.rows = kHuge / 8;
  CHECK(says(c.check(), "operand m0: its offsets overflow"));
  c = elementwise();
  c.space.rows = 2;
  c.bindings[0].y_stride = INT64_MIN;
  CHECK(says(c.check(), "operand m0: begins -9223372036854775808 bytes"));
  c = gathering();
  c.bindings[1].start = INT64_MAX - 1;
  CHECK(says(c.check(), "operand m1: its values overflow"));
  c.bindings[1].start = INT64_MAX - 2;
  CHECK(says(c.check(), ""));
  c = gathering();
  c.bindings[0].gather_size = INT64_MAX;
  CHECK(says(c.check(), "operand m0: its offsets overflow"));
  return 0;
}

int test_space() {
  Case c = elementwise();
  c.space.n_outer = exec::kMaxOuter + 1;
  CHECK(says(c.check(), "launch: more than 6 outer or reduced axes"));
  c = elementwise();
  c.space.n_reduced = -1;
  CHECK(says(c.check(), "launch: more than 6 outer or reduced axes"));
  c = elementwise();
  c.space.n_reduced = 1;
  CHECK(says(c.check(), "launch: reduced axes, but no fold"));
  c = elementwise();
  c.space.cols = -1;
  CHECK(says(c.check(), "launch: an axis of size -1"));
  c = elementwise();
  c.bindings.pop_back();
  CHECK(says(c.check(), "launch: 1 bindings for 2 operands"));
  c = elementwise();
  c.extents.pop_back();
  CHECK(says(c.check(), "launch: 1 extents for 2 operands"));
  return 0;
}

int test_promises() {
  Case c = elementwise();
  c.bindings[0].x_stride = 8;
  CHECK(says(c.check(), "operand m0: contiguous, but the column stride is 8"));
  c.space.cols = 1;  // one point does not move
  CHECK(says(c.check(), ""));
  c = elementwise();
  c.bindings[1].x_stride = 0;
  CHECK(says(c.check(), "operand m1: the column stride is 0 exactly if"));
  c = elementwise();
  c.bindings[0].y_stride = 0;
  CHECK(says(c.check(), "operand m0: the row stride is 0 exactly if"));
  CHECK(says(row_sum().check(), ""));
  c = row_sum();
  c.bindings[2].x_stride = 4;
  CHECK(says(c.check(), "operand m2: the column stride is 0 exactly if"));
  c = row_sum();
  c.bindings[2].reduced[0] = 4;
  CHECK(says(c.check(), "operand m2: used outside passes, but it moves over a reduced axis"));
  c = row_sum();
  c.space.reduced[0] = 0;  // the sum of nothing is stored all the same
  c.bindings[0].base = nullptr;
  CHECK(says(c.check(), ""));
  c.extents[1].hi -= 4;
  CHECK(says(c.check(), "operand m1: ends 16 bytes"));
  return 0;
}

int test_gathers() {
  CHECK(says(gathering().check(), ""));
  Case c = gathering();
  c.bindings[0].gather_size = 6;
  CHECK(says(c.check(), "operand m0: ends 96 bytes"));
  c.bindings[0].gather_size = -1;
  CHECK(says(c.check(), "operand m0: gather_size is negative"));
  c.bindings[0].gather_size = 0;  // every index is out of range, so nothing is read
  c.bindings[0].base = nullptr;
  CHECK(says(c.check(), ""));
  c = gathering();
  c.bindings[2].base -= 48;
  c.extents[2].lo -= 48;
  CHECK(says(c.check(), "operand m2: an output that overlaps m0"));
  return 0;
}

int test_overlaps() {
  Case c = elementwise();
  c.bindings[1].base = c.bindings[0].base;
  c.extents[1] = c.extents[0];
  CHECK(says(c.check(), ""));  // in place
  c.bindings[1].base += 32;
  c.extents[1].hi += 32;
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // left and right half of the same rows: ranges cross, elements do not
  c = elementwise();
  c.extents[0] = c.extents[1] = {memory(), memory() + 256};
  c.bindings[0].y_stride = c.bindings[1].y_stride = 64;
  c.bindings[1].base = memory() + 32;
  CHECK(says(c.check(), ""));
  c.bindings[1].base -= 4;
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // even and odd elements
  c = elementwise();
  c.bytes = assemble(
      "kernel fold=none\nm0 input f32 r\nm1 output f32 r\nload_f32 r0, m0\nstore_f32 m1, "
      "r0\nhalt\n");
  c.extents[0] = c.extents[1] = {memory(), memory() + 256};
  c.bindings[0].y_stride = c.bindings[1].y_stride = 64;
  c.bindings[0].x_stride = c.bindings[1].x_stride = 8;
  c.bindings[1].base = memory() + 4;
  CHECK(says(c.check(), ""));
  c.bindings[1].base = memory() + 2;
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // in place, but two rows share elements
  c.bindings[1].base = memory();
  c.bindings[0].y_stride = c.bindings[1].y_stride = 8;
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // in place, but all columns write one element
  c = elementwise();
  c.bytes = assemble(
      "kernel fold=none\nm0 input f32 u\nm1 output f32 u\nload_f32 u0, m0\nstore_f32 m1, "
      "u0\nhalt\n");
  c.bindings[1].base = c.bindings[0].base;
  c.bindings[0].x_stride = c.bindings[1].x_stride = 0;
  CHECK(says(c.check(), "operand m1: its base is outside"));
  c.extents[1] = c.extents[0];
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // in place, but stored before a load
  c = elementwise();
  c.bytes = assemble(
      "kernel fold=none\nm0 input f32 r\nm1 output f32 r\nload_f32 r0, m0\nstore_f32 m1, r0\n"
      "load_f32 r1, m0\nhalt\n");
  c.bindings[1].base = c.bindings[0].base;
  c.extents[1] = c.extents[0];
  CHECK(says(c.check(), "operand m1: an output that overlaps m0"));
  // two outputs
  c = elementwise();
  c.bytes = assemble(
      "kernel fold=none\nm0 output f32 r\nm1 output f32 r\nconst_f32 s0, 1\nstore_f32 m0, s0\n"
      "store_f32 m1, s0\nhalt\n");
  CHECK(says(c.check(), ""));
  c.bindings[1].base = c.bindings[0].base;
  c.extents[1] = c.extents[0];
  CHECK(says(c.check(), "operand m0: an output that overlaps m1"));
  return 0;
}

// What may_overlap answers, against the elements themselves.
int test_overlaps_by_enumeration() {
  std::mt19937_64 rng(3);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  int apart_but_rejected = 0;
  int overlapping = 0;
  for (int i = 0; i < 20000; ++i) {
    Case c = elementwise();
    c.bytes = assemble(
        "kernel fold=none\nm0 output f32 r\nm1 output f32 r\nconst_f32 s0, 1\nstore_f32 m0, s0\n"
        "store_f32 m1, s0\nhalt\n");
    c.space.rows = 2 + below(3);
    c.space.cols = 2 + below(3);
    std::vector<std::vector<int>> elements(2);
    const int same_y = 4 * (below(21) - 10) + (below(4) == 0);
    const int same_x = 4 * (below(9) - 4);
    for (int m = 0; m < 2; ++m) {
      const int y = below(3) != 0 ? same_y : 4 * (below(21) - 10);
      const int x = below(3) != 0 ? same_x : 4 * (below(9) - 4);
      const int base = 1000 + 4 * below(30);
      c.bindings[m] = {
          .base = memory() + base, .y_stride = y == 0 ? 4 : y, .x_stride = x == 0 ? 4 : x};
      c.extents[m] = {memory(), memory() + 4096};
      for (int row = 0; row < c.space.rows; ++row) {
        for (int col = 0; col < c.space.cols; ++col) {
          elements[m].push_back(
              static_cast<int>(base + row * c.bindings[m].y_stride + col * c.bindings[m].x_stride));
        }
      }
    }
    bool overlap = false;
    for (const int p : elements[0]) {
      for (const int q : elements[1]) overlap |= p < q + 4 && q < p + 4;
    }
    const std::string message = c.check();
    if (overlap) CHECK(says(message, "an output that overlaps"));
    overlapping += overlap;
    apart_but_rejected += !overlap && !message.empty();
  }
  CHECK(apart_but_rejected == 0);
  CHECK(overlapping > 1000 && overlapping < 19000);
  return 0;
}

// A tier that touches every element: guard pages would stop it if a range were wrong.
int test_ranges_are_true() {
  ProgramGenerator random(4);
  LaunchGenerator launches(random);
  volatile unsigned sum = 0;
  for (int i = 0; i < 2000; ++i) {
    const Bytes bytes = random.next();
    const View program = view(bytes);
    RandomLaunch launch = launches.next(program, 4);
    for (const Side side : {Side::kRight, Side::kLeft}) {
      launches.place(launch, side);
      CHECK(says(check_launch(program, launch.launch(), launch.extents), ""));
      for (std::size_t m = 0; m < program.operands.size(); ++m) {
        if (launch.memory[m].image.empty()) continue;
        const int last = storage_bytes(program.operands[m].storage) - 1;
        LaunchGenerator::for_each_element(launch, m, [&](std::ptrdiff_t offset) {
          const std::byte* at = launch.bindings[m].base + offset;
          sum = sum + static_cast<unsigned>(at[0]) + static_cast<unsigned>(at[last]);
        });
      }
      CHECK(LaunchGenerator::only_outputs_changed(program, launch));
    }
  }
  return 0;
}

}  // namespace
}  // namespace tilevm::test

int main() {
  using namespace tilevm::test;
  const int failed = test_ranges() + test_overflow() + test_space() + test_promises() +
                     test_gathers() + test_overlaps() + test_overlaps_by_enumeration() +
                     test_ranges_are_true();
  if (failed == 0) std::puts("check_launch_test: passed");
  return failed != 0;
}
