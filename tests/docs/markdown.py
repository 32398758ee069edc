"""Pages as the tests of this folder read them: their blocks, and where links lead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?:<!-- run by: (.*?) -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block. elsewhere: what runs it, if the page's test does not."""

    kind: str
    text: str
    elsewhere: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(m[2], m[3], m[1] or "") for m in BLOCK.finditer(text)]


def run(command: str, folder: Path) -> str:
    """What a command prints. It must succeed."""
    here = Path(sys.executable).parent  # where `tilevm` and `python` are
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "TILEVM_FAILURES": str(folder / "failures"),
        "TILEVM_DEBUG": "0",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def run_page(page: str, folder: Path) -> dict[str, int]:
    """Write the files and run the commands of a page; what they print must be what it says.

    Python blocks begin with the name of their file. Returns how many blocks there were of each
    kind.
    """
    printed, kinds = "", {"python": 0, "sh": 0, "text": 0}
    for block in blocks(page):
        if block.elsewhere:
            continue
        kinds[block.kind] += 1
        if block.kind == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            assert name.endswith(".py"), f"{page}: a program without a name: {block.text[:50]}"
            (folder / name).write_text(block.text, encoding="utf-8")
        elif block.kind == "text":
            assert printed == block.text
        else:
            for command in block.text.splitlines():
                printed = run(command, folder)
    return kinds


def pages() -> list[str]:
    """All pages of the repository."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in found)


def anchors(page: str) -> set[str]:
    """Where a link into a page may lead: its headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def links(page: str) -> list[str]:
    """Targets of links and pictures, those inside of code left out."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    return [a or b for a, b in LINK.findall(text)]
