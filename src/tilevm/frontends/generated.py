"""Functions that are made of source text, which tracebacks show."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

_count = 0


def function(head: str, lines: Sequence[str], names: Mapping[str, Any]) -> Any:
    """The function `def head:` with these lines, which may use `names`."""
    global _count  # noqa: PLW0603
    _count += 1
    text = f"def {head}:\n" + "".join(f"  {line}\n" for line in lines)
    path = f"<tilevm capture {_count}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope = dict(names)
    exec(compile(text, path, "exec"), scope)
    made = scope[head.partition("(")[0]]
    weakref.finalize(made, linecache.cache.pop, path, None)
    return made
