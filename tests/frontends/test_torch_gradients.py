"""Gradients through AOTAutograd against eager code in float64, without call-outs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential import judge  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def classes(x: Any) -> Any:
    """A target for each row, some of them ignored."""
    target = torch.arange(x.shape[0]) % x.shape[-1]
    return torch.where(torch.arange(x.shape[0]) % 3 == 2, -100, target)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cross entropy": lambda x: functional.cross_entropy(x, classes(x)),
    "... sum": lambda x: functional.cross_entropy(x, classes(x), reduction="sum"),
    "... of each row": lambda x: functional.cross_entropy(x, classes(x), reduction="none").square(),
    "... smoothed": lambda x: functional.cross_entropy(x, classes(x), label_smoothing=0.1),
    "... weighted": lambda x: functional.cross_entropy(
        x, classes(x), weight=torch.arange(1, x.shape[-1] + 1).to(x)
    ),
    "... of one row": lambda x: functional.cross_entropy(x[0], classes(x)[0]),
    "nll": lambda x: functional.nll_loss(x * x, classes(x).clamp(min=0), ignore_index=1),
    "slice": lambda x: (x[1:] * x[:-1]).sin(),
    "slice to the end": lambda x: x[:, 1:].exp() * 2,
    "slice of more than there is": lambda x: x[-10:].sin().sum() + x[:40].exp().sum(),
    "slice past the end": lambda x: x[40:].exp().sum() + x.sum(),
    "slice from the end": lambda x: x[-2:-1] * x[:, -2:].sum(),
    "slices": lambda x: x[:, :2].sum() + (x[:, 1:3] * x[:1, 2:4]).sum(),
    "select": lambda x: x[0] * x[:, -1].sum() + x[-1],
    "split": lambda x: torch.cat([p.cos() for p in x.split([1, x.shape[1] - 1], 1)], 1),
    "chunk and sigmoid": lambda x: functional.glu(torch.cat([x, x * 2], -1)),
    "elu": lambda x: functional.elu(x) + functional.softplus(x) + functional.hardswish(x),
    "hard": lambda x: functional.hardsigmoid(x) * functional.hardtanh(x),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, x.flip(0) * 2),
    "mse": lambda x: functional.mse_loss(x, x.flip(0) * 2),
}


def close(found: Any, exact: Any, eager: Any) -> None:
    assert found.dtype == eager.dtype
    judge.check(found.float().numpy(), exact.float().numpy(), eager.float().numpy(), by="largest")


def gradient(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    y.sum().backward()
    return y.detach(), leaf.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    for sizes in ((5, 7), (3, 4), (17, 33), (2, 4)):
        x = torch.randn(*sizes)
        for found, exact, eager in zip(
            gradient(compiled, x), gradient(function, x.double()), gradient(function, x),
            strict=True,
        ):  # fmt: skip
            close(found, exact, eager)
    stats = tilevm.stats()
    assert not stats["flushes"]
    assert not stats["callouts"]


def same_gradients(function: Callable[..., Any], x: Any, *others: Any) -> None:
    """Compare with eager code, in float32."""
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    calls = (lambda x: compiled(x, *others)), (lambda x: function(x, *others))
    for found, expected in zip(*(gradient(f, x) for f in calls), strict=True):
        torch.testing.assert_close(found, expected)
    assert not tilevm.stats()["flushes"]


def positive(n: int) -> Any:
    x = torch.randn(n, n)
    return x @ x.T + torch.eye(n)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.cholesky(x) * 2,
        lambda x: torch.linalg.inv(x) @ torch.linalg.inv(x + 1),
        lambda x: torch.linalg.solve(x, x.sin()),
        lambda x: torch.linalg.eigh(x).eigenvalues,
    ],
)
def test_operators_that_check_for_errors(function: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    same_gradients(function, positive(5))


def test_errors_that_are_checked_for_are_raised() -> None:
    compiled = tilevm.compile(lambda x: torch.linalg.inv(x).sum())
    x = torch.zeros(3, 3, requires_grad=True)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            compiled(x)
    compiled(torch.eye(3, requires_grad=True))


def test_zeros_without_memory() -> None:
    same_gradients(torch.sgn, torch.randn(4, 5))


def test_a_size_that_tracing_finds_to_be_one() -> None:
    same_gradients(lambda x, n: torch.as_strided_copy(x, (n,), (1,), 0), torch.randn(1), 1)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_results_that_begin_elsewhere_in_an_argument(offset: int) -> None:
    """Strides and offsets are arguments of the call, of which autograd makes the view again."""
    x = torch.randn(4, 5)
    same_gradients(lambda x, n: x.as_strided((2, 3), (n + 1, 2), n), x, offset)
    same_gradients(lambda x, n: x[n:, n:], x, offset)


def test_ignored_targets_alone() -> None:
    """The mean over no row is NaN; its gradient is what eager code says."""
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        return functional.cross_entropy(x, torch.full((x.shape[0],), -100))

    compiled = torch.compile(function, backend="tilevm", dynamic=True)
    x = torch.randn(3, 4)
    (y, grad), (_, expected) = gradient(compiled, x), gradient(function, x)
    assert y.isnan()
    torch.testing.assert_close(grad, expected, equal_nan=True)


def test_target_out_of_range() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(functional.cross_entropy, backend="tilevm", dynamic=True)
    with pytest.raises(IndexError):
        compiled(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 9, 1]))


class Normed(nn.Module):
    def __init__(self, rank: int, affine: bool = True) -> None:
        super().__init__()
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[rank]
        self.norm = kind(5, affine=affine)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.norm(x)) * x


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm(rank: int, training: bool, affine: bool) -> None:
    """Its result, gradients and running statistics."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    module = Normed(rank, affine).train(training)
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    compiled = torch.compile(module, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    for sizes in ((7, 5, 9, 3), (3, 5, 4, 6), (16, 5, 8, 8)):
        x = torch.randn(*sizes[:rank]) * 3 + 1
        results = [
            [*gradient(m, x.to(dtype)), *(p.grad for p in own.parameters())]
            for m, own, dtype in (
                (compiled, module, torch.float32),
                (exact, exact, torch.float64),
                (eager, eager, torch.float32),
            )
        ]
        for found, best, want in zip(*results, strict=True):
            close(found, best, want)
        for found, want in zip(module.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(found, want)
    assert not tilevm.stats()["flushes"]
    assert not tilevm.stats()["callouts"]


def test_training_follows_eager() -> None:
    """Two layers, batch norm and cross entropy, sizes that change from step to step."""
    torch._dynamo.reset()
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 4))
    losses: list[list[float]] = []
    for compile_it in (False, True):
        own = copy.deepcopy(module)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
        run = torch.compile(own, backend="tilevm", dynamic=True) if compile_it else own
        torch.manual_seed(3)
        losses.append([])
        for step in range(60):
            x = torch.randn(2 + step % 7, 6)
            optimizer.zero_grad()
            loss = functional.cross_entropy(run(x), (x[:, 0] > 0).long() + (x[:, 1] > 0))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(
        torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-3, atol=1e-4
    )
    assert losses[1][-1] < losses[1][0]


