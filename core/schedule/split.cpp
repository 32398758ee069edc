#include "schedule/split.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <new>
#include <type_traits>
#include <utility>

#include "bytecode/builder.h"
#include "exec/memory.h"
#include "exec/threads.h"

namespace tilevm::schedule {
namespace {

using bytecode::Op;
using bytecode::RegType;
using bytecode::Role;
using bytecode::Storage;
using fuse::KernelGraph;
using fuse::KernelNode;
using Kind = KernelNode::Kind;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr auto kNone = static_cast<std::size_t>(-1);

// Rows shorter than this are left to one thread each. Parts of half of that, 64 of them at most.
constexpr std::int64_t kLongRow = 1 << 16;
constexpr std::int64_t kMostParts = 64;
// More rows than this are spread over threads themselves.
constexpr std::int64_t kFewRows = 256;
// What goes through a row more than once reads it from a cache, unless it is longer than this, or
// alone.
constexpr std::int64_t kBeyondCaches = 1 << 20;
constexpr std::int64_t kFewLongRows = 16;
constexpr std::int64_t kLanes = 64;  // parts of long axes are whole vectors
constexpr std::int64_t kManyLanes = 1024;
// Operations an element that are worth less than memory that is written and read.
constexpr int kCheapAgain = 8;

// How what parts came to is joined.
enum class Join : std::uint8_t { kNone, kSum, kMean, kMax, kMin, kAny, kAll, kArgMax, kArgMin };

struct Row {
  Join join = Join::kNone;
  Op part = Op::halt;   // what folds a part
  Op value = Op::halt;  // of kArgMax and kArgMin: what finds the element
};

Row row_of(Op op) {
  switch (op) {
    case Op::sum_f32:
      return {Join::kSum, Op::total_f32};
    case Op::mean_f32:
      return {Join::kMean, Op::total_f32};
    case Op::mean_f64:
      return {Join::kMean, Op::sum_f64};
    case Op::sum_f64:
    case Op::sum_i64:
      return {Join::kSum, op};
    case Op::max_f32:
    case Op::max_f64:
    case Op::max_i32:
    case Op::max_i64:
      return {Join::kMax, op};
    case Op::min_f32:
    case Op::min_f64:
    case Op::min_i32:
    case Op::min_i64:
      return {Join::kMin, op};
    case Op::any_b8:
      return {Join::kAny, op};
    case Op::all_b8:
      return {Join::kAll, op};
    case Op::argmax_f32:
      return {Join::kArgMax, op, Op::max_f32};
    case Op::argmax_f64:
      return {Join::kArgMax, op, Op::max_f64};
    case Op::argmax_i32:
      return {Join::kArgMax, op, Op::max_i32};
    case Op::argmax_i64:
      return {Join::kArgMax, op, Op::max_i64};
    case Op::argmin_f32:
      return {Join::kArgMin, op, Op::min_f32};
    case Op::argmin_f64:
      return {Join::kArgMin, op, Op::min_f64};
    case Op::argmin_i32:
      return {Join::kArgMin, op, Op::min_i32};
    case Op::argmin_i64:
      return {Join::kArgMin, op, Op::min_i64};
    default:  // products of parts may be infinite where the whole is not
      return {};
  }
}

Op op_of(const KernelNode& node) { return static_cast<Op>(node.instr); }
RegType result_of(Op op) { return bytecode::info(op).fields[0].type; }

// What a kernel's graph says of its nodes.
class Nodes {
 public:
  explicit Nodes(const KernelGraph& graph) : graph_(graph), times_(graph.nodes.size()) {
    for (std::size_t i = 0; i < times_.size(); ++i) {
      for (const int in : graph.nodes[i].in) {
        if (in >= 0) times_[i] = std::max(times_[i], times_[at(in)] + (folds(in) ? 1 : 0));
      }
    }
  }

  int count() const { return static_cast<int>(times_.size()); }
  const KernelNode& operator[](int i) const { return graph_.nodes[at(i)]; }
  bool folds(int i) const { return (*this)[i].kind == Kind::kFold; }
  bool stores(int i) const { return (*this)[i].kind == Kind::kStore; }
  // Whether it is computed along the rows, and is not what is left of them.
  bool along(int i) const { return folds(i) || ((*this)[i].axes & graph_.reduced) != 0; }
  // How many folds lie one behind the other before it.
  int time(int i) const { return times_[at(i)]; }
  int last_time() const { return *std::ranges::max_element(times_); }

