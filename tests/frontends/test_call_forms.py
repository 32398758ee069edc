"""Calls with keywords, containers and objects that run without Python."""

from __future__ import annotations

import gc
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm import lang  # noqa: E402
from tilevm.frontends.kernel import Kernel  # noqa: E402
from tilevm.frontends.torch_compiled import Compiled  # noqa: E402


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the calls that come to Python."""
    seen: list[Any] = []

    def watch(kind: Any) -> None:
        call = kind._call

        def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((args, kwargs))
            return call(self, *args, **kwargs)

        monkeypatch.setattr(kind, "_call", spy)

    watch(Compiled)
    watch(Kernel)
    return seen


CPU = torch.device("cpu")


class Side(Enum):
    LEFT = 0
    RIGHT = 1


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Batch:
    x: Any
    y: Any = None
    device: Any = CPU


@dataclass(slots=True)
class Slotted:
    x: Any


class Policy:
    gain = 2.0

    def __init__(self, rows: Any, layers: Any = ()) -> None:
        self.rows, self.layers, self.name = rows, layers, "policy"

    def act(self, x: Any) -> Any:
        y = torch.tanh(x * self.rows) * self.gain
        for layer in self.layers:
            y = y + layer.x.sum(0)
        return y


def given(x: Any, /, mask: Any = None, *, scale: Any = 1.0, **more: Any) -> Any:
    y = torch.tanh(x) * scale
    if mask is not None:
        y = y * mask
    for name, value in more.items():
        y = y + len(name) * value
    return y


def weighed(batch: Any, layers: Any = ()) -> Any:
    y = batch["x"] * batch.get("w", 2.0)
    for weight, bias in layers:
        y = torch.relu(y * weight + bias)
    return {"y": y, "n": y.sum(0)}


def chosen(x: Any, side: Any, dtype: Any, layer: Any) -> Any:
    y = layer(x.to(dtype))
    return y.flip(0) if side is Side.LEFT else y * 2


def made(n: int) -> tuple[Any, ...]:
    return tuple(torch.randn(n, 3) for _ in range(4))


def batched(batch: Any) -> Any:
    y = torch.tanh(batch.x)
    return y if batch.y is None or batch.device.type != "cpu" else y + batch.y


def policy(n: int) -> Policy:
    return Policy(torch.randn(3), [Batch(*made(n)[:2]), Batch(torch.randn(n + 1, 3))])


LAYER = torch.nn.Linear(3, 3)
CALLS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[tuple[Any, ...], Any]]]] = {
    "keyword": (given, lambda n: (made(n)[:1], {"mask": torch.rand(n, 1)})),
    "keywords": (given, lambda n: (made(n)[:1], {"scale": n / 2, "mask": torch.rand(3)})),
    "others": (given, lambda n: (made(n)[:1], {"ab": torch.rand(n, 3), "abc": n})),
    "none": (given, lambda n: (made(n)[:1], {"mask": None})),
    "dictionary": (weighed, lambda n: (({"x": made(n)[0], "w": 0.5},), {})),
    "pairs": (weighed, lambda n: (({"x": made(n)[0]}, [made(n)[:2], made(n)[:2]]), {})),
    "all": (
        weighed,
        lambda n: ((), {"batch": {"x": made(n)[0], 3: n}, "layers": (list(made(n)[:2]),)}),
    ),
    "constants": (
        chosen,
        lambda n: ((made(n)[0], Side.LEFT), {"dtype": torch.float32, "layer": LAYER}),
    ),
    "object": (Policy.act, lambda n: ((policy(n), made(n)[0]), {})),
    "data": (batched, lambda n: ((Batch(*made(n)[:2]),), {})),
    "device": (batched, lambda n: ((), {"batch": Batch(made(n)[0], None, made(n)[0].device)})),
    "named": (lambda p: p.a * p.b.x, lambda n: ((Pair(made(n)[0], Batch(*made(n)[:1])),), {})),
    "sizes": (
        lambda x, size: x.expand(size) + 1,
        lambda n: ((torch.ones(3), torch.Size([n, 3])), {}),
    ),
    "many": (lambda xs: sum(xs) * 2, lambda n: ((made(n) * 10,), {})),
}


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("grad", [False, True])
def test_steady_calls_do_not_come_to_python(what: str, grad: bool, slow: list[Any]) -> None:
    fn, call = CALLS[what]
    compiled = tilevm.compile(fn)
    with torch.set_grad_enabled(grad):
        for n in (5, 6, 5):
            args, kwargs = call(n)
            compiled(*args, **kwargs)
        slow.clear()
        for n in (5, 2, 17):
            args, kwargs = call(n)
            torch.testing.assert_close(compiled(*args, **kwargs), fn(*args, **kwargs))
    assert not slow
    assert len(compiled.captures) == 1


def test_a_module_takes_keywords(slow: list[Any]) -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 4)

        def forward(self, x: Any, scale: Any = None) -> Any:
            y = self.inner(x)
            return y if scale is None else y * scale

    module = Scaled()
    compiled = tilevm.compile(module)
    for n in (5, 6, 7):
        x, s = torch.randn(n, 3), torch.rand(n, 1)
        result = compiled(x=x, scale=s)
        torch.testing.assert_close(result, module(x, s))
        result.sum().backward()
        torch.testing.assert_close(compiled(x, scale=None), module(x))
    before = len(slow)
    compiled(x=x, scale=s)
    assert len(slow) == before
    with torch.no_grad():
        module.inner.weight.add_(1)
        for _ in range(3):
            torch.testing.assert_close(compiled(x=x, scale=s), module(x, s))
    module.inner.bias = torch.nn.Parameter(torch.ones(4))
    torch.testing.assert_close(compiled(x=x, scale=s), module(x, s))


def total(*args: Any, **kwargs: Any) -> Any:
    """Tensors and numbers, each by the way to it."""
    found: list[Any] = []

    def visit(value: Any, depth: float) -> None:
        if isinstance(value, torch.Tensor | int | float):
            found.append(torch.as_tensor(value * depth, dtype=torch.float64).sum())
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(item, depth * 1.5 + (key if isinstance(key, int) else len(key)))
        elif isinstance(value, tuple | list):
            for i, item in enumerate(value):
                visit(item, depth * 1.25 + i + isinstance(value, list))
        elif isinstance(value, Batch | Slotted):
            visit([getattr(value, name) for name in ("x", "y") if hasattr(value, name)], depth + 9)
        elif value is not None:
            found.append(torch.tensor(len(str(value)) * depth))

    for i, value in enumerate(args):
        visit(value, i + 1.0)
    for name, value in kwargs.items():
        visit(value, 10.0 + len(name))
    return tuple(found)


OTHERS: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
_x, _y, _z = torch.randn(4), torch.randn(2, 3), torch.arange(3)
for _number, _one in enumerate((
    (_x, _y), [_x, _y], [_y, _x], (_x,), [_x, _y, _y], [_x, None], [_x, 3], [_x, 3.5], [_x, "a"],
    {"a": _x, "b": _y}, {"b": _y, "a": _x}, {"a": _x, "b": _z}, {"a": _x}, {1: _x, 2: _y},
    {1: _x, True + 1: _y}, {"a": _x, 1: _y}, OrderedDict(a=_x, b=_y), Pair(_x, _y), {}, [], (),
    {"a": {"a": _x}}, {"a": [_x]}, {"a": (_x,)}, {"a": {}}, {"a": _x.double()}, {"a": _x[::2]},
    {"a": _x.clone().requires_grad_()}, Batch(_x, _y), Batch(_x), Batch(_x, [_y]), Slotted(_x),
    Batch(_x, Pair(_x, _y)), Batch(_x, device=None), Pair(_x, Batch(_y)), (1.5, _x), (True, _x),
    (None, _x), {(1, 2): _x},
)):  # fmt: skip
    _ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((_one,), {}), ((_x,), {"a": _one}), ((_one, _x), {}), ((), {"a": _one, "b": _x}),
        ((), {"b": _x, "a": _one}), ((_one, _one), {}), (([_one], {"k": _one}), {}),
    ]  # fmt: skip
    OTHERS += [_ways[_number % 7], _ways[(_number + 1) % 7]]
OTHERS += [((), {}), ((_x, _x), {}), ((_x, _x.clone()), {}), (([_x], [_x]), {}), ((_x,), {"a": _x})]


def test_each_form_is_its_own() -> None:
    """Each call after each other one, whatever variant the core tries first."""
    compiled = tilevm.compile(total)
    order = random.Random(0)
    for _ in range(5):
        for args, kwargs in order.sample(OTHERS, len(OTHERS)):
            if not args and not kwargs:
                continue
            expected = total(*args, **kwargs)
            torch.testing.assert_close(compiled(*args, **kwargs), expected, msg=f"{args} {kwargs}")
        compiled._ready.clear()
        for capture in compiled.captures:
            capture.settled = False


def test_a_list_that_is_there_twice_is_another_call() -> None:
    def appended(a: Any, b: Any) -> Any:
        return a[0] + b[0] if a is b else a[0] - b[0]

    compiled = tilevm.compile(appended)
    x, y = torch.ones(3), torch.full((3,), 2.0)
    for _ in range(3):
        assert compiled([x], [y])[0] == -1
        both = [x]
        assert compiled(both, both)[0] == 2
        assert compiled({0: x}, {0: y})[0] == -1
        same = {0: y}
        assert compiled(same, same)[0] == 4


def test_what_contains_itself() -> None:
    def fn(values: Any) -> Any:
        return values[0] * 2

    compiled = tilevm.compile(fn)
    endless: list[Any] = [torch.ones(3)]
    endless.append(endless)
    deep: Any = torch.ones(3)
    for _ in range(100):
        deep = [deep]
    held = Batch(torch.ones(3))
    held.y = held
    for _ in range(3):
        assert compiled(endless)[0] == 2
        assert compiled([torch.ones(3), deep])[0] == 2
        assert compiled([held.x, held])[0] == 2


def test_objects_change(slow: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of objects and of their classes are those of each call."""
    compiled = tilevm.compile(Policy.act)
    held, x = Policy(torch.ones(3)), torch.full((2, 3), 0.5)
    for _ in range(3):
        torch.testing.assert_close(compiled(held, x), held.act(x))
    slow.clear()
    compiled(held, x)
    assert not slow
    held.rows = torch.full((3,), 3.0)
    torch.testing.assert_close(compiled(held, x), held.act(x))
    held.layers = [Batch(torch.ones(1, 3))]
    torch.testing.assert_close(compiled(held, x), held.act(x))
    held.gain = 5.0  # an attribute of its own now
    torch.testing.assert_close(compiled(held, x), held.act(x))
    other = Policy(torch.ones(3))
    torch.testing.assert_close(compiled(other, x), other.act(x))
    monkeypatch.setattr(Policy, "gain", 7.0)
    torch.testing.assert_close(compiled(other, x), other.act(x))
    torch.testing.assert_close(compiled(held, x), held.act(x))
    monkeypatch.setattr(Policy, "act", lambda self, x: x)
    torch.testing.assert_close(compiled(other, x), torch.tanh(x) * 7)
    other.__class__ = type("Other", (Policy,), {"gain": 11.0})
    torch.testing.assert_close(compiled(other, x), torch.tanh(x) * 11)


