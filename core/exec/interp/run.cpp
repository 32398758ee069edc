// Runs a prepared program: blocks, passes, and the dispatch of one block's steps.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "exec/interp/interp.h"
#include "exec/interp/prepared.h"

namespace tilevm::exec::interp {
namespace {

using bytecode::OperandInfo;
using bytecode::Role;
using std::int64_t;
using std::uint64_t;

constexpr int64_t kShortRow = 48;        // below, broadcasting is cheaper than a call a row
constexpr int64_t kTransposedTile = 64;  // columns of a block where neighbours are in rows
constexpr std::size_t kLine = 64;

std::size_t round_up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Addresses are kept as integers, so that stepping past an operand's end is defined.
std::byte* pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

class Runner {
 public:
  Runner(const Prepared& p, const Launch& launch) : p_(p), launch_(launch) {}

  Status run(Scratch& scratch) noexcept {
    const Space& space = launch_.space;
    for (int i = 0; i < space.n_outer; ++i) {
      if (space.outer[i] == 0) return Status::kOk;
    }
    if (space.rows == 0 && (p_.fold & kRowBit) == 0) return Status::kOk;
    if (space.cols == 0 && (p_.fold & kColumnBit) == 0) return Status::kOk;
    choose_block();
    if (!allocate(scratch)) return Status::kNoMemory;
    bind();
    int64_t position[kMaxOuter] = {};
    do {
      if (!run_kept_blocks()) return status_;
    } while (advance(space.n_outer, space.outer, position, &Binding::outer));
    return Status::kOk;
  }

 private:
  // Blocks -----------------------------------------------------------------------------------

  // A block is a run of whole rows, or part of one. Nothing here depends on the number of rows
  // where rows are kept and columns folded: threads may cut them.
  void choose_block() {
    const Space& space = launch_.space;
    const int64_t tile = p_.tile;
    int64_t most = tile;
    if (space.rows >= 16 || p_.fold != 0) {
      for (std::size_t i = 0; i < p_.operands.size(); ++i) {
        if (is_transposed(i)) most = kTransposedTile;
      }
    }
    block_nx_ = std::max<int64_t>(space.cols, 1);
    if (block_nx_ > most) {
      const int64_t blocks = (space.cols + most - 1) / most;
      block_nx_ = std::min(most, ((space.cols + blocks - 1) / blocks + 63) / 64 * 64);
    }
    block_ny_ = std::clamp<int64_t>(tile / block_nx_, 1, std::max<int64_t>(space.rows, 1));
  }

  bool is_transposed(std::size_t i) const {
    const OperandInfo& info = p_.operands[i];
    const Binding& b = launch_.bindings[i];
    if (info.cls != Cls::kFull || info.contiguous) return false;
    if (info.role != Role::kInput && info.role != Role::kOutput) return false;
    const int64_t bytes = bytecode::storage_bytes(info.storage);
    return std::abs(b.y_stride) == bytes && std::abs(b.x_stride) > bytes;
  }

  void set_block(int64_t ny, int64_t nx) {
    ny_ = ny;
    nx_ = nx;
    count_[kColumnBit] = nx;
    count_[kRowBit] = ny;
    count_[kColumnBit | kRowBit] = ny * nx;
  }

  // Memory -----------------------------------------------------------------------------------

  int64_t capacity(int cls) const {
    return ((cls & kColumnBit) ? block_nx_ : 1) * ((cls & kRowBit) ? block_ny_ : 1);
  }

