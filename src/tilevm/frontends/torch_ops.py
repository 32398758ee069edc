"""ATen operators in terms of the operator table: one row each, `ROWS` by overload name.

A row is a function of the importer `b`, the result's metadata `out` (a FakeTensor or a tuple of
them) and the operator's arguments in the order of its schema, defaults filled in. It returns a
value of the program, or a tuple of them (None: not wanted). It raises Unsupported to leave the
operator to PyTorch. The importer casts the result to the dtype that PyTorch's metadata says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

Row = Callable[..., Any]

NO_END = 2**63 - 1  # what slices without an end have


class Unsupported(Exception):
    """The operator is called out; the message is the reason."""


@dataclass(frozen=True)
class Tensor:
    """A tensor among a row's arguments: its value in the program and its metadata."""

    id: int
    fake: torch.Tensor

    @property
    def shape(self) -> Sequence[Any]:
        """Sizes: ints and SymInts."""
        return self.fake.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.fake.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.fake.dim()

    @property
    def is_float(self) -> bool:
        """Whether elements are floating point."""
        return self.fake.dtype.is_floating_point


ROWS: dict[str, Row] = {}


def row(*names: str) -> Callable[[Row], Row]:
    """Enter a function in ROWS; names lack the prefix, and `.default` where there is no dot."""

    def enter(function: Row) -> Row:
        for name in names:
            ROWS[f"aten.{name}" if "." in name else f"aten.{name}.default"] = function
        return function

    return enter


def axis_of(dim: int, rank: int) -> int:
    """`dim` counted from the front."""
    return dim + rank if dim < 0 else dim


