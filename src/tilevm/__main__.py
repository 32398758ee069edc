"""`python -m tilevm`: the command `tilevm`."""

from __future__ import annotations

import sys

from tilevm.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
