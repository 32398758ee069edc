"""`torch.compile(backend="tilevm")`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_graph import backend  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    tilevm.stats.reset()


def eager_reasons() -> list[str]:
    return [key for key in tilevm.stats()["flushes"] if key.startswith("eager")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def test_entry_point() -> None:
    assert "tilevm" in torch._dynamo.list_backends()


def test_sizes_stay_symbolic() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    compiled = torch.compile(model, backend="tilevm", dynamic=True)
    with torch.no_grad():
        for b, n in [(2, 9), (3, 5), (4, 65), (7, 8)]:
            x = torch.randn(b, n, 16)
            torch.testing.assert_close(compiled(x), model(x))
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["callouts"]
    assert not eager_reasons()


def test_automatic_dynamic() -> None:
    f = torch.compile(lambda x: torch.softmax(x * 2, -1), backend=backend)
    for n in (3, 5, 7, 9, 1, 0):
        x = torch.randn(n, 4)
        torch.testing.assert_close(f(x), torch.softmax(x * 2, -1))
    assert tilevm.stats()["captures"] <= 5
    assert not eager_reasons()


def test_training() -> None:
    torch.manual_seed(0)
    model = Block()
    compiled = torch.compile(model, backend="tilevm", dynamic=True)
    for n in (3, 5):
        x = torch.randn(2, n, 16, requires_grad=True)
        want = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
        got = torch.autograd.grad(compiled(x).square().mean(), [x, *model.parameters()])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert not eager_reasons()


def test_optimizer_steps_change_the_result() -> None:
    torch.manual_seed(0)
    model = Block()
    compiled = torch.compile(model, backend="tilevm")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 16)
    losses = []
    for _ in range(4):
        loss = compiled(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_mutation_of_input_and_buffer() -> None:
    class Count(nn.Module):
        n: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.n.add_(1)
            x.mul_(2)
            return x + self.n

    model, other = Count(), Count()
    compiled = torch.compile(other, backend="tilevm")
    for n in (2, 4):
        x, y = torch.ones(n, 3), torch.ones(n, 3)
        torch.testing.assert_close(compiled(y), model(x))
        torch.testing.assert_close(y, x)
        torch.testing.assert_close(other.n, model.n)
    assert not eager_reasons()


def test_views_and_numbers_come_back() -> None:
    def f(x: Any, n: int, a: float) -> Any:
        return x[:, 1:], x.shape[0] * n, x * a, x, None

    compiled = torch.compile(f, backend="tilevm", dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        part, number, scaled, same, none = compiled(x, 3, 0.5 + size)
        assert part.data_ptr() == x[:, 1:].data_ptr()
        assert number == size * 3
        torch.testing.assert_close(scaled, x * (0.5 + size))
        assert same.data_ptr() == x.data_ptr()
        assert none is None
    assert not eager_reasons()


def test_graph_breaks() -> None:
    def f(x: Any) -> Any:
        y = x.exp().sum()
        if y > 3:
            return y + x
        return y - x

    compiled = torch.compile(f, backend="tilevm")
    for value in (1.0, -5.0):
        x = torch.full((3,), value)
        torch.testing.assert_close(compiled(x), f(x))


def test_results_may_change_in_place_after_a_graph_break() -> None:
    linear = nn.Linear(4, 6)

    def function(x: Any) -> Any:
        h = nn.functional.dropout(linear(x), 0.0, True)  # a reshape of what the product made
        n = x.sum()
        torch._dynamo.graph_break()
        h[0] = 7
        return h.sum() * n

    compiled = torch.compile(function, backend="tilevm", dynamic=True)
    for rows in (2, 3):
        found, expected = (torch.ones(rows, 3, 4, requires_grad=True) for _ in range(2))
        torch.testing.assert_close(compiled(found), function(expected))
        compiled(found).backward()
        function(expected).backward()
        torch.testing.assert_close(found.grad, expected.grad)


def test_autocast() -> None:
    model = Block().eval().requires_grad_(False)
    compiled = torch.compile(model, backend="tilevm")
    x = torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = compiled(x), model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_autocast_inside() -> None:
    def f(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float() + 1

    compiled = torch.compile(f, backend="tilevm")
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(compiled(x, w), f(x, w))


def test_mode_and_options() -> None:
    x = torch.ones(3)
    assert torch.compile(lambda x: x + 1, backend="tilevm", mode="reduce-overhead")(x).sum() == 6
    options: Any = {"verify": True}
    assert torch.compile(lambda x: x + 2, backend="tilevm", options=options)(x).sum() == 9
    for mode, options, said in [
        (None, {"max_autotune": True}, "no option max_autotune"),
        (None, {"tier": "gpu"}, "tier is 'gpu'"),
        (None, {"threads": -3}, "threads is -3"),
        ("bogus", None, "mode is 'bogus'"),
    ]:
        with pytest.raises(Exception, match=said):
            torch.compile(lambda x: x + 3, backend="tilevm", mode=mode, options=options)(x)


def test_what_cannot_be_imported_runs_eagerly() -> None:
    f = torch.compile(lambda x: x.to_sparse().to_dense() * 2, backend="tilevm")
    x = torch.eye(3)
    torch.testing.assert_close(f(x), x * 2)


def test_random_numbers() -> None:
    f = torch.compile(lambda x: torch.rand_like(x) + torch.rand_like(x) * x, backend="tilevm")
    x = torch.ones(5)
    torch.manual_seed(3)
    got = f(x)
    torch.manual_seed(3)
    torch.testing.assert_close(got, torch.rand_like(x) + torch.rand_like(x) * x)


def test_sizes_that_are_divided_stay_symbolic() -> None:
    def rope(q: Any, cos: Any, sin: Any) -> Any:
        half = q.shape[-1] // 2
        turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
        return q * cos + turned * sin

    compiled = torch.compile(rope, backend="tilevm", dynamic=True)
    for shape in [(1, 4, 7, 32), (2, 3, 9, 64)]:
        q, cos, sin = torch.randn(shape), torch.randn(shape[2:]), torch.randn(shape[2:])
        torch.testing.assert_close(compiled(q, cos, sin), rope(q, cos, sin))
    assert not eager_reasons()


def test_the_root_of_a_size() -> None:
    def scores(q: Any, k: Any) -> Any:
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])

    compiled = torch.compile(scores, backend="tilevm", dynamic=True)
    for shape in [(2, 7, 64), (3, 5, 40)]:
        q, k = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(q, k), scores(q, k))
    assert not eager_reasons()


def test_ints_that_are_negative() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, n: torch.roll(x * 2, n) + n, backend="tilevm", dynamic=True, fullgraph=True
    )
    for n in (3, -1, 2, -4):
        for wants in (False, True):
            x = torch.arange(6.0, requires_grad=wants)
            torch.testing.assert_close(compiled(x, n), torch.roll(x * 2, n) + n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float32])
def test_tensors_of_one_number_are_tensors(dtype: Any) -> None:
    def f(x: Any, n: Any) -> Any:
        return x * n + 1, n * 2

    compiled = torch.compile(f, backend="tilevm", dynamic=True)
    for number in (3, 5, 0):
        x, n = torch.randn(2, 7), torch.tensor(number, dtype=dtype)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert tilevm.stats()["captures"] == 1
    assert not eager_reasons()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_tensors_of_one_number_whose_item_is_read_too(dtype: Any) -> None:
    def f(x: Any, n: Any) -> Any:
        return x * n.item() + n + n.item()

    def g(x: Any, n: Any) -> Any:
        return x + torch.arange(n.item()).sum()

    for function in (f, g) if dtype is torch.int64 else (f,):
        compiled = torch.compile(function, backend="tilevm", dynamic=True)
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            for number in (3, 5, 0, 2):
                x = torch.randn(2, 7)
                n = torch.tensor(number, dtype=dtype)
                torch.testing.assert_close(compiled(x, n), function(x, n))
    assert not eager_reasons()


def test_graphs_without_tensors() -> None:
    compiled = torch.compile(lambda n, m: torch.zeros(n, m) + n, backend="tilevm", dynamic=True)
    for n, m in ((2, 3), (4, 7)):
        assert torch.equal(compiled(n, m), torch.zeros(n, m) + n)
    assert tilevm.stats()["captures"] == 1
    assert not eager_reasons()


INDEXED: dict[str, Callable[[Any, Any], Any]] = {
    "gather": lambda x, i: x.gather(1, i),
    "scatter": lambda x, i: x.scatter(1, i, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i, x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i, x, "amax"),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "index_add": lambda x, i: x.index_add(1, i[0], x),
    "index_copy": lambda x, i: x.index_copy(1, i[0], x),
    "index_fill": lambda x, i: x.index_fill(1, i[0], 2.0),
    "index": lambda x, i: x[:, i[0]],
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross entropy": lambda x, i: F.cross_entropy(x, i[0]),
    "one_hot": lambda x, i: F.one_hot(i, 3) * x,
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", INDEXED)
def test_errors_of_indices_are_of_the_kind_of_eager_code_s(name: str, gradients: bool) -> None:
    function = INDEXED[name]
    torch._dynamo.reset()
    doors = (torch.compile(function, backend="tilevm", dynamic=True), tilevm.compile(function))
    for wrong in (19, -19):
        x, i = torch.eye(3, requires_grad=gradients), torch.tensor([[0, 1, wrong]] * 3)
        with pytest.raises((RuntimeError, IndexError)) as wanted:
            function(x, i)
        for door in doors:
            with pytest.raises((RuntimeError, IndexError)) as found:
                door(x, i)
            assert found.type is wanted.type


def test_an_error_of_the_user_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    compiled = torch.compile(lambda x, i: x.gather(0, i) + 1, backend="tilevm", dynamic=True)
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError), match="index"):
            compiled(torch.ones(3), torch.tensor([3]))
    assert capfd.readouterr().err == ""
