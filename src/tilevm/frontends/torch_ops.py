"""ATen operators in terms of the operator table: one row each, `ROWS` by overload name.

Here: element by element. Others are in modules that each import `ROWS` from the one before, from
`torch_reductions` on; `torch_transforms` is the last.

A row is a function of the importer `b`, the result's metadata `out` (a FakeTensor or a tuple of
them) and the operator's arguments in the order of its schema, defaults filled in. It returns a
value of the program, or a tuple of them (None: not wanted). It raises Unsupported to leave the
operator to PyTorch. The importer casts the result to the dtype that PyTorch's metadata says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import _prims_common as utils

from tilevm.frontends.aten import (
    BINARY,
    FLOATS,
    FLOATS_ALONE,
    NO_BOOLS,
    OVERLOADS,
    TEXT,
    UNARY,
)

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

Row = Callable[..., Any]


class Unsupported(Exception):
    """The operator is called out; the message is the reason."""


@dataclass(frozen=True)
class Tensor:
    """A tensor among a row's arguments: its value in the program and its metadata."""

    id: int
    fake: torch.Tensor

    @property
    def shape(self) -> Sequence[Any]:
        """Sizes: SymInts, and ints also where what was traced later says which they are."""
        return [known(size) for size in self.fake.shape]

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
    """Enter a function in ROWS; names lack the prefix, and `.default` where there is no dot.

    `prims::name` is one of PyTorch's primitives, which its decompositions are made of.
    """

    def enter(function: Row) -> Row:
        for name in names:
            space, _, short = name.rpartition("::")
            ROWS[f"{space or 'aten'}.{short}" + ("" if "." in short else ".default")] = function
        return function

    return enter


