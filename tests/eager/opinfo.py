"""PyTorch's own samples of every operator under `tilevm.fuse()`, against eager mode.

    python tests/eager/opinfo.py --all
    python tests/eager/opinfo.py --op nn.functional.gelu --dtype bfloat16

Samples of many operators run one after the other in one block: of inputs as they are, of inputs
that are pending, and in place. Nothing is looked at before the end.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.eager import tolerance

import tilevm

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
BATCH = 40  # samples in one block
# Results hold memory as it was found, or addresses.
UNDEFINED = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)


@dataclass
class Sample:
    """A call of an operator. form: "as it is", "pending" inputs, or "in place"."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    form: str

    def run(self) -> Any:
        """The result, or the error's type; and what became of the inputs."""
        args, kwargs = pytree.tree_map(self._input, (self.args, self.kwargs))
        torch.manual_seed(0)
        try:
            result = self.function(*args, **kwargs)
        except Exception as error:
            result = f"{type(error).__name__}: {error}".partition("\n")[0]
        return result, args, kwargs

    def _input(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            return x
        copied = x.detach().clone()
        if copied.stride() != x.stride():  # of odd strides: memory of their own all the same
            copied = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach())
        return torch.where(torch.tensor(True), copied, copied) if self.form == "pending" else copied


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    """Of an operator, for a dtype."""
    torch.manual_seed(0)
    for i, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if i >= most:
            break
        args = (sample.input, *sample.args)
        name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {i} {dtype}"
        for form in ("as it is", "pending"):
            yield Sample(name, op.op, args, sample.kwargs, form)
        if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            yield Sample(name, op.inplace_variant, args, sample.kwargs, "in place")


def every_sample(
    dtypes: Sequence[torch.dtype], most: int, names: Sequence[str] = ()
) -> list[Sample]:
    """Of all operators that take these dtypes."""
    found: list[Sample] = []
    for op in op_db:
        if op.name in UNDEFINED or (names and not any(n in op.name for n in names)):
            continue
        for dtype in dtypes:
            if op.supports_dtype(dtype, "cpu"):
                found += samples(op, dtype, most)
    return found


def differs(found: Any, expected: Any, *, layout: bool = True) -> str | None:
    """What is not as in eager mode. layout: strides and offsets too."""
    left, spec = pytree.tree_flatten(found)
    right, other = pytree.tree_flatten(expected)
    if spec != other:
        return f"{spec}, eager's {other}"
    for a, b in zip(left, right, strict=True):
        if isinstance(b, torch.Tensor):
            wrong = _tensor_differs(a, b, layout) if isinstance(a, torch.Tensor) else f"{a!r}"
        else:
            wrong = None if type(a) is type(b) and (_not_compared(b) or a == b) else f"{a!r}, {b!r}"
        if wrong:
            return wrong
    return None


def _not_compared(x: Any) -> bool:
    return not isinstance(x, str | int | bool | None | tuple | torch.Size)


def _tensor_differs(a: torch.Tensor, b: torch.Tensor, layout: bool) -> str | None:
    strided = layout and b.layout is torch.strided
    facts = [
        (x.dtype, x.shape, x.layout, strided and (x.stride(), x.storage_offset())) for x in (a, b)
    ]
    if facts[0] != facts[1]:
        return f"{facts[0]}, eager's {facts[1]}"
    if b.layout is torch.strided and a.is_conj() != b.is_conj():
        return "conjugated, or not"
    loose = {"rtol": 2e-2, "atol": 1e-2} if b.dtype in (torch.bfloat16, torch.float16) else {}
    try:
        torch.testing.assert_close(a, b, equal_nan=True, **loose)  # type: ignore[arg-type]
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return str(error)
    return None


def check(batch: Sequence[Sample]) -> list[str]:
    """What differs in a block of these samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [sample.run() for sample in batch]
        with tilevm.fuse():
            found = [sample.run() for sample in batch]
        rows = []
        for sample, f, e in zip(batch, found, expected, strict=True):
            try:
                wrong = differs(f, e)
            except Exception as error:
                wrong = f"raises {type(error).__name__}: {error}"
            if wrong and not (wrong.startswith("Tensor-likes") and _is_rounding(sample, f, e)):
                rows.append(f"{sample.name}, {sample.form}: {wrong}")
        return rows


def _is_rounding(sample: Sample, found: Any, expected: Any) -> bool:
    """Whether values are as near as rounding at each operator lets them be, or as eager's are."""

    def tensors(tree: Any) -> list[torch.Tensor]:
        return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]

    ours, theirs = tensors(found), tensors(expected)
    if not tolerance.wrong(ours, theirs, lambda: tensors(sample.run())):
        return True
    args, kwargs = pytree.tree_map(_wide, (sample.args, sample.kwargs))
    right = tensors(replace(sample, args=args, kwargs=kwargs).run())

    def off(values: list[torch.Tensor]) -> list[float]:
        return [
            float((x.double() - r.double()).abs().nan_to_num(0).max()) if x.numel() else 0.0
            for x, r in zip(values, right, strict=True)
        ]

    return all(a <= 1.5 * b for a, b in zip(off(ours), off(theirs), strict=True))


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def batches(found: list[Sample], seed: int) -> list[list[Sample]]:
    """The samples in random order."""
    random.Random(seed).shuffle(found)
    return [found[i : i + BATCH] for i in range(0, len(found), BATCH)]


def main() -> int:
    """Run, print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every sample, not the first two")
    parser.add_argument("--op", action="append", default=[], help="names that contain this")
    parser.add_argument("--dtype", action="append", choices=[str(d)[6:] for d in DTYPES])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tilevm.config.templates = 1
    dtypes = [getattr(torch, name) for name in options.dtype] if options.dtype else DTYPES
    found = every_sample(dtypes, 10**6 if options.all else 2, options.op)
    failed = 0
    for batch in batches(found, options.seed):
        for row in check(batch):
            failed += 1
            print(row, flush=True)
    print(f"{len(found)} samples, {failed} differ; {tilevm.stats()['flushes']}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
