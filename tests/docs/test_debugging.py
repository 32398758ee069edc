"""docs/debugging.md: its programs print what it says, its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    here = Path(sys.executable).parent  # where `tilevm` and `python` are
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "TILEVM_FAILURES": str(folder / "failures"),
        "TILEVM_DEBUG": "0",
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    printed = ""
    kinds = {"python": 0, "sh": 0, "text": 0}
    for kind, text in BLOCK.findall(PAGE):
        kinds[kind] += 1
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif kind == "text":
            assert printed == text
        else:
            for command in text.splitlines():
                done = run(command, tmp_path)
                assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
                printed = done.stdout
                if "TILEVM_DEBUG=3" in command:
                    for line in ("captured rms_silu", "host program", "kernel ", "cut: "):
                        assert line in done.stderr
                if "replay" in command:
                    assert "auto  as the reference" in printed
    assert kinds == {"python": 3, "sh": 7, "text": 2}


def test_what_it_says_of_minimising(tmp_path: Path) -> None:
    for kind, text in BLOCK.findall(PAGE):
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text, encoding="utf-8")
    assert "tilevm replay bug.zip --minimise small.zip" in PAGE
    assert run("python save.py", tmp_path).returncode == 0
    done = run("tilevm replay bug.zip --minimise small.zip", tmp_path)
    assert done.returncode == 1
    assert "nothing to minimise" in done.stdout


def test_the_levels_are_those_of_the_knob() -> None:
    from tilevm.config import KNOBS

    (knob,) = (knob for knob in KNOBS if knob.name == "debug")
    assert knob.high == len(re.findall(r"^\| \d \|", PAGE, re.MULTILINE))
