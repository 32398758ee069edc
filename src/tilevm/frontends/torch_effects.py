"""What a function changes besides its arguments: a trace leaves nothing of it behind."""

from __future__ import annotations

import functools
import gc
import operator
import random
import sys
import weakref
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tilevm.frontends.torch_memory import Refused

_MOST = 50_000  # containers that are looked at
# Whose own methods copy, empty and fill what is one of them: the first that an object is.
_CONTAINERS = (OrderedDict, dict, list, set, deque, bytearray)
# A class that has its own of these may do anything there.
_READING = ("__getitem__", "__setitem__", "__iter__", "__len__", "get", "items")
_ATTRIBUTED = (nn.Module, Namespace, SimpleNamespace, Queue)  # of libraries, and looked into
# Methods that no name in the code says are called.
_OPERATORS = [name for name in dir(operator) if callable(vars(operator)[name])]
_IMPLICIT = {
    *(name for name in _OPERATORS if name.startswith("__")),
    *(f"__r{name[2:]}" for name in _OPERATORS if name.startswith("__")),
    "__enter__", "__exit__", "__iter__", "__next__", "__len__", "__bool__", "__call__",
    "__getattr__", "__getattribute__", "__setattr__", "__get__", "__set__", "__hash__",
}  # fmt: skip
_FOREIGN = {*sys.stdlib_module_names, "torch", "tilevm", "numpy"} - {"__main__"}
_NOTHING = object()
# Nothing lies in objects of these.
_ATOMS = {str, int, float, bool, type(None), object, torch.Tensor, nn.Parameter}
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__slotnames__"}  # what Python keeps there
FOLLOWING = ("_flat_weights", "_flat_weight_refs")  # what recurrent modules keep of parameters
KEEPING: Any = functools._lru_cache_wrapper  # functions that keep results


class Effects(Refused):
    """The function changes what outlives the call: a later call may do so no more."""


class Draws(Effects):
    """It changes the state of random numbers in a way that nothing but eager code does."""


