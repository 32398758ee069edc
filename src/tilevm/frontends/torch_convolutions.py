"""ATen's convolutions as `conv`: rows as in `torch_ops`.

PyTorch's images are [N, C, sizes]; those of `conv` have their channels last, which is the order
that images between convolutions then have in memory. The permutes that say so are views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_ops import Tensor, Unsupported, fixed, row
from tilevm.frontends.torch_products import DTYPES
from tilevm.frontends.torch_resize import ROWS

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_GRADIENT = "gradient of a convolution"
_MOST_GROUPS = 8  # that become convolutions side by side
_MOST_PHASES = 16  # of an axis of a transposed convolution


def _each(value: Any, axes: int) -> list[Any]:
    """One number an axis."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * axes if len(values) == 1 else values


@dataclass(frozen=True)
class _Moves:
    """How windows move: numbers by axis of the image."""

    taps: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]


def _moves(b: Importer, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> _Moves:
    axes = weight.rank - 2
    given = [_each(v, axes) for v in (weight.shape[2:], stride, padding, dilation)]
    numbers = [fixed(b, v, sizes=i == 0) for i, v in enumerate(given)]
    if not all(type(n) is int for part in numbers for n in part):
        raise Unsupported("a convolution with unknown parameters")
    return _Moves(*numbers)


def _last(b: Importer, value: int) -> int:
    """An image or windows with channels last, as `conv` has them."""
    rank = len(b.program.type(value)[2])
    return b.add("permute", value, axes=[0, *range(2, rank), 1])


def _first(b: Importer, value: int) -> int:
    """Back to PyTorch's order."""
    rank = len(b.program.type(value)[2])
    return b.add("permute", value, axes=[0, rank - 1, *range(1, rank - 1)])


def _padding(padding: Any, dilation: list[Any], taps: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What is padded in front of and behind each axis."""
    if padding == "valid":
        padding = 0
    if padding != "same":
        both = _each(padding, len(taps))
        return both, both
    total = [by * (n - 1) for by, n in zip(dilation, taps, strict=True)]
    low = [n // 2 for n in total]
    return low, [n - first for n, first in zip(total, low, strict=True)]


@row("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(
    b: Importer,
    out: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> int:
    axes = weight.rank - 2
    for operand in (x, weight, *([] if bias is None else [bias])):
        if operand.dtype not in DTYPES or operand.dtype != out.dtype:
            raise Unsupported(f"a convolution of {str(operand.dtype)[6:]}")
    stride, padding, dilation, groups = fixed(b, [stride, padding, dilation, groups])
    dilations = _each(dilation, axes)
    taps = fixed(b, list(weight.shape[2:]), sizes=padding == "same")
    low, high = _padding(padding, dilations, taps)
    parameters = {"stride": _each(stride, axes), "dilation": dilations, "low": low, "high": high}
    numbers = [n for values in parameters.values() for n in values]
    if not all(type(n) is int for n in (*numbers, groups)):
        raise Unsupported("a convolution with unknown parameters")
    image = x.id if x.rank == weight.rank else b.add("unsqueeze", x.id, axis=0)
    image, windows = _last(b, image), _last(b, weight.id)
    split = False
    if groups == 1:
        value = b.add("conv", image, windows, **parameters)
    elif type(groups) is int and groups == weight.shape[0] and weight.shape[1] == 1:
        value = b.add("conv", image, windows, depthwise=True, **parameters)
    else:
        if groups > _MOST_GROUPS:
            raise Unsupported(f"a convolution in {groups} groups")
        if x.rank != weight.rank and not out.is_contiguous():
            raise Unsupported("one image in groups")  # whose order in memory PyTorch chooses
        parts = zip(
            _split(b, image, axes + 1, x.shape[x.rank - axes - 1], groups),
            _split(b, windows, 0, weight.shape[0], groups),
            strict=True,
        )
        values = [b.add("conv", *part, **parameters) for part in parts]
        value = b.add("concat", *values, axis=axes + 1)
        split = True
    if bias is not None:
        value = b.add("add", value, bias.id)
    value = _first(b, value)
    if x.rank == weight.rank:
        return value
    row_major = split or out.is_contiguous()
    return _alone(b, value, out) if row_major else b.add("squeeze", value, axes=[0])


def _alone(b: Importer, value: int, out: torch.Tensor) -> int:
    """The only image of a batch, row-major as PyTorch's: by way of a row of its elements."""
    row = b.add("reshape", value, shape=[b.size(out.numel())])
    return b.add("reshape", row, shape=b.shape(out.shape))


def _split(b: Importer, value: int, axis: int, size: Any, groups: int) -> list[int]:
    """Equal parts of an axis."""
    shape = list(b.program.type(value)[2])
    shape[axis : axis + 1] = [groups, b.size(size // groups)]
    parted = b.add("reshape", value, shape=shape)
    return [b.add("select", parted, axis=axis, index=group) for group in range(groups)]


@row("convolution_backward")
def _backward(
    b: Importer,
    out: Any,
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    wanted: Any,
) -> Any:
    """Of the image a transposed convolution, of the windows a product, of the bias a sum; in groups
    PyTorch's own. Images among what is read and made are kept in the order of `conv`.
    """
    try:
        moves = _moves(b, weight, stride, padding, dilation)
        more = fixed(b, _each(output_padding, weight.rank - 2))
        if groups != 1 or grad.dtype not in DTYPES or (transposed and not _is_less(more, moves)):
            raise Unsupported(_GRADIENT)
        found: list[Any] = [None, None, None]
        if wanted[0]:
            run = _of_transposed if transposed else _of_image
            found[0] = Tensor(run(b, out[0], grad, weight, moves), out[0])
    except Unsupported:
        others = [bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted]
        target = torch.ops.aten.convolution_backward.default
        results = b.call_out(target, str(target), [grad, image, weight, *others], out, _GRADIENT)
        first = results[0]
        return (first and Tensor(_in_order(b, first), first.fake), *results[1:])
    if wanted[1]:
        read, moved = (image, grad) if transposed else (grad, image)
        found[1] = Tensor(_of_windows(b, read, moved, moves), out[1])
    if wanted[2]:
        axes = [0, *range(2, grad.rank)]
        found[2] = Tensor(b.add("sum", grad.id, axes=axes, keepdims=False), out[2])
    return tuple(found)


def _is_less(more: Sequence[Any], m: _Moves) -> bool:
    """Whether a transposed convolution's result has a window for each element of its image."""
    return all(type(n) is int and n < step for n, step in zip(more, m.stride, strict=True))


def _of_image(b: Importer, out: torch.Tensor, grad: Tensor, weight: Tensor, m: _Moves) -> int:
    """The gradient of a convolution's image."""
    more = [step - 1 for step in m.stride]  # at most
    axes = _spread(m, more, out.shape[2:])
    return _first(b, _phases(b, _last(b, grad.id), weight.id, axes))


def _of_transposed(b: Importer, out: torch.Tensor, grad: Tensor, weight: Tensor, m: _Moves) -> int:
    """The gradient of a transposed convolution's image."""
    moves = {"stride": m.stride, "dilation": m.dilation, "low": m.padding, "high": m.padding}
    return _first(b, b.add("conv", _last(b, grad.id), _last(b, weight.id), **moves))


def _of_windows(b: Importer, read: Tensor, moved: Tensor, m: _Moves) -> int:
    """The gradient of windows of `moved`, whose result had the gradient `read`."""
    parameters = {"taps": m.taps, "stride": m.stride, "dilation": m.dilation}
    margins = {"low": m.padding, "high": m.padding}
    value = b.add("conv_windows", _last(b, moved.id), _last(b, read.id), **parameters, **margins)
    return _first(b, value)


def images(b: Importer) -> None:
    """Inputs that gradients of convolutions read as images are in the order of `conv`."""
    for node in b.graph.nodes:
        if str(node.target) != "aten.convolution_backward.default":
            continue
        for read in node.args[:2]:
            held = b.values.get(read)
            if getattr(read, "op", "") == "placeholder" and isinstance(held, Tensor):
                b.values[read] = Tensor(_in_order(b, held), held.fake)


def _in_order(b: Importer, image: Tensor) -> int:
    """The image, told to have its channels last in memory."""
    if image.rank < 4:  # [N, C, L] may be anything
        return image.id
    return _first(b, _last(b, image.id))


@row("convolution", "_convolution")
def _convolution(
    b: Importer,
    out: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    *_: Any,
) -> int:
    if transposed:
        made: int = _transposed(
            b, out, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
        return made
    value: int = _conv(b, out, x, weight, bias, stride, padding, dilation, groups)
    return value


# Transposed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """An axis of a transposed convolution. What tap k adds to element i lands at i * stride + k:
    elements of the result whose places leave the same rest, a phase, are a convolution of their
    own, with every `stride`-th tap.
    """

    taps: int
    stride: int
    dilation: int
    padding: int
    more: Any  # elements behind what `padding` leaves, at most
    out: Any

    @property
    def is_plain(self) -> bool:
        """Whether it is a convolution with flipped taps, of an image with other margins."""
        fits = self.dilation * (self.taps - 1) >= self.padding
        return self.stride == 1 and fits and type(self.more) is int and self.more == 0

    @property
    def most(self) -> int:
        """Taps of a phase."""
        return self.taps if self.stride == 1 else -(-self.taps // self.stride)

    @property
    def behind(self) -> int:
        """Elements of the result, at most, that lie behind all that taps reach."""
        more = self.more if type(self.more) is int else max(self.stride, self.dilation) - 1
        return max(0, more + self.taps - self.most * self.stride - self.padding)

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """First and end of phases with as many taps, and how many taps."""
        if self.stride == 1:
            return [(0, 1, self.taps)]
        rest = self.taps % self.stride or self.stride
        parts = [(0, rest, self.most), (rest, self.stride, self.most - 1)]
        return [part for part in parts if part[0] < part[1] and part[2]]


def _spread(m: _Moves, more: Sequence[Any], sizes: Sequence[Any]) -> list[_Spread]:
    if any(s > 1 and d > 1 for s, d in zip(m.stride, m.dilation, strict=True)) or 0 in m.taps:
        raise Unsupported("a transposed convolution with stride and dilation, or without taps")
    if any(s > _MOST_PHASES for s in m.stride):
        raise Unsupported("a transposed convolution with a large stride")
    each = zip(m.taps, m.stride, m.dilation, m.padding, more, sizes, strict=True)
    return [_Spread(*one) for one in each]


@row("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def _transposed(
    b: Importer,
    out: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> int:
    """Phases beside each other: their results, channels last, lie as the result's elements do."""
    count = weight.rank - 2
    for operand in (x, weight, *([] if bias is None else [bias])):
        if operand.dtype not in DTYPES or operand.dtype != out.dtype:
            raise Unsupported(f"a convolution of {str(operand.dtype)[6:]}")
    groups = fixed(b, groups)
    if type(groups) is not int or groups > _MOST_GROUPS:
        raise Unsupported("a transposed convolution in many groups")
    moves = _moves(b, weight, stride, padding, dilation)
    more = fixed(b, _each(output_padding, count))
    axes = _spread(moves, more, out.shape[out.dim() - count :])
    image = x.id if x.rank == weight.rank else b.add("unsqueeze", x.id, axis=0)
    image = _last(b, image)
    if groups == 1:
        value = _phases(b, image, weight.id, axes)
    else:
        parts = zip(
            _split(b, image, count + 1, weight.shape[0], groups),
            _split(b, weight.id, 0, weight.shape[0], groups),
            strict=True,
        )
        values = [_phases(b, part, windows, axes) for part, windows in parts]
        value = b.add("concat", *values, axis=count + 1)
    if bias is not None:
        value = b.add("add", value, bias.id)
    value = _first(b, value)
    return value if x.rank == weight.rank else _alone(b, value, out)


def _phases(b: Importer, image: int, weight: int, axes: Sequence[_Spread]) -> int:
    """image: [N, sizes, C]; weight: [C, K, taps]. Gives [N, sizes, K]."""
    count = len(axes)
    if all(a.is_plain for a in axes):
        return b.add(
            "conv",
            image,
            b.add(
                "permute",
                b.add("flip", weight, axes=list(range(2, count + 2))),
                axes=[1, *range(2, count + 2), 0],
            ),
            stride=[1] * count,
            dilation=[a.dilation for a in axes],
            low=[a.dilation * (a.taps - 1) - a.padding for a in axes],
            high=[a.dilation * (a.taps - 1) - a.padding for a in axes],
        )
    channels, results = b.program.type(weight)[2][:2]
    missing = [a.most * a.stride - a.taps for a in axes]
    if any(missing):
        weight = b.add("pad", weight, low=[0] * (count + 2), high=[0, 0, *missing], value=0)
    split = [n for a in axes for n in (a.most, a.stride)]
    weight = b.add("reshape", weight, shape=[channels, results, *split])

    def made(chosen: list[tuple[int, int, int]]) -> int:
        """Results of phases first .. end of the first axes, all of the others."""
        at = len(chosen)
        if at < count:
            parts = [made([*chosen, part]) for part in axes[at].parts]
            if axes[at].parts[-1][1] < axes[at].stride:  # phases without taps
                shape = list(b.program.type(parts[0])[2])
                shape[1 + count + at] = axes[at].stride - axes[at].parts[-1][1]
                dtype = b.dtype(parts[0])
                parts.append(b.add("full", shape=shape, value=0, dtype=dtype))
            return parts[0] if len(parts) == 1 else b.add("concat", *parts, axis=1 + count + at)
        windows = weight
        for i, (first, end, taps) in enumerate(chosen):
            windows = b.add("slice", windows, axis=3 + 2 * i, start=first, stop=end, step=1)
            windows = b.add("slice", windows, axis=2 + 2 * i, start=0, stop=taps, step=1)
        windows = b.add("flip", windows, axes=[2 + 2 * i for i in range(count)])
        order = [*(3 + 2 * i for i in range(count)), 1, *(2 + 2 * i for i in range(count)), 0]
        windows = b.add("permute", windows, axes=order)
        phases = [end - first for first, end, _ in chosen]
        counts = [n for _, _, n in chosen]
        many = math.prod(phases)
        flat = [results * many if isinstance(results, int) else f"({results})*{many}"]
        windows = b.add("reshape", windows, shape=[*flat, *counts, channels])
        value = b.add(
            "conv",
            image,
            windows,
            stride=[1] * count,
            dilation=[a.dilation for a in axes],
            low=[a.dilation * (n - 1) for a, n in zip(axes, counts, strict=True)],
            high=[a.dilation * (a.most - 1) for a in axes],
        )
        shape = list(b.program.type(value)[2])[:-1]
        return b.add("reshape", value, shape=[*shape, *phases, results])

    value = made([])
    order = [0, *(d for i in range(count) for d in (1 + i, 1 + count + i)), 2 * count + 1]
    shape = list(b.program.type(value)[2])
    value = b.add("permute", value, axes=order)
    whole = [
        n * a.stride if isinstance(n, int) else f"({n})*{a.stride}"
        for n, a in zip(shape[1 : count + 1], axes, strict=True)
    ]
    value = b.add("reshape", value, shape=[shape[0], *whole, shape[-1]])
    for axis, a in enumerate(axes, 1):
        stop = a.padding + a.out
        reach = [0] * (count + 2)
        reach[axis] = a.behind
        value = b.add("pad", value, low=[0] * (count + 2), high=reach, value=0)
        value = b.add("slice", value, axis=axis, start=a.padding, stop=b.size(stop), step=1)
    return value
