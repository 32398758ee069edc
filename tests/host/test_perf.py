"""Names of emitted functions, as perf reads them. Each in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilevm.runtime import program as runtime

pytestmark = pytest.mark.skipif(
    runtime.code_memory()["target"] == "interp", reason="no machine code here"
)

# Prints its process's number, and the mappings that may be executed.
PROGRAM = """
import os
import numpy as np
import tilevm
from tilevm import lang

@tilevm.kernel
def halved(x):
    return lang.exp(x) * 0.5

x = np.ones((400, 500), np.float32)
for _ in range(CALLS):
    halved(x)
halved(x.T)
print(os.getpid())
for line in open("/proc/self/maps"):
    if "x" in line.split()[1]:
        print(line.split()[0])
"""
LINE_OF_KERNEL = 9


class Ran:
    """The process, when it is over."""

    def __init__(self, tmp_path: Path, knob: str, *before: str, calls: int = 1) -> None:
        self.program = tmp_path / "program.py"
        self.program.write_text(PROGRAM.replace("CALLS", str(calls)))
        environment = {**os.environ, "TILEVM_PERF": knob, "TILEVM_TIER": "auto"}
        words = [*before, sys.executable, str(self.program)]
        told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        pid, *ranges = [row for row in told.stdout.splitlines() if re.fullmatch(r"[\da-f-]+", row)]
        self.pid = int(pid)
        self.executable = [tuple(int(end, 16) for end in row.split("-")) for row in ranges]
        self.map = Path(f"/tmp/perf-{self.pid}.map")
        self.dump = Path(f"/tmp/jit-{self.pid}.dump")

    def is_executable(self, begin: int, end: int) -> bool:
        return any(low <= begin and end <= high for low, high in self.executable)


@pytest.fixture
def ran(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ran]:
    made = Ran(tmp_path, request.param)
    yield made
    made.map.unlink(missing_ok=True)
    made.dump.unlink(missing_ok=True)


def needs(*words: str) -> None:
    """Skips unless this command is there and does what it does."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{words[0]} does not work here: {done.stderr.strip()}")


def check_name(name: str, program: Path) -> None:
    assert re.match(r"tilevm:\w*exp\w*\[map ", name), name
    assert re.search(r"(avx2|avx512|neon)\]", name), name
    assert name.endswith(f"{program}:{LINE_OF_KERNEL}"), name


@pytest.mark.parametrize("ran", ["map"], indirect=True)
def test_the_map_names_executable_memory(ran: Ran) -> None:
    assert not ran.dump.exists()
    lines = ran.map.read_text().splitlines()
    assert len(lines) >= 1, "no function was named"
    for line in lines:
        begin, size, name = line.split(" ", 2)
        assert int(size, 16) > 0
        assert ran.is_executable(int(begin, 16), int(begin, 16) + int(size, 16))
        check_name(name, ran.program)


@pytest.mark.parametrize("ran", ["jitdump"], indirect=True)
def test_the_dump_has_code_and_names(ran: Ran) -> None:
    assert not ran.map.exists()
    data = ran.dump.read_bytes()
    magic, version, at, _, _, pid, _, _ = struct.unpack_from("<6I2Q", data)
    assert (magic, version, pid) == (0x4A695444, 1, ran.pid)
    count = 0
    while at < len(data):
        kind, size, _, _, _, vma, address, code_size, index = struct.unpack_from(
            "<2IQ2I4Q", data, at
        )
        name, _, code = data[at + 56 : at + size].partition(b"\0")
        assert (kind, vma, index) == (0, address, count)
        assert ran.is_executable(address, address + code_size)
        assert len(code) == code_size > 0
        check_name(name.decode(), ran.program)
        at += size
        count += 1
    assert count >= 1
    assert at == len(data)


@pytest.mark.parametrize("ran", ["off"], indirect=True)
def test_nothing_is_written_unless_asked(ran: Ran) -> None:
    assert not ran.map.exists()
    assert not ran.dump.exists()


def test_perf_shows_the_name(tmp_path: Path) -> None:
    needs("perf", "record", "--quiet", "-e", "cpu-clock:u", "-o", str(tmp_path / "none"), "true")
    data, injected = str(tmp_path / "perf.data"), str(tmp_path / "injected.data")
    record = ["perf", "record", "--quiet", "--clockid", "mono", "-e", "cpu-clock:u", "-o", data]
    ran = Ran(tmp_path, "jitdump", *record, "--", calls=3000)
    try:
        subprocess.run(["perf", "inject", "--jit", "-i", data, "-o", injected], check=True)
        report = ["perf", "report", "--stdio", "-i", injected, "--sort", "symbol"]
        told = subprocess.run(report, capture_output=True, text=True, check=True).stdout
        assert re.search(r"tilevm:\w*exp\w*\[map ", told), told
    finally:
        ran.dump.unlink(missing_ok=True)
        for made in Path("/tmp").glob(f"jitted-{ran.pid}-*.so"):
            made.unlink()


def test_gdb_knows_the_functions(tmp_path: Path) -> None:
    needs("gdb", "-nx", "-batch", "-return-child-result", "-ex", "run", "--args", "true")
    program = tmp_path / "program.py"
    # A kernel that is gone, one that is there, and a stop for gdb.
    program.write_text(
        "import gc, os, signal\n"
        "import numpy as np\n"
        "import tilevm\n"
        "from tilevm import lang\n"
        "x = np.ones((4, 5), np.float32)\n"
        "tilevm.kernel(lambda x: lang.log(x))(x)\n"
        "gc.collect()\n"
        "kept = tilevm.kernel(lambda x: lang.exp(x))\n"
        "kept(x)\n"
        "os.kill(os.getpid(), signal.SIGTRAP)\n"
    )
    environment = {**os.environ, "TILEVM_GDB": "1", "TILEVM_TIER": "auto"}
    words = ["gdb", "-nx", "-batch", "-ex", "set auto-load off", "-ex", "run"]
    words += ["-ex", "info functions tilevm:", "--args", sys.executable, str(program)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert "SIGTRAP" in done.stdout, done.stdout + done.stderr
    assert re.search(r"0x[\da-f]+ +tilevm:exp\[map ", done.stdout), done.stdout + done.stderr
    assert "tilevm:log" not in done.stdout
