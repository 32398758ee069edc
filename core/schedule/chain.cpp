#include "schedule/chain.h"

#include <algorithm>
#include <atomic>
#include <memory_resource>
#include <new>

#include "exec/gemm/lines.h"
#include "exec/memory.h"
#include "exec/threads.h"
#include "schedule/chain_axes.h"
#include "schedule/tape.h"

namespace tilevm::schedule {
namespace {

using exec::Status;
using exec::gemm::Matrix;
using exec::gemm::Sizes;
using exec::gemm::Tiles;
using exec::gemm::Way;

// Rows of a block, if no panel asks for fewer; so many rows are never divided.
constexpr std::int64_t kBlockRows = 240;
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kLinesAtOnce = 16;  // of positions, where lines of an image are copied
// Products by registers of 16 rows take two of them at a time.
constexpr std::int64_t kUnitRows = 32;
// Packed factors that are larger are made and used for some columns at a time, where that is
// possible: they stay in the second cache.
constexpr std::int64_t kPackedBytes = 512 << 10;
// ... pairs by AMX of fewer rows too, where reading the left factor again costs less.
constexpr std::int64_t kManyUnitRows = 512;
// Of causal attention, a batch is so many items, of at least so many bytes of a column: an item by
// itself takes a microsecond.
constexpr std::int64_t kCausalItems = 4;
constexpr std::int64_t kCausalBytes = 128;
constexpr std::int64_t kLeastColumns = 128;
// So many columns for each thread, and threads divide columns instead of rows.
constexpr std::int64_t kWideColumns = 256;
// Panels of 64 rows that are larger are of 32.
constexpr std::int64_t kUnitPanelBytes = 1 << 20;
// Below this much work, everything runs on one thread: about 10 us.
constexpr double kInlineFlops = 1 << 20;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t parts(std::int64_t x, std::int64_t most) { return (x + most - 1) / most; }
std::int64_t rounded_up(std::int64_t x, std::int64_t to) { return parts(x, to) * to; }

class Running {
 public:
  // tape: of a launch on one thread.
  Running(ChainLaunch& launch, const Tiles& tiles, int threads, Tape* tape = nullptr)
      : launch_(launch),
        tiles_(tiles),
        threads_(threads),
        tape_(tape),
        products_(launch.stages.size(), &small_),
        panel_offsets_(&small_),
        packed_offsets_(launch.stages.size(), -1, &small_),
        blocks_(&small_),
        memories_(&small_),
        packed_(&small_) {}
  ~Running() {
    for (const exec::Block& block : blocks_) exec::release(block);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Status run() {
    rows_ = launch_.rows[at(launch_.n_rows - 1)];
    batches_ = launch_.n_rows > 1 ? launch_.rows[at(launch_.n_rows - 2)] : 1;
    outer_ = 1;
    for (int i = 0; i < launch_.n_rows - 2; ++i) outer_ *= launch_.rows[at(i)];
    if (rows_ * batches_ * outer_ == 0) return Status::kOk;
    divide();
    choose_ways();
    if (!lay_out_memory()) return Status::kNoMemory;
    if (n_items_ < threads_) {
      // Few rows: the stages one after the other, each on all threads.
      for (std::int64_t i = 0; i < n_items_; ++i) run_item(i, 0, threads_);
    } else {
      pack_shared();
      exec::parallel(
          threads_,
          [](void* self, int thread) {
            Running& r = *static_cast<Running*>(self);
            const std::int64_t begin = r.n_items_ * thread / r.threads_;
            const std::int64_t end = r.n_items_ * (thread + 1) / r.threads_;
            for (std::int64_t i = begin; i < end; ++i) r.run_item(i, thread, 1);
          },
          this);
    }
    return status_.load();
  }

 private:
  struct Product {
    Way way = Way::kPacked;
    bool shared = false;            // all items have the same right factor, packed once
    const float* packed = nullptr;  // all of its right factor, if it is packed for all items
    float* to = nullptr;            // where it is to be packed
  };
  // Some rows of some batches.
  struct Item {
    std::array<std::int64_t, kMaxRows> index{};  // where it begins
    std::int64_t batches, rows;
    std::int64_t width;  // columns of panels that it needs, at most
  };

  void choose_ways() {
    for (std::size_t s = 0; s < products_.size(); ++s) {
      const Stage& stage = launch_.stages[s];
      if (stage.kernel != nullptr) continue;
      Product& product = products_[s];
      product.shared = n_items_ >= threads_ &&
                       std::ranges::all_of(stage.b_rows, [](auto stride) { return stride == 0; });
      product.way = stage.way;
      product.packed = stage.packed;
    }
  }

  // How many rows and batches an item has. Fewer than kFewRows are one item whatever the number of
  // threads, since how their sums are made depends on how many there are.
  void divide() {
    std::int64_t row_bytes = 0;
    for (const Panel& panel : launch_.panels) row_bytes += panel.columns * panel.item_bytes;
    // Alone, the library divides rows as it likes.
    const bool whole = launch_.panels.empty() && launch_.stages.front().way == Way::kLibrary;
    const bool units = std::ranges::any_of(launch_.stages, [this](const Stage& stage) {
      return stage.kernel == nullptr && by_units(tiles_, stage.way);
    });
    const std::int64_t at_once = units ? kUnitRows : tiles_.rows;
    const std::int64_t most =
        whole            ? std::max(rows_, kBlockRows)
        : launch_.passes ? kUnitBlockRows
                         : std::clamp<std::int64_t>(
                               kPanelBytes / std::max<std::int64_t>(row_bytes, 1),
                               units ? least_unit_rows(row_bytes) : at_once, block_rows(units)) /
                               at_once * at_once;
    const std::int64_t groups = batches_ * outer_;
    item_rows_ = rows_;
    if (rows_ > kFewRows) {
      item_rows_ = std::min(rows_, most);
      // Items of a batch. Of causal attention, sums are as wide as the item needs: the same for any
      // threads. Fewer rows need fewer columns.
      const std::int64_t wanted = launch_.causal != INT64_MAX ? causal_items()
                                  : launch_.passes            ? 1
                                                              : parts(threads_, groups);
      item_rows_ = std::min(item_rows_, std::max(kFewRows, parts(rows_, wanted)));
      item_rows_ = parts(rows_, parts(rows_, item_rows_));
      if (units) item_rows_ = std::min(rounded_up(item_rows_, kUnitRows), rows_);
    }
    item_batches_ = 1;
    if (item_rows_ == rows_) {
      item_batches_ = std::clamp<std::int64_t>(most / rows_, 1, batches_);
      item_batches_ = std::min(item_batches_, parts(groups, threads_));
    }
    batch_items_ = parts(batches_, item_batches_);
    row_items_ = parts(rows_, item_rows_);
    n_items_ = outer_ * batch_items_ * row_items_;
  }

  std::int64_t causal_items() const {
    const int bytes = bytecode::storage_bytes(launch_.stages.front().a.storage);
    return std::clamp<std::int64_t>(rows_ * bytes / kCausalBytes, 1, kCausalItems);
  }

  // Of products by registers of 16 rows. Each item reads right factors again, long ones from the
  // last cache: with pieces, of 6 bytes an element, that takes longer than panels there do.
  std::int64_t least_unit_rows(std::int64_t row_bytes) const {
    const bool pieces = std::ranges::any_of(
        launch_.stages, [](const Stage& stage) { return stage.way == Way::kPackedPieces; });
    if (pieces) return 3 * kUnitRows;
    return 2 * kUnitRows * row_bytes <= kUnitPanelBytes ? 2 * kUnitRows : kUnitRows;
  }

  // The most rows of an item. Of convolutions that copy lines, so many that few are copied twice.
  std::int64_t block_rows(bool units) const {
    std::int64_t most = units ? kUnitBlockRows : kBlockRows;
    for (const Stage& stage : launch_.stages) {
      if (stage.kernel != nullptr || stage.a.windows == nullptr) continue;
      if (!exec::gemm::in_lines(stage.way, *stage.a.windows)) continue;
      const std::int64_t row_bytes = stage.n * static_cast<std::int64_t>(sizeof(float));
      const std::int64_t rows = kLinesAtOnce * stage.a.windows->out[2];
      most = std::max(most, std::min(rows, kPanelBytes / std::max<std::int64_t>(row_bytes, 1)));
    }
    return most;
  }

  static std::int64_t bytes_of(std::int64_t floats) {
    return rounded_up(floats * static_cast<std::int64_t>(sizeof(float)),
                      static_cast<std::int64_t>(exec::kAlignment));
  }

  // A row of a panel: whole cache lines, no multiple of 512 bytes: a block's rows would lie in few
  // sets of the first cache.
  std::int64_t stride_of(const Panel& panel) const {
    const std::int64_t bytes = rounded_up(panel.columns * panel.item_bytes, 64);
    return bytes % 512 == 0 ? bytes + 64 : bytes;
  }

  // Panels, packed factors that are not shared, and room, for each thread.
  bool lay_out_memory() {
    std::int64_t bytes = 0;
    for (const Panel& panel : launch_.panels) {
      panel_offsets_.push_back(bytes);
      bytes += item_batches_ * item_rows_ * stride_of(panel);
    }
    std::int64_t shared = 0, room = 0;
    for (std::size_t s = 0; s < products_.size(); ++s) {
      const Stage& stage = launch_.stages[s];
      if (stage.kernel != nullptr) continue;
      const Sizes sizes{item_rows_, stage.n, stage.k};
      room = std::max(room, room_elements(tiles_, products_[s].way, sizes));
      if (stage.out_panel < 0 && stage.out_column != sizeof(float))
        room =
            std::max(room, room_elements(tiles_, products_[s].way, sizes) + item_rows_ * stage.n);
      if (!packs(products_[s].way) || products_[s].packed != nullptr) continue;
      const std::int64_t packed = bytes_of(packed_elements(tiles_, products_[s].way, sizes));
      std::int64_t& total = products_[s].shared ? shared : bytes;
      packed_offsets_[s] = total;
      total += packed;
    }
    room_offset_ = bytes;
    bytes += bytes_of(room);
    // Nothing may throw between a block and the list that gives it back.
    blocks_.reserve(at(threads_) + 1);
    memories_.reserve(at(threads_));
    if (shared > 0) {
      std::byte* const memory = take(Tape::Room::kShared, shared);
      if (memory == nullptr) return false;
      for (std::size_t s = 0; s < products_.size(); ++s) {
        if (!products_[s].shared || packed_offsets_[s] < 0) continue;
        products_[s].to = reinterpret_cast<float*>(memory + packed_offsets_[s]);
        products_[s].packed = products_[s].to;
      }
    }
    // With few rows, what passes between stages lies in the first thread's.
    packed_.assign(at(threads_) * products_.size(), nullptr);
    for (int thread = 0; thread < threads_; ++thread) {
      std::byte* const memory = take(Tape::Room::kOwn, std::max<std::int64_t>(bytes, 1));
      if (memory == nullptr) return false;
      memories_.push_back(memory);
    }
    return true;
  }

  // Memory until the launch is done, or for as long as its tape lives.
  std::byte* take(Tape::Room room, std::int64_t bytes) {
    std::byte* const kept = tape_ == nullptr ? nullptr : tape_->room(room, at(bytes));
    if (kept != nullptr) return kept;
    const exec::Block block = exec::acquire_for_launch(at(bytes));
    if (block.data != nullptr) blocks_.push_back(block);
    return block.data;
  }

  // Calls work(self, s, first, n) for runs of a product's columns, in parallel.
  template <class Work>
  void by_columns(std::int64_t n, int threads, Work&& work) {
    const std::int64_t width = tiles_.columns;
    const std::int64_t panels = parts(n, width);
    threads = static_cast<int>(std::clamp<std::int64_t>(panels, 1, threads));
    struct Job {
      Work& work;
      std::int64_t panels, n, width;
      int threads;
    } job{work, panels, n, width, threads};
    exec::parallel(
        threads,
        [](void* data, int thread) {
          const Job& j = *static_cast<Job*>(data);
          const std::int64_t first = j.panels * thread / j.threads * j.width;
          const std::int64_t end = std::min(j.panels * (thread + 1) / j.threads * j.width, j.n);
          j.work(thread, first, end - first);
        },
        &job);
  }

  void pack_shared() {
    for (std::size_t s = 0; s < products_.size(); ++s) {
      const Product& product = products_[s];
      if (product.to == nullptr) continue;
      const Stage& stage = launch_.stages[s];
      const Sizes sizes{item_rows_, stage.n, stage.k};
      by_columns(stage.n, threads_, [&](int, std::int64_t first, std::int64_t n) {
        act(s, Packed{product.way, sizes, stage.b, first, n, product.to});
      });
    }
  }

  Item item(std::int64_t i) const {
    Item item;
    const std::int64_t row = i % row_items_ * item_rows_;
    i /= row_items_;
    const std::int64_t batch = i % batch_items_ * item_batches_;
    i /= batch_items_;
    for (int axis = launch_.n_rows - 3; axis >= 0; --axis) {
      item.index[at(axis)] = i % launch_.rows[at(axis)];
      i /= launch_.rows[at(axis)];
    }
    item.index[at(launch_.n_rows - 1)] = row;
    item.rows = std::min(item_rows_, rows_ - row);
    item.batches = 1;
    if (launch_.n_rows > 1) {
      item.index[at(launch_.n_rows - 2)] = batch;
      item.batches = std::min(item_batches_, batches_ - batch);
    }
    item.width = launch_.causal == INT64_MAX
                     ? INT64_MAX
                     : std::max<std::int64_t>(row + item.rows + launch_.causal, 1);
    return item;
  }

  std::int64_t offset(const RowStrides& strides, const Item& item, std::int64_t batch) const {
    std::int64_t bytes = 0;
    for (int i = 0; i < launch_.n_rows; ++i) bytes += strides[at(i)] * item.index[at(i)];
    if (launch_.n_rows > 1) bytes += strides[at(launch_.n_rows - 2)] * batch;
    return bytes;
  }

  std::byte* panel_at(int panel, int thread, std::int64_t batch) {
    return memories_[at(thread)] + panel_offsets_[at(panel)] +
           batch * item_rows_ * stride_of(launch_.panels[at(panel)]);
  }

  void run_item(std::int64_t i, int thread, int threads) noexcept try {
    const Item box = item(i);
    for (std::size_t s = 0; s < launch_.stages.size(); ++s) {
      if (launch_.stages[s].kernel != nullptr) {
        run_kernel(s, box, thread, threads);
        continue;
      }
      for (std::int64_t batch = 0; batch < box.batches; ++batch)
        run_product(s, box, batch, thread, threads);
    }
  } catch (const std::bad_alloc&) {
    status_.store(Status::kNoMemory, std::memory_order_relaxed);
  }

  void run_product(std::size_t s, const Item& box, std::int64_t batch, int thread, int threads) {
    const Stage& stage = launch_.stages[s];
    const int last = launch_.n_rows - 1;
    Matrix a = stage.a;
    exec::gemm::Windows windows;
    if (a.windows != nullptr) {
      windows = *a.windows;
      windows.first = offset(stage.a_rows, box, batch);
      a.windows = &windows;
    } else if (stage.a_panel >= 0) {
      a.data = panel_at(stage.a_panel, thread, batch);
      a.row_stride =
          stride_of(launch_.panels[at(stage.a_panel)]) / bytecode::storage_bytes(a.storage);
      a.column_stride = 1;
    } else {
      a.data += offset(stage.a_rows, box, batch);
      a.row_stride = stage.a_rows[at(last)] / bytecode::storage_bytes(a.storage);
    }
    Matrix b = stage.b;
    b.data += offset(stage.b_rows, box, batch);
    std::byte* out = stage.out;
    std::int64_t row_bytes = stage.out_rows[at(last)];
    std::int64_t column_bytes = stage.out_column;
    if (stage.out_panel >= 0) {
      out = panel_at(stage.out_panel, thread, batch);
      row_bytes = stride_of(launch_.panels[at(stage.out_panel)]);
      column_bytes = sizeof(float);
    } else {
      out += offset(stage.out_rows, box, batch);
    }
    // Columns of panels that no row of the item needs.
    const std::size_t masks = launch_.masks;
    const std::int64_t n = s < masks ? std::min(stage.n, box.width) : stage.n;
    const std::int64_t k = s == masks + 1 ? std::min(stage.k, box.width) : stage.k;
    const Sizes sizes{box.rows, n, k, stage.k, stage.sizes.short_sums};
    if (threads == 1) return multiply_columns(s, sizes, a, b, out, row_bytes, column_bytes, thread);
    by_columns(n, threads, [&](int worker, std::int64_t first, std::int64_t count) {
      Matrix part = b, left = a;
      skip_columns(left, part, first);
      const float* packed = products_[s].packed;
      if (packed != nullptr) packed += packed_offset(tiles_, products_[s].way, sizes, first);
      multiply_part(s, {box.rows, count, k, packed == nullptr ? k : stage.k, sizes.short_sums}, left,
                    part, packed, out + first * column_bytes, row_bytes, column_bytes, worker);
    });
  }

  // All columns on this thread, with the factor that is packed already if there is one.
  void multiply_columns(std::size_t s, const Sizes& sizes, const Matrix& a, const Matrix& b,
                        std::byte* out, std::int64_t row_bytes, std::int64_t column_bytes,
                        int thread) {
    const Stage& stage = launch_.stages[s];
    const float* packed = products_[s].packed;
    if (packs(products_[s].way) && packed == nullptr)
      packed = pack_own(s, {sizes.m, stage.n, stage.k}, b, thread);
    act(s, Multiplied{products_[s].way, sizes, a, b, packed, room(thread), out, row_bytes,
                      column_bytes});
  }

  // Some columns: what is not packed yet is packed for this alone.
  void multiply_part(std::size_t s, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     const float* packed, std::byte* out, std::int64_t row_bytes,
                     std::int64_t column_bytes, int thread) {
    if (sizes.n <= 0) return;
    if (packs(products_[s].way) && packed == nullptr) {
      packed_by(thread, s) = nullptr;
      packed = pack_own(s, sizes, b, thread);
      packed_by(thread, s) = nullptr;
    }
    act(s, Multiplied{products_[s].way, sizes, a, b, packed, room(thread), out, row_bytes,
                      column_bytes});
  }

  const float* pack_own(std::size_t s, const Sizes& sizes, const Matrix& b, int thread) {
    auto* packed = reinterpret_cast<float*>(memories_[at(thread)] + packed_offsets_[s]);
    if (packed_by(thread, s) == b.data) return packed;
    act(s, Packed{products_[s].way, sizes, b, 0, sizes.n, packed});
    packed_by(thread, s) = b.data;
    return packed;
  }

  // The right factor that a thread has packed for itself.
  const std::byte*& packed_by(int thread, std::size_t s) {
    return packed_[at(thread) * products_.size() + s];
  }

  float* room(int thread) { return reinterpret_cast<float*>(memories_[at(thread)] + room_offset_); }

  template <class Action>
  void act(std::size_t s, const Action& action) {
    schedule::run(tiles_, action);
    if (tape_ != nullptr) tape_->note({action, s});
  }

  void run_kernel(std::size_t s, const Item& box, int thread, int threads) {
    const Stage& stage = launch_.stages[s];
    thread_local std::vector<OperandView> views;
    thread_local std::vector<std::int64_t> axis_sizes, whole;
    axis_sizes.assign(stage.axis_sizes.begin(), stage.axis_sizes.end());
    if (s == launch_.masks && stage.column_axis >= 0) {
      std::int64_t& width = axis_sizes[at(stage.column_axis)];
      width = std::min(width, box.width);
    }
    whole.assign(axis_sizes.begin(), axis_sizes.end());
    const int last = launch_.n_rows - 1;
    for (int i = 0; i <= last; ++i) {
      const int axis = stage.row_axis[at(i)];
      if (axis < 0) continue;
      axis_sizes[at(axis)] = i == last ? box.rows : i == last - 1 ? box.batches : 1;
      whole[at(axis)] = i >= last - 1 ? launch_.rows[at(i)] : 1;
    }
    views.assign(stage.operands.begin(), stage.operands.end());
    for (std::size_t o = 0; o < views.size(); ++o) {
      OperandView& view = views[o];
      const int panel = stage.panel[o];
      if (panel >= 0) {
        view.base = panel_at(panel, thread, 0);
        const std::int64_t stride = stride_of(launch_.panels[at(panel)]);
        view.stride = {};
        const int row = stage.row_axis[at(last)];
        if (row >= 0) view.stride[at(row)] = stride;
        const int batch = last > 0 ? stage.row_axis[at(last - 1)] : -1;
        if (batch >= 0) view.stride[at(batch)] = stride * item_rows_;
        if (stage.column_axis >= 0)
          view.stride[at(stage.column_axis)] = launch_.panels[at(panel)].item_bytes;
        continue;
      }
      for (int i = 0; i <= last; ++i) {
        const int axis = stage.row_axis[at(i)];
        if (axis >= 0) move(view, view.stride[at(axis)] * box.index[at(i)]);
      }
    }
    const Status status = stage.kernel->run(axis_sizes, views, threads, false, tape_, s, whole);
    if (status != Status::kOk) status_.store(status, std::memory_order_relaxed);
  }

  ChainLaunch& launch_;
  const Tiles& tiles_;
  int threads_;
  Tape* tape_;
  // Lists of few threads and stages are allocated here.
  std::array<std::byte, 1024> room_for_lists_;
  std::pmr::monotonic_buffer_resource small_{room_for_lists_.data(), room_for_lists_.size()};
  std::pmr::vector<Product> products_;  // by stage
  std::int64_t rows_ = 1, batches_ = 1, outer_ = 1;
  std::int64_t item_rows_ = 1, item_batches_ = 1, batch_items_ = 1, row_items_ = 1, n_items_ = 1;
  std::pmr::vector<std::int64_t> panel_offsets_, packed_offsets_;  // in a thread's memory
  std::int64_t room_offset_ = 0;
  std::pmr::vector<exec::Block> blocks_;   // what is shared, if anything, then one of each thread
  std::pmr::vector<std::byte*> memories_;  // by thread
  std::pmr::vector<const std::byte*> packed_;  // by thread and product
  std::atomic<Status> status_{Status::kOk};
};

// Columns at a time, so that factors that are packed on the way stay in a cache, and panels do for
// as many rows as a block has: then a right factor is read once.
std::int64_t columns_at_a_time(const ChainLaunch& launch, const Tiles& tiles) {
  // The part of what may be packed at a time that a column takes; bytes of a row's in panels.
  double packed = 0;
  std::int64_t width = 0;
  const std::int64_t all_rows = launch.rows[at(launch.n_rows - 1)];
  for (const Stage& stage : launch.stages) {
    if (stage.kernel != nullptr || stage.packed != nullptr) continue;
    if (!packs(stage.way)) continue;
    const bool more = stage.way == Way::kPackedPieces ||
                      (by_units(tiles, stage.way) && all_rows >= kManyUnitRows);
    const std::int64_t most = more ? kPackedUnitBytes : kPackedBytes;
    packed += static_cast<double>(stage.k * exec::gemm::packed_bytes(tiles, stage.way)) /
              static_cast<double>(most);
  }
  std::int64_t columns = packed > 0 ? static_cast<std::int64_t>(1 / packed) : INT64_MAX;
  for (const Panel& panel : launch.panels) width += panel.item_bytes;
  const std::int64_t rows = std::min(all_rows, kBlockRows);
  if (width > 0) columns = std::min(columns, kPanelBytes / width / std::max<std::int64_t>(rows, 1));
  if (columns == INT64_MAX) return columns;
  return std::max(columns, kLeastColumns) / tiles.columns * tiles.columns;
}

// A launch that may be divided by columns: each thread has some, and takes a few at a time.
class ByColumns {
 public:
  ByColumns(const ChainLaunch& launch, const Tiles& tiles, int threads)
      : launch_(launch),
        tiles_(tiles),
        n_(launch.stages.front().n),
        step_(columns_at_a_time(launch, tiles)),
        panels_(parts(n_, tiles.columns)),
        threads_(static_cast<int>(std::min<std::int64_t>(threads, panels_))) {}

