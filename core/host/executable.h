// The host program: everything one call of a compiled graph does, as one native call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/gemm/ahead.h"
#include "fuse/plan.h"
#include "host/arena.h"
#include "host/framework.h"
#include "host/nest.h"
#include "host/profile.h"
#include "exec/memory.h"
#include "host/sizes.h"
#include "host/views.h"
#include "schedule/chain.h"
#include "schedule/kernel.h"

namespace tilevm::host {

struct Options {
  std::vector<std::string> input_names;                  // empty: "input 0", ...
  std::vector<std::pair<int, std::string>> int_symbols;  // input index, symbol it binds
  // Per output the dims from outermost to innermost in memory; nullopt (or too few): row-major.
  std::vector<std::optional<std::vector<std::int32_t>>> output_orders;
  bool follow_inputs = false;  // the other outputs lie as operands do that they are made of
  std::vector<bool> whole_outputs;  // whose elements must not share memory; too few: may
  // What owned the memory before lowering: outputs of different groups must not share memory with
  // each other or with inputs of other groups, even if lowering merged them. Empty: all as it is.
  std::vector<std::int32_t> input_groups, output_groups;
  std::vector<int> frozen;  // inputs whose elements do not change: see gemm/ahead.h
  // By output the input that it is written to, of the same sizes and dtype, or -1; too few: -1. No
  // two elements of such an input share memory; inputs may. What is handed out is the input.
  std::vector<int> targets;
  // Such an input shares memory with no other: calls where it does are refused, and do nothing.
  bool apart = false;
  // Which are complex outside, and pairs of reals along a last dim here.
  std::vector<int> complex_inputs, complex_outputs;
  // A part of another executable: numbers come as bits, and outputs are tensors, each in memory of
  // its own.
  bool nested = false;
  // By number of a call-out, what runs instead of it.
  std::vector<std::pair<std::int64_t, Nest>> nests;
  schedule::Settings settings;  // of its kernels
};

// Whether a launch may stop half-way for what its data are.
bool can_fail(const fuse::KernelGraph& graph);

// Groups of a program as it was written. Fills the last two fields of `options`.
void set_groups(const Program& program, Options& options);

// Where an argument of a call-out, or an output, comes from.
struct Source {
  enum class Kind : std::uint8_t {
    kTensor,
    kInput,     // a Python number, passed on
    kSize,      // a size as a Python int
    kConstant,  // a Python number made when compiling
    kNumber     // a number that a kernel computed
  };
  Kind kind = Kind::kTensor;
  ValueId value = -1;
  SizeId size = shape::kNoSize;
  Object constant = nullptr;
  std::int64_t bits = 0;                                // kConstant: float64, int64 or bool
  bytecode::Storage storage = bytecode::Storage::kI64;  // kNumber

