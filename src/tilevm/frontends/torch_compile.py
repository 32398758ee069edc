"""`tilevm.compile`: of a function, or of a module, which stays a module."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tilevm.config import config
from tilevm.errors import CaptureError, describe
from tilevm.frontends import torch_dims
from tilevm.frontends.torch_compiled import Compiled
from tilevm.frontends.torch_dims import Dims
from tilevm.runtime.program import Dispatch, check_knobs


class CompiledModule(Dispatch, nn.Module):
    """A module that runs compiled. Attributes, parameters and modes are those of the module."""

    _tilevm: Compiled

    def __init__(
        self,
        module: nn.Module,
        dims: Dims | None,
        knobs: Mapping[str, Any],
        freeze: bool = False,
    ) -> None:
        # The module's own dictionaries, so that whatever nn.Module does happens to the module.
        own = self.__dict__
        own.update(vars(module))
        own["_tilevm"] = Compiled(module, dims, knobs, freeze)
        own["_tilevm_module"] = module
        object.__setattr__(self, "_ready", self._tilevm._ready)  # past __setattr__ of modules

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        return self._tilevm._call(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call."""
        return self._tilevm(*args, **kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        """Set the training flag of the module and all below."""
        self._tilevm_module.train(mode)
        self.__dict__["training"] = mode
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_tilevm_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tilevm_module, name, value)
        own, real = self.__dict__, vars(self._tilevm_module)
        if name in real:
            own[name] = real[name]

    def __delattr__(self, name: str) -> None:
        delattr(self._tilevm_module, name)
        self.__dict__.pop(name, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        module = copy.deepcopy(self._tilevm_module, memo)
        compiled = self._tilevm
        return type(self)(module, compiled._dims, compiled._knobs, compiled._freeze)

    def __reduce__(self) -> tuple[Any, ...]:
        compiled = self._tilevm
        arguments = (compiled._dims, compiled._knobs, compiled._freeze)
        return CompiledModule, (self._tilevm_module, *arguments)

    def __repr__(self) -> str:
        return f"tilevm.compile({self._tilevm_module!r})"

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._tilevm_module), "guards", "explain"})

    @property
    def guards(self) -> str:
        """What each capture assumes."""
        return str(self._tilevm.guards)

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Graph, kernels, bytecode and call-outs of the capture that runs for these arguments."""
        return self._tilevm.explain(*args, **kwargs)


def check_freeze(freeze: Any, source: str) -> bool:
    """`freeze`, if it is one. Raises: TypeError."""
    if type(freeze) is not bool:
        raise TypeError(f"{source}: freeze is {freeze!r}, which is neither False nor True")
    return freeze


def compile(
    fn: Callable[..., Any] | None = None,
    *,
    dims: Mapping[str, Any] | None = None,
    freeze: bool = False,
    **knobs: Any,
) -> Any:
    """Compile a function or module; also a decorator.

    fn: called with tensors, numbers, and containers of them. It is captured at its first call, and
        again only where a guard fails (`.guards`). What cannot be captured runs eagerly, counted in
        `tilevm.stats()["flushes"]`. Calls that want gradients are captured, too, or go through
        `torch.compile`.
        What it reads besides (globals, closures, attributes, items of lists and dicts) may change:
        tensors are inputs, other values or shapes a reason to capture again, up to 16. Not seen:
        attributes of objects with `__slots__`, names that only `getattr` knows, more than 64 items,
        elements of NumPy's arrays, files, the clock. What is printed happens at captures only.
    dims: facts about sizes, by argument and axis: `{"x": {0: tilevm.Dim(min=1, multiple_of=8)}}`,
        or by name as in `@tilevm.kernel`: `{"x": ("B", "N"), "B": tilevm.Dim(max=64)}`.
    freeze: the elements of parameters, buffers and captured constants do not change from the first
        call on, in place or through `.data`, by whomever; a parameter that is replaced by another
        is seen. The weights of products are then packed once, up to `tilevm.config.packed_memory`
        bytes of all functions (`tilevm.stats()["packed_bytes"]`), at the first call that is quicker
        so, and until the weights or the function go. What is changed all the same may be served
        old. Calls that want gradients read the weights as they are.
    knobs: `tier`, `threads` and `verify` of `tilevm.config`, for this function alone.

    Raises: CaptureError, if `fn` or `dims` is none; TypeError and ValueError, if a knob is none.

    Returns a module for a module, with the same parameters; a callable for anything else.
    """
    if fn is None:
        return functools.partial(compile, dims=dims, freeze=freeze, **knobs)
    source = "tilevm.compile"
    check_freeze(freeze, source)
    check_knobs(config.checked_local(knobs, source, ("dims", "freeze")), source)
    if dims is not None:
        dims = torch_dims.dims_of(dims)
    if isinstance(fn, CompiledModule | Compiled):
        return fn
    if isinstance(fn, nn.Module):
        return CompiledModule(fn, dims, knobs, freeze)
    if not callable(fn):
        raise CaptureError(
            describe(
                f"{fn!r} cannot be called",
                operator=source,
                remedy="Give it a function or a module.",
            )
        )
    return Compiled(fn, dims, knobs, freeze)
