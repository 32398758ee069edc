"""`tilevm doctor --tune`: products of ours against the library's, kept for later processes."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence

from tilevm.runtime import measured, program

ROWS = (1, 4, 16, 64, 256, 1024)
COLUMNS = (64, 256, 1024, 4096)
DEPTHS = (64, 256, 1024, 4096)
WORTH = 0.95  # as in library.cpp


def run(
    rows: Sequence[int] = ROWS, columns: Sequence[int] = COLUMNS, depths: Sequence[int] = DEPTHS
) -> int:
    """Measure, write the table, and use it from now on. Returns the exit code."""
    import torch

    dtypes = program.library_dtypes()
    if not dtypes:
        print("This torch brings no library of products that keeps to one thread: ours are used.")
        return 0
    ratios = {}
    for dtype, lies in itertools.product(dtypes, measured.LIES):
        found = [
            _ratio(m, n, k, dtype, lies) for m, n, k in itertools.product(rows, columns, depths)
        ]
        ratios[dtype, lies] = found
        print(_told(dtype, lies, found))
        sys.stdout.flush()
    table = measured.Table((list(rows), list(columns), list(depths)), ratios)
    try:
        print(f"Kept in {measured.write(table, torch.__version__)}.")
    except (OSError, ValueError) as error:
        print(f"Not kept: {error}")
        return 1
    measured.load(torch.__version__)
    return 0


def _ratio(m: int, n: int, k: int, dtype: str, lies: str) -> float:
    """Time of the library over ours; it must be quicker twice, as a machine has its moods."""
    ratio = 0.0
    for _ in range(2):
        ours, library = program.measure_product(m, n, k, dtype, lies)
        ratio = max(ratio, library / ours)
        if ratio > WORTH:
            break
    return ratio


def _told(dtype: str, lies: str, ratios: Sequence[float]) -> str:
    worth = sum(ratio <= WORTH for ratio in ratios)
    middle = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (
        f"{dtype:>9}, {lies:<8} the library takes {middle:.2f} of our time (geomean of "
        f"{len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f}), and is used for {worth}"
    )