  // Whether the object is made for each use, and is to be dropped after it.
  bool makes_object() const { return kind == Kind::kSize || kind == Kind::kNumber; }
};

// A step of the plan with everything static resolved.
struct HostStep {
  fuse::Step::Kind kind;
  ValueId in = -1, out = -1;
  std::int32_t kernel = -1;
  std::int32_t axis = -1;
  SizeId offset = shape::kNoSize;
  std::int32_t chain = -1;  // kChain
  std::int32_t node = -1;   // kLoop: of the program
  int item_bytes = 0;
  bool owned = false;        // kAlloc, kReshape: the framework owns the buffer
  std::int32_t held = -1;    // kAlloc: or else the frame, in this block of its
  bool is_view = false;      // kReshape: whatever the sizes are, no copy
  std::int32_t order = -1;   // kAlloc: index of orders, -1: row-major
  ValueId follows = -1;      // kAlloc: whose order in memory it has
  ValueId place = -1;        // kAlloc: the input that it takes the memory of, if that is apart
  View view;                 // kView, kReshape
  std::int64_t target = 0;   // kCall
  std::int32_t nest = -1;    // kCall: index of nests, what runs instead; -1: the framework calls
  std::vector<Source> args;  // kCall
  std::int32_t n_out = 0;    // kCall
  std::vector<std::string> names;    // kCall: of results, for errors
  int stage = -1;                    // kCall: the stage of sizes that its results complete
  std::vector<ValueId> release;      // values whose tensors nobody needs after this step
  std::vector<std::int32_t> let_go;  // nests whose results nobody needs after it
};

// Memory of an input that the caller has looked at, and found to be of the program's type and rank.
struct Seen {
  std::byte* data;
  const std::int64_t* sizes;    // null: not looked at
  const std::int64_t* strides;  // elements
};

// One call of an executable. Inputs are borrowed; outputs are new references.
struct Call {
  std::span<const Object> inputs;
  std::span<Object> outputs;
  const Seen* seen = nullptr;  // by input, or null: none was looked at
  // Of a nested executable: its inputs, instead of `inputs`, and where results lie, by output.
  const Passed* passed = nullptr;
  Record* results = nullptr;
  bool began = false;  // inputs were accepted: something may have been done
};

// References of a program, given back whatever becomes of its executable.
class Constants {
 public:
  explicit Constants(Framework& framework) : framework_(framework) {}
  ~Constants() {
    for (const Object constant : objects_) {
      if (constant != nullptr) framework_.drop(constant);
    }
  }
  Constants(const Constants&) = delete;
  Constants& operator=(const Constants&) = delete;
  template <class Make>
  Object keep(Make make) {
    objects_.push_back(nullptr);
    return objects_.back() = make();
  }

 private:
  Framework& framework_;
  std::vector<Object> objects_;
};

class Executable {
 public:
  // Throws ShapeError if a size cannot be known from the inputs. Borrows `framework`.
  Executable(fuse::Plan plan, const Options& options, Framework& framework);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Runs once. Fills the outputs, or throws and fills none.
  // Any number of threads may be in here at the same time, and call-outs may call it again.
  void run(Call& call) { run(call, nullptr); }
  void run(std::span<const Object> inputs, std::span<Object> outputs) {
    Call call{inputs, outputs};
    run(call);
  }

  std::size_t n_inputs() const { return plan_.program.inputs.size(); }
  std::size_t n_outputs() const { return plan_.program.outputs.size(); }
  const fuse::Plan& plan() const { return plan_; }  // kernels are in kernels()
  const std::vector<schedule::Kernel>& kernels() const { return kernels_; }
  const std::vector<HostStep>& steps() const { return steps_; }
  const std::vector<Nest>& nests() const { return nests_; }
  Framework& framework() const { return framework_; }
  // Whether an input is to be passed as a tensor, since a call-out takes it.
  bool needs_tensor(std::size_t input) const {
    const std::size_t value = index(plan_.program.inputs[input]);
    return taken_[value] || frozen_[value];
  }
  const ArenaPlan& arena() const { return arena_; }
  // Whether calls note what each of their steps takes; off at first, and then it costs a branch.
  void set_profiled(bool on) noexcept;
  // What the last such call took, since that was switched on.
  std::optional<Profile> profile();
  // How the products of a chain were computed when it last ran, as "[7, 32] x [32, 64] by dots";
  // empty before.
  std::vector<std::string> ways(int chain);

 private:
  struct Frame;
  struct Tape;
  class Running;
  class Kept;

