"""`@tilevm.kernel`: a Python function over arrays, traced once per signature.

A signature is: for each argument its kind, dtype and rank; values of arguments that are neither
arrays nor numbers; and the broadcast pattern. Sizes are not part of it: a new size runs what is
compiled. Which dimensions of size 1 broadcast is decided per call: sizes that an operator needs to
be equal are assumed to be, and a size of 1 that differs from its partner at a call makes a variant
in which it is the constant 1.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

import numpy as np

from tilevm import log
from tilevm.config import config
from tilevm.errors import CaptureError, DTypeError, ShapeError, TilevmError, describe
from tilevm.frontends import check
from tilevm.frontends.arrays import NUMPY, Arrays, framework_of
from tilevm.frontends.captures import capturing
from tilevm.frontends.dimensions import Dimensions
from tilevm.frontends.symbolic import Array, SymbolicSize, Trace, own_file, place
from tilevm.ir import reference
from tilevm.ir.graph import Graph, GraphBuilder, symbols_of
from tilevm.ir.text import to_text
from tilevm.ir.types import DTYPES, MAX_RANK, AnySize, Dim, Guard, Size, Symbol, Type, dtype_name
from tilevm.lang import strong
from tilevm.runtime import program as runtime

own_file(__file__)
_WEAK = {bool: "bool", int: "int64", float: "float64"}
_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


def _forget_variants(_: Mapping[str, Any]) -> None:
    """After a change of the configuration, which variants were compiled for."""
    for kernel in list(_kernels):
        kernel.forget()


config.watch(_forget_variants)


@dataclass(frozen=True)
class Argument:
    """One argument as far as it is part of the signature. kind: array, number or static."""

    name: str
    kind: str
    dtype: str = ""
    rank: int = 0
    value: Any = field(default=None, compare=False)  # static
    key: Any = None  # stands for it: see `_key`


@dataclass(frozen=True)
class Signature:
    """What a call is traced for."""

    arrays: Arrays
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Variant:
    """A signature traced and compiled for one broadcast pattern and set of branches on sizes."""

    graph: Graph
    ones: frozenset[str]  # symbols that are the constant 1
    guards: tuple[Guard, ...]
    run: Callable[..., Any]  # what the function returns, for the program's inputs
    # Checks and refuses arguments that it is not for; None: `run` takes only what was found to fit.
    executable: Callable[..., Any] | None
    result: str  # how its outputs make the result, as `add_variant` says
    rebuild: Callable[[tuple[Any, ...]], Any] | None

    def fits(self, env: Mapping[str, int]) -> bool:
        """Whether this variant is for these sizes."""
        return all(env[name] == 1 for name in self.ones) and all(g.holds(env) for g in self.guards)


class Kernel(runtime.Dispatch):
    """A function decorated with `@tilevm.kernel`: call it with arrays, numbers, static values.

    Positional calls that the latest variant takes run without Python; all others come to `_call`.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self, function: Callable[..., Any], dims: Mapping[str, Any], static: Sequence[str]
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = inspect.signature(function)
        code = function.__code__
        self._line = place(code.co_filename, code.co_firstlineno)
        if isinstance(static, str) or not isinstance(static, Sequence):
            self._refuse(f"static is {static!r}", 'Name parameters in a tuple: static=("axis",).')
        self._static = frozenset(static)
        # Both used most recently: signatures last, variants of one first.
        self._variants: dict[Signature, list[Variant]] = {}  # the one used last is last
        self._lock = threading.RLock()
        self._turns = check.Turns()
        names = self._signature.parameters
        for name, parameter in names.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self._refuse(f"parameter *{name} takes any number", "Name each parameter.")
        if unknown := [name for name in static if name not in names]:
            self._refuse(f"static names {unknown}", f"The parameters are {list(names)}.")
        self._dimensions = Dimensions(function, dims, self._line)
        _kernels.add(self)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns for these arguments."""
        if Trace.running() and self._joins((*args, *kwargs.values())):
            return self._inline(args, kwargs)
        variant, signature, operands = self._find(args, kwargs)
        result = variant.run(*operands)
        if config.check:
            if config.tier != "reference" and self._turns.due():
                title = f"{self._line}: {self.__name__}"
                results = result.values() if isinstance(result, dict) else result
                found = [result] if variant.result == "single" else list(results)
                check.kernel(title, variant.graph, signature.arrays, operands, found)
            return result
        given = dict(zip(self._signature.parameters, args, strict=False), **kwargs)
        if variant.executable is not None and _is_settled(signature, given):
            places = {name: i for i, name in enumerate(given)}
            runtime.add_variant(
                self._ready,
                args,
                variant.executable,
                kwargs=kwargs,
                checked=False,
                inputs=[places[a.name] for a in signature.arguments if a.kind != "static"],
                outputs=range(len(variant.graph.results)),
                result=variant.result,
                rebuild=variant.rebuild,
            )
        return result

    def _joins(self, values: Sequence[Any]) -> bool:
        """Whether a call is a part of the kernel that is being traced."""
        if any(isinstance(value, Array | SymbolicSize) for value in values):
            return True
        return all(framework_of(value) is None for value in values)

    def _inline(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the function makes of arrays of that kernel."""
        values = self._bind(args, kwargs)
        self._dimensions.require({n: v for n, v in values.items() if isinstance(v, Array)})
        return self._function(*args, **kwargs)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter. Raises: TypeError."""
        name = self.__name__
        try:
            if unknown := [k for k in kwargs if k not in self._signature.parameters]:
                raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            remedy = f"Call it as {name}{self._signature}."
            raise TypeError(
                describe(str(error), line=self._line, operator=name, remedy=remedy)
            ) from None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method, where a class holds this."""
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> str:
        """As functions are: by name where that finds this very object, and copied as it is."""
        return str(self.__qualname__)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph that a call with these arguments runs."""
        return self._find(args, kwargs)[0].graph

    def inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What that graph is called with."""
        return self._find(args, kwargs)[2]

    def forget(self) -> None:
        """Drop what was traced: the next call traces again."""
        self._ready.clear()
        self._variants = {}

    def variants(self) -> list[Graph]:
        """The graphs traced so far."""
        return [variant.graph for found in self._variants.values() for variant in found]

    def _find(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Variant, Signature, list[Any]]:
        """The variant for a call, traced if it is the first, and the program's inputs."""
        values = self._bind(args, kwargs)
        signature = self._classify(values)
        arrays = [a.name for a in signature.arguments if a.kind == "array"]
        env = self._dimensions.bind({name: tuple(values[name].shape) for name in arrays})
        operands = [
            v.item() if isinstance(v := values[a.name], np.generic) else v
            for a in signature.arguments
            if a.kind != "static"
        ]
        with self._lock:
            known = self._variants.get(signature, [])
            for i, variant in enumerate(known):
                if variant.fits(env):
                    self._keep(signature, [variant, *known[:i], *known[i + 1 :]])
                    return variant, signature, operands
            with capturing(self._function.__name__):
                variant = self._capture(signature, env)
            if config.debug >= 2:
                log.tell(2, "%s", to_text(variant.graph))
            self._keep(signature, [variant, *known])
            self._drop_old()
            return variant, signature, operands

    # An interrupt may come between any two of these lines, and in the middle of hashing a
    # signature: what is kept is whole in between. (An OrderedDict would not be.)

    def _keep(self, signature: Signature, known: list[Variant]) -> None:
        """What is known of a signature, the last of all to go."""
        self._variants.pop(signature, None)
        self._variants[signature] = known

    def _drop_old(self) -> None:
        """Keep as many variants as `config.programs` says."""
        excess = sum(map(len, self._variants.values())) - config.programs
        while excess > 0:
            signature, oldest = next(iter(self._variants.items()))
            if len(oldest) > 1:
                self._variants[signature] = oldest[:-1]
            else:
                del self._variants[signature]
            excess -= 1

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        name = self._function.__name__
        raise CaptureError(describe(what, line=self._line, operator=name, remedy=remedy))

    # Signature ----------------------------------------------------------------------------------

    def _classify(self, values: Mapping[str, Any]) -> Signature:
        found: dict[str, str] = {}  # framework -> a parameter of it
        arrays = NUMPY
        arguments = []
        for name, value in values.items():
            framework = None if name in self._static else framework_of(value)
            if framework is not None:
                arrays = framework
                found[framework.name] = name
                arguments.append(self._array(name, value, framework))
            elif name not in self._static and type(number := _python(value)) in (int, float):
                if isinstance(number, int) and not -(2**63) <= number < 2**63:
                    what = f"argument {name} is an int of {number.bit_length()} bits"
                    self._refuse(what, f"Ints are those of int64: pass a float, float({name}).")
                arguments.append(Argument(name, "number", _WEAK[type(number)]))
            else:
                arguments.append(self._static_argument(name, value))
        if len(found) > 1:
            told = " and ".join(f"{name} is of {framework}" for framework, name in found.items())
            self._refuse(told, "Pass arrays of one kind: torch.from_numpy(a), or t.numpy().")
        return Signature(arrays, tuple(arguments))

    def _array(self, name: str, value: Any, arrays: Arrays) -> Argument:
        arrays.check(value, name, self._line)
        dtype = arrays.dtype(value)
        if dtype not in DTYPES:
            remedy = f"Kernels take {', '.join(DTYPES)}: convert {name} before the call."
            raise DTypeError(
                describe(
                    f"parameter {name} is {dtype}{list(value.shape)}",
                    line=self._line,
                    operator=self._function.__name__,
                    remedy=remedy,
                )
            )
        if value.ndim > MAX_RANK:
            raise ShapeError(
                describe(
                    f"parameter {name} has rank {value.ndim}, more than {MAX_RANK}",
                    line=self._line,
                    operator=self._function.__name__,
                    remedy=f"Reshape it before the call: {name}.reshape(...).",
                )
            )
        return Argument(name, "array", dtype, value.ndim)

    def _static_argument(self, name: str, value: Any) -> Argument:
        chosen = name in self._static
        if not chosen and not _is_static(value):
            self._refuse(
                f"argument {name} is a {type(value).__module__}.{type(value).__qualname__}",
                "Kernels take torch tensors on the CPU, NumPy arrays, numbers, and static values: "
                f'None, bool, str, dtypes, tuples of ints; others with static=("{name}",).',
            )
        try:
            hash(value)
        except TypeError:
            remedy = "Static values are part of the key: use a tuple in place of a list."
            self._refuse(f"static argument {name} is not hashable", remedy)
        return Argument(name, "static", value=value, key=_key(value))

    # Tracing ------------------------------------------------------------------------------------

    def _capture(self, signature: Signature, env: Mapping[str, int]) -> Variant:
        """Trace for these sizes, and again as long as a size of 1 turns out to broadcast."""
        ones: frozenset[str] = frozenset()
        while True:
            trace, returned = self._trace(signature, env, ones)
            checks = [_equality(check) for check in trace.builder.program.checks()]
            broken = [check for check in checks if not check.holds(env)]
            if not broken:
                break
            sides = {size for check in broken for size in (check.a, check.b)}
            more = {str(s) for s in sides if isinstance(s, Size) and s.value(env) == 1} - ones
            if not more:
                names = symbols_of((broken[0].a, broken[0].b))
                sizes = ", ".join(f"{name} is {env[name]}" for name in dict.fromkeys(names))
                call = f"in this call of {self._function.__name__} ({self._line})"
                raise ShapeError(f"{broken[0].because}\n  {sizes} {call}.")
            ones |= more
        guards = (*checks, *trace.guards.values())
        return self._compile(signature, trace.builder, returned, ones & set(env), guards)

    def _trace(
        self, signature: Signature, env: Mapping[str, int], ones: frozenset[str]
    ) -> tuple[Trace, Any]:
        trace = Trace(env, ones)
        builder = trace.builder
        for dim in env:
            if dim not in ones:
                fact = self._dimensions.facts.get(dim)
                known = fact if isinstance(fact, Dim) else Dim()
                builder.symbol(Symbol(dim, known.min, known.max, known.multiple_of, known.likely))
        arguments: dict[str, Any] = {}
        for argument in signature.arguments:
            name = argument.name
            if argument.kind == "static":
                arguments[name] = argument.value
                continue
            shape: tuple[AnySize, ...] = ()
            if argument.kind == "array":
                dims = self._dimensions.of(name, argument.rank)
                shape = tuple(
                    dim if isinstance(dim, int) else 1 if dim in ones else Size(dim) for dim in dims
                )
            type_ = Type(argument.dtype, shape, argument.kind == "number")
            arguments[name] = Array(trace, builder.param(name, type_))
        with trace:
            try:
                returned = self._function(**arguments)
            except RecursionError:
                self._refuse(
                    "calls itself without end",
                    "A call is traced once, before elements are known: choose by lang.where, or "
                    "repeat in a loop over a number that is static.",
                )
            return trace, self._results(trace, returned)

    def _results(self, trace: Trace, returned: Any) -> Callable[[tuple[Any, ...]], Any]:
        """Make what the function returned the graph's results; the inverse for a call's outputs."""
        if isinstance(returned, Array | SymbolicSize | int | float | np.generic):
            value = Array(trace, trace.lift(returned))
            if value.type.weak:
                value = trace.add("cast", value, dtype=strong(value.dtype))
            trace.builder.result(value.value)
            return _first
        if isinstance(returned, dict):
            keys = list(returned)
            for item in returned.values():
                self._one_result(trace, item)
            return lambda outputs: dict(zip(keys, outputs, strict=True))
        if type(returned) in (tuple, list):
            for item in returned:
                self._one_result(trace, item)
            return type(returned)
        self._refuse(
            f"the kernel returns a {type(returned).__qualname__}",
            "Return an array, or a tuple, list or dict of arrays.",
        )

    def _one_result(self, trace: Trace, item: Any) -> None:
        if self._results(trace, item) is not _first:
            self._refuse("the kernel returns containers in containers", "Return them flat.")

    def _compile(
        self,
        signature: Signature,
        builder: GraphBuilder,
        rebuild: Callable[[tuple[Any, ...]], Any],
        ones: frozenset[str],
        guards: tuple[Guard, ...],
    ) -> Variant:
        graph = builder.build()
        arrays = signature.arrays
        names = [name for name, _ in graph.params]
        single = rebuild is _first
        if config.tier == "reference":
            run = _reference(graph, arrays)
        else:
            run = runtime.compile_program(
                builder.program,
                [],
                framework=arrays.name,
                input_names=names,
                follow_inputs=True,
                single=single,
            )
        result = {_first: "single", tuple: "tuple", list: "list"}.get(rebuild, "rebuilt")
        checks = config.tier != "reference" and not any(guard.branch for guard in guards)
        as_it_is = rebuild is tuple or (single and config.tier != "reference")
        whole = run if as_it_is else lambda *inputs: rebuild(run(*inputs))
        again = rebuild if result == "rebuilt" else None
        return Variant(graph, ones, guards, whole, run if checks else None, result, again)


