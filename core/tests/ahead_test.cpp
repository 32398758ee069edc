// Right factors packed ahead: shared, bounded, released; products that read them, whole and some
// columns at a time; executables whose inputs are frozen.
#include "exec/gemm/ahead.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "exec/gemm/brain.h"
#include "exec/gemm/units.h"
#include "fuse/plan.h"
#include "host/executable.h"
#include "schedule/chain.h"
#include "tests/check.h"
#include "tests/heap.h"

namespace {

using namespace tilevm;
using namespace tilevm::exec::gemm;
using host::Object;
using test::Heap;
using test::Tensor;

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = uniform(generator);
  return values;
}

Factor factor_of(Owner owner, const std::vector<float>& b, std::int64_t k, std::int64_t n,
                 bool transposed, Way way = Way::kPacked) {
  const Matrix matrix{reinterpret_cast<const std::byte*>(b.data()), transposed ? 1 : n,
                      transposed ? k : 1, Storage::kF32};
  return {owner, matrix, n, k, way, &tiles()};
}

int test_sharing() {
  const std::vector<float> b = random_floats(70 * 90, 1);
  const Owner owner = new_owner();
  CHECK(ahead_bytes() == 0);
  {
    const SharedAhead one = share(tiles(), factor_of(owner, b, 70, 90, false), 2);
    CHECK(one != nullptr && memory(*one) != nullptr && ahead_bytes() > 70 * 90 * 4);
    const std::int64_t bytes = ahead_bytes();
    CHECK(share(tiles(), factor_of(owner, b, 70, 90, false), 1) == one);
    CHECK(ahead_bytes() == bytes);
    const SharedAhead other = share(tiles(), factor_of(owner, b, 90, 70, true), 1);
    CHECK(other != nullptr && other != one && ahead_bytes() > bytes);
  }
  CHECK(ahead_bytes() == 0);

  const SharedAhead held = share(tiles(), factor_of(owner, b, 70, 90, false), 1);
  const std::shared_ptr<const float> running = memory(*held);
  const std::uint64_t before = ahead_changes();
  forget(owner);
  CHECK(ahead_changes() != before);
  CHECK(memory(*held) == nullptr && ahead_bytes() > 0);  // a launch still reads it
  CHECK(share(tiles(), factor_of(owner, b, 70, 90, false), 1) == nullptr);
  CHECK(share(tiles(), factor_of(0, b, 70, 90, false), 1) == nullptr);
  return 0;
}

int test_limit() {
  const std::vector<float> b = random_floats(64 * 64, 2);
  const Owner owner = new_owner();
  set_ahead_limit(16 << 10);
  const SharedAhead one = share(tiles(), factor_of(owner, b, 64, 64, false), 1);
  CHECK(one != nullptr && ahead_bytes() <= 16 << 10);
  CHECK(share(tiles(), factor_of(owner, b, 64, 64, true), 1) == nullptr);
  CHECK(share(tiles(), factor_of(owner, b, 64, 64, false), 1) == one);
  const std::uint64_t before = ahead_changes();
  set_ahead_limit(0);
  CHECK(ahead_changes() != before);
  CHECK(share(tiles(), factor_of(owner, b, 64, 64, true), 1) != nullptr);
  forget(owner);
  return 0;
}

// Threads that share, read and forget at the same time.
int test_threads() {
  const std::vector<float> b = random_floats(40 * 48, 3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Owner owner = new_owner();
        const SharedAhead ahead = share(tiles(), factor_of(owner, b, 40, 48, t % 2 == 0), 1);
        const auto data = memory(*ahead);
        if (data.get()[0] != b[0]) ++wrong;
        forget(owner);
        if (memory(*ahead) != nullptr) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0 && ahead_bytes() == 0);
  return 0;
}

