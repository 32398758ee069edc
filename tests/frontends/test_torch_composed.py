"""Functions of PyTorch that ask for values, captured as what they consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def check(function: Callable[..., Any], *cases: tuple[Any, ...]) -> None:
    """As eager mode, in kernels alone."""
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for arguments in cases:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), equal_nan=True)
    stats = tilevm.stats()
    assert not stats["callouts"]
    assert not stats["flushes"]


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_covariances(correction: int) -> None:
    sizes = ((3, 7), (5, 4), (2, 64))
    xs = [torch.randn(size) for size in sizes]
    check(lambda x: torch.cov(x, correction=correction), *((x,) for x in xs))
    check(lambda x: x.cov(correction=correction), (torch.randn(9),))
    rows = [(x, torch.randint(1, 5, x.shape[1:]), torch.rand(x.shape[1:]) + 0.1) for x in xs]
    check(lambda x, f, a: torch.cov(x, correction=correction, fweights=f), *rows)
    check(lambda x, f, a: torch.cov(x, correction=correction, aweights=a), *rows)
    check(lambda x, f, a: torch.cov(x, correction=correction, fweights=f, aweights=a), *rows)


def test_correlations() -> None:
    check(torch.corrcoef, (torch.randn(3, 7),), (torch.randn(5, 4),))
    check(lambda x: x.corrcoef(), (torch.randn(9),))
    check(lambda x: x.cov() + x.corrcoef(), (torch.zeros(3, 4),))


def test_weights_that_do_not_fit() -> None:
    x = torch.randn(3, 4)

    def function(x: Any, w: Any) -> Any:
        return torch.cov(x, fweights=w)

    compiled = tilevm.compile(function)
    for weights in ([1, 2, 1, 1], [1, -2, 1, 1], [0, 0, 0, 0], [1, 2, 1]):
        w = torch.tensor(weights)
        try:
            expected = function(x, w)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as found:
                compiled(x, w)
            assert str(found.value).partition("\n")[0] == str(error).partition("\n")[0]
        else:
            torch.testing.assert_close(compiled(x, w), expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_too_few_observations_warn() -> None:
    compiled = tilevm.compile(torch.cov)
    x = torch.randn(3, 1)
    torch.testing.assert_close(compiled(x), torch.cov(x), equal_nan=True)
    torch.testing.assert_close(compiled(torch.ones(3, 5)), torch.zeros(3, 3))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gaussian_losses(reduction: str) -> None:
    def loss(x: Any, target: Any, var: Any) -> Any:
        return functional.gaussian_nll_loss(x, target, var, full=True, reduction=reduction)

    cases = []
    for shape in ((4, 6), (2, 3, 5)):
        x, target = torch.randn(2, *shape)
        var = torch.rand(shape)
        var[0] = 0
        cases.append((x, target, var))
    check(loss, *cases)
    check(loss, (*cases[0][:2], cases[0][2][:, :1]))
    check(loss, (*cases[0][:2], cases[0][2][:, 0]))
    compiled = tilevm.compile(loss)
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            compiled(*cases[0][:2], -cases[0][2] - 1)
    assert compiled(*cases[0]).isfinite().all()
