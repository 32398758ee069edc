"""Parts of models: layers, a step of decoding, routing, recommenders, recurrences."""

# ruff: noqa: D102  # `forward` of a module is what its docstring says

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from tilevm.tools.bench.case import Case, Function, Sweep, given, random


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
        self.layer = library.BertLayer(bert_config(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(x)
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result


class LlamaBlock(torch.nn.Module):
    """One decoder layer of Llama, with 8 heads and 4 of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        self.layer = LlamaDecoderLayer(llama_config(1), layer_idx=0)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        found = self.layer(x, position_embeddings=(cos, sin))
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result


def bert_config(layers: int) -> Any:
    """BERT as wide as MiniLM."""
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_hidden_layers=layers
    )
    config._attn_implementation = "sdpa"
    return config


def llama_config(layers: int, **others: int) -> Any:
    """Llama of 512, 8 heads of queries and 4 of keys and values, unless `others` say otherwise."""
    from transformers import LlamaConfig

    sizes: dict[str, Any] = {
        "vocab_size": 8000,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    config = LlamaConfig(num_hidden_layers=layers, **{**sizes, **others})
    config._attn_implementation = "sdpa"
    return config


class DecodeAttention(torch.nn.Module):
    """Attention of one new token: projections, its key and value behind the cache, GQA."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(512, 512, bias=False)
        self.kv = torch.nn.Linear(512, 512, bias=False)
        self.out = torch.nn.Linear(512, 512, bias=False)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q = self.q(x).unflatten(-1, (8, 64)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (8, 64)).transpose(1, 2).chunk(2, 1)
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        mixed = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2)), keys, values


