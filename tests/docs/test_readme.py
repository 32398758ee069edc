"""README.md: its example prints what it says, and the files that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.mark.torch
def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    (example,), (output,) = blocks("python"), blocks("text")
    script = tmp_path / "example.py"  # a kernel is read from its file
    script.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), f"{page} links to {target}"


def test_the_commands_exist() -> None:
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for page in PAGES:
        for name in re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert name in targets, f"{page} says `make {name}`"
