"""ATen operators with complex operands or results: rows as in `torch_ops`, in `COMPLEX`.

A complex tensor is a value with one more dim, of size 2: the real and the imaginary part of each
element beside each other, as they lie in memory. What operators make is kept as two values, one for
each part (`Complex`), and put beside each other only where somebody asks for the tensor as a whole.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_distances import ROWS
from tilevm.frontends.torch_ops import Row, Tensor, Unsupported, is_number

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

COMPLEX: dict[str, Row] = {}
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}

Parts = tuple[int, int]


def row(*names: str) -> Callable[[Row], Row]:
    """Enter a function in COMPLEX."""

    def enter(function: Row) -> Row:
        for name in names:
            COMPLEX[f"aten.{name}" + ("" if "." in name else ".default")] = function
        return function

    return enter


def is_complex(value: Any) -> bool:
    """Whether a tensor, or its metadata, is of complex numbers that programs hold."""
    return isinstance(value, Tensor | torch.Tensor) and value.dtype in PARTS


def row_of(name: str, tensors: Iterator[torch.Tensor]) -> Row | None:
    """The row of an operator with these operands and results, if there is one."""
    return (COMPLEX if any(map(is_complex, tensors)) else ROWS).get(name)


class Complex(Tensor):
    """A complex tensor as a value for each part, of its sizes."""

    parts: Parts
    importer: Importer
    whole: int  # -1: the parts are not beside each other yet

    def __init__(self, b: Importer, parts: Parts, fake: torch.Tensor) -> None:
        vars(self).update(fake=fake, parts=parts, importer=b, whole=-1)

    @property
    def id(self) -> int:
        """The parts beside each other."""
        if self.whole < 0:
            b, axis = self.importer, self.rank
            ends = [b.add("unsqueeze", part, axis=axis) for part in self.parts]
            vars(self)["whole"] = b.add("concat", *ends, axis=axis)
            b.complex_values.add(self.whole)
        return self.whole


def part_type(out: Any) -> torch.dtype:
    """The dtype of a result's parts. Raises: Unsupported, if it has none."""
    if out.dtype not in PARTS:
        raise Unsupported(f"complex numbers become {str(out.dtype)[6:]}")
    return PARTS[out.dtype]


def made(b: Importer, out: Any, real: int, imag: int) -> Complex:
    """A result of these parts, which may be smaller and of other types than it."""
    shape = b.shape(out.shape)

    def whole(part: int) -> int:
        part = b.cast(part, part_type(out))
        same = list(b.program.type(part)[2]) == [str(s) for s in shape]
        return part if same or not shape else b.add("expand", part, shape=shape)

    return Complex(b, (whole(real), whole(imag)), out)


def parts_of(b: Importer, x: Any, out: Any = None) -> Parts:
    """The parts of a tensor or number; as parts of `out`, if that is given."""
    if isinstance(x, complex):
        return b.number(x.real), b.number(x.imag)
    if not isinstance(x, Tensor):
        return b.number(x), b.number(0.0)
    if not is_complex(x):
        value = x.id if out is None else b.cast(x.id, part_type(out))
        return value, b.number(0.0)
    if isinstance(x, Complex):
        parts = x.parts
    else:
        real, imag = (b.add("select", x.id, axis=x.rank, index=i) for i in (0, 1))
        parts = real, imag
    if out is None:
        return parts
    return b.cast(parts[0], part_type(out)), b.cast(parts[1], part_type(out))


def _operands(row: Row) -> Row:
    """A row of the parts of its operands: `row(b, x, y)` returns those of the result."""

    def run(b: Importer, out: Any, *args: Any) -> Complex:
        return made(b, out, *row(b, *(parts_of(b, x, out) for x in args)))

    return run


# Between real and complex ------------------------------------------------------------------------


@row("view_as_complex", "view_as_complex_copy")
def _view_as_complex(b: Importer, out: Any, x: Tensor) -> Complex:
    real, imag = (b.add("select", x.id, axis=x.rank - 1, index=i) for i in (0, 1))
    return with_whole(b, made(b, out, real, imag), x.id, b.shape(x.shape))


def with_whole(b: Importer, x: Complex, pairs: int, shape: Sequence[Any]) -> Complex:
    """The same, of which `pairs` holds all: as a value of its own, since it is another tensor."""
    vars(x)["whole"] = b.add("reshape", pairs, shape=shape)
    b.complex_values.add(x.whole)
    return x


