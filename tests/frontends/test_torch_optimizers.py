"""Steps of optimisers that `torch.compile` captures: they change parameters and state in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402

import tilevm  # noqa: E402

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, 0.01),
    "amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "adam_each": lambda p: optim.Adam(p, 0.01, foreach=False),
    "adam_foreach": lambda p: optim.Adam(p, 0.01, foreach=True),
    "adamw": lambda p: optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "adamax": lambda p: optim.Adamax(p, 0.01),
    "nadam": lambda p: optim.NAdam(p, 0.01),
    "radam": lambda p: optim.RAdam(p, 0.01),
}


def train(
    model: nn.Module, optimizer: Any, compiled: bool, steps: int = 5, recorded: bool = False
) -> list[Any]:
    """Losses and parameters of some steps, the optimiser's compiled, recorded, or neither."""
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="tilevm") if compiled else optimizer.step
    step = tilevm.compile(step) if recorded else step
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        x = torch.randn(9, 7, generator=generator)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        step()
        found.append(loss.detach())
    return [*found, *(p.detach() for p in model.parameters())]


def agrees(name: str, **how: bool) -> Any:
    """Training as eager code's, and what it counted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))
    other = copy.deepcopy(model)
    tilevm.stats.reset()
    found = train(model, OPTIMIZERS[name](list(model.parameters())), **how)
    stats = tilevm.stats()
    exact = train(other, OPTIMIZERS[name](list(other.parameters())), compiled=False)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    return stats


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    stats = agrees(name, compiled=True)
    assert not stats["callouts"] and not stats["flushes"], stats
    assert stats["captures"] > 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_without_arguments_are_recorded(name: str) -> None:
    stats = agrees(name, compiled=False, recorded=True)
    assert stats["launches"] > 0
    assert stats["flushes"]["fuse: the call has no tensors or numbers"] == 5


def test_a_state_that_is_loaded() -> None:
    """Loading replaces the tensors that a graph holds."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    other = copy.deepcopy(model)
    results = []
    for compiled, m in ((True, model), (False, other)):
        optimizer = optim.Adam(m.parameters(), 0.01)
        train(m, optimizer, compiled=False, steps=0)
        torch.compiler.reset()
        step = torch.compile(optimizer.step, backend="tilevm") if compiled else optimizer.step
        for _ in range(3):
            m(torch.ones(2, 5)).square().sum().backward()
            step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        results.append([p.detach() for p in m.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_whole_step() -> None:
    """Forward, backward, clipped gradients and the optimiser in one function."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    other = copy.deepcopy(model)

    def step_of(model: nn.Module) -> Any:
        optimizer = optim.AdamW(model.parameters(), 0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss.detach()

        return step

    tilevm.stats.reset()
    compiled, eager = tilevm.compile(step_of(model)), step_of(other)
    for rows in (4, 9, 1, 17):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-5)
    assert not tilevm.stats()["callouts"]
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))


def graph(function: Any) -> Any:
    """The function through the backend, in one graph."""
    torch.compiler.reset()
    return torch.compile(function, backend="tilevm", fullgraph=True, dynamic=True)


def both(function: Any, *shapes: Any) -> None:
    """Arguments and results after a call, compiled and eager."""
    torch.manual_seed(0)
    args = [torch.randn(*s) for s in shapes]
    other = [a.clone() for a in args]
    with torch.no_grad():
        found, exact = graph(function)(*args), function(*other)
    torch.testing.assert_close((found, args), (exact, other))


def swap(x: Any, y: Any) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def of_views(x: Any, y: Any) -> Any:
    x[1:].mul_(y[1:])
    x.t().add_(1)
    return x.sum(0) + y[0]


def returned(x: Any, y: Any) -> Any:
    return x.add_(y), x * 2


def rounded(x: Any, y: Any) -> None:
    x.copy_((x * y).to(torch.float64))


@pytest.mark.parametrize("function", [swap, of_views, returned, rounded])
def test_inputs_change_in_place(function: Any) -> None:
    tilevm.stats.reset()
    both(function, (5, 7), (5, 7))
    assert not tilevm.stats()["flushes"]


def scaled(x: Any, y: Any) -> Any:
    """Reads y when x has been written."""
    x.mul_(3)
    return y + 1


@pytest.mark.parametrize("shared", [lambda x: x.view(-1), lambda x: x[1], lambda x: x[::2, :3]])
def test_memory_that_is_shared(shared: Any) -> None:
    """The graph was captured for tensors that share nothing."""
    compiled = graph(scaled)
    with torch.no_grad():
        for x in (torch.randn(4, 5), torch.randn(6, 7)):
            compiled(x, torch.randn_like(shared(x)))
            other = x.clone()
            found, exact = compiled(x, shared(x)), scaled(other, shared(other))
            torch.testing.assert_close((found, x), (exact, other))


def test_versions_and_inference() -> None:
    x, y = torch.randn(4, 5), torch.randn(5)
    compiled = graph(scaled)
    with torch.no_grad():
        before = x._version
        compiled(x, y)
        assert x._version > before
    with torch.inference_mode():
        z = torch.ones(4, 5)
        compiled(z, y)
        assert torch.equal(z, torch.full((4, 5), 3.0))


def test_parameters_in_one_buffer() -> None:
    """As sharded training lays them out."""
    torch.manual_seed(0)
    results = []
    for compiled in (True, False):
        torch.compiler.reset()
        flat = torch.linspace(-1, 1, 24)
        parameters = [nn.Parameter(part) for part in (flat[:12].view(3, 4), flat[12:])]
        optimizer = optim.Adam(parameters, 0.1)
        step = torch.compile(optimizer.step, backend="tilevm") if compiled else optimizer.step
        for _ in range(4):
            for i, p in enumerate(parameters):
                p.grad = (p + i).detach()
            step()
        results.append(flat)
    torch.testing.assert_close(*results)


def test_a_parameter_of_no_module() -> None:
    """The call does not show that anything wants gradients."""
    torch.manual_seed(0)
    w, given = torch.randn(5, 5), torch.randn(5, 2)

    def step_of() -> tuple[Any, list[Any]]:
        a, b = nn.Parameter(given.clone()), nn.Parameter(torch.zeros(2, 5))
        optimizer = optim.SGD([a, b], 0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = (x @ w + (x @ a) @ b - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, [a, b]

    (compiled, found), (eager, exact) = step_of(), step_of()
    compiled = tilevm.compile(compiled)
    tilevm.stats.reset()
    for rows in (4, 9, 17):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x, y), eager(x, y))
    torch.testing.assert_close(found, exact)
    assert not tilevm.stats()["flushes"]


def test_two_backward_passes() -> None:
    """Over parts that share a graph, which one graph of Dynamo would free with the first."""
    torch.manual_seed(0)

    def step_of() -> tuple[Any, Any]:
        torch.manual_seed(1)
        made, judge = nn.Linear(3, 5), nn.Linear(5, 1)
        first, second = optim.SGD(judge.parameters(), 0.1), optim.SGD(made.parameters(), 0.1)

        def step(x: Any, real: Any) -> Any:
            fake = torch.tanh(made(x))
            loss = (judge(fake.detach()) - judge(real)).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            other = -judge(fake).mean()
            second.zero_grad()
            other.backward()
            second.step()
            return loss.detach() + other.detach()

        return step, [*made.parameters(), *judge.parameters()]

    (compiled, found), (eager, exact) = step_of(), step_of()
    compiled = tilevm.compile(compiled)
    for rows in (4, 9, 17):
        x, real = torch.randn(rows, 3), torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x, real), eager(x, real))
    torch.testing.assert_close(found, exact)
    assert "several times" in str(tilevm.stats()["flushes"])


def test_transforms_inside() -> None:
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 4))
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: net(x)))
    compiled = tilevm.compile(lambda x: jacobian(x) + 1)
    tilevm.stats.reset()
    with torch.no_grad():
        for rows in (3, 8, 1):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), jacobian(x) + 1)
    stats = tilevm.stats()
    assert not stats["flushes"] and stats["captures"] > 0, stats
    assert "through torch.compile" in compiled.guards


def test_a_call_that_is_not_captured_is_still_seen_by_its_kind() -> None:
    """The core knows calls that are recorded; others are captured."""

    def function(x: Any) -> Any:
        return x + 1 if x.dim() == 2 and x.sum() > 0 else x - 1

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for x in (torch.ones(2, 3), -torch.ones(5, 2), torch.ones(4), torch.ones(2, 2)) * 3:
        torch.testing.assert_close(compiled(x), function(x))
    stats = tilevm.stats()
    recorded = sum(n for reason, n in stats["flushes"].items() if reason.startswith("fuse"))
    assert (recorded, stats["captures"]) == (9, 1)


@pytest.mark.parametrize("form", ["operator", "method", "data"])
def test_gradients_that_are_dropped_behind_a_step(form: str) -> None:
    """Dynamo takes what `p -= x` makes of `p` for another tensor, whose `grad` nobody has."""

    def step_of() -> tuple[Any, Any]:
        torch.manual_seed(1)
        net = nn.Linear(3, 2)
        weights: list[Any] = list(net.parameters())

        def by_operator(x: Any) -> None:
            net(x).square().sum().backward()
            with torch.no_grad():
                for p in weights:
                    p -= p.grad * 0.1  # noqa: PLW2901  # the form that is meant
                    p.grad = None

        def by_method(x: Any) -> None:
            net(x).square().sum().backward()
            with torch.no_grad():
                for p in weights:
                    q = p.sub_(p.grad * 0.1)
                    q.grad = None

        def by_data(x: Any) -> None:
            net(x).square().sum().backward()
            for p in weights:
                p.data -= p.grad * 0.1
                p.grad = None

        steps = {"operator": by_operator, "method": by_method, "data": by_data}
        return steps[form], net

    (compiled, found), (eager, exact) = step_of(), step_of()
    compiled = tilevm.compile(compiled)
    for rows in (4, 9, 17, 4):
        x = torch.randn(rows, 3)
        compiled(x)
        eager(x)
        for mine, theirs in zip(found.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.grad is None
            assert theirs.grad is None
