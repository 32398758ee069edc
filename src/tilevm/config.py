"""Every knob: one row each. `tilevm.config.threads = 2`, or TILEVM_THREADS=2 in the environment.

`python -m tilevm.config` prints docs/config.md; a path as argument writes it there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator, ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast


@dataclass(frozen=True)
class Knob:
    """One row. `choices` empty: any value of the type, from `low` to `high` if these are set."""

    name: str
    type: type
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    local: bool = False  # `tilevm.compile(f, knob=value)` sets it for one function
    switch: bool = False  # an int that also takes False and True, for 0 and 1

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"TILEVM_{self.name.upper()}"

    @property
    def allowed(self) -> str:
        """The values it takes, for people."""
        if self.choices:
            return ", ".join(self.choices)
        if self.type is int and self.low is not None:
            return f"{self.low}.." if self.high is None else f"{self.low}..{self.high}"
        return {bool: "False, True", str: "text"}.get(self.type, self.type.__name__)

    def check(self, value: Any, source: str) -> Any:
        """`value`, if the knob takes it. Raises: ValueError."""
        value = int(value) if self.switch and type(value) is bool else value
        ok = type(value) is self.type
        ok = ok and (not self.choices or value in self.choices)
        ok = ok and (self.low is None or value >= self.low)
        ok = ok and (self.high is None or value <= self.high)
        if not ok:
            raise ValueError(f"{source} is {value!r}, which is not one of: {self.allowed}")
        return value

    def parse(self, text: str) -> Any:
        """The value that `text` in the environment stands for. Raises: ValueError."""
        words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        value: Any = text
        if self.type is bool or (self.switch and text.lower() in words):
            value = words.get(text.lower(), text)
        elif self.type is int and text.removeprefix("-").isdecimal():
            value = int(text)
        return self.check(value, self.variable)


# What the core holds such a number in.
INT, INT64 = 2**31 - 1, 2**63 - 1

KNOBS: tuple[Knob, ...] = (
    Knob(
        "tier",
        str,
        "auto",
        "What runs the bytecode. auto: machine code for the widest vectors there are, else the "
        "interpreter. amx, avx512, avx2, neon: the same for these, refused on a processor without "
        "them; amx is avx512 with matrix products by its registers of 16 rows. "
        "reference: kernels run as their graph's meaning in NumPy.",
        ("auto", "amx", "avx512", "avx2", "neon", "interp", "reference"),
        local=True,
    ),
    Knob(
        "threads",
        int,
        0,
        "Threads a call may use; 0: as many as torch, or all cores.",
        low=0,
        high=INT,
        local=True,
    ),
    Knob(
        "verify",
        bool,
        False,
        "Verify the bytecode that our own encoder wrote before it runs.",
        local=True,
    ),
    Knob(
        "check",
        int,
        0,
        "Compare calls with what they mean, and raise `WrongResult` where they differ: 1 or True: "
        "every call; n: every n-th call of a function; 0: none. A kernel is compared with the "
        "meaning of its graph in NumPy, a captured graph with PyTorch running it operator by "
        "operator: those of torch.compile if this is set when they are compiled. What "
        "tilevm.fuse() records is not compared.",
        low=0,
        switch=True,
    ),
    Knob(
        "debug",
        int,
        0,
        "What is logged, by Python's `logging` under the name `tilevm`, to standard error if "
        "nobody set up a handler. 1: captures, and what runs otherwise with the reason, and errors "
        "inside tilevm are raised where the call would run in eager mode instead; 2: also programs "
        "compiled, with their phases, and graphs of kernels; 3: also kernels and cuts; "
        "4: also bytecode.",
        low=0,
        high=4,
    ),
    Knob(
        "failures",
        str,
        "auto",
        "Where a call that fails inside tilevm is saved for `tilevm replay`: a directory; "
        "auto: tilevm/ in the system's directory for temporary files; off: nowhere.",
    ),
    Knob(
        "perf",
        str,
        "off",
        "Names of emitted functions for profilers, from now on. jitdump: with their code, in "
        "/tmp/jit-PID.dump, for `perf record --clockid mono` and `perf inject --jit`; map: in "
        "/tmp/perf-PID.map, for tools that read it. perf itself looks there only for anonymous "
        "memory, and emitted code is not: it is mapped twice.",
        ("off", "map", "jitdump"),
    ),
    Knob(
        "gdb",
        bool,
        False,
        "Tell gdb the names of emitted functions, from now on, by its JIT interface.",
    ),
    Knob(
        "code_memory",
        int,
        256 << 20,
        "Bytes of machine code at most; kernels beyond are interpreted, counted under "
        "`interpreted` of `tilevm.stats()`. Code goes with its program. 0: no limit.",
        low=0,
        high=INT64,
    ),
    Knob(
        "variants",
        int,
        64,
        "Classes of layouts that a kernel keeps compiled; others are compiled for each launch.",
        low=1,
        high=INT,
    ),
    Knob(
        "segments",
        int,
        1024,
        "Programs of recorded segments that the process keeps; the one used least recently goes.",
        low=1,
        high=INT64,
    ),
    Knob(
        "templates",
        int,
        8,
        "Operators that `tilevm.fuse` has no row for are recorded as what captured graphs make of "
        "them, from this call of a kind on (the same operator, dtypes, ranks, other arguments): to "
        "find out takes tens of milliseconds, up to two seconds, once, after seconds of imports "
        "the first time. 1: from the first call; 0: never, they run as they are.",
        low=0,
        high=INT64,
    ),
    Knob(
        "programs",
        int,
        256,
        "Programs that a kernel keeps, and kinds of calls that a function of tilevm.compile keeps: "
        "those used least recently go first.",
        low=1,
    ),
    Knob(
        "packed_memory",
        int,
        1 << 30,
        "Bytes of packed weights that functions of tilevm.compile with `freeze` keep together; "
        "products beyond read their weights as they are. 0: no limit.",
        low=0,
        high=INT64,
    ),
    Knob(
        "library",
        str,
        "measured",
        "Products of matrices by the library that PyTorch's own products call. measured: where "
        "`tilevm doctor --tune` found it quicker on this machine; always: wherever it can, for "
        "tests; off: nowhere. Its results may differ from ours in the last bits, and with the "
        "number of threads.",
        ("off", "measured", "always"),
    ),
    Knob(
        "measurements",
        str,
        "auto",
        "Where `tilevm doctor --tune` keeps what it measured, and where that is read when PyTorch "
        "is first used: a directory; auto: ~/.cache/tilevm; off: nowhere.",
    ),
    Knob(
        "memory_budget",
        int,
        0,
        "Bytes of buffers kept for later calls; 0: no limit.",
        low=0,
        high=INT64,
    ),
)

_ROWS = {knob.name: knob for knob in KNOBS}


def _row(name: str) -> Knob:
    if name not in _ROWS:
        raise AttributeError(_unknown(name))
    return _ROWS[name]


def _unknown(name: str) -> str:
    import difflib  # here, and not above: every process would pay for it

    close = difflib.get_close_matches(name, _ROWS, 1)
    hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(_ROWS)}."
    return f"tilevm.config has no knob {name!r}. {hint}"


def _environment(knob: Knob) -> Any:
    text = os.environ.get(knob.variable)
    return knob.parse(text) if text else knob.default


class Patch(ContextDecorator):
    """What `tilevm.config.patch` returns; it may be entered again, and within itself."""

    def __init__(self, config: Config, knobs: dict[str, Any]) -> None:
        self._config = config
        self._knobs = knobs
        self._entered: list[dict[str, Any]] = []

    def __call__(self, function: Any) -> Any:
        """`@tilevm.config.patch(threads=1)`: for each call. Raises: TypeError."""
        import inspect

        kinds = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(is_kind(function) for is_kind in kinds):
            raise TypeError(
                f"tilevm.config.patch decorates {function.__qualname__}, whose call runs nothing "
                "of it yet: write `with tilevm.config.patch(...):` in it"
            )
        return super().__call__(function)

    def __enter__(self) -> None:
        layer = dict(self._knobs)
        self._config._enter(layer)
        self._entered.append(layer)

    def __exit__(self, *exc: object) -> None:
        self._config._leave(self._entered.pop())


class Config(ModuleType):
    """`tilevm.config`: the module itself, so that its knobs are attributes that check."""

    _values: dict[str, Any]
    _own: dict[str, Any]  # without those of blocks
    _layers: list[dict[str, Any]]  # of blocks that run, the last one last
    _lock: threading.RLock
    _watchers: list[Callable[[dict[str, Any]], None]]

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        raise AttributeError(name) if name.startswith("__") else AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        checked = _row(name).check(value, f"tilevm.config.{name}")
        with self._lock:
            self._set({name: checked})
            self._layer(name)[name] = checked

    def _set(self, knobs: Mapping[str, Any]) -> None:
        """Set checked values, all of them, or none if a watcher raises."""
        before = self.values()
        self._values.update(knobs)
        try:
            for watcher in self._watchers:
                watcher(self.values())
        except BaseException:
            self._values.update(before)
            for watcher in self._watchers:
                watcher(self.values())
            raise

    def __dir__(self) -> list[str]:
        return [*_ROWS, "checked", "checked_local", "patch", "values"]

    def values(self) -> dict[str, Any]:
        """All knobs, as they are now."""
        return dict(self._values)

    def patch(self, **knobs: Any) -> Patch:
        """`with tilevm.config.patch(threads=1):` sets knobs and puts them back; for all threads.

        Of blocks that run at the same time the one that began last decides.

        Raises: AttributeError, ValueError.
        """
        return Patch(self, {n: _row(n).check(v, f"tilevm.config.{n}") for n, v in knobs.items()})

    def _layer(self, name: str) -> dict[str, Any]:
        """Where the value of a knob stands: in the block that began last and sets it, or here."""
        return next((x for x in reversed(self._layers) if name in x), self._own)

    def _enter(self, layer: dict[str, Any]) -> None:
        with self._lock:
            self._set(layer)
            self._layers.append(layer)

    def _leave(self, layer: dict[str, Any]) -> None:
        with self._lock, ExitStack() as stack:
            self._layers[:] = [x for x in self._layers if x is not layer]
            for name in layer:  # each is put back, even if another is refused
                stack.callback(self._set, {name: self._layer(name)[name]})

    def checked(
        self, knobs: Mapping[str, Any], source: str, options: Iterable[str] = _ROWS
    ) -> dict[str, Any]:
        """`knobs`, if there are such and they take these values.

        source: who was given them; options: what it takes.

        Raises: TypeError, ValueError.
        """
        if unknown := [name for name in knobs if name not in _ROWS]:
            raise TypeError(
                f"{source} has no option {', '.join(unknown)}; there are: {', '.join(options)}"
            )
        return {name: _ROWS[name].check(v, f"{source}: {name}") for name, v in knobs.items()}

    def checked_local(
        self, knobs: Mapping[str, Any], source: str, others: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The same, of knobs that one function can have; others: options besides.

        Raises: TypeError, ValueError.
        """
        local = [name for name, row in _ROWS.items() if row.local]
        checked = self.checked(knobs, source, [*others, *local])
        if shared := [name for name in knobs if not _ROWS[name].local]:
            remedy = ", ".join(f"tilevm.config.{name}" for name in shared)
            raise TypeError(
                f"{source}: {', '.join(shared)} is of the whole process: set {remedy}. "
                f"A function can have its own: {', '.join(local)}"
            )
        return checked

    def watch(self, watcher: Callable[[dict[str, Any]], None]) -> None:
        """Call `watcher` with all knobs now and after each change; what it raises refuses that."""
        watcher(self.values())
        self._watchers.append(watcher)


