"""`x[index]` and `x[index] = value` while a function is traced, with symbols among the indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`, for which PyTorch would take a symbol in `index` for one number."""
    index = from_start(tensor, index)
    items = _items(index)
    symbols = any(issubclass(type(item), torch.SymInt) for item in items)
    basic = all(isinstance(i, slice | int) and type(i) is not bool for i in _without_dots(items))
    if not (symbols and basic):
        tensor[index] = value
        return
    there = tensor[index]
    if not isinstance(value, torch.Tensor):
        there.fill_(value)
        return
    while value.dim() > there.dim() and value.shape[0] == 1:
        value = value[0]
    there.copy_(value)


def from_start(tensor: torch.Tensor, index: Any) -> Any:
    """The index with bounds of slices counted from the start, where they are symbols."""
    items = _items(index)
    if not any(type(item) is slice and _is_symbol(item.start, item.stop) for item in items):
        return index
    used = sum(map(_dims, items))
    if used > tensor.dim():  # PyTorch says what is wrong
        return index
    out, dim = [], 0
    for item in items:
        if item is Ellipsis:
            dim += tensor.dim() - used
        if type(item) is slice:
            size = tensor.shape[dim]
            start, stop = (_bound(b, size) for b in (item.start, item.stop))
            item = slice(start, stop, item.step)  # noqa: PLW2901
        out.append(item)
        dim += _dims(item)
    return tuple(out)


def _items(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _without_dots(items: tuple[Any, ...]) -> Iterator[Any]:
    return (item for item in items if item is not None and item is not Ellipsis)


def _is_symbol(*bounds: Any) -> bool:
    return any(issubclass(type(bound), torch.SymInt) for bound in bounds)


def _dims(item: Any) -> int:
    """How many dims of the tensor an item of an index is about."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if is_mask else 1


def _bound(bound: Any, size: Any) -> Any:
    """A bound of a slice as PyTorch counts it: a negative one from the end, none before the start.

    Of sizes and numbers of the call, a guard says whether it is negative. One that data give is not
    taken for negative (calls where it is run eagerly), unless it says so itself, as in `x[-n:]`.
    """
    if not _is_symbol(bound) or statically_known_true(bound >= 0):
        return bound
    if not free_unbacked_symbols(bound):
        if bound >= 0:
            return bound
        return bound + size if bound + size >= 0 else 0
    if not bound.node.expr.could_extract_minus_sign():
        return bound
    sym: Any = torch  # whose functions of symbols have no types
    is_negative = sym.sym_min(sym.sym_max(-bound, 0), 1)
    return sym.sym_max(size * is_negative + bound, 0)
