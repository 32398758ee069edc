#include "fuse/kernel_graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "isa.gen.h"

namespace tilevm::fuse {
namespace {

using bytecode::RegType;
using bytecode::Role;
using bytecode::Storage;
using Kind = KernelNode::Kind;

constexpr std::uint16_t kNoInstr = 0xffff;

RegType reg_of(DType dtype) { return bytecode::info(storage_of(dtype)).reg; }

// By Storage, by RegType: an opcode as a kernel's graph holds it.
std::uint16_t op_of(const bytecode::Op (&ops)[bytecode::kStorages], Storage s) {
  return static_cast<std::uint16_t>(ops[static_cast<int>(s)]);
}
std::uint16_t op_of(const bytecode::Op (&ops)[bytecode::kRegTypes], RegType t) {
  return static_cast<std::uint16_t>(ops[static_cast<int>(t)]);
}

// Whether registers may hold values that elements of this storage cannot.
bool is_narrow(Storage s) { return bytecode::kNarrowOf[static_cast<int>(s)] != bytecode::Op::halt; }

// Opcodes by operator and type, looked up by name once.
struct Opcodes {
  std::uint16_t op[std::size(kOps)][bytecode::kRegTypes];
  Opcodes() {
    for (std::size_t o = 0; o < std::size(kOps); ++o) {
      for (int t = 0; t < bytecode::kRegTypes; ++t) {
        const std::string_view action = kOps[o].instr;
        const std::string_view type = bytecode::kRegTypeInfo[t].name;
        op[o][t] = action.empty() ? kNoInstr : find(action, type);
      }
    }
  }
  static std::uint16_t find(std::string_view action, std::string_view type) {
    for (std::size_t i = 0; i < std::size(bytecode::kIsa); ++i) {
      const std::string_view name = bytecode::kIsa[i].name;
      if (name.size() == action.size() + 1 + type.size() && name.starts_with(action) &&
          name[action.size()] == '_' && name.ends_with(type)) {
        return static_cast<std::uint16_t>(i);
      }
    }
    return kNoInstr;
  }
};
std::uint16_t opcode(Op op, RegType type) {
  static const Opcodes table;
  return table.op[static_cast<int>(op)][static_cast<int>(type)];
}

// Of types narrower than their register: whether an operator takes operands as the register has
// them, and whether its result is of the type if they are.
struct Narrow {
  bool any_operands;
  bool keeps;
};

// Where a small error of an operand makes a large one of the result, low-precision operands are
// what they would be in memory.
Narrow narrow_float(Op op) {
  switch (info(op).rule) {
    case Rule::kCompare:
    case Rule::kRoundUnary:
    case Rule::kPredicate:
      return {false, false};
    default:
      break;
  }
  return {op != Op::sign && op != Op::floor_div && op != Op::remainder && op != Op::fmod, false};
}

// The low bits of sums and the like follow from those of the operands.
Narrow narrow_integer(Op op) {
  switch (op) {
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::neg:
    case Op::bitwise_not:
      return {true, false};
    case Op::bitwise_and:
    case Op::bitwise_or:
    case Op::bitwise_xor:
    case Op::where:
      return {true, true};
    case Op::sign:
    case Op::maximum:
    case Op::minimum:
    case Op::remainder:
    case Op::fmod:
    case Op::shift_right:
      return {false, true};
    default:
      return {false, false};
  }
}

AxisMask all_axes(const KernelGraph& k) {
  return static_cast<AxisMask>((1U << k.axes.size()) - 1U);
}

class Builder {
 public:
  Builder(Grouping& grouping, int unit)
      : g_(grouping), unit_(unit), group_(grouping.groups[at(unit)]) {
    kernel_.axes = group_.axes;
    kernel_.reduced = group_.reduced;
    kernel_.from = group_.nodes;
    kernel_.nodes.reserve(group_.nodes.size() * 2 + group_.loads.size() + 8);
    kernel_.operands.reserve(group_.loads.size() + group_.fills.size() + 4);
  }

