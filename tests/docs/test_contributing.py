"""CONTRIBUTING.md: its changes apply to the source as it is, and its mistakes end as it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def changed(text: str, diff: str) -> str:
    """`text` after a diff without line numbers: the lines before it must occur once."""
    rows = [(row[:1], row[1:]) for row in diff.splitlines()]
    before = "\n".join(row for mark, row in rows if mark != "+")
    after = "\n".join(row for mark, row in rows if mark != "-")
    assert text.count(before) == 1, f"this is not (or not once) in the file:\n{before}"
    return text.replace(before, after)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the Python source."""
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    return tmp_path / "src" / "tilevm"


def configured(source: Path) -> subprocess.CompletedProcess[str]:
    """What configuring does with the tables."""
    out = source.parents[1]
    script = source / "isa" / "generate.py"
    return subprocess.run(
        [sys.executable, str(script), "--out", str(out / "gen"), "--docs", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_adding_an_operator(source: Path) -> None:
    row, mapping = DIFF.findall(section("Add an operator"))
    ops = source / "ir" / "ops.py"
    ops.write_text(changed(ops.read_text(encoding="utf-8"), row), encoding="utf-8")
    aten = source / "frontends" / "aten.py"
    aten.write_text(changed(aten.read_text(encoding="utf-8"), mapping), encoding="utf-8")
    compile(aten.read_text(encoding="utf-8"), str(aten), "exec")
    done = configured(source)
    assert done.returncode == 0, done.stderr
    folder = source.parents[1]
    assert "log10" in (folder / "gen" / "ops.gen.h").read_text(encoding="utf-8")
    assert "log10" in (folder / "gen" / "decompose.gen.inc").read_text(encoding="utf-8")
    page = (folder / "ops.md").read_text(encoding="utf-8")
    assert "| `log10` | 1 |" in page
    assert page != (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")


def test_the_meaning_of_the_example() -> None:
    """What the new operator consists of is what it means."""
    import numpy as np

    from tilevm.ir.reference import evaluate
    from tilevm.ir.text import from_text

    (row, _) = DIFF.findall(section("Add an operator"))
    (text,) = re.findall(r'decomposition="(.*?)"', row)
    assert text == "l = log x; t = scalar 10; u = log t; r = div l, u"
    graph = from_text(
        "graph(x: float32[N])\n  l = log x\n  t = full shape=[], value=10, dtype=float32\n"
        "  u = log t\n  r = div l, u\n  return r\n"
    )
    x = np.linspace(0.1, 1e4, 65, dtype=np.float32)
    np.testing.assert_allclose(evaluate(graph, x)[0], np.log10(x), rtol=1e-6, atol=1e-7)


MISTAKES = {
    "a rule that does not exist": (
        '"float_unary", _quiet(np.log10)',
        '"float_unry", _quiet(np.log10)',
    ),
    "an unknown operator in the decomposition": ("u = log t", "u = lg t"),
    "a number where a value is wanted": ("r = div l, u", "r = div l, 10"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_as_the_page_says(source: Path, mistake: str) -> None:
    (told,) = re.findall(rf"^\| {mistake}.*\| (.*) \|$", PAGE, re.MULTILINE)
    (error,) = re.findall(r"configuring stops: `+(.*?)(?:`\.|`` *\.|`$|``\.)", told)
    row, _ = DIFF.findall(section("Add an operator"))
    right, wrong = MISTAKES[mistake]
    assert right in row
    ops = source / "ir" / "ops.py"
    text = changed(ops.read_text(encoding="utf-8"), row.replace(right, wrong))
    ops.write_text(text, encoding="utf-8")
    done = configured(source)
    assert done.returncode != 0
    assert error.strip("`") in done.stderr


def test_the_diffs_for_an_instruction_apply() -> None:
    """Each to the file that the text before it names."""
    files = {
        'copysign", "|a|': "src/tilevm/isa/table.py",
        "TILEVM_BINARY(copysign": "core/exec/interp/map_float.cpp",
        "std::copysign": "core/tests/interp_meaning.h",
        'Op("copysign"': "src/tilevm/ir/ops.py",
        "copysign_f32: r.lo": "core/exec/native/emit_map.h",
    }
    diffs = DIFF.findall(section("Add an instruction"))
    assert len(diffs) == len(files)
    for diff, (sign, file) in zip(diffs, files.items(), strict=True):
        assert sign in diff
        changed((ROOT / file).read_text(encoding="utf-8"), diff)
