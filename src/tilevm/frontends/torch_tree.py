"""Nested arguments and results: what is a tensor or number in them, and how to build them again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, MethodType, SimpleNamespace
from typing import Any

import torch

from tilevm.frontends.torch_effects import is_foreign, is_installed, moves

ATOMS = (
    str, bytes, bool, complex, type, torch.dtype, torch.device, torch.layout, type(None), Enum,
)  # fmt: skip
_DEEPEST = 32  # containers within each other; one may contain itself
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Leaf:
    """Leaf number `index`."""

    index: int


@dataclass(frozen=True)
class Constant:
    """The value itself."""

    value: Any


@dataclass(frozen=True)
class Same:
    """The container at `path` of the arguments."""

    path: tuple[Any, ...]


@dataclass(frozen=True)
class Branch:
    """A container: `kind` is sequence, mapping, record (dataclass) or object."""

    kind: str
    type: type
    keys: tuple[Any, ...]
    children: tuple[Any, ...]


Tree = Leaf | Constant | Same | Branch


def is_leaf(value: Any) -> bool:
    """Whether `value` is a tensor or a number that may differ from call to call."""
    return isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool) or (
        type(value) in (int, float)
    )


def values(items: Iterable[Any]) -> tuple[list[Any], set[type]] | None:
    """What lies in these tuples, lists, dictionaries and objects, in order, and the classes of the
    objects. None: in something else, or something is not told by itself alone.
    """
    found: list[Any] = []
    opened: set[type] = set()
    return (found, opened) if _open(items, found, opened, 0) else None


def _open(items: Iterable[Any], found: list[Any], opened: set[type], depth: int) -> bool:
    for item in items:
        kind = type(item)
        if kind is complex:
            return False  # 0 and -0 are equal
        if is_leaf(item) or isinstance(item, ATOMS):
            found.append(item)
            continue
        inside = parts(item)
        if inside is None:
            compares: Any = kind.__hash__
            if compares is not object.__hash__:  # not by identity alone
                return False
            found.append(item)
            continue
        if kind not in (tuple, list, dict):
            is_tuple = issubclass(kind, tuple) and kind.__iter__ is tuple.__iter__
            has_dict = inside[0] == "object" and type(getattr(item, "__dict__", None)) is dict
            if not is_tuple and not has_dict:
                return False
            opened.add(kind)
        if depth > _DEEPEST or not _open(inside[2], found, opened, depth + 1):
            return False
    return True


def parts(value: Any) -> tuple[str, tuple[Any, ...], tuple[Any, ...]] | None:
    """Kind, keys and children of a container; None for anything else."""
    kind = type(value)
    if kind in (list, tuple) or isinstance(value, tuple | list):
        return "sequence", tuple(range(len(value))), tuple(value)
    if kind is slice:
        return "sequence", (0, 1, 2), (value.start, value.stop, value.step)
    if isinstance(value, dict):
        record = dataclasses.is_dataclass(value)
        return "record" if record else "mapping", tuple(value.keys()), tuple(value.values())
    if dataclasses.is_dataclass(value) and not hasattr(value, "__dict__"):  # it has slots
        names = tuple(f.name for f in dataclasses.fields(value))
        return "object", names, tuple(getattr(value, name) for name in names)
    if not isinstance(value, type) and (dataclasses.is_dataclass(value) or _is_object(value)):
        fields = vars(value)
        return "object", tuple(fields), tuple(fields.values())
    return None


def _is_object(value: Any) -> bool:
    """Whether `value` is plain data with attributes: a cache, a configuration."""
    return _has_attributes(value) and _base(type(value)) in (object, SimpleNamespace)


def _has_attributes(value: Any) -> bool:
    if isinstance(value, (torch.nn.Module, *ATOMS)) or callable(value):
        return False
    return hasattr(value, "__dict__") and type(value).__module__ != "builtins"


def flatten(
    value: Any,
    leaves: list[Any],
    known: dict[int, tuple[Any, ...]] | None = None,
    shared: dict[int, Branch | None] | None = None,
) -> Tree:
    """The tree of `value`; its leaves are appended.

    known: paths of containers of the arguments, by id. shared: branches by the id of what they are
    of; what is there twice, is one branch. Raises: Unsupported, if something contains itself.
    """
    if is_leaf(value):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if known is not None and id(value) in known:
        return Same(known[id(value)])
    if shared is not None and id(value) in shared:
        branch = shared[id(value)]
        if branch is None:  # it is not done
            raise Unsupported("an argument contains itself")
        return branch
    found = parts(value)
    if found is None:
        return Constant(value)
    kind, keys, children = found
    if shared is not None and _is_one(value):
        shared[id(value)] = None
    built = tuple(flatten(child, leaves, known, shared) for child in children)
    branch = Branch(kind, type(value), keys, built)
    if shared is not None and _is_one(value):
        shared[id(value)] = branch
    return branch


def _is_one(value: Any) -> bool:
    """Whether a container can be told from another one that is equal."""
    return type(value) not in (tuple, slice)


def build(tree: Tree, leaves: Any, made: dict[int, Any] | None = None) -> Any:
    """The value that `tree` describes, with these leaves; what is one branch, is one object.

    made: what there is of branches, by their ids.
    """
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    if isinstance(tree, Constant):
        return tree.value
    if isinstance(tree, Same):
        raise TypeError("a reference to an argument outside a result")
    made = {} if made is None else made
    if id(tree) not in made:
        made[id(tree)] = make(tree, [build(child, leaves, made) for child in tree.children])
    return made[id(tree)]


def make(branch: Branch, children: list[Any]) -> Any:
    """A container with these children."""
    kind: Any = branch.type
    if branch.kind == "sequence":
        if kind in (list, tuple):
            return kind(children)
        return kind(*children) if hasattr(kind, "_fields") or kind is slice else kind(children)
    named = dict(zip(branch.keys, children, strict=True))
    if branch.kind == "mapping":
        return named if kind is dict else kind(named)
    if branch.kind == "record":
        return kind(**named)
    made = _blank(kind)
    for name, child in named.items():
        object.__setattr__(made, name, child)  # whether it is frozen or not
    return made


_HEAP_TYPE = 1 << 9  # of a class's `__flags__`: it is made by a class statement


def _base(kind: Any) -> Any:
    """The class in C that says what objects of the class hold besides attributes."""
    return next(c for c in kind.__mro__ if not c.__flags__ & _HEAP_TYPE)


def _blank(kind: Any) -> Any:
    """An object of a class, without what its own `__new__` and `__init__` do."""
    return _base(kind).__new__(kind)  # `object.__new__` refuses those that have one in C


def containers(
    value: Any, path: tuple[Any, ...] = (), seen: set[int] | None = None
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, container) of each container in `value`, outermost first; each but once.

    seen: ids of those that there were.
    """
    seen = set() if seen is None else seen
    found = None if is_leaf(value) or id(value) in seen else parts(value)
    if found is None:
        return
    if _is_one(value):
        seen.add(id(value))
    yield path, value
    kind, keys, children = found
    for key, child in zip(keys, children, strict=True):
        yield from containers(child, (*path, (kind, key)), seen)


