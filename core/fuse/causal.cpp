#include "fuse/causal.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "isa.gen.h"

namespace tilevm::fuse {
namespace {

using Kind = KernelNode::Kind;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// What a value is behind the diagonal.
enum class Behind : std::uint8_t { kAnything, kZero, kLowest };  // kLowest: minus infinity

class Reading {
 public:
  Reading(const shape::SizeTable& sizes, const KernelGraph& kernel, int row_axis, int column_axis)
      : sizes_(sizes),
        kernel_(kernel),
        row_(row_axis),
        column_(column_axis),
        behind_(kernel.nodes.size()) {}

  bool run(ValueId panel, ValueId result) {
    bool masks = false, reads = false;
    for (std::size_t n = 0; n < kernel_.nodes.size(); ++n) {
      const KernelNode& node = kernel_.nodes[n];
      switch (node.kind) {
        case Kind::kConst:
          behind_[n] = constant(node);
          break;
        case Kind::kMap:
          behind_[n] = map(node);
          masks = masks || (name(node) == "select_f32" && is_mask(node.in[0]));
          break;
        case Kind::kFold:
          if (((kernel_.reduced >> column_) & 1) == 0 || !leaves_out(node)) return false;
          break;
        case Kind::kStore:
          if (operand(node).dim[at(column_)] >= 0 &&
              (operand(node).value != result || behind_[at(node.in[0])] != Behind::kZero))
            return false;
          break;
        case Kind::kGather:
          return false;
        case Kind::kLoad:
          reads = reads || operand(node).value == panel;
          break;
        case Kind::kIota:
          break;
      }
    }
    return masks && reads;
  }

 private:
  std::string_view name(const KernelNode& node) const { return bytecode::kIsa[node.instr].name; }
  const OperandRef& operand(const KernelNode& node) const {
    return kernel_.operands[at(node.operand)];
  }

  Behind constant(const KernelNode& node) const {
    if (node.type != bytecode::RegType::kF32) return Behind::kAnything;
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(node.imm));
    if (value == 0) return Behind::kZero;
    return value == -std::numeric_limits<float>::infinity() ? Behind::kLowest : Behind::kAnything;
  }

  // A node's position along an axis, counted from 0.
  bool is_position(int n, int axis) const {
    const KernelNode& node = kernel_.nodes[at(n)];
    if (node.kind != Kind::kIota) return false;
    const OperandRef& iota = operand(node);
    const auto is = [&](SizeId size, std::int64_t value) {
      return size == shape::kNoSize || sizes_.is(size, value);
    };
    return is(iota.start, 0) && is(iota.step, 1) && iota.iota_axis == axis;
  }

  // column <= row
  bool is_mask(int n) const {
    const KernelNode& node = kernel_.nodes[at(n)];
    if (node.kind != Kind::kMap) return false;
    if (name(node) == "le_i64")
      return is_position(node.in[0], column_) && is_position(node.in[1], row_);
    if (name(node) == "ge_i64")
      return is_position(node.in[0], row_) && is_position(node.in[1], column_);
    return false;
  }

  Behind map(const KernelNode& node) const {
    const auto in = [&](std::size_t i) { return behind_[at(node.in[i])]; };
    const std::string_view op = name(node);
    if (op == "select_f32") {
      if (is_mask(node.in[0])) return in(2);
      return in(1) == in(2) ? in(1) : Behind::kAnything;
    }
    // A row whose maximum is infinite or NaN is NaN with those columns, and without them.
    if (op == "sub_f32" && in(0) == Behind::kLowest) return Behind::kLowest;
    if (op == "add_f32" && (in(0) == Behind::kLowest || in(1) == Behind::kLowest))
      return Behind::kLowest;
    if ((op == "exp_f32" || op == "exp_weight_f32") && in(0) == Behind::kLowest) return Behind::kZero;
    if (op == "mul_f32" && (in(0) == Behind::kZero || in(1) == Behind::kZero)) return Behind::kZero;
    if (op == "div_f32" && in(0) == Behind::kZero) return Behind::kZero;
    if (op == "round_bf16" || op == "round_f16") return in(0);
    return Behind::kAnything;
  }

  // Whether the fold is the same without what is behind the diagonal.
  bool leaves_out(const KernelNode& node) const {
    const Behind in = behind_[at(node.in[0])];
    return (name(node) == "max_f32" && in == Behind::kLowest) ||
           (name(node) == "sum_f32" && in == Behind::kZero);
  }

  const shape::SizeTable& sizes_;
  const KernelGraph& kernel_;
  int row_, column_;
  std::vector<Behind> behind_;
};

}  // namespace

bool is_causal(const shape::SizeTable& sizes, const KernelGraph& kernel, ValueId panel,
               ValueId result, int row_axis, int column_axis) {
  return row_axis >= 0 && column_axis >= 0 &&
         Reading(sizes, kernel, row_axis, column_axis).run(panel, result);
}

}  // namespace tilevm::fuse
