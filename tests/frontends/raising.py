"""Functions with branches on data that end in an error. No test module: in these, pytest has other
code for assertions.
"""

from __future__ import annotations

from typing import Any

import torch

LIMIT = 3.0


def if_any(x: Any) -> Any:
    if (x > LIMIT).any():
        raise ValueError("large")
    return x * 2


def asserted(x: Any) -> Any:
    assert (x < LIMIT).all(), f"large: {x.max()}"
    return x * 2


def of_an_item(x: Any) -> Any:
    if torch.isnan(x).any().item() or (x > LIMIT).any().item():
        raise RuntimeError("bad")
    return x * 2


def of_bool(x: Any) -> Any:
    if bool((x > LIMIT).any()):
        raise RuntimeError("large")
    return x * 2


def of_a_float(x: Any) -> Any:
    most = x.abs().max().item()
    if most > LIMIT:
        raise RuntimeError("large")
    return x * 2


def converted(x: Any) -> Any:
    if float(x.max()) > LIMIT or int((x > LIMIT).sum()) > 0:
        raise RuntimeError("large")
    return x * 2


def of_an_int(x: Any) -> Any:
    count = (x > LIMIT).sum().item()
    if count > 0:
        raise RuntimeError(f"{count} are large")
    return x * 2


def of_a_length(x: Any) -> Any:
    if len(x[x > LIMIT]):
        raise ValueError("some are large")
    return x * 2


def of_a_sum(x: Any) -> Any:
    if (x > LIMIT).sum():
        raise ValueError("large")
    return x * 2


def after_sizes(x: Any) -> Any:
    if x.numel() and x.max() > LIMIT:
        raise ValueError("large")
    return x * 2


def either(x: Any) -> Any:
    if (x > LIMIT).any() or torch.isnan(x).any():
        raise RuntimeError("bad")
    return x * 2


def in_a_loop(x: Any) -> Any:
    for rows in (x, x * 0.5):
        if (rows > LIMIT).any():
            raise RuntimeError("large")
    return x * 2


def in_generators(x: Any) -> Any:
    assert all((rows < LIMIT).all() for rows in (x, x * 0.5))
    if any((rows > LIMIT).any() for rows in (x, x * 0.5)):
        raise RuntimeError("large")
    return x * 2


def caught(x: Any) -> Any:
    try:
        if (x > LIMIT).any():
            raise ValueError("large")
    except ValueError:
        return x * 0
    return x * 2


def with_a_long_message(x: Any) -> Any:
    if (x > LIMIT).any():
        rows = [float(row.max()) for row in x if row.max() > LIMIT]
        raise ValueError(f"large: {rows if len(rows) < 3 else len(rows)}")
    else:
        y = x + 1
    return y * 2


def after_a_branch(x: Any) -> Any:
    if x[0, 0] < LIMIT:
        return x * 2
    raise ValueError("large")


def of_a_variable(x: Any) -> Any:
    fits = (x < LIMIT).all()
    if not fits:
        raise ValueError("large")
    return torch.where(fits, x, 0)


def named(x: Any) -> Any:
    if (most := x.max()) > LIMIT:
        raise ValueError(most)
    return x - most


def after_a_write(x: Any) -> Any:
    x.add_(1)
    if (x > LIMIT + 1).any():
        raise ValueError("large")
    return x.mul_(2)


def after_a_draw(x: Any) -> Any:
    y = x * torch.rand(3).sum()
    if (x > LIMIT).any():
        raise ValueError("large")
    return y


def asynchronous(x: Any) -> Any:
    torch._assert_async((x < LIMIT).all(), "large")
    return x * 2


def of_pytorch(x: Any) -> Any:
    torch._assert((x < LIMIT).all(), "large")  # type: ignore[no-untyped-call]
    return x * 2


def close(x: Any) -> Any:
    if not torch.allclose(x, x.clamp(max=LIMIT)) or not torch.equal(x, x.clamp(max=LIMIT)):
        raise ValueError("large")
    return x * 2


FUNCTIONS = [
    if_any, asserted, of_an_item, of_bool, of_a_float, converted, of_an_int, of_a_length,
    of_a_sum, after_sizes, either, in_a_loop, in_generators, caught, with_a_long_message,
    after_a_branch, of_a_variable, named, after_a_write, after_a_draw, asynchronous,
    of_pytorch, close,
]  # fmt: skip


def identity(x: Any) -> Any:
    if (x > LIMIT).any().item() is True:
        raise ValueError("large")
    return x * 2


def identity_of_a_comparison(x: Any) -> Any:
    most = x.max().item()
    if (most > LIMIT) is not False:
        raise ValueError("large")
    return x * 2


def unequal_to_itself(x: Any) -> Any:
    most = x.max().item()
    if most != most or not float(x.sum()) == float(x.sum()):  # noqa: PLR0124
        raise ValueError("NaN")
    return x * 2


def no_difference(x: Any) -> Any:
    total = x.sum().item()
    if total - total != 0 or total * 0 != 0:
        raise ValueError("not finite")
    return x * 2


def above_a_double(x: Any) -> Any:
    if x.max().item() > 0.1:  # as the float32 next to 0.1 is
        raise ValueError("large")
    return x * 2


def near(x: Any) -> Any:
    if x.max().item() + 1e-9 > LIMIT:
        raise ValueError("large")
    return x * 2


def reciprocal(x: Any) -> Any:
    if 1 / x.max().item() < 0.3:
        raise ValueError("large")
    return x * 2


def doubled(x: Any) -> Any:
    if x.nan_to_num(0).mul(2.0**62).long().max().item() * 2 > 2**63 - 1:
        raise ValueError("large")
    return x * 2


def longer(x: Any) -> Any:
    if x.nan_to_num(0).mul(1e19).long().max().item() >= x.shape[0] * 10**18:
        raise ValueError("large")
    return x * 2


# Of these, some run without a capture.
SUBTLE = [
    identity, identity_of_a_comparison, unequal_to_itself, no_difference, above_a_double,
    near, reciprocal, doubled, longer,
]  # fmt: skip