def markdown() -> str:
    """The text of docs/config.md."""
    rows = [
        f"| `{k.name}` | `{k.variable}` | `{k.default!r}` | {k.allowed} | "
        f"{'yes' if k.local else ''} | {k.meaning} |\n"
        for k in KNOBS
    ]
    return (
        "<!-- Generated from src/tilevm/config.py by `make docs`. Do not edit. -->\n"
        "# Configuration\n\n"
        "`tilevm.config.threads = 2` sets a knob, `with tilevm.config.patch(threads=2):` for a\n"
        "block, and the environment variable before the program starts. Knobs with *own* can be\n"
        "given to one function: `tilevm.compile(f, threads=1)`.\n\n"
        "| knob | variable | default | values | own | meaning |\n|---|---|---|---|---|---|\n"
        + "".join(rows)
    )


def main(arguments: list[str]) -> None:
    """Print the page, or write it to the path given."""
    from pathlib import Path

    if arguments:
        Path(arguments[0]).write_text(markdown(), encoding="utf-8")
    else:
        sys.stdout.write(markdown())


_values = {knob.name: _environment(knob) for knob in KNOBS}
_own = dict(_values)
_layers: list[dict[str, Any]] = []
_lock = threading.RLock()
_watchers: list[Callable[[dict[str, Any]], None]] = []
sys.modules[__name__].__class__ = Config
config = cast(Config, sys.modules[__name__])

if __name__ == "__main__":
    main(sys.argv[1:])