// Factors that lie one behind the other, some larger than what they share, keep what was packed.
int test_neighbours() {
  const std::vector<float> b = random_floats(2100 * 2100, 4);
  const Owner owner = new_owner();
  std::vector<SharedAhead> held;
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {
      {1, 1},   {3, 5},       {300, 700}, {7, 33},    {2100, 2000},
      {64, 64}, {1000, 2000}, {2, 1},     {1500, 900}};
  for (const auto& [k, n] : sizes)
    held.push_back(share(tiles(), factor_of(owner, b, k, n, false), 1));
  held.erase(held.begin() + 3);
  sizes.erase(sizes.begin() + 3);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const auto& [k, n] = sizes[i];
    const auto data = memory(*held[i]);
    CHECK(reinterpret_cast<std::uintptr_t>(data.get()) % 64 == 0);
    const exec::gemm::Sizes of{0, n, k};
    std::vector<float> alone(static_cast<std::size_t>(packed_elements(tiles(), Way::kPacked, of)));
    pack(tiles(), Way::kPacked, of, factor_of(owner, b, k, n, false).b, 0, n, alone.data());
    CHECK(std::memcmp(data.get(), alone.data(), alone.size() * sizeof(float)) == 0);
  }
  forget(owner);
  return 0;
}

// Columns of a factor that is packed whole, against a factor of these columns alone.
int test_columns() {
  for (const Way way : {Way::kPacked, Way::kPackedPairs}) {
    for (const std::int64_t k : {1, 7, 64, 600, 1100}) {
      const std::int64_t n = 3 * tiles().columns + 5, m = 7;
      const bool pairs = way == Way::kPackedPairs;
      const Storage storage = pairs ? Storage::kBF16 : Storage::kF32;
      if (pairs && choose(tiles(), {64, n, k}, {nullptr, k, 1, storage}, {nullptr, n, 1, storage},
                          true) != way)
        continue;
      std::vector<float> a = random_floats(m * k, 4), b = random_floats(k * n, 5);
      if (pairs) {  // the upper halves of floats, two to each
        for (auto* x : {&a, &b}) {
          auto* bits = reinterpret_cast<std::uint16_t*>(x->data());
          for (std::size_t i = 0; i < x->size(); ++i) {
            std::uint32_t value;
            std::memcpy(&value, &(*x)[i], sizeof(value));
            bits[i] = static_cast<std::uint16_t>(value >> 16);
          }
        }
      }
      const Matrix left{reinterpret_cast<const std::byte*>(a.data()), k, 1, storage};
      const Matrix right{reinterpret_cast<const std::byte*>(b.data()), n, 1, storage};
      const Owner owner = new_owner();
      const SharedAhead ahead = share(tiles(), {owner, right, n, k, way, &tiles()}, 1);
      const std::int64_t first = 2 * tiles().columns, rest = n - first;
      std::vector<float> room(static_cast<std::size_t>(room_elements(tiles(), way, {m, n, k})));
      std::vector<float> whole(static_cast<std::size_t>(m * n));
      std::vector<float> part(static_cast<std::size_t>(m * rest));
      const float* packed = memory(*ahead).get();
      multiply(tiles(), way, {m, n, k}, left, right, packed, room.data(), whole.data(), n);
      multiply(tiles(), way, {m, rest, k}, left, right,
               packed + packed_offset(tiles(), way, {m, n, k}, first), room.data(), part.data(),
               rest);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < rest; ++j)
          CHECK(part[static_cast<std::size_t>(i * rest + j)] ==
                whole[static_cast<std::size_t>(i * n + first + j)]);
      }
      forget(owner);
    }
  }
  return 0;
}

Tensor matrix(const std::vector<float>& elements, std::int64_t rows, std::int64_t columns) {
  Tensor tensor;
  tensor.elements = elements;
  tensor.record.rank = 2;
  tensor.record.size(0) = rows;
  tensor.record.size(1) = columns;
  set_dense_strides(tensor.record);
  tensor.record.data = reinterpret_cast<std::byte*>(tensor.elements.data());
  return tensor;
}

// exp(x w), where w is frozen.
host::Options frozen() {
  host::Options options;
  options.frozen = {1};
  return options;
}
fuse::Plan plan() {
  Program program;
  Type x_type, w_type;
  const SizeId m = program.sizes.symbol("m"), k = program.sizes.symbol("k"),
               n = program.sizes.symbol("n");
  x_type.shape.push(m), x_type.shape.push(k);
  w_type.shape.push(k), w_type.shape.push(n);
  const ValueId x = program.input(x_type), w = program.input(w_type);
  const ValueId factors[] = {x, w};
  const ValueId product[] = {program.add(Op::matmul, factors)};
  program.outputs = {program.add(Op::exp, product)};
  return fuse::fuse(lower(program));
}