def test_an_object_that_the_function_writes(slow: list[Any]) -> None:
    def fn(batch: Any) -> Any:
        batch.y = batch.x * 2
        return batch.y + 1

    compiled = tilevm.compile(fn)
    for n in (3, 4, 5, 6):
        batch = Batch(torch.full((n,), float(n)))
        assert torch.equal(compiled(batch), torch.full((n,), 2.0 * n + 1))
        assert torch.equal(batch.y, torch.full((n,), 2.0 * n))


KNOWN: dict[str, Any] = {"x": torch.ones(3)}


def test_what_the_function_reads_may_be_an_argument() -> None:
    def read(values: Any) -> Any:
        return values["x"] * (2 if values is KNOWN else 3)

    compiled = tilevm.compile(read)
    for _ in range(3):
        assert compiled({"x": torch.ones(3)})[0] == 3
        assert compiled(KNOWN)[0] == 2


@torch.library.custom_op("tilevm_tests::empty_listed", mutates_args=())  # type: ignore[untyped-decorator]
def empty_listed(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    LISTED.clear()
    gc.collect()
    torch.full((64,), -1.0)  # in the memory that was freed, if it was
    return x.clone()


@empty_listed.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    return torch.empty_like(x)


LISTED: list[Any] = []


def test_a_list_may_change_while_a_call_runs() -> None:
    def fn(values: Any) -> Any:
        return empty_listed(values[0]) + values[1]

    compiled = tilevm.compile(fn)
    for n in range(5):
        LISTED[:] = [torch.ones(64), torch.full((64,), float(n))]
        assert torch.equal(compiled(LISTED), torch.full((64,), n + 1.0))
        assert not LISTED


def test_a_steady_call_keeps_nothing(slow: list[Any]) -> None:
    compiled = tilevm.compile(weighed)
    with torch.no_grad():
        for n in (4, 5, 6):
            slow.clear()
            batch = {"x": torch.randn(n, 3)}
            compiled(batch, layers=[(torch.ones(3), torch.ones(3))])
            seen = weakref.ref(batch["x"])
            del batch
    assert seen() is None
    assert not slow


def test_a_function_with_a_module_as_argument_ends() -> None:
    def fn(x: Any, layer: Any) -> Any:
        return layer(x)

    class Holder(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2

    holder = Holder()
    holder.made = tilevm.compile(fn)  # a cycle
    for _ in range(3):
        holder.made(torch.ones(3), layer=holder)
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None


@tilevm.kernel
def mixed(x: Any, y: Any, eps: Any = 0.5, negate: Any = False) -> Any:
    total = lang.tanh(x) * y + eps
    return -total if negate else total


def test_kernels_take_keywords(slow: list[Any]) -> None:
    """Also where calls of several forms take turns."""
    x, y = torch.randn(4, 3), torch.randn(3)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, y), {}), ((x, y, 2.0), {}), ((x, y), {"eps": 3.0}), ((), {"y": x, "x": y}),
        ((x,), {"negate": True, "y": y}), ((x,), {"y": y, "negate": None, "eps": 1}),
    ]  # fmt: skip
    for turn in range(3):
        for args, kwargs in calls:
            given = dict(zip(("x", "y", "eps", "negate"), args, strict=False), **kwargs)
            expected = torch.tanh(given["x"]) * given["y"] + given.get("eps", 0.5)
            expected = -expected if given.get("negate") else expected
            torch.testing.assert_close(mixed(*args, **kwargs), expected)
        if turn:
            assert not slow
        slow.clear()
    a, b = x.numpy(), y.numpy()
    for _ in range(2):
        torch.testing.assert_close(torch.from_numpy(mixed(a, y=b)), mixed(x, y=y))
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        mixed(x, z=y)
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        mixed(x, eps=1.0)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        mixed(x, y, x=x)


