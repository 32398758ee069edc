"""ATen operators over windows of neighbours: padding, pooling, patches. Rows as in `torch_ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_ops import Tensor, Unsupported, fitting, fixed, is_number, is_small, row
from tilevm.frontends.torch_strided import ROWS

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_MOST = 32  # elements of a window: each is a load of its kernel

# Padding -----------------------------------------------------------------------------------------


def widths_of(rank: int, pad: Sequence[Any]) -> list[tuple[Any, Any]]:
    """By axis; the list has the last axis first."""
    pairs = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _is_wide(n: Any) -> bool:
    return isinstance(n, int) and n >= 0


@row("constant_pad_nd")
def _pad(b: Importer, out: Any, x: Tensor, pad: Any, value: Any) -> int:
    widths = widths_of(x.rank, pad)
    value = fitting(value, x.dtype)
    if all(_is_wide(n) for pair in widths for n in pair) and is_number(value):
        low, high = ([pair[i] for pair in widths] for i in (0, 1))
        return b.add("pad", x.id, low=low, high=high, value=value)
    return _padded(b, out, x, widths, "constant", value)


@row("pad")
def _pad_mode(b: Importer, out: Any, x: Tensor, pad: Any, mode: str, value: Any) -> Any:
    if mode == "constant":
        return _pad(b, out, x, pad, 0 if value is None else value)
    return _padded(b, out, x, widths_of(x.rank, pad), mode, 0)


@row("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflect(b: Importer, out: Any, x: Tensor, pad: Any) -> int:
    return _padded(b, out, x, widths_of(x.rank, pad), "reflect", 0)


@row("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replicate(b: Importer, out: Any, x: Tensor, pad: Any) -> int:
    return _padded(b, out, x, widths_of(x.rank, pad), "replicate", 0)


def _padded(
    b: Importer, out: Any, x: Tensor, widths: Sequence[tuple[Any, Any]], mode: str, value: Any
) -> int:
    """Any mode, axis by axis; by where elements come from, if widths may be negative."""
    result = x.id
    if mode == "circular":
        widths = [tuple(fixed(b, pair)) for pair in widths]
        x, widths = _cut(b, x, widths)
        result = x.id
    filler = b.cast(b.operand(value), x.dtype)
    for axis, (low, high) in enumerate(widths):
        if is_number(low) and is_number(high) and low == high == 0:
            continue
        size = x.shape[axis]
        if is_number(size) and size == 0:
            raise Unsupported("padding of no elements")
        b.at_least(size, 1)
        if _is_wide(low) and _is_wide(high) and mode != "constant":
            sizes = [*out.shape[:axis], *x.shape[axis:]]
            parts = _margins(b, result, sizes, axis, (low, high), mode)
            result = b.add("concat", *parts, axis=axis)
            continue
        if mode == "circular":
            raise Unsupported("circular padding that is not known")
        at = b.add("iota", size=b.size(out.shape[axis]), start=b.size(-low))
        zero, last = b.number(0), b.number(size - 1)
        if mode == "reflect":
            back = b.add("abs", b.add("sub", last, b.add("abs", at)))
            place = b.add("sub", last, back)
        else:
            place = b.add("minimum", b.add("maximum", at, zero), last)
        result = b.add("take", result, place, axis=axis)
        if mode == "constant":
            inside = b.add("eq", at, place)
            shape = [1] * x.rank
            shape[axis] = out.shape[axis]
            inside = b.add("reshape", inside, shape=b.shape(shape))
            result = b.add("where", inside, result, filler)
    return result


def _cut(
    b: Importer, x: Tensor, widths: Sequence[tuple[Any, Any]]
) -> tuple[Tensor, list[tuple[Any, Any]]]:
    """X without what negative widths take away, and the others."""
    value, fake, rest = x.id, x.fake, []
    for axis, pair in enumerate(widths):
        low, high = (-min(n, 0) if is_number(n) else 0 for n in pair)
        if low or high:
            size = fake.shape[axis]
            b.at_least(size, low + high)
            stop = size - high
            value = b.add("slice", value, axis=axis, start=low, stop=b.size(stop), step=1)
            fake = fake.narrow(axis, low, stop - low)
        rest.append(tuple(max(n, 0) if is_number(n) else n for n in pair))
    return Tensor(value, fake), rest


def _margins(
    b: Importer, x: int, sizes: Sequence[Any], axis: int, widths: tuple[int, int], mode: str
) -> list[int]:
    """What is put before it on an axis, x, and what is put behind it."""
    size = sizes[axis]

    def part(start: Any, stop: Any) -> int:
        return b.add("slice", x, axis=axis, start=b.size(start), stop=b.size(stop), step=1)

    def margin(width: int, reflected: Any, wrapped: Any, edge: Any) -> list[int]:
        if not width:
            return []
        if mode == "reflect":
            return [b.add("flip", part(reflected, reflected + width), axes=[axis])]
        if mode == "circular":
            return [part(wrapped, wrapped + width)]
        wide = b.shape([*sizes[:axis], width, *sizes[axis + 1 :]])
        return [b.add("expand", part(edge, edge + 1), shape=wide)]

    low, high = widths
    before = margin(low, 1, size - low, 0)
    return [*before, x, *margin(high, size - 1 - high, 0, size - 1)]


# Pooling -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """How windows lie along an axis of the input: `out` of them, of `kernel` elements."""

    axis: int
    size: Any
    out: Any
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    def first(self, b: Importer, rank: int) -> int:
        """Where each window begins, int64, beside the other axes of `rank`."""
        at = b.add("iota", size=b.size(self.out), start=-self.padding, step=self.stride)
        shape = [1] * rank
        shape[self.axis] = self.out
        return b.add("reshape", at, shape=b.shape(shape))


def axes_of_windows(
    b: Importer,
    x: Tensor,
    out: torch.Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
) -> list[Axis]:
    kernel, stride, padding, dilation = fixed(b, [kernel, stride, padding, dilation])
    count = len(kernel) if isinstance(kernel, list | tuple) else 1

    def each(value: Any) -> list[int]:
        given = list(value) if isinstance(value, list | tuple) else [value]
        return given * count if len(given) == 1 else given

    sizes = each(kernel), each(stride or kernel), each(padding), each(dilation)
    if not all(isinstance(n, int) for part in sizes for n in part):
        raise Unsupported("windows that are not known")
    first = x.rank - count
    return [
        Axis(first + i, x.shape[first + i], out.shape[first + i], *(part[i] for part in sizes))
        for i in range(count)
    ]


def _spread(b: Importer, x: Tensor, axes: Sequence[Axis], ceil: bool, value: Any) -> int:
    """The input with all that windows reach."""
    low, high = [0] * x.rank, [0] * x.rank
    for a in axes:
        low[a.axis], high[a.axis] = a.padding, a.padding + (a.stride - 1 if ceil else 0)
    if not any(low) and not any(high):
        return x.id
    return b.add("pad", x.id, low=low, high=high, value=value)


def _element(b: Importer, x: int, axes: Sequence[Axis], place: Sequence[int]) -> int:
    """Element `place` of every window."""
    for a, i in zip(axes, place, strict=True):
        start = i * a.dilation
        stop = start + (a.out - 1) * a.stride + 1
        x = b.add("slice", x, axis=a.axis, start=start, stop=b.size(stop), step=a.stride)
    return x


def _places(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    if math.prod(a.kernel for a in axes) > _MOST:
        raise Unsupported("windows of many elements")
    return list(product(*(range(a.kernel) for a in axes)))


@row("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    b: Importer, out: Any, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil: bool,
) -> int:  # fmt: skip
    axes = axes_of_windows(b, x, out, kernel, stride, padding, dilation)
    padded = _spread(b, x, axes, ceil, _least(x))
    value = -1
    for place in _places(axes):
        element = _element(b, padded, axes, place)
        value = element if value < 0 else b.add("maximum", value, element)
    return value


def _least(x: Tensor) -> float | int:
    return -math.inf if x.is_float else torch.iinfo(x.dtype).min


@row("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def _max_pool_with_indices(
    b: Importer, out: Any, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The index counts over all windowed axes; of equal elements the first, of NaNs the last."""
    if not b.used(1):
        return _max_pool(b, out[0], x, kernel, stride, padding, dilation, ceil), None
    axes = axes_of_windows(b, x, out[0], kernel, stride, padding, dilation)
    padded = _spread(b, x, axes, ceil, _least(x))
    firsts = [a.first(b, x.rank) for a in axes]
    value = index = -1
    for place in _places(axes):
        element = _element(b, padded, axes, place)
        here = -1
        for a, first, i in zip(axes, firsts, place, strict=True):
            at = b.add("add", first, b.number(i * a.dilation)) if i else first
            if value < 0 and a.padding:  # the first element that is inside
                outside = b.add("minimum", at, b.number(0))
                skipped = b.add("floor_div", outside, b.number(a.dilation))
                at = b.add("sub", at, b.add("mul", skipped, b.number(a.dilation)))
            size = b.number(a.size)
            here = at if here < 0 else b.add("add", b.add("mul", here, size), at)
        if value < 0:
            value = element
            index = b.add("expand", here, shape=b.shape(out[1].shape))
            continue
        better = b.add("gt", element, value)
        if x.is_float:
            better = b.add("logical_or", better, b.add("isnan", element))
        value = b.add("where", better, element, value)
        index = b.add("where", better, here, index)
    return value, index


