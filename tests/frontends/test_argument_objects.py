"""What code reads of objects among the arguments may change between calls."""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilevm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch

FACTOR = 3.0


class Scale:
    """An object that can be called."""

    def __init__(self) -> None:
        self.by, self.weight = 1.0, torch.ones(2)

    def __call__(self, x: Any) -> Any:
        return x * self.by * self.weight

    def twice(self, x: Any) -> Any:
        return x * self.by * 2


class Settings:
    """Plain data, whose class says something."""

    by = 2.0

    def of(self, x: Any) -> Any:
        return x * self.by


class Layer(nn.Module):
    factor = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.functions, self.named, self.numbers = [torch.tanh], {"by": 1.0}, [1.0]
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(self.functions[0](x) * self.named["by"] * self.numbers[0] * self.factor)


class Holder:
    def __init__(self) -> None:
        self.layer = Layer()


def by_a_global(x: Any) -> Any:
    return x * FACTOR


def _set(owner: Any, key: Any, value: Any) -> None:
    owner.__setitem__(key, value) if isinstance(owner, list | dict) else setattr(owner, key, value)


Changes = list[tuple[Any, Any, Any]]
Case = tuple[Any, Callable[..., Any], Changes]


def _cases() -> Iterator[tuple[str, Case]]:
    """The argument, a function of it and x, and changes: of what, which key, to which value."""
    called: Callable[..., Any] = lambda f, x: f(x)  # noqa: E731
    scale, numbers, factors = Scale(), [2.0], [3.0]
    weights = (scale, "weight", torch.full((2,), 4.0))
    yield "called", (scale, called, [(scale, "by", 5.0), weights, (scale, "by", 7.0)])
    yield "read", (scale, lambda o, x: x * o.by, [(scale, "by", 5.0)])
    yield "method", (scale.twice, called, [(scale, "by", 6.0)])
    yield "in a list", ([scale], lambda f, x: f[0](x), [(scale, "by", 8.0)])
    yield "in a dict", ({"f": scale}, lambda f, x: f["f"](x), [(scale, "by", 9.0)])
    yield "global", (by_a_global, called, [(globals(), "FACTOR", 4.0)])
    yield "closure", (lambda x: x * numbers[0], called, [(numbers, 0, 7.0)])
    partial = functools.partial(lambda x, by: x * by[0], by=factors)
    yield "partial", (partial, called, [(factors, 0, 8.0)])
    yield "class", (Settings, lambda c, x: x * c.by, [(Settings, "by", 3.5)])
    settings = Settings()
    other = lambda self, x: x * 9  # noqa: E731
    changes: Changes = [(Settings, "by", 4.5), (Settings, "of", other)]
    yield "of a class", (settings, lambda s, x: s.of(x) + s.by, changes)
    for kind, layer in (("module", Layer()), ("held module", Layer())):
        holder = Holder()
        holder.layer = layer
        changes = [
            (layer.functions, 0, torch.sin),
            (layer.named, "by", 2.0),
            (layer.numbers, 0, 3.0),
            (Layer, "factor", 5.0),
            (layer.linear, "weight", nn.Parameter(torch.ones(2, 2))),
            (layer, "linear", nn.Linear(2, 2)),
        ]
        if kind == "module":
            yield kind, (layer, called, changes)
        else:
            yield kind, (holder, lambda h, x: h.layer(x), changes)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", [name for name, _ in _cases()])
