"""What a compiled function reads is replaced: modules wherever they are, and code."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_compiled import MOST_VALUES  # noqa: E402


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def same(compiled: Any, fn: Any, *args: Any, grad: bool = False) -> None:
    with torch.set_grad_enabled(grad):
        for _ in range(1 if grad else 3):  # captured, or run by Python; then by the core
            torch.testing.assert_close(compiled(*args), fn(*args))


class Holder:
    def __init__(self) -> None:
        self.items = [linear(), linear()]
        self.named = {"a b": linear()}
        self.own = nn.Sequential(linear(), nn.Dropout())
        self.deep = {"k": [(linear(),)]}
        self.unused = linear()

    def run(self, x: Any) -> Any:
        deep = self.deep["k"][0][0]
        return self.items[0](x) + self.named["a b"](x) + self.own(x) + deep(x)

    def read(self) -> list[nn.Module]:
        return [self.items[0], self.named["a b"], self.own[0], self.deep["k"][0][0]]


holder = Holder()
stages = [linear(), linear()]


def of_globals(x: Any) -> Any:
    return stages[0](x) + holder.own(x)


def of_a_closure() -> tuple[Callable[..., Any], list[nn.Module]]:
    layers = [linear()]
    return lambda x: layers[0](x), list(layers)


def of_a_default() -> tuple[Callable[..., Any], list[nn.Module]]:
    def run(x: Any, layers: Any = (linear(),)) -> Any:  # noqa: B008
        return layers[0](x)

    return run, [run.__defaults__[0][0]]  # type: ignore[index]


@pytest.mark.parametrize("where", ["method", "globals", "closure", "default"])
def test_modules_in_containers_and_objects(where: str) -> None:
    torch.manual_seed(0)
    own = Holder()
    own.own.eval()
    holder.own.eval()
    fn, modules = {
        "method": lambda: (own.run, own.read()),
        "globals": lambda: (of_globals, [stages[0], holder.own[0]]),
        "closure": of_a_closure,
        "default": of_a_default,
    }[where]()
    x = torch.randn(3, 4)
    compiled = tilevm.compile(fn)
    same(compiled, fn, x)
    for module in modules:
        module.weight = nn.Parameter(torch.randn(4, 4))
        same(compiled, fn, x)
        module.load_state_dict(linear().state_dict(), assign=True)
        same(compiled, fn, x)
        hook = module.register_forward_hook(lambda m, i, o: o * 2)
        same(compiled, fn, x)
        hook.remove()
        same(compiled, fn, x)
        module.forward = lambda x: x * 3
        same(compiled, fn, x)
        del module.forward
        same(compiled, fn, x)
        with torch.no_grad():
            module.weight.mul_(2)
        same(compiled, fn, x)


def captures() -> int:
    count: int = tilevm.stats()["captures"]
    return count


class Tied(nn.Module):
    """Two layers of one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.other.weight = self.one.weight
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: Any) -> Any:
        return self.other(self.one(x)) * self.scale


@pytest.mark.parametrize("grad", [False, True])
def test_other_parameters_of_the_same_types_take_their_place(grad: bool) -> None:
    torch.manual_seed(0)
    module = Tied().requires_grad_(grad)
    compiled = tilevm.compile(module)
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            same(compiled, module, x)
        before = captures()
        for _ in range(3):
            module.one.weight = nn.Parameter(torch.randn(4, 4), grad)
            module.other.weight = module.one.weight
            module.one.bias = nn.Parameter(torch.randn(4), grad)
            module.scale = torch.rand(4)
            for rows in (3, 5):
                same(compiled, module, torch.randn(rows, 4))
        module.load_state_dict(Tied().state_dict(), assign=True)
        module.requires_grad_(grad)
        same(compiled, module, x)
        if not grad:
            # `assign` has torn the two apart.
            assert captures() == before + (module.one.weight is not module.other.weight)


def test_other_parameters_of_other_types_are_captured() -> None:
    module = Tied().requires_grad_(False)
    compiled = tilevm.compile(module)
    x = torch.randn(3, 4)
    same(compiled, module, x)
    changes: tuple[Callable[[], None], ...] = (
        lambda: setattr(module.one, "weight", nn.Parameter(torch.randn(4, 4), False)),  # untied
        lambda: setattr(module, "scale", torch.rand(3, 4)),
        lambda: setattr(module, "scale", torch.rand(3, 4).double()),
        lambda: setattr(module, "scale", torch.rand(4, 3, dtype=torch.float64).t()),
        lambda: setattr(module, "scale", torch.rand(4, 1)[:, 0]),
        lambda: setattr(module.one, "bias", None),
        lambda: setattr(module.one, "bias", nn.Parameter(torch.randn(4), False)),
    )
    for change in changes:
        before = captures()
        change()
        for _ in range(2):
            same(compiled, module, x)
        assert captures() == before + 1


