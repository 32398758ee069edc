"""Guards of a capture, as Python source over the leaves `l` of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilevm.frontends import generated, torch_strides, torch_tree
from tilevm.frontends.torch_exported import Call, Plan
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_program import Captured, FloatInput
from tilevm.frontends.torch_sizes import MODULES


@dataclass(frozen=True)
class Condition:
    """A guard: Python source over the leaves `l`, text for people, and the sizes it is about."""

    source: str
    text: str
    about: frozenset[tuple[int, int]] = frozenset()


def predicate(conditions: Sequence[Condition], binds: Sequence[str]) -> Any:
    """`holds(leaves)`: whether all conditions do."""
    test = " and ".join(c.source for c in conditions) or "True"
    used = [line for line in binds if re.search(rf"\b{line.partition(' ')[0]}\b", test)]
    lines = [*used, f"return {test}"]
    if "//" in test or "%" in test:
        body = [f"  {line}" for line in lines]
        lines = ["try:", *body, "except ZeroDivisionError:", "  return False"]
    return generated.function("holds(l)", lines, MODULES)


def spelled(source: str, binds: Sequence[str]) -> str:
    """`source` with what its symbols are bound to in place of their names."""
    for line in binds:
        symbol, _, value = line.partition(" = ")
        source = re.sub(rf"\b{symbol}\b", value, source)
    return source


def conditions_of(
    captured: Captured, inputs: list[Any], places: dict[int, int], call: Call, plan: Plan
) -> list[Condition]:
    """The guards of a capture, without repetitions.

    inputs: values of the program's inputs. places: input -> leaf of the call.
    """
    sizes, leaves = captured.sizes, call.constants
    found: dict[str, Condition] = {}
    where = {s: (places[i], d) for s, i, d in sizes.sources if i in places}
    written = {s: str(s) for s in where}
    said = {s: torch_tree.place(call.tree, *at) for s, at in where.items()}
    sources = set(where.values())
    shown: dict[Any, set[tuple[int, int]]] = {}  # symbol -> all places whose size it is part of
    for place, index in places.items():
        value = inputs[place]
        for d, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]:
            if isinstance(size, torch.SymInt):
                for symbol in sizes.expr(size).free_symbols:
                    shown.setdefault(symbol, set()).add((index, d))

    def add(expr: Any, *, test: str = "", at: tuple[int, int] | None = None) -> None:
        """`expr test`; with `at`, `expr == the size there`."""
        expr = sizes.over_sources(expr)
        if not set(expr.free_symbols) <= set(where):
            raise Refused(f"a guard is over {expr}")
        about = {at} if at else set()
        about.update(*(shown[s] for s in expr.free_symbols))
        texts = []
        for names, place in ((written, torch_tree.source_place), (said, torch_tree.place)):
            text = sizes.python(expr, names)
            tail = f" == {place(call.tree, *at)}" if at else test
            texts.append(f"({text}){tail}" if " or " in text or " and " in text else text + tail)
        found.setdefault(texts[0], Condition(texts[0], texts[1], frozenset(about)))

    def equal(at: tuple[int, int], value: Any) -> None:
        """The size or number at that place is `value`."""
        test = f" == {repr(value).replace('inf', '1e999')}"  # a literal, as other numbers are
        source = torch_tree.source_place(call.tree, *at)
        if isinstance(value, float) and math.isnan(value):
            test = f" != {source}"  # NaN
        text = torch_tree.place(call.tree, *at) + f" == {value!r}"
        found.setdefault(source + test, Condition(source + test, text, frozenset({at})))

    for place, index in places.items():
        value = inputs[place]
        axes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]
        for d, size in axes:
            if (index, d) in sources or isinstance(size, FloatInput):
                continue
            if isinstance(size, torch.SymInt):
                add(size.node.expr, at=(index, d))
            else:
                equal((index, d), size)
    traced = {index for index, _ in call.given}
    for index, value in enumerate(leaves):
        if index not in traced and not isinstance(value, torch.Tensor):
            equal((index, -1), value)
    for symbol, (_, axis) in where.items():
        least = sizes.least(symbol) if axis < 0 or not plan.oblivious else None
        if least is not None:
            add(symbol, test=f" >= {least}")  # what the trace took for granted
    if plan.positive:
        for symbol, (_, axis) in where.items():
            if axis >= 0:
                add(symbol, test=" >= 1")
    if call.seen.strides:
        for index in traced:
            if isinstance(leaves[index], torch.Tensor):
                source, text = (
                    torch_strides.row_major(name, leaves[index].dim())
                    for name in (f"l[{index}]", torch_tree.leaf_name(call.tree, index))
                )
                found.setdefault(source, Condition(source, text))
    for place in sorted(captured.imported.from_start):
        source, text = (
            f"{name}.storage_offset() == 0"
            for name in (f"l[{places[place]}]", torch_tree.leaf_name(call.tree, places[place]))
        )
        found.setdefault(source, Condition(source, text))
    for expr in sizes.guards():
        add(expr)
    for expr, factor in sizes.divides:
        add(expr, test=f" % {factor} == 0")
    for expr, test in captured.imported.assumed:
        add(expr, test=f" {test}")
    return list(found.values())
