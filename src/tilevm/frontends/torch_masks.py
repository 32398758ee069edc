"""Elements that a mask chooses: where they go, how many they are, and tensors indexed by masks.

A scan says where each of them goes and how many there are, a scatter puts them there; the others go
behind the last one, which is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_data import brought, count_of, must_be
from tilevm.frontends.torch_ops import Tensor, Unsupported, is_number

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer


class Chosen:
    """Which of `size` elements in a row are kept, and where each goes."""

    def __init__(self, b: Importer, mask: int, size: Any, most: Any = None) -> None:
        """mask: bool [size]. most: how many places there are; None: as many as are kept."""
        self.b, self.size = b, size
        ones = b.cast(mask, torch.int64)
        self.rank = b.add("cumsum", ones, axis=0)
        kept = mask
        if most is None:
            total = b.add("sum", ones, axes=[0], keepdims=False)
            self.count: int | str = count_of(b, total)
        else:
            self.count = b.size(most)
            fits = b.add("le", self.rank, b.number(most))
            kept = b.add("logical_and", mask, fits)
        self.room = self.count + 1 if isinstance(self.count, int) else f"({self.count}) + 1"
        behind = b.add("size_value", size=self.count)
        self.places = b.add("where", kept, b.add("sub", self.rank, b.number(1)), behind)

    def put(self, value: int, dtype: str, fill: Any = 0) -> int:
        """Those of the elements of `value`, [size], in a row."""
        b = self.b
        start = b.add("full", shape=[self.room], value=fill, dtype=dtype)
        made = b.add("scatter", start, self.places, value, axis=0)
        return b.add("slice", made, axis=0, start=0, stop=self.count, step=1)

    def where(self, fill: int = 0) -> int:
        """Their places."""
        return self.put(self.b.add("iota", size=self.b.size(self.size)), "int64", fill)


def flattened(b: Importer, value: int, size: Any) -> int:
    """The elements in a row; `size` of them."""
    return b.add("reshape", value, shape=[b.size(size)])


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask."""
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _only(indices: Sequence[Tensor | None]) -> tuple[int, Tensor]:
    """The only index, and the axis that it begins at."""
    (axis, mask), *others = ((a, index) for a, index in enumerate(indices) if index is not None)
    if others or mask.dtype is not torch.bool or not mask.rank:
        raise Unsupported("a mask as index")
    return axis, mask


def _merged(b: Importer, x: Tensor, axis: int, rank: int) -> tuple[int, list[Any]]:
    """`x` with its axes that a mask of this rank is about as one, and what its sizes are then."""
    whole = math.prod(x.shape[axis : axis + rank])
    sizes = [*x.shape[:axis], whole, *x.shape[axis + rank :]]
    return (x.id if rank == 1 else b.add("reshape", x.id, shape=b.shape(sizes))), sizes


def index(b: Importer, out: Any, x: Tensor, indices: Sequence[Tensor | None]) -> int:
    """x[mask]: the rows that it chooses."""
    axis, mask = _only(indices)
    value, sizes = _merged(b, x, axis, mask.rank)
    assert b.node is not None
    if brought(b.node):
        kept = flattened(b, mask.id, sizes[axis])
        chosen = b.chosen[mask.id] = Chosen(b, kept, sizes[axis])
    else:
        chosen = _chosen(b, mask, sizes[axis], out.shape[axis])
    if len(sizes) == 1:
        return chosen.put(value, str(x.dtype)[6:])
    return b.add("take", value, chosen.where(), axis=axis)


def index_put(
    b: Importer, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> int:
    """x[mask] = values, of which there is one for each row, or for all."""
    axis, mask = _only(indices)
    value, sizes = _merged(b, x, axis, mask.rank)
    behind = len(sizes) - axis - 1  # axes
    one = all(is_number(n) and n == 1 for n in values.shape)
    if one or values.rank <= behind:
        same = b.add("reshape", values.id, shape=[]) if one else values.id
        return _put_same(b, x, axis, mask, same, accumulate)
    count = values.shape[values.rank - behind - 1]
    if is_number(count):
        raise Unsupported("a mask as index, and values of a size that is known")
    chosen = _chosen(b, mask, sizes[axis], count)
    sizes[axis] = count
    places = b.add("reshape", chosen.where(), shape=[chosen.count, *[1] * behind])
    places = b.add("expand", places, shape=b.shape(sizes))
    source = b.add("expand", b.cast(values.id, x.dtype), shape=b.shape(sizes))
    op = "scatter_add" if accumulate else "scatter"
    made = b.add(op, value, places, source, axis=axis)
    return b.add("reshape", made, shape=b.shape(x.shape))


def _chosen(b: Importer, mask: Tensor, size: Any, count: Any) -> Chosen:
    """What a mask of `size` elements chooses, where PyTorch says that they are `count`."""
    known = b.chosen.get(mask.id)
    if known is not None and known.count == b.size(count):
        return known
    kept = flattened(b, mask.id, size)
    total = b.add("sum", b.cast(kept, torch.int64), axes=[0], keepdims=False)
    must_be(b, total, count, "as many values as the mask chooses")
    return Chosen(b, kept, size, count)


def _put_same(b: Importer, x: Tensor, axis: int, mask: Tensor, value: int, accumulate: bool) -> int:
    """The same wherever the mask is true."""
    made = b.cast(value, x.dtype)
    wide = mask.id
    for _ in range(x.rank - axis - mask.rank):
        wide = b.add("unsqueeze", wide, axis=len(b.program.type(wide)[2]))
    return b.add("where", wide, b.add("add", x.id, made) if accumulate else made, x.id)
