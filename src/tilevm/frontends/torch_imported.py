"""What the import of a graph gives: a program, its outputs, and what calling it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from tilevm.frontends import torch_complex, torch_data
from tilevm.frontends.torch_memory import Refused, View, hints, may_alias, storages, view_of
from tilevm.frontends.torch_ops import Tensor
from tilevm.frontends.torch_transforms import PARTS, is_complex
from tilevm.ir.types import DTYPES
from tilevm.runtime import program as runtime

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer


# `branch` or `repeat`, and of each executable which operands it takes: see core/host/nest.h.
Nest = tuple[str, list[tuple[Callable[..., Any], list[int]]]]


class FloatInput:
    """Stands for an input that is a Python float: the graph has a tensor and reads its item."""


@dataclass(frozen=True)
class CallOut:
    """An operator that stays PyTorch's: which, why, where."""

    name: str
    reason: str
    line: str | None


@dataclass
class Imported:
    """A program and what calling it takes.

    `memory`: for each input and each output of the program, what identifies the memory that it has
    in eager code.
    `written`: per output of the program the input of the graph that it is written to, or -1.
    `outputs`: per output of the graph, an index into the program's outputs, or a View of an input,
    or ("size", expression), a Python int, or ("item", index), an output that is a Python number, or
    ("conj", index), of which it is the conjugate, or ("const", value), or ("part", (index,
    metadata)), a view of an output.
    """

    program: runtime.Program | None
    targets: list[Callable[..., Any]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # of targets: as `torch_callouts.bind`
    nests: dict[int, Nest] = field(default_factory=dict)  # by target, what runs instead of it
    callouts: list[CallOut] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    orders: list[Sequence[int] | None] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    complex_inputs: list[int] = field(default_factory=list)  # which of the program are complex
    complex_outputs: list[int] = field(default_factory=list)
    memory: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    int_symbols: dict[int, str] = field(default_factory=dict)
    float_inputs: list[int] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)  # which inputs of the graph the program has
    assumed: list[tuple[Any, str]] = field(default_factory=list)  # expression, test: (s, "!= 1")
    from_start: set[int] = field(default_factory=set)  # inputs that begin where their memory does
    draws: bool = False  # whether it draws random numbers
    brings: bool = False  # whether data bring sizes
    pinned: list[str] = field(default_factory=list)  # what calls check of sizes of data
    refuses: int = 0  # what they check of other data

    def compile(
        self,
        knobs: Mapping[str, Any],
        frozen: Collection[int] = (),
        detached: bool = False,
        apart: bool = False,
        nested: bool = False,
    ) -> Callable[..., Any]:
        """The executable, with these knobs of its own. The program is used up.

        frozen: inputs of the graph whose elements do not change. detached: results that share
        memory are no views of each other, as autograd sees it. apart: inputs that are written
        must share no memory with others. nested: a step of another executable may run it.
        """
        program, self.program = self.program, None
        assert program is not None
        number: dict[int, int] = {}
        places = {place: i for i, place in enumerate(self.passed)}
        groups = [[number.setdefault(m, len(number)) for m in side] for side in self.memory]
        # The core tries PyTorch's functions when it first needs them: on real tensors.
        with _disable_current_modes():
            return runtime.compile_program(
                program,
                self.targets,
                sources=self.sources,
                framework="torch",
                input_names=self.input_names,
                int_symbols=self.int_symbols,
                output_orders=self.orders,
                whole_outputs=self.whole,
                memory_groups=(groups[0], groups[1]),
                frozen=[i for i, place in enumerate(self.passed) if place in frozen],
                written_to=[places.get(place, -1) for place in self.written],
                apart=apart,
                complex_inputs=self.complex_inputs,
                complex_outputs=self.complex_outputs,
                nested=nested,
                nests=self.nests,
                detached=detached,
                **knobs,
            )


