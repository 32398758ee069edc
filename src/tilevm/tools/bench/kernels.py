"""The operator cases again, as `@tilevm.kernel` functions. Names are theirs."""

# ruff: noqa: D103  # the name of a case says what it is

from __future__ import annotations

from typing import Any

from tilevm import lang


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def bias_gelu(x: Any, b: Any) -> Any:
    return lang.gelu(x + b)


def bias_gelu_tanh(x: Any, b: Any) -> Any:
    return lang.gelu(x + b, approximate="tanh")


def chain20(x: Any, y: Any) -> Any:
    a = x * 1.5 + y
    b = lang.tanh(a) - y * 0.25
    c = lang.sigmoid(b) * a + x
    d = lang.maximum(c, y) - lang.minimum(c, x)
    e = lang.abs(d) + 1.0
    f = lang.sqrt(e) * b
    g = lang.exp(-lang.abs(f)) + c
    return g / e + f


def softmax(x: Any) -> Any:
    return lang.softmax(x, -1)


def masked_softmax(x: Any, mask: Any) -> Any:
    return lang.softmax(lang.where(mask, x * 0.125, float("-inf")), -1)


def nll(x: Any, target: Any) -> Any:
    rows = lang.gather(lang.log_softmax(x, -1), lang.unsqueeze(target, 1), 1)
    return -lang.squeeze(rows, 1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return lang.layer_norm(x, w, b)


def add_layer_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return lang.layer_norm(total, w, b), total


def rms_norm(x: Any, w: Any) -> Any:
    return lang.rms_norm(x, w, eps=1e-6)


def swiglu(gate: Any, up: Any) -> Any:
    return lang.silu(gate) * up


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = lang.concat((-q[..., half:], q[..., :half]), axis=-1)
    return q * cos + turned * sin


def row_stats(x: Any) -> Any:
    return lang.mean(x, -1), lang.var(x, -1), lang.max(x, -1), lang.min(x, -1)


def column_stats(x: Any) -> Any:
    return lang.mean(x, 0), lang.var(x, 0), lang.max(x, 0), lang.min(x, 0)


def batch_norm_relu(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    scale = w * lang.rsqrt(var + 1e-5)
    shift = b - mean * scale
    channels = (-1, 1, 1)
    return lang.relu(x * lang.reshape(scale, *channels) + lang.reshape(shift, *channels))


def where_cast(x: Any, y: Any, n: Any) -> Any:
    larger = lang.where(x > y, x, y * 0.5)
    scaled = lang.cast(n, x.dtype) * 0.25 + larger
    keep = (n % 3 == 0) | (x < 0)
    return lang.where(keep, scaled, larger), lang.cast(keep, lang.int32) + n


def transposes(x: Any, y: Any) -> Any:
    return lang.relu(x.T * 2 + y), x + y.T


def embedding_sum(ids: Any, words: Any, positions: Any, kind: Any) -> Any:
    return lang.embedding(ids, words) + positions[: ids.shape[1]] + kind
