"""tilevm compiles tensor programs at the moment they run, in microseconds.

Names are imported when they are first used, so that `import tilevm` costs nothing and torch is
needed only by what uses it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilevm import bytecode as bytecode
    from tilevm import errors as errors
    from tilevm import lang as lang
    from tilevm.config import config as config
    from tilevm.frontends.kernel import kernel as kernel
    from tilevm.frontends.torch_eager import fuse as fuse
    from tilevm.frontends.torch_graph import compile as compile
    from tilevm.ir.types import Dim as Dim
    from tilevm.stats import stats as stats
    from tilevm.tools.explain import explain as explain
    from tilevm.tools.trace import trace as trace

__version__ = "0.1.0"  # the only place; CONTRIBUTING.md says what it promises

# Where each public name lives; "": a module of this package.
_HOMES = {
    "Dim": "ir.types",
    "bytecode": "",
    "compile": "frontends.torch_graph",
    "config": "",
    "errors": "",
    "explain": "tools.explain",
    "fuse": "frontends.torch_eager",
    "kernel": "frontends.kernel",
    "lang": "",
    "stats": "",
    "trace": "tools.trace",
}

__all__ = [
    "Dim",
    "__version__",
    "bytecode",
    "compile",
    "config",
    "errors",
    "explain",
    "fuse",
    "kernel",
    "lang",
    "stats",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilevm' has no attribute {name!r}")
    home = _HOMES[name]
    try:
        value: Any = import_module(f"tilevm.{home or name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = (
            f"tilevm.{name} needs PyTorch, which is not installed: pip install 'tilevm[torch]'"
        )
        raise ModuleNotFoundError(message, name="torch") from None
    if home:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
