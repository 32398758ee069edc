"""Real text of all lengths: sentences and paragraphs of the standard library's documentation."""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

# Modules with much prose. A Python without one of them gives other sentences, nothing else.
MODULES = (
    "argparse ast asyncio/events base64 bisect calendar cmd codecs collections/__init__ "
    "configparser contextlib copy csv ctypes/util datetime decimal difflib doctest "
    "email/message enum filecmp fileinput fnmatch fractions ftplib functools gettext glob gzip "
    "heapq hmac html/parser http/client http/cookiejar http/server imaplib inspect ipaddress "
    "json/__init__ locale logging/__init__ logging/handlers mailbox mimetypes optparse os "
    "pathlib pdb pickle pickletools platform plistlib pprint profile pydoc queue quopri random "
    "re reprlib sched secrets selectors shelve shlex shutil smtplib socket socketserver "
    "sqlite3/dbapi2 ssl statistics string subprocess tarfile tempfile textwrap threading timeit "
    "tokenize trace turtle typing unittest/case unittest/mock urllib/request uuid warnings wave "
    "weakref webbrowser xml/dom/minidom zipfile"
).split()
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_CODE = re.compile(r">>>|[{}<>|=_`*\\\[\]]|\(self|::")


def documentation() -> Iterator[str]:
    """Docstrings of `MODULES`, then licences and descriptions of installed packages."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in MODULES:
        path = library / f"{name}.py"
        if not path.exists():  # a module that became a package, or is gone
            path = library / name / "__init__.py"
        if path.exists():
            tree = ast.parse(path.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node)
                    if text:
                        yield text
    for package in ("numpy", "torch", "transformers"):
        try:
            found = metadata.metadata(package).get_payload()  # type: ignore[attr-defined, unused-ignore]
        except metadata.PackageNotFoundError:
            continue
        yield str(found)


def passages(texts: Iterator[str]) -> Iterator[str]:
    """Sentences, paragraphs, and runs of paragraphs of prose, each once."""
    seen: set[str] = set()
    for text in texts:
        prose: list[str] = []
        for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
            paragraph = " ".join(block.split())
            if _is_prose(paragraph):
                prose.append(paragraph)
        candidates = [s for paragraph in prose for s in _END.split(paragraph)]
        candidates += prose
        candidates += [" ".join(prose[i:j]) for i in range(len(prose)) for j in range(i + 2, i + 5)]
        for candidate in candidates:
            if candidate not in seen and _is_prose(candidate):
                seen.add(candidate)
                yield candidate


def choose(lengths: dict[str, int], count: int) -> list[str]:
    """`count` passages whose lengths in tokens are spread evenly, in an order of no pattern.

    lengths: tokens of each candidate. Lengths are different, and no passage is part of another, as
    long as there are enough of them.
    """
    by_length: dict[int, list[str]] = {}
    for text, length in lengths.items():
        by_length.setdefault(length, []).append(text)
    available = sorted(by_length)
    wanted = [available[i * len(available) // count] for i in range(count)]
    chosen: list[str] = []
    for apart, turn in ((True, wanted[::-1]), (False, available), (False, available)):
        for length in turn:
            same = by_length[length]
            half = len(same) // 2
            for text in same[half:] + same[:half]:
                if len(chosen) < count and not _overlaps(text, chosen, apart):
                    chosen.append(text)
                    break
    step = next(s for s in (89, 97, 101, 103) if len(chosen) % s)  # a prime: visits all, once
    return [chosen[i * step % len(chosen)] for i in range(len(chosen))]


def collect(
    tokens: Callable[[Sequence[str]], Sequence[int]], longest: int, count: int
) -> list[str]:
    """`count` passages of at most `longest` tokens; `tokens` says how many each of many has."""
    texts = list(passages(documentation()))
    lengths = dict(zip(texts, tokens(texts), strict=True))
    return choose({text: n for text, n in lengths.items() if n <= longest}, count)


def _overlaps(text: str, chosen: Sequence[str], apart: bool) -> bool:
    """Whether `text` is one of `chosen`; apart: or a part of one, or the other way round."""
    if not apart:
        return text in chosen
    return any(text in other or (len(other) > 20 and other in text) for other in chosen)


def _is_prose(text: str) -> bool:
    if text.isalpha() and text.istitle():
        return len(text) < 25  # a heading of one word
    words = text.split()
    plain = sum(char.isalpha() or char in " ,.;:'()-\"" for char in text)
    return (
        text[:1].isupper()
        and text[-1:] in ".!?"
        and not _CODE.search(text)
        and plain >= 0.95 * len(text)
        and all(len(word) < 25 for word in words)
    )
