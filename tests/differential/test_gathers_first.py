"""Gathers of one element a row, in front of what makes the rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential.tiers import TIERS
from torch.nn import functional

import tilevm


def _nll(x: Any, i: Any) -> Any:
    return -functional.log_softmax(x, -1).gather(1, i.unsqueeze(1)).squeeze(1)


def _cross_entropy(x: Any, i: Any) -> Any:
    i = torch.where(i == 0, -100, i)
    return functional.cross_entropy(x, i, reduction="sum", label_smoothing=0.1)


def _many_ways(x: Any, i: Any) -> Any:
    rows = torch.where(x > 0, x.sin(), x * x.amax(1, keepdim=True) + x.mean(0))
    return rows.gather(1, i[:, None]), rows.gather(1, i[:, None].flip(0))


def _returned_too(x: Any, i: Any) -> Any:
    rows = x.log_softmax(1)
    return rows.gather(1, i[:, None]), rows


def _read_too(x: Any, i: Any) -> Any:
    rows = x.exp()
    return rows.gather(1, i[:, None]) / rows.sum(1, keepdim=True)


def _of_a_product(x: Any, i: Any) -> Any:
    return (x @ x.mT[:, : x.shape[1]]).log_softmax(-1).gather(1, i[: x.shape[0], None] * 0)


FUNCTIONS: dict[str, Any] = {
    "nll": _nll,
    "cross entropy": _cross_entropy,
    "fewer rows": lambda x, i: x.softmax(1).gather(1, i[: x.shape[0] // 2, None]),
    "another axis": lambda x, i: x.tanh().gather(0, i[None, : x.shape[1]] % x.shape[0]),
    "a bias": lambda x, i: (x + x[0]).gather(1, i[:, None]),
    "a column": lambda x, i: (x * i[:, None]).gather(1, i[:, None]),
    "three dims": lambda x, i: (x[None] - x[None].amax(2, keepdim=True)).gather(
        2, i[None, :, None]
    ),
    "many ways": _many_ways,
    "returned too": _returned_too,
    "read too": _read_too,
    "of a product": _of_a_product,
    "casts": lambda x, i: x.double().exp().float().gather(1, i[:, None]),
    "numbers": lambda x, i: (x * x.shape[1] + 0.5).gather(1, i[:, None]),
    "a view between": lambda x, i: x.exp().flip(1).gather(1, i[:, None]),
    "itself": lambda x, i: x.gather(1, i[:, None]),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_eager(name: str, tier: str) -> None:
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function, tier=tier)
    torch.manual_seed(0)
    for rows, columns in ((5, 7), (3, 17), (40, 33), (130, 65), (2, 1000), (65, 2)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = torch.randn(rows, columns).to(dtype)
            i = torch.randint(0, columns, (max(rows, columns),))[:rows].contiguous()
            if name == "another axis":
                i = torch.randint(0, rows, (columns,))
            for y in (x, x.t().contiguous().t()):
                near = 3e-2 if dtype is torch.bfloat16 else 2e-5
                torch.testing.assert_close(compiled(y, i), function(y, i), rtol=near, atol=near)


@pytest.mark.parametrize("tier", TIERS)
def test_gradients(tier: str) -> None:
    compiled = tilevm.compile(_nll, tier=tier)
    for rows, columns in ((5, 7), (33, 40)):
        x = torch.randn(rows, columns, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        i = torch.randint(0, columns, (rows,))
        compiled(x, i).sum().backward()
        _nll(y, i).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("tier", TIERS)
def test_what_fails(tier: str) -> None:
    """A target that is out of range, and a division that eager code makes for all elements."""
    compiled = tilevm.compile(_nll, tier=tier)
    x, i = torch.randn(5, 7), torch.tensor([0, 1, 2, 3, 4])
    compiled(x, i)
    for wrong in (7, -1):
        i[2] = wrong
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, i)

    compiled = tilevm.compile(lambda x, i: x[:, :1].exp().gather(1, i[:, None]), tier=tier)
    torch.testing.assert_close(compiled(x, i * 0), x[:, :1].exp())
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, i * 0 + 1)

    def divided(n: Any, d: Any, i: Any) -> Any:
        return (n // d).gather(1, i[:, None])

    compiled = tilevm.compile(divided, tier=tier)
    n, d = torch.randint(1, 9, (5, 7)), torch.randint(1, 9, (5, 7))
    i = torch.zeros(5, dtype=torch.int64)
    torch.testing.assert_close(compiled(n, d, i), divided(n, d, i))
    d[3, 3] = 0
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        divided(n, d, i)
    with pytest.raises((RuntimeError, ZeroDivisionError), match="ZeroDivision"):
        compiled(n, d, i)
