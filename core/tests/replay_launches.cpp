// Runs recorded launches (exec/record.h) on every tier of this processor, on memory that ends or
// begins at a page that must not be touched: results are those of the interpreter that recorded
// them. Without files, launches of random programs without folds are recorded first.
//
//   replay_launches [file...]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "exec/record.h"
#include "tests/interp_meaning.h"
#include "tests/random_launch.h"
#include "tests/tier.h"

namespace tilevm::test {
namespace {

using bytecode::Role;
using bytecode::Storage;

struct Counts {
  long exact = 0, close = 0, native = 0, own = 0;
};

double unit(Storage s) {
  return s == Storage::kF64   ? 0x1p-52
         : s == Storage::kF32 ? 0x1p-23
         : s == Storage::kF16 ? 0x1p-10
                              : 0x1p-7;
}

// Functions of doubles are the C library's, and folds are not in one order: a few units in the last
// place, or `spread` where the program folds.
bool close(Storage s, const testing::Value& x, const testing::Value& y, double spread) {
  if (!testing::is_float(s)) return x.i == y.i;
  if (x.f == y.f || (std::isnan(x.f) && std::isnan(y.f))) return true;
  return std::fabs(x.f - y.f) <= std::max(4 * unit(s) * std::fabs(y.f), spread);
}

// Folds of float32, whose order may then show in doubles as well.
bool folds_f32(const bytecode::View& program) {
  return std::ranges::any_of(program.code, [](const bytecode::Instr& instr) {
    const auto& info = bytecode::kIsa[instr.op];
    return info.cls == bytecode::InstrClass::kFold &&
           info.fields[0].type == bytecode::RegType::kF32;
  });
}

// Which of two zeros is the larger differs between processors, and may decide the rest.
bool compares_zeros(const bytecode::View& program) {
  return std::ranges::any_of(program.code, [](const bytecode::Instr& instr) {
    switch (static_cast<bytecode::Op>(instr.op)) {
      case bytecode::Op::maximum_f32:
      case bytecode::Op::minimum_f32:
      case bytecode::Op::maximum_f64:
      case bytecode::Op::minimum_f64:
      case bytecode::Op::max_f32:
      case bytecode::Op::min_f32:
      case bytecode::Op::max_f64:
      case bytecode::Op::min_f64:
        return true;
      default:
        return false;
    }
  });
}

// A product of many numbers may leave the range of its type on the way, in one order or another.
bool multiplies_all(const bytecode::View& program) {
  return std::ranges::any_of(program.code, [](const bytecode::Instr& instr) {
    const auto op = static_cast<bytecode::Op>(instr.op);
    return op == bytecode::Op::prod_f32 || op == bytecode::Op::prod_f64;
  });
}
bool out_of_range(const testing::Value& x) { return x.f == 0 || !std::isfinite(x.f); }

class Replay {
 public:
  // Returns how many tiers disagree.
  int run(exec::RecordedLaunch recorded) {
    if (compares_zeros(bytecode::view(recorded.program))) use_own_results(recorded);
    int wrong = 0;
    for (const exec::native::Target target : exec::native::kTargets) {
      if (!exec::native::available(target)) continue;
      const Ready kernel(recorded.program, target);
      for (const Side side : {Side::kRight, Side::kLeft}) {
        if (run_on(kernel, recorded, side)) continue;
        ++wrong;
        std::fprintf(stderr, "on %s:\n%s", exec::native::name(target),
                     bytecode::disassemble(recorded.program).c_str());
        break;
      }
    }
    return wrong;
  }

  const Counts& counts() const { return counts_; }

 private:
  // Results become those of the interpreter here.
  void use_own_results(exec::RecordedLaunch& recorded) {
    const RandomLaunch placed = this->placed(recorded, Side::kRight);
    const Ready kernel(recorded.program, exec::native::Target::kNone);
    recorded.status = kernel.run(placed.launch(), scratch_);
    for (std::size_t i = 0; i < recorded.memory.size(); ++i) {
      recorded.memory[i].after.assign(placed.extents[i].lo, placed.extents[i].hi);
    }
    ++counts_.own;
  }

  RandomLaunch placed(const exec::RecordedLaunch& recorded, Side side) {
    RandomLaunch placed;
    placed.space = recorded.space;
    placed.bindings = recorded.bindings;
    placed.extents.resize(recorded.bindings.size());
    for (const auto& memory : recorded.memory) {
      placed.memory.push_back({memory.before, static_cast<std::size_t>(memory.base), -1});
    }
    launches_.place(placed, side);
    return placed;
  }

