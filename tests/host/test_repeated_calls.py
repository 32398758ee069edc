"""Calls like earlier ones: their launches run again as they were noted, at other addresses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.config import config  # noqa: E402
from tilevm.runtime import program as runtime  # noqa: E402


@pytest.fixture(autouse=True)
def _poisoned() -> Any:
    runtime.set_poison(True)
    with torch.no_grad():
        yield
    runtime.set_poison(False)


def repeated(call: Callable[[], Any]) -> int:
    """How many of the calls that `call` makes were run as noted."""
    before = tilevm.stats()["repeated_calls"]
    call()
    return int(tilevm.stats()["repeated_calls"] - before)


def block(x: Any, w: Any, n: int) -> Any:
    h = torch.nn.functional.layer_norm(x @ w, [w.shape[1]])
    heads = h.reshape(x.shape[0], 2, -1).transpose(0, 1)
    return heads.softmax(-1) * n, h.sum(0), x[1:].t()


def check(f: Any, rows: int, n: int) -> None:
    x, w = torch.randn(rows, 12), torch.randn(12, 8)
    for ours, eager in zip(f(x, w, n), block(x, w, n), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_third_call_is_the_first_that_runs_as_noted() -> None:
    f = tilevm.compile(block)

    def call() -> None:
        check(f, 5, 3)

    assert [repeated(call) for _ in range(4)] == [0, 0, 1, 1]


def test_sizes_that_alternate() -> None:
    f = tilevm.compile(block)
    for _ in range(3):
        for rows in (1, 2, 5, 33):
            check(f, rows, 3)

    def call() -> None:
        for rows in (1, 2, 5, 33):
            check(f, rows, 3)

    assert repeated(call) >= 3


def test_more_kinds_of_calls_than_are_kept() -> None:
    f = tilevm.compile(block)
    for _ in range(4):
        for rows in range(2, 22):
            check(f, rows, 3)


def test_many_products_share_what_passes_between_their_stages() -> None:
    """Forty of them pack factors: with memory of its own for each, that would be too much."""
    layers = [torch.randn(24, 24) / 5 for _ in range(40)]

    def deep(x: Any, *layers: Any) -> Any:
        for w in layers:
            x = (x @ w).tanh()
        return x

    f = tilevm.compile(deep)
    for rows in (9, 24, 5):
        x = torch.randn(rows, 24)
        want = deep(x.double(), *[w.double() for w in layers]).float()
        before = tilevm.stats()["repeated_calls"]
        for _ in range(4):
            torch.testing.assert_close(f(x, *layers), want)
        assert tilevm.stats()["repeated_calls"] - before == 2


def long(x: Any, a: Any, b: Any) -> Any:
    """Products of which others run meanwhile, and more between them than a frame keeps."""
    h = torch.relu(x @ a)
    y = h @ b
    return y, (y.softmax(-1) * 2).sum(0), h.sum(1).cumsum(0), x.t()


def check_long(f: Any, rows: int) -> None:
    x, a, b = torch.randn(rows, 60) / 8, torch.randn(60, 200), torch.randn(200, 60) / 14
    wanted = long(x.double(), a.double(), b.double())
    for ours, exact in zip(f(x, a, b), wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_long_launches_and_an_arena_that_is_not_kept() -> None:
    f = tilevm.compile(long)
    with config.patch(threads=1):
        for _ in range(3):
            for rows in (110, 7, 100):
                check_long(f, rows)

        def call() -> None:
            for rows in (110, 7, 100):
                check_long(f, rows)

        assert repeated(call) == 3


def test_threads_that_run_as_noted_at_the_same_time() -> None:
    f = tilevm.compile(long)

    def work(calls: int) -> None:
        with torch.no_grad():
            for _ in range(calls):
                check_long(f, 110)

    with config.patch(threads=1), ThreadPoolExecutor(4) as pool:
        work(1)
        list(pool.map(work, [12] * 4))  # raises what they raise
        assert repeated(lambda: work(3)) >= 1


def test_a_long_loop_runs_again() -> None:
    f = tilevm.compile(lambda x: x.exp().cumsum(0) + 1)

    def check_loop() -> None:
        x = torch.randn(400_000) / 10
        torch.testing.assert_close(f(x), x.exp().cumsum(0) + 1)

    with config.patch(threads=1):
        assert [repeated(check_loop) for _ in range(4)] == [0, 0, 1, 1]


def test_numbers_that_are_no_sizes_may_change() -> None:
    f = tilevm.compile(lambda x, n: x * n + 1)
    for _ in range(3):
        f(torch.randn(7), 0.5)
    x = torch.randn(7)

    def call() -> None:
        torch.testing.assert_close(f(x, 2.5), x * 2.5 + 1)

    assert repeated(call) == 1


def test_integers_that_are_sizes() -> None:
    f = tilevm.compile(lambda x, n: x[:n].exp())
    x = torch.randn(20)
    for n in (3, 3, 3, 4, 4, 4, 20, 3, 3, 3):
        torch.testing.assert_close(f(x, n), x[:n].exp())


def test_strides_that_change() -> None:
    f = tilevm.compile(lambda x, y: (x + y).amax(0))
    dense, other = torch.randn(6, 6), torch.randn(6, 6)
    for _ in range(3):
        for x in (dense, dense.t(), dense[::2].repeat(2, 1)):
            torch.testing.assert_close(f(x, other), (x + other).amax(0))


def test_what_is_written_in_place() -> None:
    @tilevm.compile
    def step(p: Any, m: Any, g: Any) -> None:
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)

    for _ in range(4):
        p, m, g = torch.ones(10), torch.ones(10), torch.randn(10)
        step(p, m, g)
        torch.testing.assert_close(m, 0.9 + g)
        torch.testing.assert_close(p, 1 - (0.9 + g) * 0.1)
    for _ in range(4):  # sizes and strides are the same, but not whose memory it is
        ours, eager = torch.ones(30), torch.ones(30)
        step(ours[:10], ours[5:15], g)
        step.__wrapped__(eager[:10], eager[5:15], g)
        torch.testing.assert_close(ours, eager)


def test_results_do_not_share_memory() -> None:
    f = tilevm.compile(lambda x: (x + 1, x.reshape(-1)))
    x = torch.randn(3, 4)
    results = [f(x)[0] for _ in range(6)]
    assert len({r.data_ptr() for r in results}) == 6
    for r in results:
        torch.testing.assert_close(r, x + 1)


def test_an_index_out_of_range_fails_each_time_and_names_the_place() -> None:
    f = tilevm.compile(lambda table, i: table[i] * 2)
    table, good, bad = torch.randn(5, 3), torch.tensor([0, 4]), torch.tensor([0, 5])
    for i in (good, good, good, bad, bad, good):
        if i is good:
            torch.testing.assert_close(f(table, i), table[i] * 2)
            continue
        with pytest.raises(IndexError, match=r"out of (range|bounds)"):
            f(table, i)


def test_tiers_and_threads_that_change() -> None:
    f = tilevm.compile(block)
    for tier in ("auto", "interp", "auto"):
        with config.patch(tier=tier):
            for _ in range(4):
                check(f, 5, 3)
    for threads in (1, 3, 1):
        with config.patch(threads=threads):
            for _ in range(4):
                check(f, 5, 3)


def test_frozen_weights_that_go() -> None:
    linear = torch.nn.Linear(70, 65)
    f = tilevm.compile(lambda x: torch.relu(linear(x)), freeze=True)
    x = torch.randn(33, 70)
    for _ in range(4):
        torch.testing.assert_close(f(x), torch.relu(linear(x)))
    before = tilevm.stats()["repeated_calls"]
    f(x)
    assert tilevm.stats()["repeated_calls"] == before + 1
    assert tilevm.stats()["packed_bytes"] > 0
    del f
    linear = torch.nn.Linear(1, 1)
    gc.collect()
    assert tilevm.stats()["packed_bytes"] == 0


def test_a_parameter_that_is_replaced() -> None:
    linear = torch.nn.Linear(70, 65)
    f = tilevm.compile(lambda x: torch.relu(linear(x)), freeze=True)
    x = torch.randn(33, 70)
    for _ in range(3):
        for _ in range(4):
            torch.testing.assert_close(f(x), torch.relu(linear(x)))
        linear.weight = torch.nn.Parameter(torch.randn(65, 70))


def test_memory_of_calls_that_failed() -> None:
    """A tensor that is too large, noted half."""
    f = tilevm.compile(lambda x, n: x.expand(n, -1) + 1)
    x = torch.randn(1, 3)
    for n in (2, 2, 2, 1 << 60, 1 << 60, 1 << 60, 2, 2):
        if n == 2:
            torch.testing.assert_close(f(x, n), x.expand(n, -1) + 1)
        else:
            with pytest.raises((MemoryError, RuntimeError)):
                f(x, n)


def test_many_threads() -> None:
    f = tilevm.compile(block)
    check(f, 5, 3)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for i in range(150):
                x = torch.randn(2 + (i + seed) % 5, 12, generator=generator)
                w = torch.randn(12, 8, generator=generator)
                for ours, eager in zip(f(x, w, 3), block(x, w, 3), strict=True):
                    torch.testing.assert_close(ours, eager)
        except BaseException as error:
            failures.append(error)

    with torch.no_grad():
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_traces_see_the_launches_of_calls_that_were_noted(tmp_path: Any) -> None:
    f = tilevm.compile(block)
    for _ in range(4):
        check(f, 5, 3)
    with tilevm.trace(tmp_path / "trace.json"):
        assert repeated(lambda: check(f, 5, 3)) == 0
    assert '"launch"' in (tmp_path / "trace.json").read_text()


def test_variants_count_launches_that_were_noted() -> None:
    f = tilevm.compile(lambda x: torch.tanh(x) * 2)
    x = torch.randn(9)
    for _ in range(7):
        f(x)
    launches = tilevm.stats()["launches"]
    f(x)
    assert tilevm.stats()["launches"] == launches + 1
