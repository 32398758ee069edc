"""A function under `tilevm.fuse()` and the same without: whatever can be seen must be alike."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tilevm
from tilevm.frontends.torch_eager import pending

Function = Callable[..., Any]


def recorded(*tensors: torch.Tensor) -> None:
    """They must wait to be filled."""
    for i, x in enumerate(tensors):
        assert pending(x), f"number {i}, of sizes {list(x.shape)}, was not recorded"


def filled(*tensors: torch.Tensor) -> None:
    """They must have values."""
    for i, x in enumerate(tensors):
        assert not pending(x), f"number {i}, of sizes {list(x.shape)}, is pending"


def flushes() -> int:
    """Segments run so far."""
    return sum(tilevm.stats()["flushes"].values())


@dataclass(frozen=True)
class Seen:
    """A tensor as it was: what is not its values, and its values in memory of their own."""

    meta: tuple[Any, ...]
    values: torch.Tensor
    grad: Seen | None


def seen(x: torch.Tensor, *, counted: bool = True) -> Seen:
    """All that can be told of a dense tensor, without marks on it.

    Not `counted`: but for its version. Whether autograd adds to a gradient in place depends on who
    else holds it.
    """
    version = x._version if counted and not x.is_inference() else None
    meta = (
        *(x.dtype, tuple(x.shape), x.stride(), x.storage_offset(), x.requires_grad, x.is_leaf),
        version,
    )
    grad = x.grad if x.is_leaf else None
    # (NumPy's strides of nothing are not those that a view as complex numbers wants.)
    some = x.numel() > 0
    values = torch.from_numpy(bits(x).copy()).view(x.dtype) if some else x.detach().clone()
    return Seen(meta, values, None if grad is None else seen(grad, counted=False))


def bits(x: torch.Tensor) -> Any:
    """Values as integers or bools, since NumPy lacks some dtypes."""
    plain = x.data.resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype.is_floating_point:
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
            plain.element_size()
        ]
        plain = plain.reshape(plain.shape).contiguous().view(kind)
    return plain.numpy()


def sharing(tensors: Sequence[torch.Tensor]) -> list[list[bool]]:
    """Which ones have the storage of which."""
    stores = [x.untyped_storage() for x in tensors]
    starts = [s.data_ptr() if s.nbytes() else 0 for s in stores]
    return [[a == b and a != 0 for b in starts] for a in starts]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Of nested containers, in order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def same(found: Any, expected: Any, *, exact: bool = True) -> None:
    """Structure, kinds, and values; not `exact`: floats within what assert_close allows."""
    left, spec = pytree.tree_flatten(found)
    right, other = pytree.tree_flatten(expected)
    assert spec == other
    for a, b in zip(left, right, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            assert a == b or (math.isnan(a) and math.isnan(b))
            continue
        _same_tensor(seen(a), seen(b), exact)
    ours, theirs = tensors_in(found), tensors_in(expected)
    assert sharing(ours) == sharing(theirs)


def _same_tensor(a: Seen, b: Seen, exact: bool) -> None:
    assert a.meta == b.meta, f"{a.meta}, eager's {b.meta}"
    tolerance: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(a.values, b.values, equal_nan=True, **tolerance)
    assert (a.grad is None) == (b.grad is None)
    if a.grad is not None and b.grad is not None:
        _same_tensor(a.grad, b.grad, exact)


def agree(function: Function, *inputs: Any, exact: bool = True, seed: int = 0) -> Any:
    """Run `function` on copies of `inputs`, in eager mode and in a block.

    Results, what became of the inputs, and the random stream behind it must be alike. Gives the
    result of the block.
    """
    theirs, ours = copy.deepcopy(inputs), copy.deepcopy(inputs)
    torch.manual_seed(seed)
    expected = function(*theirs)
    drawn = torch.rand(3)
    torch.manual_seed(seed)
    with tilevm.fuse():
        found = function(*ours)
    found_state = (found, tensors_in(ours), torch.rand(3))
    same(found_state, (expected, tensors_in(theirs), drawn), exact=exact)
    return found


def grid(rows: int = 3, columns: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """Small different numbers of either sign, each a few bits: sums and products are exact."""
    values = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    return (values - rows * columns // 2).to(dtype)
