// The host program without Python: views, reshape strides, sizes, arena and memory.
#include <random>
#include <numeric>

#include "host/arena.h"
#include "host/errors.h"
#include "host/executable.h"
#include "exec/memory.h"
#include "host/sizes.h"
#include "host/views.h"
#include "tests/check.h"
#include "tests/heap.h"

namespace {

using namespace tilevm;
using namespace tilevm::host;
using namespace tilevm::exec;
using test::Heap;
using test::Tensor;

Record record(std::byte* data, std::initializer_list<std::int64_t> sizes,
              std::initializer_list<std::int64_t> strides) {
  Record r;
  r.data = data;
  r.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), r.sizes.begin());
  std::copy(strides.begin(), strides.end(), r.strides.begin());
  return r;
}

Geometry sizes_only(std::initializer_list<std::int64_t> sizes) {
  Geometry g;
  g.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), g.sizes.begin());
  return g;
}

int test_reshape_strides() {
  Geometry out = sizes_only({6, 4});
  CHECK(reshape_strides(record(nullptr, {2, 3, 4}, {12, 4, 1}), out));
  CHECK(out.stride(0) == 4 && out.stride(1) == 1);
  out = sizes_only({24});
  CHECK(!reshape_strides(record(nullptr, {4, 6}, {1, 4}), out));
  out = sizes_only({2, 2, 6});  // the outer dim of a transposed matrix splits
  CHECK(reshape_strides(record(nullptr, {4, 6}, {1, 4}), out));
  CHECK(out.stride(0) == 2 && out.stride(1) == 1 && out.stride(2) == 4);
  out = sizes_only({1, 1});
  CHECK(reshape_strides(record(nullptr, {}, {}), out));
  out = sizes_only({0, 7});
  CHECK(reshape_strides(record(nullptr, {5, 0}, {1, 5}), out));
  out = sizes_only({3, 3});
  CHECK(!reshape_strides(record(nullptr, {2, 3}, {3, 1}), out));
  out = sizes_only({std::int64_t{1} << 62, 16});  // the product wraps to 0
  CHECK(!reshape_strides(record(nullptr, {0}, {1}), out));
  return 0;
}

int test_views() {
  std::array<std::int64_t, 8> regs{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<std::byte, 64> memory;
  const Record x = record(memory.data(), {2, 8}, {8, 1});
  Record out;
  View view{Op::slice, {1}, {SizeId{1}, SizeId{3}}, 2};  // x[:, 1::2], three elements
  apply(view, regs, x, 4, out);
  CHECK(out.size(1) == 3 && out.stride(1) == 2 && out.data == memory.data() + 4);
  bool thrown = false;
  try {
    view.sizes[1] = SizeId{5};
    apply(view, regs, x, 4, out);
  } catch (const ShapeError&) {
    thrown = true;
  }
  CHECK(thrown);
  apply({Op::flip, {1}, {}, 1}, regs, x, 4, out);
  CHECK(out.stride(1) == -1 && out.data == memory.data() + 28);
  apply({Op::select, {0}, {SizeId{1}}, 1}, regs, x, 4, out);
  CHECK(out.rank == 1 && out.size(0) == 8 && out.data == memory.data() + 32);
  thrown = false;
  try {
    apply({Op::select, {0}, {SizeId{2}}, 1}, regs, x, 4, out);
  } catch (const IndexError&) {
    thrown = true;
  }
  CHECK(thrown);
  return 0;
}

int test_copy() {
  std::array<std::int32_t, 24> from, to{};
  std::iota(from.begin(), from.end(), 0);
  const Record in = record(reinterpret_cast<std::byte*>(from.data()), {2, 3, 4}, {1, 2, 6});
  const Record out = record(reinterpret_cast<std::byte*>(to.data()), {2, 3, 4}, {12, 4, 1});
  copy(in, out, 4, 1);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) CHECK(to[i * 12 + j * 4 + k] == i + 2 * j + 6 * k);
    }
  }
  // Items of every size; rows side by side, apart, and backwards.
  std::array<std::byte, 512> bytes, copied;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7);
  for (const int item : {1, 2, 4, 8}) {
    for (const std::int64_t step : {1, 2, -1}) {
      const std::int64_t first = step < 0 ? 4 : 0;
      const Record from = record(bytes.data() + first * item, {3, 5}, {10, step});
      copied.fill(std::byte{});
      copy(from, record(copied.data(), {3, 5}, {5, 1}), item, 1);
      for (int i = 0; i < 3 * 5 * item; ++i) {
        const std::int64_t element = i / item / 5 * 10 + i / item % 5 * step + first;
        CHECK(copied[static_cast<std::size_t>(i)] ==
              bytes[static_cast<std::size_t>(element * item + i % item)]);
      }
      CHECK(copied[static_cast<std::size_t>(3 * 5 * item)] == std::byte{});
    }
  }
  return 0;
}

