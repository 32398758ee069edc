"""A call that fails inside tilevm is saved, and its error says where."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import errors
from tilevm.ir import reference
from tilevm.ir.compare import differences
from tilevm.ir.text import from_core, from_text, lowered
from tilevm.ir.types import numpy_dtype
from tilevm.runtime import failure
from tilevm.runtime import program as runtime
from tilevm.tools import archive, doctor

GRAPH = """
graph(x: float32[M, N], n: float)
  where M in 2.., N % 4 == 0
  y: float32[M, N] = mul x, n
  z: float32[M, N] = call y, target=0
  w: float32[M] = sum z, axes=[1]
  return w
"""


@pytest.fixture(autouse=True)
def few_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_saved", [])


def failing() -> Callable[..., Any]:
    """An executable whose call-out returns too much: an error of ours, not of the user."""
    names = ["x", "n"]
    program = from_text(GRAPH).to_program()
    return runtime.compile_program(
        program, [lambda y: (y, y)], framework="numpy", input_names=names
    )


def message_of(executable: Callable[..., Any]) -> str:
    with pytest.raises(errors.InternalError) as caught:
        executable(np.ones((3, 4), np.float32), 2.0)
    return str(caught.value)


def test_the_call_is_saved_and_named(tmp_path: Path) -> None:
    with tilevm.config.patch(failures=str(tmp_path / "new")):
        message = message_of(failing())
    found = re.search(r"tilevm replay (\S+)", message)
    assert found
    call = archive.load(Path(found[1]))
    assert Path(found[1]).parent == tmp_path / "new"
    assert "should return 1 values" in call.note
    assert [node.op for node in call.graph.nodes][-2:] == ["call", "sum"]
    assert (call.graph.symbols[0].min, call.graph.symbols[1].multiple_of) == (2, 4)
    np.testing.assert_array_equal(call.inputs[0], np.ones((3, 4), np.float32))
    assert call.inputs[1] == 2.0


def test_the_default_is_a_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    message_of(failing())
    assert len(list((tmp_path / "tilevm").glob("call-*.zip"))) == 1


def test_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with tilevm.config.patch(failures="off"):
        assert "replay" not in message_of(failing())
    assert not list(tmp_path.iterdir())


def test_not_all_of_a_loop_are_saved(tmp_path: Path) -> None:
    executable = failing()
    with tilevm.config.patch(failures=str(tmp_path)):
        for _ in range(failure.MOST_SAVED + 3):
            message_of(executable)
    assert len(list(tmp_path.iterdir())) == failure.MOST_SAVED


def test_what_cannot_be_saved_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "MOST_BYTES", 10)
    with tilevm.config.patch(failures=str(tmp_path)):
        message = message_of(failing())
    assert "should return 1 values" in message
    assert "could not be saved: its inputs have" in message
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(failure, "MOST_BYTES", 1000)
    with tilevm.config.patch(failures=str(tmp_path / "file")):
        assert "could not be saved" in message_of(failing())


def test_errors_of_the_user_are_not_saved(tmp_path: Path) -> None:
    with tilevm.config.patch(failures=str(tmp_path)):
        with pytest.raises(errors.ShapeError):
            failing()(np.ones(3, np.float32), 2.0)
        with pytest.raises(errors.DTypeError):
            failing()(np.ones((3, 4), np.int32), 2.0)
    assert not list(tmp_path.iterdir())


def test_numbers_of_a_program_are_text() -> None:
    graph = from_text("graph(x: float32[N], k: int)\n  a = add k, k\n  b = mul x, a\n  return b\n")
    executable = runtime.compile_program(graph.to_program(), [], framework="numpy")
    again = lowered(executable)[0].to_program()
    twin = runtime.compile_program(again, [], framework="numpy")
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(twin(x, 3)[0], executable(x, 3)[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_two_types_are_text(dtype: str) -> None:
    """As in attention: what a softmax leaves is not rounded before it is multiplied."""
    graph = from_text(
        f"graph(x: {dtype}[M, N], y: {dtype}[N, K])\n"
        "  s = softmax x, axis=1\n"
        "  z = matmul s, y\n"
        "  return z\n"
    )
    executable = runtime.compile_program(graph.to_program(), [], framework="numpy")
    again = lowered(executable)[0]
    arrays = [
        np.linspace(-1, 1, 15).astype(numpy_dtype(dtype)).reshape(s) for s in ((3, 5), (5, 3))
    ]
    found = reference.evaluate(again, *arrays)
    assert not differences(executable(*arrays), found)
    assert not differences(reference.evaluate(graph, *arrays), found)


def test_text_of_the_core_is_a_graph() -> None:
    graph = from_text(
        "graph(x: float32[M, N], y: float32[K, N], k: int)\n"
        "  a = mul x, y  # model.py:3\n"
        "  b = sum a, axes=[1], keepdims=true\n"
        "  c = mul b, k\n"
        "  return c\n"
    )
    executable = runtime.compile_program(
        graph.to_program(), [], framework="numpy", input_names=["x", "y", "k"]
    )
    text = runtime.program_text(executable).text
    again = from_core(text, [])
    x, y = np.ones((3, 4), np.float32), np.ones((3, 4), np.float32)
    twin = runtime.compile_program(
        again.to_program(), [], framework="numpy", input_names=["x", "y", "k"]
    )
    np.testing.assert_array_equal(twin(x, y, 3)[0], executable(x, y, 3)[0])


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_folder_that_others_could_have_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The folder for temporary files is everybody's, and the name is known."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "tilevm"
    if kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with tilevm.config.patch(failures="auto"):
        message = message_of(failing())
    assert "could not be saved" in message
    assert "set TILEVM_FAILURES" in message
    assert not list(folder.iterdir())
    with tilevm.config.patch(failures="auto"):
        finding = doctor._failures()
    assert finding.ok is False
    assert "set TILEVM_FAILURES" in finding.told


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "tilevm").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with tilevm.config.patch(failures="auto"):
        assert "could not be saved" in message_of(failing())
