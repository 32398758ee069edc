"""What a graph means: slow, obvious, and what every tier is tested against.

Floats are computed in float64, float64 in long double (80 bits on x86). A value is rounded to its
node's dtype where it leaves the graph, where an operator is not continuous (it compares, rounds,
takes the index of an extremum, or tests for zero), and by an explicit cast. Integers wrap. bfloat16
arrays are those of ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilevm.errors import ShapeError
from tilevm.ir.graph import ITEM, OPAQUE, Graph, Node
from tilevm.ir.ops import BY_NAME, Array, Kind
from tilevm.ir.types import FLOATS, LOW_PRECISION, AnySize, Size, Type, numpy_dtype, size_value
from tilevm.runtime import program as runtime

# What happens to the operands, by typing rule. Both start from wide floats; rules in neither take
# their operands as they are.
_AS_RESULT = frozenset(  # converted to the result's dtype
    "same same_number same_integer float_unary promote promote_number promote_float "
    "promote_integer promote_shift reduce_sum reduce_same reduce_float float_axis float_axes "
    "concat scan scan_same scan_float matmul conv conv_windows".split()
)
_ROUNDED = frozenset(  # rounded to their common dtype
    "compare logical predicate round_unary reduce_bool reduce_index argsort argtopk search".split()
)
_ROUNDED_OPERATORS = frozenset(("floor_div", "remainder", "fmod", "sign"))


def evaluate(
    graph: Graph,
    *arrays: Any,
    targets: Sequence[Callable[..., Any]] = (),
    rounding: Callable[[Array], Array] | None = None,
) -> tuple[Array, ...]:
    """The results of `graph` for these arrays or numbers; `targets` are what its calls call.

    rounding: applied to each value on the way, which is rounded to its dtype first.
    Raises: ShapeError, if an array's sizes contradict the type of its parameter.
    """
    env = bind(graph, arrays)
    types = graph.types()
    values: dict[str, Array] = {}
    last = {name: node for node in graph.nodes for name in node.inputs}
    kept = set(graph.results)
    with np.errstate(all="ignore"):
        for (name, type_), array in zip(graph.params, arrays, strict=True):
            values[name] = _working(round_to(array, type_.dtype), type_.dtype)
        for node in graph.nodes:
            inputs = [values[name] for name in node.inputs]
            in_types = [types[name] for name in node.inputs]
            outputs = _run(node, inputs, in_types, env, targets)
            if rounding is not None:
                typed = zip(outputs, node.types, strict=True)
                outputs = [
                    x if t.dtype == OPAQUE else _working(rounding(round_to(x, t.dtype)), t.dtype)
                    for x, t in typed
                ]
            values.update(zip(node.out, outputs, strict=True))
            for name in {*node.inputs} - kept:
                if last[name] is node:
                    del values[name]
        return tuple(round_to(values[name], types[name].dtype) for name in graph.results)


def bind(graph: Graph, arrays: Sequence[Any]) -> dict[str, int]:
    """The values of the graph's symbols, from the arrays' sizes. Raises: ShapeError."""
    env: dict[str, int] = {}
    names = {symbol.name for symbol in graph.symbols}
    shaped = [(name, t, np.shape(a)) for (name, t), a in zip(graph.params, arrays, strict=True)]
    for name, type_, shape in shaped:
        if len(shape) != len(type_.shape):
            raise ShapeError(f"parameter {name} is {type_}; got {list(shape)}, of another rank")
        for size, actual in zip(type_.shape, shape, strict=True):
            if isinstance(size, Size) and size.text in names:
                env.setdefault(size.text, actual)
    for name, type_, shape in shaped:
        if _sizes(type_.shape, env) != shape:
            raise ShapeError(f"parameter {name} is {type_}; got {list(shape)}, where {env}")
    return env


def round_to(array: Any, dtype: str) -> Array:
    """`array` as an array of that dtype."""
    return np.asarray(array).astype(numpy_dtype(dtype))


def _working(array: Any, dtype: str) -> Array:
    """`array` in the type that the evaluator computes `dtype` in; integers wrap."""
    return np.asarray(array).astype(working_dtype(dtype))


def working_dtype(dtype: str) -> np.dtype[Any]:
    """The type that the evaluator computes `dtype` in."""
    if dtype == "float64":
        return np.dtype(np.longdouble)
    return np.dtype(np.float64) if dtype in FLOATS else numpy_dtype(dtype)


def _promoted(x: Array, type_: Type, dtype: str) -> Array:
    """An operand of an operator that computes in `dtype`: rounded if that is a conversion.

    Python floats are not, and Python ints beside a low precision are rounded to float32, in which
    PyTorch computes.
    """
    if type_.weak and x.dtype.kind in "iu":
        return _working(round_to(x, "float32" if dtype in LOW_PRECISION else dtype), dtype)
    converts = type_.dtype != dtype and not type_.weak
    return _working(round_to(x, dtype) if converts else x, dtype)


def _common(types: Sequence[Type]) -> str:
    """The dtype to which operands of these types are promoted, as the core says."""
    if len({t.dtype for t in types}) == 1:
        return types[0].dtype
    program = runtime.new_program()
    inputs = [program.input(t.dtype, [1] * len(t.shape), t.weak) for t in types]
    return program.type(program.add("maximum", inputs, {}, None))[0]


def _sizes(sizes: Sequence[AnySize], env: dict[str, int]) -> tuple[int, ...]:
    return tuple(size_value(size, env) for size in sizes)


def _run(
    node: Node,
    inputs: list[Array],
    types: list[Type],
    env: dict[str, int],
    targets: Sequence[Callable[..., Any]],
) -> list[Array]:
    row, result = BY_NAME[node.op], node.types[0]
    params = dict(node.params)
    for param in row.params:
        value = params[param.name]
        if param.kind is Kind.SIZES:
            params[param.name] = _sizes(value, env)
        elif param.kind is Kind.SIZE:
            params[param.name] = size_value(value, env)
    if "shape" in params:  # without -1
        params["shape"] = _sizes(result.shape, env)

    if row.name == "call" and params["target"] == ITEM:
        number = round_to(inputs[0], types[0].dtype).reshape(())
        if len(node.types) == 1:
            return [_working(number, result.dtype)]
        (size,) = node.types[1].shape
        if int(number) < 0:
            raise ShapeError(f"{node.inputs[0]} is {number}, and the size {size} cannot be")
        if env.setdefault(str(size), int(number)) != int(number):
            raise ShapeError(f"{node.inputs[0]} is {number}, and {size} is {env[str(size)]}")
        return [_working(number, result.dtype), number]
    if row.name == "call":
        stored = [round_to(x, t.dtype) for x, t in zip(inputs, types, strict=True)]
        found = targets[params["target"]](*stored)
        many = found if isinstance(found, tuple | list) else [found]
        return [_working(x, t.dtype) for x, t in zip(many, node.types, strict=True)]
    if row.name == "full":
        return [np.full(params["shape"], _working(params["value"], result.dtype))]
    if row.name == "cast":
        return [_working(_cast(round_to(inputs[0], types[0].dtype), result.dtype), result.dtype)]
    if row.name == "where":
        condition = round_to(inputs[0], types[0].dtype).astype(bool)
        pair = zip(inputs[1:], types[1:], strict=True)
        inputs = [condition, *(_promoted(x, t, result.dtype) for x, t in pair)]
    elif row.rule in _ROUNDED or row.name in _ROUNDED_OPERATORS:
        common = _common(types)
        inputs = [_working(round_to(x, common), common) for x in inputs]
    elif row.rule in _AS_RESULT:
        inputs = [_promoted(x, t, result.dtype) for x, t in zip(inputs, types, strict=True)]
    if row.meaning is None:
        raise NotImplementedError(f"the table gives {row.name} no meaning")
    return [_working(row.meaning(*inputs, **params), result.dtype)]


def _cast(x: Array, dtype: str) -> Array:
    """Rounds to `dtype`, by way of float32 to a low precision, as PyTorch.

    Floats that int32 or int64 do not hold become its least, as on x86; smaller integers are the low
    bits of int32.
    """
    if x.dtype.kind not in "iub" and dtype not in FLOATS and dtype != "bool":
        width = 63 if dtype == "int64" else 31
        whole = np.trunc(x.astype(np.float64))
        inside = (whole >= -(2.0**width)) & (whole < 2.0**width)
        x = np.where(inside, np.where(inside, whole, 0).astype(np.int64), -(2**width))
    if dtype in LOW_PRECISION:
        x = round_to(x, "float32")
    return round_to(x, dtype)
