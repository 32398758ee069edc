"""Folds of few and long rows, which threads share: in parts, whose results are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential.test_reductions import agrees, graph_of, values
from tests.differential.tiers import LAYOUTS, TIERS, compiled, run

import tilevm
from tilevm import config, lang
from tilevm.ir.types import DTYPES

# Sizes, and the axes that are folded: rows, columns, both, and what lies between others.
CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((100_003,), (0,)),
    ((3, 65_536), (1,)),
    ((65_537, 5), (0,)),
    ((311, 401), (0, 1)),
    ((2, 300, 401), (1, 2)),
    ((300, 2, 401), (0, 2)),
]
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3e38)


def in_parts(executable: Any) -> bool:
    return any(
        "in parts" in variant["layout"]
        for kernel in executable.explained(False)["kernels"]
        for variant in kernel["variants"]
    )


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_reductions(op: str, dtype: str, tier: str) -> None:
    for seed, (shape, axes) in enumerate(CASES):
        if op.startswith("arg") and len(axes) > 1:
            continue
        fold = {"axis": axes[0]} if op.startswith("arg") else {"axes": axes}
        graph = graph_of(op, dtype, len(shape), keepdims=False, **fold)
        x = values(shape, dtype, op, seed)
        executable = compiled(graph)
        layout = LAYOUTS[[*LAYOUTS][seed % len(LAYOUTS)]]
        for laid in (x, layout(x)):
            agrees(graph, executable, tier, [laid])
        assert in_parts(executable)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "var"])
def test_what_goes_through_rows_again(op: str, dtype: str, tier: str) -> None:
    for shape, axis in (((100_003,), 0), ((1, 65_537), 1), ((70_001, 1), 0)):
        params = {"axes": (axis,), "keepdims": False} if op == "var" else {"axis": axis}
        graph = graph_of(op, dtype, len(shape), **params)
        executable = compiled(graph)
        for layout in ("dense", "sliced"):
            agrees(graph, executable, tier, [LAYOUTS[layout](values(shape, dtype, op, 1))])
        assert in_parts(executable)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", ["amax", "amin", "argmax", "argmin", "sum"])
def test_special_values_in_any_part(op: str, tier: str) -> None:
    """NaN beats all, the first of equals is found, whichever part they are in."""
    n = 100_003
    fold = {"axis": 0} if op.startswith("arg") else {"axes": (0,)}
    graph = graph_of(op, "float32", 1, keepdims=False, **fold)
    executable = compiled(graph)
    generator = np.random.default_rng(5)
    for special in (SPECIAL[:1], SPECIAL[1:3], SPECIAL[2:], SPECIAL[3:5]):
        for where in (0, n - 1, n // 2, 32_768, 32_767):
            x = torch.randint(-3, 4, (n,)).float()
            x[where] = special[0]
            for value in special[1:]:
                x[int(generator.integers(n))] = value
            agrees(graph, executable, tier, [x])
    for value in (2.0, float("nan")):  # all are equal
        (found,) = run(executable, tier, [torch.full((n,), value)])
        expected = {"sum": np.float32(value * n)}.get(op, 0 if op.startswith("arg") else value)
        np.testing.assert_array_equal(found, expected)


def folds(x: Any, y: Any) -> Any:
    """Stores of each kind: along the rows before and behind a fold, of rows, of places."""
    twice = x * 2 + y
    deviation = ((x - lang.mean(x, -1, keepdims=True)) ** 2).mean(-1)
    weights = lang.exp(x - lang.max(x, -1, keepdims=True))
    return twice, twice.sum(-1), deviation, weights / weights.sum(-1, keepdims=True), x.argmax(-1)


def columns(x: Any, y: Any) -> Any:
    return lang.mean(x * y, 0), lang.max(x, 0), lang.any(x > y, 0)


SHARED: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (folds, [(1, 65_536), (1, 200_003), (3, 1_048_577)]),
    (columns, [(65_536, 1), (70_001, 7), (65_599, 256)]),
]


@pytest.mark.parametrize("function, shapes", SHARED)
def test_threads_make_the_same_bits(function: Any, shapes: Any) -> None:
    kernel = tilevm.kernel(function)
    for shape in shapes:
        x, y = torch.randn(shape), torch.randn(shape)
        with config.patch(threads=1):
            expected = kernel(x, y)
        for threads in (2, 3, 5, 64, 65):
            with config.patch(threads=threads):
                for found, one in zip(kernel(x, y), expected, strict=True):
                    assert torch.equal(found, one), (shape, threads)


def test_results_lie_in_what_they_are_made_of() -> None:
    """A row that is normalised in place, by what was folded of all of it before."""

    def normalise(x: torch.Tensor) -> torch.Tensor:
        x -= x.mean()
        x /= x.std()
        return x.max()

    compiled_function = tilevm.compile(normalise)
    for n in (65_536, 100_003):
        x = torch.randn(n, dtype=torch.float64) * 3 + 7
        y = x.clone()
        largest = compiled_function(x)
        expected = normalise(y)
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(largest, expected, rtol=1e-12, atol=1e-12)


def test_an_index_that_is_not_there_is_found_in_any_part() -> None:
    @tilevm.kernel
    def gathered(x: Any, i: Any) -> Any:
        return x[i].sum()

    x = torch.randn(10)
    i = torch.randint(0, 10, (100_003,))
    torch.testing.assert_close(gathered(x, i), x.double()[i].sum().float(), rtol=1e-5, atol=1e-3)
    for where in (0, 50_000, 100_002):
        wrong = i.clone()
        wrong[where] = 10
        with pytest.raises(IndexError, match="index 10 is out of bounds for axis 0 with size 10"):
            gathered(x, wrong)
