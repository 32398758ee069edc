"""Machine code beside the bytecode that it came from, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_INDENT = "  "


class Line(NamedTuple):
    """One line of what the core says of emitted code.

    kind: "begin" and "end" of a loop or section named `text`; "instruction" number `instruction` of
    the bytecode, whose code follows, `text`: for which vector of columns, which step; "host", an
    instruction or label at `offset` bytes; "data", constants there.
    """

    kind: str
    offset: int
    instruction: int
    text: str


def rows(variant: Mapping[str, Any]) -> Iterator[str]:
    """The listing of a variant that has "assembly". Offsets are in bytes, hexadecimal."""
    bytecode = instructions(variant["disassembly"])
    depth, data = 0, False
    for line in lines(variant):
        if line.kind == "begin":
            yield f"{_INDENT * depth}-- {line.text}"
            depth += 1
        elif line.kind == "end":
            depth -= 1
            yield f"{_INDENT * depth}-- end of {line.text}"
        elif line.kind == "instruction":
            note = f"  ({line.text})" if line.text else ""
            yield f"{_INDENT * depth}{bytecode[line.instruction].strip()}{note}"
        else:
            if line.kind == "data" and not data:
                data = True
                yield "-- constants"
            yield f"{_INDENT * (depth + 2)}{line.offset:04x}  {line.text}"


def lines(variant: Mapping[str, Any]) -> Sequence[Line]:
    """The lines of a variant that has "assembly", in the order of emission."""
    return [Line(*line) for line in variant["assembly"]]


def instructions(disassembly: str) -> list[str]:
    """The lines of a disassembly that are instructions, by index."""
    return [line for line in disassembly.splitlines() if line[:1].isdigit()]
