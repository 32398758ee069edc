"""Regions with a mode of their own: `torch.autocast`, `torch.enable_grad` and `torch.no_grad`.

Export makes a graph within the graph of each. Where nothing wants gradients, what a mode says of
them is nothing to a capture; what autocast casts is traced, and the region is a part like others.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator

from tilevm.frontends.torch_memory import Refused

_GRADIENTS = "wrap_with_set_grad_enabled"
_AUTOCAST = "wrap_with_autocast"


def check(
    gm: torch.fx.GraphModule, has_grad: bool, makes: bool, differentiated: bool = False
) -> None:
    """Where gradients are enabled, nothing may require them: no capture has these.

    Export forgets modes of gradients within autocast, but ends a region where one begins.

    has_grad: whether they are where the function is called, with nothing that requires them.
    makes: whether the function makes tensors that require them.
    differentiated: whether the graph will be, with the modes of its regions.

    Raises: Refused.
    """
    if has_grad and makes:
        raise Refused("the function makes tensors that require gradients")
    if differentiated:
        if any(_name(node) == _AUTOCAST for node in _all_nodes(gm)):
            raise Refused("autocast is enabled within, where gradients are wanted")
        return
    given = gm.graph.find_nodes(op="placeholder")
    enabled = False
    for node in _all_nodes(gm):
        if _name(node) == _GRADIENTS and node.args[0]:
            # What is computed outside wants none. Of a region within another, anything may come in.
            inputs = node.args if node.graph is gm.graph else given
            enabled |= makes or any(map(_requires, inputs))
    parted = any(_is_parted(m) for m in gm.modules() if isinstance(m, torch.fx.GraphModule))
    if not has_grad and (enabled or parted):
        raise Refused("gradients may be enabled within, and are not where it is called")


def _requires(argument: Any) -> bool:
    """Whether PyTorch would differentiate by a tensor."""
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_parted(gm: torch.fx.GraphModule) -> bool:
    """Whether two regions with the same autocast follow each other."""
    before: tuple[Any, ...] = ()
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        mode = node.args[:4] if _name(node) == _AUTOCAST else ()
        if mode and mode == before:
            return True
        before = mode
    return False


def inline(gm: torch.fx.GraphModule) -> None:
    """Put regions in place, in a graph that export made, and in what they hold."""
    for node in list(gm.graph.nodes):
        name = _name(node)
        if name not in (_GRADIENTS, _AUTOCAST):
            continue
        place = next(i for i, x in enumerate(node.args) if _is_graph(x))
        held, operands = node.args[place], node.args[place + 1 :]
        region = getattr(gm, held.target)
        if name == _AUTOCAST or any(_name(n) == _AUTOCAST for n in _all_nodes(region)):
            region = _casted(node, place, region)
        else:
            inline(region)
        _put(gm, node, region, operands)
        if not held.users:
            gm.graph.erase_node(held)
    gm.graph.lint()


def _name(node: torch.fx.Node) -> str:
    is_region = isinstance(node.target, HigherOrderOperator)
    return node.target.__name__ if is_region else ""  # type: ignore[union-attr]


def _is_graph(argument: Any) -> bool:
    return isinstance(argument, torch.fx.Node) and argument.op == "get_attr"


def _all_nodes(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    inner = (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule))
    return [node for module in inner for node in module.graph.nodes]


def _casted(node: torch.fx.Node, place: int, region: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The region with what autocast casts as operators of its own."""
    from tilevm.frontends.torch_graph import to_aten  # which stands above captures

    graph = torch.fx.Graph()
    operands = node.args[place + 1 :]
    given = [graph.placeholder(f"operand_{i}") for i in range(len(operands))]
    inner = graph.get_attr("region")
    target: Any = node.target
    graph.output(graph.call_function(target, (*node.args[:place], inner, *given)))
    fakes = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in operands]
    return to_aten(torch.fx.GraphModule({"region": region}, graph), fakes)


def _put(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
    region: torch.fx.GraphModule,
    operands: Sequence[Any],
) -> None:
    held: dict[torch.fx.Node, Any] = {}
    placeholders = region.graph.find_nodes(op="placeholder")
    held.update(zip(placeholders, operands, strict=True))
    with gm.graph.inserting_before(node):
        for each in region.graph.nodes:
            if each.op == "get_attr":
                held[each] = gm.graph.get_attr(_adopt(gm, region, each.target))
            elif each.op not in ("placeholder", "output"):
                held[each] = gm.graph.node_copy(each, held.__getitem__)
    results: Any = torch.fx.map_arg(region.graph.output_node().args[0], held.__getitem__)
    for user in list(node.users):  # an element of the tuple
        index: Any = user.args[1]
        made = results[index]
        user.replace_all_uses_with(made)
        gm.graph.erase_node(user)
        if isinstance(made, torch.fx.Node) and made.op != "placeholder":
            made.name = user.name  # signatures go by that
    gm.graph.erase_node(node)


def _adopt(gm: torch.fx.GraphModule, region: torch.fx.GraphModule, target: str) -> str:
    value: Any = region
    for part in target.split("."):
        value = getattr(value, part)
    name = next(n for i in range(1 << 30) if not hasattr(gm, n := f"_of_region_{i}"))
    setattr(gm, name, value)
    return name
