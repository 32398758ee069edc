"""Functions that keep their results by `functools.lru_cache`: what a trace has in their place.

A trace's results are for that trace alone, and must not be what later calls find there. Sizes are
symbols in a trace, which are found nowhere.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from tilevm.frontends.torch_effects import KEEPING, Before, get, is_users, put
from tilevm.frontends.torch_surroundings import keeping
from tilevm.frontends.torch_tracing import PLAIN
from tilevm.frontends.torch_tree import ATOMS

_MOST = 10_000  # values that are looked at, of what one function keeps


@contextmanager
def apart(before: Before, called: Iterable[FunctionType]) -> Iterator[None]:
    """Let what `before` found, and modules of Python that `called` names, have `_apart` of them."""
    changed: list[tuple[Any, Any, Any, Any]] = []
    try:
        for where, name, value in chain(before.places(), keeping(called)):
            made = _in_place_of(value)
            if made is not None:
                put(where, name, made)
                changed.append((where, name, made, value))
        yield
    finally:
        for where, name, made, value in changed:
            if get(where, name) is made:
                put(where, name, value)


@contextmanager
def forgotten() -> Iterator[None]:
    """After a trace that is of no use, functions that keep something of it forget all they keep.

    Those are left that `apart` did not find.
    """
    try:
        yield
    except Exception:
        for value in gc.get_objects():
            if type(value) is KEEPING and _refers_to_traces(value):
                value.cache_clear()
        raise


def _refers_to_traces(kept: Any) -> bool:
    stack, seen = gc.get_referents(kept), 0
    while stack and seen < _MOST:
        value = stack.pop()
        seen += 1
        if isinstance(value, FakeTensor | FunctionalTensor):
            return True
        if type(value) in (tuple, list, dict):
            stack += gc.get_referents(value)
    return False


def _in_place_of(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        made = _in_place_of(value.__func__)
        return None if made is None else type(value)(made)
    if not isinstance(value, KEEPING):
        return None
    inner = value.__wrapped__  # a function, or anything else that can be called
    return _apart(value) if not isinstance(inner, FunctionType) or is_users(inner) else None


def _apart(kept: Any) -> Any:
    """Calls with nothing of the trace in them are made as ever, outside of it: their results are
    kept as eager code's would be, and are the same objects. For others, the function runs.
    """

    @functools.wraps(kept)
    def call(*args: Any, **kwargs: Any) -> Any:
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if transformed or any(map(_is_traced, (*args, *kwargs.values()))):
            return kept.__wrapped__(*args, **kwargs)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return kept(*args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(kept, name))
    return call


def _is_traced(value: Any) -> bool:
    """Whether a trace may have put something of its own there: parameters of modules, too."""
    if isinstance(value, tuple | frozenset):
        return any(map(_is_traced, value))
    return isinstance(value, tuple(PLAIN)) or not isinstance(
        value, (int, float, *ATOMS, FunctionType)
    )
