"""How elements come from memory and go there, on every tier, by the bit.

Those of 8 and 16 bits, many to a vector; rows that run backwards; an index for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential.tiers import LAYOUTS, TIERS, array, compiled, run

from tilevm.ir.text import from_text

SIZES = (0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 1000)
SHAPES = [(0, 3), (1, 1), (1, 70), (70, 1), (2, 33), (15, 17), (16, 16), (33, 64), (150, 260)]
# Statements that make y of x and w, and what PyTorch makes of them.
Bodies = dict[str, tuple[str, Callable[[Any, Any], Any]]]
INTEGERS: Bodies = {
    "sums": ("s = add x, w\n  y = sub s, x", lambda x, w: x + w - x),
    "negative": ("n = neg x\n  y = add n, w", lambda x, w: -x + w),
    "bits": (
        "n = bitwise_not x\n  a = bitwise_and n, w\n  o = bitwise_or x, w\n  y = bitwise_xor a, o",
        lambda x, w: (~x & w) ^ (x | w),
    ),
    "beside others": ("m = mul x, w\n  y = add m, x", lambda x, w: x * w + x),
}
BOOLS: Bodies = {
    "logical": (
        "n = logical_not x\n  a = logical_and n, w\n  y = logical_or a, w",
        lambda x, w: (~x & w) | w,
    ),
    "bits": (
        "n = bitwise_xor x, w\n  y = bitwise_not n",
        lambda x, w: ~(x ^ w),
    ),
}
TYPES = {"uint8": INTEGERS, "int8": INTEGERS, "int16": INTEGERS, "bool": BOOLS}
CASES = [(t, name) for t, bodies in TYPES.items() for name in bodies]


def values(dtype: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    bits = torch.randint(-(2**15), 2**15, shape, generator=generator)
    if dtype == "bool":
        return bits > 0
    if dtype in ("float16", "bfloat16"):
        x = bits.to(torch.int16).view(getattr(torch, dtype))
        return torch.where(x.isnan(), 0, x)
    return bits.to(getattr(torch, dtype))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("dtype", "name"), CASES, ids=[f"{t}, {n}" for t, n in CASES])
def test_narrow_elements(dtype: str, name: str, tier: str) -> None:
    statements, expected = TYPES[dtype][name]
    graph = from_text(f"graph(x: {dtype}[A, B], w: {dtype}[A, B])\n  {statements}\n  return y\n")
    executable = compiled(graph)
    for n in SIZES:
        for layout in ("dense", "offset", "sliced"):
            x, w = (LAYOUTS[layout](values(dtype, 3 + i, n))[:3] for i in range(2))
            (found,) = run(executable, tier, [x, w])
            np.testing.assert_array_equal(found, array(expected(x, w)), err_msg=f"{n} {layout}")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "bfloat16"])
def test_copies_of_narrow_elements(dtype: str, tier: str) -> None:
    graph = from_text(
        f"graph(x: {dtype}[A, B], w: {dtype}[A, C])\n  y = concat w, x, axis=1\n  return y\n"
    )
    executable = compiled(graph)
    for n in SIZES:
        x, w = values(dtype, 2, n), values(dtype, 2, 5)
        (found,) = run(executable, tier, [x, w])
        assert found.tobytes() == array(torch.cat([w, x], 1)).tobytes(), n


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_rows_and_columns_that_run_backwards(dtype: str, tier: str) -> None:
    graph = from_text(
        f"graph(x: {dtype}[A, B])\n"
        "  h = neg x\n  a = flip h, axes=[1]\n  b = add a, x\n"
        "  t = permute h, axes=[1, 0]\n  c = flip t, axes=[0]\n  d = flip t, axes=[1]\n"
        "  e = flip t, axes=[0, 1]\n  f = add c, d\n  g = sub e, t\n"
        "  return b, f, g\n"
    )
    executable = compiled(graph)
    for a, b in SHAPES:
        for layout in ("dense", "offset", "transposed"):
            x = LAYOUTS[layout](values(dtype, a, b))
            h = -x
            t = h.mT
            expected = (h.flip(1) + x, t.flip(0) + t.flip(1), t.flip(0, 1) - t)
            for found, e in zip(run(executable, tier, [x]), expected, strict=True):
                np.testing.assert_array_equal(found, array(e), err_msg=f"{a} {b} {layout}")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "bfloat16", "float32", "float64"])
def test_indices_of_each_element(dtype: str, tier: str) -> None:
    """Gathers whose index varies along the row, along the axis itself and across it."""
    graph = from_text(
        f"graph(x: {dtype}[A, B], i: int64[C, D])\n"
        "  a = gather x, i, axis=1\n  b = gather x, i, axis=0\n  return a, b\n"
    )
    executable = compiled(graph)
    generator = torch.Generator().manual_seed(0)
    for n in SIZES[1:]:
        for layout in ("dense", "sliced", "transposed"):
            x = LAYOUTS[layout](values(dtype, 9, n))
            i = torch.randint(0, min(9, n), (5, n), generator=generator)
            found = run(executable, tier, [x, LAYOUTS[layout](i)])
            for axis in (1, 0):
                expected = array(x.gather(axis, i))
                np.testing.assert_array_equal(found[1 - axis], expected, err_msg=f"{n} {layout}")
