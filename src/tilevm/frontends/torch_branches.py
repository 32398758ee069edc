"""Graphs within a graph: `torch.cond` and `torch.while_loop`.

Each inner graph is a program of its own, compiled with the outer one. What chooses between them is
a call-out, so that sizes and buffers of a branch that is not taken cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from tilevm.frontends import torch_callouts
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

Run = Callable[..., Any]


def branch(b: Importer, name: str, arguments: list[Any], value: Any) -> list[Tensor]:
    """The results of an operator that takes graphs. Raises: Refused."""
    make = _OPERATORS.get(name)
    if make is None:
        raise Refused(f"the graph calls {name}")
    choose, operands = make(b, *arguments)
    inputs: list[int] = []
    for operand in operands:
        if isinstance(operand, Tensor):
            inputs.append(operand.id)
        elif isinstance(operand, torch.SymInt | int) and not isinstance(operand, bool):
            inputs.append(b.number(operand))
        else:
            raise Refused(f"{name} takes a {type(operand).__name__}")
    choose.__name__ = choose.__qualname__ = name
    return torch_callouts.call(b, choose, name, "it chooses as it runs", inputs, list(value))


def _inner(b: Importer, graph: torch.fx.GraphModule, operands: list[Any]) -> Run:
    """What runs an inner graph: it takes the operands, and returns a tuple."""
    return b.compile_inner(graph.graph, [x.fake if isinstance(x, Tensor) else x for x in operands])


def _cond(
    b: Importer, decide: Any, then: Any, otherwise: Any, operands: Any
) -> tuple[Run, list[Any]]:
    if not isinstance(decide, Tensor):
        raise Refused("a branch depends on sizes alone")
    run_then, run_otherwise = (_inner(b, graph, list(operands)) for graph in (then, otherwise))

    def cond(decided: torch.Tensor, *values: Any) -> Any:
        return run_then(*values) if decided.item() else run_otherwise(*values)

    return cond, [decide, *operands]


def _while_loop(
    b: Importer, test: Any, body: Any, carried: Any, others: Any
) -> tuple[Run, list[Any]]:
    operands = [*carried, *others]
    run_test, run_body = (_inner(b, graph, operands) for graph in (test, body))
    n = len(carried)

    def while_loop(*values: Any) -> Any:
        # A body that is never run returns what it was given, which is not ours to give away.
        state: Any = [x.clone() if isinstance(x, torch.Tensor) else x for x in values[:n]]
        while run_test(*state, *values[n:])[0].item():
            state = run_body(*state, *values[n:])
        return tuple(state)

    return while_loop, operands


_OPERATORS: dict[str, Callable[..., tuple[Run, list[Any]]]] = {
    "cond": _cond,
    "while_loop": _while_loop,
}
