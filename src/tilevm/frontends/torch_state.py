"""What `tilevm.compile` sees of modules: parameters, buffers, submodules, training flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_training = itemgetter("training")

# Modules of exactly these types do not read their flag.
_FLAGLESS = {
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d,
    nn.Conv3d,
    nn.Identity, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softmax, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
}  # fmt: skip


def modules_of(fn: Callable[..., Any]) -> dict[str, nn.Module]:
    """Modules that `fn` refers to, by a name: itself, what it is bound to, closure, globals."""
    found: dict[str, nn.Module] = {}
    for name, value in _references(fn):
        if isinstance(value, nn.Module) and not any(value is m for m in found.values()):
            found[name] = value
    return found


def _references(fn: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(fn, nn.Module):
        yield "module", fn
        return
    if isinstance(fn, MethodType):
        yield "self", fn.__self__
        for name, value in getattr(fn.__self__, "__dict__", {}).items():
            yield f"self_{name}", value
        fn = fn.__func__
    fn = getattr(fn, "__wrapped__", fn)
    if isinstance(fn, FunctionType):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        for name in fn.__code__.co_names:
            if name in fn.__globals__:
                yield name, fn.__globals__[name]


class State:
    """The modules as they were at a capture; `same()` says whether they still are.

    Values of parameters and buffers are no part of it: programs read their memory at each call.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        modules = list(dict.fromkeys(m for root in roots for m in root.modules()))
        self.modules = modules
        self._dicts = [vars(m) for m in modules]
        self._readers = [vars(m) for m in modules if type(m) not in _FLAGLESS]
        self._flags = list(map(_training, self._readers))
        slots = ("_parameters", "_buffers", "_modules")
        live = [d[slot] for d in self._dicts for slot in slots]
        self._live = [d for d in live if d]
        self._saved = [dict(d) for d in self._live]
        # Equality of two tensors of one element does not mean that they are the same tensor.
        self._small = [
            (d, name, value)
            for d in self._live
            for name, value in d.items()
            if isinstance(value, torch.Tensor) and value.numel() <= 1
        ]
        self.parameters = [p for m in modules for p in m._parameters.values() if p is not None]

    def same(self) -> bool:
        """Whether flags, parameters, buffers and submodules are the objects they were."""
        try:
            if self._live != self._saved or list(map(_training, self._readers)) != self._flags:
                return False
        except RuntimeError:  # comparing two different tensors
            return False
        return all(d.get(name) is value for d, name, value in self._small)

    def wants_gradient(self) -> bool:
        """Whether some parameter does."""
        return any(p.requires_grad for p in self.parameters)
