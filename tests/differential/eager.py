"""What each operator of the table is in PyTorch eager, and whole graphs by that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tilevm.ir.graph import Graph
from tilevm.ir.ops import BY_NAME, OPS, Class, Kind
from tilevm.ir.reference import bind
from tilevm.ir.types import AnySize, size_value

T = torch.Tensor
_TENSORS_ONLY = ("maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor")


def _axes(x: T, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(a % max(x.ndim, 1) for a in axes) or tuple(range(x.ndim))


def _floats(x: T) -> T:
    return x if x.dtype.is_floating_point else x.float()


def _prod(x: T, axes: Sequence[int], keepdims: bool) -> T:
    over = _axes(x, axes)
    if not over or x.ndim == 0:
        return x.prod()
    for axis in sorted(over, reverse=True):
        x = x.prod(axis, keepdim=keepdims)
    return x


def _normalised(function: Callable[..., T]) -> Callable[..., T]:
    """A normalisation over any axes by PyTorch's over the last ones."""

    def run(x: T, axes: Sequence[int], eps: float) -> T:
        x = _floats(x)
        over = _axes(x, axes)
        last = tuple(range(x.ndim - len(over), x.ndim))
        moved = x.movedim(over, last)
        shape = moved.shape[x.ndim - len(over) :]
        return function(moved, shape, eps=eps).movedim(last, over) if x.ndim else x * 0

    return run


def _pad(x: T, low: Sequence[int], high: Sequence[int], value: float) -> T:
    pairs = [n for axis in reversed(range(x.ndim)) for n in (low[axis], high[axis])]
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), pairs, value=int(bool(value))).bool()
    return F.pad(x, pairs, value=value)


def _slice(x: T, axis: int, start: int, stop: int, step: int) -> T:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _take(x: T, index: T, axis: int) -> T:
    axis %= x.ndim
    return x[(slice(None),) * axis + (index,)]


def _full(shape: Sequence[int], value: Any, dtype: str) -> T:
    return torch.full(tuple(shape), value, dtype=getattr(torch, dtype))


def _var(x: T, axes: Sequence[int], keepdims: bool, correction: float) -> T:
    return torch.var(_floats(x), _axes(x, axes), correction=correction, keepdim=keepdims)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        op.name: getattr(torch, op.name)
        for op in OPS
        if op.cls is Class.ELEMENTWISE and hasattr(torch, op.name)
    },
    "silu": lambda x: F.silu(_floats(x)),
    "gelu": lambda x: F.gelu(_floats(x)),
    "gelu_tanh": lambda x: F.gelu(_floats(x), approximate="tanh"),
    "floor_div": torch.floor_divide,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "cast": lambda x, dtype: torch.as_tensor(x).to(getattr(torch, dtype)),
    "full": _full,
    "iota": lambda size, start, step: torch.arange(size) * step + start,
    "scalar": lambda value: value,
    "size_value": lambda size: size,
    "sum": lambda x, axes, keepdims: x.sum(_axes(x, axes), keepdim=keepdims),
    "prod": _prod,
    "amax": lambda x, axes, keepdims: x.amax(_axes(x, axes), keepdim=keepdims),
    "amin": lambda x, axes, keepdims: x.amin(_axes(x, axes), keepdim=keepdims),
    "any": lambda x, axes, keepdims: x.bool().any(_axes(x, axes), keepdim=keepdims),
    "all": lambda x, axes, keepdims: x.bool().all(_axes(x, axes), keepdim=keepdims),
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": lambda x, axis: torch.cummax(x, axis).values,
    "cummin": lambda x, axis: torch.cummin(x, axis).values,
    "logcumsumexp": lambda x, axis: torch.logcumsumexp(_floats(x), axis),
    "scatter": lambda x, y, z, axis: torch.scatter(x, axis, y.long(), z),
    "scatter_add": lambda x, y, z, axis: torch.scatter_add(x, axis, y.long(), z),
    "scatter_mul": lambda x, y, z, axis: torch.scatter_reduce(x, axis, y.long(), z, "prod"),
    "scatter_max": lambda x, y, z, axis: torch.scatter_reduce(x, axis, y.long(), z, "amax"),
    "scatter_min": lambda x, y, z, axis: torch.scatter_reduce(x, axis, y.long(), z, "amin"),
    "argsort": lambda x, axis, descending: torch.argsort(
        x, dim=axis, descending=descending, stable=True
    ),
    "searchsorted": lambda x, y, axis, right: torch.searchsorted(
        x.movedim(axis, -1).contiguous(), y.movedim(axis, -1).contiguous(), right=right
    ).movedim(-1, axis),
    "argtopk": lambda x, axis, k, largest: torch.topk(x, k, axis, largest).indices,
    "argmax": lambda x, axis, keepdims: _numbers(x).argmax(axis, keepdim=keepdims),
    "argmin": lambda x, axis, keepdims: _numbers(x).argmin(axis, keepdim=keepdims),
    "mean": lambda x, axes, keepdims: _floats(x).mean(_axes(x, axes), keepdim=keepdims),
    "var": _var,
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "permute": lambda x, axes: x.permute(tuple(axes)),
    "expand": lambda x, shape: x.expand(tuple(shape)),
    "slice": _slice,
    "select": lambda x, axis, index: x.select(axis, index),
    "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "squeeze": lambda x, axes: x.squeeze(tuple(axes)),
    "flip": lambda x, axes: x.flip(tuple(axes)),
    "concat": lambda *xs, axis: torch.cat(xs, axis),
    "pad": _pad,
    "gather": lambda x, index, axis: x.gather(axis, index.long()),
    "take": _take,
    "softmax": lambda x, axis: _floats(x).softmax(axis),
    "log_softmax": lambda x, axis: _floats(x).log_softmax(axis),
    "layer_norm": _normalised(F.layer_norm),
    "rms_norm": _normalised(F.rms_norm),
    "matmul": torch.matmul,
}


def _numbers(x: T) -> T:
    return x.int() if x.dtype == torch.bool else x


def call(op: str, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """One operator. Its parameters are numbers and sizes that are known."""
    if op in _TENSORS_ONLY and any(not isinstance(x, T) for x in inputs):
        dtype = torch.result_type(*inputs)
        inputs = [torch.as_tensor(x, dtype=dtype) for x in inputs]
    return FUNCTIONS[BY_NAME[op].name](*inputs, **params)


def evaluate(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The results of a graph, by eager."""
    env = bind(graph, inputs)
    values = dict(zip((name for name, _ in graph.params), inputs, strict=True))
    for node in graph.nodes:
        params = dict(node.params)
        for param in BY_NAME[node.op].params:
            if param.kind is Kind.SIZE:
                params[param.name] = size_value(params[param.name], env)
            elif param.kind is Kind.SIZES:
                params[param.name] = _sizes(params[param.name], env)
        if "shape" in params:
            params["shape"] = _sizes(node.types[0].shape, env)
        values[node.out[0]] = call(node.op, [values[name] for name in node.inputs], params)
    return [values[name] for name in graph.results]


def _sizes(sizes: Sequence[AnySize], env: dict[str, int]) -> tuple[int, ...]:
    return tuple(size_value(size, env) for size in sizes)
