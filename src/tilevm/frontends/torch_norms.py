"""ATen's norms over batches, groups and instances: rows as in `torch_ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from tilevm.frontends.torch_ops import Tensor, Unsupported, constant, row
from tilevm.frontends.torch_products import ROWS
from tilevm.frontends.torch_reductions import affine

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]


@row("group_norm")
def _group_norm(
    b: Importer, out: Any, x: Tensor, groups: int, weight: Any, bias: Any, eps: Any, *_: Any
) -> int:
    batch, channels, *spatial = x.shape
    inner: Any = channels // groups
    for size in spatial:
        inner = inner * size
    rows = b.add("reshape", x.id, shape=b.shape([batch, groups, inner]))
    rows = b.add("layer_norm", rows, axes=[2], eps=constant(eps))
    value = b.add("reshape", rows, shape=b.shape(x.shape))
    return affine(b, value, _per_channel(b, weight, x.rank), _per_channel(b, bias, x.rank))


@row("native_group_norm")
def _native_group_norm(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, batch: Any, channels: Any,
    inner: Any, groups: int, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    value = _group_norm(b, out[0], x, groups, weight, bias, eps)
    if not (b.used(1) or b.used(2)):
        return value, None, None
    shape = b.shape([batch, groups, (channels // groups) * inner])
    rows = b.add("reshape", x.id, shape=shape)
    mean = b.add("mean", rows, axes=[2], keepdims=False)
    variance = b.add("var", rows, axes=[2], keepdims=False, correction=0)
    return value, mean, b.add("rsqrt", b.add("add", variance, b.number(eps)))


@row("instance_norm")
def _instance_norm(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    own: bool, momentum: Any, eps: Any, *_: Any,
) -> int:  # fmt: skip
    if not own and mean is not None and variance is not None:
        return _normalised(b, x, weight, bias, mean, variance, eps)
    if mean is not None or variance is not None:
        raise Unsupported("running statistics, which it changes")
    value = b.add("layer_norm", x.id, axes=list(range(2, x.rank)), eps=constant(eps))
    return affine(b, value, _per_channel(b, weight, x.rank), _per_channel(b, bias, x.rank))


def _per_channel(b: Importer, x: Tensor | None, rank: int) -> Tensor | None:
    if x is None:
        return None
    shape = [1, x.shape[0], *[1] * (rank - 2)]
    return Tensor(b.add("reshape", x.id, shape=b.shape(shape)), x.fake)


def _normalised(
    b: Importer, x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, eps: Any
) -> int:
    """Batch norm at inference: x * alpha + beta with one alpha and beta a channel."""
    alpha = b.add("rsqrt", b.add("add", variance.id, b.number(eps)))
    if weight is not None:
        alpha = b.add("mul", alpha, weight.id)
    shift = b.add("mul", mean.id, alpha)
    beta = b.add("neg", shift) if bias is None else b.add("sub", bias.id, shift)
    shape = b.shape([1, mean.shape[0], *[1] * (x.rank - 2)])
    alpha, beta = (b.add("reshape", v, shape=shape) for v in (alpha, beta))
    return b.add("add", b.add("mul", x.id, alpha), beta)


@row("batch_norm")
def _batch_norm(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    training: bool, momentum: Any, eps: Any, *_: Any,
) -> int:  # fmt: skip
    if not training and mean is not None and variance is not None:
        return _normalised(b, x, weight, bias, mean, variance, eps)
    if mean is not None or variance is not None:
        raise Unsupported("running statistics, which it changes")
    for size in (x.shape[0], *x.shape[2:]):
        b.at_least(size, 1)
    axes = [0, *range(2, x.rank)]
    value = b.add("layer_norm", x.id, axes=axes, eps=constant(eps))
    return affine(b, value, _per_channel(b, weight, x.rank), _per_channel(b, bias, x.rank))


@row("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    momentum: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    if b.used(1) or b.used(2):
        raise Unsupported("the saved statistics are used")
    return _normalised(b, x, weight, bias, mean, variance, eps), None, None


@row("_batch_norm_with_update_functional")
def _batch_norm_with_update(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor,
    momentum: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The result, what is saved of the statistics, nothing, and the running statistics."""
    wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    value = b.cast(x.id, wide)
    for size in (x.shape[0], *x.shape[2:]):
        b.at_least(size, 1)
    axes = [0, *range(2, x.rank)]
    middle = b.add("mean", value, axes=axes, keepdims=False)
    spread, now = (
        b.add("var", value, axes=axes, keepdims=False, correction=correction)
        for correction in (0, 1)
    )
    inverse = b.add("rsqrt", b.add("add", spread, b.number(eps)))
    shape = b.shape([1, x.shape[1], *[1] * (x.rank - 2)])
    center, factor = (b.add("reshape", v, shape=shape) for v in (middle, inverse))
    value = b.add("mul", b.add("sub", value, center), factor)
    value = affine(b, value, _per_channel(b, weight, x.rank), _per_channel(b, bias, x.rank))
    rest = b.add("sub", b.number(1), b.number(momentum))
    followed = (
        b.add("add", b.add("mul", v, b.number(momentum)), b.add("mul", running.id, rest))
        for v, running in ((middle, mean), (now, variance))
    )
    nothing = b.add("full", shape=b.shape(out[3].shape), value=0, dtype=str(out[3].dtype)[6:])
    return value, middle, inverse, nothing, *followed


