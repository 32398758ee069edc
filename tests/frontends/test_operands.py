"""Operators over tensors of different dtypes, and what PyTorch's kernels do not take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import tilevm

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

Function = Callable[..., Any]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64)
CASES: dict[str, Function] = {
    "add": lambda x, y: torch.add(x, y, alpha=0.1),
    "add twice": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.1),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=0.1),
    "add_": lambda x, y: x.clone().add_(y, alpha=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "addcmul by a number": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "addcmul of three": lambda x, y: torch.addcmul(x, y, x, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.3),
    "addcdiv_": lambda x, y: x.clone().addcdiv_(y, y + 1),
    "addcmul of integers": lambda x, y: torch.addcmul(x, y, y, value=2),
}


def through_fuse(function: Function) -> Function:
    def call(*args: Any) -> Any:
        with tilevm.fuse():
            return function(*args)

    return call


def drawn(dtype: Any) -> Any:
    """Positive, and no numbers of fewer bits."""
    torch.manual_seed(0)
    x = torch.rand(5, 7, dtype=torch.float64) + 0.5
    return x.to(dtype) if dtype.is_floating_point else (x * 1e4).to(dtype)


@pytest.mark.parametrize("door", [tilevm.compile, through_fuse], ids=["compile", "fuse"])
@pytest.mark.parametrize("name", CASES)
def test_all_operands_convert_first(name: str, door: Callable[[Function], Function]) -> None:
    function = CASES[name]
    compared = 0
    for kinds in itertools.product(DTYPES, repeat=2):
        x, y = map(drawn, kinds)
        try:
            expected = function(x, y)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).partition("(")[0][:40]):
                door(function)(x, y)
            continue
        found = door(function)(x, y)
        assert found.dtype is expected.dtype, kinds
        if not expected.is_floating_point():
            assert torch.equal(found, expected), kinds
            continue
        size = x.double().abs() + y.double().abs().square() + 1  # of what may have cancelled
        off = (found.double() - expected.double()).abs() / size
        assert off.max() <= 4 * torch.finfo(expected.dtype).eps, kinds
        compared += 1
    assert compared >= 7


# Of integers, or of bools alone: PyTorch's metadata allow them.
REFUSED: dict[str, tuple[Any, Function]] = {
    "frac": (torch.int64, torch.frac),
    "var": (torch.int32, lambda x: x.var(1)),
    "std_mean": (torch.uint8, lambda x: torch.std_mean(x, 1)),
    "gelu": (torch.int64, torch.nn.functional.gelu),
    "celu": (torch.int8, torch.nn.functional.celu),
    "glu": (torch.int64, lambda x: torch.nn.functional.glu(x, 0)),
    "logsigmoid": (torch.int16, torch.nn.functional.logsigmoid),
    "hypot": (torch.int64, lambda x: torch.hypot(x, x)),
    "logaddexp": (torch.int32, lambda x: torch.logaddexp(x, x)),
    "max_pool1d": (torch.int64, lambda x: torch.nn.functional.max_pool1d(x, 2)),
    "cross entropy": (
        torch.int64,
        lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x.float()),
    ),
    "abs": (torch.bool, torch.abs),
    "argmax": (torch.bool, lambda x: x.argmax(1)),
    "median": (torch.bool, lambda x: x.median(1)),
    "topk": (torch.bool, lambda x: x.topk(2)),
    "trace": (torch.bool, torch.trace),
    "cumsum": (torch.float32, lambda x: x.cumsum(0, dtype=torch.bool)),
    "cumprod": (torch.float32, lambda x: x.cumprod(0, dtype=torch.bool)),
}


@pytest.mark.parametrize("door", [tilevm.compile, through_fuse], ids=["compile", "fuse"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_do_not_take_raises(name: str, door: Callable[[Function], Function]) -> None:
    dtype, function = REFUSED[name]
    x = torch.ones(4, 4).to(dtype)
    with pytest.raises(RuntimeError) as expected:
        function(x)
    with pytest.raises(RuntimeError) as found:
        door(function)(x)
    assert str(found.value) == str(expected.value)


OUT_OF_RANGE: dict[str, Function] = {
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim),
    "softmin": lambda x, dim: torch.nn.functional.softmin(x, dim),
    "sort": lambda x, dim: x.sort(dim)[0],
    "argsort": lambda x, dim: x.argsort(dim=dim, stable=True),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_dims_out_of_range(name: str) -> None:
    x = torch.randn(2, 3)
    for dim in (-3, 2, -4):
        with pytest.raises(IndexError) as expected:
            OUT_OF_RANGE[name](x, dim)
        with pytest.raises(IndexError) as found:
            tilevm.compile(lambda x, dim=dim: OUT_OF_RANGE[name](x, dim))(x)
        assert str(found.value) == str(expected.value)
