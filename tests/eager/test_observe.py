"""Every way to look at a tensor that is not filled yet shows eager's values."""

from __future__ import annotations

import copy
import ctypes
import io
import math
import operator
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.eager import compare  # noqa: E402
from tests.eager.compare import grid, same  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_addresses_asked_for_again_and_again_keep_nothing() -> None:
    kept = grid()

    def ask(times: int) -> None:
        with tilevm.fuse():
            for _ in range(times):
                (grid() + 1).data_ptr()
                kept.add_(1).numpy()

    ask(1000)
    before = resident_bytes()
    ask(50_000)
    if os.environ.get("TILEVM_SANITIZED") != "address":  # which keeps for a while what is freed
        assert resident_bytes() - before < 8e6  # of 50,000 results' memory


def saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


def at_address(x: Any) -> list[float]:
    pointer = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return [pointer[i] for i in range(x.untyped_storage().nbytes() // 4 - x.storage_offset())]


def in_c(x: Any) -> bytes:
    out = np.empty(x.numel(), np.float32)
    np.copyto(out, np.asarray(x).reshape(-1))
    return out.tobytes()


def written_to_file(x: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, x.numpy())
    return file.getvalue()


LOOKS: dict[str, Function] = {
    "numpy": lambda x: x.numpy().tolist(),
    "numpy, forced": lambda x: x.numpy(force=True).tolist(),
    "asarray": lambda x: np.asarray(x).tolist(),
    "array": lambda x: np.array(x).tolist(),
    "asarray, dtype": lambda x: np.asarray(x, dtype=np.float64).tolist(),
    "__array__": lambda x: x.__array__().tolist(),
    "numpy function": lambda x: np.add(x, 1).tolist(),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.reshape(-1)[0].item(),
    "float": lambda x: float(x.reshape(-1)[0]),
    "int": lambda x: int(x.reshape(-1)[0]),
    "complex": lambda x: complex(x.reshape(-1)[0]),
    "bool": lambda x: bool(x.reshape(-1)[0]),
    "index": lambda x: operator.index(x.reshape(-1)[0].long()),
    "range": lambda x: list(range(x.reshape(-1)[3].abs().int())),
    "math": lambda x: math.floor(x.reshape(-1)[0]),
    "round": lambda x: round(float(x.reshape(-1)[0]), 1),
    "format": lambda x: f"{x.reshape(-1)[0]:.3f}",
    "repr": repr,
    "str": str,
    "print": lambda x: print(x, file=io.StringIO()) or repr(x),
    "iteration": lambda x: [row.tolist() for row in x],
    "unpacking": lambda x: [row.tolist() for row in (*x, *x)],
    "indexing": lambda x: x[0].tolist(),
    "in": lambda x: (3.0 in x, 99.0 in x),
    "contains a tensor": lambda x: x[0] in x,
    "len": lambda x: [len(x), x.tolist()],
    "zip": lambda x: [(a.tolist(), b.tolist()) for a, b in zip(x, x, strict=True)],
    "max of Python": lambda x: max(x.reshape(-1)).item(),
    "sum of Python": lambda x: sum(x, x[0]).tolist(),
    "sorted": lambda x: [v.item() for v in sorted(x.reshape(-1))],
    "if": lambda x: "greater" if x.sum() > 1 else "less",
    "while": lambda x: next(i for i in range(99) if (x + i > 0).all()),
    "assert": lambda x: operator.truth((x < 1e9).all()),
    "equal": lambda x: (torch.equal(x, x + 0), torch.equal(x, x + 1)),
    "allclose": lambda x: (torch.allclose(x, x + 0), torch.allclose(x, x + 1)),
    "assert_close": lambda x: torch.testing.assert_close(x, x * 1) or x.tolist(),
    "dlpack": lambda x: torch.from_dlpack(x).tolist(),
    "dlpack to NumPy": lambda x: np.from_dlpack(x).tolist(),
    "dlpack capsule": lambda x: torch.utils.dlpack.from_dlpack(
        torch.utils.dlpack.to_dlpack(x)
    ).tolist(),
    "address": at_address,
    "address of a storage": lambda x: ctypes.string_at(
        x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
    ),
    "storage": lambda x: list(x.untyped_storage()),
    "storage, typed": lambda x: x.untyped_storage().tolist(),
    "storage, copied": lambda x: x.untyped_storage().clone().tolist(),
    "bytes": in_c,
    "numpy file": written_to_file,
    "save": lambda x: saved(x).tolist(),
    "save, nested": lambda x: saved({"a": [x, x]})["a"][1].tolist(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "copy": lambda x: copy.copy(x).tolist(),
    "deepcopy": lambda x: copy.deepcopy(x).tolist(),
    "share_memory_": lambda x: x.share_memory_().tolist(),
    "is_shared": lambda x: [x.is_shared(), x.tolist()],
    "from an array of it": lambda x: torch.from_numpy(x.numpy()).tolist(),
    "tensor of it": lambda x: torch.tensor(x.tolist()).tolist(),
    "as_tensor": lambda x: torch.as_tensor(x).tolist(),
    "tensor of rows": lambda x: torch.tensor([row.sum() for row in x]).tolist(),
    "collate": lambda x: default_collate([{"x": x}, {"x": x}])["x"].tolist(),
    "apply_": lambda x: x.clone().apply_(lambda v: v + 1).tolist(),
    "map_": lambda x: x.clone().map_(x, lambda a, b: a + b).tolist(),
    "sort": lambda x: x.sort(-1).values.tolist(),
    "topk": lambda x: x.topk(2, 0).indices.tolist(),
    "unique": lambda x: x.unique().tolist(),
    "nonzero": lambda x: x.nonzero().tolist(),
    "masks": lambda x: x[x > 0].tolist(),
    "histogram": lambda x: torch.histc(x, 4).tolist(),
    "inverse": lambda x: torch.linalg.pinv(x).shape,
    "cumsum": lambda x: x.cumsum(0).tolist(),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0).tolist(),
    "einsum": lambda x: torch.einsum("ij,ik->jk", x, x).tolist(),
    "split by sizes": lambda x: [p.tolist() for p in x.split([1, x.shape[0] - 1])],
    "to a list of numbers": lambda x: [float(v) for v in x.flatten()],
    "hash": lambda x: [hash(x) == id(x), x.tolist()],
}
# What is looked at: something pending, or a view of it.
SUBJECTS: dict[str, Function] = {
    "itself": lambda x: x,
    "a transposed view": lambda x: x.t(),
    "a part": lambda x: x[1:, 1:3],
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
}


def computed() -> Any:
    return torch.maximum(grid() * 2 + 1, -grid())


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_looks(subject: str, look: str) -> None:
    expected = LOOKS[look](SUBJECTS[subject](computed()))
    with tilevm.fuse():
        x = SUBJECTS[subject](computed())
        compare.recorded(x)
        found = LOOKS[look](x)
        again = LOOKS[look](x)
    same((found, again), (expected, expected))
    with tilevm.fuse():
        late = SUBJECTS[subject](computed())
        compare.recorded(late)
    compare.filled(late)
    same(LOOKS[look](late), expected)


DTYPES = "float64 float32 bfloat16 float16 int64 int32 int16 int8 uint8 bool".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("look", ["tolist", "repr", "save", "storage", "numpy", "in", "item"])
def test_looks_at_any_dtype(look: str, dtype: str) -> None:
    if (look, dtype) == ("numpy", "bfloat16"):
        pytest.skip("NumPy has no bfloat16")

    def function(x: Any) -> Any:
        return torch.where(x > 0, x, x * x)

    x = grid(dtype=torch.int64).clamp(-3).to(getattr(torch, dtype))
    expected = LOOKS[look](function(x))
    with tilevm.fuse():
        y = function(x)
        compare.recorded(y)
        same(LOOKS[look](y), expected)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (1, 1, 1), (2, 3, 4, 5)])
