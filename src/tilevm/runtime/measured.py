"""Which products the framework's library makes quicker on this machine, as `doctor --tune` found.

A file for each processor, version of PyTorch and of tilevm, and tier. It may hold anything: what is
not a table of this form is left alone, and nothing in it can do more than choose between two right
products.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilevm import log
from tilevm.config import config
from tilevm.runtime import program

FORMAT = 1
MOST_BYTES = 1 << 18
MOST_SIZES = 16  # of an axis
MOST_SIZE = 1 << 31
AXES = ("rows", "columns", "depths")  # m, n, k of a product
DTYPES = ("float32",)
# How right factors lie: rows contiguous, columns contiguous, packed ahead by us.
LIES = ("rows", "columns", "ahead")

_loaded = False


class Table(NamedTuple):
    """Times of the library over ours: for each dtype and way to lie, the last size fastest."""

    sizes: tuple[list[int], list[int], list[int]]
    ratios: Mapping[tuple[str, str], list[float]]


def key(torch_version: str) -> dict[str, str]:
    """What a table is for."""
    from tilevm import __version__  # the package is imported by now

    return {
        "processor": _processor(),
        "torch": torch_version,
        "tilevm": __version__,
        "tier": program.widest_tier(),
    }


def _processor() -> str:
    try:
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        rows = []
    told = dict(row.split(":", 1) for row in reversed(rows) if ":" in row)
    names = {name.strip(): value.strip() for name, value in told.items()}
    parts = ("model name", "CPU implementer", "CPU part")
    return " ".join(names[part] for part in parts if part in names) or os.uname().machine


def path(of: Mapping[str, str]) -> Path | None:
    """Where the table of a key is, as `config.measurements` says; None: nowhere."""
    import hashlib  # here, and not above: every process would pay for it

    if config.measurements == "off":
        return None
    folder = (
        Path.home() / ".cache" / "tilevm"
        if config.measurements == "auto"
        else Path(config.measurements)
    )
    digest = hashlib.sha256(json.dumps(dict(of), sort_keys=True).encode()).hexdigest()
    return folder / f"products-{digest[:16]}.json"


def text(table: Table, of: Mapping[str, str]) -> str:
    """The content of a table's file."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for (dtype, lies), values in table.ratios.items():
        ratios.setdefault(dtype, {})[lies] = [float(f"{value:.4g}") for value in values]
    sizes = dict(zip(AXES, table.sizes, strict=True))
    return json.dumps({"format": FORMAT, **of, **sizes, "library_over_ours": ratios}, indent=1)


def parse(content: str, of: Mapping[str, str]) -> Table:
    """A table from the content of its file. Raises: ValueError, if it is none for this key."""
    try:
        data = json.loads(content)
    except RecursionError:
        raise ValueError("too deeply nested") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"not of format {FORMAT}")
    if other := [name for name, value in of.items() if data.get(name) != value]:
        raise ValueError(f"for another {', '.join(other)}")
    rows, columns, depths = (_sizes(data.get(axis), axis) for axis in AXES)
    count = len(rows) * len(columns) * len(depths)
    given = data.get("library_over_ours")
    if not isinstance(given, dict) or not set(given) <= set(DTYPES):
        raise ValueError("library_over_ours is no table by dtype")
    ratios = {}
    for dtype, by_place in given.items():
        if not isinstance(by_place, dict) or not set(by_place) <= set(LIES):
            raise ValueError(f"{dtype} is no table by {', '.join(LIES)}")
        for lies, values in by_place.items():
            ratios[dtype, lies] = _ratios(values, count, f"{dtype} {lies}")
    return Table((rows, columns, depths), ratios)


def _sizes(given: Any, axis: str) -> list[int]:
    ok = isinstance(given, list) and 0 < len(given) <= MOST_SIZES
    ok = ok and all(type(size) is int and 0 < size < MOST_SIZE for size in given)
    if not ok or sorted(set(given)) != given:
        raise ValueError(f"{axis} are no {MOST_SIZES} ascending sizes or fewer")
    return list(given)


def _ratios(given: Any, count: int, what: str) -> list[float]:
    ok = isinstance(given, list) and len(given) == count
    if not ok or not all(type(x) in (int, float) and 0 < x < 1e6 for x in given):
        raise ValueError(f"{what} are no {count} ratios")
    values = [float(x) for x in given]
    assert all(map(math.isfinite, values))
    return values


def read(torch_version: str) -> Table | None:
    """The table of this machine; None if there is none. Raises: OSError, ValueError."""
    of = key(torch_version)
    file = path(of)
    if file is None:
        return None
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as opened:
        state = os.fstat(handle)
        others = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or others:
            raise PermissionError(f"{file} is not a file that this user alone writes")
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{file} has more than {MOST_BYTES} bytes")
    try:
        return parse(content.decode("utf-8"), of)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def write(table: Table, torch_version: str) -> Path:
    """Keep the table for later processes. Raises: OSError; ValueError, if nothing is kept."""
    import tempfile

    of = key(torch_version)
    file = path(of)
    if file is None:
        raise ValueError("tilevm.config.measurements is off: there is nowhere to write to")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="products-", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text(table, of))
        Path(name).replace(file)  # others read the old one, or the new one
    except BaseException:
        Path(name).unlink()
        raise
    return file


def load(torch_version: str) -> None:
    """Let products be chosen by the table of this machine, if there is a good one."""
    try:
        table = read(torch_version)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: there is no home
        log.tell(1, "measurements of products are not used: %s", error)
        table = None
    install(table)


def load_once(torch_version: str) -> None:
    """The same, when a door to PyTorch is first opened."""
    global _loaded  # noqa: PLW0603
    if not _loaded:
        _loaded = True
        load(torch_version)


def install(table: Table | None) -> None:
    """Let products be chosen by `table` from now on; None: ours, whatever they take."""
    if table is None:
        program.set_measured(([], [], []), {})
    else:
        program.set_measured(table.sizes, table.ratios)
