"""Autocast, and gradients on or off, inside of captured functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tilevm


def _autocast(x: Any, w: Any) -> Any:
    y = x + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = functional.gelu(functional.linear(y, w))
        rows = z.softmax(-1)
    return z.float().sum() + rows.float() * 2


def _nested(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ w.t()
        return y, z, (y.float() - z) @ w


def _numbers(x: Any, w: Any) -> Any:
    n = x.shape[0] * 2
    with torch.autocast("cpu", dtype=torch.float16):
        y = (x @ w.t()).reshape(n, -1) * n
    return y + torch.arange(n)[:, None], y.shape[0]


def _constants(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ torch.eye(x.shape[1])[:, :2] + torch.tensor([1.0, 2.0])


def _gradients(x: Any, w: Any) -> Any:
    with torch.enable_grad():
        y = x @ w.t()
        with torch.no_grad():
            y = y * 2
    with torch.no_grad():
        z = y.relu()
    return y, z


def _in_place(x: Any, w: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
        y = x.clone()
        y[0] = w.sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y.add_((x @ w.t()).sum())
    return y


def _all_of_it(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        return functional.scaled_dot_product_attention(x[None], x[None], x[None]), x, x.t()


FUNCTIONS = [_autocast, _nested, _numbers, _constants, _gradients, _in_place, _all_of_it]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_regions_are_captured(function: Any) -> None:
    compiled = tilevm.compile(function)
    torch.manual_seed(0)
    tilevm.stats.reset()
    for rows in (4, 9, 1, 30):
        x, w = torch.randn(rows, 16), torch.randn(6, 16)
        given = x.clone()
        expected = function(x, w)
        torch.testing.assert_close(compiled(given, w), expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(given, x)
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["flushes"]


class _Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.last(self.norm(functional.gelu(self.first(x))))
        return y.float()


@pytest.mark.parametrize("freeze", [False, True])
def test_a_module_in_bfloat16(freeze: bool) -> None:
    model = _Step().eval().requires_grad_(False)
    compiled = tilevm.compile(model, freeze=freeze)
    tilevm.stats.reset()
    for rows in (3, 8, 1):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=3e-2, atol=3e-2)
    assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["flushes"]


@pytest.mark.parametrize("cast", [False, True])
def test_gradients_that_are_wanted_within_alone(cast: bool) -> None:
    def fn(w: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast), torch.enable_grad():
            return (w @ x).sum()

    compiled = tilevm.compile(fn)
    for wants in (False, True, False):
        w, x = torch.randn(3, 3, requires_grad=wants), torch.randn(3, 3)
        for _ in range(2):
            with torch.no_grad():
                result = compiled(w, x)
            assert result.requires_grad == wants
            if wants:
                (gradient,) = torch.autograd.grad(result, w)
                expected = x.sum(1).expand(3, 3)
                torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-2)


def test_inference_of_a_module_that_could_be_trained() -> None:
    model = _Step().eval()
    compiled = tilevm.compile(model)
    tilevm.stats.reset()
    with torch.no_grad():
        for rows in (3, 8):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=3e-2, atol=3e-2)
    assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["flushes"]


def test_with_gradients() -> None:
    model = _Step()
    compiled = tilevm.compile(model)
    x = torch.randn(5, 16)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=3e-2, atol=3e-2)


def test_gradients_enabled_where_nothing_requires_them() -> None:
    weight = nn.Parameter(torch.randn(4))

    def fn(x: Any) -> Any:
        y = x * weight
        with torch.enable_grad():
            return y.exp() + x

    def within(x: Any) -> Any:
        with torch.enable_grad():
            return x * weight

    compiled, other = tilevm.compile(fn), tilevm.compile(within)
    tilevm.stats.reset()
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), fn(x))
        assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["flushes"]
        assert other(x).requires_grad  # of the weight
        assert compiled(x.requires_grad_()).grad_fn is not None or not fn(x).requires_grad
        assert compiled(x).requires_grad == fn(x).requires_grad


def _made_with(x: Any) -> Any:
    return x * torch.ones(3, requires_grad=True)


def _made_so(x: Any) -> Any:
    y = x.clone().requires_grad_()
    return y * 2, y


def _set_so(x: Any) -> Any:
    y = x.clone()
    y.requires_grad = True
    return y * 2


def _parameter(x: Any) -> Any:
    return x * nn.Parameter(torch.ones(3)), x


def _detached(x: Any) -> Any:
    return _made_so(x)[0].detach(), x.clone().requires_grad_(False)


MAKING = [_made_with, _made_so, _set_so, _parameter, _detached]


@pytest.mark.parametrize("has_grad", [True, False])
@pytest.mark.parametrize("function", MAKING)
def test_tensors_that_are_made_to_require_gradients(function: Any, has_grad: bool) -> None:
    compiled = tilevm.compile(function)
    with torch.set_grad_enabled(has_grad):
        for rows in (2, 4):
            x = torch.randn(rows, 3)
            found, expected = compiled(x), function(x)
            torch.testing.assert_close(found, expected)
            pair = [[r] if torch.is_tensor(r) else r for r in (found, expected)]
            wants = [[t.requires_grad for t in tensors] for tensors in pair]
            assert wants[0] == wants[1]


def test_arguments_that_are_let_require_gradients() -> None:
    def called(x: Any) -> Any:
        x.requires_grad_()
        return x * 2

    def assigned(x: Any) -> Any:
        x.requires_grad = True
        return x * 2

    for function in (called, assigned):
        compiled = tilevm.compile(function)
        for has_grad in (False, True):
            x = torch.randn(3)
            with torch.set_grad_enabled(has_grad):
                assert compiled(x).requires_grad == has_grad
            assert x.requires_grad
