"""ATen operators whose results have as many elements as the data say: those that are not zero, that
a mask chooses, that differ. Rows as in `torch_ops`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_data import most_of
from tilevm.frontends.torch_masks import Chosen, flattened
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    axis_of,
    fixed,
    is_number,
    is_small,
    row,
)
from tilevm.frontends.torch_polynomials import ROWS
from tilevm.frontends.torch_views import filled

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]


def _coordinates(b: Importer, places: int, sizes: Sequence[Any]) -> list[int]:
    """Of places in row-major order: quotients in float64, which are exact up to 2^53."""
    found: list[int] = []
    for size in reversed(sizes[1:]):
        quotient = b.add("div", b.cast(places, torch.float64), b.number(size))
        whole = b.cast(b.add("floor", quotient), torch.int64)
        found.append(b.add("sub", places, b.add("mul", whole, b.number(size))))
        places = whole
    return [places, *reversed(found)]


def _table(b: Importer, columns: Sequence[int]) -> int:
    """[count, columns]."""
    wide = [b.add("unsqueeze", c, axis=1) for c in columns]
    return wide[0] if len(wide) == 1 else b.add("concat", *wide, axis=1)


def _not_zero(b: Importer, x: Tensor, most: Any = None) -> Chosen:
    mask = x.id if x.dtype is torch.bool else b.add("ne", x.id, b.number(0))
    size = x.fake.numel()
    return Chosen(b, flattened(b, mask, size), size, most)


def _no_columns(b: Importer, count: int | str) -> int:
    """What a scalar has for coordinates."""
    return b.add("full", shape=[count, 0], value=0, dtype="int64")


@row("nonzero", "argwhere")
def _nonzero(b: Importer, out: Any, x: Tensor) -> int:
    chosen = _not_zero(b, x)
    if not x.rank:
        return _no_columns(b, chosen.count)
    return _table(b, _coordinates(b, chosen.where(), x.shape))


@row("nonzero_numpy", "where.default")
def _nonzero_numpy(b: Importer, out: Any, x: Tensor) -> tuple[int, ...]:
    return tuple(_coordinates(b, _not_zero(b, x).where(), x.shape or [1]))


@row("nonzero_static")
def _nonzero_static(b: Importer, out: Any, x: Tensor, most: Any, fill: int) -> int:
    """The first ones, and `fill` where there are not as many."""
    chosen = _not_zero(b, x, most)
    if not x.rank:
        return _no_columns(b, chosen.count)
    places = chosen.where(-1)
    filler = b.number(fixed(b, fill))
    missing = b.add("lt", places, b.number(0))
    columns = _coordinates(b, places, x.shape)
    return _table(b, [b.add("where", missing, filler, c) for c in columns])


@row("masked_select")
def _masked_select(b: Importer, out: Any, x: Tensor, mask: Tensor) -> int:
    if mask.dtype is not torch.bool:
        raise Unsupported("a mask of integers")
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    size = math.prod(shape)
    wide = b.shape(shape)
    values = (b.add("expand", v, shape=wide) if wide else v for v in (x.id, mask.id))
    value, kept = (flattened(b, v, size) for v in values)
    return Chosen(b, kept, size).put(value, str(x.dtype)[6:])


@row("combinations")
def _combinations(b: Importer, out: Any, x: Tensor, r: Any, again: bool) -> int:
    """Places of all tuples that ascend."""
    r = fixed(b, r)
    if not is_number(r) or not 1 <= r <= 4:
        raise Unsupported("tuples of no elements, or of many")
    n = x.shape[0]
    size = n**r
    places = b.add("iota", size=b.size(size))
    columns = _coordinates(b, places, [n] * r)
    kept = b.add("ge", places, b.number(0))
    for one, following in pairwise(columns):
        ascends = b.add("le" if again else "lt", one, following)
        kept = b.add("logical_and", kept, ascends)
    chosen = _coordinates(b, Chosen(b, kept, size).where(), [n] * r)
    return _table(b, [b.add("take", x.id, c, axis=0) for c in chosen])


_MOST_IN_RUNS = 1 << 13

# Elements that differ ----------------------------------------------------------------------------


def _runs(b: Importer, out: Any, x: Tensor, line: int, size: Any, order: int | None) -> Any:
    """The first of each run of equal elements of a row; of which run each is; their lengths."""
    place, before = _neighbours(b, size)
    begins = b.add("ne", line, b.add("take", line, before, axis=0))
    begins = b.add("logical_or", begins, b.add("eq", place, b.number(0)))
    chosen = Chosen(b, begins, size)
    value = chosen.put(line, str(x.dtype)[6:])
    run = b.add("sub", chosen.rank, b.number(1))
    inverse = None
    if b.used(1):
        inverse = run
        if order is not None:
            start = b.add("full", shape=[b.size(size)], value=0, dtype="int64")
            inverse = b.add("scatter", start, order, run, axis=0)
        inverse = b.add("reshape", inverse, shape=b.shape(out[1].shape))
    return value, inverse, _lengths(b, run, size, chosen)


def _check_runs(b: Importer, x: Tensor, inverse: bool, counts: bool) -> Any:
    size = x.fake.numel()
    if x.dtype is torch.bool or (is_number(size) and size == 0):
        raise Unsupported("bools, or no elements")
    if (b.used(1) and not inverse) or (b.used(2) and not counts):
        raise Unsupported("a result that was not asked for")
    return size


@row("_unique2")
def _unique(b: Importer, out: Any, x: Tensor, in_order: bool, inverse: bool, counts: bool) -> Any:
    size = _check_runs(b, x, inverse, counts)
    flat = flattened(b, x.id, size)
    order = b.add("argsort", flat, axis=0)
    return _runs(b, out, x, b.add("gather", flat, order, axis=0), size, order)


@row("unique_consecutive")
def _unique_consecutive(
    b: Importer, out: Any, x: Tensor, inverse: bool, counts: bool, dim: int | None
) -> Any:
    if dim is not None and x.rank > 1:
        if b.size(x.shape[dim]) == 0:
            return tuple(filled(b, 0, o.dtype, o.shape) for o in out)
        return _runs_of_slices(b, x, axis_of(dim, x.rank), inverse, counts)
    size = _check_runs(b, x, inverse, counts)
    if not is_small(b, size, _MOST_IN_RUNS):
        raise Unsupported("many elements")  # two loops: PyTorch's one is quicker
    return _runs(b, out, x, flattened(b, x.id, size), size, None)


def _neighbours(b: Importer, size: Any) -> tuple[int, int]:
    """The place of each element of a row, and of the one before it."""
    place = b.add("iota", size=b.size(size))
    return place, b.add("maximum", b.add("sub", place, b.number(1)), b.number(0))


def _runs_of_slices(b: Importer, x: Tensor, axis: int, inverse: bool, counts: bool) -> Any:
    """As `_runs`, of what lies beside each other on an axis."""
    for n in x.shape:
        b.at_least(n, 1)
    if not is_small(b, _check_runs(b, x, inverse, counts), _MOST_IN_RUNS):
        raise Unsupported("many elements")
    size = x.shape[axis]
    place, before = _neighbours(b, size)
    differs = b.add("ne", x.id, b.add("take", x.id, before, axis=axis))
    others = [d for d in range(x.rank) if d != axis]
    begins = b.add("any", differs, axes=others, keepdims=False)
    begins = b.add("logical_or", begins, b.add("eq", place, b.number(0)))
    chosen = Chosen(b, begins, size)
    run = b.add("sub", chosen.rank, b.number(1))
    value = b.add("take", x.id, chosen.where(), axis=axis)
    return value, run if b.used(1) else None, _lengths(b, run, size, chosen)


def _lengths(b: Importer, run: int, size: Any, chosen: Chosen) -> int | None:
    """How many elements each run has, if that is used."""
    if not b.used(2):
        return None
    ones = b.add("full", shape=[b.size(size)], value=1, dtype="int64")
    start = b.add("full", shape=[chosen.count], value=0, dtype="int64")
    return b.add("scatter_add", start, run, ones, axis=0)


# Counts ------------------------------------------------------------------------------------------


@row("histc")
def _histc(b: Importer, out: Any, x: Tensor, bins: Any, low: Any, high: Any) -> int:
    """Between the least and the largest element, if both bounds are one number."""
    if x.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"counts of {str(x.dtype)[6:]}")
    size = x.fake.numel()
    if b.size(size) == 0:
        return filled(b, 0, x.dtype, out.shape)
    for n in x.shape:
        b.at_least(n, 1)
    flat = flattened(b, x.id, size)
    known = is_number(low) and is_number(high) and low < high
    left, right = (b.cast(b.number(v), x.dtype) for v in (low, high))
    if not known:
        same = b.add("eq", left, right)
        ends = [b.add(op, flat, axes=[0], keepdims=False) for op in ("amin", "amax")]
        left, right = (
            b.add("where", same, end, v) for end, v in zip(ends, (left, right), strict=True)
        )
        finite = b.add("logical_and", b.add("isfinite", left), b.add("isfinite", right))
        good = b.add("logical_and", finite, b.add("le", left, right))
        bad = b.cast(b.add("logical_not", good), torch.float64)
        most_of(b, bad, 0, 0, "histc: bounds that are not finite, or the wrong way round")
        same = b.add("eq", left, right)
        one = b.number(1.0)
        left, right = (
            b.add("where", same, b.add(op, v, one), v) for op, v in (("sub", left), ("add", right))
        )
    count = out.shape[0]
    inside = b.add("logical_and", b.add("ge", flat, left), b.add("le", flat, right))
    place = b.add("mul", b.add("sub", flat, left), b.cast(b.number(count), x.dtype))
    place = b.add("div", place, b.add("sub", right, left))
    place = b.cast(b.add("where", inside, place, b.number(0.0)), torch.int64)
    place = b.add("minimum", place, b.number(count - 1))
    place = b.add("where", inside, place, b.number(count))
    start = filled(b, 0, torch.int64, [count + 1])
    ones = filled(b, 1, torch.int64, [size])
    counts = b.add("scatter_add", start, place, ones, axis=0)
    counts = b.add("slice", counts, axis=0, start=0, stop=b.size(count), step=1)
    return b.cast(counts, x.dtype)


def _edges(b: Importer, x: Tensor, flat: int, low: Any, high: Any) -> tuple[int, int]:
    """The ends of a histogram: those of the data, if none are given."""
    if low is not None:
        return b.cast(b.number(low), x.dtype), b.cast(b.number(high), x.dtype)
    left, right = (b.add(op, flat, axes=[0], keepdims=False) for op in ("amin", "amax"))
    finite = b.add("logical_and", b.add("isfinite", left), b.add("isfinite", right))
    bad = b.cast(b.add("logical_not", finite), torch.float64)
    most_of(b, bad, 0, 0, "histogram: elements that are not finite")
    same, half = b.add("eq", left, right), b.number(0.5)
    return (
        b.add("where", same, b.add("sub", left, half), left),
        b.add("where", same, b.add("add", right, half), right),
    )


@row("histogram.bin_ct")
def _histogram(
    b: Importer, out: Any, x: Tensor, bins: Any, ends: Any, weight: Tensor | None, density: bool
) -> tuple[int, int]:
    """As many equal parts, whose edges are a result, too."""
    if x.dtype is not torch.float32 or (ends is not None and len(ends) != 2):
        raise Unsupported("other dtypes")
    for n in x.shape:
        b.at_least(n, 1)
    size, count = x.fake.numel(), out[0].shape[0]
    if is_number(size) and size == 0:
        raise Unsupported("no elements")
    flat = flattened(b, x.id, size)
    left, right = _edges(b, x, flat, *(ends or (None, None)))
    i = b.add("iota", size=b.size(count + 1))
    many = b.cast(b.number(count), x.dtype)
    step = b.add("div", b.add("sub", right, left), many)
    near = b.add("add", left, b.add("mul", step, b.cast(i, x.dtype)))
    back = b.cast(b.add("sub", b.number(count), i), x.dtype)
    far = b.add("sub", right, b.add("mul", step, back))
    half = b.number((count + 1) // 2)
    edges = b.add("where", b.add("lt", i, half), near, far)  # as linspace has them
    edges = b.cast(edges, x.dtype)
    inside = b.add("logical_and", b.add("ge", flat, left), b.add("le", flat, right))
    wanted = b.add("where", inside, flat, left)
    place = b.add("sub", b.add("searchsorted", edges, wanted, axis=0, right=True), b.number(1))
    place = b.add("minimum", b.add("maximum", place, b.number(0)), b.number(count - 1))
    place = b.add("where", inside, place, b.number(count))
    if weight is None:
        start, ones = filled(b, 0, torch.int64, [count + 1]), filled(b, 1, torch.int64, [size])
    else:
        start, ones = filled(b, 0, x.dtype, [count + 1]), flattened(b, weight.id, size)
    counts = b.add("scatter_add", start, place, ones, axis=0)
    counts = b.add("slice", counts, axis=0, start=0, stop=b.size(count), step=1)
    counts = b.cast(counts, x.dtype)
    if density:
        total = b.add("sum", counts, axes=[0], keepdims=False)
        low, high = (
            b.add("slice", edges, axis=0, start=at, stop=b.size(count + at), step=1)
            for at in (0, 1)
        )
        counts = b.add("div", b.add("div", counts, total), b.add("sub", high, low))
    return counts, edges
