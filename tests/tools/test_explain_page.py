"""The page of `tilevm.explain`: what is in the file, and what a browser makes of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tilevm
from tilevm.tools.explain_page import page

torch = pytest.importorskip("torch")

EVIL = "</script><script>document.title='broken out'</script><img src=x onerror=alert(1)>&amp;<!--"


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def embedded(text: str) -> Any:
    return json.loads(Parsed(text).scripts[0])


def sample(x: Any, w: Any) -> Any:
    h = torch.softmax(torch.tanh(x @ w), -1)
    return torch.igamma(h, h) + h.sum(0), h.reshape(-1) * 2


@pytest.fixture(scope="module")
def report() -> Any:
    return tilevm.explain(sample, asm=True)(torch.randn(33, 64), torch.randn(64, 96))


@pytest.fixture(scope="module")
def text(report: Any) -> str:
    return report.to_html()  # type: ignore[no-any-return]


def test_the_page_has_the_data_and_asks_for_nothing(report: Any, text: str) -> None:
    assert embedded(text) == json.loads(json.dumps(report.to_json()))
    parsed = Parsed(text)
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "srcset"} & set(attributes)
        assert attributes.get("href", "#")[:1] == "#"  # type: ignore[index]
    assert "default-src 'none'" in text
    outside = re.findall(r"https?://[^\s\"']+", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_names_cannot_break_out(report: Any) -> None:
    data = report.to_json(limits=False)
    data["title"] = EVIL
    data["operators"][0]["line"] = EVIL
    data["operators"][0]["text"] = f"exp {EVIL}"
    data["guards"] = [EVIL]
    data["call_outs"] = [{"name": EVIL, "reason": EVIL, "line": EVIL}]
    made = page(data)
    assert len(Parsed(made).scripts) == 2
    assert embedded(made) == json.loads(json.dumps(data))
    assert "<img" not in made
    assert f"<title>{html.escape(EVIL)}" in made


def test_nothing_of_the_data_becomes_markup() -> None:
    folder = Path(tilevm.__file__).parent / "tools" / "page"
    for file in folder.glob("*.js"):
        script = file.read_text(encoding="utf-8")
        for door in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert door not in script


def test_a_page_of_many_operators_is_small() -> None:
    @tilevm.kernel
    def deep(x: Any, w: Any) -> Any:
        for _ in range(1700):
            x = (x * 1.5 + w) * 0.5
        return x

    report = tilevm.explain(deep)(torch.ones(3, 4), torch.ones(4))
    assert len(report.operators) >= 5000
    text = report.to_html(limits=False)
    assert len(embedded(text)["operators"]) == len(report.operators)
    assert len(text) < 600 * len(report.operators)


# In a browser ---------------------------------------------------------------------------------

_PROBE = """<script>
const seen = { requests: performance.getEntriesByType("resource").length, title: document.title,
  ground: getComputedStyle(document.body).backgroundColor,
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth };
const out = document.createElement("pre");
out.id = "probe";
for (const details of document.querySelectorAll("details")) details.open = true;
setTimeout(() => {
  seen.separate = document.querySelectorAll("details.kernel ul.why li").length;
  for (const id of ["look", "steps", "kernels", "graph", "decisions", "memory", "callouts"])
    seen[id] = document.getElementById(id).textContent;
  seen.operators = document.querySelectorAll(".operator").length;
  seen.points = document.querySelectorAll("svg .point").length;
  seen.buffers = document.querySelectorAll("svg .buffer").length;
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 200);
</script></body>"""

Browse = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Browse:
    """Opens a page in a browser: what a script finds there, and what the console said."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail("no Chromium: `make test` installs it (on Debian: apt-get install chromium)")
    browser = found
    folder = tmp_path_factory.mktemp("browser")

    def run(text: str, *flags: str, probe: str = _PROBE) -> tuple[dict[str, Any], str]:
        file = folder / "page.html"
        file.write_text(text.replace("</body>", probe), encoding="utf-8")
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",  # containers have none; the page is ours
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--dump-dom",
            *flags,
            file.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
        match = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        assert match, console or done.stderr[-2000:]
        return json.loads(html.unescape(match[1])), console

    return run


def test_a_browser_shows_all_of_it(report: Any, text: str, browse: Browse) -> None:
    seen, console = browse(text)
    assert console == ""
    assert seen["requests"] == 0
    for kernel in report.kernels:
        assert kernel["name"] in seen["kernels"]
    assert seen["separate"] == sum(len(k["why_separate"]) for k in report.to_json()["kernels"])
    assert "Fell back to the framework: aten.igamma.default" in seen["look"]
    assert "at best on this machine" in seen["look"]
    assert "which is a view, or a copy, of what lies in memory" in seen["decisions"]
    assert "? unknown" in seen["decisions"]
    assert "aten.igamma.default" in seen["callouts"]
    assert seen["operators"] == len(report.operators)
    assert seen["points"] == sum(
        bool(s["limit_ns"] and s["flops"] + s["vector_ops"]) for s in report.to_json()["steps"]
    )
    assert seen["buffers"] == len(report.to_json()["memory"]["buffers"])


def test_dark_and_narrow(text: str, browse: Browse) -> None:
    light, _ = browse(text)
    dark, console = browse(text, "--blink-settings=preferredColorScheme=0")
    assert console == ""
    assert sum(map(int, re.findall(r"\d+", light["ground"]))) > 3 * 200
    assert sum(map(int, re.findall(r"\d+", dark["ground"]))) < 3 * 60
    narrow, console = browse(text, "--window-size=500,900")
    assert console == ""
    assert not narrow["wide"]


def test_a_browser_shows_names_as_text(report: Any, browse: Browse) -> None:
    data = report.to_json(limits=False)
    data["title"] = EVIL
    data["guards"] = [EVIL]
    data["operators"][0]["text"] = EVIL
    seen, console = browse(page(data))
    assert console == ""
    assert seen["title"].startswith("</script>")
    assert EVIL in seen["graph"]


def test_rows_are_made_when_they_are_needed(report: Any, browse: Browse) -> None:
    data = report.to_json(limits=False)
    row = data["operators"][0]
    data["operators"] += [row | {"index": len(data["operators"]) + i} for i in range(5000)]
    seen, console = browse(page(data))
    assert console == ""
    assert len(report.operators) < seen["operators"] < 1000
    assert "more" in seen["graph"]


def test_segments_can_be_chosen(browse: Browse) -> None:
    def steps(x: Any) -> Any:
        for _ in range(3):
            x = torch.tanh(x) * 0.5
            x.sum().item()
        return x - 1

    recording = tilevm.explain(steps, recorded=True)(torch.ones(4, 4))
    choose = """<script>
const chooser = document.querySelector("select");
const options = chooser.options.length;
const first = document.querySelector("h1").textContent;
chooser.value = "1";
chooser.dispatchEvent(new Event("change"));
const out = document.createElement("pre");
out.id = "probe";
const then = document.querySelector("h1").textContent;
out.textContent = JSON.stringify({ options, first, then });
document.body.append(out);
</script></body>"""
    seen, console = browse(recording.to_html(limits=False), probe=choose)
    assert console == ""
    assert seen == {"options": 2, "first": "steps, segment 0", "then": "steps, segment 1"}
