from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tools import wrong_tier

from tilevm.ir.graph import Graph
from tilevm.ir.text import from_text
from tilevm.tools import archive, cli, minimise, replay
from tilevm.tools.archive import Call


def program(n: int = 40, wrong_at: int = 23, size: str = "N") -> Graph:
    """A chain of operators, with sums and products beside it; one of them is tanh."""
    rows = [f"graph(x: float32[M, {size}], y: float32[{size}], k: float)"]
    values = ["x"]
    for i in range(n - 2):
        last = values[-1]
        op = ("add {}, y", "mul {}, k", "exp {}", "neg {}", "sub {}, x", "sigmoid {}")[i % 6]
        rows.append(f"  v{i} = {'tanh ' + last if i == wrong_at else op.format(last)}")
        values.append(f"v{i}")
    rows.append(f"  s = sum {values[-1]}, axes=[1]")
    rows.append(f"  t = mul {values[5]}, {values[-1]}")
    rows.append("  return s, t")
    return from_text("\n".join(rows))


@pytest.fixture
def call() -> Call:
    random = np.random.default_rng(0)
    inputs = (
        random.standard_normal((7, 33)).astype(np.float32),
        random.standard_normal(33).astype(np.float32),
        0.25,
    )
    return Call(program(), inputs)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "run_tier", wrong_tier.run_tier)


@pytest.mark.usefixtures("wrong")
def test_forty_operators_become_few(call: Call) -> None:
    judge = minimise.Trial().failure
    assert minimise.first_failure(call, judge) == ("interp", "differs")
    small = minimise.Minimiser(call, "interp", "differs", judge).run()
    assert [node.op for node in small.graph.nodes] == ["tanh"]
    assert len(small.inputs) == 1
    assert small.inputs[0].size == 1
    assert judge(small, "interp") == "differs"


@pytest.mark.usefixtures("wrong")
def test_sizes_that_are_constants_become_small(call: Call) -> None:
    fixed = Call(program(12, 4, "33"), call.inputs)
    small = minimise.Minimiser(fixed, "auto", "differs", minimise.Trial().failure).run()
    assert [node.op for node in small.graph.nodes] == ["tanh"]
    assert small.inputs[0].shape == (1, 1)


def test_a_failure_of_two_operators_keeps_both(call: Call) -> None:
    def judge(candidate: Call, tier: str) -> str:
        assert minimise.Trial().failure(candidate, tier) == minimise.RIGHT  # it is a program
        ops = [node.op for node in candidate.graph.nodes]
        return "raises InternalError" if {"tanh", "sigmoid"} <= set(ops) else minimise.RIGHT

    small = minimise.Minimiser(call, "auto", "raises InternalError", judge).run()
    assert {"tanh", "sigmoid"} <= {node.op for node in small.graph.nodes}
    assert len(small.graph.nodes) <= 3


@pytest.mark.parametrize(
    ("tiers", "kind"),
    [
        ({"interp"}, "raises IndexError"),
        ({"reference"}, minimise.RIGHT),  # nothing to compare with
        ({"reference", "interp"}, minimise.RIGHT),  # as it should
    ],
)
def test_what_raises(
    tiers: set[str], kind: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_tier(call: Call, tier: str) -> tuple[Any, ...]:
        if tier in tiers:
            raise IndexError
        return wrong_tier.right(call, tier)

    monkeypatch.setattr(replay, "run_tier", run_tier)
    assert minimise.Trial().failure(call, "interp") == kind


def test_what_runs_is_not_minimised(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.save(tmp_path / "call.zip", call.graph, call.inputs)
    out = tmp_path / "small.zip"
    assert cli.main(["replay", str(tmp_path / "call.zip"), "--minimise", str(out)]) == 1
    assert "fails on no tier" in capsys.readouterr().out
    assert not out.exists()


def test_what_every_tier_raises_is_said(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = from_text("graph(x: float32[5], i: int64[3])\n  y = take x, i, axis=0\n  return y")
    archive.save(tmp_path / "call.zip", graph, [np.ones(5, np.float32), np.array([0, 7, 1])])
    words = ["replay", str(tmp_path / "call.zip"), "--minimise", str(tmp_path / "small.zip")]
    assert cli.main(words) == 1
    told = capsys.readouterr().out
    assert "The reference raises IndexError: " in told
    assert "7" in told
    assert "there is nothing to minimise" in told


def test_files_that_cannot_be(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "call.zip"
    archive.save(path, call.graph, call.inputs)
    for words, told in (
        ([str(path), "--minimise", str(tmp_path / "none" / "small.zip")], "there is no directory"),
        ([str(tmp_path), "--minimise", str(tmp_path / "small.zip")], "directory"),
        ([str(tmp_path)], "directory"),
    ):
        assert cli.main(["replay", *words]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(("trial", "told"), [("Differing", "differs"), ("Dying", "dies")])
def test_the_command_tries_in_another_process(
    trial: str,
    told: str,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if trial == "Dying":  # each death costs a start
        call = Call(program(8, 2), call.inputs)
        monkeypatch.setattr(minimise, "MOST_TRIES", 12)
    archive.save(tmp_path / "call.zip", call.graph, call.inputs)
    judging = minimise.Judging(f"tests.tools.wrong_tier:{trial}")
    out = tmp_path / "small.zip"
    assert minimise.run(tmp_path / "call.zip", out, judging) == 0
    printed = capsys.readouterr().out
    assert f"On interp the call {told}" in printed
    assert "tanh" in printed
    small = archive.load(out)
    assert len(small.graph.nodes) <= 3
    assert "made small from call.zip" in small.note