def test_changes_are_seen(name: str, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    argument, function, changes = dict(_cases())[name]
    for owner, key, _ in changes:  # undone at the end
        if not isinstance(owner, list | dict | nn.Module):
            monkeypatch.setattr(owner, key, getattr(owner, key))
    monkeypatch.setitem(globals(), "FACTOR", FACTOR)
    compiled, before = tilevm.compile(function), tilevm.stats()["captures"]
    x = torch.tensor([0.3, 0.7])
    with torch.set_grad_enabled(gradients):
        for change in (None, *changes):
            if change is not None:
                _set(*change)
            for _ in range(2):
                torch.testing.assert_close(compiled(argument, x), function(argument, x))
    assert tilevm.stats()["captures"] > before or gradients


class Attributes(SimpleNamespace):
    """Its `__new__` is in C, and what it sets may be anything."""


@pytest.mark.parametrize("kind", [SimpleNamespace, Attributes])
def test_namespaces_that_are_written_to(kind: Callable[..., Any]) -> None:
    def step(state: Any) -> Any:
        state.count += 1
        state.last = state.x * state.count
        return state.last.sum()

    compiled, before = tilevm.compile(step), tilevm.stats()["captures"]
    ours, eager = (kind(x=torch.arange(3.0), count=0) for _ in range(2))
    for _ in range(3):
        assert compiled(ours) == step(eager)
        assert ours.count == eager.count
        torch.testing.assert_close(ours.last, eager.last)
    assert tilevm.stats()["captures"] > before


def test_methods_that_are_compiled() -> None:
    class Net:
        rate = 0.5

        def __init__(self) -> None:
            self.weight, self.keep = torch.ones(2), 1.0

        @tilevm.compile
        def __call__(self, x: Any) -> Any:
            return x * self.weight * self.keep - self.rate

    net, x, found = Net(), torch.ones(2), []
    for name, value in (("keep", 1.0), ("keep", 0.5), ("weight", torch.full((2,), 4.0))):
        setattr(net, name, value)
        found.append(float(net(x)[0]))
    Net.rate = 0.25
    assert [*found, float(net(x)[0])] == [0.5, 0.0, 1.5, 1.75]


def test_methods_are_one_however_often_they_are_asked_for() -> None:
    class Plain:
        by = 2.0

        def scaled(self, x: Any) -> Any:
            return x * self.by

    called: Callable[..., Any] = lambda f, x: f(x)  # noqa: E731
    x = torch.ones(3)
    for owner, name in ((Plain(), "scaled"), (Scale(), "twice"), (x, "add")):
        compiled, before = tilevm.compile(called), tilevm.stats()["captures"]
        for _ in range(3):
            method = getattr(owner, name)
            torch.testing.assert_close(compiled(method, x), method(x))
        assert tilevm.stats()["captures"] == before + 1
        if owner is not x:
            owner.by = 7.0
            torch.testing.assert_close(compiled(getattr(owner, name), x), getattr(owner, name)(x))


def test_functions_of_pytorch_are_not_looked_into() -> None:
    called: Callable[..., Any] = lambda f, x: f(x)  # noqa: E731
    compiled, before = tilevm.compile(called), tilevm.stats()["captures"]
    for function in (torch.relu, torch.tanh, torch.relu, torch.tanh):
        torch.testing.assert_close(compiled(function, torch.ones(3)), function(torch.ones(3)))
    assert tilevm.stats()["captures"] == before + 2


def test_another_object_each_time() -> None:
    compiled = tilevm.compile(lambda function, x: function(x) + 1)
    x = torch.ones(3)
    for i in range(5):
        by = float(i)
        assert compiled(lambda y, by=by: y * by, x).tolist() == [by + 1] * 3


class Held:
    """Plain data."""

    inner: list[Any]
    more: Any

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Renamed(Held):
    pass


class MyInt(int):
    pass


class MySet(set[int]):
    pass


class MyDeque(deque[int]):
    pass


def deletes(held: Any, x: Any) -> Any:
    del held.x
    return x + 1


def empties(held: Any, x: Any) -> Any:
    vars(held).pop("n")
    return x + 1


def moves_to_the_end(held: Any, x: Any) -> Any:
    n = held.n
    del held.n
    held.n = n
    return x + 1


def becomes(held: Any, x: Any) -> Any:
    held.__class__ = Renamed
    return x + 1


def replaces(held: Any, x: Any) -> Any:
    held.__dict__ = {"y": x * 2}
    return x + 1


def inside(held: Any, x: Any) -> Any:
    del held.inner[0].x
    return x + 1


def adds(held: Any, x: Any) -> Any:
    held.more = x * 2
    return held.more + 1


@pytest.mark.parametrize(
    "fn", [deletes, empties, moves_to_the_end, becomes, replaces, inside, adds]
)
def test_what_a_function_does_to_attributes(fn: Callable[..., Any]) -> None:
    compiled = tilevm.compile(fn)
    for _ in range(4):
        x = torch.randn(3)
        ours, eager = (Held(n=2, x=x, inner=[Held(x=x, n=1)]) for _ in range(2))
        torch.testing.assert_close(compiled(ours, x), fn(eager, x))
        assert type(ours) is type(eager)
        assert list(vars(ours)) == list(vars(eager))
        if "inner" in vars(eager):
            assert list(vars(ours.inner[0])) == list(vars(eager.inner[0]))
    if fn is adds:
        assert len(compiled.captures) == 1
        torch.testing.assert_close(ours.more, x * 2)


# Functions, and arguments that are no tensors; each is made anew for eager code.
MORE_THAN_ATTRIBUTES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "int": (lambda x, n: x * int(n) + n, lambda: [MyInt(3), MyInt(4)]),
    "set": (lambda x, s: x * len(s), lambda: [MySet([1]), MySet([1, 2]), MySet()]),
    "deque": (lambda x, s: x * len(s), lambda: [MyDeque([1]), MyDeque([1, 2])]),
    "iterator": (lambda x, i: x * next(i), lambda: [iter([1, 2, 3, 4])] * 4),
    "generator": (lambda x, i: x * next(i), lambda: [(n for n in range(5))] * 4),
    "count": (lambda x, i: x * next(i), lambda: [itertools.count(5)] * 4),
    "random numbers": (lambda x, r: x * r.random(), lambda: [random.Random(0)] * 4),
    "NumPy's": (lambda x, r: x * r.random(), lambda: [np.random.default_rng(0)] * 4),
    "NumPy's old": (lambda x, r: x * r.rand(), lambda: [np.random.RandomState(0)] * 4),
    "decimals": (lambda x, d: x * len(str(d)), lambda: [Decimal("1.0"), Decimal("1.00")]),
    "sets": (
        lambda x, s: x * len(type(next(e for e in s)).__name__),
        lambda: [frozenset([1]), frozenset([True])],
    ),
    "keys": (lambda x, d: {k: x * v for k, v in d.items()}, lambda: [{1: 2}, {True: 2}, {1.0: 2}]),
    "keys of keys": (
        lambda x, d: {k: x * v for k, v in d.items()},
        lambda: [{(1, 2): 2}, {(True, 2): 2}],
    ),
    "complex": (lambda x, z: x * z, lambda: [complex(0, 0.0), complex(0, -0.0)]),
}


@pytest.mark.parametrize("what", MORE_THAN_ATTRIBUTES)
def test_what_is_more_than_its_attributes(what: str) -> None:
    fn, arguments = MORE_THAN_ATTRIBUTES[what]
    compiled, x = tilevm.compile(fn), torch.ones(2)
    ours, eager = arguments() * 3, arguments() * 3
    if what in ("iterator", "generator"):
        ours, eager = ours[:4], eager[:4]
    for a, b in zip(ours, eager, strict=True):
        got, expected = compiled(x, a), fn(x, b)
        assert repr(got) == repr(expected)


def test_what_may_not_be_changed_outside_of_inference_mode() -> None:
    def fn(held: Any) -> Any:
        return held.x.add_(1)

    compiled = tilevm.compile(fn)
    with torch.inference_mode():
        made = torch.ones(2)
    for _ in range(4):
        assert compiled(Held(x=torch.ones(2)))[0] == 2
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            compiled(Held(x=made))
    with torch.inference_mode():
        assert compiled(Held(x=torch.ones(2)))[0] == 2
