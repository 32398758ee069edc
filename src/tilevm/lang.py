"""The language of `@tilevm.kernel`: functions on arrays, named as in NumPy and torch.

Each operator of the table (docs/ops.md) that takes only arrays is a function of its name:
`exp(x)`, `maximum(x, y)`, `where(condition, x, y)`. The others are below. Operands may be arrays,
Python numbers and sizes; dtypes promote as in PyTorch. All are methods of arrays too.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilevm.errors import ShapeError, describe
from tilevm.frontends.symbolic import Array as Array  # noqa: PLC0414  # a public name here
from tilevm.frontends.symbolic import SymbolicSize, Trace, check_int, here, own_file, refuse
from tilevm.ir.ops import BY_NAME
from tilevm.ir.types import AnySize, Size

float32, bfloat16, float16, float64 = "float32", "bfloat16", "float16", "float64"
int64, int32, int16, int8, uint8 = "int64", "int32", "int16", "int8", "uint8"
bool_ = "bool"
inf, nan, pi, e = float("inf"), float("nan"), 3.141592653589793, 2.718281828459045

Axis = int | Sequence[int] | None
AnyDim = int | SymbolicSize

# NumPy's and torch's other names of operators in the table.
_ALIASES = {
    "absolute": "abs",
    "negative": "neg",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "floor_divide": "floor_div",
    "mod": "remainder",
    "power": "pow",
    "arctan2": "atan2",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "invert": "bitwise_not",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
}

# Operators of docs/ops.md that only graphs have.
_INSTEAD = {
    "iota": "use lang.arange(start, stop, step)",
    "scalar": "use Python numbers as they are",
    "size_value": "use sizes, x.shape[0], as they are",
    "call": "it stands for an operator of PyTorch in a graph of tilevm.compile",
}

own_file(__file__)


def __getattr__(name: str) -> Any:
    if name == "bool":
        return bool_
    row = BY_NAME.get(_ALIASES.get(name, name))
    if row is None or row.params or row.inputs < 1 or name.startswith("_"):
        told = _INSTEAD.get(name, "docs/ops.md lists the operators")
        raise AttributeError(f"tilevm.lang has no {name!r}: {told}")
    op, count = row.name, row.inputs

    def apply(*operands: Any) -> Array:
        if len(operands) != count:
            refuse(
                f"{name}: takes {count} operands, got {len(operands)}",
                "docs/ops.md lists the operators.",
            )
        return _trace(*operands).add(op, *operands)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = row.doc
    globals()[name] = apply
    return apply


def __dir__() -> list[str]:
    own = [name for name in globals() if not name.startswith("_")]
    rows = [name for name, op in BY_NAME.items() if not op.params and op.inputs > 0]
    return sorted({*own, *rows, *_ALIASES})


def _trace(*operands: Any) -> Trace:
    return next((x.trace for x in operands if isinstance(x, Array)), None) or Trace.current()


def _array(x: Any) -> Array:
    """`x` as an array: numbers and sizes become arrays of rank 0."""
    if isinstance(x, Array):
        return x
    trace = Trace.current()
    return Array(trace, trace.lift(x))


def _axes(axis: Axis) -> tuple[int, ...]:
    """Axes as the table has them: empty means all."""
    if axis is None:
        return ()
    return tuple(axis) if isinstance(axis, Sequence) else (axis,)


def _axis(op: str, x: Array, axis: Any) -> int:
    """`axis` of `x` counted from the front. Raises: CaptureError, ShapeError."""
    try:
        found = operator.index(axis)
    except TypeError:
        refuse(f"{op}: axis is {axis!r}", "It takes an int.")
    if isinstance(axis, bool):
        refuse(f"{op}: axis is {axis!r}", "It takes an int.")
    if not -x.ndim <= found < x.ndim:
        axes = f"Axes are in {-x.ndim}..{x.ndim - 1}." if x.ndim else "It has no axes."
        what = f"axis {found} does not exist: x is {x.type}"
        raise ShapeError(describe(what, line=here(), operator=op, remedy=axes))
    return found % x.ndim


def _sequence(op: str, name: str, value: Any, remedy: str) -> tuple[Any, ...]:
    """`value` as a tuple, if it is a tuple or list. Raises: CaptureError."""
    if not isinstance(value, tuple | list):
        told = f"of type {value.type}" if isinstance(value, Array) else repr(value)
        refuse(f"{op}: {name} is {told}", remedy)
    return tuple(value)


def _listed(shape: tuple[Any, ...]) -> tuple[AnyDim, ...]:
    """`(2, 3)` of both f(2, 3) and f((2, 3))."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        return tuple(shape[0])
    return shape


