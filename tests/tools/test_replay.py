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
from tilevm.errors import ParseError
from tilevm.ir.compare import differences
from tilevm.ir.text import from_text
from tilevm.ir.types import numpy_dtype
from tilevm.tools import archive, cli, replay

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
