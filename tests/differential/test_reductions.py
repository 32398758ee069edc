"""Reductions over every set of axes, on every tier, against eager and float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import eager, noise
from tests.differential.judge import check, is_float, same_bits, wide
from tests.differential.tiers import LAYOUTS, TIERS, array, arrays, compiled, run

from tilevm.config import config
from tilevm.errors import ShapeError
from tilevm.ir.graph import Graph, GraphBuilder
from tilevm.ir.reference import evaluate
from tilevm.ir.text import from_text
from tilevm.ir.types import DTYPES, FLOATS, Size, Type

REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "mean", "var")
ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")
NAMES = "ABCD"
SHAPES: dict[int, list[tuple[int, ...]]] = {
    1: [(0,), (1,), (7,), (65,), (1023,)],
    2: [(1, 7), (65, 3), (3, 130), (0, 3), (3, 0), (64, 64)],
    3: [(5, 1, 17), (2, 33, 4), (3, 0, 2), (17, 3, 2)],
    4: [(2, 3, 5, 7), (3, 1, 17, 2), (1, 2, 0, 3)],
}


def subsets(rank: int) -> Iterator[tuple[int, ...]]:
    axes = range(rank)
    return chain.from_iterable(combinations(axes, n) for n in range(1, rank + 1))


def graph_of(op: str, dtype: str, rank: int, **params: Any) -> Graph:
    builder = GraphBuilder()
    builder.param("x", Type(dtype, tuple(Size(n) for n in NAMES[:rank])))
    builder.result(builder.add(op, ["x"], **params))
    return builder.build()


def values(shape: tuple[int, ...], dtype: str, op: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.8
    if "int" in dtype:
        x = torch.randint(0 if dtype == "uint8" else -3, 4, shape, generator=generator)
        return (x.sign() if op == "prod" else x).to(getattr(torch, dtype))
    x = torch.randn(shape, generator=generator)
    return (x.sign() * x.abs().pow(0.1) if op == "prod" else x).to(getattr(torch, dtype))


def permuted(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The same values, with axes in another order in memory."""
    order = np.random.default_rng(seed).permutation(x.ndim).tolist()
    back = np.argsort(order).tolist()
    return x.permute(order).contiguous().permute(back)


def agrees(graph: Graph, executable: Any, tier: str, inputs: list[Any]) -> None:
    try:
        theirs = [array(x) for x in eager.evaluate(graph, inputs)]
    except (IndexError, RuntimeError) as error:  # of nothing there is no maximum
        assert "zero-size" in str(error) or "non-zero size" in str(error), error
        with pytest.raises(ShapeError, match="no element on axis"):
            run(executable, tier, inputs)
        return
    expected = evaluate(graph, *arrays(inputs))
    found = run(executable, tier, inputs)
    try:
        for f, e, t in zip(found, expected, theirs, strict=True):
            check(f, e, t, by="largest")
    except AssertionError as error:  # of few elements, eager's error is a matter of luck
        assert not noise.explains(graph, arrays(inputs), found), error
    for f, e, t in zip(found, expected, theirs, strict=True):
        if is_float(f):  # eager means the same
            np.testing.assert_array_equal(np.isfinite(wide(t)), np.isfinite(wide(e)))
        else:
            np.testing.assert_array_equal(t, e)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_every_set_of_axes(op: str, dtype: str, tier: str) -> None:
    for rank, shapes in SHAPES.items():
        for axes, keepdims in product(subsets(rank), (False, True)):
            graph = graph_of(op, dtype, rank, axes=axes, keepdims=keepdims)
            executable = compiled(graph)
            for seed, shape in enumerate(shapes):
                x = values(shape, dtype, op, seed)
                layout = [*LAYOUTS][(seed + sum(axes)) % len(LAYOUTS)]
                for laid in (x, permuted(x, seed), LAYOUTS[layout](x)):
                    agrees(graph, executable, tier, [laid])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_arg_reductions_with_ties_and_nan(op: str, dtype: str, tier: str) -> None:
    for rank, shapes in SHAPES.items():
        for axis, keepdims in product(range(rank), (False, True)):
            graph = graph_of(op, dtype, rank, axis=axis, keepdims=keepdims)
            executable = compiled(graph)
            for seed, shape in enumerate(shapes):
                x = values(shape, dtype, op, seed)
                if x.is_floating_point():
                    x = x.round()  # ties
                    if seed % 2:
                        x[torch.rand(shape) < 0.05] = torch.nan
                        x[torch.rand(shape) < 0.05] = -torch.inf
                for layout in LAYOUTS.values():
                    agrees(graph, executable, tier, [layout(x)])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["int64", *FLOATS])
@pytest.mark.parametrize("op", ROWS)
def test_rows_over_every_axis(op: str, dtype: str, tier: str) -> None:
    for rank, shapes in SHAPES.items():
        one = [{"axis": a} for a in range(rank)]
        norms = [{"axes": axes, "eps": 1e-5} for axes in subsets(rank)]
        for params in one if "softmax" in op else norms:
            graph = graph_of(op, dtype, rank, **params)
            executable = compiled(graph)
            for seed, shape in enumerate(shapes):
                x = values(shape, dtype, op, seed)
                for layout in LAYOUTS.values():
                    agrees(graph, executable, tier, [layout(x)])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", [*REDUCTIONS, *ROWS, "argmax", "argmin"])
