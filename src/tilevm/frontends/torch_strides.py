"""Functions that read strides: what they find is guarded, since keys say little of strides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx


class Reads:
    """Whether code outside PyTorch asked a tensor for its strides."""

    any = False


@contextmanager
def reads() -> Iterator[Reads]:
    """Reads of strides by code that runs while this holds."""
    found = Reads()
    plain: Any = torch.Tensor.stride

    def stride(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            found.any = True
        return plain(self, *args, **kwargs)

    tensor: Any = torch.Tensor  # which has the method from its base
    tensor.stride = stride
    try:
        yield found
    finally:
        if "stride" in vars(tensor):
            del tensor.stride


def has_strides(graph: torch.fx.Graph) -> bool:
    """Whether an operator of the graph takes strides of its argument's memory."""
    return any("as_strided" in str(node.target) for node in graph.nodes)


def row_major(name: str, rank: int) -> str:
    """The condition, as Python source, that a tensor's strides are those of its sizes."""
    strides = ["1"]
    for d in range(rank - 1, 0, -1):
        strides.append(f"{strides[-1]} * max({name}.shape[{d}], 1)")
    items = "".join(f"{stride}, " for stride in reversed(strides[:rank]))
    return f"{name}.stride() == ({items})"
