"""The block together with compilers, inside and outside of what they compile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager.compare import grid  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402


def chain(x: Any) -> Any:
    return torch.relu(x * 2 + 1).softmax(-1) - x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tilevm"])
def test_compiled_functions(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend=backend)
    x = grid() / 4
    expected = chain(x)
    outside = compiled(x)
    with tilevm.fuse():
        inside = compiled(x)
        pending = compiled(x * 1) + 0
        y = x.clone().requires_grad_()
        compiled(y).square().sum().backward()
    z = x.clone().requires_grad_()
    chain(z).square().sum().backward()
    for found in (outside, inside, pending):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(y.grad, z.grad)


def test_functions_stay_what_compilers_know() -> None:
    """The same objects, of the same hash, inside and after a block: nothing breaks a graph."""
    layer = torch.nn.Linear(4, 4)

    def function(x: Any) -> Any:
        return torch.mul(torch.tanh(torch.relu(torch.nn.functional.linear(x, layer.weight))), x)

    names = [torch.nn.functional.linear, torch.relu, torch.tanh, torch.mul]
    known = {f: hash(f) for f in names}
    x = grid(3, 4)
    with tilevm.fuse():
        torch._dynamo.reset()
        torch.testing.assert_close(
            torch.compile(function, backend="eager", fullgraph=True)(x), function(x)
        )
        assert [torch.nn.functional.linear, torch.relu, torch.tanh, torch.mul] == names
        assert known == {f: hash(f) for f in known}
    # A thread that ends with recording on leaves nothing behind.
    thread = threading.Thread(target=tilevm.fuse.enable)
    thread.start()
    thread.join()
    torch._dynamo.reset()
    torch.compile(function, backend="eager", fullgraph=True)(x)


def test_a_block_inside_a_compiled_function() -> None:
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        x = x + 1
        with tilevm.fuse():
            x = chain(x)
        return x * 2

    compiled = torch.compile(function, backend="eager")
    torch.testing.assert_close(compiled(grid()), chain(grid() + 1) * 2)


def test_tilevm_compile_inside() -> None:
    compiled = tilevm.compile(chain)
    with tilevm.fuse():
        found = compiled(grid() * 1) + 1
        again = compiled(grid())
    torch.testing.assert_close(found, chain(grid()) + 1)
    torch.testing.assert_close(again, chain(grid()))


def test_kernels_inside() -> None:
    @tilevm.kernel
    def double(x: Any) -> Any:
        return x * 2

    with tilevm.fuse():
        y = double(grid() + 1) + 1
    torch.testing.assert_close(y, (grid() + 1) * 2 + 1)


def test_export_inside() -> None:
    class Chain(nn.Module):
        def forward(self, x: Any) -> Any:
            return chain(x)

    with tilevm.fuse():
        exported = torch.export.export(Chain(), (grid() + 1,))
        traced = torch.jit.trace(chain, grid() + 1)
        fx = torch.fx.experimental.proxy_tensor.make_fx(chain)(grid() + 1)
    for module in (exported.module(), traced, fx):
        torch.testing.assert_close(module(grid()), chain(grid()))


def test_other_doors_read_what_was_written() -> None:
    """What operators in place still owe to memory is there before a compiled program reads it."""
    doors = {
        "compile": tilevm.compile(lambda x: x * 2),
        "kernel": tilevm.kernel(doubled),
        "torch.compile": torch.compile(doubled, backend="tilevm"),
    }
    x = torch.ones(4, 4)
    for door in doors.values():
        for _ in range(3):
            x.fill_(1.0)
            with torch.no_grad(), tilevm.fuse():
                kept = x.clone()
                x.add_(1)
                y = door(x)
            assert y.tolist() == [[4.0] * 4] * 4
            assert kept.tolist() == [[1.0] * 4] * 4


def doubled(x: Any) -> Any:
    return x * 2


def test_operators_that_take_functions() -> None:
    def function(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: x * 2 + 1, lambda x: x - 1, (x * 1,))
        _, z = torch.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5), (torch.tensor(0), y)
        )
        return y + 1, z * 2

    with torch.no_grad():
        for x in (grid() + 1, -grid() - 1):
            expected = function(x)
            with tilevm.fuse():
                found = function(x)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b)


def in_place(x: Any) -> Any:
    y = x.clone()
    y.add_(1).sub_(x).mul_(2).clamp_(0, 1)
    y[0].zero_()
    y[:, 1] += x[:, 0]
    y.copy_(x + 1)
    y.index_add_(0, torch.tensor([0]), x[:1])
    return y.relu_() / x.abs().sum() + torch.where(x > 0, x, 0.0).masked_fill(x < 0, 3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tilevm"])
def test_writes_to_tensors_of_unknown_size(backend: str) -> None:
    """Compilers trace them with sizes that are symbols, of which nobody may ask how many."""
    compiled = torch.compile(in_place, backend=backend, dynamic=True)
    for n in (4, 6):
        x = torch.randn(n, 5)
        with tilevm.fuse():
            found = compiled(x)
            fx = torch.fx.experimental.proxy_tensor.make_fx(in_place, tracing_mode="symbolic")(x)
            traced = fx(x)
        torch.testing.assert_close(found, in_place(x))
        torch.testing.assert_close(traced, in_place(x))
