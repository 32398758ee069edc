"""What `tilevm.compile` sees besides arguments: modules, and the surroundings of a function."""

from __future__ import annotations

from collections.abc import Callable
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


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_SLOTS = ("_parameters", "_buffers", "_modules", *_HOOKS)


class State:
    """Modules and surroundings as they were; `watch.same()` says whether they still are.

    Values of parameters and buffers are no part of it: programs read their memory at each call.
    """

    def __init__(self, fn: Callable[..., Any], before: State | None = None) -> None:
        self._around = Surroundings(fn)
        self.modules = self._around.modules
        modules = list(dict.fromkeys(m for root in self.modules.values() for m in root.modules()))
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        of_all = [getattr(nn_module, f"_global{name}") for name in _HOOKS]
        held = [d for m in modules for slot in _SLOTS if (d := vars(m).get(slot)) is not None]
        whole: list[Any] = [*of_all, *held]
        # In order: which hook, of which module.
        self.hooks = [
            (d, hook)
            for d in (*of_all, *(vars(m).get(name) for m in modules for name in _HOOKS))
            for hook in (d or {}).values()
        ]
        flags: list[tuple[dict[str, Any], list[Any]]] = [
            # Somebody may put another `forward` there.
            (vars(m), ["forward"] if type(m) in _FLAGLESS else ["training", "forward"])
            for m in modules
        ]
        self._structure = Watch(whole, flags, [])
        self.watch = Watch(
            [*whole, *self._around.whole()], [*flags, *self._around.flags()], parameters
        )
        of_all = [getattr(nn_module, f"_global{name}") for name in _BACKWARD_HOOKS]
        own = [vars(m).get(name) for m in modules for name in _BACKWARD_HOOKS]
        # What calls with gradients depend on besides.
        self.backward = Watch([d for d in (*of_all, *own) if d is not None], [], [])
        self.updates = 0
        self.replaced = False  # whether an update found other objects among the surroundings
        self.changed: str = before.changed if before is not None else ""  # what an update found

    @property
    def moving(self) -> str:
        """The kind of an iterator, or of what draws random numbers, among the surroundings."""
        return self._around.moving

    @property
    def objects(self) -> frozenset[int]:
        """The ids of all that the surroundings refer to, but tensors and numbers."""
        return self._around.objects

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
        self.replaced = not known
        return known
