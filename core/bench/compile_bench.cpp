// How long the core takes from operators to machine code: distinct random programs of 1 to 60
// operators, each built and compiled for the first time, then again.
//
//   compile_bench [programs] [seed]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "host/executable.h"
#include "schedule/kernel.h"
#include "tests/heap.h"

namespace tilevm::bench {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// A graph over rows x columns of float32: mostly elementwise, some broadcasts, reductions over the
// rows, softmax and layer norm.
class Generator {
 public:
  Generator(std::uint64_t seed, int n_ops) : rng_(seed), n_(n_ops) {}

  Program build() {
    Program p;
    const SizeId b = p.sizes.symbol("B"), c = p.sizes.symbol("C");
    Type type;
    type.shape.push(b);
    type.shape.push(c);
    Type bias;
    bias.shape.push(c);
    wide_ = {p.input(type), p.input(type)};
    bias_ = p.input(bias);
    used_.assign(2, 0);
    for (int i = 0; i < n_; ++i) step(p);
    for (std::size_t i = 2; i < wide_.size(); ++i) {
      if (used_[i] == 0) p.outputs.push_back(wide_[i]);
    }
    return p;
  }

 private:
  int below(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  ValueId pick() {  // one of the last few, as in code that people write
    const int last = static_cast<int>(wide_.size());
    const auto i = static_cast<std::size_t>(last - 1 - below(std::min(last, 4)));
    used_[i] = 1;
    return wide_[i];
  }
  void put(ValueId v) {
    wide_.push_back(v);
    used_.push_back(0);
  }

  void step(Program& p) {
    static constexpr Op kUnary[] = {Op::exp,  Op::tanh, Op::sigmoid, Op::neg,  Op::abs,
                                    Op::relu, Op::sqrt, Op::gelu,    Op::silu, Op::erf};
    static constexpr Op kBinary[] = {Op::add, Op::sub, Op::mul, Op::div, Op::maximum};
    static constexpr Op kReduce[] = {Op::sum, Op::amax, Op::mean};
    const int kind = below(20);
    const ValueId x = pick();
    if (kind < 6) {
      const ValueId in[] = {x};
      put(p.add(kUnary[below(10)], in));
    } else if (kind < 13) {
      const ValueId in[] = {x, pick()};
      put(p.add(kBinary[below(5)], in));
    } else if (kind < 15) {
      const ValueId number = p.add(Op::scalar, {}, {Attr::of_number(0.5 + below(8))});
      const ValueId in[] = {x, number};
      put(p.add(kBinary[below(5)], in));
    } else if (kind < 16) {
      const ValueId in[] = {x, bias_};
      put(p.add(kBinary[below(3)], in));
    } else if (kind < 17) {
      const ValueId pair[] = {x, pick()};
      const ValueId in[] = {p.add(Op::lt, pair), pick(), pair[1]};
      put(p.add(Op::where, in));
    } else if (kind < 19) {
      const ValueId in[] = {x};
      const Attr axes = Attr::of_ints({1});
      const ValueId fold[] = {x, p.add(kReduce[below(3)], in, {axes, Attr::of_ints({1})})};
      put(p.add(kBinary[below(4)], fold));
    } else {
      const ValueId in[] = {x};
      put(p.add(Op::softmax, in, {Attr::of_ints({1})}));
    }
  }

  std::mt19937_64 rng_;
  int n_;
  std::vector<ValueId> wide_;
  std::vector<char> used_;
  ValueId bias_ = -1;
};

struct Times {
  double build, plan, encode;  // operators typed; lowered, fused, host program; bytecode, code
  int kernels;
  double total() const { return build + plan + encode; }
};

Times compile(std::uint64_t seed, int n_ops) {
  Times t{};
  test::Heap heap;
  auto start = Clock::now();
  Program program = Generator(seed, n_ops).build();
  t.build = us_since(start);
  start = Clock::now();
  host::Executable executable(fuse::fuse(lower(std::move(program))), {}, heap);
  t.plan = us_since(start);

  test::Tensor tensors[3];
  host::Object inputs[3];
  for (int i = 0; i < 3; ++i) {
    auto& r = tensors[i].record;
    tensors[i].elements.assign(7 * 33, 1.0F);
    r.data = reinterpret_cast<std::byte*>(tensors[i].elements.data());
    r.rank = i < 2 ? 2 : 1;
    r.sizes = i < 2 ? decltype(r.sizes){7, 33} : decltype(r.sizes){33};
    r.strides = i < 2 ? decltype(r.strides){33, 1} : decltype(r.strides){1};
    inputs[i] = &tensors[i];
  }
  std::vector<host::Object> outputs(executable.n_outputs());
  schedule::reset_compile_stats();
  executable.run(inputs, outputs);
  const auto stats = schedule::compile_stats();
  t.encode = stats.total_us;
  t.kernels = static_cast<int>(stats.compiles);
  for (const auto o : outputs) heap.drop(o);
  return t;
}

void print(const char* name, std::vector<Times> all) {
  const auto median = [&](auto&& part) {
    std::vector<double> values;
    for (const auto& t : all) values.push_back(part(t));
    std::ranges::sort(values);
    return values[values.size() / 2];
  };
  const auto most = std::ranges::max_element(all, {}, &Times::total);
  std::printf(
      "%-22s median %6.2f us (build %5.2f, plan %5.2f, encode and emit %6.2f), "
      "longest %.0f (%.0f, %.0f, %.0f; program %d)\n",
      name, median([](const Times& t) { return t.total(); }),
      median([](const Times& t) { return t.build; }), median([](const Times& t) { return t.plan; }),
      median([](const Times& t) { return t.encode; }), most->total(), most->build, most->plan,
      most->encode, static_cast<int>(most - all.begin()));
}

}  // namespace
}  // namespace tilevm::bench

int main(int argc, char** argv) {
  using namespace tilevm;
  using bench::Times;
  const int n = argc > 1 ? std::atoi(argv[1]) : 240;
  const auto seed = static_cast<std::uint64_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  schedule::warm_up();
  std::vector<Times> first, again;
  for (int i = 0; i < n; ++i) {
    const auto s = seed * 100'000 + static_cast<std::uint64_t>(i);
    const int n_ops = 1 + i % 60;
    first.push_back(bench::compile(s, n_ops));
  }
  for (int i = 0; i < n; ++i) {
    const auto s = seed * 100'000 + static_cast<std::uint64_t>(i);
    Times best = bench::compile(s, 1 + i % 60);
    for (int k = 0; k < 20; ++k) {
      const Times t = bench::compile(s, 1 + i % 60);
      if (t.total() < best.total()) best = t;
    }
    again.push_back(best);
  }
  double kernels = 0;
  for (const auto& t : first) kernels += t.kernels;
  std::printf("%d programs of 1 to 60 operators, %.2f kernels each\n", n, kernels / n);
  bench::print("first time", first);
  bench::print("again, best of 21", again);
}
