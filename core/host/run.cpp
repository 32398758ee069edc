#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;

// Below this many bytes read and written, a kernel runs on one thread.
constexpr double kInlineBytes = 256 << 10;
// Above this many, other Python threads may run meanwhile: about 50 us.
constexpr double kUnlockBytes = 1 << 20;

// Results of a call that are larger together leave the caches before anybody reads them: writing
// past them saves reading them first. Measured on a processor with 32 MiB: from 8 MiB on, also if
// the result is read again at once. No more on others: what a large cache of many cores holds of
// one of them is not known, and a virtual machine tells the size of all of it.
std::int64_t stream_bytes() {
  static const std::int64_t bytes = [] {
    constexpr std::int64_t kMost = std::int64_t{8} << 20;
    // (sysconf adds up the caches of all cores on some processors.)
    std::int64_t kibibytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kibibytes;
    return kibibytes > 0 ? std::min((kibibytes << 10) / 4, kMost) : kMost;
  }();
  return bytes;
}

std::atomic<std::int64_t> launch_count{0}, repeated_count{0};

std::size_t at(SizeId id) { return static_cast<std::size_t>(id); }

// Whether an element stands for several.
bool repeats(const Geometry& g) {
  for (int d = 0; d < g.rank; ++d) {
    if (g.stride(d) == 0 && g.size(d) > 1) return true;
  }
  return false;
}

// Whether elements lie without gaps, with dims in this order; empty: as they are counted.
bool lies_in(std::span<const std::int32_t> order, const Geometry& g) {
  std::int64_t next = 1;
  for (int i = g.rank - 1; i >= 0; --i) {
    const int d = order.empty() ? i : order[static_cast<std::size_t>(i)];
    if (g.size(d) == 0) return true;
    if (g.size(d) > 1 && g.stride(d) != next) return false;
    next *= g.size(d);
  }
  return true;
}

// Nanoseconds since it was asked last.
struct Watch {
  std::chrono::steady_clock::time_point last;
  std::int64_t lap_ns() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now - std::exchange(last, now))
        .count();
  }
};

void take(const Seen& seen, int rank, Record& record) {
  record.rank = rank;
  record.data = seen.data;
  for (int d = 0; d < rank; ++d) {
    record.size(d) = seen.sizes[d];
    record.stride(d) = seen.strides[d];
  }
}

}  // namespace

std::int64_t launches() noexcept { return launch_count.load(std::memory_order_relaxed); }
std::int64_t repeated_calls() noexcept { return repeated_count.load(std::memory_order_relaxed); }
void reset_launches() noexcept {
  launch_count.store(0, std::memory_order_relaxed);
  repeated_count.store(0, std::memory_order_relaxed);
}

