"""The generated pages are what the tables say now: `make docs` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilevm

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    script = ROOT / "src" / "tilevm" / "isa" / "generate.py"
    subprocess.run(
        [sys.executable, str(script), "--out", str(folder / "gen"), "--docs", str(folder)],
        check=True,
    )
    return folder


@pytest.mark.parametrize("page", ["isa.md", "ops.md"])
def test_pages_of_the_tables_are_current(page: str, generated: Path) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == (generated / page).read_text(
        encoding="utf-8"
    )


@pytest.mark.torch
def test_the_page_of_the_interface_is_current() -> None:
    pytest.importorskip("torch")
    from tilevm.tools import api

    with tilevm.fuse(enabled=False):  # from here on, the recorder takes its calls
        found = api.page()
    assert (DOCS / "api.md").read_text(encoding="utf-8") == found
    for name in tilevm.__all__:
        assert f"\n## `tilevm.{name}`\n" in found
