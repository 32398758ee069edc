#include "schedule/copies.h"

#include <cstring>

#include "bytecode/bytecode.h"
#include "exec/plane.h"

namespace tilevm::schedule {
namespace {

using exec::Binding;
using exec::Space;

// From here on, memcpy writes lines that it need not read first.
constexpr std::int64_t kLineBytes = 2048;
// A vector would be mostly empty.
constexpr std::int64_t kFewColumns = 4;
constexpr std::int64_t kManyRows = 16;

void copy_lines(const Space& space, const Binding& from, const Binding& to,
                std::size_t line) noexcept {
  std::int64_t index[exec::kMaxOuter] = {};
  std::byte *source = from.base, *target = to.base;
  for (;;) {
    for (std::int64_t y = 0; y < space.rows; ++y)
      std::memcpy(target + y * to.y_stride, source + y * from.y_stride, line);
    int axis = space.n_outer - 1;
    for (; axis >= 0; --axis) {
      const bool more = ++index[axis] < space.outer[axis];
      source += more ? from.outer[axis] : from.outer[axis] * (1 - space.outer[axis]);
      target += more ? to.outer[axis] : to.outer[axis] * (1 - space.outer[axis]);
      if (more) break;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace

Copy copy_of(const fuse::KernelGraph& graph) {
  using Kind = fuse::KernelNode::Kind;
  if (graph.reduced != 0 || graph.nodes.size() != 2 || graph.operands.size() != 2) return {};
  const fuse::KernelNode& load = graph.nodes[0];
  const fuse::KernelNode& store = graph.nodes[1];
  if (load.kind != Kind::kLoad || store.kind != Kind::kStore) return {};
  const auto from = static_cast<std::size_t>(load.operand);
  const auto to = static_cast<std::size_t>(store.operand);
  const bytecode::Storage storage = graph.operands[from].storage;
  if (graph.operands[to].storage != storage || from == to) return {};
  return {from, to, bytecode::storage_bytes(storage)};
}

bool run_copy(const Copy& copy, const exec::Launch& launch) noexcept {
  const Space& space = launch.space;
  const Binding& from = launch.bindings[copy.from];
  const Binding& to = launch.bindings[copy.to];
  const std::int64_t bytes = copy.bytes, line = space.cols * bytes;
  if (from.base == nullptr || from.base == to.base) return false;
  if (from.x_stride == bytes && to.x_stride == bytes && line >= kLineBytes) {
    copy_lines(space, from, to, static_cast<std::size_t>(line));
    return true;
  }
  // Lines that take turns in the result; of what is repeated, it is the same one.
  const bool turns = space.n_outer == 0 && space.cols > 1 && space.cols <= kFewColumns &&
                     space.rows >= kManyRows && to.x_stride == bytes && to.y_stride == line &&
                     from.y_stride == bytes;
  if (!turns) return false;
  exec::copy_plane({to.base, to.x_stride, to.y_stride}, {from.base, from.x_stride, from.y_stride},
                   space.cols, space.rows, copy.bytes);
  return true;
}

}  // namespace tilevm::schedule
