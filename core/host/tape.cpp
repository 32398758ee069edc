#include "host/tape.h"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "bytecode/bytecode.h"
#include "exec/record.h"
#include "host/frame.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using Kind = fuse::Step::Kind;

}  // namespace

// Whether calls may be noted at all: nothing is called out, and sizes are those of inputs.
void Executable::compile_tapes(const Options& options) {
  tapes_ = sizes_.stages() == 1 &&
           std::ranges::none_of(steps_, [](const auto& step) { return step.kind == Kind::kCall; });
  for (const auto& [input, symbol] : options.int_symbols)
    key_ints_.push_back(plan_.program.inputs[static_cast<std::size_t>(input)]);
  key_words_ = 3 + key_ints_.size();
  for (const ValueId value : plan_.program.inputs) {
    const Type& type = plan_.program.type(value);
    if (type.weak) continue;
    key_words_ += 2 * static_cast<std::size_t>(type.shape.rank);
    key_words_ += (places_ ? 1U : 0U) + (frozen_[index(value)] ? 1U : 0U);
  }
}

// What a call is like, and its tape; null if this call is not to be noted. Of calls that nothing
// was like only a hash is kept, so that new sizes cost little and take no tape's place.
Executable::Tape* Executable::tape_of(Frame& frame) const {
  if (!tapes_ || trace::taking() || exec::recording()) return nullptr;
  const Program& program = plan_.program;
  std::vector<std::int64_t>& key = frame.key;
  key.resize(key_words_);
  std::int64_t* word = key.data();
  const schedule::Tier tier = tier_ ? *tier_ : schedule::tier();
  *word++ =
      static_cast<std::int64_t>(tier.target) * 4 + (tier.interpret ? 2 : 0) + (tier.units ? 1 : 0);
  *word++ = frame.pieces;
  *word++ = framework_.threads();
  for (const ValueId value : key_ints_) *word++ = frame.numbers[index(value)];
  // Weights come first among inputs, and seldom differ between calls.
  for (const ValueId value : program.inputs | std::views::reverse) {
    if (program.type(value).weak) continue;
    const Record& record = frame.records[index(value)];
    const int rank = program.type(value).shape.rank;
    for (int d = 0; d < rank; ++d) word[d] = record.sizes[d], word[rank + d] = record.strides[d];
    word += 2 * rank;
    if (places_) *word++ = frame.apart[index(value)] ? 1 : 0;
    if (frozen_[index(value)]) *word++ = reinterpret_cast<std::intptr_t>(record.data);
  }
  auto& tapes = frame.tapes;
  const auto found = std::ranges::find_if(tapes, [&](const auto& tape) {
    return tape->key.size() == key.size() &&
           std::memcmp(tape->key.data(), key.data(), key.size() * sizeof(std::int64_t)) == 0;
  });
  if (found != tapes.end()) {
    std::rotate(tapes.begin(), found, found + 1);
    return tapes.front().get();
  }
  const std::uint64_t hash = bytecode::hash(std::as_bytes(std::span(key)));
  if (std::ranges::find(frame.seen, hash) == frame.seen.end()) {
    std::shift_right(frame.seen.begin(), frame.seen.end(), 1);
    frame.seen.front() = hash;
    return nullptr;
  }
  auto empty = std::make_unique<Tape>();
  empty->key = key;
  if (tapes.size() < kMostTapes) {
    tapes.push_back(std::move(empty));
  } else {
    tapes.back() = std::move(empty);
  }
  std::rotate(tapes.begin(), tapes.end() - 1, tapes.end());
  return tapes.front().get();
}

// Notes this call on `tape`, unless that is null or is not for it.
void Executable::begin_tape(Frame& frame, Tape* tape) const {
  frame.tape = nullptr;
  if (tape == nullptr || tape->state == Tape::State::kNever) return;
  auto fresh = std::make_unique<Tape>();
  fresh->launches = std::make_unique<schedule::Tape>();
  fresh->key = std::move(tape->key);
  frame.tapes.front() = std::move(fresh);
  frame.tape = frame.tapes.front().get();
}

