"""Gradients: computed, accumulated and refused as in eager mode; models train alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, grid, same  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import Function as AutogradFunction  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]
# Losses of x [3, 4] and w [4, 4], both with gradients.
LOSSES: dict[str, Function] = {
    "chain": lambda x, w: (torch.relu(x * 2 + 1) - x).sum(),
    "exp": lambda x, w: (x / 4).exp().log1p().mean(),
    "matmul": lambda x, w: torch.tanh(x @ w).pow(2).sum(),
    "linear": lambda x, w: F.gelu(F.linear(x, w, w[0])).sum(),
    "softmax": lambda x, w: (torch.softmax(x @ w, -1) * x).sum(),
    "log_softmax": lambda x, w: F.cross_entropy(x @ w, torch.tensor([0, 2, 1])),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]).square().sum(),
    "norm": lambda x, w: (x @ w).norm() + w.norm(dim=0).sum(),
    "where": lambda x, w: torch.where(x > 0, x, x @ w).sum(),
    "views": lambda x, w: (x.t()[1:] @ x[:, ::2].expand(3, 2) * w[:3, :2]).sum(),
    "cat": lambda x, w: torch.cat([x, w]).split(2)[1].square().sum(),
    "gather": lambda x, w: (
        w.gather(1, torch.zeros(4, 2, dtype=torch.int64)).sum() + x[[0, 0]].sum()
    ),
    "embedding": lambda x, w: F.embedding(torch.tensor([1, 3, 1]), w).mul(x).sum(),
    "in place": lambda x, w: (x * 2).add_(w[0]).mul_(3).relu_().sum(),
    "in place of a view": lambda x, w: _written(x).sum() * w.sum(),
    "clamp": lambda x, w: x.clamp(-2, 2).mul(3).sum() + w.amax(),
    "cumsum": lambda x, w: (x.cumsum(0) * x).sum() + w.sum(),
    "sort": lambda x, w: (x.sort(-1).values * w[0]).sum(),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]).sum(),
    "dropout": lambda x, w: F.dropout(x @ w, 0.5).sum(),
    "detached": lambda x, w: (x.detach() * x).sum() + w.detach().sum() * w.sum(),
    "low precision": lambda x, w: (x.bfloat16() @ w.bfloat16()).float().sum(),
    "unused": lambda x, w: x.sum(),
}


def _written(x: Any) -> Any:
    y = x * 1
    y[1] = y[0] * 3
    y[:, 0].mul_(2)
    return y


def leaves() -> tuple[Any, Any]:
    x, w = grid() / 4, grid(4, 4).sin()
    return x.requires_grad_(), w.requires_grad_()


@pytest.mark.parametrize("name", LOSSES)
def test_backward(name: str) -> None:
    def function(x: Any, w: Any) -> Any:
        loss = LOSSES[name](x, w)
        loss.backward()
        return loss

    agree(function, *leaves(), exact=False)


@pytest.mark.parametrize("name", LOSSES)
def test_backward_after_the_block(name: str) -> None:
    x, w = leaves()
    y, v = leaves()
    torch.manual_seed(0)
    with tilevm.fuse():
        loss = LOSSES[name](x, w)
    loss.backward()
    torch.manual_seed(0)
    LOSSES[name](y, v).backward()
    same((x, w), (y, v), exact=False)


@pytest.mark.parametrize("name", ["chain", "exp", "matmul", "softmax", "norm", "views"])
def test_second_derivatives(name: str) -> None:
    def function(x: Any, w: Any) -> Any:
        (first,) = torch.autograd.grad(LOSSES[name](x, w), x, create_graph=True)
        second = torch.autograd.grad((first * first).sum(), (x, w), allow_unused=True)
        # (times 1: whether autograd adds in place, which versions tell, depends on who holds it)
        return first, [s * 1 for s in second if s is not None]

    agree(function, *leaves(), exact=False)


def test_gradients_wait() -> None:
    with tilevm.fuse():
        x = grid().requires_grad_()
        y = x * 2 + 1
        assert y.requires_grad
        assert type(y.grad_fn).__name__ == "AddBackward0"
        compare.recorded(y)
        (g,) = torch.autograd.grad((y * 3).sum(), x)
        compare.recorded(y, g)
    same(g.tolist(), [[6.0] * 4] * 3)


def test_accumulation() -> None:
    def function(x: Any) -> Any:
        for i in range(4):
            (x * i + x.exp()).sum().backward()
        kept = x.grad
        x.grad = None
        (x * x).sum().backward()
        return kept

    agree(function, (grid() / 8).requires_grad_(), exact=False)


def test_hooks() -> None:
    def function(x: Any) -> Any:
        told: list[Any] = []
        y = x * 2
        y.register_hook(lambda g: g * 3)
        y.register_hook(lambda g: told.append(g.sum().item()))
        y.retain_grad()
        x.register_post_accumulate_grad_hook(lambda leaf: told.append(leaf.grad.tolist()))
        (y + x).square().sum().backward()
        return told, y.grad, y

    agree(function, grid().requires_grad_())


def test_module_hooks() -> None:
    def function(module: Any, x: Any) -> Any:
        told: list[Any] = []
        module[0].register_forward_hook(lambda m, i, o: o * 2)
        module[1].register_full_backward_hook(lambda m, i, o: told.append(o[0].sum().item()))
        module(x).sum().backward()
        return told, [p.grad for p in module.parameters()]

    torch.manual_seed(0)
    agree(function, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), grid(), exact=False)


def test_saved_tensors_hooks() -> None:
    def function(x: Any) -> Any:
        packed: list[Any] = []

        def pack(t: Any) -> Any:
            packed.append(t.detach().clone())
            return t * 1

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 1):
            y = (x * x).exp()
        y.sum().backward()
        return packed

    agree(function, (grid() / 8).requires_grad_(), exact=False)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    def block(x: Any, w: Any) -> Any:
        return torch.relu(F.dropout(x @ w, 0.25) * 2 + x)

    def function(x: Any, w: Any) -> Any:
        y = checkpoint(block, x, w, use_reentrant=reentrant)
        checkpoint(block, y, w, use_reentrant=reentrant).sum().backward()
        return y

    agree(function, *leaves(), exact=False)


class Doubled(AutogradFunction):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable()
        return y + 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, y = ctx.saved_tensors
        return grads[0] * (x + y)


class Incremented(AutogradFunction):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 3


def test_custom_functions() -> None:
    def function(x: Any) -> Any:
        y = Doubled.apply(x * 1)  # type: ignore[no-untyped-call]
        z = Incremented.apply(y * 2)  # type: ignore[no-untyped-call]
        z.sum().backward()
        return y, z

    agree(function, grid().requires_grad_())


def test_what_was_changed_cannot_be_differentiated() -> None:
    """Version counters count recorded writes."""

    def messages(x: Any) -> list[str]:
        found = []
        for write in (
            lambda y: y.add_(1),
            lambda y: y[0].mul_(2),
            lambda y: y.detach().zero_(),
            lambda y: y.data.zero_(),
        ):
            y = x * 2
            z = y * y
            write(y)  # type: ignore[no-untyped-call]
            try:
                z.sum().backward()
                found.append("")
            except RuntimeError as error:
                found.append(str(error))
        return found

    expected = messages(grid().requires_grad_())
    assert sum("modified by an inplace operation" in text for text in expected) == 3
    with tilevm.fuse():
        assert messages(grid().requires_grad_()) == expected


def test_leaves_cannot_be_written() -> None:
    with tilevm.fuse():
        x = grid().requires_grad_()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            x.add_(1)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            x[0] = 1
        with torch.no_grad():
            x.add_(1)
        assert x.tolist() == (grid() + 1).tolist()


def test_graphs_are_freed() -> None:
    with tilevm.fuse():
        x = grid().requires_grad_()
        loss = (x * x).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_anomalies_are_found() -> None:
    def function(x: Any) -> Any:
        with torch.autograd.detect_anomaly(check_nan=True):
            try:
                (x.sqrt() * 0).sum().backward()
            except RuntimeError as error:
                return str(error)
        return ""

    with pytest.warns(UserWarning, match="Anomaly"):
        expected = function(grid().requires_grad_())
        with tilevm.fuse():
            found = function(grid().requires_grad_())
    assert "nan" in expected
    assert found == expected


def test_gradcheck() -> None:
    x = (grid() / 7).double().requires_grad_()
    with tilevm.fuse():
        assert torch.autograd.gradcheck(lambda x: torch.sigmoid(x * 2) + x.sum(0), (x,))
        assert torch.autograd.gradgradcheck(lambda x: torch.tanh(x) * x, (x,))


# Training ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(16, 11)

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.embed(ids))
        return self.down(self.drop(F.gelu(self.up(x))))


OPTIMISERS: dict[str, Function] = {
    "sgd": lambda p, each: torch.optim.SGD(p, 0.1, foreach=each),
    "momentum": lambda p, each: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=each),
    "adam": lambda p, each: torch.optim.Adam(p, 0.01, foreach=each),
    "adamw": lambda p, each: torch.optim.AdamW(p, 0.01, amsgrad=True, foreach=each),
    "rmsprop": lambda p, each: torch.optim.RMSprop(p, 0.01, foreach=each),
    "adagrad": lambda p, each: torch.optim.Adagrad(p, 0.01, foreach=each),
}


def trained(
    optimiser: str, foreach: bool, block: Function | None, clip: bool
) -> tuple[list[float], dict[str, Any], Any]:
    """Losses of three steps, parameters, state of the optimiser."""
    torch.manual_seed(0)
    model = Net()
    steps = OPTIMISERS[optimiser](list(model.parameters()), foreach)
    ids = torch.randint(0, 11, (4, 5))
    losses = []
    for _ in range(3):
        with block() if block else torch.enable_grad():
            steps.zero_grad()
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
        losses.append(loss.item())
    return losses, model.state_dict(), steps.state_dict()["state"]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_training(optimiser: str, foreach: bool, clip: bool) -> None:
    losses, parameters, state = trained(optimiser, foreach, tilevm.fuse, clip)
    expected = trained(optimiser, foreach, None, clip)
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-6)
    # A step of Adam is as long for a gradient near zero: its rounding shows in full.
    torch.testing.assert_close(parameters, expected[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, expected[2], rtol=1e-4, atol=1e-5)
