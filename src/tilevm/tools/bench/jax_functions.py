"""Cases again, as people write them in JAX. Names are theirs.

Functions of modules take parameters, by name, before the inputs.
"""

# ruff: noqa: D103  # the name of a case says what it is

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Parameters = Mapping[str, jax.Array]


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def bias_gelu(x: Any, b: Any) -> Any:
    return jax.nn.gelu(x + b, approximate=False)


def bias_gelu_tanh(x: Any, b: Any) -> Any:
    return jax.nn.gelu(x + b, approximate=True)


def chain20(x: Any, y: Any) -> Any:
    a = x * 1.5 + y
    b = jnp.tanh(a) - y * 0.25
    c = jax.nn.sigmoid(b) * a + x
    d = jnp.maximum(c, y) - jnp.minimum(c, x)
    e = jnp.abs(d) + 1.0
    f = jnp.sqrt(e) * b
    g = jnp.exp(-jnp.abs(f)) + c
    return g / e + f


def softmax(x: Any) -> Any:
    return jax.nn.softmax(_wide(x), -1).astype(x.dtype)


def masked_softmax(x: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, x * 0.125, -jnp.inf), -1)


def nll(x: Any, target: Any) -> Any:
    rows = jnp.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1)
    return -rows[:, 0]


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    wide = _wide(x)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (normal * w + b).astype(x.dtype)


def add_layer_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return layer_norm(total, w, b), total


def rms_norm(x: Any, w: Any) -> Any:
    wide = _wide(x)
    normal = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return w * normal.astype(x.dtype)


def swiglu(gate: Any, up: Any) -> Any:
    return jax.nn.silu(gate) * up


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = jnp.concatenate((-q[..., half:], q[..., :half]), -1)
    return q * cos + turned * sin


def row_stats(x: Any) -> Any:
    return x.mean(-1), x.var(-1, ddof=1), x.max(-1), x.min(-1)


def column_stats(x: Any) -> Any:
    return x.mean(0), x.var(0, ddof=1), x.max(0), x.min(0)


def batch_norm_relu(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    scale = w * jax.lax.rsqrt(var + 1e-5)
    shift = b - mean * scale
    return jax.nn.relu(x * scale[:, None, None] + shift[:, None, None])


def adam(*tensors: Any) -> Any:
    count = len(tensors) // 4
    new = []
    for i in range(count):
        p, g, m, v = (tensors[i + k * count] for k in range(4))
        m = m * 0.9 + g * 0.1
        v = v * 0.999 + g * g * 0.001
        p = p - 1e-3 * (m / 0.271) / (jnp.sqrt(v / 0.002997) + 1e-8)
        new += [p, m, v]
    return new


def where_cast(x: Any, y: Any, n: Any) -> Any:
    larger = jnp.where(x > y, x, y * 0.5)
    scaled = n.astype(x.dtype) * 0.25 + larger
    keep = (n % 3 == 0) | (x < 0)
    return jnp.where(keep, scaled, larger), keep.astype(jnp.int32) + n


def transposes(x: Any, y: Any) -> Any:
    return jax.nn.relu(x.T * 2 + y), x + y.T


def embedding_sum(ids: Any, words: Any, positions: Any, kind: Any) -> Any:
    return words[ids] + positions[: ids.shape[1]] + kind


# Products ---------------------------------------------------------------------------------------


def mm(a: Any, b: Any) -> Any:
    return a @ b


def mm_nt(a: Any, w: Any) -> Any:
    return a @ w.T


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ w.T + b, approximate=False)


def qkv_heads(x: Any, w: Any, b: Any) -> Any:
    parts = jnp.split(x @ w.T + b, 3, -1)
    return [part.reshape(x.shape[0], -1, 64).swapaxes(0, 1) for part in parts]


def swiglu_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T


def add_norm_linear(x: Any, y: Any, g: Any, w: Any) -> Any:
    total = x + y
    normal = total * jax.lax.rsqrt((total * total).mean(-1, keepdims=True) + 1e-6)
    return total, (normal * g) @ w.T


def int8_linear(x: Any, w: Any, scale: Any) -> Any:
    return (x @ w.astype(x.dtype).T) * scale


