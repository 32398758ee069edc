"""Which tensors of a graph share memory: in-place operators, and outputs that are views."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tilevm.errors import CaptureError


class Refused(CaptureError):
    """A graph cannot become a program, it has to run eagerly. The message is the reason."""


class Mutates(Refused):
    """The graph changes an input, or a tensor that has views, in place."""


class OfEager(Refused):
    """Eager code raises, or computes otherwise: PyTorch's compiler would not do as it does."""


class Overlapping(OfEager):
    """What is written overlaps what is read, or itself: eager code raises, or goes in its order."""


class Lost(Refused):
    """A functional graph by PyTorch would lose elements: what lies between windows becomes 0."""


@dataclass(frozen=True)
class Given:
    """An input, among the arguments of what makes a view of another."""

    source: int  # its index


@dataclass(frozen=True)
class View:
    """An output that shares memory with an input in eager code: operators to apply to the input."""

    source: int  # input index
    steps: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]
    sizes: tuple[Any, ...] = ()


def storages(value: Any) -> list[int]:
    """What identifies the memory of each tensor in the metadata of a node."""
    found = value if isinstance(value, tuple | list) else (value,)
    return [t.untyped_storage()._cdata for t in found if _is_strided(t)]


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def first_of(leaves: Sequence[Any]) -> list[int]:
    """For each leaf the first that is the same tensor, or itself."""
    known: dict[int, int] = {}
    return [
        known.setdefault(id(leaf), index) if isinstance(leaf, torch.Tensor) else index
        for index, leaf in enumerate(leaves)
    ]


def share_memory(leaves: Sequence[Any], bound: Sequence[torch.Tensor] = ()) -> bool:
    """Whether two tensors have one storage: different ones of either, or one of each."""
    distinct = [{id(v): v for v in values if _is_strided(v)} for values in (leaves, bound)]
    every = [v for values in distinct for v in values.values()]
    starts = [at for v in every if (at := v.untyped_storage().data_ptr())]
    return len(set(starts)) < len(starts)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether the tensor is expanded: several elements are one."""
    return any(
        not stride and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def note_changes(tensors: Sequence[torch.Tensor]) -> None:
    """Let autograd know that an executable has written to the tensors."""
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def changed_inputs(graph: torch.fx.Graph) -> dict[int, tuple[str, View]]:
    """Results that share memory with an input that the graph changes in place: index, its name.

    And how they are views of it: by no step, if they are the input itself.
    Raises: Refused, if one is not made of such an input by views alone.
    """
    changed = changed_memory(graph)
    owners = {
        m: node
        for node in graph.find_nodes(op="placeholder")
        for m in storages(node.meta.get("val"))
        if m in changed
    }
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    (output,) = graph.find_nodes(op="output")
    found: dict[int, tuple[str, View]] = {}
    for index, node in enumerate(output.args[0]):
        if not isinstance(node, torch.fx.Node):
            continue
        for memory in owners.keys() & set(storages(node.meta.get("val"))):
            view = view_of(same_tensor, same_tensor(node), places)
            if view is None or view.source != places[owners[memory]] or _is_given_more(view):
                raise Refused("a result is a view of an input that is changed in place")
            found[index] = owners[memory].name, view
    return found


def _is_given_more(view: View) -> bool:
    """Whether its steps take another input."""
    return any(isinstance(argument, Given) for _, args, _ in view.steps for argument in args)


def changed_memory(graph: torch.fx.Graph) -> set[int]:
    """The memory that operators of the graph change in place."""
    return {
        memory
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        for tensor in changed_arguments(node)
        for memory in storages(tensor)
    }


def changed_arguments(node: torch.fx.Node) -> list[torch.Tensor]:
    """What a call of an operator writes to."""
    changed: list[torch.Tensor] = []

    def note(n: torch.fx.Node) -> None:
        if isinstance(value := n.meta.get("val"), torch.Tensor):
            changed.append(value)

    for argument, value in _arguments(node):
        if argument.alias_info and argument.alias_info.is_write:
            torch.fx.node.map_arg(value, note)
    return changed


def _arguments(node: torch.fx.Node) -> Iterator[tuple[Any, Any]]:
    """Arguments of a call of an operator, as its schema has them, with what is passed."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]  # an OpOverload
    for position, argument in enumerate(arguments):
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif position < len(node.args):
            yield argument, node.args[position]


