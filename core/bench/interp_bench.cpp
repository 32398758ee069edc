// Times of the interpreter on one thread (a fifth of the runs are faster), and the rate over the
// operands' bytes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bytecode/builder.h"
#include "exec/interp/interp.h"

namespace {

using namespace tilevm;
using namespace tilevm::bytecode;
using exec::Binding;
using exec::Space;
using std::int64_t;

double time_us(const std::function<void()>& f) {
  std::vector<double> times;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  f();
  const auto start = now();
  do {
    const auto before = now();
    f();
    times.push_back(std::chrono::duration<double, std::micro>(now() - before).count());
  } while (times.size() < 20000 && std::chrono::duration<double>(now() - start).count() < 0.4);
  const std::size_t at = times.size() / 5;  // other work on the machine is not ours to measure
  std::nth_element(times.begin(), times.begin() + static_cast<long>(at), times.end());
  return times[at];
}

std::string only;  // run those whose name has it

struct Buffer {
  float* data;
  explicit Buffer(int64_t n) {
    data =
        static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(n * 4 + 63) / 64 * 64));
    for (int64_t i = 0; i < n; ++i) data[i] = static_cast<float>(i % 1000) * 0.002f - 1.0f;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data); }
};

Binding dense(const Buffer& b, int64_t cols, Cls cls = Cls::kFull) {
  Binding out;
  out.base = reinterpret_cast<std::byte*>(b.data);
  const int bits = static_cast<int>(cls);
  if (bits & 1) out.x_stride = 4;
  if (bits & 2) out.y_stride = bits & 1 ? cols * 4 : 4;
  return out;
}

void report(const std::string& name, const std::vector<std::byte>& program, Space space,
            const std::vector<Binding>& bindings, double mib, double vectors) {
  if (name.find(only) == std::string::npos) return;
  if (const std::string error = verify(program); !error.empty()) {
    std::printf("%s: %s\n", name.c_str(), error.c_str());
    std::exit(1);
  }
  exec::interp::Scratch scratch;
  const exec::interp::Kernel kernel(program);
  const double us = time_us([&] {
    if (kernel.run({space, bindings}, scratch) != exec::Status::kOk) std::exit(1);
  });
  const double build_us = time_us([&] { exec::interp::Kernel{program}; });
  std::printf("%-28s %10.2f us %7.1f GB/s", name.c_str(), us, mib * 1.048576 / us * 1e3);
  if (vectors > 0) std::printf(" %6.2f ns/vector/op", us * 1e3 / vectors);
  std::printf("   prepare %.2f us\n", build_us);
}

const Op kLoad = Op::load_f32;
const Op kStore = Op::store_f32;

double mib(double floats) { return floats * 4 / 1048576; }

void chain(int64_t n, int ops) {
  Builder b;
  Buffer x(n);
  Buffer y(n);
  Buffer out(n);
  const auto operand = [&](Role role) {
    return b.operand(role, Storage::kF32, Cls::kColumn, true);
  };
  Reg r = b.load(kLoad, operand(Role::kInput));
  const Reg s = b.load(kLoad, operand(Role::kInput));
  constexpr Op of[] = {Op::add_f32, Op::mul_f32, Op::sub_f32, Op::maximum_f32};
  const Reg half = b.constant(0.5f);
  for (int i = 0; i < ops; ++i) r = b.map(of[i % 4], r, i % 3 == 0 ? half : s);
  b.store(kStore, operand(Role::kOutput), r);
  Space space;
  space.cols = n;
  report(std::to_string(ops) + "-op chain " + std::to_string(n), b.finish(), space,
         {dense(x, n, Cls::kColumn), dense(y, n, Cls::kColumn), dense(out, n, Cls::kColumn)},
         mib(3.0 * static_cast<double>(n)), static_cast<double>(n) / 16 * ops);
}

void softmax(int64_t rows, int64_t cols) {
  Builder b(Fold::kColumns);
  Buffer x(rows * cols);
  Buffer out(rows * cols);
  const auto in = b.operand(Role::kInput, Storage::kF32, Cls::kFull, true);
  const auto to = b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true);
  const auto kept = b.operand(Role::kScratch, Storage::kF32, Cls::kFull, true);
  b.begin_pass();
  const Reg largest = b.fold(Op::max_f32, b.load(kLoad, in));
  b.end_pass();
  b.begin_pass();
  const Reg e = b.map(Op::exp_f32, b.map(Op::sub_f32, b.load(kLoad, in), largest));
  b.store(kStore, kept, e);
  const Reg sum = b.fold(Op::sum_f32, e);
  b.end_pass();
  const Reg scale = b.map(Op::reciprocal_f32, sum);
  b.begin_pass();
  b.store(kStore, to, b.map(Op::mul_f32, b.load(kLoad, kept), scale));
  b.end_pass();
  Space space;
  space.rows = rows;
  space.cols = cols;
  report("softmax " + std::to_string(rows) + "x" + std::to_string(cols), b.finish(), space,
         {dense(x, cols), dense(out, cols), {}}, mib(2.0 * static_cast<double>(rows * cols)), 0);
}