// Whose memory an address of a value of this call lies in, or Tape::kArena; -1 for memory that
// stays where it is, nullopt if that is not known.
std::optional<ValueId> Executable::base_of(const Frame& frame, const Record& record,
                                           const std::byte* address) const {
  if (record.root >= 0) return record.root;
  const auto in = [&](const void* first, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(first);
    return address >= begin && address <= begin + bytes;
  };
  const exec::Block& arena = frame.blocks[0];
  if (address == nullptr) return -1;
  if (in(arena.data, arena.bytes)) return Tape::kArena;
  if (in(frame.numbers.data(), frame.numbers.size() * sizeof(std::int64_t))) return -1;
  // A result that is made in the memory of an input.
  for (const Frame::Range& range : frame.ranges) {
    if (frame.apart[index(range.input)] && address >= range.first && address < range.end)
      return range.input;
  }
  return std::nullopt;
}

std::byte* Executable::start_of(const Frame& frame, ValueId base) const {
  return base == Tape::kArena ? frame.blocks[0].data : frame.records[index(base)].data;
}

// Notes of the actions from `first` on, which are those of a step, what their addresses move with.
void Executable::note_step(Frame& frame, const HostStep& step, std::size_t first) const {
  Tape& tape = *frame.tape;
  if (step.owned && frame.records[index(step.out)].root == step.out) {
    Record& record = frame.records[index(step.out)];
    tape.made.push_back({step.out, record.elements(), record, step.held});
  }
  const auto note = [&](std::size_t action, int operand, const Record& record,
                        const std::byte* address) {
    const std::optional<ValueId> base = base_of(frame, record, address);
    if (!base) tape.launches->refused = true;
    if (!base || *base == -1) return;
    tape.addresses.push_back({{action, operand}, *base, address - start_of(frame, *base)});
  };
  for (std::size_t a = first; a < tape.launches->actions.size(); ++a) {
    const schedule::Tape::Action& action = tape.launches->actions[a];
    const fuse::Chain::Stage* stage = nullptr;
    const schedule::Stage* stage_run = nullptr;
    if (step.kind == Kind::kChain) {
      const auto chain = static_cast<std::size_t>(step.chain);
      stage = &plan_.chains[chain].stages[action.stage];
      stage_run = &frame.chains[chain].stages[action.stage];
    }
    if (const auto* loop = std::get_if<exec::loops::Loop>(&action.what)) {
      const Node& node = plan_.program.nodes[static_cast<std::size_t>(step.node)];
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        note(a, static_cast<int>(i), frame.records[index(node.inputs[i])], loop->in[i].data);
      note(a, 3, frame.records[index(node.out)], loop->out.data);
      tape.kernels.push_back(-2 - step.node);
      continue;
    }
    const int kernel = stage != nullptr ? stage->kernel : step.kernel;
    tape.kernels.push_back(kernel);
    if (const auto* launched = std::get_if<schedule::Launched>(&action.what)) {
      const fuse::KernelGraph& graph = kernels_[static_cast<std::size_t>(kernel)].graph();
      for (std::size_t o = 0; o < graph.operands.size(); ++o) {
        const ValueId value = graph.operands[o].value;
        const std::byte* address = tape.launches->bindings[launched->first + o].base;
        if (value < 0 || address == nullptr) continue;
        if (stage_run != nullptr && stage_run->panel[o] >= 0) continue;
        // The kernel of a reshape copies from `in` to `out`, whatever values it was made for.
        const ValueId of = step.kind != Kind::kReshape ? value : o == 0 ? step.in : step.out;
        note(a, static_cast<int>(o), frame.records[index(of)], address);
      }
    } else if (const auto* product = std::get_if<schedule::Multiplied>(&action.what)) {
      if (stage_run->a_panel < 0) note(a, 0, frame.records[index(stage->a)], product->a.data);
      note(a, 1, frame.records[index(stage->b)], product->b.data);
      if (stage_run->out_panel < 0) note(a, 2, frame.records[index(stage->out)], product->out);
    } else {
      note(a, 1, frame.records[index(stage->b)], std::get<schedule::Packed>(action.what).b.data);
    }
  }
}

