"""Writes what follows from the operator table: `ops.gen.h`, `decompose.gen.inc`, `docs/ops.md`.

`isa/generate.py` calls `generate` while the core is built, before the package exists: so this
file loads the table by path and imports nothing of the package.

A decomposition is text: `name = op args; ...`; the last name is the result. An argument is the
name of a value (operands are `x`, `y`, `z`), the name of a parameter, or a literal: a number,
`true`, `false`, `[]`, `dtype(value)`. An AXIS may stand where AXES are expected: both are lists of
ints in the core. `count value, axes` is the number of elements that the axes span.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilevm.ir.ops import Op, Param

HERE = Path(__file__).resolve().parent

CPP_KEYWORDS = frozenset(
    "and and_eq bitand bitor bool break case catch char class compl const continue default delete "
    "do double else enum explicit export false float for if inline int long namespace new not "
    "not_eq operator or or_eq private public register return short signed sizeof static struct "
    "switch template this throw true try typedef union unsigned using virtual void while xor "
    "xor_eq".split()
)

# What each rule of core/program/infer.h says of the result's dtype and shape, for docs/ops.md.
RULES = {
    "same": "as x",
    "same_number": "as x; not bool",
    "same_integer": "as x; integers and bool",
    "float_unary": "as x; integers and bool give float32",
    "round_unary": "as x; not bool",
    "predicate": "bool, shape of x",
    "promote": "common dtype, shapes broadcast",
    "promote_number": "common dtype, shapes broadcast; not bool with bool",
    "promote_float": "common dtype (integers and bool: float32), shapes broadcast",
    "promote_integer": "common dtype, shapes broadcast; integers and bool",
    "promote_shift": "common dtype, shapes broadcast; integers",
    "compare": "bool, shapes broadcast",
    "logical": "bool, shapes broadcast",
    "where": "common dtype of y and z, shapes broadcast; x is bool",
    "cast": "dtype, shape of x",
    "full": "as the parameters say",
    "iota": "int64 [size]",
    "scalar": "weak int64, float64 or bool, rank 0",
    "size_value": "weak int64, rank 0",
    "reduce_sum": "as x (integers and bool: int64), axes dropped",
    "reduce_same": "as x, axes dropped",
    "reduce_bool": "bool, axes dropped",
    "reduce_index": "int64, axis dropped",
    "reduce_float": "as x (integers and bool: float32), axes dropped",
    "float_axis": "as x; integers and bool give float32",
    "float_axes": "as x; integers and bool give float32",
    "reshape": "as x, new shape; one size may be -1",
    "permute": "as x, axes in the order given",
    "expand": "as x, new shape; -1 keeps a size",
    "slice": "as x, one size changed",
    "select": "as x, axis dropped",
    "unsqueeze": "as x, axis of size 1 inserted",
    "squeeze": "as x, axes dropped",
    "flip": "as x",
    "concat": "common dtype, sizes of the axis added",
    "pad": "as x, sizes grown",
    "gather": "dtype of x, shape of y; y is an integer",
    "take": "dtype of x, the axis replaced by the shape of y; y is an integer",
    "scan": "as x (integers and bool: int64)",
    "scan_same": "as x; not bool",
    "scan_float": "as x (integers and bools: float32)",
    "scatter": "as x; y is an integer; z is of x's dtype and y's shape",
    "scatter_number": "as x, not bool; y is an integer; z is of x's dtype and y's shape",
    "argsort": "int64, shape of x",
    "argtopk": "int64, the axis k long",
    "search": "int64, shape of y; x and y of one dtype, not bool",
    "matmul": "as x; dtypes equal, not bool; shapes as NumPy's matmul",
    "grouped_matmul": "as x; float32, bfloat16 or float16, as y; z is an integer",
    "conv": "as x; float32, bfloat16 or float16, dtypes equal",
    "conv_windows": "as x; float32, bfloat16 or float16, dtypes equal",
    "call": "as the call says",
}
CLASSES = {
    "ELEMENTWISE": "Element by element",
    "REDUCE": "Reductions",
    "VIEW": "Views",
    "LAYOUT": "Layout",
    "GATHER": "Gathers",
    "CREATE": "Creation",
    "COMPOSITE": "Composite",
    "LOOP": "Loops",
    "CALL": "Outside",
}
FAMILIES = {"f": "floats", "i": "integers", "b": "bool"}
OPERANDS = "xyz"


def load_table() -> ModuleType:
    """The module `ir/ops.py`, without importing its package."""
    name = "tilevm_ir_ops"
    spec = importlib.util.spec_from_file_location(name, HERE / "ops.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(HERE / "ops.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write_if_changed(path: Path, text: str) -> None:
    """Write `text`, unless the file has it already: an untouched file recompiles nothing."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def identifier(name: str) -> str:
    """`name` as a C++ identifier."""
    return f"{name}_" if name in CPP_KEYWORDS else name


