"""What results a graph may have: the reference, with the rounding errors a tier may make.

A tier rounds each operator to float32 (float64 to itself), and its functions err by a few units of
the last place. A value of low precision is rounded where it is stored, compared, rounded or
arg-reduced, and which values are stored is the fuser's choice (DESIGN section 11). Evaluating the
reference several times, each with random errors of that size at every operator, says how far each
element of a result may be off, and which elements are no test at all: comparisons of values that
are nearly equal, and what follows.
(Stochastic arithmetic: J. Vignes, Math. and Computers in Simulation 35, 1993.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.differential.judge import at, is_float, ulp, wide

from tilevm.errors import ShapeError
from tilevm.ir import reference
from tilevm.ir.graph import Graph, GraphBuilder, Node
from tilevm.ir.ops import BY_NAME, Class, Kind
from tilevm.ir.types import FLOATS, LOW_PRECISION, AnySize, Size, Type

Array = Any
FEW, MANY = 6, 150  # samples to look first, and before something is called wrong
LARGE = 50_000  # elements, of which fewer samples show as much
TIMES = 3.0  # how far a result may be off, against the largest deviation seen
UNITS = 2.0

# Correctly rounded by every tier: exact where its type has the exact result. (Sums are in double,
# or of two doubles; those of float32 may add eight elements before that: _of_groups.)
_ROUNDED = frozenset(
    "add sub mul div reciprocal sqrt full scalar fmod remainder floor_div where cast neg abs sign "
    "maximum minimum copysign floor ceil round trunc amax amin size_value sum mean matmul "
    "cumsum cumprod cummax cummin logcumsumexp "
    "scatter scatter_add scatter_mul scatter_max scatter_min".split()
)
_FUNCTION_UNITS = 3.0  # 2 by DESIGN section 8, and the rounding of what goes in
_SUMS = frozenset("cumsum cumprod logcumsumexp scatter_add scatter_mul".split())
_BY_OPERAND = frozenset(("gelu", "gelu_tanh", "silu"))  # their errors are absolute
# The sign of a zero is the tier's choice, as it is eager's.
_ANY_ZERO = frozenset(
    "maximum minimum amax amin sum mean prod fmod remainder floor_div matmul "
    "cumsum cumprod cummax cummin scatter_add scatter_mul scatter_max scatter_min".split()
)
# Arithmetic makes NaN of the sign that a tier gives it, and what rounds to a narrower type any.
_KEEPS_NAN = (Class.VIEW, Class.LAYOUT, Class.GATHER, Class.CREATE)
_MOVES_BITS = frozenset("neg abs copysign where cast".split())
_LOG_LARGEST = {"float32": 88.0, "float64": 709.0}


def computed_in(type_: Type) -> str:
    """The type in which a tier computes with floats; Python's, beside others than float64."""
    return "float64" if type_.dtype == "float64" and not type_.weak else "float32"


def _units(node: Node, inputs: Sequence[Array], out: Array) -> Array | float:
    """Largest error of the operator, in units of the last place of its result."""
    row = BY_NAME[node.op]
    if row.name in _ROUNDED:
        return np.where(out == out.astype(computed_in(node.types[0])), 0.0, 1.0)
    if row.cls in (Class.VIEW, Class.LAYOUT, Class.GATHER, Class.CREATE):
        return 0.0
    if row.name == "prod":
        return 1.0 + 2.0 * np.sqrt(inputs[0].size / max(out.size, 1))
    if row.inputs == 1 and inputs[0].shape == out.shape:
        return np.where(inputs[0] == 0, 0.0, _FUNCTION_UNITS)  # exp(0) is 1
    return _FUNCTION_UNITS


