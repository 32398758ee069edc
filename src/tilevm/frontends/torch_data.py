"""Sizes and numbers of a graph that only the data know: nonzero, masks, items.

PyTorch has a symbol for each (`u0`). A call-out that returns a tensor of such a size brings it; an
item is read by the core. What the trace assumes or the program asserts of them is checked when they
are known: a call that fails there runs eagerly, which is right whatever the sizes are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
import torch.fx
from sympy.core.relational import Relational  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import (
    free_unbacked_symbols,
    statically_known_true,
)

from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor, Unsupported
from tilevm.frontends.torch_sizes import MOST

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer


class UsedInPython(Refused):
    """Python does with a number of data what a program does not do alike."""


def brought(node: torch.fx.Node) -> list[sympy.Symbol]:
    """Symbols that are known once the node has run: an int, or sizes of its results."""
    bindings = node.meta.get("unbacked_bindings")
    if not bindings:
        return []
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor | tuple | list):
        return list(bindings)
    sizes = set(_symbols(value))  # not where a result begins in memory
    return [symbol for symbol in bindings if symbol in sizes]


def _symbols(value: Any) -> Iterator[sympy.Symbol]:
    """Symbols of the sizes of tensors, as they were made and as the trace knows them now."""
    if isinstance(value, torch.Tensor):
        sizes: list[Any] = list(value.shape)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                yield from size.node._expr.free_symbols
                yield from size.node.expr.free_symbols
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _symbols(item)


def infers(b: Importer, name: str, arguments: list[Any]) -> bool:
    """Whether typing finds the sizes of a result that PyTorch has new symbols for.

    It does for slices whose bounds count from the start. Raises: Refused, where the sign of a bound
    follows from numbers of the call: it is known if they are constants.
    """
    if name != "aten.slice.Tensor":
        return False
    for bound in arguments[2:4]:
        if not isinstance(bound, torch.SymInt):
            continue
        expr = b.sizes.expr(bound)
        if not b.sizes.depends_on_data(bound):
            if not statically_known_true(bound >= 0):
                raise Refused(f"nobody knows whether a slice's bound {expr} is negative")
        elif b.sizes.env.bound_sympy(expr).upper <= 0:
            return False
    return True


def is_number(b: Importer, value: Any) -> bool:
    """Whether a Python number is known only when the graph runs."""
    symbols = value.node.expr.free_symbols
    return b.sizes.depends_on_data(value) or any(b.values.get(s) in b.items for s in symbols)


REFUSED = "refused"  # what the sizes are called that are 0 where data are as was asserted
_LARGE = 1 << 31  # a factor with which numbers of data may leave 64 bits


def check_number(b: Importer, expr: Any) -> None:
    """Let calls check what Python would raise, where a number is computed from data.

    Raises: UsedInPython, where ints may leave 64 bits, and where floats are divided or raised to a
    power, which in Python may be an error or a complex number.
    """
    known = sympy.sympify(expr)
    for part in sympy.preorder_traversal(known):
        kind = type(part).__name__
        if not part.args or not any(
            b.values.get(s) in b.items or b.sizes.depends_on_data(s) for s in part.free_symbols
        ):
            continue
        if kind in ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "IntTrueDiv"):
            require(b, sympy.Ne(part.args[1], 0), "division by zero")
        elif kind in ("FloatTrueDiv", "FloatPow"):
            raise UsedInPython(f"Python computes {kind} of data")
        elif kind in ("Mul", "Pow") and part.is_integer:
            factors = [f for f in sympy.Mul.make_args(part) if not f.is_number]
            large = any(f.is_number and abs(f) >= _LARGE for f in part.args)
            if large or len(factors) > 1 or any(isinstance(f, sympy.Pow) for f in factors):
                raise UsedInPython("Python multiplies numbers of data, which may leave 64 bits")


def bring(b: Importer, node: torch.fx.Node) -> str | None:
    """Declare the sizes that a node brings. The last one's name, if there is any."""
    name = None
    for symbol in brought(node):
        # AOTAutograd traces again: what Dynamo has a symbol for, then has another one, too.
        known = b.sizes.env.replace(symbol)
        name = _name_of(b, known)
    return name


def bring_by_call(b: Importer, node: torch.fx.Node) -> None:
    """Declare the sizes that a call-out brings; what tracing knows of them is checked."""
    for symbol in brought(node):
        known = b.sizes.env.replace(symbol)
        if b.sizes.is_new(known):
            _declare(b, known)
        else:
            b.result.brings = True
            b.result.pinned.append(f"{symbol} == {known}")


