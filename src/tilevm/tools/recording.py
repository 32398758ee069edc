"""Who made recorded segments run: the functions of PyTorch that were called, and their lines."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from tilevm.frontends.torch_import import LIBRARY, place_of
from tilevm.runtime.program import watched_so_far


class Callers(TorchFunctionMode):
    """Sees each call of a function of PyTorch, and what was noted during it.

    Modes are above the recorder, which works as without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._segments: dict[int, tuple[str, str]] = {}  # by number: function and line
        self._operators: dict[int, tuple[str, str]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = watched_so_far()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            after = watched_so_far()
            if after != before:
                caller = _name(func), _line()
                for known, first, end in zip(
                    (self._segments, self._operators), before, after, strict=True
                ):
                    known.update(dict.fromkeys(range(first, end), caller))

    def of_segment(self, number: int) -> str:
        """`, by torch.Tensor.item (model.py:4)`; empty, if no such call made it run."""
        name, line = self._segments.get(number, ("", ""))
        return f", by {name}{f' ({line})' if line else ''}" if name else ""

    def of_operator(self, number: int) -> str:
        """The line that called it, as far as it is known."""
        return self._operators.get(number, ("", ""))[1]


def _name(func: Any) -> str:
    """`torch.Tensor.item`. PyTorch keeps its list from when it was first asked: methods that were
    patched then, as captures patch some, are not in it.
    """
    name = getattr(func, "__name__", str(func))
    method = getattr(Tensor, name, None) is func
    return resolve_name(func) or (f"torch.Tensor.{name}" if method else name)


def _line() -> str:
    """`model.py:41` of the innermost frame outside of PyTorch and tilevm."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    return place_of(frame.f_code.co_filename, frame.f_lineno) if frame else ""