def _of_groups(node: Node, x: Array, rng: np.random.Generator) -> Array | float:
    """The error of a sum of float32 of which groups of elements are added in float32."""
    if computed_in(node.types[0]) != "float32" or not x.size:
        return 0.0
    axes = tuple(dict(node.params)["axes"]) or None
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    kept = bool(dict(node.params)["keepdims"])
    with np.errstate(all="ignore"):
        error = np.sqrt(np.sum(finite * finite, axis=axes, keepdims=kept))
        if 8 * np.max(np.abs(finite)) > np.finfo(np.float32).max:
            error = np.full_like(error, np.nan)  # groups may overflow
        if node.op == "mean":
            error = error * (error.size / x.size)
    return np.asarray(rng.uniform(-1, 1, error.shape) * error * 2.0**-24)


def _cancelled(node: Node, x: Array) -> Array:
    """How much of a sum the roundings of its terms are: what is smaller may as well be zero."""
    params = dict(node.params)
    axes, kept = tuple(params["axes"]) or None, bool(params["keepdims"])
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    dtype = node.types[0].dtype
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}.get(dtype, 2.0**-24)
    error = np.sqrt(np.sum(finite * finite, axis=axes, keepdims=kept)) * unit
    return np.asarray(error * (error.size / max(x.size, 1)) if node.op == "mean" else error)


def _in_pairs(node: Node, x: Array, y: Array) -> bool:
    """Whether a tier may multiply these by instructions for bfloat16.

    They take denormals for zero, and make none, as PyTorch's products of that type do.
    """
    if node.types[0].dtype in LOW_PRECISION:
        return True
    return all(np.array_equal(reference.round_to(z, "bfloat16"), z, equal_nan=True) for z in (x, y))


def _denormal(x: Array) -> Array:
    return (x != 0) & (np.abs(x) < 2.0**-126)


def _lost(a: Array, b: Array) -> Array:
    """What products of absolute values lose where denormals are taken for zero."""
    lost = np.matmul(a * _denormal(a), b) + np.matmul(a, b * _denormal(b))
    return np.asarray(lost + a.shape[-1] * 2.0**-126)


def _of_products(node: Node, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """The error of a matrix product: of each sum, that of as many roundings as it has terms.

    Each is a unit of the sum of the terms' sizes at most. They add up like the steps of a random
    walk; where terms are alike, all in one direction.
    """
    computed = computed_in(node.types[0])
    terms = x.shape[-1]
    a, b = (np.abs(np.where(np.isfinite(z), z, 0)).astype(np.float64) for z in (x, y))
    with np.errstate(all="ignore"):
        most = np.matmul(a, b)
        alike = rng.random() < 0.3
        steps = 1 + (terms / 2 if alike else np.sqrt(terms))
        error = steps * (most * np.finfo(computed).eps / 2)
        error += terms * float(np.finfo(computed).smallest_subnormal)
        error = np.where(most > np.finfo(computed).max, np.nan, error)  # sums may overflow
        if _in_pairs(node, x, y):
            # Times infinity, what is taken for zero is NaN.
            tiny, infinite = (
                [test(z).astype(np.float64) for z in (x, y)] for test in (_denormal, np.isinf)
            )
            met = np.matmul(infinite[0], tiny[1]) + np.matmul(tiny[0], infinite[1])
            error = np.where(met > 0, np.nan, error + _lost(a, b))
    return np.asarray(rng.uniform(-1, 1, () if alike else error.shape) * error)


def _cancelled_products(node: Node, x: Array, y: Array) -> Array:
    """How much of a product its terms' roundings are: what is smaller may as well be zero."""
    a, b = (np.abs(np.where(np.isfinite(z), z, 0)).astype(np.float64) for z in (x, y))
    eps = float(np.finfo(computed_in(node.types[0])).eps)
    with np.errstate(all="ignore"):
        least = np.matmul(a, b) * np.sqrt(x.shape[-1]) * eps / 2
        return np.asarray(least + _lost(a, b) if _in_pairs(node, x, y) else least)


def _of_loops(node: Node, inputs: Sequence[Array], rng: np.random.Generator) -> Array | float:
    """The error of sums and products one after the other, in the type that holds them."""
    type_ = node.types[0]
    if type_.dtype not in FLOATS or not inputs[0].size:
        return 0.0
    low = type_.dtype in LOW_PRECISION
    x, *rest = (np.abs(np.where(np.isfinite(z), z, 0)).astype(np.float64) for z in inputs)
    axis = dict(node.params)["axis"]
    if node.op == "logcumsumexp":
        eps = float(np.finfo("float32" if low else type_.dtype).eps)
        with np.errstate(all="ignore"):
            largest = most = np.maximum.accumulate(x, axis=axis) + np.log(x.shape[axis])
        held, terms = "float64", 8
    elif node.op.startswith("cum"):
        held = "float32" if low else "float64"
        eps, terms = float(np.finfo(held).eps), x.shape[axis]
        fold = np.cumsum if node.op == "cumsum" else np.cumprod
        with np.errstate(all="ignore"):
            most = fold(x, axis=axis)
            largest = np.maximum.accumulate(most, axis=axis)
    else:
        eps = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}.get(
            type_.dtype, 2.0**-52
        )
        terms = inputs[1].shape[axis] + 1
        meaning = BY_NAME[node.op].meaning
        assert meaning is not None
        largest = most = meaning(x, inputs[1], rest[1], axis=axis)
        held = computed_in(type_)
        if node.op == "scatter_mul":
            with np.errstate(all="ignore"):
                largest = meaning(np.maximum(x, 1), inputs[1], np.maximum(rest[1], 1), axis=axis)
    error = np.where(np.isfinite(most), most, 0) * eps * terms / 2
    # What is too large for the type once, or too small, stays so.
    error = np.where(largest > np.finfo(held).max, np.nan, error)
    if node.op == "cumprod":
        least = np.minimum.accumulate(np.where(most == 0, 1, most), axis=axis)
        error = np.where(least < np.finfo(held).tiny, np.nan, error)
    return np.asarray(rng.uniform(-1, 1, error.shape) * error)


