"""Views and layouts in the middle of computed chains, on every tier, against eager and float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import eager, noise
from tests.differential.judge import check
from tests.differential.tiers import LAYOUTS, TIERS, array, arrays, compiled, run

from tilevm.errors import ShapeError
from tilevm.ir.graph import Graph
from tilevm.ir.reference import evaluate
from tilevm.ir.text import from_text

SIZES = [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (2, 65), (64, 5), (33, 17), (5, 1023)]
# The view, then what shape comes out of it, for what is computed afterwards.
VIEWS = {
    "reshape, flat": "reshape h, shape=[A*B]",
    "reshape, -1 of a product": "reshape h, shape=[B, A]",
    "reshape, new axes": "reshape h, shape=[A, 1, B, 1]",
    "permute": "permute h, axes=[1, 0]",
    "expand, new axis": "expand h, shape=[2, A, B]",
    "slice, constant": "slice h, axis=1, start=1, stop=5",
    "slice, step": "slice h, axis=1, start=0, stop=B, step=3",
    "slice, from the end": "slice h, axis=0, start=-3, stop=-1",
    "slice, computed bounds": "slice h, axis=0, start=A//3, stop=A//2 + 1",
    "slice, beyond the end": "slice h, axis=1, start=A, stop=A + B",
    "slice, empty": "slice h, axis=0, start=2, stop=1",
    "unsqueeze": "unsqueeze h, axis=1",
    "flip, rows": "flip h, axes=[0]",
    "flip, both": "flip h, axes=[0, 1]",
    "concat with itself": "concat h, h, axis=0",
    "concat with an input": "concat x, h, x, axis=1",
    "pad": "pad h, low=[1, 0], high=[0, 2], value=0.5",
    "pad by a size": "pad h, low=[0, A], high=[B, 0]",
    "take": "take h, i, axis=1",
    "gather": "gather h, j, axis=0",
}
CHAINS = {
    "alone": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  h: {t}[A, B] = mul x, x
  v = {view}
  return v
""",
    "then elementwise": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  h: {t}[A, B] = tanh x
  v = {view}
  y = abs v
  z = add y, v
  return z
""",
    "both stored and used": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  h: {t}[A, B] = add x, x
  v = {view}
  y = mul v, v
  g = neg h
  return h, v, y, g
""",
    "then a reduction": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  h: {t}[A, B] = abs x
  v = {view}
  s = sum v, axes=[-1]
  a = sum v
  return s, a
""",
    "of a broadcast reduction": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  s: {t}[A, 1] = sum x, axes=[1], keepdims=true
  h: {t}[A, B] = sub x, s
  v = {view}
  y = add v, v
  return y
""",
    "twice": """graph(x: {t}[A, B], i: int64[C], j: int64[A, B])
  h0: {t}[A, B] = mul x, x
  p: {t}[B, A] = permute h0, axes=[1, 0]
  q: {t}[B, A] = add p, p
  h: {t}[A, B] = permute q, axes=[1, 0]
  v = {view}
  y = sub v, v
  z = add y, v
  return z
""",
}


