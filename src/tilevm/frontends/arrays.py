"""Whose arrays a kernel is called with: NumPy's or torch's, which need not be installed."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from tilevm.errors import DeviceError, DTypeError, describe


class Arrays(Protocol):
    """What is known of a framework's arrays."""

    name: str

    def dtype(self, x: Any) -> str:
        """Name of the element type."""

    def check(self, x: Any, label: str, line: str) -> None:
        """Raise DeviceError, DTypeError or TilevmError, if a kernel cannot take `x`."""

    def to_numpy(self, x: Any) -> Any:
        """The same elements as a NumPy array."""

    def from_numpy(self, x: Any) -> Any:
        """An array of this framework."""


class NumpyArrays:
    """`Arrays` of NumPy."""

    name = "numpy"

    def dtype(self, x: Any) -> str:
        """Name of the element type."""
        return str(x.dtype.name)

    def check(self, x: Any, label: str, line: str) -> None:
        """Raise DTypeError or DeviceError: subclasses, bytes in another order, odd addresses."""
        if type(x) not in (np.ndarray, np.memmap):
            kind = f"{type(x).__module__}.{type(x).__qualname__}"
            what = f"{label} is a {kind}, which means more than its elements"
            remedy = f"Pass these alone: numpy.asarray({label})."
            raise DTypeError(describe(what, line=line, remedy=remedy))
        if not x.dtype.isnative:
            remedy = f"Use {label}.astype({label}.dtype.newbyteorder('='))."
            what = f"{label} has bytes in the other order ({x.dtype.str})"
            raise DTypeError(describe(what, line=line, remedy=remedy))
        if not x.flags.aligned:
            remedy = f"Pass a copy: {label}.copy()."
            raise DeviceError(describe(f"{label} is not aligned", line=line, remedy=remedy))

    def to_numpy(self, x: Any) -> Any:
        """The same array."""
        return x

    def from_numpy(self, x: Any) -> Any:
        """The same array."""
        return x


NUMPY: Arrays = NumpyArrays()


def framework_of(x: Any) -> Arrays | None:
    """Whose array `x` is; None: it is no array."""
    if isinstance(x, np.ndarray):
        return NUMPY
    torch = sys.modules.get("torch")  # a tensor exists only once it has been imported
    if torch is not None and isinstance(x, torch.Tensor):
        from tilevm.frontends import torch_arrays

        return torch_arrays
    return None