// Owns a frame during a call; drops the tensors that are left in it.
class Executable::Running {
 public:
  explicit Running(Executable& exe) : exe_(exe), frame_(exe.take_frame()) {}
  ~Running() {
    if (!frame_) return;
    drop_tensors();
    exe_.give_frame(std::move(frame_));
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  Frame& frame() { return *frame_; }
  // The frame, to whoever reads results in it.
  Kept keep() {
    drop_tensors();
    return {exe_, std::move(frame_)};
  }

 private:
  void drop_tensors() {
    for (const ValueId holder : exe_.holders_) {
      Object& tensor = frame_->tensors[exe_.index(holder)];
      if (tensor != nullptr) exe_.framework_.drop(std::exchange(tensor, nullptr));
    }
    for (Kept& kept : frame_->kept) kept.let_go();
  }

  Executable& exe_;
  std::unique_ptr<Frame> frame_;
};

std::unique_ptr<Executable::Frame> Executable::take_frame() {
  std::unique_ptr<Frame> frame(spare_.exchange(nullptr, std::memory_order_acquire));
  if (frame) return frame;
  {
    const std::lock_guard lock(mutex_);
    if (!frames_.empty()) {
      frame = std::move(frames_.back());
      frames_.pop_back();
      return frame;
    }
  }
  frame = std::make_unique<Frame>();
  const std::size_t n_values = plan_.program.values.size();
  frame->regs.assign(sizes_.initial().begin(), sizes_.initial().end());
  frame->records.resize(n_values);
  frame->tensors.assign(n_values, nullptr);
  frame->numbers.resize(n_values);
  frame->operands.resize(most_operands_);
  for (const fuse::Chain& chain : plan_.chains) frame->chains.push_back(new_launch(chain));
  frame->args.resize(2 * most_args_);
  frame->offsets.resize(arena_.buffers.size());
  frame->ends.resize(arena_.buffers.size());
  frame->blocks.resize(static_cast<std::size_t>(sizes_.stages()));
  frame->apart.resize(n_values);
  frame->held.resize(static_cast<std::size_t>(n_held_));
  frame->kept.resize(nests_.size());
  return frame;
}

void Executable::give_frame(std::unique_ptr<Frame> frame) noexcept {
  for (exec::Block& block : frame->blocks) {
    if (block.bytes > kKeepBytes) exec::release(std::exchange(block, {}));
  }
  for (exec::Block& block : frame->held) {
    if (block.bytes > kKeepBytes) exec::release(std::exchange(block, {}));
  }
  frame.reset(spare_.exchange(frame.release(), std::memory_order_acq_rel));
  if (!frame) return;
  const std::lock_guard lock(mutex_);
  try {
    frames_.push_back(std::move(frame));
  } catch (const std::bad_alloc&) {  // a later call makes another
  }
}

// kept: takes the frame, if results are left in it; null: they are not.
void Executable::run(Call& call, Kept* kept) {
  const trace::Span span("call");
  if (!profiled_.load(std::memory_order_relaxed)) [[likely]]
    return run<false>(call, kept, nullptr);
  auto profile = std::make_unique<Profile>();
  profile->steps_ns.reserve(steps_.size());
  run<true>(call, kept, profile.get());
  const std::lock_guard lock(mutex_);
  profile_ = std::move(profile);
}

template <bool profiled>
void Executable::run_steps(Frame& frame, Profile* profile) {
  [[maybe_unused]] Watch watch;
  if constexpr (profiled) watch.lap_ns();
  frame.output_bytes = 0;
  for (const HostStep& step : steps_) {
    const std::size_t noted = frame.tape == nullptr ? 0 : frame.tape->launches->actions.size();
    switch (step.kind) {
      case Kind::kAlloc:
        allocate(frame, step);
        break;
      case Kind::kView:
        apply(step.view, frame.regs, frame.records[index(step.in)], step.item_bytes,
              frame.records[index(step.out)]);
        break;
      case Kind::kReshape:
        reshape(frame, step);
        break;
      case Kind::kSlice: {
        const Shape& shape = plan_.program.type(step.out).shape;
        narrow(frame.records[index(step.in)], step.axis, frame.regs[at(step.offset)],
               frame.regs[at(shape[step.axis])], step.item_bytes, frame.records[index(step.out)]);
        break;
      }
      case Kind::kKernel:
        run_kernel(frame, step.kernel, nullptr, nullptr);
        break;
      case Kind::kChain:
        run_chain(frame, step.chain);
        break;
      case Kind::kLoop:
        run_loop(frame, step.node);
        break;
      case Kind::kCall:
        call_out(frame, step);
        break;
    }
    if (frame.tape != nullptr) [[unlikely]]
      note_step(frame, step, noted);
    for (const ValueId value : step.release) {
      Object& held = frame.tensors[index(value)];
      if (held != nullptr) framework_.drop(std::exchange(held, nullptr));
    }
    for (const std::int32_t nest : step.let_go) frame.kept[index(nest)].let_go();
    if constexpr (profiled) profile->steps_ns.push_back(watch.lap_ns());
  }
}

template <bool profiled>
void Executable::run(Call& call, Kept* kept, Profile* profile) {
  Running running(*this);
  Frame& frame = running.frame();
  [[maybe_unused]] Watch watch;
  if constexpr (profiled) watch.lap_ns();
  read_inputs(frame, call);
  if (places_ || refuses_shared_) find_apart(frame);
  if (refuses_shared_) check_apart(frame);
  if (asks_pieces_) frame.pieces = framework_.float32_pieces();
  Tape* const tape = profiled ? nullptr : tape_of(frame);
  const bool done_before = tape != nullptr && tape->state == Tape::State::kReady;
  if (done_before) call.began = true;
  if (done_before && replay(frame, *tape)) {
    repeated_count.fetch_add(1, std::memory_order_relaxed);
  } else {
    run_stage(frame, 0);
    if constexpr (profiled) profile->begin_ns = watch.lap_ns();
    call.began = true;
    begin_tape(frame, tape);
    run_steps<profiled>(frame, profile);
    if constexpr (profiled) watch.lap_ns();  // theirs is noted by step
    if (frame.tape != nullptr) finish_tape(frame);
  }
  const std::span<Object> outputs = call.outputs;
  std::size_t done = 0;
  bool keeps = false;
  try {
    for (; done < outputs_.size(); ++done) {
      const Source& output = outputs_[done];
      if (targets_[done] >= 0 && frame.records[index(output.value)].root < 0) {
        outputs[done] = nullptr;  // was made in its place
      } else if (output.kind == Source::Kind::kTensor) {
        const Record& record = frame.records[index(output.value)];
        const bool copy = is_separate(done, record) || (whole_[done] && repeats(record)) ||
                          (ordered_[done] && !lies_in(order_of(done), record));
        const bool held = held_[done] && !copy;
        Record* const made = call.results == nullptr ? nullptr : &call.results[done];
        if (made != nullptr) *made = record;
        if (held && kept != nullptr) {
          outputs[done] = nullptr;
          keeps = true;
        } else {
          outputs[done] = copy || held ? fresh_copy(frame, done, made) : result(frame, done);
        }
      } else {
        const Object object = number(frame, output);
        outputs[done] = output.makes_object() ? object : framework_.retain(object);
      }
    }
    if (writes_) write_targets(frame, call.inputs, outputs);
  } catch (...) {
    while (done > 0) {
      if (outputs[--done] != nullptr) framework_.drop(std::exchange(outputs[done], nullptr));
    }
    throw;
  }
  if constexpr (profiled) {
    profile->end_ns = watch.lap_ns();
    profile->sizes = frame.regs;
    profile->records = frame.records;
  }
  if (keeps) *kept = running.keep();
}

bool Executable::is_separate(std::size_t output, const Record& record) const {
  const Separate separate = separate_[output];
  if (separate != Separate::kFromInputs) return separate == Separate::kAlways;
  return record.root < 0 || is_input_[index(record.root)];
}

void Executable::read_inputs(Frame& frame, const Call& call) const {
  const Program& program = plan_.program;
  const std::span<const Object> inputs = call.inputs;
  frame.inputs = inputs;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const ValueId value = program.inputs[i];
    const Type& type = program.type(value);
    Record& record = frame.records[index(value)];
    if (call.passed != nullptr) {
      const Passed& passed = call.passed[i];
      frame.tensors[index(value)] = passed.tensor;
      if (!type.weak) record = *passed.record;
      record.root = type.weak ? -1 : value;
      if (!type.weak) continue;
      frame.numbers[index(value)] = passed.number;
      record.rank = 0;
      record.data = reinterpret_cast<std::byte*>(&frame.numbers[index(value)]);
      continue;
    }
    const bool complex = complex_of_[index(value)] >= 0;
    frame.tensors[index(value)] = complex ? nullptr : inputs[i];
    if (!type.weak) {
      record.root = value;
      if (complex) {
        framework_.describe_complex(inputs[i], type, names_[i], record);
      } else if (call.seen != nullptr && call.seen[i].sizes != nullptr) {
        take(call.seen[i], type.shape.rank, record);
      } else {
        framework_.describe(inputs[i], type, names_[i], record);
      }
      continue;
    }
    std::int64_t& slot = frame.numbers[index(value)];
    record.root = -1;
    record.rank = 0;
    record.data = reinterpret_cast<std::byte*>(&slot);
    if (type.dtype == DType::kBool) {
      slot = 0;
      *record.data = std::byte{framework_.boolean(inputs[i], names_[i])};
    } else if (type.dtype == DType::kInt64) {
      slot = framework_.integer(inputs[i], names_[i]);
    } else {
      slot = std::bit_cast<std::int64_t>(framework_.real(inputs[i], names_[i]));
    }
  }
}