@row("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    b: Importer, out: Any, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool,
    count_padding: bool, divisor: Any = None,
) -> int:  # fmt: skip
    axes = axes_of_windows(b, x, out, kernel, stride, padding)
    if not x.is_float or not (divisor is None or is_number(divisor)):
        raise Unsupported("integers, or a divisor that is not known")
    padded = _spread(b, x, axes, ceil, 0)
    total = -1
    for place in _places(axes):
        element = _element(b, padded, axes, place)
        total = element if total < 0 else b.add("add", total, element)
    return over_counts(b, total, axes, x, ceil, count_padding, divisor)


def over_counts(
    b: Importer, total: int, axes: Sequence[Axis], x: Tensor, ceil: bool, count_padding: bool,
    divisor: float | None,
) -> int:  # fmt: skip
    """What is one number a window of x, over how many elements the window has."""
    if divisor is not None:
        return b.add("div", total, b.number(divisor))
    whole = not any(a.padding for a in axes) or count_padding
    if whole and not ceil:
        return b.add("div", total, b.number(math.prod(a.kernel for a in axes)))
    for a in axes:
        first = a.first(b, x.rank)
        reach = a.padding if count_padding else 0
        end = b.add("add", first, b.number(a.kernel))
        end = b.add("minimum", end, b.number(a.size + reach))
        begin = first if count_padding else b.add("maximum", first, b.number(0))
        total = b.add("div", total, b.cast(b.add("sub", end, begin), x.dtype))
    return total


