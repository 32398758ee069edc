#include <algorithm>

#include "program/passes.h"

namespace tilevm {

std::vector<bool> live(const Program& p) {
  std::vector<bool> needed(p.nodes.size());
  const auto need = [&](ValueId v) {
    const std::int32_t node = p.values[static_cast<std::size_t>(v)].node;
    if (node >= 0) needed[static_cast<std::size_t>(node)] = true;
  };
  for (ValueId v : p.outputs) need(v);
  for (std::size_t i = p.nodes.size(); i-- > 0;) {
    if (p.nodes[i].op == Op::call) needed[i] = true;
    if (!needed[i]) continue;
    for (ValueId v : p.nodes[i].inputs) need(v);
  }
  return needed;
}

void sweep(Program& p) {
  const std::vector<bool> needed = live(p);
  if (std::ranges::find(needed, false) == needed.end()) return;
  std::vector<ValueId> moved(p.values.size(), -1);
  std::vector<Value> values;
  std::vector<Node> nodes;
  values.reserve(p.values.size());
  nodes.reserve(p.nodes.size());
  for (ValueId v : p.inputs) {
    moved[static_cast<std::size_t>(v)] = static_cast<ValueId>(values.size());
    values.push_back(p.values[static_cast<std::size_t>(v)]);
  }
  for (std::size_t i = 0; i < p.nodes.size(); ++i) {
    if (!needed[i]) continue;
    Node& node = p.nodes[i];
    for (ValueId& v : node.inputs) v = moved[static_cast<std::size_t>(v)];
    const auto first = static_cast<ValueId>(values.size());
    for (int k = 0; k < node.n_out; ++k) {
      moved[static_cast<std::size_t>(node.out + k)] = first + k;
      values.push_back({p.type(node.out + k), static_cast<std::int32_t>(nodes.size())});
    }
    node.out = first;
    nodes.push_back(std::move(node));
  }
  for (ValueId& v : p.inputs) v = moved[static_cast<std::size_t>(v)];
  for (ValueId& v : p.outputs) v = moved[static_cast<std::size_t>(v)];
  p.values = std::move(values);
  p.nodes = std::move(nodes);
}

}  // namespace tilevm
