"""Keys and values that several heads of queries share, repeated by the model: never in memory."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tilevm = pytest.importorskip("tilevm")
sdpa = torch.nn.functional.scaled_dot_product_attention

MEMBERS = 3  # query heads to a head of keys


def repeated(x: Any, members: int = MEMBERS) -> Any:
    batch, heads, rows, columns = x.shape
    x = x[:, :, None].expand(batch, heads, members, rows, columns)
    return x.reshape(batch, heads * members, rows, columns)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, repeated(k), repeated(v), attn_mask=mask)


def causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, repeated(k), repeated(v), is_causal=True).transpose(1, 2).flatten(2)


def written_out(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Also what is returned besides: weights of all heads, and the keys as they are repeated."""
    k, v = (x.repeat_interleave(MEMBERS, dim=1) for x in (k, v))
    weights = torch.softmax(q @ k.transpose(2, 3) * 0.3 + mask, -1, dtype=torch.float32)
    result = (weights.to(q.dtype) @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)
    return result, weights, k


def slopes(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A bias for each head, a scale for each head, and a mean over heads."""
    heads = torch.arange(q.shape[1]).reshape(-1, 1, 1)
    bias = ((0.1 + heads) * -0.01 * torch.arange(k.shape[2])).to(q.dtype)
    weights = torch.softmax(q * (heads + 1) @ repeated(k).mT + bias, -1)
    return weights @ repeated(v), weights.mean(1)


def other_orders(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The repeated factor on the left; products with one that is the same for all heads."""
    scores = repeated(k) @ q.mT
    weights = torch.exp(scores - scores.amax(2, keepdim=True)).mT
    total = weights.sum(-1)
    return (
        weights @ (repeated(v) * 2) / total[..., None],
        total,
        weights @ q.new_ones(k.shape[2], 5),
    )


def one_product(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return q @ repeated(k).transpose(2, 3), mask.clamp(min=-3) @ repeated(v)


def two_numbers_of_members(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """3 of each of 2 heads, and 2 of each of 3: the product keeps one axis."""
    scores = q @ repeated(k, 3).mT
    return scores @ repeated(torch.cat((v, v, v), 1)[:, : 3 * v.shape[1] // 2], 2)


FUNCTIONS: list[Callable[..., Any]] = [
    attention, causal, written_out, slopes, other_orders, one_product, two_numbers_of_members,
]  # fmt: skip
# batch, heads of keys, queries, keys, columns
SIZES = [
    (2, 2, 3, 5, 8),
    (1, 4, 1, 33, 16),
    (1, 2, 17, 17, 7),
    (3, 2, 1, 1, 64),
    (1, 2, 70, 130, 64),
]


def made(sizes: tuple[int, ...], dtype: Any) -> list[Any]:
    batch, heads, rows, keys, columns = sizes
    generator = torch.Generator().manual_seed(keys)
    q, k, v, mask = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in (
            (batch, heads * MEMBERS, rows, columns),
            (batch, heads, keys, columns),
            (batch, heads, keys, columns),
            (batch, 1, rows, keys),
        )
    )
    return [q, k, v, mask.masked_fill(mask < -1, float("-inf"))]


def flat(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def same(found: Any, function: Callable[..., Any], given: list[Any]) -> None:
    """As near to what float64 says as eager code, twice."""
    with torch.no_grad():
        exact = flat(function(*(x.double() for x in given)))
        eager = flat(function(*given))
    for got, own, wanted in zip(flat(found), eager, exact, strict=True):
        assert got.dtype == own.dtype and got.shape == own.shape
        assert torch.equal(got.isnan(), own.isnan())
        least = {torch.float32: 2e-6, torch.bfloat16: 8e-3}[given[0].dtype]
        scale = wanted.nan_to_num().abs().amax() if wanted.numel() else 1.0
        allowed = 2 * (own - wanted).nan_to_num().abs().amax().item() + least * float(scale)
        assert (got - wanted).nan_to_num().abs().amax().item() <= allowed


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_like_eager(function: Callable[..., Any], dtype: Any) -> None:
    compiled = tilevm.compile(function)
    backend = torch.compile(function, backend="tilevm", dynamic=True)
    by_backend = function in (attention, written_out) and dtype is torch.float32
    tilevm.stats.reset()
    for sizes in SIZES:
        if function is two_numbers_of_members and sizes[1] * 3 % 2:
            continue
        q, k, v, mask = made(sizes, dtype)
        same(compiled(q, k, v, mask), function, [q, k, v, mask])
        with tilevm.fuse():
            recorded = flat(function(q, k, v, mask))
        same(tuple(recorded), function, [q, k, v, mask])
        turned = k.transpose(1, 2).contiguous().transpose(1, 2)
        same(compiled(q, turned, v[:, :, :], mask), function, [q, turned, v, mask])
    assert not tilevm.stats()["callouts"] and "error" not in tilevm.stats()["flushes"]
    for sizes in SIZES[:2] if by_backend else []:
        given = made(sizes, dtype)
        same(backend(*given), function, given)


@pytest.mark.parametrize(
    "sizes", [(1, 2, 0, 3, 4), (1, 2, 3, 0, 4), (0, 2, 3, 3, 4), (1, 1, 2, 3, 4)]
)
def test_nothing_or_one_group(sizes: tuple[int, ...]) -> None:
    given = made(sizes, torch.float32)
    for function in (written_out, slopes, other_orders):
        if function is written_out and not (sizes[0] and sizes[2]):
            continue  # eager code cannot tell a size
        if function is other_orders and not sizes[3]:
            continue  # an amax of nothing
        compiled = tilevm.compile(function)
        compiled(*made(SIZES[0], torch.float32))
        for got, wanted in zip(compiled(*given), function(*given), strict=True):
            torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("function", [attention, causal, written_out, slopes])
def test_gradients(function: Callable[..., Any]) -> None:
    compiled = tilevm.compile(function)
    for sizes in SIZES[:3]:
        given = [x.requires_grad_(i < 3) for i, x in enumerate(made(sizes, torch.float32))]
        losses = []
        for f in (compiled, function):
            for x in given:
                x.grad = None
            loss = sum(
                (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum()
                for y in flat(f(*given))
            )
            loss.backward()
            losses.append((loss.detach(), [x.grad for x in given[:3]]))
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("door", ["compile", "fuse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [attention, written_out], ids=lambda f: f.__name__)
def test_nothing_is_copied(function: Callable[..., Any], dtype: Any, door: str) -> None:
    """Of 4096 keys, what the model repeats would be 3 MiB for a head."""
    given = made((1, 2, 1, 4096, 64), dtype)

    def first(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flat(function(q, k, v, mask))[0]

    def recorded(*given: Any) -> Any:
        with tilevm.fuse():
            return first(*given)

    run = recorded if door == "fuse" else tilevm.compile(first)
    for _ in range(tilevm.config.templates + 1):
        run(*given)
    gc.collect()
    tilevm.stats.reset()
    tilevm._core.free_memory()
    before = tilevm._core.memory()["used_bytes"]
    run(*given)
    assert 0 < tilevm.stats()["peak_bytes"] - before < 1 << 20
    assert tilevm.stats()["launches"] == 1


def test_expanded_operands() -> None:
    """What came in expanded is written to nowhere, and read beside what it was expanded from."""
    x, wide = torch.randn(3, 1, 4), torch.randn(3, 1, 4).expand(3, 5, 4)
    number = torch.tensor(2.0).expand(3, 5, 4)
    with tilevm.fuse():
        y = wide * x + number
        y += wide[:, :1] - wide.select(1, 4)[:, None]
        z = wide.reshape(15, 4) @ x[0].mT + wide.sum((1, 2)).repeat_interleave(5)[:, None]
    torch.testing.assert_close(y, wide * x + number)
    torch.testing.assert_close(
        z, wide.reshape(15, 4) @ x[0].mT + wide.sum((1, 2)).repeat_interleave(5)[:, None]
    )


def scores_of(draw: random.Random) -> Callable[..., Any]:
    """A random function of queries and repeated keys and values."""
    steps = [draw.choice(["head", "row", "mask", "all", "tanh", "turn"]) for _ in range(3)]
    queries = draw.choice(["plain", "scaled", "heads", "turned"])
    shared = draw.choice(["both", "keys", "values"])
    reader = draw.choice(["softmax", "relu", "sum"])
    seen = draw.random() < 0.3

    def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
        per_head = torch.linspace(-1, 1, q.shape[1])[:, None, None]
        if queries == "scaled":
            q = q * 0.5
        elif queries == "heads":
            q = q + per_head
        elif queries == "turned":
            q = torch.cat((-q[..., 1:], q[..., :1]), -1)
        other = repeated(v).exp()
        scores = q @ (repeated(k).mT if shared != "values" else other.mT)
        turned = False
        for step in steps:
            if step == "head":
                scores = scores * per_head
            elif step == "row":
                scores = scores - scores.amax(-1, keepdim=True)
            elif step == "mask" and not turned:
                scores = scores + mask.clamp(min=-5)
            elif step == "all":
                scores = torch.where(scores > 0, scores, scores * scores.sin())
            elif step == "tanh":
                scores = scores.tanh()
            elif step == "turn":
                scores, turned = scores.mT, not turned
        if turned:
            scores = scores.mT
        if reader == "softmax":
            weights = torch.softmax(scores, -1)
        else:
            weights = scores.relu() if reader == "relu" else scores + scores.sum(1, keepdim=True)
        result = weights @ (repeated(v) if shared != "keys" else other)
        return (result, scores) if seen else (result.transpose(1, 2).flatten(2),)

    return f


@pytest.mark.parametrize("seed", range(16))
def test_random_forms(seed: int) -> None:
    draw = random.Random(seed)
    function = scores_of(draw)
    compiled = tilevm.compile(function)
    for sizes in draw.sample(SIZES, 2):
        given = made(sizes, torch.float32)
        same(compiled(*given), function, given)
    assert not tilevm.stats()["callouts"]