int test_executable() {
  constexpr std::int64_t k = 65;
  const std::vector<float> first = random_floats(k * 700, 6), second = random_floats(k * 700, 7);
  Heap heap;
  Tensor w = matrix(first, k, 700), other = matrix(second, k, 700);
  heap.owners = {{&w, new_owner()}, {&other, new_owner()}};
  {
    host::Executable ahead(plan(), frozen(), heap), same(plan(), frozen(), heap);
    host::Executable plain(plan(), {}, heap);
    const auto run = [&](host::Executable& executable, std::int64_t m, Tensor& weights) {
      Tensor x = matrix(random_floats(m * k, 8), m, k);
      Object outputs[1];
      const Object inputs[] = {&x, &weights};
      executable.run(inputs, outputs);
      auto* result = static_cast<Tensor*>(outputs[0]);
      std::vector<float> elements = result->elements;
      heap.drop(result);
      return elements;
    };
    const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::abs(a[i] - b[i]) > 1e-5f * b[i]) return false;
      }
      return a.size() == b.size();
    };
    for (const std::int64_t m : {0, 1, 7, 33, 300}) {
      for (Tensor* weights : {&w, &other})
        CHECK(near(run(ahead, m, *weights), run(plain, m, *weights)));
    }
    const bool units = schedule::tiles_of({}).units != nullptr;
    const std::string way = units ? "packed pieces" : "packed";
    CHECK(ahead.ways(0).at(0) == "[300, 65] x [65, 700] by " + way + ", packed ahead");
    CHECK(plain.ways(0).at(0).find("ahead") == std::string::npos);
    const std::int64_t bytes = ahead_bytes();
    CHECK(bytes >= 2 * 700 * k * 4 && heap.asked == (units ? 4 : 2));  // once for each and each way
    CHECK(run(same, 33, w) == run(ahead, 33, w) && ahead_bytes() == bytes);

    // Elements that change in spite of the promise are not seen; another memory is.
    Tensor kept = matrix(first, k, 700);
    std::fill(w.elements.begin(), w.elements.end(), 0.0f);
    CHECK(near(run(ahead, 33, w), run(plain, 33, kept)));
    w.elements = second;
    w.record.data = reinterpret_cast<std::byte*>(w.elements.data());
    forget(heap.owners[&w]);
    CHECK(ahead_bytes() < bytes);
    CHECK(near(run(ahead, 33, w), run(plain, 33, other)));
    CHECK(ahead.ways(0).at(0).find("ahead") == std::string::npos);  // nobody owns it now
    const int asked = heap.asked;
    run(ahead, 33, w);
    CHECK(heap.asked == asked);  // nothing has changed since
    heap.owners[&w] = new_owner();
    CHECK(near(run(ahead, 33, w), run(plain, 33, other)));
    CHECK(ahead.ways(0).at(0).find("ahead") != std::string::npos);

    // Beyond the limit: as if nothing were frozen.
    set_ahead_limit(1);
    forget(heap.owners[&w]);
    heap.owners[&w] = new_owner();
    CHECK(run(ahead, 33, w) == run(plain, 33, w));
    CHECK(ahead.ways(0).at(0).find("ahead") == std::string::npos);
    set_ahead_limit(0);
  }
  CHECK(ahead_bytes() == 0 && heap.living == 0);
  return 0;
}

// Any processor may be asked for what only some have (`make test-aarch64`, `make test-avx2`).
int test_asking() {
  CHECK(brain_tiles() != nullptr || units() == nullptr);
  return 0;
}

}  // namespace

int main() {
  for (const auto test : {test_asking, test_sharing, test_limit, test_threads, test_neighbours,
                          test_columns, test_executable}) {
    if (test() != 0) return 1;
  }
  return 0;
}
