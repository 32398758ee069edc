"""What `@tilevm.kernel` needs to know of torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilevm.errors import DeviceError, TilevmError, describe
from tilevm.ir.types import numpy_dtype
from tilevm.runtime import measured

measured.load_once(torch.__version__)

name = "torch"


def dtype(x: torch.Tensor) -> str:
    """Name of the element type."""
    return str(x.dtype).removeprefix("torch.")


def check(x: torch.Tensor, label: str, line: str) -> None:
    """Raise DeviceError or TilevmError, if a kernel cannot take `x`."""
    if x.device.type != "cpu":
        remedy = f"Kernels run on the CPU: pass {label}.cpu()."
        raise DeviceError(describe(f"{label} is on {x.device}", line=line, remedy=remedy))
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        raise DeviceError(
            describe(
                f"{label} is no plain strided tensor",
                line=line,
                remedy=f"Use {label}.to_dense() or {label}.resolve_conj().resolve_neg().",
            )
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise TilevmError(
            describe(
                f"{label} requires gradients, and kernels have none",
                line=line,
                remedy=f"Call the kernel under torch.no_grad(), or pass {label}.detach().",
            )
        )


def to_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same elements as a NumPy array."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return x.numpy()


def from_numpy(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor of the same elements."""
    x = np.array(x, order="C")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)
