"""What is declared of the dimensions of a kernel's parameters: by annotations, by `dims`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NoReturn, get_args, get_origin

from tilevm.errors import CaptureError, ShapeError, describe
from tilevm.frontends.symbolic import Array, ArraySpec, own_file
from tilevm.ir.types import AnySize, Dim, Size, Symbol

own_file(__file__)
_REMEDY = 'Write {"x": ("B", "D")} for a parameter, {"B": Dim(max=64)} for a dimension.'


class Dimensions:
    """Names and fixed sizes of dimensions, and what is known of those with a name.

    Keys of `dims` are parameters (with a tuple of dimensions) or dimensions (with Dim or int).
    Raises: CaptureError, if these are declared wrongly.
    """

    def __init__(self, function: Callable[..., Any], dims: Mapping[str, Any], line: str) -> None:
        self._name = function.__name__
        self._line = line
        self.facts: dict[str, Dim | int] = {}
        if not isinstance(dims, Mapping):
            self._refuse(f"dims is {dims!r}", _REMEDY)
        specs: dict[str, ArraySpec] = {}
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            spec = _spec(parameter.annotation, function, line)
            if spec is not None:
                specs[name] = spec
        for key, value in dims.items():
            if key in parameters and isinstance(value, tuple | list | ArraySpec):
                specs[key] = value if isinstance(value, ArraySpec) else ArraySpec(tuple(value))
            elif isinstance(key, str) and isinstance(value, int | Dim):
                self.facts[key] = value
            else:
                self._refuse(f"dims[{key!r}] is {value!r}", _REMEDY)
        self._specs = self._named(specs)

    def _named(self, specs: Mapping[str, ArraySpec]) -> dict[str, tuple[Any, ...]]:
        """Every dimension as a name, int, None or `...`."""
        shared: dict[int, str] = {}
        result: dict[str, tuple[Any, ...]] = {}
        for name, spec in specs.items():
            named: list[Any] = []
            for axis, dim in enumerate(spec.dims):
                if isinstance(dim, Dim):
                    dim_name = shared.setdefault(id(dim), f"{name}{axis}")
                    self.facts[dim_name] = dim
                    named.append(dim_name)
                elif isinstance(dim, str) and not dim.isidentifier():
                    what = f"parameter {name} has a dimension {dim!r}"
                    self._refuse(what, "Dimensions are names.")
                elif dim is None or dim is Ellipsis or isinstance(dim, str | int):
                    named.append(dim)
                else:
                    what = f"parameter {name} has a dimension {dim!r}"
                    self._refuse(what, "Use names, ints, Dims, None, `...`.")
            result[name] = tuple(named)
        return result

    def of(self, name: str, rank: int) -> tuple[str | int, ...]:
        """Name or fixed size of each dimension of an argument. Raises: ShapeError."""
        automatic = [self._automatic(name, axis) for axis in range(rank)]
        spec = self._specs.get(name)
        if spec is None:
            return tuple(self._fixed(dim) for dim in automatic)
        dims = list(spec)
        if Ellipsis in dims:
            at = dims.index(Ellipsis)
            dims[at : at + 1] = [None] * max(0, rank - len(dims) + 1)
        if len(dims) != rank:
            expected = ", ".join("..." if d is Ellipsis else str(d) for d in spec)
            raise self._error(
                f"parameter {name} has rank {rank}, its annotation says [{expected}]",
                f"Pass an array of rank {len(spec)}, or change the annotation.",
            )
        return tuple(
            dim if isinstance(dim, int) else self._fixed(automatic[axis] if dim is None else dim)
            for axis, dim in enumerate(dims)
        )

    def _fixed(self, dim: str) -> str | int:
        fact = self.facts.get(dim)
        return fact if isinstance(fact, int) else dim

    def _automatic(self, name: str, axis: int) -> str:
        dim = f"{name}{axis}"
        named = {d for spec in self._specs.values() for d in spec}
        while dim in named:
            dim += "_"
        return dim

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The sizes by name. Raises: ShapeError, if they contradict what is declared."""
        env: dict[str, int] = {}
        first: dict[str, str] = {}
        for name, shape in shapes.items():
            for axis, (dim, size) in enumerate(zip(self.of(name, len(shape)), shape, strict=True)):
                label = f"{name}.shape[{axis}]"
                told = f"{label} is {size} (of {list(shape)})"
                if isinstance(dim, int):
                    if size != dim:
                        raise self._error(f"{told}, and must be {dim}", "Pass such an array.")
                    continue
                if env.setdefault(dim, size) != size:
                    raise self._error(
                        f"{told}, {first[dim]} is {env[dim]}: both are {dim}",
                        "Pass arrays of equal sizes there, or give the dimensions two names.",
                    )
                first.setdefault(dim, label)
                fact = self.facts.get(dim)
                if isinstance(fact, Dim) and not fact.holds(size):
                    known = Symbol(dim, fact.min, fact.max, fact.multiple_of)
                    raise self._error(
                        f"{told}, which contradicts {known}",
                        "Pass another size (pad, or call twice), or change the Dim.",
                    )
        return env

    def require(self, arrays: Mapping[str, Array]) -> None:
        """Have each call of the kernel that is being traced check what is declared of arrays in it.

        Raises: ShapeError, if it never holds.
        """
        env: dict[str, AnySize] = {}
        for name, array in arrays.items():
            shape = array.type.shape
            for axis, (dim, size) in enumerate(zip(self.of(name, len(shape)), shape, strict=True)):
                wanted = [dim if isinstance(dim, int) else env.setdefault(dim, size)]
                fact = self.facts.get(str(dim))
                if isinstance(fact, Dim):
                    most = size if fact.max is None else fact.max
                    part = fact.multiple_of
                    wanted += [Size(f"max({fact.min}, min({most}, {size}))")]
                    wanted += [Size(f"({size}) // {part} * {part}")]
                what = f"{name}.shape[{axis}] contradicts what is declared of it"
                for other in wanted:
                    array.trace.require(size, other, self._name, what, "Pass other sizes.")

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        told = describe(what, line=self._line, operator=self._name, remedy=remedy)
        raise CaptureError(told)

    def _error(self, what: str, remedy: str) -> ShapeError:
        return ShapeError(describe(what, line=self._line, operator=self._name, remedy=remedy))


def _spec(annotation: Any, function: Callable[..., Any], line: str) -> ArraySpec | None:
    """`Array["B", "D"]` or `Annotated[Array, "B", "D"]`, also as text; None: another annotation."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, function.__globals__, _closure(function))
        except Exception as error:  # of whatever the user wrote
            if "Array" in annotation:
                what = f"the annotation {annotation} does not evaluate: {error}"
                remedy = "Define what it names at the top of the module, or use dims=."
                raise CaptureError(describe(what, line=line, remedy=remedy)) from error
            return None
    if isinstance(annotation, ArraySpec):
        return annotation
    if get_origin(annotation) is Annotated and get_args(annotation)[0] is Array:
        return ArraySpec(get_args(annotation)[1:])
    return None


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """Names of enclosing functions that it uses, as far as they have values yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # empty, as the kernel's own name is until it is made
            found[name] = cell.cell_contents
    return found
