"""A call in a file: what `tilevm replay` reads.

The file is a zip archive that holds no code: graph.txt (the graph as text), inputs.npz (arrays and
numbers, in the order of its parameters; bfloat16 as its bits), call.json (versions, what went
wrong, and which operators the graph calls out, with their arguments), and what else was told of the
call, for people. It may come from anywhere: `load` believes nothing without comparing it with a
bound.
"""

from __future__ import annotations

import inspect
import io
import json
import platform
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.errors import ParseError, TilevmError
from tilevm.ir import reference
from tilevm.ir.graph import Graph
from tilevm.ir.text import from_text, lowered, to_text
from tilevm.ir.types import WEAK, Type, numpy_dtype
from tilevm.tools import callout

FORMAT = 1
MOST_TEXT = 4 << 20  # bytes of the graph, and of what is told of it
MOST_BYTES = 1 << 30  # of all inputs, and of each value of the graph
MOST_SYMBOLS = 1000  # of the graph: the core looks them up one by one
MOST_LINES = 20_000  # of the graph
MOST_AXES = 64  # of a value, as NumPy
_DEEPEST = 32  # brackets in brackets: parsers of sizes are recursive
_NPY_HEAD = 4096  # bytes that NumPy's header of an array may take


@dataclass(frozen=True)
class Call:
    """A graph and what it was called with. targets: what its calls call, as `callout` reads it."""

    graph: Graph
    inputs: tuple[Any, ...]
    note: str = ""
    targets: tuple[str, ...] = ()


