// What a call says whose launch stopped for what its data are: operator, place, index and sizes.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <set>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "isa.gen.h"

namespace tilevm::host {
namespace {

using fuse::KernelGraph;
using fuse::KernelNode;
using Instr = bytecode::Op;

Instr instr(const KernelNode& node) { return static_cast<Instr>(node.instr); }

bool is_map(const KernelNode& node, std::initializer_list<Instr> of) {
  return node.kind == KernelNode::Kind::kMap && std::ranges::count(of, instr(node)) > 0;
}

const KernelNode& in(const KernelGraph& graph, const KernelNode& node, std::size_t i) {
  return graph.nodes[static_cast<std::size_t>(node.in[i])];
}

// Whether an operator may find a divisor that is 0.
bool divides(const KernelNode& node) {
  return is_map(node, {Instr::floor_div_i32, Instr::floor_div_i64, Instr::remainder_i32,
                       Instr::remainder_i64, Instr::fmod_i32, Instr::fmod_i64});
}

// What a gather's index is loaded from. With `added` to those below `limit`, if there are such.
struct Index {
  int operand;
  std::int32_t limit = -1, added = -1;  // nodes
};

// Nothing, if the kernel computes it in any other way.
std::optional<Index> loaded_index(const KernelGraph& graph, const KernelNode& gather) {
  Index result{-1};
  const KernelNode* node = &in(graph, gather, 0);
  if (is_map(*node, {Instr::select_i32, Instr::select_i64})) {
    const KernelNode& below = in(graph, *node, 0);
    const KernelNode& sum = in(graph, *node, 1);
    const std::int32_t index = node->in[2];
    if (!is_map(below, {Instr::lt_i32, Instr::lt_i64}) || below.in[0] != index ||
        !is_map(sum, {Instr::add_i32, Instr::add_i64}) || sum.in[0] != index)
      return std::nullopt;
    result.limit = below.in[1];
    result.added = sum.in[1];
    node = &graph.nodes[static_cast<std::size_t>(index)];
  }
  if (is_map(*node, {Instr::cast_i32_i64})) node = &in(graph, *node, 0);
  if (node->kind != KernelNode::Kind::kLoad) return std::nullopt;
  result.operand = node->operand;
  return result;
}

std::optional<std::int64_t> element(const std::byte* at, bytecode::Storage storage) {
  const auto as = [&]<class T>(T value) -> std::int64_t {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (storage) {
    case bytecode::Storage::kI64:
      return as(std::int64_t{});
    case bytecode::Storage::kI32:
      return as(std::int32_t{});
    case bytecode::Storage::kI16:
      return as(std::int16_t{});
    case bytecode::Storage::kI8:
      return as(std::int8_t{});
    case bytecode::Storage::kU8:
      return as(std::uint8_t{});
    default:
      return std::nullopt;
  }
}

// The first element outside of low .. high - 1, of `rank` axes with these strides in bytes.
std::optional<std::int64_t> outside(const std::byte* data, bytecode::Storage storage, int rank,
                                    const std::int64_t* sizes, const std::int64_t* strides,
                                    std::int64_t low, std::int64_t high) {
  if (rank == 0) {
    const std::optional<std::int64_t> found = element(data, storage);
    return found && (*found < low || *found >= high) ? found : std::nullopt;
  }
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    const auto found =
        outside(data + i * strides[0], storage, rank - 1, sizes + 1, strides + 1, low, high);
    if (found) return found;
    if (strides[0] == 0) break;
  }
  return std::nullopt;
}

std::string out_of_bounds(std::string_view op, std::optional<std::int64_t> index, int axis,
                          std::int64_t size) {
  return std::string(op) + (index ? ": index " + std::to_string(*index) : ": an index") +
         " is out of bounds for axis " + std::to_string(axis) + " with size " +
         std::to_string(size);
}

std::string joined(const std::set<std::string>& all) {
  std::string result;
  for (const std::string& each : all) result += (result.empty() ? "" : " or ") + each;
  return result;
}

// The operators of a kernel, by name, for which `is` holds.
template <class Is>
std::string operators(const Program& program, const KernelGraph& graph, const Is& is) {
  std::set<std::string> names;
  for (const std::int32_t n : graph.from) {
    const Op op = program.nodes[static_cast<std::size_t>(n)].op;
    if (is(op)) names.emplace(info(op).name);
  }
  return joined(names);
}

}  // namespace

bool can_fail(const KernelGraph& graph) {
  return std::ranges::any_of(graph.nodes, [](const KernelNode& node) {
    return node.kind == KernelNode::Kind::kGather || divides(node);
  });
}

// Its record is of this call: replayed calls make no others.
bool Executable::is_known(ValueId value, bool replayed) const {
  return !replayed || std::ranges::count(plan_.program.inputs, value) > 0;
}

// The first element of what a gather's index is loaded from that no row has; nothing, if that is
// not known.
std::optional<std::int64_t> Executable::bad_index(const KernelGraph& graph,
                                                  const KernelNode& gather, std::int64_t size,
                                                  Frame& frame, bool replayed) const {
  std::array<std::int64_t, fuse::kMaxAxes> extents{};
  const std::span axes(extents.data(), graph.axes.size());
  for (std::size_t a = 0; a < axes.size(); ++a)
    axes[a] = frame.regs[static_cast<std::size_t>(graph.axes[a])];
  const auto view = [&](int operand) -> std::optional<schedule::OperandView> {
    const ValueId value = graph.operands[static_cast<std::size_t>(operand)].value;
    if (value >= 0 && !is_known(value, replayed)) return std::nullopt;
    double bytes = 0;
    return view_of(frame, graph, static_cast<std::size_t>(operand), axes, nullptr, bytes);
  };
  const auto storage = [&](int operand) {
    return graph.operands[static_cast<std::size_t>(operand)].storage;
  };
  const auto is_number = [&](std::int32_t n, std::int64_t number) {
    const KernelNode& node = graph.nodes[static_cast<std::size_t>(n)];
    if (node.kind == KernelNode::Kind::kConst) return static_cast<std::int64_t>(node.imm) == number;
    if (node.kind != KernelNode::Kind::kLoad || node.axes != 0) return false;
    const auto scalar = view(node.operand);
    return scalar && element(scalar->base, storage(node.operand)) == number;
  };
  const std::optional<Index> from = loaded_index(graph, gather);
  if (!from) return std::nullopt;
  const bool wraps = from->limit >= 0;
  if (wraps && !(is_number(from->limit, 0) && is_number(from->added, size))) return std::nullopt;
  const auto given = view(from->operand);
  if (!given) return std::nullopt;
  return outside(given->base, storage(from->operand), static_cast<int>(axes.size()), axes.data(),
                 given->stride.data(), wraps ? -size : 0, size);
}

void Executable::fail_index(const KernelGraph& graph, Frame* frame, bool replayed) const {
  const std::string op =
      operators(plan_.program, graph, [](Op o) { return info(o).cls == OpClass::kGather; });
  std::set<std::string> all;
  for (const KernelNode& node : graph.nodes) {
    if (node.kind != KernelNode::Kind::kGather) continue;
    std::string where = plan_.program.line_of(node.line);
    if (!where.empty()) where += ": ";
    const fuse::OperandRef& source = graph.operands[static_cast<std::size_t>(node.operand)];
    if (frame == nullptr || !is_known(source.value, replayed)) {
      all.insert(where + op + ": an index is out of bounds");
      continue;
    }
    const std::int64_t size = frame->records[index(source.value)].size(source.gather_dim);
    const std::optional<std::int64_t> bad = bad_index(graph, node, size, *frame, replayed);
    std::string said = where + out_of_bounds(op, bad, source.gather_dim, size);
    if (bad) throw IndexError(said);
    all.insert(std::move(said));
  }
  throw IndexError(joined(all));
}

void Executable::fail(exec::Status status, int kernel, Frame* frame, bool replayed) const {
  const KernelGraph& graph = kernels_[static_cast<std::size_t>(kernel)].graph();
  switch (status) {
    case exec::Status::kIndexOutOfRange:
      fail_index(graph, frame, replayed);
    case exec::Status::kDivisionByZero: {
      std::set<std::string> lines;
      for (const KernelNode& node : graph.nodes)
        if (divides(node)) lines.insert(plan_.program.line_of(node.line));
      lines.erase("");
      const std::string op = operators(plan_.program, graph, [](Op o) {
        return o == Op::floor_div || o == Op::remainder || o == Op::fmod;
      });
      throw DivisionError((lines.empty() ? "" : joined(lines) + ": ") + op +
                          ": ZeroDivisionError: integers are divided by 0");
    }
    case exec::Status::kNoMemory:
      throw MemoryError("kernel " + graph.name + ": no working memory");
    case exec::Status::kBadProgram:
      throw InternalError("kernel " + graph.name +
                          ": the encoder wrote bytecode that is too long or that verify rejects");
    case exec::Status::kOk:
      break;
  }
  throw InternalError("kernel " + graph.name + ": unknown status");
}

void Executable::fail_loop(exec::Status status, int n, const Frame& frame, bool replayed) const {
  const Program& program = plan_.program;
  const Node& node = program.nodes[static_cast<std::size_t>(n)];
  const std::string_view op = info(node.op).name;
  std::string where = program.line_of(node.line);
  if (!where.empty()) where += ": ";
  if (status != exec::Status::kIndexOutOfRange)
    throw MemoryError(where + std::string(op) + ": no working memory");
  const ValueId source = node.inputs[0], indices = node.inputs[1];
  if (!is_known(source, replayed) || !is_known(indices, replayed))
    throw IndexError(where + std::string(op) + ": an index is out of bounds");
  const auto axis = static_cast<int>(node.attrs[0].ints[0]);
  const std::int64_t size = frame.records[index(source)].size(axis);
  const Record& record = frame.records[index(indices)];
  const bytecode::Storage storage = fuse::storage_of(program.type(indices).dtype);
  std::array<std::int64_t, kMaxRank> sizes{}, strides{};
  for (int d = 0; d < record.rank; ++d) {
    sizes[static_cast<std::size_t>(d)] = record.size(d);
    strides[static_cast<std::size_t>(d)] = record.stride(d) * bytecode::storage_bytes(storage);
  }
  throw IndexError(where + out_of_bounds(op,
                                         outside(record.data, storage, record.rank, sizes.data(),
                                                 strides.data(), 0, size),
                                         axis, size));
}

}  // namespace tilevm::host
