// Every tier of this processor against a slow evaluation of the same bytecode, over awkward sizes,
// strides and classes. Operands end at pages that must not be touched.
#include <hwy/targets.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bytecode/builder.h"
#include "exec/interp/interp.h"
#include "tests/interp_trial.h"
#include "tests/tier.h"

namespace {

using namespace tilevm;
using namespace tilevm::bytecode;
using namespace tilevm::testing;

exec::native::Target tier = exec::native::Target::kNone;  // that is tested
test::Ready ready(const std::vector<std::byte>& program) { return {program, tier}; }

template <class Work>
void each_tier(Work work) {
  for (const exec::native::Target target : exec::native::kTargets) {
    if (!exec::native::available(target)) continue;
    tier = target;
    work();
  }
}

constexpr int kTrials = 400;

int failures = 0;
void check(bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED on %s: %s\n", exec::native::name(tier), what.c_str());
}

// Instructions of launches that ran where they were meant to, by tier: what machine code leaves to
// the interpreter does not count.
std::map<exec::native::Target, std::bitset<kOpCount>> executed;

void note_executed(const std::vector<std::byte>& program, const test::Ready& kernel,
                   const exec::Launch& launch) {
  const Space& space = launch.space;
  bool empty = space.rows == 0 || space.cols == 0;
  for (int i = 0; i < space.n_outer; ++i) empty = empty || space.outer[i] == 0;
  for (int i = 0; i < space.n_reduced; ++i) empty = empty || space.reduced[i] == 0;
  if (empty || (tier != exec::native::Target::kNone && !kernel.native(launch))) return;
  for (const Instr& instr : view(program).code) executed[tier].set(instr.op);
}

// `all`: each instruction of the table must have run on each tier.
void report_executed(bool all) {
  each_tier([&] {
    const auto& ran = executed[tier];
    std::printf("%s: %zu of %d instructions ran\n", exec::native::name(tier), ran.count(),
                kOpCount);
    for (int op = 0; all && op < kOpCount; ++op)
      check(ran.test(static_cast<std::size_t>(op)), std::string(kIsa[op].name) + " never ran");
  });
}

bool same_memory(const std::vector<std::byte>& a, const std::vector<std::byte>& b, Storage s) {
  const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
  for (std::size_t at = 0; at + bytes <= a.size(); at += bytes) {
    const Value x = read(s, a.data() + at);
    const Value y = read(s, b.data() + at);
    const bool floats = is_float(s);
    if (floats && std::isnan(x.f) && std::isnan(y.f)) continue;
    if (floats ? x.f != y.f : x.i != y.i) return false;
  }
  return true;
}

using Contents = std::vector<std::vector<std::byte>>;

Contents contents(const Trial& trial) {
  Contents result;
  for (const auto& m : trial.memory) result.emplace_back(m->data(), m->data() + m->size());
  return result;
}
void restore(const Trial& trial, const Contents& before) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::memcpy(trial.memory[i]->data(), before[i].data(), before[i].size());
  }
}

void print_difference(const Contents& got, const Contents& want, std::size_t i, Storage s) {
  const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
  for (std::size_t at = 0, k = 0; at + bytes <= want[i].size() && k < 8; at += bytes) {
    const Value x = read(s, got[i].data() + at);
    const Value y = read(s, want[i].data() + at);
    if (x.f == y.f && x.i == y.i) continue;
    std::printf("  at %zu: %g %ld, not %g %ld\n", at / bytes, x.f, x.i, y.f, y.i);
    ++k;
  }
}

