"""docs/from_scratch.py runs, and its own assertions hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_walk_runs() -> None:
    command = [sys.executable, str(ROOT / "docs" / "from_scratch.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("All results equal the reference.\n")
