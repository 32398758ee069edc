"""The command `tilevm`. Each subcommand imports what it needs only when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tilevm import __version__
from tilevm.tools.bench import SUITES


def parser() -> argparse.ArgumentParser:
    """All subcommands; `handler` of the result runs one and returns the exit code."""
    top = argparse.ArgumentParser(
        prog="tilevm", description="Compiles tensor programs at the moment they run."
    )
    top.add_argument("--version", action="version", version=f"tilevm {__version__}")
    commands = top.add_subparsers(metavar="command", required=True)

    demo = commands.add_parser("demo", help="a real sentence encoder, against eager and Inductor")
    demo.add_argument(
        "--quick", action="store_true", help="a minute or two: no Inductor, less text"
    )
    demo.add_argument("--threads", type=_count, default=0, help="0, the default: as many as torch")
    demo.add_argument(
        "--all-peers", action="store_true", help="also Dynamo alone and AOTAutograd with identity"
    )
    demo.set_defaults(handler=_demo)

    bench = commands.add_parser("bench", help="time against eager, Inductor and ONNX Runtime")
    bench.add_argument(
        "--suite",
        action="append",
        choices=SUITES,
        help="default: all; may be repeated",
    )
    bench.add_argument("--case", action="append", help="names that contain this; may be repeated")
    bench.add_argument("--threads", type=_counts, default=(1, 2), help="default: 1,2")
    bench.add_argument("--quick", action="store_true", help="few shapes, no static Inductor")
    bench.add_argument("--peers", type=_words, help="columns besides eager, by key, e.g. tilevm")
    bench.add_argument("--budget", type=float, default=0, help="seconds at most; 0: no limit")
    bench.add_argument("--json", type=Path, help="write everything that was measured")
    bench.add_argument("--markdown", type=Path, help="write the tables")
    bench.add_argument("--plot", type=Path, help="draw the ratios to eager (needs matplotlib)")
    bench.add_argument("--list", action="store_true", help="list the cases and columns")
    bench.set_defaults(handler=_bench)

    explain = commands.add_parser("explain", help="graph, kernels, code of a function")
    explain.add_argument("function", metavar="FILE:FUNCTION")
    explain.add_argument(
        "arguments",
        nargs="*",
        metavar="ARRAY",
        help="arguments to call it with: float32[7,33], or a number",
    )
    explain.add_argument("--asm", action="store_true", help="also the machine code")
    explain.add_argument(
        "--recorded", action="store_true", help="run it under tilevm.fuse(), and show its segments"
    )
    explain.add_argument("--html", type=Path, help="write a page instead of printing; -: print it")
    explain.add_argument(
        "--json", type=Path, help="write plain data instead of printing; -: print it"
    )
    explain.set_defaults(handler=_explain)

    doctor = commands.add_parser("doctor", help="versions, processor, and whether all works")
    doctor.add_argument("--json", action="store_true", help="the same for scripts")
    doctor.add_argument(
        "--tune",
        action="store_true",
        help="measure products, ours and those of PyTorch's library, and keep which are quicker",
    )
    doctor.set_defaults(handler=_doctor)

    replay = commands.add_parser("replay", help="run a saved call on every tier and compare")
    replay.add_argument("file", type=Path)
    replay.add_argument(
        "--minimise", type=Path, metavar="OUT.zip", help="a smaller call that fails as this one"
    )
    replay.set_defaults(handler=_replay)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.handler(options)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"tilevm: {error}\n")
        return 2
    except ValueError as error:
        if not str(error).startswith("TILEVM_"):
            raise
        sys.stderr.write(f"tilevm: {error}\n")  # a variable of the environment
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # of `| head`
        sys.stdout = None
        return 0
    except OSError as error:  # no such file, or no room for what is written
        sys.stdout = None
        sys.stderr.write(f"tilevm: {error}\n")
        return 2
    return code


def _demo(options: argparse.Namespace) -> int:
    from tilevm.tools import demo

    return demo.run(quick=options.quick, threads=options.threads, all_peers=options.all_peers)


def _bench(options: argparse.Namespace) -> int:
    from tilevm.tools.bench import run

    return run.main(options)


def _explain(options: argparse.Namespace) -> int:
    from tilevm.tools import call

    return call.explain(
        options.function,
        options.arguments,
        asm=options.asm,
        recorded=options.recorded,
        html=options.html,
        data=options.json,
    )


def _doctor(options: argparse.Namespace) -> int:
    from tilevm.tools import doctor, tune

    if options.tune:
        return tune.run()
    return doctor.run(as_json=options.json)


def _replay(options: argparse.Namespace) -> int:
    from tilevm.tools import minimise, replay

    if options.minimise:
        return minimise.run(options.file, options.minimise)
    return replay.run(options.file)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError("thread counts are ints of at least 1: 1,2")
    return tuple(map(int, parts))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("a thread count is at least 1; 0: as many as torch")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


if __name__ == "__main__":
    sys.exit(main())
