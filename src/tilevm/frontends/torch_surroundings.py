"""What a function reads besides its arguments: variables, attributes, items of lists and dicts.

Its code says which: the names that it mentions, and what it calls, as far as classes of the objects
that it knows and functions of its modules show. A capture holds for the values that these have.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import nn

from tilevm.frontends.torch_effects import (
    FOLLOWING,
    KEEPING,
    is_foreign,
    is_installed,
    is_users,
    moves,
)
from tilevm.frontends.torch_tracing import original_of

_MOST_ITEMS = 64  # of a list or dict that is looked at
_MOST_PLACES = 20_000
# Values of a place that are told apart: more than a function may read that is captured by them.
_MOST_KNOWN = 1024
_ABSENT = object()
_PLAIN = (int, float, complex, bool, str, bytes, type(None), Enum, torch.dtype, torch.device)
_TUPLES = tuple, torch.Size
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
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
            return list(enumerate(list.__iter__(owner)))
        if not isinstance(owner, dict):
            return [(None, _contents(owner))]
        if self.keys is None:
            return list(dict.items(owner))
        return [(k, dict.get(owner, k, _ABSENT)) for k in self.keys]


class Surroundings:
    """The places that a function reads, besides parameters, buffers and submodules."""

    def __init__(self, fn: Callable[..., Any], given: Sequence[Any] = ()) -> None:
        """given: objects among its arguments."""
        walk = _Walk(fn, {type(_owner(fn))}, (), given)
        while walk.finds_code:  # which may read more
            walk = _Walk(fn, walk.classes, walk.functions, given)
        self.places = walk.places
        self.modules = walk.modules  # none within another one that was found before, by a name
        self.objects = frozenset(walk.seen)  # the ids of all
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
            if moves(value) or (_is_per_thread(value) and _is_of_user(place.owner)):
                self.moving = type(value).__name__
            if isinstance(value, torch.Tensor):
                self.tensors[id(place.owner), key] = value
        compared = tuple((k, _compared(v)) for k, v in values.items())
        self._now[index] = values
        known = self._known[index]
        if len(known) >= _MOST_KNOWN:
            known.clear()
        self._values[index] = known.setdefault(compared, len(known))


def _is_per_thread(value: Any) -> bool:
    """Whether what the value holds is of whoever asks, and changes where nobody sees it."""
    return isinstance(value, threading.local | ContextVar)


def _is_of_user(owner: Any) -> bool:
    """Whether that is a variable of a closure, or of a module that is no installed package's:
    packages' settings stay as they are.
    """
    if isinstance(owner, CellType):
        return True
    return isinstance(owner, dict) and "__name__" in owner and not is_installed(owner["__name__"])


def _is_leaf(value: Any) -> bool:
    """Whether a value refers to nothing that could change in turn."""
    if value is _ABSENT or isinstance(value, (torch.Tensor, *_PLAIN)):
        return True
    if type(value) in _TUPLES:
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
    if kind in _TUPLES:
        return kind, tuple(map(_compared, value))
    value = original_of(value)
    # PyTorch makes others of its own, which are equal, each time that it is asked for one.
    return value if isinstance(value, BuiltinFunctionType) else _Same(value)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _ABSENT


@functools.lru_cache(4096)
def _names(code: CodeType) -> frozenset[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_GLOBAL_SHIFT = int(sys.version_info >= (3, 11))  # whose lowest bit says something else


@functools.lru_cache(4096)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The names that are variables, not attributes."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    found: set[str] = set()
    more = 0
    # As `dis` has it, in a tenth of the time: a model has hundreds of functions.
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = more | low
        more = argument << 8 if operation == dis.EXTENDED_ARG else 0
        if operation == _LOAD_GLOBAL:
            found.add(code.co_names[argument >> _GLOBAL_SHIFT])
    return frozenset(found).union(*map(_globals_of, inner))


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


def _reach(
    fn: Any, classes: Iterable[type], functions: Iterable[FunctionType] = ()
) -> tuple[list[FunctionType], set[str]]:
    """Functions that `fn`, methods of classes and functions may call, and all names in them."""
    found: dict[FunctionType, None] = {}
    names = {"forward", "__call__"}

    def add(value: Any) -> None:
        for function in _wrapped(value):
            if function not in found:
                found[function] = None
                names.update(_names(function.__code__))

    known = getattr(fn, "__func__", fn)
    add(known.func if isinstance(known, functools.partial) else known)
    for function in functions:
        add(function)
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
    owners = [*modules, _owner(fn)]
    held = [v for owner in owners for v in (_attributes(owner) or {}).values()]
    functions = [v for v in held if isinstance(v, FunctionType) and is_users(v)]
    return _reach(fn, {type(owner) for owner in owners}, functions)[0]


_FUNCTIONS = FunctionType, KEEPING


def _referred(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Functions in variables of a function, and in modules of Python that it refers to."""
    scope = function.__globals__
    for name in _names(function.__code__):
        value = scope.get(name)
        if isinstance(value, _FUNCTIONS):
            yield value
        elif isinstance(value, ModuleType) and not is_foreign(value.__name__):
            inner = [vars(value).get(n) for n in names]  # which grow while these are looked at
            yield from (v for v in inner if isinstance(v, _FUNCTIONS))
    contents = map(_contents, function.__closure__ or ())
    yield from (v for v in contents if isinstance(v, _FUNCTIONS))


