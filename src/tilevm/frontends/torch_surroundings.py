"""What a function reads besides its arguments: variables, attributes, items of lists and dicts.

Its code says which: the names that it mentions, and what it calls, as far as classes of the objects
that it knows and functions of its modules show. A capture holds for the values that these have.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from tilevm.frontends.torch_effects import FOLLOWING, is_foreign, is_users

_MOST_ITEMS = 64  # of a list or dict that is looked at
_MOST_PLACES = 20_000
_ABSENT = object()
_PLAIN = (int, float, complex, bool, str, bytes, type(None), Enum, torch.dtype, torch.device)
# Attributes of modules that their state has, and what recurrent ones keep of their parameters.
_UNREAD = {"training", "_parameters", "_buffers", "_modules", *FOLLOWING}


@dataclass(frozen=True)
class Place:
    """Where values are: items of a dict, those of a list, or what a variable of a closure is."""

    owner: Any
    keys: tuple[Any, ...] | None  # of a dict: those that matter; None: all

    def values(self) -> list[tuple[Any, Any]]:
        """What is there now, with its key."""
        owner = self.owner
        if isinstance(owner, list):
            return list(enumerate(owner))
        if not isinstance(owner, dict):
            return [(None, _contents(owner))]
        return [(k, owner.get(k, _ABSENT)) for k in (owner if self.keys is None else self.keys)]


class Surroundings:
    """The places that a function reads, besides parameters, buffers and submodules."""

    def __init__(self, fn: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        self.places: list[Place] = []
        classes = {type(m) for m in modules} | {type(getattr(fn, "__self__", fn))}
        while True:
            before = len(classes)
            functions, names = _reach(fn, classes)
            found = list(_places(fn, functions, names, modules, classes))
            self.places = [*found, *_of_classes(classes, names)]
            if len(classes) == before:
                break
        self._of: dict[int, list[int]] = {}  # the places of an owner, by its id
        for index, place in enumerate(self.places):
            self._of.setdefault(id(place.owner), []).append(index)
        # Of each place, by what was there: a number. What is there now.
        self._known: list[dict[Any, int]] = [{} for _ in self.places]
        self._now: list[dict[Any, Any]] = [{} for _ in self.places]
        self._values = [0] * len(self.places)
        self.tensors: dict[tuple[int, Any], torch.Tensor] = {}  # by owner and key
        self.moving = ""  # the kind of what gives another value each time it is asked
        for index in range(len(self.places)):
            self._look(index)
        self.differs = False  # whether the last update found another value, or another tensor
        self.changed = ""  # the key of such a value

    def whole(self) -> list[Any]:
        """Lists, dicts and cells in which nothing may change."""
        return [place.owner for place in self.places if place.keys is None]

    def flags(self) -> list[tuple[dict[str, Any], list[Any]]]:
        """Dicts, with the keys whose values may not change."""
        return [(place.owner, list(place.keys)) for place in self.places if place.keys is not None]

    def values(self) -> tuple[int, ...]:
        """Which of the values known of each place is there: of tensors, of which type."""
        return tuple(self._values)

    def update(self, owners: Iterable[Any]) -> bool:
        """Take what these hold now. False: some may refer to places that are not known."""
        leaves = True
        self.differs = False
        for index in (i for owner in owners for i in self._of.get(id(owner), ())):
            before = self._now[index]
            self._look(index)
            now = self._now[index]
            for key in {**before, **now}:
                old, new = before.get(key, _ABSENT), now.get(key, _ABSENT)
                is_tensor = isinstance(new, torch.Tensor)
                if new is old or (not is_tensor and _compared(new) == _compared(old)):
                    continue
                self.differs = True
                self.changed = key if isinstance(key, str) else "an item or a variable"
                leaves = leaves and _is_leaf(new) and _is_leaf(old)
        return leaves

    def _look(self, index: int) -> None:
        place = self.places[index]
        values = dict(place.values())
        for key in self._now[index]:
            self.tensors.pop((id(place.owner), key), None)
        for key, value in values.items():
            if _moves(value):
                self.moving = type(value).__name__
            if isinstance(value, torch.Tensor):
                self.tensors[id(place.owner), key] = value
        compared = tuple((k, _compared(v)) for k, v in values.items())
        self._now[index] = values
        self._values[index] = self._known[index].setdefault(compared, len(self._known[index]))


def _moves(value: Any) -> bool:
    """Whether the value is an iterator, or draws random numbers, in code that nobody can read."""
    package = type(value).__module__.partition(".")[0]
    draws = type(value).__name__ in ("Random", "RandomState", "Generator")
    if package in ("random", "numpy") and draws:  # a graph with PyTorch's is refused anyway
        return True
    return isinstance(value, Iterator) and (package == "builtins" or is_foreign(package))


def _is_leaf(value: Any) -> bool:
    """Whether a value refers to nothing that could change in turn."""
    if value is _ABSENT or isinstance(value, (torch.Tensor, *_PLAIN)):
        return True
    if type(value) is tuple:
        return all(map(_is_leaf, value))
    return callable(value) and is_foreign(getattr(value, "__module__", None))


class _Same:
    """An object that is equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _compared(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        layout = value.stride() if value.layout is torch.strided else None
        return kind, value.dtype, tuple(value.shape), layout, value.requires_grad
    if isinstance(value, _PLAIN):
        return kind, repr(value) if isinstance(value, float | complex) else value
    if kind is tuple:
        return tuple(map(_compared, value))
    return _Same(value)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _ABSENT


@functools.lru_cache(4096)
def _names(code: CodeType) -> frozenset[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


@functools.lru_cache(4096)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The names that are variables, not attributes."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    loads = (step for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    return frozenset(step.argval for step in loads).union(*map(_globals_of, inner))


def _wrapped(member: Any) -> Iterator[FunctionType]:
    """What a member of a class or module runs: a function, and the user's decorators around it."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    outer = getattr(member, "__func__", member)
    inner = inspect.unwrap(outer)
    while outer is not inner:
        if isinstance(outer, FunctionType) and is_users(outer):
            yield outer
        outer = outer.__wrapped__
    if isinstance(inner, FunctionType):
        yield inner


def _reach(fn: Any, classes: set[type]) -> tuple[list[FunctionType], set[str]]:
    """Functions that `fn` may call, and all names in them."""
    found: dict[FunctionType, None] = {}
    names = {"forward", "__call__"}

    def add(value: Any) -> None:
        for function in _wrapped(value):
            if function not in found:
                found[function] = None
                names.update(_names(function.__code__))

    known = getattr(fn, "__func__", fn)
    add(known.func if isinstance(known, functools.partial) else known)
    members = [
        item
        for kind in {base for one in classes for base in one.__mro__}
        if _is_read(kind)
        for item in vars(kind).items()
    ]
    looked = -1
    while looked < len(found):
        looked = len(found)
        for name, member in members:
            if name in names:
                add(member)
        for function in list(found):
            for value in _referred(function, names):
                if not is_foreign(getattr(value, "__module__", None)):
                    add(value)
    return list(found), names


def functions_of(fn: Callable[..., Any], modules: Sequence[nn.Module]) -> list[FunctionType]:
    """`fn`, its decorators, and functions that it may call, as far as its code shows."""
    return _reach(fn, {type(m) for m in modules} | {type(getattr(fn, "__self__", fn))})[0]


def _referred(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Functions in variables of a function, and in modules of Python that it refers to."""
    scope = function.__globals__
    for name in _names(function.__code__):
        value = scope.get(name)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, ModuleType) and not is_foreign(value.__name__):
            inner = (vars(value).get(n) for n in names)
            yield from (v for v in inner if isinstance(v, FunctionType))
    contents = map(_contents, function.__closure__ or ())
    yield from (v for v in contents if isinstance(v, FunctionType))


def _is_read(kind: type) -> bool:
    """Whether the code of a class is looked at: the user's, and that of PyTorch's layers."""
    if kind is nn.Module or kind is object:
        return False
    return kind.__module__.startswith("torch.nn.modules.") or not is_foreign(kind.__module__)


def _places(
    fn: Any,
    functions: Iterable[FunctionType],
    names: set[str],
    modules: Sequence[nn.Module],
    classes: set[type],
) -> Iterator[Place]:
    """Where these functions read. Classes of objects on the way are added to `classes`."""
    found = 0
    stack: list[Any] = [getattr(fn, "__self__", fn), *modules]
    scopes: dict[int, tuple[Any, set[str]]] = {}
    read: set[str]
    for function in functions:
        if is_foreign(function.__module__):
            continue
        scope = function.__globals__
        read = {name for name in _names(function.__code__) if name in scope}
        if read:
            read &= _globals_of(function.__code__)
        scopes.setdefault(id(scope), (scope, set()))[1].update(read)
        for cell in function.__closure__ or ():
            yield Place(cell, None)
            stack.append(_contents(cell))
    for scope, read in scopes.values():
        kept = tuple(sorted(n for n in read if not _is_code(scope[n])))
        if kept:
            yield Place(scope, kept)
            stack += [scope[n] for n in kept]
        stack += [v for n in read if isinstance(v := scope[n], ModuleType)]
    seen: set[int] = set()
    while stack and found < _MOST_PLACES:
        value = stack.pop()
        if id(value) in seen or isinstance(value, (torch.Tensor, *_PLAIN)):
            continue
        seen.add(id(value))
        kind = type(value)
        if kind in (list, tuple, dict):
            if len(value) > _MOST_ITEMS:
                continue
            stack += value.values() if kind is dict else value
            if kind is not tuple:
                found += 1
                yield Place(value, None)
            continue
        held = _attributes(value)
        if held is None:
            continue
        if not isinstance(value, ModuleType):
            classes.add(kind)
        keys = tuple(k for k in held if k in names and k not in _UNREAD)
        if isinstance(value, ModuleType):
            keys = tuple(k for k in keys if not _is_code(held[k]))
        else:  # what a class says until the object says otherwise
            inherited = {k for base in kind.__mro__ for k in _class_values(base, names)}
            keys += tuple(sorted(inherited.difference(held)))
        if keys:
            found += 1
            yield Place(held, keys)
            stack += [held[k] for k in keys if k in held]


def _class_values(kind: type, names: set[str]) -> tuple[str, ...]:
    """Attributes of a class, if it is the user's, that are no code."""
    if is_foreign(kind.__module__) or kind.__module__ == "builtins":
        return ()
    values = (torch.Tensor, list, dict, tuple, *_PLAIN)
    return tuple(k for k, v in vars(kind).items() if k in names and isinstance(v, values))


def _of_classes(classes: Iterable[type], names: set[str]) -> Iterator[Place]:
    for kind in {base for one in classes for base in one.__mro__}:
        keys = _class_values(kind, names)
        if keys:
            # What `vars` shows of a class is a view of this dict, which has a version.
            (held,) = (d for d in gc.get_referents(vars(kind)) if type(d) is dict)
            yield Place(held, keys)


def _is_code(value: Any) -> bool:
    """Whether a variable is a name of code that nobody puts another in place of."""
    return isinstance(value, ModuleType | type) or (
        callable(value) and is_foreign(getattr(value, "__module__", None))
    )


def _attributes(value: Any) -> dict[str, Any] | None:
    """The dict of an object's attributes, if it is the user's, or a layer of PyTorch."""
    if isinstance(value, ModuleType):
        return None if is_foreign(value.__name__) else vars(value)
    kind = type(value)
    if isinstance(value, nn.Module | Namespace | SimpleNamespace):
        return vars(value)
    if kind.__module__ == "builtins" or is_foreign(kind.__module__) or isinstance(value, type):
        return None
    held = getattr(value, "__dict__", None)
    return held if type(held) is dict else None