 private:
  const KernelGraph& graph_;
  std::vector<int> times_;
};

std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

// Calls f(T()) with the type of what a fold leaves in memory.
template <class F>
void with_type(Storage storage, F&& f) {
  switch (storage) {
    case Storage::kF32:
      return f(float());
    case Storage::kF64:
      return f(double());
    case Storage::kI32:
      return f(std::int32_t());
    case Storage::kI64:
      return f(std::int64_t());
    default:
      return f(std::uint8_t());
  }
}

template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  return false;
}
// Whether an extremum is rather a than b. NaN is, whichever it is.
template <class T>
bool beats(T a, T b, bool largest) {
  return (is_nan(a) && !is_nan(b)) || (largest ? a > b : a < b);
}

// Sums of floats in more bits than they have, those of integers wrap.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, long double, std::uint64_t>;

// What `parts` elements, `step` apart, are together.
template <class Out, class T>
Out joined(Join how, const T* part, std::int64_t parts, std::int64_t step, std::int64_t length) {
  if (how == Join::kSum || how == Join::kMean) {
    Sum<T> sum = 0;
    for (std::int64_t k = 0; k < parts; ++k) sum += static_cast<Sum<T>>(part[k * step]);
    return static_cast<Out>(how == Join::kMean ? sum / static_cast<Sum<T>>(length) : sum);
  }
  T best = part[0];  // of bools, any is the largest and all the smallest
  const bool largest = how == Join::kMax || how == Join::kAny;
  for (std::int64_t k = 1; k < parts; ++k) {
    if (beats(part[k * step], best, largest)) best = part[k * step];
  }
  return static_cast<Out>(best);
}

// Of places of elements, the lowest of the best element.
template <class T>
std::int64_t joined_places(bool largest, const T* value, const std::int64_t* place,
                           std::int64_t parts, std::int64_t step) {
  std::int64_t best = 0;
  for (std::int64_t k = step; k < parts * step; k += step) {
    const bool better = beats(value[k], value[best], largest);
    const bool equal = !better && !beats(value[best], value[k], largest);
    if (better || (equal && place[k] < place[best])) best = k;
  }
  return place[best];
}

}  // namespace

// Makes the stages: each is a kernel of some nodes of the whole one.
class Split::Maker {
 public:
  Maker(const KernelGraph& graph, Split& split, const std::string& where, const Settings& settings)
      : graph_(graph), nodes_(graph), split_(split), where_(where), settings_(settings) {
    const unsigned all = (1U << graph.axes.size()) - 1;
    kept_ = static_cast<fuse::AxisMask>(all & ~static_cast<unsigned>(graph.reduced));
    results_.assign(at(nodes_.count()), kNone);
    find_costs();
  }

  void make() {
    for (int time = 0; time <= nodes_.last_time(); ++time) {
      add(time, [&](int i) {
        return nodes_.time(i) == time && (nodes_.folds(i) || (nodes_.stores(i) && nodes_.along(i)));
      });
    }
    add(nodes_.last_time() + 1, [&](int i) { return nodes_.stores(i) && !nodes_.along(i); });
  }

 private:
  // By node: about how many additions an element takes, as far as is asked.
  void find_costs() {
    costs_.resize(at(nodes_.count()));
    for (int i = 0; i < nodes_.count(); ++i) {
      if (nodes_[i].kind != Kind::kMap || !nodes_.along(i)) continue;
      costs_[at(i)] = bytecode::info(op_of(nodes_[i])).cost;
      for (const int in : nodes_[i].in) {
        if (in >= 0) costs_[at(i)] = std::min(costs_[at(i)] + costs_[at(in)], 2 * kCheapAgain);
      }
    }
  }

