#include "eager/engine.h"
#include "eager/spares.h"
#include "eager/watch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "exec/memory.h"
#include "host/errors.h"
#include "host/executable.h"
#include "trace/trace.h"

namespace tilevm::eager {
namespace {

using host::Geometry;
using host::Object;
using host::Record;

// What the host sees as a tensor or a number. Memory is its own, or of `parent`, or of an input.
struct Held {
  std::atomic<int> references{1};
  Geometry geometry;
  std::byte* data = nullptr;
  exec::Block block;
  Held* parent = nullptr;
  std::int64_t number = 0;

  static void* operator new(std::size_t bytes) { return Spares<Held, 64>::take(bytes); }
  static void operator delete(void* memory) noexcept { Spares<Held, 64>::give(memory); }
};

Held* held(Object object) { return static_cast<Held*>(object); }

// Whether that was the last reference. Nobody else can count where there is only the caller's.
bool is_last(std::atomic<int>& references) noexcept {
  return references.load(std::memory_order_acquire) == 1 ||
         references.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void drop_held(Held* h) noexcept {
  while (h != nullptr && is_last(h->references)) {
    Held* const parent = h->parent;
    if (h->block.data != nullptr) exec::release(h->block);
    delete h;
    h = parent;
  }
}

struct Segment;

// The inputs of one run; kept, so that a steady run allocates nothing here.
struct Arguments {
  std::vector<std::unique_ptr<Held>> pool;
  std::vector<Object> objects, outputs;
  std::vector<host::Seen> seen;
  std::array<std::shared_ptr<Segment>, 64> recent;
  Held& at(std::size_t i) {
    while (pool.size() <= i) pool.push_back(std::make_unique<Held>());
    return *pool[i];
  }
};

// One object for all, and never inlined: to find one takes a call, which compilers repeat wherever
// it is used.
struct OfThread {
  Wanted wanted;                     // of the run
  std::unique_ptr<Watched> watched;  // null: nobody watches
  const char* flush_reason = "";     // of the next run
  Arguments arguments;
};
[[gnu::noinline]] OfThread& of_thread() {
  thread_local OfThread made;
  return made;
}

// Tensors are `Held`; there are no call-outs.
class Memory final : public host::Framework {
 public:
  void describe(Object tensor, const Type&, const std::string&, Record& out) override {
    static_cast<Geometry&>(out) = held(tensor)->geometry;
    out.data = held(tensor)->data;
  }
  Object empty(DType dtype, std::int64_t elements, Record& out) override {
    const auto bytes = static_cast<std::size_t>(elements * dtype_bytes(dtype));
    auto made = std::make_unique<Held>();
    made->block = exec::acquire(bytes);
    if (made->block.data == nullptr) {
      throw host::MemoryError("no memory for a tensor of " + std::to_string(bytes) + " bytes");
    }
    made->geometry = out;
    made->data = out.data = made->block.data;
    return made.release();
  }
  Object view(Object owner, const Record&, DType, const Record& part) override {
    auto* made = new Held;
    made->geometry = part;
    made->data = part.data;
    made->parent = held(retain(owner));
    return made;
  }
  bool negative_strides() const override { return false; }

  std::int64_t integer(Object number, const std::string&) override { return held(number)->number; }
  double real(Object number, const std::string&) override {
    return std::bit_cast<double>(held(number)->number);
  }
  bool boolean(Object number, const std::string&) override { return held(number)->number != 0; }
  Object from_integer(std::int64_t value) override { return from_bits(value); }
  Object from_real(double value) override { return from_bits(std::bit_cast<std::int64_t>(value)); }
  Object from_boolean(bool value) override { return from_bits(value ? 1 : 0); }

  void call(std::int64_t target, std::span<const Object>, std::span<Object>) override {
    throw host::InternalError("a recorded segment has the call-out " + std::to_string(target));
  }

  Object retain(Object object) noexcept override {
    std::atomic<int>& references = held(object)->references;
    if (references.load(std::memory_order_relaxed) == 1) {
      references.store(2, std::memory_order_relaxed);  // nobody else holds it
    } else {
      references.fetch_add(1, std::memory_order_relaxed);
    }
    return object;
  }
  void drop(Object object) noexcept override { drop_held(held(object)); }
  void unlock() noexcept override {}
  void lock() noexcept override {}
  int threads() noexcept override { return of_thread().wanted.threads; }
  int float32_pieces() noexcept override {
    const auto ask = of_thread().wanted.pieces;
    return ask == nullptr ? exec::gemm::kMostPieces : ask();
  }

 private:
  static Object from_bits(std::int64_t bits) {
    auto* made = new Held;
    made->number = bits;
    return made;
  }
};

Memory& memory() {
  static auto* const made = new Memory;
  return *made;
}

struct Segment {
  std::vector<std::uint32_t> words;
  std::uint64_t hash = 0;
  std::vector<int> symbols;  // see read()
  std::vector<OutputPlace> outputs;
  std::vector<int> item_bytes;
  std::string text;
  std::unique_ptr<host::Executable> executable;
};

std::shared_ptr<Segment> compile(std::span<const std::uint32_t> words, std::uint64_t hash) {
  auto segment = std::make_shared<Segment>();
  segment->words.assign(words.begin(), words.end());
  segment->hash = hash;
  Program program = read(words, segment->symbols, segment->outputs);
  host::Options options;
  for (std::size_t s = 0; s < segment->symbols.size(); ++s) {
    if (segment->symbols[s] < 0) continue;
    options.int_symbols.emplace_back(segment->symbols[s], "s" + std::to_string(s));
  }
  for (const OutputPlace& output : segment->outputs) {
    options.targets.push_back(output.target);
    if (output.order.empty()) {
      options.output_orders.emplace_back();
    } else {
      options.output_orders.emplace_back(output.order);
    }
  }
  // Every tensor that was made has memory of its own; what shares it is a view outside.
  const auto n_inputs = static_cast<std::int32_t>(program.inputs.size());
  for (std::int32_t i = 0; i < n_inputs; ++i) options.input_groups.push_back(i);
  for (std::size_t o = 0; o < program.outputs.size(); ++o) {
    options.output_groups.push_back(n_inputs + static_cast<std::int32_t>(o));
    segment->item_bytes.push_back(dtype_bytes(program.type(program.outputs[o]).dtype));
  }
  options.whole_outputs.assign(program.outputs.size(), true);
  segment->text = print(program);
  segment->executable = host::build(std::move(program), options, memory());
  return segment;
}

std::atomic<std::int64_t> most_segments{1024};
std::atomic<std::int64_t> calls_for_template{0};
std::atomic<std::int64_t> hits{0}, misses{0};

// Programs by their words, the most recently used first.
class Cache {
 public:
  std::shared_ptr<Segment> find(std::span<const std::uint32_t> words, std::uint64_t hash) {
    {
      const std::lock_guard lock(mutex_);
      const auto [first, last] = by_hash_.equal_range(hash);
      for (auto it = first; it != last; ++it) {
        const Segment& segment = **it->second;
        if (!std::ranges::equal(segment.words, words)) continue;
        recent_.splice(recent_.begin(), recent_, it->second);
        hits.fetch_add(1, std::memory_order_relaxed);
        return *it->second;
      }
    }
    misses.fetch_add(1, std::memory_order_relaxed);
    std::shared_ptr<Segment> made = compile(words, hash);
    std::list<std::shared_ptr<Segment>> own{made}, gone;  // what is gone is freed without the lock
    const std::lock_guard lock(mutex_);
    by_hash_.emplace(hash, own.begin());
    recent_.splice(recent_.begin(), own);
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(most_segments, 1));
    while (recent_.size() > most) {
      const auto oldest = std::prev(recent_.end());
      const auto [first, last] = by_hash_.equal_range((*oldest)->hash);
      by_hash_.erase(std::find_if(first, last, [&](auto& e) { return e.second == oldest; }));
      gone.splice(gone.begin(), recent_, oldest);
    }
    return made;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return recent_.size();
  }
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> result;
    for (const auto& segment : recent_) result.push_back(segment->text);
    return result;
  }