// Cut in rows, as threads do: the same bits.
void cut(const Trial& trial, const View& v, const test::Ready& kernel, const Contents& whole,
         const std::string& name) {
  exec::interp::Scratch scratch;
  const int64_t cut = trial.space.rows / 3;
  Space part = trial.space;
  std::vector<Binding> moved = trial.bindings;
  part.rows = cut;
  Status status = kernel.run({part, moved}, scratch);
  part.rows = trial.space.rows - cut;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    if (v.operands[i].role == Role::kIota) {
      moved[i].start += cut * moved[i].y_stride;
    } else {
      moved[i].base += cut * moved[i].y_stride;
    }
  }
  status = status == Status::kOk ? kernel.run({part, moved}, scratch) : status;
  check(status == Status::kOk, name + ": status when cut");
  check(contents(trial) == whole, name + ": cut rows differ");
}

// On the tier at hand, from memory as it was `before`. `want`: what it should hold then.
void random_trial(const Trial& trial, const std::vector<std::byte>& program, Status want_status,
                  const Contents& before, const Contents& want, const std::string& name,
                  bool verbose) {
  exec::interp::Scratch scratch;
  restore(trial, before);
  const test::Ready kernel = ready(program);
  const Status status = kernel.run({trial.space, trial.bindings}, scratch);
  check(status == want_status, name + ": status");
  if (status != Status::kOk || want.empty()) return;
  const Contents after = contents(trial);
  const View v = view(program);
  std::size_t output = 0;
  for (std::size_t i = 0; i < trial.memory.size(); ++i) {
    const bool is_output = output < trial.outputs.size() && trial.outputs[output] == i;
    if (!is_output) {
      check(after[i] == before[i], name + ": an input was written");
      continue;
    }
    const Storage s = v.operands[trial.output_operands[output++]].storage;
    const bool same = same_memory(after[i], want[i], s);
    check(same, name + ": output " + std::to_string(output));
    if (same || !verbose) continue;
    std::printf("%s  m%zu\n", disassemble(program).c_str(), trial.output_operands[output - 1]);
    print_difference(after, want, i, s);
  }
  note_executed(program, kernel, {trial.space, trial.bindings});
  if (v.header->fold == Fold::kColumns && trial.space.rows > 3) {
    restore(trial, before);
    cut(trial, v, kernel, after, name);
  }
}

void random_trials(int from, int n, bool verbose) {
  const std::initializer_list<int64_t> sizes = {0, 1, 2, 7, 16, 33, 64, 65, 100, 200, 1023};
  for (int t = from; t < from + n; ++t) {
    Trial trial(static_cast<unsigned>(t));
    const Fold fold = static_cast<Fold>(t % 4);
    Space& space = trial.space;
    trial.nans = trial.pick(0, 3) == 0;
    space.cols = trial.choice(sizes);
    space.rows = trial.choice(sizes);
    while (space.rows * space.cols > 20000) space.rows = space.rows / 2;
    if (trial.pick(0, 15) == 0) space.cols = 5000, space.rows = trial.pick(1, 2);
    if (trial.pick(0, 15) == 0) space.rows = 5000, space.cols = trial.pick(1, 7);
    space.n_outer = static_cast<int>(trial.pick(0, 2)) * static_cast<int>(trial.pick(0, 1));
    for (int i = 0; i < space.n_outer; ++i) space.outer[i] = trial.pick(i == 0 ? 0 : 1, 3);
    if (fold != Fold::kNone && trial.pick(0, 2) == 0) {
      space.n_reduced = static_cast<int>(trial.pick(1, 2));
      for (int i = 0; i < space.n_reduced; ++i)
        space.reduced[i] = trial.pick(trial.pick(0, 8) == 0 ? 0 : 1, 3);
    }
    const std::vector<std::byte> program = trial.random_program(fold);
    const std::string error = verify(program);
    const std::string name = "trial " + std::to_string(t) + ", " + std::to_string(space.rows) +
                             "x" + std::to_string(space.cols) + ", fold " + std::to_string(t % 4);
    check(error.empty(), name + ": " + error);
    if (!error.empty()) continue;
    const Contents before = contents(trial);
    bool empty = (t & 1 && space.cols == 0) || (t & 2 && space.rows == 0);
    for (int i = 0; i < space.n_reduced; ++i) empty = empty || space.reduced[i] == 0;
    Status status = Status::kOk;
    Contents want;
    if (!empty) {  // else empty_reductions_give_identities
      status = Meaning(program, {space, trial.bindings}).run();
      want = contents(trial);
    }
    each_tier([&] { random_trial(trial, program, status, before, want, name, verbose); });
  }
}