def axes_of(dims: Any, rank: int) -> list[int]:
    """The axes of a reduction; none given means all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(rank))
    given = dims if isinstance(dims, list | tuple) else [dims]
    return sorted({axis_of(d, rank) for d in given}) if rank else []


def is_number(value: Any) -> bool:
    """Whether `value` is a Python number of known value."""
    return isinstance(value, int | float) and not isinstance(value, torch.SymInt)


# Element by element ------------------------------------------------------------------------------

# operator of the table -> ATen operators of the same meaning, one tensor argument
UNARY = {
    "abs": "abs absolute", "neg": "neg negative", "sign": "sign sgn", "relu": "relu",
    "logical_not": "logical_not", "bitwise_not": "bitwise_not",
    "exp": "exp", "exp2": "exp2 special_exp2", "expm1": "expm1 special_expm1",
    "log": "log", "log2": "log2", "log1p": "log1p special_log1p",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal",
    "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh",
    "sigmoid": "sigmoid special_expit", "erf": "erf special_erf", "silu": "silu",
    "floor": "floor", "ceil": "ceil", "round": "round special_round", "trunc": "trunc fix",
    "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite",
}  # fmt: skip

# operator of the table -> ATen packets whose overloads take two tensors or numbers
BINARY = {
    "mul": "mul multiply", "floor_div": "floor_divide", "remainder": "remainder", "fmod": "fmod",
    "maximum": "maximum max.other", "minimum": "minimum min.other", "atan2": "atan2 arctan2",
    "eq": "eq", "ne": "ne not_equal", "lt": "lt less", "le": "le less_equal", "gt": "gt greater",
    "ge": "ge greater_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bitwise_and": "bitwise_and __and__", "bitwise_or": "bitwise_or __or__",
    "bitwise_xor": "bitwise_xor __xor__",
    "shift_left": "bitwise_left_shift __lshift__",
    "shift_right": "bitwise_right_shift __rshift__",
}  # fmt: skip

_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor", "Tensor_Tensor")


def _unary(op: str) -> Row:
    def run(b: Importer, out: Any, x: Tensor) -> int:
        return b.add(op, x.id)

    return run


def _binary(op: str) -> Row:
    def run(b: Importer, out: Any, x: Any, y: Any) -> int:
        return b.add(op, b.operand(x), b.operand(y))

    return run


for _op, _names in UNARY.items():
    row(*_names.split())(_unary(_op))
for _op, _names in BINARY.items():
    for _name in _names.split():
        _known = getattr(torch.ops.aten, _name.partition(".")[0]).overloads()
        row(*([_name] if "." in _name else [f"{_name}.{o}" for o in _OVERLOADS if o in _known]))(
            _binary(_op)
        )


@row("square")
def _square(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("mul", x.id, x.id)


@row("gelu")
def _gelu(b: Importer, out: Any, x: Tensor, approximate: str) -> int:
    return b.add("gelu_tanh" if approximate == "tanh" else "gelu", x.id)


@row("round.decimals")
def _round(b: Importer, out: Any, x: Tensor, decimals: int) -> int:
    if decimals:
        raise Unsupported("decimals is not 0")
    return b.add("round", x.id)


def _scaled(b: Importer, y: int, alpha: Any) -> int:
    return y if is_number(alpha) and alpha == 1 else b.add("mul", y, b.number(alpha))


@row("add.Tensor", "add.Scalar")
def _add(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    if isinstance(x, Tensor) and type(y) is int and y == 0 and out.dtype == x.dtype == torch.int64:
        return x
    return b.add("add", b.operand(x), _scaled(b, b.operand(y), alpha))


@row("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> int:
    return b.add("sub", b.operand(x), _scaled(b, b.operand(y), alpha))


@row("rsub.Tensor", "rsub.Scalar")
def _rsub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> int:
    return b.add("sub", b.operand(y), _scaled(b, b.operand(x), alpha))


@row("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor")
def _div(b: Importer, out: Any, x: Any, y: Any) -> int:
    return b.add("div", b.operand(x), b.operand(y))


@row("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode")
def _div_mode(b: Importer, out: Any, x: Any, y: Any, mode: str | None) -> int:
    if mode == "floor":
        return b.add("floor_div", b.operand(x), b.operand(y))
    quotient = b.add("div", b.operand(x), b.operand(y))
    if mode is None:
        return quotient
    if not out.dtype.is_floating_point:
        raise Unsupported("integers, rounded towards zero")
    return b.add("trunc", quotient)


# x to a constant power, as PyTorch's CPU kernel computes it
_POWERS: dict[float, Callable[[Any, int], int]] = {
    2.0: lambda b, x: b.add("mul", x, x),
    3.0: lambda b, x: b.add("mul", b.add("mul", x, x), x),
    0.5: lambda b, x: b.add("sqrt", x),
    -0.5: lambda b, x: b.add("rsqrt", x),
    -1.0: lambda b, x: b.add("reciprocal", x),
    -2.0: lambda b, x: b.add("reciprocal", b.add("mul", x, x)),
}


@row("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(b: Importer, out: Any, x: Any, y: Any) -> int:
    base = b.operand(x)
    if is_number(y):
        if out.dtype.is_floating_point:
            base = b.cast(base, out.dtype)
        elif y < 0 or isinstance(y, bool):
            raise Unsupported("an integer to a negative power")
        quick = _POWERS.get(float(y))
        if quick is not None and (out.dtype.is_floating_point or y > 0):
            return quick(b, base)
    elif not out.dtype.is_floating_point:
        raise Unsupported("integers to the power of a tensor")
    return b.add("pow", base, b.operand(y))


@row("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf")
def _where(b: Importer, out: Any, mask: Tensor, x: Any, y: Any) -> int:
    if mask.dtype is not torch.bool:
        raise Unsupported("the condition is not bool")
    return b.add("where", mask.id, b.operand(x), b.operand(y))


@row("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Importer, out: Any, x: Tensor, mask: Tensor, value: Any) -> int:
    filler = b.operand(value)
    if isinstance(value, Tensor):
        filler = b.cast(filler, x.dtype)
    return b.add("where", mask.id, filler, x.id)


@row("clamp", "clip", "clamp.Tensor", "clip.Tensor")
def _clamp(b: Importer, out: Any, x: Tensor, low: Any = None, high: Any = None) -> int:
    value = x.id
    if low is not None:
        value = b.add("maximum", value, b.operand(low))
    if high is not None:
        value = b.add("minimum", value, b.operand(high))
    return value


@row("clamp_min", "clamp_min.Tensor")
def _clamp_min(b: Importer, out: Any, x: Tensor, low: Any) -> int:
    return b.add("maximum", x.id, b.operand(low))


@row("clamp_max", "clamp_max.Tensor")
def _clamp_max(b: Importer, out: Any, x: Tensor, high: Any) -> int:
    return b.add("minimum", x.id, b.operand(high))


@row("hardtanh")
def _hardtanh(b: Importer, out: Any, x: Tensor, low: Any, high: Any) -> int:
    return _clamp(b, out, x, low, high)


@row("relu6")
def _relu6(b: Importer, out: Any, x: Tensor) -> int:
    return _clamp(b, out, x, 0, 6)


def _sixth(b: Importer, x: int) -> int:
    """min(max(x + 3, 0), 6) / 6."""
    shifted = b.add("add", x, b.number(3))
    clamped = b.add("minimum", b.add("maximum", shifted, b.number(0)), b.number(6))
    return b.add("div", clamped, b.number(6))


@row("hardsigmoid")
def _hardsigmoid(b: Importer, out: Any, x: Tensor) -> int:
    return _sixth(b, x.id)


@row("hardswish")
def _hardswish(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("mul", x.id, _sixth(b, x.id))


@row("leaky_relu")
def _leaky_relu(b: Importer, out: Any, x: Tensor, slope: Any) -> int:
    positive = b.add("gt", x.id, b.number(0))
    return b.add("where", positive, x.id, b.add("mul", x.id, b.number(slope)))


@row("elu")
def _elu(b: Importer, out: Any, x: Tensor, alpha: Any, scale: Any, input_scale: Any) -> int:
    inner = _scaled(b, x.id, input_scale)
    negative = b.add("mul", b.add("expm1", inner), b.number(alpha * scale))
    return b.add("where", b.add("le", x.id, b.number(0)), negative, _scaled(b, x.id, scale))


@row("softplus")
def _softplus(b: Importer, out: Any, x: Tensor, beta: Any, threshold: Any) -> int:
    scaled = _scaled(b, x.id, beta)
    soft = b.add("log1p", b.add("exp", scaled))
    if beta != 1:
        soft = b.add("div", soft, b.number(beta))
    return b.add("where", b.add("gt", scaled, b.number(threshold)), x.id, soft)


@row("log_sigmoid")
def _log_sigmoid(b: Importer, out: Any, x: Tensor) -> int:
    low = b.add("minimum", x.id, b.number(0))
    tail = b.add("log1p", b.add("exp", b.add("neg", b.add("abs", x.id))))
    return b.add("sub", low, tail)


@row("mish")
def _mish(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("mul", x.id, b.add("tanh", b.add("log1p", b.add("exp", x.id))))


@row("threshold")
def _threshold(b: Importer, out: Any, x: Tensor, threshold: Any, value: Any) -> int:
    below = b.add("le", x.id, b.number(threshold))
    return b.add("where", below, b.number(value), x.id)


@row("addcmul")
def _addcmul(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> int:
    return b.add("add", x.id, _scaled(b, b.add("mul", y.id, z.id), value))


@row("addcdiv")
def _addcdiv(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> int:
    return b.add("add", x.id, _scaled(b, b.add("div", y.id, z.id), value))


@row("lerp.Scalar", "lerp.Tensor")
def _lerp(b: Importer, out: Any, x: Tensor, end: Tensor, weight: Any) -> int:
    span, w = b.add("sub", end.id, x.id), b.operand(weight)
    near = b.add("add", x.id, b.add("mul", w, span))
    if is_number(weight) and abs(weight) < 0.5:
        return near
    rest = b.add("sub", b.number(1), w)
    far = b.add("sub", end.id, b.add("mul", span, rest))
    if is_number(weight):
        return far
    return b.add("where", b.add("lt", b.add("abs", w), b.number(0.5)), near, far)


# The same tensor ---------------------------------------------------------------------------------


@row(
    "detach", "alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "positive",
    "resolve_conj", "resolve_neg", "conj", "_conj", "detach_copy", "alias_copy",
)  # fmt: skip
def _identity(b: Importer, out: Any, x: Tensor, *_: Any) -> Tensor:
    return x


@row("dropout", "feature_dropout", "alpha_dropout")
def _dropout(b: Importer, out: Any, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p:
        raise Unsupported("random numbers")
    return x


@row(
    "to.dtype", "to.device", "to.dtype_layout", "to.other", "to.prim_dtype", "_to_copy", "type_as",
)  # fmt: skip
def _to(b: Importer, out: Any, x: Tensor, *_: Any) -> Any:
    return x if out.dtype == x.dtype else b.cast(x.id, out.dtype)


# Reductions --------------------------------------------------------------------------------------


def _as_dtype(b: Importer, x: Tensor, dtype: torch.dtype | None) -> int:
    return x.id if dtype is None else b.cast(x.id, dtype)


def _reduce(b: Importer, op: str, x: int, rank: int, dims: Any, keep: bool) -> int:
    return b.add(op, x, axes=axes_of(dims, rank), keepdims=keep)


@row("sum", "prod")
def _fold_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> int:
    return _reduce(b, _packet(b), _as_dtype(b, x, dtype), x.rank, None, False)


@row("sum.dim_IntList", "prod.dim_int")
def _fold(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> int:
    return _reduce(b, _packet(b), _as_dtype(b, x, dtype), x.rank, dims, keep)


@row("mean")
def _mean_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> int:
    return _reduce(b, "mean", _as_dtype(b, x, dtype), x.rank, None, False)


@row("mean.dim")
def _mean(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> int:
    return _reduce(b, "mean", _as_dtype(b, x, dtype), x.rank, dims, keep)


def _packet(b: Importer) -> str:
    """The name of the current operator without namespace and overload."""
    assert b.node is not None
    return str(b.node.target).split(".")[1]


@row("amax", "amin", "any.dims", "all.dims", "any.dim", "all.dim")
def _fold_same(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool) -> int:
    return _reduce(b, _packet(b), x.id, x.rank, dims, keep)


@row("any", "all")
def _fold_bool(b: Importer, out: Any, x: Tensor) -> int:
    return _reduce(b, _packet(b), x.id, x.rank, None, False)


@row("max", "min")
def _extreme(b: Importer, out: Any, x: Tensor) -> int:
    return _reduce(b, f"a{_packet(b)}", x.id, x.rank, None, False)


@row("max.dim", "min.dim")
def _extreme_dim(b: Importer, out: Any, x: Tensor, dim: int, keep: bool) -> tuple[Any, ...]:
    if not x.rank:
        raise Unsupported("a scalar")
    name, axis = _packet(b), axis_of(dim, x.rank)
    value = b.add(f"a{name}", x.id, axes=[axis], keepdims=keep) if b.used(0) else None
    index = b.add(f"arg{name}", x.id, axis=axis, keepdims=keep) if b.used(1) else None
    return value, index


@row("argmax", "argmin")
def _arg(b: Importer, out: Any, x: Tensor, dim: int | None, keep: bool) -> int:
    if not x.rank or (dim is None and keep):
        raise Unsupported("a scalar, or all axes kept")
    if dim is None:
        flat = b.add("reshape", x.id, shape=[b.size(x.fake.numel())])
        return b.add(_packet(b), flat, axis=0, keepdims=False)
    return b.add(_packet(b), x.id, axis=axis_of(dim, x.rank), keepdims=keep)


def _variance(b: Importer, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    return b.add(
        "var",
        x.id,
        axes=axes_of(dims, x.rank),
        keepdims=keep,
        correction=1 if correction is None else correction,
    )


@row("var.correction")
def _var(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    return _variance(b, x, dims, correction, keep)


@row("std.correction")
def _std(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    return b.add("sqrt", _variance(b, x, dims, correction, keep))


@row("var.dim")
def _var_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> int:
    return _variance(b, x, dims, int(unbiased), keep)


@row("std.dim")
def _std_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> int:
    return b.add("sqrt", _variance(b, x, dims, int(unbiased), keep))


@row("var")
def _var_all(b: Importer, out: Any, x: Tensor, unbiased: bool) -> int:
    return _variance(b, x, None, int(unbiased), False)


@row("std")
def _std_all(b: Importer, out: Any, x: Tensor, unbiased: bool) -> int:
    return b.add("sqrt", _variance(b, x, None, int(unbiased), False))


@row("var_mean.dim")
def _var_mean_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> Any:
    return _var_mean(b, out, x, dims, int(unbiased), keep)


@row("var_mean.correction")
def _var_mean(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> Any:
    return (
        _variance(b, x, dims, correction, keep),
        _reduce(b, "mean", x.id, x.rank, dims, keep),
    )


@row("logsumexp")
def _logsumexp(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool) -> int:
    if not x.is_float or not x.rank:
        raise Unsupported("not a float tensor")
    axes = axes_of(dims, x.rank)
    top = b.add("amax", x.id, axes=axes, keepdims=True)
    infinite = b.add("eq", b.add("abs", top), b.number(math.inf))
    top = b.add("where", infinite, b.number(0.0), top)
    total = b.add("sum", b.add("exp", b.add("sub", x.id, top)), axes=axes, keepdims=keep)
    return b.add("add", b.add("log", total), top if keep else b.add("squeeze", top, axes=axes))


@row("norm.ScalarOpt_dim", "linalg_vector_norm")
def _norm(b: Importer, out: Any, x: Tensor, p: Any, dims: Any, keep: bool, *dtype: Any) -> int:
    if p not in (None, 2) or any(d is not None for d in dtype):
        raise Unsupported("a norm other than the Euclidean one")
    squares = b.add("mul", x.id, x.id)
    return b.add("sqrt", _reduce(b, "sum", squares, x.rank, dims, keep))


# Rows --------------------------------------------------------------------------------------------


@row("softmax.int", "log_softmax.int")
def _softmax(b: Importer, out: Any, x: Tensor, dim: int, dtype: Any = None) -> int:
    if not x.rank:
        raise Unsupported("a scalar")
    return b.add(_packet(b), _as_dtype(b, x, dtype), axis=axis_of(dim, x.rank))


@row("_softmax", "_log_softmax")
def _softmax_raw(b: Importer, out: Any, x: Tensor, dim: int, half_to_float: bool) -> int:
    if not x.rank or half_to_float:
        raise Unsupported("a scalar, or half_to_float")
    return b.add(_packet(b)[1:], x.id, axis=axis_of(dim, x.rank))


def _affine(b: Importer, x: int, weight: Tensor | None, bias: Tensor | None) -> int:
    if weight is not None:
        x = b.add("mul", x, weight.id)
    return x if bias is None else b.add("add", x, bias.id)


@row("layer_norm")
def _layer_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: Any, *_: Any
) -> int:
    axes = list(range(x.rank - len(shape), x.rank))
    return _affine(b, b.add("layer_norm", x.id, axes=axes, eps=constant(eps)), weight, bias)


@row("native_layer_norm")
def _native_layer_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: Any
) -> tuple[Any, ...]:
    axes = list(range(x.rank - len(shape), x.rank))
    value = _layer_norm(b, out, x, shape, weight, bias, eps)
    mean = b.add("mean", x.id, axes=axes, keepdims=True) if b.used(1) else None
    rstd = None
    if b.used(2):
        variance = b.add("var", x.id, axes=axes, keepdims=True, correction=0)
        rstd = b.add("rsqrt", b.add("add", variance, b.number(eps)))
    return value, mean, rstd


def constant(value: Any) -> float:
    """A parameter that must be known. A SymFloat is fixed to its value, by a guard."""
    return value if isinstance(value, float | int) else float(value)


@row("rms_norm")
def _rms_norm(b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, eps: Any) -> int:
    axes = list(range(x.rank - len(shape), x.rank))
    small = torch.finfo(x.dtype).eps if eps is None else constant(eps)
    return _affine(b, b.add("rms_norm", x.id, axes=axes, eps=small), weight, None)


@row("_fused_rms_norm")
def _fused_rms_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, eps: Any
) -> tuple[Any, ...]:
    if b.used(1):
        raise Unsupported("the reciprocal norm is used")
    return _rms_norm(b, out, x, shape, weight, eps), None


@row("group_norm")
def _group_norm(
    b: Importer, out: Any, x: Tensor, groups: int, weight: Any, bias: Any, eps: Any, *_: Any
) -> int:
    batch, channels, *spatial = x.shape
    if not isinstance(channels, int):
        raise Unsupported("the number of channels is not known")
    inner: Any = channels // groups
    for size in spatial:
        inner = inner * size
    rows = b.add("reshape", x.id, shape=b.shape([batch, groups, inner]))
    rows = b.add("layer_norm", rows, axes=[2], eps=constant(eps))
    value = b.add("reshape", rows, shape=b.shape(x.shape))
    return _affine(b, value, _per_channel(b, weight, x.rank), _per_channel(b, bias, x.rank))


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
    if training or mean is None or variance is None:
        raise Unsupported("training")
    return _normalised(b, x, weight, bias, mean, variance, eps)


@row("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(
    b: Importer, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    momentum: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    if b.used(1) or b.used(2):
        raise Unsupported("the saved statistics are used")
    return _normalised(b, x, weight, bias, mean, variance, eps), None, None


# Views -------------------------------------------------------------------------------------------


@row(
    "view", "reshape", "_unsafe_view", "_reshape_alias", "flatten.using_ints", "unflatten.int",
    "reshape_as", "view_as", "ravel", "view_copy",
)  # fmt: skip
def _reshape(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    return b.add("reshape", x.id, shape=b.shape(out.shape))


@row("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(b: Importer, out: Any, x: Tensor, *_: Any) -> int:
    return b.add("expand", x.id, shape=b.shape(out.shape))


def _swapped(b: Importer, x: Tensor, i: int, j: int) -> int:
    axes = list(range(x.rank))
    if x.rank:
        i, j = axis_of(i, x.rank), axis_of(j, x.rank)
        axes[i], axes[j] = axes[j], axes[i]
    return b.add("permute", x.id, axes=axes)


@row("transpose.int", "swapaxes", "swapdims", "transpose_copy.int")
def _transpose(b: Importer, out: Any, x: Tensor, i: int, j: int) -> int:
    return _swapped(b, x, i, j)


@row("t", "t_copy")
def _t(b: Importer, out: Any, x: Tensor) -> Any:
    return x if x.rank < 2 else _swapped(b, x, 0, 1)


@row("mT", "adjoint")
def _matrix_transpose(b: Importer, out: Any, x: Tensor) -> int:
    return _swapped(b, x, -2, -1)


@row("numpy_T")
def _numpy_t(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("permute", x.id, axes=list(range(x.rank))[::-1])


@row("permute", "permute_copy")
def _permute(b: Importer, out: Any, x: Tensor, dims: Any) -> int:
    return b.add("permute", x.id, axes=[axis_of(d, x.rank) for d in dims])


@row("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(b: Importer, out: Any, x: Tensor, source: Any, destination: Any) -> int:
    source, destination = (
        [axis_of(d, x.rank) for d in (ds if isinstance(ds, list | tuple) else [ds])]
        for ds in (source, destination)
    )
    rest = iter(d for d in range(x.rank) if d not in source)
    to = dict(zip(destination, source, strict=True))
    return b.add("permute", x.id, axes=[to[d] if d in to else next(rest) for d in range(x.rank)])


@row("unsqueeze", "unsqueeze_copy")
def _unsqueeze(b: Importer, out: Any, x: Tensor, dim: int) -> int:
    axis = axis_of(dim, x.rank + 1)
    value = b.add("unsqueeze", x.id, axis=axis)
    if x.id in b.iotas:
        size, at = b.iotas[x.id]
        b.iotas[value] = size, at + (axis <= at)
    return value


@row("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy.dim")
def _squeeze(b: Importer, out: Any, x: Tensor, dims: Any = None) -> Any:
    gone = []
    for axis in axes_of(dims, x.rank) if not isinstance(dims, int) else axes_of([dims], x.rank):
        size = x.shape[axis]
        if isinstance(size, int) and size == 1:
            gone.append(axis)
        else:
            b.not_one(size)
    return b.add("squeeze", x.id, axes=gone) if gone else x


def _end(b: Importer, x: Tensor, axis: int, end: Any) -> int | str:
    if end is None or (isinstance(end, int) and end == NO_END):
        return b.size(x.shape[axis])
    return b.size(end)


@row("slice.Tensor", "slice_copy.Tensor")
def _slice(
    b: Importer, out: Any, x: Tensor, dim: int, start: Any, end: Any, step: Any
) -> Any:
    axis = axis_of(dim, x.rank)
    if not isinstance(step, int):
        raise Unsupported("the step is not known")
    if start in (None, 0) and step == 1 and (end is None or (is_number(end) and end == NO_END)):
        return x
    if step == 1 and is_number(end) and (start or 0) == end - 1 >= 0:
        b.at_least(x.shape[axis], end)
        return b.add("unsqueeze", b.add("select", x.id, axis=axis, index=end - 1), axis=axis)
    return b.add(
        "slice",
        x.id,
        axis=axis,
        start=b.size(0 if start is None else start),
        stop=_end(b, x, axis, end),
        step=step,
    )


@row("narrow")
def _narrow(b: Importer, out: Any, x: Tensor, dim: int, start: Any, length: Any) -> int:
    return _part(b, x, axis_of(dim, x.rank), start, start + length)


def _part(b: Importer, x: Tensor, axis: int, start: Any, stop: Any) -> int:
    return b.add("slice", x.id, axis=axis, start=b.size(start), stop=b.size(stop), step=1)


@row("select.int", "select_copy.int")
def _select(b: Importer, out: Any, x: Tensor, dim: int, index: Any) -> int:
    axis = axis_of(dim, x.rank)
    if isinstance(index, int) and index < 0:
        index = x.shape[axis] + index
    return b.add("select", x.id, axis=axis, index=b.size(index))


@row(
    "split.Tensor", "split.sizes", "split_with_sizes", "chunk", "tensor_split.sections",
    "tensor_split.indices", "unsafe_split.Tensor", "unsafe_chunk", "split_with_sizes_copy",
)  # fmt: skip
def _split(b: Importer, out: Any, x: Tensor, how: Any, dim: int) -> tuple[Any, ...]:
    axis = axis_of(dim, x.rank)
    parts: list[Any] = []
    start: Any = 0
    for index, part in enumerate(out):
        stop = start + part.shape[axis]
        parts.append(_part(b, x, axis, start, stop) if b.used(index) else None)
        start = stop
    return tuple(parts)


@row("unbind.int")
def _unbind(b: Importer, out: Any, x: Tensor, dim: int) -> tuple[Any, ...]:
    axis = axis_of(dim, x.rank)
    return tuple(
        b.add("select", x.id, axis=axis, index=i) if b.used(i) else None for i in range(len(out))
    )


@row("flip")
def _flip(b: Importer, out: Any, x: Tensor, dims: Any) -> Any:
    axes = [axis_of(d, x.rank) for d in dims]
    return b.add("flip", x.id, axes=axes) if axes and x.rank else x


@row("repeat")
def _repeat(b: Importer, out: Any, x: Tensor, repeats: Any) -> int:
    sizes = [1] * (len(repeats) - x.rank) + list(x.shape)
    ones: list[Any] = []
    wide: list[Any] = []
    for times, size in zip(repeats, sizes, strict=True):
        ones += [1, size]
        wide += [times, size]
    if len(wide) > 8:
        raise Unsupported("too many axes")
    value = b.add("reshape", x.id, shape=b.shape(ones))
    value = b.add("expand", value, shape=b.shape(wide))
    return b.add("reshape", value, shape=b.shape(out.shape))


@row("repeat_interleave.self_int")
def _repeat_interleave(
    b: Importer, out: Any, x: Tensor, times: Any, dim: Any, *_: Any
) -> int:
    value, sizes = x.id, list(x.shape)
    if dim is None:
        value = b.add("reshape", value, shape=[b.size(x.fake.numel())])
        sizes, dim = [x.fake.numel()], 0
    axis = axis_of(dim, len(sizes))
    if len(sizes) >= 8:
        raise Unsupported("too many axes")
    value = b.add("unsqueeze", value, axis=axis + 1)
    wide = [*sizes[: axis + 1], times, *sizes[axis + 1 :]]
    value = b.add("expand", value, shape=b.shape(wide))
    return b.add("reshape", value, shape=b.shape(out.shape))


# Layout ------------------------------------------------------------------------------------------


@row("cat", "concat", "concatenate")
def _cat(b: Importer, out: Any, tensors: Sequence[Tensor], dim: int) -> Any:
    parts = [t for t in tensors if t.rank == out.dim()]  # rank 1 and empty is left out, as it was
    values = [b.cast(t.id, out.dtype) for t in parts]
    if len(values) == 1:
        return Tensor(values[0], out)
    return b.add("concat", *values, axis=axis_of(dim, out.dim()))


@row("stack")
def _stack(b: Importer, out: Any, tensors: Sequence[Tensor], dim: int) -> int:
    axis = axis_of(dim, out.dim())
    values = [b.add("unsqueeze", b.cast(t.id, out.dtype), axis=axis) for t in tensors]
    return values[0] if len(values) == 1 else b.add("concat", *values, axis=axis)


@row("constant_pad_nd")
def _pad(b: Importer, out: Any, x: Tensor, pad: Any, value: Any) -> int:
    low: list[Any] = [0] * x.rank
    high: list[Any] = [0] * x.rank
    for i in range(len(pad) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    if not all(isinstance(n, int) and n >= 0 for n in (*low, *high)):
        raise Unsupported("padding that may be negative")
    if not is_number(value):
        raise Unsupported("the padding's value is not known")
    return b.add("pad", x.id, low=low, high=high, value=value)


@row("pad")
def _pad_mode(b: Importer, out: Any, x: Tensor, pad: Any, mode: str, value: Any) -> int:
    if mode != "constant":
        raise Unsupported(f"padding mode {mode}")
    return _pad(b, out, x, pad, 0 if value is None else value)


def _triangle(b: Importer, x: Tensor, diagonal: Any, compare: str) -> int:
    rows, columns = x.shape[-2], x.shape[-1]
    i = b.add("unsqueeze", b.add("iota", size=b.size(rows), start=b.size(diagonal)), axis=1)
    j = b.add("iota", size=b.size(columns))
    return b.add("where", b.add(compare, j, i), x.id, b.number(0))


@row("tril")
def _tril(b: Importer, out: Any, x: Tensor, diagonal: Any) -> int:
    return _triangle(b, x, diagonal, "le")


@row("triu")
def _triu(b: Importer, out: Any, x: Tensor, diagonal: Any) -> int:
    return _triangle(b, x, diagonal, "ge")


# Gathers -----------------------------------------------------------------------------------------


@row("embedding")
def _embedding(b: Importer, out: Any, weight: Tensor, index: Tensor, *_: Any) -> int:
    return b.add("take", weight.id, index.id, axis=0)


@row("index_select")
def _index_select(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor) -> int:
    if not x.rank or index.rank != 1:
        raise Unsupported("a scalar")
    return b.add("take", x.id, index.id, axis=axis_of(dim, x.rank))


@row("gather")
def _gather(b: Importer, out: Any, x: Tensor, dim: int, index: Tensor, *_: Any) -> int:
    if not x.rank or x.rank != index.rank:
        raise Unsupported("a scalar")
    return b.add("gather", x.id, index.id, axis=axis_of(dim, x.rank))


@row("index.Tensor", "_unsafe_index.Tensor")
def _index(b: Importer, out: Any, x: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Integer tensors on neighbouring axes: one gather, at the position they say together."""
    axes = [a for a, index in enumerate(indices) if index is not None]
    used = [index for index in indices if index is not None]
    if any(index.dtype is torch.bool for index in used):
        raise Unsupported("a mask as index")
    if not axes or axes != list(range(axes[0], axes[0] + len(axes))):
        raise Unsupported("indices on axes that are not neighbours")
    first, last = axes[0], axes[-1]
    if first == 0 and (view := _all_of(b, x, used)) is not None:
        return view
    position = -1
    inside = -1
    for axis, index in zip(axes, used, strict=True):
        size = b.number(x.shape[axis])
        negative = b.add("lt", index.id, b.number(0))
        wrapped = b.add("where", negative, b.add("add", index.id, size), index.id)
        if len(axes) > 1:
            ok = b.add("logical_and", b.add("ge", wrapped, b.number(0)), b.add("lt", wrapped, size))
            inside = ok if inside < 0 else b.add("logical_and", inside, ok)
        position = wrapped if position < 0 else b.add("add", b.add("mul", position, size), wrapped)
    value = x.id
    if len(axes) > 1:
        total: Any = 1
        for axis in axes:
            total = total * x.shape[axis]
        shape = b.shape([*x.shape[:first], total, *x.shape[last + 1 :]])
        value = b.add("reshape", value, shape=shape)
        # an index that is out of bounds on its own axis must not find a neighbour's element
        position = b.add("where", inside, position, b.number(total))
    return b.add("take", value, position, axis=first)


