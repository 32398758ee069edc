"""Record what tests run on the interpreter: inputs, programs and results, for other processors.

    python tests/differential/record_launches.py FILE [arguments of pytest]

`core/tests/replay_launches.cpp` runs them again, on AArch64 in `make test-aarch64`.
"""

from __future__ import annotations

import sys

import pytest

from tilevm.runtime.program import record_launches


def main(path: str, *arguments: str) -> int:
    record_launches(path)
    try:
        return pytest.main(["-q", "-p", "no:xdist", "-k", "interp or random", *arguments])
    finally:
        record_launches("")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