def constant(name: str) -> str:
    """`same_number` -> `kSameNumber`: the enumerators of OpClass, Rule and ParamKind."""
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def boolean(value: bool) -> str:
    """`value` in C++."""
    return "true" if value else "false"


# ---- ops.gen.h


def default(param: Param) -> str:
    """The default as an int64: the only kind the table has, except the empty list."""
    if param.default is None or param.default == ():
        return "0"
    if not isinstance(param.default, int):
        raise TypeError(f"default of {param.name}: ParamInfo holds ints only")
    return str(int(param.default))


def op_row(op: Op) -> str:
    """One row of kOps."""
    params = ", ".join(
        f'{{"{p.name}", ParamKind::{constant(p.kind.value)}, {boolean(p.default is None)}, '
        f"{default(p)}}}"
        for p in op.params
    )
    families = ", ".join(boolean(f in op.families) for f in FAMILIES)
    return (
        f'    {{"{op.name}", OpClass::{constant(op.cls.value)}, {op.inputs}, '
        f'Rule::{constant(op.rule)}, "{op.instr}", {families}, {boolean(bool(op.decomposition))}, '
        f"{len(op.params)}, {{{{{params}}}}}}},\n"
    )


def ops_header(table: ModuleType) -> str:
    """The text of ops.gen.h."""
    ops: list[Op] = list(table.OPS)
    if {op.rule for op in ops} != set(RULES):
        raise ValueError(f"rules differ: {sorted({op.rule for op in ops} ^ set(RULES))}")
    names = "".join(f"  {identifier(op.name)},\n" for op in ops)
    classes = "".join(f"  {constant(c.value)},\n" for c in table.Class)
    kinds = "".join(f"  {constant(k.value)},\n" for k in table.Kind)
    rules = "".join(f"  {constant(r)},\n" for r in RULES)
    by_name = "".join(
        f'    {{"{name}", Op::{identifier(op.name)}}},\n'
        for name, op in sorted(table.BY_NAME.items())
    )
    return f"""// Generated from src/tilevm/ir/ops.py by generate.py. Do not edit.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace tilevm {{

enum class Op : std::uint16_t {{
{names}}};
inline constexpr int kOpCount = {len(ops)};

enum class OpClass : std::uint8_t {{
{classes}}};

// Typing rules; infer.h implements them.
enum class Rule : std::uint8_t {{
{rules}}};

enum class ParamKind : std::uint8_t {{
{kinds}}};

struct ParamInfo {{
  const char* name = "";
  ParamKind kind = ParamKind::kInt;
  bool required = true;
  std::int64_t value = 0;  // default; of AXES and SIZES: the empty list
}};

inline constexpr int kMaxParams = {max(len(op.params) for op in ops)};

struct OpInfo {{
  const char* name;
  OpClass cls;
  int inputs;  // tensor operands; -1: any number, at least 1
  Rule rule;
  const char* instr;  // instructions are <instr>_<type>; "": none
  bool f, i, b;       // families of types that have the instruction
  bool composite;     // has a decomposition: lower() leaves none
  int n_params;
  std::array<ParamInfo, kMaxParams> all_params;
  constexpr std::span<const ParamInfo> params() const {{
    return {{all_params.data(), static_cast<std::size_t>(n_params)}};
  }}
}};

// clang-format off
inline constexpr OpInfo kOps[] = {{
{"".join(op_row(op) for op in ops)}}};
// clang-format on
static_assert(sizeof(kOps) / sizeof(kOps[0]) == kOpCount);

inline constexpr const OpInfo& info(Op op) {{ return kOps[static_cast<int>(op)]; }}

// Names and aliases, sorted.
inline constexpr std::pair<std::string_view, Op> kOpNames[] = {{
{by_name}}};

inline std::optional<Op> op_from_name(std::string_view name) {{
  constexpr auto kKey = &std::pair<std::string_view, Op>::first;
  const auto* it = std::ranges::lower_bound(kOpNames, name, {{}}, kKey);
  if (it == std::end(kOpNames) || it->first != name) return std::nullopt;
  return it->second;
}}

}}  // namespace tilevm
"""


# ---- decompose.gen.inc


