from __future__ import annotations

import subprocess
import sys

import pytest

import tilevm
from tilevm import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.CaptureError, TypeError),
        (errors.ShapeError, ValueError),
        (errors.DTypeError, TypeError),
        (errors.DeviceError, RuntimeError),
        (errors.BytecodeError, ValueError),
        (errors.ParseError, ValueError),
        (errors.InternalError, RuntimeError),
        (errors.WrongResult, errors.InternalError),
    ],
)
def test_errors_mirror_builtin_ones(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, errors.TilevmError)
    assert issubclass(error, builtin)


def test_messages_say_where_what_and_what_to_do() -> None:
    text = errors.describe("ranks differ", line="model.py:41", operator="add", remedy="Reshape b.")
    assert text == "model.py:41: add: ranks differ\n  Reshape b."
    assert errors.describe("ranks differ") == "ranks differ"


def test_importing_tilevm_imports_neither_numpy_nor_torch() -> None:
    code = "import tilevm, sys; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        tilevm.nope  # noqa: B018
    assert {"kernel", "compile", "stats", "config", "errors", "lang"} <= set(dir(tilevm))


def test_stats_have_the_promised_names() -> None:
    tilevm.stats.reset()
    stats = tilevm.stats()
    assert list(stats) == [
        "captures",
        "compiles",
        "compile_total_us",
        "compile_max_us",
        "interpreted",
        "cache_hits",
        "launches",
        "repeated_calls",
        "library_products",
        "callouts",
        "flushes",
        "checks",
        "packed_bytes",
        "peak_bytes",
    ]
    tilevm.stats.add("captures")
    tilevm.stats.add("flushes", "item")
    assert tilevm.stats()["captures"] == 1
    assert tilevm.stats()["flushes"] == {"item": 1}
    tilevm.stats.reset()
    assert tilevm.stats()["captures"] == 0
    assert tilevm.stats()["flushes"] == {}
