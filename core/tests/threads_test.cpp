// Threads that call, compile, look and set things at the same time. `make sanitize-threads` runs
// this under ThreadSanitizer; here it is whether results are right.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "eager/engine.h"
#include "eager/watch.h"
#include "exec/memory.h"
#include "exec/native/native.h"
#include "host/executable.h"
#include "schedule/kernel.h"
#include "tests/check.h"
#include "tests/heap.h"
#include "trace/trace.h"

namespace {

using namespace tilevm;
using exec::native::Target;
using host::Object;
using test::Heap;
using test::Tensor;

constexpr int kThreads = 4;
constexpr int kRounds = 300;

// Calls work(thread) on several threads, while `meddle` is called again and again on another.
void together(const std::function<void(int)>& work, const std::function<void(int)>& meddle) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    for (int i = 0; !done; ++i) meddle(i);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { work(t); });
  for (std::thread& thread : threads) thread.join();
  done = true;
  other.join();
}

Tensor matrix(std::int64_t rows, std::int64_t columns, float value) {
  Tensor tensor;
  tensor.elements.assign(static_cast<std::size_t>(rows * columns), value);
  tensor.record.rank = 2;
  tensor.record.size(0) = rows;
  tensor.record.size(1) = columns;
  set_dense_strides(tensor.record);
  tensor.record.data = reinterpret_cast<std::byte*>(tensor.elements.data());
  return tensor;
}

// softmax(x w) + bias, where w may be frozen: a product with kernels behind it.
std::unique_ptr<host::Executable> build(Heap& heap, bool frozen) {
  Program program;
  Type x_type, w_type, bias_type;
  const SizeId m = program.sizes.symbol("m"), k = program.sizes.symbol("k"),
               n = program.sizes.symbol("n");
  x_type.shape.push(m), x_type.shape.push(k);
  w_type.shape.push(k), w_type.shape.push(n);
  bias_type.shape.push(m), bias_type.shape.push(n);
  const ValueId x = program.input(x_type), w = program.input(w_type),
                bias = program.input(bias_type);
  const ValueId factors[] = {x, w};
  const ValueId product[] = {program.add(Op::matmul, factors)};
  const ValueId terms[] = {program.add(Op::softmax, product, {Attr::of_ints({1})}), bias};
  program.outputs = {program.add(Op::add, terms)};
  host::Options options;
  if (frozen) options.frozen = {1};
  return host::build(std::move(program), options, heap);
}

// One executable for all threads: sizes that others have not seen, and that they have.
int test_calls(bool frozen) {
  std::atomic<int> wrong{0};
  Heap first;
  Tensor w = matrix(40, 70, 0.5f);
  const exec::gemm::Owner owner = exec::gemm::new_owner();
  first.owners = {{&w, owner}};
  const auto executable = build(first, frozen);
  const schedule::Tier best = schedule::tier();
  schedule::set_most_variants(2);  // so that some are compiled for each launch
  together(
      [&](int t) {
        for (int i = 0; i < kRounds; ++i) {
          const std::int64_t rows = 1 + (i * 7 + t) % 40;
          Tensor x = matrix(rows, 40, 0.25f), bias = matrix(rows, 70, 2.0f);
          const Object inputs[] = {&x, &w, &bias};
          Object outputs[1];
          executable->run(inputs, outputs);
          auto* const out = static_cast<Tensor*>(outputs[0]);
          for (const float value : out->elements) {
            if (std::abs(value - (2 + 1.0f / 70)) > 1e-5f) ++wrong;
          }
          first.drop(out);
        }
      },
      [&](int i) {
        executable->set_profiled(i % 2 == 0);
        executable->profile();
        executable->ways(0);
        for (const schedule::Kernel& kernel : executable->kernels()) kernel.variants();
        schedule::set_tier(i % 3 == 0 ? schedule::Tier{Target::kNone, true} : best);
        schedule::compile_stats();
        exec::native::code_memory();
        exec::free_idle_memory();
        exec::set_memory_budget(i % 4 == 0 ? 1 << 16 : 0);
      });
  schedule::set_tier(best);
  schedule::set_most_variants(64);
  exec::set_memory_budget(0);
  exec::gemm::forget(owner);
  CHECK(wrong == 0 && first.living == 0);
  return 0;
}

// x * x + number, then some negations.
void record(eager::Trace& trace, std::vector<float>& x, int negations) {
  host::Geometry g;
  g.rank = 2;
  g.size(0) = 6;
  g.size(1) = 7;
  set_dense_strides(g);
  const eager::Value a = trace.input(DType::kFloat32, g, reinterpret_cast<std::byte*>(x.data()));
  eager::Value v = trace.add(Op::add, {trace.add(Op::mul, {a, a}), trace.number(-1.0)});
  for (int i = 0; i < negations; ++i) v = trace.add(Op::neg, {v});
  trace.output(v, {});
}

// Recorded segments: more kinds than are kept.
int test_recorded() {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  eager::set_most_segments(3);
  std::atomic<int> wrong{0};
  together(
      [&](int t) {
        std::vector<float> x(42, 1.5f);
        if (t == 0) eager::watch_segments();
        for (int i = 0; i < kRounds; ++i) {
          const int negations = (i + t) % 5;
          eager::Trace trace;
          record(trace, x, negations);
          eager::Filled filled;
          eager::Failure failure;
          engine->count_flush("the test");
          if (!engine->run(trace, {&filled, 1}, {}, failure)) {
            ++wrong;
            continue;
          }
          float value;
          std::memcpy(&value, filled.data, sizeof value);
          if (value != (negations % 2 == 0 ? 1.25f : -1.25f)) ++wrong;
          engine->release(filled.owner);
        }
        if (t == 0 && eager::watched_segments().segments.size() != kRounds) ++wrong;
      },
      [&](int i) {
        eager::engine_stats();
        eager::segment_texts();
        eager::flush_counts();
        if (i % 2 == 0) trace::start(100);
        if (i % 2 == 1) trace::stop();
      });
  trace::stop();
  eager::set_most_segments(1024);
  CHECK(wrong == 0 && eager::engine_stats().segments == 3);
  return 0;
}

}  // namespace

int main() {
  for (const bool frozen : {false, true}) {
    if (test_calls(frozen) != 0) return 1;
  }
  return test_recorded();
}