// After the last step: the tape is complete, or there is none for such calls.
void Executable::finish_tape(Frame& frame) const {
  Tape& tape = *frame.tape;
  schedule::Tape& launches = *tape.launches;
  bool ready = !launches.refused;
  const auto keep = [&](ValueId value) {
    const Record& record = frame.records[index(value)];
    const std::optional<ValueId> base = base_of(frame, record, record.data);
    if (!base && record.data != nullptr) ready = false;
    if (!ready) return;
    const ValueId from = base.value_or(-1);
    tape.kept.push_back(
        {value, record, from, from == -1 ? 0 : record.data - start_of(frame, from)});
  };
  for (const Source& output : outputs_) {
    if (output.kind == Source::Kind::kTensor || output.kind == Source::Kind::kNumber)
      if (frame.records[index(output.value)].root != output.value) keep(output.value);
  }
  if (!ready) {
    auto never = std::make_unique<Tape>();
    never->key = std::move(tape.key);
    never->state = Tape::State::kNever;
    frame.tapes.front() = std::move(never);
    return;
  }
  for (Tape::Address& address : tape.addresses) {
    auto& what = launches.actions[address.where.action].what;
    if (auto* launched = std::get_if<schedule::Launched>(&what)) {
      const auto operand = static_cast<std::size_t>(address.where.operand);
      address.slot = &launches.bindings[launched->first + operand].base;
    } else if (auto* loop = std::get_if<exec::loops::Loop>(&what)) {
      const auto in = static_cast<std::size_t>(address.where.operand);
      address.slot = in < loop->in.size() ? &loop->in[in].data : &loop->out.data;
    } else if (auto* product = std::get_if<schedule::Multiplied>(&what)) {
      address.slot = address.where.operand == 0   ? static_cast<void*>(&product->a.data)
                     : address.where.operand == 1 ? static_cast<void*>(&product->b.data)
                                                  : static_cast<void*>(&product->out);
    } else {
      address.slot = &std::get<schedule::Packed>(what).b.data;
    }
  }
  tape.regs = frame.regs;
  tape.arena_bytes = frame.blocks[0].bytes;
  tape.state = Tape::State::kReady;
}

// Runs a tape on the inputs of this call. False: it does not hold any more, and nothing was done.
bool Executable::replay(Frame& frame, const Tape& tape) {
  exec::Block& arena = frame.blocks[0];
  if (arena.bytes < tape.arena_bytes) {
    exec::release(std::exchange(arena, {}));
    arena = exec::acquire(tape.arena_bytes);
    if (arena.data == nullptr) return false;
  }
  for (const std::weak_ptr<const float>& factor : tape.packed) {
    frame.packed.push_back(factor.lock());
    if (frame.packed.back() == nullptr) {
      frame.packed.clear();
      return false;
    }
  }
  exec::poison(arena);
  std::ranges::copy(tape.regs, frame.regs.begin());
  for (const Tape::Made& made : tape.made) {
    Record& record = frame.records[index(made.value)];
    record = made.record;
    make(frame, made.value, made.held, made.elements, record);
  }
  for (const Tape::Kept& kept : tape.kept) {
    Record& record = frame.records[index(kept.value)];
    record = kept.record;
    if (kept.base != -1) record.data = start_of(frame, kept.base) + kept.offset;
  }
  for (const Tape::Address& address : tape.addresses) {
    const std::byte* data = start_of(frame, address.base) + address.offset;
    std::memcpy(address.slot, &data, sizeof(data));
  }
  std::size_t failed = 0;
  const auto let = [](void* framework, bool run) noexcept {
    auto& of = *static_cast<Framework*>(framework);
    run ? of.unlock() : of.lock();
  };
  const exec::Status status = tape.launches->run(failed, {let, &framework_});
  frame.packed.clear();
  count_launches(tape.n_launches);
  if (status == exec::Status::kOk) return true;
  const int kernel = tape.kernels[failed];
  kernel < -1 ? fail_loop(status, -2 - kernel, frame, true) : fail(status, kernel, &frame, true);
  return true;
}

}  // namespace tilevm::host
