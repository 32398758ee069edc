"""Functions that read and change tensors that no argument brings, against eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402


class Slots:
    """Attributes without a dict of them."""

    __slots__ = ("kept",)
    kept: Any


Made = tuple[Callable[..., Any], list[Any]]  # a function, and the tensors that it changes


def closure() -> Made:
    kept = torch.zeros(2, 16, 8)

    def step(x: Any, at: int) -> Any:
        kept[:, at] = x
        return (kept * 2).sum(1)

    return step, [kept]


def returned() -> Made:
    kept = torch.zeros(2, 8)

    def step(x: Any, at: int) -> Any:
        return kept.add_(x)

    return step, [kept]


def method() -> Made:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(2, 16, 8)
            self.steps = torch.zeros(())

        def step(self, x: Any, at: int) -> Any:
            self.keys[:, at] += x
            self.steps += 1  # which binds the attribute to the same tensor
            return self.keys.mean(1) * self.steps

    cache = Cache()
    return cache.step, [cache.keys, cache.steps]


def callable_object() -> Made:
    slots = Slots()
    slots.kept = torch.zeros(2, 8)

    class Model:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.steps = torch.zeros(1)
            self.linear = nn.Linear(8, 8)

        def __call__(self, x: Any, at: int) -> Any:
            self.steps += 1
            slots.kept = slots.kept.mul_(0.5)
            slots.kept += x
            return self.linear(slots.kept) * self.steps

    model = Model()
    return model, [model.steps, slots.kept]


def containers() -> Made:
    kept = {"sums": [torch.zeros(2, 8), torch.zeros(1)]}

    def step(x: Any, at: int) -> Any:
        kept["sums"][0].mul_(0.5).add_(x)
        kept["sums"][1] += 1
        return kept["sums"][0] / kept["sums"][1]

    return step, kept["sums"]


def counter() -> Made:
    used, kept = torch.zeros((), dtype=torch.int64), torch.zeros(2, 20, 8)

    def step(x: Any, at: int) -> Any:
        kept.index_copy_(1, used[None], x[:, None])
        used.add_(1)
        return kept.sum(1), used

    return step, [used, kept]


def deeper() -> Made:
    kept, used = torch.zeros(2, 8), torch.zeros((), dtype=torch.int64)

    def inner(x: Any) -> Any:
        kept.add_(x)
        used.add_(1)
        return kept * used

    def between(x: Any) -> Any:
        return inner(x)

    return lambda x, at: between(x), [kept, used]


def own_and_outside() -> Made:
    kept = torch.zeros(2, 8)

    def step(x: Any, at: int) -> Any:
        own = torch.tensor([1.0, 2.0])
        own[0] = 3
        kept.zero_()
        kept.add_(x)
        return kept * own[:, None]

    return step, [kept]


def parameter() -> Made:
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)
    weights = [linear.weight]

    def step(x: Any, at: int) -> Any:
        weights[0].mul_(0.9)
        return linear(x)

    return step, weights


def twice_the_same() -> Made:
    kept = torch.zeros(2, 8)
    seen = kept.view(-1)

    def step(x: Any, at: int) -> Any:
        kept.add_(x)
        seen.mul_(2)
        return kept + 1

    return step, [kept, seen]


def array() -> Made:
    held = numpy.zeros((2, 8), numpy.float32)
    seen = torch.from_numpy(held)

    def step(x: Any, at: int) -> Any:
        own = torch.from_numpy(held)
        own += x
        return seen * 2

    return step, [seen]


CAPTURED = [closure, returned, method, callable_object, containers, counter, deeper]
CAPTURED += [own_and_outside, parameter]
EAGER = [twice_the_same, array]


@pytest.mark.parametrize("make", CAPTURED + EAGER)
def test_changes(make: Callable[[], Made]) -> None:
    (eager, want), (fn, found) = make(), make()
    compiled = tilevm.compile(fn)
    torch.manual_seed(1)
    with torch.no_grad():
        for at in (3, 4, 5, 0):
            x = torch.randn(2, 8)
            expected = copy.deepcopy(eager(x.clone(), at))
            torch.testing.assert_close(compiled(x, at), expected)
            torch.testing.assert_close(found, want)
    assert bool(compiled.captures) == (make in CAPTURED)


def test_values_are_those_of_the_call() -> None:
    number = torch.tensor(3)
    compiled = tilevm.compile(lambda x: x * int(number))
    branching = tilevm.compile(lambda x: x + 1 if number + 1 > 4 else x - 1)
    x = torch.ones(2)
    assert compiled(x).tolist() == [3, 3]
    assert branching(x).tolist() == [0, 0]
    number.fill_(5)
    assert compiled(x).tolist() == [5, 5]
    assert branching(x).tolist() == [2, 2]


def test_of_a_helper() -> None:
    number = torch.tensor(3)

    def helper(x: Any) -> Any:
        return x * number.item()

    def between(x: Any) -> Any:
        return helper(x)

    compiled = tilevm.compile(lambda x: between(x))
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    number.fill_(5)
    assert compiled(torch.ones(2)).tolist() == [5, 5]


def test_many_that_are_not_used() -> None:
    kept = [torch.full((2,), float(i)) for i in range(400)]
    compiled = tilevm.compile(lambda x: x + kept[7] * kept[3])
    assert compiled(torch.ones(2)).tolist() == [22, 22]
    (capture,) = compiled.captures
    assert [id(t) for t in capture.bound] == [id(kept[7]), id(kept[3])]


def test_buffer_that_is_an_argument() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x + self.total

    module = Adds()
    compiled = tilevm.compile(module)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert compiled(module.total).tolist() == [2, 2]


def test_gradients() -> None:
    weight = torch.full((3,), 2.0, requires_grad=True)
    compiled = tilevm.compile(lambda x: (x * weight).sum())
    for factor in (1.0, 2.0):
        weight.grad = None
        compiled(torch.full((3,), factor)).backward()
        assert weight.grad.tolist() == [factor] * 3
    with torch.no_grad():
        assert compiled(torch.ones(3)) == 6


def test_nothing_is_taken_away() -> None:
    slots, kept = Slots(), [torch.zeros(1), torch.ones(3)]
    slots.kept = torch.zeros(2)
    before = [*kept, slots.kept]

    def refused(x: Any) -> Any:
        kept[0] += 1
        slots.kept = slots.kept + 1
        return iter([x + kept[0], kept[1]])  # no capture has such a result

    compiled = tilevm.compile(refused)
    assert [t.tolist() for t in compiled(torch.ones(2))] == [[2, 2], [1, 1, 1]]
    assert kept[0] is before[0]
    assert kept[1] is before[1]
    assert slots.kept.tolist() == [1, 1]
    assert type(slots.kept) is torch.Tensor


class Cache(nn.Module):
    """Keys of several layers, written as a decoder of one step does."""

    def __init__(self, write: Callable[..., None], layers: int = 2) -> None:
        super().__init__()
        self.write = write
        self.layers = layers
        for layer in range(layers):
            self.register_buffer(f"keys{layer}", torch.zeros(3, 20, 2, 4))

    def forward(self, x: Any, at: int) -> Any:
        for layer in range(self.layers):
            keys = getattr(self, f"keys{layer}")
            self.write(keys, x, at)
            x = x + keys.sum((1,), keepdim=True).to(x.dtype)[: x.shape[0], :, :, :]
        return x


def by_position(keys: Any, x: Any, at: int) -> None:
    keys[:, at] = x[0, 0]


def by_slice(keys: Any, x: Any, at: int) -> None:
    keys[:, at : at + x.shape[1]] = x[:1]


def by_two_slices(keys: Any, x: Any, at: int) -> None:
    keys[: x.shape[0], at : at + x.shape[1]] = x


def by_slice_and_position(keys: Any, x: Any, at: int) -> None:
    keys[: x.shape[0], at] = x[:, 0]


def added(keys: Any, x: Any, at: int) -> None:
    keys[:, at] += x[0, 0]


def from_the_end(keys: Any, x: Any, at: int) -> None:
    keys[:, -at] = x[0, 0]


def by_two_positions(keys: Any, x: Any, at: int) -> None:
    keys[at % 3, at] = x[0, 0]


def by_slices_of_slices(keys: Any, x: Any, at: int) -> None:
    keys[:, 1:][:, at:][:2, :1] = x[:, :1]


def by_a_number(keys: Any, x: Any, at: int) -> None:
    keys[:, at] = 2.5


def with_a_step(keys: Any, x: Any, at: int) -> None:
    keys[:, at::3] = x[:1, :1]


WRITES = [by_position, by_slice, by_two_slices, by_slice_and_position, added, by_a_number]
WRITES += [by_slices_of_slices]
OTHER_WRITES = [from_the_end, by_two_positions, with_a_step]


@pytest.mark.parametrize("write", WRITES + OTHER_WRITES)
def test_parts_are_written_in_place(write: Callable[..., None]) -> None:
    eager, module = Cache(write), Cache(write)
    compiled = tilevm.compile(module)
    tilevm.stats.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        for at in (2, 3, 7, 8):
            x = torch.randn(2, 3, 2, 4)
            torch.testing.assert_close(compiled(x, at), eager(x, at))
            torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))
    if write in WRITES:
        assert len(compiled._tilevm.captures) == 1
    if write in WRITES and write is not added:
        text = str(compiled.explain(torch.randn(2, 3, 2, 4), 5))
        assert text.count("in the place of") == 2, text
    assert not tilevm.stats()["callouts"]


@pytest.mark.parametrize("write", WRITES)
def test_writes_out_of_range_change_nothing(write: Callable[..., None]) -> None:
    eager, module = Cache(write), Cache(write)
    compiled = tilevm.compile(module)
    x = torch.ones(2, 3, 2, 4)
    with torch.no_grad():
        for at in (3, 4, 19, 20, 21, 1, 0):
            outcomes = []
            for function in (compiled, eager):
                try:
                    outcomes.append(function(x, at))
                except (IndexError, RuntimeError) as error:
                    outcomes.append(type(error))
            if isinstance(outcomes[1], type):
                assert issubclass(outcomes[0], outcomes[1])
            else:
                torch.testing.assert_close(*outcomes)
            torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))


class Decoder(nn.Module):
    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(3, 20, 2, 4))
        self.register_buffer("values", torch.zeros(3, 20, 2, 4))

    def forward(self, x: Any, at: int) -> Any:
        rows, end = x.shape[0], at + x.shape[1]
        query, key, value = (
            part.view(rows, x.shape[1], 2, 4) for part in self.project(x).chunk(3, -1)
        )
        self.keys[:rows, at:end] = key
        self.values[:rows, at:end] = value
        found = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            self.keys[:rows, :end].transpose(1, 2),
            self.values[:rows, :end].transpose(1, 2),
        )
        return found.transpose(1, 2).reshape(rows, x.shape[1], 8)


def test_attention_over_a_cache() -> None:
    eager, module = Decoder(), Decoder()
    compiled = tilevm.compile(module)
    tilevm.stats.reset()
    at = 0
    with torch.no_grad():
        for length in (4, 1, 3, 1, 1, 2, 1, 7):
            x = torch.randn(2, length, 8)
            torch.testing.assert_close(compiled(x, at), eager(x, at), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(module.state_dict(), eager.state_dict())
            at += length
    assert at == 20  # it is full
    counts = tilevm.stats()
    assert not counts["flushes"]
    assert not counts["callouts"]
    assert counts["captures"] <= 3, compiled.guards


def test_an_einsum_with_a_size_that_a_weight_says() -> None:
    weight = torch.nn.Parameter(torch.randn(8))

    def function(x: Any) -> Any:
        return torch.einsum("btc,bsc->bts", x, x * weight)

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    with torch.no_grad():
        for rows, n in ((2, 5), (3, 9)):
            x = torch.randn(rows, n, 8)
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["callouts"]