  Status run() {
    exec::parallel(
        threads_, [](void* self, int i) { static_cast<ByColumns*>(self)->run_part(i); }, this);
    return status_.load();
  }

 private:
  void run_part(int i) noexcept try {
    const std::int64_t begin = panels_ * i / threads_ * tiles_.columns;
    const std::int64_t end = std::min(panels_ * (i + 1) / threads_ * tiles_.columns, n_);
    for (std::int64_t first = begin; first < end; first += std::min(step_, end - first)) {
      ChainLaunch part = launch_;
      narrow(part, tiles_, first, std::min(step_, end - first));
      const Status status = Running(part, tiles_, 1).run();
      if (status != Status::kOk) status_.store(status, std::memory_order_relaxed);
    }
  } catch (const std::bad_alloc&) {
    status_.store(Status::kNoMemory, std::memory_order_relaxed);
  }

  const ChainLaunch& launch_;
  const Tiles& tiles_;
  std::int64_t n_, step_, panels_;
  int threads_;
  std::atomic<Status> status_{Status::kOk};
};

}  // namespace

double flops(const ChainLaunch& launch) noexcept {
  double rows = 1, work = 0;
  for (int i = 0; i < launch.n_rows; ++i) rows *= static_cast<double>(launch.rows[at(i)]);
  for (const Stage& stage : launch.stages) {
    if (stage.kernel == nullptr)
      work += 2 * static_cast<double>(stage.n) * static_cast<double>(stage.k);
  }
  return rows * work;
}

const Tiles& tiles_of(std::optional<Tier> tier, int pieces) noexcept {
  const Tier chosen = tier ? *tier : schedule::tier();
  return exec::gemm::tiles(chosen.target == exec::native::Target::kAvx2, chosen.units, pieces);
}

Status run_chain(ChainLaunch& launch, const Tiles& tiles, int threads, Tape* tape) noexcept try {
  if (flops(launch) < kInlineFlops) threads = 1;
  threads = std::max(threads, 1);
  const std::int64_t rows = launch.rows[at(launch.n_rows - 1)];
  const std::int64_t n = launch.columns_too ? launch.stages.front().n : 0;
  const bool wide = n >= kWideColumns * threads || (n >= 2 * tiles.columns * threads && rows <= n);
  const bool by_columns =
      launch.columns_too && (threads == 1 ? n > columns_at_a_time(launch, tiles) : wide);
  if (tape != nullptr) {
    tape->tiles = &tiles;
    // Windows are not noted on tapes.
    const bool windows = std::ranges::any_of(launch.stages, [](const Stage& stage) {
      return stage.a.windows != nullptr || stage.b.windows != nullptr;
    });
    tape->refused = tape->refused || by_columns || threads > 1 || windows;
    if (tape->refused) tape = nullptr;
  }
  if (by_columns) return ByColumns(launch, tiles, threads).run();
  return Running(launch, tiles, threads, tape).run();
} catch (const std::bad_alloc&) {
  return Status::kNoMemory;
}

}  // namespace tilevm::schedule
