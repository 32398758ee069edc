"""Gradients through captures of `tilevm.compile`: one capture for all sizes, autograd's rules."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch

SIZES = (7, 12, 30, 12, 2, 1, 0)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


class Weights(nn.Module):
    """Parameters, and a function that has them, rows, classes and a mask."""

    w: Any

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 5))
        self.table = nn.Parameter(torch.randn(40, 8))
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def rows(n: int) -> tuple[Any, Any, Any]:
    drawn = torch.Generator().manual_seed(n)
    x, mask = torch.randn(n, 8, generator=drawn), torch.rand(n, generator=drawn) > 0.4
    return x, torch.randint(0, 5, (n,), generator=drawn), mask


def masked_loss(m: Any, x: Any, y: Any, mask: Any) -> Any:
    return functional.cross_entropy(torch.tanh(x @ m.w)[mask], y[mask])


def masked_twice(m: Any, x: Any, y: Any, mask: Any) -> Any:
    h = x @ m.w
    return (h[mask] * h[mask].sum()).sum() + torch.cat([h[mask], h[~mask] * 2]).square().mean()


def places(m: Any, x: Any, y: Any, mask: Any) -> Any:
    (chosen,) = torch.where(mask)
    return (x @ m.w)[chosen, y[chosen]].sum() + (x @ m.w)[mask.nonzero().squeeze(1)].tanh().sum()


def item(m: Any, x: Any, y: Any, mask: Any) -> Any:
    return (x @ m.w).sum() / max(mask.sum().item(), 1)


def slice_of_data(m: Any, x: Any, y: Any, mask: Any) -> Any:
    return (x[: int(mask.sum())] @ m.w).square().sum()


def read(m: Any, x: Any, y: Any, mask: Any) -> Any:
    loss = functional.cross_entropy(x @ m.w, y)
    loss.item()
    return loss


def routed(m: Any, x: Any, y: Any, mask: Any) -> Any:
    """As a mixture of experts does."""
    chosen, out = (x @ m.w)[:, :3].argmax(1), torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        out[chosen == i] = expert(x[chosen == i])
    return out.square().mean()


def written(m: Any, x: Any, y: Any, mask: Any) -> Any:
    h = (x @ m.w).clone()
    h[mask] = h[mask] * 2
    h[~mask] = 0.5
    return h.square().sum()


def deduplicated(m: Any, x: Any, y: Any, mask: Any) -> Any:
    found, place = torch.unique(y, return_inverse=True)
    return (
        (x @ m.w)[:, found].sum()
        + (x.sum(1) * place).sum()
        + functional.embedding(y[mask], m.table).sum()
    )


def hard(m: Any, x: Any, y: Any, mask: Any) -> Any:
    loss = functional.cross_entropy(x @ m.w, y, reduction="none")
    return loss[loss > loss.mean()].sum() / (y != 0).sum().clamp(min=1)


def checked(m: Any, x: Any, y: Any, mask: Any) -> Any:
    h = x @ m.w
    if h.isnan().any():
        raise ValueError("not a number")
    if not (y >= 0).all():
        raise ValueError("no class")
    return h[mask].sum()


def normalised(m: Any, x: Any, y: Any, mask: Any) -> Any:
    h = (x @ m.w)[mask]
    return ((h - h.mean(0)) / (h.std(0) + 1e-5)).square().sum()


def repeated(m: Any, x: Any, y: Any, mask: Any) -> Any:
    return (x @ m.w).repeat_interleave(y, dim=0).tanh().sum()


def gradients(run: Callable[..., Any], module: nn.Module, *args: Any) -> list[Any]:
    module.zero_grad()
    result = run(*args)
    result.backward()
    return [result.detach(), *(p.grad for p in module.parameters())]


def agrees_for_all_sizes(function: Any, atol: float) -> Any:
    """The compiled module, whose results and gradients were eager code's."""
    module = Weights(function)
    other = copy.deepcopy(module)
    compiled = tilevm.compile(module)
    tilevm.stats.reset()
    for n in SIZES:
        args = rows(n)
        for ours, theirs in zip(
            gradients(compiled, module, *args), gradients(other, other, *args), strict=True
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=atol, equal_nan=True)
    return compiled


@pytest.mark.filterwarnings("ignore:std.. degrees of freedom")
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize(
    "function",
    [
        masked_loss, masked_twice, places, item, slice_of_data, read, routed, written,
        deduplicated, hard, checked, normalised, repeated,
    ],
)  # fmt: skip
def test_what_data_decide_is_one_capture_with_gradients(function: Any) -> None:
    compiled = agrees_for_all_sizes(function, 1e-4)
    found = tilevm.stats()
    assert (found["captures"], found["callouts"], found["flushes"]) == (1, {}, {})
    assert compiled.guards.startswith("capture 0: with gradients, ")


