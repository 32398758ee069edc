"""Weights of an attention that are rounded to 16 bits come from a shorter exp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential.tiers import TIERS

import tilevm
from tilevm.tools.explain import explain

NARROW = (torch.bfloat16, torch.float16)


def attention(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def written_out(q: Any, k: Any, v: Any) -> Any:
    scores = (q.float() @ k.float().mT) * 0.125
    return torch.softmax(scores, -1).to(v.dtype) @ v


def with_their_sum(q: Any, k: Any, v: Any) -> Any:
    scores = (q.float() @ k.float().mT) * 0.125
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = e.sum(-1, keepdim=True)
    return (e / total).to(v.dtype) @ v, total


def drawn(dtype: torch.dtype, rows: int, columns: int, size: float = 1.0) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    shapes = ((2, rows, 64), (2, columns, 64), (2, columns, 64))
    return tuple((torch.randn(s, generator=generator) * size).to(dtype) for s in shapes)


def functions_of(function: Callable[..., Any], args: tuple[Any, ...]) -> set[str]:
    text = str(explain(tilevm.compile(function))(*args))
    return {name for name in ("exp_f32", "exp_weight_f32") if name in text}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(attention, torch.bfloat16), (written_out, torch.bfloat16), (written_out, torch.float16)],
)
def test_narrow_weights_take_it(function: Callable[..., Any], dtype: torch.dtype) -> None:
    assert functions_of(function, drawn(dtype, 5, 33)) == {"exp_weight_f32"}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (attention, torch.float32),
        (attention, torch.float16),  # its weights stay float32
        (with_their_sum, torch.bfloat16),
    ],
)
def test_others_do_not(function: Callable[..., Any], dtype: torch.dtype) -> None:
    """Where weights are float32 it would show, and so it would in a sum that is a result."""
    assert functions_of(function, drawn(dtype, 5, 33)) == {"exp_f32"}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_it_is_as_precise_as_eager(tier: str, dtype: torch.dtype, size: float) -> None:
    compiled = tilevm.compile(written_out, tier=tier)
    for rows, columns in ((1, 1), (1, 7), (5, 33), (33, 16), (17, 300), (64, 1025)):
        args = drawn(dtype, rows, columns, size)
        exact = attention(*(x.double() for x in args))
        ours = (compiled(*args).double() - exact).abs()
        eager = (written_out(*args).double() - exact).abs()
        least = torch.finfo(dtype).eps * exact.abs().mean()
        assert ours.max() <= 1.5 * eager.max() + least
        assert ours.mean() <= 1.5 * eager.mean() + least / 8


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_not_finite(tier: str, dtype: torch.dtype) -> None:
    """Rows of scores: all -inf, with NaN, with inf, far apart, and one that is -inf."""

    def weighed(scores: Any, v: Any) -> Any:
        return torch.softmax(scores.float(), -1).to(v.dtype) @ v

    inf, nan = float("inf"), float("nan")
    rows = [
        [-inf] * 5,
        [0.0, nan, 1.0, -inf, 2.0],
        [0.0, inf, 1.0, 2.0, 3.0],
        [0.0, -87.29, -87.31, -1e30, -120.0],
        [-inf, 3.0, 2.0, 1.0, 0.0],
        [3e38, -3e38, 3e38, 0.0, 1.0],
    ]
    scores = torch.tensor(rows).repeat(1, 9)
    _, _, v = drawn(dtype, 1, 45)
    ours = tilevm.compile(weighed, tier=tier)(scores, v[0])
    eps = torch.finfo(dtype).eps  # eager rounds the quotients, and their products' sum
    torch.testing.assert_close(
        ours, weighed(scores, v[0]), rtol=2 * eps, atol=2 * eps, equal_nan=True
    )