def test_looks_at_any_rank(shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    with tilevm.fuse():
        y = x * 2 + 1
        assert (y.shape, y.dim(), y.numel()) == (x.shape, x.dim(), x.numel())
        assert (y.stride(), y.is_contiguous()) == (x.stride(), x.is_contiguous())
        assert y.dtype is x.dtype
        assert y.device == x.device
        found = (y.tolist(), repr(y), y.numpy().shape, len(y.untyped_storage()))
    z = x * 2 + 1
    assert found == (z.tolist(), repr(z), z.numpy().shape, len(z.untyped_storage()))


def test_metadata_is_no_reason_to_look() -> None:
    with tilevm.fuse():
        x = grid() + 1
        y = x.t()
        assert (y.shape, y.stride(), y.storage_offset()) == ((4, 3), (1, 4), 0)
        assert not y.is_contiguous()
        assert (y.size(0), y.ndim, y.numel(), len(y)) == (4, 2, 12, 4)
        assert (y.dtype, y.layout, y.device.type) == (torch.float32, torch.strided, "cpu")
        assert (y.element_size(), y.nbytes, y.itemsize) == (4, 48, 4)
        assert y.is_floating_point()
        assert not y.requires_grad
        assert y.is_leaf
        assert y.grad is None
        assert isinstance(y, torch.Tensor)
        assert type(y) is torch.Tensor
        assert y._base is not None
        assert x._is_view() is False
        assert (x._version, y._version) == (0, 0)
        compare.recorded(x, y)


def test_after_the_block() -> None:
    """What waits is computed when the block ends."""
    with tilevm.fuse():
        x = computed()
        y = x.sum(0)
        z = x.t()
        compare.recorded(x, y, z)
    compare.filled(x, y, z)
    same((y + 1, z * 2, x), (computed().sum(0) + 1, computed().t() * 2, computed()))


def test_writes_behind_the_block() -> None:
    """Nothing that happens to inputs after the block changes its results."""
    x = grid()
    array = x.numpy()
    with tilevm.fuse():
        y = x * 2
        z = y.t() + 1
        compare.recorded(y, z)
    array[:] = 7
    x.add_(100)
    same((y, z), (grid() * 2, (grid() * 2).t() + 1))


def test_writes_through_an_address_asked_for_after_that_of_nothing() -> None:
    """An empty tensor at the same address has been looked at before."""
    x = grid()
    nothing = torch.from_numpy(x.numpy().reshape(-1)[:0])
    with tilevm.fuse():
        assert nothing.data_ptr() in (0, x.data_ptr())
        array = x.numpy()
        y = x * 2
        array[:] = 7
        same(y, grid() * 2)


def test_after_an_exception_in_the_block() -> None:
    kept = []
    with pytest.raises(KeyError), tilevm.fuse():
        kept.append(computed())
        kept.append(kept[0].softmax(-1))
        raise KeyError
    same(kept, [computed(), computed().softmax(-1)], exact=False)


def test_what_is_looked_at_fills_what_shares_its_memory() -> None:
    with tilevm.fuse():
        x = grid() * 3
        y, z = x.t(), x[0]
        part = z.numpy()
        compare.filled(x, y, z)
    assert part.base is not None or not part.flags.owndata
    part[:] = 5  # is memory of x
    assert x[0].tolist() == [5.0] * 4
    assert y[:, 0].tolist() == [5.0] * 4


def test_looking_at_one_leaves_others_right() -> None:
    """What was recorded after what is looked at, before it, and beside it."""
    with tilevm.fuse():
        a = grid() + 1
        b = a * 2
        c = b - a
        d = grid().exp()
        assert b.tolist() == ((grid() + 1) * 2).tolist()
        e = c + b
    a2 = grid() + 1
    b2 = a2 * 2
    same((a, b, c, d, e), (a2, b2, b2 - a2, grid().exp(), b2 - a2 + b2), exact=False)


def test_saved_for_backward() -> None:
    def function(x: Any) -> Any:
        y = (x * 2).sigmoid()
        loss = (y * y).sum()
        saved = loss.grad_fn.next_functions[0][0]._saved_self
        return saved, torch.autograd.grad(loss, x)[0]

    compare.agree(function, grid().requires_grad_(), exact=False)


def test_gradients_are_looked_at() -> None:
    x = grid().requires_grad_()
    with tilevm.fuse():
        (x * x).sum().backward()
        found = x.grad.tolist()
    assert found == (grid() * 2).tolist()


def test_to_a_file(tmp_path: Path) -> None:
    with tilevm.fuse():
        x = computed()
        torch.save({"x": x, "view": x.t()}, tmp_path / "x.pt")
        y = computed()
        y.numpy().tofile(tmp_path / "y.bin")
    found = torch.load(tmp_path / "x.pt")
    assert found["x"].tolist() == computed().tolist()
    assert found["view"].tolist() == computed().t().tolist()
    assert compare.sharing([found["x"], found["view"]])[0][1]
    same(torch.from_file(str(tmp_path / "y.bin"), size=12), computed().reshape(-1))


def test_numpy_writes_into_numpy() -> None:
    out = np.zeros((3, 4), np.float32)
    with tilevm.fuse():
        out[:] = grid() + 1
        np.copyto(out, grid() * 2, where=np.asarray(grid() > 0))
    expected = np.where(grid().numpy() > 0, (grid() * 2).numpy(), (grid() + 1).numpy())
    np.testing.assert_array_equal(out, expected)


def test_control_flow() -> None:
    def collatz(n: Any) -> Any:
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps, n

    compare.agree(collatz, torch.tensor(27))


def test_sizes_from_data() -> None:
    def function(x: Any) -> Any:
        n = int((x > 0).sum())
        y = torch.zeros(n, 2) + x.reshape(-1)[:n, None]
        return y * n, torch.arange(n) * 2

    compare.agree(function, grid())