_MOST_PARTS = 16  # of an axis, each a kernel


@dataclass(frozen=True)
class Parts:
    """Windows that an adaptive pool cuts an axis into: `parts` of about the same size."""

    axis: int
    size: Any
    parts: int

    def cut(self, b: Importer, x: int) -> list[int]:
        """The windows of `x`."""
        found = []
        for i in range(self.parts):
            start = i * self.size // self.parts
            stop = ((i + 1) * self.size + self.parts - 1) // self.parts
            bounds = {"start": b.size(start), "stop": b.size(stop)}
            found.append(b.add("slice", x, axis=self.axis, step=1, **bounds))
        return found

    def joined(self, b: Importer, values: Sequence[int]) -> int:
        """Of what is one element of each window."""
        return values[0] if len(values) == 1 else b.add("concat", *values, axis=self.axis)


def wanted_of(b: Importer, sizes: Any) -> list[Any]:
    """How many windows on each axis. Ints among the arguments are fixed to their value."""
    given: list[Any] = fixed(b, list(sizes) if isinstance(sizes, list | tuple) else [sizes])
    return given


def _parts(b: Importer, x: Tensor, sizes: Any) -> list[Parts]:
    """Of the last axes, but for those that stay as they are."""
    wanted = wanted_of(b, sizes)
    first = x.rank - len(wanted)
    found = []
    for axis, parts in enumerate(wanted, first):
        if b.size(parts) == b.size(x.shape[axis]):
            continue
        if not is_number(parts) or not 0 < parts <= _MOST_PARTS or not x.is_float:
            raise Unsupported("integers, or windows of unequal sizes that are many, or not known")
        size = x.shape[axis]
        if is_number(size) and size == 0:
            raise Unsupported("no elements")
        b.at_least(size, 1)
        found.append(Parts(axis, size, parts))
    return found


