"""Attention over lengths: the operator, as people write it out, and one query over a cache."""

# ruff: noqa: D103  # the name of a case says what it is

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from tilevm.tools.bench.case import Case, Function, Sweep, given

_attend = functional.scaled_dot_product_attention


def sdpa(q: Any, k: Any, v: Any) -> Any:
    return _attend(q, k, v)


def sdpa_causal(q: Any, k: Any, v: Any) -> Any:
    return _attend(q, k, v, is_causal=True)


def sdpa_masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _attend(q, k, v, attn_mask=mask)


def sdpa_gqa(q: Any, k: Any, v: Any) -> Any:
    """Several heads of queries share one of keys and values."""
    return _attend(q, k, v, is_causal=True, enable_gqa=True)


def attention_written(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


def attention_decode(q: Any, k: Any, v: Any) -> Any:
    """One query over a cache."""
    return _attend(q, k, v)


def attention_decode_gqa(q: Any, k: Any, v: Any) -> Any:
    return _attend(q, k, v, enable_gqa=True)


LENGTHS = (1, 2, 7, 16, 33, 128, 511, 1024, 2048)
CACHES = (1, 7, 33, 128, 511, 1024, 2047, 4096, 8192)
_QUICK = (1, 7, 33, 128, 511, 2047)

_SQUARE = ("q: T[B, H, S, D]", "k: T[B, H, S, D]", "v: T[B, H, S, D]")
_SHARED = ("q: T[B, H, S, D]", "k: T[B, G, S, D]", "v: T[B, G, S, D]")
_ONE = ("q: T[B, H, 1, D]", "k: T[B, H, S, D]", "v: T[B, H, S, D]")
_ONE_SHARED = ("q: T[B, H, 1, D]", "k: T[B, G, S, D]", "v: T[B, G, S, D]")


def _sweep(lengths: Sequence[int], *, shared: bool = False) -> Sweep:
    """Eight heads of 64 over each length, and once an odd number of another width."""
    if shared:
        return tuple((1, 8, 2, s, 64) for s in lengths)
    sweep = [(1, 8, s, 64) for s in lengths] + [(2, 3, 7, 40)]
    return tuple(sorted(sweep, key=lambda sizes: sizes[2]))


_Row = tuple[Function, tuple[str, ...], bool]
_ATTENTION: tuple[_Row, ...] = (
    (sdpa, _SQUARE, False),
    (sdpa_causal, _SQUARE, False),
    (sdpa_masked, (*_SQUARE, "mask: bool[S, S]"), False),
    (sdpa_gqa, _SHARED, False),
    (attention_written, _SQUARE, False),
    (attention_decode, _ONE, True),
    (attention_decode_gqa, _ONE_SHARED, True),
)
_BFLOAT16 = ("sdpa", "sdpa_causal", "attention_written", "attention_decode")


def _case(function: Function, inputs: tuple[str, ...], decode: bool) -> Case:
    lengths = CACHES if decode else LENGTHS
    shared = any("G" in text for text in inputs)
    return Case(
        function.__name__,
        "attention",
        given(function),
        inputs,
        ("B", "H", "G", "S", "D") if shared else ("B", "H", "S", "D"),
        _sweep(lengths, shared=shared),
        quick=_sweep([s for s in lengths if s in _QUICK], shared=shared),
        by="S",
    )


def attention() -> list[Case]:
    """Each row in float32, some in bfloat16 as well."""
    cases = [_case(*row) for row in _ATTENTION]
    for case in [*cases]:
        if case.name in _BFLOAT16:
            cases.append(replace(case, name=f"{case.name}_bf16", dtype="bfloat16"))
    return cases
