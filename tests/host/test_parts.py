"""Kernels that are cut into parts: whichever thread takes which, bits are those of one thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilevm
from tilevm import lang

SIZES = [(7, 100_003), (64, 4096), (129, 1031), (1000, 521), (100_003, 7)]


def rows(x: Any, y: Any) -> Any:
    return lang.softmax(x * 2.0 + y, -1), lang.sum(x, -1)


def columns(x: Any, y: Any) -> Any:
    return lang.mean(x * y, 0), lang.max(x, 0)


def elements(x: Any, y: Any) -> Any:
    return lang.exp(-x * x) + y, lang.where(x > y, x, y)


@pytest.mark.parametrize("function", [rows, columns, elements])
def test_parts_make_the_same_bits(function: Any) -> None:
    kernel = tilevm.kernel(function)
    for sizes in SIZES:
        x, y = torch.randn(sizes), torch.randn(sizes)
        with tilevm.config.patch(threads=1):
            expected = [result.view(torch.int32) for result in kernel(x, y)]
        for threads in (2, 3, 5, 64, 65):  # of more than 64, parts are not shared
            with tilevm.config.patch(threads=threads):
                found = [result.view(torch.int32) for result in kernel(x, y)]
            assert all(map(torch.equal, found, expected)), (sizes, threads)


def outer(x: Any) -> Any:
    return x + lang.sum(x, -1, keepdims=True)


def test_parts_of_an_outer_axis() -> None:
    kernel = tilevm.kernel(outer)
    x = torch.randn(37, 130, 65).transpose(0, 1)
    with tilevm.config.patch(threads=1):
        expected = kernel(x)
    for threads in (2, 3, 7):
        with tilevm.config.patch(threads=threads):
            assert torch.equal(kernel(x), expected), threads
