"""Gradients of pools, padding and windows, in kernels and loops of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch

POOLS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: F.avg_pool2d(x, 2),
    "overlapping": lambda x: F.avg_pool2d(x, 3, 1),
    "overlapping, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "padding not counted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "with gaps": lambda x: F.avg_pool2d(x, (2, 1), (3, 4)),
    "of the ceiling": lambda x: F.avg_pool2d(x, 3, 2, 1, True),
    "... not counted": lambda x: F.avg_pool2d(x, 2, 3, 1, True, False),
    "a divisor": lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5),
    "1 dim": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "3 dims": lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0)),
    "response norm": lambda x: F.local_response_norm(x, 3),
}
ADAPTIVE: dict[str, Callable[[Any], Any]] = {
    "one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "some": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "as many": lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
    "1 dim": lambda x: F.adaptive_avg_pool1d(x[0], 5),
    "3 dims": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
    "area": lambda x: F.interpolate(x, size=(3, 4), mode="area"),
    "largest": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "largest, 1 dim": lambda x: F.adaptive_max_pool1d(x[0], 3),
}
PADDED: dict[str, Callable[[Any], Any]] = {
    "replicate": lambda x: F.pad(x, (2, 1, 0, 3), "replicate"),
    "replicate, cut": lambda x: F.pad(x, (-1, 2, 1, -1), "replicate"),
    "reflect": lambda x: F.pad(x, (2, 1, 1, 3), "reflect"),
    "circular": lambda x: F.pad(x, (2, 1, 0, 3), "circular"),
    "circular, cut": lambda x: F.pad(x, (-1, 2, 1, -1), "circular"),
    "patches": lambda x: F.unfold(x, (2, 3), padding=1, stride=2),
    "windows": lambda x: x.unfold(2, 3, 2) * 2,
    "a diagonal": lambda x: x.diagonal(1, 2, 3),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25]).to(x)),
    "masked_scatter": lambda x: (x * 0).masked_scatter(x > 0, x),
}
FUNCTIONS = {**POOLS, **ADAPTIVE, **PADDED}
SIZES = ((2, 3, 7, 8), (1, 4, 6, 9), (3, 2, 12, 5))


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    (found,) = torch.autograd.grad((y * weights).sum(), leaf)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for sizes in SIZES:
        x = torch.randn(sizes)
        exact = gradient(function, x.double()).float()
        torch.testing.assert_close(gradient(compiled, x), exact, rtol=1e-4, atol=1e-5)
    stats = tilevm.stats()
    assert not stats["flushes"]
    # Windows that overlap are a view, which is PyTorch's.
    assert set(stats["callouts"]) <= ({"aten.unfold.default"} if name == "windows" else set())


def test_losses_of_probabilities() -> None:
    tilevm.stats.reset()
    target = torch.rand(4, 5)
    for reduction in ("none", "mean", "sum"):
        compiled = tilevm.compile(
            lambda x, r=reduction: F.binary_cross_entropy(x.sigmoid(), target, reduction=r)
        )
        x = torch.randn(4, 5)
        found, expected = (
            gradient(f, x)
            for f in (
                compiled,
                lambda x, r=reduction: F.binary_cross_entropy(x.sigmoid(), target, reduction=r),
            )
        )
        torch.testing.assert_close(found, expected)
    assert not tilevm.stats()["callouts"]


def test_softmax_of_a_scalar() -> None:
    tilevm.stats.reset()
    for function in (lambda x: x.softmax(0), lambda x: x.log_softmax(0) * 2):
        compiled = tilevm.compile(function)
        for value in (0.5, float("inf"), float("nan")):
            x = torch.tensor(value)
            torch.testing.assert_close(gradient(compiled, x), gradient(function, x), equal_nan=True)
    assert not tilevm.stats()["callouts"]
