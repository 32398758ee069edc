"""Products with kernels around them: threads, blocks and forks change nothing, memory stays."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.host.chain_programs import (  # noqa: E402
    PLAIN,
    Function,
    attention,
    check,
    factor,
    operands,
    results,
    tensor,
)  # fmt: skip

import tilevm  # noqa: E402
from tilevm.runtime import program as runtime  # noqa: E402

LARGE = [(33, 600, 300), (257, 255, 300), (17, 257, 300), (1, 1100, 1100), (16, 300, 301)]
LARGE += [(95, 256, 320), (600, 64, 65), (3000, 31, 33), (2, 600, 1100), (257, 600, 17)]
LARGE += [(5, 1024, 512), (11, 700, 901), (273, 600, 7), (33, 300, 39)]


def per_threads(fn: Function, args: Sequence[Any], counts: Sequence[int]) -> list[tuple[Any, ...]]:
    """Results by numbers of threads: of torch, and of the configuration."""
    found = []
    compiled = tilevm.compile(fn)
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            for n in (1, 2):
                torch.set_num_threads(n)
                found.append(results(compiled(*args)))
            for n in counts:
                with tilevm.config.patch(threads=n):
                    found.append(results(compiled(*args)))
    finally:
        torch.set_num_threads(before)
    return found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("product", torch.float32),
        ("right transposed", torch.float32),
        ("product", torch.float16),
        ("product", torch.bfloat16),
        ("right transposed", torch.bfloat16),
        ("transposed result", torch.float32),
        ("swiglu", torch.bfloat16),
        ("mlp of norms", torch.float32),
        ("row sums", torch.float32),
    ],
    ids=str,
)
def test_threads_change_nothing(name: str, dtype: Any) -> None:
    for sizes in LARGE:
        args = operands(*sizes, dtype)
        first, *others = per_threads(PLAIN[name], args, [1, 3, 16, 40])
        check(lambda *_, first=first: first, PLAIN[name], *args)
        for other in others:
            for x, y in zip(first, other, strict=True):
                assert torch.equal(x, y), sizes


@pytest.mark.parametrize("name", ["layer norm", "right transposed, then rows"])
def test_right_factors_that_pass_by(name: str) -> None:
    """Where whole rows are needed, those of a block meet all of a factor: packed, or as it is."""
    fn = PLAIN[name]
    for sizes in [(150, 300, 520), (256, 64, 900), (300, 900, 500), (700, 1100, 330)]:
        args = operands(*sizes, torch.float32)
        first, *others = per_threads(fn, args, [1, 3, 16])
        check(lambda *_, first=first: first, fn, *args)
        for other in others:
            for x, y in zip(first, other, strict=True):
                assert torch.equal(x, y), sizes


def test_numbers_of_all_sizes_where_right_factors_pass_by() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        return y, y.amax(-1)

    for m in (150, 520):
        x, w = tensor(m, 900), factor(900, 500)
        x[3, 5], x[m - 1, 7], x[m - 2, 0], x[100] = float("inf"), float("nan"), 3.4e38, 1e-40
        got, want = tilevm.compile(fn)(x, w), fn(x.double(), w.double())
        for g, e in zip(got, want, strict=True):
            torch.testing.assert_close(g, e.float(), rtol=1e-4, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(got[0][100], want[0][100].float(), rtol=1e-4, atol=1e-43)


def test_threads_change_no_product_of_bytes() -> None:
    """Their factors are read where they lie for up to 16 rows."""
    for m in (1, 4, 5, 8, 16, 17):
        x, w = tensor(m, 1024), torch.randint(-128, 128, (1024, 515), dtype=torch.int8)
        first, *others = per_threads(lambda x, w: x @ w.to(x.dtype), [x, w], [3, 5])
        for (other,) in others:
            assert torch.equal(first[0], other), m


def test_threads_change_no_attention() -> None:
    for b, h, q, k, d in [
        (2, 3, 65, 130, 64),
        (1, 1, 300, 300, 32),
        (1, 2, 1, 5000, 64),
        (2, 2, 33, 20, 64),
        (1, 3, 65, 7, 64),
    ]:
        args = [tensor(b, h, n, d) for n in (q, k, k)] + [tensor(q, k)]
        first, *others = per_threads(attention, args, [1, 2, 3, 5, 16])
        for (other,) in others:
            assert torch.equal(first[0], other)


def test_calls_at_once() -> None:
    fn = PLAIN["mlp of norms"]
    compiled = tilevm.compile(fn)
    sets = [operands(m, 200, 190, torch.float32) for m in (17, 40, 257, 600)]
    with torch.no_grad():
        wanted = [compiled(*args) for args in sets]
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        with torch.no_grad():
            for _ in range(60):
                k = rng.randrange(len(sets))
                if not torch.equal(compiled(*sets[k]), wanted[k]):
                    wrong.append(f"{seed}: {k}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads
def test_a_forked_child_multiplies() -> None:
    fn = PLAIN["mlp of norms"]
    compiled = tilevm.compile(fn)
    args = operands(257, 200, 190, torch.float32)
    with torch.no_grad():
        want = compiled(*args).numpy().copy()
        child = os.fork()
        if child == 0:  # PyTorch's own threads would hang here: NumPy compares
            signal.alarm(20)
            os._exit(0 if np.array_equal(compiled(*args).numpy(), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_memory_does_not_grow() -> None:
    compiled = [tilevm.compile(PLAIN[name]) for name in ("mlp of norms", "swiglu", "concat")]
    rng = random.Random(0)
    sizes = [(rng.randint(0, 300), rng.randint(1, 200), rng.randint(1, 200)) for _ in range(1000)]
    sizes[::100] = [(600, 600, 600)] * 10
    kept = []
    with torch.no_grad():
        for i, (m, k, n) in enumerate(sizes):
            args = operands(m, k, n, torch.float32)
            for fn in compiled:
                fn(*args)
            if i in (500, 999):
                del args
                gc.collect()
                kept.append((runtime.memory(), runtime.code_memory()["used_bytes"]))
    (before, code), (after, code_after) = kept
    assert after["used_bytes"] == before["used_bytes"]
    assert after["peak_bytes"] <= 1.2 * before["peak_bytes"]
    assert after["idle_bytes"] <= 1.2 * before["idle_bytes"] + (1 << 20)
    assert code_after <= 1.5 * code  # classes of layouts are few
