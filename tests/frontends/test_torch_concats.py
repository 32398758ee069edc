"""Elementwise operators behind a concatenation are computed part by part: the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tilevm = pytest.importorskip("tilevm")


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def broadcast(x: Any, cos: Any, sin: Any) -> Any:
    """Operands of size 1 along the axis and of lower rank are not cut."""
    joined = torch.cat((x, x[:, 1:], x * 2), dim=1)
    return torch.where(joined > 0, joined * x[:, :1], joined + sin.sum())


def two_results(x: Any, cos: Any, sin: Any) -> Any:
    joined = torch.cat((x, cos.expand_as(x)), dim=0)
    grown = joined.exp()
    return grown * 2, torch.relu(grown) - joined


def also_read_whole(x: Any, cos: Any, sin: Any) -> Any:
    joined = torch.cat((x, -x), dim=-1)
    return joined, joined + 1


def folded(x: Any, cos: Any, sin: Any) -> Any:
    return torch.softmax(torch.cat((x, -x), dim=-1) * 3, -1)


def joined_twice(x: Any, cos: Any, sin: Any) -> Any:
    inner = torch.cat((x, -x), dim=-1).tanh()
    return torch.cat((inner, inner + 1), dim=0).abs() * 2


def two_alike(x: Any, cos: Any, sin: Any) -> Any:
    """The other operand is a concatenation, too: cut in other places."""
    return torch.cat((x, -x), dim=-1) * torch.cat((cos.expand_as(x)[..., :1], x, -x[..., 1:]), -1)


def shifted(x: Any, cos: Any, sin: Any) -> Any:
    return x - torch.nn.functional.pad(x, (1, 0))[..., :-1] * cos


def behind_a_product(x: Any, cos: Any, sin: Any) -> Any:
    product = x @ x.transpose(-1, -2)
    return torch.cat((product, product), dim=-1) + torch.cat((product, -product), dim=-1)


def casts(x: Any, cos: Any, sin: Any) -> Any:
    return (torch.cat((x, x.flip(-1)), dim=-1).double() * 0.5).to(torch.bfloat16)


FUNCTIONS: list[Callable[..., Any]] = [
    rotary, broadcast, two_results, also_read_whole, folded, joined_twice, two_alike, shifted,
    behind_a_product, casts,
]  # fmt: skip
SIZES = [(2, 3, 8), (1, 1, 2), (3, 5, 7), (2, 2, 64), (1, 33, 130), (4, 3, 1), (2, 0, 4)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_like_eager(function: Callable[..., Any], dtype: Any) -> None:
    """One function for all sizes. Products of float64 are PyTorch's."""
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for batch, rows, columns in SIZES:
        generator = torch.Generator().manual_seed(columns)
        x = torch.randn(batch, rows, columns, generator=generator, dtype=dtype)
        cos, sin = (torch.randn(rows, columns, generator=generator, dtype=dtype) for _ in "cs")
        if x.numel() > 8:
            x.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42])
        for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
            torch.testing.assert_close(
                compiled(given, cos, sin), function(given, cos, sin), equal_nan=True
            )
    assert dtype is torch.float64 or not tilevm.stats()["callouts"]


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_parts_without_elements(columns: int) -> None:
    """A concatenation of one element an axis is not taken for one that is repeated."""

    def assigned(x: Any) -> Any:
        y = torch.zeros(x.shape[0], x.shape[1] + 1)
        y[:, 1:] = x
        return y + 1

    x = torch.randn(3, columns)
    assert torch.equal(tilevm.compile(assigned)(x), assigned(x))


def test_what_is_joined_with_nothing_is_read_beside_it() -> None:
    """As at the first step of a cache, which is empty: the result is as large as a part."""

    def f(x: Any, y: Any) -> Any:
        y = y.exp()
        return torch.cat([x.new_zeros(0, 3), y]) * y

    compiled = tilevm.compile(f)
    x, y = torch.rand(2, 3), torch.rand(4, 3)
    torch.testing.assert_close(compiled(x, y), f(x, y))
    with tilevm.fuse():
        result = f(x, y)
    torch.testing.assert_close(result, f(x, y))