// Every map instruction, over special values ------------------------------------------------------

template <class Float>
double distance_in_ulps(Float got, Float want) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : 1e9;
  if (got == want) return 0;
  if (std::isinf(got) || std::isinf(want)) {
    constexpr Float kMost = std::numeric_limits<Float>::max();
    const bool both = std::fabs(got) >= kMost && std::fabs(want) >= kMost;
    return both && (got > 0) == (want > 0) ? 1 : 1e9;
  }
  const Float infinity = std::numeric_limits<Float>::infinity();
  const long double unit = std::fabs(std::nextafter(want, infinity) - want);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / unit);
}

template <class T>
std::vector<T> corners() {
  using limits = std::numeric_limits<T>;
  std::vector<T> v;
  if constexpr (std::is_floating_point_v<T>) {
    for (const double x :
         {0.0,     1.0,          0.5,     2.5,       1e-3,          3.7,
          20.0,    88.0,         1e5,     1e-20,     1e10,          3e38,
          1e-40,   2147483648.0, 1e19,    0x1p-14,   0x1.8p-24,     0x1p-25,
          65504.0, 65519.9,      65520.0, 1.0009765, 1.00048828125, 1.00146484375}) {
      v.push_back(static_cast<T>(x));
      v.push_back(static_cast<T>(-x));
    }
    if constexpr (sizeof(T) == 8) {
      v.insert(v.end(), {limits::max(), limits::denorm_min(), -1e300, 0x1p53 + 2, 700.0, -745.0});
    }
    v.push_back(limits::infinity());
    v.push_back(-limits::infinity());
    v.push_back(limits::quiet_NaN());
    for (int i = -30; i < 30; ++i) v.push_back(static_cast<T>(i) * static_cast<T>(0.37));
  } else if constexpr (sizeof(T) == 1) {
    v = {0, 1, 1, 0, 1};
  } else {
    v = {0,
         1,
         -1,
         2,
         -2,
         3,
         7,
         -7,
         31,
         32,
         33,
         63,
         64,
         100,
         127,
         128,
         255,
         -129,
         32768,
         limits::min(),
         limits::max(),
         12345};
  }
  return v;
}