def balanced(m: Any, x: Any, y: Any, mask: Any) -> Any:
    """As the loss that keeps experts busy: as many counts as there are columns."""
    return ((x @ m.w).softmax(-1).mean(0) * torch.bincount(y, minlength=5)).sum()


def test_a_size_of_data_that_tracing_knows() -> None:
    compiled = agrees_for_all_sizes(balanced, 1e-5)
    assert (tilevm.stats()["captures"], tilevm.stats()["flushes"]) == (1, {})
    x, y, mask = rows(4)
    with pytest.raises(RuntimeError, match="size of tensor"):  # as eager code's
        compiled(x, y + 4, mask)


def view(m: Any, x: Any) -> Any:
    return (x @ m.w).t()


def parts(m: Any, x: Any) -> Any:
    a, b = (x @ m.w).split([2, 3], -1)
    return a, b.exp()


def halves(m: Any, x: Any) -> Any:
    return (x @ m.w).chunk(2, 0)


def twice_the_same(m: Any, x: Any) -> Any:
    h = (x @ m.w).tanh()
    return h, h


def structure(m: Any, x: Any) -> Any:
    h = x @ m.w
    return {"loss": h.sum(), "logits": h, "n": h.shape[0], "of": [h.detach(), None, x.shape]}


def without(m: Any, x: Any) -> Any:
    with torch.no_grad():
        target = x @ m.w
    h = x @ m.w
    return (h - target).square().sum() + target.sum() + h.detach().exp().sum(), target


def double(m: Any, x: Any) -> Any:
    return (x @ m.w).float().mean() + x.shape[0]


def in_place(m: Any, x: Any) -> Any:
    return torch.relu_(x.clone().mul_(2).add_(x) @ m.w)


# Left to Dynamo, or to eager code.
def overlapping(m: Any, x: Any) -> Any:
    h = (x @ m.w).tanh()
    return h, h.t()


def itself(m: Any, x: Any) -> Any:
    return x, x.t(), x @ m.w


def hooked(m: Any, x: Any) -> Any:
    h = x @ m.w
    if h.requires_grad:
        h.register_hook(lambda g: g * 2)
    return h.exp()


_Function: Any = torch.autograd.Function


class Tripled(_Function):  # type: ignore[misc]  # has no types
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


def own_gradient(m: Any, x: Any) -> Any:
    return Tripled.apply(x @ m.w)


def differentiated(m: Any, x: Any) -> Any:
    y = x.detach().requires_grad_()
    (g,) = torch.autograd.grad((y @ m.w.detach()).tanh().sum(), y)
    return (x * g) @ m.w


def computed_again(m: Any, x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda y: (y @ m.w).exp(), x, use_reentrant=False)