def _shaken(x: Array, units: Array | float, computed: str, rng: np.random.Generator) -> Array:
    if not np.any(units):
        return x
    finite = np.isfinite(x) & (x != 0)  # functions are exact at their zeros
    alike = rng.random() < 0.3  # equal values err alike: what they add up to is off by as much
    error = (
        rng.uniform(-1, 1, () if alike else x.shape) * units * ulp(np.where(finite, x, 0), computed)
    )
    return np.where(finite, x + error, x)


class _Parts:
    """The operators that a tier makes of composite ones, by the name of their result."""

    def __init__(self, graph: Graph) -> None:
        self.builder = GraphBuilder()
        self.of: dict[str, tuple[Node, ...]] = {}
        self.last: dict[str, str] = {}
        for symbol in graph.symbols:
            self.builder.symbol(symbol)
        for name, type_ in graph.params:
            self.builder.param(name, type_)
        for node in graph.nodes:
            self.builder.append(node)
        for node in graph.nodes:  # new names only after all that are given
            if BY_NAME[node.op].decomposition:
                try:
                    self._expand(node)
                except ShapeError:  # a row that is known to be empty
                    self.of.pop(node.out[0], None)
        self.types = {**self.builder._types}

    def _expand(self, node: Node) -> None:
        row = BY_NAME[node.op]
        builder, begin = self.builder, len(self.builder._nodes)
        known: dict[str, Any] = dict(node.params)
        dtype = node.types[0].dtype
        floats = row.rule in ("reduce_float", "float_axis", "float_axes")
        for letter, name in zip("xyz", node.inputs, strict=False):
            changed = floats and builder.type(name).dtype != dtype
            known[letter] = builder.add("cast", [name], dtype=dtype) if changed else name
        result = ""
        for statement in row.decomposition.split(";"):
            result, _, right = (part.strip() for part in statement.partition("="))
            op, _, rest = right.partition(" ")
            texts = [text.strip() for text in rest.split(",")]
            known[result] = self._statement(op, texts, known)
        self.of[node.out[0]] = tuple(builder._nodes[begin:])
        self.last[node.out[0]] = known[result]

    def _statement(self, op: str, texts: list[str], known: dict[str, Any]) -> str:
        if op == "count":
            type_ = self.builder.type(known[texts[0]])
            axes = known[texts[1]] or range(len(type_.shape))
            count: AnySize = 1
            for axis in axes:
                size = type_.shape[axis]
                count = size * count if isinstance(size, Size) else count * size
            return self.builder.add("size_value", [], size=count)
        row = BY_NAME[op]
        inputs = [known[text] for text in texts[: row.inputs]]
        params: dict[str, Any] = {}
        for param, text in zip(row.params, texts[row.inputs :], strict=False):
            literal = {"true": True, "false": False, "[]": ()}.get(text, known.get(text))
            if text.startswith("dtype("):
                literal = self.builder.type(known[text[6:-1]]).dtype
            value = int(text) if literal is None else literal
            alone = param.kind is Kind.AXES and isinstance(value, int)
            params[param.name] = (value,) if alone else value
        return self.builder.add(op, inputs, **params)


