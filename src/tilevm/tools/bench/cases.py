"""What is measured: small functions as people write them, each over a sweep of sizes.

An input reads `x: float32[M, N]`; `< V` bounds integers, `> 0` makes floats positive. `T` stands
for the case's element type. Sizes are in the order of the names in `sizes`.
"""

# ruff: noqa: D102, D103  # the name of a case says what it is

from __future__ import annotations

import copy
import functools
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., Any]
Sweep = tuple[tuple[int, ...], ...]

_INPUT = re.compile(r"(\w+): (\w+)\[([^]]*)\](?: < (\w+)| > 0)?$")
_QUICK = 3  # sizes of a sweep that --quick keeps
MATMULS = ("matmul",)  # parts of names that may call out: what linear layers and attention become


@dataclass(frozen=True)
class Case:
    """`make()` gives the function or module. kernel: its name in kernels.py, "" if it has none."""

    name: str
    suite: str
    make: Callable[[], Function]
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    sweep: Sweep
    dtype: str = "float32"
    kernel: str = ""
    callouts: tuple[str, ...] = ()  # parts of operators' names that it does not claim to speed up

    def shapes(self, *, quick: bool) -> Sweep:
        """The sizes to measure, small to large."""
        last = len(self.sweep) - 1
        if not quick or last < _QUICK:
            return self.sweep
        return tuple(self.sweep[i * last // (_QUICK - 1)] for i in range(_QUICK))

    def tensors(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Random inputs of these sizes, the same ones each time."""
        env = dict(zip(self.sizes, sizes, strict=True))
        seed = zlib.crc32(f"{self.name}{tuple(sizes)}".encode())
        generator = torch.Generator().manual_seed(seed)
        return [_tensor(text, self.dtype, env, generator) for text in self.inputs]

    def symbolic(self) -> list[tuple[str, list[str | int]]]:
        """Name and dimensions of each input."""
        parts = [_parse(text) for text in self.inputs]
        return [(name, [int(d) if d.isdigit() else d for d in dims]) for name, _, dims, _ in parts]


def exactly(function: Function) -> Function:
    """The same function for float64 inputs: modules get float64 parameters."""
    if isinstance(function, torch.nn.Module):
        return copy.deepcopy(function).double()
    return function


def _parse(text: str) -> tuple[str, str, list[str], str]:
    match = _INPUT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not an input: write `x: float32[M, N]`")
    name, dtype, dims, bound = match.groups()
    return name, dtype, [d.strip() for d in dims.split(",") if d.strip()], bound or text[-1]


def _tensor(
    text: str, default: str, env: dict[str, int], generator: torch.Generator
) -> torch.Tensor:
    _, name, dims, bound = _parse(text)
    dtype: torch.dtype = getattr(torch, default if name == "T" else name)
    shape = [env[d] if d in env else int(d) for d in dims]
    if dtype == torch.bool:
        mask = torch.rand(shape, generator=generator) < 0.8
        mask[..., :1] = True  # no row without an element
        return mask
    if not dtype.is_floating_point:
        most = env[bound] if bound in env else int(bound) if bound.isdigit() else 100
        return torch.randint(0, most, shape, generator=generator, dtype=dtype)
    if bound == "0":
        return (torch.rand(shape, generator=generator) + 0.1).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


# Operators and chains ---------------------------------------------------------------------------


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


def _given(function: Function) -> Callable[[], Function]:
    return lambda: function


def _operators() -> list[Case]:
    cases = []
    for function, inputs, sizes, sweep in _OPERATORS:
        name = function.__name__
        kernel = "" if name in _NO_KERNEL else name
        cases.append(Case(name, "operators", _given(function), inputs, sizes, sweep, kernel=kernel))
    for case in [*cases]:
        if case.name in _BFLOAT16:
            cases.append(replace(case, name=f"{case.name}_bf16", dtype="bfloat16"))
    return cases


# Subgraphs and models ---------------------------------------------------------------------------


class Mlp(torch.nn.Module):
    """Linear, gelu, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(384, 1536)
        self.down = torch.nn.Linear(1536, 384)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return result


class BertBlock(torch.nn.Module):
    """One layer of BERT, as wide as MiniLM's."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.bert import modeling_bert

        library: Any = modeling_bert
        self.layer = library.BertLayer(_bert_config(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(x)
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result


class LlamaBlock(torch.nn.Module):
    """One decoder layer of Llama, with 8 heads and 4 of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        config = LlamaConfig(
            hidden_size=512,
            intermediate_size=1376,
            num_attention_heads=8,
            num_key_value_heads=4,
            num_hidden_layers=1,
        )
        config._attn_implementation = "sdpa"
        self.layer = LlamaDecoderLayer(config, layer_idx=0)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        found = self.layer(x, position_embeddings=(cos, sin))
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result


class Bert(torch.nn.Module):
    """BERT of 4 layers with random weights, as wide as MiniLM."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel(_bert_config(4), add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return result


def _bert_config(layers: int) -> Any:
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_hidden_layers=layers
    )
    config._attn_implementation = "sdpa"
    return config


def _minilm() -> Function:
    from tilevm.tools.encoder import Encoder

    return Encoder().eval()


def _random(module: type[torch.nn.Module]) -> Function:
    torch.manual_seed(0)
    return module().eval()


_TOKENS: Sweep = ((1, 7), (1, 33), (2, 64), (1, 128), (4, 127), (1, 255), (1, 512))
_IDS = ("ids: int64[B, S] < 30000", "mask: int64[B, S] < 2")


def _models() -> list[Case]:
    def case(
        name: str, suite: str, make: Callable[[], Function], inputs: tuple[str, ...], sweep: Sweep
    ) -> Case:
        return Case(name, suite, make, inputs, ("B", "S"), sweep, callouts=MATMULS)

    wide = ("x: float32[B, S, 384]",)
    llama = ("x: float32[B, S, 512]", "cos: float32[1, S, 64]", "sin: float32[1, S, 64]")
    return [
        case("mlp", "subgraphs", functools.partial(_random, Mlp), wide, _TOKENS),
        case("bert_layer", "subgraphs", functools.partial(_random, BertBlock), wide, _TOKENS),
        case("llama_layer", "subgraphs", functools.partial(_random, LlamaBlock), llama, _TOKENS),
        case("bert4", "models", functools.partial(_random, Bert), _IDS, _TOKENS),
        case("minilm", "models", _minilm, _IDS, _TOKENS),
    ]


CASES: dict[str, Case] = {case.name: case for case in [*_operators(), *_models()]}


def select(suites: Sequence[str] | None, names: Sequence[str] | None) -> list[Case]:
    """Cases of these suites whose names contain one of these; None: any. Raises: ValueError."""
    found = [
        case
        for case in CASES.values()
        if (not suites or case.suite in suites)
        and (not names or any(name in case.name for name in names))
    ]
    if not found:
        raise ValueError(f"no case is called {names}; there are {', '.join(CASES)}")
    return found
