// Random programs with random operands, for the interpreter's test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "bytecode/builder.h"
#include "tests/interp_meaning.h"

namespace tilevm::testing {

// Memory whose last byte is followed by a page that faults.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + 2 * page;
    map_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_, page, PROT_NONE);
    mprotect(map_ + mapped_ - page, page, PROT_NONE);
    data_ = map_ + mapped_ - page - bytes;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(map_, mapped_); }
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* map_;
  std::byte* data_;
  std::size_t mapped_, bytes_;
};

struct Trial {
  explicit Trial(unsigned seed) : random(seed) {}

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }
  template <class T>
  T choice(std::initializer_list<T> of) {
    return of.begin()[pick(0, static_cast<int64_t>(of.size()) - 1)];
  }

  std::mt19937 random;
  Builder builder;
  Space space;
  std::vector<Binding> bindings;
  std::vector<std::unique_ptr<Guarded>> memory;
  std::vector<std::size_t> outputs;  // indices of memory
  std::vector<std::size_t> output_operands;
  bool nans = false;

  // Random values that keep every operation exact: small integers.
  void fill(Storage s, Guarded& g) {
    const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
    for (std::size_t at = 0; at + bytes <= g.size(); at += bytes) {
      Value v;
      v.i = pick(-9, 9);
      v.f = static_cast<double>(v.i);
      if (nans && pick(0, 400) == 0) v.f = std::nan("");
      if (s == Storage::kB8) {
        g.data()[at] = static_cast<std::byte>(pick(0, 2) * 127);
      } else {
        write(s, g.data() + at, v);
      }
    }
  }

  // Memory and strides for an operand of a class, with one more axis of `gathered` elements.
  Binding bind(Storage s, Cls cls, bool output, bool& contiguous, int64_t gathered) {
    const int bits = static_cast<int>(cls);
    const int64_t bytes = storage_bytes(s);
    struct Axis {
      int64_t size;
      int64_t* stride;
    };
    Binding b;
    std::vector<Axis> axes;
    for (int i = 0; i < space.n_outer; ++i) {
      if (output || pick(0, 3) > 0) axes.push_back({space.outer[i], &b.outer[i]});
    }
    const int fold = static_cast<int>(fold_);
    for (int i = 0; i < space.n_reduced; ++i) {
      const bool varies = output ? (bits & fold) != 0 : pass_ && pick(0, 2) > 0;
      if (varies) axes.push_back({space.reduced[i], &b.reduced[i]});
    }
    if (gathered > 0) axes.push_back({gathered, &b.gather_stride});
    if (bits & 2) axes.push_back({space.rows, &b.y_stride});
    if (bits & 1) axes.push_back({space.cols, &b.x_stride});
    if (pick(0, 3) == 0) std::shuffle(axes.begin(), axes.end(), random);
    const int64_t gap = pick(0, 2) == 0 ? pick(1, 3) : 1;
    int64_t stride = bytes * (pick(0, 4) == 0 ? 2 : 1);
    for (std::size_t k = axes.size(); k-- > 0;) {
      *axes[k].stride = stride;
      stride *= std::max<int64_t>(axes[k].size, 1);
      if (gap > 1) stride += gap * bytes;
    }
    contiguous = (bits & 1) && b.x_stride == bytes;
    int64_t last = bytes;
    int64_t first = 0;
    for (const Axis& axis : axes) {
      if (axis.size <= 1) continue;
      if (!output && pick(0, 8) == 0) {  // backwards
        *axis.stride = -*axis.stride;
        first += (axis.size - 1) * -*axis.stride;
        contiguous = contiguous && axis.stride != &b.x_stride;
      }
      last += (axis.size - 1) * std::abs(*axis.stride);
    }
    auto g = std::make_unique<Guarded>(static_cast<std::size_t>(last));
    fill(s, *g);
    b.base = g->data() + first;
    memory.push_back(std::move(g));
    // The encoder promises strides of 0 or not by class; sizes of 1 may have any.
    return b;
  }

  Reg input(Op load, Storage s, Cls cls) {
    bool contiguous = false;
    const Binding b = bind(s, cls, false, contiguous, 0);
    bindings.push_back(b);
    return builder.load(load, builder.operand(Role::kInput, s, cls, contiguous));
  }

  void output(Op store, Storage s, Reg value) {
    int bits = static_cast<int>(value.cls);
    const int allowed = pass_ ? 3 : 3 & ~static_cast<int>(fold_);
    if (pick(0, 5) == 0) bits |= static_cast<int>(pick(0, 3)) & allowed;
    // A pass stores each element once only if the operand varies over what the pass sweeps.
    if (pass_) bits |= static_cast<int>(fold_);
    const Cls cls = static_cast<Cls>(bits);
    bool contiguous = false;
    const Binding b = bind(s, cls, true, contiguous, 0);
    bindings.push_back(b);
    outputs.push_back(memory.size() - 1);
    output_operands.push_back(bindings.size() - 1);
    builder.store(store, builder.operand(Role::kOutput, s, cls, contiguous), value);
  }

  std::vector<Reg> live[kRegTypes];  // by type
  Fold fold_ = Fold::kNone;
  bool pass_ = false;
  std::vector<Reg> totals_;  // of this pass

  Reg any(RegType t, int mask = 3) {
    auto& of = live[static_cast<int>(t)];
    for (int tries = 0; tries < 20 && !of.empty(); ++tries) {
      const Reg r = of[static_cast<std::size_t>(
          pick(std::max<int64_t>(0, static_cast<int64_t>(of.size()) - 6),
               static_cast<int64_t>(of.size()) - 1))];
      if ((static_cast<int>(r.cls) & ~mask) == 0) return r;
    }
    switch (t) {
      case RegType::kF32:
        return builder.constant(static_cast<float>(pick(-4, 4)));
      case RegType::kF64:
        return builder.constant(static_cast<double>(pick(-4, 4)));
      case RegType::kI32:
        return builder.constant(static_cast<std::int32_t>(pick(-4, 4)));
      case RegType::kI64:
        return builder.constant(pick(-4, 4));
      case RegType::kB8:
        return builder.constant(pick(0, 1) == 1);
    }
    return {};
  }

  void keep(RegType t, Reg r) { live[static_cast<int>(t)].push_back(r); }
  Cls random_class() {
    const int allowed = pass_ ? 3 : 3 & ~static_cast<int>(fold_);
    return static_cast<Cls>((pick(0, 1) ? 3 : static_cast<int>(pick(0, 3))) & allowed);
  }

  Reg clamp(Reg r) {
    r = builder.map(Op::minimum_f32, r, builder.constant(64.0f));
    return builder.map(Op::maximum_f32, r, builder.constant(-64.0f));
  }

  // A load of any storage, or of Python numbers.
  void random_load() {
    const auto s = static_cast<Storage>(pick(0, kStorages - 1));
    if (s == Storage::kF64 && pick(0, 2) == 0) {
      return keep(RegType::kF32, input(Op::load_f64_f32, s, random_class()));
    }
    keep(info(s).reg, input(kLoadOf[static_cast<int>(s)], s, random_class()));
  }

  void random_f64() {
    constexpr RegType t = RegType::kF64;
    switch (pick(0, 4)) {
      case 0:
        return keep(
            t, builder.map(choice({Op::add_f64, Op::sub_f64, Op::maximum_f64, Op::minimum_f64}),
                           any(t), any(t)));
      case 1:
        return keep(t, builder.map(choice({Op::abs_f64, Op::neg_f64, Op::sign_f64, Op::floor_f64}),
                                   any(t)));
      case 2:
        return keep(RegType::kB8, builder.map(choice({Op::lt_f64, Op::eq_f64}), any(t), any(t)));
      case 3:
        return keep(t, builder.map(Op::select_f64, any(RegType::kB8), any(t), any(t)));
      default:
        keep(t, builder.map(Op::cast_f32_f64, any(RegType::kF32)));
        return keep(RegType::kI64, builder.map(Op::cast_f64_i64, any(t)));
    }
  }

  void random_instr() {
    switch (pick(0, 18)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        random_load();
        break;
      case 6:
        keep(RegType::kF32, builder.map(Op::add_f32, any(RegType::kF32), any(RegType::kF32)));
        break;
      case 7:
        keep(RegType::kF32,
             clamp(builder.map(Op::mul_f32, any(RegType::kF32), any(RegType::kF32))));
        break;
      case 8: {
        const Op op = choice({Op::sub_f32, Op::maximum_f32, Op::minimum_f32});
        keep(RegType::kF32, builder.map(op, any(RegType::kF32), any(RegType::kF32)));
        break;
      }
      case 9: {
        const Op op = choice(
            {Op::abs_f32, Op::neg_f32, Op::sign_f32, Op::floor_f32, Op::round_bf16, Op::round_f16});
        keep(RegType::kF32, builder.map(op, any(RegType::kF32)));
        break;
      }
      case 10: {
        const Op op = choice({Op::add_i64, Op::sub_i64, Op::mul_i64, Op::maximum_i64, Op::xor_i64,
                              Op::shl_i64, Op::shr_i64, Op::pow_i64});
        keep(RegType::kI64,
             builder.map(op, any(RegType::kI64), builder.map(Op::sign_i64, any(RegType::kI64))));
        break;
      }
      case 11: {
        const Op op = choice(
            {Op::add_i32, Op::sub_i32, Op::mul_i32, Op::minimum_i32, Op::and_i32, Op::shr_i32});
        keep(RegType::kI32, builder.map(op, any(RegType::kI32), any(RegType::kI32)));
        const Op wrap = choice({Op::wrap_i8, Op::wrap_u8, Op::wrap_i16});
        keep(RegType::kI32, builder.map(wrap, any(RegType::kI32)));
        break;
      }
      case 12: {
        const Op op =
            choice({Op::eq_f32, Op::ne_f32, Op::lt_f32, Op::le_f32, Op::gt_f32, Op::ge_f32});
        keep(RegType::kB8, builder.map(op, any(RegType::kF32), any(RegType::kF32)));
        keep(RegType::kB8, builder.map(Op::isnan_f32, any(RegType::kF32)));
        break;
      }
      case 13: {
        const Op op = choice({Op::eq_i64, Op::lt_i64, Op::ge_i64});
        keep(RegType::kB8, builder.map(op, any(RegType::kI64), any(RegType::kI64)));
        keep(RegType::kB8, builder.map(Op::or_b8, any(RegType::kB8), any(RegType::kB8)));
        break;
      }
      case 14:
        keep(RegType::kF32, builder.map(Op::select_f32, any(RegType::kB8), any(RegType::kF32),
                                        any(RegType::kF32)));
        keep(RegType::kI64, builder.map(Op::select_i64, any(RegType::kB8), any(RegType::kI64),
                                        any(RegType::kI64)));
        keep(RegType::kB8,
             builder.map(Op::select_b8, any(RegType::kB8), any(RegType::kB8), any(RegType::kB8)));
        break;
      case 15:
        keep(RegType::kF32,
             builder.map(Op::cast_i32_f32, builder.map(Op::sign_i32, any(RegType::kI32))));
        keep(RegType::kI32, builder.map(Op::cast_f32_i32, any(RegType::kF32)));
        keep(RegType::kI64, builder.map(Op::cast_i32_i64, any(RegType::kI32)));
        keep(RegType::kF32, builder.map(Op::cast_b8_f32, any(RegType::kB8)));
        break;
      case 16: {
        const Cls cls = random_class();
        Binding b;
        b.start = pick(-5, 5);
        const int bits = static_cast<int>(cls);
        if (bits & 1) b.x_stride = pick(1, 3);
        if (bits & 2) b.y_stride = pick(-2, 2);
        for (int i = 0; i < space.n_outer; ++i) b.outer[i] = pick(-2, 2);
        for (int i = 0; pass_ && i < space.n_reduced; ++i) b.reduced[i] = pick(0, 9);
        bindings.push_back(b);
        keep(RegType::kI64, builder.iota(builder.operand(Role::kIota, Storage::kI64, cls)));
        break;
      }
      case 17: {
        const int64_t size = pick(1, 9);
        const auto clip = [&](Reg r) {
          r = builder.map(Op::maximum_i64, r, builder.constant(int64_t{0}));
          return builder.map(Op::minimum_i64, r, builder.constant(size - 1));
        };
        bool contiguous = false;
        const auto storage = static_cast<Storage>(pick(0, kStorages - 1));
        const Cls cls = random_class();
        const Reg index = clip(any(RegType::kI64));
        Binding b = bind(storage, cls, false, contiguous, size);
        b.gather_size = size;
        if (size == 1 && pick(0, 1) == 0) b.gather_stride = std::int64_t{1} << 40;  // goes nowhere
        bindings.push_back(b);
        const auto mem = builder.operand(Role::kGather, storage, cls, contiguous);
        keep(info(storage).reg, builder.gather(kGatherOf[static_cast<int>(storage)], mem, index));
        break;
      }
      case 18:
        random_f64();
        break;
    }
  }

  void random_output() {
    const auto s = static_cast<Storage>(pick(0, kStorages - 1));
    output(kStoreOf[static_cast<int>(s)], s, any(info(s).reg));
  }

  void random_fold(std::vector<std::pair<RegType, Reg>>& folded) {
    const int kept = 3 & ~static_cast<int>(fold_);
    const auto done = [&](RegType t, Reg r) { folded.push_back({t, r}); };
    switch (pick(0, 6)) {
      case 0: {
        const Op op = choice({Op::sum_f32, Op::mean_f32, Op::total_f32});
        const Reg sum = builder.fold(op, any(RegType::kF32));
        op == Op::total_f32 ? totals_.push_back(sum) : done(RegType::kF32, sum);
        break;
      }
      case 6: {
        const Op op = choice({Op::sum_f64, Op::mean_f64, Op::max_f64, Op::min_f64, Op::prod_f64});
        Reg a = any(RegType::kF64);
        if (op == Op::prod_f64) a = builder.map(Op::sign_f64, a);
        done(RegType::kF64, builder.fold(op, a));
        break;
      }
      case 1: {
        const Reg unit = builder.map(Op::sign_f32, any(RegType::kF32));
        done(RegType::kF32, builder.fold(Op::prod_f32, unit));
        if (fold_ == Fold::kRows && pick(0, 1) == 0) {  // the others are interpreted
          const Op op = choice({Op::deviations_f32, Op::variance_f32});
          done(RegType::kF32, builder.fold(op, unit));
        }
        break;
      }
      case 2:
        done(RegType::kF32, builder.fold(choice({Op::max_f32, Op::min_f32}), any(RegType::kF32)));
        break;
      case 3:
        done(RegType::kI64,
             builder.fold(choice({Op::sum_i64, Op::prod_i64, Op::max_i64, Op::min_i64}),
                          any(RegType::kI64)));
        done(RegType::kI32, builder.fold(choice({Op::max_i32, Op::min_i32}), any(RegType::kI32)));
        break;
      case 4:
        done(RegType::kB8, builder.fold(choice({Op::any_b8, Op::all_b8}), any(RegType::kB8)));
        break;
      case 5: {
        // One, since some processors have registers for few.
        const Op op = choice({Op::argmax_f32, Op::argmin_f32, Op::argmax_f64, Op::argmin_f64,
                              Op::argmax_i32, Op::argmin_i32, Op::argmax_i64, Op::argmin_i64});
        const Reg a = any(bytecode::kIsa[static_cast<int>(op)].fields[1].type);
        const int mask = static_cast<int>(fold_) | (static_cast<int>(a.cls) & kept);
        done(RegType::kI64, builder.fold(op, a, any(RegType::kI64, mask)));
        break;
      }
    }
  }

  std::vector<std::byte> random_program(Fold fold) {
    fold_ = fold;
    builder.reset(fold);
    const auto some = [&](int64_t low, int64_t high, auto f) {
      for (int64_t k = pick(low, high); k > 0; --k) f();
    };
    some(1, fold == Fold::kNone ? 25 : 4, [&] { random_instr(); });
    struct Kept {
      std::uint16_t mem;
      RegType type;
      Op load;
    };
    std::vector<Kept> scratch;
    for (int64_t pass = fold == Fold::kNone ? 0 : pick(1, 3); pass > 0; --pass) {
      builder.begin_pass();
      pass_ = true;
      std::vector<Reg> section[kRegTypes];
      std::copy(std::begin(live), std::end(live), section);
      std::vector<std::pair<RegType, Reg>> folded;
      for (const Kept& k : scratch) {
        if (pick(0, 3) > 0) keep(k.type, builder.load(k.load, k.mem));
      }
      some(1, 12, [&] { random_instr(); });
      some(0, 3, [&] { random_fold(folded); });
      some(0, 2, [&] { random_instr(); });
      if (pick(0, 1)) {
        const auto mem = [&](Storage s) {
          bindings.push_back({});
          return builder.operand(Role::kScratch, s, Cls::kFull, true);
        };
        std::vector<Kept> more;
        for (int64_t k = pick(0, 2); k > 0; --k) {
          const auto s = static_cast<Storage>(pick(0, kStorages - 1));
          const int at = static_cast<int>(s);
          more.push_back({mem(s), info(s).reg, kLoadOf[at]});
          builder.store(kStoreOf[at], more.back().mem, any(info(s).reg));
          if (s == Storage::kF64 && pick(0, 1)) {
            more.push_back({more.back().mem, RegType::kF32, Op::load_f64_f32});
          }
        }
        scratch.insert(scratch.end(), more.begin(), more.end());
      }
      some(0, 2, [&] { random_output(); });
      builder.end_pass();
      pass_ = false;
      std::copy(std::begin(section), std::end(section), live);
      for (const auto& [type, r] : folded) keep(type, r);
      // Rounded, since machine code may add a few in float32 first.
      for (const Reg total : std::exchange(totals_, {}))
        keep(RegType::kF32, builder.map(Op::cast_f64_f32, total));
      some(0, 4, [&] { random_instr(); });
    }
    some(1, 2, [&] { random_output(); });
    return builder.finish();
  }
};

}  // namespace tilevm::testing