class Mixture(torch.nn.Module):
    """The best two of four experts for each token; every expert sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(256, 4, bias=False)
        self.up = torch.nn.Parameter(torch.randn(4, 256, 512) / 16)
        self.down = torch.nn.Parameter(torch.randn(4, 512, 256) / 23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = torch.softmax(self.router(x), -1).topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        shares = (functional.one_hot(chosen, 4) * best.unsqueeze(-1)).sum(1)
        experts = functional.silu(x @ self.up) @ self.down
        return (experts * shares.t().unsqueeze(-1)).sum(0)


def _grouped(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    if rows.dtype is not torch.float64:
        return functional.grouped_mm(rows, matrices, offs=ends)
    parts = zip(rows.tensor_split(ends[:-1].long()), matrices, strict=True)  # it has no float64
    return torch.cat([part @ matrix for part, matrix in parts])


class Experts(torch.nn.Module):
    """The best two of eight experts for each token; each expert sees its tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(256, 8, bias=False)
        # Dynamo's traces know grouped products of bfloat16 only.
        new: Any = {"dtype": torch.bfloat16}
        self.up = torch.nn.Parameter(torch.randn(8, 1024, 256, **new) / 16)
        self.down = torch.nn.Parameter(torch.randn(8, 256, 512, **new) / 23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x.to(self.router.weight.dtype))
        best, chosen = torch.softmax(scores, -1).topk(2, -1)
        best, chosen = (best / best.sum(-1, keepdim=True)).flatten(), chosen.flatten()
        order = chosen.argsort(stable=True)
        ends = functional.one_hot(chosen, 8).sum(0).cumsum(0).to(torch.int32)
        gate, up = _grouped(x[order // 2], self.up.mT, ends).chunk(2, -1)
        rows = _grouped(functional.silu(gate) * up, self.down.mT, ends)
        shares = rows * best[order].unsqueeze(-1)
        return shares[order.argsort(stable=True)].reshape(-1, 2, 256).sum(1)


class DeepFm(torch.nn.Module):
    """Factorization machine beside a deep network, over 16 categories."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16000, 16)
        self.embedding_linear = torch.nn.Embedding(16000, 1)
        self.register_buffer("starts", torch.arange(16) * 1000)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(256, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = ids + self.get_buffer("starts")
        x = self.embedding(found)
        pairs = 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(-1)
        linear = self.embedding_linear(found).sum((1, 2))
        return torch.sigmoid(linear + pairs + self.deep(x.flatten(1)).squeeze(-1))


class Dlrm(torch.nn.Module):
    """Dense features and bags of categories, each with each, then a deep network."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(13, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32), torch.nn.ReLU()
        )
        self.embeddings = torch.nn.ModuleList(
            [torch.nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(8)]
        )
        rows, columns = torch.tril_indices(9, 9, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(68, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
        )

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        bags = [bag(ids[:, i]) for i, bag in enumerate(self.embeddings)]
        every = torch.stack([x, *bags], 1)
        pairs = torch.bmm(every, every.transpose(1, 2))
        pairs = pairs[:, self.get_buffer("rows"), self.get_buffer("columns")]
        result: torch.Tensor = torch.sigmoid(self.top(torch.cat((x, pairs), 1)))
        return result


STEPS = 16


class Gru(torch.nn.Module):
    """A GRU written out, over 16 steps in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Linear(128, 768)
        self.h = torch.nn.Linear(256, 768)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        for step in range(STEPS):
            reset_x, update_x, new_x = self.x(x[step]).chunk(3, -1)
            reset_h, update_h, new_h = self.h(h).chunk(3, -1)
            reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + reset * new_h)
            h = new + update * (h - new)
        return h


class Lstm(torch.nn.Module):
    """An LSTM written out, over 16 steps in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Linear(128, 1024)
        self.h = torch.nn.Linear(256, 1024)

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for step in range(STEPS):
            i, f, g, o = (self.x(x[step]) + self.h(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


BEAMS = 4


def beam_step(
    logits: torch.Tensor, scores: torch.Tensor, keys: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The best beams after one more token, and the cache and texts in their order."""
    total = functional.log_softmax(logits, -1) + scores.unsqueeze(-1)
    scores, best = total.flatten().topk(BEAMS)
    width = logits.shape[-1]
    beam, token = torch.div(best, width, rounding_mode="floor"), best % width
    texts = torch.cat((ids.index_select(0, beam), token.unsqueeze(1)), 1)
    return scores, texts, keys.index_select(0, beam)


TOKENS: Sweep = ((1, 7), (1, 33), (2, 64), (1, 128), (4, 127), (1, 255), (1, 512))
_CACHES: Sweep = ((1, 1), (1, 7), (1, 128), (2, 255), (1, 1024), (4, 2047), (1, 4096))
_BATCHES: Sweep = ((1,), (7,), (33,), (64,), (255,), (1024,))
_FEW: Sweep = ((1,), (2,), (7,), (16,), (33,), (64,))  # sequences of 16 steps
_BEAMS: Sweep = ((101, 1), (1000, 7), (8000, 33), (8000, 128), (32000, 127), (32000, 511))

_Row = tuple[str, Callable[[], Function], tuple[str, ...], tuple[str, ...], Sweep, tuple[str, ...]]
_X = ("x: float32[B, S, 384]",)
_H = "h: float32[B, 256]"
_KEYS = ("x: float32[B, 1, 512]", "keys: float32[B, 4, S, 64]", "values: float32[B, 4, S, 64]")
_LLAMA = ("x: float32[B, S, 512]", "cos: float32[1, S, 64]", "sin: float32[1, S, 64]")
_BEAM = ("logits: float32[4, V]", "scores: float32[4]", "keys: float32[4, 8, S, 64]")
_STEPS = f"x: float32[{STEPS}, B, 128]"
_SUBGRAPHS: tuple[_Row, ...] = (
    ("mlp", partial(random, Mlp), _X, ("B", "S"), TOKENS, ()),
    ("bert_layer", partial(random, BertBlock), _X, ("B", "S"), TOKENS, ()),
    ("llama_layer", partial(random, LlamaBlock), _LLAMA, ("B", "S"), TOKENS, ()),
    ("decode_attention", partial(random, DecodeAttention), _KEYS, ("B", "S"), _CACHES, ()),
    (
        "mixture",
        partial(random, Mixture),
        ("x: float32[B, 256]",),
        ("B",),
        _BATCHES,
        ("topk", "one_hot"),
    ),
    ("experts", partial(random, Experts), ("x: bfloat16[B, 256]",), ("B",), _BATCHES, ()),
    ("deepfm", partial(random, DeepFm), ("ids: int64[B, 16] < 1000",), ("B",), _BATCHES, ()),
    (
        "dlrm",
        partial(random, Dlrm),
        ("dense: float32[B, 13]", "ids: int64[B, 8, 5] < 1000"),
        ("B",),
        _BATCHES,
        ("embedding_bag",),
    ),
    ("gru", partial(random, Gru), (_STEPS, _H), ("B",), _FEW, ()),
    ("lstm", partial(random, Lstm), (_STEPS, _H, "c: float32[B, 256]"), ("B",), _FEW, ()),
    (
        "beam_step",
        given(beam_step),
        (*_BEAM, "ids: int64[4, S] < 1000"),
        ("V", "S"),
        _BEAMS,
        ("topk",),
    ),
)


def subgraphs() -> list[Case]:
    """A case a row."""
    return [
        Case(name, "subgraphs", make, inputs, sizes, sweep, callouts=callouts)
        for name, make, inputs, sizes, sweep, callouts in _SUBGRAPHS
    ]
