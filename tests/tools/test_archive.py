"""Archives that come from anywhere: what is wrong with one is an error, before memory is taken."""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilevm.errors import ParseError
from tilevm.ir.text import from_text
from tilevm.ir.types import numpy_dtype
from tilevm.tools import archive

ROOT = Path(__file__).parents[2]

GRAPH = """
graph(x: float32[M, N], b: bfloat16[N], n: float, i: int)
  y = mul x, n
  z = amax y, axes=[1]
  return y, z
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "call.zip"
    x = np.linspace(-1, 1, 7 * 33, dtype=np.float32).reshape(7, 33)
    bits = np.arange(33, dtype=np.uint16)
    archive.save(
        path, from_text(GRAPH), [x, bits.view(numpy_dtype("bfloat16")), 2.5, 3], note="just so"
    )
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def written(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data)
    return path


def refused(path: Path, told: str) -> None:
    with pytest.raises(ParseError, match=told):
        archive.load(path)


def arrays(**given: Any) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **given)
    return packed.getvalue()


def test_all_kinds_of_inputs_come_back(saved: Path) -> None:
    x, b, n, i = archive.load(saved).inputs
    assert x.shape == (7, 33)
    assert b.dtype.name == "bfloat16"
    assert (n, i) == (2.5, 3)
    assert (type(n), type(i)) == (float, int)


def test_columns_first(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    archive.save(tmp_path / "call.zip", from_text("graph(x: float32[M, N])\n  return x"), [x])
    np.testing.assert_array_equal(archive.load(tmp_path / "call.zip").inputs[0], x)


@pytest.mark.parametrize("name", ["graph.txt", "inputs.npz", "call.json"])
def test_something_is_missing(saved: Path, name: str) -> None:
    parts = members(saved)
    del parts[name]
    refused(written(saved, parts), f"no {name}")


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"format": 2, "note": "", "targets": []},
        {"format": 1, "note": 3, "targets": []},
        {"format": 1, "note": "", "targets": "abc"},
        {"format": 1, "note": "", "targets": [3]},
    ],
)
def test_what_is_told_of_the_call(saved: Path, told: Any) -> None:
    parts = members(saved) | {"call.json": json.dumps(told).encode()}
    refused(written(saved, parts), "format|targets")


def test_deep_json(saved: Path) -> None:
    refused(written(saved, members(saved) | {"call.json": b"[" * 100_000}), "not a saved call")


@pytest.mark.parametrize("name", ["graph.txt", "call.json"])
def test_bombs(saved: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_TEXT", 1 << 20)
    refused(written(saved, members(saved) | {name: b" " * (64 << 20)}), "more than 1 MiB")


def test_a_bomb_of_an_array(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 20)
    packed = io.BytesIO()
    np.savez_compressed(packed, input0=np.zeros(16 << 20, np.float32).reshape(-1, 32))
    refused(written(saved, members(saved) | {"inputs.npz": packed.getvalue()}), "more than 1 MiB")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((7, 33), np.float64), "elements of float64"),
        (np.zeros((7, 33), ">f4"), "elements of >f4"),
        (np.zeros(7, np.float32), "the shape"),
        (np.array([["a"]]), "elements of <U1"),
        (np.array([[{}]], object), "elements of object"),
    ],
)
def test_arrays_of_another_kind(saved: Path, array: Any, told: str) -> None:
    data = {"inputs.npz": arrays(input0=array)}
    refused(written(saved, members(saved) | data), told)


def test_an_array_that_says_it_is_large(saved: Path) -> None:
    head = io.BytesIO()
    shape = (1 << 40, 1 << 40)
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("input0.npy", head.getvalue())
    refused(written(saved, members(saved) | {"inputs.npz": packed.getvalue()}), "0 bytes for")


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (
            "graph(x: float32[M, N])\n  y = expand x, shape=[9999999, M, N]\n  return y",
            "MiB",
        ),
        ("graph(x: float32[99999999999999999999, N])\n  return x", "not a saved call"),
        ("graph(x: float32[" + "(" * 100_000 + "M, N])\n  return x", "nested"),
        ("graph(x: float32[M, M])\n  return x", "not a saved call"),
        ("graph(x: float32[M, N])\n  y = nothing x\n  return y", "no operator"),
        ("graph(x: float32[M, N])", "does not end"),
        ("", "does not end"),
    ],
)
def test_graphs_that_are_none(saved: Path, graph: str, told: str) -> None:
    parts = members(saved) | {"graph.txt": graph.encode()}
    parts["inputs.npz"] = arrays(input0=np.zeros((7, 33), np.float32))
    refused(written(saved, parts), told)


def joined(count: int, by: str, part: str) -> str:
    return by.join(part.replace("@", str(i)) for i in range(count))


def steps(count: int, step: str) -> str:
    return "".join(step.replace("@@", str(i + 1)).replace("@", str(i)) for i in range(count))


HEAD = "graph(x: float32[A])\n  y0 = neg x\n"
HALVES = (
    "  a@ = slice y@, axis=0, start=0, stop=A, step=7\n"
    "  b@ = slice y@, axis=0, start=0, stop=A, step=5\n"
    "  y@@ = concat a@, b@, axis=0\n"
)


@pytest.mark.parametrize(
    "graph",
    [
        f"graph(x: float32[{joined(100_000, ' + ', 'A@')}])\n  return x",
        f"graph(x: float32[{joined(60, '*', '(A@ + B@)')}])\n  return x",
        f"graph(x: float32[{joined(100_000, '*', 'A')}])\n  return x",
        f"graph(x: float32[A{joined(100_000, '', ' % B')}])\n  return x",
        f"graph(x: float32[A{joined(100_000, '', '//B@')}])\n  return x",
        f"graph(x: float32[min({joined(100_000, ', ', 'A@')})])\n  return x",
        f"graph(x: float32[{joined(30_000, ', ', 'A@')}])\n  return x",
        f"graph(x: float32[{joined(100_000, ', ', '1')}])\n  return x",
        f"graph(x: float32[{'9' * (3 << 20)}])\n  return x",
        f"graph(x: float32[A])\n  a{' ' * (3 << 20)}b\n  return x",
        f"graph(x: float32[A])\n  y = add x, {'x' * (3 << 20)}\n  return x",
        f"{HEAD}{steps(200, HALVES)}  return y200",
        f"{HEAD}{steps(100, '  y@@ = concat y@, y@, axis=0' + chr(10))}  return y100",
        f"{HEAD}{steps(100_000, '  y@@ = neg y@' + chr(10))}  return y100000",
        f"{HEAD}  y1 = expand x, shape=[{joined(1000, ', ', '1')}, A]\n  return y1",
        f"graph({joined(2000, ', ', 'x@: float32[A@]')})\n  return x0",
    ],
    ids="sum product power mods divs min names rank digits spaces name doubles bytes lines axes "
    "symbols".split(),
)
def test_graphs_that_would_take_for_ever(saved: Path, graph: str) -> None:
    parts = members(saved) | {"graph.txt": graph.encode()}
    # As many arrays as the largest of these graphs takes, of one element.
    parts["inputs.npz"] = arrays(**{f"input{i}": np.zeros(1, np.float32) for i in range(2000)})
    with pytest.raises(ParseError) as refusal:
        archive.load(written(saved, parts))
    assert len(str(refusal.value)) < 4000
    assert "MemoryError" not in str(refusal.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for path in (tmp_path / "pipe.zip", tmp_path, Path("/dev/zero")):
        refused(path, "is a directory" if path.is_dir() else "is no plain file")
    with pytest.raises(FileNotFoundError):
        archive.load(tmp_path / "nothing.zip")


def test_names_in_the_archive_lead_nowhere(saved: Path, tmp_path: Path) -> None:
    """Files are looked for by name, and none is written."""
    parts = members(saved)
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "call.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o120777 << 16  # symbolic links
            file.writestr(info, data)
        for odd in ("../graph.txt", "/tmp/x", "C:\\x", "\u00e9\u4e2d", "a" * 5000):
            file.writestr(odd, b"x")
    assert len(archive.load(path).inputs) == 4
    assert [one.name for one in folder.iterdir()] == ["call.zip"]
    # A name that is not in the encoding that it says it is in.
    whole = path.read_bytes().replace("\u00e9\u4e2d".encode(), b"\xff\xfe\xfd\xfc\xff")
    path.write_bytes(whole)
    refused(path, "not a saved call")


def test_a_header_of_an_array_runs_nothing(saved: Path) -> None:
    for shape in ("(7, 33.0)", "(nan, 33)", "(7, 10**9)", "__import__('os')", "-" * 2000 + "1"):
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("input0.npy", head + bytes(7 * 33 * 4))
        refused(written(saved, members(saved) | {"inputs.npz": packed.getvalue()}), "saved call")


def test_nothing_is_unpickled(saved: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('it was run')",))

    data = arrays(input0=np.array([[Trap()] * 33] * 7, object))
    refused(written(saved, members(saved) | {"inputs.npz": data}), "elements of object")
    for file in (ROOT / "src" / "tilevm").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"import (pickle|marshal|shelve)|(np|torch)\.load\(", text), file


def test_what_is_too_large_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most"):
        graph = from_text("graph(x: float32[N])\n  return x")
        archive.save(tmp_path / "call.zip", graph, [np.zeros(1000, np.float32)])


def test_bytes_that_changed(saved: Path, tmp_path: Path) -> None:
    """Any byte of the archive, and of its parts: it is read, or it is a ParseError."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(0)
    whole, parts = saved.read_bytes(), members(saved)
    path = tmp_path / "changed.zip"
    outcomes = {"read": 0, "refused": 0}
    for trial in range(600):
        if trial % 2:
            path.write_bytes(changed(whole, chance))
        else:
            name = chance.choice(list(parts))
            written(path, parts | {name: changed(parts[name], chance)})
        try:
            archive.load(path)
            outcomes["read"] += 1
        except ParseError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 200
    assert outcomes["read"] > 3  # a byte of an element, or of the note
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 200 << 10  # KiB


def changed(data: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, cut out or repeated."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        kind = chance.randrange(4)
        if kind == 0:
            found[at] = chance.randrange(256)
        elif kind == 1:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del found[at : at + chance.randint(1, 8)]
        else:
            found[at:at] = found[at : at + chance.randint(1, 8)]
    return bytes(found)


def test_a_call_out_that_is_not_told(saved: Path) -> None:
    text = "graph(x: float32[M, N])\n  y: float32[M, N] = call x, target=1\n  return y\n"
    x = np.ones((2, 3), np.float32)
    archive.save(saved, from_text(text), [x], targets=["aten.sin.default(a0)"])
    refused(saved, "calls out number 1")
    archive.save(saved, from_text(text.replace("=1", "=0")), [x], targets=["aten.sin.default(a0)"])
    assert archive.load(saved).targets == ("aten.sin.default(a0)",)
