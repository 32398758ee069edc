"""Operators that `tilevm.fuse` has no row for: as what captured graphs make of them.

The recorder asks here for each kind of call: an operator, the dtypes, ranks and layouts of its
tensors, which of their sizes are 0, 1 or equal, and its other arguments. The answer is a program
over the sizes, which the core puts into segments wherever the operator is called like that.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tilevm import log
from tilevm.frontends import (
    torch_convolutions,
    torch_decompose,
    torch_gradients,
    torch_imported,
    torch_sizes,
    torch_tracing,
)
from tilevm.frontends.torch_import import Importer
from tilevm.frontends.torch_memory import Refused, hints
from tilevm.frontends.torch_sizes import Sizes
from tilevm.frontends.torch_transforms import is_complex
from tilevm.runtime import program as runtime

NOTHING = -1
Condition = tuple[int | str, str, int | str]  # of sizes
# Eager code raises where integers are divided by zero, not when somebody looks.
_DIVISIONS = {"floor_divide", "remainder", "fmod", "div", "divide"}
_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">=",
}  # fmt: skip


def template_of(name: str, overload: str, arguments: Sequence[Any]) -> int:
    """The number of what stands for `aten.name.overload` where it is called like this; -1: nothing.

    arguments: in the order of the schema, sizes that may be others in tuples of one; of tensors,
    only types and layouts are looked at.
    """
    try:
        return _template(name, overload, arguments)
    except Exception as reason:  # PyTorch runs the operator, or says what is wrong with it
        log.tell(3, "fuse: aten.%s.%s stays PyTorch's: %s", name, overload, reason)
        return NOTHING


def _template(name: str, overload: str, arguments: Sequence[Any]) -> int:
    target: OpOverload = getattr(getattr(torch.ops.aten, name), overload or "default")
    tensors = [x for x in _leaves(arguments) if isinstance(x, torch.Tensor)]
    numbers = [x[0] for x in _leaves(arguments) if isinstance(x, tuple)]
    # (Sizes that data decide are symbols of no operand, which importing refuses.)
    if torch.Tag.nondeterministic_seeded in target.tags and not _without_dropout(name, arguments):
        raise Refused("its results are not of the arguments alone")
    if name in _DIVISIONS and not any(x.is_floating_point() or x.is_complex() for x in tensors):
        raise Refused("a division of integers")
    examples = [_like(x) for x in tensors]
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fakes = [_fake(mode, x, i) for i, x in enumerate(examples)]
    symbols = [_symbol(environment, x, i) for i, x in enumerate(numbers)]
    with torch_tracing.without_errors(), mode, enable_python_dispatcher():
        value = _call(target, arguments, fakes, symbols)
    results = _listed(value)
    reals = _listed(_call(target, arguments, examples, numbers))
    orders = [_order(fake, real) for fake, real in zip(results, reals, strict=True)]
    graph = _graph(target, arguments, fakes, symbols, value)
    try:
        with torch_tracing.without_errors(), enable_python_dispatcher():
            graph = torch_decompose.decomposed(graph, torch_gradients.decompositions())
            number = _imported(graph, fakes, symbols, results, orders)
    finally:
        torch_sizes.let_go(graph)
    return number


def _without_dropout(name: str, arguments: Sequence[Any]) -> bool:
    """Whether attention is asked for, that drops nothing."""
    return name == "scaled_dot_product_attention" and arguments[4] == 0


def _call(target: OpOverload, arguments: Any, tensors: list[Any], numbers: list[Any]) -> Any:
    """The operator with others in the place of tensors and sizes."""
    given, named = _given(target, _replaced(arguments, iter(tensors), iter(numbers)))
    with torch.no_grad():
        return target(*given, **named)


def _given(target: OpOverload, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By position and by name, as the schema wants them."""
    schema = target._schema.arguments
    named = {a.name: x for a, x in zip(schema, arguments, strict=True) if a.kwarg_only}
    return tuple(x for a, x in zip(schema, arguments, strict=True) if not a.kwarg_only), named


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _leaves(arguments: Any) -> Iterator[Any]:
    for x in arguments:
        if isinstance(x, list):
            yield from _leaves(x)
        else:
            yield x


def _replaced(arguments: Any, tensors: Iterator[Any], numbers: Iterator[Any]) -> list[Any]:
    """Arguments with others in the place of tensors and of sizes, in order."""

    def other(x: Any) -> Any:
        if isinstance(x, list):
            return [other(item) for item in x]
        if isinstance(x, torch.Tensor):
            return next(tensors)
        return next(numbers) if isinstance(x, tuple) else x

    return [other(x) for x in arguments]


