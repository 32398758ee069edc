"""Gradients of a capture: its program and that of its gradients, and autograd's node between them.

AOTAutograd differentiates the graph that a capture has made, once. What Dynamo and AOTAutograd do
at each call, guards of a capture and this node do in less time. Refused, and so left to them: what
changes inputs that require gradients, results that share memory with inputs or with each other, and
functions that ask autograd for anything themselves.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import graph_compile
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import graph as autograd_graph

from tilevm.frontends import torch_gradients
from tilevm.frontends.torch_memory import Refused, storages
from tilevm.frontends.torch_program import Captured, or_eager
from tilevm.frontends.torch_recurrent import LAYERS

_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias)  # memory that nothing else has
_aten = torch.ops.aten
_SAME = (_aten.detach.default, _aten.alias.default)


@dataclass(frozen=True)
class Joint:
    """The two graphs of a function, and where what the second is given comes from.

    forward: from the inputs to what inputs that it changes become, to results, and to what else is
    kept. backward: from what is kept and the gradients of the results that have some, to those of
    the inputs; None: no result has one.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    changed: tuple[int, ...] = ()  # inputs
    wanted: tuple[bool, ...] = ()  # whether each result has a gradient
    # Of each first input of `backward`: an input, or ~ an output; and whether it is a number.
    kept: tuple[tuple[int, bool], ...] = ()
    shared: tuple[int, ...] = ()  # inputs, and ~ outputs, with whose memory others are kept
    detached: tuple[tuple[int, int], ...] = ()  # results that are others, detached, by index

    @property
    def n_outputs(self) -> int:
        """How many outputs of `forward` are not for `backward` alone."""
        return len(self.changed) + len(self.wanted)


