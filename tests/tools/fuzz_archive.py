"""Saved calls, changed at random: each is refused, fails by a documented error, or is right.

    python tests/tools/fuzz_archive.py --trials 100000 --seed 7

runs for as long as it takes and prints what came of the trials. Trial `i` of seed `s` is the same
everywhere, and runs alone by `--seed s --only i`. They run in a process of their own with little
memory: one that dies, hangs or raises anything else ends the run with its number.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import random
import resource
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.errors import InternalError, ParseError, TilevmError
from tilevm.ir.compare import differences
from tilevm.ir.ops import BY_NAME
from tilevm.ir.text import from_text
from tilevm.ir.types import numpy_dtype
from tilevm.tools import archive, replay
from tilevm.tools.worker import Worker

MOST_BYTES = 1 << 20  # of inputs and values, so that a trial is quick
MEMORY = 4 << 30
BATCH = 50
LIMIT_S = 120.0  # a batch

GRAPHS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "rows": (
        "graph(x: float32[M, N], w: float32[N], n: float)\n"
        "  where M in 0..64, N likely [33]\n"
        "  y = mul x, w\n  z = add y, n\n  e = exp z\n  s = sum e, axes=[1]\n  return s, z\n",
        {"x": (7, 33), "w": (33,), "n": ()},
    ),
    "views": (
        "graph(x: float32[B, 8], i: int64[K])\n  where B % 2 == 0\n"
        "  a = reshape x, shape=[B//2, 16]\n  t = permute a, axes=[1, 0]\n"
        "  g = take x, i, axis=0\n  c = concat g, x, axis=0\n  return t, c\n",
        {"x": (6, 8), "i": (3,)},
    ),
    "numbers": (
        "graph(x: int32[N], y: int32[N], b: bool[N], h: bfloat16[N])\n"
        "  q = floor_div x, y\n  r = where b, q, y\n  f = cast h, dtype=float64\n"
        "  m = amax r, axes=[0]\n  return r, f, m\n",
        {"x": (65,), "y": (65,), "b": (65,), "h": (65,)},
    ),
    "products": (
        "graph(x: float32[M, K], w: float32[K, 5])\n  y = matmul x, w\n  z = relu y\n  return z\n",
        {"x": (9, 17), "w": (17, 5)},
    ),
    "sizes": (
        "graph(x: int64[N])\n  where u0 in 0..64\n"
        "  m = amax x, axes=[0]\n"
        "  n: int, s: opaque[u0] = call m, target=-2\n"
        "  y = full dtype=float32, shape=[u0, N], value=2.0\n"
        "  z = mul y, n\n  return z\n",
        {"x": (5,)},
    ),
    "calls": (
        "graph(x: float32[M, N], i: int64[K], n: int)\n"
        "  c: float32[M, N] = call x, n, target=0\n"
        "  g: float32[M, K] = call c, i, target=1\n"
        "  e = exp g\n  return e\n",
        {"x": (6, 9), "i": (3,), "n": ()},
    ),
}
TARGETS = {  # of graphs that call out
    "calls": [
        "aten.cumsum.default(a0, -1 + int(a1), dtype=torch.float32)",
        "aten.index.Tensor(a0, [None, a1])",
    ],
}
NUMBERS = "0 1 -1 2 7 63 64 4095 2147483647 2147483648 9223372036854775807 9223372036854775808 nan"
TOKENS = [*NUMBERS.split(), "9" * 60, *"( ) [ ] , = : .. # % // * + - 1e400 inf true".split()]


def inputs(graph: Any, shapes: dict[str, tuple[int, ...]]) -> list[Any]:
    """Elements that no operator of these graphs fails on."""
    made: list[Any] = []
    chance = np.random.default_rng(0)
    for name, type_ in graph.params:
        if type_.weak:
            made.append(2.5 if type_.dtype == "float64" else 2)
        elif type_.dtype == "bfloat16":
            bits = chance.integers(0x3F00, 0x4000, shapes[name], np.uint16)
            made.append(bits.view(numpy_dtype("bfloat16")))
        else:
            elements = chance.integers(1, 6, shapes[name])
            made.append(elements.astype(numpy_dtype(type_.dtype)))
    return made


def saved(name: str, path: Path) -> dict[str, bytes]:
    """The files of a call as `tilevm` saves it."""
    text, shapes = GRAPHS[name]
    graph = from_text(text)
    targets = TARGETS.get(name, ())
    archive.save(path, graph, inputs(graph, shapes), note="fuzz", targets=targets)
    with zipfile.ZipFile(path) as file:
        return {member: file.read(member) for member in file.namelist()}


# Changes ----------------------------------------------------------------------------------------


def bytes_changed(data: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, cut out, repeated, or the rest left out."""
    found = bytearray(data or b" ")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        kind = chance.randrange(6)
        if kind == 0:
            found[at] = chance.randrange(256)
        elif kind == 1:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del found[at : at + chance.randint(1, 8)]
        elif kind == 3:
            found[at:at] = found[at : at + chance.randint(1, 64)]
        elif kind == 4 and len(found) >= at + 4:
            found[at : at + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f"))
        elif chance.random() < 0.2:
            del found[at:]
        if not found:
            found = bytearray(b" ")
    return bytes(found)


def text_changed(data: bytes, chance: random.Random) -> bytes:
    """A graph whose words, numbers, lines or operators changed."""
    text = data.decode("utf-8", "replace")
    for _ in range(chance.randint(1, 3)):
        rows = text.splitlines() or [""]
        at = chance.randrange(len(rows))
        words = rows[at].replace(",", " , ").replace("[", " [ ").replace("]", " ] ").split()
        kind = chance.randrange(7)
        if kind == 0:
            rows.insert(at, chance.choice(rows))
        elif kind == 1 and len(rows) > 1:
            del rows[at]
        elif kind == 2 and words:
            words[chance.randrange(len(words))] = chance.choice(TOKENS)
            rows[at] = " ".join(words)
        elif kind == 3 and words:
            words[chance.randrange(len(words))] = chance.choice(words)
            rows[at] = " ".join(words)
        elif kind == 4:
            for op in BY_NAME:
                if f"= {op} " in rows[at]:
                    rows[at] = rows[at].replace(f"= {op} ", f"= {chance.choice(list(BY_NAME))} ")
                    break
        elif kind == 5 and words:
            words.insert(
                chance.randrange(len(words)), chance.choice(TOKENS) * chance.choice((1, 9))
            )
            rows[at] = " ".join(words)
        else:
            for dtype in ("float32", "int64", "int32", "bool", "bfloat16"):
                rows[at] = rows[at].replace(dtype, chance.choice(("int8", "float16", dtype)))
        text = "\n".join(rows) + "\n"
    return text.encode()


def json_changed(data: bytes, chance: random.Random) -> bytes:
    """What is told of the call, with values of other kinds."""
    told = json.loads(data)
    odd: list[Any] = [None, -1, float("nan"), 2**70, [], {}, "\ud800", [[]] * 9, "x" * 9999, True]
    if told["targets"] and chance.random() < 0.8:
        at = chance.randrange(len(told["targets"]))
        changed = text_changed(told["targets"][at].replace("(", " ( ").encode(), chance)
        told["targets"][at] = changed.decode().strip()
        return json.dumps(told).encode()
    for _ in range(chance.randint(1, 3)):
        told[chance.choice([*told, "more"])] = chance.choice(odd)
    return json.dumps(told).encode("utf-8", "surrogatepass")


def array_changed(data: bytes, chance: random.Random) -> bytes:
    """Arrays whose headers or elements changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    name = chance.choice(list(parts))
    head, _, rest = parts[name].partition(b"}")
    kind = chance.randrange(4)
    if kind == 0:
        parts[name] = bytes_changed(head, chance) + b"}" + rest
    elif kind == 1:
        shape = chance.choice((b"(9999999999,)", b"(-1, -1)", b"(0,)", b"()", b"(2.5,)", b"(nan,)"))
        parts[name] = head[: head.find(b"(")] + shape + b", }" + rest
    elif kind == 2:
        kinds = (b"|O", b"<f8", b">f4", b"|V2", b"<U9", b"<M8[s]", b"[('a','<f4')]")
        parts[name] = head.replace(head[head.find(b"'<") :][:5], chance.choice(kinds)) + b"}" + rest
    else:
        parts[name] = head + b"}" + bytes_changed(rest, chance)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for member, part in parts.items():
            file.writestr(member, part)
    return packed.getvalue()


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "graph.txt": text_changed,
    "call.json": json_changed,
    "inputs.npz": array_changed,
}


def changed(name: str, chance: random.Random, path: Path) -> None:
    """Write a changed call."""
    parts = saved(name, path)
    if chance.random() < 0.25:
        path.write_bytes(bytes_changed(path.read_bytes(), chance))
        return
    # Mostly the graph: what it says is what runs.
    member = chance.choice(["graph.txt", "graph.txt", *parts])
    change = CHANGES[member] if chance.random() < 0.8 else bytes_changed
    parts[member] = change(parts[member], chance)
    names = dict.fromkeys(parts)
    if chance.random() < 0.1:  # names that lead elsewhere, are no text, or come twice
        odd = chance.choice(("../graph.txt", "/etc/passwd", "graph.txt", "\udcff", "a" * 300))
        names[odd] = None
    with zipfile.ZipFile(path, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))) as file:
        for member in names:
            info = zipfile.ZipInfo(member.encode("utf-8", "replace").decode())
            if chance.random() < 0.05:
                info.external_attr = 0o120777 << 16  # a symbolic link
            file.writestr(info, parts.get(member, b"x"))


# Trials -----------------------------------------------------------------------------------------


class Trials:
    """In a process with little memory."""

    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        archive.MOST_BYTES = MOST_BYTES
        self._folder = tempfile.TemporaryDirectory()

    def run(self, seed: int, first: int, count: int) -> dict[str, int]:
        """What came of these trials, counted. Raises: AssertionError, which names one."""
        outcomes: collections.Counter[str] = collections.Counter()
        for number in range(first, first + count):
            try:
                outcomes[self.outcome(seed, number)] += 1
            except Exception as error:
                told = f"trial {number} of seed {seed}: {type(error).__name__}: {error}"
                raise AssertionError(told) from error
        return dict(outcomes)

    def outcome(self, seed: int, number: int) -> str:
        """What came of one."""
        chance = random.Random(f"{seed} {number}")
        path = Path(self._folder.name) / "call.zip"
        changed(chance.choice(list(GRAPHS)), chance, path)
        try:
            call = archive.load(path)
        except ParseError as error:
            assert "MemoryError" not in str(error)
            assert "RecursionError" not in str(error)
            return "refused"
        try:
            replay.functions_of(call)
        except ParseError:
            return "refused"
        if call.targets not in ((), *map(tuple, TARGETS.values())):
            return "calls out"  # what PyTorch does with other arguments is PyTorch's
        found = {tier: tried(call, tier) for tier in replay.TIERS}
        if any(isinstance(one, Exception) for one in found.values()):
            return "fails"
        exact = found.pop("reference")
        types = [t.dtype for t in call.graph.types().values() if not t.weak]
        for tier, results in found.items():
            wrong = differences(results, exact, dtypes=types)
            assert not wrong, f"{tier} differs: {wrong}"
        return "right"


def tried(call: archive.Call, tier: str) -> Any:
    """The results on a tier, or the error that such a call may raise."""
    try:
        return replay.run_tier(call, tier)
    except InternalError:
        raise
    except (TilevmError, IndexError, RuntimeError) as error:
        return error
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
        if tier != "reference":  # NumPy has errors of its own
            raise
        return error


def fuzz(trials: int, seed: int, first: int = 0) -> dict[str, int]:
    """What came of so many trials. Raises: WorkerError."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:  # where the process looks for this module
        sys.path.append(folder)
    total: collections.Counter[str] = collections.Counter()
    worker = Worker(f"{Path(__file__).stem}:Trials", (), {"TILEVM_FAILURES": "off"})
    try:
        for begin in range(first, first + trials, BATCH):
            count = min(BATCH, first + trials - begin)
            sys.stderr.write(f"\r{begin}") if sys.stderr.isatty() else None
            total.update(worker.call("run", seed, begin, count, limit_s=LIMIT_S))
    finally:
        worker.close()
    return dict(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this trial alone, in this process")
    options = parser.parse_args()
    if options.only is not None:
        print(Trials().outcome(options.seed, options.only))
        return
    print(fuzz(options.trials, options.seed))


if __name__ == "__main__":
    main()
