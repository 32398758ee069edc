// Random launches of a program, on memory that ends (or begins) at a page that must not be touched.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "exec/check.h"
#include "exec/launch.h"
#include "tests/random_program.h"

namespace tilevm::test {

enum class Side { kRight, kLeft };  // which end of an operand touches a guard page

// One operand's room: pages between two guard pages, mapped once.
class GuardedSlot {
 public:
  explicit GuardedSlot(std::size_t capacity) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    capacity_ = (capacity + page - 1) / page * page;
    size_ = capacity_ + 2 * page;
    void* at = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    all_ = static_cast<std::byte*>(at);
    if (mprotect(all_ + page, capacity_, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = all_ + page;
  }
  GuardedSlot(const GuardedSlot&) = delete;
  GuardedSlot& operator=(const GuardedSlot&) = delete;
  GuardedSlot(GuardedSlot&& other) noexcept
      : all_(std::exchange(other.all_, nullptr)),
        data_(other.data_),
        size_(other.size_),
        capacity_(other.capacity_) {}
  ~GuardedSlot() {
    if (all_ != nullptr) munmap(all_, size_);
  }

  std::byte* place(std::size_t bytes, Side side) const {
    if (bytes > capacity_) std::abort();
    return side == Side::kLeft ? data_ : data_ + capacity_ - bytes;
  }

 private:
  std::byte* all_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// A launch, and what its operands hold before it. `place` binds it to guarded memory.
struct RandomLaunch {
  struct Memory {
    std::vector<std::byte> image;  // empty for scratch and iota
    std::size_t base = 0;          // offset of the first element
    int same_as = -1;              // the operand whose memory this is, in place
  };

  exec::Space space;
  std::vector<exec::Binding> bindings;
  std::vector<exec::Extent> extents;
  std::vector<Memory> memory;

  exec::Launch launch() const { return {space, bindings}; }
};

class LaunchGenerator {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{4} << 20;
  static constexpr std::int64_t kMaxPoints = 1 << 13;

  explicit LaunchGenerator(ProgramGenerator& random) : random_(random) {}

  // Sizes and strides that check_launch accepts, and random contents. Gathered axes have at
  // least `gathered` elements (or, rarely, none if 0 is given).
  RandomLaunch next(const bytecode::View& program, int gathered) {
    program_ = &program;
    RandomLaunch result;
    result.space = random_space();
    const std::vector<bool> in_section = used_in_section();
    result.bindings.resize(program.operands.size());
    result.extents.resize(program.operands.size());
    result.memory.resize(program.operands.size());
    for (std::size_t m = 0; m < program.operands.size(); ++m) {
      const bytecode::OperandInfo& info = program.operands[m];
      if (info.role == bytecode::Role::kScratch) continue;
      bind(info, result.space, in_section[m], gathered, result.bindings[m], result.memory[m]);
      fill(info, result.memory[m].image);
    }
    return result;
  }

  // Puts the contents at one side of their slots and sets bases and extents.
  void place(RandomLaunch& launch, Side side) {
    for (std::size_t m = 0; m < launch.memory.size(); ++m) {
      while (slots_.size() <= m) slots_.emplace_back(kSlotBytes);
      if (launch.memory[m].same_as >= 0) continue;
      const std::vector<std::byte>& image = launch.memory[m].image;
      std::byte* const lo = slots_[m].place(image.size(), side);
      std::copy(image.begin(), image.end(), lo);
      launch.extents[m] = {lo, lo + image.size()};
      launch.bindings[m].base = lo + launch.memory[m].base;
    }
    for (std::size_t m = 0; m < launch.memory.size(); ++m) {
      const int owner = launch.memory[m].same_as;
      if (owner < 0) continue;
      launch.extents[m] = launch.extents[owner];
      launch.bindings[m].base = launch.bindings[owner].base;
    }
  }

  // Whether a run wrote only elements of outputs: false if it changed an input or a gap.
  static bool only_outputs_changed(const bytecode::View& program, const RandomLaunch& launch) {
    for (std::size_t m = 0; m < launch.memory.size(); ++m) {
      std::vector<std::byte> expected = launch.memory[m].image;
      if (program.operands[m].role == bytecode::Role::kOutput) {
        const std::size_t bytes = bytecode::storage_bytes(program.operands[m].storage);
        for_each_element(launch, m, [&](std::ptrdiff_t offset) {
          std::memcpy(expected.data() + launch.memory[m].base + offset,
                      launch.bindings[m].base + offset, bytes);
        });
      }
      if (!std::equal(expected.begin(), expected.end(), launch.extents[m].lo)) return false;
    }
    return true;
  }

  // Calls `visit` with the offset from the base of every element of operand m.
  template <typename Visit>
  static void for_each_element(const RandomLaunch& launch, std::size_t m, Visit visit) {
    const exec::Space& space = launch.space;
    const exec::Binding& bound = launch.bindings[m];
    std::vector<std::array<std::int64_t, 2>> axes = {{space.rows, bound.y_stride},
                                                     {space.cols, bound.x_stride}};
    for (int i = 0; i < space.n_outer; ++i) axes.push_back({space.outer[i], bound.outer[i]});
    for (int i = 0; i < space.n_reduced; ++i) {
      axes.push_back({space.reduced[i], bound.reduced[i]});
    }
    // An axis that does not move has one point, though no points at all if it is kept: the
    // caller sees that as elements that did not change.
    for (auto& [size, stride] : axes) size = stride == 0 ? 1 : std::max<std::int64_t>(size, 1);
    visit_axes(axes, 0, 0, visit);
  }

 private:
  using OperandInfo = bytecode::OperandInfo;
  using Binding = exec::Binding;
  using Space = exec::Space;

  template <typename Visit>
  static void visit_axes(const std::vector<std::array<std::int64_t, 2>>& axes, std::size_t a,
                         std::ptrdiff_t offset, Visit& visit) {
    if (a == axes.size()) return visit(offset);
    for (std::int64_t i = 0; i < axes[a][0]; ++i) {
      visit_axes(axes, a + 1, offset + i * axes[a][1], visit);
    }
  }

  std::int64_t random_size(int percent_none) {
    constexpr std::array kSizes = {1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100};
    return random_.chance(percent_none) ? 0 : kSizes[random_.below(kSizes.size())];
  }

  Space random_space() {
    Space space;
    space.rows = random_size(3);
    space.cols = random_.chance(3) ? 2100 + random_.below(300) : random_size(3);
    if (space.cols > 1000) space.rows = std::min<std::int64_t>(space.rows, 3);
    space.n_outer = random_.below(3);
    if (program_->header->fold != bytecode::Fold::kNone) space.n_reduced = random_.below(3);
    for (int i = 0; i < space.n_outer; ++i) {
      space.outer[i] = random_.chance(3) ? 0 : 1 + random_.below(3);
    }
    for (int i = 0; i < space.n_reduced; ++i) {
      space.reduced[i] = random_.chance(3) ? 0 : 1 + random_.below(3);
    }
    const auto points = [&] {
      std::int64_t n = space.rows * space.cols;
      for (int i = 0; i < space.n_outer; ++i) n *= std::max<std::int64_t>(space.outer[i], 1);
      for (int i = 0; i < space.n_reduced; ++i) n *= std::max<std::int64_t>(space.reduced[i], 1);
      return n;
    };
    while (points() > kMaxPoints) {
      if (space.n_reduced > 1) --space.n_reduced;
      if (space.n_outer > 1) --space.n_outer;
      space.rows = (space.rows + 1) / 2;
      if (space.rows == 1) space.cols = (space.cols + 1) / 2;
    }
    return space;
  }

  std::vector<bool> used_in_section() const {
    using bytecode::InstrClass;
    std::vector<bool> used(program_->operands.size());
    bool in_pass = false;
    for (const bytecode::Instr& instr : program_->code) {
      const bytecode::InstrInfo& row = bytecode::kIsa[instr.op];
      if (row.cls == InstrClass::kMark) in_pass = row.name == "pass";
      for (int f = 0; f < row.n_fields; ++f) {
        const bool is_mem = row.fields[f].kind == bytecode::FieldKind::kMem;
        if (is_mem && !in_pass) used[instr.mem] = true;
      }
    }
    return used;
  }

  // Strides: axes nested in random order with gaps, of either sign. Inputs may also repeat
  // themselves along outer axes.
  void bind(const OperandInfo& info, const Space& space, bool in_section, int gathered,
            Binding& bound, RandomLaunch::Memory& memory) {
    struct Axis {
      std::int64_t* stride;
      std::int64_t size;
    };
    const int cls = static_cast<int>(info.cls);
    const bool is_iota = info.role == bytecode::Role::kIota;
    const bool is_output = info.role == bytecode::Role::kOutput;
    const std::int64_t element = is_iota ? 1 : bytecode::storage_bytes(info.storage);
    std::vector<Axis> axes;
    if (cls & 2) axes.push_back({&bound.y_stride, space.rows});
    if ((cls & 1) && !info.contiguous) axes.push_back({&bound.x_stride, space.cols});
    for (int i = 0; i < space.n_outer; ++i) {
      if (is_output || random_.chance(70)) axes.push_back({&bound.outer[i], space.outer[i]});
    }
    for (int i = 0; i < space.n_reduced && !in_section; ++i) {
      if (is_output || random_.chance(70)) {
        axes.push_back({&bound.reduced[i], space.reduced[i]});
      }
    }
    if (info.role == bytecode::Role::kGather) {
      bound.gather_size = gathered + random_.below(5);
      axes.push_back({&bound.gather_stride, bound.gather_size});
    }
    std::shuffle(axes.begin(), axes.end(), random_.rng());

    std::int64_t reach = element;  // bytes that the axes so far cover
    std::int64_t before = 0;       // of them, those before the base
    if (info.contiguous) {
      bound.x_stride = element;
      reach *= std::max<std::int64_t>(space.cols, 1);
    }
    for (const Axis& axis : axes) {
      const std::int64_t moves = std::max<std::int64_t>(axis.size, 1) - 1;
      std::int64_t stride = reach + element * (random_.chance(60) ? 0 : random_.below(3));
      if (reach + stride * moves > static_cast<std::int64_t>(kSlotBytes)) stride = element;
      const bool backwards = random_.chance(25);
      reach += stride * moves;
      if (backwards) before += stride * moves;
      *axis.stride = backwards ? -stride : stride;
    }
    bound.start = is_iota ? random_.below(7) - 3 : 0;
    if (is_iota) return;
    memory.base = static_cast<std::size_t>(before);
    memory.image.resize(static_cast<std::size_t>(reach));
  }

  template <typename T>
  static void put(std::vector<std::byte>& image, std::size_t at, T value) {
    std::memcpy(image.data() + at, &value, sizeof(T));
  }

  // Mostly ordinary numbers, now and then any bits.
  void fill(const OperandInfo& info, std::vector<std::byte>& image) {
    using bytecode::Storage;
    const auto bytes = static_cast<std::size_t>(bytecode::storage_bytes(info.storage));
    for (std::size_t at = 0; at + bytes <= image.size(); at += bytes) {
      const std::uint64_t any = random_.rng()();
      const bool wild = any % 64 == 0;
      const float number = static_cast<float>(static_cast<std::int32_t>(any >> 32)) * 0x1p-28f;
      const auto bits = static_cast<std::uint32_t>(any >> 20);
      std::uint32_t number_bits;
      std::memcpy(&number_bits, &number, sizeof(number));
      if (wild) number_bits = bits;
      switch (info.storage) {
        case Storage::kF32:
          put(image, at, number_bits);
          break;
        case Storage::kBF16:
          put(image, at, static_cast<std::uint16_t>(number_bits >> 16));
          break;
        case Storage::kF16:
        case Storage::kI16:
          put(image, at, static_cast<std::uint16_t>(bits));
          break;
        case Storage::kI8:
        case Storage::kU8:
          put(image, at, static_cast<std::uint8_t>(bits));
          break;
        case Storage::kF64:
          if (wild) {
            put(image, at, any * 0x9e3779b97f4a7c15u);
          } else {
            put(image, at, static_cast<double>(number));
          }
          break;
        case Storage::kI32:
          put(image, at, wild ? bits : bits % 41 - 20);
          break;
        case Storage::kI64:
          put(image, at, wild ? any : any % 41 - 20);
          break;
        case Storage::kB8:
          put(image, at, static_cast<std::uint8_t>(any >> 40 & 1));
          break;
      }
    }
  }

  ProgramGenerator& random_;
  const bytecode::View* program_ = nullptr;
  std::vector<GuardedSlot> slots_;
};

}  // namespace tilevm::test