int test_sizes() {
  Program program;
  shape::SizeTable& sizes = program.sizes;
  const SizeId n = sizes.symbol("n"), m = sizes.symbol("m", {0, 8, 1}), u = sizes.symbol("u");
  Type type;
  type.shape.push(n);
  type.shape.push(sizes.add(sizes.mul(sizes.constant(2), m), sizes.constant(1)));
  const ValueId x = program.input(type);
  Type later;
  later.shape.push(u);
  const ValueId y = program.input(later);
  const SizeId product = sizes.mul(n, m), both = sizes.add(product, u);

  SizeProgram run;
  const Arrival first[] = {{x, "x"}}, second[] = {{y, "y"}};
  run.add_stage(program, first);
  run.add_stage(program, second);
  const SizeId wanted[] = {product, both};
  run.compile(program, wanted);
  CHECK(run.stage_of(product) == 0 && run.stage_of(both) == 1);

  std::vector<Record> records(program.values.size());
  std::vector<std::int64_t> ints(program.values.size());
  std::vector<std::int64_t> regs(run.initial().begin(), run.initial().end());
  records[0] = record(nullptr, {3, 11}, {11, 1});
  records[1] = record(nullptr, {4}, {1});
  run.run(0, sizes, records, ints, regs);
  CHECK(regs[static_cast<std::size_t>(m)] == 5 && regs[static_cast<std::size_t>(product)] == 15);
  run.run(1, sizes, records, ints, regs);
  CHECK(regs[static_cast<std::size_t>(both)] == 19);
  for (const std::int64_t bad : {12, 99}) {  // even; m would be 49
    bool thrown = false;
    records[0].size(1) = bad;
    try {
      run.run(0, sizes, records, ints, regs);
    } catch (const ShapeError&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  SizeProgram missing;
  missing.add_stage(program, second);
  bool thrown = false;
  try {
    missing.compile(program, wanted);
  } catch (const ShapeError&) {
    thrown = true;
  }
  CHECK(thrown);
  return 0;
}

// Whatever the sizes are, what lives at the same time lies apart.
int test_arena() {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 200; ++round) {
    shape::SizeTable sizes;
    std::vector<SizeId> bytes;
    for (int s = 0; s < 6; ++s) bytes.push_back(sizes.symbol("s" + std::to_string(s)));
    const int n = 1 + below(40);
    std::vector<Lifetime> lives;
    for (ValueId v = 0; v < n; ++v) {
      const int first = v + below(3), stage = below(8) == 0 ? 1 : 0;
      Lifetime& life = lives.emplace_back(
          Lifetime{v, bytes[static_cast<std::size_t>(below(6))], stage, first, first + below(9)});
      for (Lifetime& other : lives) {  // the last of those that die in this step
        if (other.value != v && other.last == first + 1 && life.last > first &&
            other.bytes == life.bytes && other.stage == stage && !other.is_replaced &&
            below(2) == 0) {
          life.over = other.value;
          other.is_replaced = true;
          break;
        }
      }
    }
    std::vector<std::int64_t> typical(static_cast<std::size_t>(sizes.count()), 100);
    for (const SizeId size : bytes) typical[static_cast<std::size_t>(size)] = 1 + below(500);
    const ArenaPlan plan = plan_arena(lives, typical, static_cast<std::size_t>(n));
    const auto replaced = std::ranges::count(lives, true, &Lifetime::is_replaced);
    CHECK(static_cast<std::ptrdiff_t>(plan.buffers.size()) == n - replaced);
    for (int trial = 0; trial < 5; ++trial) {
      std::vector<std::int64_t> actual = typical;
      if (trial > 0) {
        for (const SizeId size : bytes) actual[static_cast<std::size_t>(size)] = below(1000);
      }
      std::vector<std::int64_t> offset, end;
      for (const Placed& buffer : plan.buffers) {
        std::int64_t at = 0;
        for (const std::int32_t b : buffer.below) {
          CHECK(static_cast<std::size_t>(b) < end.size());
          at = std::max(at, end[static_cast<std::size_t>(b)]);
        }
        offset.push_back(at);
        end.push_back(at + actual[static_cast<std::size_t>(buffer.bytes)]);
      }
      std::int64_t least = 0, most = 0;  // bytes that live at once, and that are taken
      for (const Lifetime& a : lives) {
        std::int64_t alive = 0;
        const auto i = static_cast<std::size_t>(plan.buffer_of[static_cast<std::size_t>(a.value)]);
        most = std::max(most, end[i]);
        for (const Lifetime& b : lives) {
          const auto j =
              static_cast<std::size_t>(plan.buffer_of[static_cast<std::size_t>(b.value)]);
          if (b.first <= a.first && a.first <= b.last && b.stage == a.stage && b.over != a.value) {
            alive += actual[static_cast<std::size_t>(b.bytes)];
          }
          if (i == j || a.stage != b.stage) continue;
          if (a.last < b.first || b.last < a.first) continue;
          CHECK(end[i] <= offset[j] || end[j] <= offset[i] || offset[i] == end[i] ||
                offset[j] == end[j]);
        }
        least = std::max(least, alive);
      }
      if (trial == 0) CHECK(most <= 2 * least);
    }
  }
  shape::SizeTable sizes;
  const SizeId one = sizes.constant(1), two = sizes.constant(2);
  std::vector<std::int64_t> regs(static_cast<std::size_t>(sizes.count()));
  regs[static_cast<std::size_t>(one)] = 1;
  regs[static_cast<std::size_t>(two)] = 2;
  const Lifetime lives[] = {{0, one, 0, 0, 1},
                            {1, one, 0, 0, 2},
                            {2, two, 0, 3, 4},
                            {3, one, 0, 4, 5},
                            {4, one, 0, 5, 6, -1, 3}};
  const ArenaPlan plan = plan_arena(lives, regs, 5);
  CHECK(plan.buffer_of[3] == plan.buffer_of[4]);  // where the one dies that it is made of
  CHECK(plan.buffers.size() == 4);
  CHECK(plan.buffers[static_cast<std::size_t>(plan.buffer_of[2])].below.empty());
  return 0;
}

int test_memory() {
  free_idle_memory();
  reset_memory_peak();
  const std::int64_t used = memory_stats().used_bytes;
  Block blocks[3] = {acquire(1), acquire(100'000), acquire(std::size_t{5} << 20)};
  for (const Block& b : blocks) CHECK(reinterpret_cast<std::uintptr_t>(b.data) % kAlignment == 0);
  for (const Block& b : blocks) std::fill_n(b.data, b.bytes, std::byte{1});
  const Block again = blocks[2];
  for (const Block& b : blocks) release(b);
  CHECK(memory_stats().used_bytes == used && memory_stats().idle_bytes > 5 << 20);
  const Block smaller =
      acquire(std::size_t{4} << 20);  // a block that is a little too large will do
  CHECK(smaller.data == again.data && smaller.bytes == again.bytes);
  release(smaller);
  const Block other = acquire(std::size_t{1} << 20);  // ... much too large only for a launch
  const Block brief = acquire_for_launch(std::size_t{1} << 20);
  CHECK(other.data != again.data && brief.data == again.data && brief.bytes == again.bytes);
  release(other);
  release(brief);
  set_memory_budget(1 << 20);
  CHECK(memory_stats().idle_bytes <= 1 << 20);
  set_memory_budget(0);
  CHECK(acquire(SIZE_MAX / 2).data == nullptr);
  free_idle_memory();
  CHECK(memory_stats().idle_bytes == 0 && memory_stats().used_bytes == used);
  return 0;
}

int test_executable() {
  Program program;
  Type type;
  type.shape.push(program.sizes.symbol("a"));
  type.shape.push(program.sizes.symbol("b"));
  const ValueId x = program.input(type);
  const ValueId in[] = {x, x};
  const ValueId y = program.add(Op::add, in);
  const Type results[] = {type};
  const ValueId args[] = {y};
  const ValueId z = program.call(0, args, results);
  const ValueId in2[] = {z, x};
  program.outputs = {program.add(Op::mul, in2), y};

  Heap heap;
  Executable executable(fuse::fuse(lower(program)), {}, heap);
  Tensor tensor;
  tensor.elements = {1, 2, 3, 4, 5, 6};
  tensor.record = record(reinterpret_cast<std::byte*>(tensor.elements.data()), {2, 3}, {3, 1});
  const Object inputs[] = {&tensor};
  Object outputs[2] = {};
  for (int i = 0; i < 3; ++i) {
    executable.run(inputs, outputs);
    CHECK(heap.living == 2);
    const auto& out = *static_cast<Tensor*>(outputs[0]);
    for (std::size_t e = 0; e < 6; ++e) {
      CHECK(out.elements[e] == 2 * tensor.elements[e] * tensor.elements[e]);
    }
    for (const Object o : outputs) heap.drop(o);
    CHECK(heap.living == 0);
  }
  heap.fail = true;
  bool thrown = false;
  try {
    executable.run(inputs, outputs);
  } catch (const ForeignError&) {
    thrown = true;
  }
  CHECK(thrown && heap.living == 0 && tensor.references == 1);
  return 0;
}

}  // namespace

int main() {
  for (const auto test : {test_reshape_strides, test_views, test_copy, test_sizes, test_arena,
                          test_memory, test_executable}) {
    if (test() != 0) return 1;
  }
  return 0;
}
