"""ATen operators that move, gather and create elements: rows as in `torch_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends import torch_masks
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    axes_of,
    axis_of,
    fitting,
    fixed,
    is_number,
    row,
)
from tilevm.frontends.torch_reductions import ROWS

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

NO_END = 2**63 - 1  # what slices without an end have

# Views -------------------------------------------------------------------------------------------


@row(
    "view", "reshape", "_unsafe_view", "_reshape_alias", "flatten.using_ints", "unflatten.int",
    "reshape_as", "view_as", "ravel", "view_copy",
)  # fmt: skip
def _reshape(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    return b.add("reshape", x.id, shape=b.shape(out.shape))


@row("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    return b.add("expand", x.id, shape=b.shape(out.shape))


@row("sum_to_size")
def _sum_to_size(b: Importer, out: Any, x: Tensor, sizes: Any) -> Any:
    """What broadcasting to the sizes of x would repeat is summed."""
    first = x.rank - out.dim()
    axes = list(range(first))
    for axis, size in enumerate(out.shape, first):
        if b.size(size) != b.size(x.shape[axis]):
            if b.size(size) != 1:
                raise Unsupported("sizes that may be equal")
            axes.append(axis)
    if not axes:
        return x if out.dtype == x.dtype else b.cast(x.id, out.dtype)
    value = b.add("sum", x.id, axes=axes, keepdims=True)
    return b.add("squeeze", value, axes=list(range(first))) if first else value


def _swapped(b: Importer, x: Tensor, i: int, j: int) -> int:
    axes = list(range(x.rank))
    if x.rank:
        i, j = axis_of(i, x.rank), axis_of(j, x.rank)
        axes[i], axes[j] = axes[j], axes[i]
    return b.add("permute", x.id, axes=axes)


@row("transpose.int", "swapaxes", "swapdims", "transpose_copy.int")
def _transpose(b: Importer, out: Any, x: Tensor, i: int, j: int) -> int:
    return _swapped(b, x, i, j)


@row("t", "t_copy")
def _t(b: Importer, out: Any, x: Tensor) -> Any:
    return x if x.rank < 2 else _swapped(b, x, 0, 1)


@row("mT", "adjoint")
def _matrix_transpose(b: Importer, out: Any, x: Tensor) -> int:
    return _swapped(b, x, -2, -1)


@row("numpy_T")
def _numpy_t(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("permute", x.id, axes=list(range(x.rank))[::-1])


@row("permute", "permute_copy")
def _permute(b: Importer, out: Any, x: Tensor, dims: Any) -> int:
    return b.add("permute", x.id, axes=[axis_of(d, x.rank) for d in dims])


@row("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(b: Importer, out: Any, x: Tensor, source: Any, destination: Any) -> int:
    source, destination = (
        [axis_of(d, x.rank) for d in (ds if isinstance(ds, list | tuple) else [ds])]
        for ds in (source, destination)
    )
    rest = iter(d for d in range(x.rank) if d not in source)
    to = dict(zip(destination, source, strict=True))
    return b.add("permute", x.id, axes=[to[d] if d in to else next(rest) for d in range(x.rank)])


@row("unsqueeze", "unsqueeze_copy")
def _unsqueeze(b: Importer, out: Any, x: Tensor, dim: int) -> int:
    axis = axis_of(dim, x.rank + 1)
    value = b.add("unsqueeze", x.id, axis=axis)
    if x.id in b.iotas:
        size, at = b.iotas[x.id]
        b.iotas[value] = size, at + (axis <= at)
    return value


@row(
    "squeeze", "squeeze.dim", "squeeze.dims",
    "squeeze_copy", "squeeze_copy.dim", "squeeze_copy.dims",
)  # fmt: skip
def _squeeze(b: Importer, out: Any, x: Tensor, dims: Any = None) -> Any:
    gone = squeezed(b, x, dims)
    return b.add("squeeze", x.id, axes=gone) if gone else x


def squeezed(b: Importer, x: Tensor, dims: Any = None) -> list[int]:
    """The axes that a squeeze drops; records that the others are not of size 1."""
    gone = []
    none = isinstance(dims, list | tuple) and not dims
    for axis in [] if none else axes_of(dims, x.rank):
        size = x.shape[axis]
        if b.size(size) == 1:  # a symbol may have become a constant
            gone.append(axis)
        else:
            b.not_one(size)
    return gone


def _is_no_end(end: Any) -> bool:
    return end is None or (is_number(end) and end == NO_END)


def _end(b: Importer, x: Tensor, axis: int, end: Any) -> int | str:
    if _is_no_end(end):
        return b.size(x.shape[axis])
    return b.size(end)


@row("slice.Tensor", "slice_copy.Tensor")
def _slice(b: Importer, out: Any, x: Tensor, dim: int, start: Any, end: Any, step: Any) -> Any:
    axis = axis_of(dim, x.rank)
    step = fixed(b, step)
    if not isinstance(step, int):
        raise Unsupported("the step is not known")
    start = 0 if start is None else start
    if is_number(start) and start == 0 and step == 1 and _is_no_end(end):
        return x
    if step == 1 and is_number(end) and is_number(start) and start == end - 1 >= 0:
        b.at_least(x.shape[axis], end)
        return b.add("unsqueeze", b.add("select", x.id, axis=axis, index=end - 1), axis=axis)
    return b.add(
        "slice",
        x.id,
        axis=axis,
        start=b.size(start),
        stop=_end(b, x, axis, end),
        step=step,
    )


@row("matrix_H", "mH", "adjoint")
def _adjoint(b: Importer, out: Any, x: Tensor) -> Any:
    return _swapped(b, x, -1, -2) if x.rank > 1 else x


@row("narrow", "narrow_copy")
def _narrow(b: Importer, out: Any, x: Tensor, dim: int, start: Any, length: Any) -> int:
    axis = axis_of(dim, x.rank)
    if is_number(start) and start < 0:
        start = x.shape[axis] + start
    return _part(b, x, axis, start, start + length)


def _part(b: Importer, x: Tensor, axis: int, start: Any, stop: Any) -> int:
    return b.add("slice", x.id, axis=axis, start=b.size(start), stop=b.size(stop), step=1)


@row("select.int", "select_copy.int")
def _select(b: Importer, out: Any, x: Tensor, dim: int, index: Any) -> int:
    axis = axis_of(dim, x.rank)
    if b.is_negative(index):
        index = x.shape[axis] + index
    return b.add("select", x.id, axis=axis, index=b.size(index))


def replaced(b: Importer, x: Tensor, part: int, length: Any, axis: int, start: Any) -> int:
    """`x` with `part` in place of what is at start .. start + length."""
    values = [part]
    if not (is_number(start) and start == 0):
        values.insert(0, _part(b, x, axis, 0, start))
    if b.size(start + length) != b.size(x.shape[axis]):
        values.append(_part(b, x, axis, start + length, x.shape[axis]))
    values = [b.cast(v, x.dtype) for v in values]
    return values[0] if len(values) == 1 else b.add("concat", *values, axis=axis)


@row(
    "split.Tensor", "split.sizes", "split_with_sizes", "chunk", "tensor_split.sections",
    "tensor_split.indices", "unsafe_split.Tensor", "unsafe_chunk", "split_with_sizes_copy",
)  # fmt: skip
def _split(b: Importer, out: Any, x: Tensor, how: Any, dim: int) -> tuple[Any, ...]:
    axis = axis_of(dim, x.rank)
    parts: list[Any] = []
    start: Any = 0
    for index, part in enumerate(out):
        stop = start + part.shape[axis]
        parts.append(_part(b, x, axis, start, stop) if b.used(index) else None)
        start = stop
    return tuple(parts)


@row("unbind.int", "unbind_copy.int")
def _unbind(b: Importer, out: Any, x: Tensor, dim: int) -> tuple[Any, ...]:
    axis = axis_of(dim, x.rank)
    return tuple(
        b.add("select", x.id, axis=axis, index=i) if b.used(i) else None for i in range(len(out))
    )


@row("flip")
def _flip(b: Importer, out: Any, x: Tensor, dims: Any) -> Any:
    axes = [axis_of(d, x.rank) for d in dims]
    return b.add("flip", x.id, axes=axes) if axes and x.rank else x


@row("roll")
def _roll(b: Importer, out: Any, x: Tensor, shifts: Any, dims: Any = ()) -> int:
    """What comes from the end, before the rest: parts of one concatenation, an axis at a time."""
    value, sizes = x.id, list(x.shape)
    flat = not dims and x.rank != 1
    if flat:
        sizes = [x.fake.numel()]
        value = b.add("reshape", value, shape=b.shape(sizes))
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        axis = axis_of(dim, len(sizes))
        size = sizes[axis]
        least: Any = torch.sym_max
        start = -shift % least(size, 1)
        if is_number(start) and start == 0:
            continue
        parts = [
            b.add("slice", value, axis=axis, start=b.size(low), stop=b.size(high), step=1)
            for low, high in ((start, size), (0, start))
        ]
        value = b.add("concat", *parts, axis=axis)
    return b.add("reshape", value, shape=b.shape(out.shape)) if flat else value


@row("repeat")
def _repeat(b: Importer, out: Any, x: Tensor, repeats: Any) -> int:
    sizes = [1] * (len(repeats) - x.rank) + list(x.shape)
    ones: list[Any] = []
    wide: list[Any] = []
    for times, size in zip(repeats, sizes, strict=True):
        ones += [1, size]
        wide += [times, size]
    if len(wide) > 8:
        raise Unsupported("too many axes")
    value = b.add("reshape", x.id, shape=b.shape(ones))
    value = b.add("expand", value, shape=b.shape(wide))
    return b.add("reshape", value, shape=b.shape(out.shape))


@row("repeat_interleave.self_int")
def _repeat_interleave(b: Importer, out: Any, x: Tensor, times: Any, dim: Any, *_: Any) -> int:
    value, sizes = x.id, list(x.shape)
    if dim is None:
        value = b.add("reshape", value, shape=[b.size(x.fake.numel())])
        sizes, dim = [x.fake.numel()], 0
    axis = axis_of(dim, len(sizes))
    if len(sizes) >= 8:
        raise Unsupported("too many axes")
    value = b.add("unsqueeze", value, axis=axis + 1)
    wide = [*sizes[: axis + 1], times, *sizes[axis + 1 :]]
    value = b.add("expand", value, shape=b.shape(wide))
    return b.add("reshape", value, shape=b.shape(out.shape))


# Layout ------------------------------------------------------------------------------------------


@row("cat", "concat", "concatenate")
def _cat(b: Importer, out: Any, tensors: Sequence[Tensor], dim: int) -> Any:
    parts = [t for t in tensors if t.rank == out.dim()]  # rank 1 and empty is left out, as it was
    values = [b.cast(t.id, out.dtype) for t in parts]
    if len(values) == 1:
        return Tensor(values[0], out)
    return b.add("concat", *values, axis=axis_of(dim, out.dim()))


@row("stack")
def _stack(b: Importer, out: Any, tensors: Sequence[Tensor], dim: int) -> int:
    axis = axis_of(dim, out.dim())
    values = [b.add("unsqueeze", b.cast(t.id, out.dtype), axis=axis) for t in tensors]
    return values[0] if len(values) == 1 else b.add("concat", *values, axis=axis)


def _triangle(b: Importer, x: Tensor, diagonal: Any, compare: str) -> int:
    rows, columns = x.shape[-2], x.shape[-1]
    i = b.add("unsqueeze", b.add("iota", size=b.size(rows), start=b.size(diagonal)), axis=1)
    j = b.add("iota", size=b.size(columns))
    return b.add("where", b.add(compare, j, i), x.id, b.number(0))


@row("tril")
def _tril(b: Importer, out: Any, x: Tensor, diagonal: Any) -> int:
    return _triangle(b, x, diagonal, "le")


def _on_diagonal(b: Importer, sizes: Sequence[Any], offset: Any) -> int:
    """Whether an element of the last two axes is on a diagonal."""
    i = b.add("unsqueeze", b.add("iota", size=b.size(sizes[-2]), start=b.size(offset)), axis=1)
    return b.add("eq", b.add("iota", size=b.size(sizes[-1])), i)


@row("trace")
def _trace(b: Importer, out: Any, x: Tensor) -> int:
    inside = b.add("where", _on_diagonal(b, x.shape, 0), x.id, b.number(0))
    return b.add("sum", inside, axes=[0, 1], keepdims=False)


@row("diag_embed")
def _diag_embed(b: Importer, out: Any, x: Tensor, offset: Any, one: int, other: int) -> int:
    """Elements along a diagonal of two new axes, zeros beside it."""
    rank = out.dim()
    one, other = axis_of(one, rank), axis_of(other, rank)
    sizes = [n for d, n in enumerate(out.shape) if d not in (one, other)]
    sizes += [out.shape[one], out.shape[other]]
    low = -min(offset, 0) if is_number(offset) else torch.sym_max(-offset, 0)  # type: ignore[no-untyped-call]
    high = low + offset  # of the column where the row is `low`
    row, column = (
        b.add("iota", size=b.size(n), start=b.size(-start))
        for n, start in zip(sizes[-2:], (low, high), strict=True)
    )
    hit = b.add("eq", b.add("unsqueeze", row, axis=1), column)
    count = x.shape[-1]
    if is_number(count) and count == 0:
        raise Unsupported("no elements")
    b.at_least(count, 1)
    last = b.number(count - 1)
    place = b.add("minimum", b.add("maximum", row, b.number(0)), last)
    value = b.add("unsqueeze", b.add("take", x.id, place, axis=x.rank - 1), axis=x.rank)
    inside = b.add("logical_and", hit, b.add("unsqueeze", b.add("eq", place, row), axis=1))
    made = b.add("where", inside, value, b.number(0))
    made = b.cast(b.add("expand", made, shape=b.shape(sizes)), x.dtype)
    order = [d for d in range(rank) if d not in (one, other)]
    place_in = {d: i for i, d in enumerate([*order, one, other])}
    return b.add("permute", made, axes=[place_in[d] for d in range(rank)])


@row("triu")
def _triu(b: Importer, out: Any, x: Tensor, diagonal: Any) -> int:
    return _triangle(b, x, diagonal, "ge")


# Gathers -----------------------------------------------------------------------------------------


def _check_slices(b: Importer, x: Tensor, axis: int) -> None:
    """What `axis` selects has elements: no kernel looks at the index of one that has none."""
    for size in (*x.shape[:axis], *x.shape[axis + 1 :]):
        if is_number(size) and size == 0:
            raise Unsupported("slices without elements")
        b.at_least(size, 1)


@row("embedding")
def _embedding(b: Importer, out: Any, weight: Tensor, index: Tensor, *_: Any) -> int:
    _check_slices(b, weight, 0)
    return b.add("take", weight.id, index.id, axis=0)


@row("index_select")
def _index_select(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor) -> int:
    _check_slices(b, x, axis_of(dim, x.rank) if x.rank else 0)
    whole = x.id if x.rank else b.add("reshape", x.id, shape=[1])
    places = b.add("reshape", index.id, shape=[b.size(index.fake.numel())])
    found = b.add("take", whole, places, axis=axis_of(dim, x.rank) if x.rank else 0)
    return b.add("reshape", found, shape=b.shape(out.shape))


@row("gather")
def _gather(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, *_: Any) -> int:
    if max(x.rank, 1) != max(index.rank, 1):
        raise Unsupported("other ranks")
    whole, places = (v.id if v.rank else b.add("reshape", v.id, shape=[1]) for v in (x, index))
    found = b.add("gather", whole, places, axis=axis_of(dim, max(x.rank, 1)))
    return found if index.rank else b.add("reshape", found, shape=[])


@row("index.Tensor", "_unsafe_index.Tensor")
def _index(b: Importer, out: Any, x: Tensor, indices: Sequence[Tensor | None]) -> int:
    """A mask, or integer tensors: one gather, at the position they say together. Where they are not
    on neighbouring axes, these come first.
    """
    axes = [a for a, index in enumerate(indices) if index is not None]
    used = [index for index in indices if index is not None]
    if torch_masks.has_mask(indices):
        return torch_masks.index(b, out, x, indices)
    if axes == list(range(len(axes))) and (view := _all_of(b, x, used)) is not None:
        return view
    x, axes, _ = together(b, x, axes)
    first, last, position, total = sliced(b, x, axes, used)
    value = x.id
    if last > first:
        shape = b.shape([*x.shape[:first], total, *x.shape[last + 1 :]])
        value = b.add("reshape", value, shape=shape)
    return b.add("take", value, position, axis=first)


def together(b: Importer, x: Tensor, axes: list[int]) -> tuple[Tensor, list[int], list[int]]:
    """X with these axes first, unless they are neighbours; where they are then, and the order."""
    if not axes or axes[-1] - axes[0] < len(axes):
        return x, axes, list(range(x.rank))
    order = [*axes, *(a for a in range(x.rank) if a not in axes)]
    turned = Tensor(b.add("permute", x.id, axes=order), x.fake.permute(order))
    return turned, list(range(len(axes))), order


def place_of(b: Importer, index: Tensor, size: Any) -> int:
    """The index, counted from the front where it is negative."""
    negative = b.add("lt", index.id, b.number(0))
    return b.add("where", negative, b.add("add", index.id, b.number(size)), index.id)


def sliced(
    b: Importer, x: Tensor, axes: Sequence[int], used: Sequence[Tensor]
) -> tuple[int, int, int, Any]:
    """First and last of neighbouring axes, the position among all their elements that indices on
    them say together, and how many elements that is. Raises: Unsupported, if they are none.
    """
    if not axes or list(axes) != list(range(axes[0], axes[0] + len(axes))):
        raise Unsupported("indices on axes that are not neighbours")
    position = -1
    inside = -1
    total: Any = 1
    for axis, index in zip(axes, used, strict=True):
        size = b.number(x.shape[axis])
        total = total * x.shape[axis]
        wrapped = place_of(b, index, x.shape[axis])
        if len(axes) > 1:
            ok = b.add("logical_and", b.add("ge", wrapped, b.number(0)), b.add("lt", wrapped, size))
            inside = ok if inside < 0 else b.add("logical_and", inside, ok)
        position = wrapped if position < 0 else b.add("add", b.add("mul", position, size), wrapped)
    if len(axes) > 1:
        # an index that is out of bounds on its own axis must not find a neighbour's element
        position = b.add("where", inside, position, b.number(total))
    return axes[0], axes[-1], position, total


def _all_of(b: Importer, x: Tensor, indices: Sequence[Tensor]) -> int | None:
    """x[i[:, None], j] where i and j count all of their axes: a view. Masks are made so."""
    found = [b.iotas.get(index.id) for index in indices]
    rank = max(index.rank for index in indices)
    dims: list[int] = []
    for axis, (index, iota) in enumerate(zip(indices, found, strict=True)):
        if iota is None or not b.same_size(iota[0], x.shape[axis]):
            return None
        dims.append(iota[1] + rank - index.rank)
    if len(set(dims)) != len(dims):
        return None
    order = sorted(range(len(dims)), key=lambda axis: dims[axis])
    value = b.add("permute", x.id, axes=[*order, *range(len(dims), x.rank)])
    for dim in range(rank):
        if dim not in dims:
            value = b.add("unsqueeze", value, axis=dim)
    return value


# Create ------------------------------------------------------------------------------------------


def filled(b: Importer, value: Any, dtype: torch.dtype, sizes: Sequence[Any]) -> int:
    """A tensor of one number."""
    name = str(dtype)[6:]
    if is_number(fitting(value, dtype)):
        return b.add("full", shape=b.shape(sizes), value=value, dtype=name)
    if not isinstance(value, Tensor):  # `fill_` casts the elements of those
        b.must_fit(value, dtype)
    scalar = b.add("cast", b.operand(value), dtype=name)
    return b.add("expand", scalar, shape=b.shape(sizes)) if len(sizes) else scalar


def _filled(b: Importer, out: Any, value: Any) -> int:
    return filled(b, value, out.dtype, out.shape)


@row("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "zero",
     "empty_strided", "new_empty_strided")  # fmt: skip
def _zeros(b: Importer, out: Any, *_: Any) -> int:
    return _filled(b, out, 0)


@row("ones", "ones_like", "new_ones")
def _ones(b: Importer, out: Any, *_: Any) -> int:
    return _filled(b, out, 1)


@row("full", "full_like", "fill.Scalar", "fill.Tensor")
def _full(b: Importer, out: Any, _: Any, value: Any, *__: Any) -> int:
    return _filled(b, out, value)


@row("new_full")
def _new_full(b: Importer, out: Any, _: Any, __: Any, value: Any, *___: Any) -> int:
    return _filled(b, out, value)


@row("scalar_tensor")
def _scalar_tensor(b: Importer, out: Any, value: Any, *_: Any) -> int:
    return _filled(b, out, value)


@row("copy")
def _copy(b: Importer, out: Any, x: Tensor, source: Tensor, *_: Any) -> int:
    value = b.cast(source.id, out.dtype)
    return b.add("expand", value, shape=b.shape(out.shape)) if out.dim() else value


def _range(b: Importer, out: Any, start: Any, step: Any) -> int:
    if isinstance(start, float) and start.is_integer():
        start = int(start)
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if any(isinstance(n, float | torch.SymFloat) for n in (start, step)):
        if not out.dtype.is_floating_point:
            raise Unsupported("steps that are not integers")
        places = b.cast(b.add("iota", size=b.size(out.shape[0])), torch.float64)
        return b.add("add", b.add("mul", places, b.number(step)), b.number(start))
    value = b.add("iota", size=b.size(out.shape[0]), start=b.size(start), step=b.size(step))
    if is_number(start) and start == 0 and is_number(step) and step == 1:
        b.iotas[value] = out.shape[0], 0
    return value


@row("arange")
def _arange(b: Importer, out: Any, end: Any, *_: Any) -> int:
    return _range(b, out, 0, 1)


@row("arange.start")
def _arange_start(b: Importer, out: Any, start: Any, end: Any, *_: Any) -> int:
    return _range(b, out, start, 1)


@row("arange.start_step")
def _arange_step(b: Importer, out: Any, start: Any, end: Any, step: Any, *_: Any) -> int:
    numbers = (start, end, step)
    if any(isinstance(n, float | torch.SymFloat) for n in numbers):
        # PyTorch says what is wrong.
        if not all(map(is_number, numbers)) or not step or (end - start) / step < 0:
            raise Unsupported("bounds that may be inconsistent")
    return _range(b, out, start, step)