  bool allocate(Scratch& scratch) {
    const Space& space = launch_.space;
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) {
      const std::size_t offset = at;
      at += round_up(bytes);
      return offset;
    };
    const std::size_t n_registers = static_cast<std::size_t>(p_.n_registers);
    const std::size_t n_operands = p_.operands.size();
    const std::size_t reg_at = take(n_registers * sizeof(std::byte*));
    const std::size_t own_at = take(n_registers * sizeof(std::byte*));
    const std::size_t address_at = take(n_operands * sizeof(uint64_t));
    const std::size_t direct_at = take(n_operands);
    const std::size_t fold_at = take(p_.folds.size() * sizeof(FoldBlock));
    const std::size_t depth_at = take(p_.folds.size() * sizeof(int64_t));
    std::size_t pool_at[kPools];
    std::size_t pool_pitch[kPools];
    for (int pool = 0; pool < kPools; ++pool) {
      const int64_t elements = capacity(pool / 4) * pool_bytes(pool);
      pool_pitch[pool] = round_up(static_cast<std::size_t>(elements) + kPadBytes);
      pool_at[pool] = take(pool_pitch[pool] * static_cast<std::size_t>(p_.pool_size[pool]));
    }
    const std::size_t temporary_bytes =
        round_up(static_cast<std::size_t>(block_ny_ * block_nx_) * 8 + kPadBytes);
    const std::size_t temporary_at = take(p_.needs_temporaries ? 3 * temporary_bytes : 0);
    const std::size_t folds_at = at;
    for (const FoldStep& fold : p_.folds) {
      at += 2 * round_up(static_cast<std::size_t>(capacity(fold.dst_cls)) * 8 + kPadBytes);
    }
    // Scratch operands: a chunk for each block of a pass, in the order they are visited.
    const std::size_t scratch_at = at;
    if (!p_.scratch.empty()) {
      uint64_t blocks = 1;
      if (p_.fold & kColumnBit) blocks *= blocks_of(space.cols, block_nx_);
      if (p_.fold & kRowBit) blocks *= blocks_of(space.rows, block_ny_);
      for (int i = 0; i < space.n_reduced; ++i) {
        blocks *= static_cast<uint64_t>(space.reduced[i]);
      }
      for (const std::uint16_t mem : p_.scratch) {
        std::uint64_t bytes = 0;
        if (__builtin_mul_overflow(blocks, chunk_bytes(mem), &bytes) ||
            __builtin_add_overflow(at, bytes, &at)) {
          return false;
        }
      }
      blocks_in_pass_ = blocks;
    }
    std::byte* base = scratch.reserve(at);
    if (base == nullptr) return false;
    reg_ = reinterpret_cast<std::byte**>(base + reg_at);
    own_ = reinterpret_cast<std::byte**>(base + own_at);
    address_ = reinterpret_cast<uint64_t*>(base + address_at);
    direct_ = reinterpret_cast<std::uint8_t*>(base + direct_at);
    fold_ = reinterpret_cast<FoldBlock*>(base + fold_at);
    for (int k = 0; k < 3; ++k) {
      temporary_[k] = base + temporary_at + static_cast<std::size_t>(k) * temporary_bytes;
    }
    scratch_ = base + scratch_at;
    for (std::size_t r = 0; r < n_registers; ++r) {
      const int pool = p_.pool[r];
      if (pool == kNoPool) continue;
      own_[r] = reg_[r] = base + pool_at[pool] + pool_pitch[pool] * p_.place[r];
    }
    for (const Constant& c : p_.constants) {
      // Read only: no step writes a constant.
      reg_[c.reg] = reinterpret_cast<std::byte*>(const_cast<uint64_t*>(&c.bits));
    }
    std::byte* fold_memory = base + folds_at;
    for (std::size_t i = 0; i < p_.folds.size(); ++i) {
      const std::size_t bytes =
          round_up(static_cast<std::size_t>(capacity(p_.folds[i].dst_cls)) * 8 + kPadBytes);
      FoldBlock& f = *new (&fold_[i]) FoldBlock{};
      f.acc = fold_memory;
      f.extra = fold_memory + bytes;
      f.depth = reinterpret_cast<int64_t*>(base + depth_at) + i;
      f.count = folded_points();
      fold_memory += 2 * bytes;
    }
    return true;
  }

  double folded_points() const {
    const Space& space = launch_.space;
    double points = 1;
    if (p_.fold & kColumnBit) points *= static_cast<double>(space.cols);
    if (p_.fold & kRowBit) points *= static_cast<double>(space.rows);
    for (int i = 0; i < space.n_reduced; ++i) points *= static_cast<double>(space.reduced[i]);
    return points;
  }

  static uint64_t blocks_of(int64_t size, int64_t block) {
    return static_cast<uint64_t>((size + block - 1) / block);
  }

