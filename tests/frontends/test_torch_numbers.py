"""Python's numbers among tensors of integers: rounded, refused or promoting as in eager mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.tensor([[-8, 3, 5], [1, 2, -7]], dtype=torch.int32)
Y = torch.tensor([[2, 7, 9], [0, 1, 3]], dtype=torch.int32)
PLACES = torch.tensor([0, 1])
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "addcmul": lambda x, y, v: torch.addcmul(x, x, y, value=v),
    "foreach_addcmul": lambda x, y, v: torch._foreach_addcmul([x], [x], [y], v)[0],
    "addmm": lambda x, y, v: torch.addmm(x, x[:, :2], y, alpha=v),
    "addr": lambda x, y, v: torch.addr(x, x[:, 0], y[0], beta=v),
    "clamp": lambda x, y, v: x.clamp(v, 3),
    "hardtanh": lambda x, y, v: F.hardtanh(x, -abs(v), abs(v)),
    "threshold": lambda x, y, v: F.threshold(x, v, v),
    "masked_fill": lambda x, y, v: x.masked_fill(x > 2, v),
    "index_fill": lambda x, y, v: x.index_fill(0, PLACES[:1], v),
    "index_add": lambda x, y, v: x.index_add(0, PLACES, y, alpha=v),
    "scatter": lambda x, y, v: x.scatter(1, y.long().clamp(0, 2), v),
    "pad": lambda x, y, v: F.pad(x, (1, 1), value=v),
    "where": lambda x, y, v: torch.where(x > 2, x, v),
    "full_like": lambda x, y, v: torch.full_like(x, v) + x,
    "new_full": lambda x, y, v: x.new_full((3,), v) + x,
    "pow": lambda x, y, v: torch.pow(x, v),
    "fmod": lambda x, y, v: torch.fmod(x, v),
    "floor": lambda x, y, v: torch.div(x, v, rounding_mode="floor"),
    "trunc": lambda x, y, v: torch.div(x, v, rounding_mode="trunc"),
    "add": lambda x, y, v: torch.add(x, y, alpha=v),
    "add_": lambda x, y, v: x.clone().add_(v),
    "lerp": lambda x, y, v: torch.lerp(x, y, v),
    "compared": lambda x, y, v: (x == v) | (x < v),
    "softshrink": lambda x, y, v: F.softshrink(x.float(), v),
    "xlogy": lambda x, y, v: torch.xlogy(x, v),
    "linspace": lambda x, y, v: torch.linspace(0, 5 + v, 7, dtype=torch.int32) + x[0, 0],
}
NUMBERS = (0.5, 1.75, -1.5, 2, -3, True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool], ids=str)
def test_bounds_of_integers(dtype: Any) -> None:
    x = torch.tensor([0, 1, 2, 100]).to(dtype)
    for low, high in itertools.product((None, -1, 0.5, -300, 300), (None, 3, 0.5, -1, 300)):

        def clamp(x: Any, y: Any, low: Any = low, high: Any = high) -> Any:
            return torch.clamp(x, low, high)

        def recorded(x: Any, y: Any, clamp: Any = clamp) -> Any:
            with tilevm.config.patch(templates=1), tilevm.fuse():
                return clamp(x, y)

        expected = outcome(clamp, x)
        for run in (tilevm.compile(clamp), recorded):
            found = outcome(run, x)
            if isinstance(expected, Exception):
                assert isinstance(found, Exception), f"{low}, {high}: {expected}"
            else:
                torch.testing.assert_close(found, expected)


def outcome(function: Callable[..., Any], x: Any = X) -> Any:
    """The result, or an error."""
    try:
        return function(x, Y)
    except Exception as error:
        return error


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_among_integers(name: str) -> None:
    for number in NUMBERS:

        def function(x: Any, y: Any, number: Any = number) -> Any:
            return FUNCTIONS[name](x, y, number)

        def recorded(x: Any, y: Any, function: Any = function) -> Any:
            with tilevm.config.patch(templates=1), tilevm.fuse():
                return function(x, y)

        torch._dynamo.reset()
        expected = outcome(function)
        for run in (tilevm.compile(function), recorded):
            found = outcome(run)
            if isinstance(expected, Exception):
                assert isinstance(found, Exception), f"{number}: {expected}"
            else:
                torch.testing.assert_close(found, expected, equal_nan=True)
