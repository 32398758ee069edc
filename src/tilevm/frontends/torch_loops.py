"""ATen operators that write at run-time places, that scan, or that sort: rows as in `torch_ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends import torch_masks
from tilevm.frontends.torch_norms import ROWS
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    axis_of,
    fixed,
    is_number,
    is_same,
    packet,
    row,
    scaled,
)
from tilevm.frontends.torch_reductions import as_dtype
from tilevm.frontends.torch_views import filled, place_of, sliced, together

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_MOST_DIFFERENCES = 32

# Scans, and differences, which undo them ---------------------------------------------------------


@row("cumsum", "cumprod")
def _scan(b: Importer, out: Any, x: Tensor, dim: int, dtype: Any = None) -> int:
    if out.dtype is torch.bool:
        raise Unsupported("of bools")  # PyTorch says so
    value = as_dtype(b, x, dtype)
    return b.add(packet(b), value, axis=axis_of(dim, x.rank)) if x.rank else value


@row("logcumsumexp")
def _logcumsumexp(b: Importer, out: Any, x: Tensor, dim: int) -> Any:
    if not x.is_float:
        raise Unsupported("not floating point")  # PyTorch says so
    return b.add("logcumsumexp", x.id, axis=axis_of(dim, x.rank)) if x.rank else x


@row("diff")
def _diff(
    b: Importer, out: Any, x: Tensor, n: Any, dim: int, before: Tensor | None, after: Tensor | None
) -> Any:
    """Differences of neighbours, n times, or until there are none left."""
    if fixed(b, n) == 0:
        return x
    axis = axis_of(dim, x.rank)
    parts = [t for t in (before, x, after) if t is not None]
    if any(t.dtype != out.dtype or t.rank != x.rank for t in parts):
        raise Unsupported("other dtypes or ranks")
    values = [t.id for t in parts]
    value = values[0] if len(values) == 1 else b.add("concat", *values, axis=axis)
    size = sum(t.shape[axis] for t in parts)
    times = b.size(size - out.shape[axis])
    if not isinstance(times, int) or times > _MOST_DIFFERENCES:
        raise Unsupported("how often is not known, or very often")
    difference = "ne" if out.dtype is torch.bool else "sub"
    for done in range(1, times + 1):
        stop = b.size(size - done)
        later = b.add("slice", value, axis=axis, start=1, stop=b.size(size - done + 1), step=1)
        earlier = b.add("slice", value, axis=axis, start=0, stop=stop, step=1)
        value = b.add(difference, later, earlier)
    return value


@row("cummax", "cummin")
def _extremes(b: Importer, out: Any, x: Tensor, dim: int) -> tuple[Any, ...]:
    """Of equal ones, the place of the last."""
    if not x.rank:
        return x, b.add("full", shape=[], value=0, dtype="int64")
    axis = axis_of(dim, x.rank)
    value = b.add(packet(b), x.id, axis=axis)
    if not b.used(1):
        return value, None
    is_it = b.add("eq", x.id, value)
    if x.is_float:
        is_it = b.add("logical_or", is_it, b.add("isnan", x.id))
    shape = [1] * x.rank
    shape[axis] = x.shape[axis]
    place = b.add("reshape", b.add("iota", size=b.size(x.shape[axis])), shape=b.shape(shape))
    found = b.add("where", is_it, place, b.number(0))
    return value, b.add("cummax", found, axis=axis)


# Scatters ----------------------------------------------------------------------------------------

_BY_NAME = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max",
            "amin": "min", "mean": "add"}  # fmt: skip


def _identity(reduce: str, dtype: torch.dtype) -> float | int:
    """What changes nothing that it is reduced with."""
    kind = _BY_NAME[reduce]
    if kind in ("add", "mul"):
        return int(kind == "mul")
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def _as_rows(b: Importer, value: int, rank: int) -> int:
    """A scalar as a row of one element."""
    return value if rank else b.add("reshape", value, shape=[1])


def _scattered(
    b: Importer, op: str, x: Tensor, dim: int, index: Tensor, source: Tensor | int
) -> int:
    """source: a tensor that covers the index, or a value of its sizes."""
    if max(x.rank, 1) != max(index.rank, 1):
        raise Unsupported("other ranks")
    value = source.id if isinstance(source, Tensor) else source
    if isinstance(source, Tensor):
        for axis, (whole, part) in enumerate(zip(source.shape, index.shape, strict=True)):
            if b.size(whole) != b.size(part):
                value = b.add("slice", value, axis=axis, start=0, stop=b.size(part), step=1)
        value = _as_rows(b, value, source.rank)
    elif not index.rank:
        value = b.add("reshape", value, shape=[1])
    whole, places = _as_rows(b, x.id, x.rank), _as_rows(b, index.id, index.rank)
    value = b.cast(value, x.dtype)
    made = b.add(op, whole, places, value, axis=axis_of(dim, x.rank) if x.rank else 0)
    return made if x.rank else b.add("reshape", made, shape=[])


def _reduced(
    b: Importer, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, whole: bool
) -> int:
    """whole: what x holds takes part. Means are sums over counts."""
    op = f"scatter_{_BY_NAME[reduce]}"

    def number(value: Any) -> int:
        one = filled(b, value, x.dtype, [1] * index.rank)
        return b.add("expand", one, shape=b.shape(index.shape))

    if reduce == "mean" and not whole and x.is_float:
        # Where nothing is counted, x stays. Floats never count back to 0, as integers do.
        zeros = Tensor(filled(b, 0, x.dtype, x.shape), x.fake)
        count = _scattered(b, op, zeros, dim, index, number(1))
        none = b.add("eq", count, b.number(0.0))
        start = Tensor(b.add("where", none, x.id, b.number(0.0)), x.fake)
        value = _scattered(b, op, start, dim, index, source)
        return b.add("div", value, b.add("where", none, b.number(1.0), count))
    start = x
    if not whole:
        empty = _scattered(b, "scatter", x, dim, index, number(_identity(reduce, x.dtype)))
        start = Tensor(empty, x.fake)
    value = _scattered(b, op, start, dim, index, source)
    if reduce != "mean":
        return value
    counts = Tensor(filled(b, 1, x.dtype, x.shape), x.fake)
    if not whole:
        counts = Tensor(_scattered(b, "scatter", counts, dim, index, number(0)), x.fake)
    count = _scattered(b, op, counts, dim, index, number(1))
    return b.add("div" if x.is_float else "floor_div", value, count)


@row("scatter.src", "scatter_add")
def _scatter(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, source: Tensor) -> int:
    return _scattered(b, packet(b), x, dim, index, source)


@row("scatter.value")
def _scatter_value(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, value: Any) -> int:
    return _scattered(b, "scatter", x, dim, index, filled(b, value, x.dtype, index.shape))


@row("one_hot")
def _one_hot(b: Importer, out: Any, x: Tensor, classes: Any) -> int:
    """Where a class is out of range, the scatter says so."""
    if is_number(classes) and classes < 0:
        raise Unsupported("as many classes as data say")
    zeros = Tensor(filled(b, 0, out.dtype, out.shape), out)
    places = Tensor(b.add("unsqueeze", x.id, axis=x.rank), x.fake.unsqueeze(-1))
    return _scattered(b, "scatter", zeros, -1, places, filled(b, 1, out.dtype, places.shape))


@row("scatter.value_reduce")
def _scatter_value_reduce(
    b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, value: Any, reduce: str
) -> int:
    source = filled(b, value, x.dtype, index.shape)
    return _scattered(b, f"scatter_{_BY_NAME[reduce]}", x, dim, index, source)


@row("scatter_reduce.two", "scatter.reduce")
def _scatter_reduce(
    b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str,
    include_self: bool = True,
) -> int:  # fmt: skip
    return _reduced(b, x, dim, index, source, reduce, include_self)


def _lifted(b: Importer, x: Tensor) -> Tensor:
    """A scalar as a row of one element."""
    return x if x.rank else Tensor(_as_rows(b, x.id, 0), x.fake.reshape(1))


def _along(b: Importer, x: Tensor, dim: int, index: Tensor, sizes: Sequence[Any]) -> Tensor:
    """A row of indices for `dim`, as many as the `sizes` beside it."""
    axis = axis_of(dim, x.rank)
    shape = [1] * x.rank
    shape[axis] = index.fake.numel()
    value = b.add("reshape", index.id, shape=b.shape(shape))
    wide = [*sizes[:axis], index.fake.numel(), *sizes[axis + 1 :]]
    fake = index.fake.new_empty(wide)
    return Tensor(b.add("expand", value, shape=b.shape(wide)), fake)


def _must_match(b: Importer, x: Tensor, dim: int, source: Tensor) -> None:
    """Raise Unsupported unless the source is as large as x but along `dim`: the metadata do not."""
    axis = axis_of(dim, x.rank)
    for i, (whole, part) in enumerate(zip(x.shape, source.shape, strict=True)):
        if i != axis and not is_same(b, whole, part):
            raise Unsupported("a source of other sizes")


@row("index_add", "index_copy")
def _index_add(
    b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1
) -> int:
    # (A scalar is copied to a row, and a row of one element to a scalar.)
    if packet(b) == "index_add" and source.rank != x.rank:
        raise Unsupported("other ranks")
    whole, source = _lifted(b, x), _lifted(b, source)
    if source.rank != whole.rank:
        raise Unsupported("other ranks")
    _must_match(b, whole, dim, source)
    value = Tensor(scaled(b, source.id, alpha), source.fake)
    op = "scatter_add" if packet(b) == "index_add" else "scatter"
    places = _along(b, whole, dim, index, source.shape)
    made = _scattered(b, op, whole, dim, places, value)
    return b.add("reshape", made, shape=b.shape(x.shape))


@row("index_reduce")
def _index_reduce(
    b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str,
    include_self: bool,
) -> int:  # fmt: skip
    if source.rank != x.rank:
        raise Unsupported("other ranks")
    whole, source = _lifted(b, x), _lifted(b, source)
    _must_match(b, whole, dim, source)
    places = _along(b, whole, dim, index, source.shape)
    made = _reduced(b, whole, dim, places, source, reduce, include_self)
    return b.add("reshape", made, shape=b.shape(x.shape))


@row("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, value: Any) -> int:
    whole = _lifted(b, x)
    size = whole.shape[axis_of(dim, whole.rank)]
    places = _along(b, whole, dim, Tensor(place_of(b, index, size), index.fake), whole.shape)
    b.must_fit(value, x.dtype)
    source = filled(b, value, x.dtype, places.shape)
    made = _scattered(b, "scatter", whole, dim, places, source)
    return b.add("reshape", made, shape=b.shape(x.shape))


@row("_unsafe_masked_index")
def _masked_index(
    b: Importer, out: Any, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Any
) -> int:
    """x[indices] where the mask is true; elsewhere indices may be anything."""
    axes = [a for a, index in enumerate(indices) if index is not None]
    used = []
    for axis in axes:
        index = indices[axis]
        assert index is not None
        last = b.number(x.shape[axis] - 1)
        inside = b.add("minimum", b.add("maximum", index.id, b.number(0)), last)
        used.append(Tensor(inside, index.fake))
    first, last_axis, position, total = sliced(b, x, axes, used)
    shape = [*x.shape[:first], total, *x.shape[last_axis + 1 :]]
    flat = b.add("reshape", x.id, shape=b.shape(shape))
    return b.add("where", mask.id, b.add("take", flat, position, axis=first), b.operand(fill))


@row("index_put", "_unsafe_index_put")
def _index_put(
    b: Importer, out: Any, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False, *_: Any,
) -> int:  # fmt: skip
    """Integer tensors, or a mask."""
    axes = [a for a, index in enumerate(indices) if index is not None]
    used = [index for index in indices if index is not None]
    if values.dtype != x.dtype:
        raise Unsupported("other dtypes")  # PyTorch says so
    if torch_masks.has_mask(indices):
        return torch_masks.index_put(b, x, indices, values, accumulate)
    x, axes, order = together(b, x, axes)
    first, last, position, total = sliced(b, x, axes, used)
    shape = [*x.shape[:first], total, *x.shape[last + 1 :]]
    flat = x.fake.new_empty(shape)
    whole = Tensor(b.add("reshape", x.id, shape=b.shape(shape)), flat)
    common = sum((index.fake for index in used[1:]), used[0].fake).shape  # broadcast
    count: Any = 1
    for size in common:
        count = count * size
    wide = [*x.shape[:first], *common, *x.shape[last + 1 :]]
    merged = [*x.shape[:first], count, *x.shape[last + 1 :]]
    source = b.add("expand", b.cast(values.id, x.dtype), shape=b.shape(wide)) if wide else values.id
    source = b.add("reshape", source, shape=b.shape(merged))
    if b.shape(common):
        position = b.add("expand", position, shape=b.shape(common))
    index = Tensor(position, used[0].fake.new_empty(common))
    places = _along(b, whole, first, index, merged)
    made = _scattered(b, "scatter_add" if accumulate else "scatter", whole, first, places, source)
    made = b.add("reshape", made, shape=b.shape(x.shape))
    back = [list(order).index(axis) for axis in range(x.rank)]
    return made if back == sorted(back) else b.add("permute", made, axes=back)


@row("_unsafe_masked_index_put_accumulate")
def _masked_index_put(
    b: Importer, out: Any, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Any:
    """Adds at x[indices] where the mask is true; elsewhere indices may be anything."""
    inside: list[Tensor | None] = []
    for size, index in zip(x.shape, indices, strict=False):
        if index is None:
            inside.append(None)
            continue
        low = b.add("maximum", index.id, b.number(-size))
        inside.append(Tensor(b.add("minimum", low, b.number(size - 1)), index.fake))
    kept = b.add("where", mask.id, values.id, b.number(0))
    return _index_put(b, out, x, inside, Tensor(kept, values.fake), True)


@row("put")
def _put(b: Importer, out: Any, x: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> int:
    count, size = index.fake.numel(), x.fake.numel()
    row_of = [[b.size(n)] for n in (size, count, count)]
    values = (x.id, place_of(b, index, size), source.id)
    flat = [b.add("reshape", v, shape=s) for v, s in zip(values, row_of, strict=True)]
    made = b.add("scatter_add" if accumulate else "scatter", *flat, axis=0)
    return b.add("reshape", made, shape=b.shape(x.shape))


@row("take")
def _take(b: Importer, out: Any, x: Tensor, index: Tensor) -> int:
    flat = b.add("reshape", x.id, shape=[b.size(x.fake.numel())])
    return b.add("take", flat, place_of(b, index, x.fake.numel()), axis=0)


@row("embedding_dense_backward")
def _embedding_backward(
    b: Importer, out: Any, grad: Tensor, index: Tensor, weights: Any, padding: Any, by_count: bool
) -> int:
    if by_count:
        raise Unsupported("gradients over counts")
    width, count = grad.shape[-1], index.fake.numel()
    rows = b.add("reshape", grad.id, shape=b.shape([count, width]))
    places = b.add("reshape", index.id, shape=b.shape([count, 1]))
    if not is_number(padding) or padding >= 0:
        rows = b.add("where", b.add("eq", places, b.number(padding)), b.number(0), rows)
    places = b.add("expand", places, shape=b.shape([count, width]))
    start = filled(b, 0, grad.dtype, [weights, width])
    return b.add("scatter_add", start, places, b.cast(rows, grad.dtype), axis=0)


@row("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(
    b: Importer, out: Any, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any,
    padding: Any, dilation: Any, ceil: bool, index: Tensor,
) -> int:  # fmt: skip
    return planes(b, "scatter_add", grad, index, x.shape, len(kernel))


@row("max_unpool2d", "max_unpool3d")
def _max_unpool(b: Importer, out: Any, x: Tensor, index: Tensor, *_: Any) -> int:
    return planes(b, "scatter", x, index, out.shape, 2 if packet(b) == "max_unpool2d" else 3)


def planes(
    b: Importer, op: str, x: Tensor, index: Tensor, sizes: Sequence[Any], spatial: int
) -> int:
    """Elements of x at their places within zeros of `sizes`, counted over the last dims."""
    outer = list(sizes[: len(sizes) - spatial])
    inside, whole = math.prod(x.shape[x.rank - spatial :]), math.prod(sizes[len(outer) :])
    values = [b.add("reshape", v, shape=b.shape([*outer, inside])) for v in (index.id, x.id)]
    made = b.add(op, filled(b, 0, x.dtype, [*outer, whole]), *values, axis=len(outer))
    return b.add("reshape", made, shape=b.shape(sizes))


@row("masked_scatter")
def _masked_scatter(b: Importer, out: Any, x: Tensor, mask: Tensor, source: Tensor) -> int:
    """The i-th true element takes the i-th element of source."""
    count = source.fake.numel()
    if not x.rank or (is_number(count) and count == 0):
        raise Unsupported("a scalar, or no elements")
    b.at_least(count, 1)
    wide = b.add("expand", mask.id, shape=b.shape(out.shape))
    total = [b.size(out.numel())]
    flat = b.add("reshape", wide, shape=total)
    place = b.add("sub", b.add("cumsum", flat, axis=0), b.number(1))
    place = b.add("where", flat, place, b.number(0))
    found = b.add("take", b.add("reshape", source.id, shape=[b.size(count)]), place, axis=0)
    return b.add("where", wide, b.add("reshape", found, shape=b.shape(out.shape)), x.id)
