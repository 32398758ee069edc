"""Functions that change what outlives the call: by way of Dynamo, after some calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.frontends.torch_compiled import MOST_EFFECTS  # noqa: E402

LENGTHS = (5, 5, 7, 9, 5, 3, 7, 11, 64, 2, 5, 5)


class Keeps(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Keeps something of each call."""

    def __init__(self, keep: Callable[[Keeps, Any, Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.keep = keep
        self.kept: Any = None
        self.calls = 0
        self.mean = torch.zeros(8)
        self.history: list[Any] = []

    def forward(self, x: Any) -> Any:
        weights = (x @ x.transpose(-2, -1)).softmax(-1)
        self.keep(self, x, weights)
        return weights @ self.linear(x)


def shape(module: Keeps, x: Any, weights: Any) -> None:
    module.kept = x.shape


def tensor(module: Keeps, x: Any, weights: Any) -> None:
    module.kept = weights


def average(module: Keeps, x: Any, weights: Any) -> None:
    module.mean = module.mean * 0.9 + x.detach().mean((0, 1)) * 0.1


def count(module: Keeps, x: Any, weights: Any) -> None:
    module.calls += 1


def collect(module: Keeps, x: Any, weights: Any) -> None:
    module.history.append(weights.detach())


def state(module: Keeps) -> Any:
    return module.kept, module.calls, module.mean, module.history


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, wanted)
    elif isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            assert_same(x, y)
    else:
        assert found == wanted
        assert type(found) is type(wanted)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("keep", [shape, tensor, average, count, collect])
def test_what_is_kept_is_what_eager_code_keeps(keep: Any, gradients: bool) -> None:
    ours, eager = Keeps(keep), Keeps(keep)
    compiled = tilevm.compile(ours)
    with torch.set_grad_enabled(gradients):
        for n in LENGTHS:
            x = torch.randn(2, n, 8)
            result, wanted = compiled(x), eager(x)
            torch.testing.assert_close(result, wanted)
            assert result.requires_grad == wanted.requires_grad
            assert_same(state(ours), state(eager))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("keep", [shape, tensor, average])
def test_what_does_not_count_its_calls_is_compiled_for_all_sizes(
    keep: Any, gradients: bool
) -> None:
    compiled = tilevm.compile(Keeps(keep))
    with torch.set_grad_enabled(gradients):
        for _ in range(MOST_EFFECTS + 1):
            compiled(torch.randn(2, 5, 8))
        before = tilevm.stats()
        for n in (7, 9, 5, 31, 2):
            compiled(torch.randn(2, n, 8))
    after = tilevm.stats()
    assert after["captures"] == before["captures"]
    assert after["flushes"] == before["flushes"]
    assert after["launches"] > before["launches"]


def test_values_that_are_never_the_same_take_no_memory() -> None:
    def keep(module: Keeps, x: Any, weights: Any) -> None:
        module.kept = x.shape[0] / (x.shape[0] + x.shape[1])

    ours = Keeps(keep)
    compiled = tilevm.compile(ours)
    before = tilevm.stats()["captures"]
    with torch.no_grad():
        for n in range(2, 1400):
            compiled(torch.empty(n, 1, 8))
            assert ours.kept == n / (n + 1)
    assert tilevm.stats()["captures"] - before == 1
    inner = compiled._tilevm
    assert len(inner._known_values) <= 1
    assert max(map(len, inner._state._around._known)) <= 1024


def test_what_is_another_graph_each_time_runs_eagerly_and_says_so() -> None:
    compiled = tilevm.compile(Keeps(count))
    limit = torch._dynamo.config.recompile_limit
    with torch.no_grad():
        for _ in range(MOST_EFFECTS + limit):
            compiled(torch.randn(2, 5, 8))
        before = tilevm.stats()
        compiled(torch.randn(2, 5, 8))
    after = tilevm.stats()
    assert after["captures"] == before["captures"]
    (reason,) = (k for k, n in after["flushes"].items() if n != before["flushes"].get(k, 0))
    assert reason.startswith("eager: the function changes the attribute or key 'calls'")


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.manual_seed(3) and 1]
)
def test_random_numbers_of_others_stay_with_eager_code(draw: Callable[[], Any]) -> None:
    def function(x: Any) -> Any:
        return x * float(draw() is not None) + float(random.random() < 2)

    compiled = tilevm.compile(function)
    for _ in range(MOST_EFFECTS + 3):
        x = torch.randn(4)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        wanted = function(x)
        left = random.random(), np.random.rand()  # noqa: NPY002
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.testing.assert_close(compiled(x), wanted)
        assert (random.random(), np.random.rand()) == left  # noqa: NPY002
    assert "through torch.compile" not in compiled._last


def test_an_exception_in_the_middle() -> None:
    def keep(module: Keeps, x: Any, weights: Any) -> None:
        module.kept = weights
        if x.shape[1] == 4:
            raise ValueError("on purpose")

    ours, eager = Keeps(keep), Keeps(keep)
    compiled = tilevm.compile(ours)
    with torch.no_grad():
        for n in (5, 5, 5, 5, 5, 4, 5, 4, 6):
            x = torch.randn(2, n, 8)
            for call in (compiled, eager):
                if n == 4:
                    with pytest.raises(ValueError, match="on purpose"):
                        call(x)
                else:
                    call(x)
            assert_same(state(ours), state(eager))
