"""What a saved call calls out: `aten.sort.default(a0, 1)[0, 1]` as a function of arrays.

The text may come from anywhere: it is parsed, and nothing but what stands in this file is run for
it, besides the operator that it names. Without brackets a name takes the arrays as they come; the
numbers in square brackets are those of the results that are used.
"""

from __future__ import annotations

import ast
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from tilevm.errors import ParseError
from tilevm.ir.types import numpy_dtype

Call = Callable[..., list[Any]]

MOST = 4096  # characters of a text
# Operators of namespaces besides `aten`, and the modules that register them.
_REGISTERED_BY = {
    "tilevm": ("tilevm.frontends.torch_recurrent", "tilevm.frontends.torch_random"),
}
_OPENS_FILES = {"from_file"}
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}


def function(text: str) -> Call:
    """The call, from arrays of NumPy and numbers to a list of them. Raises: ParseError."""
    if len(text) > MOST:
        raise ParseError(f"a call-out has {len(text)} characters, of at most {MOST}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"the graph calls out {text}, which is no call: {error}") from None
    used: list[int] | None = None
    if isinstance(tree, ast.Subscript):
        used = _places(text, tree.slice)
        tree = tree.value
    if isinstance(tree, ast.Call):
        called, places, names = tree.func, tree.args, tree.keywords
    else:
        called, places, names = tree, None, []
    if any(name.arg is None for name in names):
        raise ParseError(f"the graph calls out {text}, with ** of something")
    found = _operator(ast.unparse(called))

    def call(*arrays: Any) -> list[Any]:
        given = [_tensor(array) for array in arrays]
        if places is None:
            return _arrays(found(*given), used)
        try:
            values = [_value(place, given) for place in places]
            named = {str(name.arg): _value(name.value, given) for name in names}
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ParseError(f"the graph calls out {text}: {error}") from None
        return _arrays(found(*values, **named), used)

    return call


def _places(text: str, tree: ast.expr) -> list[int]:
    """The numbers of results. Raises: ParseError."""
    items = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    places = [item.value for item in items if isinstance(item, ast.Constant)]
    if len(places) < len(items) or not all(type(n) is int for n in places):
        raise ParseError(f"the graph calls out {text}, whose [ ] are of numbers of results only")
    return cast("list[int]", places)


def _operator(name: str) -> Callable[..., Any]:
    """The operator of PyTorch that is so called. Raises: ParseError."""
    import torch

    space, _, rest = name.partition(".")
    parts = rest.split(".")
    for module in _REGISTERED_BY.get(space, ()):
        importlib.import_module(module)
    known = (space == "aten" or space in _REGISTERED_BY) and len(parts) == 2
    known = known and parts[0].isidentifier() and not parts[0].startswith("__")
    packet = getattr(getattr(torch.ops, space), parts[0], None) if known else None
    if packet is None or parts[1] not in packet.overloads():
        raise ParseError(f"the graph calls out {name}, which cannot be found by its name")
    found: Any = getattr(packet, parts[1])
    if found._schema.is_mutable:
        raise ParseError(f"the graph calls out {name}, which writes to its operands")
    if parts[0] in _OPENS_FILES:
        raise ParseError(f"the graph calls out {name}, which opens files")
    called: Callable[..., Any] = found
    return called


def _value(tree: ast.expr, given: Sequence[Any]) -> Any:
    """An argument: constants, lists, `a0`, `torch.float32`, and arithmetic on numbers."""
    import torch

    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.List(elts=items):
            return [_value(item, given) for item in items]
        case ast.Name(id=name) if name[:1] == "a" and name[1:].isdecimal():
            return given[int(name[1:])]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            value = getattr(torch, name, None)
            if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
                return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_number(operand, given))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_number(left, given), _number(right, given))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return _BINARY[type(op)](_number(left, given), _number(right, given))
        case ast.Call(func=called, args=places, keywords=[]):
            return _made(ast.unparse(called), places, given)
    raise ValueError(f"{ast.unparse(tree)} is no argument that can be saved")


def _number(tree: ast.expr, given: Sequence[Any]) -> int | float:
    value = _value(tree, given)
    if getattr(value, "ndim", 1) == 0:  # the reference has numbers as arrays
        value = value.item()
    if not isinstance(value, bool | int | float) or abs(value) >= 2**63:
        raise ValueError(f"{ast.unparse(tree)} is no number of 64 bits")
    return value


def _made(name: str, places: Sequence[ast.expr], given: Sequence[Any]) -> Any:
    """What a function of Python makes: a number, or a complex tensor of pairs."""
    import torch

    values = [_value(place, given) for place in places]
    if name == "complex" and len(values) == 1 and isinstance(values[0], torch.Tensor):
        return torch.view_as_complex(values[0].contiguous())
    if name == "torch.device" and values == ["cpu"]:
        return torch.device("cpu")
    if name == "float" and len(values) == 1 and values[0] in ("inf", "-inf", "nan"):
        return float(values[0])
    for i, place in enumerate(places):
        values[i] = _number(place, given)
    plain: dict[str, Callable[..., Any]] = {
        "int": int, "float": float, "bool": bool, "complex": complex, "min": min, "max": max,
        "math.floor": math.floor, "math.ceil": math.ceil, "math.trunc": math.trunc,
        "math.sqrt": math.sqrt, "math.log": math.log, "math.exp": math.exp,
    }  # fmt: skip
    if name not in plain:
        raise ValueError(f"{name} is no function that can be saved")
    return plain[name](*values)


def _tensor(array: Any) -> Any:
    """A tensor of its own, or the number itself."""
    import torch

    if isinstance(array, bool | int | float):
        return array
    array = np.array(array)
    if array.dtype == numpy_dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _arrays(results: Any, used: Sequence[int] | None) -> list[Any]:
    """What was returned, complex numbers as pairs; without what an operator leaves out."""
    several = list(results) if isinstance(results, tuple | list) else [results]
    if used is not None:
        several = [several[i] if i < len(several) else None for i in used]
    return [to_array(value) for value in several if value is not None]


def to_array(value: Any) -> Any:
    """A tensor as an array, complex numbers as the pairs that programs have; others as they are."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().resolve_conj().resolve_neg()
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return value.numpy()