def _is_settled(signature: Signature, given: Mapping[str, Any]) -> bool:
    """Whether kinds of the arguments say all that the signature does, beside what arrays are."""
    kinds = {"number": (int, float), "static": (bool, str, type(None))}
    return all(
        a.kind == "array" or type(given[a.name]) in kinds[a.kind] for a in signature.arguments
    )


def _key(value: Any) -> Any:
    """What is equal only for static values that trace the same: 1, 1.0 and True differ, as do 0.0
    and -0.0, also in tuples and frozensets; NaN is like NaN.
    """
    kind: Any = type(value)
    if kind is float or kind is complex or isinstance(value, np.inexact):
        return kind, repr(value)
    if kind is frozenset:
        return kind, frozenset(map(_key, value))
    if isinstance(value, tuple) and kind.__eq__ is tuple.__eq__:  # named ones as well
        return kind, tuple(map(_key, value))
    return kind, value


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _first(outputs: tuple[Any, ...]) -> Any:
    return outputs[0]


def _is_static(value: Any) -> bool:
    """Whether a value may be part of the key without being asked for."""
    if isinstance(value, tuple):
        return all(isinstance(item, int | float) or _is_static(item) for item in value)
    if value is None or isinstance(value, bool | np.bool | str):
        return True
    try:
        return bool(dtype_name(value))
    except DTypeError:
        return False