def step_source(kind: str, key: Any) -> str:
    """Python source of one step from a container to its child."""
    return f".{key}" if kind == "object" else f"[{key!r}]"


def source(tree: Tree, leaf: Callable[[int], str], constants: dict[str, Any], root: str) -> str:
    """Python source that builds `tree`; `constants` collects what the source refers to."""
    if isinstance(tree, Leaf):
        return leaf(tree.index)
    if isinstance(tree, Constant):
        if tree.value is None or tree.value is True or tree.value is False:
            return repr(tree.value)
        return _named(tree.value, constants)
    if isinstance(tree, Same):
        return root + "".join(step_source(kind, key) for kind, key in tree.path)
    children = [source(child, leaf, constants, root) for child in tree.children]
    joined = "".join(f"{child}, " for child in children)
    if tree.type is tuple:
        return f"({joined})"
    if tree.type is list:
        return f"[{joined}]"
    if (tree.kind == "mapping" and tree.type in (dict, OrderedDict)) or tree.kind == "record":
        pairs = ", ".join(
            f"{_named(k, constants)}: {c}" for k, c in zip(tree.keys, children, strict=True)
        )
        if tree.type is dict:
            return f"{{{pairs}}}"
        if tree.kind == "record" and all(str(k).isidentifier() for k in tree.keys):
            named = ", ".join(f"{k}={c}" for k, c in zip(tree.keys, children, strict=True))
            return f"{_named(tree.type, constants)}({named})"
        return f"{_named(tree.type, constants)}({{{pairs}}})"
    return f"{_named(make, constants)}({_named(tree, constants)}, [{joined}])"


def _named(value: Any, constants: dict[str, Any]) -> str:
    if type(value) in (str, int):
        return repr(value)
    for name, known in constants.items():
        if known is value:
            return name
    name = f"k{len(constants)}"
    constants[name] = value
    return name


class Unsupported(TypeError):
    """An argument that cannot be part of a key."""