def keeping(functions: Iterable[FunctionType]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Functions that keep results, in modules of Python that these refer to: where, name, it."""
    for function in functions:
        names = _names(function.__code__)
        seen: set[int] = set()
        stack = [function.__globals__.get(name) for name in names]
        stack += map(_contents, function.__closure__ or ())
        while stack:
            module = stack.pop()
            if not isinstance(module, ModuleType) or is_foreign(module.__name__):
                continue
            held = {n: vars(module)[n] for n in names if n in vars(module)}
            yield from ((vars(module), n, v) for n, v in held.items() if isinstance(v, KEEPING))
            stack += [v for v in held.values() if id(v) not in seen]
            seen.update(map(id, held.values()))


def _is_read(kind: type) -> bool:
    """Whether the code of a class is looked at: the user's, and that of PyTorch's layers."""
    if kind is nn.Module or kind is object:
        return False
    return kind.__module__.startswith("torch.nn.modules.") or not is_foreign(kind.__module__)


class _Walk:
    """Where functions read that `fn` may call.

    classes: whose methods may be among them. functions: that values are. given: objects among the
    arguments.
    """

    def __init__(
        self,
        fn: Any,
        classes: set[type],
        functions: Iterable[FunctionType],
        given: Sequence[Any],
    ) -> None:
        self.classes = set(classes)
        self.functions = dict.fromkeys(functions)
        before = len(self.classes), len(self.functions)
        self.places: list[Place] = []
        self.modules: dict[str, nn.Module] = {}
        self.seen: set[int] = set()
        reached, self._names = _reach(fn, classes, self.functions)
        self._bases: set[type] = set()
        self._within: set[int] = set()  # ids of modules of those that were found
        # What is to be looked at: where it is, for people, and what it is.
        self._stack: list[tuple[str, Any]] = []
        scopes: dict[int, tuple[Any, set[str]]] = {}
        for function in reached:
            scope = function.__globals__
            read = {name for name in _names(function.__code__) if name in scope}
            if read:
                read &= _globals_of(function.__code__)
            if is_foreign(function.__module__):  # of a layer of PyTorch: what it calls
                self._push_all("", {n: v for n in read if isinstance(v := scope[n], ModuleType)})
                continue
            scopes.setdefault(id(scope), (scope, set()))[1].update(read)
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            for name, cell in cells:
                self.places.append(Place(cell, None))
                self._stack.append((name, _contents(cell)))
            self._push_all("", dict(enumerate(function.__defaults__ or ())))
            self._push_all("", function.__kwdefaults__ or {})
        for scope, read in scopes.values():
            if read:
                self.places.append(Place(scope, tuple(sorted(read))))
                self._push_all("", {name: scope[name] for name in sorted(read)})
        owner = _owner(fn)
        self._stack.append(("module" if owner is fn else "self", owner))
        self._stack += [("argument", value) for value in given]
        while self._stack and len(self.places) < _MOST_PLACES:
            name, value = self._stack.pop()
            if id(value) not in self.seen and not isinstance(value, (torch.Tensor, *_PLAIN)):
                self.seen.add(id(value))
                self._look(name, value)
        self.finds_code = before != (len(self.classes), len(self.functions))

    def _push_all(self, prefix: str, items: dict[Any, Any]) -> None:
        self._stack += [(f"{prefix}_{key}" if prefix else f"{key}", v) for key, v in items.items()]

    def _look(self, name: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, ModuleType):
            self._look_at_python(value)
        elif isinstance(value, type):
            self._look_at_classes(value)
        elif kind is FunctionType:
            if is_users(value):
                self.functions[value] = None
                self._look_at_named(name, vars(value))
        elif kind is KEEPING:
            self._push_all(name, {"function": value.__wrapped__})
        elif kind is MethodType:
            self._push_all(name, {"self": value.__self__, "function": value.__func__})
        elif isinstance(value, functools.partial):
            self._push_all(name, {"function": value.func, "keywords": value.keywords})
            self._push_all(name, dict(enumerate(value.args)))
        elif isinstance(value, list | tuple | dict):
            if len(value) <= _MOST_ITEMS:
                plain = (
                    dict(dict.items(value)) if isinstance(value, dict) else dict(enumerate(value))
                )
                self._push_all(name, plain)
                if not isinstance(value, tuple):
                    self.places.append(Place(value, None))
            if kind not in (list, tuple, dict):
                self._look_at_object(name, value)
        else:
            self._look_at_object(name, value)

    def _look_at_named(self, name: str, held: dict[str, Any]) -> None:
        """Attributes that the code may mean."""
        own = {k: v for k, v in held.items() if k in self._names}
        if own:
            self.places.append(Place(held, tuple(own)))
            self._push_all(name, own)

    def _look_at_python(self, module: ModuleType) -> None:
        """What the code may mean of a module of Python; of PyTorch's, functions only."""
        held = {k: v for k, v in list(vars(module).items()) if k in self._names}
        if is_foreign(module.__name__):
            if module.__name__.partition(".")[0] != "torch":
                return
            held = {k: v for k, v in held.items() if isinstance(v, ModuleType) or callable(v)}
        if held:
            self.places.append(Place(vars(module), tuple(held)))
            self._push_all("", held)

    def _look_at_classes(self, kind: type) -> None:
        self.classes.add(kind)
        for base in kind.__mro__:
            keys = _of_class(base, self._names)
            if keys and base not in self._bases:
                self._bases.add(base)
                # What `vars` shows of a class is a view of this dict, which has a version.
                (held,) = (d for d in gc.get_referents(vars(base)) if type(d) is dict)
                self.places.append(Place(held, keys))
                self._push_all(base.__name__, {key: held[key] for key in keys if key in held})

    def _look_at_object(self, name: str, value: Any) -> None:
        held = _attributes(value)
        if held is None:
            return
        if isinstance(value, nn.Module):
            if id(value) not in self._within:
                self._add_module(name, value)
            for slot in HOOKS:
                self._push_all(name, held.get(slot) or {})
        self._look_at_classes(type(value))
        own = {k: v for k, v in held.items() if k in self._names and k not in _UNREAD}
        self._push_all(name, own)
        # What a class says until the object says otherwise. `forward` of modules, their state has.
        inherited = {k for base in type(value).__mro__ for k in _of_class(base, self._names)}
        inherited -= {"forward"} if isinstance(value, nn.Module) else set()
        if own or inherited:
            self.places.append(Place(held, tuple(sorted(inherited.union(own)))))

    def _add_module(self, name: str, module: nn.Module) -> None:
        unique = plain = re.sub(r"\W", "_", name)
        while unique in self.modules:
            unique = f"{plain}_{len(self.modules)}"
        self.modules[unique] = module
        every = list(module.modules())
        self._within.update(map(id, every))
        self._stack += [(name, inner) for inner in every]


def _owner(fn: Any) -> Any:
    """The object whose method a function is, or itself."""
    return getattr(fn, "__self__", fn)


def _of_class(kind: type, names: set[str]) -> tuple[str, ...]:
    """Members of a class that the code may mean, if it is the user's, or a layer of PyTorch; those
    of its bases, too, which it may come to have itself.
    """
    if not _is_read(kind):
        return ()
    return tuple(
        {k: None for base in kind.__mro__ if _is_read(base) for k in vars(base) if k in names}
    )


def _attributes(value: Any) -> dict[str, Any] | None:
    """The dict of an object's attributes, if it is the user's, or a layer of PyTorch."""
    kind = type(value)
    if isinstance(value, nn.Module | Namespace | SimpleNamespace):
        return vars(value)
    if kind.__module__ == "builtins" or is_foreign(kind.__module__):
        return None
    held = getattr(value, "__dict__", None)
    return held if type(held) is dict else None
