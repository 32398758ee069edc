"""What a process does around calls: it ends, is interrupted, and has interpreters inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

# Kernels over NumPy arrays, and what their results are.
START = """
import os, random, signal, sys, threading, time
import numpy as np
import tilevm
from tilevm import lang

def made(number):
    def softened(x):
        for i in range(6):
            x = lang.tanh(x * (number + i))
        return x - lang.max(x, -1, keepdims=True)
    return tilevm.kernel(softened)

def check(number, rows=5):
    x = np.linspace(-1, 1, rows * 33, dtype=np.float32).reshape(rows, 33)
    wide = x.astype(np.float64)
    for i in range(6):
        wide = np.tanh(wide * (number + i))
    found = made(number)(x)
    np.testing.assert_allclose(found, wide - wide.max(-1, keepdims=True), rtol=2e-3, atol=2e-3)
"""


def run(code: str, *, start: str = START, quiet: bool = True) -> str:
    """What `code` prints in a process of its own, which must end well and complain of nothing.

    quiet: False where Python says that it ignores an interrupt, in a callback that has no caller.
    """
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", start + code],
        env={**os.environ, "TILEVM_DEBUG": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=100)
            hung = False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler says where each thread is
            out, errors = process.communicate()
            hung = True
    if hung or process.returncode != 0 or (quiet and errors):
        status = "hung" if hung else f"ended with {process.returncode}"
        pytest.fail(f"it {status}\n--- stdout\n{out}\n--- stderr\n{errors}")
    return out


# The end ----------------------------------------------------------------------------------------


def test_the_end_with_live_programs() -> None:
    told = run(
        "kept = [made(n) for n in range(20)]\n"
        "results = [kernel(np.ones((4, n + 1), np.float32)) for n, kernel in enumerate(kept)]\n"
        "import builtins\n"
        "builtins.kept = kept, results\n"  # until modules are gone
        "class Late:\n"
        "    def __del__(self): kept[0](np.ones((3, 3), np.float32))\n"
        "late = Late(); late.itself = late\n"
        "print('end')\n"
    )
    assert told == "end\n"


@pytest.mark.parametrize("seconds", [0, 0.1, 0.5])  # of the first, most is the first call
@pytest.mark.parametrize("rows", [64, 6400])  # calls of more let other threads run
def test_the_end_while_threads_call(rows: int, seconds: float) -> None:
    told = run(
        "def work():\n"
        "    kernel = made(1)\n"
        f"    x = np.ones(({rows}, 65), np.float32)\n"
        "    while True: kernel(x); made(2)(np.ones((2, 3)))\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        f"time.sleep({seconds})\n"
        "print('end')\n"
    )
    assert told == "end\n"


def test_the_end_while_a_thread_is_in_python_below_the_core() -> None:
    """Python ends a thread that wants its lock by unwinding its stack, the core's part as well."""
    told = run(
        "import importlib.abc\n"
        "there = threading.Event()\n"
        "class Slow(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        while name == 'ml_dtypes': there.set()\n"  # which the core looks for
        "sys.modules.pop('ml_dtypes', None)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "threading.Thread(target=check, args=(1,), daemon=True).start()\n"
        "there.wait()\n"
        "print('end')\n"
    )
    assert told == "end\n"


def test_the_end_while_machine_code_runs() -> None:
    """A thread without Python's lock goes on until the process is gone."""
    told = run(
        "kernel = made(1)\n"
        "x = np.ones((3000, 3000), np.float32)\n"
        "kernel(x)\n"
        "started = threading.Event()\n"
        "def work():\n"
        "    while True: started.set(); kernel(x)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "started.wait()\n"
        "time.sleep(0.01)\n"
        "print('end')\n",
        # Registered first, so it runs after all that the core has the process do at its end.
        start="import ctypes\n"
        "library = ctypes.CDLL(None)\n"
        "library.__cxa_atexit(library.usleep, ctypes.c_void_p(100_000), None)\n" + START,
    )
    assert told == "end\n"


