"""A failing call made small: `tilevm replay FILE --minimise OUT.zip`.

Candidates are smaller calls; one that fails in the same way takes the place of the call. They go
from results and whole sub-graphs over single operators and sizes to the inputs' elements, and again
as long as something helps. Each is tried in a process of its own, which lives on between tries
unless a call takes it down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.errors import TilevmError
from tilevm.ir import reference
from tilevm.ir.compare import differences
from tilevm.ir.graph import OPAQUE, Graph, Node
from tilevm.ir.ops import BY_NAME, Kind
from tilevm.ir.text import to_text
from tilevm.ir.types import FLOATS, Type, size_value
from tilevm.tools import archive, replay
from tilevm.tools.archive import Call
from tilevm.tools.worker import Worker, WorkerDied, WorkerError

LIMIT_S = 60.0  # for one try; beyond it the call hangs
MOST_TRIES = 5000
TRIAL = "tilevm.tools.minimise:Trial"
RIGHT = ""

Judge = Callable[
    [Call, str], str
]  # how the call fails on a tier, in a few words; RIGHT: it does not


class Trial:
    """Runs calls in this process."""

    def bound(self) -> None:
        """Bound the memory of this process, which is then for tries alone."""
        replay.bound_memory()

    def failure(self, call: Call, tier: str) -> str:
        """How the call fails on the tier; where the reference fails alike, it does not."""
        exact, raised = _outcome(call, "reference")
        found, error = _outcome(call, tier)
        if error:
            return RIGHT if error == raised else error
        if raised:
            return RIGHT  # there is nothing to compare with
        dtypes = [t.dtype for t in call.graph.types().values() if not t.weak and t.dtype != OPAQUE]
        return "differs" if differences(found, exact, dtypes=dtypes) else RIGHT

    def raised(self, call: Call) -> str:
        """What the reference raises, with its message; "": nothing."""
        try:
            replay.run_tier(call, "reference")
        except Exception as error:  # as in `_outcome`
            return f"{type(error).__name__}: {error}".removesuffix(": ")
        return ""


def _outcome(call: Call, tier: str) -> tuple[tuple[Any, ...], str]:
    """The results; or none, and what was raised."""
    try:
        return replay.run_tier(call, tier), ""
    except Exception as error:  # whatever it is, it is how the call fails
        return (), f"raises {type(error).__name__}"


class Judging:
    """A `Trial` in a process of its own, and another one when that has died."""

    def __init__(self, target: str = TRIAL) -> None:
        self._target = target
        self._worker: Worker | None = None

    def __call__(self, call: Call, tier: str) -> str:
        """How the call fails on the tier."""
        return self._asked("failure", call, tier)

    def raised(self, call: Call) -> str:
        """What the reference raises; "": nothing."""
        return self._asked("raised", call)

    def _asked(self, question: str, *args: Any) -> str:
        try:
            if self._worker is None:
                self._worker = Worker(self._target, (), {"TILEVM_FAILURES": "off"})
                self._worker.call("bound")
            return str(self._worker.call(question, *args, limit_s=LIMIT_S))
        except WorkerDied as death:
            self.close()
            return "hangs" if death.summary.startswith("no answer") else "dies"
        except WorkerError as error:
            return f"cannot be tried: {error.summary}"

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@dataclass
class Minimiser:
    """A call that fails on a tier, and smaller ones that fail in the same way."""

    call: Call
    tier: str
    failure: str
    judge: Judge
    tries: int = 0

    def run(self) -> Call:
        """The smallest call that was found."""
        steps = (_parts, _static, _cut_operands, _without_operators, _smaller, _simpler)
        size = None
        while size != (size := _size(self.call)) and self.tries < MOST_TRIES:
            for step in steps:
                self._exhaust(step)
        return self.call

    def _exhaust(self, candidates: Callable[[Call], Iterator[Call]]) -> None:
        """Take candidates until none fails any more."""
        found = True
        while found:
            found = False
            for candidate in candidates(self.call):
                if self.tries >= MOST_TRIES:
                    return
                self.tries += 1
                if self.judge(candidate, self.tier) == self.failure:
                    self.call, found = candidate, True
                    break


def first_failure(call: Call, judge: Judge) -> tuple[str, str]:
    """The first tier on which the call fails, and how; "", "": on none."""
    for tier in replay.TIERS[1:]:
        if failure := judge(call, tier):
            return tier, failure
    return "", RIGHT


def run(path: Path, out: Path, judge: Judging | None = None) -> int:
    """Minimise the call of a file into another. Returns the exit code: 1 if it does not fail."""
    judge = judge or Judging()
    try:
        call = archive.load(path)
        if not out.parent.is_dir():  # said now, rather than when all is done
            raise NotADirectoryError(f"there is no directory {out.parent} for {out.name}")
        tier, failure = first_failure(call, judge)
        if not failure:
            found = "The call fails on no tier"
            if raised := judge.raised(call):
                found = f"The reference raises {raised}\nNo tier fails in another way"
            print(f"{found}: there is nothing to minimise.")
            return 1
        before = len(call.graph.nodes)
        print(f"On {tier} the call {failure}, with {before} operators.")
        minimiser = Minimiser(call, tier, failure, judge)
        small = minimiser.run()
        note = f"made small from {path.name}: on {tier} it {failure}"
        archive.save(out, small.graph, small.inputs, note=note, targets=small.targets)
    except (TilevmError, OSError) as error:
        sys.stderr.write(f"tilevm replay: {error}\n")
        return 2
    finally:
        judge.close()
    print(f"With {len(small.graph.nodes)} it still does, after {minimiser.tries} tries:\n")
    print(to_text(small.graph))
    for (name, type_), value in zip(small.graph.params, small.inputs, strict=True):
        print(f"  {name}: {type_} is {replay.described(value)}")
    print(f"\nSaved: tilevm replay {out}")
    return 0


# Candidates -------------------------------------------------------------------------------------


def _size(call: Call) -> tuple[int, ...]:
    arrays = [x for x in call.inputs if isinstance(x, np.ndarray)]
    varied = sum(len(np.unique(x)) for x in arrays)
    return len(call.graph.nodes), len(call.inputs), sum(x.size for x in arrays), varied


def _parts(call: Call) -> Iterator[Call]:
    """One value alone, the smallest part that computes it first; then without a result."""
    graph = call.graph
    if len(graph.nodes) > 1 or len(graph.results) > 1:
        sizes = sorted((len(_needed(graph, [n])), i, n) for i, n in enumerate(_values(graph)))
        now = len(_needed(graph, graph.results))
        for size, _, name in sizes:
            if size < now or len(graph.results) > 1:
                yield from _built(call, graph.nodes, (name,))
    for gone in graph.results[:-1]:
        yield from _built(call, graph.nodes, tuple(r for r in graph.results if r != gone))


def _static(call: Call) -> Iterator[Call]:
    """With the sizes of this call as constants."""
    if not call.graph.symbols:
        return
    env = reference.bind(call.graph, call.inputs)
    try:
        params = tuple((name, _fixed(type_, env)) for name, type_ in call.graph.params)
        nodes = tuple(
            _with_sizes(node, lambda size: size_value(size, env)) for node in call.graph.nodes
        )
    except (TilevmError, ValueError, KeyError):
        return  # a size that only the data know
    yield from _built(call, nodes, call.graph.results, params=params)


def _cut_operands(call: Call) -> Iterator[Call]:
    """With values of the reference as inputs, in place of what computes them: many, then few."""
    graph = call.graph
    inner = [name for name in _values(graph) if name not in graph.results]
    values = _evaluated(call, inner)
    if values is None:
        return
    amount = len(inner)
    while amount:
        for at in range(0, len(inner), amount):
            chosen = {name: values[name] for name in inner[at : at + amount]}
            yield from _built(call, graph.nodes, graph.results, given=chosen)
        amount //= 2


def _without_operators(call: Call) -> Iterator[Call]:
    """Without an operator: an operand of the same type takes the place of its result."""
    types = call.graph.types()
    for node in call.graph.nodes:
        for operand in dict.fromkeys(node.inputs):
            if len(node.out) > 1 or types[operand] != node.types[0]:
                continue
            instead = {node.out[0]: operand}
            nodes = tuple(
                replace(n, inputs=tuple(instead.get(i, i) for i in n.inputs))
                for n in call.graph.nodes
                if n is not node
            )
            results = tuple(instead.get(r, r) for r in call.graph.results)
            yield from _built(call, nodes, results)


def _smaller(call: Call) -> Iterator[Call]:
    """With a smaller size wherever a size of the inputs is the same number."""
    arrays = [x for x in call.inputs if isinstance(x, np.ndarray)]
    extents = sorted({n for x in arrays for n in x.shape if n > 1}, reverse=True)
    for old in extents:
        for new in dict.fromkeys((1, 2, 3, 8, old // 2, old - 1)):
            if new >= old:
                continue

            def size(value: Any, old: int = old, new: int = new) -> Any:
                return new if value == old else value

            inputs = tuple(_narrowed(x, old, new) for x in call.inputs)
            params = tuple(
                (name, replace(type_, shape=tuple(map(size, type_.shape))))
                for name, type_ in call.graph.params
            )
            nodes = tuple(_with_sizes(node, size) for node in call.graph.nodes)
            smaller = replace(call, inputs=inputs)
            yield from _built(smaller, nodes, call.graph.results, params=params)


def _simpler(call: Call) -> Iterator[Call]:
    """With inputs that are all 0, all 1, whole, or all their first element."""
    for i, value in enumerate(call.inputs):
        for simple in _simple(value):
            inputs = (*call.inputs[:i], simple, *call.inputs[i + 1 :])
            yield replace(call, inputs=inputs)


def _simple(value: Any) -> Iterator[Any]:
    if not isinstance(value, np.ndarray):
        plain = [type(value)(n) for n in (0, 1, 2)]
        yield from plain[: plain.index(value)] if value in plain else plain
        return
    if not value.size:
        return
    flat = value.reshape(-1)
    kinds = [np.zeros_like(value), np.ones_like(value), np.full_like(value, flat[0])]
    if value.dtype.name in FLOATS:
        kinds.append(np.rint(value).astype(value.dtype))
    for simple in kinds:
        if np.array_equal(simple, value):
            return  # those behind are no simpler
        yield simple


# Parts of them ----------------------------------------------------------------------------------


def _values(graph: Graph) -> list[str]:
    """What operators compute; what only names a size is nothing by itself."""
    typed = (zip(node.out, node.types, strict=True) for node in graph.nodes)
    return [name for pairs in typed for name, type_ in pairs if type_.dtype != OPAQUE]


def _needed(graph: Graph, results: Any) -> set[str]:
    """Values of the graph's operators that the results are computed from, themselves included."""
    needed = set(results)
    for node in reversed(graph.nodes):
        if needed.intersection(node.out):
            needed.update(node.inputs)
            needed.update(node.out)
    return needed.intersection(_values(graph))