def test_frozen_parameters_that_are_replaced() -> None:
    module = Tied().requires_grad_(False)
    compiled = tilevm.compile(module, freeze=True)
    x = torch.randn(3, 4)
    for _ in range(3):
        module.other.weight = module.one.weight = nn.Parameter(torch.randn(4, 4), False)
        for _ in range(3):
            same(compiled, module, x)


def test_a_replaced_buffer_that_is_written() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen: Any
            self.seen += x.sum(0)
            return x + self.seen

    module, reference = Counts(), Counts()
    compiled = tilevm.compile(module)
    for _ in range(4):
        module.seen = torch.rand(4)
        reference.seen = module.seen.clone()
        for _ in range(3):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), reference(x))
            torch.testing.assert_close(module.seen, reference.seen)


def test_modes_of_modules_in_objects() -> None:
    own = Holder()
    compiled = tilevm.compile(own.run)
    x = torch.randn(3, 4)
    own.own.eval()
    same(compiled, own.run, x)
    own.own.train()
    with torch.no_grad():
        assert not torch.equal(compiled(x), compiled(x))
    own.own.eval()
    same(compiled, own.run, x)


def test_modules_that_are_not_read_do_not_matter() -> None:
    own = Holder()
    own.own.eval()
    compiled = tilevm.compile(own.run)
    x = torch.randn(3, 4)
    same(compiled, own.run, x)
    own.unused = linear()
    own.items[1].weight = nn.Parameter(torch.randn(4, 4))
    before = tilevm.stats()["compiles"]
    same(compiled, own.run, x)
    # `items` is watched as a whole, so its modules are; `unused` is not.
    own.unused = linear()
    now = tilevm.stats()["compiles"]
    same(compiled, own.run, x)
    assert tilevm.stats()["compiles"] == now >= before


class Scaled:
    table: Any = {"a": 2.0}  # noqa: RUF012

    def scale(self) -> float:
        return 2.0

    @property
    def shift(self) -> float:
        return 3.0

    @classmethod
    def of_class(cls) -> float:
        return 4.0

    @staticmethod
    def static() -> float:
        return 5.0

    def __call__(self, x: Any) -> Any:
        return x * 2


class Other(Scaled):
    def scale(self) -> float:
        return 7.0


activation: Any = torch.tanh
layer: Any = nn.Tanh()
kind: Any = Scaled
scaled = Scaled()


def of_names(x: Any) -> Any:
    y = activation(x) + layer(x) * kind().scale() + F.silu(x) + Scaled.table["a"]
    return y + torch.nn.functional.relu(x)


def of_methods(x: Any) -> Any:
    return (
        scaled(x) * scaled.scale() + scaled.shift + scaled.of_class() * scaled.static()
        + Scaled.static()
    )  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
def test_code_that_is_replaced(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 4, requires_grad=grad)
    compiled = tilevm.compile(of_names)
    same(compiled, of_names, x, grad=grad)
    names = globals()
    for owner, name, value in (
        (names, "activation", torch.exp),
        (names, "layer", nn.ReLU()),
        (names, "kind", Other),
        (Scaled.table, "a", 9.0),
    ):
        monkeypatch.setitem(owner, name, value)
        same(compiled, of_names, x, grad=grad)
    for name in ("silu", "relu"):
        with monkeypatch.context() as patched:
            patched.setattr(F, name, lambda x, inplace=False: -x)
            same(compiled, of_names, x, grad=grad)
        same(compiled, of_names, x, grad=grad)


@pytest.mark.parametrize("grad", [False, True])
def test_methods_that_are_replaced(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 4, requires_grad=grad)
    compiled = tilevm.compile(of_methods)
    same(compiled, of_methods, x, grad=grad)
    for owner, name, value in (
        (Scaled, "scale", lambda self: 11.0),
        (Scaled, "shift", property(lambda self: 12.0)),
        (Scaled, "of_class", classmethod(lambda cls: 13.0)),
        (Scaled, "static", staticmethod(lambda: 14.0)),
        (Scaled, "__call__", lambda self, x: x * 15),
        (scaled, "scale", lambda: 16.0),
    ):
        monkeypatch.setattr(owner, name, value, raising=False)
        same(compiled, of_methods, x, grad=grad)


