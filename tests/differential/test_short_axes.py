"""Folds and rows of a few elements, beside an axis that is long enough for whole vectors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.differential.tiers import TIERS  # noqa: E402

import tilevm  # noqa: E402

FUNCTIONS: dict[str, Any] = {
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "argmax": lambda x: x.argmax(-1),
    "any": lambda x: (x > 1).any(-1),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "both": lambda x: x.sum((0, -1)),
    "once_a_row": lambda x: x / (x[..., :1].abs() + 1) ** 1.5,
    "middle": lambda x: torch.softmax(x.transpose(-1, -2), -2),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_short_axes(tier: str, name: str, dtype: Any) -> None:
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function, tier=tier)
    torch.manual_seed(0)
    for rows in (1, 15, 16, 17, 33, 130):
        for width in (1, 2, 3, 7, 8, 9):
            wide = torch.randn(rows, 3, 2 * width).to(dtype)
            for x in (wide[:, 0, :width], wide[..., :width], wide.transpose(0, 1)[..., ::2]):
                exact = function(x.double()) if name != "argmax" else function(x)
                bound = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 2e-2)
                torch.testing.assert_close(
                    compiled(x), exact, check_dtype=False, rtol=bound, atol=bound
                )


@pytest.mark.parametrize("tier", TIERS)
def test_values_that_are_none(tier: str) -> None:
    x = torch.tensor([[1.0, torch.nan, 2.0], [-torch.inf, torch.inf, 0.0], [0.0, -0.0, 0.0]])
    x = x.repeat(9, 1)
    for function in (
        FUNCTIONS["sum"],
        lambda x: x.amax(-1),
        lambda x: x.amin(-1),
        FUNCTIONS["argmax"],
    ):
        found = tilevm.compile(function, tier=tier)(x)
        torch.testing.assert_close(found, function(x), equal_nan=True)


MIXED: dict[str, Any] = {
    "transposed": lambda x: x.transpose(1, 2) + 1,
    "both": lambda x: x.transpose(1, 2) * x,
    "last_first": lambda x: (x.permute(2, 1, 0) - 0.5).contiguous(),
    "indices": lambda x: x.transpose(1, 2) + torch.arange(x.shape[1]),
    "integers": lambda x: (x.transpose(1, 2) * 8).to(torch.uint8) + 3,
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_small_matrices(tier: str, name: str, dtype: Any) -> None:
    """Many of them, in two orders of their dims."""
    function = MIXED[name]
    compiled = tilevm.compile(function, tier=tier)
    torch.manual_seed(0)
    for count in (0, 1, 15, 16, 17, 101, 1000):
        for rows, columns in ((2, 2), (3, 3), (1, 5), (2, 7), (7, 2), (9, 3)):
            wide = torch.rand(count, rows, 2 * columns).to(dtype)
            for x in (wide[..., :columns].contiguous(), wide[..., ::2]):
                y = x if name != "both" else x[:, :columns, :rows]
                if name == "both" and y.shape[1] != y.shape[2]:
                    continue
                torch.testing.assert_close(compiled(y), function(y))


GATHERED: dict[str, Any] = {
    "sum": lambda table, i: table[i].sum(1),
    "mean_and_squares": lambda table, i: (table[i].mean(1), table[i].pow(2).sum(1)),
    "factorised": lambda table, i: (table[i], table[i].sum(1).pow(2) - table[i].pow(2).sum(1)),
    "rows_only": lambda table, i: table[i].sum((1, 2)),
    "largest": lambda table, i: table[i].amax(1),
    "softmax": lambda table, i: torch.softmax(table[i], 1),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", GATHERED)
def test_folds_of_what_is_gathered(tier: str, name: str) -> None:
    """Embeddings of several categories, of any width, folded over the categories."""
    function = GATHERED[name]
    compiled = tilevm.compile(function, tier=tier)
    torch.manual_seed(0)
    for width in (1, 2, 7, 16, 17, 40):
        for table in (torch.randn(50, width), torch.randn(width, 50).t()):
            for rows, categories in ((1, 1), (3, 2), (17, 16), (2, 33)):
                i = torch.randint(0, 50, (rows, categories))
                exact = function(table.double(), i)
                torch.testing.assert_close(
                    compiled(table, i), exact, check_dtype=False, rtol=1e-5, atol=1e-5
                )
    with pytest.raises(IndexError):
        compiled(torch.randn(50, 7), torch.full((3, 4), 50))
