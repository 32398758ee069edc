"""Branches on data of which one ends in an error: `if not valid.all(): raise`, `assert x > 0`.

The trace goes on where nothing is raised, and the graph checks that. A call for which it does not
hold runs eagerly, and raises what the function raises. Which branch it is the code says.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from tilevm.frontends.torch_data import UsedInPython
from tilevm.frontends.torch_tracing import changing, is_of_torch, symbols_of_data

# Of PyTorch's own code, what users call as if it were theirs.
_USERS = tuple(
    str(Path(torch.__file__).parent / name) for name in ("distributions", "nn/modules", "__init__")
)
_NEGATES = "UNARY_NOT"
# Between what asks for a truth and the jump that depends on it: `bool(x)`, and code of 3.13.
_BETWEEN = frozenset(("CALL", "CALL_FUNCTION", "TO_BOOL", "CACHE", "PRECALL", _NEGATES))
_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR"))
_RAISES = frozenset(("RAISE_VARARGS", "RERAISE"))
_MOST_STEPS = 1000
_MESSAGE = "the function raises"


@contextmanager
def checked() -> Iterator[None]:
    """What is done with numbers and bools of data while the function itself runs is what a call
    does: branches that end in an error are not taken, and NaN is not lost.
    """
    with _not_taken(), _not_a_number():
        yield


# Where x - x, x * 0 and x == x are numbers for sympy, and are none of NaN and infinity.
_FOLDED = [
    f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv")
    for prefix in ("", "r")
] + [f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")]


@contextmanager
def _not_a_number() -> Iterator[None]:
    """Arithmetic with a float of data whose result does not depend on it raises UsedInPython."""
    kind: Any = torch.SymFloat
    mine = threading.get_ident()
    before = {name: vars(kind)[name] for name in _FOLDED if name in vars(kind)}

    def keeping(method: Any) -> Any:
        @functools.wraps(method)
        def compute(*given: Any) -> Any:
            result = method(*given)
            if threading.get_ident() == mine and result is not NotImplemented:
                if frozenset().union(*map(symbols_of_data, given)) - symbols_of_data(result):
                    raise UsedInPython("Python computes with a float of data that may be NaN")
            return result

        return compute

    with changing:
        for name, method in before.items():
            setattr(kind, name, keeping(method))
        try:
            yield
        finally:
            for name, method in before.items():
                setattr(kind, name, method)


@functools.lru_cache(4096)
def compares_identity(code: CodeType) -> bool:
    """Whether it has `is True` or `is False`, which what stands for a bool never is."""
    before: Any = None
    for step in dis.get_instructions(code):
        if step.opname == "IS_OP" and isinstance(before, bool):
            return True
        before = step.argval if step.opname == "LOAD_CONST" else None
    return any(compares_identity(c) for c in code.co_consts if isinstance(c, CodeType))


@contextmanager
def _not_taken() -> Iterator[None]:
    """Branches that end in an error are not taken by this thread; the graph checks that."""
    kinds: tuple[Any, ...] = torch.Tensor, torch.SymBool, torch.SymInt
    mine = threading.get_ident()
    before = [(kind, kind.__bool__, "__bool__" in vars(kind)) for kind in kinds]

    def asking(plain: Any) -> Any:
        def truth(value: Any) -> bool:
            wanted = None
            if threading.get_ident() == mine and _is_unknown(value):
                wanted = _wanted(sys._getframe(1))
            if wanted is None:
                return bool(plain(value))
            holds = value if isinstance(value, torch.SymBool) else value != 0
            if isinstance(holds, torch.Tensor):
                holds = holds.reshape(())
                torch._assert_async(holds if wanted else holds.logical_not(), _MESSAGE)
            else:
                holds = holds if wanted else torch.sym_not(holds)  # type: ignore[no-untyped-call]
                torch.ops.aten._assert_scalar.default(holds, _MESSAGE)
            return wanted

        return truth

    with changing:
        for kind, plain, _ in before:
            kind.__bool__ = asking(plain)
        try:
            yield
        finally:
            for kind, plain, own in before:
                if own:
                    kind.__bool__ = plain
                else:
                    del kind.__bool__


def _is_unknown(value: Any) -> bool:
    """Whether data decide the truth of one element, or of a symbol."""
    if isinstance(value, torch.Tensor):
        return all(type(n) is int and n == 1 for n in value.shape)
    return bool(symbols_of_data(value))


def _wanted(frame: FrameType) -> bool | None:
    """The truth with which the code that asks for it does not raise; None: either may be."""
    code = frame.f_code
    if is_of_torch(code.co_filename) and not code.co_filename.startswith(_USERS):
        return None
    return _without_error(code, frame.f_lasti)


@functools.lru_cache(4096)
def _without_error(code: CodeType, at: int) -> bool | None:
    """The truth of what is asked at this place with which the code does not raise."""
    steps = list(dis.get_instructions(code))
    where = {step.offset: index for index, step in enumerate(steps)}
    index, negated = where[at], False
    while steps[index].opname in _BETWEEN:
        negated ^= steps[index].opname == _NEGATES
        index += 1
    jump = steps[index]
    if not (jump.opname.startswith("POP_JUMP_") and jump.opname.endswith(("_TRUE", "_FALSE"))):
        return None
    errors = [_raises(steps, where, i) for i in (where[jump.argval], index + 1)]
    if errors[0] == errors[1]:
        return None
    jumps = errors[1]  # the branch to go on with is where the jump leads
    return (jumps == jump.opname.endswith("_TRUE")) != negated


def _raises(steps: list[dis.Instruction], where: dict[int, int], index: int) -> bool:
    """Whether all ways from here end in an error."""
    ways, seen = [index], set()
    while ways:
        index = ways.pop()
        while index not in seen:
            seen.add(index)
            step = steps[index]
            if step.opname in _ENDS or len(seen) > _MOST_STEPS:
                return False
            if step.opname in _RAISES:
                break
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                ways.append(where[step.argval])
                if step.opname.startswith("JUMP_") and "_IF_" not in step.opname:
                    break
            index += 1
    return True
