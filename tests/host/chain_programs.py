"""Functions around matrix products, their operands, and how results are judged: by float64.

Factors are such that products are of the order of 1: errors are measured against the largest
element of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

Function = Callable[..., Any]
Shape = tuple[int, ...]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
# Of the largest element. Values of low precision are rounded where they are stored, which is the
# fuser's choice, up to three times on the way.
MOST = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def tensor(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    """Rows of a factor: sums over the last dim but one, or the last, are of the order of 1."""
    generator = torch.Generator().manual_seed(sum(shape) * 31 + seed)
    return torch.randn(shape, generator=generator).to(dtype)


def factor(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    """A right factor: a product of `tensor` with it is of the order of 1."""
    return (tensor(*shape, seed=seed + 1) / max(shape[-2], 1) ** 0.5).to(dtype)


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def results(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def check(compiled: Any, fn: Function, *args: Any) -> None:
    with torch.no_grad():
        found, exact = results(compiled(*args)), results(fn(*map(wide, args)))
    assert len(found) == len(exact)
    for f, e in zip(found, exact, strict=True):
        assert f.shape == e.shape
        if not f.is_floating_point():
            assert torch.equal(f, e)
        elif e.numel():
            assert e.isfinite().all()
            off = (f.double() - e).abs().amax().item()
            most = MOST[f.dtype] * (e.abs().amax().item() + 0.1)
            assert off <= most, f"{[*f.shape]}: off by {off}, not {most}"


def standardised(x: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), eps=0.1)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) / 4 + mask, -1) @ v


# x [M, K], w [K, N], u [K, N], b [N], r [M, N], d [N, K]
PLAIN: dict[str, Function] = {
    "product": lambda x, w, u, b, r, d: x @ w,
    "bias": lambda x, w, u, b, r, d: x @ w + b,
    "gelu": lambda x, w, u, b, r, d: F.gelu(x @ w + b),
    "gelu in float32": lambda x, w, u, b, r, d: F.gelu((x @ w).to(r.dtype) + b, approximate="tanh"),
    "residual": lambda x, w, u, b, r, d: x @ w + b + r,
    "layer norm": lambda x, w, u, b, r, d: standardised(x @ w + b + r) * b,
    "softmax": lambda x, w, u, b, r, d: torch.softmax(x @ w + b, -1),
    "row sums": lambda x, w, u, b, r, d: (torch.tanh(x @ w).sum(-1), (x @ w + b).amax(-1)),
    "column sums": lambda x, w, u, b, r, d: torch.tanh(x @ w).sum(0),
    "softmax of columns": lambda x, w, u, b, r, d: torch.softmax(torch.cat([x @ w, r]), 0),
    "all of it": lambda x, w, u, b, r, d: torch.tanh(x @ w + b).sum(),
    "sum, then sum": lambda x, w, u, b, r, d: torch.tanh((x @ w).tanh().sum(-1)).sum(-1),
    "swiglu": lambda x, w, u, b, r, d: F.silu(x @ w) * (x @ u + b),
    "swiglu, then softmax": lambda x, w, u, b, r, d: torch.softmax((x @ w) * torch.tanh(x @ u), -1),
    "mlp": lambda x, w, u, b, r, d: F.gelu(x @ w + b) @ d + x,
    "gated mlp": lambda x, w, u, b, r, d: (F.silu(x @ w) * (x @ u)) @ d,
    "mlp of norms": lambda x, w, u, b, r, d: x + F.gelu(standardised(x @ w + r)) @ d,
    "deep": lambda x, w, u, b, r, d: torch.tanh(torch.tanh(torch.tanh(x @ w) @ d) @ u + r) @ d,
    "product and what is made of it": lambda x, w, u, b, r, d: _both(x @ w, b),
    "read by two": lambda x, w, u, b, r, d: _two(x @ w + b, d),
    "two products of one": lambda x, w, u, b, r, d: _twice(torch.tanh(x @ w), d),
    "between products, and result": lambda x, w, u, b, r, d: _between(F.gelu(x @ w), d),
    "residual behind two products": lambda x, w, u, b, r, d: _prenorm(x @ w + r, d, w),
    "all rows behind two products": lambda x, w, u, b, r, d: _row_sums(torch.tanh(x @ w), d, w),
    "row sums, then product": lambda x, w, u, b, r, d: (x @ w).sum(-1, keepdim=True) @ d[:1],
    "reversed rows": lambda x, w, u, b, r, d: torch.tanh(x @ w).flip(0) + r,
    "reversed columns": lambda x, w, u, b, r, d: torch.tanh(x @ w).flip(1) @ d,
    "transposed result": lambda x, w, u, b, r, d: torch.tanh(x @ w).t(),
    "transposed result and rows": lambda x, w, u, b, r, d: (x @ w).t() + r.t(),
    "transposed, then product": lambda x, w, u, b, r, d: torch.tanh(x @ w).t() @ x,
    "left transposed": lambda x, w, u, b, r, d: x.t().contiguous().t() @ w + b,
    "right transposed": lambda x, w, u, b, r, d: torch.tanh(x @ d.t()),
    "right transposed, then rows": lambda x, w, u, b, r, d: torch.softmax(x @ d.t() + r, -1),
    "concat": lambda x, w, u, b, r, d: torch.cat([x @ w, torch.tanh(x @ u), r], 1),
    "concat of rows": lambda x, w, u, b, r, d: torch.cat([torch.tanh(x @ w), r, x @ u], 0),
    "concat, then product": lambda x, w, u, b, r, d: torch.cat([x @ w, r], 1) @ torch.cat([d, d]),
    "part of a concat": lambda x, w, u, b, r, d: torch.cat([r, x @ w], 1)[:, r.shape[1] :] @ d,
    "causal": lambda x, w, u, b, r, d: torch.where(_below(r), torch.tanh(x @ w), b),
    "causal by the diagonal": lambda x, w, u, b, r, d: torch.tril(x @ w) @ d,
    "positions": lambda x, w, u, b, r, d: x @ w * torch.arange(r.shape[1]).to(r.dtype) / r.shape[1],
    "a new axis in front": lambda x, w, u, b, r, d: x @ w + torch.stack([r, r * 2, r * 3]),
    "one row, many columns": lambda x, w, u, b, r, d: torch.tanh(b[None] @ d) + x,
    "half of the columns": lambda x, w, u, b, r, d: torch.tanh(x @ w)[:, ::2] * b[::2],
    "halves": lambda x, w, u, b, r, d: torch.mul(*(x @ torch.cat([w, u], 1)).chunk(2, -1)),
    "low precision between": lambda x, w, u, b, r, d: (x @ w).bfloat16().to(r.dtype) * 0 + x @ w,
}  # fmt: skip


def _both(y: Any, b: Any) -> Any:
    return y, torch.tanh(y + b)


def _two(y: Any, d: Any) -> Any:
    return torch.tanh(y).sum(0), torch.tanh(y) @ d, torch.sigmoid(y).amax(1)


def _twice(y: Any, d: Any) -> Any:
    return y @ d, y @ (d * 2)


def _between(y: Any, d: Any) -> Any:
    return torch.sigmoid(y @ d), y


def _prenorm(y: Any, d: Any, w: Any) -> Any:
    return y + torch.tanh(standardised(y) @ d) @ w


def _row_sums(y: Any, d: Any, w: Any) -> Any:
    """Sums of rows, which the last kernel reads as a row: it needs all of them first."""
    sums = y.sum(-1)
    return (torch.sigmoid(y) @ d)[:, :1] + sums / max(y.shape[1], 1)


def _below(r: Any) -> Any:
    return torch.arange(r.shape[0])[:, None] >= torch.arange(r.shape[1])


def operands(m: int, k: int, n: int, dtype: Any) -> list[Any]:
    new = {"dtype": dtype}
    return [
        tensor(m, k, **new),
        factor(k, n, **new),
        factor(k, n, **new, seed=1),
        tensor(n, **new),
        tensor(m, n, **new),
        factor(n, k, **new),
    ]