  void compile_inputs(const Options& options);
  void order_steps();
  void compile_steps();
  void compile_nests(const Options& options);
  void compile_held(const std::vector<int>& last, const std::vector<bool>& escapes);
  void hold(const std::vector<bool>& outputs);
  void compile_memory();
  void compile_targets(const Options& options);
  void compile_complex(const Options& options);
  void compile_complex_results();
  std::vector<int> writers() const;
  bool may_replace(const HostStep& step, ValueId in, ValueId out) const;
  void scatter_in_place();
  void find_dense_reshapes();
  bool repeats_indices(std::size_t step) const;
  void place_targets(const std::vector<int>& last, const std::vector<bool>& escapes);
  void compile_orders(const Options& options);
  struct Uses {  // by value
    std::vector<int> readers;
    std::vector<const HostStep*> made_by;
  };
  Uses count_uses() const;
  void follow_inputs();
  void order_for_reshapes(std::vector<std::int32_t>& order_of, const Uses& uses);
  void separate_outputs(const Options& options);
  bool is_separate(std::size_t output, const Record& record) const;
  void compile_sizes();
  void check_stages() const;
  void compile_tapes(const Options& options);
  bool multiplies_float32() const;
  Source source_of(ValueId value);
  std::string input_name(const Options& options, std::size_t i) const;
  std::size_t index(ValueId value) const { return static_cast<std::size_t>(value); }
  // Calls visit(value, is_written) for what the kernels, products and loops of a step read and
  // write.
  template <class AnyStep, class Visit>
  void visit_operands(const AnyStep& step, Visit&& visit) const {
    const auto kernel = [&](int k) {
      for (const fuse::OperandRef& operand :
           kernels_[static_cast<std::size_t>(k)].graph().operands) {
        if (operand.value >= 0) visit(operand.value, operand.role == bytecode::Role::kOutput);
      }
    };
    if (step.kind == fuse::Step::Kind::kKernel) kernel(step.kernel);
    if (step.kind == fuse::Step::Kind::kLoop) {
      const Node& node = plan_.program.nodes[static_cast<std::size_t>(step.node)];
      for (const ValueId in : node.inputs) visit(in, false);
      visit(node.out, true);
    }
    if (step.kind != fuse::Step::Kind::kChain) return;
    const fuse::Chain& chain = plan_.chains[static_cast<std::size_t>(step.chain)];
    const ValueId ends = fuse::ends_of_groups(plan_.program, chain);
    if (ends >= 0) visit(ends, false);
    for (const auto& stage : chain.stages) {
      if (stage.kernel >= 0) {
        kernel(stage.kernel);
        continue;
      }
      visit(stage.a, false);
      visit(stage.b, false);
      visit(stage.out, true);
    }
  }
  // Calls visit(kernel) for the kernels of a step.
  template <class AnyStep, class Visit>
  void visit_kernels(const AnyStep& step, Visit&& visit) const {
    if (step.kind == fuse::Step::Kind::kKernel) visit(step.kernel);
    if (step.kind != fuse::Step::Kind::kChain) return;
    for (const auto& stage : plan_.chains[static_cast<std::size_t>(step.chain)].stages) {
      if (stage.kernel >= 0) visit(stage.kernel);
    }
  }

  std::unique_ptr<Frame> take_frame();
  void give_frame(std::unique_ptr<Frame> frame) noexcept;

