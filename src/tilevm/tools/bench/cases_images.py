"""Models of images with random weights: convolutions, batch norms and what is between them."""

# ruff: noqa: D102  # `forward` of a module is what its docstring says

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilevm.tools.bench.case import Case, Function, Sweep, random


class Classifier(torch.nn.Module):
    """A model of transformers that makes logits of images [B, 3, S, S]."""

    def __init__(self, make: Callable[[Any], torch.nn.Module]) -> None:
        super().__init__()
        import transformers

        self.model = make(transformers)
        self.eval()  # norms use the averages that they hold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(x).logits
        return result


# As many as they are made for; of the 2 that transformers has by default, errors are chance.
_CLASSES = 1000


def _resnet18(library: Any) -> torch.nn.Module:
    config = library.ResNetConfig(
        layer_type="basic",
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        num_labels=_CLASSES,
    )
    model: torch.nn.Module = library.ResNetForImageClassification(config)
    return model


def _model(name: str, config: str) -> Callable[[Any], torch.nn.Module]:
    def make(library: Any) -> torch.nn.Module:
        model: torch.nn.Module = getattr(library, name)(
            getattr(library, config)(num_labels=_CLASSES)
        )
        return model

    return make


_SWEEP: Sweep = ((1, 64), (1, 160), (1, 224), (4, 96), (8, 224))
_MODELS: dict[str, Callable[[Any], torch.nn.Module]] = {
    "resnet18": _resnet18,
    "resnet50": _model("ResNetForImageClassification", "ResNetConfig"),
    "mobilenet_v2": _model("MobileNetV2ForImageClassification", "MobileNetV2Config"),
    "convnext_tiny": _model("ConvNextForImageClassification", "ConvNextConfig"),
}


def images() -> list[Case]:
    """A case a model."""

    def function(make: Callable[[Any], torch.nn.Module]) -> Function:
        return random(partial(Classifier, make))

    return [
        Case(
            name, "images", partial(function, make), ("x: float32[B, 3, S, S]",), ("B", "S"), _SWEEP
        )
        for name, make in _MODELS.items()
    ]
