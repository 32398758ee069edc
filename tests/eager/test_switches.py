"""Blocks, the decorator, and switching on and off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager import compare  # noqa: E402
from tests.eager.compare import grid, same  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402


def assert_on() -> None:
    compare.recorded(grid() + 1)


def assert_off() -> None:
    compare.filled(grid() + 1)


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    """Before and after each test."""
    assert_off()
    yield
    tilevm.fuse.disable()
    assert_off()


def test_arguments_of_a_block() -> None:
    for block in (tilevm.fuse(), tilevm.fuse(None), tilevm.fuse(function=None, enabled=True)):
        with block as same_block:
            assert same_block is block
            assert block.enabled  # type: ignore[attr-defined]
            assert_on()
            with tilevm.fuse(enabled=False):
                assert_off()
    assert tilevm.fuse(enabled=False)(lambda: tilevm.fuse.active())() is False
    assert tilevm.fuse(function=tilevm.fuse.active)() is True
    fuse: Any = tilevm.fuse
    with pytest.raises(TypeError, match=r"takes a function or nothing, not bool\n.*enabled=False"):
        fuse(False)
    with pytest.raises(TypeError, match="takes a function or nothing"):
        fuse(len, len)
    with pytest.raises(TypeError, match="unexpected argument 'enable'"):
        fuse(enable=False)


def test_blocks_that_are_made_again_and_again_begin_anew() -> None:
    kept = [tilevm.fuse() for _ in range(40)]
    del kept
    for enabled in (False, True, True, False):
        block = tilevm.fuse(enabled=enabled)
        with block:
            assert tilevm.fuse.active() is enabled
            with block:
                pass
        with pytest.raises(RuntimeError, match="was not entered"):
            block.__exit__(None, None, None)


def test_a_block() -> None:
    with tilevm.fuse():
        assert_on()
    assert_off()


def test_blocks_nest() -> None:
    with tilevm.fuse():
        x = grid() + 1
        with tilevm.fuse():
            y = x * 2
            with tilevm.fuse():
                assert_on()
            assert_on()
            compare.recorded(x, y)
        z = y - 1
        compare.recorded(x, y, z)
        assert_on()
    assert_off()
    same(z, (grid() + 1) * 2 - 1)


def test_blocks_can_be_used_again() -> None:
    block = tilevm.fuse()
    for _ in range(3):
        with block:
            assert_on()
        assert_off()


def test_what_one_block_computed_the_next_goes_on_with() -> None:
    with tilevm.fuse():
        x = grid() + 1
    y = x.t()
    with tilevm.fuse():
        z = x * 2 + y.t()
        x.mul_(3)
    e = grid() + 1
    expected = e * 2 + e
    same((x, y, z), (e.mul_(3), e.t(), expected))


def test_exceptions_end_blocks() -> None:
    with tilevm.fuse():
        with pytest.raises(KeyError), tilevm.fuse():
            raise KeyError
        assert_on()
        with pytest.raises(RuntimeError):
            torch.ones(2) + torch.ones(3)
        assert_on()
    assert_off()
    with pytest.raises(KeyboardInterrupt), tilevm.fuse():
        raise KeyboardInterrupt
    assert_off()


def test_return_break_and_continue_end_blocks() -> None:
    def returned() -> Any:
        with tilevm.fuse():
            x = grid() + 1
            compare.recorded(x)
            return x

    x = returned()
    compare.filled(x)
    same(x, grid() + 1)
    assert_off()
    for i in range(2):
        with tilevm.fuse():
            assert_on()
            if i:
                break
            continue
    assert_off()


def test_the_decorator() -> None:
    @tilevm.fuse()
    def double(x: Any, *, times: int = 1) -> Any:
        """Doubles."""
        assert_on()
        return x * 2**times

    assert double.__name__ == "double"
    assert double.__doc__ == "Doubles."
    y = double(grid(), times=2)
    compare.filled(y)
    assert_off()
    same(y, grid() * 4)


def test_the_decorator_of_methods_and_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        @tilevm.fuse()
        def forward(self, x: Any) -> Any:
            assert_on()
            return torch.relu(self.linear(x))

    net = Net()
    y = net(grid())
    assert_off()
    torch.testing.assert_close(y, torch.relu(net.linear(grid())))


def test_decorated_functions_recurse_and_raise() -> None:
    @tilevm.fuse()
    def power(x: Any, n: int) -> Any:
        if n < 0:
            raise ValueError("negative")
        return x if n == 0 else power(x, n - 1) * 2

    same(power(grid(), 5), grid() * 32)
    with pytest.raises(ValueError, match="negative"):
        power(grid(), -1)
    assert_off()


def test_generators_inside() -> None:
    """A block in a generator is open while the generator stands in it: as contexts are."""

    def values() -> Generator[Any, None, None]:
        x = grid()
        with tilevm.fuse():
            for _ in range(3):
                x = x + 1
                yield x

    found = list(values())
    assert_off()
    for i, x in enumerate(found):
        same(x, grid() + i + 1)
    unfinished = values()
    next(unfinished)
    unfinished.close()
    assert_off()


def test_generators_are_consumed_inside() -> None:
    def values() -> Iterator[Any]:
        for i in range(3):
            yield grid() * i

    with tilevm.fuse():
        total = sum(values())
        compare.recorded(total)
    same(total, grid() * 3)


def test_contexts_around() -> None:
    @contextmanager
    def fused() -> Iterator[None]:
        with tilevm.fuse():
            yield

    with fused():
        assert_on()
    assert_off()
    with ExitStack() as stack:
        stack.enter_context(tilevm.fuse())
        stack.enter_context(torch.no_grad())
        assert_on()
    assert_off()


def test_coroutines() -> None:
    async def count() -> AsyncIterator[Any]:
        for i in range(3):
            yield grid() + i

    async def total() -> Any:
        with tilevm.fuse():
            return sum([x async for x in count()], start=grid())

    same(asyncio.run(total()), grid() * 4 + 3)
    assert_off()


def test_enable_and_disable() -> None:
    tilevm.fuse.enable()
    assert_on()
    x = grid() + 1
    with tilevm.fuse():
        assert_on()
    assert_on()
    compare.recorded(x)
    tilevm.fuse.disable()
    compare.filled(x)
    assert_off()
    same(x, grid() + 1)


def test_disable_inside_a_block() -> None:
    """Computes what waits, and says what follows in this block."""
    with tilevm.fuse():
        x = grid() + 1
        tilevm.fuse.disable()
        y = x * 2
        compare.filled(x, y)
        tilevm.fuse.enable()
        assert_on()
    same((x, y), (grid() + 1, (grid() + 1) * 2))


def test_switching_twice_is_switching_once() -> None:
    tilevm.fuse.enable()
    tilevm.fuse.enable()
    tilevm.fuse.disable()
    assert_off()
    tilevm.fuse.disable()
    assert_off()


def test_switches_are_of_their_thread() -> None:
    tilevm.fuse.enable()
    told: list[BaseException] = []

    def other() -> None:
        try:
            assert_off()
            tilevm.fuse.enable()
            assert_on()
            tilevm.fuse.disable()
            assert_off()
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert not told, told[0]
    assert_on()


def test_statistics_say_why() -> None:
    tilevm.stats.reset()
    with tilevm.fuse():
        (grid() + 1).tolist()
        x = (grid() + 2).sum()
        assert x.item() == (grid() + 2).sum().item()
        (grid() * 2).sort()
    found = tilevm.stats()["flushes"]
    assert compare.flushes() >= 3
    assert all(isinstance(reason, str) and n > 0 for reason, n in found.items())