  uint64_t chunk_bytes(std::uint16_t mem) const {
    const int bytes = bytecode::storage_bytes(p_.operands[mem].storage);
    return round_up(static_cast<std::size_t>(block_ny_ * block_nx_ * bytes) + kPadBytes);
  }

  void bind() {
    for (std::size_t i = 0; i < p_.operands.size(); ++i) {
      const OperandInfo& info = p_.operands[i];
      const Binding& b = launch_.bindings[i];
      address_[i] = info.role == Role::kIota ? static_cast<uint64_t>(b.start)
                                             : reinterpret_cast<uint64_t>(b.base);
      direct_[i] = is_direct(i);
    }
  }

  // Whether registers of the same type may lie in the operand's memory: dense in every block, and
  // no other operand is updated in place there.
  bool is_direct(std::size_t i) const {
    const OperandInfo& info = p_.operands[i];
    const Binding& b = launch_.bindings[i];
    const bool input = info.role == Role::kInput;
    if (!input && info.role != Role::kOutput) return false;
    if (input && info.storage == Storage::kB8) return false;  // any byte but 0 loads as 1
    const int64_t bytes = bytecode::storage_bytes(info.storage);
    switch (info.cls) {
      case Cls::kScalar:
        break;
      case Cls::kColumn:
        if (block_nx_ > 1 && b.x_stride != bytes) return false;
        break;
      case Cls::kRow:
        if (block_ny_ > 1 && b.y_stride != bytes) return false;
        break;
      case Cls::kFull:
        if (block_nx_ > 1 && b.x_stride != bytes) return false;
        if (block_ny_ > 1 && (b.y_stride != block_nx_ * bytes || block_nx_ < launch_.space.cols)) {
          return false;
        }
        break;
    }
    for (std::size_t k = 0; k < p_.operands.size(); ++k) {
      if (k == i || launch_.bindings[k].base != b.base) continue;
      const Role role = p_.operands[k].role;
      if (input ? role == Role::kOutput
                : role == Role::kInput || role == Role::kOutput || role == Role::kGather) {
        return false;
      }
    }
    return true;
  }

  // Steps to the next position of an odometer and moves every address; false after the last.
  bool advance(int n, const int64_t* extents, int64_t* position,
               const int64_t (Binding::*strides)[kMaxOuter]) {
    for (int axis = n - 1; axis >= 0; --axis) {
      const bool carry = ++position[axis] == extents[axis];
      if (carry) position[axis] = 0;
      const uint64_t by = carry ? 1 - static_cast<uint64_t>(extents[axis]) : 1;
      for (std::size_t i = 0; i < p_.operands.size(); ++i) {
        address_[i] += by * static_cast<uint64_t>((launch_.bindings[i].*strides)[axis]);
      }
      if (!carry) return true;
    }
    return false;
  }

  // Loops ------------------------------------------------------------------------------------

  bool run_kept_blocks() {
    const Space& space = launch_.space;
    const bool rows_kept = (p_.fold & kRowBit) == 0;
    const bool cols_kept = (p_.fold & kColumnBit) == 0;
    const int64_t rows = rows_kept ? space.rows : 1;
    const int64_t cols = cols_kept ? space.cols : 1;
    for (int64_t y = 0; y < rows; y += rows_kept ? block_ny_ : 1) {
      for (int64_t x = 0; x < cols; x += cols_kept ? block_nx_ : 1) {
        y_ = y;
        x_ = x;
        set_block(rows_kept ? std::min(block_ny_, rows - y) : 1,
                  cols_kept ? std::min(block_nx_, cols - x) : 1);
        if (!run_segments()) return false;
      }
    }
    return true;
  }

  bool run_segments() {
    for (const Segment& s : p_.segments) {
      const Step* steps = p_.steps.data();
      const bool ok = s.is_pass ? run_pass(s) : run_block(steps + s.begin, steps + s.end);
      if (!ok) return false;
    }
    return true;
  }

