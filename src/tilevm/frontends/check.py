"""`tilevm.config.check`: which calls are compared, and what happens where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilevm.config import config
from tilevm.errors import WrongResult
from tilevm.runtime import failure
from tilevm.stats import stats


class Turns:
    """Says of each call of a function whether it is one to compare: the first, then every n-th."""

    def __init__(self) -> None:
        self._calls = 0

    def due(self) -> bool:
        """Whether this call is to be compared."""
        if not config.check:
            return False
        self._calls += 1
        return (self._calls - 1) % int(config.check) == 0


def settle(
    wrong: Sequence[str],
    *,
    door: str,
    title: str,
    against: str,
    inputs: Callable[[], Sequence[str]],
    called: Any,
    given: Sequence[Any],
) -> None:
    """Count a comparison. Raises: WrongResult, if something is wrong; the call is saved then.

    inputs: what they are, for people. called, given: what `tilevm.tools.archive.save` takes.
    """
    stats.add("checks", f"{door}: {'wrong' if wrong else 'right'}")
    if not wrong:
        return
    error = WrongResult(
        f"{title}: {'; '.join(wrong)}\n"
        f"  Compared with {against}, since tilevm.config.check is {config.check}.\n"
        f"  Inputs: {', '.join(inputs()) or 'none'}."
    )
    failure.save(called, tuple(given), error)
    raise error
