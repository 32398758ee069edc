"""The graph: frozen data. `GraphBuilder` makes one; a pass is a function from Graph to Graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilevm.ir.ops import BY_NAME, Kind, Op
from tilevm.ir.types import AnySize, Size, Symbol, Type, dtype_name
from tilevm.runtime import program as runtime

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = ("max", "min")  # of size expressions


@dataclass(frozen=True)
class Node:
    """An operator applied to values. `out` and `types` have one entry a result.

    `params` are the operator's, all of them, in the order of the table.
    """

    out: tuple[str, ...]
    op: str
    inputs: tuple[str, ...]
    params: tuple[tuple[str, Any], ...]
    types: tuple[Type, ...]
    line: str | None = field(default=None, compare=False)  # of the source: "model.py:41"

    def param(self, name: str) -> Any:
        """The parameter of that name."""
        return dict(self.params)[name]


@dataclass(frozen=True)
class Graph:
    """Typed operators in the order they run. Names are unique; values are used after defined."""

    params: tuple[tuple[str, Type], ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    symbols: tuple[Symbol, ...] = ()  # in an order that the normal form of sizes depends on

    def types(self) -> dict[str, Type]:
        """The type of each value."""
        types = dict(self.params)
        for node in self.nodes:
            types.update(zip(node.out, node.types, strict=True))
        return types

    def builder(self) -> GraphBuilder:
        """A builder that holds this graph: all types are inferred anew."""
        builder = GraphBuilder()
        for symbol in self.symbols:
            builder.symbol(symbol)
        for name, type_ in self.params:
            builder.param(name, type_)
        for node in self.nodes:
            builder.append(node)
        for name in self.results:
            builder.result(name)
        return builder

    def to_program(self) -> runtime.Program:
        """The core's program of the same meaning."""
        return self.builder().program


ITEM = -2  # the target of a call that reads a number from a tensor
OPAQUE = "opaque"  # the dtype of what only names a size


