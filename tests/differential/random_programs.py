"""Random programs, drawn from the operator table, on every tier against the reference.

    python tests/differential/random_programs.py --count 10000

A failing program is shrunk and written to build/random_programs as graph text, with its sizes and
strides. `--seed` runs one seed again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.differential import noise
from tests.differential.judge import is_float, wide
from tests.differential.tiers import LAYOUTS, TIERS, array, compiled, run, tensor

from tilevm.errors import DTypeError, ShapeError
from tilevm.ir import reference
from tilevm.ir.graph import Graph, GraphBuilder, Node
from tilevm.ir.ops import OPS, Class, Kind, Op
from tilevm.ir.text import to_text
from tilevm.ir.types import (
    DTYPES,
    FLOATS,
    INTEGERS,
    AnySize,
    Size,
    Symbol,
    Type,
    numpy_dtype,
    size_value,
)

Array = Any
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130, 1023)
MOST_ELEMENTS = 20_000  # of a value
FAILURES = Path(__file__).parents[2] / "build" / "random_programs"
WEIGHTS = {
    Class.ELEMENTWISE: 40,
    Class.REDUCE: 14,
    Class.VIEW: 18,
    Class.LAYOUT: 6,
    Class.GATHER: 6,
    Class.LOOP: 5,
    Class.CREATE: 5,
    Class.COMPOSITE: 9,
    Class.CALL: 8,  # of which products alone are drawn
}
DIVIDES = ("floor_div", "remainder", "fmod")
# Which of equal elements argtopk finds, and what a search in rows that are in no order does, is
# PyTorch's choice: see test_loops.py. Operands of convolutions seldom fit by chance:
# test_torch_convolutions.py.
SEPARATE = ("call", "argtopk", "searchsorted", "grouped_matmul", "conv", "conv_windows")
OPERATORS = [op for op in OPS if WEIGHTS[op.cls] and op.name not in SEPARATE]
FACTORS = ("float32", "bfloat16", "float16")


# Programs ---------------------------------------------------------------------------------------


class Generator:
    """Appends operators to a graph, and evaluates it for small inputs on the way.

    Operators whose result is mostly NaN, infinite or huge are left unused, so that values stay
    where results say something.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.builder = GraphBuilder()
        self.values: list[str] = []  # to draw operands from
        self.sample: dict[str, Array] = {}
        self.env: dict[str, int] = {}
        self.used: set[str] = set()

    # Sizes

    def positive(self, size: AnySize) -> bool:
        """Whether a size is at least 1 for all values of its symbols, so far as one sees."""
        least = {s.name: s.min for s in self.symbols}
        more = {s.name: s.min + s.multiple_of for s in self.symbols}
        return all(size_value(size, env) > 0 for env in (least, more, self.env))

    def size(self) -> AnySize:
        symbol = Size(self.rng.choice(self.symbols).name)
        k = self.rng.randint(1, 3)
        choices: list[AnySize] = [k, k + 1, symbol, symbol, symbol + k, symbol * k, symbol // 2]
        return self.rng.choice(choices)

    def shape(self, most: int = 3) -> tuple[AnySize, ...]:
        return tuple(self.size() for _ in range(self.rng.randint(0, most)))

    def type(self, name: str) -> Type:
        return self.builder.type(name)

    def elements(self, shape: Sequence[AnySize]) -> int:
        return int(np.prod([size_value(size, self.env) for size in shape], dtype=np.int64))

    # Parameters of the graph

    def parameters(self) -> None:
        rng = self.rng
        names = ["A", "B", "C"][: rng.choice([1, 2, 2, 3])]
        self.symbols = [
            Symbol(n, rng.choice([0, 0, 0, 1, 2]), None, rng.choice([1, 1, 1, 1, 4])) for n in names
        ]
        for symbol, n in zip(self.symbols, (3, 5, 2), strict=False):
            self.builder.symbol(symbol)
            lowest = max(n, symbol.min)
            self.env[symbol.name] = -(-lowest // symbol.multiple_of) * symbol.multiple_of
        first: list[AnySize] = [Size(n) for n in names]
        rng.shuffle(first)
        first.insert(rng.randint(0, len(first)), rng.choice([1, 3])) if rng.random() < 0.2 else None
        self.parameter(Type(rng.choice(FLOATS), tuple(first)))
        for _ in range(rng.randint(0, 3)):
            if rng.random() < 0.1:
                self.parameter(Type(rng.choice(["float64", "int64", "bool"]), (), weak=True))
                continue
            shape = self.shape() if rng.random() < 0.4 else self.like(first)
            self.parameter(Type(rng.choice(DTYPES), shape))
        if rng.random() < 0.5:  # a right factor
            batch = [rng.choice([1, first[0]])] if rng.random() < 0.2 else []
            shape = (*batch, first[-1], rng.choice([self.size(), *first]))
            self.parameter(Type(rng.choice(FACTORS), shape))

    def like(self, shape: Sequence[AnySize]) -> tuple[AnySize, ...]:
        """A shape that broadcasts with this one."""
        dims = [1 if self.rng.random() < 0.2 else size for size in shape]
        return tuple(dims[self.rng.choice([0, 0, 0, 1, len(dims)]) :])

    def parameter(self, type_: Type) -> None:
        name = self.builder.param(f"x{len(self.values)}", type_)
        self.values.append(name)
        shape = tuple(size_value(size, self.env) for size in type_.shape)
        x = draw_array(type_, shape, np.random.default_rng(self.rng.getrandbits(32)))
        with np.errstate(over="ignore"):
            self.sample[name] = reference._working(x, type_.dtype)

    # Operators

    def add(self, op: str, inputs: Sequence[str] = (), **params: Any) -> str | None:
        """None if the types do not allow it, or the result says nothing."""
        try:
            name = self.builder.add(op, inputs, **params)
        except (ShapeError, DTypeError):
            return None
        node = self.builder._nodes[-1]
        if self.elements(node.types[0].shape) > 4000 or node.types[0].dtype not in DTYPES:
            if not node.types[0].weak:
                return None
        try:
            with np.errstate(all="ignore"):
                types = [self.type(i) for i in inputs]
                values = [self.sample[i] for i in inputs]
                (out,) = reference._run(node, values, types, self.env, ())
        except (IndexError, ValueError, ZeroDivisionError):
            return None
        self.sample[name] = out
        return name

    def tame(self, name: str) -> bool:
        x = self.sample[name]
        if x.dtype.kind != "f" or not x.size:
            return True
        finite = np.isfinite(x)
        small = np.max(np.abs(x[finite]), initial=0) < 1e6
        return bool(small and np.mean(finite) > 0.7) or self.rng.random() < 0.02

    def operator(self) -> None:
        weights = [WEIGHTS[op.cls] for op in CLASSES]
        cls = self.rng.choices(CLASSES, weights)[0].cls
        op = self.rng.choice([op for op in OPERATORS if op.cls is cls])
        inputs = self.operands(op)
        if inputs is None:
            return
        result = self.append(op, inputs)
        if result is not None and not self.tame(result):
            calm = self.rng.choice(["tanh", "sigmoid", "abs"])
            changed = [self.add(calm, [i]) or i for i in inputs]
            result = self.append(op, changed)
            if result is not None and not self.tame(result):
                result = None
            inputs = changed
        if result is not None:
            self.values.append(result)
            self.used.update(inputs)

    def append(self, op: Op, inputs: list[str]) -> str | None:
        if op.name in DIVIDES and not any("float" in self.type(i).dtype for i in inputs):
            odd = self.add("bitwise_or", [inputs[1], self.constant(1)])
            if odd is None:
                return None
            inputs = [inputs[0], odd]
        params = self.params(op, inputs)
        return None if params is None else self.add(op.name, inputs, **params)

    def constant(self, value: float) -> str:
        name = self.add("scalar", [], value=value)
        assert name is not None
        return name

    def pick(self, accept: Callable[[Type], bool] = lambda _: True) -> str | None:
        """A value, rather a new one."""
        found = [name for name in self.values if accept(self.type(name))]
        if not found:
            return None
        recent = found[-4:] if self.rng.random() < 0.6 else found
        return self.rng.choice(recent)

    def operands(self, op: Op) -> list[str] | None:
        rng = self.rng
        if op.inputs == 0:
            return []
        if op.cls is Class.GATHER:
            return self.gather_operands(op)
        if op.name.startswith("scatter"):
            return self.scatter_operands(op)
        if op.name == "matmul":
            return self.factors()
        strict = op.cls is not Class.ELEMENTWISE
        x = self.pick(lambda t: not (strict and (t.weak or not t.shape)))
        if x is None:
            return None
        if op.name == "where":
            c = x if self.type(x).dtype == "bool" else self.add("gt", [x, self.constant(0)])
            if c is None:
                return None
            first = self.partner(x)
            return [c, first, self.partner(first if self.type(first).shape else x)]
        if op.cls is Class.LAYOUT and op.inputs < 0:
            return self.concat_operands(x)
        inputs = [x]
        while len(inputs) < op.inputs:
            inputs.append(self.partner(x))
        rng.shuffle(inputs)
        return inputs

    def partner(self, x: str) -> str:
        """A value that broadcasts with x."""
        if self.rng.random() < 0.2:
            return self.constant(self.rng.choice([2, 0.5, 3, -1, 0.1, True]))
        shape = self.type(x).shape
        return self.pick(lambda t: broadcast(t.shape, shape)) or x

    def concat_operands(self, x: str) -> list[str] | None:
        self.axis = self.rng.randrange(len(self.type(x).shape))
        rest = without(self.type(x).shape, self.axis)
        inputs = [x]
        for _ in range(self.rng.randint(0, 2)):
            other = self.pick(
                lambda t: len(t.shape) == len(rest) + 1 and without(t.shape, self.axis) == rest
            )
            inputs.append(other or x)
        self.rng.shuffle(inputs)
        return inputs

    def gather_operands(self, op: Op) -> list[str] | None:
        """x, and an index in its range, or of no element where x has none on the axis."""
        x = self.pick(lambda t: bool(t.shape) and not t.weak)
        if x is None:
            return None
        shape = self.type(x).shape
        self.axis = self.rng.randrange(len(shape))
        size = shape[self.axis]

        def fits(t: Type) -> bool:
            if t.weak or t.dtype not in (*INTEGERS, "float32"):
                return False
            if op.name == "take":
                few = len(t.shape) <= 2 and self.elements(t.shape) * self.elements(shape) < 10_000
                return few and (self.positive(size) or size in t.shape)
            return t.shape == shape

        index: str | None = self.pick(fits)
        if index is None:
            return None
        if self.type(index).dtype not in ("int64", "int32"):  # which hold every size
            index = self.add("cast", [index], dtype=self.rng.choice(["int64", "int32"]))
        n = self.add("size_value", [], size=size)
        least = n and self.add("maximum", [n, self.constant(1)])
        inside = index and least and self.add("remainder", [index, least])
        return [x, inside] if inside else None

    def scatter_operands(self, op: Op) -> list[str] | None:
        inputs = self.gather_operands(op)
        if inputs is None:
            return None
        x = self.type(inputs[0])
        source = self.pick(lambda t: t == x)
        return [*inputs, source or inputs[0]]

    def factors(self) -> list[str] | None:
        """Two floats; the right one is a value that fits, or a transpose."""
        rng = self.rng
        x = self.pick(lambda t: t.dtype in FACTORS and bool(t.shape))
        if x is None:
            return None
        shape = self.type(x).shape

        def fits(t: Type) -> bool:
            floats = t.dtype in FACTORS and bool(t.shape)
            return floats and t.shape[-2:][0] == shape[-1] and broadcast(t.shape[:-2], shape[:-2])

        def reversed_fits(t: Type) -> bool:
            floats = t.dtype in FACTORS and len(t.shape) > 1
            return floats and t.shape[-1] == shape[-1] and broadcast(t.shape[:-2], shape[:-2])

        y = self.pick(fits)
        if y is None or rng.random() < 0.3:
            y = self.pick(reversed_fits) or x
            axes = list(range(len(self.type(y).shape)))
            turned = self.add("permute", [y], axes=(*axes[:-2], *reversed(axes[-2:])))
            y = turned or y
        if self.type(y).dtype != self.type(x).dtype:
            y = self.add("cast", [y], dtype=self.type(x).dtype)
        elif rng.random() < 0.1:
            x = self.add("cast", [x], dtype=rng.choice(["float64", "float32"])) or x
            y = self.add("cast", [y], dtype=self.type(x).dtype)
        return [x, y] if y else None

    def params(self, op: Op, inputs: Sequence[str]) -> dict[str, Any] | None:
        shape = self.type(inputs[0]).shape if inputs else self.shape()
        drawn: dict[str, Any] = {}
        for param in op.params:
            if (
                param.default is not None
                and param.kind is not Kind.AXES
                and self.rng.random() < 0.3
            ):
                continue
            value = self.param(op, param.name, param.kind, shape)
            if value is None:
                return None
            drawn[param.name] = value
        if op.name in ("amax", "amin", "argmax", "argmin"):
            axes = drawn.get("axes", [drawn.get("axis", 0)]) or range(len(shape))
            if not all(self.positive(shape[a]) for a in axes) and self.rng.random() < 0.9:
                return None
        return drawn

    def param(self, op: Op, name: str, kind: Kind, shape: tuple[AnySize, ...]) -> Any:
        rng, rank = self.rng, len(shape)
        if kind is Kind.AXIS:
            if op.cls is Class.GATHER or op.name.startswith(("concat", "scatter")):
                return self.axis
            room = rank + (op.name == "unsqueeze")
            self.axis = rng.randrange(room) if room else 0
            return self.axis - room if rng.random() < 0.3 and room else self.axis
        if kind is Kind.AXES:
            axes = list(range(rank))
            if op.name == "permute":
                rng.shuffle(axes)
                return tuple(axes)
            if op.name == "squeeze":
                axes = [a for a in axes if shape[a] == 1]
            chosen = tuple(a for a in axes if rng.random() < 0.6)
            return chosen if chosen or op.cls is not Class.COMPOSITE else tuple(axes)
        if kind is Kind.SIZES:
            return self.sizes(op, name, shape)
        if kind is Kind.SIZE:
            if op.cls is Class.CREATE:
                return self.size() if name == "size" else rng.choice([0, 1, -2, 3, self.size()])
            d = shape[self.axis % rank]
            half = d // 2
            if op.name == "select":
                return rng.choice([0, -1, half, d - 1]) if self.positive(d) else None
            if name == "start":
                return rng.choice([0, 0, 1, 2, -1, -3, half, d // 3])
            return rng.choice([d, d, half + 1, -1, 5, 10**9, half, 1])
        choices: dict[Kind, list[Any]] = {
            Kind.DTYPE: list(DTYPES),
            Kind.INT: [1, 2, 3],
            Kind.BOOL: [True, False],
            Kind.NUMBER: [1e-5, 1e-3] if name == "eps" else [0, 1, 2] if name == "correction" else
            [0, 1, -1, 2.5, 0.1, -3, True, 7, 0.0],
        }  # fmt: skip
        return rng.choice(choices[kind])

    def sizes(self, op: Op, name: str, shape: tuple[AnySize, ...]) -> Any:
        rng, rank = self.rng, len(shape)
        if op.name == "reshape":
            kind = rng.randrange(4)
            if kind == 0 or rank == 0:
                return (-1,) if all(self.positive(d) for d in shape) else (product(shape),)
            if kind == 1 and rank > 1:
                i = rng.randrange(rank - 1)
                return (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :])
            if kind == 2:
                i = rng.randrange(rank)
                d = shape[i]
                if isinstance(d, int) and d % 2 == 0:
                    return (*shape[:i], 2, d // 2, *shape[i + 1 :])
                return (*shape[:i], 1, d, *shape[i + 1 :])
            return tuple(rng.sample(shape, rank))
        if op.name == "expand":
            grown = [self.size() if d == 1 and rng.random() < 0.7 else d for d in shape]
            return tuple([self.size()] * rng.choice([0, 1]) + grown)
        if op.name == "pad":
            return tuple(rng.choice([0, 0, 1, 2, d // 2]) for d in shape)
        return shape  # full

    def results(self) -> None:
        tensors = [v for v in self.values if not self.type(v).weak]
        sinks = [v for v in tensors if v not in self.used]
        wanted = self.rng.sample(sinks, min(len(sinks), 4))
        while len(wanted) < self.rng.choice([1, 1, 2, 3]):
            wanted.append(self.rng.choice(tensors))
        for name in wanted:
            self.builder.result(name)


CLASSES = [next(op for op in OPERATORS if op.cls is cls) for cls in WEIGHTS if WEIGHTS[cls]]


def broadcast(a: Sequence[AnySize], b: Sequence[AnySize]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs)


def without(shape: Sequence[AnySize], axis: int) -> list[AnySize]:
    return [*shape[:axis], *shape[axis + 1 :]]


def product(shape: Sequence[AnySize]) -> AnySize:
    total: AnySize = 1
    for size in shape:
        total = size * total if isinstance(size, Size) else total * size
    return total


def random_graph(rng: random.Random) -> Graph:
    """A graph of a few operators that the tiers run, without call-outs."""
    generator = Generator(rng)
    generator.parameters()
    count = rng.choice([2, 4, 6, 8, 12, 16, 24, 40])
    for _ in range(4 * count):
        if len(generator.values) >= count + 3:
            break
        generator.operator()
    generator.results()
    return live(generator.builder.build())


def live(graph: Graph) -> Graph:
    """Without operators that no result needs; all parameters stay."""
    needed, kept = set(graph.results), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.out):
            needed.update(node.inputs)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


# Inputs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """An argument: its values and how they lie in memory."""

    values: Any
    layout: str = "dense"

    def argument(self, type_: Type) -> Any:
        if type_.weak:
            return self.values.item()
        return LAYOUTS[self.layout](tensor(self.values))


def draw_array(type_: Type, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = numpy_dtype(type_.dtype)
    if type_.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if type_.dtype in INTEGERS:
        if rng.random() < 0.1 and not type_.weak:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        least = 0 if type_.dtype == "uint8" else -5
        return np.asarray(rng.integers(least, 11, shape)).astype(dtype)
    x = rng.normal(size=shape) * rng.choice([0.3, 1, 4])
    if rng.random() < 0.3:
        x = np.rint(x)
    if rng.random() < 0.05 and not type_.weak:
        special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e18], size=shape)
        x = np.where(rng.random(shape) < 0.1, special, x)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(dtype)


def random_inputs(graph: Graph, seed: int) -> list[Input]:
    rng = random.Random(seed)
    values = np.random.default_rng(seed)
    for _ in range(20):
        env = {s.name: random_size(s, rng) for s in graph.symbols}
        if all(elements(t, env) <= MOST_ELEMENTS for t in graph.types().values()):
            break
    else:
        env = {s.name: -(-max(s.min, 1) // s.multiple_of) * s.multiple_of for s in graph.symbols}
    inputs = []
    for _, type_ in graph.params:
        shape = tuple(size_value(size, env) for size in type_.shape)
        layout = rng.choice([*LAYOUTS, "dense"])
        inputs.append(Input(draw_array(type_, shape, values), layout))
    return inputs


def random_size(symbol: Symbol, rng: random.Random) -> int:
    n = max(rng.choice(SIZES), symbol.min)
    return -(-n // symbol.multiple_of) * symbol.multiple_of


def elements(type_: Type, env: dict[str, int]) -> int:
    return int(np.prod([size_value(size, env) for size in type_.shape], dtype=np.int64))


# Checking ---------------------------------------------------------------------------------------

COUNTS: Counter[str] = Counter()


def failure(graph: Graph, inputs: Sequence[Input], seed: int = 0) -> str | None:
    """What is wrong on which tier; None if nothing is."""
    types = [type_ for _, type_ in graph.params]
    arguments = [x.argument(t) for x, t in zip(inputs, types, strict=True)]
    numbers = [array(x) for x in arguments]
    try:
        executable = compiled(graph)
    except Exception as error:
        return f"compile: {type(error).__name__}: {error}"
    refusal = violated(graph, reference.bind(graph, numbers))
    if refusal:
        COUNTS["input sets that break an assumption"] += 1
        return None if refused(executable, arguments) else f"interp: not refused: {refusal}"
    try:
        expected = noise.expect(graph, numbers, seed)
    except IndexError as error:  # of a gather from nothing
        COUNTS["input sets with an index out of range"] += 1
        return None if refused(executable, arguments) else f"interp: not refused: {error}"
    for tier in TIERS:
        try:
            found = run(executable, tier, arguments)
        except Exception as error:
            return f"{tier}: {type(error).__name__}: {error}"
        wrong = noise.mismatch(found, expected)
        if wrong:
            COUNTS["looked at again"] += 1
            expected = noise.expect(graph, numbers, seed, noise.MANY)
            wrong = noise.mismatch(found, expected)
        if wrong:
            return f"{tier}: {wrong}"
    count(expected)
    return None


def violated(graph: Graph, env: dict[str, int]) -> str | None:
    """The message of an assumption on sizes that typing made and that does not hold."""
    for a, b, message in graph.to_program().checks():
        if size_value(as_size(a), env) != size_value(as_size(b), env):
            return message
    return None


def as_size(size: int | str) -> AnySize:
    return size if isinstance(size, int) else Size(size)


def refused(executable: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    try:
        executable(*arguments)
    except (ShapeError, IndexError):
        return True
    return False


def count(expected: noise.Expected) -> None:
    for value, allowed, known in zip(
        expected.values, expected.allowed, expected.known, strict=True
    ):
        COUNTS["elements"] += value.size
        blind = ~known
        if is_float(value):
            e = wide(value)
            blind |= np.isfinite(e) & (allowed > 0.01 * np.abs(e) + 1e-3)
        COUNTS["elements that say nothing"] += int(np.count_nonzero(blind))


# Shrinking --------------------------------------------------------------------------------------

Case = tuple[Graph, list[Input]]


def rebuilt(graph: Graph) -> Graph | None:
    """With all types inferred anew; None if it is not valid any more."""
    try:
        return graph.builder().build()
    except Exception:
        return None


def smaller(graph: Graph, inputs: list[Input]) -> list[Case]:
    """Simpler programs, the boldest first."""
    cases: list[Case] = []
    if len(graph.results) > 1:
        cases += [(live(replace(graph, results=(r,))), inputs) for r in graph.results]
    used = {i for n in graph.nodes for i in n.inputs} | set(graph.results)
    for k, (name, _) in enumerate(graph.params):
        if name not in used and len(graph.params) > 1:
            params = graph.params[:k] + graph.params[k + 1 :]
            cases.append((replace(graph, params=params), inputs[:k] + inputs[k + 1 :]))
    arguments = [array(x.argument(t)) for x, (_, t) in zip(inputs, graph.params, strict=True)]
    for node in reversed(graph.nodes):
        cases += [(cut, inputs) for cut in bypasses(graph, node)]
        whole = replace(graph, results=node.out)
        (value,) = reference.evaluate(whole, *arguments)
        params = (*graph.params, (node.out[0], node.types[0]))
        nodes = tuple(n for n in graph.nodes if n is not node)
        cut = live(replace(graph, params=params, nodes=nodes))
        cases.append((cut, [*inputs, Input(value)]))
    for k, x in enumerate(inputs):
        if x.layout != "dense":
            dense = [*inputs]
            dense[k] = Input(x.values)
            cases.append((graph, dense))
    env = reference.bind(graph, arguments)
    for symbol in graph.symbols:
        n = env.get(symbol.name, 0)
        for less in sorted({n // 2, n - 1, 2, 1}):
            if symbol.min <= less < n and less % symbol.multiple_of == 0:
                cut_inputs = narrowed(graph, inputs, {**env, symbol.name: less})
                if cut_inputs:
                    cases.append((graph, cut_inputs))
    return cases


def bypasses(graph: Graph, node: Node) -> list[Graph]:
    """An operand in the place of the result."""
    types = graph.types()
    found = []
    for name in node.inputs:
        if types[name].dtype != node.types[0].dtype:
            continue
        nodes = tuple(
            replace(n, inputs=tuple(name if i == node.out[0] else i for i in n.inputs))
            for n in graph.nodes
            if n is not node
        )
        results = tuple(name if r == node.out[0] else r for r in graph.results)
        found.append(live(replace(graph, nodes=nodes, results=results)))
    return found


def narrowed(graph: Graph, inputs: list[Input], env: dict[str, int]) -> list[Input] | None:
    cut = []
    for x, (_, type_) in zip(inputs, graph.params, strict=True):
        shape = tuple(size_value(size, env) for size in type_.shape)
        if any(n > m for n, m in zip(shape, x.values.shape, strict=True)):
            return None
        cut.append(Input(x.values[tuple(slice(n) for n in shape)], x.layout))
    return cut


def shrunk(graph: Graph, inputs: list[Input], steps: int = 600) -> Case:
    """A smaller program that fails as this one: with a mismatch, or with an error of that class."""
    kind = _kind(failure(graph, inputs))
    while steps > 0:
        for candidate, values in smaller(graph, inputs):
            steps -= 1
            again = rebuilt(candidate)
            if again is None or steps < 0 or any(again.types()[r].weak for r in again.results):
                continue
            try:
                wrong = failure(again, values)
            except Exception:
                continue
            if wrong and _kind(wrong) == kind:
                graph, inputs = again, values
                break
        else:
            break
    return graph, inputs


def _kind(wrong: str | None) -> str:
    return ":".join((wrong or "").split(":")[:2]).split(" of ")[0][:24]


def report(graph: Graph, inputs: Sequence[Input], wrong: str) -> str:
    """The program as text that can be parsed, and how to call it."""
    rows = [to_text(graph, lines=False)]
    for (name, type_), x in zip(graph.params, inputs, strict=True):
        argument = x.argument(type_)
        strides = "" if type_.weak else f" strides {argument.stride()}"
        rows.append(f"# {name}: {x.layout} {list(x.values.shape)}{strides}")
        if x.values.size <= 40:
            rows.append(f"#   {np.asarray(array(argument)).tolist()}")
    rows += [f"# {row}" for row in wrong.splitlines()]
    return "\n".join(rows) + "\n"


# Running ----------------------------------------------------------------------------------------


def check_seed(seed: int, sets: int = 3) -> str | None:
    """The report of one random program, for `sets` sets of inputs; None if it is right."""
    graph = random_graph(random.Random(seed))
    COUNTS["programs"] += 1
    COUNTS.update({f"op {node.op}": 1 for node in graph.nodes})
    for k in range(sets):
        inputs = random_inputs(graph, seed * 16 + k)
        wrong = failure(graph, inputs, seed)
        if wrong:
            graph, inputs = shrunk(graph, inputs)
            final = failure(graph, inputs) or wrong
            text = f"# seed {seed}, inputs {k}\n" + report(graph, inputs, final)
            FAILURES.mkdir(parents=True, exist_ok=True)
            (FAILURES / f"{seed}.txt").write_text(text, encoding="utf-8")
            return text
    return None


def main() -> None:
    """Run many seeds, print what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(
        options.start, options.start + options.count
    )  # fmt: skip
    failed: list[int] = []
    began = time.perf_counter()
    for i, seed in enumerate(seeds):
        text = check_seed(seed)
        if text:
            failed.append(seed)
            print(f"--- FAILED seed {seed}\n{text}", flush=True)
            if len(failed) >= options.most:
                break
        if i % 500 == 499:
            print(f"{i + 1} programs, {len(failed)} failed, {time.perf_counter() - began:.0f} s")
    for name, n in sorted(COUNTS.items()):
        print(f"{n:9} {name}")
    print(f"failed: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