def _built(
    call: Call,
    nodes: tuple[Node, ...],
    results: tuple[str, ...],
    *,
    params: tuple[tuple[str, Type], ...] | None = None,
    given: dict[str, Any] | None = None,
) -> Iterator[Call]:
    """The call of what these results need, typed anew; none, if that is no program.

    given: values that become inputs.
    """
    given = given or {}
    types = call.graph.types()
    pairs = list(zip(params or call.graph.params, call.inputs, strict=True))
    pairs += [((name, types[name]), value) for name, value in given.items()]
    nodes = tuple(node for node in nodes if not set(node.out) <= set(given))
    needed = set(results)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.out):
            needed.update(node.inputs)
            kept.append(node)
    pairs = [pair for pair in pairs if pair[0][0] in needed]
    sizes = [n for (_, t), _ in pairs for n in t.shape]
    symbols = call.graph.symbols if any(not isinstance(n, int) for n in sizes) else ()
    graph = Graph(tuple(p for p, _ in pairs), tuple(reversed(kept)), results, symbols)
    inputs = tuple(value for _, value in pairs)
    try:
        built = graph.builder().build()
        reference.bind(built, inputs)
    except (TilevmError, ValueError, TypeError, KeyError):
        return
    yield replace(call, graph=built, inputs=inputs)