// Sizes of a stage, then memory for the buffers whose sizes it completes.
void Executable::run_stage(Frame& frame, int stage) const {
  sizes_.run(stage, plan_.program.sizes, frame.records, frame.numbers, frame.regs);
  if (arena_.buffers.empty()) return;
  constexpr auto kMask = static_cast<std::int64_t>(exec::kAlignment) - 1;
  std::int64_t total = 0;
  for (std::size_t b = 0; b < arena_.buffers.size(); ++b) {
    const Placed& buffer = arena_.buffers[b];
    if (buffer.stage != stage) continue;
    std::int64_t offset = 0;
    for (const std::int32_t below : buffer.below) {
      offset = std::max(offset, frame.ends[static_cast<std::size_t>(below)]);
    }
    std::int64_t bytes = std::max<std::int64_t>(frame.regs[at(buffer.bytes)], 0);
    if (__builtin_add_overflow(bytes, kMask, &bytes) ||
        __builtin_add_overflow(offset, bytes & ~kMask, &frame.ends[b])) {
      throw MemoryError("intermediate buffers are too large");
    }
    frame.offsets[b] = offset;
    total = std::max(total, frame.ends[b]);
  }
  exec::Block& block = frame.blocks[static_cast<std::size_t>(stage)];
  if (static_cast<std::int64_t>(block.bytes) < total) {
    exec::release(std::exchange(block, {}));
    block = exec::acquire(static_cast<std::size_t>(total));
    if (block.data == nullptr) {
      throw MemoryError("no memory for " + std::to_string(total) +
                        " bytes of intermediate buffers");
    }
  } else {
    exec::poison(block);
  }
}

