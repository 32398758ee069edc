"""Products by PyTorch's own library: as right as ours, and taken only where they were quicker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tilevm
from tilevm.runtime import measured, program
from tilevm.tools import cli, tune

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DTYPES = program.library_dtypes()
if "float32" not in DTYPES:
    pytest.skip("this torch brings no library that keeps to one thread", allow_module_level=True)

BOTH = pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])
SIZES = [
    (1, 1, 1), (7, 33, 65), (64, 1, 31), (1, 101, 67), (37, 53, 1), (241, 97, 131), (500, 64, 257),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_table() -> Iterator[None]:
    measured.install(None)
    yield
    measured.install(None)


def products(fn: Callable[..., Any], *args: Any, **knobs: Any) -> tuple[Any, int]:
    """What the compiled function makes of its arguments, and how many products the library made."""
    compiled = tilevm.compile(fn, **{"threads": 1, **knobs})
    with torch.no_grad():
        compiled(*args)
        before = tilevm.stats()["library_products"]
        result = compiled(*args)
    return result, tilevm.stats()["library_products"] - before


def judge(result: Any, fn: Callable[..., Any], *args: Any) -> None:
    """At most 1.5 times as far from float64 as eager code, plus two units of the result."""
    eager = fn(*args)
    exact = fn(*(x.double() for x in args))
    assert result.dtype == eager.dtype
    assert result.shape == eager.shape
    unit = torch.finfo(eager.dtype).eps * exact.abs().max()
    bound = 1.5 * (eager.double() - exact).abs().max() + 2 * unit
    assert (result.double() - exact).abs().max() <= bound


def product(x: Any, y: Any) -> Any:
    return x @ y


@BOTH
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_awkward_sizes(m: int, n: int, k: int, layout: str, dtype: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(m, k, dtype=dtype) if layout[0] == "N" else torch.randn(k, m, dtype=dtype).t()
    y = torch.randn(k, n, dtype=dtype) if layout[1] == "N" else torch.randn(n, k, dtype=dtype).t()
    with tilevm.config.patch(library="always"):
        result, count = products(product, x, y)
    assert count == 1
    judge(result, product, x, y)


@BOTH
@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 7), (5, 0, 7), (5, 7, 0)])
def test_nothing(m: int, n: int, k: int, dtype: Any) -> None:
    x, y = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)
    with tilevm.config.patch(library="always"):
        result, count = products(product, x, y)
    assert count == 0
    assert torch.equal(result, x @ y)


@BOTH
def test_parts_of_larger_matrices(dtype: Any) -> None:
    x, y = torch.randn(40, 90, dtype=dtype)[3:36, 5:70], torch.randn(70, 99, dtype=dtype)[2:67, 7:]
    with tilevm.config.patch(library="always"):
        result, count = products(product, x, y)
    assert count == 1
    judge(result, product, x, y)


def test_other_layouts_are_ours() -> None:
    """Rows that are one row, and elements with gaps between."""
    x, y = torch.randn(1, 33).expand(20, 33), torch.randn(33, 24)
    gaps = torch.randn(33, 48)[:, ::2]
    with tilevm.config.patch(library="always"):
        for right in (y, gaps):
            left = x if right is y else torch.randn(20, 33)
            result, count = products(product, left, right)
            assert count == 0
            judge(result, product, left, right)


@BOTH
def test_what_is_no_number(dtype: Any) -> None:
    x, y = torch.ones(9, 17, dtype=dtype), torch.ones(17, 21, dtype=dtype)
    x[1, 2], x[3, 4], x[5, 6], x[5, 7] = torch.nan, torch.inf, torch.inf, -torch.inf
    y[2, 3], y[4, 5] = 0, 0
    with tilevm.config.patch(library="always"):
        result, count = products(product, x, y)
    assert count == 1
    assert torch.equal(result.isnan(), (x @ y).isnan())
    torch.testing.assert_close(result, x @ y, equal_nan=True)


def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def attention(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / 8).softmax(-1) @ v


def biased(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 5, 67, 300])
def test_in_chains(rows: int, threads: int) -> None:
    torch.manual_seed(1)
    x, q = torch.randn(rows, 48), torch.randn(3, rows, 64)
    cases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (gated, (x, torch.randn(48, 70), torch.randn(48, 70), torch.randn(70, 31))),
        (biased, (x, torch.randn(301, 48), torch.randn(301))),
        (attention, (q, torch.randn(3, 53, 64), torch.randn(3, 53, 64))),
    ]
    with tilevm.config.patch(library="always"):
        for fn, args in cases:
            result, count = products(fn, *args, threads=threads)
            assert count >= 1
            judge(result, fn, *args)


def test_frozen_weights_are_not_packed() -> None:
    layer = torch.nn.Linear(65, 130)
    x = torch.randn(300, 65)
    with torch.no_grad(), tilevm.config.patch(library="always"):
        packed = tilevm.stats()["packed_bytes"]
        compiled = tilevm.compile(layer, freeze=True)
        torch.testing.assert_close(compiled(x), layer(x))
        assert tilevm.stats()["packed_bytes"] == packed


def fabricated() -> measured.Table:
    """The library is quick for about 64 rows alone, whatever is true."""
    ratios = [1.0, 0.5, 0.96]
    return measured.Table(
        ([4, 64, 1024], [64], [64]), {("float32", lies): ratios for lies in measured.LIES}
    )


def test_sizes_take_what_the_nearest_measured_ones_say() -> None:
    measured.install(fabricated())
    y = torch.randn(64, 80)
    compiled = tilevm.compile(product, threads=1)
    quick = {1: 0, 15: 0, 17: 1, 64: 1, 255: 1, 257: 0}
    for rows, quicker in quick.items():
        x = torch.randn(rows, 64)
        before = tilevm.stats()["library_products"]
        judge(compiled(x, y), product, x, y)
        assert tilevm.stats()["library_products"] - before == quicker, rows
    assert len(compiled.captures) == 1
    assert products(product, torch.randn(64, 31), y[:31])[1] == 0  # too small for the table
    assert products(product, torch.randn(64, 500), torch.randn(500, 900))[1] == 1
    half = torch.ones(64, 64, dtype=torch.bfloat16)
    assert products(product, half, half)[1] == 0  # was not measured


def test_knobs_and_tiers() -> None:
    measured.install(fabricated())
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    with tilevm.config.patch(library="off"):
        assert products(product, x, y)[1] == 0
    assert products(product, x, y)[1] == 1
    if program.widest_tier() in ("amx", "avx512"):
        assert products(product, x, y, tier="avx2")[1] == 0  # was not measured


def test_explain_says_so() -> None:
    measured.install(fabricated())
    told = str(tilevm.explain(tilevm.compile(product))(torch.ones(64, 64), torch.ones(64, 64)))
    assert "[64, 64] x [64, 64] by library" in told


def content(**changes: Any) -> str:
    data = json.loads(measured.text(fabricated(), measured.key(torch.__version__)))
    data.update(changes)
    return json.dumps(data)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    with tilevm.config.patch(measurements=str(tmp_path / "new")):
        assert measured.read(torch.__version__) is None
        file = measured.write(fabricated(), torch.__version__)
        assert list(file.parent.iterdir()) == [file]
        assert measured.read(torch.__version__) == fabricated()
        assert measured.read("2.13.1") is None
        measured.load(torch.__version__)
        assert products(product, torch.ones(64, 64), torch.ones(64, 64))[1] == 1
        file.chmod(0o666)
        with pytest.raises(PermissionError):
            measured.read(torch.__version__)
    with tilevm.config.patch(measurements="off"):
        assert measured.read(torch.__version__) is None


@pytest.mark.parametrize(
    "bad",
    [
        "", "{", "[]", "1", "[" * 100_000, "\x00", content(format=2), content(tier="other"),
        content(rows=[]), content(rows=[4, 4, 5]), content(rows=[64, 4, 1024]),
        content(rows=[0, 4, 64]), content(rows=[4, 64, 2**40]), content(rows=[4.0, 64, 1024]),
        content(rows=[True, 64, 1024]), content(rows=list(range(1, 99))), content(rows="abc"),
        content(library_over_ours=[]), content(library_over_ours={"float64": {}}),
        content(library_over_ours={"float32": []}),
        content(library_over_ours={"float32": {"rows": [1.0, 0.5]}}),
        content(library_over_ours={"float32": {"rows": [1.0, 0.5, -1]}}),
        content(library_over_ours={"float32": {"rows": [1.0, 0.5, "x"]}}),
        content(library_over_ours={"float32": {"rows": [1.0, 0.5, 1e300]}}),
        content(library_over_ours={"float32": {"rows": [1.0, 0.5, float("nan")]}}),
        content(library_over_ours={"float32": {"other": [1.0, 0.5, 1.0]}}),
        content() + " " * measured.MOST_BYTES,
    ],
)  # fmt: skip
def test_bad_files_are_left_alone(bad: str, tmp_path: Path) -> None:
    measured.install(fabricated())
    with tilevm.config.patch(measurements=str(tmp_path)):
        file = measured.path(measured.key(torch.__version__))
        assert file is not None
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(ValueError, match=str(tmp_path)):
            measured.read(torch.__version__)
        measured.load(torch.__version__)
    assert products(product, torch.ones(64, 64), torch.ones(64, 64))[1] == 0


def test_doctor_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune.run, "__defaults__", ((1, 16), (64,), (64, 100)))
    with tilevm.config.patch(measurements=str(tmp_path)):
        assert cli.main(["doctor"]) == 0
        assert "not measured, so not used" in capsys.readouterr().out
        assert cli.main(["doctor", "--tune"]) == 0
        assert "the library takes" in capsys.readouterr().out
        table = measured.read(torch.__version__)
        assert table is not None
        assert table.sizes == ([1, 16], [64], [64, 100])
        assert set(table.ratios) == {(dtype, lies) for dtype in DTYPES for lies in measured.LIES}
        assert cli.main(["doctor"]) == 0
        assert f"of {12 * len(DTYPES)} products measured" in capsys.readouterr().out
    with tilevm.config.patch(measurements="off"):
        assert cli.main(["doctor", "--tune"]) == 1
        assert "Not kept" in capsys.readouterr().out