class Before:
    """What `fn` and `modules` refer to, as it was: attributes, lists, dicts, sets, variables.

    called: functions that `fn` may call, with itself.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        modules: Sequence[nn.Module],
        called: Sequence[FunctionType],
    ) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {}  # id -> container, its items
        # Where it is (globals' dict, a cell, a class, an object with slots), name, value.
        self._variables: list[tuple[Any, str, Any]] = []
        functions = list(filter(is_users, called))
        self._looked: set[Any] = set(functions)  # functions and classes
        held = [value for function in functions for value in self._variables_of(function)]
        values = [*map(type, (*modules, getattr(fn, "__self__", fn))), *self._values()]
        named = {name for f in functions for name in f.__code__.co_names}
        for kind in dict.fromkeys(k for v in values if isinstance(v, type) for k in v.__mro__):
            if kind.__module__ != "builtins" and not is_foreign(kind.__module__):
                attributes = {*named, *vars(kind)} - _OF_CLASSES
                self._variables += [(kind, name, get(kind, name)) for name in attributes]
        self._walk([*modules, fn, getattr(fn, "__self__", None), *held, *self._values()])
        self._drawn = random.getstate(), _numpy_state()
        self.draws_from = ""  # whose random numbers the function has drawn, as undo() finds

    def _values(self) -> list[Any]:
        return [value for *_, value in self._variables]

    def _variables_of(self, function: FunctionType) -> list[Any]:
        """Remember what a function's names mean. Returns what else it has."""
        names = function.__globals__
        self._variables += [
            (names, name, names.get(name, _NOTHING)) for name in function.__code__.co_names
        ]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._variables += [(cell, name, get(cell, name)) for name, cell in cells]
        return [function.__defaults__, function.__kwdefaults__, vars(function)]

    def _behind(self, value: Any) -> list[Any]:
        """What code that a value runs refers to: a function, a method, an object of a class."""
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, KEEPING):
            return [value.__wrapped__]
        if isinstance(value, BuiltinFunctionType):
            return [] if isinstance(value.__self__, ModuleType) else [value.__self__]
        if isinstance(value, FunctionType):
            if value in self._looked or not is_users(value):
                return []
            self._looked.add(value)
            before = len(self._variables)
            held = self._variables_of(value)
            found = (item for *_, item in self._variables[before:])
            # (Not all of a library, function by function: `called` has those with names.)
            return held + [v for v in found if not isinstance(v, FunctionType | type | ModuleType)]
        kind = value if isinstance(value, type) else type(value)
        if kind in self._looked or kind.__module__ == "builtins":
            return []
        self._looked.add(kind)
        users = (base for base in kind.__mro__ if not is_foreign(base.__module__))
        return [v for base in users for name, v in vars(base).items() if name in _IMPLICIT]

    def _walk(self, stack: list[Any]) -> None:
        slotted: set[int] = set()
        while stack and len(self._seen) + len(slotted) < _MOST:
            value = stack.pop()
            if type(value) in _ATOMS:
                continue
            stack += self._behind(value)
            names = _slots(value)
            if names and id(value) not in slotted:
                slotted.add(id(value))
                own = [(value, name, getattr(value, name, _NOTHING)) for name in names]
                self._variables += own
                stack += [item for *_, item in own]
            for container in _containers(value):
                if id(container) in self._seen:
                    continue
                plain = _plain(container)
                listed = plain.items if issubclass(plain, dict) else plain.__iter__
                items = plain(listed(container)) if plain is not tuple else container
                self._seen[id(container)] = container, items
                stack += items.values() if isinstance(items, dict) else items

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors among all that."""
        held = [i.values() if isinstance(i, dict) else i for _, i in self._seen.values()]
        for values in (self._values(), *held):
            yield from (v for v in values if isinstance(v, torch.Tensor))

    def places(self) -> Iterator[tuple[Any, Any, Any]]:
        """Where variables, attributes and items are, their names or keys, what they were."""
        yield from self._variables
        for container, items in self._seen.values():
            if isinstance(container, dict | list):
                keyed = items.items() if isinstance(container, dict) else enumerate(items)
                yield from ((container, key, value) for key, value in keyed)

    def undo(self, known: Mapping[int, Any]) -> str:
        """Put all back as it was. Returns what had changed; empty: nothing.

        known: tensors by the id of what a trace had in place of them, as `x += 1` leaves it.
        """
        changed = ""
        for where, name, value in self._variables:
            now = get(where, name)
            if _same(now, value):
                continue
            if known.get(id(now), _settled(now, value)) is not value:
                changed = f"the variable {name}"
            put(where, name, value)
        own, numpy = self._drawn
        if random.getstate() != own:
            self.draws_from = "Python's random numbers"
            random.setstate(own)
        if numpy is not None and _numpy_state() != numpy:
            self.draws_from = "NumPy's random numbers"
            sys.modules["numpy"].random.set_state(numpy)
        for container, items in self._seen.values():
            if isinstance(container, tuple) or _same_items(container, items):
                continue
            _replace(container, items, known)
            changed = _difference(container, items) or changed
            plain = _plain(container)
            plain.clear(container)
            sequence = issubclass(plain, list | deque | bytearray)
            plain.extend(container, items) if sequence else plain.update(container, items)
        return self.draws_from or changed


def _numpy_state() -> dict[str, Any] | None:
    """The state of `numpy.random`, with no array in it; None without NumPy."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    state: dict[str, Any] = numpy.random.get_state(legacy=False)
    inner = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in state["state"].items()}
    return {**state, "state": inner}


def is_foreign(module: str | None) -> bool:
    """Whether a module of that name is a library whose objects nobody looks into."""
    return (module or "").partition(".")[0] in _FOREIGN


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module is of a package that was installed, whose classes nobody changes."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def moves(value: Any) -> bool:
    """Whether the value is an iterator, or draws random numbers, in code that nobody can read."""
    package = type(value).__module__.partition(".")[0]
    draws = type(value).__name__ in ("Random", "RandomState", "Generator")
    if package in ("random", "numpy") and draws:  # a graph with PyTorch's is refused anyway
        return True
    return isinstance(value, Iterator) and (package == "builtins" or is_foreign(package))