void every_map_instruction() {
  exec::interp::Scratch scratch;
  for (int op = 0; op < kOpCount; ++op) {
    const InstrInfo& row = kIsa[op];
    if (row.cls != InstrClass::kMap) continue;
    for (const int splat : {-1, 0, 1, 2}) {
      const int n_sources = row.n_fields - 1;
      if (splat >= n_sources) continue;
      if (n_sources == 1 && splat >= 0) continue;
      std::vector<std::vector<Value>> values(3);
      std::vector<std::vector<Value>> source_values(3);
      for (int k = 0; k < n_sources; ++k) {
        const auto add = [&](auto of) {
          for (const auto x : of) {
            Value v;
            v.f = static_cast<double>(x);
            v.i = std::is_floating_point_v<decltype(x)> ? 0 : static_cast<int64_t>(x);
            source_values[k].push_back(v);
          }
        };
        switch (row.fields[k + 1].type) {
          case RegType::kF32:
            add(corners<float>());
            break;
          case RegType::kF64:
            add(corners<double>());
            break;
          case RegType::kI32:
            add(corners<std::int32_t>());
            break;
          case RegType::kI64:
            add(corners<int64_t>());
            break;
          case RegType::kB8:
            add(corners<std::uint8_t>());
            break;
        }
      }
      // All pairs; a third source in step.
      const std::size_t na = source_values[0].size();
      const std::size_t nb = n_sources > 1 ? source_values[1].size() : 1;
      for (std::size_t i = 0; i < na; ++i) {
        for (std::size_t j = 0; j < nb; ++j) {
          values[0].push_back(source_values[0][splat == 0 ? 3 : i]);
          if (n_sources > 1) values[1].push_back(source_values[1][splat == 1 ? 4 : j]);
          if (n_sources > 2) {
            values[2].push_back(
                source_values[2][splat == 2 ? 2 : (i + j) % source_values[2].size()]);
          }
        }
      }
      const bool divides = row.name.find("_i") != std::string_view::npos &&
                           (row.name.find("div") != std::string_view::npos ||
                            row.name.find("remainder") != std::string_view::npos ||
                            row.name.find("fmod") != std::string_view::npos);
      if (divides) {
        for (Value& v : values[1]) v.i = v.i == 0 ? 5 : v.i;
      }
      Builder b;
      std::vector<Binding> bindings;
      std::vector<std::unique_ptr<Guarded>> memory;
      Reg sources[3];
      const std::size_t n = values[0].size();
      const auto make = [&](Storage s, bool scalar) {
        const int64_t bytes = storage_bytes(s);
        memory.push_back(std::make_unique<Guarded>(scalar ? bytes : n * bytes));
        Binding binding;
        binding.base = memory.back()->data();
        binding.x_stride = scalar ? 0 : bytes;
        bindings.push_back(binding);
      };
      for (int k = 0; k < n_sources; ++k) {
        const Storage s = info(row.fields[k + 1].type).storage;
        make(s, k == splat);
        for (std::size_t i = 0; i < (k == splat ? 1 : n); ++i) {
          write(s, memory.back()->data() + i * storage_bytes(s), values[k][i]);
        }
        const Cls cls = k == splat ? Cls::kScalar : Cls::kColumn;
        sources[k] =
            b.load(kLoadOf[static_cast<int>(s)], b.operand(Role::kInput, s, cls, k != splat));
      }
      const Reg r = b.map(static_cast<Op>(op), {sources, static_cast<std::size_t>(n_sources)});
      const Storage s = info(row.fields[0].type).storage;
      make(s, false);
      b.store(kStoreOf[static_cast<int>(s)], b.operand(Role::kOutput, s, Cls::kColumn, true), r);
      const std::vector<std::byte> program = b.finish();
      check(verify(program).empty(), std::string(row.name) + ": " + verify(program));
      Space space;
      space.cols = static_cast<int64_t>(n);
      const test::Ready kernel = ready(program);
      const Status status = kernel.run({space, bindings}, scratch);
      check(status == Status::kOk, std::string(row.name) + ": status");
      note_executed(program, kernel, {space, bindings});
      for (std::size_t i = 0; i < n; ++i) {
        const auto at = [&](int k) { return values[k].empty() ? Value{} : values[k][i]; };
        Value want;
        if (!apply_map(row, at(0), at(1), at(2), want)) continue;
        const Value got = read(s, memory.back()->data() + i * storage_bytes(s));
        const double off = std::fabs(got.f - want.f);
        bool close = got.i == want.i;
        if (s == Storage::kF32) {
          const auto g = static_cast<float>(got.f), w = static_cast<float>(want.f);
          const double ulps = static_cast<Op>(op) == Op::exp_weight_f32 ? 64 : 2.5;
          close = distance_in_ulps(g, w) <= ulps || off < 1e-6 * std::fabs(at(0).f) + 1e-37;
        } else if (s == Storage::kF64) {
          close = distance_in_ulps(got.f, want.f) <= 2.5 || off < 1e-15 * std::fabs(at(0).f);
        }
        if (!close)
          check(false, std::string(row.name) + " of " + std::to_string(at(0).f) + " " +
                           std::to_string(at(0).i) + ", " + std::to_string(at(1).f) + " " +
                           std::to_string(at(1).i) + ": " + std::to_string(got.f) + " " +
                           std::to_string(got.i) + ", not " + std::to_string(want.f) + " " +
                           std::to_string(want.i));
      }
    }
  }
}

