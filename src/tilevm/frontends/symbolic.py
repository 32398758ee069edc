"""What a kernel sees while it is traced: arrays without values, and sizes that vary.

Operators on them append to the trace's graph. What a graph cannot hold raises CaptureError with
the line of the kernel.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from tilevm.errors import CaptureError, DTypeError, ShapeError, describe
from tilevm.ir.graph import GraphBuilder
from tilevm.ir.ops import BY_NAME, Kind, Param
from tilevm.ir.types import (
    DTYPES,
    FLOATS,
    INTEGERS,
    RELATIONS,
    AnySize,
    Guard,
    Size,
    Type,
    dtype_name,
)

_OWN_FILES = {__file__}  # frames to skip in the search for the user's line
_PLACES: dict[str, str] = {}
_traces = threading.local()


def own_file(name: str) -> None:
    """Declare a source file whose frames are never the user's."""
    _OWN_FILES.add(name)


def here() -> str:
    """The user's line that is being traced: `model.py:41`."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _OWN_FILES and frame.f_back is not None:
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno)


def place(file: str, line: int) -> str:
    """`model.py:41`: the path relative to the working directory, if the file is below it."""
    if file not in _PLACES:
        below = file.startswith(os.getcwd() + os.sep)  # noqa: PTH109
        _PLACES[file] = os.path.relpath(file) if below else file
    return f"{_PLACES[file]}:{line}"


def refuse(what: str, remedy: str) -> NoReturn:
    """Raise CaptureError for the user's line."""
    raise CaptureError(describe(what, line=here(), remedy=remedy))


def check_int(what: str, value: object) -> None:
    """Refuse an int that int64 does not hold. Raises: CaptureError."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        remedy = "Ints are those of int64; where a number is wanted, write a float: 2.0**70."
        refuse(f"{what} is an int of {value.bit_length()} bits", remedy)


class Trace:
    """A kernel's function being traced, for the sizes `env` at hand; ones: sizes that are 1."""

    def __init__(self, env: Mapping[str, int], ones: Collection[str] = ()) -> None:
        self.builder = GraphBuilder()
        self.env = env
        self.ones = ones
        self.guards: dict[str, Guard] = {}
        self._scalars: dict[tuple[type, Any], str] = {}

    def __enter__(self) -> Trace:
        _traces.stack = [*getattr(_traces, "stack", ()), self]
        return self

    def __exit__(self, *_: object) -> None:
        _traces.stack = _traces.stack[:-1]

    @staticmethod
    def running() -> bool:
        """Whether this thread traces a kernel."""
        return bool(getattr(_traces, "stack", ()))

    @staticmethod
    def current() -> Trace:
        """The trace of the kernel that is running. Raises: CaptureError outside of kernels."""
        stack = getattr(_traces, "stack", ())
        if not stack:
            refuse(
                "tilevm.lang works on the arrays of a kernel, and no kernel is being traced",
                "Call it in a function decorated with @tilevm.kernel.",
            )
        trace: Trace = stack[-1]
        return trace

    def add(self, op: str, *operands: Any, **params: Any) -> Array:
        """Append an operator of the table to arrays, numbers or sizes."""
        inputs = [self.lift(x) for x in operands]
        plain = {name: _plain(value) for name, value in params.items()}
        for param in BY_NAME[op].params:
            if param.name in plain:
                _check_param(op, param, plain[param.name])
        value = self.builder.add(op, inputs, line=here(), **plain)
        for axis, size in enumerate(self.builder.type(value).shape if self.ones else ()):
            if str(size) in self.ones:  # as the constant it broadcasts; squeeze has it checked
                squeezed = self.builder.add("squeeze", [value], line=here(), axes=(axis,))
                value = self.builder.add("unsqueeze", [squeezed], line=here(), axis=axis)
        return Array(self, value)

    def lift(self, x: Any) -> str:
        """The graph's value for an operand."""
        if isinstance(x, Array):
            if x.trace is not self:
                refuse(
                    "an array of another kernel, or of an earlier call, is used",
                    "Pass it as an argument.",
                )
            return x.value
        if isinstance(x, SymbolicSize):
            return self.builder.add("size_value", line=here(), size=x.size)
        number = x.item() if isinstance(x, np.generic) else x
        if isinstance(number, bool | int | float):
            check_int("an operand", number)
            key = (type(number), repr(number))
            if key not in self._scalars:
                self._scalars[key] = self.builder.add("scalar", line=here(), value=number)
            return self._scalars[key]
        refuse(
            f"an operand is a {type(x).__module__}.{type(x).__qualname__}",
            "Pass arrays as arguments of the kernel; constants are Python numbers.",
        )

    def size(self, size: AnySize) -> int | SymbolicSize:
        """A size as the kernel sees it."""
        normal = self.builder.size(size)
        return normal if isinstance(normal, int) else SymbolicSize(self, normal)

    def require(self, a: AnySize, b: AnySize, op: str, what: str, remedy: str) -> None:
        """Have each call check that `a == b`. Raises: ShapeError, if it never is."""
        a, b = self.builder.size(a), self.builder.size(b)
        message = describe(f"{what} ({a} and {b})", line=here(), operator=op, remedy=remedy)
        if (difference := self.builder.size(_as_size(a) - b)) == 0:
            return
        if isinstance(difference, int):
            raise ShapeError(message)
        self.builder.program.check(str(a), str(b), message)

    def decide(self, a: AnySize, relation: str, b: AnySize) -> bool:
        """Whether `a relation b`. What does not hold for all sizes becomes a guard."""
        difference = self.builder.size(_as_size(a) - b)
        if isinstance(difference, int):
            return RELATIONS[relation](difference, 0)
        guard = Guard(a, relation, b, here(), branch=True)
        if not (answer := guard.holds(self.env)):
            guard = guard.negated()
        self.guards.setdefault(str(guard), guard)
        return answer


