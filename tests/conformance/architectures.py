"""Models of `transformers` at tiny sizes, with random weights: from configurations alone.

One layer where all are alike; two where they take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

VOCABULARY = 96
_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4,
}  # fmt: skip
_SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_IMAGES = {k: v for k, v in _SIZES.items() if k != "vocab_size"} | {
    "image_size": 32, "patch_size": 8, "num_labels": 5,
}  # fmt: skip
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Architecture:
    """A model's classes in `transformers`, its sizes, and what goes in.

    kind: "decoder" (text, generates), "encoder" (text), "seq2seq" (text to text, generates),
    "image", "audio" (samples), "speech" (spectrogram to text).
    """

    name: str
    kind: str
    config: str
    model: str
    sizes: dict[str, Any]

    def make(self) -> Any:
        """The model, with weights of its own, no dropout, nothing masked at random (by NumPy)."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        for key, value in vars(config).items():
            if ("drop" in key or "layerdrop" in key) and isinstance(value, float):
                setattr(config, key, 0.0)
        if hasattr(config, "apply_spec_augment"):
            config.apply_spec_augment = False
        return getattr(transformers, self.model)(config).eval()

    @property
    def generates(self) -> bool:
        """Whether it makes text, token by token."""
        return self.kind in ("decoder", "seq2seq", "speech")

    def inputs(self, batch: int, length: int) -> dict[str, torch.Tensor]:
        """Random ones. length: of text or sound."""
        return _INPUTS[self.kind](batch, length)


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _text(batch: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, : length // 4] = 0  # padded on the left
    return {"input_ids": _tokens(batch, length), "attention_mask": mask}


_INPUTS: dict[str, Callable[[int, int], dict[str, torch.Tensor]]] = {
    "decoder": _text,
    "encoder": _text,
    "seq2seq": lambda b, n: {**_text(b, n), "decoder_input_ids": _tokens(b, n // 2 + 1)},
    "image": lambda b, n: {"pixel_values": torch.randn(b, 3, 32, 32)},
    "pair": lambda b, n: {**_text(b, n), "pixel_values": torch.randn(b, 3, 32, 32)},
    "audio": lambda b, n: {"input_values": torch.randn(b, 400 + 40 * n)},
    "speech": lambda b, n: {
        "input_features": torch.randn(b, 8, 40),
        "decoder_input_ids": _tokens(b, n),
    },
}


def _decoder(name: str, stem: str, sizes: dict[str, Any]) -> Architecture:
    sizes = {**_SPECIAL, **sizes}
    return Architecture(name, "decoder", f"{stem}Config", f"{stem}ForCausalLM", sizes)


def _encoder(name: str, stem: str, sizes: dict[str, Any]) -> Architecture:
    sizes = {**_SPECIAL, **sizes}
    return Architecture(name, "encoder", f"{stem}Config", f"{stem}ForMaskedLM", sizes)


def _image(name: str, stem: str, sizes: dict[str, Any]) -> Architecture:
    return Architecture(name, "image", f"{stem}Config", f"{stem}ForImageClassification", sizes)


_BART_LIKE = {**_SEQ2SEQ, **_SPECIAL, "decoder_start_token_id": 2, "forced_eos_token_id": None}

ARCHITECTURES = (
    Architecture(
        "GPT-2", "decoder", "GPT2Config", "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64,
         **_SPECIAL},
    ),
    _decoder("GPT-Neo", "GPTNeo", {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "window_size": 4,
    }),
    _decoder("GPT-J", "GPTJ", {
        "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4,
    }),
    _decoder("GPT-NeoX", "GPTNeoX", _SIZES),
    _decoder("OPT", "OPT", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    _decoder("BLOOM", "Bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 1,
                                "n_head": 4}),
    _decoder("Falcon", "Falcon", _SIZES),
    _decoder("Llama", "Llama", _GROUPED),
    _decoder("Mistral", "Mistral", {**_GROUPED, "sliding_window": 6}),
    _decoder("Mixtral", "Mixtral", {**_GROUPED, "num_local_experts": 4}),
    _decoder("Qwen2", "Qwen2", _GROUPED),
    _decoder("Qwen3", "Qwen3", {**_GROUPED, "head_dim": 8}),
    _decoder("Gemma", "Gemma", {**_GROUPED, "head_dim": 8}),
    _decoder("Gemma 2", "Gemma2", {
        **_GROUPED, "num_hidden_layers": 2, "head_dim": 8, "sliding_window": 6,
    }),
    _decoder("Phi", "Phi", _GROUPED),
    _decoder("Phi-3", "Phi3", _GROUPED),
    _decoder("StableLM", "StableLm", _GROUPED),
    _decoder("OLMo", "Olmo", _GROUPED),
    _decoder("Cohere", "Cohere", _GROUPED),
    _decoder("StarCoder 2", "Starcoder2", _GROUPED),
    _decoder("Granite", "Granite", _GROUPED),
    _decoder("Mamba", "Mamba", {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 4,
                                "num_hidden_layers": 1}),
    _encoder("BERT", "Bert", _SIZES),
    _encoder("RoBERTa", "Roberta", _SIZES),
    _encoder("ALBERT", "Albert", {**_SIZES, "embedding_size": 16}),
    _encoder("DistilBERT", "DistilBert", {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48,
                                          "n_layers": 1, "n_heads": 4}),
    _encoder("ELECTRA", "Electra", {**_SIZES, "embedding_size": 16}),
    _encoder("MPNet", "MPNet", _SIZES),
    _encoder("DeBERTa v2", "DebertaV2", {**_SIZES, "relative_attention": True,
                                         "pos_att_type": ["p2c", "c2p"]}),
    _encoder("ModernBERT", "ModernBert", {**_SIZES, "num_hidden_layers": 2, "local_attention": 8}),
    Architecture("T5", "seq2seq", "T5Config", "T5ForConditionalGeneration",
                 {**_T5, "decoder_start_token_id": 0}),
    Architecture("mT5", "seq2seq", "MT5Config", "MT5ForConditionalGeneration",
                 {**_T5, "decoder_start_token_id": 0}),
    Architecture("BART", "seq2seq", "BartConfig", "BartForConditionalGeneration", _BART_LIKE),
    Architecture("Marian", "seq2seq", "MarianConfig", "MarianMTModel",
                 {**_BART_LIKE, "decoder_vocab_size": VOCABULARY}),
    Architecture("Pegasus", "seq2seq", "PegasusConfig", "PegasusForConditionalGeneration",
                 _BART_LIKE),
    _image("ViT", "ViT", _IMAGES),
    _image("DeiT", "DeiT", _IMAGES),
    _image("BEiT", "Beit", _IMAGES),
    _image("DINOv2", "Dinov2", {**_IMAGES, "mlp_ratio": 2}),
    _image("Swin", "Swin", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
                            "num_heads": [2, 2], "window_size": 4, "num_labels": 5}),
    _image("ConvNeXt", "ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2,
                                    "num_labels": 5}),
    _image("ResNet", "ResNet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                                "layer_type": "basic", "num_labels": 5}),
    Architecture("Wav2Vec2", "audio", "Wav2Vec2Config", "Wav2Vec2ForCTC", {
        **_SIZES, **_SPECIAL, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
    }),
    Architecture("Whisper", "speech", "WhisperConfig", "WhisperForConditionalGeneration", {
        **_BART_LIKE, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32,
        "begin_suppress_tokens": None,
    }),
)  # fmt: skip
