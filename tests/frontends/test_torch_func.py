"""Transforms of torch.func inside of compiled functions: captured, and right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import func, nn  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch

LAYER = nn.Linear(6, 6)


def square(x: Any) -> Any:
    return (x.sin() ** 2).sum()


def per_sample(x: Any) -> Any:
    """Gradients of each row's loss."""
    weights = {name: p.detach() for name, p in LAYER.named_parameters()}

    def loss(weights: Any, row: Any) -> Any:
        return func.functional_call(LAYER, weights, (row,)).square().sum()

    found = func.vmap(func.grad(loss), in_dims=(None, 0))(weights, x)
    return found["weight"], found["bias"]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: func.vmap(lambda row: row * 2 + 1)(x),
    "vmap of sizes": lambda x: func.vmap(lambda row: row * row.shape[0] + len(row))(x),
    "vmap of two": lambda x: torch.vmap(torch.dot)(x, x.exp()),
    "vmap among others": lambda x: torch.vmap(lambda row: row.softmax(0))(x) @ x.T,
    "vmap of vmap": lambda x: func.vmap(lambda r: func.vmap(lambda e: e * r.sum())(r))(x),
    "vmap over one of them": lambda x: func.vmap(torch.mv, in_dims=(None, 0))(x[:, :6], x),
    "vmap out": lambda x: func.vmap(lambda row: row.exp(), out_dims=1)(x),
    "vmap of a tuple": lambda x: func.vmap(lambda row: (row.sum(), row.cumsum(0)))(x),
    "vmap of a module": lambda x: func.vmap(LAYER)(x),
    "vmap of a condition": lambda x: func.vmap(lambda r: torch.where(r > 0, r, r.exp()))(x),
    "grad": lambda x: func.grad(square)(x),
    "grad and value": lambda x: func.grad_and_value(square)(x),
    "grad of grad": lambda x: func.grad(lambda y: func.grad(square)(y).sum())(x),
    "vmap of grad": lambda x: func.vmap(func.grad(square))(x),
    "per sample": per_sample,
    "vjp": lambda x: func.vjp(torch.sin, x)[1](x)[0],
    "jvp": lambda x: func.jvp(torch.sin, (x,), (x,)),
    "jacrev": lambda x: func.jacrev(lambda y: y.sin().sum(0))(x),
    "jacfwd": lambda x: func.jacfwd(lambda y: y.sin().sum(0))(x),
    "linearize": lambda x: func.linearize(torch.sin, x)[1](x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transform(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    with torch.no_grad() if name == "vmap of a module" else torch.enable_grad():
        for n in (3, 4, 9):
            x = torch.randn(n, 6)
            torch.testing.assert_close(compiled(x), function(x))
    stats = tilevm.stats()
    assert not stats["flushes"], stats["flushes"]
    # Of this one, Dynamo traces what is differentiated by itself, for each size.
    assert stats["captures"] <= (6 if name == "linearize" else 2)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "a part": lambda x: torch.cat([x, x])[1 : len(x) + 1],
    "gaps": lambda x: torch.stack([x, x], -1)[..., 1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["jvp", "jacfwd", "jacrev", "hessian", "hessian vector"])
def test_transform_of_views(
    name: str, layout: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward mode asks where views begin in memory, which nobody knows for all sizes."""
    others: dict[str, Callable[[Any], Any]] = {
        "hessian": lambda x: func.hessian(square)(x),
        "hessian vector": lambda x: func.jvp(func.grad(square), (x,), (x,)),
    }
    function = others.get(name) or FUNCTIONS[name]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    torch._dynamo.reset()
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for n in (3, 4, 3, 9):
        x = LAYOUTS[layout](torch.randn(n, 6))
        torch.testing.assert_close(compiled(x), function(x))
    stats = tilevm.stats()
    assert not stats["flushes"], stats["flushes"]
    assert stats["captures"] <= 3
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_a_transform(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = tilevm.compile(function)
    for n in (3, 4):
        x = torch.randn(n, 6, requires_grad=True)
        found, wanted = (f(x) for f in (compiled, function))
        torch.testing.assert_close(found, wanted)
        first = [y[0] if isinstance(y, tuple) else y for y in (found, wanted)]
        if first[1].requires_grad:
            sums = (torch.autograd.grad(y.square().sum(), x)[0] for y in first)
            torch.testing.assert_close(*sums)


def test_no_gradient_outside() -> None:
    """A transform differentiates where gradients are off around the call."""
    function = FUNCTIONS["vmap of grad"]
    compiled = tilevm.compile(function)
    x = torch.randn(4, 6, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x.detach()), function(x.detach()))
