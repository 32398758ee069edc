"""What results a graph may have: the reference, with the rounding errors a tier may make.

A tier rounds each operator to float32, and its functions err by a few units of the last place. A
bfloat16 value is rounded where it is stored, compared, rounded or arg-reduced, and which values are
stored is the fuser's choice (DESIGN section 11). Evaluating the reference several times, each with
random errors of that size at every operator, says how far each element of a result may be off, and
which elements are no test at all: comparisons of values that are nearly equal, and what follows.
(Stochastic arithmetic: J. Vignes, Math. and Computers in Simulation 35, 1993.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.differential.judge import at, is_float, ulp, wide
from tilevm.ir import reference
from tilevm.ir.graph import Graph, Node
from tilevm.ir.ops import BY_NAME, Class
from tilevm.ir.types import FLOATS

Array = Any
FEW, MANY = 6, 150  # samples to look first, and before something is called wrong
TIMES = 3.0  # how far a result may be off, against the largest deviation seen
UNITS = 2.0

# Correctly rounded by every tier: exact where float32 has the exact result.
_ROUNDED = frozenset(
    "add sub mul div reciprocal sqrt full scalar fmod remainder floor_div where cast neg abs sign "
    "relu maximum minimum clamp floor ceil round trunc amax amin size_value".split()
)
_COMPOSITE_UNITS = 4.0
_FUNCTION_UNITS = 3.0  # 2 by DESIGN section 8, and the rounding of what goes in
_BY_OPERAND = frozenset(("gelu", "gelu_tanh", "silu"))  # their errors are absolute


def _units(node: Node, inputs: Sequence[Array], out: Array) -> Array | float:
    """Largest error of the operator, in units of the last place of its result."""
    row = BY_NAME[node.op]
    if row.name in _ROUNDED:
        return np.where(out == out.astype(np.float32), 0.0, 1.0)
    if row.cls in (Class.VIEW, Class.LAYOUT, Class.GATHER, Class.CREATE):
        return 0.0
    if row.name == "prod":
        return 1.0 + 2.0 * np.sqrt(inputs[0].size / max(out.size, 1))
    if row.name == "sum":
        exact = np.all(inputs[0] == np.rint(inputs[0])) and np.sum(np.abs(inputs[0])) < 2**24
        return 0.0 if exact else 2.0
    return _COMPOSITE_UNITS if row.cls is Class.COMPOSITE else _FUNCTION_UNITS


def _shaken(x: Array, units: Array | float, rng: np.random.Generator) -> Array:
    if not np.any(units):
        return x
    finite = np.isfinite(x)
    error = rng.uniform(-1, 1, x.shape) * units * ulp(np.where(finite, x, 0), "float32")
    return np.where(finite, x + error, x)


class _Sample:
    """One evaluation with errors. rounding: how likely a bfloat16 value is rounded."""

    def __init__(self, rng: np.random.Generator, rounding: float):
        self.rng = rng
        self.rounding = rounding

    def run(self, graph: Graph, arrays: Sequence[Any]) -> list[Array]:
        env = reference.bind(graph, arrays)
        types = graph.types()
        values: dict[str, Array] = {}
        for (name, type_), x in zip(graph.params, arrays, strict=True):
            values[name] = reference._working(reference.round_to(x, type_.dtype), type_.dtype)
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                inputs = [values[name] for name in node.inputs]
                inputs = self._before(node, inputs)
                in_types = [types[name] for name in node.inputs]
                (out,) = reference._run(node, inputs, in_types, env, ())
                values[node.out[0]] = self._after(node, inputs, out)
        return [values[name] for name in graph.results]

    def _before(self, node: Node, inputs: list[Array]) -> list[Array]:
        """Errors inside of operators that add up many operands: some are alike for all of them."""
        row = BY_NAME[node.op]
        sums = row.cls is Class.COMPOSITE or row.name == "sum"
        if not sums or inputs[0].dtype.kind != "f" or _units(node, inputs, np.zeros(1)) == 0.0:
            return inputs
        alike = 1.0 + self.rng.uniform(-1, 1) * 2.0**-25
        x = inputs[0]
        x = np.where(x > 0, x * alike, x) if self.rng.random() < 0.5 else x * alike
        return [_shaken(x, 1.0, self.rng)]

    def _after(self, node: Node, inputs: list[Array], out: Array) -> Array:
        dtype = node.types[0].dtype
        if dtype not in FLOATS:
            return out
        out = _shaken(out, _units(node, inputs, out), self.rng)
        if node.op == "log_softmax":  # log of a sum that is just above 1
            out = out + self.rng.uniform(-1, 1, out.shape) * 2.0**-23
        if node.op in _BY_OPERAND:
            out = out + self.rng.uniform(-1, 1, out.shape) * ulp(
                np.where(np.isfinite(out), inputs[0].astype(np.float64), 0), "float32"
            )
        if self.rng.random() < self.rounding:  # also where float32 overflows
            rounds = dtype if dtype == "bfloat16" else "float32"
            out = reference.round_to(out, rounds).astype(np.float64)
        return out


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
    for i in range(samples):
        rounding = 1.0 if i == 0 else 0.0 if i == 1 else rng.random()
        outputs = _Sample(rng, rounding).run(graph, arrays)
        for k, (x, y) in enumerate(zip(exact, outputs, strict=True)):
            if not is_float(x):
                known[k] &= x == y
                continue
            e = wide(x)
            y = wide(reference.round_to(y, x.dtype.name)) if i < 2 else y  # overflow as stored
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