  bool run_on(const Ready& kernel, const exec::RecordedLaunch& recorded, Side side) {
    const RandomLaunch placed = this->placed(recorded, side);
    counts_.native += kernel.native(placed.launch());
    if (kernel.run(placed.launch(), scratch_) != recorded.status) return false;
    const bytecode::View program = bytecode::view(recorded.program);
    if (!LaunchGenerator::only_outputs_changed(program, placed)) return false;
    if (recorded.status != exec::Status::kOk) return true;
    bool exact = true;
    for (std::size_t i = 0; i < program.operands.size(); ++i) {
      if (program.operands[i].role != Role::kOutput) continue;
      if (!compare(program, placed, i, recorded.memory[i], exact)) return false;
    }
    ++(exact ? counts_.exact : counts_.close);
    return true;
  }

  // False if an element of output i is not what was recorded; `exact` becomes false if one has
  // other bits.
  static bool compare(const bytecode::View& program, const RandomLaunch& launch, std::size_t i,
                      const exec::RecordedLaunch::Memory& recorded, bool& exact) {
    const Storage s = program.operands[i].storage;
    const std::byte* const want = recorded.after.data() + recorded.base;
    double largest = 0;
    if (program.header->fold != bytecode::Fold::kNone && testing::is_float(s)) {
      const auto see = [&](Storage storage, const std::byte* at) {
        const double x = std::fabs(testing::read(storage, at).f);
        if (std::isfinite(x)) largest = std::max(largest, x);
      };
      LaunchGenerator::for_each_element(launch, i, [&](std::ptrdiff_t at) { see(s, want + at); });
      for (std::size_t in = 0; in < program.operands.size(); ++in) {
        const auto& operand = program.operands[in];
        if (operand.role != Role::kInput || !testing::is_float(operand.storage)) continue;
        LaunchGenerator::for_each_element(launch, in, [&](std::ptrdiff_t at) {
          see(operand.storage, launch.bindings[in].base + at);
        });
      }
    }
    const double coarsest = std::max(unit(s), folds_f32(program) ? unit(Storage::kF32) : 0);
    const double spread = 64 * coarsest * largest;
    const bool folds_products = testing::is_float(s) && multiplies_all(program);
    bool same = true;
    LaunchGenerator::for_each_element(launch, i, [&](std::ptrdiff_t at) {
      const std::byte* const got = launch.bindings[i].base + at;
      const auto bytes = static_cast<std::size_t>(bytecode::storage_bytes(s));
      if (std::memcmp(got, want + at, bytes) == 0) return;
      exact = false;
      const auto x = testing::read(s, got);
      const auto y = testing::read(s, want + at);
      if (!same || close(s, x, y, spread)) return;
      if (folds_products && out_of_range(x) && out_of_range(y)) return;
      same = false;
      std::fprintf(stderr, "m%zu: %.9g %lld, not %.9g %lld\n", i, x.f, static_cast<long long>(x.i),
                   y.f, static_cast<long long>(y.i));
    });
    return same;
  }

  ProgramGenerator random_{1};
  LaunchGenerator launches_{random_};
  exec::interp::Scratch scratch_;
  Counts counts_;
};

// Launches of random programs, in a file that is gone when they have been read.
std::vector<exec::RecordedLaunch> random_launches() {
  constexpr int kPrograms = 1000;
  const std::string path = "random_launches." + std::to_string(getpid());
  exec::record_launches(path);
  ProgramGenerator random(1);
  LaunchGenerator launches(random);
  exec::interp::Scratch scratch;
  ProgramOptions options;
  options.fold = static_cast<int>(bytecode::Fold::kNone);
  options.traps = false;  // of two errors, tiers may find either first
  for (int i = 0; i < kPrograms; ++i) {
    const std::vector<std::byte> bytes = random.next(options);
    RandomLaunch launch = launches.next(bytecode::view(bytes), static_cast<int>(options.gathered));
    launches.place(launch, Side::kRight);
    const exec::interp::Kernel kernel(bytes);
    exec::record(bytes, launch.launch(), [&] { return kernel.run(launch.launch(), scratch); });
  }
  exec::record_launches("");
  const std::vector<exec::RecordedLaunch> result = exec::read_launches(path);
  std::remove(path.c_str());
  return result;
}

int run(int n, char** files) {
  Replay replay;
  long launches = 0;
  int wrong = 0;
  for (int i = 0; i < std::max(n, 1); ++i) {
    for (const auto& launch : n == 0 ? random_launches() : exec::read_launches(files[i])) {
      wrong += replay.run(launch);
      ++launches;
    }
  }
  const Counts& counts = replay.counts();
  std::printf(
      "%ld launches, %ld of them with extrema against the interpreter of this processor, "
      "%ld runs of machine code: %ld runs had the same bits, %ld were close, %d tiers were "
      "wrong\n",
      launches, counts.own, counts.native, counts.exact, counts.close, wrong);
  return wrong != 0;
}

}  // namespace
}  // namespace tilevm::test

int main(int argc, char** argv) {
  try {
    return tilevm::test::run(argc - 1, argv + 1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
