"""Runs a graph on every tier, on tensors of every layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tilevm.config import config
from tilevm.ir.graph import Graph
from tilevm.ir.types import Type, dtype_name, numpy_dtype
from tilevm.runtime.program import compile_program

Array = Any  # np.ndarray of any dtype


def runs(tier: str) -> bool:
    """Whether this processor has what the tier needs."""
    try:
        with config.patch(tier=tier):
            return True
    except ValueError:
        return False


# auto: machine code for the widest vectors there are, products by AMX if it is there.
TIERS = (
    "interp",
    "auto",
    *(["avx512"] if runs("amx") else []),
    *(["avx2"] if runs("avx2") and runs("avx512") else []),
)

# Layouts ----------------------------------------------------------------------------------------


def _transposed(x: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def _sliced(x: torch.Tensor) -> torch.Tensor:
    """Every other element of a larger tensor, beginning at an offset, on every axis."""
    room = x.new_zeros([2 * n + 3 for n in x.shape])
    view = room[tuple(slice(3, 2 * n + 3, 2) for n in x.shape)]
    return view.copy_(x) if x.ndim else view


def _offset(x: torch.Tensor) -> torch.Tensor:
    """Dense rows of a wider tensor, so that only the last axis is contiguous."""
    if x.ndim == 0:
        return torch.stack([x, x])[1]
    room = x.new_zeros([*x.shape[:-1], x.shape[-1] + 5])
    return room[..., 3 : x.shape[-1] + 3].copy_(x)


def _repeated(axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The first element on an axis for all of them: stride 0. The values are others."""

    def layout(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 0 or x.shape[axis] == 0:
            return x
        return x.narrow(axis, 0, 1).clone().expand(x.shape)

    return layout


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x.contiguous(),
    "transposed": _transposed,
    "sliced": _sliced,
    "offset": _offset,
    "repeated first": _repeated(0),
    "repeated last": _repeated(-1),
}

# Values -----------------------------------------------------------------------------------------


def tensor(x: Array) -> torch.Tensor:
    """A dense tensor with the values of an array."""
    x = np.array(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def array(x: Any) -> Array:
    """A dense array with the values of a tensor, or of a number."""
    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    x = x.detach().contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return x.numpy()


def arrays(values: Sequence[Any]) -> list[Array]:
    return [array(x) for x in values]


# Running ----------------------------------------------------------------------------------------


def compiled(graph: Graph, targets: Sequence[Callable[..., Any]] = ()) -> Callable[..., Any]:
    return compile_program(graph.to_program(), targets)


def elsewhere(x: Any) -> Any:
    """A tensor of the same sizes, strides and values in other memory; a number as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    memory = x.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return x.new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())


def run(executable: Callable[..., Any], tier: str, inputs: Sequence[Any]) -> list[Array]:
    """The outputs on one tier. The inputs must be as they were afterwards.

    Calls that are alike must give the same bits: the second is noted, the third run as noted.
    """
    before = arrays(inputs)
    before = [x.copy() for x in before]
    with config.patch(tier=tier, verify=True):
        outputs = arrays(executable(*inputs))
        kept = []
        for call in ("second", "third"):
            kept.append([elsewhere(x) for x in inputs])
            for x, y in zip(outputs, arrays(executable(*kept[-1])), strict=True):
                assert x.tobytes() == y.tobytes(), f"{tier}: the {call} call has another result"
    for later in (inputs, *kept):
        for x, y in zip(before, arrays(later), strict=True):
            assert x.tobytes() == y.tobytes(), f"{tier}: an input was written to"
    return outputs


def type_of(x: torch.Tensor) -> Type:
    return Type(dtype_name(x.dtype), tuple(x.shape))
