"""ATen operators that step through memory: diagonals, strided views, sliding windows, and writes to
parts of a tensor. Rows as in `torch_ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    axis_of,
    is_number,
    is_small,
    packet,
    row,
)
from tilevm.frontends.torch_order import ROWS
from tilevm.frontends.torch_views import filled, replaced

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

# Diagonals ---------------------------------------------------------------------------------------


def _first_place(offset: Any, width: Any) -> Any:
    """Of the diagonal of rows of `width` elements, among all of them."""
    if is_number(offset):
        return offset if offset >= 0 else -offset * width
    low = torch.sym_max(-offset, 0)  # type: ignore[no-untyped-call]
    return low * width + torch.sym_max(offset, 0)  # type: ignore[no-untyped-call]


def _planes(b: Importer, x: Tensor, one: int, other: int) -> tuple[int, list[Any], list[int]]:
    """`x` with two axes as one, the last; its sizes; the order of axes that made it."""
    rest = [d for d in range(x.rank) if d not in (one, other)]
    order = [*rest, one, other]
    sizes = [*(x.shape[d] for d in rest), x.shape[one] * x.shape[other]]
    value = x.id if order == list(range(x.rank)) else b.add("permute", x.id, axes=order)
    return b.add("reshape", value, shape=b.shape(sizes)), sizes, order


@row("diagonal", "diagonal_copy", "linalg_diagonal")
def _diagonal(
    b: Importer, out: Any, x: Tensor, offset: Any = 0, one: int = 0, other: int = 1
) -> int:
    one, other = axis_of(one, x.rank), axis_of(other, x.rank)
    width, count = x.shape[other], out.shape[-1]
    value, sizes, _ = _planes(b, x, one, other)
    first = _first_place(offset, width)
    axis = len(sizes) - 1
    if is_number(width) and is_number(count) and count:
        stop = first + (count - 1) * (width + 1) + 1
        start, stop = b.size(first), b.size(stop)
        return b.add("slice", value, axis=axis, start=start, stop=stop, step=width + 1)
    places = b.add("iota", size=b.size(count), start=b.size(first), step=b.size(width + 1))
    return b.add("take", value, places, axis=axis)


@row("diagonal_scatter")
def _diagonal_scatter(
    b: Importer, out: Any, x: Tensor, part: Tensor, offset: Any, one: int, other: int
) -> int:
    one, other = axis_of(one, x.rank), axis_of(other, x.rank)
    width = x.shape[other]
    value, sizes, order = _planes(b, x, one, other)
    first, count = _first_place(offset, width), part.shape[-1]
    places = b.add("iota", size=b.size(count), start=b.size(first), step=b.size(width + 1))
    made = _written(b, value, part, places, len(sizes) - 1, x.dtype)
    split = b.add("reshape", made, shape=b.shape([x.shape[d] for d in order]))
    return b.add("permute", split, axes=[order.index(d) for d in range(x.rank)])


def _written(b: Importer, x: int, part: Tensor, places: int, axis: int, dtype: torch.dtype) -> int:
    """`x` with `part` at places on an axis, which ascend."""
    # What a loop makes lies in memory, and expands there; a kernel would write all of the index.
    places = b.add("cummax", places, axis=0)
    shape: list[Any] = [1] * part.rank
    shape[axis] = part.shape[axis]
    index = b.add("reshape", places, shape=b.shape(shape))
    index = b.add("expand", index, shape=b.shape(part.shape))
    return b.add("scatter", x, index, b.cast(part.id, dtype), axis=axis)


@row("select_scatter")
def _select_scatter(b: Importer, out: Any, x: Tensor, part: Tensor, dim: int, index: Any) -> int:
    written = _in_place(b, x)
    if written is not None:
        return written
    axis = axis_of(dim, x.rank)
    if b.is_negative(index):
        index = x.shape[axis] + index
    return replaced(b, x, b.add("unsqueeze", part.id, axis=axis), 1, axis, index)


@row("slice_scatter")
def _slice_scatter(
    b: Importer, out: Any, x: Tensor, part: Tensor, dim: int, start: Any, end: Any, step: Any
) -> int:
    """What lies before, the part, what lies after: a loop each, into one buffer."""
    written = _in_place(b, x)
    if written is not None:
        return written
    axis = axis_of(dim, x.rank)
    start = 0 if start is None else start
    if b.is_negative(start):
        start = torch.sym_max(x.shape[axis] + start, 0)  # type: ignore[no-untyped-call]
    if is_number(step) and step == 1:
        return replaced(b, x, part.id, part.shape[axis], axis, start)
    count = b.size(part.shape[axis])
    places = b.add("iota", size=count, start=b.size(start), step=b.size(step))
    return _written(b, x.id, part, places, axis, x.dtype)


# Operators that put a part into a tensor: the view that the part is of.
_PARTS = {
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
}


def _number(value: Any) -> Any:
    """An int among a node's arguments."""
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value