# Running statistics ------------------------------------------------------------------------------

_aten = torch.ops.aten


def _followed(running: torch.Tensor | None, now: torch.Tensor, momentum: float) -> None:
    """The statistic moves towards what it is now."""
    if running is not None:
        running.copy_((momentum * now + (1 - momentum) * running).to(running.dtype))


def _trained(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Batch norm that says what it changes."""
    if not training:
        kept: tuple[torch.Tensor, ...] = _aten._native_batch_norm_legit_no_training(
            x, weight, bias, mean, variance, momentum, eps
        )
        return kept
    found: tuple[torch.Tensor, ...] = _aten._native_batch_norm_legit.no_stats(
        x, weight, bias, True, momentum, eps
    )
    if mean is not None or variance is not None:
        axes = [0, *range(2, x.dim())]
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        now, middle = torch.var_mean(wide, dim=axes, correction=1)
        _followed(mean, middle, momentum)
        _followed(variance, now, momentum)
    return found


def _batch_norm_followed(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
    momentum: float, eps: float, cudnn: bool,
) -> torch.Tensor:  # fmt: skip
    return _trained(x, weight, bias, mean, variance, training, momentum, eps)[0]


def _instance_norm_followed(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, own: bool,
    momentum: float, eps: float, cudnn: bool,
) -> torch.Tensor:  # fmt: skip
    """Over images; what follows are the means over them."""
    axes = list(range(2, x.dim()))
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    now, middle = torch.var_mean(wide, dim=axes, correction=1)
    _followed(mean, middle.mean(0), momentum)
    _followed(variance, now.mean(0), momentum)
    spread, center = torch.var_mean(wide, dim=axes, correction=0, keepdim=True)
    value = (wide - center) * torch.rsqrt(spread + eps)
    shape = [1, x.shape[1], *[1] * len(axes)]
    if weight is not None:
        value = value * weight.reshape(shape)
    if bias is not None:
        value = value + bias.reshape(shape)
    return value.to(x.dtype)


# Operators that change running statistics, which their schemas do not say, as those that do.
FOLLOWING: dict[Any, Any] = {
    _aten.batch_norm.default: _batch_norm_followed,
    _aten.native_batch_norm.default: _trained,
    _aten.instance_norm.default: _instance_norm_followed,
}


def follows(graph: torch.fx.Graph) -> dict[Any, Any]:
    """Those of FOLLOWING that the graph has, and that change something there."""
    return {
        node.target: FOLLOWING[node.target]
        for node in graph.nodes
        if node.target in FOLLOWING and node.args[5] and (node.args[3] or node.args[4]) is not None
    }


# Weights as directions and lengths: of each index of `dim`; -1, of all.


def _of_each(b: Importer, x: int, rank: int, dim: int) -> int:
    """Sums over all axes but `dim`."""
    kept = dim if dim >= -1 else dim + rank
    return b.add("sum", x, axes=[axis for axis in range(rank) if axis != kept], keepdims=True)


@row("_weight_norm", "_weight_norm_interface")
def _weight_norm(b: Importer, out: Any, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    computed = torch.float64 if v.dtype is torch.float64 else torch.float32
    directions, lengths = b.cast(v.id, computed), b.cast(g.id, computed)
    squares = _of_each(b, b.add("mul", directions, directions), v.rank, dim)
    found = b.add("sqrt", squares)
    weight = b.cast(b.add("mul", directions, b.add("div", lengths, found)), v.dtype)
    return (weight, b.cast(found, out[1].dtype)) if isinstance(out, tuple | list) else weight


@row("_weight_norm_interface_backward")
def _weight_norm_backward(
    b: Importer, out: Any, gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[int, int]:
    computed = torch.float64 if v.dtype is torch.float64 else torch.float32
    of_weight, directions, lengths, found = (
        b.cast(t.id, computed) for t in (gradient, v, g, norms)
    )
    along = _of_each(b, b.add("mul", of_weight, directions), v.rank, dim)
    of_length = b.add("div", along, found)
    away = b.add("mul", directions, b.add("div", along, b.add("mul", found, found)))
    scale = b.add("div", lengths, found)
    of_direction = b.add("mul", scale, b.add("sub", of_weight, away))
    return b.cast(of_direction, v.dtype), b.cast(of_length, g.dtype)