# Elementwise ------------------------------------------------------------------------------------


def square(x: Any) -> Array:
    """X * x."""
    return _trace(x).add("mul", x, x)


def clip(x: Any, low: Any = None, high: Any = None) -> Array:
    """`x` limited to low..high; None: no limit. NaN passes."""
    if low is not None and high is not None:
        return _trace(x, low, high).add("clamp", x, low, high)
    if low is None and high is None:
        refuse("clip without limits", "Give low or high.")
    return _trace(x).add("minimum" if low is None else "maximum", x, high if low is None else low)


clamp = clip


def gelu(x: Any, approximate: str = "none") -> Array:
    """The Gaussian error linear unit; approximate: "none" (by erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        refuse(f"gelu(approximate={approximate!r})", 'Use "none" or "tanh".')
    return _trace(x).add("gelu" if approximate == "none" else "gelu_tanh", x)


def cast(x: Any, dtype: Any) -> Array:
    """`x` with elements of `dtype`; floats are truncated towards zero to ints."""
    return _trace(x).add("cast", x, dtype=dtype)


astype = to = cast


# Reductions -------------------------------------------------------------------------------------


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Sum over axes, None: all. Integers and bools add up as int64."""
    return _trace(x).add("sum", x, axes=_axes(axis), keepdims=keepdims)


def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Product over axes, None: all. Integers and bools multiply as int64."""
    return _trace(x).add("prod", x, axes=_axes(axis), keepdims=keepdims)


def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean over axes, None: all."""
    return _trace(x).add("mean", x, axes=_axes(axis), keepdims=keepdims)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest value over axes, None: all. NaN if there is one."""
    return _trace(x).add("amax", x, axes=_axes(axis), keepdims=keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest value over axes, None: all. NaN if there is one."""
    return _trace(x).add("amin", x, axes=_axes(axis), keepdims=keepdims)


amax, amin = max, min


def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 1) -> Array:
    """Variance over axes, None: all; the divisor is the count less `correction`, as in torch."""
    return _trace(x).add("var", x, axes=_axes(axis), keepdims=keepdims, correction=correction)


def std(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 1) -> Array:
    """Square root of `var`."""
    return _trace(x).add("sqrt", var(x, axis, keepdims, correction))


def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element is true (not zero)."""
    return _trace(x).add("any", x, axes=_axes(axis), keepdims=keepdims)


def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element is true (not zero)."""
    return _trace(x).add("all", x, axes=_axes(axis), keepdims=keepdims)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the first largest value on an axis, None: in the flattened array."""
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the first smallest value on an axis, None: in the flattened array."""
    return _arg("argmin", x, axis, keepdims)


def _arg(op: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    if axis is not None:
        return _trace(x).add(op, x, axis=axis, keepdims=keepdims)
    found = _trace(x).add(op, reshape(x, -1), axis=0)
    return reshape(found, [1] * _array(x).ndim) if keepdims else found


# Rows -------------------------------------------------------------------------------------------


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x) divided by its sum over the axis, without overflow."""
    return _trace(x).add("softmax", x, axis=axis)


def log_softmax(x: Any, axis: int = -1) -> Array:
    """log(softmax(x, axis)), without overflow."""
    return _trace(x).add("log_softmax", x, axis=axis)


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: Axis = None
) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias.

    Over `axis`; None: the axes of `weight`, or the last one if there is no weight.
    """
    normal = _trace(x).add("layer_norm", x, axes=_norm_axes(weight, axis), eps=eps)
    return _scaled(normal, weight, bias)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6, axis: Axis = None) -> Array:
    """X / sqrt(mean(x * x) + eps) * weight; axis as in `layer_norm`."""
    normal = _trace(x).add("rms_norm", x, axes=_norm_axes(weight, axis), eps=eps)
    return _scaled(normal, weight, None)


def _norm_axes(weight: Any, axis: Axis) -> tuple[int, ...]:
    if axis is not None:
        return _axes(axis)
    rank = weight.ndim if isinstance(weight, Array) else 1
    return tuple(range(-rank, 0)) if rank else (-1,)


