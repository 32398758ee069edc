"""Which tensors of a graph share memory: in-place operators, and outputs that are views."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._ops import OpOverload

from tilevm.errors import CaptureError

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer


class Refused(CaptureError):
    """A graph cannot become a program, it has to run eagerly. The message is the reason."""


class Mutates(Refused):
    """The graph changes an input, or a tensor that has views, in place."""


@dataclass(frozen=True)
class View:
    """An output that shares memory with an input in eager code: operators to apply to the input."""

    source: int  # input index
    steps: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]
    sizes: tuple[Any, ...] = ()


def functional(target: OpOverload) -> tuple[OpOverload, str]:
    """The operator that returns what an in-place one leaves in its argument."""
    name = target._schema.name[6:]
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    overload = target._schema.overload_name or "default"
    if packet is None or overload not in packet.overloads():
        raise Mutates(f"{target} changes a tensor in place")
    result: OpOverload = getattr(packet, overload)
    return result, str(result)


# Operators whose result may share memory with their first argument, though the schema is silent.
_MAYBE_ALIAS = {
    "reshape", "contiguous", "to", "type_as", "flatten", "expand_as", "view_as", "dropout",
    "reshape_as", "float", "matrix_H", "_to_copy", "numpy_T", "unflatten", "lift_fresh",
}  # fmt: skip


class Mutations:
    """Which in-place operators only change an intermediate that nobody else sees."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.base: dict[torch.fx.Node, torch.fx.Node] = {}
        self.members: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        self.any = False
        for node in graph.nodes:
            root = self._root(node)
            self.base[node] = root
            self.members.setdefault(root, []).append(node)

    def _root(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.op != "call_function" or not node.args:
            return node
        source = node.args[0]
        if node.target is operator.getitem:
            return self.base.get(source, node) if isinstance(source, torch.fx.Node) else node
        if not isinstance(node.target, OpOverload) or not isinstance(source, torch.fx.Node):
            return node
        schema = node.target._schema
        self.any = self.any or schema.is_mutable
        aliases = any(r.alias_info is not None for r in schema.returns)
        if aliases or schema.name[6:] in _MAYBE_ALIAS:
            return self.base.get(source, node)
        return node

    def mutated(self, node: torch.fx.Node) -> torch.fx.Node:
        """The argument that an in-place operator changes."""
        argument = node.args[0]
        assert isinstance(argument, torch.fx.Node)
        return argument

    def check(self, node: torch.fx.Node) -> None:
        """Raise Refused unless only `node`'s argument and result see the change."""
        schema = node.target._schema  # type: ignore[union-attr]  # an OpOverload
        changed = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        if len(changed) != 1 or (
            changed[0] is not schema.arguments[0] and (changed[0].name != schema.arguments[0].name)
        ):
            raise Mutates(f"{node.target} changes several tensors in place")
        target = self.mutated(node)
        root = self.base[target]
        if root.op != "call_function":
            raise Mutates(f"{node.target} changes an input in place")
        now = self.order[node]
        for member in self.members[root]:
            if member is target or member is node or self.order[member] > now:
                continue
            same = self._identity(member, target)
            if not same and any(self.order[user] > now for user in member.users):
                raise Mutates(f"{node.target} changes a tensor that has views")

    def _identity(self, a: torch.fx.Node, b: torch.fx.Node) -> bool:
        """Whether a and b are results of in-place operators on each other: the same tensor."""
        return self._same_tensor(a) is self._same_tensor(b)

    def _same_tensor(self, node: torch.fx.Node) -> torch.fx.Node:
        while (
            isinstance(node.target, OpOverload)
            and node.target._schema.is_mutable
            and isinstance(node.args[0], torch.fx.Node)
        ):
            node = node.args[0]
        return node


def view_of(
    importer: Importer, node: torch.fx.Node, places: dict[torch.fx.Node, int]
) -> View | None:
    """The View, if the node's memory is that of an input."""
    steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
    while node not in places:
        target = node.target
        if node.op != "call_function" or not node.args:
            return None
        source = node.args[0]
        if not isinstance(source, torch.fx.Node):
            return None
        if target is operator.getitem:
            steps.append((operator.getitem, (node.args[1],), {}))
        elif isinstance(target, OpOverload) and not target._schema.is_mutable:
            aliases = any(r.alias_info is not None for r in target._schema.returns)
            if not aliases and target._schema.name[6:] not in _MAYBE_ALIAS:
                return None
            if not _same_storage(node.meta.get("val"), source.meta.get("val")):
                return None
            if _like(node.args[1:]):  # view_as, expand_as, type_as, ...: another tensor's shape
                viewed = "expand" if target._schema.name == "aten::expand_as" else "view"
                shape = list(node.meta["val"].shape)
                steps.append((getattr(torch.ops.aten, viewed).default, (shape,), {}))
            else:
                steps.append((target, _concrete(node.args[1:]), dict(_concrete_items(node.kwargs))))
        else:
            return None
        node = importer.resolve(source)
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    return View(places[node], tuple(reversed(steps)))


def _same_storage(a: Any, b: Any) -> bool:
    first = a[0] if isinstance(a, list | tuple) and a else a
    if not isinstance(first, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return bool(first.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _like(args: Sequence[Any]) -> bool:
    nodes = (a for a in args if isinstance(a, torch.fx.Node))
    return any(isinstance(a.meta.get("val"), torch.Tensor) for a in nodes)


def _concrete(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with nodes replaced by their metadata: ints and SymInts."""
    return tuple(torch.fx.node.map_arg(a, lambda n: n.meta["val"]) for a in args)


def _concrete_items(kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in kwargs.items():
        yield name, torch.fx.node.map_arg(value, lambda n: n.meta["val"])
