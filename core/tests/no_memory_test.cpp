// The n-th allocation fails, for every n, while programs are compiled and run. What was tried
// throws, leaks nothing, and works when it is tried again.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "eager/engine.h"
#include "exec/memory.h"
#include "exec/native/native.h"
#include "host/executable.h"
#include "schedule/kernel.h"
#include "tests/check.h"
#include "tests/heap.h"

// Every allocation of the core and of asmjit comes by here: operator new is ours, and the linker
// was told to send the functions of C to their __wrap_ (CMakeLists.txt).
namespace {

std::atomic<long> left{0};          // until one fails; 0: none will
std::atomic<bool> for_good{false};  // so do all after it
std::atomic<bool> failed{false};
std::atomic<long> living{0};  // made by operator new, and not deleted

bool fails() {
  if (left.load() == 0) return false;
  if (left.load() == 1 && for_good.load()) return failed = true;
  if (left.fetch_sub(1) != 1) return false;
  return failed = true;
}

}  // namespace

extern "C" {
void* __real_malloc(std::size_t);
void* __real_realloc(void*, std::size_t);
void* __real_aligned_alloc(std::size_t, std::size_t);
int __real_posix_memalign(void**, std::size_t, std::size_t);
void* __real_mmap(void*, std::size_t, int, int, int, off_t);

void* __wrap_malloc(std::size_t n) { return fails() ? nullptr : __real_malloc(n); }
void* __wrap_realloc(void* p, std::size_t n) { return fails() ? nullptr : __real_realloc(p, n); }
void* __wrap_aligned_alloc(std::size_t a, std::size_t n) {
  return fails() ? nullptr : __real_aligned_alloc(a, n);
}
int __wrap_posix_memalign(void** p, std::size_t a, std::size_t n) {
  return fails() ? ENOMEM : __real_posix_memalign(p, a, n);
}
void* __wrap_mmap(void* p, std::size_t n, int protection, int flags, int file, off_t at) {
  if (!fails()) return __real_mmap(p, n, protection, flags, file, at);
  errno = ENOMEM;
  return MAP_FAILED;
}
}