 private:
  std::mutex mutex_;
  std::list<std::shared_ptr<Segment>> recent_;
  std::unordered_multimap<std::uint64_t, std::list<std::shared_ptr<Segment>>::iterator> by_hash_;
};

Cache& cache() {
  static auto* const made = new Cache;
  return *made;
}

// Counters by reason, which is a literal: few, and found by address.
class FlushCounts {
 public:
  void count(const char* reason) noexcept {
    for (Entry& entry : entries_) {
      const char* known = entry.reason.load(std::memory_order_acquire);
      if (known == nullptr && entry.reason.compare_exchange_strong(known, reason)) known = reason;
      if (known != reason) continue;
      entry.count.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  std::vector<std::pair<std::string, std::int64_t>> all() const {
    std::map<std::string, std::int64_t> by_name;
    for (const Entry& entry : entries_) {
      const char* const reason = entry.reason.load(std::memory_order_acquire);
      const std::int64_t count = entry.count.load(std::memory_order_relaxed);
      if (reason != nullptr && count > 0) by_name[reason] += count;
    }
    return {by_name.begin(), by_name.end()};
  }
  void reset() noexcept {
    for (Entry& entry : entries_) entry.count = 0;
  }

 private:
  struct Entry {
    std::atomic<const char*> reason{nullptr};
    std::atomic<std::int64_t> count{0};
  };
  std::array<Entry, 64> entries_;
};
FlushCounts& flushes() {
  static auto* const made = new FlushCounts;
  return *made;
}

// An output as its tensor wants it: strides of a dense tensor, memory of its own.
Held* settle(Held* output, std::span<const std::int32_t> order, int item_bytes) {
  if (order.empty() && output->geometry.row_major()) return output;
  Record wanted;
  static_cast<Geometry&>(wanted) = output->geometry;
  if (order.empty()) {
    set_dense_strides(wanted);
  } else {
    host::set_strides_in_order(wanted, order);
  }
  bool same = true;
  for (int d = 0; same && d < wanted.rank; ++d) {
    same = same && (wanted.size(d) < 2 || wanted.stride(d) == output->geometry.stride(d));
  }
  if (same || wanted.empty()) return output;
  auto made = std::make_unique<Held>();
  made->block = exec::acquire(static_cast<std::size_t>(wanted.elements() * item_bytes));
  if (made->block.data == nullptr) throw host::MemoryError("no memory for a copy of a result");
  Record from;
  static_cast<Geometry&>(from) = output->geometry;
  from.data = output->data;
  wanted.data = made->block.data;
  host::copy(from, wanted, item_bytes, of_thread().wanted.threads);
  made->geometry = wanted;
  made->data = wanted.data;
  drop_held(output);
  return made.release();
}

std::atomic<bool (*)(Failure&) noexcept> finish_of_recorder{nullptr};

// Calls of an executable are profiled while this lives.
class Profiled {
 public:
  explicit Profiled(host::Executable& executable) : executable_(executable) {
    executable_.set_profiled(true);
  }
  ~Profiled() { executable_.set_profiled(false); }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;

 private:
  host::Executable& executable_;
};

class Runner final : public Engine {
 public:
  explicit Runner(int (*threads)() noexcept) : threads_(threads) {}

  bool run(const Trace& trace, std::span<Filled> outputs, Wanted wanted,
           Failure& failure) noexcept override {
    using Kind = Failure::Kind;
    OfThread& thread = of_thread();
    const trace::Span span("flush", thread.flush_reason);
    const auto failed = [&](Kind kind, const char* what) {
      failure.kind = kind;
      try {
        failure.message = what;
      } catch (const std::bad_alloc&) {
        failure.message = "no memory";
      }
      return false;
    };
    try {
      execute(thread, trace, outputs, wanted);
      return true;
    } catch (const host::IndexError& e) {
      return failed(Kind::kIndex, e.what());
    } catch (const host::DivisionError& e) {
      return failed(Kind::kDivision, e.what());
    } catch (const host::MemoryError& e) {
      return failed(Kind::kMemory, e.what());
    } catch (const std::bad_alloc&) {
      return failed(Kind::kMemory, "no memory");
    } catch (const ShapeError& e) {
      return failed(Kind::kShape, e.what());
    } catch (const std::exception& e) {
      return failed(Kind::kInternal, e.what());
    }
  }

  void release(void* owner) noexcept override { drop_held(static_cast<Held*>(owner)); }

  void count_flush(const char* reason) noexcept override {
    flushes().count(reason);
    of_thread().flush_reason = reason;
  }

  bool watching() noexcept override { return of_thread().watched != nullptr; }

  void note_eager(const char* name) noexcept override {
    if (Watched* const watched = of_thread().watched.get()) watched->eager.emplace_back(name);
  }

  const Template& template_of(std::int32_t number) override { return find_template(number); }
  std::int64_t template_calls() noexcept override { return calls_for_template; }

  void set_finish(bool (*finish)(Failure&) noexcept) noexcept override {
    finish_of_recorder = finish;
  }

 private:
  void execute(OfThread& thread, const Trace& trace, std::span<Filled> outputs, Wanted wanted) {
    if (const int threads = threads_(); threads > 0) wanted.threads = threads;
    thread.wanted = wanted;
    Arguments& a = thread.arguments;
    const std::uint64_t hash = trace.hash();
    // What this thread ran lately needs no lock.
    std::shared_ptr<Segment>& segment = a.recent[hash % a.recent.size()];
    if (segment != nullptr && segment->hash == hash &&
        std::ranges::equal(segment->words, trace.words())) {
      hits.fetch_add(1, std::memory_order_relaxed);
    } else {
      segment = cache().find(trace.words(), hash);
    }
    const std::span<const Input> inputs = trace.inputs();
    const std::size_t n = segment->executable->n_inputs();
    a.objects.resize(n);
    a.seen.assign(n, {nullptr, nullptr, nullptr});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Input& input = inputs[i];
      Held& h = a.at(i);
      h.number = input.number;
      a.objects[i] = &h;
      if (input.data != nullptr || !trace.meta(input.value).weak) {
        a.seen[i] = {input.data, input.geometry.sizes.data(), input.geometry.strides.data()};
      }
    }
    for (std::size_t s = 0; s < segment->symbols.size(); ++s) {
      if (segment->symbols[s] < 0) continue;
      const auto i = static_cast<std::size_t>(segment->symbols[s]);
      a.at(i).number = trace.sizes()[s];
      a.objects[i] = &a.at(i);
    }
    a.outputs.assign(outputs.size(), nullptr);
    host::Call call{a.objects, a.outputs, a.seen.data()};
    try {
      if (thread.watched == nullptr) {
        segment->executable->run(call);
      } else {
        run_watched(thread, segment, call);
      }
      for (std::size_t o = 0; o < outputs.size(); ++o) {
        const OutputPlace& place = segment->outputs[o];
        if (place.target >= 0) continue;
        a.outputs[o] = settle(held(a.outputs[o]), place.order, segment->item_bytes[o]);
      }
    } catch (...) {
      for (const Object output : a.outputs) drop_held(held(output));
      throw;
    }
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      Held* const h = held(a.outputs[o]);
      if (segment->outputs[o].target >= 0) {  // what was handed out is the input
        drop_held(h);
      } else {
        outputs[o] = {h->data, h};
      }
    }
  }