def short_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32, and for its pairs; `opaque` for what kernels do not know."""
    name = str(PARTS.get(dtype, dtype))[6:]
    return name if name in DTYPES else "opaque"


def order_of(value: torch.Tensor) -> list[int] | None:
    """Dims outermost to innermost if the layout is dense, else None."""
    try:
        shape, strides = hints(value.shape), hints(value.stride())
    except (AttributeError, TypeError):
        return None
    dims = [d for d, n in enumerate(shape) if n != 1]
    order = sorted(dims, key=lambda d: -strides[d])
    expected = 1
    for d in reversed(order):
        if strides[d] != expected:
            return None
        expected *= shape[d]
    if order == dims:
        return list(range(len(shape)))
    inner = set(order)
    return [d for d in range(len(shape)) if d not in inner] + order


def _source(node: torch.fx.Node) -> Any:
    """Metadata of a node's first argument."""
    return node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None


def memory_of(value: Any, node: torch.fx.Node) -> int:
    """What identifies the memory of a value; `node` where it has none to share."""
    return next(iter(storages(value)), id(node))


def outputs(
    importer: Importer,
    results: Sequence[Any],
    views: bool = True,
    writes: Mapping[int, int] | None = None,
    ordered: int | None = None,
    inner: bool = False,
    kept: Mapping[int, View] | None = None,
) -> None:
    """Append the graph's outputs. With `views`, those that alias an input stay views of it.

    writes: results, by index, that are written to an input. ordered: how many results have to lie
    in memory as in eager code; None: all. inner: all are tensors, ints of int64 and conditions too.
    kept: results, by index, that are views of an input whatever the graph makes them of.
    """
    result = importer.result
    places = {node: i for i, node in enumerate(importer.graph.find_nodes(op="placeholder"))}
    given = {m for node in places for m in storages(node.meta.get("val"))}
    seen: dict[tuple[int, int], int] = {}
    parts: list[tuple[int, int]] = []  # places of views, and of what they are views of

    def number(value: int, node: Any) -> int:
        """An output that no other is; its place."""
        importer.program.output(value)
        seen[len(seen), 0] = len(seen)
        result.memory[1].append(id(node))
        result.orders.append(None)
        result.whole.append(False)
        result.written.append(-1)
        return len(seen) - 1

    for position, item in enumerate(results):
        if kept and position in kept:
            result.outputs.append(kept[position])
            continue
        target = (writes or {}).get(position, -1)
        known = item.meta.get("val") if isinstance(item, torch.fx.Node) else item
        if inner and isinstance(known, torch.SymBool | bool):
            result.outputs.append(number(torch_data.truth(importer, known), item))
            continue
        if inner and isinstance(known, torch.SymInt | int):
            whole = importer.cast(importer.number(known), torch.int64)
            result.outputs.append(number(whole, item))
            continue
        if not isinstance(item, torch.fx.Node):
            result.outputs.append(("const", item))
            continue
        node = importer.resolve(item)
        view = view_of(importer.resolve, node, places) if views else None
        if view is not None:
            result.outputs.append(view)
            continue
        value = importer.values.get(node)
        base = None if inner else _whole_of(importer, node, results)
        if base is not None:
            parts.append((len(result.outputs), base))
            result.outputs.append(("part", (-1, node.meta["val"])))
            continue
        if isinstance(value, Tensor):
            # Not the value's own metadata: a copy is the same value with memory of its own.
            fake = node.meta["val"]
            if short_name(fake.dtype) == "opaque":
                target = -1  # the core does not know how large its elements are
            lazily = is_complex(fake) and fake.is_conj() and target < 0
            if lazily:  # in memory as in eager code, which conjugates when elements are read
                value = torch_complex.conj(importer, fake, value)
            memory = memory_of(fake, node)
            if views and memory in given:
                raise Refused(f"a result is a view of an input that {node.target} makes")
            if views and may_alias(node) and given.intersection(storages(_source(node))):
                for size in _source(node).shape:  # with a size of 1 it may be no copy
                    importer.not_one(size)
            place = (value.id, memory if target < 0 else ~target)
            if place not in seen:
                if is_complex(fake):
                    result.complex_outputs.append(len(seen))
                seen[place] = len(seen)
                importer.program.output(value.id)
                result.memory[1].append(memory)
                asked = ordered is None or position < ordered
                order = order_of(fake) if asked else None
                last = [fake.dim()] if is_complex(fake) else []
                result.orders.append(None if order is None else [*order, *last])
                result.whole.append(not any(type(s) is int and s == 0 for s in fake.stride()))
                result.written.append(target)
            result.outputs.append(("conj", seen[place]) if lazily else seen[place])
            continue
        symbolic = isinstance(known, torch.SymInt | torch.SymBool | torch.SymFloat)
        if symbolic and torch_data.is_number(importer, known):
            if isinstance(known, torch.SymFloat) and not known.node.expr.is_Symbol:
                raise torch_data.UsedInPython("a float that Python computes from data is a result")
            is_bool = isinstance(known, torch.SymBool)
            found = torch_data.truth(importer, known) if is_bool else importer.number(known)
            if isinstance(known, torch.SymFloat):
                found = importer.cast(found, torch.float64)  # which Python's is
            result.outputs.append(("item", number(found, node)))
        elif symbolic:
            result.outputs.append(("size", known))
        elif isinstance(known, int | float | bool) or known is None:
            result.outputs.append(("const", known))
        else:
            raise Refused(f"output {node} is a {type(known).__name__}")
    for part, base in parts:
        result.outputs[part] = ("part", (result.outputs[base], result.outputs[part][1][1]))