def is_users(function: FunctionType) -> bool:
    """Whether a function is of no library; `functools.wraps` gives it another's `__module__`."""
    return not is_foreign(function.__globals__.get("__name__"))


def _containers(value: Any) -> Iterator[Any]:
    """What holds what `value` refers to, and may change: itself, its attributes."""
    kind = type(value)
    if kind in (tuple, *_CONTAINERS, defaultdict, Counter):
        yield value
    elif isinstance(value, _CONTAINERS) and not is_foreign(kind.__module__):
        plain = _plain(value)
        if all(getattr(kind, m, None) is getattr(plain, m, None) for m in _READING):
            yield value
    if isinstance(value, _ATTRIBUTED) or not _is_foreign_object(value):
        fields = getattr(value, "__dict__", None)
        if type(fields) is dict:
            yield fields


def _plain(container: Any) -> Any:
    """The class of Python's whose methods take the container as it is."""
    return next((kind for kind in _CONTAINERS if isinstance(container, kind)), tuple)


def _is_foreign_object(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "builtins" or is_foreign(kind.__module__)


def _slots(value: Any) -> list[str]:
    """Attributes of an object that has no dict of them."""
    if _is_foreign_object(value) or isinstance(value, nn.Module | type):
        return []
    members = (name for kind in type(value).__mro__ for name in vars(kind).items())
    return [name for name, member in members if isinstance(member, MemberDescriptorType)]


def get(where: Any, name: Any) -> Any:
    """What a variable of globals, a cell or a class, an attribute or an item is now."""
    if isinstance(where, dict):
        return where.get(name, _NOTHING)
    if isinstance(where, list):
        return where[name] if name < len(where) else _NOTHING
    if isinstance(where, type):
        return vars(where).get(name, _NOTHING)
    if not isinstance(where, CellType):
        return getattr(where, name, _NOTHING)
    try:
        return where.cell_contents
    except ValueError:  # not filled yet
        return _NOTHING


def put(where: Any, name: Any, value: Any) -> None:
    """Let it be `value`."""
    if isinstance(where, CellType):
        where.cell_contents = value
    elif not isinstance(where, dict | list):
        delattr(where, name) if value is _NOTHING else setattr(where, name, value)
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


def _settled(now: Any, then: Any) -> Any:
    """`then`, if `now` is a size that is this number: which a call is asked for from then on."""
    if type(now) is not torch.SymInt or type(then) is not int or not now.node.has_hint():
        return now
    return then if now.node.hint == then and now == then else now


def _replace(container: Any, then: Any, known: Mapping[int, Any]) -> None:
    """Put tensors in place of what a trace had for them, and numbers in place of sizes."""
    if isinstance(container, set | bytearray):
        return
    before = then if isinstance(then, dict) else dict(enumerate(then))
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(items):
        container[key] = known.get(id(value), _settled(value, before.get(key)))


def _difference(now: Any, then: Any) -> str:
    if not isinstance(now, dict):
        return "" if _same_items(now, then) else f"a {type(now).__name__}"
    names = [k for k in {**then, **now} if not _same(now.get(k, now), then.get(k, then))]
    names = [k for k in names if k not in FOLLOWING]
    return f"the attribute or key {names[0]!r}" if names else ""


class Made:
    """Tensors of a trace, which outlive it only if the function keeps them somewhere."""

    def __init__(self, given: Sequence[Any]) -> None:
        known = set(map(id, given))
        mode = get_proxy_mode()
        tracer: Any = mode.tracer if mode is not None else None
        tracked = tracer.tensor_tracker if tracer is not None else {}
        # Of constants, which are not made here, it has results that are the same tensor.
        known |= {id(t) for t in getattr(tracer, "tensor_attrs", ())}
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
