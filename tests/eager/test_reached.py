"""Memory that is reached past the recorder's operators, and blocks that end as no block should."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.frontends.torch_eager import pending  # noqa: E402


def written() -> Any:
    """Not a result of the block, and waiting to be written in one."""
    x = torch.zeros(3)
    x.add_(1)
    return x


def index_by_a_list() -> Any:
    i = torch.zeros(2, dtype=torch.int64)
    i.add_(1)
    return torch.arange(5.0)[[i[0], i[1]],]


def of_parameters() -> Any:
    net = torch.nn.Linear(2, 1)
    net.weight.data.fill_(0.0)
    net(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(net.parameters(), 1.0).step()
    w = net.weight.detach()
    return torch.tensor([w[0, 0], w[0, 1]])


def reused_buffer() -> Any:
    buffer, results = np.zeros(3, np.float32), []
    for i in range(4):
        buffer[:] = i
        results.append(torch.from_numpy(buffer) * 10)
    return torch.stack(results)


def reused_bytes() -> Any:
    buffer, results = bytearray(b"\1\1\1"), []
    for i in range(3):
        buffer[:] = bytes([i] * 3)
        results.append(torch.frombuffer(buffer, dtype=torch.uint8) + 1)
    return torch.stack(results)


def overlapping_arrays() -> Any:
    array = np.arange(6, dtype=np.float32)
    a, b = torch.from_numpy(array[:4]), torch.from_numpy(array[2:])
    read = a * 1
    a.add_(1)
    b.mul_(2)
    return torch.cat([read, a, b, torch.from_numpy(array.copy())])


def other_names_of_memory() -> Any:
    x = torch.ones(3)
    y = x + 1
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).zero_()
    return torch.cat([x, y])


def sparse_values() -> Any:
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (3,))
    sparse._values().mul_(2)
    return sparse.to_dense()


def sparse_rows() -> Any:
    values = torch.ones(2)
    rows = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), values, (2, 2))
    rows.values().mul_(5)
    return rows.to_dense()


def element_by_element() -> Any:
    x = written()
    y = x * 2
    x.apply_(lambda v: v + 9)
    x.map_(torch.ones(3), lambda a, b: a * b)
    return torch.cat([x, y])


def scripted_module_saved() -> Any:
    net = torch.jit.script(torch.nn.Linear(2, 1))
    net.weight.data.fill_(0.0)
    net.weight.grad = torch.ones(1, 2)
    torch.optim.SGD([net.weight], 1.0).step()
    file = io.BytesIO()
    torch.jit.save(net, file)
    file.seek(0)
    return torch.jit.load(file).weight.detach()


_state = torch.zeros(3)


def _add_state(x: Any) -> Any:
    _state.mul_(10)
    return x + _state


adds_state = torch.library.custom_op(
    "tilevm_tests::adds_state",
    _add_state,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x) -> Tensor",
)


def library_with_state() -> Any:
    _state.fill_(1.0)
    _state.add_(1)
    before = _state * 1
    return torch.cat([adds_state(torch.ones(3)), before, _state])


def states_of_generators() -> Any:
    own, state = torch.Generator(), torch.get_rng_state()
    waiting = torch.cat([state[:9] * 1, torch.where(state > 99, state, state)[9:] + 0])
    torch.set_rng_state(waiting + 0)
    own.set_state(waiting)
    return torch.cat([torch.rand(3), torch.rand(3, generator=own)])


def switched_off_reading() -> Any:
    x = written()
    with tilevm.fuse(enabled=False):
        return x * 2


def switched_off_writing() -> Any:
    x = written()
    y = x + 1
    with tilevm.fuse(enabled=False):
        x.mul_(10)
    return torch.cat([x, y])


REACHED: list[Callable[[], Any]] = [
    lambda: torch.tensor([written()[0], written()[1]]),
    lambda: torch.as_tensor([written()[0], 2.0]),
    lambda: torch.ones(3).new_tensor([written()[0]]),
    index_by_a_list,
    of_parameters,
    reused_buffer,
    reused_bytes,
    overlapping_arrays,
    other_names_of_memory,
    sparse_values,
    sparse_rows,
    element_by_element,
    scripted_module_saved,
    library_with_state,
    states_of_generators,
    switched_off_reading,
    switched_off_writing,
]


@pytest.mark.filterwarnings("ignore")  # sparse CSR is in beta, TorchScript deprecated
@pytest.mark.parametrize("function", REACHED, ids=lambda f: f.__name__)
def test_memory_is_as_without(function: Callable[[], Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        want = function()
    with torch.random.fork_rng(devices=[]), tilevm.fuse():
        got = function()
    assert torch.equal(got, want)


def test_what_pytorch_or_tilevm_allocated_is_recorded() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    made = tilevm.compile(lambda x: x + 1)(torch.ones(3))
    loaded = torch.load(file)
    with tilevm.fuse():
        for x in (loaded, made, torch.tensor([1.0])):
            assert pending(x + 1)
        for x in (torch.from_numpy(np.ones(3)), torch.from_dlpack(np.ones(3))):
            assert not pending(x + 1)


def test_memory_looked_at_is_not_kept() -> None:
    looks: tuple[Callable[[Any], object], ...] = (
        lambda x: x.numpy().sum(),
        lambda x: x.data_ptr(),
        lambda x: x.untyped_storage(),
    )
    with tilevm.fuse():
        for look in looks:
            x = torch.full((5,), 1.0)
            memory = x.untyped_storage()._weak_ref()
            look(x)
            assert not torch.UntypedStorage._expired(memory)
            del x
            assert torch.UntypedStorage._expired(memory)
            torch.UntypedStorage._free_weak_ref(memory)


@pytest.mark.parametrize("call", [lambda x: x**1j, lambda x: x.pow(1 + 1j)])
def test_complex_numbers(call: Callable[[Any], Any]) -> None:
    x = torch.tensor([0.5, 2.0])
    want = call(x)
    with tilevm.fuse():
        got = call(x)
    torch.testing.assert_close(got, want)


def test_blocks_of_coroutines_end_in_any_order() -> None:
    async def first() -> None:
        with tilevm.fuse():
            await asyncio.sleep(0.01)
            assert tilevm.fuse.active()

    async def second() -> None:
        await asyncio.sleep(0.005)
        with tilevm.fuse():
            await asyncio.sleep(0.02)
            assert tilevm.fuse.active()  # the other one has ended

    async def main() -> None:
        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert not tilevm.fuse.active()


def test_blocks_of_generators_end_in_any_order() -> None:
    def steps() -> Iterator[int]:
        with tilevm.fuse():
            yield 1
            yield 2

    one, other = steps(), steps()
    next(one), next(other)
    x = torch.zeros(3)
    x.add_(1)
    list(one)
    assert tilevm.fuse.active()
    list(other)
    assert not tilevm.fuse.active()
    assert x.tolist() == [1.0] * 3


def test_threads_that_end_while_they_record() -> None:
    tilevm.fuse.enable()
    tilevm.fuse.disable()
    x = torch.zeros(3)

    def work() -> None:
        tilevm.fuse.enable()
        x.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert x.tolist() == [1.0] * 3
    with concurrent.futures.ThreadPoolExecutor(1, initializer=tilevm.fuse.enable) as pool:
        pool.submit(x.add_, 1).result()
    assert x.tolist() == [2.0] * 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads
def test_processes_forked_in_a_block_write_what_they_compute() -> None:
    x = torch.ones(3).share_memory_()
    with tilevm.fuse():
        x.add_(1)  # of the parent
        process = torch.multiprocessing.get_context("fork").Process(target=lambda: x.mul_(5))
        process.start()
        process.join()
        assert x.tolist() == [10.0] * 3