  // A kernel that does what the roots are; what was folded or kept before is loaded.
  template <class IsRoot>
  void add(int time, const IsRoot& is_root) {
    const int n = nodes_.count();
    std::vector<bool> needed(at(n));
    for (int i = 0; i < n; ++i) needed[at(i)] = is_root(i);
    if (std::ranges::find(needed, true) == needed.end()) return;
    const auto at_hand = [&](int i) { return results_[at(i)] != kNone; };
    for (int i = n - 1; i >= 0; --i) {
      if (!needed[at(i)] || at_hand(i)) continue;
      for (const int in : nodes_[i].in) {
        if (in >= 0) needed[at(in)] = true;
      }
    }
    made_ = {graph_.axes, 0, {}, {}, graph_.name, graph_.from};
    sources_.clear();
    folds_.clear();
    bool along = false;
    std::vector<int> copied(at(n), -1);
    for (int i = 0; i < n; ++i) {
      if (!needed[at(i)]) continue;
      along = along || (nodes_.along(i) && !(nodes_.folds(i) && at_hand(i)));
      if (at_hand(i)) {
        copied[at(i)] = load(results_[at(i)]);
        continue;
      }
      KernelNode node = nodes_[i];
      for (int& in : node.in) in = in < 0 ? in : copied[at(in)];
      if (node.operand >= 0) {
        const Source source{false, at(node.operand)};
        node.operand = operand(graph_.operands[source.at], source);
      }
      if (nodes_.folds(i)) {
        fold(node, i);
      } else {
        copied[at(i)] = push(node);
        if (worth_keeping(i, time)) keep(i, copied[at(i)]);
      }
    }
    made_.reduced = folds_.empty() ? fuse::AxisMask{0} : graph_.reduced;
    split_.stages_.push_back(
        {Kernel(std::move(made_), where_, settings_), std::move(sources_), folds_, along});
    for (const auto& [node, buffer] : std::exchange(later_, {})) results_[at(node)] = buffer;
  }

  // Whether a value that stages behind this one read is dear to compute again. It must have all
  // axes that are folded: several parts would write it otherwise.
  bool worth_keeping(int i, int time) const {
    const bool whole = (nodes_[i].axes & graph_.reduced) == graph_.reduced;
    if (costs_[at(i)] <= kCheapAgain || !whole) return false;
    for (int reader = i + 1; reader < nodes_.count(); ++reader) {
      const auto& in = nodes_[reader].in;
      if (nodes_.time(reader) > time && std::ranges::find(in, i) != in.end()) return true;
    }
    return false;
  }

  void keep(int node, int copied) {
    const std::size_t buffer = store(copied, nodes_[node].axes, false);
    later_.emplace_back(node, buffer);
  }

  void fold(KernelNode node, int i) {
    const Op op = op_of(node);
    const Row row = row_of(op);
    Fold fold{node.instr, store(push(folded(node, row.part)), kept_, true), 0, kNone};
    if (row.value != Op::halt) {
      node.in[1] = -1;
      fold.value = store(push(folded(node, row.value)), kept_, true);
    }
    fold.result = buffer({bytecode::info(result_of(op)).storage, kept_, false});
    folds_.push_back(fold);
    later_.emplace_back(i, fold.result);
  }

  static KernelNode folded(KernelNode node, Op op) {
    node.instr = static_cast<std::uint16_t>(op);
    node.type = result_of(op);
    return node;
  }

  int load(std::size_t from) {
    const Buffer& buffer = split_.buffers_[from];
    KernelNode node{Kind::kLoad, bytecode::info(buffer.storage).reg};
    node.instr = static_cast<std::uint16_t>(bytecode::kLoadOf[static_cast<int>(buffer.storage)]);
    node.axes = buffer.axes;
    node.operand = own(Role::kInput, from);
    return push(node);
  }

  // The buffer that it is stored in.
  std::size_t store(int value, fuse::AxisMask axes, bool of_parts) {
    KernelNode node = made_.nodes[at(value)];
    const Storage storage = bytecode::info(node.type).storage;
    const std::size_t to = buffer({storage, axes, of_parts});
    node.kind = Kind::kStore;
    node.instr = static_cast<std::uint16_t>(bytecode::kStoreOf[static_cast<int>(storage)]);
    node.axes = axes;
    node.in = {value, -1, -1};
    node.operand = own(Role::kOutput, to);
    push(node);
    return to;
  }

  std::size_t buffer(const Buffer& buffer) {
    split_.buffers_.push_back(buffer);
    return split_.buffers_.size() - 1;
  }

  int push(const KernelNode& node) {
    made_.nodes.push_back(node);
    return static_cast<int>(made_.nodes.size()) - 1;
  }

  std::int16_t own(Role role, std::size_t buffer) {
    fuse::OperandRef ref{};
    ref.role = role;
    ref.storage = split_.buffers_[buffer].storage;
    for (std::size_t a = 0; a < ref.dim.size(); ++a) {
      const bool has = ((split_.buffers_[buffer].axes >> a) & 1) != 0;
      ref.dim[a] = static_cast<std::int8_t>(has ? a : -1);
    }
    return operand(ref, {true, buffer});
  }