void Executable::allocate(Frame& frame, const HostStep& step) const {
  const Type& type = plan_.program.type(step.out);
  Record& record = frame.records[index(step.out)];
  if (step.place >= 0 && frame.apart[index(step.place)]) {
    record = frame.records[index(step.place)];
    record.root = -1;
    return;
  }
  record.rank = type.shape.rank;
  for (int d = 0; d < record.rank; ++d) record.size(d) = frame.regs[at(type.shape[d])];
  const std::int64_t elements = checked_elements(record, step.item_bytes);
  if (step.order >= 0) {
    set_strides_in_order(record, orders_[static_cast<std::size_t>(step.order)]);
  } else if (step.follows >= 0) {
    set_strides_like(record, frame.records[index(step.follows)]);
  } else {
    set_dense_strides(record);
  }
  if (step.owned) {
    record.root = step.out;
    make(frame, step.out, step.held, elements, record);
    if (step.held < 0) frame.output_bytes += elements * step.item_bytes;
    return;
  }
  const auto b = static_cast<std::size_t>(arena_.buffer_of[index(step.out)]);
  const Placed& buffer = arena_.buffers[b];
  if (elements * step.item_bytes > frame.regs[at(buffer.bytes)])
    throw InternalError("a buffer is larger than planned");
  record.root = -1;
  record.data = frame.blocks[static_cast<std::size_t>(buffer.stage)].data + frame.offsets[b];
}

void Executable::reshape(Frame& frame, const HostStep& step) {
  const Record& in = frame.records[index(step.in)];
  Record& out = frame.records[index(step.out)];
  out.rank = static_cast<int>(step.view.sizes.size());
  for (int d = 0; d < out.rank; ++d) {
    out.size(d) = frame.regs[at(step.view.sizes[static_cast<std::size_t>(d)])];
  }
  if (reshape_strides(in, out)) {
    out.data = in.data;
    out.root = in.root;
    return;
  }
  if (step.is_view) throw ShapeError("reshape: other number of elements");
  allocate(frame, step);
  if (out.elements() != in.elements()) throw ShapeError("reshape: other number of elements");
  Record dense = in;  // the new buffer, seen with the sizes of `in`
  set_dense_strides(dense);
  dense.data = out.data;
  dense.root = out.root;
  if (step.kernel < 0) {
    if (frame.tape != nullptr) frame.tape->launches->refused = true;
    copy(in, dense, step.item_bytes, framework_.threads());
  } else {
    run_kernel(frame, step.kernel, &in, &dense);
  }
}

