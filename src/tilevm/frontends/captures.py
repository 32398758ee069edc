"""A capture, counted, logged and traced."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tilevm import log
from tilevm.runtime import program as runtime
from tilevm.stats import stats

_NOTHING = nullcontext()


@contextmanager
def capturing(name: str) -> Iterator[None]:
    """Count what is captured in the block, if it succeeds. Spans of failures are traced as well."""
    torch: Any = sys.modules.get("torch")
    profiled = torch is not None and torch.autograd._profiler_enabled()
    begin = time.monotonic_ns()
    try:
        with torch.profiler.record_function(f"tilevm capture: {name}") if profiled else _NOTHING:
            yield
    finally:
        end = time.monotonic_ns()
        runtime.trace_capture(name, begin, end)
    stats.add("captures")
    log.tell(1, "captured %s in %.1f ms", name, (end - begin) / 1e6)
