"""Types of values: element type and symbolic sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from tilevm.errors import DTypeError, ShapeError, describe
from tilevm.runtime import program as runtime

FLOATS = ("float32", "bfloat16", "float64", "float16")
LOW_PRECISION = ("bfloat16", "float16")  # computed in float32
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
MAX_RANK = 8  # of an array; kMaxRank of the core
WEAK = {"float64": "float", "int64": "int", "bool": "bool"}  # Python numbers, by their dtype


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as text, NumPy's, torch's, or `float`, `int`, `bool`.

    Raises: DTypeError, if there is none.
    """
    if isinstance(dtype, type) and dtype in (float, int, bool):
        return {float: "float64", int: "int64", bool: "bool"}[dtype]
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        dtype = np.dtype(dtype)
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise DTypeError(f"{dtype!r} is not a dtype; there are: {', '.join(DTYPES)}")
    return str(name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; bfloat16 is that of the package ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return, unused-ignore]
    return np.dtype(name)


@dataclass(frozen=True)
class Size:
    """A size that is known when the program runs, as an expression over symbols.

    A graph holds the core's normal form, which makes equal text mean equal sizes. Arithmetic only
    writes the expression down; `GraphBuilder.size` brings it into normal form.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def _with(self, op: str, other: object, *, swap: bool = False) -> Size:
        if not isinstance(other, int | Size):
            return NotImplemented  # type: ignore[no-any-return]
        a, b = (other, self) if swap else (self, other)
        return Size(f"({a}) {op} ({b})")

    def __add__(self, other: object) -> Size:
        return self._with("+", other)

    def __radd__(self, other: object) -> Size:
        return self._with("+", other, swap=True)

    def __sub__(self, other: object) -> Size:
        return self._with("-", other)

    def __rsub__(self, other: object) -> Size:
        return self._with("-", other, swap=True)

    def __mul__(self, other: object) -> Size:
        return self._with("*", other)

    def __rmul__(self, other: object) -> Size:
        return self._with("*", other, swap=True)

    def __floordiv__(self, other: object) -> Size:
        return self._with("//", other)

    def __rfloordiv__(self, other: object) -> Size:
        return self._with("//", other, swap=True)

    def __mod__(self, other: object) -> Size:
        return self._with("%", other)

    def __rmod__(self, other: object) -> Size:
        return self._with("%", other, swap=True)

    def value(self, env: Mapping[str, int]) -> int:
        """The size, for these values of its symbols."""
        return runtime.size_value(self.text, env)


AnySize = int | Size


def size_value(size: AnySize, env: Mapping[str, int]) -> int:
    """`size`, for these values of the symbols."""
    return size if isinstance(size, int) else size.value(env)


RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Guard:
    """A comparison of sizes on which a trace depends: `a <relation> b`, as Python writes it."""

    a: AnySize
    relation: str
    b: AnySize
    because: str  # the line of the branch, or the message of the core's error
    branch: bool = False  # the function branched on it

    def __str__(self) -> str:
        return f"{self.a} {self.relation} {self.b}"

    def holds(self, env: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the symbols."""
        return RELATIONS[self.relation](size_value(self.a, env), size_value(self.b, env))

    def negated(self) -> Guard:
        """The comparison that holds where this one does not."""
        return replace(self, relation=_NEGATED[self.relation])


@dataclass(frozen=True, eq=False)
class Dim:
    """What a user knows of a dimension; the same object at two places means equal sizes.

    min, max: both included. multiple_of: the size is a multiple. likely: sizes seen most, which
    graphs note and nothing uses yet.
    """

    min: int = 0
    max: int | None = None
    multiple_of: int = 1
    likely: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.likely, tuple | list):
            self._refuse("likely is no tuple", "Write likely=(128, 512).")
        object.__setattr__(self, "likely", tuple(self.likely))
        sizes = (self.min, self.min if self.max is None else self.max, self.multiple_of)
        if wrong := [size for size in (*sizes, *self.likely) if not _is_int(size)]:
            self._refuse(f"{wrong[0]!r} is no int", "Sizes are ints: Dim(min=1, max=64).")
        if any(size >= 2**63 for size in (*sizes, *self.likely)):
            self._refuse("it is beyond int64", "Leave max out where there is no bound.")
        if self.min < 0 or self.multiple_of < 1 or (self.max is not None and self.max < self.min):
            self._refuse("it allows no size", "0 <= min <= max and multiple_of >= 1 must hold.")

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise ShapeError(describe(f"{self!r}: {what}", operator="tilevm.Dim", remedy=remedy))

    def holds(self, size: int) -> bool:
        """Whether `size` is allowed."""
        above = self.max is not None and size > self.max
        return size >= self.min and not above and size % self.multiple_of == 0


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True)
class Symbol:
    """A symbol of a graph and what is known of it, as in `Dim`."""

    name: str
    min: int = 0
    max: int | None = None
    multiple_of: int = 1
    likely: tuple[int, ...] = ()

    def __str__(self) -> str:
        facts = []
        if self.min or self.max is not None or (self.multiple_of == 1 and not self.likely):
            facts.append(f"{self.name} in {self.min}..{'' if self.max is None else self.max}")
        if self.multiple_of != 1:
            facts.append(f"{self.name} % {self.multiple_of} == 0")
        if self.likely:
            facts.append(f"{self.name} likely {list(self.likely)}")
        return ", ".join(facts)


@dataclass(frozen=True)
class Type:
    """Type of a value. weak: a Python number, of rank 0, which promotes as PyTorch's do."""

    dtype: str
    shape: tuple[AnySize, ...] = ()
    weak: bool = False

    def __str__(self) -> str:
        if self.weak:
            return WEAK[self.dtype]
        return f"{self.dtype}[{', '.join(str(size) for size in self.shape)}]"
