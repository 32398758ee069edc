"""Guards of a capture as steps that the core evaluates: Python source to postfix order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from tilevm.runtime.program import GuardStep

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
_MOST = 2**63 - 1


class Unknown(Exception):
    """The core has no steps for this source."""


def steps(sources: Sequence[str], places: Sequence[int]) -> list[GuardStep] | None:
    """Steps that require all `sources`, which are over leaves `l`; None if some has none.

    places: by leaf, the argument that it is.
    """
    found: list[GuardStep] = []
    try:
        for source in sources:
            tree = ast.parse(source, mode="eval").body
            if (real := _real(tree, places)) is not None:
                found.append(real)
            else:
                found += [*_integer(tree, places), ("require",)]
    except Unknown:
        return None
    return found


def _real(tree: ast.expr, places: Sequence[int]) -> GuardStep | None:
    """`l[i] == 2.5`; the guard that l[i] is NaN is `l[i] != l[i]`, and is left to Python."""
    if not isinstance(tree, ast.Compare) or not isinstance(tree.left, ast.Subscript):
        return None
    value = tree.comparators[0]
    negative = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub)
    number = value.operand if isinstance(value, ast.UnaryOp) else value
    if not isinstance(number, ast.Constant) or type(number.value) is not float:
        return None
    if len(tree.ops) != 1 or not isinstance(tree.ops[0], ast.Eq):
        raise Unknown
    return ("real", _leaf(tree.left, places), -number.value if negative else number.value)


def _leaf(tree: ast.expr, places: Sequence[int]) -> int:
    """The argument of `l[i]`."""
    match tree:
        case ast.Subscript(value=ast.Name(id="l"), slice=ast.Constant(value=int(index))):
            return places[index]
    raise Unknown


def _integer(tree: ast.expr, places: Sequence[int]) -> Iterator[GuardStep]:
    match tree:
        case ast.Constant(value=int(value)) if type(value) is int and abs(value) <= _MOST:
            yield ("constant", value)
        case ast.Subscript(
            value=ast.Attribute(value=leaf, attr="shape"), slice=ast.Constant(value=int(axis))
        ):
            yield ("size", _leaf(leaf, places), axis)
        case ast.Subscript():
            yield ("number", _leaf(tree, places))
        case ast.Compare(
            left=ast.Call(func=ast.Attribute(value=leaf, attr="stride"), args=[], keywords=[]),
            ops=[ast.Eq()],
            comparators=[ast.Tuple(elts=strides)],
        ):
            yield ("constant", 1)
            for axis, stride in enumerate(strides):
                yield ("stride", _leaf(leaf, places), axis)
                yield from _integer(stride, places)
                yield from (("==",), ("and",))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield from _integer(left, places)
            yield from _integer(right, places)
            yield (_OPERATORS[type(op)],)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            yield from _integer(left, places)
            yield from _integer(right, places)
            yield (_OPERATORS[type(op)],)
        case ast.BoolOp(op=op, values=[first, *rest]):
            yield from _integer(first, places)
            for operand in rest:
                yield from _integer(operand, places)
                yield (_OPERATORS[type(op)],)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _integer(operand, places)
            yield ("not",)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield ("constant", 0)
            yield from _integer(operand, places)
            yield ("-",)
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[first, *rest], keywords=[]):
            yield from _integer(first, places)
            for operand in rest:
                yield from _integer(operand, places)
                yield (name,)
        case _:
            raise Unknown
