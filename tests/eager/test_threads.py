"""Threads and processes: each thread records for itself, and may read what others recorded."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager import compare  # noqa: E402
from tests.eager.compare import grid, same  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import tilevm  # noqa: E402

THREADS = 8
ROUNDS = 40


def step(x: Any, i: int) -> Any:
    y = torch.maximum(x * 0.5 + i, x - 1)
    y[i % 3] = y.amax(0)
    return y.t().contiguous().t() - i


def all_of(function: Callable[[int], Any]) -> list[Any]:
    """Results of the function in so many threads at once; the first error is raised."""
    start = threading.Barrier(THREADS)

    def run(i: int) -> Any:
        start.wait()
        return function(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS), timeout=120))


def test_threads_record_for_themselves() -> None:
    def function(i: int) -> Any:
        x = grid() + i
        with tilevm.fuse():
            for k in range(ROUNDS):
                x = step(x, k % 5)
                if k % 7 == i:
                    x.tolist()
        return x

    def expected(i: int) -> Any:
        x = grid() + i
        for k in range(ROUNDS):
            x = step(x, k % 5)
        return x

    for i, found in enumerate(all_of(function)):
        same(found, expected(i))


def test_a_block_is_of_its_thread() -> None:
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        inside.wait(60)
        x = grid() + 1
        found.append(x)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with tilevm.fuse():
        inside.set()
        done.wait(60)
        compare.filled(*found)
        compare.recorded(grid() + 1)
    thread.join()


def test_threads_read_what_others_recorded() -> None:
    """While they record on: looks from outside, views, new operators on it, writes to it."""
    channels: list[queue.Queue[Any]] = [queue.Queue() for _ in range(THREADS)]

    def function(i: int) -> list[Any]:
        found = []
        with tilevm.fuse():
            for k in range(ROUNDS):
                x = step(grid() + k, i % 3)
                channels[(i + 1) % THREADS].put((k, x.t()))
                x = x + 1
                n, y = channels[i].get(timeout=60)
                found.append((n, y.tolist() if k % 3 == 0 else y * 2 if k % 3 == 1 else y.sum(0)))
        return found

    for i, results in enumerate(all_of(function)):
        for k, (n, found) in enumerate(results):
            y = step(grid() + n, (i - 1) % THREADS % 3).t()
            expected = y.tolist() if k % 3 == 0 else y * 2 if k % 3 == 1 else y.sum(0)
            same(found, expected, exact=False)


@pytest.mark.parametrize("inside", [False, True])
def test_many_threads_look_at_one(inside: bool) -> None:
    expected = (grid() * 3).tolist()

    def look(values: list[Any]) -> list[Any]:
        return all_of(lambda i: [values[0].tolist(), values[1].sum().item(), values[2].tolist()])

    for _ in range(ROUNDS):
        with tilevm.fuse():
            x = grid() * 3
            values = [x, x.softmax(-1), x.t() + 1]
            compare.recorded(*values)
            found = look(values) if inside else []
        found = found or look(values)
        assert all(f[0] == expected for f in found)
        assert all(f == found[0] for f in found)


def test_threads_read_while_the_owner_records() -> None:
    """The owner goes on with what others look at."""
    values: list[Any] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                for n, x in list(values[-20:]):
                    assert x.tolist() == (grid() + n).tolist()
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    with tilevm.fuse():
        x = grid() + 0
        for n in range(400):
            values.append((n, x))
            x = x + 1
    stop.set()
    for reader in readers:
        reader.join()
    assert not errors, errors[0]


def test_the_owner_ends_first() -> None:
    """What a thread left pending is filled by others."""
    kept: list[Any] = []

    def owner() -> None:
        tilevm.fuse.enable()
        kept.append(step(grid() + 1, 2))

    thread = threading.Thread(target=owner)
    thread.start()
    thread.join()
    same(kept[0], step(grid() + 1, 2))


def test_backward_in_threads() -> None:
    def function(i: int) -> Any:
        x = (grid() / 8 + i).requires_grad_()
        with tilevm.fuse():
            for k in range(5):
                (torch.tanh(x * k) @ x.t()).square().sum().backward()
        return x.grad

    for i, found in enumerate(all_of(function)):
        x = (grid() / 8 + i).requires_grad_()
        for k in range(5):
            (torch.tanh(x * k) @ x.t()).square().sum().backward()
        torch.testing.assert_close(found, x.grad)


def test_one_input_many_readers() -> None:
    shared = grid()

    def function(i: int) -> Any:
        with tilevm.fuse():
            return [(shared * k + i).sum(0) for k in range(ROUNDS)]

    for i, found in enumerate(all_of(function)):
        same(found, [(shared * k + i).sum(0) for k in range(ROUNDS)])


SCRIPT = torch.jit.CompilationUnit("""
def raised(y: Tensor, times: int):
    for _ in range(times):
        y = torch.relu(y * 1.01 + 1)
    return y.sum(0)