// Errors -----------------------------------------------------------------------------------------

void errors_stop_the_launch() {
  exec::interp::Scratch scratch;
  for (const int64_t n : {1, 7, 64, 65, 1023, 5000}) {
    for (const bool bad : {false, true}) {
      std::vector<std::int32_t> a(n, INT32_MIN);
      std::vector<std::int32_t> d(n, -1);
      std::vector<std::int32_t> out(n);
      if (bad) d[n - 1] = 0;
      Builder b;
      const auto column = [&](Role role) {
        return b.operand(role, Storage::kI32, Cls::kColumn, true);
      };
      const Reg ra = b.load(Op::load_i32, column(Role::kInput));
      const Reg rd = b.load(Op::load_i32, column(Role::kInput));
      b.store(Op::store_i32, column(Role::kOutput), b.map(Op::floor_div_i32, ra, rd));
      std::vector<Binding> bindings(3);
      std::int32_t* data[] = {a.data(), d.data(), out.data()};
      for (int i = 0; i < 3; ++i) {
        bindings[i].base = reinterpret_cast<std::byte*>(data[i]);
        bindings[i].x_stride = 4;
      }
      Space space;
      space.cols = n;
      const Status got = ready(b.finish()).run({space, bindings}, scratch);
      check(got == (bad ? Status::kDivisionByZero : Status::kOk), "division by zero");
      check(bad || out[n - 1] == INT32_MIN, "the lowest value by -1 wraps");
    }
    for (const int64_t size : {0, 5}) {
      for (const int64_t wrong : {int64_t{-1}, size, int64_t{1} << 40, INT64_MIN}) {
        for (const bool row_index : {false, true}) {
          std::vector<int64_t> index(n, 0);
          index[n - 1] = wrong;
          std::vector<float> out(n * 3);
          Guarded table(size * 12);
          Builder b;
          const Cls cls = row_index ? Cls::kRow : Cls::kColumn;
          const Reg r =
              b.load(Op::load_i64, b.operand(Role::kInput, Storage::kI64, cls, !row_index));
          const auto mem = b.operand(Role::kGather, Storage::kF32,
                                     row_index ? Cls::kColumn : Cls::kRow, row_index);
          const Reg g = b.gather(Op::gather_f32, mem, r);
          b.store(Op::store_f32, b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true), g);
          std::vector<Binding> bindings(3);
          bindings[0].base = reinterpret_cast<std::byte*>(index.data());
          bindings[1].base = table.data();
          bindings[1].gather_size = size;
          bindings[1].gather_stride = 12;
          bindings[2].base = reinterpret_cast<std::byte*>(out.data());
          bindings[2].x_stride = 4;
          Space space;
          space.rows = row_index ? n : 3;
          space.cols = row_index ? 3 : n;
          (row_index ? bindings[0].y_stride : bindings[0].x_stride) = 8;
          (row_index ? bindings[1].x_stride : bindings[1].y_stride) = 4;
          bindings[2].y_stride = 4 * space.cols;
          const Status got = ready(b.finish()).run({space, bindings}, scratch);
          check(got == Status::kIndexOutOfRange, "index " + std::to_string(wrong));
        }
      }
    }
  }
}

