"""The pages by hand: README's example prints what it says, and what the pages name exists."""

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


EXAMPLES = list(zip(blocks("python"), blocks("text"), strict=True))


@pytest.mark.torch
@pytest.mark.parametrize("example, output", EXAMPLES, ids=["first", "explain", "fuse"])
def test_an_example_prints_what_the_readme_says(example: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"  # a kernel is read from its file
    script.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
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
        r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for page in PAGES:
        for name in re.findall(r"`make ([a-z0-9-]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert name in targets, f"{page} says `make {name}`"


def test_the_map_names_files_that_exist_and_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    roots = [ROOT / name for name in ("src", "core", "tests", "docs", "tools")]
    files = [file for root in roots for file in root.rglob("*") if file.is_file()]
    files = [file for file in files if "__pycache__" not in file.parts]
    generated = {"ops.gen.h", "types.gen.h", "isa.gen.h", "decompose.gen.inc"}
    names = set(re.findall(r"`(?:[\w./]+/)?([\w.]+\.(?:py|cpp|h|inc|md))`", text))
    assert names - generated <= {file.name for file in files}
    sources = {f.parent.relative_to(ROOT) for f in files if f.suffix in (".py", ".cpp", ".h")}
    for folder in sources:
        if folder.parts[0] in ("src", "core"):
            assert f"{folder.name}/" in text, f"ARCHITECTURE.md does not say what {folder} is"