def raised_side_by_side(x: Tensor):
    y = x * 2 + 1
    tasks = [torch.jit.fork(raised, y + i, 5) for i in range(6)]
    z = y * 3
    for task in tasks:
        z = z + torch.jit.wait(task)
    return z
""")


@pytest.mark.skipif(
    os.environ.get("TILEVM_SANITIZED") == "thread",
    reason="tasks are handed over by locks of PyTorch's, which ThreadSanitizer does not see",
)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_tasks_of_torchscript() -> None:
    """They may run in PyTorch's own threads, on what waits in this one."""

    def tasks(x: Any) -> Any:
        y = x * 2 + 1
        found = [torch.jit.wait(t) for t in [torch.jit.fork(SCRIPT.raised, y, 3) for _ in range(6)]]
        y.mul_(2)
        task = torch.jit.fork(lambda a: a.exp() + y, y * 0.01)
        return [*found, torch.jit.wait(task), y.add_(1)]

    for _ in range(ROUNDS):
        for function in (tasks, SCRIPT.raised_side_by_side):
            compare.agree(function, grid(), exact=False)


# Processes --------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """Rows that are computed under a block, of a table that may be pending."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: int) -> Any:
        with tilevm.fuse():
            return torch.relu(self.table[i] * 2 + 1)


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_data_loader(pending: bool, inside: bool) -> None:
    """Workers are forked, after this process has used the door."""
    with tilevm.fuse():
        table = grid(8, 3) + 1
        if not pending:
            table.tolist()
    loader = DataLoader(
        Rows(table), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    if inside:
        with tilevm.fuse():
            found = [batch * 1 for batch in loader]
    else:
        found = list(loader)
    expected = torch.relu((grid(8, 3) + 1) * 2 + 1)
    assert torch.cat(found).tolist() == expected.tolist()


def _in_child(function: Callable[[], bool]) -> int:
    """Exit code of a forked child: 0 if the function says True there."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = 0 if function() else 1
        finally:
            os._exit(code)
    deadline = threading.Timer(60, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:This process")
def test_fork_inside_a_block() -> None:
    """Parent and child both go on with what was recorded."""
    expected = step(step(grid() * 1, 1), 2).tolist()
    with tilevm.fuse():
        x = step(grid() * 1, 1)
        assert _in_child(lambda: step(x, 2).tolist() == expected) == 0
        y = step(x, 2)
        assert y.tolist() == expected


@pytest.mark.filterwarnings("ignore:This process")
def test_fork_after_use_by_threads() -> None:
    big = torch.ones(300, 1000)

    def use() -> bool:
        with tilevm.fuse():
            total = torch.softmax(big * 2, -1).sum()
        return abs(float(total) - 300) < 1e-2

    assert all(all_of(lambda i: use()))
    assert _in_child(use) == 0