def _in_place(b: Importer, x: Tensor) -> int | None:
    """What is written to the input that it is a part of: only the part is. None: it is not so.

    A loop writes along one axis, so a part begins elsewhere than at 0 on one axis at most.
    """
    node: Any = b.node
    if b.targets.get(node) is not node.args[0] or node.meta["val"].is_complex():
        return None
    axes, starts = list(range(x.rank)), dict.fromkeys(range(x.rank), 0)
    selected: list[int] = []
    while True:
        target, base, (part, *rest) = node.target, node.args[0], node.args[1:]
        where: list[Any] = rest
        dim = where[0] if where else 0
        axis = axes[axis_of(dim, len(axes))]
        if target is torch.ops.aten.select_scatter.default:
            start = where[1]
            selected.append(axis)
            axes.remove(axis)
        else:
            start = where[1] if len(where) > 1 else 0
            if len(where) > 3 and where[3] != 1:
                return None
        start = _number(start or 0)
        if b.is_negative(start):
            return None
        starts[axis] = starts[axis] + start
        view = part.args[0] if part.target in _PARTS else None
        if view is None:
            break
        if view.target is not _PARTS[target] or view.args[0] is not base:
            return None
        if [b.size(_number(i)) for i in view.args[1:] if i is not None] != [
            b.size(_number(i)) for i in where if i is not None
        ]:
            return None
        node = part
    begins = [axis for axis, start in starts.items() if not (is_number(start) and start == 0)]
    if len(begins) > 1:
        return None
    value = b.values[b.resolve(part)]
    placed, fake = value.id, value.fake
    for axis in sorted(selected):
        placed, fake = b.add("unsqueeze", placed, axis=axis), fake.unsqueeze(axis)
    axis = begins[0] if begins else 0
    places = b.add("iota", size=b.size(fake.shape[axis]), start=b.size(starts[axis]), step=1)
    return _written(b, x.id, Tensor(placed, fake), places, axis, x.dtype)


_MOST_GATHERED = 1 << 12

# Strides -----------------------------------------------------------------------------------------


def _is_unread(b: Importer, out: Any) -> bool:
    """Whether the result is a view of an input that is returned: it is made around the program."""
    assert b.node is not None
    only = all(
        user.op == "output" or not isinstance(user.meta.get("val"), torch.Tensor | tuple | list)
        for user in b.node.users
    )
    return only and not b.makes_views and b.is_given(out)


def _flat(b: Importer, x: Tensor) -> int:
    """All elements, as they lie in memory."""
    if not x.fake.is_contiguous():
        raise Refused("as_strided of a tensor that is not contiguous")
    b.need_start(x.fake)  # which is where strides count from
    return b.add("reshape", x.id, shape=[b.size(x.fake.numel())])


def _of_memory(b: Importer, out: Any, x: Tensor, sizes: Any, strides: Any, offset: Any) -> int:
    """Elements by where they lie in the memory of x."""
    value = _flat(b, x)
    for size in x.shape:
        b.at_least(size, 1)
    if not len(sizes):
        place = b.add("iota", size=1, start=b.size(offset or 0))
        return b.add("reshape", b.add("take", value, place, axis=0), shape=[])
    return b.add("take", value, _places(b, sizes, strides, offset), axis=0)


@row("as_strided")
def _as_strided(
    b: Importer, out: Any, x: Tensor, sizes: Any, strides: Any, offset: Any = None
) -> int:
    """A view is not made of elements that are gathered, each, which would take much longer."""
    if not x.fake.is_contiguous():
        raise Refused("as_strided of a tensor that is not contiguous")
    if not _is_unread(b, out):
        raise Unsupported("strides")
    return filled(b, 0, out.dtype, out.shape)