def _as_size(size: AnySize) -> Size:
    return size if isinstance(size, Size) else Size(str(size))


def _plain(value: Any) -> Any:
    """A parameter of an operator as the graph takes it."""
    if isinstance(value, SymbolicSize):
        return value.size
    if isinstance(value, Array):
        refuse("a parameter of an operator is an array", "Parameters are Python numbers or sizes.")
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


# What a parameter of each kind may be: a type or types, whether it is a list, and that in words.
_KINDS: dict[Kind, tuple[Any, bool, str]] = {
    Kind.AXIS: (int, False, "an int"),
    Kind.AXES: (int, True, "ints"),
    Kind.INT: (int, False, "an int"),
    Kind.SIZE: (int | Size, False, "an int or a size"),
    Kind.SIZES: (int | Size, True, "ints or sizes"),
    Kind.NUMBER: (int | float, False, "a number"),
}


def _check_param(op: str, param: Param, value: Any) -> None:
    """Refuse what the parameter cannot be."""
    if param.kind is Kind.DTYPE:
        try:
            dtype_name(value)
        except DTypeError:
            what, remedy = f"{value!r} is not a dtype of kernels", f"Use {', '.join(DTYPES)}."
            raise DTypeError(describe(what, line=here(), operator=op, remedy=remedy)) from None
    if param.kind not in _KINDS:
        return
    types, several, words = _KINDS[param.kind]
    items = value if several and isinstance(value, tuple) else (value,)
    for item in items:
        wrong_bool = isinstance(item, bool) and param.kind is not Kind.NUMBER
        if wrong_bool or not isinstance(item, types):
            refuse(f"{op}: {param.name} is {value!r}", f"It takes {words}.")
        check_int(f"{op}: {param.name}", item)


def _size_operator(symbol: str, array_op: str, *, swap: bool = False) -> Callable[..., Any]:
    def apply(self: SymbolicSize, other: object) -> Any:
        if isinstance(other, np.integer):
            other = int(other)
        if isinstance(other, SymbolicSize) or type(other) is int:
            check_int(f"what {symbol} takes beside a size", other)
            right = other.size if isinstance(other, SymbolicSize) else other
            a, b = (right, self.size) if swap else (self.size, right)
            return self.trace.size(Size(f"({a}) {symbol} ({b})"))
        if isinstance(other, Array):
            return NotImplemented
        return self.trace.add(array_op, *((other, self) if swap else (self, other)))

    return apply


def _size_comparison(relation: str) -> Callable[..., Any]:
    def compare(self: SymbolicSize, other: object) -> Any:
        if isinstance(other, SymbolicSize):
            return self.trace.decide(self.size, relation, other.size)
        if isinstance(other, int | np.integer):
            check_int("what a size is compared with", other)
            return self.trace.decide(self.size, relation, int(other))
        return NotImplemented

    return compare