// x = (x + 1) * x, in place: the second read of x must see the old value.
void in_place_reads_old_values() {
  exec::interp::Scratch scratch;
  std::vector<float> x(5000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
  const std::vector<float> old = x;
  Builder b;
  const auto mem = b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true);
  const auto out = b.operand(Role::kOutput, Storage::kF32, Cls::kColumn, true);
  const Reg a = b.load(Op::load_f32, mem);
  const Reg up = b.map(Op::add_f32, a, b.constant(1.0f));
  b.store(Op::store_f32, out, up);
  const Reg product = b.map(Op::mul_f32, up, a);
  const auto second = b.operand(Role::kOutput, Storage::kF32, Cls::kColumn, true);
  b.store(Op::store_f32, second, product);
  std::vector<float> y(x.size());
  std::vector<Binding> bindings(3);
  float* data[] = {x.data(), x.data(), y.data()};
  for (int i = 0; i < 3; ++i) {
    bindings[i].base = reinterpret_cast<std::byte*>(data[i]);
    bindings[i].x_stride = 4;
  }
  Space space;
  space.cols = static_cast<int64_t>(x.size());
  check(ready(b.finish()).run({space, bindings}, scratch) == Status::kOk, "in place");
  bool ok = true;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ok = ok && x[i] == old[i] + 1 && y[i] == (old[i] + 1) * old[i];
  }
  check(ok, "in place: values");
}

void empty_reductions_give_identities() {
  exec::interp::Scratch scratch;
  const double inf = std::numeric_limits<double>::infinity();
  struct Case {
    Op fold;
    Value want;
  };
  const std::initializer_list<Case> cases = {
      {Op::sum_f32, {0, 0}},         {Op::total_f32, {0, 0}},       {Op::prod_f32, {1, 0}},
      {Op::max_f32, {-inf, 0}},      {Op::deviations_f32, {0, 0}},  {Op::min_f32, {inf, 0}},
      {Op::sum_i64, {0, 0}},         {Op::prod_i64, {0, 1}},        {Op::max_i64, {0, INT64_MIN}},
      {Op::min_i64, {0, INT64_MAX}}, {Op::max_i32, {0, INT32_MIN}}, {Op::min_i32, {0, INT32_MAX}},
      {Op::any_b8, {0, 0}},          {Op::all_b8, {0, 1}},          {Op::sum_f64, {0, 0}},
      {Op::prod_f64, {1, 0}},        {Op::max_f64, {-inf, 0}},      {Op::min_f64, {inf, 0}}};
  for (const Fold fold : {Fold::kColumns, Fold::kRows, Fold::kBoth}) {
    for (const Case& c : cases) {
      for (const bool by_outer : {false, true}) {
        const InstrInfo& row = kIsa[static_cast<int>(c.fold)];
        const Storage s = info(row.fields[0].type).storage;
        const Op load = kLoadOf[static_cast<int>(s)];
        const Op store = kStoreOf[static_cast<int>(s)];
        const int64_t bytes = storage_bytes(s);
        const Cls cls = static_cast<Cls>(3 & ~static_cast<int>(fold));
        Builder b(fold);
        b.begin_pass();
        const Reg r = b.fold(c.fold, b.load(load, b.operand(Role::kInput, s, Cls::kFull, true)));
        b.end_pass();
        b.store(store, b.operand(Role::kOutput, s, cls, fold == Fold::kRows), r);
        Space space;
        space.rows = space.cols = 7;
        if (by_outer) {
          space.n_reduced = 1;
          space.reduced[0] = 0;
        } else {
          if (fold != Fold::kColumns) space.rows = 0;
          if (fold != Fold::kRows) space.cols = 0;
        }
        const std::size_t kept = fold == Fold::kBoth ? 1 : 7;
        Guarded in(0);
        Guarded out(kept * static_cast<std::size_t>(bytes));
        std::memset(out.data(), 0x55, out.size());
        std::vector<Binding> bindings(2);
        bindings[0].base = in.data();
        bindings[0].x_stride = bytes;
        bindings[0].y_stride = 7 * bytes;
        bindings[1].base = out.data();
        if (fold == Fold::kColumns) bindings[1].y_stride = bytes;
        if (fold == Fold::kRows) bindings[1].x_stride = bytes;
        const Status got = ready(b.finish()).run({space, bindings}, scratch);
        check(got == Status::kOk, "empty reduction: status");
        for (std::size_t i = 0; i < kept; ++i) {
          const Value v = read(s, out.data() + i * static_cast<std::size_t>(bytes));
          check(v.f == c.want.f && v.i == c.want.i, std::string(row.name) + " of nothing");
        }
      }
    }
  }
}

