"""`tilevm.fuse`: PyTorch code that nobody captures, its operators recorded as they are called.

The recorder (`core/eager/torch`, the module `tilevm._recorder`) is built against one version of
PyTorch. Its kernels lie below autograd and do nothing outside of a block.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, overload

import torch

from tilevm.errors import RecorderError
from tilevm.frontends.aten import BINARY, FLOATS, OVERLOADS, TEXT, UNARY
from tilevm.runtime import measured
from tilevm.runtime import program as runtime

measured.load_once(torch.__version__)

F = TypeVar("F", bound=Callable[..., Any])

_REMEDY = (
    "build tilevm where PyTorch is installed: pip install scikit-build-core nanobind, then "
    "pip install --no-build-isolation --no-deps --force-reinstall --no-binary tilevm tilevm "
    "(from a checkout: make build)"
)
_ANSWER_S = 60.0  # where it needs what the asking thread holds, there is none
_lock = threading.Lock()
_module: Any = None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _rows() -> list[tuple[str, str, bool]]:
    """The operators that are a line of text, by overload, and whether they are of floats alone."""
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
    return [(name, text, name in FLOATS) for name, text in named if exists(f"aten::{name}")]


def recorder() -> Any:
    """The recorder, ready to switch on. Raises: RecorderError."""
    global _module  # noqa: PLW0603
    if _module is None:
        with _lock:
            if _module is None:
                module = _load()
                module.Block.__call__ = _in_block
                # From here on calls of `fuse` get to the recorder without Python between, which
                # says nothing of its parameters.
                type.__setattr__(Fuse, "__signature__", inspect.signature(fuse))
                type.__setattr__(Fuse, "__call__", module.block)
                _module = module
    return _module


def built() -> Any:
    """The recorder's module, which this changes nothing of. Raises: RecorderError."""
    if find_spec("tilevm._recorder") is None:
        message = "tilevm.fuse: there is no recorder here, as it is not in wheels"
        raise RecorderError(f"{message}\n  {_REMEDY}")
    try:
        from tilevm import _recorder
    except ImportError as error:
        message = f"tilevm.fuse: the recorder does not load: {error}\n  {_REMEDY}"
        raise RecorderError(message) from None
    built, here = _minor(_recorder.torch_version), _minor(torch.__version__)
    if built != here:
        raise RecorderError(
            f"tilevm.fuse: the recorder was built for PyTorch {built}, but this is {here}\n"
            f"  {_REMEDY}"
        )
    return _recorder


def _load() -> Any:
    module = built()
    module.install(runtime.eager_engine(), _rows(), _template_of)
    _let_through()
    _finish_before_saving(module.flush)
    _check(module)
    # What waits is of the process that recorded it; a child has no block that would end.
    os.register_at_fork(before=module.flush, after_in_child=module.leave)
    atexit.register(module.flush)
    atexit.register(module.end_templates)
    return module


def _template_of(name: str, overload: str, arguments: list[Any]) -> int:
    """The number of what is recorded for `aten.name.overload` called like this; -1: nothing.

    In a thread of its own, which sees nothing of what the caller is in the middle of.
    """
    answer = [-1]

    def ask() -> None:
        from tilevm.frontends import torch_templates

        answer[0] = torch_templates.template_of(name, overload, arguments)

    thread = threading.Thread(target=ask, name="tilevm.fuse asks", daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return answer[0]


def _let_through() -> None:
    """Operators that take functions, as `torch.cond`, dispatch by themselves: past the recorder."""
    import torch._higher_order_ops  # defines them
    from torch._ops import _higher_order_ops

    key: Any = torch._C._parse_dispatch_key("Fake")
    for operator in _higher_order_ops.values():
        operator.non_fallthrough_keys = operator.non_fallthrough_keys.remove(key)


def _finish_before_saving(finish: Callable[[], None]) -> None:
    """TorchScript writes the memory of a module's tensors to files by itself."""
    kind: Any = torch._C.ScriptModule
    for name in ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile"):
        setattr(kind, name, _finishing(finish, getattr(kind, name)))


def _finishing(finish: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        finish()
        return function(*args, **kwargs)

    return run


def _check(module: Any) -> None:
    """Whether what the recorder relies on holds in this PyTorch."""
    before, dtype = module.switch(True), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # with another, nothing waits
    try:
        x = torch.ones(3, device="cpu")
        y = x + 1
        waits = module.pending(y)
    finally:
        torch.set_default_dtype(dtype)
        module.switch(before)
    if not waits or y.tolist() != [2.0] * 3 or module.pending(y):
        raise RecorderError(
            f"tilevm.fuse: PyTorch {torch.__version__} does not let tensors be filled later\n"
            "  report it with this message, and use tilevm.compile meanwhile"
        )


class _End:
    """Goes with the thread that holds it, which may not have switched recording off."""

    def __del__(self) -> None:
        _module.flush()


_of_thread = threading.local()


class Block(Protocol):
    """What `tilevm.fuse()` returns: a context manager and a decorator."""

    def __enter__(self) -> Block:
        """Record from here on."""

    def __exit__(self, *error: object) -> None:
        """Compute what waits, if this is the outermost block."""

    def __call__(self, function: F) -> F:
        """`function` in a block."""


class Fuse:
    """Record the operators that this thread calls, and run them fused when somebody looks.

    `with tilevm.fuse():`, `@tilevm.fuse`, or `tilevm.fuse.enable()` until `disable()`. Results are
    tensors like any other, whose elements are computed when they are needed: read by NumPy, by
    `item()` and `print`, by operators that are not recorded, by other threads. Gradients, aliasing,
    dtypes, strides and random numbers are those without. Blocks nest; `fuse(enabled=False)`
    switches recording off inside of one. When the outermost one ends, writes in place are made,
    and what nobody has looked at waits on: an index that is out of range raises when its result
    is looked at.
    Raises: RecorderError if there is no recorder for this PyTorch.
    """

    @overload
    def __call__(self, function: F, *, enabled: bool = ...) -> F: ...
    @overload
    def __call__(self, function: None = ..., *, enabled: bool = ...) -> Block: ...
    def __call__(self, function: Any = None, *, enabled: bool = True) -> Any:
        """A block, or `function` in one."""
        return recorder().block(function, enabled=enabled)

    @staticmethod
    def enable() -> None:
        """Record in this thread from now on."""
        recorder().switch(True)
        if threading.current_thread() is not threading.main_thread():
            _of_thread.end = _End()

    @staticmethod
    def disable() -> None:
        """Record in this thread no more."""
        recorder().switch(False)
        recorder().end_block(False)

    @staticmethod
    def active() -> bool:
        """Whether this thread records."""
        return _module is not None and bool(_module.active())


fuse = Fuse()


def _in_block(block: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A block as a decorator."""
    on = block.enabled
    if inspect.isgeneratorfunction(function):
        return _generator(function, on)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with fuse(enabled=on):
            return function(*args, **kwargs)

    return run


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