  bool run_pass(const Segment& s) {
    const Space& space = launch_.space;
    for (std::uint32_t i = s.fold_begin; i < s.fold_end; ++i) {
      fold_[i].groups = count_[p_.folds[i].dst_cls];
      p_.folds[i].entry->reset(fold_[i]);
    }
    const int64_t ny = ny_;
    const int64_t nx = nx_;
    const int64_t y = y_;
    const int64_t x = x_;
    bool empty = false;
    for (int i = 0; i < space.n_reduced; ++i) empty = empty || space.reduced[i] == 0;
    if (!empty) {
      int64_t position[kMaxOuter] = {};
      uint64_t block = 0;
      do {
        if (!run_reduced_blocks(s, block)) return false;
      } while (advance(space.n_reduced, space.reduced, position, &Binding::reduced));
    }
    y_ = y;
    x_ = x;
    set_block(ny, nx);
    for (std::uint32_t i = s.fold_begin; i < s.fold_end; ++i) {
      fold_[i].groups = count_[p_.folds[i].dst_cls];
      p_.folds[i].entry->finish(fold_[i], reg_[p_.folds[i].dst]);
    }
    return true;
  }

  bool run_reduced_blocks(const Segment& s, uint64_t& block) {
    const Space& space = launch_.space;
    const bool rows_folded = (p_.fold & kRowBit) != 0;
    const bool cols_folded = (p_.fold & kColumnBit) != 0;
    const int64_t ny = ny_;
    const int64_t nx = nx_;
    const int64_t rows = rows_folded ? space.rows : 1;
    const int64_t cols = cols_folded ? space.cols : 1;
    const Step* steps = p_.steps.data();
    for (int64_t y = 0; y < rows; y += rows_folded ? block_ny_ : 1) {
      if (rows_folded) y_ = y;
      for (int64_t x = 0; x < cols; x += cols_folded ? block_nx_ : 1) {
        if (cols_folded) x_ = x;
        set_block(rows_folded ? std::min(block_ny_, rows - y) : ny,
                  cols_folded ? std::min(block_nx_, cols - x) : nx);
        if (!p_.scratch.empty()) place_scratch(s, block++);
        if (!run_block(steps + s.begin, steps + s.end)) return false;
      }
    }
    if (rows_folded) ny_ = ny;
    if (cols_folded) nx_ = nx;
    return true;
  }

  void place_scratch(const Segment& s, uint64_t block) {
    std::byte* at = scratch_;
    for (const std::uint16_t mem : p_.scratch) {
      const uint64_t bytes = chunk_bytes(mem);
      address_[mem] = reinterpret_cast<uint64_t>(at + block * bytes);
      at += blocks_in_pass_ * bytes;
    }
    for (std::uint32_t i = s.resident_begin; i < s.resident_end; ++i) {
      const Resident& r = p_.residents[i];
      own_[r.reg] = reg_[r.reg] = pointer(address_[r.mem]);
    }
  }

  // One block --------------------------------------------------------------------------------

  bool run_block(const Step* s, const Step* end) {
    for (; s != end; ++s) {
      switch (s->kind) {
        case StepKind::kMap:
          if (!s->fn(reg_[s->dst], reg_[s->a], reg_[s->b], reg_[s->c], count_[s->cls])) {
            return fail(Status::kDivisionByZero);
          }
          break;
        case StepKind::kMapMixed:
          if (!map_mixed(*s)) return fail(Status::kDivisionByZero);
          break;
        case StepKind::kMapExpanded:
          if (!map_expanded(*s)) return fail(Status::kDivisionByZero);
          break;
        case StepKind::kAim:
          reg_[s->dst] = direct_[s->mem] ? pointer(here(s->mem)) : own_[s->dst];
          break;
        case StepKind::kLoad:
          if (direct_[s->mem]) {
            reg_[s->dst] = pointer(here(s->mem));
            break;
          }
          [[fallthrough]];
        case StepKind::kLoadCopied:
          reg_[s->dst] = own_[s->dst];
          s->access->load(own_[s->dst], grid(s->mem, s->cls));
          break;
        case StepKind::kLoadScratch:
          load_scratch(*s);
          break;
        case StepKind::kStore:
          store(*s);
          break;
        case StepKind::kStoreScratch:
          s->access->store(scratch_grid(s->mem), steps(s->a, s->a_cls));
          break;
        case StepKind::kGather:
          if (!gather(*s)) return fail(Status::kIndexOutOfRange);
          break;
        case StepKind::kIota:
          memory_.iota(reinterpret_cast<int64_t*>(own_[s->dst]), static_cast<int64_t>(here(s->mem)),
                       grid(s->mem, s->cls));
          break;
        case StepKind::kFold:
          fold(p_.folds[s->mem], fold_[s->mem]);
          break;
      }
    }
    return true;
  }

