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
