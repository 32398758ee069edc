"""Functions that keep their results: a trace leaves nothing of its own there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def sines(n: int) -> Any:
    return torch.arange(n, dtype=torch.float32).sin()


@functools.lru_cache
def kept(n: int) -> Any:
    return sines(n)


@functools.lru_cache
def kept_pair(n: int, *, scale: float = 1.0) -> Any:
    return sines(n) * scale, "text"


@pytest.fixture
def in_module() -> Any:
    """A module of Python, in another, with such a function."""
    outer, inner = ModuleType("tables_outer"), ModuleType("tables_inner")
    inner.table = functools.lru_cache(maxsize=4)(sines)  # type: ignore[attr-defined]
    outer.inner = inner  # type: ignore[attr-defined]
    sys.modules |= {"tables_outer": outer, "tables_inner": inner}
    yield outer
    del sys.modules["tables_outer"], sys.modules["tables_inner"]


def check(function: Callable[..., Any], sizes: list[int], captures: int) -> None:
    compiled = tilevm.compile(function)
    before = tilevm.stats()
    for n in sizes:
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), function(x))
    after = tilevm.stats()
    assert after["captures"] - before["captures"] == captures
    assert after["flushes"] == before["flushes"]


def real(value: Any) -> bool:
    return type(value) is torch.Tensor


def test_what_is_kept_is_what_eager_code_would_keep() -> None:
    kept.cache_clear()
    compiled = tilevm.compile(lambda x: x * kept(8))
    x = torch.randn(3, 8)
    compiled(x)
    table = kept(8)
    assert real(table)
    assert kept.cache_info().misses == 1
    torch.testing.assert_close(compiled(x), x * sines(8))
    table.zero_()  # the same object as eager code would read
    assert compiled(x).count_nonzero() == 0
    kept.cache_clear()


def test_of_a_size_it_is_part_of_the_graph() -> None:
    kept.cache_clear()
    check(lambda x: x * kept(x.shape[1]), [5, 9, 1, 0, 64, 5], captures=1)
    assert all(map(real, map(kept, (5, 9, 1, 0, 64))))


def test_sizes_in_tuples_and_keywords() -> None:
    @functools.lru_cache(None)
    def table(shape: tuple[int, ...], *, rows: int) -> Any:
        return sines(shape[-1]) * rows

    check(lambda x: x * table((3, x.shape[1]), rows=x.shape[0]), [5, 9, 5], captures=1)
    check(lambda x: x * table(tuple(x.shape), rows=3), [5, 9, 5], captures=1)


def test_results_of_several_kinds() -> None:
    kept_pair.cache_clear()
    check(lambda x: x + kept_pair(1, scale=2.0)[0] + len(kept_pair(1)[1]), [5, 9], captures=1)
    assert real(kept_pair(1, scale=2.0)[0])
    assert kept_pair(1)[1] == "text"


def test_in_modules_of_python(in_module: Any) -> None:
    check(lambda x: x + in_module.inner.table(1), [5, 9], captures=1)
    assert real(in_module.inner.table(1))


def test_in_lists_dicts_and_closures() -> None:
    first, second, third = (functools.lru_cache(4)(lambda n, k=k: sines(n) + k) for k in range(3))
    held = [first, {"a": second}]
    check(lambda x: x + held[0](1) + held[1]["a"](1) + third(1), [5, 9], captures=1)  # type: ignore[operator, index]
    assert all(real(function(1)) for function in (first, second, third))


class Table:
    def __init__(self, n: int) -> None:
        self.values = sines(n)


@pytest.mark.parametrize(
    "make",
    [torch.ones, functools.partial(torch.arange, dtype=torch.float32), lambda n: Table(n), Table],
)
def test_of_what_is_no_function(make: Callable[[int], Any]) -> None:
    table = functools.lru_cache(4)(make)

    def values(n: int) -> Any:
        made = table(n)
        return made.values if isinstance(made, Table) else made

    check(lambda x: x + values(1), [5, 9], captures=1)
    check(lambda x: x + values(x.shape[1]), [5, 9, 5], captures=1)
    assert all(map(real, map(values, (1, 5, 9))))


class Tables:
    offset = 1.0

    @functools.lru_cache  # noqa: B019
    def of_object(self, n: int) -> Any:
        return sines(n) + self.offset

    @staticmethod
    @functools.lru_cache
    def static(n: int) -> Any:
        return sines(n)

    @classmethod
    @functools.lru_cache
    def of_class(cls, n: int) -> Any:
        return sines(n) + cls.offset


def test_methods() -> None:
    tables = Tables()

    def function(x: Any) -> Any:
        return x + tables.of_object(1) + Tables.static(1) + tables.of_class(x.shape[1])

    check(function, [5, 9], captures=1)
    assert all(real(f(1)) for f in (tables.of_object, tables.static, tables.of_class))


def test_methods_of_modules_see_parameters() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.table = functools.lru_cache(self.make)

        def make(self, n: int) -> Any:
            return sines(n)

        @functools.lru_cache  # noqa: B019
        def scaled(self, n: int) -> Any:
            return sines(n) * self.scale

        def forward(self, x: Any) -> Any:
            return x * self.table(1) + self.scaled(x.shape[1])

    module = Scaled()
    check(module, [5, 9, 5], captures=1)
    assert real(module.table(1))
    assert real(module.scaled(5))


@pytest.mark.parametrize("of_several", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_where_nobody_looks_the_cache_is_emptied(of_several: bool, fails: bool) -> None:
    table = functools.lru_cache(4)(lambda n: (sines(n), n) if of_several else sines(n))
    hidden = functools.partial(table, 7)

    def function(x: Any) -> Any:
        found = hidden()
        if fails and x.sum().numpy() > 0:  # what no trace has
            return x - 1
        return x + (found[0] if of_several else found)

    compiled = tilevm.compile(function)
    x = -torch.rand(3, 7)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x + sines(7))
    assert real(table(7)[0] if of_several else table(7))


def test_a_function_that_looks_at_what_is_kept() -> None:
    table = functools.lru_cache(4)(sines)

    def function(x: Any) -> Any:
        if table.cache_info().currsize > 3:
            table.cache_clear()
        return x + table(1)

    check(function, [5, 9], captures=1)
    assert real(table(1))


def test_functions_of_the_trace_are_put_back() -> None:
    def fail(x: Any) -> Any:
        kept(3)
        raise ValueError("on purpose")

    before = kept
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            tilevm.compile(fail)(torch.randn(3))
    assert kept is before
    assert real(kept(3))


def test_globals_of_what_is_kept_are_read_again() -> None:
    scale = [2.0]

    @functools.lru_cache
    def scaled(n: int) -> Any:
        return sines(n) * scale[0]

    compiled = tilevm.compile(lambda x: x * scaled(x.shape[0]))
    for value in (2.0, 3.0):
        scale[0] = value
        scaled.cache_clear()
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x), x * sines(6) * value)


def test_with_gradients() -> None:
    kept.cache_clear()
    compiled = tilevm.compile(lambda x: (x * kept(8) * kept(x.shape[0])[:, None]).sum())
    with torch.enable_grad():
        for n in (3, 5):
            x = torch.randn(n, 8, requires_grad=True)
            compiled(x).backward()
            torch.testing.assert_close(x.grad, sines(8) * sines(n)[:, None])
    assert real(kept(8))
    kept.cache_clear()


class ByLength(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Keeps what it makes for each number of columns."""

    def __init__(self, of_several: bool) -> None:
        super().__init__()
        self.of_several = of_several
        self.tables: dict[Any, Any] = {}

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        key = (n, x.device) if self.of_several else n
        if key not in self.tables:
            self.tables[key] = sines(n)
        return x * self.tables[key]


@pytest.mark.parametrize("of_several", [False, True])
def test_dicts_by_size_are_captured_for_the_sizes_they_have(of_several: bool) -> None:
    module = ByLength(of_several)
    compiled = tilevm.compile(module)
    for n in (5, 5, 9, 9):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), x * sines(n))
    assert all(map(real, module.tables.values()))
    assert all(type(key) is (tuple if of_several else int) for key in module.tables)
    before = tilevm.stats()
    for n in (9, 5, 9):  # what was captured before the dict had another key is captured again
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), x * sines(n))
    after = tilevm.stats()
    assert after["captures"] - before["captures"] == 1
    assert after["flushes"] == before["flushes"]
