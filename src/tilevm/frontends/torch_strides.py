"""Functions that read strides: what they find is guarded, since keys say little of strides."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.sym_node import SymNode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.functions import Max

from tilevm.frontends.torch_memory import hints


class Reads:
    """Whether code outside PyTorch asked a tensor for its strides."""

    any = False


@contextmanager
def reads() -> Iterator[Reads]:
    """Reads of strides by code that runs while this holds."""
    found = Reads()
    plain: Any = torch.Tensor.stride

    def stride(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            found.any = True
        return plain(self, *args, **kwargs)

    tensor: Any = torch.Tensor  # which has the method from its base
    tensor.stride = stride
    try:
        yield found
    finally:
        if "stride" in vars(tensor):
            del tensor.stride


@contextmanager
def of_elements() -> Iterator[None]:
    """Questions about strides, max(1, size) and products of these, are answered for sizes that are
    not 0: without elements nobody reads strides.

    A trace for all sizes would take what it cannot tell for a copy, where eager code has a view.
    """
    owner: Any = SymNode
    plain = {name: getattr(owner, name) for name in ("guard_or_true", "guard_or_false")}

    def answer(node: Any, name: str, *where: Any) -> bool:
        found = _of_elements(node)
        return bool(plain[name](node, *where)) if found is None else found

    for name in plain:
        setattr(owner, name, functools.partialmethod(answer, name))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(owner, name, function)


def _of_elements(node: Any) -> bool | None:
    """Whether the condition holds if no size in a max(1, size) is 0; None: nobody knows."""
    expression = node.expr
    if isinstance(expression, int) or not expression.has(Max):
        return None
    simple = expression.replace(
        lambda e: isinstance(e, Max) and len(e.args) == 2 and e.args[0] == 1, lambda e: e.args[1]
    )
    known = node.shape_env._maybe_evaluate_static(simple)
    return None if known is None else bool(known)


@contextmanager
def by_example() -> Iterator[None]:
    """What operators make lies in memory as it does in the example, where operands have gaps or
    elements that are the same.

    A trace for all sizes may not ask how their strides compare, and would go by the next operand.
    """
    owner: Any = torch._prims_common
    name = "compute_elementwise_output_logical_to_physical_perm"
    plain = getattr(owner, name)

    def order(*tensors: Any, **how: Any) -> Any:
        moving = [x for x in tensors if isinstance(x, torch.Tensor) and x.ndim > 0]
        if not any(map(_is_unclear, moving)):
            return plain(*tensors, **how)
        try:
            geometry = [[hints(of) for of in (x.shape, _strides(x))] for x in moving]
        except (AttributeError, TypeError):  # only the data know
            return plain(*tensors, **how)
        with _disable_current_modes():
            examples = [torch.empty_strided(*of, device="meta") for of in geometry]
            return plain(*examples, **how)

    setattr(owner, name, order)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def _strides(x: torch.Tensor) -> Any:
    return torch._C.TensorBase.stride(x)  # which `reads` does not see


def _is_unclear(x: torch.Tensor) -> bool:
    """Whether strides are none that sizes make, or two of them are equal."""
    strides = [_expression(n) for n in _strides(x)]
    moving = [n for n in strides if n != 0]
    if len(set(moving)) < len(moving):
        return True
    sizes = frozenset[Any]().union(*(_symbols(_expression(n)) for n in x.shape))
    return any(not _symbols(n) <= sizes for n in moving)


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


@functools.lru_cache(maxsize=4096)
def _symbols(expression: Any) -> frozenset[Any]:
    return frozenset(getattr(expression, "free_symbols", ()))


def has_strides(graph: torch.fx.Graph) -> bool:
    """Whether an operator of the graph takes strides of its argument's memory."""
    return any("as_strided" in str(node.target) for node in graph.nodes)


def row_major(name: str, rank: int) -> str:
    """The condition, as Python source, that a tensor's strides are those of its sizes."""
    strides = ["1"]
    for d in range(rank - 1, 0, -1):
        strides.append(f"{strides[-1]} * max({name}.shape[{d}], 1)")
    items = "".join(f"{stride}, " for stride in reversed(strides[:rank]))
    return f"{name}.stride() == ({items})"