@row("narrow.Tensor")
def _narrow_at(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    if not _is_unread(b, out):
        raise Unsupported("where it begins, data say")
    return filled(b, 0, out.dtype, out.shape)


@row("as_strided_copy")
def _as_strided_copy(
    b: Importer, out: Any, x: Tensor, sizes: Any, strides: Any, offset: Any = None
) -> int:
    if not is_small(b, out.numel(), _MOST_GATHERED):
        raise Unsupported("many elements, each gathered")  # PyTorch copies runs of them
    return _of_memory(b, out, x, sizes, strides, offset)


@row("as_strided_scatter")
def _as_strided_scatter(
    b: Importer, out: Any, x: Tensor, part: Tensor, sizes: Any, strides: Any, offset: Any = None
) -> int:
    value = _flat(b, x)
    count = [b.size(part.fake.numel())]
    if len(sizes):
        places = b.add("reshape", _places(b, sizes, strides, offset), shape=count)
    else:
        places = b.add("iota", size=1, start=b.size(offset or 0))
    source = b.add("reshape", b.cast(part.id, x.dtype), shape=count)
    made = b.add("scatter", value, places, source, axis=0)
    return b.add("reshape", made, shape=b.shape(x.shape))


def _places(b: Importer, sizes: Sequence[Any], strides: Sequence[Any], offset: Any) -> int:
    """int64 of `sizes`: where each element lies."""
    value = -1
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        start = b.size(offset or 0) if value < 0 else 0
        line = b.add("iota", size=b.size(size), start=start, step=b.size(stride))
        shape: list[Any] = [1] * len(sizes)
        shape[axis] = size
        line = b.add("reshape", line, shape=b.shape(shape))
        value = line if value < 0 else b.add("add", value, line)
    return value


@row("unfold", "unfold_copy")
def _unfold(b: Importer, out: Any, x: Tensor, dim: int, size: Any, step: Any) -> int:
    """Windows beside each other are a view; others a gather, where eager code copies too."""
    if not x.rank:
        return b.add("reshape", x.id, shape=b.shape(out.shape))
    axis = axis_of(dim, x.rank)
    count = out.shape[axis]
    if b.size(size) == b.size(step) and x.rank < 8:
        stop = b.size(count * size)
        part = b.add("slice", x.id, axis=axis, start=0, stop=stop, step=1)
        sizes = [*x.shape[:axis], count, size, *x.shape[axis + 1 :]]
        value = b.add("reshape", part, shape=b.shape(sizes))
    elif packet(b) == "unfold" and _is_unread(b, out):
        return filled(b, 0, out.dtype, out.shape)
    elif packet(b) == "unfold" and (
        b.is_given(out) or not is_small(b, out.numel(), _MOST_GATHERED)
    ):
        raise Unsupported("windows that overlap, or have gaps")
    else:
        first = b.add("iota", size=b.size(count), step=b.size(step))
        place = b.add("add", b.add("unsqueeze", first, axis=1), b.add("iota", size=b.size(size)))
        value = b.add("take", x.id, place, axis=axis)
    order = [d for d in range(x.rank + 1) if d != axis + 1] + [axis + 1]
    return b.add("permute", value, axes=order)


# Blocks ------------------------------------------------------------------------------------------


@row("block_diag")
def _block_diag(b: Importer, out: Any, tensors: Sequence[Tensor]) -> int:
    """Each with zeros before and behind it, above each other."""

    def zeros(rows: Any, columns: Any) -> list[int]:
        none = is_number(columns) and columns == 0
        return [] if none else [filled(b, 0, out.dtype, [rows, columns])]

    before: Any = 0
    parts = []
    for x in tensors:
        rows, columns = [1] * (2 - x.rank) + list(x.shape)
        value = b.add("reshape", b.cast(x.id, out.dtype), shape=b.shape([rows, columns]))
        behind = out.shape[1] - before - columns
        line = [*zeros(rows, before), value, *zeros(rows, behind)]
        parts.append(b.add("concat", *line, axis=1) if len(line) > 1 else value)
        before = before + columns
    return parts[0] if len(parts) == 1 else b.add("concat", *parts, axis=0)


@row("_chunk_cat")
def _chunk_cat(b: Importer, out: Any, tensors: Sequence[Tensor], dim: int, chunks: Any) -> int:
    """Each in chunks along an axis, with zeros at its end, that are rows of all that follows."""
    parts = []
    for x in tensors:
        axis = axis_of(dim, x.rank)
        size = x.shape[axis]
        missing = (size + chunks - 1) // chunks * chunks - size
        value = b.cast(x.id, out.dtype)
        if not (is_number(missing) and missing == 0):
            low, high = [0] * x.rank, [0] * x.rank
            high[axis] = missing
            value = b.add("pad", value, low=low, high=b.shape(high), value=0)
        width = (size + missing) // chunks
        for after in x.shape[axis + 1 :]:
            width = width * after
        sizes = [*x.shape[:axis], chunks, width]
        parts.append(b.add("reshape", value, shape=b.shape(sizes)))
    return parts[0] if len(parts) == 1 else b.add("concat", *parts, axis=out.dim() - 1)


@row("resize", "resize_as")
def _resize(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    """The elements that there are; what is behind them is nobody's, here zeros."""
    if not x.fake.is_contiguous():
        raise Unsupported("a tensor that is not contiguous")
    size, wanted = x.fake.numel(), out.numel()
    value = b.add("reshape", x.id, shape=[b.size(size)])
    if b.size(size) != b.size(wanted):
        value = b.add("concat", value, filled(b, 0, x.dtype, [wanted]), axis=0)
        value = b.add("slice", value, axis=0, start=0, stop=b.size(wanted), step=1)
    return b.add("reshape", value, shape=b.shape(out.shape))
