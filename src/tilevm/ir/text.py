"""The graph as text. Printing and parsing are inverse; source lines survive as comments.

    graph(x: float32[B, 8], w: float32[8, 4], n: float)
      where B in 1..64, B % 8 == 0
      h: float32[B, 4] = matmul x, w  # model.py:41
      s: float32[B] = sum h, axes=[1]
      return s

A parameter that has the table's default is not printed. In text written by hand, types left of
`=` may be left out, except of a `call`. `n: int, s: opaque[u0] = call x, target=-2` reads a number
from the tensor x, which is the size u0 from there on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tilevm.errors import ParseError, TilevmError
from tilevm.ir.graph import OPAQUE, Graph, GraphBuilder, Node, symbols_of
from tilevm.ir.ops import BY_NAME, Kind
from tilevm.ir.types import DTYPES, WEAK, AnySize, Size, Symbol, Type
from tilevm.runtime import program as runtime

_GRAPH = re.compile(r"graph\((.*)\)$")
_OPERATOR = re.compile(r"([a-z_]\w*)(?:\s+(.*))?$")
_TYPE = re.compile(r"(\w+)\[(.*)\]$")
_ARGUMENT = re.compile(r"([a-z_]\w*)=(.*)$")
_RANGE = re.compile(r"(\w+) in (\d+)\.\.(\d*)$")
_MULTIPLE = re.compile(r"(\w+) % (\d+) == 0$")
_LIKELY = re.compile(r"(\w+) likely \[([\d, ]*)\]$")
_CORE_DTYPE = re.compile(r"(\w+): (?:weak )?(\w+)")
_UNBOUNDED = 2**63 - 1
_INT = re.compile(r"-?\d+$")

# Printing ---------------------------------------------------------------------------------------


def to_text(graph: Graph, *, lines: bool = True) -> str:
    """The graph as text; `lines`: with the source line of each operator as a comment."""
    params = ", ".join(f"{name}: {type_}" for name, type_ in graph.params)
    rows = [f"graph({params})"]
    named = dict.fromkeys(symbols_of(size for _, t in graph.params for size in t.shape))
    stated = [s for s in graph.symbols if s.name not in named or s != Symbol(s.name)]
    parsed = [*(s.name for s in stated), *(n for n in named if n not in {s.name for s in stated})]
    if parsed != [s.name for s in graph.symbols]:
        stated = list(graph.symbols)  # to keep their order
    if stated:
        rows.append(f"  where {', '.join(map(str, stated))}")
    rows += [_node_text(node, lines) for node in graph.nodes]
    rows.append(f"  return {', '.join(graph.results)}".rstrip())
    return "\n".join(rows) + "\n"


def _node_text(node: Node, lines: bool) -> str:
    row = BY_NAME[node.op]
    results = [f"{name}: {type_}" for name, type_ in zip(node.out, node.types, strict=True)]
    arguments = list(node.inputs)
    for param in row.params:
        value = node.param(param.name)
        if type(value) is not type(param.default) or value != param.default:
            arguments.append(f"{param.name}={_value_text(value)}")
    text = f"  {', '.join(results)} = {node.op} {', '.join(arguments)}".rstrip()
    return f"{text}  # {node.line}" if lines and node.line else text


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)


# Parsing ----------------------------------------------------------------------------------------


def from_text(text: str) -> Graph:
    """The graph that `text` says, typed anew. Raises: ParseError, which names the line."""
    rows = [(i, *_comment(row)) for i, row in enumerate(text.splitlines(), 1)]
    rows = [(i, row, comment) for i, row, comment in rows if row]
    builder = GraphBuilder()
    for position, (number, row, comment) in enumerate(rows):
        try:
            if position == 0:
                where = rows[1][1] if len(rows) > 1 else ""
                _header(builder, row, where.removeprefix("where ") if where[:6] == "where " else "")
            elif position == 1 and row.startswith("where "):
                continue
            elif row == "return" or row.startswith("return "):
                for name in _split(row[len("return") :]):
                    builder.result(_known(builder, name))
                if position + 1 < len(rows):
                    raise ParseError("there is text after `return`: remove it")
                return builder.build()
            else:
                _node(builder, row, comment)
        except (TilevmError, ValueError, TypeError) as error:
            told = f"line {number}: `{_short(row, 200)}`: {_short(str(error), 1000)}"
            raise ParseError(told) from error
    raise ParseError(f"line {len(text.splitlines()) + 1}: the graph does not end: add `return ...`")


def from_core(text: str, symbols: Sequence[Symbol]) -> Graph:
    """The graph that the core's text of a program says. Raises: ParseError."""
    rows = text.splitlines()
    head = re.sub(r"weak (\w+)", lambda match: WEAK[match[1]], rows[0])
    lines = [head.replace("program(", "graph(", 1)]
    dtypes = dict(_CORE_DTYPE.findall(text))
    if symbols:
        lines.append(f"  where {', '.join(map(str, symbols))}")
    for row in rows[1:]:
        code, mark, comment = row.partition("  # ")
        if code.strip().startswith("check "):  # typing states them anew
            continue
        left, _, right = code.strip().partition("=")
        match = _OPERATOR.match(right.lstrip())
        if match and match[1] != "call":  # types are inferred anew
            names = [part.partition(":")[0].strip() for part in _split(left)]
            inputs = match[2] or ""
            if match[1] == "matmul":  # a lowered one also takes what its result is not
                dtype = dtypes[names[0]]
                for operand in dict.fromkeys(_split(inputs)):
                    if dtypes[operand] != dtype:
                        wide = f"{operand}_for_{names[0]}"
                        lines.append(f"  {wide} = cast {operand}, dtype={dtype}")
                        inputs = re.sub(rf"\b{operand}\b", wide, inputs)
            code = f"  {', '.join(names)} = {match[1]} {inputs}"
        else:
            code = re.sub(r"weak (\w+)", lambda match: WEAK[match[1]], code)
        lines.append(code + mark + comment)
    return from_text("\n".join(lines))


