"""`torch.cond` and `torch.while_loop`: captured with all their branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def plain(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: torch.relu(x) + 1, lambda x: x * 2 - 1, (x,))


def nested(x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x[0, 0] > 0.5, lambda x: x.exp(), lambda x: x.sin(), (x,)) + 1

    return torch.cond(x.sum() > 0, inner, lambda x: x * 2 - 1, (x,)) * 2


def several(x: Any) -> Any:
    a, b = torch.cond(
        x.mean() > 0,
        lambda x, y: (x + y.sum(), y * 1),
        lambda x, y: (x - y[0], y.exp()),
        (x, x[:, 0] * 2),
    )
    return a * b[:, None], b


def closure(x: Any) -> Any:
    total = x.sum(0)
    return torch.cond(x.sum() > 0, lambda x: x * total, lambda x: x + total, (x,))


def loop(x: Any) -> Any:
    return torch.while_loop(
        lambda i, y: (i < 20) & (y.abs().max() < 100),
        lambda i, y: (i + 1, y * 2),
        (torch.zeros((), dtype=torch.int64), x),
    )


def never(x: Any) -> Any:
    """Its body does not run."""
    (y,) = torch.while_loop(lambda y: y.sum() != y.sum(), lambda y: (y * 2,), (x,))
    return y


FUNCTIONS: list[Callable[[Any], Any]] = [plain, nested, several, closure, loop, never]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_takes_the_branch_of_the_data(function: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        for sizes in ((3, 4), (5, 6), (2, 2), (1, 3), (1, 1), (7, 1)):
            for sign in (1, -1):
                x = torch.rand(*sizes) * sign
                torch.testing.assert_close(compiled(x), function(x))
    assert not tilevm.stats()["flushes"]
    assert tilevm.stats()["captures"] <= 3  # PyTorch looks at sizes of 1


def test_results_are_not_the_arguments() -> None:
    compiled = tilevm.compile(never)
    with torch.no_grad():
        x = torch.rand(3, 4)
        y = compiled(x)
    y += 1
    assert not torch.equal(x, y)


def test_only_one_branch_runs() -> None:
    compiled = tilevm.compile(plain)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        tilevm.stats.reset()
        compiled(torch.ones(3, 4))
    counted = tilevm.stats()
    assert counted["callouts"] == {}
    assert counted["launches"] == 2  # the sum and its test; the branch
