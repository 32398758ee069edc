"""`tilevm.fuse`: PyTorch code that nobody captures, its operators recorded as they are called.

The recorder (`core/eager/torch`, the module `tilevm._recorder`) is built against one version of
PyTorch. Its kernels lie below autograd and do nothing outside of a block.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, TypeVar, overload

import torch

from tilevm.errors import TilevmError
from tilevm.frontends.aten import BINARY, OVERLOADS, TEXT, UNARY
from tilevm.runtime import program as runtime

F = TypeVar("F", bound=Callable[..., Any])

_REMEDY = (
    "build tilevm where PyTorch is installed: pip install --no-build-isolation tilevm "
    "(from a checkout: make build)"
)
_lock = threading.Lock()
_module: ModuleType | None = None


class RecorderError(TilevmError, RuntimeError):
    """There is no recorder for this PyTorch."""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _rows() -> list[tuple[str, str]]:
    """The operators that are a line of text, by overload."""
    rows: dict[str, str] = {}
    for op, names in UNARY.items():
        rows |= dict.fromkeys(names.split(), f"r = {op} x")
    for op, names in BINARY.items():
        for name in names.split():
            if "." in name:
                rows[name] = f"r = {op} x, y"
                continue
            known = getattr(torch.ops.aten, name).overloads()
            rows |= {f"{name}.{o}": f"r = {op} x, y" for o in OVERLOADS if o in known}
    for names, text in TEXT.items():
        rows |= dict.fromkeys(names.split(), text)
    exists = torch._C._dispatch_has_kernel  # not so for what is TorchScript's alone
    named = [(name.removesuffix(".default"), text) for name, text in rows.items()]
    return [(name, text) for name, text in named if exists(f"aten::{name}")]


def recorder() -> ModuleType:
    """The recorder, ready to switch on. Raises: RecorderError."""
    global _module  # noqa: PLW0603
    if _module is None:
        with _lock:
            if _module is None:
                _module = _load()
    return _module


def _load() -> ModuleType:
    try:
        from tilevm import _recorder
    except ImportError as error:
        raise RecorderError(f"tilevm.fuse: the recorder does not load: {error}\n  {_REMEDY}") from None
    built, here = _minor(_recorder.torch_version), _minor(torch.__version__)
    if built != here:
        raise RecorderError(
            f"tilevm.fuse: the recorder was built for PyTorch {built}, but this is {here}\n"
            f"  {_REMEDY}"
        )
    _recorder.install(runtime.eager_engine(), _rows())
    _check(_recorder)
    return _recorder


def _check(module: Any) -> None:
    """Whether what the recorder relies on holds in this PyTorch."""
    before = module.switch(True)
    try:
        x = torch.ones(3)
        y = x + 1
        waits = module.pending(y)
    finally:
        module.switch(before)
    if not waits or y.tolist() != [2.0] * 3 or module.pending(y):
        raise RecorderError(
            f"tilevm.fuse: PyTorch {torch.__version__} does not let tensors be filled later\n"
            "  report it with this message, and use tilevm.compile meanwhile"
        )


class fuse:
    """Record the operators that this thread calls, and run them fused when somebody looks.

    `with tilevm.fuse():`, `@tilevm.fuse`, or `tilevm.fuse.enable()` until `disable()`. Results are
    tensors like any other, whose elements are computed when they are needed: read by NumPy, by
    `item()` and `print`, by operators that are not recorded, by other threads. Gradients, aliasing,
    dtypes, strides and random numbers are those without. Blocks nest; `fuse(enabled=False)`
    switches recording off inside of one. When the outermost one ends, what still waits is computed;
    an index that is out of range raises at the latest then.
    Raises: RecorderError if there is no recorder for this PyTorch.
    """

    @overload
    def __new__(cls, function: F, *, enabled: bool = ...) -> F: ...
    @overload
    def __new__(cls, function: None = ..., *, enabled: bool = ...) -> fuse: ...
    def __new__(cls, function: Any = None, *, enabled: bool = True) -> Any:
        """A block, or `function` in one."""
        self = super().__new__(cls)
        self._on = bool(enabled)
        self._before = []
        return self if function is None else self(function)

    _on: bool
    _before: list[bool]

    def __enter__(self) -> fuse:
        self._before.append(recorder().switch(self._on))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before = self._before.pop()
        try:
            if not before:
                recorder().end_block(error is not None)
        finally:
            recorder().switch(before)

    def __call__(self, function: F) -> F:
        """`function` in a block."""
        on = self._on
        if inspect.isgeneratorfunction(function):
            return _generator(function, on)  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with fuse(enabled=on):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    @staticmethod
    def enable() -> None:
        """Record in this thread from now on."""
        recorder().switch(True)

    @staticmethod
    def disable() -> None:
        """Record in this thread no more."""
        recorder().switch(False)
        recorder().end_block(False)

    @staticmethod
    def active() -> bool:
        """Whether this thread records."""
        return _module is not None and bool(_module.active())


def _generator(function: Callable[..., Any], on: bool) -> Callable[..., Any]:
    """Only what the generator itself does is in the block."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        steps = function(*args, **kwargs)
        send: Callable[[], Any] = functools.partial(next, steps)
        while True:
            with fuse(enabled=on):
                try:
                    value = send()
                except StopIteration as stop:
                    return stop.value
            try:
                given = yield value
                send = functools.partial(steps.send, given)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                send = functools.partial(steps.throw, error)

    return run


def pending(tensor: torch.Tensor) -> bool:
    """Whether a tensor waits to be filled."""
    return _module is not None and bool(_module.pending(tensor))
