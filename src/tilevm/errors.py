"""What tilevm raises. Each message says where, what, the values, and what to do."""

from __future__ import annotations


class TilevmError(Exception):
    """Base of all errors that tilevm raises."""


class CaptureError(TilevmError, TypeError):
    """A Python function does something that a graph cannot hold."""


class ShapeError(TilevmError, ValueError):
    """Sizes or ranks do not fit an operator, a parameter or a `Dim`."""


class DTypeError(TilevmError, TypeError):
    """An operator does not take this element type."""


class DeviceError(TilevmError, RuntimeError):
    """An input lives, or is laid out, where this program cannot run."""


class BytecodeError(TilevmError, ValueError):
    """Bytes or text are not a valid program."""


class ParseError(TilevmError, ValueError):
    """Text is not a graph."""


class RecorderError(TilevmError, RuntimeError):
    """There is no recorder of eager operators for this PyTorch: `tilevm.fuse` cannot start."""


class InternalError(TilevmError, RuntimeError):
    """tilevm contradicts itself: a defect, please report it with this message."""


class WrongResult(InternalError):
    """A call gave another result than what it means: see `tilevm.config.check`."""


def describe(what: str, *, line: str | None = None, operator: str = "", remedy: str = "") -> str:
    """`model.py:41: matmul: what.` and, indented below, the remedy.

    `line` is a source location; `remedy` a sentence that says what to do.
    """
    head = ": ".join(part for part in (line, operator, what) if part)
    return f"{head}\n  {remedy}" if remedy else head
