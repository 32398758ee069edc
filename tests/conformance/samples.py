"""PyTorch's own samples of every operator: which, and copies of their arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tests.eager.opinfo import UNDEFINED
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree


def _unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call alone: `judge.run` sets the seed, and a function that does so is never captured."""
    return function(*args, **kwargs)


vars(common_methods_invocations)["wrapper_set_seed"] = _unseeded

# All that kernels have.
DTYPES = (
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
COMPLEX = ("complex64",)  # pairs of those; asked for by name
MODES = ("forward", "gradient")

# Skipped, with the reason.
SKIPPED = {
    **dict.fromkeys(UNDEFINED, "elements are memory as it was found"),
    "from_file": "reads a file of its own",
    "broadcast_shapes": "computes no tensor",
}


@dataclass(frozen=True)
class Case:
    """An operator with a dtype. mode: "forward", or "gradient", of what wants one."""

    op: Any
    dtype: str
    mode: str

    @property
    def name(self) -> str:
        """The operator's, with its variant."""
        return name_of(self.op)

    def samples(self, most: int) -> Iterator[tuple[int, Any]]:
        """At most so many of the operator's samples, evenly spread, with their numbers."""
        torch.manual_seed(0)
        gradient = self.mode == "gradient"
        known = list(self.op.sample_inputs("cpu", getattr(torch, self.dtype), gradient))
        kept = min(most, len(known))
        for i in range(kept):
            place = i * (len(known) - 1) // max(kept - 1, 1)
            yield place, known[place]


def name_of(op: Any) -> str:
    """`nn.functional.pad.reflect`: the name and the variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def is_continuous(dtype: str) -> bool:
    """Whether there are gradients."""
    torch_dtype = getattr(torch, dtype)
    return bool(torch_dtype.is_floating_point or torch_dtype.is_complex)


def cases(dtype: str, mode: str) -> list[Case]:
    """Of all operators that take this dtype and are not skipped."""
    torch_dtype = getattr(torch, dtype)
    found = []
    for op in op_db:
        supported = op.supports_dtype(torch_dtype, "cpu")
        if mode == "gradient":
            supported &= op.supports_autograd and is_continuous(dtype)
            supported &= torch_dtype in _backward_dtypes(op)
        if supported and op.name not in SKIPPED:
            found.append(Case(op, dtype, mode))
    return found


def _backward_dtypes(op: Any) -> Any:
    return op.supported_backward_dtypes("cpu")


def copied(tree: Any) -> Any:
    """Arguments with memory of their own, of the same layout."""
    return pytree.tree_map_only(torch.Tensor, _copied, tree)


def _copied(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided:
        return torch.clone(x.detach()).requires_grad_(x.requires_grad)
    made = torch.empty(0, dtype=x.dtype)
    storage = copy.copy(x.untyped_storage())
    made.set_(storage, x.storage_offset(), x.size(), x.stride())
    return made.requires_grad_(x.requires_grad)