def _evaluated(call: Call, names: list[str]) -> dict[str, Any] | None:
    """What the reference computes for these values; None: it fails."""
    functions = replay.functions_of(call)
    whole = replace(call.graph, results=tuple(names))
    types = call.graph.types()
    try:
        found = reference.evaluate(whole, *call.inputs, targets=functions)
    except Exception:  # of whatever is called out
        return None
    return {
        name: value.item() if types[name].weak else value
        for name, value in zip(names, found, strict=True)
    }


def _fixed(type_: Type, env: dict[str, int]) -> Type:
    return replace(type_, shape=tuple(size_value(size, env) for size in type_.shape))


def _with_sizes(node: Node, size: Callable[[Any], Any]) -> Node:
    """The operator with its parameters that are sizes, and types of call-outs, changed."""
    kinds = {param.name: param.kind for param in BY_NAME[node.op].params}
    params = tuple(
        (name, tuple(map(size, value)) if kinds[name] is Kind.SIZES else size(value))
        if kinds[name] in (Kind.SIZE, Kind.SIZES)
        else (name, value)
        for name, value in node.params
    )
    types = tuple(replace(t, shape=tuple(map(size, t.shape))) for t in node.types)
    return replace(node, params=params, types=types)


def _narrowed(value: Any, old: int, new: int) -> Any:
    """An array with the first `new` of `old` elements along each axis that has so many."""
    if not isinstance(value, np.ndarray):
        return value
    return np.ascontiguousarray(value[tuple(slice(new if n == old else n) for n in value.shape)])
