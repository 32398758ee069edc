"""THE operator table: every operator of the graph, once.

The C++ enumeration, property and decomposition tables, the reference evaluator, `docs/ops.md`, the
front ends' coverage list and the random-program generator come from these rows. Typing rules are
names of a closed set that the core implements (`core/program/infer.h`).

A meaning takes NumPy arrays in order, then the parameters by name. Floating point arrives as
float64 (the reference evaluator rounds to the node's dtype afterwards), sizes as ints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import erf, erfc
from typing import Any

import numpy as np

Array = Any  # np.ndarray of any dtype


class Class(Enum):
    """What the fuser needs to know of an operator."""

    ELEMENTWISE = "elementwise"  # operands broadcast; one instruction an element
    REDUCE = "reduce"  # folds axes
    VIEW = "view"  # same elements, other strides; free on a buffer
    LAYOUT = "layout"  # copies into parts of a new buffer
    GATHER = "gather"  # loads at run-time indices
    CREATE = "create"  # no tensor inputs
    COMPOSITE = "composite"  # always decomposed
    LOOP = "loop"  # a loop of its own in the core
    CALL = "call"  # runs outside, through a call-out


class Kind(Enum):
    """Kind of an operator's parameter."""

    AXIS = "axis"  # int, negative counts from the end
    AXES = "axes"  # list of ints; of axes, empty means all
    SIZE = "size"  # size expression
    SIZES = "sizes"  # list of size expressions
    DTYPE = "dtype"
    INT = "int"
    BOOL = "bool"
    NUMBER = "number"  # Python int, float or bool


@dataclass(frozen=True)
class Param:
    """A parameter that is part of the program; `default` None means required."""

    name: str
    kind: Kind
    default: Any = None


@dataclass(frozen=True)
class Op:
    """One row.

    `inputs` is the number of tensor operands (-1: any number, at least 1). `rule` names the typing
    rule. `families` are the types for which an instruction `<instr>_<type>` exists: f (floats), i
    (integers), b (bool). `decomposition` is graph text over `x` (`y`, ...) and
    the parameters, see `ir/generate.py`; operators with one never reach the fuser.
    """

    name: str
    cls: Class
    inputs: int
    rule: str
    meaning: Callable[..., Any] | None
    doc: str
    params: tuple[Param, ...] = ()
    instr: str = ""
    families: str = ""
    decomposition: str = ""
    aliases: tuple[str, ...] = ()


# Meanings that are more than one NumPy call -----------------------------------------------------


def _quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*args, **kwargs)

    return run


def _sign(x: Array) -> Array:
    return np.where(x > 0, 1, np.where(x < 0, -1, 0)).astype(x.dtype)


def _erf(x: Array) -> Array:
    return np.vectorize(erf, otypes=[np.float64])(np.asarray(x))


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Array) -> Array:
    # Not by 1 + erf, which is 0 for x < -8.4. NaN at -inf, as eager's.
    return 0.5 * x * np.vectorize(erfc, otypes=[np.float64])(np.asarray(x * -0.7071067811865476))


def _gelu_tanh(x: Array) -> Array:
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + np.exp(-2.0 * inner))  # (1 + tanh u) / 2 without cancellation


def _int_pow(a: Array, b: Array) -> Array:
    result, base, exponent = np.ones_like(a), a.copy(), np.where(b < 0, 0, b)
    while np.any(exponent > 0):
        result = np.where(exponent & 1, result * base, result)
        base, exponent = base * base, exponent >> 1
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0))
    return np.where(b < 0, negative, result).astype(a.dtype)