def attribute(text: str, param: Param, known: set[str]) -> str:
    """C++ for one argument that is a parameter."""
    if text in known:
        return text
    if text == "[]":
        return "Attr{}"
    if text in {"true", "false"}:
        return f"b.boolean({text})"
    if match := re.fullmatch(r"dtype\((\w+)\)", text):
        return f"b.dtype_of({match[1]})"
    if re.fullmatch(r"-?\d+", text):
        return f"b.integer({text})"
    raise ValueError(f"not an argument for {param.name}: {text}")


def decomposition_case(op: Op, by_name: dict[str, Op]) -> str:
    """One case of the switch over composite operators."""
    params = {p.name for p in op.params}
    lines = [f"  const ValueId {OPERANDS[i]} = in[{i}];" for i in range(op.inputs)]
    used = set(re.findall(r"\w+", op.decomposition))
    values = set(OPERANDS[: op.inputs])
    for i, param in enumerate(op.params):
        if param.name in used:
            lines.append(f"  const Attr& {param.name} = attrs[{i}];")
    result = ""
    for statement in op.decomposition.split(";"):
        result, _, right = (part.strip() for part in statement.partition("="))
        head, _, rest = right.partition(" ")
        args = [arg.strip() for arg in rest.split(",")]
        operands = args[: 1 if head == "count" else by_name[head].inputs]
        if unknown := set(operands) - values:
            raise ValueError(f"{op.name}: `{right}`: no value {', '.join(sorted(unknown))}")
        if head == "count":
            value = f"b.count({args[0]}, {args[1]})"
        else:
            inner = by_name[head]
            attrs = [
                attribute(text, param, params)
                for text, param in zip(args[inner.inputs :], inner.params, strict=False)
            ]
            value = (
                f"b.add(Op::{identifier(inner.name)}, {{{', '.join(operands)}}}, "
                f"{{{', '.join(attrs)}}})"
            )
        lines.append(f"  const ValueId {result} = {value};")
        values.add(result)
    lines.append(f"  return {result};")
    return f"case Op::{identifier(op.name)}: {{\n" + "\n".join(lines) + "\n}\n"


def decompositions(table: ModuleType) -> str:
    """The text of decompose.gen.inc."""
    cases = (decomposition_case(op, table.BY_NAME) for op in table.OPS if op.decomposition)
    return (
        "// Generated from src/tilevm/ir/ops.py by generate.py. Do not edit.\n"
        "// Cases of a switch over the operator, for core/program/lower.cpp; `in` and `attrs` are\n"
        "// the composite's, `b` builds.\n" + "".join(cases)
    )


# ---- docs/ops.md


def param_text(param: Param) -> str:
    """`axes: axes = []`."""
    text = f"{param.name}: {param.kind.value}"
    if param.default is None:
        return text
    return f"{text} = {'[]' if param.default == () else param.default}"


def ops_docs(table: ModuleType) -> str:
    """The text of docs/ops.md."""
    parts = [
        "# Operators\n\nGenerated from `src/tilevm/ir/ops.py`: do not edit. Operands are `x`, `y`, "
        "`z`. Kernels compute the dtypes named: floats are float32, float64, bfloat16 and float16, "
        "integers int64, int32, int16, int8 and uint8. A composite operator is computed by its "
        "decomposition.\n"
    ]
    for cls, title in CLASSES.items():
        parts.append(
            f"\n## {title}\n\n| operator | operands | parameters | result | kernel dtypes | "
            "meaning |\n|---|---|---|---|---|---|\n"
        )
        for op in table.OPS:
            if op.cls.name != cls:
                continue
            names = ", ".join([op.name, *op.aliases])
            operands = "any" if op.inputs < 0 else str(op.inputs)
            params = ", ".join(param_text(p) for p in op.params)
            families = ", ".join(FAMILIES[f] for f in op.families)
            doc = op.doc.replace("|", "\\|")
            if op.decomposition:
                doc += f"; `{op.decomposition}`"
            parts.append(
                f"| `{names}` | {operands} | {params} | {RULES[op.rule]} | {families} | {doc} |\n"
            )
    return "".join(parts)


def generate(out: Path, docs: Path | None) -> None:
    """Write the headers to the folder `out` and the page to `docs`, where their text changed."""
    table = load_table()
    write_if_changed(out / "ops.gen.h", ops_header(table))
    write_if_changed(out / "decompose.gen.inc", decompositions(table))
    if docs is not None:
        write_if_changed(docs / "ops.md", ops_docs(table))
