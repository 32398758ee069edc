"""What `tilevm doctor` says of the machine: caches, bandwidth, settings that fight each other."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_OPENMP = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*)$")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def processor() -> str:
    """The processor's name."""
    try:
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (row.partition(":") for row in rows)}
    numbers = f"family {found.get('cpu family', '?')}, model {found.get('model', '?')}"
    return f"{found.get('model name', platform.machine())} ({numbers})"


def caches(root: Path = _CACHES) -> dict[str, int]:
    """Bytes of the first processor's caches for data, by level: {"L1": 32768, ...}."""
    found: dict[str, int] = {}
    for folder in sorted(root.glob("index*")):
        try:
            kind, level, size = (
                (folder / name).read_text(encoding="ascii").strip()
                for name in ("type", "level", "size")
            )
        except OSError:
            continue
        number = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind != "Instruction" and number:
            found[f"L{level}"] = int(number[1]) << {"": 0, "K": 10, "M": 20}[number[2]]
    return found


def bandwidth_gb_s(size_bytes: int, limit_s: float = 0.15) -> float:
    """Bytes read and written a second by one thread that copies; both arrays have `size_bytes`."""
    source = np.ones(max(size_bytes // 16, 1), np.float64)
    target = np.empty_like(source)
    np.copyto(target, source)
    best, end = float("inf"), time.perf_counter() + limit_s
    many = max(1, (1 << 20) // size_bytes)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(many):
            np.copyto(target, source)
        best = min(best, (time.perf_counter() - begin) / many)
    return 2 * source.nbytes / best / 1e9


def bandwidths() -> dict[str, float]:
    """GB/s out of each cache behind the first, of what fills half of it, and out of memory."""
    sizes = caches()
    # What the first one holds is copied sooner than NumPy is called.
    found = {name: bandwidth_gb_s(size // 2) for name, size in sizes.items() if name != "L1"}
    # Above the largest cache that one core is likely to have to itself.
    found["memory"] = bandwidth_gb_s(min(4 * max(sizes.values(), default=32 << 20), 256 << 20))
    return found


def openmp(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Files of OpenMP runtimes that are in this process."""
    try:
        rows = maps.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(row.split()[-1] for row in rows if _OPENMP.search(row)))


def conflicts(
    environment: Mapping[str, str] = os.environ, runtimes: list[str] | None = None
) -> Iterator[str]:
    """Settings under which something is slow or hangs, with the remedy."""
    loaded = openmp() if runtimes is None else runtimes
    if len(loaded) > 1:
        yield (
            f"{len(loaded)} OpenMP runtimes are loaded ({', '.join(loaded)}): their threads "
            "fight for the cores. Import torch first, and install what brings no copy of its own"
        )
    counts = {name: environment[name] for name in _COUNTS if name in environment}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name}={value}" for name, value in counts.items())
        yield f"{told}: not all use as many threads. Set OMP_NUM_THREADS alone"
    for name in _BINDING:
        if environment.get(name, "false").lower() not in ("false", ""):
            yield (
                f"{name}={environment[name]}: threads are bound to cores, and children of a fork "
                "to the one of their parent. Unset it where processes share the machine"
            )
    limit, processors = _cgroup_limit(), len(os.sched_getaffinity(0))
    if limit is not None and limit < processors:
        yield (
            f"this container may use {limit:g} of {processors} processors: more threads are "
            f"stopped and waited for. Set OMP_NUM_THREADS={max(1, int(limit))}"
        )


def _cgroup_limit(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Processors that the control group grants; None: all, or unknown."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
