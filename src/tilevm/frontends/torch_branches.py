"""Graphs within a graph: `torch.cond` and `torch.while_loop`.

Each inner graph is an executable of its own, compiled with the outer one, which chooses between
them and runs them on its own memory: sizes and buffers of a branch that is not taken cost nothing.
Where a graph takes or makes what only Python hands over, as complex numbers, the choice is a
call-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from tilevm.frontends import torch_callouts, torch_data
from tilevm.frontends.torch_imported import short_name
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer
    from tilevm.frontends.torch_program import Captured

Run = Callable[..., Any]


def branch(b: Importer, name: str, arguments: list[Any], value: Any) -> list[Tensor | None]:
    """The results of an operator that takes graphs, None for ints. Raises: Refused."""
    make = _OPERATORS.get(name)
    if make is None:
        raise Refused(f"the graph calls {name}")
    nest = make(b, *arguments)
    inputs = [*nest.decides]
    for operand in nest.operands:
        if isinstance(operand, Tensor):
            inputs.append(operand.id)
        elif _is_int(operand):
            inputs.append(b.number(operand))
        else:
            raise Refused(f"{name} takes a {type(operand).__name__}")
    for graph in nest.graphs:
        b.result.draws |= graph.imported.draws
        b.result.brings |= graph.imported.brings
        b.result.callouts += graph.imported.callouts
    nest.run.__name__ = nest.run.__qualname__ = name
    results = list(value)
    fakes = [_INT if _is_int(result) else result for result in results]
    if all(_is_native(graph) for graph in nest.graphs):
        parts = []
        for graph in nest.graphs:
            places = [*range(len(nest.operands))]
            for constant in graph.fixed.values():
                places.append(len(inputs) - len(nest.decides))
                inputs.append(b.constant(constant))
            parts.append((graph.executable, [places[i] for i in graph.imported.passed]))
        b.result.nests[len(b.result.targets)] = (nest.kind, parts)
        made = torch_callouts.append(b, nest.run, name, inputs, fakes)
    else:
        reason = "it takes or makes what is no tensor of a kernel's"
        made = torch_callouts.call(b, nest.run, name, reason, inputs, fakes)
    for tensor, result in zip(made, results, strict=True):
        if isinstance(result, torch.SymInt):
            torch_data.read_int(b, tensor.id, result)
    # Who uses an int reads the metadata.
    return [None if _is_int(r) else tensor for tensor, r in zip(made, results, strict=True)]


_INT = torch.empty((), dtype=torch.int64, device="meta")  # as what graphs inside give ints


def _is_int(value: Any) -> bool:
    return isinstance(value, torch.SymInt | int) and not isinstance(value, bool)


def _is_native(graph: Captured) -> bool:
    """Whether the core alone can run a graph inside: it takes and gives tensors as they are."""
    imported = graph.imported
    results = imported.outputs == list(range(len(imported.outputs)))
    made: Any = graph.graph.output_node().args[0]
    nodes = made if isinstance(made, list | tuple) else (made,)
    fakes = [node.meta.get("val") if isinstance(node, torch.fx.Node) else node for node in nodes]
    known = all(not isinstance(f, torch.Tensor) or short_name(f.dtype) != "opaque" for f in fakes)
    complexes = imported.complex_inputs or imported.complex_outputs
    return results and known and not (complexes or imported.float_inputs)


def _inner(b: Importer, graph: torch.fx.GraphModule, operands: list[Any]) -> Captured:
    """An inner graph, which takes the operands and returns a tuple."""
    nodes = graph.graph.find_nodes(op="placeholder")
    # An int that a loop carries is one of its own inside.
    inputs = [
        x.fake if isinstance(x, Tensor) else node.meta.get("val", x)
        for x, node in zip(operands, nodes, strict=True)
    ]
    known = (b.values.get(node) for node in b.unchanged)
    held = {value.id for value in known if isinstance(value, Tensor)}
    unchanged = {i for i, x in enumerate(operands) if isinstance(x, Tensor) and x.id in held}
    return b.compile_inner(graph.graph, inputs, unchanged)


@dataclass(frozen=True)
class _Nest:
    """What an operator consists of. run: the same in Python. decides: inputs before operands."""

    kind: str
    run: Run
    decides: list[int]
    operands: list[Any]
    graphs: tuple[Captured, Captured]


def _cond(b: Importer, decide: Any, then: Any, otherwise: Any, operands: Any) -> _Nest:
    decides = decide.id if isinstance(decide, Tensor) else torch_data.truth(b, decide)
    graphs = (_inner(b, then, list(operands)), _inner(b, otherwise, list(operands)))
    run_then, run_otherwise = (graph.run for graph in graphs)

    def cond(decided: torch.Tensor, *values: Any) -> Any:
        return run_then(*values) if decided.item() else run_otherwise(*values)

    return _Nest("branch", cond, [decides], list(operands), graphs)


def _while_loop(b: Importer, test: Any, body: Any, carried: Any, others: Any) -> _Nest:
    operands = [*carried, *others]
    graphs = (_inner(b, test, operands), _inner(b, body, operands))
    run_test, run_body = (graph.run for graph in graphs)
    n = len(carried)

    def while_loop(*values: Any) -> Any:
        # A body that is never run returns what it was given, which is not ours to give away.
        state: Any = [x.clone() if isinstance(x, torch.Tensor) else x for x in values[:n]]
        while run_test(*state, *values[n:])[0].item():
            state = run_body(*state, *values[n:])
        return tuple(state)

    return _Nest("repeat", while_loop, [], operands, graphs)


_OPERATORS: dict[str, Callable[..., _Nest]] = {"cond": _cond, "while_loop": _while_loop}