# Attention --------------------------------------------------------------------------------------


def sdpa(q: Any, k: Any, v: Any) -> Any:
    return attention_written(q, k, v)


def sdpa_causal(q: Any, k: Any, v: Any) -> Any:
    return sdpa_masked(q, k, v, jnp.tril(jnp.ones((q.shape[2], k.shape[2]), bool)))


def sdpa_masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _attend(jnp.where(mask, _scores(q, k), -jnp.inf), v)


def sdpa_gqa(q: Any, k: Any, v: Any) -> Any:
    return sdpa_causal(q, *_shared(q, k, v))


def attention_written(q: Any, k: Any, v: Any) -> Any:
    return _attend(_scores(q, k), v)


def attention_decode(q: Any, k: Any, v: Any) -> Any:
    return attention_written(q, k, v)


def attention_decode_gqa(q: Any, k: Any, v: Any) -> Any:
    return attention_written(q, *_shared(q, k, v))


def _scores(q: Any, k: Any) -> Any:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
    return scores / math.sqrt(q.shape[-1])


def _attend(scores: Any, v: Any) -> Any:
    return jax.nn.softmax(scores, -1).astype(v.dtype) @ v


def _shared(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    times = q.shape[1] // k.shape[1]
    return jnp.repeat(k, times, 1), jnp.repeat(v, times, 1)


# Layers -----------------------------------------------------------------------------------------


def mlp(p: Parameters, x: Any) -> Any:
    return _linear(p, "down", jax.nn.gelu(_linear(p, "up", x), approximate=False))


def bert_layer(p: Parameters, x: Any) -> Any:
    attention = "layer.attention."
    q, k, v = (
        _heads(_linear(p, f"{attention}self.{name}", x), 12) for name in ("query", "key", "value")
    )
    mixed = attention_written(q, k, v).swapaxes(1, 2).reshape(x.shape)
    x = _norm(p, f"{attention}output.LayerNorm", _linear(p, f"{attention}output.dense", mixed) + x)
    inner = jax.nn.gelu(_linear(p, "layer.intermediate.dense", x), approximate=False)
    return _norm(p, "layer.output.LayerNorm", _linear(p, "layer.output.dense", inner) + x)


def llama_layer(p: Parameters, x: Any, cos: Any, sin: Any) -> Any:
    attention = "layer.self_attn."
    normal = rms_norm(x, p["layer.input_layernorm.weight"])
    q = _heads(_linear(p, f"{attention}q_proj", normal), 8)
    k = _heads(_linear(p, f"{attention}k_proj", normal), 4)
    v = _heads(_linear(p, f"{attention}v_proj", normal), 4)
    mixed = sdpa_gqa(rope(q, cos[:, None], sin[:, None]), rope(k, cos[:, None], sin[:, None]), v)
    x = x + _linear(p, f"{attention}o_proj", mixed.swapaxes(1, 2).reshape(x.shape))
    normal = rms_norm(x, p["layer.post_attention_layernorm.weight"])
    gate = jax.nn.silu(_linear(p, "layer.mlp.gate_proj", normal))
    return x + _linear(p, "layer.mlp.down_proj", gate * _linear(p, "layer.mlp.up_proj", normal))


def _linear(p: Parameters, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias


def _norm(p: Parameters, name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-12)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def _heads(x: Any, count: int) -> Any:
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def _wide(x: Any) -> Any:
    """Norms and softmax of narrow types are computed in float32, as everywhere."""
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        multiply_add,
        bias_gelu,
        bias_gelu_tanh,
        chain20,
        softmax,
        masked_softmax,
        nll,
        layer_norm,
        add_layer_norm,
        rms_norm,
        swiglu,
        rope,
        row_stats,
        column_stats,
        batch_norm_relu,
        adam,
        where_cast,
        transposes,
        embedding_sum,
        mm,
        mm_nt,
        linear_gelu,
        qkv_heads,
        swiglu_mlp,
        add_norm_linear,
        int8_linear,
        sdpa,
        sdpa_causal,
        sdpa_masked,
        sdpa_gqa,
        attention_written,
        attention_decode,
        attention_decode_gqa,
        mlp,
        bert_layer,
        llama_layer,
    )
}