class SymbolicSize:
    """A size of an array that may differ from call to call.

    Integer arithmetic gives sizes, other arithmetic gives arrays of rank 0. Comparing it decides
    for the sizes at hand: a call for which the answer differs traces the kernel again.
    """

    __slots__ = ("size", "trace")

    def __init__(self, trace: Trace, size: Size) -> None:
        self.trace = trace
        self.size = size

    __add__ = _size_operator("+", "add")
    __radd__ = _size_operator("+", "add", swap=True)
    __sub__ = _size_operator("-", "sub")
    __rsub__ = _size_operator("-", "sub", swap=True)
    __mul__ = _size_operator("*", "mul")
    __rmul__ = _size_operator("*", "mul", swap=True)
    __floordiv__ = _size_operator("//", "floor_div")
    __rfloordiv__ = _size_operator("//", "floor_div", swap=True)
    __mod__ = _size_operator("%", "remainder")
    __rmod__ = _size_operator("%", "remainder", swap=True)
    __lt__ = _size_comparison("<")
    __le__ = _size_comparison("<=")
    __gt__ = _size_comparison(">")
    __ge__ = _size_comparison(">=")
    __eq__ = _size_comparison("==")
    __ne__ = _size_comparison("!=")

    def __truediv__(self, other: object) -> Array:
        return self.trace.add("div", self, other)

    def __rtruediv__(self, other: object) -> Array:
        return self.trace.add("div", other, self)

    def __pow__(self, other: object) -> Any:
        exponent = int(other) if isinstance(other, np.integer) else other
        if type(exponent) is int and exponent >= 0:
            if exponent > 8:
                refuse(f"a size to the power of {exponent}", "Up to 8 is a size; or write n**9.0.")
            power: Any = 1
            for _ in range(exponent):
                power = self * power
            return power
        return self.trace.add("pow", self.trace.add("size_value", size=self) * 1.0, other)

    def __neg__(self) -> int | SymbolicSize:
        return self.trace.size(Size(f"0 - ({self.size})"))

    def __bool__(self) -> bool:
        return self.trace.decide(self.size, "!=", 0)

    def __hash__(self) -> int:
        return hash(self.size)

    def __repr__(self) -> str:
        return f"<size {self.size}>"

    def __str__(self) -> str:  # noqa: PLE0307
        refuse("a size is printed", "It has no value while the kernel is traced; remove the print.")

    def __format__(self, spec: str) -> str:
        return str(self)

    def __index__(self) -> int:  # noqa: PLE0305
        refuse(
            f"the size {self.size} is used as a Python int (in range(), int(), a list index, ...)",
            "It varies from call to call: use array operators in place of a loop, or fix it: "
            f'@tilevm.kernel(dims={{"{self.size}": 8}}).',
        )

    __int__ = __index__

    def __float__(self) -> float:
        refuse(f"float() of the size {self.size}", "Arithmetic takes sizes as they are: x / n.")


def _operator(op: str, *, swap: bool = False) -> Callable[[Array, Any], Array]:
    def apply(self: Array, other: Any) -> Array:
        return self.trace.add(op, *((other, self) if swap else (self, other)))

    return apply


# NumPy's functions that stand for Python operators: np.float32(2) * x calls np.multiply.
_UFUNCS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "true_divide": "div",
    "divide": "div",
    "floor_divide": "floor_div",
    "remainder": "remainder",
    "power": "pow",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
}


