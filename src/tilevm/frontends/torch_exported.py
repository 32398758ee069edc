"""What torch.export is given for a call: a module over its leaves, and how sizes are treated."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

from tilevm.frontends import (
    torch_conversions,
    torch_effects,
    torch_joint,
    torch_memory,
    torch_raises,
    torch_remembered,
    torch_strides,
    torch_surroundings,
    torch_tracing,
    torch_tree,
)
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_outside import Outside
from tilevm.frontends.torch_tree import Branch, Constant, Tree


@dataclass(frozen=True)
class Plan:
    """How one attempt treats what is special.

    fixed: (leaf, axis) of sizes 0 and 1 that stay what they are. numbers: whether they may vary.
    unify: whether guards may make sizes equal that are equal in this call. positive: whether a
    guard excludes sizes of 0, which lets PyTorch know that x[:1] has a size of 1. oblivious:
    whether questions that sizes do not decide have an answer that is right for most: x[:n] is then
    as long as the data say; else a guard says that n is no more than x.shape[0]. conversions:
    whether Python's `int`, `float`, `len` and `round` leave symbols what they are.
    """

    fixed: frozenset[tuple[int, int]]
    numbers: bool
    unify: bool = True
    positive: bool = False
    oblivious: bool = True
    conversions: bool = True


class Seen:
    """What a trace found: export puts attributes of a module back as they were."""

    result: Any = None
    writes: list[tuple[Any, Branch]]
    changed: str = ""  # what the function changed besides its arguments
    draws: bool = False  # whether that are random numbers of Python or NumPy
    made: torch_effects.Made
    strides: bool = False  # whether it read strides of tensors
    data: bool = False  # whether it read `data` of tensors
    transforms: bool = False  # whether it has transforms of torch.func
    reads_items: bool = False  # whether it read elements of tensors as numbers
    compares_identity: bool = False  # whether its code has `is True` or `is False`
    wants_gradients: bool = False  # whether it makes tensors that require gradients
    converts: bool = False  # whether it calls what `torch_conversions` has instead
    missed: Sequence[torch.Tensor] = ()  # that it needs and has not


class Call(nn.Module):
    """What is exported: the function over leaves. Keeps the structure of the result."""

    function: Callable[..., Any]
    tree: Tree
    constants: list[Any]
    given: list[tuple[int, bool]]  # per traced leaf: its index, and whether it is a float
    held: dict[int, str]  # names of parameters and buffers, by id
    outside: Outside
    seen: Seen
    conversions: bool  # as in Plan
    gradients: bool  # whether calls want some

    def __init__(
        self,
        fn: Callable[..., Any],
        modules: Mapping[str, nn.Module],
        tree: Tree,
        leaves: list[Any],
        outside: Outside,
        conversions: bool = True,
        gradients: bool = False,
    ) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(f"m_{name}", module)
        outside.register(self)
        self.__dict__["held"] = {id(t): name for name, t in self._held()}
        self.__dict__["outside"] = outside
        self.__dict__["function"] = fn
        self.__dict__["tree"] = tree
        self.__dict__["constants"] = leaves
        self.__dict__["given"] = []
        self.__dict__["seen"] = Seen()
        self.__dict__["conversions"] = conversions
        self.__dict__["gradients"] = gradients

    def forward(self, *traced: Any) -> tuple[Any, ...]:
        """All tensors of the result and of what the function wrote to its arguments."""
        leaves = list(self.constants)
        for (index, is_float), value in zip(self.given, traced, strict=True):
            leaves[index] = torch_tracing.number(value.item() if is_float else value)
            _liken(leaves[index], self.constants[index])
        leaves = [leaves[first] for first in torch_memory.first_of(self.constants)]
        args, kwargs = torch_tree.build(self.tree, leaves)
        before: dict[tuple[Any, ...], Any] = dict(torch_tree.containers((args, kwargs)))
        known = {id(value): path for path, value in before.items() if path}
        state = {path: _shallow(value) for path, value in before.items()}
        kinds = {path: type(value) for path, value in before.items()}
        modules = list(self.modules())[1:]
        called = torch_surroundings.functions_of(self.function, modules)
        around = torch_effects.Before(self.function, modules, called)
        now = dict(self._held())
        codes = [function.__code__ for function in called]
        self.seen.compares_identity = any(map(torch_raises.compares_identity, codes))
        outside = self.outside.traced({at: now[name] for at, name in self.held.items()})
        self.seen.missed = outside.missed
        ending = torch_tracing.ends_at_other_branches(list(self._sizes(traced)))
        try:
            converting = called if self.conversions else ()
            with torch_conversions.symbolic(converting) as self.seen.converts:
                with torch_tracing.no_seeds(), torch_strides.reads() as reads, outside:
                    asks = torch_joint.asks_nothing() if self.gradients else nullcontext()
                    with torch_raises.checked(), asks, ending:
                        with torch_remembered.apart(around, called):
                            result = self.function(*args, **kwargs)
        finally:
            self.seen.changed = around.undo(outside.known())
            self.seen.draws = bool(around.draws_from)
            self.seen.data = outside.reads_data
            self.seen.transforms = outside.transforms
            self.seen.reads_items = outside.reads_items
            self.seen.wants_gradients = outside.wants_gradients
        out: list[Any] = []
        tree = torch_tree.flatten(result, out, known)
        _refuse_hidden(tree)
        writes = []
        for path, value in before.items():
            if type(value) is not kinds[path]:
                raise Refused("the function changes the class of an argument")
            if not path or _shallow_equal(_shallow(value), state[path]):
                continue
            _, keys, children = torch_tree.parts(value) or ("", (), ())
            inner = {k: v for k, v in known.items() if v != path}
            built = tuple(torch_tree.flatten(child, out, inner) for child in children)
            kind = (torch_tree.parts(value) or ("",))[0]
            if kind == "object" and keys[: len(state[path][0])] != state[path][0]:
                raise Refused("the function deletes attributes of an argument")
            writes.append((path, Branch(kind, type(value), keys, built)))
        self.seen.result, self.seen.writes = tree, writes
        self.seen.strides = reads.any
        given = (*traced, *self.parameters(), *self.buffers())
        self.seen.made = torch_effects.Made(given)
        leaf_of = [self.constants[index] for index, _ in self.given]
        if any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad != t.requires_grad
            for leaf, t in zip(leaf_of, traced, strict=True)
        ):
            raise Refused("the function changes whether an argument requires gradients")
        kept = set(map(id, given))
        made = (t for t in out if isinstance(t, torch.Tensor) and id(t) not in kept)
        if any(t.requires_grad and (t.is_leaf or not self.gradients) for t in made):
            raise Refused("the function returns a tensor that it lets require gradients")
        out = [outside.stand_in(value) for value in out]
        if outside.missed:
            raise Refused("the function has tensors that no argument brings")
        return tuple(out)

    def _sizes(self, traced: Sequence[Any]) -> Iterator[tuple[Any, int, tuple[int, int]]]:
        """Sizes of a trace, with those of the call, and where they are."""
        for (index, _), value in zip(self.given, traced, strict=True):
            if isinstance(leaf := self.constants[index], torch.Tensor):
                for axis, number in enumerate(leaf.shape):
                    yield value.shape[axis], number, (index, axis)

    def _held(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.named_parameters()
        yield from self.named_buffers()


def _liken(traced: Any, leaf: Any) -> None:
    """Let a tensor of a trace answer as that of the call, which may be a parameter."""
    if isinstance(leaf, torch.Tensor):
        traced.requires_grad_(leaf.requires_grad)
        traced._is_param = isinstance(leaf, nn.Parameter)


def _refuse_hidden(tree: Tree) -> None:
    """Raise Refused where a result may hold, or come to hold, tensors that were not found: a
    generator, a set, a coroutine.
    """
    if isinstance(tree, Branch):
        for child in tree.children:
            _refuse_hidden(child)
    elif isinstance(tree, Constant):
        value = tree.value
        if isinstance(value, Coroutine):
            value.close()  # nobody is going to wait for it
        later = isinstance(value, Iterable | Awaitable | AsyncIterable)
        plain = isinstance(value, torch_tree.ATOMS) or not later
        if not plain or isinstance(value, FunctionType):
            raise Refused(f"a result is a {type(value).__name__}")


def _shallow(value: Any) -> tuple[Any, ...]:
    _, keys, children = torch_tree.parts(value) or ("", (), ())
    return (keys, children)


def _shallow_equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return (
        a[0] == b[0]
        and len(a[1]) == len(b[1])
        and all(x is y for x, y in zip(a[1], b[1], strict=True))
    )