  KernelGraph build() {
    for (const int n : group_.nodes) {
      const Node& node = g_.program.nodes[at(n)];
      line_ = node.line;
      const OpClass cls = info(node.op).cls;
      const int result = cls == OpClass::kReduce   ? reduce(n, node)
                         : cls == OpClass::kGather ? gather(node)
                                                   : elementwise(node);
      set(node.out, result);
    }
    line_ = -1;
    for (const ValueId v : group_.values) {
      const auto& info = g_.info[at(v)];
      if (info.source == v && info.stored) store(v, defined(v), info.map, v);
    }
    for (std::size_t i = 0; i < group_.fills.size(); ++i) {
      const auto& [value, map] = group_.fills[i];
      const auto& info = g_.info[at(value)];
      const bool inside = info.where == Where::kKernel && info.unit == unit_;
      const int node =
          inside ? defined(info.source) : input(value, map, /*align_rank=*/rank(value));
      store(value, node, map, group_.targets[i]);
    }
    name();
    return std::move(kernel_);
  }

 private:
  int rank(ValueId v) const { return g_.program.type(v).shape.rank; }
  DType dtype(ValueId v) const { return g_.program.type(v).dtype; }

  int push(KernelNode node) {
    node.line = line_;
    kernel_.nodes.push_back(node);
    holds_.push_back(0);
    return static_cast<int>(kernel_.nodes.size()) - 1;
  }

  int map_node(std::uint16_t instr, RegType type, std::initializer_list<int> in) {
    if (instr == kNoInstr) throw std::logic_error("fuse: no instruction for an operator of kernel");
    KernelNode node{.kind = Kind::kMap, .type = type, .instr = instr};
    std::size_t i = 0;
    for (const int n : in) {
      node.in[i++] = n;
      node.axes = static_cast<AxisMask>(node.axes | kernel_.nodes[at(n)].axes);
    }
    return push(node);
  }

  void set(ValueId v, int node) { defined_.emplace_back(v, node); }
  // Who reads a value that is also stored reads what memory has. Stores round by themselves.
  int get(ValueId v) {
    const int node = defined(v);
    return is_float(dtype(v)) && g_.info[at(v)].stored ? narrowed(node, dtype(v)) : node;
  }
  int defined(ValueId v) const {
    for (auto it = defined_.rbegin(); it != defined_.rend(); ++it) {
      if (it->first == v) return it->second;
    }
    throw std::logic_error("fuse: value used before it is defined in its kernel");
  }

  static std::uint16_t bit(Storage s) {
    return static_cast<std::uint16_t>(1U << static_cast<int>(s));
  }
  // All values of `node` are ones of storage s.
  void hold(int node, Storage s) {
    holds_[at(node)] = bit(s);
    if (s == Storage::kI8 || s == Storage::kU8) holds_[at(node)] |= bit(Storage::kI16);
  }

  // The register with values of this dtype: float16 and bfloat16 rounded, small integers wrapped.
  int narrowed(int node, DType dtype) {
    const Storage storage = storage_of(dtype);
    if (!is_narrow(storage) || (holds_[at(node)] & bit(storage)) != 0) return node;
    const std::uint16_t instr = op_of(bytecode::kNarrowOf, storage);
    for (std::size_t i = 0; i < kernel_.nodes.size(); ++i) {
      if (kernel_.nodes[i].kind == Kind::kMap && kernel_.nodes[i].instr == instr &&
          kernel_.nodes[i].in[0] == node)
        return static_cast<int>(i);
    }
    const int result = map_node(instr, kernel_.nodes[at(node)].type, {node});
    hold(result, storage);
    return result;
  }

  int operand(OperandRef ref) {
    kernel_.operands.push_back(ref);
    return static_cast<int>(kernel_.operands.size()) - 1;
  }

  static OperandRef reference(Role role, Storage storage, ValueId value) {
    OperandRef ref{.role = role, .storage = storage, .value = value};
    ref.dim.fill(-1);
    return ref;
  }