def _all_of(b: Importer, x: Tensor, indices: Sequence[Tensor]) -> int | None:
    """x[i[:, None], j] where i and j count all of their axes: a view. Masks are made so."""
    found = [b.iotas.get(index.id) for index in indices]
    rank = max(index.rank for index in indices)
    dims: list[int] = []
    for axis, (index, iota) in enumerate(zip(indices, found, strict=True)):
        if iota is None or not b.same_size(iota[0], x.shape[axis]):
            return None
        dims.append(iota[1] + rank - index.rank)
    if len(set(dims)) != len(dims):
        return None
    order = sorted(range(len(dims)), key=lambda axis: dims[axis])
    value = b.add("permute", x.id, axes=[*order, *range(len(dims), x.rank)])
    for dim in range(rank):
        if dim not in dims:
            value = b.add("unsqueeze", value, axis=dim)
    return value


# Create ------------------------------------------------------------------------------------------


def _filled(b: Importer, out: Any, value: Any) -> int:
    name = str(out.dtype)[6:]
    if isinstance(value, bool | int | float) and not isinstance(value, torch.SymInt):
        return b.add("full", shape=b.shape(out.shape), value=value, dtype=name)
    scalar = b.add("cast", b.operand(value), dtype=name)
    return b.add("expand", scalar, shape=b.shape(out.shape)) if out.dim() else scalar


