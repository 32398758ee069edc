"""Convolutions, and what surrounds them in other orders of dims, through the doors of PyTorch."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential.tiers import TIERS

import tilevm

pytestmark = pytest.mark.torch
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)


def agree(fn: Any, *args: Any, layout: bool = True) -> Any:
    """Values, dtype and layout as eager's; not further from float64 than rounding explains."""
    with torch.no_grad():
        expected, found = fn(*args), tilevm.compile(fn)(*args)
        exact = fn(*(x.double() for x in args))
    is_close(found, expected, exact, layout)
    return found


def is_close(found: Any, expected: Any, exact: Any, layout: bool = True) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert not layout or found.is_contiguous() == expected.is_contiguous()
    if expected.numel():
        size = max(exact.abs().max().item(), 1e-30)
        error, eagers = ((y.double() - exact).abs().max().item() for y in (found, expected))
        assert error <= 2 * eagers + 4 * torch.finfo(expected.dtype).eps * size


def cases() -> Any:
    rng = random.Random(3)
    for _ in range(40):
        axes = rng.choice([1, 2, 2, 2, 3])
        channels, results = rng.choice([1, 2, 3, 16, 33]), rng.choice([1, 3, 16, 31, 65])
        groups = rng.choice([1, 1, 1, channels, 1 if channels % 3 else 3])
        if groups == channels:
            results = groups * rng.choice([1, 1, 2])
        results += -results % groups
        sizes = [rng.choice([4, 5, 7, 13, 20]) for _ in range(axes)]
        taps = [rng.choice([1, 1, 2, 3, 5]) for _ in range(axes)]
        stride, dilation = ([rng.choice([1, 1, 2, 3]) for _ in range(axes)] for _ in range(2))
        padding: Any = [rng.choice([0, 0, 1, 2, 4]) for _ in range(axes)]
        reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
        if rng.random() < 0.15:
            padding, stride = "same", [1] * axes
        elif any(n + 2 * p <= r for n, p, r in zip(sizes, padding, reach, strict=True)):
            continue
        parameters = {"stride": stride, "padding": padding, "dilation": dilation}
        yield rng.choice([0, 1, 2, 3]), channels, results, sizes, taps, groups, parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parameters(dtype: Any) -> None:
    for n, channels, results, sizes, taps, groups, parameters in cases():
        convolution = CONVOLUTIONS[len(sizes) - 1]
        run = functools.partial(convolution, **parameters, groups=groups)
        torch.manual_seed(n)
        x = torch.randn(n, channels, *sizes).to(dtype)
        w = torch.randn(results, channels // groups, *taps).to(dtype)
        bias = torch.randn(results).to(dtype)
        if len(sizes) == 2 and channels % 2:
            w = w.to(memory_format=torch.channels_last)
        # PyTorch's metadata say of some such weights that the result has its channels last.
        agree(run, x[0] if n == 1 else x, w, bias, layout=w.is_contiguous())


@pytest.mark.parametrize("tier", TIERS)
def test_on_tiers(tier: str) -> None:
    torch.manual_seed(0)
    x, w, each = torch.randn(2, 7, 9, 11), torch.randn(37, 7, 3, 3), torch.randn(37, 1, 3, 3)

    def run(x: Any, w: Any, each: Any) -> Any:
        y = F.relu(F.conv2d(x, w, padding=1, stride=(2, 1)))
        return F.conv2d(y, each, padding=1, groups=37) + 1

    with tilevm.config.patch(tier=tier):
        agree(run, x, w, each)


def test_layouts_of_images() -> None:
    torch.manual_seed(0)
    w = torch.randn(5, 6, 3, 3)
    whole = torch.randn(2, 12, 20, 22)
    images = [
        whole[:, ::2],
        whole[:, 3:9, 2:-3, ::3],
        whole[:, :6].to(memory_format=torch.channels_last),
        whole[:, :6].transpose(2, 3),
        whole[:, :1].expand(2, 6, 20, 22),
        whole.to(memory_format=torch.channels_last)[:, 2:8, 1:],
        whole[:, :6].flip(3),
    ]
    for x in images:
        agree(lambda x, w: F.conv2d(x, w, padding=1), x, w)
        agree(lambda x, w: F.conv2d(x, w, padding=1, groups=6), x, w[:1].expand(6, 6, 3, 3)[:, :1])
    for weights in (w.transpose(2, 3), w[:, :, ::2], w.flip(1), w[:1].expand(4, 6, 3, 3)):
        agree(lambda x, w: F.conv2d(x, w), images[0], weights)


DOORS: dict[str, Any] = {
    "compile": tilevm.compile,
    "dynamo": functools.partial(torch.compile, backend="tilevm", dynamic=True),
}


@pytest.mark.parametrize("door", DOORS)
def test_images_as_groups_of_one_are_row_major(door: str) -> None:
    """As where each image has filters of its own: what is returned is a view of the one image."""

    def modulated(x: Any, w: Any) -> Any:
        b, _, h, width = x.shape
        one = F.conv2d(x.reshape(1, -1, h, width), w.repeat(b, 1, 1, 1), padding=1, groups=b)
        return one.view(b, -1, h, width)

    compiled = DOORS[door](modulated)
    for b, h, width in ((2, 5, 6), (3, 7, 4), (1, 6, 6)):
        x, w = torch.randn(b, 4, h, width), torch.randn(6, 4, 3, 3)
        found, wanted = compiled(x, w), modulated(x, w)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("axes", [1, 2])
def test_one_image_is_row_major(axes: int) -> None:
    layer = (torch.nn.Conv1d, torch.nn.Conv2d)[axes - 1](3, 4, 3)
    compiled = tilevm.compile(layer)
    with torch.no_grad():
        for size in (5, 8):
            x = torch.randn(3, *[size] * axes)
            found, wanted = compiled(x), layer(x)
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
            assert found.view(-1).shape == wanted.view(-1).shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_become_rows_where_they_lie(dtype: Any) -> None:
    """As in vision transformers, whose rows, if they lay across, would be transposed throughout."""

    def rows(x: Any, w: Any, first: Any, places: Any, v: Any) -> Any:
        patches = F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2)
        y = torch.cat([first.expand(len(x), -1, -1), patches], 1) + places
        y = y + F.layer_norm(y, y.shape[-1:]) @ v
        return y, patches.transpose(1, 2).reshape(len(x), len(w), x.shape[2] // 4, x.shape[3] // 4)

    given = [torch.randn(s, dtype=dtype) for s in ((8, 3, 4, 4), (1, 1, 8), (1, 7, 8), (8, 8))]
    x = torch.randn(2, 3, 8, 12, dtype=dtype)
    for one in (0, 1):
        agree(lambda *a, one=one: rows(*a)[one], x, *given)
    graph = str(tilevm.compile(rows).explain(x, *given)).split("guards:")[0]
    assert "permute" in graph
    assert "axes=[0, 2, 1]" not in graph


def test_infinities_stay_inside_their_windows() -> None:
    x = torch.ones(1, 1, 5, 5)
    x[0, 0, 0, 0] = float("inf")
    x[0, 0, 4, 4] = float("nan")
    w = torch.ones(1, 1, 3, 3)
    for groups in (1, 2):
        convolution = functools.partial(F.conv2d, padding=1, groups=groups)

        def finite(x: Any, w: Any, convolution: Any = convolution) -> Any:
            return torch.nan_to_num(convolution(x, w), 7.0, 9.0)

        y = agree(finite, x.repeat(1, groups, 1, 1), w.repeat(groups, 1, 1, 1))
        assert y[0, 0, 0, 0] == 9
        assert y[0, 0, 4, 4] == 7
        assert y[0, 0, 0, 4] == 4


def test_one_capture_for_all_sizes_and_frozen_weights() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 16, 3, 2, 1)
            self.each = torch.nn.Conv2d(16, 16, 5, 1, 2, groups=16, bias=False)
            self.norm = torch.nn.BatchNorm2d(16)
            self.last = torch.nn.Conv2d(16, 8, 1)

        def forward(self, x: Any) -> Any:
            y = F.relu(self.norm(self.each(self.first(x)) + 1))
            return self.last(y) + F.max_pool2d(y, 3, 1, 1)[:, :8], y.mean((2, 3))

    torch.manual_seed(0)
    net = Net().eval()
    called = dict(tilevm.stats()["callouts"])
    for freeze in (False, True):
        fast = tilevm.compile(net, freeze=freeze)
        before = tilevm.stats()["captures"]
        with torch.no_grad():
            for n, h, w in ((1, 32, 32), (2, 17, 40), (3, 8, 9), (2, 33, 7)):
                x = torch.randn(n, 3, h, w)
                for found, expected in zip(fast(x), net(x), strict=True):
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
                    assert found.is_contiguous()
        assert tilevm.stats()["captures"] == before + 1
    assert called == tilevm.stats()["callouts"]