@row("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
     "_adaptive_avg_pool3d")  # fmt: skip
def _adaptive_avg_pool(b: Importer, out: Any, x: Tensor, sizes: Any) -> int:
    """Means of everything, of equal parts, or of windows, an axis after the other."""
    wanted = wanted_of(b, sizes)
    first = x.rank - len(wanted)
    split = list(x.shape[:first])
    folded = []
    for axis, parts in enumerate(wanted, first):
        size = x.shape[axis]
        if is_number(parts) and parts == 1:
            split += [1, size]
        elif is_number(parts) and is_number(size) and parts and size % parts == 0:
            split += [parts, size // parts]
        else:
            return _adaptive_means(b, x, _parts(b, x, sizes))
        folded.append(len(split) - 1)
    if len(split) > 8 or not x.is_float:
        raise Unsupported("too many axes, or integers")
    parted = b.add("reshape", x.id, shape=b.shape(split))
    return b.add("mean", parted, axes=folded, keepdims=False)


def _adaptive_means(b: Importer, x: Tensor, axes: Sequence[Parts]) -> int:
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    value = b.cast(x.id, torch.float32 if narrow else x.dtype)  # between axes, too
    for a in axes:
        means = [b.add("mean", p, axes=[a.axis], keepdims=True) for p in a.cut(b, value)]
        value = a.joined(b, means)
    return value


_MOST_PLACED = 1 << 13


def _place_of_most(b: Importer, x: int, axis: int, size: str | int) -> int:
    """Of the first of the largest elements, or of the last NaN."""
    place = b.add("argmax", x, axis=axis, keepdims=True)
    shape: list[Any] = [1] * len(b.program.type(x)[2])
    shape[axis] = size
    line = b.add("reshape", b.add("iota", size=size), shape=shape)
    broken = b.add("where", b.add("isnan", x), line, b.number(-1))
    last = b.add("amax", broken, axes=[axis], keepdims=True)
    return b.add("where", b.add("ge", last, b.number(0)), last, place)


@row("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(b: Importer, out: Any, x: Tensor, sizes: Any) -> tuple[Any, ...]:
    """An axis after the other, the last one first; places count over all of these axes."""
    value, index = x.id, -1
    axes = _parts(b, x, sizes)
    if b.used(1) and not is_small(b, x.fake.numel(), _MOST_PLACED):
        raise Unsupported("the places are used")  # in short rows they take longer than PyTorch's
    for a in reversed(axes):
        cut = a.cut(b, value)
        if b.used(1):
            stride = math.prod(x.shape[a.axis + 1 :])
            before = a.cut(b, index) if index >= 0 else []
            places = []
            for i, part in enumerate(cut):
                size = b.program.type(part)[2][a.axis]
                found = _place_of_most(b, part, a.axis, size)
                place = b.add("add", found, b.number(i * a.size // a.parts))
                place = b.add("mul", place, b.number(stride))
                if before:
                    nearer = b.add("gather", before[i], found, axis=a.axis)
                    place = b.add("add", place, nearer)
                places.append(place)
            index = a.joined(b, places)
        value = a.joined(b, [b.add("amax", p, axes=[a.axis], keepdims=True) for p in cut])
    if not b.used(1):
        return value, None
    count = len(sizes) if isinstance(sizes, list | tuple) else 1
    for axis in range(x.rank - count, x.rank):
        if axis in [a.axis for a in axes]:
            continue
        line = b.add(
            "iota", size=b.size(x.shape[axis]), step=b.size(math.prod(x.shape[axis + 1 :]))
        )
        shape: list[Any] = [1] * x.rank
        shape[axis] = x.shape[axis]
        line = b.add("reshape", line, shape=b.shape(shape))
        index = line if index < 0 else b.add("add", index, line)
    return value, b.add("expand", index, shape=b.shape(out[1].shape))


# Patches -----------------------------------------------------------------------------------------


@row("im2col")
def _im2col(
    b: Importer, out: Any, x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> int:
    """[N, C, H, W] as [N, C * kernel, windows]."""
    rows, columns = out.shape[-2], out.shape[-1]
    kernel, dilation, padding, stride = fixed(b, [kernel, dilation, padding, stride])
    if not all(isinstance(n, int) for part in (kernel, dilation, padding, stride) for n in part):
        raise Unsupported("windows that are not known")
    high, wide = (
        (x.shape[x.rank - 2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1)
        // stride[i] + 1
        for i in (0, 1)
    )  # fmt: skip
    first = x.rank - 2
    axes = [
        Axis(first + i, x.shape[first + i], n, kernel[i], stride[i], padding[i], dilation[i])
        for i, n in enumerate((high, wide))
    ]
    padded = _spread(b, x, axes, False, 0)
    parts = []
    for place in _places(axes):
        element = _element(b, padded, axes, place)
        sizes = [*x.shape[:first], 1, columns]
        parts.append(b.add("reshape", element, shape=b.shape(sizes)))
    joined = b.add("concat", *parts, axis=first) if len(parts) > 1 else parts[0]
    return b.add("reshape", joined, shape=b.shape([*x.shape[: first - 1], rows, columns]))


@row("trapezoid.x", "trapz.x")
def _trapezoid(b: Importer, out: Any, y: Tensor, x: Tensor, dim: int) -> int:
    return b.add("sum", _strips(b, y, x, dim), axes=[dim % y.rank], keepdims=False)


@row("cumulative_trapezoid.x")
def _cumulative_trapezoid(b: Importer, out: Any, y: Tensor, x: Tensor, dim: int) -> int:
    return b.add("cumsum", _strips(b, y, x, dim), axis=dim)


def _strips(b: Importer, y: Tensor, x: Tensor, dim: int) -> int:
    """Areas between neighbours along an axis, of floats of one rank."""
    if not y.is_float or x.dtype != y.dtype or x.rank not in (1, y.rank) or not y.rank:
        raise Unsupported("other ranks or dtypes")
    axis = dim % y.rank
    near, far = _ends(b, y.id, axis, y.shape[axis])
    along = axis if x.rank == y.rank else 0
    low, high = _ends(b, x.id, along, x.shape[along])
    width = b.add("sub", high, low)
    if x.rank != y.rank:
        shape = [1] * y.rank
        shape[axis] = x.shape[0] - 1
        width = b.add("reshape", width, shape=b.shape(shape))
    return b.add("mul", b.add("mul", width, b.add("add", near, far)), b.number(0.5))


def _ends(b: Importer, x: int, axis: int, size: Any) -> tuple[int, int]:
    """All but the last, and all but the first."""
    b.at_least(size, 1)
    whole = b.size(size)
    first = b.add("slice", x, axis=axis, start=0, stop=b.size(size - 1), step=1)
    return first, b.add("slice", x, axis=axis, start=1, stop=whole, step=1)


@row("channel_shuffle")
def _channel_shuffle(b: Importer, out: Any, x: Tensor, groups: Any) -> int:
    batch, channels, *rest = x.shape
    if len(rest) > 5:
        raise Unsupported("too many axes")
    split = b.add("reshape", x.id, shape=b.shape([batch, groups, channels // groups, *rest]))
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return b.add("reshape", b.add("permute", split, axes=order), shape=b.shape(x.shape))


@row("pixel_shuffle")
def _pixel_shuffle(b: Importer, out: Any, x: Tensor, factor: int) -> int:
    """Channels as rows and columns of pixels."""
    *batch, channels, _, _ = out.shape
    split = [*batch, channels, factor, factor, *x.shape[-2:]]
    if len(split) > 8:
        raise Unsupported("too many axes")
    n = len(batch)
    order = [*range(n + 1), n + 3, n + 1, n + 4, n + 2]
    pixels = b.add("permute", b.add("reshape", x.id, shape=b.shape(split)), axes=order)
    return b.add("reshape", pixels, shape=b.shape(out.shape))
