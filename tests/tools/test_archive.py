"""Archives that come from anywhere: what is wrong with one is an error, before memory is taken."""

from __future__ import annotations

import io
import json
import random
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
