"""What a function changes besides its arguments: a trace leaves nothing of it behind."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tilevm.frontends.torch_memory import Refused

_MOST = 50_000  # containers that are looked at
_DICTS = (dict, OrderedDict, defaultdict)
_FOREIGN = {*sys.stdlib_module_names, "torch", "tilevm", "numpy"} - {"__main__"}
_NOTHING = object()
_FOLLOWING = ("_flat_weights", "_flat_weight_refs")  # what recurrent modules keep of parameters


class Effects(Refused):
    """The function changes what outlives the call: a later call may do so no more."""


class Before:
    """What `fn` and `modules` refer to, as it was: attributes, lists, dicts, sets, variables."""

    def __init__(self, fn: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {}  # id -> container, its items
        self._variables: list[tuple[Any, str, Any]] = []  # dict of globals or a cell, name, value
        for function in dict.fromkeys(_functions(fn, modules)):
            names = function.__globals__
            self._variables += [
                (names, name, names.get(name, _NOTHING)) for name in function.__code__.co_names
            ]
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            self._variables += [(cell, name, _contents(cell)) for name, cell in cells]
        self._walk([*modules, getattr(fn, "__self__", None), *(v for *_, v in self._variables)])

    def _walk(self, stack: list[Any]) -> None:
        while stack and len(self._seen) < _MOST:
            value = stack.pop()
            container = _container(value)
            if container is None or id(container) in self._seen:
                continue
            items = container.copy() if not isinstance(container, tuple) else container
            self._seen[id(container)] = container, items
            stack += items.values() if isinstance(items, dict) else items

    def undo(self) -> str:
        """Put all back as it was. Returns what had changed; empty: nothing."""
        changed = ""
        for where, name, value in self._variables:
            now = where.get(name, _NOTHING) if isinstance(where, dict) else _contents(where)
            if _same(now, value):
                continue
            changed = f"the variable {name}"
            _set(where, name, value)
        for container, items in self._seen.values():
            if isinstance(container, tuple) or _same_items(container, items):
                continue
            changed = _difference(container, items) or changed
            container.clear()
            container.extend(items) if isinstance(container, list) else container.update(items)
        return changed


def _functions(fn: Any, modules: Sequence[nn.Module]) -> Iterator[FunctionType]:
    for known in (fn, *(getattr(type(m), "forward", None) for m in modules)):
        function = getattr(known, "__func__", known)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType) and not _is_foreign(function.__module__):
            yield function


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN


def _container(value: Any) -> Any:
    """The list, dict, set or tuple that holds what `value` does; None if it is not looked into."""
    if type(value) in (list, set, tuple, *_DICTS):
        return value
    if isinstance(value, nn.Module):
        return vars(value)
    kind = type(value)
    if callable(value) or kind.__module__ == "builtins" or _is_foreign(kind.__module__):
        return None
    fields = getattr(value, "__dict__", None)
    return fields if type(fields) is dict else None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _NOTHING


def _set(where: Any, name: str, value: Any) -> None:
    if not isinstance(where, dict):
        where.cell_contents = value
    elif value is _NOTHING:
        del where[name]
    else:
        where[name] = value


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in (int, float, str, bool) and bool(a == b))


def _same_items(now: Any, then: Any) -> bool:
    if len(now) != len(then):
        return False
    if isinstance(now, dict):
        return all(k in now and _same(now[k], v) for k, v in then.items())
    return now == then if isinstance(now, set) else all(map(_same, now, then))


def _difference(now: Any, then: Any) -> str:
    if not isinstance(now, dict):
        return f"a {type(now).__name__}"
    names = [k for k in {**then, **now} if not _same(now.get(k, now), then.get(k, then))]
    names = [k for k in names if k not in _FOLLOWING]
    return f"the attribute or key {names[0]!r}" if names else ""


class Made:
    """Tensors of a trace, which outlive it only if the function keeps them somewhere."""

    def __init__(self, given: Sequence[Any]) -> None:
        known = set(map(id, given))
        mode = get_proxy_mode()
        tracked = mode.tracer.tensor_tracker if mode is not None else {}
        self._tensors = [weakref.ref(t) for t in tracked if id(t) not in known]

    def _left(self) -> list[torch.Tensor]:
        return [t for made in self._tensors if (t := made()) is not None]

    def check(self) -> None:
        """Raise Effects if some are left, and take them out of the lists and dicts they are in."""
        if not self._left():
            return
        gc.collect()
        left = self._left()
        if not left:
            return
        for tensor in left:
            for holder in gc.get_referrers(tensor):
                if holder is left:
                    continue
                if type(holder) is list:
                    holder[:] = [item for item in holder if item is not tensor]
                elif type(holder) is dict:
                    for key in [k for k, v in holder.items() if v is tensor]:
                        del holder[key]
        raise Effects("the function keeps a tensor that it makes")