class GraphBuilder:
    """Builds a graph, and the core's program along with it: the core infers each type.

    Values are handled by name. Typing raises ShapeError or DTypeError, which name the operator,
    the line and the types.
    """

    def __init__(self) -> None:
        self.program = runtime.new_program()
        self._ids: dict[str, int] = {}
        self._types: dict[str, Type] = {}
        self._params: list[str] = []
        self._nodes: list[Node] = []
        self._results: list[str] = []
        self._symbols: dict[str, Symbol] = {}

    def symbol(self, symbol: Symbol) -> Size:
        """Declare a symbol, before its first use."""
        if symbol.name not in self._symbols:
            self._symbols[symbol.name] = symbol
            most = 2**63 - 1 if symbol.max is None else symbol.max
            self.program.symbol(symbol.name, symbol.min, most, symbol.multiple_of)
        return Size(symbol.name)

    def size(self, size: AnySize) -> AnySize:
        """`size` in normal form: an int if it is known. Its unknown names become symbols."""
        if isinstance(size, int):
            return size
        for name in _NAME.findall(size.text):
            if name not in self._symbols and name not in _FUNCTIONS:
                self.symbol(Symbol(name))
        return _size(self.program.size_str(size.text))

    def param(self, name: str, type_: Type) -> str:
        """Append a parameter of the graph."""
        shape = [_core(self.size(size)) for size in type_.shape]
        self._define(name, self.program.input(type_.dtype, shape, type_.weak))
        self._params.append(name)
        return name

    def add(
        self,
        op: str,
        inputs: Sequence[str] = (),
        *,
        name: str = "",
        line: str | None = None,
        **params: Any,
    ) -> str:
        """Append an operator of the table and return its result's name, a new one if none is given.

        Parameters not given have the table's default. Raises: ShapeError, DTypeError; KeyError and
        TypeError, if there is no such operator or parameter.
        """
        row = BY_NAME[op]
        values = self._normal(row, params)
        core = {key: _core(value) for key, value in values.items()}
        value = self.program.add(row.name, [self._ids[i] for i in inputs], core, line)
        out = self._define(name, value)
        self._nodes.append(
            Node((out,), row.name, tuple(inputs), tuple(values.items()), (self._types[out],), line)
        )
        return out

    def call(
        self,
        target: int,
        inputs: Sequence[str],
        types: Sequence[Type],
        *,
        names: Sequence[str] = (),
        line: str | None = None,
    ) -> tuple[str, ...]:
        """Append a call-out with results of these types; returns their names.

        The target `ITEM` is the read of a tensor's only element: a Python number, and, if there is
        a second result, the size that its type names. Nothing else may have results of `OPAQUE`.
        """
        core = [(t.dtype, t.weak, tuple(_core(self.size(s)) for s in t.shape)) for t in types]
        ids = [self._ids[i] for i in inputs]
        if target == ITEM:
            sizes = [(t.dtype, *map(str, t.shape)) for t in types[1:]]
            named = all(s[0] == OPAQUE and len(s) == 2 and s[1].isidentifier() for s in sizes)
            if len(ids) != 1 or len(types) not in (1, 2) or not named:
                raise ValueError("an item is read from one value, and is a number and its size")
            first = self.program.item(ids[0], sizes[0][1] if sizes else None, line)
        elif target < 0 or any(t.dtype == OPAQUE for t in types):
            raise ValueError(f"there is no call-out {target} with {len(types)} such results")
        else:
            first = self.program.call(target, ids, core, line)
        out = tuple(self._define(names[i] if names else "", first + i) for i in range(len(types)))
        inferred = tuple(self._types[name] for name in out)
        self._nodes.append(Node(out, "call", tuple(inputs), (("target", target),), inferred, line))
        return out

    def append(self, node: Node) -> tuple[str, ...]:
        """Append an operator as another graph has it, under the same names."""
        params = dict(node.params)
        if node.op == "call":
            return self.call(
                params["target"], node.inputs, node.types, names=node.out, line=node.line
            )
        return (self.add(node.op, node.inputs, name=node.out[0], line=node.line, **params),)

    def result(self, name: str) -> None:
        """Append a result of the graph."""
        self.program.output(self._ids[name])
        self._results.append(name)

    def type(self, name: str) -> Type:
        """The type of a value."""
        return self._types[name]

    def defines(self, name: str) -> bool:
        """Whether there is a value of that name."""
        return name in self._ids

    def normal(self, type_: Type) -> Type:
        """`type_` with its sizes in normal form."""
        return replace(type_, shape=tuple(self.size(size) for size in type_.shape))

    def build(self) -> Graph:
        """The graph so far."""
        params = tuple((name, self._types[name]) for name in self._params)
        symbols = tuple(self._symbols.values())
        return Graph(params, tuple(self._nodes), tuple(self._results), symbols)

    def _define(self, name: str, value: int) -> str:
        if name in self._ids:
            raise ValueError(f"{name} is defined twice: give each value a name of its own")
        number = len(self._ids)
        while not name or name in self._ids:
            name = f"v{number}"
            number += 1
        dtype, weak, shape = self.program.type(value)
        self._ids[name] = value
        self._types[name] = Type(dtype, tuple(_size(size) for size in shape), weak)
        return name

    def _normal(self, row: Op, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters of `row`, checked by kind and in normal form."""
        known = {param.name for param in row.params}
        missing = [p.name for p in row.params if p.default is None and p.name not in given]
        if missing or not known.issuperset(given):
            wrong = f"needs {', '.join(missing)}" if missing else "has no such parameter"
            raise TypeError(f"{row.name} {wrong}: given {list(given)}, parameters {sorted(known)}")
        return {p.name: self._value(p.kind, given.get(p.name, p.default)) for p in row.params}

    def _value(self, kind: Kind, value: Any) -> Any:
        if kind is Kind.SIZES:
            return tuple(self.size(size) for size in value)
        if kind is Kind.SIZE:
            return self.size(value)
        if kind is Kind.AXES:
            return tuple(int(axis) for axis in value)
        if kind is Kind.DTYPE:
            return dtype_name(value)
        if kind is Kind.NUMBER:
            number = value.item() if isinstance(value, np.generic) else value
            isnan = isinstance(number, float) and math.isnan(number)
            return math.nan if isnan else number  # the one NaN, so that graphs compare equal
        return bool(value) if kind is Kind.BOOL else int(value)


def symbols_of(sizes: Iterable[AnySize]) -> list[str]:
    """The symbols of these sizes in order of appearance, with repetitions."""
    texts = (size.text for size in sizes if isinstance(size, Size))
    return [name for text in texts for name in _NAME.findall(text) if name not in _FUNCTIONS]


def _size(core: int | str) -> AnySize:
    """A size as the core gives it."""
    if isinstance(core, str) and not core.lstrip("-").isdigit():
        return Size(core)
    return int(core)


def _core(value: Any) -> Any:
    """A parameter as the core takes it."""
    if isinstance(value, Size):
        return value.text
    return [_core(item) for item in value] if isinstance(value, tuple) else value
