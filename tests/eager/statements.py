"""Kinds of statements of random programs: each draws operands, and runs what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.eager.programs import Generator

UNARY = (
    "abs neg sign relu exp expm1 tanh sigmoid sin cos erf floor ceil round trunc square sqrt log1p "
    "isnan isfinite logical_not positive rsqrt reciprocal exp2 log frac nan_to_num"
).split()
# The kernel that PyTorch takes for gelu makes NaN of what is near infinity, for some layouts.
FUNCTIONS = (
    "F.gelu({}.nan_to_num(0,9,-9).clamp(-99,99)) F.silu({}) F.leaky_relu({}) F.softplus({}) "
    "F.hardtanh({}) F.elu({}) "
    "F.mish({}) F.gelu({},approximate='tanh') F.logsigmoid({}) F.hardswish({}) F.relu6({}) "
    "F.normalize({})"
).split()
BINARY = "add sub mul maximum minimum atan2 fmod remainder div floor_divide hypot".split()
COMPARE = "== != < <= > >=".split()
BITS = "& | ^".split()
REDUCE = "sum mean amax amin argmax argmin prod var std any all logsumexp norm cumsum".split()
IN_PLACE = "add_ sub_ mul_ copy_".split()
IN_PLACE_ALONE = (
    "relu_ neg_ abs_ zero_ fill_(2) clamp_(-1,1) add_(1) mul_(0.5) sub_(0.25) tanh_ sigmoid_ "
    "fill_(-0.0) floor_ t_ squeeze_ mul_(-1) div_(2) bernoulli_ uniform_ normal_ square_ round_"
).split()
DTYPES = "float32 float64 bfloat16 float16 int64 int32 uint8 bool".split()


def unary(g: Generator) -> None:
    op = g.rng.choice(UNARY)
    g.assign(f"torch.{op}({g.floats() if op not in ('abs', 'neg', 'square') else g.pick()})")


def function(g: Generator) -> None:
    g.assign(g.rng.choice(FUNCTIONS).format(g.floats()))


def binary(g: Generator) -> None:
    x = g.pick()
    y = g.partner(x)
    if g.rng.random() < 0.6:
        g.assign(f"{x} {g.rng.choice('+-*')} {y}")
    else:
        g.assign(f"torch.{g.rng.choice(BINARY)}({x}, {y})")


def with_number(g: Generator) -> None:
    x, n = g.pick(), g.number()
    texts = [f"{x} + {n}", f"{x} * {n}", f"{n} - {x}", f"{x} - {n}", f"{x} / {n}", f"{n} / {x}"]
    texts += [f"{x} ** 2", f"torch.add({x}, {g.partner(x)}, alpha={n})", f"{x} % 3"]
    texts += [f"torch.clamp({x}, -1, {n})", f"torch.clamp({x}, min={n})", f"{x} // 2"]
    g.assign(g.rng.choice(texts))


def compare(g: Generator) -> None:
    x = g.pick()
    other = g.number() if g.rng.random() < 0.5 else g.partner(x)
    g.assign(f"{x} {g.rng.choice(COMPARE)} {other}")


def bits(g: Generator) -> None:
    x = g.pick(lambda x: not x.is_floating_point())
    y = g.pick(lambda x: not x.is_floating_point())
    g.assign(
        g.rng.choice([f"{x} {g.rng.choice(BITS)} {y}", f"~{x}", f"{x} {g.rng.choice(BITS)} 3"])
    )


def where(g: Generator) -> None:
    x = g.pick()
    y = g.partner(x) if g.rng.random() < 0.7 else g.number()
    c = f"{g.partner(x)} > 0"
    kinds = [f"torch.where({c}, {x}, {y})", f"{x}.masked_fill({c}, {g.number()})"]
    kinds += [f"torch.addcmul({x}, {x}, {g.partner(x)}, value=0.5)", f"torch.lerp({x}, {x}, 0.5)"]
    g.assign(g.rng.choice(kinds))


def cast(g: Generator) -> None:
    x, dtype = g.pick(), g.rng.choice(DTYPES)
    if "int" in dtype and g.get(x).is_floating_point():  # others are undefined
        g.assign(f"{x}.nan_to_num(1, 2, 3).clamp(0, 100).to(torch.{dtype})")
    else:
        copied = g.rng.choice(["", "", ", copy=True"])
        g.assign(f"{x}.to(torch.{dtype}{copied})")


def reduce(g: Generator) -> None:
    x, op = g.pick(), g.rng.choice(REDUCE)
    axis = g.axis(g.get(x))
    keep = g.rng.choice(["", ", keepdim=True"]) if op != "cumsum" else ""
    alone = g.rng.random() < 0.25 and op not in ("cumsum", "logsumexp")
    g.assign(f"{x}.{op}()" if alone else f"{x}.{op}(dim={axis}{keep})")


def rows(g: Generator) -> None:
    x = g.floats(1)
    n = g.get(x).shape[-1]
    axis = g.axis(g.get(x))
    g.assign(
        g.rng.choice(
            [
                *(f"torch.softmax({x}, {axis})", f"torch.log_softmax({x}, {axis})"),
                *(f"F.layer_norm({x}, ({n},))", f"F.rms_norm({x}, ({n},))"),
                *(f"{x}.softmax(-1, dtype=torch.float32)", f"{x} - {x}.amax({axis}, keepdim=True)"),
                f"{x} / {x}.norm(dim={axis}, keepdim=True)",
            ]
        )
    )


def product(g: Generator) -> None:
    x = g.floats(1)
    a = g.get(x)

    def fits(y: object) -> bool:
        b = y
        return bool(b.dtype == a.dtype and b.ndim > 1 and b.shape[-2] == a.shape[-1])  # type: ignore[attr-defined]

    turned = g.pick(lambda y: y.dtype == a.dtype and y.ndim > 1 and y.shape[-1] == a.shape[-1])
    texts = [f"{x} @ {turned}.mT", f"F.linear({x}, {turned})", f"{x} @ {g.part(turned)}"]
    try:
        texts.append(f"{x} @ {g.pick(fits)}")
    except IndexError:
        pass
    texts += [f"torch.bmm({x}, {turned}.mT)", f"torch.mm({x}, {turned}.t())"]
    texts += [f"torch.addmm({g.pick()}, {x}, {turned}.t(), alpha=0.5)", f"{x} @ {x}.mT"]
    g.assign(g.rng.choice(texts))


def view(g: Generator) -> None:
    g.assign(g.part(g.pick()))


def layout(g: Generator) -> None:
    x = g.pick()
    a = g.get(x)
    axis = g.axis(a)
    texts = [f"{x}.clone()", f"{x}.contiguous()", f"{x}.flip(0)", f"{x}.roll(1, {axis})"]
    texts += [f"{x}.repeat({'2, ' * max(a.ndim, 1)})", f"{x}.tril()", f"{x}.mT.contiguous()"]
    texts += [f"torch.zeros_like({x})", f"torch.ones_like({x}) * 2", f"torch.full_like({x}, 3)"]
    texts += [f"{x}.new_zeros(3, {a.shape[-1] if a.ndim else 1})", f"F.pad({x}, (1, 2))"]
    texts += [f"torch.arange({a.numel() % 50}) * 0.5", f"{x}.repeat_interleave(2, {axis})"]
    g.assign(g.rng.choice(texts))


def maker(g: Generator) -> None:
    """Tensors of nothing, and what is written into a part of one."""
    n, m, dtype = g.rng.randint(0, 9), g.rng.randint(0, 9), g.rng.choice(DTYPES[:6])
    kind = f"dtype=torch.{dtype}"
    texts = [f"torch.zeros({n}, {m}, {kind})", f"torch.ones({m}, {kind})", f"torch.eye({n}, {m})"]
    texts += [f"torch.full(({n}, {m}), {g.number()})", f"torch.linspace(1, {m + 2}, {n})"]
    texts += [f"torch.arange({n}, {n + m}, {kind})", f"torch.logspace(0, 1, {n})"]
    texts += [f"torch.scalar_tensor({g.number()}, {kind})", f"torch.empty({n}, {m}).fill_({m})"]
    g.assign(g.rng.choice(texts))


def join(g: Generator) -> None:
    x = g.pick(lambda x: x.ndim > 0)
    axis = g.axis(g.get(x))
    shape = g.get(x).shape
    y = g.pick(lambda y: y.shape == shape)
    z = g.pick(lambda z: z.ndim == len(shape) and z.shape[1:] == shape[1:])
    texts = [f"torch.cat([{x}, {y}], {axis})", f"torch.stack([{x}, {y}, {x}], {axis})"]
    texts += [
        f"torch.cat([{x}, {z}])",
        f"torch.cat([{g.part(x)}, {y}])",
        f"torch.vstack([{x}, {y}])",
    ]
    g.assign(g.rng.choice(texts))


def parts(g: Generator) -> None:
    x = g.pick(lambda x: x.ndim > 0 and max(x.shape) > 1)
    a = g.get(x)
    axis = g.rng.choice([i for i, n in enumerate(a.shape) if n > 1])
    n = a.shape[axis]
    if g.rng.random() < 0.5:
        g.assign(f"{x}.split([{n // 2}, {n - n // 2}], {axis})", 2)
    elif n <= 3:
        g.assign(f"{x}.unbind({axis})", n)
    else:
        g.assign(f"{x}.chunk(2, {axis})", 2)


def gather(g: Generator) -> None:
    x = g.pick(lambda x: x.ndim > 0)
    a = g.get(x)
    axis = g.axis(a)
    n, many = a.shape[axis], g.rng.randint(0, 4)
    i, first = g.index(n, many), g.index(a.shape[0], many)
    texts = [f"{x}.index_select({axis}, {i})", f"{x}[{first}]", f"{x}[{first} - 0]"]
    texts += [f"{x}[{x} > 0]", f"{x}[..., {g.index(a.shape[-1], many)}]", f"{x}.sort({axis})[0]"]
    texts += [
        f"F.embedding({first}, {x})",
        f"torch.take_along_dim({x}, {x}.argsort({axis}), {axis})",
    ]
    texts += [f"{x}.gather({axis}, torch.zeros_like({x}, dtype=torch.int64))", f"{x}.nonzero()"]
    texts += [
        f"{x}.index_add({axis}, {i}, {x}.index_select({axis}, {i}))",
        f"{x}.topk(1, {axis})[0]",
    ]
    g.assign(g.rng.choice(texts))


def random_draw(g: Generator) -> None:
    x = g.floats()
    shape = tuple(g.get(x).shape)
    texts = [f"torch.rand({shape}) * 2 - 1", f"torch.randn_like({x})", f"F.dropout({x}, 0.5)"]
    texts += [f"torch.bernoulli(torch.full({shape}, 0.5)) + {x}", f"torch.randint(0, 5, {shape})"]
    texts += ["torch.randperm(5) + 1", f"torch.rand_like({x}) < 0.5"]
    texts += [f"torch.empty_like({x}).{op}()" for op in ("exponential_", "log_normal_", "cauchy_")]
    texts += [f"torch.normal({x}, 0.5)", f"torch.bernoulli({x}.sigmoid().nan_to_num(0.5))"]
    texts += [f"torch.zeros({shape}).geometric_(0.3)", f"torch.randn({shape}).bernoulli_(0.25)"]
    g.assign(g.rng.choice(texts))


# Operators that no row of the recorder's is for, of float x, axis d and a partner y.
TEMPLATES = (
    "{x}.cummax({d})[0]", "{x}.cummin({d})[1]", "torch.logaddexp({x}, {y})", "{x}.sinh()",
    "torch.heaviside({x}, {y})", "{x}.logcumsumexp({d})", "F.pad({x}, (1, 0), mode='replicate')",
    "{x}.kthvalue(1, {d})[0]", "{x}.triu(1)", "{x}.median({d})[0]", "(abs({x}) + 2).digamma()",
    "torch.xlogy({x}, {y})", "{x}.asinh()", "{x}.cumprod({d})", "F.avg_pool1d({x}, 2)",
    "{x}.erfc()", "F.glu({x}, {d})", "{x}.clamp(-1, 1).acos()", "{x}.nansum({d})",
    "F.huber_loss({x}, {y})", "{x}.index_fill({d}, torch.tensor([0]), 2)",
    "{x}.aminmax(dim={d})[1]", "torch.searchsorted(torch.arange(4.0), {x})", "{x}.frexp()[0]",
    "{x}.float().logit(1e-3)",
    "{x}.rot90()", "F.max_pool1d({x}, 2)", "F.interpolate({x}[None], scale_factor=2.0)",
    "{x}.diff()", "torch.copysign({x}, {y})", "{x}.sgn()", "F.group_norm({x}[None], 1)",
)  # fmt: skip


def template(g: Generator) -> None:
    x = g.floats(1)
    text = g.rng.choice(TEMPLATES)
    g.assign(text.format(x=x, y=g.partner(x), d=g.axis(g.get(x))))


def complex_numbers(g: Generator) -> None:
    if g.rng.random() < 0.5:
        x = g.pick(lambda x: x.dtype in g.whole)
        g.assign(g.rng.choice([f"torch.complex({x}, {g.partner(x)})", f"{x} * 2j", f"{x} + 1j"]))
        return
    z = g.pick(lambda x: x.is_complex())
    texts = [f"{z}.real", f"{z}.imag", f"{z}.abs()", f"{z}.conj()", f"{z} * {g.partner(z)}"]
    texts += [f"{z} + {g.partner(z)}", f"{z}.angle()", f"{z}.exp()", f"torch.view_as_real({z})"]
    texts += [f"{z}.conj() * {z}", f"{z}.sum(0)", f"{g.part(z)}", f"{z}.real * 2", f"-{z}.imag"]
    texts += [f"{z} @ {z}.mT", f"torch.fft.ifft({z})", f"torch.fft.fft({g.floats(1)}, dim=0)"]
    g.assign(g.rng.choice(texts))


def target(g: Generator) -> str:
    """Something to write into: a value, or a view of it."""
    x = g.pick()
    return x if g.rng.random() < 0.5 else g.part(x)


def in_place(g: Generator) -> None:
    x = target(g)
    if g.rng.random() < 0.5:
        op = g.rng.choice(IN_PLACE_ALONE)
        g.run(f"{x}.{op}" if op.endswith(")") else f"{x}.{op}()")
    else:
        g.run(f"{x}.{g.rng.choice(IN_PLACE)}({g.partner(x.partition('.')[0].partition('[')[0])})")


def set_item(g: Generator) -> None:
    x = g.pick(lambda x: x.ndim > 0)
    n = g.get(x).shape[0]
    value = g.rng.choice([g.number(), g.partner(x)])
    where = [str(g.rng.randrange(max(n, 1))), "...", ":, 0", f"{x} > 0", f"..., :{n // 2}", "::2"]
    where += [g.index(n, 2), f"{g.rng.randint(0, n)}:"]
    g.run(f"{x}[{g.rng.choice(where)}] = {value}")


def out(g: Generator) -> None:
    x = g.pick()
    memory = g.get(x).untyped_storage().data_ptr()
    # (What reads the memory that it writes to is left undefined.)
    y = g.pick(lambda y: y.untyped_storage().data_ptr() != memory)
    texts = [f"torch.add({x}, {g.partner(x)}, out={y})", f"torch.mul({x}, 0.5, out={y})"]
    texts += [f"torch.sum({x}, 0, out={y})", f"torch.exp({x}, out={y})", f"torch.abs({x}, out={y})"]
    part, d = g.part(y), g.axis(g.get(x))
    texts += [f"torch.add({x}, {g.partner(x)}, out={part})", f"torch.tanh({x}, out={part})"]
    texts += [f"torch.matmul({x}, {x}.mT, out={y})", f"torch.cumsum({x}, {d}, out={y})"]
    texts += [f"torch.logaddexp({x}, {x}, out={part})", f"torch.roll({x}, 1, out={y})"]
    texts += [f"torch.cat([{x}, {x}], {d}, out={y})", f"torch.arange(5, out={y})"]
    texts += [f"torch.cummax({x}, {d}, out=({y}, torch.empty(0, dtype=torch.int64)))"]
    g.run(g.rng.choice(texts))


def foreach(g: Generator) -> None:
    x = g.pick()
    shape = g.get(x).shape
    y = g.pick(lambda y: y.shape == shape)
    texts = [f"torch._foreach_add_([{x}, {y}], 1)", f"torch._foreach_mul_([{x}], [{y}])"]
    texts += [f"torch._foreach_lerp_([{x}], [{y}], 0.5)", f"torch._foreach_copy_([{x}], [{y}])"]
    g.run(g.rng.choice(texts))


def exchange(g: Generator) -> None:
    x, y = g.pick(), g.pick()
    texts = [
        f"{x}.data = {y}",
        f"{x}.set_({y})",
        f"{x}.resize_({g.shape}).zero_()",
        f"{x}.data.mul_(0.5)",
    ]
    texts += [f"{x} = {y}", f"{x} += {y}", f"{x} *= 0.5", f"{x}.detach_()", f"{x} = {x}.detach()"]
    g.run(g.rng.choice(texts))


def look(g: Generator) -> None:
    x = g.pick()
    texts = [
        f"look({x}.detach())",
        f"look({x}.sum().item())",
        f"look({x}.detach().float().numpy())",
    ]
    texts += [f"look({x}.tolist())", f"look(bool(({x} > 0).any()))", f"look(len(repr({x})) > 0)"]
    texts += [f"look(int(({x} > 0).sum()))", f"look({x}._version)", f"look({x}.requires_grad)"]
    g.run(g.rng.choice(texts))


def drop(g: Generator) -> None:
    if len(g.names) > 4:
        x = g.pick()
        g.names.remove(x)
        g.run(f"del {x}")


def differentiate(g: Generator) -> None:
    x = g.pick(lambda x: x.requires_grad)
    leaf = g.pick(lambda x: x.requires_grad and x.is_leaf)
    texts = [f"{x}.float().sum().backward(retain_graph=True)"] * 3
    texts += [f"{x}.float().square().mean().backward()", f"{leaf}.grad = None"]
    if g.rng.random() < 0.4:
        g.assign(f"torch.autograd.grad({x}.float().sum(), {leaf}, retain_graph=True)[0] * 1")
    elif g.get(leaf).grad is not None and g.rng.random() < 0.3:
        g.assign(f"{leaf}.grad")
    else:
        g.run(g.rng.choice(texts))


def cell(g: Generator) -> None:
    """Modules, which begin with random numbers of their own."""
    x = g.floats(1)
    a = g.get(x)
    n, kind = a.shape[-1], f"dtype={a.dtype}"
    linear = f"torch.nn.Linear({n}, 3, {kind})({x})"
    # (The norm of one element is what rounding leaves.)
    texts = [linear, f"torch.nn.LayerNorm({n}, {kind})({x})" if n > 1 else linear]
    texts += [f"torch.nn.Sequential(torch.nn.Tanh(), torch.nn.SiLU())({x})"]
    if a.ndim == 2 and n:
        m, h = a.shape[0], f"torch.zeros({a.shape[0]}, 3, {kind})"
        texts += [f"torch.nn.GRUCell({n}, 3, {kind})({x}, {h})"]
        texts += [f"torch.nn.LSTMCell({n}, 3, {kind})({x}, ({h}, {h} + 0.5))[{m % 2}]"]
    g.assign(g.rng.choice(texts))


def chosen(g: Generator) -> None:
    """Indices of several kinds at once, and what the data choose."""
    x = g.pick(lambda x: x.ndim > 1)
    a = g.get(x)
    n, m = a.shape[:2]
    i, j = g.index(n, 2), g.index(m, 2)
    texts = [f"{x}[{i}, {j}]", f"{x}[{i}, 1:]", f"{x}[:, {j}]", f"{x}[None, {i}]", f"{x}[:, None]"]
    texts += [f"{x}[{x}[:, 0] > 0]", f"{x}[{i}[0]]", f"{x}[{i}[1], {g.rng.randrange(max(m, 1))}:]"]
    texts += [
        f"torch.where({x} > 0)[1]",
        f"torch.where({x} > 0, {g.number()}, {x})",
        f"{x}[{i}, None]",
    ]
    texts += [
        f"{x}[..., -1]",
        f"{x}[-1, ..., None]",
        f"{x}[:, ::2][{n // 2}:]",
        f"{x}[{n // 2}][None]",
    ]
    g.assign(g.rng.choice(texts))


# how often, and which
KINDS: tuple[tuple[int, Callable[[Generator], None]], ...] = (
    (9, unary), (4, function), (14, binary), (9, with_number), (3, compare), (2, bits), (4, where),
    (5, cast), (6, reduce), (4, rows), (4, product), (13, view), (4, layout), (4, join), (3, parts),
    (4, gather), (3, random_draw), (10, in_place), (5, set_item), (3, out), (2, foreach),
    (2, exchange), (4, look), (3, drop), (4, differentiate),
    (3, cell), (5, chosen), (2, maker), (5, template), (3, complex_numbers),
)  # fmt: skip
