#include "program/passes.h"

#include <utility>

namespace tilevm {

const Node* defining(const Program& program, ValueId v) {
  const std::int32_t node = program.values[static_cast<std::size_t>(v)].node;
  return node < 0 ? nullptr : &program.nodes[static_cast<std::size_t>(node)];
}

Program successor_of(Program& source) {
  Program program(std::move(source.sizes));
  program.lines = std::move(source.lines);
  program.checks = std::move(source.checks);
  return program;
}

ValueId append(Program& program, Op op, Operands in, std::vector<Attr> attrs, const Type& type,
               std::int32_t line) {
  const auto id = static_cast<ValueId>(program.values.size());
  program.values.push_back({type, static_cast<std::int32_t>(program.nodes.size())});
  program.nodes.push_back({op, std::move(in), std::move(attrs), id, 1, line});
  return id;
}

ValueId append_copy(Program& program, const Program& source, const Node& node,
                    std::vector<ValueId>& held) {
  Operands in;
  for (const ValueId v : node.inputs) in.push_back(held[static_cast<std::size_t>(v)]);
  const auto id = static_cast<ValueId>(program.values.size());
  for (int k = 0; k < node.n_out; ++k) {
    program.values.push_back(
        {source.type(node.out + k), static_cast<std::int32_t>(program.nodes.size())});
    held[static_cast<std::size_t>(node.out + k)] = id + k;
  }
  program.nodes.push_back(
      {node.op, std::move(in), node.attrs, id, node.n_out, node.line, node.of_weights});
  return id;
}

}  // namespace tilevm
