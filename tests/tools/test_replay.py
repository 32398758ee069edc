from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.errors import ParseError, ShapeError
from tilevm.ir import reference
from tilevm.ir.compare import differences
from tilevm.ir.text import from_text, to_text
from tilevm.ir.types import numpy_dtype
from tilevm.tools import archive, callout, cli, replay

GRAPH = """
graph(x: float32[M, N], n: float)
  y = mul x, n
  z = amax y, axes=[1]
  return y, z
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "call.zip"
    x = np.linspace(-1, 1, 7 * 33, dtype=np.float32).reshape(7, 33)
    archive.save(path, from_text(GRAPH), [x, 2.5], note="just so")
    return path


def test_what_is_saved_comes_back(saved: Path) -> None:
    call = archive.load(saved)
    assert call.graph == from_text(GRAPH)
    assert call.note == "just so"
    assert call.inputs[0].shape == (7, 33)
    assert call.inputs[1] == 2.5


def test_a_file_holds_no_code(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert sorted(archive.namelist()) == ["call.json", "graph.txt", "inputs.npz"]


def test_every_tier_agrees(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(saved)]) == 0
    told = capsys.readouterr().out
    assert "just so" in told
    for tier in ("interp", "auto"):
        assert f"{tier}  as the reference" in told


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float16", "int64", "int8"])
def test_calls_of_kernels(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    @tilevm.kernel
    def scaled(x: Any, n: int) -> Any:
        return lang.maximum(x * n, 0)

    x = (torch.arange(33) - 9).to(getattr(torch, dtype))
    archive.save(tmp_path / "call.zip", scaled, [x, 3])
    call = archive.load(tmp_path / "call.zip")
    assert call.inputs[0].dtype == numpy_dtype(dtype)
    outcomes = replay.replay(tmp_path / "call.zip")
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    assert not differences(outcomes[1].results, outcomes[0].results)


@pytest.mark.torch
def test_complex_numbers_are_saved_as_pairs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    graph = from_text(
        "graph(x: float32[N, 2])\n  y: float32[N] = select x, axis=1, index=1\n  return y"
    )
    x = torch.complex(torch.arange(5.0), torch.ones(5)).conj()
    archive.save(tmp_path / "call.zip", graph, [x])
    call = archive.load(tmp_path / "call.zip")
    assert call.inputs[0].tolist() == [[n, -1] for n in range(5)]
    exact = replay.run_tier(call, "reference")
    assert (exact[0] == -1).all()


@pytest.mark.torch
def test_operators_called_out_are_found_by_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    graph = from_text(
        "graph(a: float32[M, K], b: float32[K, N])\n"
        "  c: float32[M, N] = call a, b, target=0\n"
        "  return c"
    )
    arrays = [np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)]
    path = tmp_path / "call.zip"
    archive.save(path, graph, arrays, targets=["aten.mm.default"])
    exact = replay.run_tier(archive.load(path), "reference")
    assert (exact[0] == 4).all()
    for name in ("linear", "aten.nothing.default", "aten.mm.nothing", "aten.add_.Tensor"):
        archive.save(path, graph, arrays, targets=[name])
        with pytest.raises(ParseError, match=name):
            replay.run_tier(archive.load(path), "reference")


def test_a_tier_that_dies_is_told_of(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "TIERS", ("reference", "no such tier"))
    assert cli.main(["replay", str(saved)]) == 1
    assert "no such tier" in capsys.readouterr().out


def test_a_file_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "call.zip"
    path.write_text("no archive")
    assert cli.main(["replay", str(path)]) == 2
    assert "not a saved call" in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path / "none.zip")]) == 2


@pytest.mark.parametrize(
    ("found", "exact", "told"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, np.nan], [1.0, np.nan], ""),
        ([1.0, np.inf], [1.0, np.inf], ""),
        ([1.0, 2.5], [1.0, 2.0], "result 0[1] is 2.5"),
        ([1.0, 2.0], [1.0, np.nan], "not nan"),
        ([1.0, -np.inf], [1.0, np.inf], "-inf"),
        ([1.0], [1.0, 2.0], "float32[1], not float32[2]"),
        ([], [], ""),
    ],
)
def test_differences(found: list[float], exact: list[float], told: str) -> None:
    arrays = [np.array(x, np.float32) for x in (found, exact)]
    wrong = differences([arrays[0]], [arrays[1]])
    assert bool(wrong) == bool(told)
    assert told in "".join(wrong)


def test_integers_are_compared_exactly() -> None:
    a, b = np.array([2**62], np.int64), np.array([2**62 + 1], np.int64)
    assert differences([a], [b])
    assert not differences([a], [a])


def test_a_call_has_its_time(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "LIMIT_S", 0.01)  # less than a process takes to start
    assert all("no answer" in outcome.error for outcome in replay.replay(saved))


def test_a_call_has_its_memory() -> None:
    """Beyond three quarters of the machine's, allocating fails instead of a process being ended."""
    code = (
        "import os, numpy as np\n"
        "from tilevm.tools import replay\n"
        "replay.bound_memory()\n"
        "whole = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')\n"
        "np.empty(whole // 64, np.uint8)\n"
        "try: np.empty(whole * 4 // 5, np.uint8)\n"
        "except MemoryError: print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused\n", done.stderr


# What the graph calls out ------------------------------------------------------------------------


def _dropped(x: Any) -> Any:
    import torch

    return torch.nn.functional.dropout(x * 2, 0.3, True)


CALLED_OUT: dict[str, Any] = {
    "a constant": lambda x: x.pinverse(1e-4) + 1,
    "a list of values": lambda x: x[x > 0] * 2,
    "a size": lambda x: x + __import__("torch").randn(x.shape[0], 1),
    "a product of float64": lambda x: x.double() @ x.double().T,
    "complex numbers": lambda x: __import__("torch").linalg.eigvals(x @ x.T).real + 1,
    "bfloat16": lambda x: __import__("torch").igamma(x.bfloat16().exp(), x.bfloat16().exp()) * 2,
    "random numbers": _dropped,
    "an item": lambda x: x * x.sum().item(),
    "sizes of data": lambda x: (x > 0).nonzero() + 1,
    "several results": lambda x: __import__("torch").linalg.svd(x)[1] + 1,
}


@pytest.mark.torch
@pytest.mark.parametrize("what", CALLED_OUT)
def test_what_is_called_out_runs_again(what: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "call.zip"
    tilevm.explain(CALLED_OUT[what], save=path, runs=0)(x)
    call = archive.load(path)
    assert call.targets or any(node.op == "call" for node in call.graph.nodes)
    exact, *others = (replay.run_tier(call, tier) for tier in replay.TIERS)
    assert all(np.size(result) for result in exact)
    for results in others:
        assert not differences(
            results, exact, dtypes=[t.dtype for t in call.graph.types().values()]
        )
    if what in ("a constant", "a list of values", "several results"):
        eager = CALLED_OUT[what](x).numpy()
        np.testing.assert_allclose(exact[0], eager, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
def test_layers_of_a_recurrent_network_run_again(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.LSTM(8, 5, 2)
    path = tmp_path / "call.zip"
    tilevm.explain(lambda x: network(x)[0], save=path, runs=0)(torch.randn(3, 2, 8))
    call = archive.load(path)
    assert any("lstm_layers" in target for target in call.targets)
    exact, *others = (replay.run_tier(call, tier) for tier in replay.TIERS)
    assert not any(differences(results, exact) for results in others)


@pytest.mark.torch
def test_what_cannot_be_saved_is_warned_of(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    for function, path in ((chosen, tmp_path / "a.zip"), (torch.sin, tmp_path / "no" / "a.zip")):
        with pytest.warns(UserWarning, match="is not saved in"):
            report = tilevm.explain(function, save=path, runs=0)(torch.ones(3))
        assert report.steps
        assert not path.exists()


@pytest.mark.torch
@pytest.mark.parametrize(
    "text",
    [
        "print(a0)",
        "os.system('true')",
        "aten.from_file.default('x', True, 3)",
        "aten.add_.Tensor(a0, a0)",
        "aten.__class__.default(a0)",
        "aten.cumsum.default(a0, __import__('os'))",
        "aten.cumsum.default(a0, a0.shape)",
        "aten.cumsum.default(a0, torch.nn)",
        "aten.cumsum.default(a0, torch.load)",
        "aten.cumsum.default(a0, a7)",
        "aten.cumsum.default(a0, 9**9**9)",
        "aten.cumsum.default(a0, 9999999999999999999 * 9999999999999999999)",
        "aten.cumsum.default(a0, [0 for _ in a0])",
        "aten.cumsum.default(a0, (lambda: 0)())",
        "aten.cumsum.default(a0, 1 // 0)",
        "aten.cumsum.default(a0, 0)[a0]",
        "aten.cumsum.default(a0, 0)[-1]",
        "aten.cumsum.default(a0, 0)[True]",
        "aten.cumsum.default(a0, 0)[:1]",
        "aten.cumsum.default(*a0)",
        "aten.cumsum.default(**a0)",
        "aten.cumsum.default(a0, math.pow(9, 9))",
        "aten.cumsum.default(a0, torch.device('cuda'))",
        "aten.cumsum.default(a0, " + "[" * 500 + "]" * 500 + ")",
        "aten.cumsum.default(a0, " + " " * 5000 + "0)",
        "aten.cumsum.default(a0\x00, 0)",
        "a0",
        "",
    ],
)
def test_what_a_call_out_may_not_be(text: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ParseError):
        callout.function(text)(np.ones(3, np.float32))


@pytest.mark.torch
def test_arguments_of_a_call_out() -> None:
    pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = callout.function("aten.cumsum.default(a0, -1 + int(a1), dtype=torch.float64)")(x, 2)
    np.testing.assert_array_equal(found, np.cumsum(x, 1, np.float64))
    assert found.dtype == np.float64
    sort = "aten.sort.default(a0, 1, True)"
    order = [[2, 1, 0], [2, 1, 0]]
    for text, expected in ((sort, [x[:, ::-1], order]), (f"{sort}[1]", [order])):
        for made, wanted in zip(callout.function(text)(x), expected, strict=True):
            np.testing.assert_array_equal(made, wanted)
    (found,) = callout.function("aten.gelu.default(a0, approximate='tanh')")(x)
    assert found.shape == (2, 3)
    (found,) = callout.function("aten.full.default([2, a0], float('-inf'))")(3)
    assert (found == -np.inf).all()
    assert found.shape == (2, 3)
    (pairs,) = callout.function("aten.mul.Tensor(complex(a0), complex(0.0, 1.0))")(x[:, :2])
    np.testing.assert_array_equal(pairs, np.stack([-x[:, 1], x[:, 0]], -1))


def test_items_of_the_graph_as_text() -> None:
    text = (
        "graph(x: int64[])\n  where u0 in 0..\n"
        "  n: int, s: opaque[u0] = call x, target=-2\n"
        "  y: float32[u0] = full dtype=float32, shape=[u0], value=2.0\n  return y\n"
    )
    graph = from_text(text)
    assert from_text(to_text(graph)) == graph
    assert reference.evaluate(graph, np.array(3))[0].tolist() == [2.0] * 3
    with pytest.raises(ShapeError, match="-1"):
        reference.evaluate(graph, np.array(-1))
    known = text.replace("x: int64[])\n  where u0 in 0..", "x: int64[], z: float32[u0])")
    assert reference.evaluate(from_text(known), np.array(3), np.ones(3))[0].size == 3
    with pytest.raises(ShapeError, match="u0 is 4"):
        reference.evaluate(from_text(known), np.array(3), np.ones(4))
    for old, wrong in (
        ("target=-2", "target=-1"),
        ("target=-2", "target=-3"),
        ("target=-2", "target=0"),
        ("s: opaque[u0]", "s: opaque[2*u0]"),
        ("s: opaque[u0]", "s: opaque[3]"),
        ("s: opaque[u0]", "s: opaque[]"),
        ("s: opaque[u0]", "s: opaque[u0, u0]"),
        ("s: opaque[u0]", "s: int64[u0]"),
        ("n: int, s: opaque[u0]", "n: int, s: opaque[u0], t: opaque[u0]"),
        ("call x,", "call x, x,"),
    ):
        assert old in text
        with pytest.raises(ParseError):
            from_text(text.replace(old, wrong))
    with pytest.raises(ParseError, match="not a type"):
        from_text("graph(x: opaque[N])\n  return x\n")
