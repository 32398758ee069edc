"""Operators that are there for what they do, such as raise an error, in AOTAutograd's graphs.

`with_effects(token, operator, ...)` calls the operator and makes a token, which the next one takes
and the graph returns, so that all run, in order. The first token is an input, for which None is
passed. Here a token is an empty tensor that the call-out returns besides the operator's results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._ops import OpOverload

from tilevm.frontends import torch_callouts
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

with_effects = torch.ops.higher_order.with_effects


def is_token(node: torch.fx.Node) -> bool:
    """Whether an input of a graph is one."""
    users = list(node.users)
    return bool(users) and all(
        user.target is with_effects and user.args[0] is node for user in users
    )


def call(b: Importer, node: torch.fx.Node, value: Any) -> tuple[Any, ...]:
    """The token and the operator's results. Raises: Refused."""
    token, target, *given = node.args
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        raise Refused(f"the graph calls with_effects of {target}")
    function, inputs, _ = torch_callouts.bind(
        b, target, str(target), b.arguments(target, given, node.kwargs)
    )
    count = len(inputs)
    assert isinstance(token, torch.fx.Node)
    before = b.values.get(b.resolve(token))
    if isinstance(before, Tensor):
        inputs.append(before.id)

    def run(*values: Any) -> Any:
        results = function(*values[:count])
        if results is None:
            return torch.empty(0)
        return torch.empty(0), *(results if isinstance(results, tuple | list) else [results])

    run.__name__ = run.__qualname__ = str(target)
    fakes = [fake for fake in value if fake is not None]
    made = iter(torch_callouts.call(b, run, str(target), "it has an effect", inputs, fakes))
    return tuple(None if fake is None else next(made) for fake in value)