// Memory of one operand of a kernel with these extents: of its value's record, or of `given`. Adds
// the bytes that the kernel touches there.
schedule::OperandView Executable::view_of(Frame& frame, const fuse::KernelGraph& graph,
                                          std::size_t operand,
                                          std::span<const std::int64_t> extents,
                                          const Record* given, double& bytes) const {
  const fuse::OperandRef& ref = graph.operands[operand];
  schedule::OperandView view;
  if (ref.role == bytecode::Role::kIota) {
    if (ref.start != shape::kNoSize) view.start = frame.regs[at(ref.start)];
    if (ref.iota_axis >= 0) {
      const std::int64_t step = ref.step == shape::kNoSize ? 1 : frame.regs[at(ref.step)];
      view.stride[static_cast<std::size_t>(ref.iota_axis)] = step;
    }
    return view;
  }
  if (ref.value < 0) {
    if (ref.size != shape::kNoSize)  // else scratch
      view.base = reinterpret_cast<std::byte*>(&frame.regs[at(ref.size)]);
    return view;
  }
  const Record& record = given != nullptr ? *given : frame.records[index(ref.value)];
  const std::int64_t item = bytecode::storage_bytes(ref.storage);
  view.base = record.data;
  double touched = static_cast<double>(item);
  for (std::size_t a = 0; a < extents.size(); ++a) {
    const int dim = ref.dim[a];
    if (dim < 0) continue;
    const std::int64_t size = record.size(dim);
    // A gather may read from more than its result spans (torch.gather).
    const bool larger = ref.role == bytecode::Role::kGather && size > extents[a];
    if (size == extents[a] || larger) {
      view.stride[a] = record.stride(dim) * item;
      touched *= static_cast<double>(size);
    } else if (size != 1 || ref.role == bytecode::Role::kOutput) {
      throw InternalError("kernel " + graph.name + ": operand " + std::to_string(operand) +
                          " has size " + std::to_string(size) + " along an axis of " +
                          std::to_string(extents[a]));
    }
  }
  if (ref.gather_dim >= 0) {
    view.gather_stride = record.stride(ref.gather_dim) * item;
    view.gather_size = record.size(ref.gather_dim);
  }
  bytes += touched;
  return view;
}

// Sizes of an iteration space multiply to more than can be counted where operands are expanded.
void Executable::check_points(std::span<const std::int64_t> axes, int kernel) const {
  std::int64_t points = 1;
  bool counted = true;
  for (const std::int64_t size : axes) counted &= !__builtin_mul_overflow(points, size, &points);
  if (counted || std::ranges::find(axes, 0) != axes.end()) return;
  std::string sizes;
  for (const std::int64_t size : axes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  throw ShapeError((kernel < 0 ? std::string("a matrix product")
                               : "kernel " + kernels_[index(kernel)].graph().name) +
                   ": over axes of " + sizes + ", which are 2^63 elements or more");
}

// Runs a kernel on the records of its operands' values, or on two that are given.
void Executable::run_kernel(Frame& frame, int kernel, const Record* first, const Record* second) {
  schedule::Kernel& k = kernels_[static_cast<std::size_t>(kernel)];
  const fuse::KernelGraph& graph = k.graph();
  const trace::Span span("launch", graph.name);
  const std::size_t n_axes = graph.axes.size();
  std::array<std::int64_t, fuse::kMaxAxes> extents{};
  for (std::size_t a = 0; a < n_axes; ++a) extents[a] = frame.regs[at(graph.axes[a])];
  const std::span<const std::int64_t> axes(extents.data(), n_axes);
  check_points(axes, kernel);
  double bytes = 0;
  bool large = frame.output_bytes >= stream_bytes();
  for (std::size_t o = 0; o < graph.operands.size(); ++o) {
    const Record* given = first == nullptr ? nullptr : o == 0 ? first : second;
    frame.operands[o] = view_of(frame, graph, o, axes, given, bytes);
    const fuse::OperandRef& ref = graph.operands[o];
    if (large && ref.role == bytecode::Role::kOutput && ref.value >= 0) {
      const Record& record = given != nullptr ? *given : frame.records[index(ref.value)];
      large = record.root >= 0 && !is_read_[index(record.root)];  // a result, and no more
    }
  }
  const int threads = bytes < kInlineBytes ? 1 : framework_.threads();
  const std::span<const schedule::OperandView> views(frame.operands.data(), graph.operands.size());
  schedule::Tape* const tape = begin_launch(frame, bytes > kUnlockBytes);
  if (large && tape != nullptr) tape->refused = true;  // results that leave the caches are few
  exec::Status status;
  if (bytes > kUnlockBytes) {
    framework_.unlock();
    status = k.run_alone(axes, views, threads, large, tape);
    framework_.lock();
  } else {
    status = k.run_alone(axes, views, threads, large, tape);
  }
  if (status != exec::Status::kOk) fail(status, kernel, first == nullptr ? &frame : nullptr);
}

void Executable::count_launches(std::int64_t n) const noexcept {
  launch_count.fetch_add(n, std::memory_order_relaxed);
}

// Counts a launch. What it is to be noted on. is_long: other Python threads may run meanwhile.
schedule::Tape* Executable::begin_launch(Frame& frame, bool is_long) const noexcept {
  count_launches(1);
  if (frame.tape == nullptr) return nullptr;
  ++frame.tape->n_launches;
  schedule::Tape& tape = *frame.tape->launches;
  tape.is_long = is_long;
  return &tape;
}

}  // namespace tilevm::host
