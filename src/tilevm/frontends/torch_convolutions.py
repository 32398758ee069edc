"""ATen's convolutions as `conv`: rows as in `torch_ops`.

PyTorch's images are [N, C, sizes]; those of `conv` have their channels last, which is the order
that images between convolutions then have in memory. The permutes that say so are views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_ops import Tensor, Unsupported, row
from tilevm.frontends.torch_products import DTYPES
from tilevm.frontends.torch_windows import ROWS

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_GRADIENT = "gradient of a convolution"
_MOST_GROUPS = 8  # that become convolutions side by side


def _each(value: Any, axes: int) -> list[Any]:
    """One number an axis."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * axes if len(values) == 1 else values


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
    dilations = _each(dilation, axes)
    low, high = _padding(padding, dilations, weight.shape[2:])
    parameters = {"stride": _each(stride, axes), "dilation": dilations, "low": low, "high": high}
    numbers = [n for values in parameters.values() for n in values]
    if not all(type(n) is int for n in (*numbers, groups)):
        raise Unsupported("a convolution with unknown parameters")
    image = x.id if x.rank == weight.rank else b.add("unsqueeze", x.id, axis=0)
    last = [0, *range(2, axes + 2), 1]
    image = b.add("permute", image, axes=last)
    windows = b.add("permute", weight.id, axes=last)
    channels = x.shape[x.rank - axes - 1]
    if groups == 1:
        value = b.add("conv", image, windows, **parameters)
    elif type(groups) is int and groups == weight.shape[0] and weight.shape[1] == 1:
        value = b.add("conv", image, windows, depthwise=True, **parameters)
    else:
        value = _grouped(b, image, windows, channels, weight.shape[0], groups, parameters)
    if bias is not None:
        value = b.add("add", value, bias.id)
    value = b.add("permute", value, axes=[0, axes + 1, *range(1, axes + 1)])
    return value if x.rank == weight.rank else b.add("squeeze", value, axes=[0])


def _grouped(
    b: Importer,
    image: int,
    windows: int,
    channels: Any,
    results: Any,
    groups: int,
    parameters: dict[str, Any],
) -> int:
    if groups > _MOST_GROUPS or type(channels) is not int or type(results) is not int:
        raise Unsupported(f"a convolution in {groups} groups")
    axis = len(parameters["stride"]) + 1

    def part(value: int, axis: int, size: int, group: int) -> int:
        one = size // groups
        return b.add("slice", value, axis=axis, start=group * one, stop=(group + 1) * one)

    parts = [
        b.add(
            "conv",
            part(image, axis, channels, group),
            part(windows, 0, results, group),
            **parameters,
        )
        for group in range(groups)
    ]
    return b.add("concat", *parts, axis=axis)


@row("convolution_backward")
def _backward(
    b: Importer, out: Any, grad: Tensor, image: Tensor, weight: Tensor, *others: Any
) -> Any:
    """PyTorch's own; images among what it reads and makes are kept in the order of `conv`."""
    target = torch.ops.aten.convolution_backward.default
    results = b.call_out(target, str(target), [grad, image, weight, *others], out, _GRADIENT)
    first = results[0]
    return (first and Tensor(_in_order(b, first), first.fake), *results[1:])


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
    last = b.add("permute", image.id, axes=[0, *range(2, image.rank), 1])
    return b.add("permute", last, axes=[0, image.rank - 1, *range(1, image.rank - 1)])


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
        raise Unsupported("a transposed convolution")
    value: int = _conv(b, out, x, weight, bias, stride, padding, dilation, groups)
    return value
