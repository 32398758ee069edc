"""Random programs, a short run; and each that was once wrong, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tests.eager.random_eager import check_seed, failure  # noqa: E402

import tilevm  # noqa: E402
from tilevm.runtime.program import set_poison  # noqa: E402


@pytest.fixture(params=[False, True], ids=["", "poisoned"])
def poison(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is read before it is written is NaN, or -1, and seen."""
    set_poison(request.param)
    yield
    set_poison(False)


@pytest.mark.parametrize("start", range(0, 300, 25))
def test_random_programs(start: int, poison: None) -> None:
    before = tilevm.stats()["launches"]
    for seed in range(start, start + 25):
        report = check_seed(seed)
        assert report is None, report
    assert tilevm.stats()["launches"] > before


# Programs that were wrong. {name: text}
REGRESSIONS: dict[str, str] = {
    "strides of nothing that is turned": """
x3 = make((13, 0, 1, 3), 'float64', 'dense', 2925)
with fuse():
    x5 = x3.rot90()
""",
    "memory that PyTorch frees by itself while it waits to be read": """
x0 = make((13, 2, 13, 1), 'float32', 'dense', 881)
x1 = F.leaky_relu(x0)
x2 = make((13, 2, 13, 1), 'float32', 'dense', 882)
with fuse():
    x3 = torch.cat([x1, x2])
    torch.matmul(x2, x2.mT, out=x1)
    x4 = x1 + 1
    torch.matmul(x2, x2.mT, out=x1)
""",
    "a result of another dtype than its operands'": """
x0 = make((4, 4), 'bool', 'dense', 2727)
x1 = make((4, 4), 'int64', 'dense', 2728)
with fuse():
    try:
        torch.mm(x0, x0, out=x1)
    except Exception as e:
        told(e)
    x2 = x1 + 1
""",
    "bounds that the dtype rounds": """
x0 = make((3, 17), 'bfloat16', 'turned', 121)
with fuse():
    x2 = x0.clamp(-0.999, 0.999) - x0
""",
    "strides along a size of 1": """
x0 = make((5, 1), 'float32', 'dense', 8810)
x1 = make((5, 2, 1, 1), 'float32', 'dense', 881)
with fuse():
    x2 = (x0 * 2).rot90()
    x3 = (x1 * 2).rot90()
""",
    "a result that PyTorch makes smaller by itself": """
x0 = make((5, 8, 13), 'float32', 'dense', 6739)
with fuse():
    x1 = x0 - 1
    torch.matmul(x0, x0.mT, out=x1)
    x2 = x1 * 2
    x3 = x1.view(-1)
""",
    "a number among integers": """
x0 = make((4,), 'int32', 'dense', 5731)
x2 = make((4,), 'uint8', 'dense', 5177)
with fuse():
    x8 = torch.addcmul(x0, x0, x2, value=0.5)
    x9 = torch.addcmul(x0, x0, x2, value=-1.75)
    x0.addcmul_(x2, x2, value=1.5)
""",
    "strides of nothing that is chosen": """
x0 = make((1, 1, 1, 31), 'float64', 'expanded', 5945)
with fuse():
    x8 = torch.log1p(x0).all(dim=-1, keepdim=True)
    x10 = x8[torch.tensor([0, 0]), 1:]
""",
    "an index behind a dim of size 1": """
x0 = make((8, 2), 'float32', 'turned', 4598).requires_grad_()
with fuse():
    x1 = x0[None, torch.tensor([2, 1])]
    x2 = x0.detach()[None, torch.tensor([[2], [1]])]
""",
    "elements that are read and written by others": """
x0 = make((7, 3), 'int64', 'turned', 4507)
x4, x5 = x0.split([1, 2], 1)
with fuse():
    x0[..., ::2].sub_(x4)
""",
    "norms whose squares are beyond float16": """
x0 = torch.tensor([[6e-8], [1e-3], [200.0], [3e4]]).half()
x1 = make((5, 7), 'float16', 'dense', 17) * 300
with fuse():
    x2 = x0.norm(dim=-1, keepdim=True)
    x3 = x0 / x2
    x4 = torch.linalg.vector_norm(x1, dim=(0, 1))
    x5 = x1.bfloat16().norm(dim=0) * 1e30
""",
    "size of a bool": """
x0 = make((17,), 'bfloat16', 'offset', 5213)
with fuse():
    x1 = torch.isfinite(x0)
    try:
        x2 = torch.abs(x1)
    except Exception as e:
        told(e)
    try:
        x1[..., ::1].abs_()
    except Exception as e:
        told(e)
""",
    "clamp of bytes below zero": """
x0 = make((4, 1, 2, 2), 'uint8', 'dense', 5932)
with fuse():
    x1 = torch.clamp(x0, -1, 0.5)
    x2 = torch.clamp(x0, 0.5, 200)
    try:
        x3 = torch.clamp(x0 > 2, 0, True)
        x4 = torch.clamp_min(x0 > 2, True)
    except Exception as e:
        told(e)
""",
    "bounds of several dtypes": """
x0 = make((5,), 'float16', 'dense', 1)
with fuse():
    x1 = torch.clamp(x0, torch.tensor(0.5), torch.arange(5))
    x2 = torch.clamp(x0, torch.arange(5), torch.tensor(0.5))
    x3 = torch.clamp_max(x0, torch.arange(5.0))
""",
    "integers divided by zero": """
x0 = make((7,), 'uint8', 'dense', 4470)
with fuse():
    for i in (x0, 0, torch.tensor(0)):
        try:
            x1 = torch.floor_divide(x0 - x0, i)
        except Exception as e:
            told(e)
        try:
            x2 = x0 % (i - i)
        except Exception as e:
            told(e)
""",
    "a tensor of an array of a tensor": """
x0 = make((4, 3), 'float32', 'dense', 4244)
with fuse():
    x1 = torch.as_tensor(x0.numpy()[1:])
    x2 = x1.clone() + 1
    x0[:, 0] = 2
    x3 = torch.as_tensor((x0 * 2).numpy())
    x4 = x3 + 1
    x3[0] = 7
""",
    "operands that overlap what is written": """
x0 = make((4, 4), 'float32', 'dense', 730)
with fuse():
    x1, x2 = x0 * 2, x0.view(2, 8)
    for x, y in ((x1, x1.t()), (x1[1:], x1[:-1]), (x0, x0.t()), (x2, x2.view(4, 4)), (x1[0], x1[1]),
                 (x1, x1), (x1, x1[0]), (x0.t(), x1), (x1[:, ::2], x1[:, 1:3])):
        for f in ("add_", "sub_", "mul_", "copy_", "addcmul_", "lerp_"):
            try:
                more = {"addcmul_": (y,), "lerp_": (0.75,)}.get(f, ())
                getattr(x, f)(y, *more)
            except Exception as e:
                told(e)
            x.mul_(0.25)
""",
    "lerp of bytes": """
x0 = make((3,), 'uint8', 'dense', 1)
with fuse():
    try:
        x1 = torch.lerp(x0, x0, 0.5)
    except Exception as e:
        told(e)
""",
    "powers of bools": """
x0 = make((3,), 'bool', 'dense', 1)
with fuse():
    x1, x2, x3 = torch.square(x0), x0 ** 3, (x0 & True) ** 2
""",
    "copies of what is empty": """
x0 = make((0, 8, 1), 'float32', 'stepped', 6748)
x1 = make((1, 0, 3, 0), 'float32', 'turned', 810)
with fuse():
    x2, x3 = x0.to(torch.bfloat16, copy=True), x1.clone()
    x4 = (x1 % 3).double()
""",
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_programs_that_were_wrong(name: str) -> None:
    assert failure(REGRESSIONS[name]) is None
