"""Random numbers in blocks: eager code's own, in its order; and writes that nobody can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager.compare import agree  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_random  # noqa: E402

Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of what waits": lambda x: F.dropout(x * 2, 0.3) + 1,
    "dropout in place": lambda x: F.dropout(x, 0.3, inplace=True),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "channels": lambda x: F.dropout2d(x[None, ..., None], 0.5),
    "bernoulli_": lambda x: x.bernoulli_(0.7),
    "bernoulli_ of a view": lambda x: x[:, :1].bernoulli_(0.7) + x[:, :1],
    "bernoulli_ of what waits": lambda x: (x * 2).bernoulli_(),
    "two, and others between": lambda x: (
        F.dropout(x, 0.5) * torch.rand_like(x)
        + F.dropout(x.double(), 0.5)
        - torch.randn(x.shape, dtype=torch.float64)  # normals of float32 differ in their last bit
    ),
    "rand": lambda x: torch.rand(x.shape) * x + torch.rand(()),
    "uniform_": lambda x: x.uniform_() - x,
    "uniform_ between others": lambda x: (x.uniform_(-3, 7.5), torch.empty(9).uniform_(2, 2)),
    "uniform_ of a view": lambda x: (x[:, :1].uniform_(), x.T.uniform_(0, 5)),
    "randint": lambda x: torch.randint(-3, 10**6, x.shape),
    "randint of others": lambda x: (
        torch.randint(7, x.shape, dtype=torch.int32),
        torch.randint(9, x.shape, dtype=torch.float32),
        torch.randint(1 << 40, x.shape),
        torch.randint(0, 2, x.shape, dtype=torch.bool),
    ),
    "randint_like": lambda x: (
        torch.randint_like(x, 3, 1 << 24),
        torch.randint_like(x.double(), 9),
    ),
    "uniform_ that rounds up": lambda x: torch.empty(5000).uniform_(100, 100.0001),
    "normals": lambda x: (x + torch.randn(x.shape), torch.randn_like(x), x.normal_(3, 0.25)),
    "normals around": lambda x: (torch.normal(x * 2, 0.5), torch.normal(2.0, 3.0, x.shape)),
    "normals of a view": lambda x: (x.T.normal_(), x),
    "normals, one by one, between others": lambda x: (
        torch.randn(3),
        torch.rand(2),
        torch.randn(2),
        torch.randn(40),
        torch.randn(5),
        torch.rand(3),
    ),
    "log_normal_": lambda x: (x.log_normal_(0.5, 0.25), torch.empty(9).double().log_normal_()),
    "exponential_": lambda x: (x.exponential_(2.5), torch.empty(3).double().exponential_()),
    "cauchy_": lambda x: x.cauchy_(1, 2).atan(),
    "geometric_": lambda x: (x.geometric_(0.3), torch.empty(7).double().geometric_(0.9)),
    "a generator": lambda x: x.bernoulli_(0.5, generator=torch.Generator().manual_seed(3)),
    "its memory by another way": lambda x: (torch.empty_like(x).bernoulli_(0.5), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sizes", [(3, 5), (0, 4), (1, 1), (1, 2), (67, 13)], ids=str)
def test_as_eager_draws(name: str, sizes: tuple[int, int]) -> None:
    agree(FUNCTIONS[name], torch.randn(sizes), exact=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_other_dtypes(dtype: Any) -> None:
    agree(lambda x: x.bernoulli_(0.4), torch.ones(5, 7).to(dtype))


@pytest.mark.parametrize("chance", [-0.1, 1.5, float("nan")])
def test_what_is_no_chance(chance: float) -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.ones(5).bernoulli_(chance)
    state = torch.get_rng_state()
    with tilevm.fuse(), pytest.raises(RuntimeError) as ours:
        torch.ones(5).bernoulli_(chance)
    assert str(ours.value) == str(theirs.value)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_recorded() -> None:
    if not torch_random._is_eagers("bernoulli_.float"):
        pytest.skip("eager code draws by a library here")
    before = dict(tilevm.stats()["flushes"])
    with tilevm.fuse():
        x = torch.ones(9, 8)
        for _ in range(4):
            x = F.dropout(x, 0.5) + 1
    after = tilevm.stats()["flushes"]
    assert {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)} == {
        "end of the block": 1
    }


def test_gradients_and_modules() -> None:
    def train(x: Any) -> Any:
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.4), torch.nn.ReLU())
        net(x).sum().backward()
        return [p.grad for p in net.parameters()], x.grad

    agree(train, torch.randn(4, 6, requires_grad=True), exact=False)


def test_memory_that_is_seen_by_another_way_is_written() -> None:
    """Writes to memory that only the recorder holds are left out."""

    def function() -> Any:
        held = []
        for way in range(4):
            x = torch.empty(6)
            kept: Any = (x[2:], x.untyped_storage(), x.detach(), None)[way]
            x.bernoulli_(0.5)
            y = x * 2
            del x
            held.append((kept.tolist() if hasattr(kept, "tolist") else None, y))
        return held

    torch.manual_seed(0)
    expected = function()
    torch.manual_seed(0)
    with tilevm.fuse():
        found = function()
    for (seen, y), (wanted, z) in zip(found, expected, strict=True):
        assert seen == wanted
        assert torch.equal(y, z)
