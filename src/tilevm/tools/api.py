"""docs/api.md, from docstrings and tables: `python -m tilevm.tools.api docs/api.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tilevm
from tilevm.ir.ops import BY_NAME
from tilevm.stats import COUNTERS

HEAD = """<!-- Generated from docstrings by `make docs`. Do not edit. -->
# Interface

What `tilevm.__all__` names. What is not here may change with any version ([which versions promise
what](../CONTRIBUTING.md#versions)). The command line says what it takes by `tilevm --help`.
"""
# Classes whose methods users call, by the name under which they get at them.
METHODS = {
    "tilevm.compile(f)": ("tilevm.frontends.torch_compiled", "Compiled"),
    "tilevm.kernel(f)": ("tilevm.frontends.kernel", "Kernel"),
    "tilevm.explain(f)(...)": ("tilevm.tools.explanation", "Explanation"),
    "tilevm.explain(f, recorded=True)(...)": ("tilevm.tools.explanation", "Recording"),
}


def page() -> str:
    """The text of docs/api.md."""
    parts = [HEAD]
    for name in sorted(set(tilevm.__all__) - {"__version__"}):
        value = getattr(tilevm, name)
        parts.append(f"## `tilevm.{name}`\n")
        parts += RENDERED.get(name, _plain)(f"tilevm.{name}", value)
    parts.append("## `tilevm.__version__`\n")
    parts.append("The version, as text.\n")
    parts.append("## Methods of what these return\n")
    for shown, (module, cls) in METHODS.items():
        parts.append(f"### `{shown}`\n")
        parts += _methods(getattr(sys.modules[module], cls))
    return "\n".join(parts)


def _plain(name: str, value: Any) -> Iterator[str]:
    """A function, a class, or an object that is called: its signature and docstring."""
    yield f"```text\n{name}{_signature(value)}\n```\n"
    own = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    yield _told(own)
    if inspect.isclass(value) or not inspect.isroutine(value):
        yield from _methods(own)


def _signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=kept)).replace("'", "")


def _told(value: Any) -> str:
    """A docstring: its first paragraph as text, the rest as it is laid out."""
    first, _, rest = (inspect.getdoc(value) or "").partition("\n\n")
    return f"{first}\n" + (f"\n```text\n{rest.rstrip()}\n```\n" if rest else "")


def _methods(cls: Any) -> Iterator[str]:
    """Public methods and properties with a docstring of their own."""
    for name in sorted(dir(cls)):
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property):
            yield f"- `{name}`: {_line(value)}"
        elif inspect.isfunction(value):
            yield f"- `{name}{_signature(value)}`: {_line(value)}"
    yield ""


def _line(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _module(_: str, module: Any) -> Iterator[str]:
    """A module of functions."""
    yield _told(module)
    for name, value in sorted(_defined(module).items()):
        if name[0] != "_":
            yield f"- `{name}{_signature(value)}`: {_line(value)}"
    yield ""


def _defined(module: Any) -> dict[str, Any]:
    """Functions that a module defines; not those that it makes when they are asked for."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and value.__code__.co_name != "apply"
    }


def _lang(name: str, module: Any) -> Iterator[str]:
    yield from _module(name, module)
    rows = {op.name for op in BY_NAME.values() if not op.params and op.inputs > 0}
    names = ", ".join(sorted(rows - {*_defined(module)}))
    yield f"And the operators of [ops.md](ops.md) that take arrays alone: {names}.\n"


def _errors(_: str, module: Any) -> Iterator[str]:
    yield _told(module)
    for name, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            bases = ", ".join(base.__name__ for base in value.__bases__)
            yield f"- `{name}({bases})`: {_line(value)}"
    yield ""


def _config(_: str, __: Any) -> Iterator[str]:
    yield "All knobs: [config.md](config.md).\n"


def _stats(_: str, stats: Any) -> Iterator[str]:
    yield _told(type(stats).__call__)
    for name, meaning in COUNTERS.items():
        yield f"- `{name}`: {meaning}"
    yield "\n`tilevm.stats.reset()` sets all to 0.\n"


RENDERED: dict[str, Callable[[str, Any], Iterator[str]]] = {
    "bytecode": _module,
    "config": _config,
    "errors": _errors,
    "lang": _lang,
    "stats": _stats,
}


def main(arguments: list[str]) -> None:
    """Print the page, or write it to the path given."""
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main(sys.argv[1:])
