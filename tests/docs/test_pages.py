"""The pages by hand: their programs print what they say, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _markdown() -> ModuleType:
    """The module beside this file, which pytest's import mode does not find by itself."""
    path = Path(__file__).with_name("markdown.py")
    spec = importlib.util.spec_from_file_location("tilevm_tests_markdown", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


markdown = _markdown()
ROOT: Path = markdown.ROOT
PAGES: list[str] = markdown.pages()
# Pages whose programs and commands this file runs, with how many blocks of each kind they have.
RUN = {
    "docs/tutorial.md": {"python": 5, "sh": 4, "text": 3},
    "docs/how-to.md": {"python": 3, "sh": 3, "text": 2},
}
# Other tests run these, or they are printed by what made them.
ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/debugging.md": "test_debugging.py",
    "docs/isa.md": "test_generated.py",
    "docs/ops.md": "test_generated.py",
    "docs/api.md": "test_generated.py",
    "CONTRIBUTING.md": "test_contributing.py",
    "docs/explain.md": "test_pages.py",
    "docs/conformance.md": "../conformance/test_opinfo.py",
}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("page", RUN)
def test_a_page_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if page == "docs/how-to.md":
        pytest.importorskip("tilevm._recorder")
    assert markdown.run_page(page, tmp_path) == RUN[page]


@pytest.mark.slow
@pytest.mark.torch
def test_the_command_of_the_page_of_explain(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    function = "import torch\ndef block(x, w): return torch.nn.functional.gelu(x @ w)\n"
    (tmp_path / "model.py").write_text(function, encoding="utf-8")
    (command,) = [b.text for b in markdown.blocks("docs/explain.md") if b.kind == "sh"]
    markdown.run(command, tmp_path)
    assert (tmp_path / "block.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    keys = json.loads((tmp_path / "block.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in keys)


def test_no_block_is_left_out() -> None:
    """Blocks of all other pages are run by a test that is named, or are no programs."""
    for page in PAGES:
        kinds = {block.kind for block in markdown.blocks(page)} & {"python", "sh"}
        if kinds and page not in RUN:
            assert page in ELSEWHERE, f"{page}: nothing runs its programs"
    for test in ELSEWHERE.values():
        assert (Path(__file__).parent / test).exists()


def test_what_runs_blocks_elsewhere_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = 0
    for page in PAGES:
        for block in markdown.blocks(page):
            if block.elsewhere:
                found += 1
                target = block.elsewhere.removeprefix("make ")
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), block.elsewhere
    assert found > 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in markdown.links(page):
        if target.startswith("https://"):
            continue
        assert not re.match(r"\w+:", target), f"{page} links to {target}: only https"
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            name = str(path.resolve().relative_to(ROOT))
            assert anchor in markdown.anchors(name), f"{page} links to {target}"


def test_pages_are_found_from_the_readme() -> None:
    """Each page of docs/ is a link or two away."""
    reached, new = {"README.md"}, ["README.md"]
    while new:
        page = new.pop()
        for target in markdown.links(page):
            file = target.partition("#")[0]
            if not file.endswith(".md") or target.startswith("https://"):
                continue
            name = str(((ROOT / page).parent / file).resolve().relative_to(ROOT))
            if name not in reached:
                reached.add(name)
                new.append(name)
    assert set(PAGES) <= reached


def test_tests_and_files_that_pages_name_exist() -> None:
    for page in ("SECURITY.md", *RUN):
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:core|tests)/[\w/.]+)`", text):
            assert (ROOT / name).exists(), f"{page} names {name}"
