#include "schedule/kernel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>

#include "exec/interp/interp.h"
#include "exec/native/native.h"
#include "exec/native/symbols.h"
#include "exec/record.h"
#include "exec/threads.h"
#include "schedule/copies.h"
#include "schedule/encode.h"
#include "schedule/layout.h"
#include "schedule/split.h"
#include "schedule/tape.h"
#include "trace/trace.h"

namespace tilevm::schedule {
namespace {

struct Counters {
  std::atomic<std::int64_t> compiles{0};
  std::atomic<std::int64_t> hits{0};
  std::atomic<std::int64_t> total_ns{0};
  std::atomic<std::int64_t> max_ns{0};
};
Counters counters;
using exec::native::Target;

std::atomic<Tier>& chosen_tier() {
  static std::atomic<Tier> tier{Tier{exec::native::best(), false, true}};
  return tier;
}
std::atomic<bool> verify_own{false};
std::atomic<int> most_variants{64};

// Reasons are few: they are our own sentences.
class Interpreted {
 public:
  void add(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    ++counts_[reason];
  }
  std::map<std::string, std::int64_t> counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  void reset() {
    const std::lock_guard lock(mutex_);
    counts_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::int64_t> counts_;
};
// Never destroyed: threads may run kernels while the process ends.
Interpreted& interpreted() {
  static auto* const made = new Interpreted;
  return *made;
}

constexpr const char* kFoldNames[] = {"map", "rows", "columns", "all"};
std::size_t at(bytecode::Fold fold) { return static_cast<std::size_t>(fold); }

}  // namespace

// One class of layouts, encoded and made ready. Immutable; the list only grows at its head.
struct Variant {
  LayoutClass cls;
  Target target;
  bool streams;  // outputs go past the caches
  Encoded encoded;
  std::unique_ptr<exec::native::Code> native;  // null: `refusal` says why
  std::string refusal;
  std::size_t n_operands;  // of the program: the graph's, then scratch
  const Variant* next;
  Copy copy;

  // Made ready when it is first needed: never, where machine code runs.
  const exec::interp::Kernel& interpreter() const {
    std::call_once(prepared, [this] { kernel.emplace(encoded.bytes); });
    return *kernel;
  }

