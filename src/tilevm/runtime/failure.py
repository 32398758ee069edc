"""What happens when a call fails inside tilevm: it is saved, so that it can be run again."""

from __future__ import annotations

import os
import stat
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilevm.config import config

if TYPE_CHECKING:
    from pathlib import Path

MOST_SAVED = 8  # of one process: a loop that fails shall not fill the disk
MOST_BYTES = 256 << 20  # of a call's inputs

_saved: list[Path] = []


def save(called: Any, inputs: tuple[Any, ...], error: Exception) -> None:
    """Save the call as `config.failures` says, and add to the error's message where it is.

    called: a compiled program, or a graph.
    """
    if directory() is None or len(_saved) >= MOST_SAVED:
        return
    text = str(error)
    try:
        path = _write(called, inputs, text)
    except Exception as reason:  # whatever it is, the first error is the one to raise
        error.args = (f"{text}\n  The call could not be saved: {reason}",)
        return
    _saved.append(path)
    error.args = (
        f"{text}\n  This call is saved in {path}, and runs again by: tilevm replay {path}\n"
        "  Please report it with that file; it holds the inputs of the call.",
    )


def directory() -> Path | None:
    """Where calls are saved, as `config.failures` says; None: nowhere."""
    import tempfile  # here, and not above: every process would pay for it
    from pathlib import Path

    if config.failures == "off":
        return None
    return (
        Path(tempfile.gettempdir()) / "tilevm"
        if config.failures == "auto"
        else Path(config.failures)
    )


def _write(called: Any, inputs: tuple[Any, ...], note: str) -> Path:
    import tempfile
    from pathlib import Path

    size = sum(int(getattr(x, "nbytes", 0)) for x in inputs)
    if size > MOST_BYTES:
        raise ValueError(
            f"its inputs have {size >> 20} MiB, and at most {MOST_BYTES >> 20} are kept"
        )
    folder = directory()
    assert folder is not None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(folder)
    handle, name = tempfile.mkstemp(prefix="call-", suffix=".zip", dir=folder)
    os.close(handle)
    path = Path(name)
    try:
        # By name: tools stand above the runtime.
        import_module("tilevm.tools.archive").save(path, called, inputs, note=note)
    except BaseException:
        path.unlink()
        raise
    return path


def check_owner(folder: Path) -> None:
    """Raises: PermissionError, if others could put a link where the call is to be written."""
    if config.failures != "auto":
        return
    state = folder.lstat()
    mine = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    if not mine or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{folder} is not a folder to which this user alone writes: set TILEVM_FAILURES"
        )