def inputs_for(dtype: str, a: int, b: int, layout: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(a, b, generator=generator).to(getattr(torch, dtype))
    i = torch.randint(0, max(b, 1), (4 if b else 0,), generator=generator)
    j = torch.randint(0, max(a, 1), (a, b), generator=generator)
    return [LAYOUTS[layout](x), i, LAYOUTS[layout](j)]


def agrees(graph: Graph, executable: Any, tier: str, inputs: list[Any]) -> None:
    expected = evaluate(graph, *arrays(inputs))
    theirs = [array(x) for x in eager.evaluate(graph, inputs)]
    found = run(executable, tier, inputs)
    try:
        for f, e, t in zip(found, expected, theirs, strict=True):
            check(f, e, t, by="largest")
    except AssertionError as error:  # of few elements, eager's error is a matter of luck
        assert not noise.explains(graph, arrays(inputs), found), error


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("chain", list(CHAINS))
@pytest.mark.parametrize("view", list(VIEWS))
def test_view_in_a_chain(view: str, chain: str, tier: str) -> None:
    for dtype in ("float32", "bfloat16"):
        graph = from_text(CHAINS[chain].format(t=dtype, view=VIEWS[view]))
        executable = compiled(graph)
        for seed, ((a, b), layout) in enumerate(product(SIZES, LAYOUTS)):
            agrees(graph, executable, tier, inputs_for(dtype, a, b, layout, seed))


@pytest.mark.parametrize("tier", TIERS)
def test_slices_of_every_bound(tier: str) -> None:
    """Constant bounds as Python's, on sizes that are known only at run time."""
    bounds = [-9, -4, -1, 0, 1, 3, 4, 9]
    for start, stop, step in product(bounds, bounds, (1, 2, 3)):
        graph = from_text(
            f"graph(x: float32[A, B])\n  h = neg x\n"
            f"  v = slice h, axis=1, start={start}, stop={stop}, step={step}\n"
            "  y = add v, v\n  return y\n"
        )
        executable = compiled(graph)
        for b in (0, 1, 3, 4, 7):
            x = torch.randn(3, b)
            (found,) = run(executable, tier, [x])
            v = -x[:, start:stop:step]
            np.testing.assert_array_equal(found, (v + v).numpy())


@pytest.mark.parametrize("tier", TIERS)
def test_selects_in_range_and_out_of_range(tier: str) -> None:
    for index in ("0", "-1", "B//2", "B - 1", "2"):
        graph = from_text(
            f"graph(x: float32[A, B])\n  h = neg x\n  v = select h, axis=1, index={index}\n"
            "  y = exp v\n  return v, y\n"
        )
        executable = compiled(graph)
        for b in (0, 1, 3, 8):
            x = torch.randn(5, b)
            at = {"0": 0, "-1": b - 1, "B//2": b // 2, "B - 1": b - 1, "2": 2}[index]
            if not 0 <= at < b:
                with pytest.raises((ShapeError, IndexError)):
                    run(executable, tier, [x])
                continue
            found, _ = run(executable, tier, [x])
            np.testing.assert_array_equal(found, -x[:, at].numpy())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", ["take", "gather"])
def test_indices_out_of_range_raise(op: str, tier: str) -> None:
    graph = from_text(
        f"graph(x: float32[A, B], i: int64[A, B])\n  h = neg x\n  v = {op} h, i, axis=1\n"
        "  return v\n"
    )
    executable = compiled(graph)
    for bad in (-1, 3, 2**40):
        index = torch.zeros(2, 3, dtype=torch.int64)
        index[1, 2] = bad
        with pytest.raises(IndexError):
            run(executable, tier, [torch.randn(2, 3), index])


@pytest.mark.parametrize("tier", TIERS)
def test_squeeze_of_sizes_that_are_one_only_at_run_time(tier: str) -> None:
    graph = from_text(
        "graph(x: float32[A, B])\n  h = neg x\n  v = squeeze h, axes=[1]\n  y = exp v\n"
        "  return y, v\n"
    )
    executable = compiled(graph)
    for a in (0, 1, 65):
        x = torch.randn(a, 1)
        _, found = run(executable, tier, [x])
        np.testing.assert_array_equal(found, -x[:, 0].numpy())
    with pytest.raises(ShapeError):
        run(executable, tier, [torch.randn(3, 2)])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "int32", "bool"])
def test_concat_of_computed_parts_of_every_dtype(dtype: str, tier: str) -> None:
    for axis in (0, 1):
        graph = from_text(
            f"graph(x: {dtype}[A, B], y: float32[A, B])\n  a = maximum x, x\n  b = gt y, y\n"
            f"  c = concat a, x, b, a, axis={axis}\n  d = pad c, low=[1, 1], high=[0, 2]\n"
            "  e = add d, d\n  return c, d, e\n"
        )
        executable = compiled(graph)
        for seed, ((a, b), layout) in enumerate(product(SIZES, LAYOUTS)):
            x, y = (
                LAYOUTS[layout](torch.randint(-3, 4, (a, b)).to(t))
                for t in (getattr(torch, dtype), torch.float32)
            )
            assert seed >= 0
            agrees(graph, executable, tier, [x, y])