// Many rows of no columns: nothing is touched, whatever is kept in memory for columns.
void folds_of_no_columns_touch_nothing() {
  exec::interp::Scratch scratch;
  for (const Op fold : {Op::sum_f32, Op::variance_f32, Op::max_f32}) {
    Builder b(Fold::kRows);
    b.begin_pass();
    const auto in = b.operand(Role::kInput, Storage::kF32, Cls::kFull, true);
    const Reg r = b.fold(fold, b.load(Op::load_f32, in));
    b.end_pass();
    b.store(Op::store_f32, b.operand(Role::kOutput, Storage::kF32, Cls::kRow, true), r);
    Space space;
    space.rows = 100;
    space.cols = 0;
    Guarded nothing(0);
    std::vector<Binding> bindings(2);
    for (Binding& binding : bindings) binding.base = nothing.data();
    bindings[0].x_stride = bindings[1].x_stride = 4;
    const Status got = ready(b.finish()).run({space, bindings}, scratch);
    check(got == Status::kOk, "fold of no columns: status");
  }
}

// Precision: a long sum of values that its own type alone would lose.
template <class Float>
void sums_are_precise(Op fold_op) {
  exec::interp::Scratch scratch;
  const Storage s = sizeof(Float) == 4 ? Storage::kF32 : Storage::kF64;
  constexpr int64_t kBytes = sizeof(Float);
  for (const Fold fold : {Fold::kColumns, Fold::kRows, Fold::kBoth}) {
    const int64_t rows = fold == Fold::kColumns ? 3 : 300000;
    const int64_t cols = fold == Fold::kColumns ? 300000 : fold == Fold::kRows ? 70 : 7;
    std::vector<Float> x(rows * cols);
    std::mt19937 random(1);
    std::uniform_real_distribution<Float> uniform(Float(0.9), Float(1.1));
    for (Float& v : x) v = uniform(random);
    const int64_t kept = fold == Fold::kColumns ? rows : fold == Fold::kRows ? cols : 1;
    std::vector<Float> out(kept);
    std::vector<long double> want(kept);
    for (int64_t i = 0; i < rows * cols; ++i) {
      want[fold == Fold::kColumns ? i / cols : fold == Fold::kRows ? i % cols : 0] += x[i];
    }
    Builder b(fold);
    const Cls cls = fold == Fold::kColumns ? Cls::kRow
                    : fold == Fold::kRows  ? Cls::kColumn
                                           : Cls::kScalar;
    b.begin_pass();
    const Reg sum = b.fold(fold_op, b.load(kLoadOf[static_cast<int>(s)],
                                           b.operand(Role::kInput, s, Cls::kFull, true)));
    b.end_pass();
    b.store(kStoreOf[static_cast<int>(s)], b.operand(Role::kOutput, s, cls, fold == Fold::kRows),
            sum);
    std::vector<Binding> bindings(2);
    bindings[0].base = reinterpret_cast<std::byte*>(x.data());
    bindings[0].y_stride = cols * kBytes;
    bindings[0].x_stride = kBytes;
    bindings[1].base = reinterpret_cast<std::byte*>(out.data());
    (fold == Fold::kColumns ? bindings[1].y_stride : bindings[1].x_stride) = kBytes;
    Space space;
    space.rows = rows;
    space.cols = cols;
    check(ready(b.finish()).run({space, bindings}, scratch) == Status::kOk, "sum");
    for (int64_t i = 0; i < kept; ++i) {
      const double unit = std::numeric_limits<Float>::epsilon() * static_cast<double>(want[i]);
      check(std::fabs(static_cast<double>(out[i] - want[i])) <= 2 * unit,
            "sum precision, fold " + std::to_string(static_cast<int>(fold)));
    }
  }
}

