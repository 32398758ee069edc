"""Whole models with random weights, over lengths that change with every call."""

# ruff: noqa: D102  # `forward` of a module is what its docstring says

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from tilevm.tools.bench.case import Case, Function, Sweep, random
from tilevm.tools.bench.cases_subgraphs import TOKENS, bert_config, llama_config

LAYERS = 4


class Bert(torch.nn.Module):
    """BERT of 4 layers with random weights, as wide as MiniLM."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel(bert_config(LAYERS), add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return result


def _minilm() -> Function:
    from tilevm.tools.encoder import Encoder

    return Encoder().eval()


class Decode(torch.nn.Module):
    """One more token: caches in, a key and a value a layer; logits and caches out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        past: Any = DynamicCache()
        for layer in range(LAYERS):
            past.update(caches[2 * layer], caches[2 * layer + 1], layer)
        logits = self.model(ids, past_key_values=past, use_cache=True).logits
        return logits, *(x for layer in past.layers for x in (layer.keys, layer.values))


def _gpt2_decode() -> torch.nn.Module:
    """As wide as the small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=LAYERS)
    config._attn_implementation = "sdpa"
    return Decode(GPT2LMHeadModel(config))


def _llama_decode() -> torch.nn.Module:
    """Of 1024, 16 heads of queries and 4 of keys and values: in bfloat16, larger than caches."""
    from transformers import LlamaForCausalLM

    config = llama_config(
        LAYERS,
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_attention_heads=16,
    )
    return Decode(LlamaForCausalLM(config)).bfloat16()


class T5Encoder(torch.nn.Module):
    """T5-small's encoder of 4 layers: relative positions as a bias, RMS norms, no scale."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5EncoderModel

        config = T5Config(num_layers=LAYERS, vocab_size=8000)
        self.model = T5EncoderModel(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(input_ids=ids).last_hidden_state
        return result


class Llama(torch.nn.Module):
    """Llama of 4 layers and 512, 8 heads of queries and 4 of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaForCausalLM

        self.model = LlamaForCausalLM(llama_config(LAYERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(
            ids, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits
        return result


class WhisperEncoder(torch.nn.Module):
    """Whisper-tiny's encoder without its padding to 30 seconds: convolutions, then 4 layers."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import WhisperConfig
        from transformers.models.whisper import modeling_whisper

        config = WhisperConfig(d_model=384, encoder_attention_heads=6, encoder_layers=LAYERS)
        config._attn_implementation = "sdpa"
        library: Any = modeling_whisper
        self.encoder = library.WhisperEncoder(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encoder = self.encoder
        x = functional.gelu(encoder.conv1(x))
        x = functional.gelu(encoder.conv2(x)).transpose(1, 2)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            found = layer(x, None)
            x = found[0] if isinstance(found, tuple) else found
        result: torch.Tensor = encoder.layer_norm(x)
        return result


_CACHES: Sweep = ((1, 1), (1, 7), (1, 64), (2, 127), (1, 255), (1, 512), (1, 1000))
_FRAMES: Sweep = ((1, 14), (1, 66), (2, 128), (1, 501), (1, 1000), (1, 3000))

_Row = tuple[str, Callable[[], Function], tuple[str, ...], Sweep, tuple[str, ...]]
_BERT = ("ids: int64[B, S] < 30000", "mask: int64[B, S] < 2")
_IDS = ("ids: int64[B, S] < 8000",)


def _decoding(words: int, cache: str) -> tuple[str, ...]:
    parts = (f"{part}{i}" for i in range(LAYERS) for part in ("key", "value"))
    return (f"ids: int64[B, 1] < {words}", *(f"{part}: {cache}" for part in parts))


_MODELS: tuple[_Row, ...] = (
    ("bert4", partial(random, Bert), _BERT, TOKENS, ()),
    ("minilm", _minilm, _BERT, TOKENS, ()),
    (
        "gpt2_decode",
        partial(random, _gpt2_decode),
        _decoding(50000, "float32[B, 12, S, 64]"),
        _CACHES,
        (),
    ),
    (
        "llama_decode_bf16",
        partial(random, _llama_decode),
        _decoding(30000, "bfloat16[B, 4, S, 64]"),
        _CACHES,
        (),
    ),
    ("t5_encoder", partial(random, T5Encoder), _IDS, TOKENS, ()),
    ("llama4", partial(random, Llama), _IDS, TOKENS, ()),
    (
        "whisper_encoder",
        partial(random, WhisperEncoder),
        ("x: float32[B, 80, S]",),
        _FRAMES,
        (),
    ),
)


def models() -> list[Case]:
    """A case a row."""
    return [
        Case(name, "models", make, inputs, ("B", "S"), sweep, callouts=callouts)
        for name, make, inputs, sweep, callouts in _MODELS
    ]
