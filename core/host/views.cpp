#include "host/views.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "host/errors.h"

namespace tilevm::host {
namespace {

std::string text(const Geometry& g) {
  std::string out = "[";
  for (int d = 0; d < g.rank; ++d) {
    if (d > 0) out += ", ";
    out += std::to_string(g.size(d));
  }
  return out + "]";
}

std::size_t at(SizeId id) { return static_cast<std::size_t>(id); }

// Appends a dim to `out`.
void push(Record& out, std::int64_t size, std::int64_t stride) {
  out.size(out.rank) = size;
  out.stride(out.rank) = stride;
  ++out.rank;
}

void expand(const View& view, std::span<const std::int64_t> regs, const Record& in, Record& out) {
  const int rank = static_cast<int>(view.sizes.size());
  const int lead = rank - in.rank;
  for (int d = 0; d < rank; ++d) {
    const std::int64_t size = regs[at(view.sizes[static_cast<std::size_t>(d)])];
    const bool own = d >= lead && in.size(d - lead) == size;
    if (!own && d >= lead && in.size(d - lead) != 1) {
      throw ShapeError("expand: cannot expand " + text(in) + " to size " + std::to_string(size) +
                       " in dim " + std::to_string(d));
    }
    push(out, size, own ? in.stride(d - lead) : 0);
  }
}

}  // namespace

View make_view(const Program& program, const Node& node) {
  View view;
  view.op = node.op;
  const auto axes_of = [&](std::size_t i) {
    view.axes.assign(node.attrs[i].ints.begin(), node.attrs[i].ints.end());
  };
  const Shape& out = program.type(node.out).shape;
  switch (node.op) {
    case Op::reshape:
    case Op::expand:
      view.sizes.assign(out.span().begin(), out.span().end());
      break;
    case Op::permute:
    case Op::unsqueeze:
    case Op::squeeze:
    case Op::flip:
      axes_of(0);
      break;
    case Op::slice:
      axes_of(0);
      view.sizes = {node.attrs[1].sizes[0], out[view.axes[0]]};
      view.step = node.attrs[3].ints[0];
      break;
    case Op::select:
      axes_of(0);
      view.sizes = {node.attrs[1].sizes[0]};
      break;
    default:
      throw InternalError(std::string(kOps[static_cast<std::size_t>(node.op)].name) +
                          " is no view operator");
  }
  return view;
}

void narrow(const Record& in, int axis, std::int64_t start, std::int64_t size, int item_bytes,
            Record& out) {
  if (start < 0 || size < 0 || start > in.size(axis) - size) {
    throw ShapeError("slice: elements " + std::to_string(start) + " to " +
                     std::to_string(start + size) + " of dim " + std::to_string(axis) + " of " +
                     text(in));
  }
  out = in;
  out.size(axis) = size;
  out.data += start * in.stride(axis) * item_bytes;
}

void apply(const View& view, std::span<const std::int64_t> regs, const Record& in, int item_bytes,
           Record& out) {
  switch (view.op) {
    case Op::slice: {
      const int axis = view.axes[0];
      const std::int64_t n = in.size(axis);
      const std::int64_t start = regs[at(view.sizes[0])];
      const std::int64_t size = regs[at(view.sizes[1])];
      if (start < 0 || start > n || size < 0 ||
          (size > 0 && (size - 1) > (n - 1 - start) / view.step)) {
        throw ShapeError("slice: " + std::to_string(size) + " elements from " +
                         std::to_string(start) + " by " + std::to_string(view.step) + " of dim " +
                         std::to_string(axis) + " of " + text(in));
      }
      out = in;
      out.size(axis) = size;
      out.stride(axis) = in.stride(axis) * view.step;
      out.data += start * in.stride(axis) * item_bytes;
      return;
    }
    case Op::flip:
      out = in;
      for (const int axis : view.axes) {
        if (in.size(axis) > 1) out.data += (in.size(axis) - 1) * in.stride(axis) * item_bytes;
        out.stride(axis) = -in.stride(axis);
      }
      return;
    default:
      break;
  }
  out.data = in.data;
  out.root = in.root;
  out.rank = 0;
  switch (view.op) {
    case Op::permute:
      for (const int axis : view.axes) push(out, in.size(axis), in.stride(axis));
      return;
    case Op::expand:
      expand(view, regs, in, out);
      return;
    case Op::select: {
      const int axis = view.axes[0];
      const std::int64_t index = regs[at(view.sizes[0])];
      if (index < 0 || index >= in.size(axis)) {
        throw IndexError("select: index " + std::to_string(index) + " is out of range for dim " +
                         std::to_string(axis) + " of " + text(in));
      }
      out.data += index * in.stride(axis) * item_bytes;
      for (int d = 0; d < in.rank; ++d) {
        if (d != axis) push(out, in.size(d), in.stride(d));
      }
      return;
    }
    case Op::unsqueeze: {
      const int axis = view.axes[0];
      for (int d = 0; d < axis; ++d) push(out, in.size(d), in.stride(d));
      push(out, 1, axis < in.rank ? in.size(axis) * in.stride(axis) : 1);
      for (int d = axis; d < in.rank; ++d) push(out, in.size(d), in.stride(d));
      return;
    }
    case Op::squeeze: {
      std::uint32_t dropped = 0;
      for (const int axis : view.axes) dropped |= 1u << axis;
      for (int d = 0; d < in.rank; ++d) {
        if ((dropped >> d & 1) == 0) {
          push(out, in.size(d), in.stride(d));
        } else if (in.size(d) != 1) {
          throw ShapeError("squeeze: dim " + std::to_string(d) + " of " + text(in) + " is not 1");
        }
      }
      return;
    }
    default: {  // reshape
      out.rank = static_cast<int>(view.sizes.size());
      for (int d = 0; d < out.rank; ++d) {
        out.size(d) = regs[at(view.sizes[static_cast<std::size_t>(d)])];
      }
      if (!reshape_strides(in, out)) {
        throw InternalError("reshape of " + text(in) + " to " + text(out) + " is no view");
      }
      return;
    }
  }
}

std::int64_t checked_elements(const Geometry& g, int item_bytes) {
  std::int64_t bytes = item_bytes;
  for (int d = 0; d < g.rank; ++d) {
    if (g.size(d) < 0) throw ShapeError("a size is negative: " + std::to_string(g.size(d)));
  }
  if (g.empty()) return 0;
  for (int d = 0; d < g.rank; ++d) {
    if (__builtin_mul_overflow(bytes, g.size(d), &bytes))
      throw MemoryError("a tensor is too large");
  }
  return item_bytes > 0 ? bytes / item_bytes : 0;
}

bool reshape_strides(const Geometry& in, Geometry& out) noexcept {
  const std::int64_t elements = in.elements();
  std::int64_t wanted = out.empty() ? 0 : 1;
  for (int d = 0; d < out.rank && wanted != 0; ++d) {
    if (out.size(d) < 0 || __builtin_mul_overflow(wanted, out.size(d), &wanted)) return false;
  }
  if (elements != wanted) return false;
  if (elements == 0) {
    set_dense_strides(out);
    return true;
  }
  // Walks both shapes from the innermost dim; a chunk is a run of `in` dims that lie densely.
  int o = out.rank - 1;
  std::int64_t base_stride = in.rank > 0 ? in.stride(in.rank - 1) : 1;
  std::int64_t in_count = 1, out_count = 1;
  for (int d = in.rank - 1; d >= 0; --d) {
    in_count *= in.size(d);
    const bool chunk_ends =
        d == 0 || (in.size(d - 1) != 1 && in.stride(d - 1) != in_count * base_stride);
    if (!chunk_ends) continue;
    while (o >= 0 && (out_count < in_count || out.size(o) == 1)) {
      out.stride(o) = out_count * base_stride;
      out_count *= out.size(o);
      --o;
    }
    if (out_count != in_count) return false;
    if (d > 0) {
      base_stride = in.stride(d - 1);
      in_count = out_count = 1;
    }
  }
  for (; o >= 0; --o) out.stride(o) = 1;  // a scalar seen as [1, 1, ...]
  return true;
}

void set_strides_in_order(Geometry& g, std::span<const std::int32_t> order) {
  std::int64_t next = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    g.stride(order[i]) = next;
    next *= g.size(order[i]) > 1 ? g.size(order[i]) : 1;
  }
}

void set_strides_like(Geometry& g, const Geometry& other) {
  const auto sizes = [](const Geometry& of) {
    return std::span(of.sizes).first(static_cast<std::size_t>(of.rank));
  };
  if (!std::ranges::equal(sizes(g), sizes(other))) return set_dense_strides(g);
  std::array<std::int64_t, kMaxRank> stride{};  // dims of one element: of the dim before
  bool row_major = true;
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (int d = 0; d < g.rank; ++d) {
    if (other.size(d) != 1) {
      const std::int64_t next = std::abs(other.stride(d));
      row_major = row_major && next <= last;
      last = next;
    }
    if (last == 0) return set_dense_strides(g);
    stride[static_cast<std::size_t>(d)] = last;
  }
  if (row_major) return set_dense_strides(g);
  std::array<std::int32_t, kMaxRank> dims{};
  std::iota(dims.begin(), dims.end(), 0);
  const std::span order(dims.data(), static_cast<std::size_t>(g.rank));
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::int32_t d) { return stride[static_cast<std::size_t>(d)]; });
  set_strides_in_order(g, order);
}

}  // namespace tilevm::host
