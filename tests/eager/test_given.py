"""Results that are written to a given tensor in blocks, single numbers, and conjugates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager.compare import agree, filled, flushes, recorded  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]

GIVEN: dict[str, Function] = {
    "sum": lambda x, out: torch.add(x, x * 2, out=out),
    "one that waits": lambda x, out: torch.mul(x, 3, out=out * 2),
    "itself": lambda x, out: torch.exp(x, out=x),
    "a part of another": lambda x, out: torch.sub(x, 1, out=out.t().contiguous().t()),
    "product": lambda x, out: torch.mm(x, torch.ones(5, 5), out=out),
    "product added in place": lambda x, out: out.addmm_(x, torch.ones(5, 5), beta=0.5, alpha=2),
    "maximum of rows": lambda x, out: torch.amax(x, 1, out=out[:, 0]),
    "other sizes": lambda x, out: torch.add(x, 1, out=torch.empty(2)),
    "another dtype": lambda x, out: torch.add(x, 1, out=out.double()),
    "complex": lambda x, out: torch.mul(x + 0j, 2, out=out + 0j),
    "overlapping in part": lambda x, out: torch.neg(x.flatten()[1:], out=x.flatten()[:-1] * 1),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("rows", [1, 3, 0])
def test_written_to_what_is_given(name: str, rows: int) -> None:
    agree(GIVEN[name], torch.randn(rows, 5), torch.randn(rows, 5), exact=False)


def test_given_is_recorded() -> None:
    x, out = torch.randn(4, 4), torch.empty(4, 4)
    with tilevm.fuse():
        made = torch.mul(torch.add(x, 1, out=out), 2, out=out)
        assert made is out
        recorded(out)
        filled(x)
    assert torch.equal(out, (x + 1) * 2)


def test_errors_of_what_is_given() -> None:
    x = torch.randn(6)
    wrong: tuple[Function, ...] = (
        lambda: torch.add(x, 1, out=torch.empty(6, dtype=torch.int64)),
        lambda: torch.neg(x[1:], out=x[:-1]),
        lambda: torch.add(x, 1, out=torch.empty(1).expand(6)),
    )
    for function in wrong:
        with pytest.raises(RuntimeError) as theirs:
            function()
        with tilevm.fuse(), pytest.raises(RuntimeError) as ours:
            function()
        assert str(ours.value) == str(theirs.value)


NUMBERS = [0.0, -0.0, 1.5, -2.75, float("nan"), float("inf"), 3e38, 1e-40, 300.0]
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_single_numbers(number: float, dtype: Any) -> None:
    def function(x: Any) -> Any:
        copied = x.clone(), x[None, None].clone(), x.to(dtype), x.to(dtype).clone(), x.double()
        return *copied, x.clone() + 1, x.to(dtype) * 2, torch.scalar_tensor(3.0, dtype=dtype)

    if not dtype.is_floating_point and not abs(number) <= 100:
        return  # which integers have no number for
    agree(function, torch.tensor(number))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_numbers_of_all_dtypes(dtype: Any) -> None:
    agree(lambda x: (x.clone(), x.float(), x.long(), x.bool(), x.item()), torch.ones(()).to(dtype))


def test_copies_are_of_what_was() -> None:
    """Also where what they were made of is written afterwards, and where they are written to."""

    def function(x: Any) -> Any:
        first = x.clone()
        x += 1
        second = x.clone()
        x.zero_()
        first.mul_(5)
        return first, second, x, second.item(), x.item()

    agree(function, torch.tensor(2.5))
    agree(function, torch.tensor([[7]]))


def test_numbers_are_read_behind_what_waits() -> None:
    def function(x: Any) -> Any:
        y = (x * 2).sum()
        x[0] = 4
        return y.item(), x[0].item(), float(x[1]), bool(x[2] > 0), int(y)

    agree(function, torch.tensor([1.0, 2.0, 3.0]))


CONJUGATED: dict[str, Function] = {
    "numbers that wait": lambda x: torch.view_as_complex(x * 2).conj(),
    "resolved": lambda x: torch.view_as_complex(x * 2).conj().resolve_conj(),
    "twice": lambda x: torch.view_as_complex(x + 1).conj().conj() * 2,
    "multiplied": lambda x: torch.view_as_complex(x + 1).conj() * torch.view_as_complex(x * 1),
    "parts": lambda x: torch.view_as_real(torch.view_as_complex(x * 3).conj().resolve_conj()),
    "imaginary": lambda x: torch.view_as_complex(x * 3).conj().imag + 1,
    "turned": lambda x: torch.view_as_complex(x * 3).t().conj().clone(),
    "written": lambda x: torch.view_as_complex(x * 3).conj().mul_(2),
    "transforms": lambda x: (torch.fft.ifft(x[..., 0] * 2), torch.fft.ihfft(x[..., 0] * 2)),
    "of memory": lambda x: torch.view_as_complex(x).conj().clone() * 2,
}


@pytest.mark.parametrize("name", CONJUGATED)
@pytest.mark.parametrize("sizes", [(3, 4, 2), (1, 1, 2), (0, 3, 2)], ids=str)
def test_conjugates(name: str, sizes: tuple[int, ...]) -> None:
    if name == "transforms" and not sizes[0]:
        return  # PyTorch's library refuses them
    agree(CONJUGATED[name], torch.randn(sizes), exact=False)


def test_parts_of_a_conjugate_are_pytorchs_error() -> None:
    with tilevm.fuse(), pytest.raises(RuntimeError, match="unresolved conjugated tensors"):
        torch.view_as_real(torch.view_as_complex(torch.ones(3, 2) * 2).conj())


def test_batch_norms_without_weights_are_recorded() -> None:
    def function(x: Any) -> Any:
        return F.batch_norm(x, None, None, training=True) + F.instance_norm(x)

    x = torch.randn(2, 3, 4, 5)
    agree(function, x, exact=False)
    before = flushes()
    with tilevm.fuse():
        y = function(x)
        recorded(y)
    assert flushes() == before + 1


def test_batch_norms_with_update() -> None:
    def function(x: Any, mean: Any, var: Any) -> Any:
        w = torch.ones(3) * 2
        return torch.ops.aten._batch_norm_with_update(x, w, w, mean, var, 0.25, 1e-3), mean, var

    agree(function, torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3), exact=False)