  std::int16_t operand(const fuse::OperandRef& ref, const Source& source) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].ours == source.ours && sources_[i].at == source.at)
        return static_cast<std::int16_t>(i);
    }
    made_.operands.push_back(ref);
    sources_.push_back(source);
    return static_cast<std::int16_t>(sources_.size() - 1);
  }

  const KernelGraph& graph_;
  Nodes nodes_;
  Split& split_;
  const std::string& where_;
  const Settings& settings_;
  fuse::AxisMask kept_ = 0;
  std::vector<int> costs_;            // by node
  std::vector<std::size_t> results_;  // by node: the buffer that has it
  // Of the stage that is made.
  KernelGraph made_;
  std::vector<Source> sources_;
  std::vector<Fold> folds_;
  std::vector<std::pair<int, std::size_t>> later_;  // nodes that stages behind it find in a buffer
};

Split::Sweeps Split::sweeps_of(const KernelGraph& graph) {
  const bool joins = std::ranges::all_of(graph.nodes, [](const KernelNode& node) {
    return node.kind != Kind::kFold || row_of(op_of(node)).join != Join::kNone;
  });
  if (graph.reduced == 0 || !joins) return Sweeps::kWhole;
  const Nodes nodes(graph);
  for (int i = 0; i < nodes.count(); ++i) {
    if (nodes.along(i) && (nodes.time(i) > 0 || nodes.stores(i))) return Sweeps::kAgain;
  }
  return Sweeps::kOnce;
}

bool Split::takes(Sweeps sweeps, fuse::AxisMask reduced, std::span<const std::int64_t> axis_sizes) {
  if (sweeps == Sweeps::kWhole) return false;
  // Beside a size of 0 others may multiply to more than can be counted.
  if (std::ranges::find(axis_sizes, 0) != axis_sizes.end()) return false;
  std::int64_t rows = 1, length = 1;
  for (std::size_t a = 0; a < axis_sizes.size(); ++a)
    (((reduced >> a) & 1) != 0 ? length : rows) *= axis_sizes[a];
  if (length < kLongRow || rows > kFewRows) return false;
  return sweeps == Sweeps::kOnce || rows == 1 || (rows <= kFewLongRows && length >= kBeyondCaches);
}

Split::Split(const KernelGraph& graph, const std::string& where, const Settings& settings)
    : reduced_(graph.reduced) {
  Maker(graph, *this, where, settings).make();
}

