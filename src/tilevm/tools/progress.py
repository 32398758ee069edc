"""A progress bar on standard error: one line, drawn over; nothing where it is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType


class Progress:
    """`with Progress(total) as bar:` and `bar.step("what comes next")` after each unit of work."""

    def __init__(self, total: int, *, label: str = "") -> None:
        self._total = max(1, total)
        self._done = 0
        self._label = label
        self._begin = time.monotonic()
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def say(self, label: str) -> None:
        """Show what is being done."""
        self._label = label
        self._draw()

    def step(self, label: str = "", count: int = 1) -> None:
        """Count units of work as done."""
        self._done = min(self._total, self._done + count)
        self.say(label or self._label)

    def _draw(self) -> None:
        if not self._shown:
            return
        width = max(10, min(40, shutil.get_terminal_size().columns - 50))
        full = width * self._done // self._total
        seconds = time.monotonic() - self._begin
        line = f"[{'█' * full}{'·' * (width - full)}] {seconds:4.0f} s  {self._label}"
        sys.stderr.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
