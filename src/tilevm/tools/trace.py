"""`with tilevm.trace("out.json"):` what happens, on a time line that Perfetto and Chrome show."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tilevm.errors import TilevmError, describe
from tilevm.runtime import program as runtime

MOST_SPANS = 200_000  # 20 MB of memory, 30 of JSON; later ones are counted alone

# What the core and the front ends time, in the order in which one is inside another.
KINDS: dict[str, str] = {
    "capture": "a function becomes a graph",
    "lower": "compiling: decompositions, casts, equal operators merged",
    "fuse": "compiling: operators become kernels",
    "host program": "compiling: steps, sizes, arena",
    "flush": "a recorded segment runs, by what made it",
    "call": "a program runs",
    "branch": "one of two graphs runs, as in torch.cond",
    "repeat": "a graph runs again and again, as in torch.while_loop",
    "launch": "a kernel, or products with their kernels",
    "call-out": "an operator that PyTorch runs",
    "encode": "a kernel becomes bytecode, for a new class of layouts",
    "emit": "bytecode becomes machine code",
}


class Trace:
    """The context manager. `dropped`, at its end: spans that there was no room for."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._began_ns = 0
        self._unix_ns = 0
        self.dropped = 0

    def __enter__(self) -> Trace:
        self._path.open("a").close()  # fails now if it cannot be written
        self._unix_ns, self._began_ns = time.time_ns(), time.monotonic_ns()
        if not runtime.trace_start(self._most):
            what = "a trace is being taken already"
            raise TilevmError(describe(what, operator="tilevm.trace", remedy="End that one first."))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        spans, self.dropped = runtime.trace_stop()
        told = {
            "displayTimeUnit": "ns",
            "baseTimeNanoseconds": self._unix_ns,  # as torch.profiler says it
            "otherData": {"version": "tilevm", "dropped": self.dropped},
            "traceEvents": [*self._threads(spans), *map(self._event, spans)],
        }
        self._path.write_text(json.dumps(told), encoding="utf-8")
        if self.dropped:
            sys.stderr.write(f"tilevm.trace: {self.dropped} spans were dropped\n")

    def _event(self, span: runtime.Span) -> dict[str, Any]:
        kind, name, begin_ns, end_ns, thread = span
        return {
            "ph": "X",
            "cat": kind,
            "name": f"{kind}: {name}" if name else kind,
            "ts": (begin_ns - self._began_ns) / 1e3,
            "dur": (end_ns - begin_ns) / 1e3,
            "pid": os.getpid(),
            "tid": thread,
        }

    def _threads(self, spans: list[runtime.Span]) -> list[dict[str, Any]]:
        names = {t.native_id: t.name for t in threading.enumerate()}
        return [
            {
                "ph": "M",
                "name": "thread_name",
                "pid": os.getpid(),
                "tid": thread,
                "args": {"name": names.get(thread, f"thread {thread}")},
            }
            for thread in dict.fromkeys(span[4] for span in spans)
        ]


def trace(path: str | Path, *, most: int = MOST_SPANS) -> Trace:
    """A context manager that writes what happens in its block, in all threads, to a JSON file.

    Spans are those of `tilevm.tools.trace.KINDS`. most: how many are kept; each takes 88 bytes.
    Raises: ValueError. When entered: OSError, if the file cannot be written; TilevmError in another
    trace.
    """
    if type(most) is not int or most < 0:
        raise ValueError(f"tilevm.trace: most is {most!r}: give the number of spans to keep")
    return Trace(Path(path), most)
