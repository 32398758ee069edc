"""`tilevm.stats()`: what was captured, compiled, run and called out so far in this process."""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any, cast

from tilevm import log
from tilevm.runtime import program as runtime

# name -> meaning; the core counts all but `captures`, which front ends count with `add`.
COUNTERS: dict[str, str] = {
    "captures": "graphs made from Python functions or models",
    "compiles": "programs compiled by the core",
    "compile_total_us": "microseconds of compiling, together",
    "compile_max_us": "microseconds of the longest compile",
    "interpreted": "kernels without the machine code they should have, and launches that machine "
    "code leaves, by reason",
    "cache_hits": "compiles saved by the program cache",
    "launches": "kernels run",
    "repeated_calls": "calls of programs that ran the launches of an earlier one of the same sizes "
    "and strides again",
    "library_products": "products, and parts of them, that the framework's library made "
    "(`tilevm.config.library`)",
    "callouts": "calls of the host framework, by operator",
    "flushes": "segments of recorded operators run, by reason",
    "checks": "calls compared with what they mean (`tilevm.config.check`), by door and outcome",
    "packed_bytes": "bytes of weights packed ahead now, for functions compiled with `freeze`",
    "peak_bytes": "most bytes of buffers held at once",
}
_BY_NAME = ("interpreted", "callouts", "flushes", "checks")

MOST_NAMES = 1000  # of one counter; all later ones are counted together
OTHERS = "others"

_counts: Counter[str] = Counter()
_named: dict[str, Counter[str]] = {name: Counter() for name in _BY_NAME}


class Stats(ModuleType):
    """`tilevm.stats`: the module itself, so that it can be called."""

    def __call__(self) -> dict[str, Any]:
        """All counters of `COUNTERS`; those by something map a name to a count."""
        core = runtime.counters()
        merged: dict[str, Any] = {}
        for name in COUNTERS:
            if name in _BY_NAME:
                merged[name] = dict(Counter(core.get(name, {})) + _named[name])
            else:
                merged[name] = core.get(name, 0) + _counts[name]
        return merged

    def add(self, name: str, key: str | None = None) -> None:
        """Count one more of `name`; under `key` for the counters that have names."""
        if name == "flushes":
            log.tell(1, "not captured: %s", key)
        if key is None:
            _counts[name] += 1
        else:
            counter = _named[name]
            counter[key if key in counter or len(counter) < MOST_NAMES else OTHERS] += 1

    def reset(self) -> None:
        """Set all counters to 0."""
        _counts.clear()
        for counter in _named.values():
            counter.clear()
        runtime.reset_counters()


sys.modules[__name__].__class__ = Stats
stats = cast(Stats, sys.modules[__name__])
