"""Matrix products, alone and with what stands around them in models."""

# ruff: noqa: D103  # the name of a case says what it is

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from tilevm.tools.bench.case import Case, Function, Sweep, given

HEAD = 64  # elements of a head


def mm(a: Any, b: Any) -> Any:
    return torch.mm(a, b)


def mm_nt(a: Any, w: Any) -> Any:
    return functional.linear(a, w)


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return functional.gelu(functional.linear(x, w, b))


def qkv_heads(x: Any, w: Any, b: Any) -> Any:
    """Queries, keys and values, head by head as a cache keeps them."""
    parts = functional.linear(x, w, b).chunk(3, -1)
    return [part.view(x.shape[0], -1, HEAD).transpose(0, 1).contiguous() for part in parts]


def swiglu_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(inner, down)


def add_norm_linear(x: Any, y: Any, g: Any, w: Any) -> Any:
    """The sum and a product of its RMS norm: between two parts of a block."""
    total = x + y
    normal = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, functional.linear(normal * g, w)


def int8_linear(x: Any, w: Any, scale: Any) -> Any:
    """Weights of 8 bits with a scale for each output."""
    return functional.linear(x, w.to(x.dtype)) * scale


def _linear_alone(x: Any, w: Any, b: Any) -> Any:
    return functional.linear(x, w)


def _mlp_alone(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return functional.linear(functional.linear(x, gate), down), functional.linear(x, up)


def _norm_linear_alone(x: Any, y: Any, g: Any, w: Any) -> Any:
    return functional.linear(x, w)


_ALONE: dict[Function, Function] = {
    linear_gelu: _linear_alone,
    qkv_heads: _linear_alone,
    swiglu_mlp: _mlp_alone,
    add_norm_linear: _norm_linear_alone,
}

ROWS = (1, 2, 7, 16, 33, 128, 511, 1024)
_WIDTHS = (
    (64, 64),
    (65, 127),
    (384, 1536),
    (513, 1023),
    (768, 768),
    (768, 3072),
    (3072, 768),
    (2048, 1000),
    (4096, 4096),
)
_BFLOAT16_WIDTHS = ((65, 127), (384, 1536), (768, 768), (768, 3072), (2048, 1000))
_MODEL_WIDTHS = ((64, 128), (384, 1536), (768, 3072), (1024, 2752))
_HEAD_WIDTHS = ((64, 192), (384, 1152), (768, 2304), (1024, 3072))
_QUICK_ROWS = (1, 7, 33, 128, 511)
_QUICK_WIDTHS = ((65, 127), (768, 768))
_QUICK_MODEL_WIDTHS = ((384, 1536), (384, 1152))


def _sweep(rows: Iterable[int], widths: Iterable[tuple[int, int]]) -> Sweep:
    """All of rows with all of widths, from little to much work."""
    widths = tuple(widths)
    return tuple(sorted(((m, k, n) for m in rows for k, n in widths), key=math.prod))


_Row = tuple[Function, tuple[str, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
_PRODUCTS: tuple[_Row, ...] = (
    (mm, ("a: T[M, K]", "b: T[K, N]"), ROWS, _WIDTHS),
    (mm_nt, ("a: T[M, K]", "w: T[N, K]"), ROWS, _WIDTHS),
    (linear_gelu, ("x: T[M, K]", "w: T[N, K]", "b: T[N]"), ROWS, _MODEL_WIDTHS),
    (qkv_heads, ("x: T[M, K]", "w: T[N, K]", "b: T[N]"), ROWS, _HEAD_WIDTHS),
    (
        swiglu_mlp,
        ("x: T[M, K]", "gate: T[N, K]", "up: T[N, K]", "down: T[K, N]"),
        ROWS,
        _MODEL_WIDTHS,
    ),
    (
        add_norm_linear,
        ("x: T[M, K]", "y: T[M, K]", "g: T[K]", "w: T[N, K]"),
        ROWS,
        _MODEL_WIDTHS,
    ),
    (int8_linear, ("x: T[M, K]", "w: int8[N, K] < 127", "scale: T[N] > 0"), (1,), _WIDTHS),
)
_BFLOAT16 = ("mm", "mm_nt", "linear_gelu", "swiglu_mlp")


def _case(
    function: Function,
    inputs: tuple[str, ...],
    rows: tuple[int, ...],
    widths: tuple[tuple[int, int], ...],
) -> Case:
    few = _QUICK_WIDTHS if _QUICK_WIDTHS[0] in widths else _QUICK_MODEL_WIDTHS
    narrow = [pair for pair in widths if pair in few]
    return Case(
        function.__name__,
        "products",
        given(function),
        inputs,
        ("M", "K", "N"),
        _sweep(rows, widths),
        quick=_sweep([m for m in rows if m in _QUICK_ROWS], narrow),
        by="M",
        alone=_ALONE.get(function),
    )


def products() -> list[Case]:
    """Each row in float32, some in bfloat16 as well; `mm` is what the others are compared with."""
    cases = [_case(*row) for row in _PRODUCTS]
    for function, inputs, rows, widths in _PRODUCTS:
        if function.__name__ in _BFLOAT16:
            narrow = tuple(pair for pair in widths if pair in _BFLOAT16_WIDTHS)
            case = _case(function, inputs, rows, narrow)
            cases.append(replace(case, name=f"{case.name}_bf16", dtype="bfloat16"))
    return cases
