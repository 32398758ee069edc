"""Programs of the machine as bytes and as text. docs/isa.md lists the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilevm.runtime import program as runtime


def assemble(text: str) -> bytes:
    """The bytes of a program as `disassemble` writes it. Raises: BytecodeError, with the line."""
    return runtime.bytecode.assemble(text)


def disassemble(data: bytes) -> str:
    """The text of a program: `assemble` makes the same bytes of it. Raises: BytecodeError."""
    return runtime.bytecode.disassemble(data)


def verify(data: bytes) -> None:
    """Do nothing for a valid program. Raises: BytecodeError, which says what is wrong and where."""
    runtime.bytecode.verify(data)


def run(data: bytes, inputs: Sequence[Any], outputs: Sequence[Any], *, tier: str = "auto") -> None:
    """Verify a program and run it on NumPy arrays; results are written into `outputs`.

    Arrays are bound to the operands of their role in order. Dims are those along which the operand
    moves: rows, the axis of a gather, columns. bfloat16 is passed as its bits, in uint16.
    tier: "auto", "interp", or "native", which raises where there is no machine code for it.
    Raises: BytecodeError, if arrays do not fit the program; IndexError and ZeroDivisionError from
    the program itself.
    """
    runtime.bytecode.run(data, inputs, outputs, tier=tier)