  bool fail(Status status) {
    status_ = status;
    return false;
  }

  // The operand's address (an iota's value) at the block's first element.
  uint64_t here(std::uint16_t mem) const {
    const Binding& b = launch_.bindings[mem];
    return address_[mem] + static_cast<uint64_t>(y_) * static_cast<uint64_t>(b.y_stride) +
           static_cast<uint64_t>(x_) * static_cast<uint64_t>(b.x_stride);
  }

  Grid grid(std::uint16_t mem, int cls) const {
    const Binding& b = launch_.bindings[mem];
    return {pointer(here(mem)), (cls & kRowBit) ? ny_ : 1, (cls & kColumnBit) ? nx_ : 1, b.y_stride,
            b.x_stride};
  }

  Grid scratch_grid(std::uint16_t mem) const {
    const int64_t bytes = bytecode::storage_bytes(p_.operands[mem].storage);
    return {pointer(address_[mem]), ny_, nx_, nx_ * bytes, bytes};
  }

  Steps steps(std::uint16_t r, int cls) const {
    const int64_t x_step = (cls & kColumnBit) ? 1 : 0;
    const int64_t y_step = (cls & kRowBit) ? (x_step ? nx_ : 1) : 0;
    return {reg_[r], y_step, x_step};
  }

  void load_scratch(const Step& s) {
    if (!s.converts) {
      reg_[s.dst] = pointer(address_[s.mem]);
    } else {
      s.access->load(own_[s.dst], scratch_grid(s.mem));
    }
  }

  void store(const Step& s) {
    std::byte* to = pointer(here(s.mem));
    if (reg_[s.a] == to && direct_[s.mem]) return;  // was made there
    Grid g = grid(s.mem, bits(p_.operands[s.mem].cls));
    s.access->store(g, steps(s.a, s.a_cls));
  }

  bool gather(const Step& s) {
    const Binding& b = launch_.bindings[s.mem];
    return s.access->gather(own_[s.dst], grid(s.mem, s.cls), steps(s.a, s.a_cls), b.gather_stride,
                            b.gather_size);
  }

  // Row and column sources of a full destination.
  bool map_mixed(const Step& s) {
    if (ny_ == 1) return s.fn(reg_[s.dst], reg_[s.a], reg_[s.b], reg_[s.c], nx_);
    if (nx_ < kShortRow) return map_expanded(s);
    const bytecode::InstrInfo& row = kIsa[s.op];
    const auto pitch = [&](int field, int cls) {
      return (cls & kRowBit)
                 ? ((cls & kColumnBit) ? nx_ : 1) * bytecode::reg_bytes(row.fields[field].type)
                 : 0;
    };
    const int64_t dst_pitch = pitch(0, s.cls);
    const int64_t a_pitch = pitch(1, s.a_cls);
    const int64_t b_pitch = s.n_sources > 1 ? pitch(2, s.b_cls) : 0;
    const int64_t c_pitch = s.n_sources > 2 ? pitch(3, s.c_cls) : 0;
    std::byte* dst = reg_[s.dst];
    const std::byte* a = reg_[s.a];
    const std::byte* b = reg_[s.b];
    const std::byte* c = reg_[s.c];
    for (int64_t y = 0; y < ny_; ++y) {
      if (!s.fn(dst, a, b, c, nx_)) return false;
      dst += dst_pitch;
      a += a_pitch;
      b += b_pitch;
      c += c_pitch;
    }
    return true;
  }