def lowered(executable: Any) -> tuple[Graph, list[str]]:
    """The graph that a compiled program runs, and the sources of what it calls out.

    Raises: ParseError, if text cannot hold it.
    """
    text, facts, targets = runtime.program_text(executable)
    symbols = [
        Symbol(name, max(least, 0), None if most == _UNBOUNDED else most, multiple)
        for name, least, most, multiple in facts
    ]
    return from_core(text, symbols), targets


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _comment(row: str) -> tuple[str, str | None]:
    code, _, comment = row.partition("#")
    return code.strip(), comment.strip() or None


def _split(text: str) -> list[str]:
    """Parts between the commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    if depth:
        raise ParseError("brackets do not match")
    parts.append(text[begin:].strip())
    if parts == [""]:
        return []
    if "" in parts:
        raise ParseError("there is nothing between two commas: remove one")
    return parts


def _header(builder: GraphBuilder, row: str, where: str) -> None:
    match = _GRAPH.match(row)
    if not match:
        raise ParseError("expected `graph(name: type, ...)`")
    params = [_declaration(part) for part in _split(match[1])]
    symbols: dict[str, dict[str, Any]] = {}
    for fact in _split(where):
        if match := _RANGE.match(fact):
            least, most = int(match[2]), int(match[3]) if match[3] else None
            known: dict[str, Any] = {"min": least, "max": most}
        elif match := _MULTIPLE.match(fact):
            known = {"multiple_of": int(match[2])}
        elif match := _LIKELY.match(fact):
            known = {"likely": tuple(int(size) for size in _split(match[2]))}
        else:
            raise ParseError(
                f"`{fact}` is no fact: write `B in 1..64`, `B % 8 == 0` or `B likely [1, 8]`"
            )
        symbols.setdefault(match[1], {}).update(known)
    for name in symbols_of(size for _, t in params if t for size in t.shape):
        symbols.setdefault(name, {})
    for name, facts in symbols.items():
        builder.symbol(Symbol(name, **facts))
    for name, type_ in params:
        if type_ is None:
            raise ParseError(f"parameter {name} needs a type: `{name}: float32[B, 8]`")
        builder.param(name, type_)


def _declaration(text: str, opaque: bool = False) -> tuple[str, Type | None]:
    """`h: float32[B, 4]`, or `h` alone. opaque: whether it may be what only names a size."""
    name, colon, type_ = text.partition(":")
    if not name.strip().isidentifier():
        raise ParseError(f"`{name.strip()}` is not a name")
    return name.strip(), _type(type_.strip(), opaque) if colon else None


def _type(text: str, opaque: bool = False) -> Type:
    for dtype, word in WEAK.items():
        if text == word:
            return Type(dtype, weak=True)
    match = _TYPE.match(text)
    if not match or match[1] not in (*DTYPES, *([OPAQUE] if opaque else [])):
        raise ParseError(
            f"`{text}` is not a type: write `float32[B, 8]`, `float32[]` for rank 0, or `float`, "
            f"`int`, `bool` for a number; dtypes are {', '.join(DTYPES)}"
        )
    return Type(match[1], _sizes(_split(match[2])))


def _sizes(texts: Sequence[str]) -> tuple[AnySize, ...]:
    return tuple(int(text) if _INT.match(text) else Size(text) for text in texts)


def _known(builder: GraphBuilder, name: str) -> str:
    if not builder.defines(name):
        raise ParseError(f"there is no value `{name}` before this line")
    return name


def _node(builder: GraphBuilder, row: str, line: str | None) -> None:
    head, _, code = row.partition("=")
    match = _OPERATOR.match(code.lstrip())
    if not match:
        raise ParseError("expected `name: type = operator arguments` or `return names`")
    op, right = match[1], match[2] or ""
    left = [_declaration(part, opaque=op == "call") for part in _split(head)]
    if op not in BY_NAME:
        raise ParseError(f"there is no operator `{op}`: docs/ops.md lists them")
    kinds = {param.name: param.kind for param in BY_NAME[op].params}
    inputs, params = [], {}
    for argument in _split(right):
        parts = _ARGUMENT.match(argument)
        if not parts:
            inputs.append(_known(builder, argument))
        elif parts[1] in kinds:
            params[parts[1]] = _value(kinds[parts[1]], parts[2].strip())
        else:
            raise ParseError(f"{op} has no parameter {parts[1]}, only {', '.join(kinds) or 'none'}")
    if op == "call":
        types = [type_ for _, type_ in left if type_ is not None]
        if len(types) < len(left) or "target" not in params:
            raise ParseError("a call needs target=, and a type for each result")
        names = [name for name, _ in left]
        builder.call(params["target"], inputs, types, names=names, line=line)
        return
    if len(left) != 1:
        raise ParseError(f"{op} has one result, not {len(left)}")
    name, declared = left[0]
    builder.add(op, inputs, name=name, line=line, **params)
    inferred = builder.type(name)
    if declared and builder.normal(declared) != inferred:
        raise ParseError(f"{name} is {inferred}, not {declared}: write that, or leave the type out")


def _value(kind: Kind, text: str) -> Any:
    listed = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else None
    words = {"true": True, "false": False}
    if kind is Kind.SIZES and listed is not None:
        return _sizes(_split(listed))
    if kind is Kind.AXES and listed is not None:
        return tuple(int(axis) for axis in _split(listed))
    if kind is Kind.SIZE:
        return _sizes([text])[0]
    if kind is Kind.DTYPE:
        return text
    if kind in (Kind.BOOL, Kind.NUMBER) and text in words:
        return words[text]
    if kind in (Kind.AXIS, Kind.INT, Kind.NUMBER) and _INT.match(text):
        return int(text)
    if kind is Kind.NUMBER:
        return float(text)
    raise ParseError(f"`{text}` is not of the kind {kind.value}")