@row("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "zero")
def _zeros(b: Importer, out: Any, *_: Any) -> int:
    return _filled(b, out, 0)


@row("ones", "ones_like", "new_ones")
def _ones(b: Importer, out: Any, *_: Any) -> int:
    return _filled(b, out, 1)


@row("full", "full_like", "fill.Scalar", "fill.Tensor")
def _full(b: Importer, out: Any, _: Any, value: Any, *__: Any) -> int:
    return _filled(b, out, value)


@row("new_full")
def _new_full(b: Importer, out: Any, _: Any, __: Any, value: Any, *___: Any) -> int:
    return _filled(b, out, value)


@row("scalar_tensor")
def _scalar_tensor(b: Importer, out: Any, value: Any, *_: Any) -> int:
    return _filled(b, out, value)


@row("copy")
def _copy(b: Importer, out: Any, x: Tensor, source: Tensor, *_: Any) -> int:
    value = b.cast(source.id, out.dtype)
    return b.add("expand", value, shape=b.shape(out.shape)) if out.dim() else value


def _range(b: Importer, out: Any, start: Any, step: Any) -> int:
    if isinstance(start, float) and start.is_integer():
        start = int(start)
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if any(isinstance(n, float | torch.SymFloat) for n in (start, step)):
        raise Unsupported("steps that are not integers")
    value = b.add("iota", size=b.size(out.shape[0]), start=b.size(start), step=b.size(step))
    if is_number(start) and start == 0 and is_number(step) and step == 1:
        b.iotas[value] = out.shape[0], 0
    return value


@row("arange")
def _arange(b: Importer, out: Any, end: Any, *_: Any) -> int:
    return _range(b, out, 0, 1)


@row("arange.start")
def _arange_start(b: Importer, out: Any, start: Any, end: Any, *_: Any) -> int:
    return _range(b, out, start, 1)


@row("arange.start_step")
def _arange_step(b: Importer, out: Any, start: Any, end: Any, step: Any, *_: Any) -> int:
    return _range(b, out, start, step)