def test_the_end_inside_a_trace_and_with_lines() -> None:
    told = run(
        "tilevm.config.debug = 4\n"
        "import logging\n"
        "logging.getLogger('tilevm').addHandler(logging.NullHandler())\n"
        "logging.getLogger('tilevm').propagate = False\n"
        "trace = tilevm.trace('/dev/null').__enter__()\n"
        "check(3)\n"
        "print('end')\n"
    )
    assert told == "end\n"


@pytest.mark.torch
def test_the_end_with_live_functions_of_torch() -> None:
    pytest.importorskip("torch")
    told = run(
        "import torch\n"
        "linear = torch.nn.Linear(8, 8)\n"
        "kept = tilevm.compile(linear), tilevm.compile(lambda x: (x @ x.mT).softmax(-1))\n"
        "for f in kept:\n"
        "    for n in (1, 7): y = f(torch.randn(n, 8))\n"
        "import builtins\n"
        "builtins.kept = kept, y\n"
        "print('end')\n"
    )
    assert told == "end\n"


@pytest.mark.torch
def test_the_end_with_segments_that_wait() -> None:
    pytest.importorskip("torch")  # which the recorder finds in the process
    pytest.importorskip("tilevm._recorder")
    told = run(
        "import torch\n"
        "def wait():\n"
        "    tilevm.fuse.enable()\n"
        "    x = torch.randn(33, 65)\n"
        "    return [(x * n + 1).relu().sum(0) for n in range(5)]\n"
        "mine = wait()\n"
        "theirs = []\n"
        "def thread(): theirs.append(wait()); time.sleep(1000)\n"
        "threading.Thread(target=thread, daemon=True).start()\n"
        "while not theirs: time.sleep(0.01)\n"
        "print('end')\n"
    )
    assert told == "end\n"


# Signals ----------------------------------------------------------------------------------------


def test_interrupts_at_any_time_leave_a_usable_process() -> None:
    """In captures, compiles, calls: whatever is interrupted, what comes later is right."""
    told = run(
        "chance = random.Random(0)\n"
        "armed = False\n"
        "def interrupt(*_):\n"
        "    if armed: raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "interrupted = 0\n"
        "end = time.monotonic() + 3\n"
        "number = 0\n"
        "while time.monotonic() < end:\n"
        "    number += 1\n"
        "    try:\n"
        "        armed = True\n"
        "        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 4e-3))\n"
        "        check(number % 7)\n"
        "        made(number % 5)(np.ones((999, 333), np.float32))\n"
        "        armed = False\n"
        "    except (KeyboardInterrupt, RuntimeError) as error:\n"
        # A module whose import is interrupted in a class's `__set_name__`: so says Python < 3.12.
        "        if not isinstance(error.__cause__ or error, KeyboardInterrupt): raise\n"
        "        interrupted += 1\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "for number in range(9): check(number)\n"
        "assert interrupted > 20, interrupted\n"
        "print('usable')\n",
        quiet=False,
    )
    assert told == "usable\n"


def test_threads_that_all_begin_at_once() -> None:
    """What is first needed in a call is imported there, and an import lets other threads run."""
    told = run(
        "found = []\n"
        "def work(): check(1); found.append(1)\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(len(found))\n"
    )
    assert told == "8\n"


def test_an_interrupt_during_a_kernel_comes_when_it_has_ended() -> None:
    told = run(
        # What a shell starts in the background ignores interrupts, unless told otherwise.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "kernel = made(1)\n"
        "x = np.ones((4000, 1000), np.float32)\n"
        "kernel(x)\n"
        "def later(): time.sleep(0.01); os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n"
        "    threading.Thread(target=later).start()\n"
        "    for _ in range(10000): kernel(x)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "check(1)\n"
        "print(kernel(x).shape)\n"
    )
    assert told == "interrupted\n(4000, 1000)\n"


