"""Operators that are recorded: nothing is computed until somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import grid, same, tensors_in  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]
UNARY = (
    "abs neg sign relu exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal sin cos tan tanh "
    "sigmoid erf floor ceil round trunc isnan isinf isfinite square logical_not"
).split()
BINARY = (
    "add sub mul div maximum minimum atan2 eq ne lt le gt ge logical_and logical_or logical_xor "
    "fmod remainder floor_divide pow"
).split()
_ENDS = torch.tensor([3], dtype=torch.int32)
# name: function of x [3, 4] of float32, y [3, 4] of float32 above 0, and k [3, 4] of int64 in 0..2
OPERATORS: dict[str, Function] = {
    **{name: lambda x, y, k, name=name: getattr(torch, name)(y) for name in UNARY},
    **{name: lambda x, y, k, name=name: getattr(torch, name)(x, y) for name in BINARY},
    "x + 1": lambda x, y, k: x + 1,
    "1 - x": lambda x, y, k: 1 - x,
    "x * 2.5": lambda x, y, k: x * 2.5,
    "x / 2": lambda x, y, k: x / 2,
    "2 / y": lambda x, y, k: 2 / y,
    "x ** 2": lambda x, y, k: x**2,
    "x > 0": lambda x, y, k: x > 0,
    "add, alpha": lambda x, y, k: torch.add(x, y, alpha=3),
    "integers": lambda x, y, k: k * 3 + k - 1,
    "integers and floats": lambda x, y, k: k * x,
    "bits": lambda x, y, k: (k & 1) | (k ^ 2),
    "not": lambda x, y, k: ~(x > y),
    "broadcast": lambda x, y, k: x[:, :1] + y[0],
    "where": lambda x, y, k: torch.where(x > 0, x, y),
    "where, number": lambda x, y, k: torch.where(x > 0, x, 0.0),
    "clamp": lambda x, y, k: x.clamp(-1, 2),
    "clamp_min": lambda x, y, k: x.clamp_min(0),
    "gelu": lambda x, y, k: F.gelu(x),
    "gelu, tanh": lambda x, y, k: F.gelu(x, approximate="tanh"),
    "silu": lambda x, y, k: F.silu(x),
    "leaky_relu": lambda x, y, k: F.leaky_relu(x),
    "elu": lambda x, y, k: F.elu(x, 0.5) + F.selu(x) + F.celu(x, 2.0),
    "softplus": lambda x, y, k: F.softplus(x) + F.softplus(x, 2, 3),
    "hardshrink": lambda x, y, k: F.hardshrink(x, 0.3),
    "frac": lambda x, y, k: torch.frac(x * 3),
    "fmax": lambda x, y, k: torch.fmax(x, (y - 3).log()),
    "fmin": lambda x, y, k: torch.fmin(x, (y - 3).log()),
    "nll_loss": lambda x, y, k: F.nll_loss(x, k[:, 0]),
    "nll_loss, sum": lambda x, y, k: F.nll_loss(x, k[:, 0], reduction="sum", ignore_index=1),
    "mse_loss": lambda x, y, k: F.mse_loss(x, y),
    "mse_loss, sum": lambda x, y, k: F.mse_loss(x, y, reduction="sum"),
    "mse_loss, each": lambda x, y, k: F.mse_loss(x, y, reduction="none"),
    "addcmul": lambda x, y, k: torch.addcmul(x, x, y, value=0.5),
    "lerp": lambda x, y, k: torch.lerp(x, y, 0.25),
    "masked_fill": lambda x, y, k: x.masked_fill(y > 3, 9.0),
    "double": lambda x, y, k: x.double(),
    "bfloat16": lambda x, y, k: x.to(torch.bfloat16),
    "half": lambda x, y, k: x.half(),
    "long": lambda x, y, k: x.long(),
    "bool": lambda x, y, k: k.bool(),
    "clone": lambda x, y, k: x.clone(),
    "contiguous": lambda x, y, k: (x + 1).t().contiguous(),
    "sum": lambda x, y, k: x.sum(),
    "sum, rows": lambda x, y, k: x.sum(-1),
    "sum, columns": lambda x, y, k: x.sum(0, keepdim=True),
    "mean": lambda x, y, k: x.mean(-1),
    "amax": lambda x, y, k: x.amax(-1),
    "amin": lambda x, y, k: x.amin(0),
    "argmax": lambda x, y, k: x.argmax(-1),
    "all": lambda x, y, k: (x > 0).all(),
    "any": lambda x, y, k: (x > 0).any(-1),
    "softmax": lambda x, y, k: torch.softmax(x, -1),
    "log_softmax": lambda x, y, k: torch.log_softmax(x, -1),
    "layer_norm": lambda x, y, k: F.layer_norm(x, (4,), y[0], y[1]),
    "matmul": lambda x, y, k: x @ y.t(),
    "linear": lambda x, y, k: F.linear(x, y, y[:, 0]),
    "bmm": lambda x, y, k: torch.bmm(x[None], y.t()[None]),
    "grouped_mm": lambda x, y, k: F.grouped_mm(x, y[:1, :, None] * y[:1, None], offs=_ENDS),
    "addmm": lambda x, y, k: torch.addmm(y[:, :3], x, y.t()),
    "embedding": lambda x, y, k: F.embedding(k, x),
    "index_select": lambda x, y, k: x.index_select(0, k[0]),
    "gather": lambda x, y, k: x.gather(0, k),
    "cat": lambda x, y, k: torch.cat([x, y], 0),
    "stack": lambda x, y, k: torch.stack([x, y]),
    "zeros_like": lambda x, y, k: torch.zeros_like(x) + x,
}
# A view of something pending is pending with it.
VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(4, 3),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(1, 0),
    "transpose": lambda x: x.transpose(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "expand": lambda x: x[:, :1].expand(3, 5),
    "select": lambda x: x[1],
    "slice": lambda x: x[1:, ::2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: x.chunk(2),
    "unbind": lambda x: x.unbind(0),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "None": lambda x: x[None, ..., None],
}


def inputs() -> tuple[Any, Any, Any]:
    x = grid()
    return x, x.abs() + 0.5, torch.arange(12).reshape(3, 4) % 3


# These views may fill what they are views of.
OTHER_VIEWS: dict[str, Function] = {
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "other dtype": lambda x: x.view(torch.int32),
    "real": lambda x: x.real,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_wait(name: str) -> None:
    function = OPERATORS[name]
    with tilevm.fuse():
        first = tensors_in(function(*inputs()))
        compare.recorded(*first)
        again = tensors_in(function(*(x + 0 for x in inputs())))  # of what is pending itself
        compare.recorded(*again)
    expected = tensors_in(function(*inputs()))
    same(first, expected, exact=False)
    same(again, expected, exact=False)
    compare.filled(*first, *again)


@pytest.mark.parametrize("name", VIEWS)
def test_views_wait(name: str) -> None:
    with tilevm.fuse():
        x = grid() * 2
        views = tensors_in(VIEWS[name](x))
        compare.recorded(x, *views)
        for view in views:
            assert view.shape == view.size()  # sizes are no reason to look
        compare.recorded(x, *views)
    expected = grid() * 2
    same([*views, x], [*tensors_in(VIEWS[name](expected)), expected])
    compare.filled(x, *views)


@pytest.mark.parametrize("name", OTHER_VIEWS)
def test_views_of_what_waits(name: str) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return OTHER_VIEWS[name](y), y

    compare.agree(function, grid())


def test_a_segment_is_one_flush() -> None:
    before = compare.flushes()
    with tilevm.fuse():
        x = grid()
        for _ in range(5):
            x = torch.relu(x * 2 - 1).sum(-1, keepdim=True) + x
        compare.recorded(x)
        assert compare.flushes() == before
        x.tolist()
    assert compare.flushes() == before + 1


def test_a_segment_that_was_seen_is_not_compiled_again() -> None:
    def segment(rows: int) -> None:
        with tilevm.fuse():
            (torch.softmax(grid(rows, 5) * 2, -1) + 1).tolist()

    segment(3)
    before = tilevm.stats()["compiles"]
    for _ in range(3):
        segment(3)
    assert tilevm.stats()["compiles"] == before


def test_what_nobody_holds_is_not_looked_at() -> None:
    """Intermediate values die unfilled; results are right without them."""
    with tilevm.fuse():
        x = grid()
        for _ in range(300):  # beyond any one segment
            x = x * 0.5 + 1
    y = grid()
    for _ in range(300):
        y = y * 0.5 + 1
    same(x, y)


def test_leaving_the_block_computes_what_waits() -> None:
    before = compare.flushes()
    with tilevm.fuse():
        x = grid() + 1
        with tilevm.fuse():
            y = x.exp()
        compare.recorded(x, y)  # only the outermost block counts
        assert compare.flushes() == before
    compare.filled(x, y)
    assert compare.flushes() == before + 1
    same((x, y), (grid() + 1, (grid() + 1).exp()), exact=False)
