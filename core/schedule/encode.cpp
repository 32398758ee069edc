#include "schedule/encode.h"

#include <algorithm>

#include "bytecode/builder.h"

namespace tilevm::schedule {
namespace {

using bytecode::Cls;
using bytecode::Fold;
using bytecode::Op;
using bytecode::Reg;
using bytecode::Role;
using fuse::KernelNode;
using Kind = KernelNode::Kind;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Operations an element that are worth less than a round trip through scratch memory.
constexpr int kCheapAgain = 3;
constexpr int kWidening = 3;  // a load of bfloat16 or float16: with spreading and shifting

class Encoder {
 public:
  Encoder(const fuse::KernelGraph& graph, const LayoutClass& cls)
      : graph_(graph),
        cls_(cls),
        nodes_(graph.nodes),
        n_(static_cast<int>(graph.nodes.size())),
        builder_(cls.fold) {
    regs_.resize(at(n_));
    lines_.reserve(2 * at(n_));
    state_.resize(at(n_));
  }

  Encoded run() {
    for (std::size_t i = 0; i < graph_.operands.size(); ++i) {
      const auto& ref = graph_.operands[i];
      builder_.operand(ref.role, ref.storage, static_cast<Cls>(cls_.operand[i] & 3),
                       (cls_.operand[i] & 4) != 0);
    }
    if (cls_.fold == Fold::kRows) find_variances();
    find_live();
    if (graph_.reduced == 0) {
      for (int i = 0; i < n_; ++i) {
        if (live(i)) emit(i);
      }
    } else {
      place();
      int passes = 0;
      for (int i = 0; i < n_; ++i) {
        if (roots(i)) passes = std::max(passes, state_[at(i)].time + 1);
      }
      find_last(passes);
      for (int pass = 0; pass < passes; ++pass) {
        section(pass);
        sweep(pass);
      }
      section(passes);
    }
    return {builder_.finish(), std::move(lines_)};
  }

 private:
  struct State {
    int time = 0;      // of the body: pass; of a section: it stands before this pass
    int home = -1;     // pass in which a body value was computed first
    int emitted = -1;  // pass in which regs_ holds it
    int scratch = -1;  // operand that keeps it
    int needed = -1;   // pass that is being gathered
    int last = -1;     // pass that asks for it last, if everything is computed again
  };

  // Sums and means of (x - mean(x))^2 in one sweep: a second one over rows reads memory again.
  void find_variances() {
    const auto node = [&](int i, Kind kind, Op op) {
      if (i < 0 || nodes_[at(i)].kind != kind) return false;
      return static_cast<Op>(nodes_[at(i)].instr) == op;
    };
    for (auto& fold : nodes_) {
      if (fold.kind != Kind::kFold) continue;
      const auto op = static_cast<Op>(fold.instr);
      if (op != Op::sum_f32 && op != Op::mean_f32) continue;
      if (!node(fold.in[0], Kind::kMap, Op::mul_f32)) continue;
      const auto [a, b, none] = nodes_[at(fold.in[0])].in;
      if (a != b || !node(a, Kind::kMap, Op::sub_f32)) continue;
      const int x = nodes_[at(a)].in[0];
      const int mean = nodes_[at(a)].in[1];
      if (!node(mean, Kind::kFold, Op::mean_f32) || nodes_[at(mean)].in[0] != x) continue;
      fold.instr = static_cast<std::uint16_t>(op == Op::sum_f32 ? Op::deviations_f32
                                                                : Op::variance_f32);
      fold.in[0] = x;
    }
  }

  // Without what only variances, or stores that round, were made of.
  void find_live() {
    live_.resize(at(n_));
    for (int i = n_ - 1; i >= 0; --i) {
      if (nodes_[at(i)].kind == Kind::kStore) live_[at(i)] = true;
      for (const int in : nodes_[at(i)].in) {
        if (in >= 0 && live_[at(i)]) live_[at(in)] = true;
      }
    }
  }

  bool body(int i) const {
    const auto& node = nodes_[at(i)];
    return node.kind == Kind::kFold || (node.axes & graph_.reduced) != 0;
  }
  bool live(int i) const { return live_[at(i)]; }

  // What makes a pass run: folds and stores.
  bool roots(int i) const {
    const Kind kind = nodes_[at(i)].kind;
    if (!live(i)) return false;
    return kind == Kind::kFold || (kind == Kind::kStore && body(i));
  }

  // Earliest time of every node. A fold's result stands in the section after its pass.
  void place() {
    for (int i = 0; i < n_; ++i) {
      int time = 0;
      for (const int in : nodes_[at(i)].in) {
        if (in < 0) continue;
        const bool fold = nodes_[at(in)].kind == Kind::kFold;
        time = std::max(time, state_[at(in)].time + (fold ? 1 : 0));
      }
      state_[at(i)].time = time;
    }
  }

  // Whether computing body value i once more costs more than `room` operations; takes what it costs
  // from `room`. Looks no further than that: values share operands, and paths grow with their
  // powers.
  bool dear(int i, int& room) const {
    const auto& node = nodes_[at(i)];
    if (!body(i) || node.kind == Kind::kFold) return false;
    if (state_[at(i)].scratch < 0 && widens(node)) return (room -= kWidening) < 0;
    if (state_[at(i)].scratch >= 0 || node.kind == Kind::kLoad || node.kind == Kind::kIota ||
        node.kind == Kind::kConst) {
      return --room < 0;
    }
    if (node.kind == Kind::kGather) return true;
    room -= bytecode::info(static_cast<Op>(node.instr)).cost;
    return room < 0 ||
           std::ranges::any_of(node.in, [&](int in) { return in >= 0 && dear(in, room); });
  }

