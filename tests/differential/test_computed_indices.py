"""Gathers whose indices are made by the kernel that gathers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential.tiers import TIERS

import tilevm


def _largest_of_product(x: Any, i: Any) -> Any:
    product = x @ x.mT
    return product.gather(1, product.argmax(1, keepdim=True))


def _rows_of_product(x: Any, i: Any) -> Any:
    product = x @ x.mT
    return product[(product.argmax(1) + 1) % product.shape[0]]


FUNCTIONS: dict[str, Any] = {
    "gather": lambda x, i: x.gather(1, (i * 3 + 1) % x.shape[1]) * 2,
    "gather of another axis": lambda x, i: x.gather(0, (i * 5) % x.shape[0]) + 1,
    "rows": lambda x, i: x[(i[:, 0] * 7) % x.shape[0]] * 2,
    "columns": lambda x, i: x[:, (i[0] + 2) % x.shape[1]].exp(),
    "rows by a matrix": lambda x, i: x[(i + 3) % x.shape[0]].sum(-1),
    "elements": lambda x, i: x.flatten()[(i * 11) % x.numel()] + i,
    "twice": lambda x, i: x.gather(1, i % x.shape[1]) - x.gather(1, (i + 1) % x.shape[1]),
    "by what was gathered": lambda x, i: x[i[(i[:, 0] * 2) % i.shape[0], 0] % x.shape[0]],
    "where the largest is": lambda x, i: x.gather(1, x.argmax(1, keepdim=True)),
    "beside the largest": lambda x, i: x + x.gather(1, x.argmax(1, keepdim=True)),
    "from its own kernel": lambda x, i: (x * 2).gather(1, ((x * 2).abs() > 1) % x.shape[1]),
    "of a product": _largest_of_product,
    "rows of a product": _rows_of_product,
    "products of what is gathered": lambda x, i: x[(i[:, 0] + 1) % x.shape[0]] @ x.mT,
    "bins": lambda x, i: x.flatten()[torch.floor(x.abs()).to(torch.int32).clamp(0, 2)],
    "masked": lambda x, i: torch.where(i > 3, x.flatten()[(i * 2) % 5], 0),
    "one index for all": lambda x, i: x[(i.sum() % x.shape[0])] * x,
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_eager(name: str, tier: str) -> None:
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function, tier=tier)
    torch.manual_seed(0)
    for rows, columns in ((5, 3), (3, 17), (33, 40), (130, 65), (7, 1)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = torch.randn(rows, columns).to(dtype)
            i = torch.randint(0, 50, (rows, columns))
            for y, j in ((x, i), (x.t(), i.t()), (x[:, ::2], i[:, ::2])):
                near = 2e-2 if dtype is torch.bfloat16 else 1e-5
                torch.testing.assert_close(compiled(y, j), function(y, j), rtol=near, atol=near)


def test_one_kernel_and_no_indices_in_memory() -> None:
    compiled = tilevm.compile(lambda x, i: x.gather(1, (i * 3 + 1) % x.shape[1]) * 2)
    x, i = torch.randn(40, 30), torch.randint(0, 50, (40, 30))
    compiled(x, i)
    before = tilevm.stats()["launches"]
    compiled(x, i)
    assert tilevm.stats()["launches"] - before == 1


@pytest.mark.parametrize("tier", TIERS)
def test_indices_out_of_range(tier: str) -> None:
    compiled = tilevm.compile(lambda x, i: x[i * 2] + 1, tier=tier)
    x = torch.randn(10, 7)
    compiled(x, torch.tensor([0, 4]))
    for wrong in (5, -6, 1 << 40):
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([1, wrong]))
    torch.testing.assert_close(compiled(x, torch.tensor([3, -2])), x[[6, -4]] + 1)
    assert compiled(x, torch.empty(0, dtype=torch.int64)).shape == (0, 7)