def everything(run: Any, module: nn.Module, x: Any, by_x: bool) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of a sum of all of them."""
    module.zero_grad()
    x = x.clone().requires_grad_(by_x)
    results = torch.utils._pytree.tree_leaves(run(x))
    wanted = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    weights = (torch.arange(t.numel()).view(t.shape).cos() for t in wanted)
    sum((t.double() * w).sum() for t, w in zip(wanted, weights, strict=True)).backward()
    return results, [x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("by_x", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        view, parts, halves, twice_the_same, structure, without, double, in_place,
        overlapping, itself, hooked, own_gradient, differentiated, computed_again,
    ],
)  # fmt: skip
def test_results_and_their_gradients(function: Any, by_x: bool) -> None:
    module = Weights(function).double()
    other = copy.deepcopy(module)
    compiled = tilevm.compile(module)
    for n in (7, 12, 3, 1, 12):
        x = torch.randn(n, 8, dtype=torch.float64)
        ours, theirs = everything(compiled, module, x, by_x), everything(other, other, x, by_x)
        for a, b in zip(ours[0], theirs[0], strict=True):
            assert getattr(a, "requires_grad", None) == getattr(b, "requires_grad", None)
            assert getattr(a, "shape", None) == getattr(b, "shape", None)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


class Averaged(nn.Module):
    average: Any

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 8)
        )
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        h = self.layers(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return h - self.average


def test_training_changes_buffers_and_draws_as_eager_code() -> None:
    module = Averaged().double()
    other = copy.deepcopy(module)
    compiled = tilevm.compile(module)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, other))
    tilevm.stats.reset()
    for n in (9, 4, 17, 4, 2):
        x = torch.randn(n, 8, dtype=torch.float64)
        for run, m, optimiser in ((compiled, module, ours), (other, other, theirs)):
            torch.manual_seed(n)
            run(x).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=n == 4)
            run(x).sum().backward()
            assert m.average.abs().sum() > 0
        torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-9)
    found = tilevm.stats()
    assert (found["captures"], found["flushes"]) == (1, {})
    with torch.no_grad():
        compiled.eval()
        other.eval()
        x = torch.randn(5, 8, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-9, atol=1e-9)


def test_floats_of_calls_and_of_data_beside_statistics() -> None:
    """AOTAutograd cannot make tensors of numbers that are computed of sizes."""
    layers = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)).double()

    def function(x: Any, k: float) -> Any:
        return (layers(x) * k).square().mean() * x.abs().max().item()

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for n, k in ((2, 0.5), (3, 2.0), (1, 0.25)):
        x = torch.randn(n, 3, 5, 6, dtype=torch.float64)
        ours, theirs = (gradients(run, layers, x, k) for run in (compiled, function))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    found = tilevm.stats()
    assert (found["captures"], found["flushes"]) == (1, {})


def saved(m: Any, x: Any) -> Any:
    return torch.tanh(x @ m.w)


def saved_view(m: Any, x: Any) -> Any:
    return torch.tanh(x @ m.w).view(-1)


def not_saved(m: Any, x: Any) -> Any:
    return x @ m.w


def view_of_input(m: Any, x: Any) -> Any:
    return x.view(-1, 8) @ m.w


@pytest.mark.parametrize("what", ["result", "input", "weight"])
@pytest.mark.parametrize("function", [saved, saved_view, not_saved, view_of_input])
def test_what_is_changed_between_forward_and_backward(function: Any, what: str) -> None:
    """An error if eager code raises one, else its gradients."""
    module = Weights(function)
    compiled = tilevm.compile(module)
    found: list[Any] = []
    for run in (module, compiled, compiled):
        module.zero_grad()
        x = torch.arange(32.0).view(4, 8).sin().requires_grad_()
        given = x * 1
        y = run(given)
        with torch.no_grad():
            changed = {"result": y.detach(), "input": given.detach(), "weight": module.w}[what]
            changed.mul_(2)
        try:
            y.sum().backward()
        except RuntimeError as error:
            found.append("modified by an inplace operation" in str(error))
        else:
            found.append(module.w.grad.clone())
        with torch.no_grad():
            module.w.mul_(0.5 if what == "weight" else 1)
    eager, *ours = found
    for mine in ours:
        if isinstance(eager, bool):
            assert mine is eager is True
        else:
            torch.testing.assert_close(mine, eager)


def test_backward_twice() -> None:
    module = Weights(saved)
    compiled = tilevm.compile(module)
    y = compiled(torch.randn(3, 8)).sum()
    y.backward(retain_graph=True)
    once = module.w.grad.clone()
    y.backward()
    torch.testing.assert_close(module.w.grad, once * 2)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_gradients_of_gradients_raise() -> None:
    module = Weights(saved)
    compiled = tilevm.compile(module)
    (g,) = torch.autograd.grad(compiled(torch.randn(3, 8)).sum(), module.w, create_graph=True)
    torch.testing.assert_close(g.shape, module.w.shape)
    with pytest.raises(RuntimeError, match="cannot be differentiated themselves"):
        g.square().sum().backward()


def test_gradients_are_memory_of_their_own() -> None:
    a, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    compiled = tilevm.compile(lambda x: x + a + b)
    for _ in range(2):
        a.grad = b.grad = None
        given = torch.ones(5)
        compiled(torch.randn(5)).backward(given)
        assert a.grad is not None
        a.grad.mul_(3)
        assert b.grad is not None
        assert b.grad.tolist() == given.tolist() == [1.0] * 5


def test_what_requires_gradients_may_change() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    compiled = tilevm.compile(module)
    x = torch.randn(3, 8)
    for first, second in ((True, True), (False, True), (False, False), (True, False), (True, True)):
        module[0].requires_grad_(first)
        module[1].requires_grad_(second)
        for _ in range(2):
            module.zero_grad()
            y = compiled(x)
            assert y.requires_grad == (first or second)
            if y.requires_grad:
                y.sum().backward()
            assert [p.grad is not None for p in module.parameters()] == [first] * 2 + [second] * 2
            with torch.no_grad():
                assert not compiled(x).requires_grad
            with torch.inference_mode():
                assert compiled(x).is_inference()


def _size(gradients: Any) -> tuple[int, ...]:
    return tuple(gradients[0].shape)


def test_hooks_for_gradients_are_called() -> None:
    first: Any = nn.Linear(8, 8)
    module = nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8))
    compiled = tilevm.compile(module)
    x = torch.randn(3, 8)
    for _ in range(2):
        compiled(x).sum().backward()
    seen: list[Any] = []
    handle = module[1].register_full_backward_hook(lambda m, i, o: seen.append(_size(o)))
    compiled(x).sum().backward()
    assert seen == [(3, 8)]
    handle.remove()
    compiled(x).sum().backward()
    assert seen == [(3, 8)]
    first.weight.register_hook(lambda g: g * 0)
    module.zero_grad()
    compiled(x).sum().backward()
    assert first.weight.grad is not None and not first.weight.grad.any()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("whole", [True, False])
def test_checkpoints_of_compiled_modules(captured: bool, whole: bool) -> None:
    """Those that count what is saved, and end the second forward early."""
    tilevm.stats.reset()
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2)]
    compiled = [tilevm.compile(block) for block in blocks]
    if captured:
        for block in compiled:
            block(torch.randn(3, 8, requires_grad=True))
    parameters = [p for block in blocks for p in block.parameters()]
    for n in (5, 7, 1):
        x = torch.randn(n, 8, requires_grad=True)
        y = z = x
        for block, fast in zip(blocks, compiled, strict=True):
            y = block(y)
            given = fast if whole else lambda z, fast=fast: torch.tanh(fast(z) * 2)
            if not whole:
                y = torch.tanh(y * 2)
            z = checkpoint(given, z, use_reentrant=False)
        want = torch.autograd.grad(y.sum(), [x, *parameters])
        found = torch.autograd.grad(z.sum(), [x, *parameters])
        torch.testing.assert_close(found, want)
    assert not tilevm.stats()["flushes"]


def test_hooks_on_what_is_saved_see_what_eager_code_has() -> None:
    """And nothing of the capture."""
    seen: list[Any] = []

    def pack(x: Any) -> Any:
        seen.append(type(x))
        return x.clone()

    f = tilevm.compile(lambda x: torch.sin(x) * torch.exp(x))
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = f(x)
    first = len(seen)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        f(x)
    assert len(seen) == 2 * first and set(seen) == {torch.Tensor}
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, (x.cos() + x.sin()) * x.exp())


def test_one_of_several_results_is_used() -> None:
    def pair(m: Any, x: Any) -> Any:
        return (x @ m.w).exp(), (x @ m.w).tanh().expand(2, -1, -1)

    module = Weights(pair)
    compiled = tilevm.compile(module)
    x = torch.randn(4, 8)
    for used in (0, 1, 0):
        found = []
        for run in (module, compiled):
            module.zero_grad()
            run(x)[used].sum().backward()
            found.append(module.w.grad.clone())
        torch.testing.assert_close(*found)


def test_threads_differentiate_at_once() -> None:
    module = Weights(masked_loss)
    compiled = tilevm.compile(module)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(seed, seed + 12):
            args = rows(n)
            (ours,) = torch.autograd.grad(compiled(*args), [module.w])
            (theirs,) = torch.autograd.grad(module(*args), [module.w])
            if not torch.allclose(ours, theirs, 1e-4, 1e-4):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(5 + 3 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_numbers_and_keywords() -> None:
    def scaled(x: Any, w: Any, k: float, n: int, *, shift: float = 0.5) -> Any:
        return ((x @ w) * k + shift).sum() * n

    compiled = tilevm.compile(scaled)
    w = torch.randn(8, 5, requires_grad=True)
    tilevm.stats.reset()
    for k, n, shift in ((0.5, 3, 1.0), (2.0, 4, -1.0), (float("inf"), 7, 0.0), (-0.0, 3, 2.5)):
        x = torch.randn(3, 8)
        ours, theirs = compiled(x, w, k, n, shift=shift), scaled(x, w, k, n, shift=shift)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        torch.testing.assert_close(
            torch.autograd.grad(ours, w), torch.autograd.grad(theirs, w), equal_nan=True
        )
    assert tilevm.stats()["captures"] == 1


def test_tensors_from_outside_may_be_others() -> None:
    weights: dict[str, Any] = {}

    def function(x: Any) -> Any:
        return torch.tanh(x @ weights["w"]).sum()

    compiled = tilevm.compile(function)
    x = torch.randn(4, 8)
    for requires in (True, True, False, False, True, False, True):
        w = weights["w"] = torch.randn(8, 5, requires_grad=requires)
        for _ in range(2):
            w.grad = None
            y = compiled(x)
            assert y.requires_grad == requires
            torch.testing.assert_close(y, function(x))
            if requires:
                y.backward()
                (exact,) = torch.autograd.grad(function(x), w)
                torch.testing.assert_close(w.grad, exact)
        w.requires_grad_(not requires)
        assert compiled(x).requires_grad != requires
