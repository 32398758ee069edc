"""The scripts of docs/ run, and the walk's own assertions hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def printed(script: str) -> str:
    """What a script of docs/ prints."""
    command = [sys.executable, str(DOCS / script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_walk_runs() -> None:
    assert printed("from_scratch.py").endswith("All results equal the reference.\n")


@pytest.mark.torch
def test_the_table_of_times_has_the_rows_of_the_map() -> None:
    rows = [line.split("|")[1] for line in printed("times.py").splitlines()]
    text = (DOCS.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert all(f"|{row}|" in text for row in rows)