// What one call has.
class Split::Call {
 public:
  Call(Split& split, std::span<const std::int64_t> sizes, std::span<const OperandView> operands)
      : split_(split), sizes_(sizes), operands_(operands) {
    std::int64_t rows = 1, longest = 0;
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      (folds(a) ? length_ : rows) *= sizes[a];
      if (!folds(a) || sizes[a] <= longest) continue;
      axis_ = a;
      longest = sizes[a];
    }
    const std::int64_t most = std::clamp<std::int64_t>(length_ / (kLongRow / 2), 2, kMostParts);
    positions_ = (longest + most - 1) / most;
    if (positions_ >= kManyLanes) positions_ = round_up(positions_, kLanes);
    parts_ = (longest + positions_ - 1) / positions_;
    std::int64_t bytes = 0;
    for (const Buffer& buffer : split.buffers_) {
      places_.push_back(bytes);
      const std::int64_t once = elements(buffer) * bytecode::storage_bytes(buffer.storage);
      bytes += round_up(once * (buffer.of_parts ? parts_ : 1), exec::kAlignment);
    }
    block_ = exec::acquire_for_launch(at(bytes));
    if (block_.data == nullptr) throw std::bad_alloc();
  }
  ~Call() { exec::release(block_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  exec::Status run(Stage& stage, int threads, bool large) {
    Sizes sizes{};
    std::ranges::copy(sizes_, sizes.begin());
    if (!stage.along) {
      for (std::size_t a = 0; a < sizes_.size(); ++a) {
        if (folds(a)) sizes[a] = 1;
      }
    }
    if (stage.folds.empty()) return run_kernel(stage, sizes, 0, threads, large);
    struct Job {
      Call& call;
      Stage& stage;
      const Sizes& sizes;
      bool large;
      std::atomic<exec::Status> status{exec::Status::kOk};
    } job{*this, stage, sizes, large};
    const int n = static_cast<int>(std::min<std::int64_t>(threads, parts_));
    const int each = static_cast<int>((parts_ + n - 1) / n);
    const auto work = [](void* data, int part) {
      auto& [call, of, all, streams, status] = *static_cast<Job*>(data);
      if (part >= call.parts_) return;
      Sizes cut = all;
      cut[call.axis_] = std::min(call.positions_, all[call.axis_] - part * call.positions_);
      const exec::Status s = call.run_kernel(of, cut, part, 1, streams);
      if (s != exec::Status::kOk) status.store(s, std::memory_order_relaxed);
    };
    exec::parallel(n, each, work, &job);
    if (job.status == exec::Status::kOk) {
      for (const Fold& fold : stage.folds) join(fold);
    }
    return job.status;
  }

 private:
  using Sizes = std::array<std::int64_t, fuse::kMaxAxes>;

  bool folds(std::size_t axis) const { return ((split_.reduced_ >> axis) & 1) != 0; }

  std::int64_t elements(const Buffer& buffer) const {
    std::int64_t n = 1;
    for (std::size_t a = 0; a < sizes_.size(); ++a) n *= has(buffer, a) ? sizes_[a] : 1;
    return n;
  }
  static bool has(const Buffer& buffer, std::size_t axis) {
    return ((buffer.axes >> axis) & 1) != 0;
  }

  OperandView view(const Source& source, std::int64_t part) const {
    const std::int64_t begin = part * positions_;
    if (!source.ours) {
      OperandView moved = operands_[source.at];
      const std::int64_t by = begin * moved.stride[axis_];
      if (moved.base != nullptr) {
        moved.base += by;
      } else {
        moved.start += by;  // iota
      }
      return moved;
    }
    const Buffer& buffer = split_.buffers_[source.at];
    OperandView own;
    std::int64_t stride = bytecode::storage_bytes(buffer.storage);
    own.base = block_.data + places_[source.at];
    if (buffer.of_parts) own.base += part * elements(buffer) * stride;
    for (std::size_t a = sizes_.size(); a-- > 0;) {
      if (!has(buffer, a)) continue;
      own.stride[a] = stride;
      stride *= sizes_[a];
    }
    own.base += begin * own.stride[axis_];
    return own;
  }

  exec::Status run_kernel(Stage& stage, const Sizes& sizes, std::int64_t part, int threads,
                          bool large) const noexcept {
    thread_local std::array<OperandView, kMaxBindings> views;
    const std::size_t n = stage.sources.size();
    for (std::size_t o = 0; o < n; ++o) views[o] = view(stage.sources[o], part);
    return stage.kernel.run(std::span(sizes).first(sizes_.size()), std::span(views).first(n),
                            threads, large);
  }

  template <class T>
  T* data(std::size_t buffer) const {
    return reinterpret_cast<T*>(block_.data + places_[buffer]);
  }

  void join(const Fold& fold) const {
    const Row row = row_of(static_cast<Op>(fold.instr));
    const Buffer& part = split_.buffers_[fold.part];
    const std::int64_t rows = elements(part);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (fold.value != kNone) {
        with_type(split_.buffers_[fold.value].storage, [&]<class T>(T) {
          data<std::int64_t>(fold.result)[r] =
              joined_places(row.join == Join::kArgMax, data<T>(fold.value) + r,
                            data<std::int64_t>(fold.part) + r, parts_, rows);
        });
        continue;
      }
      with_type(part.storage, [&]<class T>(T) {
        with_type(split_.buffers_[fold.result].storage, [&]<class Out>(Out) {
          data<Out>(fold.result)[r] =
              joined<Out>(row.join, data<T>(fold.part) + r, parts_, rows, length_);
        });
      });
    }
  }

  Split& split_;
  std::span<const std::int64_t> sizes_;
  std::span<const OperandView> operands_;
  std::size_t axis_ = 0;  // that is cut
  std::int64_t length_ = 1, positions_ = 1, parts_ = 1;
  std::vector<std::int64_t> places_;  // by buffer
  exec::Block block_;
};

exec::Status Split::run(std::span<const std::int64_t> axis_sizes,
                        std::span<const OperandView> operands, int threads, bool large) {
  Call call(*this, axis_sizes, operands);
  for (Stage& stage : stages_) {
    const exec::Status status = call.run(stage, threads, large);
    if (status != exec::Status::kOk) return status;
  }
  return exec::Status::kOk;
}

std::vector<Kernel::VariantInfo> Split::variants() const {
  std::vector<Kernel::VariantInfo> result;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    for (Kernel::VariantInfo& variant : stages_[i].kernel.variants()) {
      variant.layout =
          "stage " + std::to_string(i + 1) + " of long rows in parts: " + variant.layout;
      result.push_back(std::move(variant));
    }
  }
  return result;
}

}  // namespace tilevm::schedule
