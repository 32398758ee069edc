"""Gradients of attention: those of bfloat16 are kernels of our own, as precise as PyTorch's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tilevm = pytest.importorskip("tilevm")
sdpa = torch.nn.functional.scaled_dot_product_attention

Case = tuple[int, int, int, int, int]  # batch, heads, queries, keys, columns
CASES: list[Case] = [
    (2, 3, 5, 7, 8), (1, 2, 1, 33, 16), (1, 1, 17, 1, 7), (2, 2, 64, 64, 64), (1, 2, 130, 70, 40),
    (1, 4, 257, 300, 64), (3, 1, 1, 1, 1),
]  # fmt: skip


def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v)


def causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, is_causal=True, scale=0.3)


def added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, attn_mask=mask)


def seen(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Of the first query, nothing."""
    rows = torch.arange(q.shape[2])[:, None]
    return sdpa(q, k, v, attn_mask=(mask[:, :1] > -1) & (rows > 0))


def surrounded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """In the orders of dims that projections have, with other operators around."""
    parts = (x.transpose(1, 2).contiguous().transpose(1, 2) * 1.5 for x in (q, k, v))
    return torch.tanh(sdpa(*parts, attn_mask=mask[:1, :1])).transpose(1, 2).flatten(2) + 1


FUNCTIONS: list[Callable[..., Any]] = [plain, causal, added, seen, surrounded]


def made(case: Case, dtype: Any) -> list[Any]:
    batch, heads, queries, keys, columns = case
    generator = torch.Generator().manual_seed(queries)
    shapes = [(batch, heads, n, columns) for n in (queries, keys, keys)]
    parts = [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]
    mask = torch.randn(batch, heads, queries, keys, generator=generator).to(dtype)
    return [*(x.requires_grad_() for x in parts), mask]


def gradients(function: Callable[..., Any], given: list[Any]) -> list[Any]:
    result = function(*given)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    return [result.detach(), *torch.autograd.grad(result, given[:3], weights)]


def order(x: Any) -> list[int]:
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def check(found: list[Any], function: Callable[..., Any], given: list[Any]) -> None:
    """At most twice as far from what float64 says as eager code, by the largest error."""
    eager = gradients(function, given)
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    for got, own, exact in zip(found, eager, gradients(function, wide), strict=True):
        assert got.dtype == own.dtype and got.shape == own.shape
        assert order(got) == order(own)
        assert not got.isnan().any()
        if not exact.numel():
            continue
        unit = torch.finfo(got.dtype).eps * float(exact.abs().amax())
        allowed = 2 * float((own - exact).abs().amax()) + unit
        assert float((got - exact).abs().amax()) <= allowed


def called() -> list[str]:
    return [name for name in tilevm.stats()["callouts"] if "attention" in name]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_of_bfloat16(function: Callable[..., Any]) -> None:
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for case in CASES:
        given = made(case, torch.bfloat16)
        check(gradients(compiled, given), function, given)
    assert not called()


def test_by_the_backend() -> None:
    compiled = torch.compile(added, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    for case in CASES[3:5]:
        given = made(case, torch.bfloat16)
        check(gradients(compiled, given), added, given)
    assert not called()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_of_others_are_pytorchs(dtype: Any) -> None:
    compiled = tilevm.compile(added)
    tilevm.stats.reset()
    given = made(CASES[3], dtype)
    check(gradients(compiled, given), added, given)
    assert called()


def test_of_heads_that_share_keys() -> None:
    def shared(q: Any, k: Any, v: Any, mask: Any) -> Any:
        k, v = (x[:, :1].expand(-1, q.shape[1], -1, -1) for x in (k, v))
        return sdpa(q, k, v, attn_mask=mask) + sdpa(q, k[:, :1], v[:, :1], enable_gqa=True)

    compiled = tilevm.compile(shared)
    for case in CASES[2:5]:
        given = made(case, torch.bfloat16)
        check(gradients(compiled, given), shared, given)


@pytest.mark.parametrize("case", [(1, 2, 0, 3, 4), (0, 2, 3, 3, 4), (1, 2, 3, 0, 4)])
def test_of_nothing(case: Case) -> None:
    compiled = tilevm.compile(plain)
    gradients(compiled, made(CASES[0], torch.bfloat16))
    given = made(case, torch.bfloat16)
    for got, own in zip(gradients(compiled, given), gradients(plain, given), strict=True):
        torch.testing.assert_close(got, own)


def test_weights_are_never_in_memory() -> None:
    """1024 by 1024 of two heads are 4 MiB of bfloat16."""
    given = made((1, 2, 1024, 1024, 16), torch.bfloat16)
    compiled = tilevm.compile(plain)
    gradients(compiled, given)
    gc.collect()
    tilevm.stats.reset()
    tilevm._core.free_memory()
    before = tilevm._core.memory()["used_bytes"]
    gradients(compiled, given)
    assert 0 < tilevm.stats()["peak_bytes"] - before < 3 << 20