void layer_norm(int64_t rows, int64_t cols) {
  Builder b(Fold::kColumns);
  Buffer x(rows * cols);
  Buffer out(rows * cols);
  Buffer gamma(cols);
  Buffer beta(cols);
  const auto in = b.operand(Role::kInput, Storage::kF32, Cls::kFull, true);
  const auto g = b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true);
  const auto h = b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true);
  const auto to = b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true);
  const Reg n = b.constant(1.0f / static_cast<float>(cols));
  b.begin_pass();
  const Reg sum = b.fold(Op::sum_f32, b.load(kLoad, in));
  b.end_pass();
  const Reg mean = b.map(Op::mul_f32, sum, n);
  b.begin_pass();
  const Reg d = b.map(Op::sub_f32, b.load(kLoad, in), mean);
  const Reg squares = b.fold(Op::sum_f32, b.map(Op::mul_f32, d, d));
  b.end_pass();
  const Reg var = b.map(Op::add_f32, b.map(Op::mul_f32, squares, n), b.constant(1e-5f));
  const Reg scale = b.map(Op::rsqrt_f32, var);
  b.begin_pass();
  const Reg c = b.map(Op::sub_f32, b.load(kLoad, in), mean);
  const Reg scaled = b.map(Op::mul_f32, b.map(Op::mul_f32, c, scale), b.load(kLoad, g));
  b.store(kStore, to, b.map(Op::add_f32, scaled, b.load(kLoad, h)));
  b.end_pass();
  Space space;
  space.rows = rows;
  space.cols = cols;
  report("layer norm " + std::to_string(rows) + "x" + std::to_string(cols), b.finish(), space,
         {dense(x, cols), dense(gamma, cols, Cls::kColumn), dense(beta, cols, Cls::kColumn),
          dense(out, cols)},
         mib(2.0 * static_cast<double>(rows * cols)), 0);
}

void bias_gelu(int64_t rows, int64_t cols, Op op) {
  Builder b;
  Buffer x(rows * cols);
  Buffer out(rows * cols);
  Buffer bias(cols);
  const Reg r = b.load(kLoad, b.operand(Role::kInput, Storage::kF32, Cls::kFull, true));
  const Reg s = b.load(kLoad, b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true));
  const Reg g = b.map(op, b.map(Op::add_f32, r, s));
  b.store(kStore, b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true), g);
  Space space;
  space.rows = rows;
  space.cols = cols;
  report("bias+" + std::string(kIsa[static_cast<int>(op)].name) + " " + std::to_string(rows) + "x" +
             std::to_string(cols),
         b.finish(), space, {dense(x, cols), dense(bias, cols, Cls::kColumn), dense(out, cols)},
         mib(2.0 * static_cast<double>(rows * cols)), 0);
}

void sum(Fold fold, int64_t rows, int64_t cols, Op op = Op::sum_f32) {
  Builder b(fold);
  Buffer x(rows * cols);
  Buffer out(std::max(rows, cols));
  const Cls cls = static_cast<Cls>(3 & ~static_cast<int>(fold));
  b.begin_pass();
  const Reg r = b.fold(op, b.load(kLoad, b.operand(Role::kInput, Storage::kF32, Cls::kFull, true)));
  b.end_pass();
  b.store(kStore, b.operand(Role::kOutput, Storage::kF32, cls, fold == Fold::kRows), r);
  Space space;
  space.rows = rows;
  space.cols = cols;
  const char* axis[] = {"", "row ", "column ", "whole "};
  report(axis[static_cast<int>(fold)] + std::string(kIsa[static_cast<int>(op)].name) + " " +
             std::to_string(rows) + "x" + std::to_string(cols),
         b.finish(), space, {dense(x, cols), dense(out, cols, cls)},
         mib(static_cast<double>(rows * cols)), 0);
}

// relu by comparison and selection: mixes element sizes.
void compare_select(int64_t n) {
  Builder b;
  Buffer x(n);
  Buffer out(n);
  const Reg r = b.load(kLoad, b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true));
  const Reg zero = b.constant(0.0f);
  const Reg positive = b.map(Op::gt_f32, r, zero);
  b.store(kStore, b.operand(Role::kOutput, Storage::kF32, Cls::kColumn, true),
          b.map(Op::select_f32, positive, r, zero));
  Space space;
  space.cols = n;
  report("compare, select " + std::to_string(n), b.finish(), space,
         {dense(x, n, Cls::kColumn), dense(out, n, Cls::kColumn)},
         mib(2.0 * static_cast<double>(n)), static_cast<double>(n) / 16 * 2);
}

// x - row of maxima, with short rows.
void subtract_max(int64_t rows, int64_t cols) {
  Builder b(Fold::kColumns);
  Buffer x(rows * cols);
  Buffer out(rows * cols);
  const auto in = b.operand(Role::kInput, Storage::kF32, Cls::kFull, true);
  b.begin_pass();
  const Reg largest = b.fold(Op::max_f32, b.load(kLoad, in));
  b.end_pass();
  b.begin_pass();
  b.store(kStore, b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true),
          b.map(Op::sub_f32, b.load(kLoad, in), largest));
  b.end_pass();
  Space space;
  space.rows = rows;
  space.cols = cols;
  report("x - max " + std::to_string(rows) + "x" + std::to_string(cols), b.finish(), space,
         {dense(x, cols), dense(out, cols)}, mib(2.0 * static_cast<double>(rows * cols)), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  std::printf("target %s\n", exec::interp::target_name());
  chain(16, 1);
  chain(16, 20);
  chain(1024, 20);
  chain(1 << 20, 20);
  chain(1 << 20, 1);
  compare_select(1 << 20);
  softmax(4096, 1024);
  softmax(4096, 64);
  softmax(100000, 7);
  softmax(16, 50000);
  layer_norm(512, 384);
  layer_norm(4096, 768);
  bias_gelu(7, 33, Op::gelu_tanh_f32);
  bias_gelu(512, 3072, Op::gelu_tanh_f32);
  bias_gelu(512, 3072, Op::gelu_f32);
  subtract_max(100000, 7);
  sum(Fold::kRows, 100000, 7);
  sum(Fold::kRows, 1000, 4096);
  sum(Fold::kColumns, 100000, 7);
  sum(Fold::kColumns, 1000, 4096);
  sum(Fold::kColumns, 1000, 4096, Op::max_f32);
  sum(Fold::kBoth, 1000, 4096);
  return 0;
}