def differentiate(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Joint:
    """The graphs of a traced one, for these FakeTensors, which say which of them require gradients.

    `gm` is used up. Raises: Refused.
    """
    found: dict[str, Any] = {}
    detached = _without_detached(gm.graph)
    gm.recompile()

    def forward(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        context = TracingContext.try_get()
        found.update(forward=graph, seen=context.fw_metadata if context else None)
        return graph.forward

    def backward(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.update(backward=graph)
        return graph.forward

    mode = next(x.fake_mode for x in inputs if isinstance(x, FakeTensor))
    settings: Any = functorch_config
    differentiated: Any = aot_module_simplified
    lazily = settings.patch(force_non_lazy_backward_lowering=True)
    with tracing(TracingContext(mode)), lazily, _floats_may_stay():
        differentiated(
            gm,
            inputs,
            forward,
            backward,
            inference_compiler=forward,
            decompositions=torch_gradients.decompositions(),
        )
    joint = _joint(found["forward"], found.get("backward"), found["seen"])
    return replace(joint, detached=detached)


@contextmanager
def _floats_may_stay() -> Iterator[None]:
    """AOTAutograd makes tensors of Python's floats, where it can.

    It cannot compute them of sizes that no argument of the graph is; programs can.
    """
    name = "_apply_tensorify_python_scalars"
    make_tensors = getattr(graph_compile, name)

    def try_to(gm: torch.fx.GraphModule) -> None:
        if not any(isinstance(n.meta.get("val"), torch.SymFloat) for n in gm.graph.nodes):
            return
        before = copy.deepcopy(gm.graph)
        try:
            make_tensors(gm)
        except KeyError:
            gm.graph = before

    with mock.patch.object(graph_compile, name, try_to):
        yield


def _without_detached(graph: torch.fx.Graph) -> tuple[tuple[int, int], ...]:
    """Take results that are others, detached, out of the graph. Pairs of such a result and that."""
    output = graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    whole = {node: i for i, node in enumerate(results) if _base(node) is node}
    detached = {
        i: whole.get(base, i) if (base := _base(node)) is not node else i
        for i, node in enumerate(results)
    }
    output.args = (tuple(x for i, x in enumerate(results) if detached[i] == i),)
    return tuple((i, base) for i, base in detached.items() if base != i)


def _base(node: Any) -> Any:
    """What a node is the same as, but for autograd."""
    while isinstance(node, torch.fx.Node) and node.target in _SAME:
        node = node.args[0]
    return node


def _joint(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule | None, seen: Any
) -> Joint:
    changed = tuple(seen.mutated_inp_runtime_indices)
    inputs = forward.graph.find_nodes(op="placeholder")
    if len(inputs) != len(seen.input_info):
        raise Refused("the graph has effects in their order")
    for info in seen.input_info:
        if info.mutates_metadata or (info.mutates_data and info.requires_grad):
            raise Refused("an input that requires gradients is changed")
    if any(x.output_type not in _OWN for x in seen.output_info):
        raise Refused("a result shares memory with an input or another, where gradients are wanted")
    wanted = tuple(bool(x.requires_grad) for x in seen.output_info)
    if backward is None:
        return Joint(forward, None, changed, (False,) * len(wanted))
    places: dict[Any, int] = {node: i for i, node in enumerate(inputs)}
    output = forward.graph.output_node()
    made: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    n = len(changed) + len(wanted)
    outputs, others = made[:n], made[n:]
    for i in range(len(changed), n):
        places.setdefault(outputs[i], ~i)
    memory: dict[int, int] = {}  # of inputs and results
    for node, place in places.items():
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        memory |= dict.fromkeys(storages(value), place)
    at: dict[str, int] = {}
    shared: set[int] = set()
    for node in others:
        base = _base(node)
        if base not in places:
            base = node
            places[node] = ~len(outputs)
            outputs.append(node)
            shared.update(memory[m] for m in storages(node.meta.get("val")) if m in memory)
        at[node.name] = places[base]
    if not shared.isdisjoint(changed):
        raise Refused("the gradient needs an input that is changed")
    output.args = (tuple(outputs),)
    forward.graph.eliminate_dead_code()
    forward.recompile()
    given = backward.graph.find_nodes(op="placeholder")
    given = given[: len(given) - sum(wanted)]
    if not {node.name for node in given} <= at.keys():
        raise Refused("the gradient needs what the function does not keep")
    kept = tuple((at[n.name], not isinstance(n.meta["val"], torch.Tensor)) for n in given)
    return Joint(forward, backward, changed, wanted, kept, tuple(shared))


def runner(joint: Joint, forward: Captured, backward: Captured | None) -> Callable[..., Any]:
    """A function of the inputs to the results, which autograd can differentiate."""
    run_backward = None
    if joint.backward is not None and backward is not None:
        run_backward = or_eager(backward, joint.backward)
    node = _Node(
        joint,
        forward.run,
        run_backward,
        [i for i, wanted in enumerate(joint.wanted) if wanted],
        [i for i, wanted in enumerate(joint.wanted) if not wanted],
    )
    apply: Any = Differentiable.apply

    def run(*inputs: Any) -> Any:
        return apply(node, *inputs)

    def run_and_detach(*inputs: Any) -> Any:
        results = iter(apply(node, *inputs))
        made: list[Any] = [None if i in others else next(results) for i in range(n)]
        return [x if i not in others else made[others[i]].detach() for i, x in enumerate(made)]

    others = dict(joint.detached)
    n = len(joint.wanted) + len(others)
    return run_and_detach if others else run


@dataclass(frozen=True)
class _Node:
    joint: Joint
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    wanted: list[int]  # results that have gradients
    plain: list[int]  # and that have none


class Differentiable(torch.autograd.Function):
    """A node of autograd that runs two programs."""

    @staticmethod
    def forward(ctx: Any, node: _Node, *inputs: Any) -> Any:
        """All results."""
        made, joint = node.forward(*inputs), node.joint
        first = len(joint.changed)
        if first:
            torch._foreach_copy_([inputs[i] for i in joint.changed], [*made[:first]])
        tensors: list[torch.Tensor] = []
        numbers: list[int | float] = []
        for place, is_number in joint.kept:
            value = inputs[place] if place >= 0 else made[~place]
            (numbers if is_number else tensors).append(value)
        ctx.save_for_backward(*tensors)
        ctx.numbers, ctx.node = numbers, node
        results = tuple(made[first : joint.n_outputs])
        if node.plain:
            ctx.mark_non_differentiable(
                *(x for i in node.plain if isinstance(x := results[i], torch.Tensor))
            )
        if joint.shared:
            shared = (inputs[i] if i >= 0 else made[~i] for i in joint.shared)
            ctx.versions = [(t, t._version) for t in shared if not t.is_inference()]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of all inputs."""
        node, tensors, numbers = ctx.node, iter(ctx.saved_tensors), iter(ctx.numbers)
        for tensor, version in ctx.versions if node.joint.shared else ():
            if tensor._version != version:
                raise RuntimeError(_CHANGED.format([*tensor.shape], tensor._version, version))
        given = [next(numbers) if is_number else next(tensors) for _, is_number in node.joint.kept]
        given += [gradients[i].contiguous() for i in node.wanted]
        if not torch.is_grad_enabled():
            return None, *node.backward(*given)
        with torch.no_grad():  # but somebody wants gradients of gradients
            made = node.backward(*given)
        start = torch.zeros((), requires_grad=True)
        once: Any = Once.apply
        return None, *(x if x is None else once(start, x) for x in made)


class Once(torch.autograd.Function):
    """What a gradient is that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`x`, which requires gradients as `start` does."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(_TWICE)


_CHANGED = (
    "a tensor of sizes {} that a gradient needs has been modified by an inplace operation: it is "
    "at version {}, and was at version {} in the forward pass"
)
_TWICE = (
    "gradients of what tilevm.compile has compiled cannot be differentiated themselves\n"
    "  call the function that was compiled, or take the gradient within it, with create_graph=True"
)


_REFUSED = [
    ("autograd", torch.autograd, "_engine_run_backward"),
    ("torch.autograd.Function", torch.autograd.Function, "apply"),
    ("hooks on what is saved", autograd_graph.saved_tensors_hooks, "__enter__"),
    # A step for each element of a sequence, whose length must then not change.
    *((f"torch.{name}", owner, name) for name in LAYERS for owner in (torch, torch._VF)),
]


@contextmanager
def asks_nothing() -> Iterator[None]:
    """While a function is traced whose graph is differentiated: autograd is not to be asked.

    A trace would take gradients for operators like others, and forget how a function of the user's
    is differentiated. Other threads ask as ever.
    """
    mine = threading.get_ident()
    with ExitStack() as stack:
        for what, owner, name in _REFUSED:
            stack.enter_context(mock.patch.object(owner, name, _refusing(owner, name, what, mine)))
        yield


def _refusing(owner: Any, name: str, what: str, thread: int) -> Any:
    original = vars(owner)[name]
    of_class = isinstance(original, classmethod)
    call = original.__func__ if of_class else original

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            raise Refused(f"the function uses {what}, where gradients are wanted")
        return call(*args, **kwargs)

    return classmethod(refuse) if of_class else refuse