def test_long_rows_and_tall_columns(op: str, tier: str) -> None:
    for dtype, axis in product(FLOATS, (0, 1)):
        params: dict[str, Any] = {"axes": (axis,)}
        if op in ("softmax", "log_softmax", "argmax", "argmin"):
            params = {"axis": axis}
        elif op in ROWS:
            params["eps"] = 1e-5
        graph = graph_of(op, dtype, 2, **params)
        executable = compiled(graph)
        for shape in ((2, 100_000), (100_000, 2), (1, 100_003), (30_000, 5), (3, 2049), (4097, 70)):
            x = values(shape, dtype, op, 1)
            if op == "prod":
                x = (x.float().sign() * x.float().abs().pow(0.001)).to(x.dtype)
            for laid in (x, x.t().contiguous().t()):
                agrees(graph, executable, tier, [laid])


PROGRAMS = {
    "several passes, all stored": """graph(x: {t}[A, B])
  m: {t}[A, 1] = amax x, axes=[1], keepdims=true
  d: {t}[A, B] = sub x, m
  e: {t}[A, B] = exp d
  s: {t}[A, 1] = sum e, axes=[1], keepdims=true
  p: {t}[A, B] = div e, s
  h: {t}[A] = sum p, axes=[1]
  return m, d, e, s, p, h
""",
    "a value that every pass reuses": """graph(x: {t}[A, B])
  e: {t}[A, B] = tanh x
  m: {t}[A, 1] = mean e, axes=[1], keepdims=true
  d: {t}[A, B] = sub e, m
  q: {t}[A, B] = mul d, e
  v: {t}[A, 1] = mean q, axes=[1], keepdims=true
  r: {t}[A, B] = add v, e
  z: {t}[A] = amin r, axes=[1]
  return r, z
""",
    "reductions of one input over both axes": """graph(x: {t}[A, B])
  r: {t}[A] = sum x, axes=[1]
  c: {t}[B] = sum x, axes=[0]
  a: {t}[] = sum x
  k: {t}[A, 1] = unsqueeze r, axis=1
  y: {t}[A, B] = mul k, c
  z: {t}[A, B] = add y, a
  return r, c, a, z
""",
    "reduction of a reduction": """graph(x: {t}[A, B])
  y: {t}[A, B] = mul x, x
  r: {t}[A] = sum y, axes=[1]
  q: {t}[A] = sqrt r
  m: {t}[] = amax q
  n: {t}[A] = div q, m
  k: {t}[A, 1] = unsqueeze n, axis=1
  z: {t}[A, B] = mul x, k
  return m, z
""",
    "two softmaxes joined": """graph(x: {t}[A, B])
  a: {t}[A, B] = softmax x, axis=1
  b: {t}[A, B] = softmax x, axis=0
  c: {t}[A, B] = mul a, b
  n: {t}[A, B] = layer_norm c, axes=[1], eps=0.01
  i: int64[A] = argmax x, axis=1
  return a, c, n, i
""",
    "columns broadcast back": """graph(x: {t}[A, B])
  m: {t}[1, B] = mean x, axes=[0], keepdims=true
  d: {t}[A, B] = sub x, m
  v: {t}[1, B] = var x, axes=[0], keepdims=true, correction=0
  e: {t}[1, B] = add v, m
  y: {t}[A, B] = mul d, e
  t: {t}[B] = amax y, axes=[0]
  return y, t, m
""",
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_several_reductions(name: str, dtype: str, tier: str) -> None:
    graph = from_text(PROGRAMS[name].format(t=dtype))
    executable = compiled(graph)
    shapes = [
        (1, 1),
        (1, 7),
        (7, 1),
        (3, 64),
        (65, 17),
        (2, 1023),
        (1023, 3),
        (2, 5000),
        (130, 130),
    ]
    for seed, shape in enumerate(shapes):
        x = values(shape, dtype, "", seed) * 0.5
        for layout in LAYOUTS.values():
            agrees(graph, executable, tier, [layout(x)])


@pytest.mark.parametrize("tier", TIERS)
def test_reductions_of_special_values(tier: str) -> None:
    rows = torch.tensor(
        [
            [1, torch.nan, 2, 3],
            [torch.inf, 1, -torch.inf, 2],
            [torch.inf, 1, 2, 3],
            [-torch.inf, -torch.inf, -torch.inf, -torch.inf],
            [0.0, -0.0, 0.0, -0.0],
            [1e30, 1e30, -1e30, 1],
        ]
    )
    for op, dtype in product(("sum", "amax", "amin", "mean", "prod"), FLOATS):
        graph = graph_of(op, dtype, 2, axes=(1,))
        executable = compiled(graph)
        for n in (1, 5, 40, 300):  # at several places of a vector
            x = torch.ones(6, n + 3)
            x[:, n - 1 : n + 3] = rows
            x = x.to(getattr(torch, dtype))
            for laid in (x, x.t().contiguous().t()):
                agrees(graph, executable, tier, [laid])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", ["sum", "amax", "mean", *ROWS])
def test_results_do_not_depend_on_threads(op: str, tier: str) -> None:
    for axis in (0, 1):
        params: dict[str, Any] = {"axis": axis} if "softmax" in op else {"axes": (axis,)}
        if "norm" in op:
            params["eps"] = 1e-5
        executable = compiled(graph_of(op, "float32", 2, **params))
        for shape in ((3000, 700), (2, 1_000_003), (1_000_003, 2), (1, 2_000_000)):
            x = values(shape, "float32", op, 1)
            results = []
            for threads in (1, 2, 5):
                with config.patch(threads=threads):
                    results += run(executable, tier, [x])
            assert all(same_bits(results[0], y) for y in results[1:]), (shape, axis)