  void run(Call& call, Kept* kept);
  template <bool profiled>
  void run(Call& call, Kept* kept, Profile* profile);
  template <bool profiled>
  void run_steps(Frame& frame, Profile* profile);
  void read_inputs(Frame& frame, const Call& call) const;
  void find_apart(Frame& frame) const;
  void check_apart(const Frame& frame) const;
  void write_targets(Frame& frame, std::span<const Object> inputs, std::span<Object> outputs) const;
  void run_stage(Frame& frame, int stage) const;
  void allocate(Frame& frame, const HostStep& step) const;
  void reshape(Frame& frame, const HostStep& step);
  void run_kernel(Frame& frame, int kernel, const Record* first, const Record* second);
  schedule::OperandView view_of(Frame& frame, const fuse::KernelGraph& graph, std::size_t operand,
                                std::span<const std::int64_t> extents, const Record* given,
                                double& bytes) const;
  schedule::ChainLaunch new_launch(const fuse::Chain& chain);
  static void fill_windows(const Record& image, const Attr* parameters, const std::int64_t* taps,
                           exec::gemm::Windows& w);
  static void fill_gradient(const Record& y, const Record& image, const Node& node,
                            schedule::Stage& stage);
  static void fill_convolution(const Record& a, const Record& b, const Record& out,
                               const Node& node, schedule::Stage& stage);
  void fill_product(Frame& frame, const fuse::Chain& chain, std::size_t s,
                    schedule::ChainLaunch& launch) const;
  void fill_kernel(Frame& frame, const fuse::Chain& chain, std::size_t s,
                   schedule::ChainLaunch& launch) const;
  void pack_ahead(Frame& frame, const fuse::Chain& chain, schedule::ChainLaunch& launch,
                  const exec::gemm::Tiles& tiles, int threads);
  std::shared_ptr<const float> packed(Frame& frame, ValueId value, const exec::gemm::Factor& factor,
                                      const exec::gemm::Tiles& tiles, int threads);
  void run_chain(Frame& frame, int chain);
  void launch_chain(Frame& frame, const fuse::Chain& chain, schedule::ChainLaunch& launch,
                    int kernel);
  void launch_groups(Frame& frame, const fuse::Chain& chain, schedule::ChainLaunch& launch,
                     int kernel);
  void run_loop(Frame& frame, int node);
  void call_out(Frame& frame, const HostStep& step) const;
  bool is_argument(const HostStep& step, std::size_t arg) const;
  void run_nest(Frame& frame, const HostStep& step) const;
  Passed passed(Frame& frame, const Source& source, bool as_tensor) const;
  void run_part(Frame& frame, const HostStep& step, const Part& part, const Record* carried,
                const Object* tensors, std::span<Object> results, Record* records,
                Kept& kept) const;
  void branch(Frame& frame, const HostStep& step, const Nest& nest) const;
  void repeat(Frame& frame, const HostStep& step, const Nest& nest) const;
  void read_item(Frame& frame, const HostStep& step) const;
  Tape* tape_of(Frame& frame) const;
  void begin_tape(Frame& frame, Tape* tape) const;
  schedule::Tape* begin_launch(Frame& frame, bool is_long) const noexcept;
  std::byte* start_of(const Frame& frame, ValueId base) const;
  std::optional<ValueId> base_of(const Frame& frame, const Record& record,
                                 const std::byte* address) const;
  void note_step(Frame& frame, const HostStep& step, std::size_t first) const;
  void finish_tape(Frame& frame) const;
  bool replay(Frame& frame, const Tape& tape);
  Object tensor(Frame& frame, ValueId value) const;
  Object number(const Frame& frame, const Source& source) const;
  void make(Frame& frame, ValueId value, std::int32_t held, std::int64_t elements,
            Record& record) const;
  Object result(Frame& frame, std::size_t output) const;
  Object copied(const Record& record, DType dtype, std::span<const std::int32_t> order,
                bool complex = false, Record* made = nullptr) const;
  Object fresh_copy(Frame& frame, std::size_t output, Record* made = nullptr) const;
  // The order of dims in memory that an output asks for; empty: as they are counted.
  std::span<const std::int32_t> order_of(std::size_t output) const;
  void count_launches(std::int64_t n) const noexcept;
  // No frame: its records are not what the kernel read.
  [[noreturn]] void fail(exec::Status status, int kernel, Frame* frame = nullptr,
                         bool replayed = false) const;
  [[noreturn]] void fail_index(const fuse::KernelGraph& graph, Frame* frame, bool replayed) const;
  bool is_known(ValueId value, bool replayed) const;
  std::optional<std::int64_t> bad_index(const fuse::KernelGraph& graph,
                                        const fuse::KernelNode& gather, std::int64_t size,
                                        Frame& frame, bool replayed) const;
  void check_points(std::span<const std::int64_t> axes, int kernel) const;  // ShapeError
  [[noreturn]] void fail_loop(exec::Status status, int node, const Frame& frame,
                              bool replayed = false) const;

