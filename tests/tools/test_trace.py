from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.errors import TilevmError
from tilevm.tools.trace import KINDS


def spans(path: Path) -> list[dict[str, Any]]:
    told = json.loads(path.read_text(encoding="utf-8"))
    return [event for event in told["traceEvents"] if event["ph"] == "X"]


def kinds(path: Path) -> set[str]:
    return {event["cat"] for event in spans(path)}


def new_kernel() -> Any:
    @tilevm.kernel
    def shifted(x: Any) -> Any:
        return lang.exp(x + 1)

    return shifted


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(
        outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.01
        and inner["tid"] == outer["tid"]
    )


def test_a_kernel_from_its_capture_to_its_launch(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kernel, x = new_kernel(), np.ones((7, 33), np.float32)
    with tilevm.trace(path):
        kernel(x)
        kernel(x)
    found = spans(path)
    assert {"capture", "lower", "fuse", "host program", "call", "launch", "encode"} <= kinds(path)
    assert {event["cat"] for event in found} <= set(KINDS)
    by_kind = {event["cat"]: event for event in reversed(found)}  # the first of each
    assert inside(by_kind["fuse"], by_kind["capture"])
    assert inside(by_kind["launch"], by_kind["call"])
    assert inside(by_kind["encode"], by_kind["launch"])
    assert by_kind["capture"]["name"] == "capture: shifted"
    assert sum(event["cat"] == "launch" for event in found) == 2
    for event in found:
        assert event["pid"] == os.getpid()
        assert event["tid"] == threading.get_native_id()
        assert event["ts"] >= 0


def test_nothing_is_kept_outside_of_the_block(tmp_path: Path) -> None:
    kernel, x = new_kernel(), np.ones(5, np.float32)
    kernel(x)
    with tilevm.trace(tmp_path / "out.json"):
        pass
    kernel(x)
    assert spans(tmp_path / "out.json") == []


def test_threads_have_names(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    kernel, x = new_kernel(), np.ones(5, np.float32)
    with tilevm.trace(path):
        worker = threading.Thread(target=kernel, args=(x,), name="the other")
        worker.start()
        number = worker.native_id
        worker.join()
        kernel(x)
    assert {event["tid"] for event in spans(path)} == {number, threading.get_native_id()}
    told = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in told if event["ph"] == "M"}
    assert named[threading.get_native_id()] == threading.current_thread().name


def test_memory_is_bounded_and_what_is_left_out_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    kernel, x = new_kernel(), np.ones(5, np.float32)
    with tilevm.trace(path, most=10) as taken:
        for _ in range(20):
            kernel(x)
    assert len(spans(path)) == 10
    assert taken.dropped >= 30
    assert json.loads(path.read_text(encoding="utf-8"))["otherData"]["dropped"] == taken.dropped
    assert f"{taken.dropped} spans were dropped" in capsys.readouterr().err


def test_one_at_a_time(tmp_path: Path) -> None:
    with tilevm.trace(tmp_path / "a.json"):
        with (
            pytest.raises(TilevmError, match="already"),
            tilevm.trace(tmp_path / "b.json"),
        ):
            pass
        new_kernel()(np.ones(5, np.float32))
    assert "launch" in kinds(tmp_path / "a.json")


def test_a_file_that_cannot_be_written_raises_first(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), tilevm.trace(tmp_path / "none" / "out.json"):
        pass
    with tilevm.trace(tmp_path / "out.json"):  # nothing was left switched on
        pass


def test_a_folder_and_amounts_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), tilevm.trace(tmp_path):
        raise AssertionError("it was entered")
    for most in (-1, "a", 2.5, True):
        with pytest.raises(ValueError, match="most is"):
            tilevm.trace(tmp_path / "a.json", most=most)  # type: ignore[arg-type]


def test_an_error_in_the_block_leaves_the_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyError), tilevm.trace(tmp_path / "out.json"):
        new_kernel()(np.ones(5, np.float32))
        raise KeyError
    assert "launch" in kinds(tmp_path / "out.json")


def test_a_forked_child_takes_none(tmp_path: Path) -> None:
    kernel, x = new_kernel(), np.ones(5, np.float32)
    with tilevm.trace(tmp_path / "out.json"):
        kernel(x)
        child = os.fork()
        if child == 0:
            kernel(x)
            os._exit(0 if not tilevm.trace(tmp_path / "child.json").__enter__().dropped else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert sum(event["cat"] == "launch" for event in spans(tmp_path / "out.json")) == 1


@pytest.mark.torch
def test_call_outs_and_segments(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "out.json"

    @tilevm.compile
    def inverted(x: Any) -> Any:
        return torch.linalg.inv(x) + 1

    with tilevm.trace(path), torch.no_grad():
        inverted(torch.eye(3))
        with tilevm.fuse():
            y = torch.ones(5) * 2 + 1
            y.sum().item()
    found = {event["name"] for event in spans(path)}
    assert "capture: inverted" in found
    assert any("call-out" in name and "linalg_inv" in name for name in found)
    assert any(name.startswith("flush: ") for name in found)


@pytest.mark.torch
def test_captures_are_in_the_profiles_of_torch() -> None:
    torch = pytest.importorskip("torch")

    @tilevm.compile
    def doubled(x: Any) -> Any:
        return x * 2

    with torch.profiler.profile() as profile:
        doubled(torch.ones(3))
    assert "tilevm capture: doubled" in {event.key for event in profile.key_averages()}


# Lines of TILEVM_DEBUG --------------------------------------------------------------------------

SCRIPT = """
import numpy as np
import tilevm
from tilevm import lang

@tilevm.kernel
def shifted(x):
    return lang.exp(x + 1)

shifted(np.ones(5, np.float32))
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    yield path


@pytest.mark.parametrize("level", range(5))
def test_levels_of_debug(level: int, script: Path) -> None:
    environment = {**os.environ, "TILEVM_DEBUG": str(level), "TILEVM_CHECK": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    lines = ["captured shifted in", "host program", "kernel ", "bytecode of "]
    for at, line in enumerate(lines, 1):
        assert (line in done.stderr) == (level >= at), f"{line!r} at {level}:\n{done.stderr}"
    if level >= 2:
        assert "graph(x: float32[x0])" in done.stderr
    if level >= 4:
        assert "store_f32" in done.stderr


def test_lines_go_where_logging_sends_them(caplog: pytest.LogCaptureFixture) -> None:
    with tilevm.config.patch(debug=2):
        new_kernel()(np.ones(5, np.float32))
        time.sleep(0)  # lines of the core come between two instructions
    told = [record.getMessage() for record in caplog.records if record.name == "tilevm"]
    assert any(line.startswith("captured shifted") for line in told)
    assert any(line.startswith("compiled 3 operators") for line in told)
    caplog.clear()
    new_kernel()(np.ones(5, np.float32))
    assert not caplog.records


@pytest.mark.torch
def test_what_is_not_captured_is_told_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")

    @tilevm.compile
    def many(x: Any, others: Any) -> Any:
        return x + len(others)

    with tilevm.config.patch(debug=1):
        many(torch.ones(3), {1, 2})
    told = [record.getMessage() for record in caplog.records if record.name == "tilevm"]
    assert any(line.startswith("not captured: eager: ") for line in told)
