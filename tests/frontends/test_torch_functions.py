"""Rows of `torch_functions` over the whole range of their arguments, and what is decomposed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_decompose  # noqa: E402

UNARY = "asin acos atan sinh cosh asinh acosh atanh angle".split()
BINARY = "hypot fmax fmin".split()
UNITS = 8  # of the last place, of what PyTorch computes in float64


def numbers(dtype: Any) -> Any:
    """Around 0 and 1, up to the largest ones, and what is none."""
    info = torch.finfo(dtype)
    some = [0.0, 1e-30, 1e-8, 1e-4, 0.1, 0.5, 0.9, 0.999, 1.0, 1.001, 2.0, 10.0, 19.9, 20.1, 80.0]
    some += [88.9, 700.0, 1e3, 9e7, 2e8, info.tiny, info.max, math.inf, math.nan]
    values = torch.tensor([s * v for v in some for s in (1, -1)], dtype=torch.float64)
    return torch.cat([values, torch.linspace(-1.2, 1.2, 97, dtype=torch.float64)]).to(dtype)


def close(found: Any, exact: Any, dtype: Any) -> None:
    info = torch.finfo(dtype)
    rounded = exact.to(dtype).double()
    torch.testing.assert_close(
        found.double(), rounded, rtol=UNITS * info.eps, atol=UNITS * info.tiny, equal_nan=True
    )


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: Any) -> None:
    tilevm.stats.reset()
    function = getattr(torch, name)
    x = numbers(dtype)
    close(tilevm.compile(lambda x: function(x))(x), function(x.double()), dtype)
    assert not called_out()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: Any) -> None:
    function = getattr(torch, name)
    x = numbers(dtype)[:, None]
    y = numbers(dtype)[None, ::3]
    found = tilevm.compile(lambda x, y: function(x, y))(x, y)
    close(found, function(x.double(), y.double()), dtype)


@pytest.mark.parametrize("name", UNARY)
def test_integers_are_numbers(name: str) -> None:
    function = getattr(torch, name)
    x = torch.tensor([-120, -2, -1, 0, 1, 2, 100], dtype=torch.int8)
    torch.testing.assert_close(
        tilevm.compile(lambda x: function(x))(x), function(x), equal_nan=True
    )


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, -1.5, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(p: float, dtype: Any) -> None:
    x = torch.randn(5, 7, 3).to(dtype)
    f = tilevm.compile(lambda x: torch.linalg.vector_norm(x, p, dim=(0, 2)))
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(f(x), torch.linalg.vector_norm(x, p, dim=(0, 2)), **tolerance)


# Sizes differ, 0 and 1 among them: what a decomposition asks of sizes is a guard or nothing.
SIZES = ((4, 6), (2, 8), (1, 6), (7, 1), (1, 1))
DECOMPOSED: list[tuple[str, Callable[..., Any]]] = [
    ("nan_to_num", lambda x: torch.nan_to_num(x / 0)),
    ("roll", lambda x: torch.roll(x, 1, 0)),
    ("std_mean", lambda x: torch.std_mean(x, 1, correction=0)),
    ("cosine_similarity", lambda x: F.cosine_similarity(x, x.flip(0), dim=0)),
    ("cross_entropy", lambda x: F.cross_entropy(x, x.argmax(1))),
    ("binary_cross_entropy", lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid())),
    ("mse_loss", lambda x: F.mse_loss(x, x * 2)),
    ("smooth_l1", lambda x: F.smooth_l1_loss(x, x * 2)),
    ("huber", lambda x: F.huber_loss(x, x * 2)),
    ("kl_div", lambda x: F.kl_div(x.log_softmax(1), x.softmax(1), reduction="sum")),
    ("diff", lambda x: torch.diff(x, dim=0)),
    ("logaddexp", lambda x: torch.logaddexp(x, x * 2)),
    ("xlogy", lambda x: torch.xlogy(x.abs(), x.abs())),
    ("glu", lambda x: F.glu(torch.cat([x, x], 1))),
    ("hstack", lambda x: torch.hstack([x, x + 1])),
    ("tile", lambda x: torch.tile(x, (2, 1))),
    ("trapezoid", lambda x: torch.trapezoid(x, dim=0)),
    ("isclose", lambda x: torch.isclose(x, x + 1e-9)),
    ("heaviside", lambda x: torch.heaviside(x, x)),
    ("selu", lambda x: F.selu(x) + F.celu(x) + F.hardshrink(x) + F.softshrink(x)),
    ("prelu", lambda x: F.prelu(x[None], torch.tensor([0.25]))),
    ("meshgrid", lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij")),
    ("take_along_dim", lambda x: torch.take_along_dim(x, x.argsort(1), 1)),
    ("group", lambda x: F.instance_norm(torch.stack([x, x * 2])) if x.shape[1] > 1 else x),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function"), DECOMPOSED, ids=[n for n, _ in DECOMPOSED])
def test_decomposed(name: str, function: Callable[..., Any]) -> None:
    tilevm.stats.reset()
    compiled = tilevm.compile(function)
    for sizes in SIZES:
        x = torch.randn(sizes)
        torch.testing.assert_close(compiled(x), function(x), equal_nan=True)
    allowed = {"aten.argsort.default"}
    assert set(called_out()) <= allowed
    assert not [reason for reason in tilevm.stats()["flushes"] if reason.startswith("eager")]


def test_sizes_need_no_captures_of_their_own() -> None:
    compiled = tilevm.compile(
        lambda x: F.cosine_similarity(x, x * 2, 1) + torch.roll(x, 1, 1)[:, 0]
    )
    for n in (5, 9, 17, 33):
        compiled(torch.randn(n, n + 1))
    assert len(compiled.captures) == 1


def test_views_stay_views() -> None:
    for function in (torch.atleast_2d, torch.fliplr, torch.diagonal, torch.unsafe_chunk):
        x = torch.randn(4, 4)
        call = (
            function if function is not torch.unsafe_chunk else lambda x: torch.unsafe_chunk(x, 2)
        )
        compiled = tilevm.compile(lambda x, call=call: call(x))
        found, expected = (
            [y] if isinstance(y, torch.Tensor) else y for y in (compiled(x), call(x))
        )
        for f, e in zip(found, expected, strict=True):
            assert (f.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == (
                e.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            )
            assert torch.equal(f, e)


def test_names_are_operators() -> None:
    for name in torch_decompose.NAMES:
        assert hasattr(torch.ops.aten, name), name