  fuse::Plan plan_;
  Framework& framework_;
  std::vector<schedule::Kernel> kernels_;
  std::vector<HostStep> steps_;
  std::vector<Nest> nests_;
  bool nested_ = false;
  const Executable* holder_ = nullptr;  // whose part it is
  std::vector<bool> held_;              // by output: left in memory of the frame
  std::int32_t n_held_ = 0;
  std::vector<bool> taken_;  // by root: a call-out takes it
  SizeProgram sizes_;
  std::vector<Lifetime> lifetimes_;  // only while compiling; then arena_ has them
  ArenaPlan arena_;
  std::vector<std::string> names_;  // of inputs
  std::vector<std::vector<std::int32_t>> orders_;
  std::vector<Source> outputs_;
  std::vector<ValueId> targets_;                   // by output: the input it is written to, or -1
  bool places_ = false;                            // some step has a `place`
  bool writes_ = false;                            // some output has a target
  bool refuses_shared_ = false;                    // Options::apart
  // By output: hand out a copy, always or where it lies in an input's memory.
  enum class Separate : std::uint8_t { kNo, kFromInputs, kAlways };
  std::vector<Separate> separate_;
  std::vector<bool> is_input_;                     // by value
  std::vector<bool> whole_;                        // by output: a copy if elements repeat
  std::vector<bool> ordered_;                      // by output: and if dims are in another order
  std::vector<std::int32_t> separate_order_;       // than this one, -1: row-major
  std::vector<bool> is_panel_;                     // by value: never whole in memory
  std::vector<bool> is_read_;                      // by root: some step reads it
  std::vector<std::vector<ValueId>> roots_;        // by value: whose memory it may lie in
  std::vector<bytecode::Storage> number_storage_;  // by value: how kernels store weak values
  std::vector<ValueId> holders_;                   // values that may hold a tensor of the frame's
  Constants constants_;
  std::optional<schedule::Tier> tier_;  // what its kernels were asked for
  std::vector<int> complex_of_;         // by value: the complex input whose parts it is, or -1
  std::vector<bool> complex_;           // by output: complex outside
  std::vector<bool> made_complex_;      // by value: its tensor is complex, as all take it
  std::vector<bool> frozen_;            // by value: an input that does not change
  bool tapes_ = false;                  // calls may be noted
  std::vector<ValueId> key_ints_;       // inputs that are sizes
  bool asks_pieces_ = false;            // products of float32 may be less precise than it
  std::size_t key_words_ = 0;           // what tells calls apart for their tapes
  std::size_t most_operands_ = 0;
  std::size_t most_args_ = 0;

  // Of a right factor: what it was packed to, for each tensor that it was, and what
  // ahead_changes() said when there was no room.
  struct Packings {
    std::vector<exec::gemm::SharedAhead> found;
    std::uint64_t full = 0;
  };
  std::vector<Packings> packings_;  // by value; empty if nothing is frozen. Guarded by mutex_

  std::atomic<bool> profiled_{false};
  std::unique_ptr<Profile> profile_;  // null: never switched on. Guarded by mutex_
  std::atomic<Frame*> spare_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Frame>> frames_;
};

// What compiling took.
struct Phases {
  double lower_us = 0, fuse_us = 0, host_us = 0;
};

// Lowers and fuses a program, and makes its executable. Throws as that does.
std::unique_ptr<Executable> build(Program program, const Options& options, Framework& framework,
                                  Phases* phases = nullptr);

// Kernels run since the process began or the counters were reset.
std::int64_t launches() noexcept;
void reset_launches() noexcept;
// Calls among them whose launches were run again as an earlier call's were noted.
std::int64_t repeated_calls() noexcept;

}  // namespace tilevm::host