def test_threads_do_not_change_results() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 24, 30, 31), torch.randn(40, 24, 3, 3)
    each, more = torch.randn(40, 1, 7, 7), torch.randn(512, 40, 1, 1)

    @tilevm.compile
    def run(x: Any, w: Any, each: Any, more: Any) -> Any:
        y = F.conv2d(F.conv2d(x, w, padding=1).relu(), each, padding=3, groups=40)
        return F.conv2d(y, more).sigmoid()

    before = torch.get_num_threads()
    results = []
    with torch.no_grad():
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(run(x, w, each, more))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_training() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(),
    )  # fmt: skip
    x = torch.randn(2, 3, 9, 8)
    for door in (tilevm.compile, lambda m: torch.compile(m, backend="tilevm", dynamic=True)):
        gradients = []
        for run in (net, door(net)):
            net.zero_grad()
            image = x.clone().requires_grad_()
            run(image).square().sum().backward()
            gradients.append([x.grad for x in (image, *net.parameters())])
        for expected, found in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
            assert found.is_contiguous() == expected.is_contiguous()


# Gradients --------------------------------------------------------------------------------------


def gradient_agrees(
    image: torch.Tensor, weight: torch.Tensor, transposed: bool = False, **parameters: Any
) -> Any:
    """All three gradients, as `agree` asks; `layout` is PyTorch's choice. Gives what was found."""
    tilevm.stats.reset()
    axes = image.dim() - 2
    more = parameters.pop("output_padding", [0] * axes)
    numbers = [parameters["stride"], parameters["padding"], parameters["dilation"]]
    results = weight.shape[1 if transposed else 0]
    made = torch.ops.aten.convolution(image, weight, None, *numbers, transposed, more, 1)
    grad = torch.randn(made.shape).to(image.dtype)

    def run(g: Any, x: Any, w: Any) -> Any:
        return torch.ops.aten.convolution_backward(
            g, x, w, [results], *numbers, transposed, more, 1, [True, True, True]
        )

    with torch.no_grad():
        expected, found = run(grad, image, weight), tilevm.compile(run)(grad, image, weight)
        exact = run(grad.double(), image.double(), weight.double())
    for each in zip(found, expected, exact, strict=True):
        is_close(*each, layout=False)
    assert not tilevm.stats()["callouts"]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_operators(dtype: Any) -> None:
    for n, channels, results, sizes, taps, groups, parameters in cases():
        strided = [a > 1 and b > 1 for a, b in zip(*list(parameters.values())[::2], strict=True)]
        if groups > 1 or parameters["padding"] == "same" or any(strided) or n == 0:
            continue
        torch.manual_seed(n)
        image = torch.randn(n, channels, *sizes).to(dtype)
        weight = torch.randn(results, channels, *taps).to(dtype)
        gradient_agrees(image, weight, **parameters)
        if channels % 2:
            gradient_agrees(
                image.to(memory_format=torch.channels_last) if len(sizes) == 2 else image,
                weight.transpose(0, 1),
                **{**parameters, "padding": [0] * len(sizes)},
                transposed=True,
            )