def signature(
    value: Any, leaves: list[Any], key: list[Any], seen: dict[int, int], objects: dict[int, Any]
) -> None:
    """Append the leaves of `value`, in the order of `flatten`, and what identifies its structure.

    Tensors: element type, rank, whether a gradient is wanted, order of dims in memory, whether
    complex numbers are conjugated when they are read. seen: containers, by id; which one it is.
    objects: by id, what is told from others by itself alone, of which code may read more.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.layout is not torch.strided:
            raise Unsupported(f"an argument is {value.layout}")
        leaves.append(value)
        key.append((kind, value.dtype, value.dim(), value.requires_grad))
        if value.dtype.is_complex and value.is_conj():
            key.append("conjugate")
        if not value.is_contiguous():
            key.append(layout(value))
    elif kind is int or kind is float:
        if kind is int and not -(2**63) <= value < 2**63:
            raise Unsupported("an int needs more than 64 bits")
        leaves.append(value)
        key.append(kind)
    elif value is None or kind is bool or kind is str:
        key.append((kind, value))
    elif kind is tuple:
        key.append((kind, len(value)))
        for item in value:
            signature(item, leaves, key, seen, objects)
    elif isinstance(value, torch.Tensor):
        raise Unsupported(f"an argument is a {kind.__name__}")
    elif id(value) in seen:
        key.append(("again", seen[id(value)]))
    elif kind is list:
        seen[id(value)] = len(seen)
        key.append((kind, len(value)))
        for item in value:
            signature(item, leaves, key, seen, objects)
    elif kind is dict:
        seen[id(value)] = len(seen)
        key.append(_told(value))
        for item in value.values():
            signature(item, leaves, key, seen, objects)
    else:
        found = parts(value)
        if found is None:
            try:
                hash(value)
            except TypeError:
                raise Unsupported(f"an argument is an unhashable {kind.__name__}") from None
            if moves(value):
                raise Unsupported(f"an argument is a {kind.__name__}, which moves on")
            if _has_attributes(value):
                raise Unsupported(
                    f"an argument is a {kind.__name__}, which is more than attributes"
                )
            key.append((kind, value))
            compares: Any = kind.__hash__
            if compares is not object.__hash__ and kind is not MethodType:
                key.append(repr(value))  # what is equal need not be the same: 1 and True in a set
            if kind is MethodType:  # another object each time that somebody asks for it
                objects |= {id(v): v for v in (value.__self__, value.__func__)}
            elif _says_more(value):
                objects[id(value)] = value
            return
        if _is_one(value):
            seen[id(value)] = len(seen)
        if _says_more(kind) and not is_installed(kind.__module__):
            objects[id(kind)] = kind
        key.append((kind, _told(found[1])))
        for item in found[2]:
            signature(item, leaves, key, seen, objects)


def _told(keys: Iterable[Any]) -> tuple[Any, ...]:
    """Keys, which may be equal and yet not the same: 1 and True."""
    return tuple(key if type(key) is str else (type(key), key, repr(key)) for key in keys)


def _says_more(value: Any) -> bool:
    """Whether there may be variables, attributes or items that code reads of a value."""
    if isinstance(value, torch.nn.Module | functools.partial):
        return True
    if isinstance(value, BuiltinFunctionType):
        return False
    return callable(value) and not is_foreign(getattr(value, "__module__", None))


def layout(value: torch.Tensor) -> tuple[int, ...]:
    """Dims by decreasing stride; those of stride 0 are marked by their complement."""
    strides = value.stride()
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    return tuple(d if strides[d] else ~d for d in order)


def source_place(tree: Tree, index: int, axis: int) -> str:
    """A size, or the number, of a leaf as Python over the leaves `l`; axis -1: the leaf itself."""
    return f"l[{index}]" + (f".shape[{axis}]" if axis >= 0 else "")


def place(tree: Tree, index: int, axis: int) -> str:
    """The same for people."""
    return leaf_name(tree, index) + (f".shape[{axis}]" if axis >= 0 else "")


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """What the parameters are called that take this many positional arguments."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # of something built in
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind not in _BY_NAME:
            names.append(parameter.name)
    return [*names, *(f"args[{i}]" for i in range(len(names), count))][:count]


def leaf_name(tree: Tree, index: int, names: Sequence[str] = ()) -> str:
    """`args[0]`, `input_ids`, `args[1]['x']`: where a leaf is in the call.

    names: of the positional arguments, in place of `args[0]`, ...
    """

    def find(tree: Tree, text: str) -> str | None:
        if isinstance(tree, Leaf):
            return text if tree.index == index else None
        if isinstance(tree, Branch):
            for key, child in zip(tree.keys, tree.children, strict=True):
                step = f".{key}" if tree.kind == "object" else f"[{key!r}]"
                found = find(child, text + step)
                if found is not None:
                    return found
        return None

    assert isinstance(tree, Branch)
    args, kwargs = tree.children
    assert isinstance(kwargs, Branch)
    for key, child in zip(kwargs.keys, kwargs.children, strict=True):
        if (found := find(child, str(key))) is not None:
            return found
    if names:
        assert isinstance(args, Branch)
        for name, child in zip(names, args.children, strict=True):
            if (found := find(child, name)) is not None:
                return found
    return find(args, "args") or f"leaf {index}"