  // Writes broadcast sources out to the destination's class first. Scalars stay splats where
  // there is a handler for them.
  bool map_expanded(const Step& s) {
    const std::uint16_t registers[] = {s.a, s.b, s.c};
    const int classes[] = {s.a_cls, s.b_cls, s.c_cls};
    const std::byte* sources[3] = {};
    unsigned splats = 0;
    for (int k = 0; k < s.n_sources; ++k) {
      sources[k] = reg_[registers[k]];
      if (classes[k] == s.cls) continue;
      const bool mask = s.n_sources == 3 && k == 0;
      if (classes[k] == 0 && !mask) {
        splats |= 1u << k;
      } else {
        const RegType type = kIsa[s.op].fields[k + 1].type;
        sources[k] = expand(k, registers[k], classes[k], s.cls, bytecode::reg_bytes(type));
      }
    }
    const MapFn fn = s.entry->fn[s.n_sources == 3 ? splats >> 1 : splats];
    return fn(reg_[s.dst], sources[0], sources[1], sources[2], count_[s.cls]);
  }

  const std::byte* expand(int k, std::uint16_t r, int from_cls, int to_cls, int bytes) {
    const Steps value = steps(r, from_cls);
    const int64_t ny = (to_cls & kRowBit) ? ny_ : 1;
    const int64_t nx = (to_cls & kColumnBit) ? nx_ : 1;
    const auto fn = bytes == 1 ? memory_.expand1 : bytes == 4 ? memory_.expand4 : memory_.expand8;
    fn(temporary_[k], ny, nx, value);
    return temporary_[k];
  }

  void fold(const FoldStep& s, FoldBlock& f) {
    const int cls = s.dst_cls | p_.fold;  // every point of the block counts
    f.a = s.a_cls == cls ? reg_[s.a] : expand(0, s.a, s.a_cls, cls, s.a_bytes);
    const bool is_full = cls == (kColumnBit | kRowBit);
    const bool is_down = is_full && p_.fold == kRowBit;
    f.groups = count_[s.dst_cls];
    f.n = count_[cls] / f.groups;
    if (s.has_index) {
      Steps index = steps(s.b, s.b_cls);
      if (is_full && p_.fold == (kColumnBit | kRowBit) && s.b_cls != cls && s.b_cls != 0) {
        index = {expand(1, s.b, s.b_cls, cls, 8), nx_, 1};
      }
      f.b = static_cast<const int64_t*>(index.data);
      if (is_down) {
        f.b_group = index.x_step;
        f.b_step = index.y_step;
      } else {
        f.b_group = index.y_step;
        f.b_step = cls == kRowBit ? index.y_step : index.x_step;
      }
    }
    (is_down ? s.entry->down : s.entry->along)(f);
  }

  const Prepared& p_;
  const Launch& launch_;
  const MemoryTable& memory_ = tables().memory;
  Status status_ = Status::kOk;
  int64_t block_ny_ = 1, block_nx_ = 1;  // largest block
  int64_t ny_ = 1, nx_ = 1;              // this block
  int64_t y_ = 0, x_ = 0;                // its first element
  int64_t count_[4] = {1, 1, 1, 1};      // elements of a register, by class
  std::byte** reg_ = nullptr;            // where each register is now
  std::byte** own_ = nullptr;            // its own buffer
  uint64_t* address_ = nullptr;          // by operand, at the odometers' positions
  std::uint8_t* direct_ = nullptr;       // by operand: is_direct
  FoldBlock* fold_ = nullptr;
  std::byte* temporary_[3] = {};
  std::byte* scratch_ = nullptr;
  uint64_t blocks_in_pass_ = 0;
};

}  // namespace

Scratch::~Scratch() { std::free(data_); }

std::byte* Scratch::reserve(std::size_t bytes) noexcept {
  if (bytes > capacity_) {
    if (bytes > SIZE_MAX / 2) return nullptr;
    const std::size_t grown = round_up(std::max(bytes, std::size_t{64} * 1024));
    std::free(data_);
    data_ = static_cast<std::byte*>(std::aligned_alloc(kLine, grown));
    capacity_ = data_ == nullptr ? 0 : grown;
  }
  return data_;
}

Kernel::Kernel(std::span<const std::byte> program)
    : prepared_(std::make_unique<const Prepared>(prepare(program))) {}
Kernel::~Kernel() = default;
Kernel::Kernel(Kernel&&) noexcept = default;
Kernel& Kernel::operator=(Kernel&&) noexcept = default;

Status Kernel::run(const Launch& launch, Scratch& scratch) const noexcept {
  return Runner(*prepared_, launch).run(scratch);
}

}  // namespace tilevm::exec::interp
