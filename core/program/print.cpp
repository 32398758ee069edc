// Programs as text.
#include <charconv>

#include "program/program.h"

namespace tilevm {

namespace {

std::string join(std::span<const std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += ", ";
    text += part;
  }
  return text;
}

std::string sizes_text(const shape::SizeTable& sizes, std::span<const SizeId> all) {
  std::vector<std::string> parts;
  for (SizeId s : all) parts.push_back(sizes.print(s));
  return "[" + join(parts) + "]";
}

std::string number_text(const Attr& attr) {
  switch (attr.number_kind) {
    case Attr::NumberKind::kInt:
      return std::to_string(attr.integer);
    case Attr::NumberKind::kBool:
      return attr.integer != 0 ? "true" : "false";
    case Attr::NumberKind::kFloat:
      break;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), attr.number).ptr;
  std::string text(buffer, end);
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string attr_text(const shape::SizeTable& sizes, ParamKind kind, const Attr& attr) {
  switch (kind) {
    case ParamKind::kAxis:
    case ParamKind::kInt:
      return std::to_string(attr.ints[0]);
    case ParamKind::kBool:
      return attr.ints[0] != 0 ? "true" : "false";
    case ParamKind::kDtype:
      return std::string(dtype_name(attr.dtype()));
    case ParamKind::kSize:
      return sizes.print(attr.sizes[0]);
    case ParamKind::kSizes:
      return sizes_text(sizes, attr.sizes);
    case ParamKind::kNumber:
      return number_text(attr);
    case ParamKind::kAxes:
      break;
  }
  std::vector<std::string> parts;
  for (std::int64_t i : attr.ints) parts.push_back(std::to_string(i));
  return "[" + join(parts) + "]";
}

std::string value_text(ValueId v) { return "v" + std::to_string(v); }

std::string typed(const Program& p, ValueId v) {
  return value_text(v) + ": " + print(p.sizes, p.type(v));
}

}  // namespace

std::string print(const shape::SizeTable& sizes, const Type& type) {
  if (type.weak) return "weak " + std::string(dtype_name(type.dtype));
  return std::string(dtype_name(type.dtype)) + sizes_text(sizes, type.shape.span());
}

std::string print(const Program& p, const Node& node) {
  const OpInfo& row = info(node.op);
  std::vector<std::string> parts;
  for (ValueId v : node.inputs) parts.push_back(value_text(v));
  for (std::size_t i = 0; i < node.attrs.size(); ++i) {
    const ParamInfo& param = row.params()[i];
    parts.push_back(param.name + ("=" + attr_text(p.sizes, param.kind, node.attrs[i])));
  }
  if (node.of_weights) parts.push_back("of_weights=true");
  return row.name + (parts.empty() ? std::string() : " " + join(parts));
}

std::string print(const Program& p) {
  std::vector<std::string> parts;
  for (ValueId v : p.inputs) parts.push_back(typed(p, v));
  std::string text = "program(" + join(parts) + ")\n";
  for (const Node& node : p.nodes) {
    parts.clear();
    for (int i = 0; i < node.n_out; ++i) parts.push_back(typed(p, node.out + i));
    text += "  " + join(parts) + " = " + print(p, node);
    if (node.line >= 0) text += "  # " + p.lines[static_cast<std::size_t>(node.line)];
    text += "\n";
  }
  parts.clear();
  for (ValueId v : p.outputs) parts.push_back(value_text(v));
  text += "  return " + join(parts) + "\n";
  for (const Check& c : p.checks) {
    text += "  check " + p.sizes.print(c.a) + " == " + p.sizes.print(c.b) + "\n";
  }
  return text;
}

}  // namespace tilevm