  // number: a Python float among float32, which comes from memory as such.
  int load(ValueId v, const AxisMap& map, bool number = false) {
    const Storage storage = storage_of(dtype(v));
    const RegType type = number ? RegType::kF32 : reg_of(dtype(v));
    const Load same = g_.unpermuted({v, map});
    for (const auto& l : loads_) {
      if (l.value == same.value && l.map.axis == same.map.axis &&
          kernel_.nodes[at(l.node)].type == type) {
        return l.node;
      }
    }
    OperandRef ref = reference(Role::kInput, storage, v);
    KernelNode node{.kind = Kind::kLoad,
                    .type = type,
                    .instr = number ? static_cast<std::uint16_t>(bytecode::Op::load_f64_f32)
                                    : op_of(bytecode::kLoadOf, storage)};
    for (int d = 0; d < rank(v); ++d) {
      const int axis = map.axis[at(d)];
      if (axis < 0) continue;
      ref.dim[at(axis)] = static_cast<std::int8_t>(d);
      node.axes = static_cast<AxisMask>(node.axes | (1U << axis));
    }
    node.operand = static_cast<std::int16_t>(operand(ref));
    const int result = push(node);
    hold(result, storage);
    loads_.push_back({same.value, same.map, result});
    return result;
  }

  int constant(RegType type, std::uint64_t imm) {
    for (std::size_t i = 0; i < kernel_.nodes.size(); ++i) {
      const auto& n = kernel_.nodes[i];
      if (n.kind == Kind::kConst && n.type == type && n.imm == imm) return static_cast<int>(i);
    }
    return push(
        {.kind = Kind::kConst, .type = type, .instr = op_of(bytecode::kConstOf, type), .imm = imm});
  }

  int iota(SizeId start, SizeId step, int axis) {
    OperandRef ref = reference(Role::kIota, Storage::kI64, -1);
    ref.start = start;
    ref.step = step;
    ref.iota_axis = static_cast<std::int8_t>(axis);
    KernelNode node{.kind = Kind::kIota, .type = RegType::kI64};
    node.instr = static_cast<std::uint16_t>(bytecode::Op::iota_i64);
    if (axis >= 0) node.axes = static_cast<AxisMask>(1U << axis);
    node.operand = static_cast<std::int16_t>(operand(ref));
    return push(node);
  }

  // A value made anew here; `map` is that of its dims.
  int free_value(ValueId v, const AxisMap& map) {
    const auto& info = g_.info[at(v)];
    const ValueId source = info.source;
    const int n = g_.program.values[at(source)].node;
    if (n < 0) return load(source, AxisMap());  // a run-time scalar
    const Node& node = g_.program.nodes[at(n)];
    const RegType type = reg_of(dtype(source));
    switch (node.op) {
      case Op::full:
        return literal(node.attrs[1], dtype(source));
      case Op::scalar:
        return literal(node.attrs[0], dtype(source));
      case Op::size_value: {
        for (const auto& s : sizes_) {
          if (s.first == node.attrs[0].sizes[0]) return s.second;
        }
        OperandRef ref = reference(Role::kInput, Storage::kI64, -1);
        ref.size = node.attrs[0].sizes[0];
        const int result = push({.kind = Kind::kLoad,
                                 .type = type,
                                 .instr = op_of(bytecode::kLoadOf, Storage::kI64),
                                 .operand = static_cast<std::int16_t>(operand(ref))});
        sizes_.emplace_back(ref.size, result);
        return result;
      }
      case Op::iota:
        return iota(node.attrs[1].sizes[0], node.attrs[2].sizes[0],
                    info.free_dim < 0 ? -1 : map.axis[at(info.free_dim)]);
      default: {  // arithmetic on such values
        for (const auto& [value, result] : free_) {
          if (value == source) return result;
        }
        const int result = elementwise(node);
        free_.emplace_back(source, result);
        return result;
      }
    }
  }