def _scaled(x: Array, weight: Any, bias: Any) -> Array:
    x = x if weight is None else x.trace.add("mul", x, weight)
    return x if bias is None else x.trace.add("add", x, bias)


# Views and layout -------------------------------------------------------------------------------


def reshape(x: Any, *shape: Any) -> Array:
    """The same elements in row-major order in another shape; one size may be -1."""
    return _trace(x).add("reshape", x, shape=_listed(shape))


view = reshape


def permute(x: Any, *axes: Any) -> Array:
    """Axis i of the result is axis axes[i] of `x`."""
    return _trace(x).add("permute", x, axes=_listed(axes))


def transpose(x: Any, *axes: Any) -> Array:
    """Two axes swapped, as in torch; without axes, all reversed."""
    x, order = _array(x), _listed(axes)
    if len(order) != 2:
        return permute(x, *order) if order else x.T
    full = list(range(x.ndim))
    a, b = (_axis("transpose", x, axis) for axis in order)
    full[a], full[b] = full[b], full[a]
    return permute(x, *full)


def expand(x: Any, *shape: Any) -> Array:
    """`x` broadcast to a shape; -1 keeps a size."""
    return _trace(x).add("expand", x, shape=_listed(shape))


broadcast_to = expand


def unsqueeze(x: Any, axis: int) -> Array:
    """A dimension of size 1 inserted, at `axis` of the result."""
    return _trace(x).add("unsqueeze", x, axis=axis)


expand_dims = unsqueeze


def squeeze(x: Any, axis: int | Sequence[int]) -> Array:
    """Dimensions of size 1 dropped."""
    return _trace(x).add("squeeze", x, axes=_axes(axis))


def flip(x: Any, axis: Axis = None) -> Array:
    """Axes reversed, None: all."""
    array = _array(x)
    axes = tuple(range(array.ndim)) if axis is None else _axes(axis)
    return array.trace.add("flip", array, axes=axes) if axes else array


def slice(x: Any, axis: int, start: AnyDim, stop: AnyDim, step: int = 1) -> Array:
    """x[start:stop:step] on an axis."""
    return _trace(x).add("slice", x, axis=axis, start=start, stop=stop, step=step)


def select(x: Any, axis: int, index: AnyDim) -> Array:
    """x[index] on an axis."""
    array = _array(x)
    return array[(*[builtins.slice(None)] * _axis("select", array, axis), index)]


