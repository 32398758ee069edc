"""All cases that `tilevm bench` measures, and how to choose some."""

from __future__ import annotations

from collections.abc import Sequence

from tilevm.tools.bench.case import Case
from tilevm.tools.bench.cases_attention import attention
from tilevm.tools.bench.cases_images import images
from tilevm.tools.bench.cases_models import models
from tilevm.tools.bench.cases_operators import operators
from tilevm.tools.bench.cases_products import products
from tilevm.tools.bench.cases_subgraphs import subgraphs

CASES: dict[str, Case] = {
    case.name: case
    for case in [*operators(), *products(), *attention(), *subgraphs(), *models(), *images()]
}


def select(suites: Sequence[str] | None, names: Sequence[str] | None) -> list[Case]:
    """Cases of these suites whose names contain one of these; None: any. Raises: ValueError."""
    found = [
        case
        for case in CASES.values()
        if (not suites or case.suite in suites)
        and (not names or any(name in case.name for name in names))
    ]
    if not found:
        raise ValueError(f"no case is called {names}; there are {', '.join(CASES)}")
    return found