@pytest.mark.torch
@pytest.mark.slow
def test_interrupts_of_torch_captures() -> None:
    pytest.importorskip("torch")
    told = run(
        "import torch\n"
        "def f(x, w): return torch.softmax(x @ w, -1).sum(0)\n"
        "x, w = torch.randn(7, 8), torch.randn(8, 9)\n"
        "tilevm.compile(f)(x, w)\n"  # what PyTorch does once
        "begin = time.monotonic()\n"
        "tilevm.compile(f)(x, w)\n"
        "takes = time.monotonic() - begin\n"
        "chance = random.Random(0)\n"
        "armed = False\n"
        "def interrupt(*_):\n"
        "    if armed: raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "interrupted = 0\n"
        "for _ in range(25):\n"
        "    compiled = tilevm.compile(f)\n"
        "    try:\n"
        "        armed = True\n"
        "        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, takes))\n"
        "        compiled(x, w)\n"
        "        armed = False\n"
        "    except KeyboardInterrupt: interrupted += 1\n"
        "    torch.testing.assert_close(compiled(x, w), f(x, w))\n"
        "torch.testing.assert_close(tilevm.compile(f)(x, w), f(x, w))\n"
        "assert interrupted > 5, interrupted\n"
        "print('usable')\n",
        quiet=False,
    )
    assert told == "usable\n"


def test_an_interrupt_at_each_line_of_a_first_call() -> None:
    told = run(
        "chance = {'left': 0}\n"
        "def trace(frame, event, argument):\n"
        "    name = frame.f_code.co_filename\n"
        "    if not name.endswith('frontends/kernel.py') and name != '<string>': return None\n"
        "    chance['left'] -= 1\n"
        "    if chance['left'] == 0: raise KeyboardInterrupt\n"
        "    return trace\n"
        "interrupted = number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    kernel, x = made(1), np.ones((3, 2), np.float32)\n"
        "    kernel(x.astype(np.float64))\n"
        "    chance['left'] = number\n"
        "    sys.settrace(trace)\n"
        "    try:\n"
        "        for y in (x, x.astype(np.float16), x): kernel(y)\n"
        "        break\n"
        "    except KeyboardInterrupt: interrupted += 1\n"
        "    finally: sys.settrace(None)\n"
        "    for y in (x, x.astype(np.float64), x.astype(np.float16)): kernel(y)\n"
        "assert interrupted > 100, interrupted\n"
        "print('usable')\n",
        quiet=False,
    )
    assert told == "usable\n"


# Interpreters -----------------------------------------------------------------------------------

INTERPRETERS = """
import sys
try:
    import _interpreters as interpreters  # Python 3.13
    def run_in(code):
        told = interpreters.exec(interpreters.create("legacy"), code)
        assert told is None, told
except ImportError:
    import _xxsubinterpreters as interpreters
    def run_in(code): interpreters.run_string(interpreters.create(), code)
"""


def test_another_interpreter_is_refused() -> None:
    told = run(
        "code = '''\n"
        "import sys\n"
        "sys.path[:] = %r\n"
        "import tilevm\n"
        "for _ in range(2):\n"
        "    try: tilevm.bytecode\n"
        "    except ImportError as error: print(error, flush=True)\n"
        "    else: print('imported', flush=True)\n"
        "''' % (sys.path,)\n"
        "run_in(code)\n" + START + "check(1)\n"
        "run_in(code)\n"
        "check(2)\n"
        "print('usable')\n",
        start=INTERPRETERS,
    )
    *refusals, last = told.splitlines()
    assert last == "usable"
    assert len(refusals) == 4
    for refusal in refusals:
        assert "main interpreter" in refusal or "subinterpreters" in refusal


@pytest.mark.torch
def test_interrupts_of_what_is_called_out() -> None:
    """The core runs eagerly what fails; an interrupt that comes in Python's code is no failure."""
    pytest.importorskip("torch")
    told = run(
        "import torch\n"
        "compiled = tilevm.compile(lambda x: torch.linalg.inv(x + 9 * torch.eye(8)) * 2)\n"
        "x = torch.rand(8, 8)\n"
        "for _ in range(3): compiled(x)\n"
        "assert tilevm.stats()['callouts']\n"
        "fired = came = 0\n"
        "def interrupt(*_):\n"
        "    global fired\n"
        "    fired += 1\n"
        "    raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "chance = random.Random(0)\n"
        "for _ in range(300):\n"
        "    before = fired\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 2e-3))\n"
        "        while fired == before: compiled(x)\n"
        "    except KeyboardInterrupt: came += 1\n"
        "print(came == fired >= 300)\n"
    )
    assert told == "True\n"