@row("view_as_real", "view_as_real_copy")
def _view_as_real(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("reshape", x.id, shape=b.shape(out.shape))


@row("complex")
def _complex(b: Importer, out: Any, real: Tensor, imag: Tensor) -> Complex:
    return made(b, out, real.id, imag.id)


@row("polar")
def _polar(b: Importer, out: Any, size: Tensor, angle: Tensor) -> Complex:
    real, imag = (b.add("mul", size.id, b.add(f, angle.id)) for f in ("cos", "sin"))
    return made(b, out, real, imag)


@row("real")
def _real(b: Importer, out: Any, x: Tensor) -> int:
    return parts_of(b, x)[0]


@row("imag")
def _imag(b: Importer, out: Any, x: Tensor) -> int:
    return parts_of(b, x)[1]


@row(
    "to.dtype", "to.device", "to.dtype_layout", "to.other", "to.prim_dtype", "_to_copy", "type_as",
)  # fmt: skip
def _to(b: Importer, out: Any, x: Tensor, *_: Any) -> Any:
    if x.dtype == out.dtype:
        return x
    return made(b, out, *parts_of(b, x)) if is_complex(out) else _as_real(b, out, x)


def _as_real(b: Importer, out: Any, x: Tensor) -> int:
    """The real part, of bool whether there is any."""
    real, imag = parts_of(b, x)
    if out.dtype is torch.bool:
        return b.add("logical_or", *(b.cast(part, torch.bool) for part in (real, imag)))
    return b.cast(real, out.dtype)


@row("copy")
def _copy(b: Importer, out: Any, x: Tensor, source: Tensor, *_: Any) -> Any:
    if not is_complex(out):
        value = _as_real(b, out, source)
        return b.add("expand", value, shape=b.shape(out.shape)) if out.dim() else value
    return made(b, out, *parts_of(b, source, out))


@row(
    "detach", "alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "positive",
    "resolve_conj", "resolve_neg", "detach_copy", "alias_copy",
)  # fmt: skip
def _identity(b: Importer, out: Any, x: Tensor, *_: Any) -> Tensor:
    return x


# Created -----------------------------------------------------------------------------------------


@row("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "zero")
def _zeros(b: Importer, out: Any, *_: Any) -> Complex:
    return made(b, out, b.number(0.0), b.number(0.0))


@row("ones", "ones_like", "new_ones")
def _ones(b: Importer, out: Any, *_: Any) -> Complex:
    return made(b, out, b.number(1.0), b.number(0.0))


def _filled(b: Importer, out: Any, value: Any) -> Any:
    if not is_complex(out):
        raise Unsupported("a complex number in real ones")
    return made(b, out, *parts_of(b, value, out))


@row("full", "full_like", "fill.Scalar", "fill.Tensor")
def _full(b: Importer, out: Any, _: Any, value: Any, *__: Any) -> Any:
    return _filled(b, out, value)


@row("new_full")
def _new_full(b: Importer, out: Any, _: Any, __: Any, value: Any, *___: Any) -> Any:
    return _filled(b, out, value)


@row("scalar_tensor")
def _scalar_tensor(b: Importer, out: Any, value: Any, *_: Any) -> Any:
    return _filled(b, out, value)


# Each part by itself -----------------------------------------------------------------------------

# Operators that do with each part what they do with a real tensor: the row of that, twice. What
# else is real among the operands is an index or a mask.
_BY_PART = """
    view reshape _unsafe_view _reshape_alias flatten.using_ints unflatten.int reshape_as view_as
    ravel view_copy expand expand_as broadcast_to expand_copy transpose.int swapaxes swapdims
    transpose_copy.int t t_copy mT numpy_T permute permute_copy movedim.int movedim.intlist
    moveaxis.int moveaxis.intlist unsqueeze unsqueeze_copy squeeze squeeze.dim squeeze.dims
    squeeze_copy squeeze_copy.dim squeeze_copy.dims slice.Tensor slice_copy.Tensor narrow
    narrow_copy select.int select_copy.int split.Tensor split.sizes split_with_sizes chunk
    tensor_split.sections tensor_split.indices unsafe_split.Tensor unsafe_chunk
    split_with_sizes_copy unbind.int flip roll repeat repeat_interleave.self_int tril triu
    diag_embed diagonal diagonal_copy linalg_diagonal trace unfold unfold_copy index_select gather
    index.Tensor _unsafe_index.Tensor embedding take neg negative cumsum constant_pad_nd pad
""".split()
# ... whose tensors are all complex in the end; but for indices.
_BY_PART_OF_ALL = """
    cat concat concatenate stack select_scatter slice_scatter diagonal_scatter block_diag
""".split()
_BY_PART_OF_VALUES = "index_add index_copy scatter.src scatter_add".split()


_Becomes = Callable[[Tensor], bool]


class Like:
    """Metadata of a part: that of the tensor but for the dtype."""

    def __init__(self, fake: torch.Tensor) -> None:
        self.shape: Sequence[Any] = fake.shape
        self.dtype = PARTS.get(fake.dtype, fake.dtype)
        self.dim, self.numel, self.stride = fake.dim, fake.numel, fake.stride
        self._fake = fake

    def reshape(self, *sizes: Any) -> Like:
        """With other sizes."""
        return Like(self._fake.reshape(*sizes))

    def new_empty(self, sizes: Any) -> Like:
        """Of other sizes."""
        return Like(self._fake.new_empty(sizes))


def _real_like(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_real_like(v) for v in value]
    return Like(value)


def _part(b: Importer, value: Any, i: int, becomes: _Becomes) -> Any:
    """An argument for the row of part `i`. becomes: whether a real tensor is complex in the end."""
    if isinstance(value, list | tuple):
        return [_part(b, v, i, becomes) for v in value]
    if isinstance(value, complex):
        return (value.real, value.imag)[i]
    if not isinstance(value, Tensor):
        return value
    if is_complex(value):
        return Tensor(parts_of(b, value)[i], Like(value.fake))  # type: ignore[arg-type]
    if not i or not becomes(value):
        return value
    zero = b.cast(b.number(0.0), value.dtype)
    if value.rank:
        zero = b.add("expand", zero, shape=b.shape(value.shape))
    return Tensor(zero, value.fake)


def _id(value: Any) -> int:
    return int(value.id if isinstance(value, Tensor) else value)


class _Pairs:
    """An importer that does to pairs what is done to their real parts, as long as that is a view.

    Views of a tensor that lies in memory are views of that memory then.
    """

    def __init__(self, b: Importer, known: dict[int, int]) -> None:
        self.importer = b
        self.known = known  # by value of real parts: the pairs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.importer, name)

    def add(self, op: str, *inputs: int, **params: Any) -> int:
        """As the importer's."""
        value = self.importer.add(op, *inputs, **params)
        pairs = self.known.get(inputs[0]) if inputs and op in _VIEWS else None
        if pairs is not None:
            if op in ("reshape", "expand"):
                params["shape"] = [*params["shape"], 2]
            elif op == "permute":
                params["axes"] = [*params["axes"], len(params["axes"])]
            self.known[value] = self.importer.add(op, pairs, **params)
        return value


_VIEWS = ("reshape", "expand", "permute", "slice", "select", "unsqueeze", "squeeze", "flip")


def _whole_of(x: Any) -> int:
    """The pairs of a tensor, if they are beside each other; else -1."""
    if not is_complex(x):
        return -1
    return x.whole if isinstance(x, Complex) else int(x.id)


def _by_part(name: str, becomes: _Becomes) -> Row:
    real_row = ROWS[name]

    def run(b: Importer, out: Any, *args: Any) -> Any:
        real_args, imag_args = ([_part(b, x, i, becomes) for x in args] for i in (0, 1))
        pairs: Any = _Pairs(b, {})
        if (whole := _whole_of(args[0])) >= 0:
            pairs.known[real_args[0].id] = whole
        real = real_row(pairs, _real_like(out), *real_args)
        imag = real_row(b, _real_like(out), *imag_args)

        def result(x: Any, y: Any, fake: Any) -> Complex | None:
            if x is None:
                return None
            found = made(b, fake, _id(x), _id(y))
            seen = pairs.known.get(_id(x))
            return found if seen is None else with_whole(b, found, seen, [*b.shape(fake.shape), 2])

        if not isinstance(out, list | tuple):
            return result(real, imag, out)
        return tuple(result(*parts) for parts in zip(real, imag, out, strict=True))

    return run


_LISTS: tuple[tuple[list[str], _Becomes], ...] = (
    (_BY_PART, lambda x: False),
    (_BY_PART_OF_ALL, lambda x: True),
    (_BY_PART_OF_VALUES, lambda x: x.is_float),
)
for _names, _becomes in _LISTS:
    for _name in _names:
        _full_name = f"aten.{_name}" + ("" if "." in _name else ".default")
        COMPLEX[_full_name] = _by_part(_full_name, _becomes)


@row("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf")
def _where(b: Importer, out: Any, mask: Tensor, x: Any, y: Any) -> Complex:
    if mask.dtype is not torch.bool:
        raise Unsupported("the condition is not bool")
    pairs = zip(parts_of(b, x, out), parts_of(b, y, out), strict=True)
    real, imag = (b.add("where", mask.id, u, v) for u, v in pairs)
    return made(b, out, real, imag)


@row("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Importer, out: Any, x: Tensor, mask: Tensor, value: Any) -> Any:
    return _where(b, out, mask, value, x)


# Element by element ------------------------------------------------------------------------------


def product(b: Importer, x: Parts, y: Parts) -> Parts:
    """The product x * y: as eager's, which does not mend infinities either."""
    (a, c), (e, f) = x, y
    real = b.add("sub", b.add("mul", a, e), b.add("mul", c, f))
    return real, b.add("add", b.add("mul", a, f), b.add("mul", c, e))


def quotient(b: Importer, x: Parts, y: Parts) -> Parts:
    """The quotient x / y, as eager's: parts of y are divided by the larger one first.

    Source: R. L. Smith, Algorithm 116: Complex division, CACM 5 (8), 1962; c10/util/complex.h.
    """
    sizes = [b.add("abs", part) for part in y]
    first = b.add("ge", *sizes)  # false for NaN
    none = b.add("logical_and", *(b.add("eq", size, b.number(0)) for size in sizes))

    def chosen(yes: int, no: int) -> int:
        return b.add("where", first, yes, no)

    large, small = chosen(*y), chosen(y[1], y[0])
    u, v = chosen(*x), chosen(x[1], x[0])
    ratio = b.add("div", small, large)
    scale = b.add("reciprocal", b.add("add", large, b.add("mul", small, ratio)))
    real = b.add("add", u, b.add("mul", v, ratio))
    turned = b.add("mul", u, ratio)
    imag = chosen(b.add("sub", v, turned), b.add("sub", turned, v))
    return (
        b.add("where", none, b.add("div", x[0], sizes[0]), b.add("mul", real, scale)),
        b.add("where", none, b.add("div", x[1], sizes[1]), b.add("mul", imag, scale)),
    )


def _combined(b: Importer, op: str, out: Any, x: Any, y: Any, alpha: Any) -> Complex:
    """The sum or difference of x and y * alpha: a product of complex numbers, even by 1."""
    right = parts_of(b, y, out)
    finite = isinstance(y, int | float | complex) and cmath.isfinite(y)
    if not (finite and is_number(alpha) and alpha == 1):
        right = product(b, right, parts_of(b, alpha))
    pairs = zip(parts_of(b, x, out), right, strict=True)
    real, imag = (b.add(op, u, v) for u, v in pairs)
    return made(b, out, real, imag)


@row("add.Tensor", "add.Scalar")
def add(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> Complex:
    return _combined(b, "add", out, x, y, alpha)


@row("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _combined(b, "sub", out, x, y, alpha)


@row("rsub.Tensor", "rsub.Scalar")
def _rsub(b: Importer, out: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(b, out, y, x, alpha)


row("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")(_operands(product))
row("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor")(
    _operands(quotient)
)


@row("square")
def _square(b: Importer, out: Any, x: Tensor) -> Complex:
    parts = parts_of(b, x)
    return made(b, out, *product(b, parts, parts))


@row("pow.Tensor_Scalar")
def _pow(b: Importer, out: Any, x: Tensor, y: Any) -> Complex:
    if not is_number(y) or y not in (2, 3):
        raise Unsupported("a power other than 2 and 3")
    parts = parts_of(b, x, out)
    power = product(b, parts, parts)
    return made(b, out, *(power if y == 2 else product(b, power, parts)))


@row("addcmul")
def _addcmul(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Any:
    factors = parts_of(b, y, out), parts_of(b, z, out)
    return add(b, out, x, made(b, out, *product(b, *factors)), value)


@row("addcdiv")
def _addcdiv(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Any:
    factors = parts_of(b, y, out), parts_of(b, z, out)
    return add(b, out, x, made(b, out, *quotient(b, *factors)), value)


@row("reciprocal")
def _reciprocal(b: Importer, out: Any, x: Tensor) -> Complex:
    return made(b, out, *quotient(b, parts_of(b, 1.0), parts_of(b, x)))


@row("conj", "_conj", "conj_physical", "_conj_physical", "_conj_copy")
def conj(b: Importer, out: Any, x: Tensor) -> Complex:
    """The conjugate."""
    real, imag = parts_of(b, x)
    return made(b, out, real, b.add("neg", imag))


@row("mH", "matrix_H", "adjoint")
def _adjoint(b: Importer, out: Any, x: Tensor) -> Complex:
    axes = [*range(x.rank - 2), x.rank - 1, x.rank - 2] if x.rank > 1 else list(range(x.rank))
    real, imag = (b.add("permute", part, axes=axes) for part in parts_of(b, x))
    return made(b, out, real, b.add("neg", imag))


def _size(b: Importer, x: Tensor) -> int:
    """The absolute value: in float64, so that no square is too large or too small."""
    if x.dtype is not torch.complex64:
        raise Unsupported(f"the size of {str(x.dtype)[6:]}")
    parts = parts_of(b, x)
    wide = [b.cast(part, torch.float64) for part in parts]
    root = b.add("sqrt", b.add("add", *(b.add("mul", part, part) for part in wide)))
    infinite = b.add("logical_or", *(b.add("isinf", part) for part in parts))
    return b.add("where", infinite, b.number(math.inf), b.cast(root, torch.float32))


@row("abs", "absolute")
def _abs(b: Importer, out: Any, x: Tensor) -> int:
    return _size(b, x)


@row("angle")
def _angle(b: Importer, out: Any, x: Tensor) -> int:
    real, imag = parts_of(b, x)
    return b.add("atan2", imag, real)


@row("sgn")
def _sgn(b: Importer, out: Any, x: Tensor) -> Complex:
    size = _size(b, x)
    none = b.add("eq", size, b.number(0))
    real, imag = (
        b.add("where", none, b.number(0.0), b.add("div", part, size)) for part in parts_of(b, x)
    )
    return made(b, out, real, imag)


@row("exp")
def _exp(b: Importer, out: Any, x: Tensor) -> Complex:
    """In two factors, since e^x may be infinite where the result is not."""
    real, imag = parts_of(b, x)
    most = b.number(80.0 if x.dtype is torch.complex64 else 700.0)
    low = b.add("exp", b.add("minimum", real, most))
    high = b.add("exp", b.add("maximum", b.add("sub", real, most), b.number(0.0)))
    wild = b.add("logical_not", b.add("isfinite", imag))
    down = b.add("logical_and", wild, b.add("eq", real, b.number(-math.inf)))
    up = b.add("logical_and", wild, b.add("isinf", real))
    cosine = b.add("where", up, b.number(1.0), b.add("cos", imag))
    sine = b.add("where", down, b.number(0.0), b.add("sin", imag))
    first, second = (b.add("mul", b.add("mul", low, part), high) for part in (cosine, sine))
    return made(b, out, first, b.add("where", b.add("eq", imag, b.number(0)), imag, second))


def _compared(op: str, join: str) -> Row:
    def run(b: Importer, out: Any, x: Any, y: Any) -> int:
        wide = next(v for v in (x, y) if is_complex(v) or isinstance(v, complex | Tensor))
        like = wide.fake if is_complex(wide) else None
        pairs = zip(parts_of(b, x, like), parts_of(b, y, like), strict=True)
        return b.add(join, *(b.add(op, u, v) for u, v in pairs))

    return run


row("eq.Tensor", "eq.Scalar")(_compared("eq", "logical_and"))
row("ne.Tensor", "ne.Scalar", "not_equal.Tensor", "not_equal.Scalar")(_compared("ne", "logical_or"))


def _truth(b: Importer, x: Tensor) -> int:
    """Whether elements are not 0."""
    found = [b.add("ne", part, b.number(0)) for part in parts_of(b, x)]
    return found[0] if not is_complex(x) else b.add("logical_or", *found)


@row("logical_not")
def _logical_not(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("logical_not", _truth(b, x))


def _logical(op: str) -> Row:
    def run(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
        return b.add(op, _truth(b, x), _truth(b, y))

    return run


for _name in ("logical_and", "logical_or", "logical_xor"):
    row(_name)(_logical(_name))


def _asked(op: str, join: str) -> Row:
    def run(b: Importer, out: Any, x: Tensor) -> int:
        return b.add(join, *(b.add(op, part) for part in parts_of(b, x)))

    return run


row("isnan")(_asked("isnan", "logical_or"))
row("isinf")(_asked("isinf", "logical_or"))
row("isfinite")(_asked("isfinite", "logical_and"))
