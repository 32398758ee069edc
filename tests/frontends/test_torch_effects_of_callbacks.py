"""What hooks, callbacks, modules and operators of classes do to Python's objects, against eager."""

from __future__ import annotations

import collections
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import tilevm

Made = tuple[Callable[..., Any], Callable[[], Any]]  # the function, and what it leaves


class History(list[Any]):
    """A list of the user's."""


def _layer(hook: Callable[..., Any]) -> nn.Module:
    layer = nn.Linear(2, 2).requires_grad_(False)
    layer.register_forward_hook(hook)
    return layer


def hook_with_a_store() -> Made:
    def keep(module: Any, args: Any, out: Any, store: Any) -> None:
        store.append(out.detach())

    store: list[Any] = []
    return _layer(functools.partial(keep, store=store)), lambda: [type(x) for x in store]


def hook_that_counts() -> Made:
    calls = [0]

    def count(module: Any, args: Any, out: Any) -> None:
        calls[0] += 1

    return _layer(count), lambda: calls


def list_of_the_users() -> Made:
    history = History()

    def f(x: Any) -> Any:
        history.append(x.mean())
        return x * 2

    return f, lambda: [type(x) for x in history]


def namespace() -> Made:
    space = SimpleNamespace(n=0, losses=[])

    def f(x: Any) -> Any:
        space.n += 1
        space.losses.append(x.mean())
        return x * 2

    return f, lambda: (space.n, len(space.losses))


def counter() -> Made:
    counts: Any = collections.Counter()

    def f(x: Any) -> Any:
        counts["steps"] += 1
        return x * 2

    return f, lambda: counts


def buffers() -> Made:
    data, waiting = bytearray(), queue.Queue[int]()

    def f(x: Any) -> Any:
        data.append(1)
        waiting.put(1)
        return x * 2

    return f, lambda: (data, waiting.qsize())


def scope() -> Made:
    log: list[str] = []

    class Scope:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, *_: object) -> None:
            log.append("out")

    def f(x: Any) -> Any:
        with Scope():
            return x * 2

    return f, lambda: log


def callback_by_default() -> Made:
    sizes: list[int] = []

    def f(x: Any, emit: Callable[[int], None] = sizes.append) -> Any:
        emit(x.shape[0])
        return x * 2

    return f, lambda: sizes


def operator_of_an_object() -> Made:
    log: list[int] = []

    class Factor:
        def __mul__(self, x: Any) -> Any:
            log.append(1)
            return x * 3

    factor = Factor()
    return lambda x: factor * x, lambda: log


CASES = [hook_with_a_store, hook_that_counts, list_of_the_users, namespace, counter, buffers, scope,
         callback_by_default, operator_of_an_object]  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: str(make.__name__))
def test_effects_happen_at_each_call(make: Callable[[], Made]) -> None:
    left = []
    for wrap in (lambda f: f, tilevm.compile):
        f, leaves = make()
        called: Any = wrap(f)
        for rows in (3, 3, 4):
            called(torch.ones(rows, 2))
        left.append(leaves())
    assert left[0] == left[1]


def test_what_hooks_read_may_change() -> None:
    factors = [2.0]
    layer = _layer(lambda module, args, out: out * factors[0])
    compiled, before = tilevm.compile(layer), tilevm.stats()["captures"]
    x = torch.ones(3, 2)
    for factor in (2.0, 5.0, 5.0):
        factors[0] = factor
        torch.testing.assert_close(compiled(x), layer(x))
    assert tilevm.stats()["captures"] > before


def test_values_of_a_context_or_a_thread() -> None:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale")
    local = threading.local()

    def f(x: Any) -> Any:
        return x * scale.get() + local.shift

    compiled = tilevm.compile(f)
    for value in (1.0, 2.0, 3.0):
        scale.set(value)
        local.shift = value
        assert compiled(torch.ones(1)).item() == 2 * value


def test_operators_without_results_run() -> None:
    seen = []

    @torch.library.custom_op("tilevm_tests::note", mutates_args=())
    def note(x: torch.Tensor) -> None:
        seen.append(x.shape)

    @note.register_fake
    def _(x: Any) -> None:
        return None

    def f(x: Any) -> Any:
        note(x)
        return x * 2

    compiled = tilevm.compile(f)
    for n in (3, 4):
        torch.testing.assert_close(compiled(torch.ones(n)), torch.full((n,), 2.0))
    assert [tuple(shape) for shape in seen] == [(3,), (4,)]


def test_sizes_that_are_kept_are_the_numbers_that_were() -> None:
    """As windows of Swin, which are no larger than the image: only another one is an effect."""

    class Window(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size, self.both = 7, [7]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] <= self.size:
                self.size = self.both[0] = x.shape[0]
            return x * self.size + self.both[0]

    tilevm.stats.reset()
    module, own = Window(), Window()
    compiled = tilevm.compile(module)
    for rows in (9, 7, 7, 8, 5, 5, 7, 5, 1, 1, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), own(x))
        assert (module.size, module.both) == (own.size, own.both)
        assert type(module.size) is int
    assert sum(tilevm.stats()["flushes"].values()) == 2  # where it became 5, and 1
