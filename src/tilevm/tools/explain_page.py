"""An explanation as one self-contained HTML page: a template, and the data that it shows."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("page")

# In a script element the only way out is a tag, and data have no other use for these characters.
_ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page(data: Mapping[str, Any]) -> str:
    """The page for what `Explanation.to_json` gave. It loads nothing and runs from a file."""
    embedded = json.dumps(data, separators=(",", ":")).translate(_ESCAPED)
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "STYLE": _read("page.css"),
        "DATA": embedded,
        "SCRIPT": "\n".join(_read(name) for name in ("page.js", "charts.js")),
    }
    text = _read("page.html")
    before, *pieces = text.split("<!--")
    for piece in pieces:
        name, _, after = piece.partition("-->")
        before += parts[name] + after
    return before


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