def concat(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays joined along an axis; at least one."""
    parts = _parts("concat", arrays)
    return _trace(*parts).add("concat", *parts, axis=axis)


concatenate = cat = concat


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays joined along a new axis; at least one."""
    return concat([unsqueeze(x, axis) for x in _parts("stack", arrays)], axis)


def _parts(op: str, arrays: Any) -> tuple[Any, ...]:
    remedy = f"Pass a list of arrays: {op}([x, y])."
    parts = _sequence(op, "arrays", arrays, remedy)
    if not parts:
        refuse(f"{op}: arrays is {arrays!r}", remedy)
    return parts


def split(x: Any, sections: int | Sequence[AnyDim], axis: int = 0) -> list[Array]:
    """Parts along an axis: that many of equal size, or parts of the sizes listed.

    Raises: ShapeError, if parts cannot be equal, or sizes do not add up to that of the axis.
    """
    x = _array(x)
    axis = _axis("split", x, axis)
    remedy = "It takes a number of equal parts, an int of at least 1, or a list of their sizes."
    if isinstance(sections, int):
        if isinstance(sections, bool) or sections < 1:
            refuse(f"split: sections is {sections!r}", remedy)
        shape = x.shape
        parts = reshape(x, *shape[:axis], sections, shape[axis] // sections, *shape[axis + 1 :])
        return [select(parts, axis, i) for i in range(sections)]
    result: list[Array] = []
    start: AnyDim = 0
    rule = "Sizes are at least 0, and add up to that of the axis."
    for size in _sequence("split", "sections", sections, remedy):
        if not isinstance(size, int | SymbolicSize) or isinstance(size, bool):
            refuse(f"split: sections is {sections!r}", remedy)
        own = size.size if isinstance(size, SymbolicSize) else size
        what = "a size of sections is negative"
        x.trace.require(own, _at_least_0(own), "split", what, rule)
        result.append(slice(x, axis, start, start + size))
        start = start + size
    total = start.size if isinstance(start, SymbolicSize) else start
    what = f"sizes do not add up to that of axis {axis} of {x.type}"
    x.trace.require(total, x.type.shape[axis], "split", what, rule)
    return result


def pad(x: Any, low: Sequence[AnyDim], high: Sequence[AnyDim], value: float = 0) -> Array:
    """`low[i]` elements before and `high[i]` after the others on each axis i."""
    remedy = "It takes a width for each axis: pad(x, (1, 0), (0, 2))."
    low = _sequence("pad", "low", low, remedy)
    high = _sequence("pad", "high", high, remedy)
    return _trace(x).add("pad", x, low=low, high=high, value=value)


# Gathers and products ---------------------------------------------------------------------------


def take(x: Any, index: Any, axis: int = 0) -> Array:
    """The slices of `x` on an axis that an array of ints names; embedding is axis 0.

    Ints count from the start, as torch.index_select's do; those of `x[index]` also from the end.
    """
    return _trace(x, index).add("take", x, index, axis=axis)


def gather(x: Any, index: Any, axis: int) -> Array:
    """x[..., index[i], ...] element by element on an axis, as torch.gather."""
    return _trace(x, index).add("gather", x, index, axis=axis)


# Loops ------------------------------------------------------------------------------------------


def cumsum(x: Any, axis: int) -> Array:
    """Sums of the first element, the first two, ... on an axis, as torch.cumsum."""
    return _trace(x).add("cumsum", x, axis=axis)


def cumprod(x: Any, axis: int) -> Array:
    """Products of the first element, the first two, ... on an axis, as torch.cumprod."""
    return _trace(x).add("cumprod", x, axis=axis)


def cummax(x: Any, axis: int) -> Array:
    """The largest of the first element, the first two, ... on an axis."""
    return _trace(x).add("cummax", x, axis=axis)


def cummin(x: Any, axis: int) -> Array:
    """The smallest of the first element, the first two, ... on an axis."""
    return _trace(x).add("cummin", x, axis=axis)


def logcumsumexp(x: Any, axis: int) -> Array:
    """log(e^x[0]), log(e^x[0] + e^x[1]), ... on an axis."""
    return _trace(x).add("logcumsumexp", x, axis=axis)


def scatter(x: Any, index: Any, source: Any, axis: int) -> Array:
    """`x` with source[..., i, ...] at index[..., i, ...] on an axis, as torch.scatter."""
    return _trace(x, index, source).add("scatter", x, index, source, axis=axis)


def scatter_add(x: Any, index: Any, source: Any, axis: int) -> Array:
    """As scatter, but adds, as torch.scatter_add."""
    return _trace(x, index, source).add("scatter_add", x, index, source, axis=axis)


def scatter_mul(x: Any, index: Any, source: Any, axis: int) -> Array:
    """As scatter, but multiplies."""
    return _trace(x, index, source).add("scatter_mul", x, index, source, axis=axis)


def scatter_max(x: Any, index: Any, source: Any, axis: int) -> Array:
    """As scatter, but keeps the larger."""
    return _trace(x, index, source).add("scatter_max", x, index, source, axis=axis)


def scatter_min(x: Any, index: Any, source: Any, axis: int) -> Array:
    """As scatter, but keeps the smaller."""
    return _trace(x, index, source).add("scatter_min", x, index, source, axis=axis)


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Array:
    """Places of the elements on an axis in order, int64; equal ones stay in theirs."""
    return _trace(x).add("argsort", x, axis=axis, descending=descending)


def argtopk(x: Any, k: Any, axis: int = -1, largest: bool = True) -> Array:
    """Places of the k largest, or smallest, elements on an axis in order, int64."""
    return _trace(x).add("argtopk", x, axis=axis, k=k, largest=largest)


def searchsorted(x: Any, values: Any, axis: int = -1, right: bool = False) -> Array:
    """How many elements of `x`, in order on an axis, are less than each value, int64.

    right: or equal to it.
    """
    return _trace(x, values).add("searchsorted", x, values, axis=axis, right=right)


# Convolutions -----------------------------------------------------------------------------------


def conv(
    x: Any,
    w: Any,
    *,
    stride: Sequence[int] = (),
    dilation: Sequence[int] = (),
    low: Sequence[int] = (),
    high: Sequence[int] = (),
    depthwise: bool = False,
) -> Array:
    """Windows `w` [K, sizes, C] moved over images `x` [N, sizes, C]: [N, positions, K].

    For each axis of the image the step, the distance of a window's elements, and the zeros in front
    and behind; none given means 1, 1, 0 and 0. depthwise: each channel has a window of its own,
    `w` is [C, sizes, 1]. Channels are last: PyTorch's [N, C, H, W] is permuted by (0, 2, 3, 1).
    """
    return _trace(x, w).add(
        "conv", x, w, stride=stride, dilation=dilation, low=low, high=high, depthwise=depthwise
    )


def conv_windows(
    x: Any,
    y: Any,
    *,
    taps: Sequence[int],
    stride: Sequence[int] = (),
    dilation: Sequence[int] = (),
    low: Sequence[int] = (),
    high: Sequence[int] = (),
) -> Array:
    """Sum over positions of `y` [N, positions, K] times the window of `x` [N, sizes, C] there:
    [K, taps, C]. It is the gradient of the windows of `conv`, whose parameters these are, if `y`
    is that of its result.
    """
    return _trace(x, y).add(
        "conv_windows", x, y, taps=taps, stride=stride, dilation=dilation, low=low, high=high
    )


# More gathers -----------------------------------------------------------------------------------


def embedding(index: Any, weight: Any) -> Array:
    """Rows of `weight`, as torch.nn.functional.embedding."""
    return take(weight, index, 0)


# New arrays -------------------------------------------------------------------------------------


def full(shape: Any, value: Any, dtype: Any = None) -> Array:
    """An array filled with a number; without dtype float32, int64 or bool as the number is."""
    shape = _listed((shape,)) if isinstance(shape, tuple | list) else (shape,)
    if isinstance(value, Array | SymbolicSize):
        value = _array(value)
        if dtype is not None or value.type.weak:
            value = cast(value, dtype or strong(value.dtype))
        return expand(value, *shape)
    value = value.item() if isinstance(value, np.generic) else value
    dtype = dtype or strong({bool: "bool", int: "int64"}.get(type(value), "float64"))
    return Trace.current().add("full", shape=shape, value=value, dtype=dtype)


def zeros(shape: Any, dtype: Any = float32) -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float32) -> Array:
    """An array of ones."""
    return full(shape, 1, dtype)


def full_like(x: Array, value: Any, dtype: Any = None) -> Array:
    """An array of the shape and dtype of `x`, filled with a number."""
    return full(x.shape, value, dtype or x.dtype)


def zeros_like(x: Array, dtype: Any = None) -> Array:
    """Zeros in the shape and dtype of `x`."""
    return full_like(x, 0, dtype)


def ones_like(x: Array, dtype: Any = None) -> Array:
    """Ones in the shape and dtype of `x`."""
    return full_like(x, 1, dtype)


def arange(start: AnyDim, stop: AnyDim | None = None, step: int = 1, dtype: Any = int64) -> Array:
    """Ints from `start` in steps until before `stop`; bounds are ints or sizes."""
    if stop is None:
        start, stop = 0, start
    for bound in (start, stop, step):
        check_int("arange: a bound", bound)
        if not isinstance(bound, int | SymbolicSize) or isinstance(bound, bool):
            refuse(f"arange of a {type(bound).__name__}", "Bounds are ints or sizes.")
    if not isinstance(step, int) or step == 0:
        refuse(f"arange with step {step!r}", "The step is an int other than 0.")
    span = stop - start if step > 0 else start - stop
    size: Any = (span + (builtins.abs(step) - 1)) // builtins.abs(step)
    if isinstance(size, int):
        size = size if size > 0 else 0
    else:
        size = size.trace.size(_at_least_0(size.size))
    result = Trace.current().add("iota", size=size, start=start, step=step)
    return result if dtype == int64 else cast(result, dtype)


def strong(dtype: str) -> str:
    """The dtype of an array that holds a Python number of this dtype."""
    return {"float64": float32}.get(dtype, dtype)


def _at_least_0(size: AnySize) -> Size:
    return Size(f"max(0, {size})")


_CREATE = ("full", "zeros", "ones", "arange", "strong", "concat", "concatenate", "cat", "stack")


def _methods() -> dict[str, Callable[..., Any]]:
    rows = [name for name, op in BY_NAME.items() if not op.params and op.inputs > 0]
    own = [n for n, f in globals().items() if callable(f) and f.__module__ == __name__]
    names = [n for n in (*own, *rows, *_ALIASES) if n[0] != "_" and n not in _CREATE]
    return {name: globals().get(name) or __getattr__(name) for name in names}


Array.methods.update(_methods())
