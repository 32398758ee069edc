"""`tilevm explain FILE:FUNCTION ARRAY...`: explain a call with random arrays."""

from __future__ import annotations

import importlib.util
import inspect
import json
import operator
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.config import config
from tilevm.errors import DTypeError, TilevmError, describe
from tilevm.ir.types import DTYPES, numpy_dtype

_ARRAY = re.compile(r"(\w+)\[([\d, ]*)\]$")


def explain(
    target: str,
    texts: Sequence[str],
    *,
    asm: bool = False,
    recorded: bool = False,
    html: Path | None = None,
    data: Path | None = None,
) -> int:
    """Print what the call runs, or write it as a page or plain data. Returns the exit code.

    asm: with machine code. recorded: of the operators as they are called, under tilevm.fuse().
    html, data: files, or `-` for the standard output.
    """
    from tilevm.tools.explain import explain as explain_call

    try:
        _check_file("--html", html, (".html", ".htm"))
        _check_file("--json", data, (".json",))
        function = load(target)
        own = hasattr(function, "variants") and not recorded  # a kernel: takes NumPy arrays
        arguments = [argument(text, torch=not own) for text in texts]
        _check_count(target, function, arguments)
        try:
            found = explain_call(function, asm=asm, recorded=recorded)(*arguments)
        except (TilevmError, OSError):
            raise
        except Exception as error:  # the function's own, mostly
            return _raises(target, texts, error)
        if html is not None:
            _write("--html", html, found.to_html())
        if data is not None:
            _write("--json", data, json.dumps(found.to_json(), indent=1))
        if html is None and data is None:
            print(found)
    except BrokenPipeError:  # of `| head`, after which nothing is told
        raise
    except (TilevmError, ValueError, AttributeError, OSError) as error:
        sys.stderr.write(f"tilevm explain: {error}\n")
        return 1
    except (SyntaxError, ImportError) as error:
        file = target.rpartition(":")[0] or target
        sys.stderr.write(f"tilevm explain: {file}: {type(error).__name__}: {error}\n")
        return 1
    except (TypeError, RuntimeError, OverflowError, MemoryError) as error:  # of too large an array
        return _raises(target, texts, error)
    return 0


def _raises(target: str, texts: Sequence[str], error: Exception) -> int:
    """Say what the call raises, and return the exit code; with TILEVM_DEBUG, raise it."""
    if config.debug:
        raise error
    given = ", ".join(texts) or "no arguments"
    sys.stderr.write(
        f"tilevm explain: {target} with {given} raises {type(error).__name__}: {error}\n"
        "  TILEVM_DEBUG=1 shows where.\n"
    )
    return 1


def _check_file(option: str, path: Path | None, wanted: Sequence[str]) -> None:
    """Raises: ValueError, before anything is run for it, if the name is that of something else (one
    without a suffix may be), or the file cannot be there.
    """
    if path is None or path == Path("-"):
        return
    if path.suffix and path.suffix.lower() not in wanted:
        told = f"{option} {path} ends in {path.suffix!r}, but what it writes is {wanted[0]}"
        raise ValueError(f"{told}: use {path.with_suffix(wanted[0])}")
    if path.is_dir():
        told, remedy = "it is a folder", f"Name a file in it: {path / ('call' + wanted[0])}."
    elif not path.parent.is_dir():
        told, remedy = f"there is no folder {path.parent}", "Make it, or name a file in another."
    else:
        return
    raise ValueError(describe(f"{option} {path} cannot be written: {told}", remedy=remedy))


def _write(option: str, path: Path, text: str) -> None:
    if path == Path("-"):
        print(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        told = f"{option} {path} cannot be written: {error.strerror or error}"
        remedy = "Name a file in a folder that you may write to, with room for it."
        raise ValueError(describe(told, remedy=remedy)) from error


def _check_count(target: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Raises: ValueError, if the function takes others; what has no signature is left to itself."""
    called = function if not hasattr(function, "forward") else function.forward
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{target}{signature}: {error}, given {len(arguments)}") from None


def load(target: str) -> Callable[..., Any]:
    """The function that `model.py:forward` names; the file is run for it. Raises: ValueError."""
    file, colon, name = target.rpartition(":")
    if not colon:
        raise ValueError(f"{target!r} names no function: write {target}:FUNCTION")
    path = Path(file)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    function: Callable[..., Any] = operator.attrgetter(name)(module)
    return function


def argument(text: str, *, torch: bool) -> Any:
    """A number, or an array of random elements: `3`, `0.5`, `float32[7, 33]`."""
    match = _ARRAY.match(text)
    if match is None:
        try:
            return float(text) if set(text) & set(".einf") else int(text)
        except ValueError:
            told = f"{text!r} is no argument: write 3, 0.5 or float32[7, 33]"
            raise ValueError(told) from None
    if match[1] not in DTYPES:
        raise DTypeError(
            describe(f"{text!r} has elements of {match[1]!r}", remedy=f"Use {', '.join(DTYPES)}.")
        )
    shape = tuple(int(size) for size in match[2].split(",") if size.strip())
    random = np.random.default_rng(0)
    if not torch:
        return np.asarray(random.standard_normal(shape) * 4).astype(numpy_dtype(match[1]))
    import torch as framework

    values = framework.from_numpy(np.asarray(random.standard_normal(shape)))
    return (values * 4).to(getattr(framework, match[1]))
