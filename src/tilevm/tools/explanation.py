"""What `tilevm.explain` found, as text, plain data and a page."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilevm.tools import assembly, explain_data

NO_STEPS = "  There is nothing to run: results are arguments of the call, or constants."
NO_SEGMENTS = (
    "  Nothing was recorded: no operator was called that tilevm.fuse() records, or nobody held a\n"
    "  result. What compiled functions run is in tilevm.explain without `recorded`."
)


class Report:
    """What can be printed, read by programs, and saved."""

    @abstractmethod
    def to_json(self, *, limits: bool = True) -> dict[str, Any]:
        """All of it as plain data; docs/explain.md has the keys.

        limits: with what the machine could do at best, measured once a process (a second or two).
        """

    @abstractmethod
    def to_text(self, *, limits: bool = True) -> str:
        """What people want to know first, as text. limits: as `to_json`."""

    def to_html(self, *, limits: bool = True) -> str:
        """All of it as one page that needs nothing else. limits: as `to_json`."""
        from tilevm.tools.explain_page import page

        return page(self.to_json(limits=limits))

    def save(self, path: str | Path) -> None:
        """Write a page, plain data or text: .html, .json or .txt. Raises: ValueError."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".html":
            text = self.to_html()
        elif suffix == ".json":
            text = json.dumps(self.to_json(), indent=1)
        elif suffix == ".txt":
            text = self.to_text()
        else:
            raise ValueError(f"{path} ends in {path.suffix!r}: use .html, .json or .txt")
        path.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return self.to_text()


@dataclass(frozen=True)
class CallOut:
    """An operator that the host framework runs."""

    name: str
    reason: str
    line: str


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """What runs for a call. `str()` of it is the report; the parts are there for programs.

    graph: the program, one line an operator. guards: what it assumes of a call. operators,
    decisions: as in `to_json`. steps, kernels, memory: as the core describes them, kernels with the
    variants encoded so far; `asm` adds "assembly" to these, as `tilevm.tools.assembly` reads it.
    names: of each input, the parameter or tensor that it is; "": not known. symbols: (name, min,
    max, multiple_of). compiling: (phase, microseconds). profiles: what each timed call took and
    had to do; `untimed`: why there is none, or not more than one. parts: graphs that steps run.
    """

    title: str
    graph: str
    guards: tuple[str, ...]
    steps: tuple[dict[str, Any], ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    callouts: tuple[CallOut, ...] = ()
    operators: tuple[dict[str, Any], ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    interface: dict[str, Any] | None = None
    names: tuple[str, ...] = ()
    memory: dict[str, Any] | None = None
    symbols: tuple[tuple[str, int, int, int], ...] = ()
    compiling: tuple[tuple[str, float], ...] = ()
    profiles: tuple[dict[str, Any], ...] = ()
    untimed: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def cuts(self) -> tuple[tuple[str, str], ...]:
        """Values stored between kernels, each with the first reason for it."""
        first: dict[str, str] = {}
        for decision in self.decisions:
            first.setdefault(f"%{decision['value']}: {decision['type']}", decision["reason"])
        return tuple(first.items())

    def to_json(self, *, limits: bool = True) -> dict[str, Any]:
        """Plain data, with what the machine could do at best."""
        return explain_data.to_json(self, limits=limits)

    def to_text(self, *, limits: bool = True) -> str:
        """A report, with what the machine could do at best."""
        kernels = sum(step["kind"] in ("kernel", "chain") for step in self.steps)
        memory = explain_data.memory_rows(self)
        parts = [
            f"{self.title}: {kernels} kernel launches, {len(self.callouts)} call-outs",
            "" if self.steps else NO_STEPS,
            _section("graph", self.graph.splitlines()),
            _section("inputs", explain_data.input_rows(self)),
            _section("guards", self.guards or ("none: any sizes",)),
            _section("steps", explain_data.step_rows(self, limits=limits)),
            _section("cuts: values stored between kernels", explain_data.decision_rows(self)),
            _section("memory: buffers between steps", memory),
            _section("call-outs", _callout_rows(self.callouts)),
        ]
        parts += [_kernel(number, kernel) for number, kernel in enumerate(self.kernels)]
        parts += [f"\n{part.explanation.to_text(limits=limits)}" for part in self.parts]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Part:
    """A graph that a step runs: a branch, or the test or body of a loop. Times are of its last."""

    step: int
    does: str
    explanation: Explanation


@dataclass(frozen=True)
class Segment:
    """A program of recorded operators: how often it ran, by what made it run, and what it is."""

    reasons: dict[str, int]
    explanation: Explanation


@dataclass(frozen=True, repr=False)
class Recording(Report):
    """What a call under `tilevm.fuse()` ran: its segments, in the order in which they first ran.

    callouts: operators on tensors that were not recorded.
    """

    title: str
    segments: tuple[Segment, ...]
    callouts: tuple[CallOut, ...] = ()

    def to_json(self, *, limits: bool = True) -> dict[str, Any]:
        """Plain data, with what the machine could do at best."""
        return {
            "format": explain_data.RECORDING,
            "title": self.title,
            "call_outs": explain_data.callout_data(self.callouts),
            "segments": [
                {"reasons": s.reasons, **s.explanation.to_json(limits=limits)}
                for s in self.segments
            ],
        }

    def to_text(self, *, limits: bool = True) -> str:
        """A report of each segment, with what the machine could do at best."""
        runs = sum(n for segment in self.segments for n in segment.reasons.values())
        amounts = (len(self.segments), "segment"), (runs, "run"), (len(self.callouts), "call")
        told = ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in amounts)
        parts = [f"{self.title}: {told} not recorded"]
        if not self.segments:
            parts.append(NO_SEGMENTS)
        parts.append(_section("not recorded", _callout_rows(self.callouts)))
        for segment in self.segments:
            reasons = ", ".join(f"{reason} ({n})" for reason, n in segment.reasons.items())
            parts.append(f"\nran {reasons}:\n{segment.explanation.to_text(limits=limits)}")
        return "\n".join(parts)


def _callout_rows(callouts: Sequence[CallOut]) -> list[str]:
    lines: dict[tuple[str, str], list[str]] = {}
    for one in callouts:
        lines.setdefault((one.name, one.reason), []).append(one.line or "?")
    return [
        f"{len(known):4} {name}: {reason} ({', '.join(dict.fromkeys(known))})"
        for (name, reason), known in lines.items()
    ] or ["none"]


def _section(title: str, rows: Any) -> str:
    return "\n".join([f"\n{title}:", *(f"  {row}" for row in rows)]) if rows else ""


def _kernel(number: int, kernel: dict[str, Any]) -> str:
    rows = [f"axes: {', '.join(kernel['axes'])}", *kernel["nodes"]]
    for variant in kernel["variants"]:
        why = f", not native: {variant['why_interp']}" if variant.get("why_interp") else ""
        rows.append(f"bytecode for {variant['layout']} ({variant['tier']}{why}):")
        rows += [f"  {line}" for line in variant["disassembly"].splitlines()]
        if variant.get("assembly"):
            rows.append(f"machine code for {variant['layout']} ({variant['tier']}):")
            rows += [f"  {line}" for line in assembly.rows(variant)]
    return _section(f"kernel {number} {kernel['name']}", rows)
