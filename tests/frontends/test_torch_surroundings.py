"""Functions whose variables, attributes and containers change between calls."""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_compiled import MOST_VALUES  # noqa: E402

scale: Any = 2.0
table = {"shift": 1.0, "more": [1.0, 2.0]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.temperature = 1.0
        self.unused = 0
        self.config = SimpleNamespace(factor=3)
        self.act = torch.relu
        self.shared: list[float] = []
        self.also: dict[str, list[float]] = {}

    @property
    def halved(self) -> float:
        return self.temperature / 2

    def forward(self, x: Any) -> Any:
        return self.act(self.norm(self.linear(x)) / self.halved) * self.config.factor


def same(compiled: Any, fn: Any, *args: Any) -> None:
    with torch.no_grad():
        for _ in range(3):  # captured, or run by Python; then by the core
            torch.testing.assert_close(compiled(*args), fn(*args))


def test_attributes_of_modules() -> None:
    model = Model()
    compiled = tilevm.compile(model)
    x = torch.randn(3, 4)
    same(compiled, model, x)
    for owner, name, value in (
        (model, "temperature", 2.0),
        (model, "temperature", 1.0),
        (model, "act", torch.tanh),
        (model, "config", SimpleNamespace(factor=5)),
        (model.config, "factor", 7),
        (model.norm, "eps", 0.5),
    ):
        setattr(owner, name, value)
        same(compiled, model, x)


def test_what_is_read_and_what_not() -> None:
    model = Model()
    compiled = tilevm.compile(model)
    x = torch.randn(3, 4)
    for value in (1, 2, 3):
        model.unused = value
        same(compiled, model, x)
    assert len(compiled._tilevm.captures) == 1
    for temperature in (2.0, 1.0, 2.0, 1.0):  # a capture for each value, not for each change
        model.temperature = temperature
        same(compiled, model, x)
    assert len(compiled._tilevm.captures) == 2


def test_containers_stay_the_objects_that_they_are() -> None:
    model, shared = Model(), [1.0, 2.0]
    model.shared, model.also = shared, {"a": shared}
    compiled = tilevm.compile(model)
    same(compiled, model, torch.randn(3, 4))
    assert model.shared is shared
    assert model.also["a"] is shared


def by_global(x: Any) -> Any:
    return x * scale + table["shift"] + table["more"][1]  # type: ignore[index]


def calls_another(x: Any) -> Any:
    return by_global(x) - 1


@pytest.mark.parametrize("fn", [by_global, calls_another])
def test_globals(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = sys.modules[__name__], torch.randn(5)
    compiled = tilevm.compile(fn)
    same(compiled, fn, x)
    monkeypatch.setattr(module, "scale", 3.0)
    same(compiled, fn, x)
    monkeypatch.setattr(module, "scale", torch.full((5,), 4.0))
    same(compiled, fn, x)
    monkeypatch.setattr(module, "scale", torch.full((5,), 5.0))
    same(compiled, fn, x)
    monkeypatch.setitem(table, "shift", 9.0)
    same(compiled, fn, x)
    monkeypatch.setitem(table, "more", [0.0, -1.0])
    same(compiled, fn, x)
    table["more"][1] = -2.0  # type: ignore[index]
    same(compiled, fn, x)


relu = 0  # a variable; the function below has an attribute of that name


def test_names_of_attributes_are_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tilevm.compile(lambda x: torch.relu(x))
    for value in range(3):
        monkeypatch.setattr(sys.modules[__name__], "relu", value)
        compiled(torch.ones(3))
    assert len(compiled.captures) == 1
    assert compiled._values == 0


def test_modules_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModuleType("settings")
    settings.rate = 0.5  # type: ignore[attr-defined]

    def fn(x: Any) -> Any:
        return x * settings.rate

    compiled = tilevm.compile(fn)
    same(compiled, fn, torch.ones(3))
    settings.rate = 0.25  # type: ignore[attr-defined]
    same(compiled, fn, torch.ones(3))


def test_closures() -> None:
    rate, kept = 0.5, torch.ones(3)

    def fn(x: Any) -> Any:
        return x * rate + kept

    compiled = tilevm.compile(fn)
    same(compiled, fn, torch.ones(3))
    rate = 0.25
    same(compiled, fn, torch.ones(3))
    kept = torch.full((3,), -0.0)
    for rate in (0.0, -0.0, 0.0):
        assert torch.signbit(compiled(-torch.ones(3))).tolist() == [rate.hex()[0] != "-"] * 3
    kept = torch.zeros(1)
    same(compiled, fn, torch.ones(3))
    kept = torch.ones(3, dtype=torch.int32)
    same(compiled, fn, torch.ones(3))


@dataclass
class Agent:
    state: Any
    decay: float = 0.5

    def step(self, x: Any) -> Any:
        return self.state * self.decay + x


def test_tensors_that_are_replaced() -> None:
    agent = Agent(torch.zeros(4))
    compiled = tilevm.compile(agent.step)
    x = torch.randn(3, 4)
    for _ in range(40):
        with torch.no_grad():
            agent.state = compiled(x)[0]
        same(compiled, agent.step, x)
    assert len(compiled.captures) == 1
    agent.state = torch.randn(3, 4)
    same(compiled, agent.step, x)
    agent.state = torch.randn(4)
    same(compiled, agent.step, x)
    agent.decay = 0.25
    same(compiled, agent.step, x)
    assert len(compiled.captures) == 3


def test_one_tensor_in_two_places() -> None:
    agents = [Agent(torch.ones(4)), Agent(torch.ones(4))]
    agents[1].state = agents[0].state

    def fn(x: Any) -> Any:
        return agents[0].state * 2 + agents[1].state + x

    compiled = tilevm.compile(fn)
    same(compiled, fn, torch.ones(4))
    agents[1].state = torch.zeros(4)
    same(compiled, fn, torch.ones(4))
    agents[0].state = agents[1].state = torch.full((4,), 3.0)
    same(compiled, fn, torch.ones(4))


@pytest.mark.parametrize("freeze", [False, True])
def test_weights_of_a_function(freeze: bool) -> None:
    weights = {"a": torch.randn(64, 64), "b": torch.randn(64)}

    def fn(x: Any) -> Any:
        return x @ weights["a"] + weights["b"]

    compiled = tilevm.compile(fn, freeze=freeze)
    x = torch.randn(3, 64)
    same(compiled, fn, x)
    weights["a"] = torch.randn(64, 64)
    same(compiled, fn, x)
    weights["b"] = torch.randn(64, 64)[0]
    same(compiled, fn, x)


def test_too_many_values() -> None:
    agent = Agent(torch.ones(4))
    compiled = tilevm.compile(agent.step)
    tilevm.stats.reset()
    x = torch.ones(4)
    for value in range(2 * MOST_VALUES):
        agent.decay = float(value)
        assert compiled(x).tolist() == [value + 1.0] * 4
    (reason,) = tilevm.stats()["flushes"]
    assert reason == f"eager: 'decay', which it reads, has had {MOST_VALUES} values"


def test_objects_that_are_replaced() -> None:
    holder = SimpleNamespace(agent=Agent(torch.ones(4)))

    def fn(x: Any) -> Any:
        return holder.agent.step(x)

    compiled = tilevm.compile(fn)
    for value in range(2 * MOST_VALUES):
        holder.agent = Agent(torch.full((4,), float(value)), 1.0)
        assert compiled(torch.ones(4)).tolist() == [value + 1.0] * 4


def test_gradients_after_a_change() -> None:
    agent = Agent(torch.ones(4))
    compiled = tilevm.compile(agent.step)
    x = torch.ones(4)
    same(compiled, agent.step, x)
    agent.state = torch.ones(4, requires_grad=True)
    compiled(x).sum().backward()
    assert agent.state.grad.tolist() == [0.5] * 4


class Settings:
    rate = 0.5

    def step(self, x: Any) -> Any:
        return x * self.rate


class Others(Settings):
    pass


def test_attributes_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Others()
    compiled = tilevm.compile(settings.step)
    x = torch.ones(3)
    same(compiled, settings.step, x)
    monkeypatch.setattr(Settings, "rate", 0.25)
    same(compiled, settings.step, x)
    monkeypatch.setattr(settings, "rate", 2.0, raising=False)
    same(compiled, settings.step, x)


def counted() -> Any:
    numbers = iter(range(100))
    return lambda x: x + next(numbers)


def generated() -> Any:
    numbers = (i * i for i in range(100))
    return lambda x: x + next(numbers)


def queued() -> Any:
    kept: deque[int] = deque(maxlen=3)

    def fn(x: Any) -> Any:
        kept.append(1)
        return x + len(kept)

    return fn


def drawn() -> Any:
    random.seed(0)
    return lambda x: x * random.random()


def drawn_by_numpy() -> Any:
    numpy.random.seed(0)
    return lambda x: x * numpy.random.rand()


def drawn_by_a_generator() -> Any:
    generator = numpy.random.default_rng(0)
    return lambda x: x * generator.random()


@pytest.mark.parametrize(
    "make", [counted, generated, queued, drawn, drawn_by_numpy, drawn_by_a_generator]
)
def test_what_gives_another_value_each_time(make: Any) -> None:
    x = torch.ones((), dtype=torch.float64)
    fn = make()
    want = [fn(x).item() for _ in range(6)]
    compiled = tilevm.compile(make())
    assert [compiled(x).item() for _ in range(6)] == want


def step_of_descent(weight: Any, rate: Any) -> Any:
    if weight.grad is not None:
        weight.sub_(rate * weight.grad)
        weight.grad.zero_()
    return rate


def test_gradients_that_a_function_reads() -> None:
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    for weight in weights:
        (weight * 2).sum().backward()

    def by_closure(rate: Any) -> Any:
        return step_of_descent(weights[0], rate)

    with torch.no_grad():
        for compiled, args in (
            (tilevm.compile(by_closure), ()),
            (tilevm.compile(step_of_descent), (weights[1],)),
        ):
            for _ in range(3):
                compiled(*args, torch.tensor(0.25))
    for weight in weights:
        assert weight.tolist() == [0.5, 0.5]
        assert weight.grad.tolist() == [0, 0]


def test_what_a_tensor_is() -> None:
    def fn(x: Any) -> Any:
        return x + int(x.is_leaf) + int(x.requires_grad) * 10

    compiled = tilevm.compile(fn)
    leaf = torch.ones(1, requires_grad=True)
    for x in (torch.ones(1), leaf, leaf * 1, leaf.detach()):
        same(compiled, fn, x)


class Functions(TorchFunctionMode):
    seen: ClassVar[list[Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    seen: ClassVar[list[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_modes_see_what_runs(mode: Any) -> None:
    def fn(x: Any) -> Any:
        return torch.tanh(x) * 2

    compiled = tilevm.compile(fn)
    x = torch.ones(3)
    same(compiled, fn, x)
    mode.seen.clear()
    with mode():
        compiled(x)
    assert len(mode.seen) == 2
    tilevm.stats.reset()
    same(compiled, fn, x)
    assert not tilevm.stats()["flushes"]


def test_default_devices() -> None:
    def fn(x: Any) -> Any:
        return x.shape[0] * torch.zeros(3)

    compiled = tilevm.compile(fn)
    same(compiled, fn, torch.ones(3))
    with torch.device("meta"):
        assert compiled(torch.ones(3)).device.type == "meta"
    tilevm.stats.reset()
    with torch.device("cpu"):
        same(compiled, fn, torch.ones(3))
    assert not tilevm.stats()["flushes"]


class Counted:
    """What functions below count in."""

    calls = 0
    kept: Any = None


LAST: Any = None


def _functions_that_change_more() -> dict[str, Any]:
    def default(x: Any, count: Any = [0]) -> Any:  # noqa: B006  # the form that is meant
        count[0] += 1
        return x * count[0]

    def grown(x: Any, seen: Any = []) -> Any:  # noqa: B006
        seen.append(x.shape[0])
        return x + len(seen)

    def keyword(x: Any, *, total: Any = {}) -> Any:  # noqa: B006
        total["sum"] = total.get("sum", 0) + x.sum()
        return total["sum"] * 2

    def attribute(x: Any) -> Any:
        attribute.calls = getattr(attribute, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * attribute.calls  # type: ignore[attr-defined]

    def of_class(x: Any) -> Any:
        Counted.calls += 1
        return x * Counted.calls

    def kept_in_class(x: Any) -> Any:
        before, Counted.kept = Counted.kept, x * 2
        return x if before is None else x + before

    def variable(x: Any) -> Any:
        global LAST
        before, LAST = LAST, x * 2
        return x if before is None else x + before

    def counting(function: Any) -> Any:
        calls = 0

        @functools.wraps(function)
        def run(x: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(x) * calls

        return run

    @counting
    @counting
    def decorated(x: Any) -> Any:
        return x + 1

    return {
        f.__name__: f
        for f in (decorated, default, grown, keyword, attribute, of_class, kept_in_class, variable)
    }


@pytest.mark.parametrize("name", list(_functions_that_change_more()))
def test_changes_that_outlive_a_call(name: str) -> None:
    """Of arguments' defaults, of functions and classes, of what was None: each call makes them."""
    global LAST
    results = []
    for wrap in (tilevm.compile, lambda f: f):
        Counted.calls, Counted.kept, LAST = 0, None, None
        function = wrap(_functions_that_change_more()[name])
        results.append([function(torch.full((n,), 3.0)).tolist() for n in (2, 2, 2, 2, 2, 2)])
    assert results[0] == results[1]
    for kept in (Counted.kept, LAST):
        assert kept is None or type(kept) is torch.Tensor


def test_what_a_class_of_modules_keeps() -> None:
    def module() -> Any:
        class Layer(nn.Module):
            calls = 0
            last: Any = None

            def forward(self, x: Any) -> Any:
                Layer.last = x.shape[0]
                type(self).calls += 1
                return x + Layer.calls

        return Layer()

    mine, theirs = module(), module()
    compiled = tilevm.compile(mine)
    for n in (2, 3, 2, 5, 2):
        assert torch.equal(compiled(torch.ones(n)), theirs(torch.ones(n)))
        assert (type(mine).calls, type(mine).last) == (type(theirs).calls, n)
        assert type(type(mine).last) is int
