"""Whose memory weights are that were packed ahead: what was packed goes when they go.

Tensors over one storage have one owner. The core is told to forget it when the first tensor that it
was known by goes, or when the storage does; another tensor makes it a new owner.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from tilevm.runtime import program as runtime


@dataclass(frozen=True)
class _Owner:
    number: int
    tensor: weakref.ref[Any]


# By the address of the storage's C++ object, which a weak reference keeps from being another's.
_owners: dict[int, _Owner] = {}


def owner(tensor: torch.Tensor) -> int:
    """The number that stands for the tensor's memory."""
    storage = tensor.untyped_storage()
    address: int = storage._cdata
    known = _owners.get(address)
    if known is not None:
        return known.number
    for other in list(_owners):
        if torch.UntypedStorage._expired(other):
            _release(other)
    number = runtime.new_owner()
    storage._weak_ref()
    gone = functools.partial(_release, address, number)
    _owners[address] = _Owner(number, weakref.ref(tensor, lambda _: gone()))
    return number


def _release(address: int, number: int = 0) -> None:
    """Forget the owner at that address, if it is still this one."""
    known = _owners.get(address)
    if known is None or (number and known.number != number):
        return
    del _owners[address]
    runtime.forget(known.number)
    torch.UntypedStorage._free_weak_ref(address)  # type: ignore[no-untyped-call]
