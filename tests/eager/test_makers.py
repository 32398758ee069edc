"""Tensors made of sizes and numbers in blocks, and what fills itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager.compare import agree, flushes, recorded  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_eager import pending  # noqa: E402

Function = Callable[..., Any]
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip

MAKERS: dict[str, Function] = {
    "zeros": lambda x, **k: torch.zeros(3, 4, **k),
    "zeros of rank 0": lambda x, **k: torch.zeros((), **k),
    "ones": lambda x, **k: torch.ones((3, 0, 2), **k),
    "full": lambda x, **k: torch.full((2, 5), 3, **k),
    "full of a fraction": lambda x, **k: torch.full((2, 5), 1.75, **k),
    "new_zeros": lambda x, **k: x.new_zeros(7, **k),
    "new_ones": lambda x, **k: x.new_ones((2, 2), **k),
    "new_full": lambda x, **k: x.new_full((4,), 1, **k),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x, **k: torch.full_like(x, 5, **k),
    "contiguous": lambda x, **k: torch.ones_like(x, memory_format=torch.contiguous_format, **k),
    "arange": lambda x, **k: torch.arange(9, **k),
    "arange backwards": lambda x, **k: torch.arange(9, 2, -3, **k),
    "arange of nothing": lambda x, **k: torch.arange(4, 4, **k),
    "eye": lambda x, **k: torch.eye(3, **k),
    "eye with columns": lambda x, **k: torch.eye(2, 5, **k),
}
LIKE = {
    "dense": torch.randn(2, 3, 4),
    "turned": torch.randn(2, 3, 4).permute(2, 0, 1),
    "with gaps": torch.randn(4, 6, 5)[:, ::2, 1:],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "integers": torch.arange(6).reshape(2, 3),
}


@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_as_eager_code_makes_them(name: str, dtype: Any) -> None:
    if name.startswith("arange") and dtype is torch.bool:
        return  # PyTorch has none
    for like in LIKE.values():
        agree(MAKERS[name], like)
        agree(lambda x: MAKERS[name](x, dtype=dtype), like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: torch.arange(0, 1, 0.1, dtype=dtype),
        lambda dtype: torch.arange(-3.5, 7.25, 0.3, dtype=dtype),
        lambda dtype: torch.arange(2.5, -70, -0.7, dtype=dtype),
        lambda dtype: torch.arange(1 << 26, (1 << 26) + 9, dtype=dtype),
        lambda dtype: torch.linspace(0, 1, 10, dtype=dtype),
        lambda dtype: torch.linspace(-3.0, 5, 1001, dtype=dtype),
        lambda dtype: torch.linspace(5, -1, 2, dtype=dtype),
        lambda dtype: torch.linspace(5, -1, 1, dtype=dtype),
        lambda dtype: torch.linspace(5, -1, 0, dtype=dtype),
    ],
)
def test_rows_of_fractions(make: Function, dtype: Any) -> None:
    expected = make(dtype)
    with tilevm.fuse():
        found = make(dtype)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    ulps = 4 * torch.finfo(dtype).eps * max(1.0, *expected.abs().tolist(), 1.0)
    assert (found.double() - expected.double()).abs().max().item() <= ulps if len(found) else True


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((2,), 300, dtype=torch.uint8),
        lambda: torch.full((2,), float("nan"), dtype=torch.int32),
        lambda: torch.full((2,), 1e40, dtype=torch.float32),
        lambda: torch.zeros(-1),
        lambda: torch.arange(1, 0.5, 1),
        lambda: torch.arange(0, 5, 0),
        lambda: torch.arange(0, float("inf")),
        lambda: torch.arange(0, 300, dtype=torch.uint8),
        lambda: torch.eye(-2),
    ],
)
def test_errors_and_what_wraps_are_pytorchs(make: Function) -> None:
    try:
        expected = make()
    except Exception as error:
        with tilevm.fuse(), pytest.raises(type(error)) as raised:
            make()
        assert str(raised.value) == str(error)
    else:
        with tilevm.fuse():
            assert torch.equal(make(), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((2,), 1 + 2j),
        lambda: torch.zeros(2, dtype=torch.complex64),
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.zeros(2, dtype=torch.uint16),
        lambda: torch.zeros(2, layout=torch.sparse_coo),
    ],
)
def test_what_kernels_do_not_have(make: Function) -> None:
    with tilevm.fuse():
        made = make()
        assert not pending(made)
    assert made.dtype == make().dtype and made.device == make().device


def test_other_default_dtypes() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        agree(lambda: (torch.zeros(3), torch.full((2,), 0.1), torch.linspace(0, 1, 5)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_gradients() -> None:
    def step(x: Any) -> Any:
        w = torch.ones(3, 4, requires_grad=True)
        (w * x + torch.zeros_like(x)).sum().backward()
        return w, w.grad

    agree(step, torch.randn(3, 4))


# ---- Filling


def test_who_looks_at_one_runs_nothing_else() -> None:
    x = torch.randn(5)
    with tilevm.fuse():
        y = x + 1
        looked = torch.full((3,), 2.0)
        before = flushes()
        assert looked.tolist() == [2.0] * 3
        assert flushes() == before
        recorded(y)
        assert not pending(looked)
        after = looked * y[:3]
    assert torch.equal(after, 2 * (x + 1)[:3])


def test_kernels_take_the_number() -> None:
    def masked(x: Any) -> Any:
        n = x.shape[-1]
        hidden = torch.full((n, n), float("-inf")).triu(1)
        return (x @ x.T + hidden + torch.zeros(n)).softmax(-1)

    agree(masked, torch.randn(6, 6), exact=False)


def test_writes_in_place() -> None:
    def rows(x: Any) -> Any:
        out = torch.zeros(len(x), 3)
        for i in range(len(x)):
            out[i] = x[i, :3] * 2
        seen = out.sum(0)
        out[1:, 1] += 1
        return out, seen

    def whole(x: Any) -> Any:
        total = torch.zeros_like(x)
        view = total.view(-1)
        for _ in range(3):
            total += x
        view *= 2
        return total, view

    def again(x: Any) -> Any:
        z = torch.ones(2, 3)
        before = z + x[:2, :3]
        z.zero_()
        z[0] = 4
        return z, before

    for f in (rows, whole, again):
        agree(f, torch.randn(4, 5))


def test_many_writes_to_parts_of_memory() -> None:
    def shifted(x: Any) -> Any:
        out = torch.zeros(9, 4)
        for i in range(6):  # each overlaps the one before
            out[i : i + 3] = x[i : i + 3] + i
        out[2:5] += x[3:6]
        return out

    def mixed(x: Any) -> Any:
        for i in reversed(range(len(x))):
            x[i].copy_(x[i - 1] * 2)
            x[:, i % 4].zero_()
        return x

    for f in (shifted, mixed):
        agree(f, torch.randn(9, 4))


def test_memory_is_let_go_of() -> None:
    with tilevm.fuse():
        for _ in range(3):
            x = torch.zeros(5)
            memory = x.untyped_storage()._weak_ref()
            x[1:] = 2
            y = x + 1
            del x
            assert y.tolist() == [1.0, 3.0, 3.0, 3.0, 3.0]
            assert torch.UntypedStorage._expired(memory)
            torch.UntypedStorage._free_weak_ref(memory)


def test_windows() -> None:
    agree(lambda x: torch.signal.windows.hamming(33) * x, torch.randn(33), exact=False)
