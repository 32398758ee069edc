"""ATen operators that order elements, or count how many come before: rows as in `torch_ops`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_data import count_of, most_of
from tilevm.frontends.torch_loops import ROWS
from tilevm.frontends.torch_ops import Tensor, Unsupported, axis_of, fixed, is_number, packet, row

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

# Of these, equal elements are rare: which of them comes first, where PyTorch leaves it open, is not
# what results are compared by.
_FINE = (torch.float32, torch.float64)


def _check_order(x: Tensor, places: bool, stable: Any = None) -> None:
    if places and stable is not True and x.dtype not in _FINE:
        raise Unsupported("equal elements are in PyTorch's own order")


def _zero(b: Importer) -> int:
    return b.add("full", shape=[], value=0, dtype="int64")


def _order(b: Importer, x: Tensor, dim: int, descending: bool = False) -> int:
    return b.add("argsort", x.id, axis=axis_of(dim, x.rank), descending=descending)


def _at(b: Importer, x: int, places: int, axis: int) -> int:
    return b.add("gather", x, places, axis=axis)


def _in_order(b: Importer, x: Tensor, dim: int, index: int) -> tuple[Any, ...]:
    value = _at(b, x.id, index, axis_of(dim, x.rank)) if b.used(0) else None
    return value, index


# Sorting -----------------------------------------------------------------------------------------


@row("sort.stable")
def _sort(
    b: Importer, out: Any, x: Tensor, stable: Any, dim: int, descending: bool
) -> tuple[Any, ...]:
    _check_order(x, b.used(1), stable)
    return _in_order(b, x, dim, _order(b, x, dim, descending)) if x.rank else (x, _zero(b))


@row("sort")
def _sort_any(b: Importer, out: Any, x: Tensor, dim: int, descending: bool) -> Any:
    return _sort(b, out, x, None, dim, descending)


@row("argsort.stable")
def _argsort(b: Importer, out: Any, x: Tensor, stable: bool, dim: int, descending: bool) -> int:
    _check_order(x, True, stable)
    return _order(b, x, dim, descending) if x.rank else _zero(b)


@row("argsort")
def _argsort_any(b: Importer, out: Any, x: Tensor, dim: int, descending: bool) -> Any:
    return _argsort(b, out, x, False, dim, descending)


@row("msort")
def _msort(b: Importer, out: Any, x: Tensor) -> Any:
    return _at(b, x.id, _order(b, x, 0), 0) if x.rank else x


@row("topk")
def _topk(
    b: Importer, out: Any, x: Tensor, k: Any, dim: int, largest: bool, ordered: bool
) -> tuple[Any, ...]:
    if not ordered:
        raise Unsupported("in no order")
    if not x.rank:
        k = fixed(b, k)
        if not is_number(k) or k != 1:
            raise Unsupported("as many of a scalar as a call says")
        return x, _zero(b)
    index = b.add("argtopk", x.id, axis=axis_of(dim, x.rank), k=b.size(k), largest=largest)
    return _in_order(b, x, dim, index)


# One of the elements in order --------------------------------------------------------------------


def _row_of(b: Importer, x: Tensor) -> Tensor:
    """All elements on one axis."""
    shape = [x.fake.numel()]
    flat = x.fake.new_empty(shape)
    return Tensor(b.add("reshape", x.id, shape=b.shape(shape)), flat)


def _along(b: Importer, value: int, rank: int, axis: int) -> int:
    """A row on `axis` of `rank`."""
    shape: list[Any] = [1] * rank
    shape[axis] = -1
    return b.add("reshape", value, shape=shape)


def _nans(b: Importer, x: Tensor, axis: int) -> int:
    """How many there are, int64, the axis kept."""
    count = b.cast(b.add("isnan", x.id), torch.int64)
    return b.add("sum", count, axes=[axis], keepdims=True)


def _pick(b: Importer, x: Tensor, axis: int, order: int, rank: int) -> tuple[int, int]:
    """The element of each row at a place of the order, and its place in the row."""
    place = _at(b, order, rank, axis)
    return _at(b, x.id, place, axis), place


def _picked(b: Importer, found: tuple[int, int], axis: int, keep: bool) -> tuple[Any, ...]:
    if keep:
        return found
    return tuple(b.add("squeeze", v, axes=[axis]) for v in found)


def _one_each(b: Importer, x: Tensor, axis: int, value: int) -> int:
    """`value` for each row."""
    sizes = [*x.shape]
    sizes[axis] = 1
    return b.add("expand", value, shape=b.shape(sizes))


@row("kthvalue")
def _kthvalue(b: Importer, out: Any, x: Tensor, k: Any, dim: int, keep: bool) -> tuple[Any, ...]:
    _check_order(x, b.used(1))
    if not x.rank:
        return x, _zero(b)
    axis = axis_of(dim, x.rank)
    b.at_least(k, 1)
    rank = _along(b, b.add("iota", size=1, start=b.size(k - 1)), x.rank, axis)
    found = _pick(b, x, axis, _order(b, x, axis), _one_each(b, x, axis, rank))
    return _picked(b, found, axis, keep)


def _median_of(b: Importer, x: Tensor, axis: int, skips: bool) -> tuple[int, int]:
    """The lower one of two in the middle. NaN, the first, if there is any, or skips them."""
    size = x.shape[axis]
    b.at_least(size, 1)
    order = _order(b, x, axis)
    count = b.number(size)
    if x.is_float:
        nans, two = _nans(b, x, axis), b.number(2)
        numbers = b.add("sub", count, nans)
        middle = b.add("floor_div", b.add("sub", numbers if skips else count, b.number(1)), two)
        if skips:
            rank = b.add("maximum", middle, b.number(0))
        else:
            rank = b.add("where", b.add("gt", nans, b.number(0)), numbers, middle)
    else:
        rank = b.add("full", shape=[1] * x.rank, value=0, dtype="int64")
        rank = b.add("add", rank, b.number((size - 1) // 2))
    return _pick(b, x, axis, order, _one_each(b, x, axis, rank))


@row("median", "nanmedian")
def _median(b: Importer, out: Any, x: Tensor) -> Any:
    if not x.rank:
        return x
    found = _median_of(b, _row_of(b, x), 0, packet(b) == "nanmedian")
    return b.add("reshape", found[0], shape=[])


@row("median.dim", "nanmedian.dim")
def _median_dim(b: Importer, out: Any, x: Tensor, dim: int, keep: bool) -> tuple[Any, ...]:
    _check_order(x, b.used(1))
    if not x.rank:
        return x, _zero(b)
    axis = axis_of(dim, x.rank)
    return _picked(b, _median_of(b, x, axis, packet(b) == "nanmedian"), axis, keep)


@row("mode")
def _mode(b: Importer, out: Any, x: Tensor, dim: int, keep: bool) -> tuple[Any, ...]:
    """In order, equal elements are neighbours: the end of the first of the longest runs."""
    _check_order(x, b.used(1))
    if not x.rank:
        return x, _zero(b)
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    b.at_least(size, 1)
    order = _order(b, x, axis)
    elements = _at(b, x.id, order, axis)
    place = _along(b, b.add("iota", size=b.size(size)), x.rank, axis)
    before = b.add("iota", size=b.size(size), start=-1)
    before = b.add("maximum", before, b.number(0))
    begins = b.add("ne", elements, b.add("take", elements, before, axis=axis))
    begin = b.add("cummax", b.add("where", begins, place, b.number(0)), axis=axis)
    length = b.add("sub", place, begin)
    longest = b.add("argmax", length, axis=axis, keepdims=True)
    return _picked(b, _pick(b, x, axis, order, longest), axis, keep)


# Quantiles ---------------------------------------------------------------------------------------


@row("quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar")
def _quantile(
    b: Importer, out: Any, x: Tensor, q: Any, dim: int | None, keep: bool, interpolation: str
) -> int:
    """At q * (size - 1) of the order, between two elements."""
    if isinstance(q, Tensor) and q.rank > 1:
        raise Unsupported("quantiles of more than one axis")
    if is_number(q) and not 0 <= q <= 1:
        raise Unsupported("a quantile that is none")  # PyTorch says so
    several = isinstance(q, Tensor) and q.rank == 1
    whole = _row_of(b, x) if dim is None or not x.rank else x
    axis = 0 if whole is not x else axis_of(int(dim or 0), x.rank)
    size = whole.shape[axis]
    b.at_least(size, 1)
    skips = packet(b) == "nanquantile"
    # The axis becomes the last one, and then that of q.
    last = whole.rank - 1
    others = [d for d in range(whole.rank) if d != axis]
    turned = b.add("permute", whole.id, axes=[*others, axis])
    rows = Tensor(turned, whole.fake.permute([*others, axis]))
    order = b.add("argsort", turned, axis=last)
    wanted = b.cast(b.operand(q), x.dtype)
    if not several:
        wanted = b.add("reshape", wanted, shape=[1])
    nans = _nans(b, rows, last)
    numbers = b.add("sub", b.number(size), nans) if skips else b.number(size)
    rank = b.add("mul", wanted, b.cast(b.add("sub", numbers, b.number(1)), x.dtype))
    if skips:
        rank = b.add("maximum", rank, b.number(0.0))
    else:
        broken = b.add("gt", nans, b.number(0))
        rank = b.add("where", broken, b.cast(b.number(size - 1), x.dtype), rank)
    count = q.shape[0] if several and isinstance(q, Tensor) else 1
    rank = b.add("expand", rank, shape=b.shape([*rows.shape[:-1], count]))
    if interpolation in ("lower", "higher", "nearest"):
        to = {"lower": "floor", "higher": "ceil", "nearest": "round"}[interpolation]
        places = b.cast(b.add(to, rank), torch.int64)
        value, _ = _pick(b, rows, last, order, places)
    else:
        below = b.add("floor", rank)
        low, high = (
            _pick(b, rows, last, order, b.cast(v, torch.int64))[0]
            for v in (below, b.add("ceil", rank))
        )
        weight = b.number(0.5) if interpolation == "midpoint" else b.add("sub", rank, below)
        value = _between(b, low, high, weight)
    if several:
        value = b.add("permute", value, axes=[last, *range(last)])
    return b.add("reshape", value, shape=b.shape(out.shape))


def _between(b: Importer, low: int, high: int, weight: int) -> int:
    """As lerp: exact at either end."""
    span = b.add("sub", high, low)
    near = b.add("add", low, b.add("mul", weight, span))
    far = b.add("sub", high, b.add("mul", span, b.add("sub", b.number(1.0), weight)))
    return b.add("where", b.add("lt", weight, b.number(0.5)), near, far)


# Searching ---------------------------------------------------------------------------------------


def _searched(b: Importer, line: Tensor, x: Tensor, right: bool, out: torch.Tensor) -> int:
    """Places in rows of `line`, or in the only one."""
    if line.dtype != x.dtype:
        raise Unsupported("other dtypes")
    if line.rank == 1:
        shape = [b.size(x.fake.numel())]
        flat = b.add("reshape", x.id, shape=shape)
        found = b.add("searchsorted", line.id, flat, axis=0, right=right)
        found = b.add("reshape", found, shape=b.shape(x.shape))
    else:
        if not line.rank or line.rank != x.rank:
            raise Unsupported("other ranks")
        found = b.add("searchsorted", line.id, x.id, axis=line.rank - 1, right=right)
    return b.cast(found, out.dtype)


@row("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    b: Importer, out: Any, line: Tensor, x: Any, narrow: bool, right: bool, side: str | None,
    sorter: Tensor | None,
) -> int:  # fmt: skip
    if sorter is not None:
        line = Tensor(_at(b, line.id, sorter.id, line.rank - 1), line.fake)
    return _searched(b, line, _wanted(b, x, line), right or side == "right", out)


@row("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(b: Importer, out: Any, x: Any, line: Tensor, narrow: bool, right: bool) -> int:
    return _searched(b, line, _wanted(b, x, line), right, out)


def _wanted(b: Importer, x: Any, line: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if isinstance(x, float) and not line.is_float:
        raise Unsupported("other dtypes")
    return Tensor(b.cast(b.number(x), line.dtype), line.fake.new_empty([]))


@row("repeat_interleave.Tensor")
def _repetitions(b: Importer, out: Any, times: Tensor, size: Any) -> int:
    """The place of each element, as often as `times` says."""
    return _which(b, times, times.shape[0], size)


@row("repeat_interleave.self_Tensor")
def _repeated(b: Importer, out: Any, x: Tensor, times: Tensor, dim: int | None, size: Any) -> int:
    """Each element as often as `times` says."""
    whole = _row_of(b, x) if dim is None or not x.rank else x
    axis = 0 if whole is not x else axis_of(int(dim or 0), x.rank)
    return b.add("take", whole.id, _which(b, times, whole.shape[axis], size), axis=axis)


def _which(b: Importer, times: Tensor, count: Any, size: Any) -> int:
    """int64, as many as all repetitions: the first of `count` whose own end behind the place."""
    if times.dtype not in (torch.int64, torch.int32):
        raise Unsupported("repetitions of another dtype")  # PyTorch says so
    if size is not None:
        b.at_least(count, 1)  # what is read before a check fails; else nothing is read of nothing
    each = b.cast(times.id, torch.int64)
    if times.rank == 0 or b.size(times.shape[0]) != b.size(count):
        each = b.add("expand", each, shape=[b.size(count)])
    ends = b.add("cumsum", each, axis=0)
    negative = b.add("any", b.add("lt", each, b.number(0)), axes=[0], keepdims=False)
    total = b.add("sum", each, axes=[0], keepdims=False)
    if size is not None:
        negative = b.add("logical_or", negative, b.add("ne", total, b.number(size)))
    message = "repetitions that are negative, or not as many as was said"
    most_of(b, b.cast(negative, torch.float64), 0, 0, message)
    wanted = count_of(b, total) if size is None else b.size(size)
    place = b.add("searchsorted", ends, b.add("iota", size=wanted), axis=0, right=True)
    return b.add("minimum", place, b.number(count - 1))  # where a check fails


@row("isin.Tensor_Tensor")
def _isin(b: Importer, out: Any, x: Tensor, test: Tensor, unique: bool, invert: bool) -> int:
    """The element at the place where it should be; NaN equals nothing, and is searched as inf."""
    count = test.fake.numel()
    if x.dtype != test.dtype or (is_number(count) and count == 0):
        raise Unsupported("other dtypes, or no elements")
    b.at_least(count, 1)
    line = _row_of(b, test)
    elements = _at(b, line.id, _order(b, line, 0), 0)
    keys = elements
    if x.is_float:
        largest = b.cast(b.number(math.inf), x.dtype)
        keys = b.add("where", b.add("isnan", elements), largest, elements)
    flat = _row_of(b, x)
    place = b.add("searchsorted", keys, flat.id, axis=0, right=False)
    place = b.add("minimum", place, b.number(count - 1))
    found = b.add("eq", b.add("take", elements, place, axis=0), flat.id)
    if invert:
        found = b.add("logical_not", found)
    return b.add("reshape", found, shape=b.shape(x.shape))
