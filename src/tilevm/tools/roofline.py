"""What the steps of a call could take at best on this machine: bytes, products, arithmetic."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tilevm.tools.bench.costs import COSTS
from tilevm.tools.machine import processor

_machines: dict[int, Any] = {}  # by number of threads
_lock = threading.Lock()

MULTIPLIED = ("float32", "bfloat16", "float16")  # dtypes whose products are measured
WIDE = ("_f64", "_i64")  # instructions on half as many elements at a time


def vector_ops(operations: Mapping[str, float]) -> float:
    """Operations on float32 that elements by instruction amount to, functions counted dearer."""
    total = 0.0
    for name, elements in operations.items():
        base = name.rpartition("_")[0]
        cost = COSTS.get(base, COSTS.get(base.partition("_")[0], 1))
        total += elements * cost * (2 if name.endswith(WIDE) else 1)
    return total


def limits(steps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The machine's rates; each step with work gets "limit_ns" and what it is "limited_by".

    Rates that no call before needed are measured: a second or two. None without PyTorch, which
    has the programs that are timed.
    """
    try:
        import torch

        from tilevm.tools.bench.limits import Machine, Work, size_class
    except ModuleNotFoundError:
        return None
    threads = torch.get_num_threads()
    works = [
        Work(
            int(step["read_bytes"] + step["written_bytes"]),
            int(step["flops"]),
            int(step["vector_ops"]),
            step["factors"] if step["factors"] in MULTIPLIED else "float32",
        )
        for step in steps
    ]
    with _lock:
        machine = _machines.setdefault(threads, Machine(threads))
        unknown = [
            w
            for w in works
            if w.bytes and not (size_class(w) in machine.bandwidth and w.dtype in machine.flops_s)
        ]
        if unknown or not machine.flops_s:
            machine.measure(unknown)
    for step, work in zip(steps, works, strict=True):
        if not work.bytes:
            continue
        by = {
            "memory": work.bytes / machine.bandwidth[size_class(work)],
            "products": work.flops / machine.flops_s[work.dtype],
            "arithmetic": work.vector_ops / (machine.flops_s["float32"] / 2),
        }
        step["limited_by"] = max(by, key=lambda name: by[name])
        # What a step did, the machine can do: others may have used it while rates were measured.
        step["limit_ns"] = min(1e9 * by[step["limited_by"]], step["ns"])
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "bandwidth_gb_s": {str(1 << key): rate / 1e9 for key, rate in machine.bandwidth.items()},
        "product_gflop_s": {name: rate / 1e9 for name, rate in machine.flops_s.items()},
        "arithmetic_gop_s": machine.flops_s["float32"] / 2e9,
    }