def takes(name: str, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether PyTorch's kernels of `aten.name.overload` take tensors of these dtypes."""
    base = name.split(".")[1]
    if base in FLOATS_ALONE:
        return all(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    return base not in NO_BOOLS or torch.bool not in dtypes


def axis_of(dim: int, rank: int) -> int:
    """`dim` counted from the front."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise Unsupported("a dim out of range")  # PyTorch says so; not its metadata, of softmax
    return dim + rank if dim < 0 else dim


def axes_of(dims: Any, rank: int) -> list[int]:
    """The axes of a reduction; none given means all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(rank))
    given = dims if isinstance(dims, list | tuple) else [dims]
    return sorted({axis_of(d, rank) for d in given}) if rank else []


def known(size: Any) -> Any:
    """A size as an int if its value is known, as in `s0 * w` with 16 weights `w`."""
    number = None if type(size) is int else size.node.maybe_as_int()
    return size if number is None else number


def is_number(value: Any) -> bool:
    """Whether `value` is a Python number of known value."""
    return isinstance(value, int | float)


def fixed(b: Importer, value: Any, sizes: bool = False) -> Any:
    """`value`; ints that are arguments of the call, and what follows from them, are fixed to their
    values, each in a list: by a guard, so that others make another capture. sizes: those of
    tensors, too.
    """
    if isinstance(value, list | tuple):
        return [fixed(b, v, sizes) for v in value]
    if not isinstance(value, torch.SymInt):
        return value
    text = b.size(value)
    if isinstance(text, int):
        return text
    guarded = b.may_unify or not value.node.shape_env.frozen  # else nobody looks at a new guard
    guarded = guarded or b.is_gradient  # of what is made before guards are read
    if b.sizes.depends_on_data(value) or not guarded:
        return value
    named = {str(symbol) for symbol in b.sizes.expr(value).free_symbols}
    ints = b.ints_of_call if b.is_gradient else set(b.result.int_symbols.values())
    return int(value) if sizes or named <= ints else value


def is_as_large(b: Importer, size: Any, number: Any) -> bool:
    """Whether a size is that number: if nobody knows, as in the example, by a guard."""
    if not isinstance(size, torch.SymInt):
        return bool(size == number)
    guarded = b.may_unify or not size.node.shape_env.frozen  # else nobody looks at a new guard
    unknown = any(b.sizes.depends_on_data(v) for v in (size, number) if not is_number(v))
    if unknown or not guarded:
        raise Unsupported(f"nobody knows whether a size is {number}")
    return bool(size == number)


def is_same(b: Importer, a: Any, c: Any) -> bool:
    """Whether two sizes are equal: if nobody knows, as in the example, by a guard."""
    if b.size(a) == b.size(c):
        return True
    return is_as_large(b, a, c) if isinstance(a, torch.SymInt) else is_as_large(b, c, a)


def is_small(b: Importer, count: Any, most: int) -> bool:
    """Whether a number of elements is at most that, as in the example; a guard says that it is."""
    if is_number(count):
        return bool(count <= most)
    if b.sizes.depends_on_data(count) or count.node.hint is None or count.node.hint > most:
        return False
    b.at_least(most - count, 0)
    return True


def packet(b: Importer) -> str:
    """The name of the current operator without namespace, overload, and the `_` of in place."""
    assert b.node is not None
    return str(b.node.target).split(".")[1].rstrip("_")


def constant(value: Any) -> float:
    """A parameter that must be known. A SymFloat is fixed to its value, by a guard."""
    return value if isinstance(value, float | int) else float(value)


# Element by element ------------------------------------------------------------------------------


def _unary(op: str) -> Row:
    def run(b: Importer, out: Any, x: Tensor) -> int:
        return b.add(op, x.id)

    return run


def _binary(op: str) -> Row:
    def run(b: Importer, out: Any, x: Any, y: Any) -> int:
        return b.add(op, b.operand(x), b.operand(y))

    return run


def _text(text: str) -> Row:
    steps = []
    for line in text.split("; "):
        result, _, right = line.partition(" = ")
        op, _, operands = right.partition(" ")
        steps.append((result, op, operands.split(", ")))

    def run(b: Importer, out: Any, *args: Any) -> int:
        known: dict[str, Any] = {}

        def operand(name: str) -> int:
            if name not in known:
                known[name] = b.operand(args["xyzw".index(name)] if name in "xyzw" else int(name))
            return int(known[name])

        for result, op, operands in steps:
            if op == "scale":
                number = args["xyzw".index(operands[1])]
                known[result] = scaled(b, operand(operands[0]), number)
            else:
                known[result] = b.add(op, *map(operand, operands))
        return int(known[steps[-1][0]])

    return run


def _of_floats(function: Row) -> Row:
    """The row for floats alone: of others, PyTorch says what is wrong."""

    def run(b: Importer, out: Any, *arguments: Any) -> Any:
        if any(isinstance(x, Tensor) and not x.is_float for x in arguments):
            raise Unsupported("not floating point")
        return function(b, out, *arguments)

    return run


for _op, _names in UNARY.items():
    row(*_names.split())(_unary(_op))
for _op, _names in BINARY.items():
    for _name in _names.split():
        _known = getattr(torch.ops.aten, _name.partition(".")[0]).overloads()
        row(*([_name] if "." in _name else [f"{_name}.{o}" for o in OVERLOADS if o in _known]))(
            _binary(_op)
        )
for _names, _line in TEXT.items():
    row(*_names.split())(_text(_line))
for _name in FLOATS:
    row(_name)(_of_floats(ROWS[f"aten.{_name}.default"]))


def converted(b: Importer, *operands: Tensor) -> list[int]:
    """The operands in the dtype in which PyTorch computes: that to which they all convert."""
    kind = utils.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    fakes = (x.fake for x in operands)
    _, dtype = utils.elementwise_dtypes(*fakes, type_promotion_kind=kind)
    return [b.cast(x.id, dtype) for x in operands]


@row("addcmul")
def _addcmul(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Any:
    """Of integers, the number is rounded towards 0 first."""
    if not all(v.is_float for v in (x, y, z)):
        if out.is_floating_point():
            raise Unsupported("not floating point")
        if not is_number(value) or not math.isfinite(value):
            raise Unsupported("a number to be rounded")
        value = int(value)
    x_id, y_id, z_id = converted(b, x, y, z)
    return b.add("add", x_id, scaled(b, b.add("mul", y_id, z_id), value))


@row("addcdiv")
def _addcdiv(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Any:
    if not all(v.is_float for v in (x, y, z)):
        raise Unsupported("not floating point")
    x_id, y_id, z_id = converted(b, x, y, z)
    return b.add("add", x_id, scaled(b, b.add("div", y_id, z_id), value))


@row("softshrink")
def _softshrink(b: Importer, out: Any, x: Tensor, by: Any) -> int:
    if not x.is_float or (is_number(by) and not by >= 0):
        raise Unsupported("integers, or a negative number")  # PyTorch says so
    n = b.number(by)
    low, high = b.add("add", x.id, n), b.add("sub", x.id, n)
    zero = b.add("mul", x.id, b.number(0))
    below = b.add("where", b.add("gt", b.add("neg", low), b.number(0)), low, zero)
    return b.add("where", b.add("gt", x.id, n), high, below)


@row("square")
def _square(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("mul", x.id, x.id)


@row("gelu")
def _gelu(b: Importer, out: Any, x: Tensor, approximate: str) -> int:
    return b.add("gelu_tanh" if approximate == "tanh" else "gelu", x.id)


@row("round.decimals")
def _round(b: Importer, out: Any, x: Tensor, decimals: int) -> int:
    if not is_number(decimals) or not x.is_float:
        raise Unsupported("decimals are not known, or of integers")
    if not decimals:
        return b.add("round", x.id)
    power, value = b.number(10.0 ** abs(decimals)), x.id
    to, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return b.add(back, b.add("round", b.add(to, value, power)), power)


def scaled(b: Importer, y: int, alpha: Any) -> int:
    """Y * alpha."""
    return y if is_number(alpha) and alpha == 1 else b.add("mul", y, b.number(alpha))


def _terms(b: Importer, x: Any, y: Any, alpha: Any) -> tuple[int, int]:
    """`x` and `y * alpha`."""
    first, second = b.operand(x), b.operand(y)
    if isinstance(x, Tensor) and isinstance(y, Tensor) and not (is_number(alpha) and alpha == 1):
        first, second = converted(b, x, y)
    return first, scaled(b, second, alpha)


@row("add.Tensor", "add.Scalar")
def _add(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    if isinstance(x, Tensor) and type(y) is int and y == 0 and out.dtype == x.dtype == torch.int64:
        return x
    _check_alpha(out, alpha)
    return b.add("add", *_terms(b, x, y, alpha))


def _check_alpha(out: Any, alpha: Any) -> None:
    """Leave to PyTorch what it refuses."""
    if isinstance(alpha, float | torch.SymFloat) and not out.is_floating_point():
        raise Unsupported("a fraction of integers")
    if isinstance(alpha, bool) and out.dtype is not torch.bool:
        raise Unsupported("a bool times numbers")


def _check_sub(x: Any, y: Any, out: Any, alpha: Any) -> None:
    _check_alpha(out, alpha)
    if any(
        isinstance(v, bool) or (isinstance(v, Tensor) and v.dtype is torch.bool) for v in (x, y)
    ):
        raise Unsupported("bools have no difference")  # PyTorch says so


@row("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> int:
    _check_sub(x, y, out, alpha)
    return b.add("sub", *_terms(b, x, y, alpha))


@row("rsub.Tensor", "rsub.Scalar")
def _rsub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> int:
    _check_sub(x, y, out, alpha)
    return b.add("sub", *_terms(b, y, x, alpha))


@row("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor")
def _div(b: Importer, out: Any, x: Any, y: Any) -> int:
    return b.add("div", b.operand(x), b.operand(y))


@row("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode")
def _div_mode(b: Importer, out: Any, x: Any, y: Any, mode: str | None) -> int:
    if mode == "floor":
        return b.add("floor_div", b.operand(x), b.operand(y))
    if mode == "trunc" and not out.dtype.is_floating_point:
        dividend, divisor = b.operand(x), b.operand(y)
        multiple = b.add("sub", dividend, b.add("fmod", dividend, divisor))
        return b.add("floor_div", multiple, divisor)
    quotient = b.add("div", b.operand(x), b.operand(y))
    return quotient if mode is None else b.add("trunc", quotient)


@row("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(b: Importer, out: Any, x: Any, y: Any) -> int:
    base = b.operand(x)
    if is_number(y):
        if out.dtype.is_floating_point:
            base = b.cast(base, out.dtype)
        elif y < 0 or isinstance(y, bool):
            raise Unsupported("an integer to a negative power")
    elif not out.dtype.is_floating_point:
        raise Unsupported("integers to the power of a tensor")
    return b.add("pow", base, b.operand(y))


def fitting(value: Any, dtype: torch.dtype) -> Any:
    """A number that PyTorch converts to `dtype`, rounded; where that has none near, it raises."""
    if type(value) not in (int, float) or dtype is torch.bool or dtype.is_complex:
        return value
    if dtype.is_floating_point:
        fits = not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    else:
        info = torch.iinfo(dtype)
        wraps = type(value) is int and info.min == 0  # -1 is the largest number of uint8
        fits = math.isfinite(value) and (-info.max if wraps else info.min) <= value <= info.max
    if not fits:
        raise Unsupported(f"a number that {str(dtype)[6:]} does not have")
    if dtype in (torch.bfloat16, torch.float16):
        return torch.tensor(float(value), dtype=dtype).item()
    return value


@row("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf")
def _where(b: Importer, out: Any, mask: Tensor, x: Any, y: Any) -> int:
    if mask.dtype is not torch.bool:
        raise Unsupported("the condition is not bool")
    x, y = fitting(x, out.dtype), fitting(y, out.dtype)
    for number in (x, y):
        if not isinstance(number, Tensor):
            b.must_fit(number, out.dtype)
    return b.add("where", mask.id, b.operand(x), b.operand(y))


@row("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Importer, out: Any, x: Tensor, mask: Tensor, value: Any) -> int:
    value = fitting(value, out.dtype)
    b.must_fit(value, out.dtype)
    of_integers = not (out.dtype.is_floating_point or out.dtype is torch.bool)
    if of_integers and isinstance(value, float):
        value = int(value)
    filler = b.operand(value)
    if of_integers or isinstance(value, Tensor):
        filler = b.cast(filler, x.dtype)
    return b.add("where", mask.id, filler, x.id)


@row("clamp", "clip", "clamp.Tensor", "clip.Tensor")
def _clamp(b: Importer, out: Any, x: Tensor, low: Any = None, high: Any = None) -> int:
    value = b.cast(x.id, out.dtype)  # -1 is no number of uint8, but one of the result
    if low is not None:
        value = b.add("maximum", value, b.operand(fitting(low, out.dtype)))
    if high is not None:
        value = b.add("minimum", value, b.operand(fitting(high, out.dtype)))
    return value


# With a number, which must fit; the line of TEXT is for tensors, and for the recorder, which asks.
@row("clamp_min")
def _clamp_min(b: Importer, out: Any, x: Tensor, low: Any) -> Any:
    return _clamp(b, out, x, low)


@row("clamp_max")
def _clamp_max(b: Importer, out: Any, x: Tensor, high: Any) -> Any:
    return _clamp(b, out, x, None, high)


@row("hardtanh")
def _hardtanh(b: Importer, out: Any, x: Tensor, low: Any, high: Any) -> Any:
    return _clamp(b, out, x, low, high)


@row("relu6")
def _relu6(b: Importer, out: Any, x: Tensor) -> Any:
    return _clamp(b, out, x, 0, 6)


@row("rrelu")
def _rrelu(b: Importer, out: Any, x: Tensor, low: Any, high: Any, train: bool, *_: Any) -> int:
    if train:
        raise Unsupported("random numbers")
    slope = b.add("mul", b.add("add", b.number(low), b.number(high)), b.number(0.5))
    return b.add("where", b.add("le", x.id, b.number(0)), b.add("mul", x.id, slope), x.id)


@row("log_sigmoid")
def _log_sigmoid(b: Importer, out: Any, x: Tensor) -> int:
    low = b.add("minimum", x.id, b.number(0))
    tail = b.add("log1p", b.add("exp", b.add("neg", b.add("abs", x.id))))
    return b.add("sub", low, tail)


@row("lerp.Scalar", "lerp.Tensor")
def _lerp(b: Importer, out: Any, x: Tensor, end: Tensor, weight: Any) -> int:
    if not x.is_float:
        raise Unsupported("not floating point")  # PyTorch says so
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
    "resolve_conj", "resolve_neg", "conj", "_conj", "real", "detach_copy", "alias_copy",
)  # fmt: skip
def _identity(b: Importer, out: Any, x: Tensor, *_: Any) -> Tensor:
    b.same(out, x)
    return x


@row("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(b: Importer, out: Any, x: Tensor, p: float, train: bool) -> Tensor:
    if train and not (is_number(p) and p == 0):
        raise Unsupported("random numbers")
    return x


@row(
    "to.dtype", "to.device", "to.dtype_layout", "to.other", "to.prim_dtype", "_to_copy", "type_as",
    "prims::convert_element_type",
)  # fmt: skip
def _to(b: Importer, out: Any, x: Tensor, *_: Any) -> Any:
    b.same(out, x)
    return x if out.dtype == x.dtype else b.cast(x.id, out.dtype)