def test_layers_of_pytorch_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(linear(), nn.SiLU())
    compiled = tilevm.compile(model)
    x = torch.randn(3, 4)
    same(compiled, model, x)
    for owner, name, value in (
        (F, "silu", lambda x, inplace=False: -x),
        (nn.Linear, "forward", lambda self, x: x * 2),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            same(compiled, model, x)
        same(compiled, model, x)


def test_a_trace_of_another_thread_is_no_replacement() -> None:
    """Captures exchange functions of PyTorch for a while: nobody captures again because of that."""

    def attends(x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x) + torch.nn.functional.relu(x)

    compiled = tilevm.compile(attends)
    x = torch.randn(2, 3, 4)
    same(compiled, attends, x)
    original = F.scaled_dot_product_attention
    # What a capture finds changed in lists it puts back; into a queue it does not look.
    seen: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def call() -> None:
        with torch.no_grad():
            seen.put((F.scaled_dot_product_attention is not original, compiled(x)))

    def traced(y: Any) -> Any:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(10)  # a capture of its own would wait for this one
        return y * 2

    captures = list(compiled.captures)
    tilevm.compile(traced)(torch.randn(3))
    found = [seen.get_nowait() for _ in range(seen.qsize())]
    assert any(exchanged for exchanged, _ in found)
    for _, result in found:
        torch.testing.assert_close(result, attends(x))
    same(compiled, attends, x)
    assert compiled.captures == captures and compiled._values == 0 and compiled._renewals == 0


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_with_gradients(kind: str) -> None:
    model = nn.Sequential(linear(), nn.Tanh())
    compiled = tilevm.compile(model)
    x = torch.randn(3, 4)

    def gradients(fn: Any) -> Any:
        model.zero_grad()
        result = fn(x)
        result.sum().backward()
        (weight, _) = model[0].parameters()
        return result, weight.grad

    def check() -> None:
        for _ in range(2):
            torch.testing.assert_close(gradients(compiled), gradients(model))

    check()
    hooks: dict[str, Any] = {
        "forward": lambda module, given, result: result * 2,
        "forward_pre": lambda module, given: (given[0] * 2,),
        "full_backward": lambda module, given, wanted: tuple(
            None if g is None else g * 2 for g in given
        ),
    }
    hook = getattr(model[1], f"register_{kind}_hook")(hooks[kind])
    check()
    hook.remove()
    check()


def test_what_was_called_with_gradients_is_let_go() -> None:
    model = linear()
    compiled = tilevm.compile(model)
    compiled(torch.randn(3, 4)).sum().backward()
    left: list[Any] = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(compiled)]
    del model, compiled
    gc.collect()
    assert [ref() for ref in left] == [None] * 3


def test_modes_do_not_count_as_values() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop: Any = nn.Dropout(0.0)
            self.factors = [2.0]

        def forward(self, x: Any) -> Any:
            y: Any = self.drop(x) * self.factors[0]
            return y

    model = Model()
    compiled = tilevm.compile(model)
    x = torch.randn(3, 4)
    same(compiled, model, x)
    model.factors = [3.0]  # another object: this counts
    same(compiled, model, x)
    for _ in range(2 * MOST_VALUES):
        model.train(not model.training)
        same(compiled, model, x)
    assert not compiled._tilevm._reason


factor: Any = 2.0


def scales(x: Any) -> Any:
    return x * factor


partly = functools.partial(scales)
steps: dict[int, Any] = {0: scales, 1: lambda x: x + factor}
bound = linear().forward


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain: Any = lambda x: x * factor
        self.partly = functools.partial(scales)
        self.layer = linear()
        self.bound = self.layer.forward

    def forward(self, x: Any) -> Any:
        return self.plain(x) + self.partly(x) + self.bound(x)


def in_a_dict(x: Any) -> Any:
    for step in steps.values():
        x = step(x)
    return partly(x)


def of_a_method(x: Any) -> Any:
    return bound(x) + 1


@pytest.mark.parametrize("kind", ["attributes", "dict", "method", "partial"])
def test_functions_that_are_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    fn: Any = {
        "attributes": calls,
        "dict": in_a_dict,
        "method": of_a_method,
        "partial": functools.partial(calls),
    }[kind]
    compiled = tilevm.compile(fn)
    x = torch.randn(3, 4)
    same(compiled, fn, x)
    monkeypatch.setitem(globals(), "factor", 5.0)
    same(compiled, fn, x)
    for layer in (calls.layer, bound.__self__):  # type: ignore[attr-defined]
        layer.weight = nn.Parameter(torch.randn(4, 4))
        same(compiled, fn, x)
    monkeypatch.setitem(globals(), "partly", functools.partial(lambda x: x * 7))
    same(compiled, fn, x)
    monkeypatch.setitem(steps, 1, lambda x: x - 1)
    same(compiled, fn, x)
    calls.partly = functools.partial(lambda x: x * 9)
    same(compiled, fn, x)
    assert compiled.guards.startswith("capture")


class Answers(type):
    def __getattr__(cls, name: str) -> Any:
        if name == "amount":
            return 3.0
        raise AttributeError(name)


class Answering(metaclass=Answers):
    pass


def test_classes_of_a_metaclass() -> None:
    def fn(x: Any) -> Any:
        return x * Answering.amount

    compiled = tilevm.compile(fn)
    same(compiled, fn, torch.randn(3))
    assert len(compiled.captures) == 1