// Every float16, there and back; and every float near one, rounded as the definition says.
void every_half() {
  exec::interp::Scratch scratch;
  std::vector<std::uint16_t> halves(1 << 16), stored;
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> loaded(halves.size());
  const auto run = [&](Op load, Storage from, const void* x, Op map, Op store, Storage to, void* y,
                       std::size_t n) {
    Builder b;
    Reg r = b.load(load, b.operand(Role::kInput, from, Cls::kColumn, true));
    if (map != Op::halt) r = b.map(map, r);
    b.store(store, b.operand(Role::kOutput, to, Cls::kColumn, true), r);
    std::vector<Binding> bindings(2);
    bindings[0].base = static_cast<std::byte*>(const_cast<void*>(x));
    bindings[1].base = static_cast<std::byte*>(y);
    bindings[0].x_stride = storage_bytes(from);
    bindings[1].x_stride = storage_bytes(to);
    Space space;
    space.cols = static_cast<int64_t>(n);
    check(ready(b.finish()).run({space, bindings}, scratch) == Status::kOk, "half");
  };
  run(Op::load_f16, Storage::kF16, halves.data(), Op::halt, Op::store_f32, Storage::kF32,
      loaded.data(), halves.size());
  std::vector<float> near;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float want = of_f16(halves[i]);
    check(
        std::isnan(want) ? std::isnan(loaded[i]) : float_to_bits(want) == float_to_bits(loaded[i]),
        "load_f16 of " + std::to_string(i));
    const float next = of_f16(static_cast<std::uint16_t>(i + 1));
    const float middle = want + (next - want) / 2;
    for (const float f :
         {want, middle, std::nextafter(middle, want), std::nextafter(middle, next)}) {
      near.push_back(f);
    }
  }
  stored.resize(near.size());
  std::vector<float> rounded(near.size());
  run(Op::load_f32, Storage::kF32, near.data(), Op::halt, Op::store_f16, Storage::kF16,
      stored.data(), near.size());
  run(Op::load_f32, Storage::kF32, near.data(), Op::round_f16, Op::store_f32, Storage::kF32,
      rounded.data(), near.size());
  for (std::size_t i = 0; i < near.size(); ++i) {
    const std::string what = " of " + std::to_string(near[i]);
    const std::uint16_t want = to_f16(near[i]);
    if (std::isnan(near[i])) {
      check(std::isnan(of_f16(stored[i])) && std::isnan(rounded[i]), "NaN" + what);
      continue;
    }
    check(stored[i] == want, "store_f16" + what);
    check(float_to_bits(rounded[i]) == float_to_bits(of_f16(want)), "round_f16" + what);
  }
}

}  // namespace

// interp_test [trials [first trial [target]]]: with a first trial, failing programs are printed.
int main(int argc, char** argv) {
  if (argc > 3) {
    const std::string name = argv[3];
    for (int bit = 0; bit < 63; ++bit) {
      const int64_t target = int64_t{1} << bit;
      if (name == hwy::TargetName(target)) hwy::SetSupportedTargetsForTest(target);
    }
  }
  std::printf("target %s\n", exec::interp::target_name());
  each_tier([] {
    every_map_instruction();
    errors_stop_the_launch();
    in_place_reads_old_values();
    sums_are_precise<float>(Op::sum_f32);
    sums_are_precise<double>(Op::sum_f64);
    every_half();
    empty_reductions_give_identities();
    folds_of_no_columns_touch_nothing();
  });
  const int trials = argc > 1 ? std::atoi(argv[1]) : kTrials;
  random_trials(argc > 2 ? std::atoi(argv[2]) : 0, trials, argc > 2);
  report_executed(trials >= kTrials && argc < 3);
  std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
  return failures != 0;
}