class _Sample:
    """One evaluation with errors. rounding: how likely a value is rounded to its dtype.

    Number 0 rounds every value, as eager does, and errs no further; number 1 rounds none; number 2
    rounds every value of the graph, but none inside of a composite operator.
    """

    def __init__(self, parts: _Parts, number: int, rng: np.random.Generator) -> None:
        self.parts = parts
        self.number = number
        self.rng = rng
        self.rounding = 1.0 if number == 0 else 0.0 if number == 1 else rng.random()

    def run(self, graph: Graph, arrays: Sequence[Any]) -> list[Array]:
        env = reference.bind(graph, arrays)
        values: dict[str, Array] = {}
        for (name, type_), x in zip(graph.params, arrays, strict=True):
            rounds = type_.weak and type_.dtype == "float64" and self.rng.random() < self.rounding
            rounded = reference.round_to(x, "float32" if rounds else type_.dtype)
            values[name] = reference._working(rounded, type_.dtype)
        for node in graph.nodes:
            parts = self.parts.of.get(node.out[0])
            if parts is None or not values[node.inputs[0]].size:
                self._one(node, values, env)
                continue
            for part in parts:
                self._one(part, values, env, inside=part is not parts[-1])
            values[node.out[0]] = values[self.parts.last[node.out[0]]]
        return [values[name] for name in graph.results]

    def _one(
        self, node: Node, values: dict[str, Array], env: dict[str, int], *, inside: bool = False
    ) -> None:
        inputs = [values[name] for name in node.inputs]
        types = [self.parts.types[name] for name in node.inputs]
        (out,) = reference._run(node, inputs, types, env, ())
        values[node.out[0]] = self._after(node, inputs, out, inside)

    def _after(self, node: Node, inputs: list[Array], out: Array, inside: bool) -> Array:
        dtype = node.types[0].dtype
        if dtype not in FLOATS:
            return out
        low = dtype in LOW_PRECISION
        stored, computed = dtype, computed_in(node.types[0])
        working = reference.working_dtype(dtype)
        if self.number in (0, 2):
            rounds = stored if low and not (inside and self.number) else computed
            return np.asarray(reference.round_to(out, rounds).astype(working))
        out = _shaken(out, _units(node, inputs, out), computed, self.rng)
        if node.op in ("sum", "mean"):
            out = out + _of_groups(node, inputs[0], self.rng)
            if self.number % 2:
                out = np.where(np.abs(out) <= _cancelled(node, inputs[0]), 0, out)
        if node.op in _SUMS:
            out = out + _of_loops(node, inputs, self.rng)
        if node.op == "matmul":
            off = out + _of_products(node, inputs[0], inputs[1], self.rng)
            if self.number % 2:
                least = np.fmin(np.abs(out), np.abs(off))
                off = np.where(least <= _cancelled_products(node, *inputs), 0, off)
            out = off
        if node.op in _BY_OPERAND:
            room = ulp(np.where(np.isfinite(out), inputs[0].astype(working), 0), computed)
            out = out + self.rng.uniform(-1, 1, out.shape) * room
            if self.number % 2:  # as zero, too, it is near enough
                out = np.where(np.abs(out) <= room, 0, out)
        if node.op in _ANY_ZERO:
            out = np.where(out == 0, self._zeros(out), out)
        if BY_NAME[node.op].cls not in _KEEPS_NAN and (low or node.op not in _MOVES_BITS):
            out = np.where(np.isnan(out), np.copysign(out, self._zeros(out)), out)
        if node.op == "prod":  # overflows on the way, in one order or another
            with np.errstate(all="ignore"):
                most = np.sum(np.maximum(np.log(np.abs(inputs[0])), 0))
            if not most < _LOG_LARGEST[computed]:
                out = np.full_like(out, (0.0, np.nan, np.inf)[self.number % 3])
        if self.rng.random() < self.rounding:  # also where float32 overflows
            out = reference.round_to(out, stored if low else computed).astype(working)
        return np.asarray(out)

    def _zeros(self, x: Array) -> Array:
        """Zeros with signs: all alike, as a tier makes them that ignores signs, or any."""
        choice = self.rng.integers(4)
        negative = (self.rng.random(x.shape) < 0.5, True, False, np.signbit(x))[choice]
        return np.where(negative, -0.0, 0.0)


