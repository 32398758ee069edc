"""Sizes and numbers that only the data know: captured once, or recorded, never wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402
from tilevm import errors  # noqa: E402

pytestmark = pytest.mark.torch


def rows(x: Any) -> Any:
    return x[x[:, 0] > 0]


def positives(x: Any) -> Any:
    return (x[:, 0] > 0).sum().item()


def slice_of(x: Any) -> Any:
    n = positives(x)
    return x[:n].relu(), x[n:] * 2


def checked_slice(x: Any) -> Any:
    n = positives(x)
    torch._check(n <= x.shape[0])
    return x[:n].exp()


def masked_values(x: Any) -> Any:
    """As routing to experts does."""
    out, mask = torch.zeros_like(x), x[:, 0] > 0
    out[mask] = torch.tanh(x[mask])
    out[~mask] += x[~mask].exp()
    return out


def masked_columns(x: Any) -> Any:
    out, mask = x.reshape(1, *x.shape).repeat(2, 1, 1), x > 0
    out[:, mask] = out[:, mask] * 3
    out[0, mask] = 5.0
    return out


def maximum_is_divisor(x: Any) -> Any:
    return x / (1 + x.abs().sum().item())


def suppressed(x: Any) -> Any:
    near = (x[:, None] - x[None]).abs().sum(-1) < 1.0
    return x[~torch.triu(near, 1).any(0)].sum(0)


def experts(x: Any) -> Any:
    out = torch.zeros_like(x)
    which = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    for expert in range(3):
        index = (which == expert).nonzero().squeeze(-1)
        out = out.index_add(0, index, torch.tanh(x[index] * (expert + 1)))
    return out


def segment_means(x: Any) -> Any:
    segments = (x[:, 0].abs() * 2).long()
    n = segments.sum().item() + 1
    total = torch.zeros(n, x.shape[1]).index_add(0, segments, x)
    count = torch.bincount(segments, minlength=n)[:n].clamp(min=1)
    return total / count[:, None]


def walked(x: Any) -> Any:
    """Each index is read at the one before, and all of them are the result."""
    scores = torch.cat([x.sum(-1), x.new_zeros(1)])
    last = scores.argmax()
    to = (torch.arange(scores.shape[0]) * 3 + 1) % scores.shape[0]
    path = [last]
    for _ in range(3):
        path.append(to[path[-1]])
    return torch.stack(path)


def farthest(x: Any) -> Any:
    points = torch.cat([x[:, :2], x.new_zeros(2, 2)])
    distance = torch.full((points.shape[0],), 1e10)
    at = torch.zeros((), dtype=torch.long)
    chosen = torch.zeros(3, dtype=torch.long)
    for i in range(3):
        chosen[i] = at
        distance = torch.minimum(distance, ((points - points[at]) ** 2).sum(1))
        at = distance.argmax()
    return chosen


CAPTURED: dict[str, Callable[[Any], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero() * 2,
    "nonzero as tuple": lambda x: [i + 1 for i in (x > 0).nonzero(as_tuple=True)],
    "where": lambda x: x[torch.where(x[:, 0] > 0)[0]] + 1,
    "masked_select": lambda x: torch.masked_select(x, x > 0).exp(),
    "mask": lambda x: torch.softmax(rows(x), -1),
    "mask of a mask": lambda x: rows(rows(x) - 0.5) * 2,
    "two masks": lambda x: torch.cat([rows(x) * 2, -rows(-x)]) + 1,
    "mean of a mask": lambda x: rows(x) - rows(x).sum(0),
    "product of a mask": lambda x: rows(x) @ rows(x).t(),
    "broadcast": lambda x: rows(x) + x.sum(0),
    "a row of it": lambda x: rows(x) + x[:1],
    "reshaped": lambda x: x[x > 0].view(-1, 1) * x[x > 0],
    "unique": lambda x: torch.unique((x * 2).long(), return_inverse=True),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, 0).sin(),
    "size of a tensor": lambda x: torch.zeros(positives(x), x.shape[1]) + x.sum(0),
    "size of arange": lambda x: torch.arange(positives(x)) * 2 + 1,
    "size of an expand": lambda x: x[:1].expand(positives(x), -1) * 2,
    "size of a padding": lambda x: functional.pad(x, (0, positives(x))) + 1,
    "slice": slice_of,
    "checked slice": checked_slice,
    "topk": lambda x: torch.topk(x.sum(-1), positives(x)).values,
    "int as a number": lambda x: x + x.long().sum().item(),
    "int may be negative": lambda x: x * (x.sign().sum().long().item() - 3),
    "float as a number": maximum_is_divisor,
    "bfloat16 number": lambda x: x * x.bfloat16()[:, 0].sum().item(),
    "results that are numbers": lambda x: (positives(x), x * 2, positives(x) * 2 + x.shape[0]),
    "results that are bools": lambda x: (x * 2 + 1, (x.sum() > 0).item(), x.sum().item() > 0),
    "split": lambda x: [p * 2 for p in x.tensor_split((x[:, 0] > 0).sum()[None])],
    "size in Python": lambda x: x[: int(x.abs().sum().item()) % 3] * 2 + 1,
    "length": lambda x: x * len(x[x > 0]),
    "mask of columns": lambda x: x[:, (x > 0).any(0)] * 2,
    "mask of all elements": lambda x: x[x > 0] * 2,
    "mask and its places": lambda x: (x[(x[:, 0] > 0).nonzero()[:, 0]] + 1, rows(x)),
    "values of a mask": masked_values,
    "values of columns": masked_columns,
    "values that a mask adds": lambda x: x.index_put((x > 0,), x[x > 0] * 2, accumulate=True),
    "one value of a mask": lambda x: x.index_put((x[:, 0] > 0,), x.sum(0)) * 2,
    "suppressed": suppressed,
    "experts": experts,
    "segment means": segment_means,
    "indices at indices": walked,
    "farthest points": farthest,
}

RECORDED: dict[str, Callable[[Any], Any]] = {
    "branch": lambda x: x * 2 + 1 if x.sum() > 0 else x - 1,
    "operator that is a bool": lambda x: x * 2 + 1 if torch.equal(x, x.abs()) else x - 1,
    "float computed in Python": lambda x: 1 / (positives(x) + 1),
    "division of floats": lambda x: x * (1 / (x.abs().sum().item() + 1)),
    "large ints": lambda x: (x * 1e9).long().sum().item() ** 2,
}


def inputs() -> list[Any]:
    torch.manual_seed(0)
    some = [torch.randn(*sizes) for sizes in ((4, 6), (7, 10), (5, 6), (9, 8), (1, 6), (2, 2))]
    none, every, one = -torch.rand(4, 6), torch.rand(5, 6), -torch.rand(4, 6)
    one[2] = 1
    return [*some, none, every, one, torch.zeros(0, 6), torch.randn(30, 4).t(), torch.randn(4, 6)]


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
    else:
        assert found == wanted


def flushes(prefix: str) -> list[str]:
    return [reason for reason in tilevm.stats()["flushes"] if reason.startswith(prefix)]


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_once(name: str) -> None:
    function = CAPTURED[name]
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for x in inputs():
        same(compiled(x), function(x))
    assert not flushes("eager") and not flushes("fuse")
    assert not any("index" in name for name in tilevm.stats()["callouts"])
    # One more for another order of dims, and in two cases one for a size of 0.
    assert tilevm.stats()["captures"] <= 2 + (name in ("a row of it", "size of an expand"))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str) -> None:
    function = RECORDED[name]
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for x in inputs():
        same(compiled(x), function(x))
    assert flushes("fuse") and not flushes("eager")


def test_what_tracing_decides_is_checked() -> None:
    """That rows must be 3 is true of the trace only: what differs runs eagerly, and is right."""

    def function(x: Any) -> Any:
        return rows(x) + torch.ones(3, x.shape[1])

    compiled = tilevm.compile(function)
    for n in (3, 1, 3):  # a single row is broadcast by eager code
        same(compiled(torch.ones(n, 5)), function(torch.ones(n, 5)))
    with pytest.raises(RuntimeError, match="must match the size"):
        compiled(torch.ones(2, 5))


def test_division_by_a_size_of_data() -> None:
    def function(x: Any) -> Any:
        n = positives(x)
        return 10 // n, 10 % n, x * (7 // n)

    compiled = tilevm.compile(function)
    for n in (3, 1):
        same(compiled(torch.ones(n, 2)), function(torch.ones(n, 2)))
    with pytest.raises(ZeroDivisionError):
        compiled(-torch.ones(3, 2))


def test_squeeze_of_a_size_of_data() -> None:
    def function(x: Any) -> Any:
        return (x[:, 0] > 0).nonzero().squeeze() * 2

    compiled = tilevm.compile(function)
    for n in (4, 1, 0, 2):  # of one row, a number without dims
        same(compiled(torch.ones(n, 2)), function(torch.ones(n, 2)))


def test_item_of_several_elements_is_eagers_error() -> None:
    compiled = tilevm.compile(lambda x: x + rows(x)[:, 0].long().item())
    x = -torch.ones(3, 2)
    x[1] = 2
    same(compiled(x), x + 2)
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        compiled(-x)


def test_asserted_of_data() -> None:
    def function(x: Any) -> Any:
        n = x[0, 0].long().item()
        torch._check(n < 5, lambda: "fewer than five")
        torch._check(n != 3)
        return x * n

    compiled = tilevm.compile(function)
    for n in (2, -4, 4):
        same(compiled(torch.full((2, 3), float(n))), function(torch.full((2, 3), float(n))))
    for n in (5, 3):
        with pytest.raises(RuntimeError):
            compiled(torch.full((2, 3), float(n)))


def test_what_dynamo_asserts_of_data_has_its_text() -> None:
    def positive(x: Any) -> Any:
        torch._assert_async((x > 0).all(), "a negative one")
        return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(positive, backend="tilevm")
    x = torch.tensor([1.0, 2.0])
    same(compiled(x), positive(x))
    with pytest.raises(RuntimeError) as raised:
        compiled(-x)
    assert str(raised.value) == "a negative one"
    torch._dynamo.reset()


def test_items_below_their_range() -> None:
    """Tracing takes what is asserted for granted: the range of a symbol that an item brings."""

    def function(x: Any, k: Any) -> Any:
        n = k.item()
        torch._check(n >= -2)
        return x * n

    compiled, x = tilevm.compile(function), torch.randn(5)
    for k in (3, -2, 0):
        same(compiled(x, torch.tensor(k)), x * k)
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor(-3))


def test_random_numbers_are_drawn_once() -> None:
    """A call that fails on what it has read has drawn already; eager code draws the same."""

    def function(x: Any) -> Any:
        return functional.dropout(x, 0.5).sum() + rows(x) + torch.ones(2, x.shape[1])

    compiled = tilevm.compile(function)
    for n in (2, 1, 2, 1):
        x = torch.ones(n, 3)
        torch.manual_seed(n)
        found = compiled(x), torch.rand(3)
        torch.manual_seed(n)
        same(found, (function(x), torch.rand(3)))


def test_items_are_no_callouts() -> None:
    compiled = tilevm.compile(lambda x: torch.zeros(positives(x)) + 1)
    tilevm.stats.reset()
    assert compiled(torch.ones(3, 2)).tolist() == [1, 1, 1]
    assert tilevm.stats()["callouts"] == {}
    explained = compiled.explain(torch.ones(3, 2))
    assert not explained.callouts
    assert any("item(" in step["text"] for step in explained.steps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_floats_of_data_are_exact(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return x.max().item(), x * 2

    compiled = tilevm.compile(function)
    for n in (3, 5):
        x = torch.randn(n, 7).to(dtype)
        x[0, 0] += 1 / 3
        assert compiled(x)[0] == function(x)[0]


def test_dynamo_with_sizes_of_data() -> None:
    from torch._dynamo import config

    def function(x: Any) -> Any:
        part = rows(x)
        return part * part.sum() + x[:, 0].long().sum().item()

    settings: Any = config
    with settings.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="tilevm", fullgraph=True, dynamic=True)
        with torch.no_grad():
            for x in inputs()[:9]:
                same(compiled(x), function(x))


@pytest.mark.parametrize("tier", ["interp", "auto"])
def test_a_program_with_items(tier: str) -> None:
    """A kernel that reads x before a size is known does not share a loop with one after it."""
    from tilevm.runtime import program as runtime

    program = runtime.new_program()
    program.symbol("n", 0, 1 << 40, 1)
    program.symbol("u", -5, 1 << 40, 1)
    x = program.input("int64", ["n"])
    total = program.add("sum", (x,), {"axes": [0]}, None)
    number = program.item(total, "u")
    size = program.add("size_value", (), {"size": "u + 1"}, None)
    program.check("max(u, 3)", "u", "too small")
    program.output(program.add("add", (x, size), {}, None))
    program.output(number)
    run = runtime.compile_program(program, [], framework="torch", tier=tier)
    for values in ([1, 2, 3], [7], [3, 0, 0, 0]):
        found, u = run(torch.tensor(values))
        assert u.item() == sum(values)
        assert found.tolist() == [v + sum(values) + 1 for v in values]
    with pytest.raises(errors.ShapeError, match="too small"):
        run(torch.tensor([2]))
    with pytest.raises(errors.ShapeError, match="must be -5"):
        run(torch.tensor([-7]))


def test_items_that_cannot_be_read() -> None:
    from tilevm.runtime import program as runtime

    program = runtime.new_program()
    half = program.input("float16", [])
    with pytest.raises(errors.DTypeError, match="cast it to float32"):
        program.item(half, None)
    real = program.input("float32", [])
    with pytest.raises(errors.DTypeError):
        program.item(real, "n")