  static void run_watched(OfThread& thread, const std::shared_ptr<Segment>& segment,
                          host::Call& call) {
    const std::shared_ptr<host::Executable> executable(segment, segment->executable.get());
    const Profiled profiled(*executable);
    executable->run(call);
    thread.watched->segments.push_back({thread.flush_reason, executable, executable->profile()});
  }

  int (*threads_)() noexcept;
};

}  // namespace

void watch_segments() { of_thread().watched = std::make_unique<Watched>(); }

Watched watched_segments() {
  const auto noted = std::move(of_thread().watched);
  return noted ? std::move(*noted) : Watched();
}

std::pair<std::size_t, std::size_t> watched_so_far() {
  const Watched* const watched = of_thread().watched.get();
  if (watched == nullptr) return {0, 0};
  return {watched->segments.size(), watched->eager.size()};
}

std::unique_ptr<Engine> make_engine(int (*threads)() noexcept) {
  return std::make_unique<Runner>(threads);
}

bool finish_writes(Failure& failure) noexcept {
  const auto finish = finish_of_recorder.load(std::memory_order_acquire);
  return finish == nullptr || finish(failure);
}

EngineStats engine_stats() noexcept {
  return {static_cast<std::int64_t>(cache().size()), hits.load(), misses.load()};
}

void reset_engine_stats() noexcept {
  hits = 0;
  misses = 0;
  flushes().reset();
}

void set_most_segments(std::int64_t count) noexcept { most_segments = count; }
void set_template_calls(std::int64_t count) noexcept { calls_for_template = count; }

std::vector<std::pair<std::string, std::int64_t>> flush_counts() { return flushes().all(); }

std::vector<std::string> segment_texts() { return cache().texts(); }

}  // namespace tilevm::eager