@dataclass
class Expected:
    """Results with how far they may be off. `known`: the element is a test."""

    values: list[Array]
    allowed: list[Array]
    known: list[Array]


def expect(graph: Graph, arrays: Sequence[Any], seed: int, samples: int = FEW) -> Expected:
    """Of a graph without call-outs."""
    exact = list(reference.evaluate(graph, *arrays))
    deviation = [np.zeros(x.shape) for x in exact]
    known = [np.ones(x.shape, bool) for x in exact]
    rng = np.random.default_rng(seed)
    parts = _Parts(graph)
    for i in range(samples):
        with np.errstate(all="ignore"):
            outputs = _Sample(parts, i, rng).run(graph, arrays)
        for k, (x, output) in enumerate(zip(exact, outputs, strict=True)):
            if not is_float(x):
                known[k] &= x == output
                continue
            e = wide(x)
            y = wide(reference.round_to(output, x.dtype.name))
            known[k] &= np.isfinite(e) == np.isfinite(y)
            known[k] &= np.isfinite(e) | (e == y) | (np.isnan(e) & np.isnan(y))
            both = np.isfinite(e) & np.isfinite(y)
            off = np.where(both, np.abs(np.where(both, y, 0) - np.where(both, e, 0)), 0)
            deviation[k] = np.maximum(deviation[k], off)
    allowed = [
        TIMES * d + UNITS * ulp(np.where(np.isfinite(wide(x)), wide(x), 0), x.dtype.name)
        if is_float(x)
        else d
        for x, d in zip(exact, deviation, strict=True)
    ]
    return Expected(exact, allowed, known)


def explains(graph: Graph, arrays: Sequence[Any], found: Sequence[Array]) -> str | None:
    """What is wrong with the results even if each operator errs as much as it may."""
    large = max(np.size(x) for x in arrays) > LARGE
    return mismatch(found, expect(graph, arrays, 0, FEW if large else MANY))


def mismatch(found: Sequence[Array], expected: Expected) -> str | None:
    """What is wrong with the results, if something is."""
    if len(found) != len(expected.values):
        return f"{len(found)} results, not {len(expected.values)}"
    triples = zip(found, expected.values, expected.allowed, expected.known, strict=True)
    for i, (f, e, allowed, known) in enumerate(triples):
        if f.dtype != e.dtype or f.shape != e.shape:
            return f"result {i} is {f.dtype}{list(f.shape)}, not {e.dtype}{list(e.shape)}"
        if not is_float(e):
            wrong = known & (f != e)
        else:
            x, y = wide(f), wide(e)
            with np.errstate(invalid="ignore"):
                near = np.abs(x - y) <= allowed
            wrong = known & ~((x == y) | near | (np.isnan(x) & np.isnan(y)))
        if np.any(wrong):
            return f"result {i}: {at(wrong, found=f, expected=e, allowed=allowed)}"
    return None