class Array:
    """An array in a kernel. Its methods are the functions of `tilevm.lang`.

    As an annotation, `Array["B", "D"]` or `Annotated[Array, "B", "D"]` names dimensions: equal
    names mean equal sizes. An int fixes a size, None leaves it free, a `tilevm.Dim` bounds it.
    """

    __slots__ = ("trace", "value")

    methods: ClassVar[dict[str, Callable[..., Any]]] = {}  # filled by tilevm.lang

    def __init__(self, trace: Trace, value: str) -> None:
        self.trace = trace
        self.value = value

    def __class_getitem__(cls, dims: Any) -> ArraySpec:
        return ArraySpec(dims if isinstance(dims, tuple) else (dims,))

    @property
    def type(self) -> Type:
        """Element type and sizes."""
        return self.trace.builder.type(self.value)

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.type.shape)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: ints where they are fixed."""
        return tuple(self.trace.size(size) for size in self.type.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        count: Any = 1
        for size in self.shape:
            count = count * size
        return count

    @property
    def T(self) -> Array:
        """The dimensions in reverse order."""
        return self.trace.add("permute", self, axes=tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Array:
        """The last two dimensions swapped."""
        order = list(range(self.ndim))
        if self.ndim < 2:
            refuse(f".mT of {self.type}", "It swaps the last two dimensions: there must be two.")
        order[-2:] = reversed(order[-2:])
        return self.trace.add("permute", self, axes=order)

    def __getattr__(self, name: str) -> Any:
        if name in Array.methods:
            return lambda *args, **kwargs: Array.methods[name](self, *args, **kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(
            f"arrays in kernels have no attribute {name!r}",
            "docs/ops.md lists the operators; all are functions of tilevm.lang.",
        )

    __add__ = _operator("add")
    __radd__ = _operator("add", swap=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", swap=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", swap=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", swap=True)
    __floordiv__ = _operator("floor_div")
    __rfloordiv__ = _operator("floor_div", swap=True)
    __mod__ = _operator("remainder")
    __rmod__ = _operator("remainder", swap=True)
    __rpow__ = _operator("pow", swap=True)
    __matmul__ = _operator("matmul")
    __rmatmul__ = _operator("matmul", swap=True)
    __and__ = _operator("bitwise_and")
    __rand__ = _operator("bitwise_and", swap=True)
    __or__ = _operator("bitwise_or")
    __ror__ = _operator("bitwise_or", swap=True)
    __xor__ = _operator("bitwise_xor")
    __rxor__ = _operator("bitwise_xor", swap=True)
    __lshift__ = _operator("shift_left")
    __rlshift__ = _operator("shift_left", swap=True)
    __rshift__ = _operator("shift_right")
    __rrshift__ = _operator("shift_right", swap=True)
    __lt__ = _operator("lt")
    __le__ = _operator("le")
    __gt__ = _operator("gt")
    __ge__ = _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]  # elementwise, as in NumPy
    __ne__ = _operator("ne")  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __pow__(self, exponent: Any) -> Array:
        squared = type(exponent) is int and self.dtype != "bool"
        squared = squared or (type(exponent) is float and self.dtype in FLOATS)
        if squared and exponent == 2:
            return self.trace.add("mul", self, self)
        return self.trace.add("pow", self, exponent)

    def __neg__(self) -> Array:
        return self.trace.add("neg", self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return self.trace.add("abs", self)

    def __invert__(self) -> Array:
        return self.trace.add("bitwise_not", self)

    def __getitem__(self, index: Any) -> Array:
        return _index(self, index if isinstance(index, tuple) else (index,))

    def __iter__(self) -> Iterator[Array]:
        size = self.type.shape[0] if self.type.shape else 0
        if not self.type.shape or not isinstance(size, int):
            refuse(
                f"a loop over an array of type {self.type}",
                "Its length varies from call to call: use array operators, or fix the size.",
            )
        return iter([self[i] for i in range(size)])

    def __contains__(self, item: object) -> NoReturn:
        refuse(
            "`in` looks for a value in an array: it has none while the kernel is traced",
            "Use lang.any(x == value), which is an array.",
        )

    def __len__(self) -> int:
        size = self.type.shape[0] if self.type.shape else None
        if not isinstance(size, int):
            refuse(f"len() of an array of type {self.type}", "Use x.shape[0], which may vary.")
        return size

    def __repr__(self) -> str:
        return f"<array {self.value}: {self.type}>"

    def __bool__(self) -> bool:  # noqa: PLE0304
        refuse(
            "`if`, `while`, `and`, `or`, `not`, min() or max() on an array: it has no value while "
            "the kernel is traced",
            "Use lang.where(condition, a, b); & | ~ for and, or, not; lang.minimum, lang.maximum. "
            'A number that decides is static: @tilevm.kernel(static=("n",)).',
        )

    def _no_value(self, *_: object) -> NoReturn:
        refuse(
            "the value of an array is asked for (float(), int(), print(), ...)",
            "It has none while the kernel is traced: return the array and look at it outside. "
            'A number that must be known is static: @tilevm.kernel(static=("n",)).',
        )

    __float__ = __int__ = __index__ = __complex__ = _no_value
    __str__ = __format__ = _no_value

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        refuse(
            "an assignment to elements of an array",
            "Arrays in kernels do not change: make a new one with lang.where or lang.concat.",
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("a NumPy function is called", "Use the function of that name in tilevm.lang.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Array:
        if ufunc.__name__ in _UFUNCS and method == "__call__" and not options:
            return self.trace.add(_UFUNCS[ufunc.__name__], *inputs)
        refuse(f"numpy.{ufunc.__name__} is called", "Use the function of tilevm.lang.")

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        name = function.__name__
        refuse(f"numpy.{name} is called", f"Use the function of tilevm.lang, as in lang.{name}.")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        name = getattr(function, "__name__", "a function")
        refuse(f"torch's {name} is called", "Use the function of that name in tilevm.lang.")


@dataclass(frozen=True)
class ArraySpec:
    """An annotation of an array: str, int, None, Dim or Ellipsis a dimension."""

    dims: tuple[Any, ...]


def _index(x: Array, index: tuple[Any, ...]) -> Array:
    """`x[index]` for ints, sizes, slices, None, Ellipsis and at most one array of ints."""
    if sum(item is Ellipsis for item in index) > 1:
        refuse("an index has two `...`", "Keep one.")
    used = sum(item is not None and item is not Ellipsis for item in index)
    if used > x.ndim:
        refuse(f"{used} indices for {x.type}", f"It has {x.ndim} dimensions.")
    if not any(item is Ellipsis for item in index):
        index = (*index, Ellipsis)
    if sum(isinstance(item, Array) for item in index) > 1:
        refuse("an index has two arrays", "Use lang.gather, or index in two steps.")
    axis = 0
    for item in index:
        if item is Ellipsis:
            axis += x.ndim - axis - _axes_after(index)
        elif item is None:
            x = x.trace.add("unsqueeze", x, axis=axis)
            axis += 1
        elif isinstance(item, slice):
            x = _slice(x, axis, item)
            axis += 1
        elif isinstance(item, Array):
            if item.dtype == "bool":
                refuse(
                    "an array is indexed by a mask",
                    "The result's size would depend on values: use lang.where.",
                )
            x = x.trace.add("take", x, _all_from_start(x, axis, item), axis=axis)
            axis += item.ndim
        elif isinstance(item, int | np.integer | SymbolicSize) and not isinstance(item, bool):
            x = x.trace.add("select", x, axis=axis, index=_from_start(x, axis, item))
        else:
            refuse(
                f"an index is a {type(item).__name__}",
                "Use ints, slices, None, `...` or an array of ints.",
            )
    return x


def _axes_after(index: tuple[Any, ...]) -> int:
    """How many dimensions the items after `...` take."""
    after = index[next(i for i, item in enumerate(index) if item is Ellipsis) + 1 :]
    return sum(item is not None for item in after)


def _from_start(x: Array, axis: int, index: Any) -> Any:
    if isinstance(index, SymbolicSize) or index >= 0:
        return index if isinstance(index, SymbolicSize) else int(index)
    return x.shape[axis] + int(index)


def _all_from_start(x: Array, axis: int, index: Array) -> Array:
    """The index, with the size added to elements that count from the end."""
    if index.dtype == "uint8" or index.dtype not in INTEGERS:  # which take refuses
        return index
    if index.dtype != "int64":  # in which each size is a number
        index = x.trace.add("cast", index, dtype="int64")
    return x.trace.add("where", index < 0, index + x.shape[axis], index)


def _slice(x: Array, axis: int, item: slice) -> Array:
    if any(isinstance(part, Array) for part in (item.start, item.stop, item.step)):
        refuse("a bound of a slice is an array", "Bounds are ints or sizes.")
    step = 1 if item.step is None else item.step
    if not isinstance(step, int) or step == 0 or step < -1:
        refuse(f"a slice has step {step!r}", "Steps are at least 1; [::-1] reverses.")
    if item.start is None and item.stop is None:
        if step == 1:
            return x
        if step == -1:
            return x.trace.add("flip", x, axes=(axis,))
    if step < 0:
        refuse("a slice with step -1 has bounds", "Slice first, then reverse with [::-1].")
    start = 0 if item.start is None else item.start
    stop = x.shape[axis] if item.stop is None else item.stop
    return x.trace.add("slice", x, axis=axis, start=start, stop=stop, step=step)