def same_tensor(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose tensor itself this is: operators return an argument that they write."""
    while True:
        call, index = node, 0
        if node.target is operator.getitem:
            call, index = node.args  # type: ignore[assignment]
        if not isinstance(call.target, OpOverload) or not call.target._schema.is_mutable:
            return node
        returns = call.target._schema.returns
        result = returns[index].alias_info if index < len(returns) else None
        if result is None:
            return node
        same = [
            value
            for argument, value in _arguments(call)
            if argument.alias_info and argument.alias_info.before_set == result.before_set
        ]
        if len(same) != 1 or not isinstance(same[0], torch.fx.Node):
            return node
        node = same[0]


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
    "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout",
}  # fmt: skip


def may_alias(node: torch.fx.Node) -> bool:
    """Whether the operator returns a view, or a copy where a view is not possible."""
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable or not node.args:
        return False
    schema = node.target._schema
    return schema.name[6:] in _MAYBE_ALIAS or any(r.alias_info for r in schema.returns)


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
        # By the metadata: views that operators make without saying so, or of tensors in lists.
        self.sharing: dict[int, list[torch.fx.Node]] = {}
        for node in graph.nodes:
            for storage in storages(node.meta.get("val")):
                self.sharing.setdefault(storage, []).append(node)

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
        if may_alias(node) or any(r.alias_info for r in schema.returns):
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
        sharing = [m for s in storages(target.meta.get("val")) for m in self.sharing[s]]
        if root.op != "call_function" or any(m.op != "call_function" for m in sharing):
            raise Mutates(f"{node.target} changes an input in place")
        now = self.order[node]
        for member in dict.fromkeys([*self.members[root], *sharing]):
            if member is target or member is node or self.order[member] > now:
                continue
            same = self._identity(member, target)
            if not same and any(self.order[user] > now for user in member.users):
                raise Mutates(f"{node.target} changes a tensor that has views")

    def _identity(self, a: torch.fx.Node, b: torch.fx.Node) -> bool:
        """Whether a and b are results of in-place operators on each other: the same tensor."""
        return same_tensor(a) is same_tensor(b)


def check_in_place(graph: torch.fx.Graph) -> None:
    """Raise Refused where PyTorch would, when a result is not of the kind of numbers that is to
    hold it, or what is written overlaps what is read, and where elements that are written share
    memory, which making a graph functional does not know.
    """
    for node in graph.nodes:
        out = node.meta.get("val")
        if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
            continue
        if torch.Tag.inplace_view in node.target.tags and node.args:
            if same_tensor(node.args[0]).op == "placeholder":  # which a program leaves as it is
                raise Refused(f"{node.target} gives an argument another shape")
        if isinstance(out, torch.Tensor) and "out" in node.kwargs:
            given = node.kwargs["out"].meta["val"].shape
            if len(given) != out.dim() or not all(map(is_same_size, given, out.shape)):
                raise Refused(f"{node.target} resizes what it is given for its result")
        for written in changed_arguments(node):
            sizes = zip(written.shape, written.stride(), strict=True)
            if any(type(stride) is int and stride == 0 and size != 1 for size, stride in sizes):
                raise Overlapping(f"{node.target} writes to an expanded tensor")
        for written, read in _beside(node):
            if _overlap(written, read, node.target._schema.name[6:].rstrip("_") not in _APART):
                raise Overlapping(f"{node.target} writes to a part of what it reads")
        if not isinstance(out, torch.Tensor) or out.is_complex():
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        operands = pytree.tree_leaves((args, kwargs))
        if out.is_floating_point() and not any(map(_is_complex, operands)):
            continue
        try:
            target, _ = functional(node.target)
        except Mutates:
            continue
        made = target(*args, **kwargs)
        if not torch.can_cast(made.dtype, out.dtype):
            raise OfEager(f"{node.target} makes {made.dtype}, which {out.dtype} does not hold")


def _is_complex(value: Any) -> bool:
    """Whether it is a complex number, or a tensor of such."""
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


# Operators that write in an order of their own: they refuse even to read the very tensor.
_APART = {
    "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put",
    "index_reduce", "index_fill", "put", "gather", "index_select", "take", "cat", "stack",
    "_index_put_impl",
}  # fmt: skip


def _beside(node: torch.fx.Node) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What a call writes, with each that it reads of the same memory."""
    read: list[Any] = []

    def note(n: torch.fx.Node) -> None:
        read.append(n.meta.get("val"))

    for argument, value in _arguments(node):
        # `fill_` and its like read a `value` before they write.
        if not (argument.alias_info and argument.alias_info.is_write) and argument.name != "value":
            torch.fx.node.map_arg(value, note)
    for written, other in itertools.product(changed_arguments(node), read):
        if _is_strided(written) and _is_strided(other) and _same_storage(written, other):
            yield written, other


def _overlap(written: torch.Tensor, read: torch.Tensor, may_be_same: bool) -> bool:
    """Whether PyTorch finds that they overlap in part: it looks at dense ones. Guards keep to it.

    may_be_same: one and the same elements are no overlap.
    """
    places = [_place(written), _place(read)]
    try:
        for place in places:
            hints(place)
        if not all(map(_is_dense, (written, read))):
            return False
    except (AttributeError, TypeError):  # only the data know
        return False
    ranks_differ = len(places[0]) != len(places[1])
    if may_be_same and not ranks_differ and all(map(is_same_size, *places)):
        return False  # for all sizes
    (begin, end, *_), (other_begin, other_end, *_) = places
    if end <= other_begin or other_end <= begin:
        return False
    return not may_be_same or ranks_differ or any(map(operator.ne, *places))


def _place(x: torch.Tensor) -> list[Any]:
    """Where its elements begin and end in memory, in bytes, and its strides."""
    begin = x.storage_offset() * x.element_size()
    return [begin, begin + x.numel() * x.element_size(), *x.stride()]


def _is_dense(x: torch.Tensor) -> bool:
    """Whether the example's elements lie side by side, each in memory of its own."""
    expected = 1
    for stride, size in sorted(zip(hints(x.stride()), hints(x.shape), strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def hints(sizes: Iterable[Any]) -> list[int]:
    """Sizes as they are in the example; adds no guard."""
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]


def is_same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are one, as tracing knows them."""
    one, other = (str(n.node.expr) if isinstance(n, torch.SymInt) else str(n) for n in (a, b))
    return one == other


def check_functional(graph: torch.fx.Graph) -> None:
    """Raise Refused where making `graph` functional would lose that tensors share memory.

    PyTorch goes by the schema of operators that it keeps whole, and some views do not say so there.
    """
    changed = changed_memory(graph)
    hidden: dict[int, OpOverload] = {}
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
            continue
        if node.target is torch.ops.aten.unfold.default and changed.intersection(
            storages(node.meta.get("val"))
        ):
            raise Lost("windows of a tensor are changed in place")
        if node.target is torch.ops.aten.lift_fresh_copy.default:
            continue  # a copy, whatever the trace's own tensors are
        if not any(r.alias_info for r in node.target._schema.returns):
            given = {m for n in node.all_input_nodes for m in storages(n.meta.get("val"))}
            hidden |= dict.fromkeys(given.intersection(storages(node.meta.get("val"))), node.target)
    for memory in changed & hidden.keys():
        raise Refused(f"a tensor that {hidden[memory]} has made a view of is changed in place")


def view_of(
    resolve: Callable[[torch.fx.Node], torch.fx.Node],
    node: torch.fx.Node,
    places: dict[torch.fx.Node, int],
) -> View | None:
    """The View, if the node's memory is that of an input.

    resolve: what a node's tensor is that it returns as it was given.
    """
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
            same = _same_storage(node.meta.get("val"), source.meta.get("val"))
            if not (same and may_alias(node)):
                return None
            start = node.args[2] if str(target) == "aten.narrow.Tensor" else None
            if isinstance(start, torch.fx.Node) and start in places:
                dim, _, length = _concrete(node.args[1:])
                steps.append((target, (dim, Given(places[start]), length), {}))
            elif _like(node.args[1:]):  # view_as, expand_as, ...: another tensor's shape
                if not target._schema.name.endswith("_as"):
                    return None  # a tensor's elements, as of tensor_split
                viewed = "expand" if target._schema.name == "aten::expand_as" else "view"
                shape = list(node.meta["val"].shape)
                steps.append((getattr(torch.ops.aten, viewed).default, (shape,), {}))
            else:
                steps.append((target, _concrete(node.args[1:]), dict(_concrete_items(node.kwargs))))
        else:
            return None
        node = resolve(source)
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    return View(places[node], tuple(reversed(steps)))


def _same_storage(a: Any, b: Any) -> bool:
    one, other = storages(a), storages(b)
    return bool(one and other and one[0] == other[0])


def _like(args: Sequence[Any]) -> bool:
    nodes = (a for a in args if isinstance(a, torch.fx.Node))
    return any(isinstance(a.meta.get("val"), torch.Tensor) for a in nodes)


def _concrete(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with nodes replaced by their metadata: ints and SymInts."""
    return tuple(torch.fx.node.map_arg(a, lambda n: n.meta["val"]) for a in args)


def _concrete_items(kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in kwargs.items():
        yield name, torch.fx.node.map_arg(value, lambda n: n.meta["val"])