def test_more_modules_than_dynamo_keeps_of_one_code() -> None:
    for width in range(10):
        module = torch.nn.Sequential(torch.nn.Linear(3, 4 + width), torch.nn.ReLU())
        before = tilevm.stats()["captures"]
        tilevm.compile(module)(torch.randn(5, 3)).sum().backward()
        assert tilevm.stats()["captures"] > before


class Penalised(nn.Module):
    """A gradient penalty in a method that another one calls."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def penalty(self, x: Any) -> Any:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    def forward(self, x: Any) -> Any:
        return self.critic(x).mean() + self.penalty(x)


def test_second_derivatives_in_what_a_function_calls() -> None:
    module, x = Penalised(), torch.randn(5, 3)

    def loss(x: Any) -> Any:
        return module.penalty(x) * 2

    for own in (module, loss):
        found = []
        for run in (own, tilevm.compile(own)):
            module.zero_grad()
            run(x).backward()
            found.append([p.grad for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(found[1], found[0])
        assert found[0]


def test_second_derivatives_in_a_function_that_a_module_holds() -> None:
    module, x = Penalised(), torch.randn(5, 3)
    outer = torch.nn.Sequential(torch.nn.Linear(3, 3))
    outer.register_module("held", module)
    outer.forward = lambda x: outer.loss(module, x)
    outer.loss = lambda of, x: of.penalty(x) * 2
    expected = outer(x)
    expected.backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    tilevm.compile(outer)(x).backward()
    found = [p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(found, gradients)


def test_tensors_of_sizes_beside_gradients() -> None:
    def function(x: Any) -> Any:
        lengths = torch.tensor([3, len(x)])
        return x * (torch.arange(len(x))[:, None] < lengths[1] - 1)

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for n in (4, 7):
        x = torch.randn(n, 3, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        (expected,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert not tilevm.stats()["flushes"]


def test_loops_that_pytorch_leaves_to_itself_are_recorded() -> None:
    def function(x: Any) -> Any:
        for _ in range(4):
            x = x * 0.5
            if x.abs().max() < 1:
                break
        return x

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for scale in (1.0, 9.0, 3.0, 99.0, 5.0, 2.0):
        x = (torch.randn(5, 3) * scale).requires_grad_()
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        (expected,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert sum(n for text, n in tilevm.stats()["flushes"].items() if "no graph" in text) == 6
    assert any(text.startswith("fuse: ") for text in tilevm.stats()["flushes"])


def test_small_pieces_are_recorded() -> None:
    """Of what PyTorch breaks a graph at, a mask, each piece would be a function of autograd."""

    def loss(x: Any, w: Any) -> Any:
        return (x @ w)[x[:, 0] > 0].square().mean()

    compiled = tilevm.compile(loss)
    tilevm.stats.reset()
    w = torch.randn(4, 4, requires_grad=True)
    for rows in (5, 9, 30):
        x = torch.randn(rows, 4)
        x[0, 0] = 1.0
        (found,) = torch.autograd.grad(compiled(x, w), w)
        (expected,) = torch.autograd.grad(loss(x, w), w)
        torch.testing.assert_close(found, expected)
    flushes = tilevm.stats()["flushes"]
    assert sum(n for text, n in flushes.items() if "small pieces" in text) == 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), loss(x, w))
