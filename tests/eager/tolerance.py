"""How far results of a program of PyTorch's operators may be off.

Another way to compute errs by a few units of the last place at each operator, and need not round
values of low precision in between. Running a program again with random errors of that size says,
element by element, how much that matters in the end, and which elements say nothing: behind
comparisons of values that are nearly equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = (4, 40)  # to look first, and before something is called wrong
TIMES = 5.0  # allowed, against the largest deviation seen
UNITS = 4.0  # of the last place, allowed to any result
_ERROR = 3.0  # of an operator, in units of the last place

# Results are operands, or constants.
_EXACT = frozenset(
    "abs amax amin argmax argmin cat clamp clamp_max clamp_min clone copy copy_ detach detach_ "
    "embedding eq expand fill_ fill flip full gather ge gt index index_put_ index_put index_select "
    "le lt lift_fresh max maximum min minimum masked_fill masked_fill_ masked_select ne neg neg_ "
    "ones ones_like rand rand_like relu relu_ repeat roll scatter scatter_ select_"
    "backward sign slice_backward sort stack topk tril triu uniform_ bernoulli_ bernoulli "
    "where zero_ zeros zeros_like empty empty_like new_empty new_zeros new_full empty_strided "
    "constant_pad_nd floor ceil round trunc threshold_backward unfold_backward nan_to_num "
    "_efficientzerotensor".split()  # the last has no memory
)
# Errors are relative to what the sizes of operands add up to.
_SUMS = frozenset(
    "sum nansum mean mm bmm addmm baddbmm dot mv cumsum index_add index_add_ scatter_add add add_ "
    "sub sub_ rsub addcmul addcmul_ lerp lerp_ linear".split()
)


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Errors at every operator, of numbers of their own."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        writes = func._schema.is_mutable
        view = any(r.alias_info is not None for r in func._schema.returns) and not writes
        if name in _EXACT or view:
            return func(*args, **kwargs)
        scale = _sizes(func, args, kwargs) if name in _SUMS else None
        largest = max((_largest(x) for x in pytree.tree_leaves(args)), default=0.0)
        result = func(*args, **kwargs)
        for x in pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor) and _is_rounded(x) and x.numel():
                eps = torch.finfo(x.dtype).eps
                size = x.abs() if scale is None or scale.shape != x.shape else scale
                if (name not in _SUMS and "norm" in name) or name in _BY_OPERAND:
                    size = size + largest
                # Sums of all operands, whose largest result says how large they are.
                if name.startswith("_fft"):
                    size = size + size.nan_to_num(0, 0, 0).max()
                if x.is_complex():  # either part errs by what the number's size allows
                    x, size = torch.view_as_real(x), size.unsqueeze(-1)  # noqa: PLW2901
                noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
                x.add_((noise * eps * _ERROR * size.double()).nan_to_num(0, 0, 0).to(x.dtype))
        return result


def _is_rounded(x: torch.Tensor) -> bool:
    return x.is_floating_point() or (x.is_complex() and not x.is_conj())


_BY_OPERAND = frozenset(
    "gelu silu gelu_backward silu_backward softmax _softmax log_softmax _log_softmax logsumexp "
    "var std logaddexp".split()
)


def _sizes(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """What a sum would be if nothing cancelled."""

    def size(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype is not torch.bool:
            return x.abs()
        return abs(x) if isinstance(x, float | complex) else x

    if func._schema.is_mutable:  # the first operand takes part, and is the result
        args = (args[0].clone(), *args[1:])
    is_difference = func._schema.name == "aten::sub"
    if "out" in kwargs:
        func, kwargs = func.overloadpacket, {k: v for k, v in kwargs.items() if k != "out"}
    if is_difference:
        func = torch.add
    try:
        found = func(*pytree.tree_map(size, args), **kwargs)
    except (RuntimeError, TypeError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _largest(x: Any) -> float:
    if not isinstance(x, torch.Tensor) or not x.numel():
        return 0.0
    if not (x.is_floating_point() or x.is_complex()):
        return 0.0
    return float(x.abs().double().nan_to_num(0, 0, 0).abs().max())


def wide(x: torch.Tensor) -> torch.Tensor:
    """As float64; what is not floating point as it is."""
    return x.double() if x.is_floating_point() else x


def near(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Elements within UNITS of the last place."""
    a, b = wide(found), wide(expected)
    same = (a == b) | (a.isnan() & b.isnan()) if b.is_floating_point() else a == b
    if not b.is_floating_point():
        return same
    info = torch.finfo(found.dtype)
    return same | ((a - b).abs() <= UNITS * (info.eps * b.abs() + info.smallest_normal * info.eps))


def wrong(
    found: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    again: Callable[[], Sequence[torch.Tensor]],
) -> list[str]:
    """What is off beyond noise. `again` runs the program once more, as the expected ones were."""
    right = [near(f, e) for f, e in zip(found, expected, strict=True)]
    deviation = [torch.zeros(e.shape, dtype=torch.float64) for e in expected]
    known = [torch.ones(e.shape, dtype=torch.bool) for e in expected]
    seed = 0
    for samples in SAMPLES:
        if all(bool(r.all()) for r in right):
            return []
        while seed < samples:
            try:
                with Noise(seed):
                    sample = again()
            except RuntimeError:
                return []  # branches that depend on rounding
            seed += 1
            if [x.shape for x in sample] != [x.shape for x in expected]:
                return []  # sizes that depend on rounding
            for k, (s, e) in enumerate(zip(sample, expected, strict=True)):
                a, b = wide(s), wide(e)
                if not b.is_floating_point():
                    known[k] &= a == b
                    continue
                known[k] &= (b.isfinite() == a.isfinite()) & (b.isfinite() | near(s, e))
                off = (a - b).abs().nan_to_num(0, 0, 0)
                deviation[k] = torch.maximum(deviation[k], off)
        for k, (f, e) in enumerate(zip(found, expected, strict=True)):
            right[k] |= ~known[k]
            if e.is_floating_point():
                right[k] |= (wide(f) - wide(e)).abs() <= TIMES * deviation[k]
    rows = []
    for k, r in enumerate(right):
        if not r.all():
            index = tuple(int(i) for i in (~r).nonzero()[0])
            rows.append(
                f"number {k}: {int((~r).sum())} of {r.numel()} elements, at {list(index)} "
                f"{found[k][index].item()!r}, eager's {expected[k][index].item()!r}, "
                f"{float(deviation[k][index]):.3g} seen as noise"
            )
    return rows
