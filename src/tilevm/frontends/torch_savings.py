"""Work of PyTorch's that a trace does without: nobody reads what it makes, or it was done before.

A trace is the same with it and without.
"""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.fx.experimental._config as symbolic_config
from torch._functorch._aot_autograd import graph_compile
from torch.fx import _lazy_graph_module, proxy
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode

from tilevm.frontends.torch_likenesses import copied, results_once


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's collector of cycles: a trace makes so many objects that it runs hundreds of
    times, and nearly all of them live as long as the trace.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def savings() -> Iterator[None]:
    """All of the below."""
    # What code of graphs is made, and compiled, is made where somebody runs it.
    lazily: Any = _lazy_graph_module._use_lazy_graph_module(True)
    with lazily, _sizes_once(), _frames_once(), _unread(), results_once():
        yield


@contextmanager
def _unread() -> Iterator[None]:
    """Without a second description of each result, and texts of graphs for logs that are off."""
    module: Any = proxy_tensor
    describe = module._extract_tensor_metadata

    def undescribed(result: torch.Tensor, *how: Any) -> Any:
        settings: Any = symbolic_config
        # Otherwise it asks for guards, and a capture shall have the same ones.
        return None if settings.backed_size_oblivious else describe(result, *how)

    def no_text(*_: Any) -> None:
        return None

    def no_texts(*_: Any) -> tuple[None, None]:
        return None, None

    with (
        mock.patch.object(module, "_extract_tensor_metadata", undescribed),
        mock.patch.object(graph_compile, "_log_joint_graph", no_text),
        mock.patch.object(graph_compile, "_log_fw_bw_graphs", no_texts),
    ):
        yield


class _Frames:
    """What `CapturedTraceback` is to the nodes of a graph: their frames, each described once."""

    def __init__(self) -> None:
        self._places: list[tuple[str, int, str]] = []
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            self._places.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back

    @staticmethod
    def extract() -> _Frames:
        """Those of the caller, and of what called it."""
        return _Frames()

    def summary(self) -> traceback.StackSummary:
        """The outermost first."""
        return traceback.StackSummary(_described(*place) for place in reversed(self._places))


@functools.lru_cache(maxsize=4096)
def _described(path: str, line: int, name: str) -> traceback.FrameSummary:
    return traceback.FrameSummary(path, line, name, lookup_line=False)


@contextmanager
def _frames_once() -> Iterator[None]:
    """A node's frames are nearly all those of the node before it."""
    with mock.patch.object(proxy, "CapturedTraceback", _Frames):
        try:
            yield
        finally:
            _described.cache_clear()  # files may change between traces


# Of sizes and conditions, what depends on nothing but its operands.
_BINARY = (
    "add", "sub", "mul", "int_floordiv", "sym_max", "sym_min", "eq", "ne", "lt", "le", "gt", "ge",
    "and_", "or_",
)  # fmt: skip
_PROXY = torch._C._TorchDispatchModeKey.PROXY


@contextmanager
def _sizes_once() -> Iterator[None]:
    """Arithmetic of sizes is done once for the same operands.

    Each tensor that is made asks how its sizes and strides compare, and of these there are few: a
    trace of Llama does 12,000 such operations, of which 300 are different.
    """
    known: dict[Any, Any] = {}
    owner: Any = SymNode
    plain = {name: getattr(owner, name) for name in _BINARY}

    def remembering(name: str) -> Callable[[Any, Any], Any]:
        operation = plain[name]

        def run(x: Any, y: Any) -> Any:
            environment = x.shape_env
            if environment is None or type(y) is not SymNode:
                return operation(x, y)
            mode = _tracing()
            if mode is None:
                of: tuple[Any, ...] = (*_value(x), *_value(y))
            else:  # the graph has a node for the result of these two
                of = (mode.tracer, _constant(x), _constant(y))
            key = name, environment, environment._replacements_version_counter, of
            found = known.get(key)
            if found is None:
                found = known[key] = operation(x, y)
            elif mode is None:  # a trace tells sizes apart that are equal
                found = copied(found)
            return found

        return run

    for name in _BINARY:
        setattr(owner, name, functools.wraps(plain[name])(remembering(name)))
    try:
        yield
    finally:
        for name, operation in plain.items():
            setattr(owner, name, operation)


def _tracing() -> Any:
    """The mode that makes nodes of what is done with sizes."""
    before_dispatch: Any = torch._ops._get_dispatch_mode_pre_dispatch
    return before_dispatch(_PROXY) or torch._C._get_dispatch_mode(_PROXY)


def _value(node: Any) -> tuple[Any, ...]:
    return node._expr, node._hint, node.pytype, node._optimized_summation, node.constant is None


def _constant(node: Any) -> Any:
    """The node itself, or the number that it is: of these there is a new one each time."""
    return node if node.constant is None else (node.pytype, node.constant)