  bool dear_again(int i) const {
    int room = kCheapAgain;
    return dear(i, room);
  }

  // A load that converts from a narrower float.
  bool widens(const KernelNode& node) const {
    if (node.kind != Kind::kLoad) return false;
    const bytecode::Storage from = graph_.operands[at(node.operand)].storage;
    return (from == bytecode::Storage::kBF16 || from == bytecode::Storage::kF16) &&
           from != bytecode::info(node.type).storage;
  }

  // Whether later passes than this read a value itself, and not the one thing that is kept of it.
  bool read_later(int i, int pass) const {
    int kept = 0;
    for (int c = i + 1; c < n_; ++c) {
      if (std::ranges::find(nodes_[at(c)].in, i) == nodes_[at(c)].in.end()) continue;
      const auto& s = state_[at(c)];
      if (s.last <= pass) continue;
      if (s.time > pass || !dear_again(c) || ++kept > 1) return true;
    }
    return false;
  }

  // Whether a value of this pass is worth scratch memory for those that follow. Where a load
  // converts, what it becomes is an operand as it lies.
  bool worth_keeping(int i, int pass) const {
    if (state_[at(i)].last <= pass) return false;
    return (dear_again(i) || widens(nodes_[at(i)])) && read_later(i, pass);
  }

  // Body values that the pass asks for, in order_.
  void gather(int pass) {
    for (int i = 0; i < n_; ++i) {
      if (roots(i) && state_[at(i)].time == pass) need(i, pass);
    }
  }
  void need(int i, int pass) {
    auto& s = state_[at(i)];
    if (s.needed == pass || !body(i)) return;
    const auto& node = nodes_[at(i)];
    if (node.kind == Kind::kFold && s.time != pass) return;  // its result is at hand
    s.needed = pass;
    if (s.scratch < 0 || s.home == pass) {
      for (const int in : node.in) {
        if (in >= 0) need(in, pass);
      }
    }
    order_.push_back(i);
  }

  void section(int time) {
    for (int i = 0; i < n_; ++i) {
      if (live(i) && !body(i) && state_[at(i)].time == time) emit(i);
    }
  }

  void sweep(int pass) {
    builder_.begin_pass();
    line(-1);
    order_.clear();
    gather(pass);
    std::ranges::sort(order_);
    for (const int i : order_) {
      auto& s = state_[at(i)];
      const auto& node = nodes_[at(i)];
      if (s.scratch >= 0 && s.home < pass) {
        const auto mem = static_cast<std::uint16_t>(s.scratch);
        const auto storage = static_cast<int>(bytecode::info(node.type).storage);
        regs_[at(i)] = builder_.load(bytecode::kLoadOf[storage], mem);
        line(node.line);
        continue;
      }
      emit(i);
      const bool first = s.home < 0;
      if (first) s.home = pass;
      // Scratch is laid out for one block of rows at a time; other sweeps compute again.
      const bool can_keep =
          cls_.fold == Fold::kColumns && node.kind != Kind::kStore && node.kind != Kind::kFold;
      if (first && can_keep && worth_keeping(i, pass)) keep(i);
    }
    builder_.end_pass();
    line(-1);
  }

  void find_last(int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      order_.clear();
      gather(pass);
      for (const int i : order_) state_[at(i)].last = pass;
    }
    for (auto& s : state_) s.needed = -1;
  }

  void keep(int i) {
    const auto& node = nodes_[at(i)];
    const bytecode::Storage storage = bytecode::info(node.type).storage;
    const auto mem = builder_.operand(Role::kScratch, storage, Cls::kFull, true);
    state_[at(i)].scratch = mem;
    builder_.store(bytecode::kStoreOf[static_cast<int>(storage)], mem, regs_[at(i)]);
    line(node.line);
  }

  void line(std::int32_t l) { lines_.push_back(l); }

  void emit(int i) {
    const auto& node = nodes_[at(i)];
    const auto op = static_cast<Op>(node.instr);
    const auto mem = static_cast<std::uint16_t>(node.operand);
    const auto in = [&](int k) { return regs_[at(node.in[at(k)])]; };
    Reg result;
    switch (node.kind) {
      case Kind::kLoad:
        result = builder_.load(op, mem);
        break;
      case Kind::kGather:
        result = builder_.gather(op, mem, in(0));
        break;
      case Kind::kIota:
        result = builder_.iota(mem);
        break;
      case Kind::kConst:
        result = builder_.constant(op, node.imm);
        break;
      case Kind::kStore:
        builder_.store(op, mem, in(0));
        break;
      case Kind::kFold:
        result = node.in[1] < 0 ? builder_.fold(op, in(0)) : builder_.fold(op, in(0), in(1));
        break;
      case Kind::kMap: {
        Reg sources[3];
        std::size_t n = 0;
        while (n < 3 && node.in[n] >= 0) {
          sources[n] = in(static_cast<int>(n));
          ++n;
        }
        result = builder_.map(op, std::span<const Reg>(sources, n));
        break;
      }
    }
    regs_[at(i)] = result;
    line(node.line);
  }

  const fuse::KernelGraph& graph_;
  const LayoutClass& cls_;
  std::vector<KernelNode> nodes_;  // of the graph, with folds of this layout's own
  std::vector<bool> live_;         // by node: whether a store needs it
  int n_;
  bytecode::Builder builder_;
  std::vector<Reg> regs_;
  std::vector<State> state_;
  std::vector<std::int32_t> lines_;
  std::vector<int> order_;
};

}  // namespace

Encoded encode(const fuse::KernelGraph& graph, const LayoutClass& cls) {
  return Encoder(graph, cls).run();
}

}  // namespace tilevm::schedule
