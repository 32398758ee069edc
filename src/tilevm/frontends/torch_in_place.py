"""Graphs that change their inputs in place, as programs that write to them.

So are steps of optimisers. What AOTAutograd makes of such a graph copies each result at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from tilevm.frontends import torch_program
from tilevm.frontends.torch_memory import (
    Lost,
    Mutates,
    Refused,
    View,
    check_functional,
    note_changes,
    storages,
)
from tilevm.frontends.torch_program import Captured


def check(graph: torch.fx.Graph) -> None:
    """Raise Mutates where PyTorch would lose, in making `graph` functional, what shares memory;
    Lost, where it would in any case.
    """
    try:
        check_functional(graph)
    except Lost:
        raise
    except Refused as reason:
        raise Mutates(str(reason)) from None


def _memory(node: Any) -> set[int]:
    return set(storages(node.meta.get("val"))) if isinstance(node, torch.fx.Node) else set()


def capture(graph: torch.fx.Graph, inputs: Sequence[Any], knobs: dict[str, Any]) -> Captured:
    """Compile a functional graph that ends in `copy_` to its inputs; so PyTorch makes them.

    Calls whose tensors share memory with what is changed are refused.

    Raises: Refused, Mutates, if the graph's results share memory with what it changes.
    """
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    copies = [node for node in copies if node.args[0] in places]
    changed = [places[node.args[0]] for node in copies]
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    # What is copied into an input is that input from there on, in eager code.
    memory = {m for copy in copies for node in copy.args[:2] for m in _memory(node)}
    for node in results:
        if memory & _memory(node):
            raise Mutates("a result is an input that is changed in place, or a view of one")
    output.args = ([*results, *(node.args[1] for node in copies)],)
    for node in reversed(copies):
        graph.erase_node(node)
    own = len(results)
    captured = torch_program.build(
        graph, inputs, knobs, writes={own + k: i for k, i in enumerate(changed)}, apart=True
    )
    imported = captured.imported
    outputs = imported.outputs[own:]
    if any(isinstance(o, View) or imported.written[o] < 0 for o in outputs):
        raise Mutates("an input becomes a view of another, or is written by more than a program")
    run = captured.run

    def call(*args: Any) -> Any:
        written = [args[i] for i in changed]
        for tensor in written:
            tensor.data_ptr()  # ends what it shares until somebody writes
        found = run(*args)
        note_changes(written)
        return found[:own]

    return replace(captured, run=call)
