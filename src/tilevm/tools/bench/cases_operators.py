"""Operators and chains of them: rows over sweeps of sizes."""

# ruff: noqa: D103  # the name of a case says what it is

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from tilevm.tools.bench.case import Case, Function, Sweep, given


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def bias_gelu(x: Any, b: Any) -> Any:
    return functional.gelu(x + b)


def bias_gelu_tanh(x: Any, b: Any) -> Any:
    return functional.gelu(x + b, approximate="tanh")


def chain20(x: Any, y: Any) -> Any:
    """Twenty elementwise operators."""
    a = x * 1.5 + y
    b = torch.tanh(a) - y * 0.25
    c = torch.sigmoid(b) * a + x
    d = torch.maximum(c, y) - torch.minimum(c, x)
    e = torch.abs(d) + 1.0
    f = torch.sqrt(e) * b
    g = torch.exp(-torch.abs(f)) + c
    return g / e + f


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def masked_softmax(x: Any, mask: Any) -> Any:
    return torch.softmax((x * 0.125).masked_fill(~mask, float("-inf")), -1)


def nll(x: Any, target: Any) -> Any:
    rows = functional.log_softmax(x, -1).gather(1, target.unsqueeze(1))
    return -rows.squeeze(1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return functional.layer_norm(x, w.shape, w, b)


def add_layer_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return functional.layer_norm(total, w.shape, w, b), total


def rms_norm(x: Any, w: Any) -> Any:
    """As transformers writes it."""
    wide = x if x.dtype == torch.float64 else x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * normal.to(x.dtype)


def swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return q * cos + turned * sin


def row_stats(x: Any) -> Any:
    return x.mean(-1), x.var(-1), x.amax(-1), x.amin(-1)


def column_stats(x: Any) -> Any:
    return x.mean(0), x.var(0), x.amax(0), x.amin(0)


def batch_norm_relu(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return torch.relu(functional.batch_norm(x, mean, var, w, b, training=False))


ADAM_TENSORS = 24


def adam(*tensors: Any) -> Any:
    """One step: parameters, gradients and both moments in, all but gradients out."""
    count = len(tensors) // 4
    new = []
    for i in range(count):
        p, g, m, v = (tensors[i + k * count] for k in range(4))
        m = m * 0.9 + g * 0.1
        v = v * 0.999 + g * g * 0.001
        p = p - 1e-3 * (m / 0.271) / (torch.sqrt(v / 0.002997) + 1e-8)
        new += [p, m, v]
    return new


def where_cast(x: Any, y: Any, n: Any) -> Any:
    larger = torch.where(x > y, x, y * 0.5)
    scaled = n.to(x.dtype) * 0.25 + larger
    keep = (n % 3 == 0) | (x < 0)
    return torch.where(keep, scaled, larger), keep.to(torch.int32) + n


def transposes(x: Any, y: Any) -> Any:
    return torch.relu(x.t() * 2 + y), x + y.t()


def embedding_sum(ids: Any, words: Any, positions: Any, kind: Any) -> Any:
    length = ids.shape[1]
    return functional.embedding(ids, words) + positions[:length] + kind


def _adam_inputs() -> tuple[str, ...]:
    shapes = ("A, B", "B", "A", "A", "B, A", "A") * (ADAM_TENSORS // 6)
    return tuple(
        f"{kind}{i}: T[{shape}]" + (" > 0" if kind == "v" else "")
        for kind in "pgmv"
        for i, shape in enumerate(shapes)
    )


ROWS: Sweep = (
    (7, 33),
    (1, 768),
    (32, 127),
    (64, 768),
    (128, 1024),
    (511, 769),
    (1000, 1000),
    (4096, 1024),
)
COLUMNS: Sweep = (ROWS[0], *ROWS[2:])  # the variance of one element is nothing to compare
HEADS: Sweep = (
    (1, 7, 33),
    (12, 31, 31),
    (12, 64, 64),
    (12, 128, 128),
    (24, 255, 255),
    (12, 512, 512),
)
QUERIES: Sweep = (
    (1, 4, 7, 32),
    (1, 12, 31, 32),
    (1, 12, 128, 64),
    (2, 12, 255, 64),
    (4, 16, 512, 64),
)
IMAGES: Sweep = ((1, 3, 7, 9), (1, 16, 14, 14), (1, 64, 28, 28), (2, 64, 56, 55), (4, 64, 112, 112))
MOMENTS: Sweep = ((7, 33), (32, 64), (64, 255), (256, 256), (384, 1024))
TEXTS: Sweep = ((1, 7, 64), (1, 33, 384), (4, 64, 384), (8, 127, 768), (16, 256, 768))

_Row = tuple[Function, tuple[str, ...], tuple[str, ...], Sweep]
_M_N = ("M", "N")
_X = "x: T[M, N]"
_OPERATORS: tuple[_Row, ...] = (
    (multiply_add, (_X, "y: T[M, N]", "z: T[M, N]"), _M_N, ROWS),
    (bias_gelu, (_X, "b: T[N]"), _M_N, ROWS),
    (bias_gelu_tanh, (_X, "b: T[N]"), _M_N, ROWS),
    (chain20, (_X, "y: T[M, N]"), _M_N, ROWS),
    (softmax, (_X,), _M_N, ROWS),
    (masked_softmax, ("x: T[H, M, N]", "mask: bool[M, N]"), ("H", "M", "N"), HEADS),
    (nll, (_X, "target: int64[M] < N"), _M_N, ROWS),
    (layer_norm, (_X, "w: T[N]", "b: T[N]"), _M_N, ROWS),
    (add_layer_norm, (_X, "y: T[M, N]", "w: T[N]", "b: T[N]"), _M_N, ROWS),
    (rms_norm, (_X, "w: T[N]"), _M_N, ROWS),
    (swiglu, ("gate: T[M, N]", "up: T[M, N]"), _M_N, ROWS),
    (rope, ("q: T[B, H, S, D]", "cos: T[S, D]", "sin: T[S, D]"), ("B", "H", "S", "D"), QUERIES),
    (row_stats, (_X,), _M_N, ROWS),
    (column_stats, (_X,), _M_N, COLUMNS),
    (
        batch_norm_relu,
        ("x: T[N, C, H, W]", "mean: T[C]", "var: T[C] > 0", "w: T[C]", "b: T[C]"),
        ("N", "C", "H", "W"),
        IMAGES,
    ),
    (adam, _adam_inputs(), ("A", "B"), MOMENTS),
    (where_cast, (_X, "y: T[M, N]", "n: int32[M, N] < 100"), _M_N, ROWS),
    (transposes, (_X, "y: T[N, M]"), _M_N, ROWS),
    (
        embedding_sum,
        ("ids: int64[B, S] < 1000", "words: T[1000, D]", "positions: T[512, D]", "kind: T[D]"),
        ("B", "S", "D"),
        TEXTS,
    ),
)
_BFLOAT16 = ("bias_gelu", "chain20", "softmax", "layer_norm", "rms_norm", "swiglu")
_NO_KERNEL = ("adam",)  # any number of parameters


def operators() -> list[Case]:
    """Each row in float32, some in bfloat16 as well."""
    cases = []
    for function, inputs, sizes, sweep in _OPERATORS:
        name = function.__name__
        kernel = "" if name in _NO_KERNEL else name
        cases.append(Case(name, "operators", given(function), inputs, sizes, sweep, kernel=kernel))
    for case in [*cases]:
        if case.name in _BFLOAT16:
            cases.append(replace(case, name=f"{case.name}_bf16", dtype="bfloat16"))
    return cases