def _like(x: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in memory as `x`, which may wait to be filled. Zeros: valid indices.
    Complex ones have no gaps: their parts are another view.
    """
    if x.is_complex():
        return torch.zeros_like(x, requires_grad=False)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_()


def _fake(mode: FakeTensorMode, example: torch.Tensor, number: int) -> Any:
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * example.dim())
    source = ConstantSource(f"x{number}")
    return mode.from_tensor(example, symbolic_context=context, source=source)


def _symbol(environment: Any, size: int, number: int) -> Any:
    source = ConstantSource(f"n{number}")
    symbol = environment.create_symbol(size, source, DimDynamic.DUCK, None)
    return environment.create_symintnode(symbol, hint=size, source=source)


def _graph(
    target: OpOverload, arguments: Any, fakes: list[Any], symbols: list[Any], value: Any
) -> torch.fx.Graph:
    """The operator alone."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(fakes) + len(symbols))]
    for node, value_of in zip(nodes, [*fakes, *symbols], strict=True):
        node.meta["val"] = value_of
    tensors, sizes = nodes[: len(fakes)], nodes[len(fakes) :]
    given, named = _given(target, _replaced(arguments, iter(tensors), iter(sizes)))
    call = graph.call_function(target, given, named)
    call.meta["val"] = value
    made = [call]
    if isinstance(value, tuple | list):
        made = [graph.call_function(operator.getitem, (call, i)) for i in range(len(value))]
        for node, result in zip(made, value, strict=True):
            node.meta["val"] = result
    graph.output(tuple(made))
    return graph


def _imported(
    graph: torch.fx.Graph,
    fakes: list[Any],
    symbols: list[Any],
    results: list[Any],
    orders: list[list[int]],
) -> int:
    """The graph as a template of the core, whose results' dims lie so. Raises: Refused."""
    environment = fakes[0].fake_mode.shape_env
    sizes = Sizes([*fakes, *symbols], environment)
    importer = Importer(graph, sizes, may_unify=False, compile_inner=_no_graphs)
    importer.limits = []
    operands = graph.find_nodes(op="placeholder")[: len(fakes)]
    importer.inputs(operands, fakes)
    torch_convolutions.images(importer)
    importer.run()
    result = importer.result
    for call in result.callouts:
        raise Refused(f"{call.name}: {call.reason}")
    (output,) = graph.find_nodes(op="output")
    for node in output.args[0]:
        importer.program.output(importer.values[importer.resolve(node)].id)
    conditions: list[Condition] = [(sizes.text(e), *_test(test)) for e, test in result.assumed]
    # Again, since importing asks of sizes what are then guards as well.
    for guard in Sizes([*fakes, *symbols], environment).guards():
        conditions += _conditions(sizes, guard)
    numbers = [sizes.text(symbol) for symbol in symbols]
    are_complex = [is_complex(fake) for fake in results]
    places = {importer.values[node].id: i for i, node in enumerate(operands)}
    if any(value not in places for value, _ in importer.limits):
        raise Refused("a limit of what is computed")
    limits = [(places[value], most) for value, most in importer.limits]
    return runtime.add_template(importer.program, conditions, numbers, orders, are_complex, limits)


def _test(test: str) -> tuple[str, int]:
    relation, number = test.split()
    return relation, int(number)


def _order(fake: Any, real: torch.Tensor) -> list[int]:
    """Of a result's dims in memory. Raises: Refused, where PyTorch's metadata and its kernel say
    different things and the kernel's result does not say all.
    """
    sizes, strides = (hints(x) for x in (fake.shape, fake.stride()))
    told = f"a result is {real.dtype}{list(real.shape)} of {real.stride()}"
    if real.dtype != fake.dtype or list(real.shape) != sizes:
        raise Refused(told)
    result: Any = fake
    moving = [d for d, n in enumerate(real.shape) if n > 1] if real.numel() else []
    if any(real.stride(d) != strides[d] for d in moving):
        if len(moving) != real.dim():
            raise Refused(told)
        result = real
    parts = [fake.dim()] if is_complex(fake) else []
    order = None
    if any(n < 2 for n in real.shape):  # along which strides say nothing, but are eager code's
        order = _order_by_strides(real)
    if order is None and 0 not in sizes:
        order = torch_imported.order_of(result)
    if order is None:
        raise Refused("a result has gaps, or strides of no order of dims")
    return [*order, *parts]


def _order_by_strides(x: torch.Tensor) -> list[int] | None:
    """That in which a dense tensor has these strides, where sizes of 0 count as 1."""
    dims = tuple(range(x.dim()))
    for order in itertools.permutations(dims) if x.dim() <= _MOST_ORDERED else (dims,):
        if torch.empty_permuted(x.shape, order).stride() == x.stride():
            return list(order)
    return None


_MOST_ORDERED = 4  # dims whose orders are all tried


def _conditions(sizes: Sizes, guard: Any) -> list[Condition]:
    if isinstance(guard, sympy.And):
        return [condition for part in guard.args for condition in _conditions(sizes, part)]
    relation = next((text for kind, text in _RELATIONS.items() if isinstance(guard, kind)), None)
    if relation is None:
        raise Refused(f"it needs {guard}")
    return [(sizes.text(guard.lhs), relation, sizes.text(guard.rhs))]


def _no_graphs(*_: Any) -> Any:
    raise Refused("it has graphs inside")
