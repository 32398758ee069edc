from __future__ import annotations

import io
import os
import signal

import pytest

from tilevm.tools.progress import Progress
from tilevm.tools.worker import Worker, WorkerDied, WorkerError


def started(target: str, *arguments: object) -> Worker:
    return Worker(target, arguments, {"TILEVM_TEST": "here"})


def test_methods_run_in_another_process() -> None:
    worker = started("collections:Counter", "aab")
    try:
        assert worker.call("most_common", 1) == [("a", 2)]
        with pytest.raises(WorkerError, match="AttributeError") as raised:
            worker.call("nothing")
        assert "nothing" in raised.value.summary
        assert worker.call("total") == 3  # it lives on
    finally:
        worker.close()


def test_the_environment_is_set() -> None:
    worker = started("functools:partial", os.getenv, "TILEVM_TEST")
    try:
        assert worker.call("__call__") == "here"
    finally:
        worker.close()
    assert os.getenv("TILEVM_TEST") is None


def test_death_is_an_error() -> None:
    worker = started("collections:Counter", "aab")
    try:
        worker.call("total")
        assert worker._process.pid is not None
        os.kill(worker._process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDied, match="signal 11"):
            worker.call("total")
    finally:
        worker.close()


def test_no_answer_in_time_is_an_error() -> None:
    worker = started("threading:Event")
    try:
        with pytest.raises(WorkerDied, match="no answer"):
            worker.call("wait", limit_s=1.0)
    finally:
        worker.close()


def test_progress_is_silent_where_it_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(2) as bar:
        bar.step("one")
    assert not stream.getvalue()


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(2) as bar:
        bar.step("first")
        bar.step("second")
        bar.step("more than there is")
    assert "first" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[K")
