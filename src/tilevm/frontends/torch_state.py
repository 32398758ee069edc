"""What `tilevm.compile` sees besides arguments: modules, and the surroundings of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.modules.module as nn_module
from torch import nn

from tilevm.frontends.torch_surroundings import HOOKS, Surroundings
from tilevm.runtime.program import Watch

# Modules of exactly these types do not read their flag.
_FLAGLESS = {
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d,
    nn.Conv3d,
    nn.Identity, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softmax, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
}  # fmt: skip


_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_TENSORS = ("_parameters", "_buffers")
_ALL_HOOKS = (*HOOKS, *_BACKWARD_HOOKS)
_SLOTS = (*_TENSORS, "_modules", *_ALL_HOOKS)
_ABSENT = object()
# What calls are told apart by, here and by their arguments, for people.
SEEN = (
    "All: structure of the arguments, element types, ranks, strings, None and bools among them,\n"
    "requires_grad, order of dims in memory, grad, inference and autocast mode, default dtype,\n"
    "which arguments are the same tensor, identity of parameters, buffers and submodules, hooks,\n"
    "`training` and `forward` of each module; variables, attributes, methods and items that the\n"
    "function's code names, of callables, modules and classes among the arguments too, functions\n"
    "of PyTorch among them: of tensors the type; that tensors a function changes share no memory."
)
UNSEEN = (
    "Not seen: attributes of objects with `__slots__`, of classes of arguments in installed\n"
    "packages, of members of enumerations and of tensors, names that only `getattr` knows, items\n"
    "of lists and dicts of more than 64 and of other containers, elements of arrays of NumPy,\n"
    "other defaults and other code that a function is given, settings of PyTorch that it asks\n"
    "for, the environment, logging, contents of files, the clock."
)


class State:
    """Modules and surroundings as they were; `watch.same()` says whether they still are.

    Values of parameters and buffers are no part of it: programs read their memory at each call.
    """

    def __init__(
        self, fn: Callable[..., Any], before: State | None = None, given: Sequence[Any] = ()
    ) -> None:
        """given: objects among the arguments, of which the function may read more."""
        self._around = Surroundings(fn, given)
        self.modules = self._around.modules
        modules = list(dict.fromkeys(m for root in self.modules.values() for m in root.modules()))
        of_all = [getattr(nn_module, f"_global{name}") for name in _ALL_HOOKS]
        held = [d for m in modules for slot in _SLOTS if (d := vars(m).get(slot)) is not None]
        self._whole: list[Any] = [*of_all, *held]
        self._of_tensors = [d for m in modules for slot in _TENSORS if (d := vars(m).get(slot))]
        # In order: which hook, of which module.
        self.hooks = [
            (d, hook)
            for d in (*of_all, *(vars(m).get(n) for m in modules for n in _ALL_HOOKS))
            for hook in (d or {}).values()
        ]
        own = [vars(m).get(name) for m in modules for name in _BACKWARD_HOOKS]
        of_all = [getattr(nn_module, f"_global{name}") for name in _BACKWARD_HOOKS]
        self.has_backward_hooks = any(own) or any(of_all)
        self._flags: list[tuple[dict[str, Any], list[Any]]] = [
            # Somebody may put another `forward` there.
            (vars(m), ["forward"] if type(m) in _FLAGLESS else ["training", "forward"])
            for m in modules
        ]
        self._look()
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
        """Tensors of modules and of the surroundings, by where they are."""
        held = {
            (id(d), name): value
            for d in self._of_tensors
            for name, value in d.items()
            if value is not None
        }
        return {**held, **self._around.tensors}

    def _look(self) -> None:
        """Remember modules as they are."""
        self._seen = self._contents()
        self._structure = Watch(self._whole, self._flags, [])
        self._watch_all()

    def _watch_all(self) -> None:
        around = self._around
        tensors = list(self.tensors.values())
        self._wanting = self._wanting_around()
        self.watch = Watch(
            [*self._whole, *around.whole()], [*self._flags, *around.flags()], tensors
        )

    def _wanting_around(self) -> list[int]:
        """Ids of tensors besides those of modules that require gradients."""
        return [id(t) for t in self._around.tensors.values() if t.requires_grad]

    def _contents(self) -> list[dict[Any, Any]]:
        """What the modules' dictionaries hold."""
        flags = ({key: d.get(key, _ABSENT) for key in keys} for d, keys in self._flags)
        return [*map(dict, self._whole), *flags]

    def _has_others(self) -> bool:
        """Whether modules differ in nothing but tensors, which are of the same types."""
        return all(
            list(before) == list(now) and all(map(_alike, before.values(), now.values()))
            for before, now in zip(self._seen, self._contents(), strict=True)
        )

    def update(self) -> bool:
        """Take what the surroundings are now, and other parameters and buffers of the same types.
        False: the surroundings, or modules, are other objects.
        """
        changed = []
        if not self._structure.same():
            if not self._has_others():
                return False
            changed = self.watch.update()
            self.updates += 1
            self._look()
        known = self._around.update([*changed, *self.watch.update()])
        self.updates += self._around.differs
        if self._wanting != self._wanting_around():
            self._watch_all()
        self.changed = self._around.changed
        self.replaced = not known
        return known


def _alike(a: Any, b: Any) -> bool:
    """Whether b is a, or a tensor in whose place a program may be given it."""
    if a is b:
        return True
    tensors = isinstance(a, torch.Tensor) and type(a) is type(b)
    return tensors and _type_of(a) == _type_of(b)


def _type_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (object(),)
    return (
        tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, tensor.device,
        tensor.is_conj(), tensor.is_neg(), tensor.is_inference(),
    )  # fmt: skip