def _equality(check: runtime.Check) -> Guard:
    """A check of the core, as a guard."""
    a, b, message = check
    return Guard(_any_size(a), "==", _any_size(b), message)


def _any_size(size: int | str) -> AnySize:
    text = str(size)
    return int(text) if text.lstrip("-").isdigit() else Size(text)


def _reference(graph: Graph, arrays: Arrays) -> Callable[..., tuple[Any, ...]]:
    """The tier `reference`."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        plain = [arrays.to_numpy(x) if framework_of(x) else x for x in inputs]
        return tuple(arrays.from_numpy(x) for x in reference.evaluate(graph, *plain))

    return run


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...


@overload
def kernel(
    *, dims: Mapping[str, Any] | None = None, static: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    dims: Mapping[str, Any] | None = None,
    static: Sequence[str] = (),
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a Python function over arrays a fused operator.

        @tilevm.kernel
        def scale(x: Array["B", "D"], weight: Array["D"], eps: float):
            return x * lang.rsqrt(lang.mean(x * x, -1, keepdims=True) + eps) * weight

    It takes torch tensors on the CPU or NumPy arrays, and returns the same. Ints and floats are
    run-time scalars; other values, and the arguments that `static` names, are fixed while tracing.
    dims: `{"x": ("B", "D")}` names dimensions in place of annotations, `{"B": Dim(max=64)}` or
    `{"B": 8}` says what is known of one; dimensions without a name are called x0, x1, ...
    Results share memory with arguments where they are views of them, as in eager.
    Kernels called in kernels become part of them. As a method it takes static=("self",): what it
    reads of the object is fixed while tracing. Copies are the kernel itself; it pickles by name.
    Raises: CaptureError, ShapeError, DTypeError, DeviceError, when called.
    """
    if function is None:
        return lambda f: Kernel(f, {} if dims is None else dims, static)
    if not inspect.isfunction(function):
        raise CaptureError(f"@tilevm.kernel decorates functions, not {function!r}")
    return Kernel(function, {} if dims is None else dims, static)


__all__ = ["Kernel", "TilevmError", "kernel"]