def _pow(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        a, b = np.broadcast_arrays(a, b)
        return _int_pow(a, b)
    return np.power(a, b)


def _shift_left(a: Array, b: Array) -> Array:
    out = (b < 0) | (b >= a.dtype.itemsize * 8)
    return np.where(out, 0, np.left_shift(a, np.where(out, 0, b))).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    out = (b < 0) | (b >= a.dtype.itemsize * 8)
    sign = np.where(a < 0, -1, 0)
    return np.where(out, sign, np.right_shift(a, np.where(out, 0, b))).astype(a.dtype)


def _axes(x: Array, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(a % x.ndim for a in axes) if len(axes) else tuple(range(x.ndim))


def _reduce(fn: Callable[..., Any], *, empty: float | None = None) -> Callable[..., Any]:
    def run(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        extra = {} if empty is None or x.size else {"initial": empty}
        return np.asarray(fn(x, axis=_axes(x, axes), keepdims=keepdims, **extra))

    return _quiet(run)


def _mean(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
    over = _axes(x, axes)
    count = np.float64(np.prod([x.shape[a] for a in over], dtype=np.int64))
    return np.sum(x, axis=over, keepdims=keepdims) / count


def _var(x: Array, axes: Sequence[int], keepdims: bool, correction: float) -> Array:
    over = _axes(x, axes)
    count = np.float64(np.prod([x.shape[a] for a in over], dtype=np.int64))
    centred = x - np.sum(x, axis=over, keepdims=True) / count
    return np.sum(centred * centred, axis=over, keepdims=keepdims) / np.maximum(
        count - correction, 0.0
    )


def _arg(best: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Array, axis: int, keepdims: bool) -> Array:
        nan = np.isnan(x) if np.issubdtype(x.dtype, np.floating) else np.zeros(x.shape, bool)
        first_nan = np.argmax(nan, axis=axis, keepdims=keepdims)
        any_nan = np.any(nan, axis=axis, keepdims=keepdims)
        return np.where(any_nan, first_nan, best(x, axis=axis, keepdims=keepdims)).astype(np.int64)

    return run


def _slice(x: Array, axis: int, start: int, stop: int, step: int) -> Array:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _pad(x: Array, low: Sequence[int], high: Sequence[int], value: float) -> Array:
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=value)


def _inside(index: Array, axis: int, size: int) -> Array:
    """The index. Raises: IndexError; places do not count from the end."""
    wrong = index[(index < 0) | (index >= size)]
    if wrong.size:
        raise IndexError(f"index {wrong[0]} is out of bounds for axis {axis} with size {size}")
    return index.astype(np.int64)


def _take(x: Array, index: Array, axis: int) -> Array:
    return np.take(x, _inside(index, axis, x.shape[axis]), axis=axis)


def _gather(x: Array, index: Array, axis: int) -> Array:
    kept = [slice(n) for n in index.shape]
    kept[axis] = slice(None)
    return np.take_along_axis(x[tuple(kept)], _inside(index, axis, x.shape[axis]), axis=axis)


def _scan(op: Any) -> Callable[..., Any]:
    def run(x: Array, axis: int) -> Array:
        return op.accumulate(x, axis=axis)

    return _quiet(run)


def _scatter(op: Any) -> Callable[..., Any]:
    def run(x: Array, index: Array, source: Array, axis: int) -> Array:
        index = _inside(index, axis, x.shape[axis])
        result = x.copy()
        places = list(np.indices(source.shape, sparse=True))
        places[axis] = index
        to = np.broadcast_arrays(*places)
        if op is None:  # one after the other: of equal places the last one stays
            for i, value in enumerate(source.flat):
                result[tuple(p.flat[i] for p in to)] = value
        else:
            op.at(result, tuple(to), source)
        return result

    return _quiet(run)


def _argsort(x: Array, axis: int, descending: bool) -> Array:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # of equal ones the first stays first: sorted from behind, read from behind
    order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(order, axis)


class _Windows:
    """Windows of images x [N, sizes, C] at all positions, tap by tap."""

    def __init__(
        self,
        x: Array,
        taps: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        low: Sequence[int],
        high: Sequence[int],
    ) -> None:
        n = x.ndim - 2
        self.taps = tuple(taps) or (1,) * n
        self.stride, self.dilation = tuple(stride) or (1,) * n, tuple(dilation) or (1,) * n
        low, high = tuple(low) or (0,) * n, tuple(high) or (0,) * n
        self.padded = np.pad(x, [(0, 0), *zip(low, high, strict=True), (0, 0)])
        extents = [d * (t - 1) + 1 for d, t in zip(self.dilation, self.taps, strict=True)]
        padded = self.padded.shape[1:-1]
        self.out = [
            (s - e) // by + 1 for s, e, by in zip(padded, extents, self.stride, strict=True)
        ]

    def __getitem__(self, tap: Sequence[int]) -> Array:
        """What a tap finds at each position: [N, positions, C]."""
        at = [t * d for t, d in zip(tap, self.dilation, strict=True)]
        ends = [a + (o - 1) * by + 1 for a, o, by in zip(at, self.out, self.stride, strict=True)]
        places = [slice(*bounds) for bounds in zip(at, ends, self.stride, strict=True)]
        none = slice(0, 0)
        kept = [place if o else none for place, o in zip(places, self.out, strict=True)]
        return self.padded[(slice(None), *kept)]


def _conv(x: Array, w: Array, depthwise: bool, **parameters: Sequence[int]) -> Array:
    windows = _Windows(x, w.shape[1:-1], **parameters)
    result = np.zeros((x.shape[0], *windows.out, w.shape[0]), np.result_type(x, w))
    for tap in np.ndindex(*windows.taps):
        weights = w[(slice(None), *tap)]
        result += windows[tap] * weights[:, 0] if depthwise else windows[tap] @ weights.T
    return result


def _grouped_matmul(x: Array, y: Array, ends: Array) -> Array:
    result = np.zeros((len(x), y.shape[-1]), np.result_type(x, y))
    starts = [0, *ends[:-1]]
    if np.any(np.less(ends, starts)) or np.any(ends > len(x)):
        raise IndexError(f"ends of groups do not ascend from 0 to {len(x)}: {ends}")
    for first, end, weights in zip(starts, ends, y, strict=True):
        result[first:end] = x[first:end] @ weights
    return result


def _conv_windows(x: Array, y: Array, **parameters: Sequence[int]) -> Array:
    windows = _Windows(x, **parameters)
    result = np.zeros((y.shape[-1], *windows.taps, x.shape[-1]), np.result_type(x, y))
    for tap in np.ndindex(*windows.taps):
        rows = windows[tap].reshape(-1, x.shape[-1])
        result[(slice(None), *tap)] = y.reshape(-1, y.shape[-1]).T @ rows
    return result


def _argtopk(x: Array, axis: int, k: int, largest: bool) -> Array:
    order = _argsort(x, axis, largest)
    return np.take(order, np.arange(k), axis=axis)


def _searchsorted(x: Array, y: Array, axis: int, right: bool) -> Array:
    row: Array = np.expand_dims(np.swapaxes(x, axis, -1), -2)
    wanted: Array = np.expand_dims(np.swapaxes(y, axis, -1), -1)
    behind = row > wanted if right else row >= wanted
    return np.swapaxes(np.sum(~behind, axis=-1, dtype=np.int64), -1, axis)


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _layer_norm(x: Array, axes: Sequence[int], eps: float) -> Array:
    over = _axes(x, axes)
    return (x - _mean(x, over, True)) / np.sqrt(_var(x, over, True, 0.0) + eps)


def _rms_norm(x: Array, axes: Sequence[int], eps: float) -> Array:
    return x / np.sqrt(_mean(x * x, _axes(x, axes), True) + eps)


# Rows -------------------------------------------------------------------------------------------

_E = Class.ELEMENTWISE


def _float_unary(name: str, meaning: Callable[..., Any], doc: str, *aliases: str) -> Op:
    """Float in, float out; integers and bools become float32, as in PyTorch."""
    return Op(name, _E, 1, "float_unary", _quiet(meaning), doc, (), name, "f", aliases=aliases)


def _rounding(name: str, meaning: Callable[..., Any], doc: str) -> Op:
    def run(x: Array) -> Array:  # NumPy's would make float64 of integers
        return meaning(x) if np.issubdtype(x.dtype, np.floating) else x

    return Op(name, _E, 1, "round_unary", run, doc, (), name, "f")


def _predicate(name: str, meaning: Callable[..., Any], doc: str) -> Op:
    return Op(name, _E, 1, "predicate", meaning, doc, (), name, "f")


def _binary(
    name: str, meaning: Callable[..., Any], doc: str, rule: str = "promote", families: str = "fi"
) -> Op:
    return Op(name, _E, 2, rule, _quiet(meaning), doc, (), name, families)


def _compare(name: str, meaning: Callable[..., Any], doc: str) -> Op:
    return Op(name, _E, 2, "compare", meaning, doc, (), name, "fi")


_AXES = Param("axes", Kind.AXES, ())
_KEEP = Param("keepdims", Kind.BOOL, False)
_AXIS = Param("axis", Kind.AXIS)


def _reduction(name: str, rule: str, meaning: Callable[..., Any], doc: str, families: str) -> Op:
    instr = {"amax": "max", "amin": "min"}.get(name, name)
    return Op(name, Class.REDUCE, 1, rule, meaning, doc, (_AXES, _KEEP), instr, families)


# fmt: off
OPS: tuple[Op, ...] = (
    # unary
    Op("abs", _E, 1, "same", np.abs, "|x|", (), "abs", "fi"),
    Op("neg", _E, 1, "same_number", np.negative, "-x", (), "neg", "fi"),
    Op("sign", _E, 1, "same", _sign, "-1, 0 or 1 by the sign of x; NaN gives 0", (), "sign", "fi"),
    Op("relu", _E, 1, "same_number", lambda x: np.where(x < 0, np.zeros((), x.dtype), x), "max(x, 0), NaN passes", decomposition="z = full [], 0, dtype(x); r = maximum z, x"),
    Op("logical_not", _E, 1, "predicate", np.logical_not, "not x", (), "not", "b"),
    Op("bitwise_not", _E, 1, "same_integer", np.invert, "~x", (), "not", "ib"),
    _float_unary("exp", np.exp, "e^x"),
    _float_unary("exp2", np.exp2, "2^x"),
    _float_unary("expm1", np.expm1, "e^x - 1"),
    _float_unary("log", np.log, "natural logarithm"),
    _float_unary("log2", np.log2, "binary logarithm"),
    _float_unary("log1p", np.log1p, "log(1 + x)"),
    _float_unary("sqrt", np.sqrt, "square root"),
    _float_unary("rsqrt", lambda x: 1.0 / np.sqrt(x), "1 / sqrt(x)"),
    _float_unary("reciprocal", lambda x: 1.0 / np.asarray(x), "1 / x"),
    _float_unary("sin", np.sin, "sine"),
    _float_unary("cos", np.cos, "cosine"),
    _float_unary("tan", np.tan, "tangent"),
    _float_unary("tanh", np.tanh, "hyperbolic tangent"),
    _float_unary("sigmoid", _sigmoid, "1 / (1 + e^-x)"),
    _float_unary("erf", _erf, "error function"),
    _float_unary("silu", lambda x: x * _sigmoid(x), "x * sigmoid(x)"),
    _float_unary("gelu", _gelu, "x * normal cumulative function (erf form)"),
    _float_unary("gelu_tanh", _gelu_tanh, "gelu by its tanh approximation"),
    _rounding("floor", np.floor, "floor; integers unchanged"),
    _rounding("ceil", np.ceil, "ceiling; integers unchanged"),
    _rounding("round", np.rint, "nearest integer, ties to even; integers unchanged"),
    _rounding("trunc", np.trunc, "towards zero; integers unchanged"),
    _predicate("isnan", np.isnan, "x is NaN"),
    _predicate("isinf", np.isinf, "x is an infinity"),
    _predicate("isfinite", np.isfinite, "x is neither infinite nor NaN"),
    # binary
    Op("add", _E, 2, "promote", _quiet(np.add), "x + y; of bools: or", (), "add", "fi"),
    Op("sub", _E, 2, "promote_number", _quiet(np.subtract), "x - y", (), "sub", "fi"),
    Op("mul", _E, 2, "promote", _quiet(np.multiply), "x * y; of bools: and", (), "mul", "fi"),
    Op("div", _E, 2, "promote_float", _quiet(np.divide), "x / y, true division", (), "div", "f"),
    _binary("floor_div", np.floor_divide, "floor of x / y, as Python's //", "promote_number"),
    _binary("remainder", np.remainder, "x modulo y with the sign of y, as Python's %", "promote_number"),
    _binary("fmod", np.fmod, "x modulo y with the sign of x", "promote_number"),
    _binary("pow", _pow, "x to the power y", "promote_number"),
    Op("maximum", _E, 2, "promote", np.maximum, "larger; NaN if either is NaN", (), "maximum", "fi"),
    Op("minimum", _E, 2, "promote", np.minimum, "smaller; NaN if either is NaN", (), "minimum", "fi"),
    Op("atan2", _E, 2, "promote_float", np.arctan2, "angle of the point (y, x)", (), "atan2", "f"),
    Op("copysign", _E, 2, "promote_float", np.copysign, "|x| with the sign of y", (), "copysign", "f"),
    _compare("eq", np.equal, "x == y"),
    _compare("ne", np.not_equal, "x != y"),
    _compare("lt", np.less, "x < y"),
    _compare("le", np.less_equal, "x <= y"),
    _compare("gt", np.greater, "x > y"),
    _compare("ge", np.greater_equal, "x >= y"),
    Op("logical_and", _E, 2, "logical", np.logical_and, "x and y", (), "and", "b"),
    Op("logical_or", _E, 2, "logical", np.logical_or, "x or y", (), "or", "b"),
    Op("logical_xor", _E, 2, "logical", np.logical_xor, "x differs from y", (), "xor", "b"),
    Op("bitwise_and", _E, 2, "promote_integer", np.bitwise_and, "x & y", (), "and", "ib"),
    Op("bitwise_or", _E, 2, "promote_integer", np.bitwise_or, "x | y", (), "or", "ib"),
    Op("bitwise_xor", _E, 2, "promote_integer", np.bitwise_xor, "x ^ y", (), "xor", "ib"),
    Op("shift_left", _E, 2, "promote_shift", _shift_left, "x << y; 0 if y is out of range", (), "shl", "i"),
    Op("shift_right", _E, 2, "promote_shift", _shift_right, "x >> y, arithmetic", (), "shr", "i"),
    # ternary, casts
    Op("where", _E, 3, "where", np.where, "y if x else z", (), "select", "fib"),
    Op("clamp", _E, 3, "promote", lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi), "min(max(x, y), z), NaN passes", decomposition="m = maximum y, x; r = minimum z, m"),
    Op("cast", _E, 1, "cast", None, "x as dtype; float to int truncates", (Param("dtype", Kind.DTYPE),)),
    # create
    Op("full", Class.CREATE, 0, "full", None, "a tensor filled with value", (Param("shape", Kind.SIZES), Param("value", Kind.NUMBER), Param("dtype", Kind.DTYPE))),
    Op("iota", Class.CREATE, 0, "iota", lambda size, start, step: np.arange(size, dtype=np.int64) * step + start, "int64 [size]: start, start + step, ...", (Param("size", Kind.SIZE), Param("start", Kind.SIZE, 0), Param("step", Kind.SIZE, 1))),
    Op("scalar", Class.CREATE, 0, "scalar", lambda value: np.asarray(value), "a Python number; promotes weakly, as in PyTorch", (Param("value", Kind.NUMBER),)),
    Op("size_value", Class.CREATE, 0, "size_value", lambda size: np.int64(size), "the size as a Python int scalar", (Param("size", Kind.SIZE),)),
    # reductions
    _reduction("sum", "reduce_sum", _reduce(np.sum), "sum; integers and bools to int64", "fi"),
    _reduction("prod", "reduce_sum", _reduce(np.prod), "product; integers and bools to int64", "fi"),
    _reduction("amax", "reduce_same", _reduce(np.max), "maximum, NaN if any is NaN", "fi"),
    _reduction("amin", "reduce_same", _reduce(np.min), "minimum, NaN if any is NaN", "fi"),
    _reduction("any", "reduce_bool", _reduce(np.any), "some element is true", "b"),
    _reduction("all", "reduce_bool", _reduce(np.all), "every element is true", "b"),
    Op("argmax", Class.REDUCE, 1, "reduce_index", _arg(np.argmax), "index of the first maximum; NaN is largest", (_AXIS, _KEEP), "argmax", "fi"),
    Op("argmin", Class.REDUCE, 1, "reduce_index", _arg(np.argmin), "index of the first minimum; NaN is smallest", (_AXIS, _KEEP), "argmin", "fi"),
    _reduction("mean", "reduce_float", _quiet(_mean), "mean, rounded once; NaN if empty", "f"),
    Op("var", Class.COMPOSITE, 1, "reduce_float", _quiet(_var), "variance, divided by max(count - correction, 0)", (_AXES, _KEEP, Param("correction", Kind.NUMBER, 1)), decomposition="n = count x, axes; m = mean x, axes, true; d = sub x, m; q = mul d, d; s = sum q, axes, keepdims; c = scalar correction; f = sub n, c; z = scalar 0; g = maximum f, z; r = div s, g"),
    # views
    Op("reshape", Class.VIEW, 1, "reshape", lambda x, shape: np.reshape(x, shape), "same elements in row-major order, new shape", (Param("shape", Kind.SIZES),)),
    Op("permute", Class.VIEW, 1, "permute", lambda x, axes: np.transpose(x, axes), "axis i of the result is axis axes[i] of x", (Param("axes", Kind.AXES),)),
    Op("expand", Class.VIEW, 1, "expand", lambda x, shape: np.broadcast_to(x, shape), "broadcast to shape", (Param("shape", Kind.SIZES),)),
    Op("slice", Class.VIEW, 1, "slice", _slice, "x[start:stop:step] on an axis, step >= 1; bounds as Python's", (_AXIS, Param("start", Kind.SIZE), Param("stop", Kind.SIZE), Param("step", Kind.INT, 1))),
    Op("select", Class.VIEW, 1, "select", lambda x, axis, index: np.take(x, index, axis=axis), "x[index] on an axis", (_AXIS, Param("index", Kind.SIZE))),
    Op("unsqueeze", Class.VIEW, 1, "unsqueeze", lambda x, axis: np.expand_dims(x, axis), "insert an axis of size 1 (axis in the result)", (_AXIS,)),
    Op("squeeze", Class.VIEW, 1, "squeeze", lambda x, axes: np.squeeze(x, tuple(axes)), "drop axes of size 1", (Param("axes", Kind.AXES),)),
    Op("flip", Class.VIEW, 1, "flip", lambda x, axes: np.flip(x, tuple(axes)), "reverse axes", (Param("axes", Kind.AXES),)),
    # layout
    Op("concat", Class.LAYOUT, -1, "concat", lambda *xs, axis: np.concatenate(xs, axis), "join along an axis", (_AXIS,)),
    Op("pad", Class.LAYOUT, 1, "pad", _pad, "constant padding; low and high per axis, at least 0", (Param("low", Kind.SIZES), Param("high", Kind.SIZES), Param("value", Kind.NUMBER, 0))),
    # gather
    Op("gather", Class.GATHER, 2, "gather", _gather, "x[..., y[i], ...] element by element along an axis (torch.gather)", (_AXIS,), "gather", "fib"),
    Op("take", Class.GATHER, 2, "take", _take, "x indexed by the tensor y on an axis (index_select, embedding for axis 0)", (_AXIS,), "gather", "fib"),
    # loops of their own
    Op("cumsum", Class.LOOP, 1, "scan", _scan(np.add), "sums of x[0], x[0:2], ... along an axis; integers and bools to int64", (_AXIS,)),
    Op("cumprod", Class.LOOP, 1, "scan", _scan(np.multiply), "products of x[0], x[0:2], ... along an axis; integers and bools to int64", (_AXIS,)),
    Op("cummax", Class.LOOP, 1, "scan_same", _scan(np.maximum), "maxima of x[0], x[0:2], ... along an axis; NaN stays", (_AXIS,)),
    Op("cummin", Class.LOOP, 1, "scan_same", _scan(np.minimum), "minima of x[0], x[0:2], ... along an axis; NaN stays", (_AXIS,)),
    Op("logcumsumexp", Class.LOOP, 1, "scan_float", _scan(np.logaddexp), "log of the sums of e^x[0], e^x[0:2], ... along an axis; NaN stays", (_AXIS,)),
    Op("scatter", Class.LOOP, 3, "scatter", _scatter(None), "x, with z[..., i, ...] in place of element y[..., i, ...] on the axis; of several, the last in row-major order", (_AXIS,)),
    Op("scatter_add", Class.LOOP, 3, "scatter_number", _scatter(np.add), "as scatter, adding", (_AXIS,)),
    Op("scatter_mul", Class.LOOP, 3, "scatter_number", _scatter(np.multiply), "as scatter, multiplying", (_AXIS,)),
    Op("scatter_max", Class.LOOP, 3, "scatter_number", _scatter(np.maximum), "as scatter, keeping the larger; NaN stays", (_AXIS,)),
    Op("scatter_min", Class.LOOP, 3, "scatter_number", _scatter(np.minimum), "as scatter, keeping the smaller; NaN stays", (_AXIS,)),
    Op("argsort", Class.LOOP, 1, "argsort", _argsort, "int64 places of the elements in ascending order, stable; NaN is largest", (_AXIS, Param("descending", Kind.BOOL, False))),
    Op("argtopk", Class.LOOP, 1, "argtopk", _argtopk, "int64 places of the k largest, or smallest, elements in order; NaN is largest", (_AXIS, Param("k", Kind.SIZE), Param("largest", Kind.BOOL, True))),
    Op("searchsorted", Class.LOOP, 2, "search", _searchsorted, "int64: how many elements of x, in ascending order along the axis and without NaN, are less than y or, if right, not greater; all of them for NaN", (_AXIS, Param("right", Kind.BOOL, False))),
    # rows that stay recognisable until the core decomposes them
    Op("softmax", Class.COMPOSITE, 1, "float_axis", _quiet(_softmax), "softmax over an axis", (_AXIS,), decomposition="m = amax x, axis, true; d = sub x, m; e = exp d; s = sum e, axis, true; t = reciprocal s; r = mul e, t"),
    Op("log_softmax", Class.COMPOSITE, 1, "float_axis", _quiet(_log_softmax), "log(softmax(x)) over an axis", (_AXIS,), decomposition="m = amax x, axis, true; d = sub x, m; e = exp d; s = sum e, axis, true; l = log s; r = sub d, l"),
    Op("layer_norm", Class.COMPOSITE, 1, "float_axes", _quiet(_layer_norm), "(x - mean) / sqrt(var + eps); weight and bias are separate operators", (Param("axes", Kind.AXES), Param("eps", Kind.NUMBER)), decomposition="m = mean x, axes, true; d = sub x, m; q = mul d, d; v = mean q, axes, true; c = scalar eps; w = add v, c; i = rsqrt w; r = mul d, i"),
    Op("rms_norm", Class.COMPOSITE, 1, "float_axes", _quiet(_rms_norm), "x / sqrt(mean(x * x) + eps); weight is a separate operator", (Param("axes", Kind.AXES), Param("eps", Kind.NUMBER)), decomposition="q = mul x, x; v = mean q, axes, true; c = scalar eps; w = add v, c; i = rsqrt w; r = mul x, i"),
    # outside
    Op("matmul", Class.CALL, 2, "matmul", np.matmul, "matrix product, batched with broadcasting, as NumPy's"),
    Op("grouped_matmul", Class.CALL, 3, "grouped_matmul", _grouped_matmul, "rows of x times the matrix of their group: [M, K], [G, K, N] to [M, N]; group g is the rows from z[g - 1] (0 for the first) up to z[g]; of rows behind the last, 0"),
    Op("conv", Class.CALL, 2, "conv", _conv, "convolution (correlation) of images [N, sizes, C] with windows [K, sizes, C], to [N, sizes, K]; `depthwise`: each channel with a window of its own, [C, sizes, 1]; of strides and dilations, empty means 1, of padding with zeros 0", (Param("stride", Kind.AXES), Param("dilation", Kind.AXES), Param("low", Kind.AXES), Param("high", Kind.AXES), Param("depthwise", Kind.BOOL, False))),
    Op("conv_windows", Class.CALL, 2, "conv_windows", _conv_windows, "of images [N, sizes, C] and numbers [N, positions, K], the sum over positions of each number times the window there: [K, taps, C], the gradient of the windows of `conv`", (Param("taps", Kind.AXES), Param("stride", Kind.AXES), Param("dilation", Kind.AXES), Param("low", Kind.AXES), Param("high", Kind.AXES))),
    Op("call", Class.CALL, -1, "call", None, "an operator of the host framework, by index into the graph's call-outs; may have several results", (Param("target", Kind.INT),)),
)
# fmt: on

BY_NAME: dict[str, Op] = {name: op for op in OPS for name in (op.name, *op.aliases)}
