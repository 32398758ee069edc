from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tilevm
from tilevm.errors import RecorderError
from tilevm.runtime import program as runtime
from tilevm.tools import cli, doctor, machine


def cache(root: Path, index: int, kind: str, level: int, size: str) -> None:
    folder = root / f"index{index}"
    folder.mkdir()
    for name, text in (("type", kind), ("level", str(level)), ("size", size)):
        (folder / name).write_text(f"{text}\n")


def test_caches_as_the_system_says(tmp_path: Path) -> None:
    cache(tmp_path, 0, "Data", 1, "48K")
    cache(tmp_path, 1, "Instruction", 1, "32K")
    cache(tmp_path, 2, "Unified", 2, "2M")
    (tmp_path / "index3").mkdir()
    assert machine.caches(tmp_path) == {"L1": 48 << 10, "L2": 2 << 20}
    assert machine.caches(tmp_path / "none") == {}


def test_bandwidth_is_a_rate() -> None:
    assert 0.1 < machine.bandwidth_gb_s(64 << 10, 0.01) < 10_000


def test_openmp_runtimes_are_files(tmp_path: Path) -> None:
    row = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1234 {}\n"
    paths = ["/a/libgomp-1.so.1", "/a/libgomp-1.so.1", "/b/libiomp5.so", "/c/libc.so.6"]
    (tmp_path / "maps").write_text("".join(row.format(path) for path in paths) + "7f00-7f01 rw-p\n")
    assert machine.openmp(tmp_path / "maps") == ["/a/libgomp-1.so.1", "/b/libiomp5.so"]
    assert machine.openmp(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("environment", "runtimes", "told"),
    [
        ({}, ["/a/libgomp.so.1", "/b/libiomp5.so"], "2 OpenMP runtimes"),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "8"}, [], "MKL_NUM_THREADS=8"),
        ({"OMP_PROC_BIND": "true"}, [], "OMP_PROC_BIND=true"),
    ],
)
def test_conflicts(
    environment: dict[str, str],
    runtimes: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_cgroup_limit", lambda: None)
    (found,) = machine.conflicts(environment, runtimes)
    assert told in found


@pytest.mark.parametrize(
    "environment",
    [{}, {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}, {"OMP_PROC_BIND": "FALSE"}],
)
def test_no_conflicts(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cgroup_limit", lambda: None)
    assert list(machine.conflicts(environment, ["/a/libgomp.so.1"])) == []


def test_a_container_with_less_than_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine._cgroup_limit(tmp_path / "cpu.max") == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine._cgroup_limit(tmp_path / "cpu.max") is None
    assert machine._cgroup_limit(tmp_path / "none") is None
    monkeypatch.setattr(machine, "_cgroup_limit", lambda: 0.5)
    (found,) = machine.conflicts({}, [])
    assert "OMP_NUM_THREADS=1" in found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "bandwidths", lambda: {"memory": 12.3})


@pytest.mark.usefixtures("quick")
def test_doctor_for_scripts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    found = {finding["what"]: finding for finding in told["findings"]}
    assert {"processor", "caches", "bandwidth", "core", "native", "tiers", "threads"} <= set(found)
    assert found["core"]["ok"] is True
    assert found["bandwidth"]["told"].startswith("memory 12 GB/s")

    def broken(tier: str) -> str:
        raise RuntimeError(f"{tier} is broken")

    monkeypatch.setattr(doctor, "_runs", broken)
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.usefixtures("quick")
def test_doctor_says_why_a_tier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with tilevm.config.patch(tier="interp"):
        cli.main(["doctor"])
    assert "interp, as tilevm.config.tier says" in capsys.readouterr().out
    with tilevm.config.patch(tier="auto"):
        cli.main(["doctor"])
    target = runtime.code_memory()["target"]
    assert re.search(rf"^ +tier +{target}[:,] ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
def test_doctor_tries_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "with 1 capture for two sizes" in told
    assert "recorder" in told

    def none() -> None:
        raise RecorderError("tilevm.fuse: there is no recorder\n  build one")

    monkeypatch.setattr("tilevm.frontends.torch_eager.fuse", none)
    assert cli.main(["doctor"]) == 0  # other doors do not need it
    assert "there is no recorder" in capsys.readouterr().out


def test_conflicts_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    monkeypatch.setattr(machine, "conflicts", lambda: iter(["two of a kind"]))
    cli.main(["doctor"])
    told = capsys.readouterr().out
    assert "conflict       two of a kind" in told
    assert "none are known" not in told
