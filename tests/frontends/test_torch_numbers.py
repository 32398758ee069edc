"""Python's numbers among tensors of integers: rounded, refused or promoting as in eager mode."""

from __future__ import annotations

import itertools
import math
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


def _written(x: Any, i: Any, v: Any) -> Any:
    x[1] = v
    return x


FILLED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fill_": lambda x, i, v: x.fill_(v),
    "full_like": lambda x, i, v: torch.full_like(x, v),
    "new_full": lambda x, i, v: x.new_full((2,), v),
    "masked_fill": lambda x, i, v: x.masked_fill(x > 1, v),
    "masked_fill by a tensor": lambda x, i, v: x.masked_fill(x > 1, v * i[0]),
    "index_fill": lambda x, i, v: x.index_fill(0, i, v),
    "scatter": lambda x, i, v: x.scatter(0, i, v),
    "an element": _written,
}
DOORS: dict[str, Callable[..., Any]] = {
    "compile": tilevm.compile,
    "dynamo": lambda f: torch.compile(f, backend="tilevm", dynamic=True),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", FILLED)
def test_numbers_that_integers_do_not_have(name: str, dtype: Any, door: str) -> None:
    """PyTorch raises, whichever of the calls has them."""
    function = FILLED[name]
    torch._dynamo.reset()
    compiled = DOORS[door](function)
    i = torch.tensor([1, 3])
    for v in (2.5, 3.0, math.inf, 200.75, math.nan, -1e30, -0.5, 2, 3, 2**40, -1):
        x, y = torch.arange(4, dtype=dtype), torch.arange(4, dtype=dtype)
        try:
            wanted = function(y, i, v)
        except RuntimeError as error:
            # Of NaN, Dynamo says the same in words of its own.
            said = "" if math.isnan(v) and door == "dynamo" else str(error)
            with pytest.raises(RuntimeError, match=said):
                compiled(x, i, v)
        else:
            assert torch.equal(compiled(x, i, v), wanted), v
        assert torch.equal(x, y), v


def test_numbers_that_integers_have_are_no_capture_each() -> None:
    compiled = tilevm.compile(lambda x, v: x.masked_fill(x > 1, v))
    tilevm.stats.reset()
    for v in (2.5, 3.25, -7.0):
        assert compiled(torch.arange(4), v).tolist() == [0, 1, int(v), int(v)]
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["flushes"]
