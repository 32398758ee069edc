"""What `tilevm.compile` sees besides arguments: modules, and the surroundings of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.modules.module as nn_module
from torch import nn

from tilevm.frontends.torch_surroundings import Surroundings
from tilevm.runtime.program import Watch

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


_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_SLOTS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class State:
    """Modules and surroundings as they were; `watch.same()` says whether they still are.

    Values of parameters and buffers are no part of it: programs read their memory at each call.
    """

    def __init__(
        self, fn: Callable[..., Any], roots: Iterable[nn.Module], before: State | None = None
    ) -> None:
        modules = list(dict.fromkeys(m for root in roots for m in root.modules()))
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        whole: list[Any] = [
            *(getattr(nn_module, name) for name in _GLOBAL_HOOKS),
            *(d for m in modules for slot in _SLOTS if (d := vars(m).get(slot)) is not None),
        ]
        flags: list[tuple[dict[str, Any], list[Any]]] = [
            # Somebody may put another `forward` there.
            (vars(m), ["forward"] if type(m) in _FLAGLESS else ["training", "forward"])
            for m in modules
        ]
        self._around = Surroundings(fn, modules)
        self._structure = Watch(whole, flags, [])
        self.watch = Watch(
            [*whole, *self._around.whole()], [*flags, *self._around.flags()], parameters
        )
        self.updates = 0
        self.changed: str = before.changed if before is not None else ""  # what an update found

    @property
    def moving(self) -> str:
        """The kind of an iterator, or of what draws random numbers, among the surroundings."""
        return self._around.moving

    @property
    def values(self) -> tuple[int, ...]:
        """Which values the surroundings have, of those that they had."""
        return self._around.values()

    @property
    def tensors(self) -> dict[tuple[int, Any], torch.Tensor]:
        """Tensors of the surroundings, by where they are."""
        return self._around.tensors

    def update(self) -> bool:
        """Take what the surroundings are now. False: they, or modules, are other objects."""
        if not self._structure.same():
            return False
        known = self._around.update(self.watch.update())
        self.updates += self._around.differs
        self.changed = self._around.changed
        return known
