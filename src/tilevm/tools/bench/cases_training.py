"""Models that are trained, with batches whose length changes from step to step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tilevm.tools.encoder import Encoder

Tensor = torch.Tensor
Batch = tuple[Tensor, ...]
VOCABULARY = 2000


@dataclass(frozen=True)
class TrainingCase:
    """`make()`: the model and its loss of a batch. `batch`: one of a length, from a generator."""

    name: str
    make: Callable[[], tuple[nn.Module, Callable[..., Tensor]]]
    batch: Callable[[int, torch.Generator], Batch]
    lengths: Sequence[int]


def _gpt2() -> tuple[nn.Module, Callable[..., Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=VOCABULARY, n_positions=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    config._attn_implementation = "sdpa"

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return GPT2LMHeadModel(config), loss


def _tokens(length: int, generator: torch.Generator) -> Batch:
    """Sequences that count, which can be learned."""
    start = torch.randint(0, VOCABULARY, (2, 1), generator=generator)
    return ((start + 3 * torch.arange(length)) % VOCABULARY,)


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(2))
        self.around = nn.Sequential()
        if stride > 1:
            self.around.append(nn.Conv2d(inner, outer, 1, stride, bias=False))
            self.around.append(nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """What comes in is added to what comes out."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.around(x))


def _resnet() -> tuple[nn.Module, Callable[..., Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels)

    return model, loss


def _images(length: int, generator: torch.Generator) -> Batch:
    """Noise around the mean of a class."""
    labels = torch.randint(0, 10, (length,), generator=generator)
    noise = torch.randn(length, 3, 32, 32, generator=generator)
    return noise + labels[:, None, None, None] / 5, labels


def _minilm() -> tuple[nn.Module, Callable[..., Tensor]]:
    encoder = Encoder()

    def loss(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Sentences like their neighbours: the first half of a batch pairs with the second."""
        first, second = model(ids, mask).chunk(2)
        return F.cross_entropy(first @ second.t() / 0.05, torch.arange(len(first)))

    return encoder, loss


def _pairs(length: int, generator: torch.Generator) -> Batch:
    ids = torch.randint(1000, 20000, (8, length), generator=generator)
    ids[4:, : length // 2] = ids[:4, : length // 2]
    return ids, torch.ones_like(ids)


def _small() -> tuple[nn.Module, Callable[..., Tensor]]:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(x), labels)

    return model, loss


def _masked() -> tuple[nn.Module, Callable[..., Tensor]]:
    model, _ = _small()

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        """Of the rows that have a label, as of masked words."""
        known = labels > 2
        return F.cross_entropy(model(x)[known], labels[known])

    return model, loss


def _rows(length: int, generator: torch.Generator) -> Batch:
    labels = torch.randint(0, 10, (length,), generator=generator)
    return torch.randn(length, 32, generator=generator) + labels[:, None] / 5, labels


CASES = (
    TrainingCase("small", _small, _rows, (16, 64, 512)),
    TrainingCase("masked", _masked, _rows, (16, 64, 512)),
    TrainingCase("gpt2", _gpt2, _tokens, (17, 64, 128)),
    TrainingCase("resnet", _resnet, _images, (4, 16)),
    TrainingCase("minilm", _minilm, _pairs, (9, 33, 64)),
)


def lengths(case: TrainingCase, steps: int) -> list[int]:
    """A length a step, none the same as the one before."""
    drawn = random.Random(0)
    low, high = min(case.lengths), max(case.lengths)
    found = [low]
    while len(found) < steps:
        length = drawn.randint(low, high)
        if length != found[-1]:
            found.append(length)
    return found