def save(
    path: Path,
    called: Any,
    inputs: Sequence[Any],
    *,
    note: str = "",
    targets: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
    runnable: bool = False,
) -> None:
    """Write a call to a file.

    called: a graph, what `@tilevm.kernel` made, or a compiled program. inputs: its positional
    arguments: arrays of NumPy or torch, numbers. more: texts for people, by the name of the file.
    runnable: refuse a program that calls out what `replay` will not find; else its graph is kept.
    Raises: ParseError, if text cannot hold the program; ValueError, if the inputs are too large.
    """
    if hasattr(called, "plan_text"):
        called, targets = lowered(called)
        for target in targets if runnable else ():
            callout.function(target)
    graph, values = _graph_of(called, inputs)
    arrays = {
        f"input{i}": stored(value, type_)
        for i, (value, (_, type_)) in enumerate(zip(values, graph.params, strict=True))
    }
    if (size := sum(array.nbytes for array in arrays.values())) > MOST_BYTES:
        raise ValueError(f"the inputs have {size >> 20} MiB, and at most {MOST_BYTES >> 20} fit")
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type, unused-ignore]
    told = {
        "format": FORMAT,
        "note": note,
        "targets": list(targets),
        "sizes": reference.bind(graph, values),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", to_text(graph))
        archive.writestr("inputs.npz", packed.getvalue())
        archive.writestr("call.json", json.dumps(told, indent=1))
        for name, text in (more or {}).items():
            archive.writestr(name, text)


def load(path: Path) -> Call:
    """The call in a file. Raises: ParseError, which says what is wrong with it; OSError."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):  # a pipe would wait for ever, a device not end
        raise ParseError(f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'no plain file'}")
    with path.open("rb") as file:
        try:
            return _read(file)
        except TilevmError as error:
            raise ParseError(f"{path} is not a saved call: {error}") from error
        # Whatever libraries raise where a byte is not what they expect.
        except Exception as error:
            told = f"{path} is not a saved call: {type(error).__name__}: {error}"
            raise ParseError(told) from error


def stored(value: Any, type_: Type) -> Any:
    """An array that NumPy's format holds."""
    array = np.asarray(value)
    return array.view(np.uint16) if type_.dtype == "bfloat16" and not type_.weak else array


def restored(array: Any, type_: Type) -> Any:
    """What was `stored`."""
    if type_.weak:
        python = {"float": float, "int": int, "bool": bool}[WEAK[type_.dtype]]
        return python(array)
    return array.view(numpy_dtype("bfloat16")) if type_.dtype == "bfloat16" else array


# Reading ----------------------------------------------------------------------------------------


def _read(file: Any) -> Call:
    with zipfile.ZipFile(file) as archive:
        told = json.loads(_member(archive, "call.json", MOST_TEXT))
        text = _member(archive, "graph.txt", MOST_TEXT).decode()
        packed = _member(archive, "inputs.npz", MOST_BYTES + MOST_TEXT)
    if type(told) is not dict or told.get("format") != FORMAT:
        raise ParseError(f"it has no format {FORMAT}")
    note, targets = told.get("note"), told.get("targets")
    if type(note) is not str or type(targets) is not list or {*map(type, targets)} - {str}:
        raise ParseError("note is no text, or targets are no list of texts")
    _check_text(text)
    graph = from_text(text)
    for node in graph.nodes:
        if node.op == "call" and node.param("target") >= len(targets):
            raise ParseError(
                f"the graph calls out number {node.param('target')}, which is not told"
            )
    if len(graph.symbols) > MOST_SYMBOLS:
        raise ParseError(f"its sizes have {len(graph.symbols)} names, of at most {MOST_SYMBOLS}")
    with zipfile.ZipFile(io.BytesIO(packed)) as arrays:
        left = MOST_BYTES
        inputs = []
        for i, (name, type_) in enumerate(graph.params):
            array = _array(arrays, f"input{i}.npy", name, type_, left)
            left -= array.nbytes
            inputs.append(restored(array, type_))
    _check_sizes(graph, inputs)
    return Call(graph, tuple(inputs), note, tuple(targets))


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A file of the archive. Raises: ParseError, if it is longer than it may be."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise ParseError(f"there is no {name} in it") from None
    if info.file_size <= most:
        with archive.open(info) as member:
            data = member.read(most + 1)  # the size that is told need not be true
        if len(data) <= most:
            return data
    raise ParseError(f"{name} has more than {most >> 20} MiB")


def _array(arrays: zipfile.ZipFile, file: str, name: str, type_: Type, most: int) -> Any:
    """An input, of the type and rank of its parameter."""
    wanted = np.dtype(np.uint16) if type_.dtype == "bfloat16" else numpy_dtype(type_.dtype)
    data = _member(arrays, file, most + _NPY_HEAD)
    head = io.BytesIO(data[:_NPY_HEAD])
    version = np.lib.format.read_magic(head)
    if version != (1, 0):
        raise ParseError(f"{file} has version {version}")
    shape, columns_first, dtype = np.lib.format.read_array_header_1_0(head)
    number = type_.weak and dtype.name in WEAK  # an int for a float, say
    if (dtype != wanted and not number) or not dtype.isnative:
        raise ParseError(f"{name} is {type_}, and {file} has elements of {dtype}")
    if len(shape) != len(type_.shape) or any(type(n) is not int or n < 0 for n in shape):
        raise ParseError(f"{name} is {type_}, and {file} has the shape {shape}")
    elements = memoryview(data)[head.tell() :]
    count = 1
    for n in shape:
        count *= n  # of Python's ints: it does not wrap
    if count * dtype.itemsize != len(elements):
        raise ParseError(f"{file} has {len(elements)} bytes for the shape {shape}")
    array = np.frombuffer(elements, dtype)
    if columns_first:
        return array.reshape(shape[::-1]).T
    return array.reshape(shape)


def _check_text(text: str) -> None:
    """Raises: ParseError, where a graph is too large, or too deep for a recursive parser."""
    if text.count("\n") > MOST_LINES:
        raise ParseError(f"the graph has more than {MOST_LINES} lines")
    # Each name of a size stands in the types of parameters, or behind `where`.
    head = "".join(text.splitlines()[:2])
    if head.count(",") > MOST_AXES * MOST_SYMBOLS:
        raise ParseError("the graph has too many parameters")
    depth = 0
    for char in text:
        depth += (char in "[(") - (char in "])")
        if depth > _DEEPEST:
            raise ParseError(f"brackets are nested more than {_DEEPEST} deep")


def _check_sizes(graph: Graph, inputs: Sequence[Any]) -> None:
    """Raises: ParseError, if a value of the graph is too large; ShapeError, if inputs do not."""
    env = reference.bind(graph, inputs)
    known: dict[Any, int | None] = {}  # None: only the data know it
    for name, type_ in graph.types().items():
        if len(type_.shape) > MOST_AXES:
            raise ParseError(f"{name} has {len(type_.shape)} axes, of at most {MOST_AXES}")
        size = 8
        for n in type_.shape:
            if n not in known:
                try:
                    known[n] = n if isinstance(n, int) else n.value(env)
                except (TilevmError, ValueError, KeyError):
                    known[n] = None
            value = known[n]
            if value is None:
                break
            if value < 0:
                raise ParseError(f"{name} is {type_}, of a size of {value}")
            size *= value
        if size > MOST_BYTES:
            raise ParseError(f"{name} is {type_}, of more than {MOST_BYTES >> 20} MiB")


# Writing ----------------------------------------------------------------------------------------


def _graph_of(called: Any, inputs: Sequence[Any]) -> tuple[Graph, list[Any]]:
    """The graph of a call and its inputs as NumPy arrays and numbers."""
    if isinstance(called, Graph):
        graph, values = called, list(inputs)
    else:
        graph = called.graph(*inputs)
        bound = inspect.signature(called).bind(*inputs).arguments
        values = [bound[name] for name, _ in graph.params]
    typed = zip(values, graph.params, strict=True)
    return graph, [_numpy(value, type_) for value, (_, type_) in typed]


def _numpy(value: Any, type_: Type) -> Any:
    if type_.weak:
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        return callout.to_array(value)
    return np.asarray(value)