def test_gradients_of_odd_operands() -> None:
    """Gradients of sums are one number everywhere; images and windows may lie in any order."""
    moves: Any = {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 1]}
    image = torch.randn(2, 9, 40, 5)[:, 1:7, ::3]
    weight = torch.randn(3, 3, 6, 7).permute(3, 2, 0, 1)
    gradient_agrees(image, weight, **moves)
    turned = weight.transpose(0, 1).flip(2)
    gradient_agrees(image, turned, transposed=True, output_padding=[1, 0], **moves)

    def summed(x: Any, w: Any) -> Any:
        g = torch.ones((), dtype=x.dtype).expand(2, 7, 7, 7)
        return torch.ops.aten.convolution_backward(
            g, x, w, None, [2, 1], [1, 2], [1, 1], False, [0, 0], 1, [True, True, False]
        )[1]

    agree(summed, image, weight, layout=False)


def test_gradients_on_more_threads() -> None:
    torch.manual_seed(0)
    image, weight = torch.randn(4, 24, 17, 19), torch.randn(70, 24, 3, 3)
    moves: Any = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)  # of what comes back
            results.append(gradient_agrees(image, weight, **moves))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_training_by_steps(groups: int) -> None:
    """Dynamic sizes through torch.compile: gradients of all parameters and of the image."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(6, 12, 3, padding=1, groups=groups), torch.nn.ReLU(),
        torch.nn.Conv2d(12, 12, 1, stride=2), torch.nn.SiLU(),
        torch.nn.ConvTranspose2d(12, 5, 4, stride=2, padding=1),
    )  # fmt: skip
    compiled = torch.compile(model, backend="tilevm", dynamic=True)
    for n, size in ((2, 8), (3, 9), (5, 12)):
        found = []
        x = torch.randn(n, 6, size, size + 1)
        for run in (model, compiled):
            model.zero_grad()
            image = x.clone().requires_grad_()
            run(image).square().sum().backward()
            found.append([image.grad, *(p.grad for p in model.parameters())])
        for expected, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=2e-4, atol=2e-4)


# Programs around convolutions -------------------------------------------------------------------


def _operators(rng: random.Random) -> Any:
    """A random function of an image [N, 6, H, W] and other tensors to several results."""
    steps: list[Callable[[Any, Any], Any]] = [
        lambda x, t: x.relu(),
        lambda x, t: x * t["channels"] + t["columns"],
        lambda x, t: F.conv2d(x, t["square"][: x.shape[1], : x.shape[1]], padding=1),
        lambda x, t: F.conv2d(x, t["each"][: x.shape[1]], padding=1, groups=x.shape[1]),
        lambda x, t: F.conv2d(x, t["square"][: x.shape[1], : x.shape[1], :1, :1]),
        lambda x, t: x + t["other"][:, : x.shape[1]],
        lambda x, t: torch.cat([x, x.tanh()], 1)[:, 1 : x.shape[1] + 1],
        lambda x, t: torch.cat([x[:, :, :1], x[:, :, 1:]], 2),
        lambda x, t: x - x.mean((2, 3), keepdim=True),
        lambda x, t: x - x.mean((0, 2, 3))[:, None, None],
        lambda x, t: x * x.mean((2, 3))[:, :, None, None],
        lambda x, t: x - x.amax(1, keepdim=True),
        lambda x, t: x + x.sum(3)[..., None] / 9,
        lambda x, t: x + x.sum((0, 1)) / 50,
        lambda x, t: x + x.sum((0, 2))[:, None] / 50,
        lambda x, t: x.softmax(1),
        lambda x, t: F.max_pool2d(x, 3, 1, 1),
        lambda x, t: F.pad(x[:, :, 1:], (0, 0, 1, 0)),
        lambda x, t: x.flip(3),
        lambda x, t: F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)).permute(0, 3, 1, 2),
        lambda x, t: (x.flatten(2).transpose(1, 2) * 2).transpose(1, 2).reshape(x.shape),
        lambda x, t: torch.where(x > 0, x, t["channels"]),
        lambda x, t: x + x.argmax(1, keepdim=True),
        lambda x, t: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x, t: x[:, :, :, 0, None] + x,
        lambda x, t: F.interpolate(x, scale_factor=2.0, mode="bilinear")[:, :, ::2, 1::2],
        lambda x, t: x.expand(x.shape) + x[:1].expand(x.shape),
        lambda x, t: x.bfloat16().float() if x.dtype == torch.float32 else x,
    ]
    chosen = [rng.choice(steps) for _ in range(rng.randint(3, 7))]
    chosen.insert(rng.randrange(len(chosen)), steps[2])
    kept = [rng.random() < 0.2 for _ in chosen]

    def run(x: Any, square: Any, each: Any, channels: Any, columns: Any, other: Any) -> Any:
        tensors = {"square": square, "each": each, "channels": channels, "columns": columns,
                   "other": other}  # fmt: skip
        results = []
        for step, keep in zip(chosen, kept, strict=True):
            x = step(x, tensors)
            if keep:
                results.append(x * 2)
        return *results, x

    return run


def programs(seeds: Any) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        run = _operators(rng)
        torch.manual_seed(seed)
        h, w = rng.choice([1, 3, 5, 8]), rng.choice([2, 4, 7])
        n = rng.choice([1, 2, 3])
        tensors = [
            torch.randn(n, 6, h, w), torch.randn(6, 6, 3, 3) / 5, torch.randn(6, 1, 3, 3) / 3,
            torch.randn(6, 1, 1), torch.randn(w), torch.randn(n, 6, h, w),
        ]  # fmt: skip
        if rng.random() < 0.3:
            tensors[0] = tensors[0].to(memory_format=torch.channels_last)
        with torch.no_grad():
            expected, found = run(*tensors), tilevm.compile(run)(*tensors)
        for e, f in itertools.zip_longest(expected, found):
            assert torch.allclose(f, e, rtol=2e-2, atol=2e-2, equal_nan=True), seed
            assert f.stride() == e.stride() or not e.is_contiguous(), seed


def test_random_programs() -> None:
    programs(range(15))


def transposed_cases() -> Any:
    rng = random.Random(5)
    for _ in range(30):
        axes = rng.choice([1, 2, 2, 3])
        groups = rng.choice([1, 1, 3])
        channels, results = groups * rng.choice([1, 5]), rng.choice([1, 7])
        sizes = [rng.choice([1, 4, 7]) for _ in range(axes)]
        stride, taps = ([rng.choice([1, 2, 3, 4]) for _ in range(axes)] for _ in range(2))
        dilation = [rng.choice([1, 1, 2]) if s == 1 else 1 for s in stride]
        padding = [rng.randrange(d * (t - 1) + 1) for d, t in zip(dilation, taps, strict=True)]
        more = [rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
        reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
        ends = zip(sizes, stride, reach, padding, more, strict=True)
        if any((n - 1) * s + r + 1 + m - 2 * p < 1 for n, s, r, p, m in ends):
            continue
        parameters = {"stride": stride, "padding": padding, "dilation": dilation}
        yield channels, results, sizes, taps, groups, {**parameters, "output_padding": more}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposed(dtype: Any) -> None:
    functions = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    tilevm.stats.reset()
    for number, (channels, results, sizes, taps, groups, given) in enumerate(transposed_cases()):
        function = functions[len(sizes) - 1]
        x = torch.randn(2, channels, *sizes).to(dtype)
        w = torch.randn(channels, results, *taps).to(dtype)
        bias = torch.randn(results * groups).to(dtype)
        if number % 3:
            agree(functools.partial(function, groups=groups, **given), x, w, bias, layout=False)
        else:
            agree(functools.partial(function, groups=groups, **given), x[0], w, layout=False)
    assert not tilevm.stats()["callouts"]


def test_transposed_spreads_no_infinity() -> None:
    """Taps that an element does not meet are no zeros that it is multiplied with."""
    x, w = torch.randn(1, 2, 5, 5), torch.randn(2, 3, 3, 3)
    x[0, 0, 2, 2] = torch.inf
    for stride in (1, 2, 3):
        expected = F.conv_transpose2d(x, w, stride=stride)
        found = tilevm.compile(lambda x, w, s=stride: F.conv_transpose2d(x, w, stride=s))(x, w)
        assert torch.equal(found.isfinite(), expected.isfinite())


def test_numbers_of_the_call() -> None:
    """Strides, padding and groups that are arguments: a capture for each."""
    tilevm.stats.reset()
    x, w = torch.randn(2, 6, 9, 8), torch.randn(6, 3, 3, 3)
    conv = tilevm.compile(lambda x, w, s, p, g: F.conv2d(x, w, None, s, p, 1, g))
    for stride, padding in ((1, 0), ((2, 1), 1), (1, "same"), (3, (2, 0))):
        expected = F.conv2d(x, w, None, stride, padding, 1, 2)
        torch.testing.assert_close(conv(x, w, stride, padding, 2), expected, rtol=1e-4, atol=1e-4)
    assert not tilevm.stats()["callouts"]
