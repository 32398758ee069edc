"""Complex numbers in blocks: recorded as their parts, of small tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager.compare import agree, recorded  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_eager import pending  # noqa: E402

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def from_the_first_call_on() -> Iterator[None]:
    before = tilevm.config.templates
    tilevm.config.templates = 1
    yield
    tilevm.config.templates = before


def _phases(rows: int, columns: int) -> Any:
    return torch.polar(torch.ones(rows, columns), torch.randn(rows, columns))


def _turned(x: Any, phases: Any) -> Any:
    """Rotary embedding as Llama's authors wrote it."""
    z = torch.view_as_complex((x * 1.5).reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * phases).flatten(2)


RECORDED: dict[str, Function] = {
    "product": lambda a, b, x: a * b,
    "sum": lambda a, b, x: a + b - a,
    "quotient": lambda a, b, x: a / b,
    "with reals": lambda a, b, x: x * a + x,
    "with a number": lambda a, b, x: a * 2.0 - 1,
    "with a complex number": lambda a, b, x: x * (1 + 2j) + a,
    "other layouts": lambda a, b, x: torch.complex(x.T, x.T) * torch.complex(x.T, x.T + 1),
    "abs and angle": lambda a, b, x: ((a * b).abs(), (a * b).angle()),
    "functions": lambda a, b, x: ((a * 0.1).exp(), -a, a.square(), a.reciprocal()),
    "parts": lambda a, b, x: ((a * b).real + 1, (a * b).imag.sum()),
    "sums": lambda a, b, x: ((a * b).sum(0), (a + b).mean()),
    "matrices": lambda a, b, x: (a + 1) @ torch.complex(x.T, x.T),
    "of parts": lambda a, b, x: (torch.complex(x, x + 1) * a, torch.polar(x.abs(), x)),
    "joined": lambda a, b, x: (torch.cat([a * b, b]), torch.stack([a, b + a])),
    "chosen": lambda a, b, x: torch.where(x > 0, a * b, a),
    "from reals": lambda a, b, x: x.to(torch.complex64) * a,
    "transform": lambda a, b, x: torch.fft.fft(a),
    "transform of reals": lambda a, b, x: torch.fft.rfft(x) * 2,
    "transform back": lambda a, b, x: torch.fft.irfft(a * b, 8),
}
SEEN: dict[str, Function] = {  # by others than kernels, on the way or at the end
    "other layouts of arguments": lambda a, b, x: (a.T * b.T, (a + 1) @ b.T),
    "conjugate": lambda a, b, x: (a * b).conj() * b,
    "views": lambda a, b, x: ((a * b)[1:, 0] + 1, (a * b).t().contiguous(), (a + b).view(-1)),
    "in place": lambda a, b, x: ((a * b).mul_(2), (a + b).add_(a), (a - b).zero_()),
    "in place, parts": lambda a, b, x: _written_by_parts(a * b),
    "an element": lambda a, b, x: _written_at(a * b),
    "numbers": lambda a, b, x: torch.tensor([(a * b)[0, 0].item(), *(a * b).tolist()[0]]),
    "double": lambda a, b, x: (a * b).to(torch.complex128) * b,
    "with gaps": lambda a, b, x: torch.stack([a, b], -1)[..., 0] * b[:, :1],
    "of an argument": lambda a, b, x: (torch.view_as_real(a).add_(1), a * b),
    "written, then read": lambda a, b, x: (a.mul_(2), a * b, torch.view_as_real(a) + 1),
}


def _written_by_parts(z: Any) -> Any:
    torch.view_as_real(z).add_(1)
    torch.view_as_real(z)[..., 0] *= 3
    return z, z * 2, z.real + 1


def _written_at(z: Any) -> Any:
    z[-1] = 3j
    return z * z


@pytest.mark.parametrize("sizes", [(3, 4), (1, 1), (7, 13)], ids=str)
@pytest.mark.parametrize("name", [*RECORDED, *SEEN])
def test_as_eager_code_computes(name: str, sizes: tuple[int, int]) -> None:
    f = {**RECORDED, **SEEN}[name]
    a, b = (torch.randn(sizes, dtype=torch.complex64) for _ in range(2))
    agree(f, a, b, torch.randn(sizes), exact=False)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str) -> None:
    x = torch.randn(3, 4)
    with tilevm.fuse():
        made = RECORDED[name](torch.complex(x, x + 1), torch.complex(x + 2, x), x)
        recorded(*(made if isinstance(made, tuple) else (made,)))


def test_turns_of_rows() -> None:
    for rows in (5, 9, 1):
        agree(_turned, torch.randn(2, rows, 8), _phases(rows, 4), exact=False)
    with tilevm.fuse():
        recorded(_turned(torch.randn(2, 5, 8), _phases(5, 4)))


def test_pairs_of_other_memory() -> None:
    def from_views(x: Any) -> Any:
        y = x * 1.5
        return (
            torch.view_as_complex(y[:, 2:4]) * 2,
            torch.view_as_complex(y.view(3, 2, 2).transpose(0, 1)) + 1,
            torch.view_as_complex(y.view(-1, 2)[1:]),
        )

    agree(from_views, torch.randn(3, 4), exact=False)
    with tilevm.fuse(), pytest.raises(RuntimeError, match="last dimension"):
        torch.view_as_complex(torch.randn(4, 3) + 1)


def test_what_gains_nothing_stays_pytorchs() -> None:
    a = torch.randn(3, 4, dtype=torch.complex64)
    with tilevm.fuse():
        assert not any(map(pending, (a * a, a + a, a - a, a @ a.T)))


def test_many_stay_pytorchs() -> None:
    a = torch.randn(70, 70, dtype=torch.complex64)
    with tilevm.fuse():
        assert not pending(a * a)
    agree(lambda x: x * x, a, exact=False)


def test_gradients() -> None:
    def step(w: Any, x: Any) -> Any:
        w.requires_grad_()
        (w * x + w.conj()).abs().sum().backward()
        return w.grad

    agree(step, *(torch.randn(3, 4, dtype=torch.complex64) for _ in range(2)), exact=False)