# What only moves elements: a program may find that it is what it is made of.
_MOVING = {
    "cat", "clone", "constant_pad_nd", "flip", "gather", "index", "index_select", "lift_fresh",
    "repeat", "roll", "slice_scatter", "stack", "unsafe_index",
}  # fmt: skip


def _is_copy(importer: Importer, node: torch.fx.Node) -> bool:
    """Whether a node's value is that of an operand, or may become it, without its memory."""
    name = node.target._schema.name[6:] if isinstance(node.target, OpOverload) else ""
    if name.strip("_") in _MOVING or name.endswith("_copy"):
        return True
    value, *operands = (
        importer.values.get(importer.resolve(n)) for n in (node, *node.all_input_nodes)
    )
    return isinstance(value, Tensor) and any(
        isinstance(operand, Tensor) and operand.id == value.id for operand in operands
    )


def _depends_on_data(importer: Importer, *nodes: torch.fx.Node) -> bool:
    """Whether only the data know where one of these lies in its memory."""
    numbers: list[Any] = []
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return True
        numbers += [*value.shape, value.storage_offset()]
    return any(isinstance(n, torch.SymInt) and importer.sizes.depends_on_data(n) for n in numbers)


# Views of which rows make copies.
_COPIED = {"aten::diagonal", "aten::as_strided", "aten::unfold"}


def _whole_of(importer: Importer, node: torch.fx.Node, results: Sequence[Any]) -> int | None:
    """Of such a view, or of one of a copy, the place among the results of what has all of its
    memory, if there is one.

    The view is made anew of that, with the strides of this one.
    """
    source, copied = node, False
    while source.args and (source.target is getitem or getattr(source.target, "is_view", False)):
        copied |= isinstance(source.target, OpOverload) and source.target._schema.name in _COPIED
        source = source.args[0]  # type: ignore[assignment]  # a tensor's
    if source is node or not (copied or _is_copy(importer, source)):
        return None
    if not copied and _depends_on_data(importer, node, source):  # then it is a copy of its own
        return None
    memory = storages(node.meta["val"])
    for place, other in enumerate(results):
        fake = other.meta.get("val") if isinstance(other, torch.fx.Node) else None
        if other is node or not isinstance(fake, torch.Tensor) or storages(fake) != memory:
            continue
        value = importer.values.get(importer.resolve(other))
        whole = isinstance(value, Tensor) and not is_complex(fake) and order_of(fake) is not None
        if whole and importer.resolve(other) is source and fake.storage_offset() == 0:
            return place
    return None