  int literal(const Attr& attr, DType dtype) {
    const bool exact = attr.number_kind != Attr::NumberKind::kFloat;
    const double number = exact ? static_cast<double>(attr.integer) : attr.number;
    const std::int64_t integer = exact ? attr.integer : static_cast<std::int64_t>(attr.number);
    switch (const RegType type = reg_of(dtype)) {
      case RegType::kF32:
        // Not rounded to a narrower type: PyTorch computes with a Python number in float32.
        return constant(type, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
      case RegType::kF64:
        return constant(type, std::bit_cast<std::uint64_t>(number));
      case RegType::kI32:
        return constant(type, static_cast<std::uint32_t>(integer));
      case RegType::kI64:
        return constant(type, static_cast<std::uint64_t>(integer));
      case RegType::kB8:
        return constant(type, number != 0 ? 1 : 0);
    }
    return -1;
  }

  // Register of operand v of a node whose result's dims (of rank `out_rank`) run along `out`.
  int input(ValueId v, const AxisMap& out, int out_rank) {
    const auto& info = g_.info[at(v)];
    if (info.where == Where::kKernel && info.unit == unit_) return get(info.source);
    AxisMap map;
    const Shape& shape = g_.program.type(v).shape;
    for (int d = 0; d < shape.rank; ++d) {
      if (!g_.program.sizes.is(shape[d], 1))
        map.axis[at(d)] = out.axis[at(d + out_rank - shape.rank)];
    }
    if (info.where == Where::kFree) return free_value(v, map);
    return load(v, map);
  }

  int cast(int node, DType from, DType to) {
    if (from == to) return node;
    node = narrowed(node, from);
    const RegType a = reg_of(from);
    const RegType b = reg_of(to);
    if (a != b) node = map_node(op_of(bytecode::kCastOf[static_cast<int>(a)], b), b, {node});
    return is_float(to) ? narrowed(node, to) : node;
  }

  // A weak value as a number of another type. Like a literal, it is not rounded to a low precision.
  int cast_number(ValueId v, const AxisMap& out, int out_rank, DType to) {
    const DType from = dtype(v);
    const bool in_float32 = is_float(to) && to != DType::kFloat64;
    const auto& info = g_.info[at(v)];
    const bool in_memory =
        info.where == Where::kBuffer ||
        (info.where == Where::kFree && g_.program.values[at(info.source)].node < 0);
    if (in_float32 && from == DType::kFloat64 && in_memory) {
      return load(info.where == Where::kFree ? info.source : v, AxisMap(), /*number=*/true);
    }
    return cast(input(v, out, out_rank), from, in_float32 ? DType::kFloat32 : to);
  }

  int elementwise(const Node& node) {
    const AxisMap& out = g_.info[at(node.out)].map;
    const int out_rank = rank(node.out);
    const DType from = dtype(node.inputs.back());
    const DType to = dtype(node.out);
    if (node.op == Op::cast && g_.program.type(node.inputs[0]).weak) {
      return cast_number(node.inputs[0], out, out_rank, to);
    }
    int in[3] = {-1, -1, -1};
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      in[i] = input(node.inputs[i], out, out_rank);
    if (node.op == Op::cast) return cast(in[0], from, to);
    const Rule rule = info(node.op).rule;
    const Narrow narrow = is_float(from) ? narrow_float(node.op) : narrow_integer(node.op);
    std::uint16_t held = 0xffff;
    for (std::size_t i = rule == Rule::kWhere ? 1 : 0; i < node.inputs.size(); ++i) {
      if (!narrow.any_operands) in[i] = narrowed(in[i], from);
      held &= holds_[at(in[i])];
    }
    RegType family = reg_of(from);
    std::uint16_t instr = node.of_weights ? static_cast<std::uint16_t>(bytecode::Op::exp_weight_f32)
                                          : opcode(node.op, family);
    if (instr == kNoInstr && family == RegType::kB8) {  // comparisons of bools and the like
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        in[i] = cast(in[i], DType::kBool, DType::kInt32);
      family = RegType::kI32;
      instr = opcode(node.op, family);
      const RegType type =
          to == DType::kBool && rule == Rule::kCompare ? RegType::kB8 : RegType::kI32;
      const int result = compute(instr, type, in, node.inputs.size());
      return type == RegType::kI32 && to == DType::kBool ? cast(result, DType::kInt32, DType::kBool)
                                                         : result;
    }
    const int result = compute(instr, reg_of(to), in, node.inputs.size());
    if (narrow.keeps && from == to) holds_[at(result)] = held;
    return result;
  }

  int compute(std::uint16_t instr, RegType type, const int (&in)[3], std::size_t n) {
    if (n == 1) return map_node(instr, type, {in[0]});
    if (n == 2) return map_node(instr, type, {in[0], in[1]});
    return map_node(instr, type, {in[0], in[1], in[2]});
  }

  int reduce(int n, const Node& node) {
    const ValueId v = node.inputs[0];
    const AxisMap& map = g_.reduce_map[at(n)];
    const bool arg = info(node.op).rule == Rule::kReduceIndex;
    DType from = dtype(v);
    int in = input(v, map, rank(v));
    const DType to = dtype(node.out);
    AxisMask over = 0;
    for (const auto a : node.attrs[0].ints) {
      const int axis = map.axis[at(static_cast<int>(a))];
      if (axis >= 0) over = static_cast<AxisMask>(over | (1U << axis));
    }
    if (over == 0) {  // only axes of size 1: nothing to fold
      return arg ? constant(RegType::kI64, 0) : cast(in, from, to);
    }
    if (arg || !is_float(from)) in = narrowed(in, from);
    if (!arg && reg_of(from) != reg_of(to)) {
      in = cast(in, from, to);
      from = to;
    } else if (arg && from == DType::kBool) {
      in = cast(in, from, DType::kInt32);
      from = DType::kInt32;
    }
    const RegType family = reg_of(from);
    const std::uint16_t instr = opcode(node.op, family);
    if (instr == kNoInstr)
      throw std::logic_error("fuse: no fold for " + std::string(info(node.op).name));
    KernelNode fold{.kind = Kind::kFold, .type = arg ? RegType::kI64 : family, .instr = instr};
    fold.axes = static_cast<AxisMask>(kernel_.nodes[at(in)].axes & ~kernel_.reduced);
    fold.in[0] = in;
    if (arg) {
      const int axis = map.axis[at(static_cast<int>(node.attrs[0].ints[0]))];
      fold.in[1] = iota(zero_, one_, axis);
    }
    const int result = once(fold);
    if (!arg && !is_float(from)) hold(result, storage_of(from));  // an extremum is an element
    return result;
  }

  // A fold, unless there is one like it: of operators, those that keep the axis are others.
  int once(const KernelNode& fold) {
    const auto same = [&](const KernelNode& n) {
      return n.kind == fold.kind && n.instr == fold.instr && n.in == fold.in && n.axes == fold.axes;
    };
    const auto it = std::ranges::find_if(kernel_.nodes, same);
    return it == kernel_.nodes.end() ? push(fold) : static_cast<int>(it - kernel_.nodes.begin());
  }

  int gather(const Node& node) {
    const ValueId x = node.inputs[0];
    const ValueId index = node.inputs[1];
    const int axis = static_cast<int>(node.attrs[0].ints[0]);
    const AxisMap& out = g_.info[at(node.out)].map;
    const int index_rank = rank(index);
    AxisMap index_map;
    OperandRef ref = reference(Role::kGather, storage_of(dtype(x)), x);
    ref.gather_dim = static_cast<std::int8_t>(axis);
    AxisMask axes = 0;
    const auto run = [&](int dim, int out_dim) {
      const int a = out.axis[at(out_dim)];
      if (a < 0) return;
      ref.dim[at(a)] = static_cast<std::int8_t>(dim);
      axes = static_cast<AxisMask>(axes | (1U << a));
    };
    if (node.op == Op::take) {
      for (int d = 0; d < axis; ++d) run(d, d);
      for (int d = axis + 1; d < rank(x); ++d) run(d, d + index_rank - 1);
      for (int d = 0; d < index_rank; ++d) index_map.axis[at(d)] = out.axis[at(axis + d)];
    } else {
      for (int d = 0; d < rank(x); ++d) {
        if (d != axis) run(d, d);
      }
      index_map = out;
    }
    int i = input(index, index_map, index_rank);
    i = cast(i, dtype(index), DType::kInt64);
    KernelNode result{.kind = Kind::kGather,
                      .type = reg_of(dtype(x)),
                      .instr = op_of(bytecode::kGatherOf, ref.storage)};
    // Of no element it must not run, even if its index is the same for all.
    const AxisMask loops = mask_of(out, rank(node.out));
    result.axes = static_cast<AxisMask>(axes | kernel_.nodes[at(i)].axes | loops);
    result.operand = static_cast<std::int16_t>(operand(ref));
    result.in[0] = i;
    const int r = push(result);
    hold(r, ref.storage);
    return r;
  }

  void store(ValueId like, int node, const AxisMap& map, ValueId target) {
    const Storage storage = storage_of(dtype(like));
    OperandRef ref = reference(Role::kOutput, storage, target);
    KernelNode result{.kind = Kind::kStore,
                      .type = reg_of(dtype(like)),
                      .instr = op_of(bytecode::kStoreOf, storage)};
    for (int d = 0; d < rank(like); ++d) {
      const int axis = map.axis[at(d)];
      if (axis < 0) continue;
      ref.dim[at(axis)] = static_cast<std::int8_t>(d);
      result.axes = static_cast<AxisMask>(result.axes | (1U << axis));
    }
    result.operand = static_cast<std::int16_t>(operand(ref));
    result.in[0] = unrounded(node, dtype(like));
    push(result);
  }

  // What a store rounds: a value that was rounded to its type before it was.
  int unrounded(int node, DType dtype) const {
    const KernelNode& made = kernel_.nodes[at(node)];
    const Storage storage = storage_of(dtype);
    const bool rounds = made.kind == Kind::kMap && is_float(dtype) && is_narrow(storage) &&
                        made.instr == op_of(bytecode::kNarrowOf, storage);
    return rounds ? made.in[0] : node;
  }

  // After its first few operators.
  void name() {
    constexpr std::size_t kMostNames = 4;
    SmallVector<Op, kMostNames> seen;
    for (const int n : group_.nodes) {
      const Op op = g_.program.nodes[at(n)].op;
      if (std::ranges::find(seen, op) != seen.end()) continue;
      if (!seen.empty()) kernel_.name += '_';
      kernel_.name += info(op).name;
      seen.push_back(op);
      if (seen.size() == kMostNames) break;
    }
    if (seen.empty()) kernel_.name = "copy";
  }

  struct LoadNode {
    ValueId value;
    AxisMap map;
    int node;
  };

  Grouping& g_;
  int unit_;
  const Group& group_;
  KernelGraph kernel_;
  std::vector<std::uint16_t> holds_;  // by node: storages that can hold all its values, as bits
  std::vector<std::pair<ValueId, int>> defined_;
  std::vector<LoadNode> loads_;
  std::vector<std::pair<SizeId, int>> sizes_;
  std::vector<std::pair<ValueId, int>> free_;
  SizeId zero_ = g_.program.sizes.constant(0);
  SizeId one_ = g_.program.sizes.constant(1);
  int line_ = -1;
};

}  // namespace

Storage storage_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Storage::kF32;
    case DType::kBFloat16:
      return Storage::kBF16;
    case DType::kInt64:
      return Storage::kI64;
    case DType::kInt32:
      return Storage::kI32;
    case DType::kBool:
      return Storage::kB8;
    case DType::kFloat64:
      return Storage::kF64;
    case DType::kFloat16:
      return Storage::kF16;
    case DType::kInt16:
      return Storage::kI16;
    case DType::kInt8:
      return Storage::kI8;
    case DType::kUInt8:
      return Storage::kU8;
    case DType::kOpaque:
      break;
  }
  throw std::logic_error("fuse: dtype cannot be in a kernel: " + std::string(dtype_name(dtype)));
}

KernelGraph build_kernel(Grouping& grouping, int unit) { return Builder(grouping, unit).build(); }

KernelGraph copy_kernel(const Type& type) {
  KernelGraph k;
  k.name = "copy";
  const Storage storage = storage_of(type.dtype);
  OperandRef in{.role = Role::kInput, .storage = storage, .value = -1};
  in.dim.fill(-1);
  for (int d = 0; d < type.shape.rank; ++d) {
    k.axes.push_back(type.shape[d]);
    in.dim[at(d)] = static_cast<std::int8_t>(d);
  }
  OperandRef out = in;
  out.role = Role::kOutput;
  k.operands = {in, out};
  const AxisMask all = all_axes(k);
  const RegType reg = reg_of(type.dtype);
  k.nodes.push_back({.kind = Kind::kLoad,
                     .type = reg,
                     .instr = op_of(bytecode::kLoadOf, storage),
                     .axes = all,
                     .operand = 0});
  k.nodes.push_back({.kind = Kind::kStore,
                     .type = reg,
                     .instr = op_of(bytecode::kStoreOf, storage),
                     .axes = all,
                     .operand = 1,
                     .in = {0, -1, -1}});
  return k;
}

}  // namespace tilevm::fuse
