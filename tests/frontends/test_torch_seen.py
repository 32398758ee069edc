"""What a function reads besides its arguments, and what stays as it is: of several kinds."""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402


def ones(*sizes: int) -> Any:
    return torch.ones(*sizes or (2,))


class Holder(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Any) -> Any:
        return x + 1


Pair = collections.namedtuple("Pair", ["a", "b"])  # as users have them


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: [ones()],
        lambda: {"a": [ones()]},
        lambda: collections.OrderedDict(a=ones()),
        lambda: collections.defaultdict(list, {"a": [ones()]}),
        lambda: collections.deque([ones()], maxlen=4),
        lambda: Pair(ones(), [ones()]),
        lambda: ones(2, 2).max(0),
    ],
)
def test_attributes_stay_the_objects_that_they_are(
    make: Callable[[], Any], gradients: bool
) -> None:
    module = torch.nn.Sequential(Holder(make()), Holder(make()))
    before = [part.held for part in module]
    inner = [list(map(id, held.values() if isinstance(held, dict) else held)) for held in before]
    x = ones().requires_grad_(gradients)
    torch.testing.assert_close(tilevm.compile(module)(x), x + 2)
    for part, held, ids in zip(module, before, inner, strict=True):
        assert part.held is held
        assert list(map(id, held.values() if isinstance(held, dict) else held)) == ids


class Named(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Row(list[float]):
    pass


def test_items_of_classes_made_from_lists_and_dicts() -> None:
    named: Any = Named(a=2.0)
    ordered = collections.OrderedDict(a=3.0)
    row = Row([1.0, 5.0])
    default = collections.defaultdict(float, {"a": 7.0})

    def function(x: Any) -> Any:
        return x * named.a * ordered["a"] * row[1] * default["a"]

    compiled = tilevm.compile(function)
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: named.update(a=11.0),
        lambda: ordered.update(a=13.0),
        lambda: row.__setitem__(1, 17.0),
        lambda: default.update(a=19.0),
    ]
    for change in changes:
        change()
        torch.testing.assert_close(compiled(ones()), function(ones()))


class Base(torch.nn.Module):  # type: ignore[misc, name-defined]
    factor = 2.0

    def forward(self, x: Any) -> Any:
        return self.scaled(x)

    def scaled(self, x: Any) -> Any:
        return x * self.factor


def test_what_a_class_has_of_its_base_it_may_come_to_have_itself() -> None:
    derived = type("Derived", (type("Between", (Base,), {}),), {})
    module = torch.nn.Sequential(derived())
    compiled = tilevm.compile(module)
    changes: list[tuple[str, Any]] = [
        ("factor", 3.0),
        ("scaled", lambda self, x: x + self.factor),
        ("forward", lambda self, x: x - 1),
    ]
    torch.testing.assert_close(compiled(ones()), module(ones()))
    for kind in (derived.__mro__[1], derived):
        for name, value in changes:
            setattr(kind, name, value)
            torch.testing.assert_close(compiled(ones()), module(ones()))


def test_attributes_of_functions_and_arguments_of_partials() -> None:
    def function(x: Any) -> Any:
        return x * function.factor  # type: ignore[attr-defined]

    scaled = functools.partial(lambda x, factor: x * factor, factor=2.0)
    compiled, partial = tilevm.compile(function), tilevm.compile(scaled)
    for factor in (3.0, 5.0):
        function.factor = factor  # type: ignore[attr-defined]
        scaled.keywords["factor"] = factor
        torch.testing.assert_close(compiled(ones()), ones() * factor)
        torch.testing.assert_close(partial(ones()), ones() * factor)


def test_a_function_that_asks_whether_gradients_are_recorded() -> None:
    def function(x: Any) -> Any:
        with torch.no_grad():
            inner = x * (2 if torch.is_grad_enabled() else 5)
        return inner + (7 if torch.is_grad_enabled() else 11), torch.is_grad_enabled()

    compiled = tilevm.compile(function)
    for recorded in (True, False, True):
        for wanted in (False, True):
            x = ones().requires_grad_(wanted)
            with torch.set_grad_enabled(recorded):
                found, expected = compiled(x), function(x)
            torch.testing.assert_close(found, expected)
            assert found[1] is expected[1]


class Clips(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(ones())

    def forward(self, x: Any) -> Any:
        self.weight.data = self.weight.data.clamp(max=0.5)
        return x * self.weight


@pytest.mark.parametrize("gradients", [False, True])
def test_assigning_to_data(gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        module = Clips()
        for _ in range(3):
            torch.testing.assert_close(tilevm.compile(module)(ones()), torch.full((2,), 0.5))
        assert module.weight.tolist() == [0.5, 0.5]

        def function(x: Any, y: Any) -> Any:
            x.data = y * 2
            return x + 1

        x = ones()
        compiled = tilevm.compile(function)
        for value in (2.0, 3.0):
            torch.testing.assert_close(compiled(x, ones(3) * value), ones(3) * 2 * value + 1)
            torch.testing.assert_close(x, ones(3) * 2 * value)


def test_where_in_its_storage_a_tensor_begins() -> None:
    compiled = tilevm.compile(lambda x: x + x.storage_offset())
    whole = ones(5)
    for part in (whole[:2], whole[2:4], whole[1:]):
        torch.testing.assert_close(compiled(part), part + part.storage_offset())


def test_what_is_awaited() -> None:
    @tilevm.compile
    async def later(x: Any) -> Any:
        return x * 2

    @tilevm.compile
    async def several(x: Any) -> Any:
        yield x * 3

    async def collect() -> list[Any]:
        return [value async for value in several(ones())]

    for _ in range(2):
        found = asyncio.run(later(ones()))
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, ones() * 2)
        torch.testing.assert_close(asyncio.run(collect()), [ones() * 3])
