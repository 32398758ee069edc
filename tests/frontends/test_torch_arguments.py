"""Arguments of a compiled function that are more than tensors in containers."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402


class Mode(Enum):
    PLUS = 1
    MINUS = 2


class Node:
    def __init__(self, parent: Node | None, value: float) -> None:
        self.parent = parent
        self.children: list[Node] = []
        self.value = value


class Missing:
    pass


MISSING = Missing()
settings = [1.0, 2.0]


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def test_members_of_enums() -> None:
    def fn(x: Any, mode: Mode) -> Any:
        return x + 1 if mode is Mode.PLUS else x - 1

    compiled = tilevm.compile(fn)
    x = torch.randn(3)
    for mode in (Mode.PLUS, Mode.MINUS, Mode.PLUS):
        assert torch.equal(compiled(x, mode), fn(x, mode))
    assert len(compiled.captures) == 2


@pytest.mark.parametrize("grad", [False, True])
def test_rings(grad: bool) -> None:
    def fn(node: Node, x: Any) -> Any:
        return x * node.value + node.children[0].value

    root = Node(None, 2.0)
    root.children.append(Node(root, 3.0))
    x = torch.randn(3, requires_grad=grad)
    compiled = tilevm.compile(fn)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            torch.testing.assert_close(compiled(root, x), fn(root, x))
    if not grad:
        assert "contains itself" in compiled.guards


def test_deep_ones() -> None:
    def fn(x: Any, deep: Any) -> Any:
        return x + 1

    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    x = torch.randn(3)
    assert torch.equal(tilevm.compile(fn)(x, deep), fn(x, deep))


def test_one_container_in_two_places() -> None:
    def fn(a: Any, b: Any, x: Any) -> Any:
        b[0] = 5.0
        return x * a[0], a is b

    compiled = tilevm.compile(fn)
    x = torch.randn(3)
    for _ in range(2):
        one, other = [1.0, 2.0], [1.0, 2.0]
        result, is_one = compiled(one, one, x)
        assert is_one and torch.equal(result, x * 5.0) and one == [5.0, 2.0]
        one = [1.0, 2.0]
        result, is_one = compiled(one, other, x)
        assert not is_one and torch.equal(result, x) and (one, other) == ([1.0, 2.0], [5.0, 2.0])


def test_tensors_of_shared_containers() -> None:
    def fn(a: Any, b: Any) -> Any:
        b["y"] = b["x"] + 1
        return a["y"] * 2, a is b

    compiled = tilevm.compile(fn)
    for _ in range(2):
        given = {"x": torch.randn(3), "y": torch.zeros(3)}
        result, is_one = compiled(given, given)
        assert is_one
        torch.testing.assert_close(given["y"], given["x"] + 1)
        torch.testing.assert_close(result, given["y"] * 2)


def test_arguments_that_are_what_the_function_reads() -> None:
    def fn(x: Any, given: Any = MISSING) -> Any:
        if given is MISSING:
            return x
        return x * (2 if given is settings else 3)

    compiled = tilevm.compile(fn)
    x = torch.randn(3)
    for given in (MISSING, settings, [1.0, 2.0], settings, MISSING, Missing()):
        assert torch.equal(compiled(x, given), fn(x, given))


def test_parameters_are_parameters() -> None:
    def fn(x: Any) -> Any:
        return x * (2 if isinstance(x, nn.Parameter) else 3) + (1 if x.requires_grad else 0)

    compiled = tilevm.compile(fn)
    x = torch.randn(3)
    given = [x, nn.Parameter(x.clone()), nn.Parameter(x.clone(), requires_grad=False)]
    given.append(x.clone().requires_grad_())
    for _ in range(3):
        for tensor in given:
            torch.testing.assert_close(compiled(tensor), fn(tensor))
    assert len(compiled.captures) == 4


def test_gradients_are_wanted_within() -> None:
    def fn(w: Any, x: Any) -> Any:
        with torch.enable_grad():
            return (w * x).sum()

    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    compiled = tilevm.compile(fn)
    for _ in range(3):
        result = compiled(w, x)
        assert result.requires_grad
        (gradient,) = torch.autograd.grad(result, w)
        torch.testing.assert_close(gradient, x)
