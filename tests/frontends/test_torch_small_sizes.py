"""First calls with sizes of 0 and 1: traces have other sizes there, and may branch otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.frontends import torch_capture  # noqa: E402


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each attempt to capture something ended."""
    ends: list[str] = []
    attempt = torch_capture._attempt

    def spy(*args: Any) -> Any:
        ends.append("made")
        try:
            return attempt(*args)
        except Exception as error:
            ends[-1] = type(error).__name__
            raise

    monkeypatch.setattr(torch_capture, "_attempt", spy)
    return ends


def several(x: Any) -> Any:
    return x * 2 if x.shape[0] > 1 else x + 3


def nothing(x: Any) -> Any:
    return x.sum() if x.numel() else x.new_zeros(())


def single(x: Any) -> Any:
    return x.squeeze(0) * 2 if x.shape[0] == 1 else x.sum(0)


def of_two(x: Any) -> Any:
    rows, columns = x.shape
    if rows * columns > 4:
        return x.t() + 1
    return x - 1


def swallowed(x: Any) -> Any:
    try:
        y = x * 2 if x.shape[0] > 1 else x + 3
    except Exception:
        y = x - 100
    return y * 5


def in_a_loop(x: Any) -> Any:
    total = x
    while total.shape[0] > 1:
        total = total[: total.shape[0] // 2]
    return total


BRANCHES = [several, nothing, single, of_two, swallowed, in_a_loop]


@pytest.mark.parametrize("fn", BRANCHES)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_branches_on_small_sizes(fn: Callable[..., Any], first: int) -> None:
    tilevm.stats.reset()
    compiled = tilevm.compile(fn)
    for rows in (first, 1, 0, 2, 5, 1, 0):
        for columns in (3, 1):
            x = torch.randn(rows, columns)
            torch.testing.assert_close(compiled(x), fn(x))
            y = x.clone().requires_grad_()
            torch.testing.assert_close(compiled(y), fn(y))
    assert not tilevm.stats()["flushes"], compiled.guards


def test_a_trace_ends_where_the_call_branches_otherwise(attempts: list[str]) -> None:
    compiled = tilevm.compile(several)
    x = torch.randn(1, 4)
    assert torch.equal(compiled(x), x + 3)
    assert attempts == ["OtherBranch", "made"]
    attempts.clear()
    x = torch.randn(7, 4)
    assert torch.equal(compiled(x), x * 2)
    assert attempts == ["made"]
    assert sorted(c.describe() for c in compiled.captures) == [
        "args[0].shape[0] == 1",
        "args[0].shape[0] > 1",
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tanh(x) + x.sum(0),
        lambda x: x @ x.t(),
        lambda x: torch.cat([x, x]),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: x.reshape(-1, 2) + 1,
        lambda x: x if x.dim() == 2 and x.shape[1] > 1 else x + 1,
    ],
)
def test_no_branch_no_second_attempt(fn: Callable[..., Any], attempts: list[str]) -> None:
    compiled = tilevm.compile(fn)
    for rows in (1, 0, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    assert attempts == ["made"], compiled.guards
