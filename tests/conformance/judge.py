"""One sample of an operator through a door, against eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.conformance.doors import Door
from tests.conformance.samples import Case, copied
from tests.eager import tolerance
from tests.eager.compare import tensors_in
from tests.eager.opinfo import differs
from torch.utils import _pytree as pytree

# From best to worst.
VERDICTS = ("ok", "callouts", "fallback", "raises", "WRONG")
SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """verdict: of VERDICTS, or SKIPPED. names: what was called out. reason: what was found."""

    verdict: str
    names: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Run:
    """What a call gave: the result, gradients, what became of the arguments; or its error."""

    values: Any = None
    error: str = ""


def judged(door: Door, wrapped: Callable[..., Any], case: Case, sample: Any) -> Finding:
    """One sample. wrapped: the operator through the door."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(case.op.op, case, sample)
        with door.watched():
            found = run(wrapped, case, sample)
        if expected.error:
            return Finding(SKIPPED, reason=f"eager raises {expected.error}")
        if found.error:
            alone = door.untraceable(case.op.op)
            if alone is not None and run(alone, case, sample).error == found.error:
                return Finding(SKIPPED, reason=f"Dynamo alone raises {found.error}")
            return Finding("raises", reason=found.error)
        wrong = _wrong(found.values, expected.values, lambda: run(case.op.op, case, sample).values)
        if wrong and differs(run(case.op.op, case, sample).values, expected.values, layout=False):
            return Finding(SKIPPED, reason="eager mode differs from itself")
    if wrong:
        return Finding("WRONG", reason=wrong)
    if door.fallback:
        return Finding("fallback", reason=door.fallback)
    names = tuple(door.callouts)
    return Finding("callouts" if names else "ok", names)


def run(function: Callable[..., Any], case: Case, sample: Any) -> Run:
    """The sample once, on copies of its arguments."""
    args, kwargs = copied(((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    try:
        with torch.set_grad_enabled(case.mode == "gradient"):
            result = function(*args, **kwargs)
        if case.mode == "forward":
            return Run((result, args, kwargs))
        return Run((result, _gradients(sample.output_process_fn_grad(result), (args, kwargs))))
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        return Run(error=f"{type(error).__name__}: {text}"[:300])


def _gradients(result: Any, arguments: Any) -> list[torch.Tensor | None]:
    """Of the results' sum, weighted by numbers that differ, for each argument that wants one."""
    outputs = [x for x in tensors_in(result) if x.requires_grad]
    inputs = [x for x in tensors_in(arguments) if x.requires_grad]
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def _reals(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same, complex ones as pairs of their parts."""
    found = (x.detach().resolve_conj() for x in tensors)
    return [torch.view_as_real(x) if x.is_complex() else x for x in found]


def _wrong(found: Any, expected: Any, again: Callable[[], Any]) -> str:
    """What differs by more than PyTorch's own tolerance, and by more than noise would."""
    text = differs(found, expected, layout=False)
    if text is None:
        return ""
    ours, theirs = tensors_in(found), tensors_in(expected)
    alike = pytree.tree_structure(found) == pytree.tree_structure(expected)
    alike &= [(x.dtype, x.shape) for x in ours] == [(x.dtype, x.shape) for x in theirs]
    alike &= [x.is_conj() for x in ours] == [x.is_conj() for x in theirs]
    if alike and all(x.layout is torch.strided for x in theirs):
        left, right = (_reals(side) for side in (ours, theirs))
        rows = tolerance.wrong(left, right, lambda: _reals(tensors_in(again())))
        return "; ".join(rows)
    return " ".join(text.split())
