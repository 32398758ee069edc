"""What users say of the sizes of a call: `tilevm.compile(..., dims=...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from tilevm.errors import CaptureError, ShapeError, describe
from tilevm.ir.types import Dim

Dims = Mapping[str, Mapping[int, Dim]]


def dims_of(dims: Mapping[str, Any]) -> Dims:
    """Dims by argument and axis, of what `tilevm.compile` takes. Raises: CaptureError.

    ("B", "N") of an argument names its sizes, {"B": Dim(max=64)} says what is known of a name.
    """
    if not isinstance(dims, Mapping):
        _refuse_dims(None, dims)
    named = {name: dim for name, dim in dims.items() if isinstance(dim, Dim)}
    found: dict[str, dict[int, Dim]] = {}
    for name, given in dims.items():
        if name in named:
            continue
        axes = dict(enumerate(given)) if isinstance(given, tuple | list) else given
        if not isinstance(axes, Mapping):
            _refuse_dims(name, given)
        known = found[name] = {}
        for axis, dim in axes.items():
            if dim is None:
                continue
            if isinstance(dim, str):
                known[axis] = named.setdefault(dim, Dim())
            elif type(axis) is int and isinstance(dim, Dim | int) and not isinstance(dim, bool):
                known[axis] = dim if isinstance(dim, Dim) else Dim(min=dim, max=dim)
            else:
                _refuse_dims(name, given)
    return found


def _refuse_dims(name: str | None, given: Any) -> NoReturn:
    remedy = 'Write {"x": ("B", "N")} or {"x": {0: Dim(max=64)}}, {"B": Dim(max=64)} for a name.'
    what = f"{'dims' if name is None else f'dims[{name!r}]'} is {given!r}"
    raise CaptureError(describe(what, operator="tilevm.compile", remedy=remedy))


def facts_of(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dims: Dims | None,
    leaves: list[Any],
) -> dict[tuple[int, int], Dim]:
    """(leaf, axis) -> what the user knows of it. Raises: ShapeError, if a size contradicts it."""
    if not dims:
        return {}
    forward = fn.forward if isinstance(fn, nn.Module) else fn
    given = inspect.signature(forward).bind(*args, **kwargs).arguments
    by_id = {id(leaf): index for index, leaf in reversed(list(enumerate(leaves)))}
    found: dict[tuple[int, int], Dim] = {}
    seen: dict[int, tuple[str, int]] = {}
    for name, axes in dims.items():
        value = given.get(name)
        if not isinstance(value, torch.Tensor):
            raise ShapeError(f"dims: there is no tensor argument {name!r} in this call")
        for axis, dim in axes.items():
            if not -value.dim() <= axis < value.dim():
                raise ShapeError(
                    f"dims: {name} has no axis {axis}: pass a tensor of rank {axis + 1} or more, "
                    f"not {value.dim()}"
                )
            size = value.shape[axis]
            where = f"{name}.shape[{axis}]"
            if not dim.holds(size):
                raise ShapeError(f"{where} is {size}, but dims says {dim}: pass a size it allows")
            other = seen.setdefault(id(dim), (where, size))
            if other[1] != size:
                raise ShapeError(
                    f"{where} is {size} and {other[0]} is {other[1]}, but dims says they are equal"
                )
            found[by_id[id(value)], axis % value.dim()] = dim
    return found


def promises(
    fn: Callable[..., Any], args: Any, kwargs: Any, dims: Dims | None, leaves: list[Any]
) -> Iterator[str]:
    """What `dims` says of a call, as conditions over its leaves."""
    at: dict[int, str] = {}
    for (leaf, axis), dim in facts_of(fn, args, kwargs, dims, leaves).items():
        size = f"l[{leaf}].shape[{axis}]"
        yield f"{size} >= {dim.min}"
        yield f"{size} % {dim.multiple_of} == 0"
        if dim.max is not None:
            yield f"{size} <= {dim.max}"
        yield f"{size} == {at.setdefault(id(dim), size)}"
