"""Python's `int`, `float`, `len`, `type` and the like of what stands for values in a trace.

Python makes plain numbers: of a size that of this call, for which alone the graph would hold, and
of data none. And it knows what is a symbol from what is an int. While a function is traced, its
code calls what is here in their place, to which it refers by other names. That needs Python 3.11 or
newer, whose code says what it calls.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tilevm.frontends.torch_tracing import PLAIN, number, symbols_of_data

_SYMBOLS = (torch.SymInt, torch.SymFloat)
_torch: Any = torch  # whose functions of symbols have no types


def _to_int(*args: Any, **kwargs: Any) -> Any:
    value = _item(args, kwargs)
    return int(*args, **kwargs) if value is None else number(_torch.sym_int(value))


def _to_float(*args: Any, **kwargs: Any) -> Any:
    value = _item(args, kwargs)
    return float(*args, **kwargs) if value is None else number(_torch.sym_float(value))


def _item(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The symbol that the argument is, or that its element is. None: there is none."""
    if len(args) != 1 or kwargs:
        return None
    (x,) = args
    one = isinstance(x, torch.Tensor) and all(type(n) is int and n == 1 for n in x.shape)
    if one and not x.dtype.is_complex:
        x = (x.to(torch.int64) if x.dtype is torch.bool else x).item()
    return x if isinstance(x, _SYMBOLS) else None


def _to_len(*args: Any, **kwargs: Any) -> Any:
    has_size = len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].dim() > 0
    return number(args[0].shape[0]) if has_size else len(*args, **kwargs)


def _to_round(*args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("number", "ndigits"), args, strict=False)) | kwargs
    value = given.get("number")
    if isinstance(value, torch.SymInt) and given.get("ndigits") is not None:
        return round(int(value), given["ndigits"])  # PyTorch's overlooks them
    return number(round(*args, **kwargs))


def _to_divmod(x: Any, y: Any, /) -> Any:
    if isinstance(x, _SYMBOLS) or isinstance(y, _SYMBOLS):  # which have no such method
        return x // y, x % y
    return divmod(x, y)


def _extremum(plain: Callable[..., Any], of_symbols: Callable[..., Any]) -> Callable[..., Any]:
    """Of ints that data give, of which nobody knows which is it. Others compare, with a guard."""

    def find(*args: Any, **kwargs: Any) -> Any:
        ints = len(args) > 1 and not kwargs and all(isinstance(x, int | torch.SymInt) for x in args)
        if ints and any(map(symbols_of_data, args)):
            return number(functools.reduce(of_symbols, args))
        return plain(*args, **kwargs)

    return find


def _type_of(*args: Any, **kwargs: Any) -> Any:
    """The type that the value has in a call."""
    found = type(*args, **kwargs)
    if len(args) != 1:
        return found
    if issubclass(found, FakeTensor | FunctionalTensor):
        return nn.Parameter if getattr(args[0], "_is_param", False) else torch.Tensor
    return _plain(found) or found


def _is_instance(*args: Any, **kwargs: Any) -> bool:
    found = isinstance(*args, **kwargs)
    plain = _plain(type(args[0]))
    return found or (plain is not None and isinstance(plain(), args[1]))


def _plain(kind: type) -> type | None:
    """What a symbol of this type stands for."""
    return next((plain for symbol, plain in PLAIN.items() if issubclass(kind, symbol)), None)


_INSTEAD: dict[str, Callable[..., Any]] = {
    "int": _to_int, "float": _to_float, "len": _to_len, "round": _to_round,
    "divmod": _to_divmod, "max": _extremum(max, _torch.sym_max),
    "min": _extremum(min, _torch.sym_min), "type": _type_of, "isinstance": _is_instance,
}  # fmt: skip
_PREFIX = "__tilevm_"


@contextmanager
def symbolic(functions: Iterable[FunctionType]) -> Iterator[bool]:
    """Let these functions keep symbols where they convert them. Whether any converts something."""
    if sys.version_info < (3, 11):
        yield False
        return
    # They stay there: a thread may still run such code when the trace ends.
    for name, instead in _INSTEAD.items():
        vars(builtins)[_PREFIX + name] = instead
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for function in functions:
            code = _converting(function.__code__, _own(function))
            if code is not function.__code__:
                before.append((function, function.__code__))
                function.__code__ = code
        yield bool(before)
    finally:
        for function, code in before:
            function.__code__ = code


def _own(function: FunctionType) -> frozenset[str]:
    """Names that are not Python's functions in the function's module."""
    return frozenset(n for n in _INSTEAD if n in function.__globals__)


@functools.lru_cache(4096)
def _converting(code: CodeType, own: frozenset[str]) -> CodeType:
    """The code with our names in its calls of Python's functions; itself, if it has none."""
    names, steps = list(code.co_names), bytearray(code.co_code)
    consts = tuple(_converting(c, own) if isinstance(c, CodeType) else c for c in code.co_consts)
    changes = any(a is not b for a, b in zip(consts, code.co_consts, strict=True))
    for step in dis.get_instructions(code) if _INSTEAD.keys() & code.co_names else ():
        if step.opname != "LOAD_GLOBAL" or step.argval not in _INSTEAD or step.argval in own:
            continue
        if step.arg is None or not step.arg & 1:  # not called here
            continue
        name = _PREFIX + step.argval
        index = names.index(name) if name in names else len(names)
        if max(index, step.arg >> 1) > 127:  # more than one byte holds beside the bit for calls
            continue
        names[index:] = names[index:] or [name]
        steps[step.offset + 1] = index << 1 | 1
        changes = True
    if not changes:
        return code
    return code.replace(co_code=bytes(steps), co_names=tuple(names), co_consts=consts)