  // Not counted exactly: a locked addition would cost as much as finding the variant.
  void count_launch() const noexcept {
    launches.store(launches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  mutable std::atomic<std::int64_t> launches{0};
  std::int64_t compile_ns = 0;
  mutable std::once_flag prepared = {};
  mutable std::optional<exec::interp::Kernel> kernel = {};
};

struct Kernel::Impl {
  fuse::KernelGraph graph;
  std::string where;
  Settings settings;
  int n_variants = 0;
  std::atomic<const Variant*> variants{nullptr};
  std::mutex encoding;
  Split::Sweeps sweeps = Split::Sweeps::kWhole;
  std::atomic<Split*> split{nullptr};  // made when it is first needed

  // Throws std::bad_alloc.
  Split& in_parts() {
    if (Split* const made = split.load(std::memory_order_acquire)) return *made;
    const std::lock_guard lock(encoding);
    if (split.load() == nullptr)
      split.store(new Split(graph, where, settings), std::memory_order_release);
    return *split.load();
  }

  ~Impl() {
    delete split.load();
    const Variant* v = variants.load();
    while (v != nullptr) {
      const Variant* next = v->next;
      delete v;
      v = next;
    }
  }

  const Variant* find(const LayoutClass& cls, Target target, bool streams) const {
    for (const Variant* v = variants.load(std::memory_order_acquire); v != nullptr; v = v->next) {
      if (v->target == target && v->streams == streams && v->cls == cls) return v;
    }
    return nullptr;
  }

  // "tilevm:add[map r r r, avx512] model.py:12"
  std::string function_name(const Variant& variant) const {
    std::string name = "tilevm:" + graph.name + "[" + kFoldNames[at(variant.cls.fold)];
    for (int i = 0; i < variant.cls.n_operands; ++i) {
      name += std::string(" ") + "scur"[variant.cls.operand[static_cast<std::size_t>(i)] & 3];
    }
    return name + ", " + exec::native::name(variant.target) + "]" + (where.empty() ? "" : " ") +
           where;
  }

  Tier tier() const {
    return settings.tier ? *settings.tier : chosen_tier().load(std::memory_order_relaxed);
  }

  // The variant, kept if there is room for it, else owned by `once`. Null: not a valid program.
  const Variant* compile(const LayoutClass& cls, Tier tier, bool streams,
                         std::unique_ptr<const Variant>& once) {
    const std::lock_guard lock(encoding);
    const Target target = tier.target;
    if (const Variant* v = find(cls, target, streams)) return v;
    const auto start = std::chrono::steady_clock::now();
    Encoded encoded = [&] {
      const trace::Span span("encode", graph.name);
      return encode(graph, cls);
    }();
    if (encoded.bytes.empty()) return nullptr;
    const bool verify = settings.verify.value_or(verify_own.load());
    if (verify && !bytecode::verify(encoded.bytes).empty()) return nullptr;
    const auto n_operands = bytecode::view(encoded.bytes).operands.size();
    std::string refusal = tier.interpret ? "tier interp was asked for" : exec::native::why_none();
    std::unique_ptr<exec::native::Code> native;
    if (target != Target::kNone) {
      const trace::Span span("emit", graph.name);
      native = exec::native::Code::emit(encoded.bytes, target, &refusal, streams);
    }
    if (trace::tells(4)) {
      trace::tell(4, "bytecode of " + graph.name + " for " +
                         exec::native::name(native != nullptr ? target : Target::kNone) + ":\n" +
                         bytecode::disassemble(encoded.bytes));
    }
    if (native == nullptr && !tier.interpret) interpreted().add(refusal);
    std::unique_ptr<Variant> made(new Variant{cls, target, streams, std::move(encoded),
                                              std::move(native), std::move(refusal), n_operands,
                                              variants.load(), streams ? Copy{} : copy_of(graph)});
    Variant* const variant = made.get();
    if (variant->native == nullptr) variant->interpreter();
    if (variant->native != nullptr && exec::native::wants_names()) {
      exec::native::announce(variant->native->machine_code(), function_name(*variant));
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now() - start)
                        .count();
    variant->compile_ns = ns;
    if (n_variants < most_variants.load()) {
      ++n_variants;
      variants.store(made.release(), std::memory_order_release);
    } else {
      once = std::move(made);
    }
    counters.compiles += 1;
    counters.total_ns += ns;
    std::int64_t max = counters.max_ns;
    while (ns > max && !counters.max_ns.compare_exchange_weak(max, ns)) {
    }
    return variant;
  }
};

Kernel::Kernel(fuse::KernelGraph graph, std::string where, const Settings& settings)
    : impl_(std::make_unique<Impl>()) {
  impl_->settings = settings;
  impl_->graph = std::move(graph);
  impl_->where = std::move(where);
  // A stage has some of its operands, and at most a buffer a node: an arg fold's second one stands
  // for the node that is its index.
  if (impl_->graph.operands.size() + impl_->graph.nodes.size() <= kMaxBindings)
    impl_->sweeps = Split::sweeps_of(impl_->graph);
  if (impl_->graph.operands.size() > kMaxBindings)
    throw std::length_error("kernel has too many operands");
}
Kernel::~Kernel() = default;
Kernel::Kernel(Kernel&&) noexcept = default;

const fuse::KernelGraph& Kernel::graph() const { return impl_->graph; }

namespace {

// On whichever thread it is, nothing is thrown.
exec::Status run_inline(const Variant& variant, const exec::Launch& launch) noexcept try {
  thread_local exec::interp::Scratch scratch;
  if (variant.native != nullptr && variant.copy.bytes != 0 && run_copy(variant.copy, launch))
    return exec::Status::kOk;
  if (variant.native != nullptr && variant.native->can_run(launch)) {
    return variant.native->run(launch, scratch);
  }
  if (variant.native != nullptr) {
    static const auto* const left = new std::string(
        "a launch that machine code leaves: several reduced axes beside rows and columns, or "
        "strided operands too large to copy");
    interpreted().add(*left);
  }
  const auto interpret = [&] { return variant.interpreter().run(launch, scratch); };
  return exec::recording() ? exec::record(variant.encoded.bytes, launch, interpret) : interpret();
} catch (const std::bad_alloc&) {
  return exec::Status::kNoMemory;
}

// One launch cut into parts along a kept axis; results do not depend on the cut.
struct Parts {
  enum class Axis : std::uint8_t { kOuter, kRows, kColumns };
  static constexpr std::int64_t kColumnStep = 64;         // parts start at whole cache lines
  static constexpr std::int64_t kPointsInPart = 1 << 16;  // at least, where a thread has several
  static constexpr std::int64_t kMostParts = 8;

  const Variant& variant;
  const exec::Launch& launch;
  Axis axis = Axis::kOuter;
  std::int64_t extent = 0;  // in steps
  std::int64_t step = 1;
  int n = 1;     // threads
  int each = 1;  // parts of a thread
  std::atomic<exec::Status> status{exec::Status::kOk};

  Parts(const Variant& v, const exec::Launch& l, bytecode::Fold fold, int threads)
      : variant(v), launch(l) {
    const auto& space = l.space;
    const bool rows_kept = (static_cast<int>(fold) & static_cast<int>(bytecode::Fold::kRows)) == 0;
    const bool columns_kept =
        (static_cast<int>(fold) & static_cast<int>(bytecode::Fold::kColumns)) == 0;
    if (space.n_outer > 0) extent = space.outer[0];
    if (rows_kept && space.rows > extent) {
      axis = Axis::kRows;
      extent = space.rows;
    }
    if (columns_kept && extent < threads) {
      const std::int64_t steps = (space.cols + kColumnStep - 1) / kColumnStep;
      if (steps > extent) {
        axis = Axis::kColumns;
        extent = steps;
        step = kColumnStep;
      }
    }
    n = static_cast<int>(std::clamp<std::int64_t>(extent, 1, threads));
    // Columns are cut once: their parts share lines, and are quicker when they are wide.
    if (n > 1 && axis != Axis::kColumns && points() >= kPointsInPart * n)
      each = static_cast<int>(std::min({kMostParts, points() / n / kPointsInPart, extent / n}));
  }

  std::int64_t points() const {
    std::int64_t product = launch.space.rows * launch.space.cols;
    for (int i = 0; i < launch.space.n_outer; ++i) product *= launch.space.outer[i];
    for (int i = 0; i < launch.space.n_reduced; ++i) product *= launch.space.reduced[i];
    return product;
  }

  void run(int i) noexcept {
    const std::int64_t parts = std::int64_t{n} * each;
    const std::int64_t begin = extent * i / parts * step;
    thread_local std::array<exec::Binding, kMaxBindings> moved;
    exec::Launch part{launch.space, std::span(moved).first(launch.bindings.size())};
    std::int64_t* size = axis == Axis::kOuter  ? &part.space.outer[0]
                         : axis == Axis::kRows ? &part.space.rows
                                               : &part.space.cols;
    const std::int64_t end = std::min(extent * (i + 1) / parts * step, *size);
    *size = end - begin;
    for (std::size_t o = 0; o < launch.bindings.size(); ++o) {
      auto& b = moved[o] = launch.bindings[o];
      const std::int64_t stride = axis == Axis::kOuter  ? b.outer[0]
                                  : axis == Axis::kRows ? b.y_stride
                                                        : b.x_stride;
      if (b.base != nullptr) {
        b.base += begin * stride;
      } else {
        b.start += begin * stride;  // iota
      }
    }
    const exec::Status s = run_inline(variant, part);
    if (s != exec::Status::kOk) status.store(s, std::memory_order_relaxed);
  }
};

}  // namespace

namespace {

// Whether every output's vectors are whole lines. Copies of what lies otherwise see to that where
// they are made.
bool aligned_outputs(const fuse::KernelGraph& graph, const Layout& layout,
                     std::span<const exec::Binding> bindings) {
  for (std::size_t i = 0; i < graph.operands.size(); ++i) {
    const std::uint8_t cls = layout.cls.operand[i];
    const bool over_columns = (cls & 1) != 0, contiguous = (cls & 4) != 0;
    if (graph.operands[i].role != bytecode::Role::kOutput || !over_columns || !contiguous) continue;
    const exec::Binding& b = bindings[i];
    std::int64_t bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.base));
    if (layout.space.rows > 1) bits |= b.y_stride;
    for (int axis = 0; axis < layout.space.n_outer; ++axis)
      bits |= b.outer[static_cast<std::size_t>(axis)];
    if (bits % exec::native::kStreamAlignment != 0) return false;
  }
  return true;
}

}  // namespace

exec::Status run_again(const Variant& variant, const exec::Launch& launch) noexcept {
  counters.hits.fetch_add(1, std::memory_order_relaxed);
  variant.count_launch();
  return run_inline(variant, launch);
}

exec::Status Kernel::run(std::span<const std::int64_t> axis_sizes,
                         std::span<const OperandView> operands, int threads, bool large, Tape* tape,
                         std::size_t stage, std::span<const std::int64_t> whole) noexcept try {
  thread_local std::array<exec::Binding, kMaxBindings> bindings;  // not cleared on every call
  const Tier tier = impl_->tier();
  const Layout layout =
      lay_out(impl_->graph, axis_sizes, operands, bindings, exec::native::lanes(tier.target), whole);
  if (layout.empty) return exec::Status::kOk;
  std::unique_ptr<const Variant> once;
  const bool streams = large && exec::native::can_stream(tier.target) &&
                       aligned_outputs(impl_->graph, layout, bindings);
  const Variant* variant = impl_->find(layout.cls, tier.target, streams);
  if (variant == nullptr) {
    variant = impl_->compile(layout.cls, tier, streams, once);
    if (variant == nullptr) return exec::Status::kBadProgram;
  } else {
    counters.hits.fetch_add(1, std::memory_order_relaxed);
  }
  variant->count_launch();
  const exec::Launch launch{layout.space, std::span(bindings).first(variant->n_operands)};
  if (tape != nullptr) {
    tape->refused = tape->refused || threads > 1 || once != nullptr;
    tape->note(*variant, launch, stage);
  }
  if (threads <= 1) return run_inline(*variant, launch);
  Parts parts(*variant, launch, layout.cls.fold, threads);
  if (parts.n == 1) return run_inline(*variant, launch);
  exec::parallel(
      parts.n, parts.each, [](void* data, int i) { static_cast<Parts*>(data)->run(i); }, &parts);
  return parts.status.load();
} catch (const std::bad_alloc&) {
  return exec::Status::kNoMemory;
}

exec::Status Kernel::run_alone(std::span<const std::int64_t> axis_sizes,
                               std::span<const OperandView> operands, int threads, bool large,
                               Tape* tape) noexcept try {
  if (!Split::takes(impl_->sweeps, impl_->graph.reduced, axis_sizes))
    return run(axis_sizes, operands, threads, large, tape);
  if (tape != nullptr) tape->refused = true;
  return impl_->in_parts().run(axis_sizes, operands, threads, large);
} catch (const std::bad_alloc&) {
  return exec::Status::kNoMemory;
}

std::vector<Kernel::VariantInfo> Kernel::variants() const {
  std::vector<VariantInfo> result;
  for (const Variant* v = impl_->variants.load(); v != nullptr; v = v->next) {
    constexpr const char* folds[] = {"", ": folds columns", ": folds rows", ": folds both"};
    const bool native = v->native != nullptr;
    VariantInfo info{std::string(kFoldNames[at(v->cls.fold)]) + folds[at(v->cls.fold)] +
                         (v->streams ? ", outputs past the caches" : ""),
                     v->encoded.bytes,
                     {},
                     exec::native::name(native ? v->target : Target::kNone),
                     native ? "" : v->refusal,
                     native ? v->target : Target::kNone,
                     v->streams,
                     v->launches.load(std::memory_order_relaxed),
                     v->compile_ns};
    for (const auto line : v->encoded.lines)
      info.lines.push_back(line < 0 ? "" : std::to_string(line));
    result.push_back(std::move(info));
  }
  std::ranges::reverse(result);
  if (const Split* const split = impl_->split.load(std::memory_order_acquire))
    std::ranges::move(split->variants(), std::back_inserter(result));
  return result;
}

void warm_up() {
  Program program;
  Type type;
  type.shape.push(program.sizes.symbol("n"));
  const ValueId x[] = {program.input(type)};
  const ValueId y[] = {program.add(Op::softmax, x, {Attr::of_ints({0})})};
  program.outputs = {y[0]};
  fuse::Plan plan = fuse::fuse(lower(std::move(program)));
  Kernel kernel(std::move(plan.kernels.front()));
  float in[4] = {1, 2, 3, 4};
  float out[4];
  std::vector<OperandView> views(kernel.graph().operands.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const bool output = kernel.graph().operands[i].role == bytecode::Role::kOutput;
    views[i].base = reinterpret_cast<std::byte*>(output ? out : in);
    views[i].stride[0] = sizeof(float);
  }
  const std::int64_t sizes[] = {4};
  kernel.run(sizes, views, 1);
  reset_compile_stats();
}

void set_verify(bool verify) { verify_own = verify; }

Tier tier() noexcept { return chosen_tier().load(std::memory_order_relaxed); }

void set_tier(Tier tier) { chosen_tier() = tier; }

void set_most_variants(int count) { most_variants = count; }

CompileStats compile_stats() {
  return {counters.compiles, counters.hits, static_cast<double>(counters.total_ns) / 1e3,
          static_cast<double>(counters.max_ns) / 1e3, interpreted().counts()};
}

void reset_compile_stats() {
  counters.compiles = counters.hits = counters.total_ns = counters.max_ns = 0;
  interpreted().reset();
}

}  // namespace tilevm::schedule
