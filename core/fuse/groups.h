// Grouping: which operators share a kernel. Greedy in program order; exact about legality.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fuse/plan.h"
#include "program/program.h"

namespace tilevm::fuse {

// Axis of the kernel that each dim of a value runs along; -1: the value does not vary along it.
// ghost: for a dim of size 1, the axis that was folded there (a reduction with keepdims).
struct AxisMap {
  std::array<std::int8_t, kMaxRank> axis;
  std::array<std::int8_t, kMaxRank> ghost;
  AxisMap() {
    axis.fill(-1);
    ghost.fill(-1);
  }
  friend bool operator==(const AxisMap&, const AxisMap&) = default;
};

AxisMask mask_of(const AxisMap& map, int rank);

inline constexpr int kMaxGroupNodes = 64;
inline constexpr int kMaxGroupLoads = 48;
// A small producer is computed again at every point of a larger space if it costs at most this.
inline constexpr int kCheapCost = 16;

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Dim of an operand of rank `rank` that lines up with dim d of a result of rank `out_rank`, or -1.
inline int aligned(int d, int rank, int out_rank) {
  const int i = d - (out_rank - rank);
  return i >= 0 ? i : -1;
}

enum class Where : std::uint8_t {
  kBuffer,  // memory: inputs, results of call-outs, layout operators, and views of those
  kKernel,  // computed inside a group (or a view of such a value that only renames its dims)
  kFree     // made anew in every kernel that uses it: constants, sizes, iota, run-time scalars
};

struct ValueInfo {
  Where where = Where::kBuffer;
  int unit = -1;              // what produces it (a group of kKernel values); -1: an input
  ValueId source = -1;        // kKernel, kFree: the value whose node computes it
  AxisMap map;                // kKernel
  std::int8_t free_dim = -1;  // kFree, iota: the dim it runs along
  bool stored = false;        // kKernel (of a source): somebody needs it in memory
  int brought = -1;           // kFree: the call-out that brings a size it is made of
};

struct Load {
  ValueId value;
  AxisMap map;
};

struct Group {
  std::vector<SizeId> axes;
  AxisMask reduced = 0;
  std::vector<int> nodes;       // program nodes, ascending
  std::vector<ValueId> values;  // results of nodes and in-kernel views of them
  std::vector<Load> loads;
  std::vector<Load> fills;  // free or external values stored elsewhere: {value, map}, see targets
  std::vector<ValueId> targets;  // of fills: the buffer written
  int cost = 0;                  // operations an element, transcendental ones count more
  bool has_fold = false;
  bool alive = true;
  int node = -1;  // of a unit that is no group: the call-out or concatenation
};

// A unit is a group, a call-out, or a concat, which joins the groups that write its parts. The
// relation "must run before".
class Order {
 public:
  int add();
  bool precedes(int before, int after) const;  // transitively
  bool can_depend(int unit, int on) const { return unit != on && !precedes(unit, on); }
  void depend(int unit, int on);
  bool can_merge(int a, int b) const { return !precedes(a, b) && !precedes(b, a); }
  void merge(int into, int from);
  int count() const { return static_cast<int>(before_.size()); }
  // Whether none of a set of units must run before this one.
  bool none_before(int unit, const std::vector<std::uint64_t>& set) const;

 private:
  std::vector<std::vector<std::uint64_t>> before_;  // bit set of units
};

class Grouping {
 public:
  explicit Grouping(Program& program);

  Program& program;
  std::vector<ValueInfo> info;
  std::vector<Group> groups;  // indexed by unit; empty for other units
  Order order;
  // A load of a permuted view as one of what it is a view of.
  Load unpermuted(Load load) const;

  std::vector<AxisMap> reduce_map;            // by node: map of a reduction's input dims
  std::unordered_map<int, int> unit_of_node;  // calls, concats
  std::vector<Step> parts;                    // kAlloc and kSlice steps that concats need first
  std::vector<Decision> decisions;

 private:
  int last_ordered_ = -1;  // the unit of the last call-out that is `ordered`

  void place(int node);
  void place_elementwise(int node);
  void place_reduce(int node);
  void place_gather(int node);
  void place_view(int node);
  void place_concat(int node);
  void place_call(int node);

  // A group that becomes part of another: where its axes go, axes that it adds, and which axes of
  // the joint space are folded then.
  struct Merge {
    int from;
    std::vector<std::int8_t> axis_of;
    std::vector<SizeId> extra_axes;
    AxisMask reduced = 0;
  };

  bool join_elementwise(int node, int unit);
  bool join_index(int node, Why& why);
  // They say in `why` what is in the way, if something is.
  std::optional<AxisMap> result_map(int node, int unit, std::vector<SizeId>& new_axes,
                                    Why& why) const;
  bool fits(int node, int unit, AxisMap& map, std::vector<SizeId>& new_axes, Why& why) const;
  std::optional<Merge> plan_merge(int node, int unit, int from, const AxisMap& map,
                                  std::size_t n_axes, AxisMask reduced, Why& why) const;
  Why too_large(const Group& g, int more_nodes, std::size_t more_loads) const;
  Why between(int unit, int other) const;
  int node_of(int unit) const;  // the last one of a group; -1: none
  void refuse(int unit, const Why& why) { refused_.push_back({unit, why}); }
  Why refusal(int unit) const;
  bool join_sibling(int node, int unit, ValueId shared, const AxisMap& map);
  bool join_permuted(int node);
  std::optional<AxisMap> permuted_map(int node, ValueId shared, const Load& load) const;
  bool loads_same(int node, const Group& group, const AxisMap& out) const;
  int new_group();
  int new_unit();
  void add_node(int unit, int node, const AxisMap& out);
  void add_loads(int unit, int node, const AxisMap& out);
  void merge(int into, int from, const std::vector<std::int8_t>& axis_of);
  // Why a group may not be computed again in a larger space for `node`; kNone: it may.
  Bar again(int unit, int node) const;
  // Makes sure that `value` is in memory when `user_unit` (if any) runs, for `reader`.
  void need_buffer(ValueId value, int user_unit, int reader, const Why& why);
  void define_buffer(ValueId value, int unit);
  void set_unit(ValueId value, int unit);
  void store_into(ValueId value, ValueId target, int join_unit, int reader);
  void bring_sizes(const Node& call, int unit);
  int brought_by(const Node& node) const;
  int later(int unit, int bringer);
  // The unit that must have run before a value can be read; -1: none.
  int awaited(const ValueInfo& v) const { return v.where == Where::kFree ? v.brought : v.unit; }
  ValueId append_value(Type type);
  const Shape& shape(ValueId v) const { return program.type(v).shape; }
  bool one(SizeId s) const { return program.sizes.is(s, 1); }
  int op_cost(Op op) const;
  void list_users();
  std::span<const int> users(ValueId v) const;

  std::vector<int> users_, users_end_;  // nodes by value; a value's begin where the one before ends
  std::vector<int> bringer_;            // by symbol: the call-out that brings it, or kGiven
  int last_bringer_ = -1;
  std::vector<bool> is_output_;
  std::vector<std::vector<ValueId>> of_unit_;  // the values that have it in `info`, among others
  std::vector<SmallVector<int, 2>> loaders_;   // value -> units that load it, oldest first
  struct Refusal {
    int unit;
    Why why;
  };
  std::vector<Refusal> refused_;  // why the operator at hand is in none of these groups
};

}  // namespace tilevm::fuse