// Not inlined: else compilers compare what they see of new with what they see of delete.
[[gnu::noinline]] void* operator new(std::size_t n) {
  void* const p = fails() ? nullptr : __real_malloc(n == 0 ? 1 : n);
  if (p == nullptr) throw std::bad_alloc();
  ++living;
  return p;
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  void* const p = fails() ? nullptr : __real_aligned_alloc(a, (n + a - 1) / a * a);
  if (p == nullptr) throw std::bad_alloc();
  ++living;
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  if (p != nullptr) --living;
  std::free(p);
}
// (A sanitizer has its own of these, which would not be deleted by ours.)
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  void* const p = fails() ? nullptr : __real_malloc(n == 0 ? 1 : n);
  if (p != nullptr) ++living;
  return p;
}
void operator delete(void* p, const std::nothrow_t&) noexcept { operator delete(p); }
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
void operator delete(void* p, std::align_val_t) noexcept { operator delete(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { operator delete(p); }

namespace {

using namespace tilevm;
using exec::native::Target;
using host::Object;
using test::Heap;
using test::Tensor;

constexpr long kEndless = 100'000;

// Allocations fail while this lives.
class Failing {
 public:
  Failing(long nth, bool all_after) {
    for_good = all_after;
    failed = false;
    left = nth;
  }
  ~Failing() { left = 0; }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

// Whether `work` ends well, or as what finds no memory may.
enum class End : std::uint8_t { kDone, kNoMemory, kOther };
template <class Work>
End end_of(Work&& work) {
  try {
    work();
    return End::kDone;
  } catch (const std::bad_alloc&) {
    return End::kNoMemory;
  } catch (const host::MemoryError&) {
    return End::kNoMemory;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "  threw %s\n", e.what());
    return End::kOther;
  }
}

struct Case {
  const char* name;
  std::function<void(Program&)> write;
  std::vector<std::vector<std::int64_t>> shapes;  // of its inputs
  int team = 1;
  host::Options options = {};
};

SizeId symbol(Program& p, const char* name) { return p.sizes.symbol(name); }
ValueId input(Program& p, std::initializer_list<SizeId> dims) {
  Type type;
  for (const SizeId d : dims) type.shape.push(d);
  return p.input(type);
}
ValueId add(Program& p, Op op, std::initializer_list<ValueId> in, std::vector<Attr> attrs = {}) {
  return p.add(op, std::span(in.begin(), in.size()), std::move(attrs));
}

void elementwise(Program& p) {
  const SizeId a = symbol(p, "a"), b = symbol(p, "b");
  const ValueId x = input(p, {a, b}), y = input(p, {b});
  p.outputs = {add(p, Op::relu, {add(p, Op::exp, {add(p, Op::mul, {x, y})})})};
}
void reductions(Program& p) {
  const SizeId a = symbol(p, "a"), b = symbol(p, "b");
  const ValueId x = input(p, {a, b});
  const ValueId soft = add(p, Op::softmax, {x}, {Attr::of_ints({1})});
  p.outputs = {soft, add(p, Op::sum, {soft}, {Attr::of_ints({0}), Attr::of_ints({0})})};
}
void product(Program& p) {
  const SizeId m = symbol(p, "m"), k = symbol(p, "k"), n = symbol(p, "n");
  const ValueId x = input(p, {m, k}), w = input(p, {k, n});
  p.outputs = {add(p, Op::exp, {add(p, Op::matmul, {x, w})})};
}
void attention(Program& p) {
  const SizeId h = symbol(p, "h"), q = symbol(p, "q"), k = symbol(p, "k"), d = symbol(p, "d");
  const ValueId queries = input(p, {h, q, d}), keys = input(p, {h, d, k}),
                values = input(p, {h, k, d});
  const ValueId scores = add(p, Op::matmul, {queries, keys});
  const ValueId weights = add(p, Op::softmax, {scores}, {Attr::of_ints({2})});
  p.outputs = {add(p, Op::matmul, {weights, values})};
}
// Copies of strided memory, views, parts of a concat, a call-out with numbers.
void memory_moves(Program& p) {
  const SizeId a = symbol(p, "a"), b = symbol(p, "b");
  const ValueId x = input(p, {a, b});
  const ValueId turned = add(p, Op::permute, {x}, {Attr::of_ints({1, 0})});
  const SizeId all[] = {p.sizes.mul(a, b)};
  const ValueId flat = add(p, Op::reshape, {turned}, {Attr::of_sizes({all[0]})});
  const ValueId both = add(p, Op::concat, {flat, add(p, Op::neg, {flat})}, {Attr::of_ints({0})});
  const Type type = p.type(both);
  const ValueId args[] = {both, add(p, Op::scalar, {}, {Attr::of_number(2)}),
                          add(p, Op::size_value, {}, {Attr::of_sizes({all[0]})})};
  const ValueId called = p.call(0, args, {&type, 1});
  p.outputs = {add(p, Op::add, {called, both}), turned};
}

std::vector<Case> cases() {
  host::Options frozen;
  frozen.frozen = {1};
  return {{"elementwise", elementwise, {{3, 5}, {5}}},
          {"elementwise, threads", elementwise, {{300, 500}, {500}}, 3},
          {"reductions", reductions, {{7, 33}}},
          {"product", product, {{33, 40}, {40, 70}}},
          {"product, threads", product, {{64, 128}, {128, 300}}, 3},
          {"product, packed ahead", product, {{33, 40}, {40, 70}}, 1, frozen},
          {"attention", attention, {{2, 9, 8}, {2, 8, 11}, {2, 11, 8}}},
          {"attention, threads", attention, {{3, 90, 16}, {3, 16, 100}, {3, 100, 16}}, 3},
          {"memory moves", memory_moves, {{5, 7}}}};
}

std::vector<std::unique_ptr<Tensor>> tensors(const Case& c) {
  std::vector<std::unique_ptr<Tensor>> result;
  for (const auto& shape : c.shapes) {
    auto tensor = std::make_unique<Tensor>();
    for (const std::int64_t size : shape) tensor->record.size(tensor->record.rank++) = size;
    set_dense_strides(tensor->record);
    const auto n = static_cast<std::size_t>(tensor->record.elements());
    for (std::size_t i = 0; i < n; ++i)
      tensor->elements.push_back(static_cast<float>(i % 13) * 0.125f - 0.75f);
    tensor->record.data = reinterpret_cast<std::byte*>(tensor->elements.data());
    result.push_back(std::move(tensor));
  }
  return result;
}

std::unique_ptr<host::Executable> build(const Case& c, Target target, Heap& heap) {
  Program program;
  c.write(program);
  host::Options options = c.options;
  options.settings.tier = schedule::Tier{target, target == Target::kNone};
  return host::build(std::move(program), options, heap);
}

class Caller {
 public:
  explicit Caller(const Case& c) : tensors_(tensors(c)) {
    heap.team = c.team;
    for (const auto& tensor : tensors_) inputs_.push_back(tensor.get());
    // Whoever owns what is packed ahead.
    if (!c.options.frozen.empty()) heap.owners[inputs_[1]] = exec::gemm::new_owner();
  }
  ~Caller() {
    for (const auto& [object, owner] : heap.owners) exec::gemm::forget(owner);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // Calls three times: the first compiles kernels, the second is noted, the third repeats it. A
  // call-out calls once more, so that there are two frames.
  void call(host::Executable& executable) {
    heap.during_call = [this, &executable] { call_once(executable); };
    for (int i = 0; i < 3; ++i) call_once(executable);
  }
  // The elements of all results.
  std::vector<float> results(host::Executable& executable) {
    std::array<Object, 2> outputs{};
    executable.run(inputs_, std::span(outputs).first(executable.n_outputs()));
    std::vector<float> all;
    for (std::size_t o = 0; o < executable.n_outputs(); ++o) {
      const host::Record& record = static_cast<Tensor*>(outputs[o])->record;
      host::Record dense = record;
      set_dense_strides(dense);
      std::vector<float> elements(static_cast<std::size_t>(record.elements()));
      dense.data = reinterpret_cast<std::byte*>(elements.data());
      host::copy(record, dense, sizeof(float), 1);
      all.insert(all.end(), elements.begin(), elements.end());
      heap.drop(outputs[o]);
    }
    return all;
  }
  bool holds_nothing() const {
    for (const auto& tensor : tensors_) {
      if (tensor->references != 1) return false;
    }
    return heap.living == 0;
  }

  Heap heap;

 private:
  void call_once(host::Executable& executable) {
    std::array<Object, 2> outputs{};
    executable.run(inputs_, std::span(outputs).first(executable.n_outputs()));
    for (const Object output : outputs) {
      if (output != nullptr) heap.drop(output);
    }
  }

  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<Object> inputs_;
};

// Within rounding: without memory for machine code a kernel may be interpreted.
bool near(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e-5f * (1 + std::abs(b[i])))) return false;
  }
  return a.size() == b.size();
}

int test_compile(const Case& c, bool all_after) {
  Caller caller(c);
  build(c, Target::kNone, caller.heap);
  const long before = living;
  for (long n = 1; n < kEndless; ++n) {
    End end;
    {
      const Failing failing(n, all_after);
      end = end_of([&] { build(c, Target::kNone, caller.heap); });
    }
    CHECK(living == before && caller.heap.living == 0);
    CHECK(end == End::kDone || (failed && end == End::kNoMemory));  // (a sort can do without)
    if (!failed) {
      CHECK(n > 20);
      return 0;
    }
  }
  return 1;
}

int test_run(const Case& c, Target target, bool all_after) {
  Caller caller(c);
  std::vector<float> expected;
  for (int i = 0; i < 2; ++i) {  // once for what the process keeps
    const auto executable = build(c, target, caller.heap);
    caller.call(*executable);
    expected = caller.results(*executable);
  }
  exec::free_idle_memory();
  const long before = living;
  for (long n = 1; n < kEndless; ++n) {
    {
      const auto executable = build(c, target, caller.heap);
      End end;
      {
        const Failing failing(n, all_after);
        end = end_of([&] { caller.call(*executable); });
      }
      CHECK(end == End::kDone || (failed && end == End::kNoMemory));
      CHECK(caller.holds_nothing());
      for (int again = 0; again < 4; ++again) CHECK(near(caller.results(*executable), expected));
      CHECK(caller.holds_nothing());
    }
    exec::free_idle_memory();
    CHECK(living <= before && exec::memory_stats().used_bytes == 0);
    if (!failed) {
      CHECK(n > 3);
      return 0;
    }
  }
  return 1;
}

// relu(x * y + x), recorded; the second kind of trace has an operator more.
void record(eager::Trace& trace, std::vector<float>& x, bool longer) {
  host::Geometry g;
  g.rank = 2;
  g.size(0) = 6;
  g.size(1) = 7;
  set_dense_strides(g);
  const eager::Value a = trace.input(DType::kFloat32, g, reinterpret_cast<std::byte*>(x.data()));
  eager::Value v = trace.add(Op::add, {trace.add(Op::mul, {a, a}), trace.number(-1.0)});
  if (longer) v = trace.add(Op::neg, {v});
  // Turned, so that its memory is copied before it is handed out.
  const std::int64_t axes[] = {1, 0};
  trace.output(trace.add(Op::permute, {v}, {eager::Param::integers(axes)}), {});
}

int test_recorded(bool all_after) {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  eager::set_most_segments(1);  // each kind takes the other's place
  std::vector<float> x(42, 1.5f);
  const auto call = [&](bool longer, bool& filled) {
    filled = false;
    eager::Trace trace;
    record(trace, x, longer);
    eager::Filled out;
    eager::Failure failure;
    const bool ran = engine->run(trace, {&out, 1}, {}, failure);
    filled = out.data != nullptr;
    if (!ran) {
      if (failure.kind == eager::Failure::Kind::kMemory) throw std::bad_alloc();
      throw std::runtime_error("failed otherwise: " + failure.message);
    }
    float value;
    std::memcpy(&value, out.data, sizeof value);
    engine->release(out.owner);
    if (value != (longer ? -1.25f : 1.25f)) throw std::runtime_error("wrong result");
  };
  bool filled = false;
  // On a thread of its own, which has run nothing yet: so both kinds are compiled each time.
  const auto end_of_call = [&](bool longer, long nth) {
    End end = End::kOther;
    std::thread([&] {
      const Failing failing(nth, all_after);
      end = end_of([&] { call(longer, filled); });
    }).join();
    return end;
  };
  for (int i = 0; i < 6; ++i) CHECK(end_of_call(i % 2 == 0, 0) == End::kDone);
  exec::free_idle_memory();
  const std::int64_t used = exec::memory_stats().used_bytes;
  for (long n = 1; n < kEndless; ++n) {
    const End end = end_of_call(true, n);
    const bool any_failed = failed;
    CHECK(end == End::kDone || (any_failed && end == End::kNoMemory && !filled));
    CHECK(end_of_call(true, 0) == End::kDone && end_of_call(false, 0) == End::kDone);
    CHECK(exec::memory_stats().used_bytes == used && eager::engine_stats().segments == 1);
    if (!any_failed) {
      CHECK(n > 20);
      eager::set_most_segments(1024);
      return 0;
    }
  }
  return 1;
}

int test_listing(Target target) {
  Caller caller(cases()[0]);
  const auto executable = build(cases()[0], target, caller.heap);
  caller.call(*executable);
  const auto bytes = executable->kernels()[0].variants().at(0).bytes;
  const auto lines = [&] { return exec::native::list(bytes, target).size(); };
  const std::size_t expected = lines();
  CHECK(expected > 20);
  const long before = living;
  for (long n = 1; n < kEndless; ++n) {
    End end;
    {
      const Failing failing(n, false);
      end = end_of(lines);
    }
    CHECK(end == End::kDone || (failed && end == End::kNoMemory));
    CHECK(living == before && lines() == expected);
    if (!failed) return 0;
  }
  return 1;
}

}  // namespace

int main() {
  for (const Case& c : cases()) {
    for (const bool all_after : {false, true}) {
      if (test_compile(c, all_after) != 0) {
        std::fprintf(stderr, "compiling: %s\n", c.name);
        return 1;
      }
      for (const Target target : exec::native::kTargets) {
        if (!exec::native::available(target) || test_run(c, target, all_after) == 0) continue;
        std::fprintf(stderr, "running: %s, %s\n", c.name, exec::native::name(target));
        return 1;
      }
    }
  }
  for (const bool all_after : {false, true}) {
    if (test_recorded(all_after) != 0) return 1;
  }
  for (const Target target : exec::native::kTargets) {
    if (target == Target::kNone || !exec::native::available(target)) continue;
    if (test_listing(target) != 0) return 1;
  }
  return 0;
}