def test_static_tuples_of_kernels_are_one_value() -> None:
    @tilevm.kernel
    def summed(x: Any, axes: Any, scale: Any = 1.0) -> Any:
        return lang.sum(x, axes) * scale

    x = torch.randn(3, 4, 5)
    for axes in ((0,), (0, 2), (1,), (0, 1, 2)):
        for scale in (2.0, 3.0):
            for found in (summed(x, axes, scale), summed(x, scale=scale, axes=axes)):
                torch.testing.assert_close(found, x.sum(axes) * scale)


def test_a_class_with_a_compiled_method_ends(slow: list[Any]) -> None:
    def used() -> Any:
        class Held:
            def __init__(self) -> None:
                self.rows = torch.ones(3)

            @tilevm.compile
            def act(self, x: Any) -> Any:
                return x * self.rows

        held = Held()
        for _ in range(4):
            slow.clear()
            held.act(torch.ones(3))
        assert not slow
        return weakref.ref(Held)

    kind = used()
    gc.collect()
    assert kind() is None


def test_attributes_that_hide_others() -> None:
    """What `__dict__` says need not be what an object holds."""

    class Hiding:
        def __init__(self, x: Any) -> None:
            self.x = x

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return {"x": torch.zeros(3), "y": 2}

    compiled = tilevm.compile(lambda h: h.x * 2)
    for _ in range(3):
        compiled(Hiding(torch.ones(3)))
