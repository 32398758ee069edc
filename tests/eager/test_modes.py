"""The block together with PyTorch's modes, transforms, compilers, and tensors of other kinds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, grid, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]


def chain(x: Any) -> Any:
    return torch.relu(x * 2 + 1).softmax(-1) - x


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class Tagged(Tensor):
    """A subclass that stays one."""


class Logged(Tensor):
    """A subclass with operators of its own."""

    inner: Any

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [a.inner if isinstance(a, Logged) else a for a in args]
        return Logged(func(*plain, **(kwargs or {})))


@pytest.mark.parametrize("enabled", [True, False])
def test_grad_modes(enabled: bool) -> None:
    def function(x: Any) -> Any:
        with torch.set_grad_enabled(enabled):
            y = x * 2
        with torch.no_grad():
            z = y + x
            with torch.enable_grad():
                v = z * x
        return y, z, v

    agree(function, grid().requires_grad_())


def test_no_grad_waits() -> None:
    with torch.no_grad(), tilevm.fuse():
        x = grid().requires_grad_() * 2
        compare.recorded(x)
        assert not x.requires_grad
        assert x.grad_fn is None


def test_inference_mode() -> None:
    with torch.inference_mode():
        expected = chain(grid())
        with tilevm.fuse():
            x = chain(grid())
            compare.recorded(x)
            assert x.is_inference()
    with tilevm.fuse(), torch.inference_mode():
        y = chain(grid())
    assert y.is_inference()
    for found in (x, y):
        same(found, expected, exact=False)
    with tilevm.fuse():
        with pytest.raises(RuntimeError, match="version counter"):
            y._version  # noqa: B018
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            y.add_(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    def function(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype):
            y = F.linear(x, w)
            z = torch.softmax(y @ w, -1)
            v = (y + x).sum()
        return y, z, v

    agree(function, grid() / 8, grid(4, 4) / 8, exact=False)
    x, w = grid() / 8, grid(4, 4) / 8
    with torch.autocast("cpu", dtype), tilevm.fuse():
        y = F.linear(x, w)
    assert y.dtype is dtype


def test_autocast_training() -> None:
    def function(w: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.linear(torch.relu(F.linear(x, w)), w).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    agree(function, (grid(4, 4) / 8).requires_grad_(), grid() / 8, exact=False)


TRANSFORMS: dict[str, Function] = {
    "vmap": lambda x: vmap(chain)(x),
    "vmap of two": lambda x: vmap(torch.mul, in_dims=(0, None))(x, x[0]),
    "vmap of a product": lambda x: vmap(lambda r: r @ x.t())(x),
    "vmap, random": lambda x: vmap(lambda r: r + torch.rand(4), randomness="different")(x),
    "grad": lambda x: grad(lambda v: chain(v).square().sum())(x),
    "grad of grad": lambda x: grad(lambda v: grad(lambda u: (u**3).sum())(v).sum())(x),
    "jvp": lambda x: jvp(chain, (x,), (x * 2,)),
    "jacrev": lambda x: jacrev(torch.tanh)(x[0]),
    "hessian": lambda x: hessian(lambda v: (v**3).sum())(x[0]),
    "vmap of grad": lambda x: vmap(grad(lambda r: chain(r).square().sum()))(x),
    "functional_call": lambda x: functional_call(
        nn.Linear(4, 2), {"weight": x[:2], "bias": x[0, :2]}, (x,)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    """Of what is given, of what is pending, and with a block inside."""
    agree(lambda x: TRANSFORMS[name](x), grid() / 4, exact=False)
    agree(lambda x: TRANSFORMS[name](x * 2 + 1), grid() / 4, exact=False)


def test_a_block_inside_a_transform() -> None:
    def inside(x: Any) -> Any:
        with tilevm.fuse():
            return chain(x)

    same(vmap(inside)(grid()), vmap(chain)(grid()), exact=False)
    total = grad(lambda x: inside(x).square().sum())(grid() / 4)
    same(total, grad(lambda x: chain(x).square().sum())(grid() / 4), exact=False)


def test_forward_mode() -> None:
    def function(x: Any) -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x * 1, x * 3)
            return tuple(torch.autograd.forward_ad.unpack_dual(chain(dual)))

    agree(function, grid() / 4, exact=False)


def test_dispatch_modes_see_operators() -> None:
    with Counted() as outside:
        expected = chain(grid())
    with tilevm.fuse(), Counted() as inside:
        found = chain(grid())
    with Counted() as around, tilevm.fuse():
        late = chain(grid())
        late.tolist()
    assert inside.names == outside.names
    assert around.names[: len(outside.names)] == outside.names
    same(found, expected, exact=False)
    same(late, expected, exact=False)


def test_dispatch_mode_on_what_is_pending() -> None:
    with tilevm.fuse():
        x = grid() + 1
        with Counted() as mode:
            y = x * 2
            assert y.tolist() == ((grid() + 1) * 2).tolist()
    assert mode.names[0] == "aten.mul.Tensor"


def test_function_modes_see_functions() -> None:
    with tilevm.fuse(), Functions() as mode:
        found = chain(grid())
    assert mode.count >= 5
    same(found, chain(grid()), exact=False)


def test_subclasses_stay() -> None:
    x = grid().as_subclass(Tagged)
    with tilevm.fuse():
        y = x * 2 + 1
        assert type(y) is Tagged
        z = nn.Parameter(grid() + 1)
        assert type(z) is nn.Parameter
        assert isinstance(z * 2, torch.Tensor)
        assert z.is_leaf
        wrapped = Logged(grid() + 1) * 2 + 1
        assert type(wrapped) is Logged
    assert y.as_subclass(torch.Tensor).tolist() == (grid() * 2 + 1).tolist()
    assert z.tolist() == (grid() + 1).tolist()
    assert wrapped.inner.tolist() == ((grid() + 1) * 2 + 1).tolist()


def test_fake_tensors() -> None:
    with tilevm.fuse(), FakeTensorMode() as mode:
        x = torch.rand(3, 4) * 2
        assert isinstance(x, FakeTensor)
        assert isinstance(chain(x), FakeTensor)
        assert chain(x).shape == (3, 4)
    with tilevm.fuse():
        y = mode.from_tensor(grid() + 1)
        assert isinstance(y * 2, FakeTensor)
    with FakeTensorMode(), tilevm.fuse():
        assert isinstance(chain(torch.ones(2, 2)), FakeTensor)


def test_meta_tensors() -> None:
    with tilevm.fuse():
        x = torch.ones(3, 4, device="meta")
        y = chain(x) @ x.t()
        assert y.device.type == "meta"
        assert y.shape == (3, 3)
        assert (grid() + 1).to("meta").device.type == "meta"
        with torch.device("meta"):
            assert (torch.ones(2) * 2).is_meta


def _of_script(x: Tensor) -> Tensor:
    y = x * 2
    if bool(y.sum() > 0):
        y = y.relu()
    return y + 1


_scripted: Any = torch.jit.script(_of_script)


OTHERS: dict[str, Function] = {
    "sparse": lambda x: (x * (x > 0)).to_sparse().mul(2).to_dense(),
    "sparse product": lambda x: torch.sparse.mm((x * 1).to_sparse(), x.t() * 1),
    "csr": lambda x: (x * 1).to_sparse_csr().matmul(x[0] * 1),
    "complex": lambda x: torch.complex(x * 1, x * 2).exp().abs(),
    "complex, viewed": lambda x: torch.view_as_complex((x * 1).view(3, 2, 2)) * 2,
    "conjugate": lambda x: (torch.complex(x * 1, x * 2).conj() * 2).imag,
    "negative bit": lambda x: torch.complex(x * 1, x * 2).conj().imag + 1,
    "fft": lambda x: torch.fft.rfft(x * 1).abs(),
    "quantised": lambda x: torch.quantize_per_tensor(x * 1, 0.5, 0, torch.qint8).dequantize() + 1,
    "nested": lambda x: (
        torch.nested.nested_tensor([x[0] * 1, x[1, :2] * 1]).mul(2).to_padded_tensor(0.0)
    ),
    "nested, jagged": lambda x: (
        torch.nested.as_nested_tensor([x[0] * 1, x[1, :2] * 1], layout=torch.jagged).mul(2).values()
    ),
    "mkldnn": lambda x: (x * 1).to_mkldnn().relu().to_dense() + 1,
    "strings of bytes": lambda x: torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8) + 1,
    "float8": lambda x: (x * 1).to(torch.float8_e4m3fn).float() + 1,
    "uint16": lambda x: (x.abs() * 1).to(torch.uint16).to(torch.int32) + 1,
    "from NumPy": lambda x: torch.from_numpy((x * 1).numpy().copy()) + 1,
    "linalg": lambda x: torch.linalg.svdvals(x * 1).sum() + 1,
    "convolution": lambda x: F.conv1d(x[None] * 1, x.view(2, 3, 2) * 1) + 1,
    "pooling": lambda x: F.max_pool1d(x * 1, 2) + 1,
    "lstm": lambda x: nn.LSTMCell(4, 2)(x * 1)[0] + 1,
    "script": lambda x: _scripted(x * 1) + 1,
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors(name: str) -> None:
    """They are left to PyTorch; what leads to them and away from them is right."""
    torch.manual_seed(0)
    expected = OTHERS[name](grid())
    torch.manual_seed(0)
    with tilevm.fuse():
        found = OTHERS[name](grid())
    torch.testing.assert_close(found, expected)


def test_the_profiler() -> None:
    with tilevm.fuse(), torch.profiler.profile() as profile:
        found = chain(grid()).tolist()
    assert len(profile.events()) > 0
    same(found, chain(grid()).tolist())


def test_deterministic_algorithms() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        agree(lambda x: chain(x).index_add_(0, torch.tensor([0, 0]), x[:2]), grid(), exact=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        agree(lambda x: (x / 2, x * 0.5, torch.ones(2) * x.sum()), torch.arange(4))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("set_default", ["dtype(torch.float64)", "device('meta')"])
def test_defaults_at_the_first_use(set_default: str) -> None:
    code = (
        f"import torch, tilevm; torch.set_default_{set_default}\n"
        "with tilevm.fuse(): print((torch.ones(4, device='cpu') + 1).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[2.0, 2.0, 2.0, 2.0]"


def test_random_streams() -> None:
    """Draws happen in their order, however late their use is."""

    def function(x: Any) -> Any:
        a = torch.rand(3) * 2
        b = F.dropout(x * 1, 0.5)
        c = torch.randn_like(x) + a.sum()
        d = torch.bernoulli(torch.full((5,), 0.5)) + torch.randint(0, 9, (5,))
        e = torch.randperm(7) + 1
        f = (x * 1).uniform_() + torch.multinomial(torch.ones(5), 2).sum()
        generator = torch.Generator().manual_seed(3)
        return e, d, c, b, a, f, torch.rand(2, generator=generator) * 2

    agree(function, grid())
