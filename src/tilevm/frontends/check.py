"""`tilevm.config.check`: which calls are compared, and what happens where they differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilevm.config import config
from tilevm.errors import WrongResult
from tilevm.frontends.arrays import Arrays, framework_of
from tilevm.ir import reference
from tilevm.ir.compare import Towards, disagreements, nudged
from tilevm.ir.graph import Graph
from tilevm.ir.text import lowered
from tilevm.runtime import failure
from tilevm.runtime import program as runtime
from tilevm.stats import stats


class Turns:
    """Says of each call of a function whether it is one to compare: the first, then every n-th."""

    def __init__(self) -> None:
        self._calls = 0

    def due(self) -> bool:
        """Whether this call is to be compared."""
        if not config.check:
            return False
        self._calls += 1
        return (self._calls - 1) % int(config.check) == 0


def settle(
    wrong: Sequence[str],
    *,
    door: str,
    title: str,
    against: str,
    inputs: Callable[[], Sequence[str]],
    called: Any,
    given: Sequence[Any],
) -> None:
    """Count a comparison. Raises: WrongResult, if something is wrong; the call is saved then.

    inputs: what they are, for people. called, given: what `tilevm.tools.archive.save` takes.
    """
    stats.add("checks", f"{door}: {'wrong' if wrong else 'right'}")
    if not wrong:
        return
    error = WrongResult(
        f"{title}: {'; '.join(wrong)}\n"
        f"  Compared with {against}, since tilevm.config.check is {config.check}.\n"
        f"  Inputs: {', '.join(inputs()) or 'none'}."
    )
    failure.save(called, tuple(given), error)
    raise error


def kernel(
    title: str, graph: Graph, arrays: Arrays, operands: Sequence[Any], results: Sequence[Any]
) -> None:
    """Compare what a kernel made of its operands with the meaning of its graph."""
    plain = [arrays.to_numpy(x) if framework_of(x) else x for x in operands]

    @functools.cache
    def steps() -> Graph:  # what it consists of, where a norm or softmax is one operator
        return lowered(runtime.compile_program(graph.to_program(), [], framework="numpy"))[0]

    def again(towards: Towards | None) -> Sequence[Any]:
        def rounding(x: Any) -> Any:
            return x if towards is None else nudged(x, towards)

        moved = [rounding(x) if isinstance(x, np.ndarray) else x for x in plain]
        try:
            return reference.evaluate(steps(), *moved, rounding=rounding)
        except ValueError:  # NumPy has no extremum of nothing, softmax has
            return reference.evaluate(graph, *moved, rounding=rounding)

    wrong = disagreements(
        [np.asarray(arrays.to_numpy(x)) for x in results],
        reference.evaluate(graph, *plain),
        again,
        [type_.dtype for type_ in graph.types().values() if not type_.weak],
    )
    typed = zip(graph.params, plain, strict=True)
    settle(
        wrong,
        door="kernel",
        title=title,
        against="the meaning of its graph in NumPy",
        inputs=lambda: [
            f"{name}: {type_.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else f"{x!r}"
            for (name, type_), x in typed
        ],
        called=graph,
        given=plain,
    )