def _name_of(b: Importer, known: Any) -> str:
    """What the program calls a size that a step brings, which tracing may know already."""
    return _declare(b, known) if b.sizes.is_new(known) else _pinned(b, known)


def _declare(b: Importer, symbol: sympy.Symbol) -> str:
    """Let the program have a symbol that a step brings. Its name."""
    b.result.brings = True
    name, low, high = b.sizes.bring(symbol)
    b.program.symbol(name, low, high, 1)
    return name


def _pinned(b: Importer, known: Any) -> str:
    """Let calls check what tracing has decided of a size of data: that it is one that is known.

    The name of the symbol that the program has for it.
    """
    name = f"pinned{len(b.result.pinned)}"
    b.result.brings = True
    b.result.pinned.append(f"{name} == {known}")
    b.program.symbol(name, -MOST, MOST, 1)
    b.program.check(name, b.size(known), f"{name}, which depends on data, must be {known}")
    return name


# How floats become ints: sympy's name, the operator that a cast to int needs first.
_ROUNDED = {"TruncToInt": "", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round"}
_EXACT = 2.0**53  # from here on floats are no more all integers


def compute(b: Importer, size: Any) -> bool:
    """Let a size that floats make, as int(2.5 * n), be read where a kernel has computed it.

    Whether there was one. Sizes of the core are exact: rounding at each step is what kernels do.
    """
    found = False
    for part in sympy.preorder_traversal(b.sizes.expr(size)):
        rounded = _ROUNDED.get(type(part).__name__)
        if rounded is None or part.args[0].is_integer:
            continue
        value = b.cast(b.float_of(part.args[0]), torch.float64)
        if b.sizes.depends_on_data(part.args[0]):  # NaN, of which Python makes no int, is not less
            within = b.add("lt", b.add("abs", value), b.number(_EXACT))
            _refuse(b, b.add("logical_not", within), "a float of data that is no int of 53 bits")
        value = b.cast(b.add(rounded, value) if rounded else value, torch.int64)
        name, low, high = b.sizes.compute(part)
        b.program.symbol(name, low, high, 1)
        b.program.item(value, name, b.line)
        b.result.brings = True
        found = True
    return found


def define(b: Importer, symbol: sympy.Symbol, fake: torch.Tensor, made: Any) -> None:
    """Let a size that PyTorch has a new symbol for be what typing infers."""
    shape = b.program.type(made.id if isinstance(made, Tensor) else made)[2]
    sizes: list[Any] = list(fake.shape)
    for size, inferred in zip(sizes, shape, strict=True):
        if isinstance(size, torch.SymInt) and symbol in (size.node.expr, size.node._expr):
            b.sizes.define(size.node.expr, inferred)  # which AOTAutograd's `symbol` stands for


def check_slice(b: Importer, name: str, arguments: list[Any], fake: Any, made: Any) -> None:
    """Let calls check what tracing has decided of a slice that data bound: that it is as long as
    what is written to it.
    """
    if name != "aten.slice.Tensor" or not any(map(b.sizes.depends_on_data, arguments[2:4])):
        return
    shape = b.program.type(made.id if isinstance(made, Tensor) else made)[2]
    for size, inferred in zip(fake.shape, shape, strict=True):
        if (known := b.size(size)) != inferred:
            message = f"{inferred}, which depends on data, must be {known}"
            b.program.check(inferred, known, message)


def read_item(b: Importer, node: torch.fx.Node, value: Any) -> None:
    """The element of a tensor as a number, and, if it is an int, as a size."""
    source = b.values.get(b.resolve(node.args[0]))
    if isinstance(source, int):  # an input that stands for a float of the call
        if isinstance(value, torch.SymFloat):
            b.values[value.node.expr] = source
        return
    if not isinstance(source, Tensor):
        raise Refused("the value of a tensor is read")
    dtype = source.fake.dtype
    if isinstance(value, torch.SymBool | bool):  # Eq(u0, 1)
        flag = b.cast(source.id, torch.int64)
        if symbols := brought(node):
            b.program.item(flag, _declare(b, symbols[0]), b.line)
            return
        known = value.node.expr if isinstance(value, torch.SymBool) else value
        if known not in (sympy.true, sympy.false):
            raise UsedInPython("a bool of data is used")
        # What the trace has found that it must be.
        wrong = b.add("ne", b.add("reshape", flag, shape=[]), b.number(int(bool(known))))
        _refuse(b, wrong, f"a bool of data must be {bool(known)}")
        return
    if isinstance(value, torch.SymFloat) and not dtype.is_complex:
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        number = b.program.item(b.cast(source.id, wide), None, b.line)
        b.values[value.node.expr] = number
        b.items.add(number)
        return
    if dtype.is_floating_point or dtype.is_complex:
        raise Refused("the value of a tensor is read")
    read_int(b, source.id, value, bring(b, node))


def read_int(b: Importer, source: int, value: torch.SymInt, name: str | None = None) -> None:
    """Let a size be the element of a tensor. name: of a symbol that is declared for it already."""
    b.result.brings = True
    b.program.item(source, name or _name_of(b, b.sizes.expr(value)), b.line)


_RELATIONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_LOGIC = {sympy.And: "logical_and", sympy.Or: "logical_or"}


def truth(b: Importer, condition: Any) -> int:
    """A condition over sizes, or floats, as a tensor of one bool. Raises: Refused."""
    expr = condition.node.expr if isinstance(condition, torch.SymBool) else condition
    if expr in (sympy.true, sympy.false):  # True and False are equal to them
        return b.cast(b.number(bool(expr)), torch.bool)
    if isinstance(expr, sympy.Not):
        return b.add("logical_not", truth(b, expr.args[0]))
    if type(expr) in _LOGIC:
        parts = [truth(b, part) for part in expr.args]
        return functools.reduce(lambda x, y: b.add(_LOGIC[type(expr)], x, y), parts)
    if not isinstance(expr, Relational):
        raise Refused(f"a condition is {condition}")
    if expr.free_symbols.isdisjoint(b.values):
        sides = [b.add("size_value", size=b.size(side)) for side in expr.args]
    else:
        sides = _doubles(b, expr)
    return b.cast(b.add(_RELATIONS[expr.rel_op], *sides), torch.bool)


def _doubles(b: Importer, expr: Any) -> list[int]:
    """The arguments of an expression over floats, computed in float64 as Python computes."""
    for part in sympy.preorder_traversal(expr):
        kind = type(part).__name__
        divides = kind == "FloatTrueDiv" and not (part.args[1].is_number and part.args[1] != 0)
        if divides or kind == "FloatPow":
            raise UsedInPython(f"Python computes {kind} of data")
    return [b.float_of(side, wide=True) for side in expr.args]


# Operators whose rows bring the size of their results: they count before they write.
COUNTING = frozenset(
    """
    aten.nonzero.default aten.nonzero_numpy.default aten.where.default aten.argwhere.default
    aten.masked_select.default
    aten.combinations.default aten._unique2.default aten.unique_consecutive.default
    aten.repeat_interleave.self_Tensor aten.repeat_interleave.Tensor aten.index.Tensor
    """.split()
)


def count_of(b: Importer, total: int) -> str:
    """Let the size that the node brings be this number of the data."""
    assert b.node is not None
    name = bring(b, b.node)
    if name is not None:
        b.program.item(total, name, b.line)
        return name
    # PyTorch knows that this counts what another operator has counted.
    replaced = map(b.sizes.env.replace, _symbols(b.node.meta["val"]))
    known = {size for size in replaced if b.sizes.knows_data(size)}
    if len(known) != 1:
        raise Unsupported("its size is not one symbol")
    (symbol,) = known
    b.program.item(total, _pinned(b, symbol), b.line)
    return str(b.size(symbol))


def must_be(b: Importer, value: int, size: Any, message: str) -> None:
    """Let calls check that a number of the data is this size."""
    _refuse(b, b.add("ne", value, b.add("size_value", size=b.size(size))), message)


def most_of(b: Importer, value: int, rank: int, most: int, message: str) -> None:
    """Let calls check that no element is above `most`; NaN is not. A call that has one runs
    eagerly.
    """
    above = b.add("gt", value, b.number(float(most)))
    all_hold(b, b.add("logical_not", above), rank, message)


def all_hold(b: Importer, conditions: int, rank: int, message: str) -> None:
    """Let calls check that bools of the graph are all True. A call where not runs eagerly."""
    if rank:
        conditions = b.add("all", conditions, axes=list(range(rank)), keepdims=False)
    _refuse(b, b.add("logical_not", conditions), message)


def _refuse(b: Importer, condition: int, message: str) -> None:
    """Let calls check that a bool of the graph is False."""
    b.result.brings = True
    name = f"{REFUSED}{b.result.refuses}"
    b.result.refuses += 1
    b.program.symbol(name, 0, 1, 1)
    b.program.item(b.cast(condition, torch.int64), name, b.line)
    b.program.check(name, 0, message)


def must_fit(b: Importer, value: Any, dtype: torch.dtype) -> None:
    """Let calls check that a number that they bring, or a tensor of one, is one of these integers.

    PyTorch converts a number that a tensor is filled with so: where it has no such integer near, it
    raises. Floats are not asked for. Raises: Unsupported, where a template would have to check.
    """
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return
    info = torch.iinfo(dtype)
    low, high = info.min, info.max
    if isinstance(value, torch.SymInt) and not b.sizes.depends_on_data(value):
        named = {str(symbol) for symbol in b.sizes.expr(value).free_symbols}
        if dtype is not torch.int64 and named & {*b.result.int_symbols.values()}:
            b.at_least(high - value, 0)
            b.at_least(value - (low or -high), 0)  # -1 is the largest number of uint8
        return
    if isinstance(value, torch.SymFloat):
        number, rank = b.float_of(value.node.expr, wide=True), 0
    elif isinstance(value, Tensor) and value.dtype is not torch.bool:
        wide = torch.float64 if value.is_float else torch.int64
        if not value.is_float:
            known = torch.iinfo(value.dtype)
            low = low or -high
            if low <= known.min and known.max <= high:
                return
        number, rank = b.cast(value.id, wide), value.rank
    else:
        return
    if b.limits is not None:
        raise Unsupported("a number that may be none of the integers")
    is_float = b.dtype(number) == "float64"
    most = min(float(high), math.nextafter(2.0**63, 0)) if is_float else high
    least = b.add("ge", number, b.number(float(low) if is_float else low))
    fits = b.add("logical_and", least, b.add("le", number, b.number(most)))
    all_hold(b, fits, rank, f"a number that {str(dtype)[6:]} does not have")


def operand_at_most(b: Importer, x: Tensor, most: int, message: str) -> None:
    """`most_of` of an operand as it is. Templates are not taken where it has such an element."""
    if b.limits is not None:
        b.limits.append((x.id, float(most)))
    else:
        most_of(b, x.id, x.rank, most, message)


def check_assertion(b: Importer, node: torch.fx.Node) -> None:
    """Let calls check what is asserted of data; guards check what is asserted of sizes."""
    target = str(node.target)
    if target.startswith("aten._assert_async."):
        asserted = b.values[b.resolve(node.args[0])]
        fails = b.add("eq", asserted.id, b.number(0))
        _refuse(b, b.add("reshape", fails, shape=[]), str(node.args[1]))
    if target != "aten._assert_scalar.default":
        return
    condition = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None
    # Of where results begin in memory, which no symbol is declared for, nothing need be checked.
    if not isinstance(condition, torch.SymBool):
        return
    expr, message = condition.node.expr, str(node.args[1])
    if not expr.free_symbols.isdisjoint(b.values):  # of floats
        _refuse(b, b.add("logical_not", truth(b, expr)), message)
    elif b.sizes.knows_data(condition):
        check_number(b, expr)
        _hold_small(b, expr, message)
        require(b, expr, message)


def _hold_small(b: Importer, expr: Any, message: str) -> None:
    """Let calls check that what an assertion computes of data stays within 64 bits."""
    factors = any(isinstance(part, sympy.Mul) for part in sympy.preorder_traversal(expr))
    most = _LARGE if factors else 1 << 61
    for symbol in sorted(free_unbacked_symbols(expr), key=str):
        for bound in (sympy.Le(symbol, most), sympy.Ge(symbol, -most)):
            require(b, bound, message)


def require(b: Importer, condition: Any, message: str) -> None:
    """Let calls check a condition over sizes of which some depend on data."""
    if isinstance(condition, sympy.And):
        for part in condition.args:
            require(b, part, message)
        return
    if condition == sympy.true:
        return
    if isinstance(condition, sympy.Or) and all(isinstance(p, sympy.Eq) for p in condition.args):
        apart = (_apart(*(str(b.size(side)) for side in part.args)) for part in condition.args)
        least = functools.reduce(lambda x, y: f"min({x}, {y})", apart)
        b.program.check(least, 0, message)
        return
    if not isinstance(condition, Relational):
        raise Refused(f"the graph asserts {condition}")
    relation: str = condition.rel_op
    left, right = condition.args
    if relation in ("<", "<="):
        left, right, relation = right, left, relation.replace("<", ">")
    x, y = (str(b.size(side)) for side in (left, right))
    if relation == "==":
        b.result.pinned.append(str(condition))
        b.program.check(x, y, message)
    elif relation == "!=":
        b.program.check(f"min({_apart(x, y)}, 1)", 1, message)
    else:
        least = y if relation == ">=" else f"({y}) + 1"
        b.program.check(f"max({x}, {least})", x, message)


def _apart(x: str, y: str) -> str:
    """How far two sizes are from each other."""
    return f"max(({x}) - ({y}), ({y}) - ({x}))"
