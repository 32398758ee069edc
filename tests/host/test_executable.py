"""The host program: views, reshapes, call-outs, aliasing, sizes and memory, through `_core`."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
_core = importlib.import_module("tilevm._core")
errors = importlib.import_module("tilevm.errors")

Build = Callable[[Any], Any]  # Program -> outputs


def compiled(build: Build, targets: tuple[Any, ...] = (), **options: Any) -> Any:
    """The program whose outputs `build` returns."""
    program = _core.Program()
    outputs = build(program)
    for value in outputs if isinstance(outputs, tuple) else (outputs,):
        program.output(value)
    options.setdefault("single", not isinstance(outputs, tuple))
    return _core.compile(program, list(targets), **options)


def one(p: Any, x: int) -> int:
    """X + 1."""
    return int(p.add("add", [x, p.add("scalar", [], {"value": 1.0})]))


def strides(x: Any) -> list[int]:
    """Strides of the dims that have more than one point."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1 and x.numel()]


# Views ------------------------------------------------------------------------------------------

VIEWS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "permute": ("permute", {"axes": [2, 0, 1]}, lambda x: x.permute(2, 0, 1)),
    "expand": ("expand", {"shape": [2, "A", "B", "C"]}, lambda x: x.expand(2, *x.shape)),
    "slice": ("slice", {"axis": 1, "start": 1, "stop": "B", "step": 2}, lambda x: x[:, 1::2]),
    "select": ("select", {"axis": 0, "index": 1}, lambda x: x[1]),
    "unsqueeze": ("unsqueeze", {"axis": 1}, lambda x: x.unsqueeze(1)),
    "flip": ("flip", {"axes": [1, 2]}, lambda x: x.flip(1, 2)),
    "reshape": ("reshape", {"shape": ["A", "B*C"]}, lambda x: x.reshape(x.shape[0], -1)),
}
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "strided": lambda x: torch.cat([x, x], 2)[:, :, ::2],
    "offset": lambda x: torch.cat([x, x], 1)[:, x.shape[1] :],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_inputs(view: str, layout: str) -> None:
    op, params, expected = VIEWS[view]

    def build(p: Any) -> tuple[int, int]:
        x = p.input("float32", ["A", "B", "C"])
        v = p.add(op, [x], params)
        return v, p.add("mul", [v, v])

    run = compiled(build)
    for shape in [(2, 7, 4), (3, 1, 5), (2, 64, 1), (2, 3, 0)]:
        x = LAYOUTS[layout](torch.randn(shape))
        got, square = run(x)
        want = expected(x)
        assert torch.equal(got, want)
        assert torch.equal(square, want * want)
        if view != "expand":
            assert strides(got) == strides(want)
        if want.numel() and view != "flip":
            aliases = got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            eager = want.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert aliases == eager


def test_squeeze() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["A", 1, "C"])
        return int(p.add("squeeze", [x], {"axes": [1]}))

    x = torch.randn(3, 1, 4)
    got = compiled(build)(x)
    assert torch.equal(got, x[:, 0])
    assert got.data_ptr() == x.data_ptr()


def test_reshape_copies_only_where_it_must() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["A", "B"])
        return int(p.add("reshape", [p.add("permute", [x], {"axes": [1, 0]})], {"shape": ["A*B"]}))

    run = compiled(build)
    x = torch.randn(5, 6)
    assert torch.equal(run(x), x.t().reshape(-1))
    assert run(x).data_ptr() != x.data_ptr()
    assert torch.equal(run(x.t().contiguous().t()), x.t().reshape(-1))
    y = x.t().contiguous().t()
    assert run(y).data_ptr() == y.data_ptr()


@pytest.mark.parametrize("dtype", ["float64", "int8", "float16", "uint8", "int16"])
def test_narrow_and_wide_dtypes_can_be_viewed(dtype: str) -> None:
    def build(p: Any) -> int:
        x = p.input(dtype, ["A", "B"])
        return int(p.add("reshape", [p.add("permute", [x], {"axes": [1, 0]})], {"shape": ["A*B"]}))

    x = torch.randint(0, 100, (5, 6)).to(getattr(torch, dtype))
    assert torch.equal(compiled(build)(x), x.t().reshape(-1))


def test_numpy_views_and_orders() -> None:
    def build(p: Any) -> tuple[int, int, int]:
        x = p.input("float32", ["A", "B"])
        return p.add("flip", [x], {"axes": [0]}), one(p, x), x

    run = compiled(build, framework="numpy", output_orders=[None, [1, 0], None])
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)[:, ::2]
    flipped, more, same = run(x)
    assert np.array_equal(flipped, x[::-1])
    assert np.shares_memory(flipped, x)
    assert np.array_equal(more, x + 1)
    assert more.strides == (4, 16)
    assert same is x


# Outputs ----------------------------------------------------------------------------------------


def test_outputs_are_fresh_and_as_eager_aliases_them() -> None:
    def build(p: Any) -> tuple[int, ...]:
        x = p.input("float32", ["A", "B"])
        y = one(p, x)
        return x, y, p.add("permute", [y], {"axes": [1, 0]}), y, one(p, x)

    run = compiled(build)
    x = torch.randn(3, 4)
    same, y, view, again, other = run(x)
    assert same is x
    assert again is y
    assert view.data_ptr() == y.data_ptr()
    assert view._base is y
    assert torch.equal(other, x + 1)
    assert other.data_ptr() != y.data_ptr()  # merged in the program, two tensors in eager
    assert run(x)[1].data_ptr() != y.data_ptr()


def test_a_cast_to_its_own_dtype_is_a_copy() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["A"])
        return int(p.add("cast", [x], {"dtype": "float32"}))

    x = torch.randn(3)
    got = compiled(build)(x)
    assert torch.equal(got, x)
    assert got.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_output_orders(order: list[int]) -> None:
    def build(p: Any) -> tuple[int, int]:
        y = one(p, p.input("float32", ["A", "B", "C"]))
        return y, p.add("permute", [y], {"axes": [2, 0, 1]})

    x = torch.randn(2, 3, 4)
    y, view = compiled(build, output_orders=[order, None])(x)
    back = [order.index(d) for d in range(3)]
    assert y.stride() == torch.empty([x.shape[d] for d in order]).permute(back).stride()
    assert torch.equal(y, x + 1)
    assert torch.equal(view, (x + 1).permute(2, 0, 1))


def test_outputs_die_after_the_executable() -> None:
    run = compiled(lambda p: one(p, p.input("float32", ["N"])))
    y = run(torch.zeros(1000))
    del run
    gc.collect()
    _core.free_memory()
    assert torch.equal(y, torch.ones(1000))


def test_weak_outputs() -> None:
    def build(p: Any) -> tuple[int, ...]:
        x = p.input("float32", ["N"])
        n = p.input("int64", [], weak=True)
        return p.add("size_value", [], {"size": "N*2"}), n, one(p, x)

    size, n, _ = compiled(build)(torch.zeros(5), 7)
    assert (int(size), int(n)) == (10, 7)


# Scalars and sizes ------------------------------------------------------------------------------


def test_python_numbers_and_sizes_in_kernels() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["N"])
        f = p.input("float64", [], weak=True)
        i = p.input("int64", [], weak=True)
        n = p.add("size_value", [], {"size": "N"})
        return int(p.add("div", [p.add("add", [p.add("mul", [x, f]), i]), n]))

    run = compiled(build)
    x = torch.randn(9)
    torch.testing.assert_close(run(x, 0.3, -4), (x * 0.3 + -4) / 9)
    with pytest.raises(errors.DTypeError, match=r"input 2: must be an int, but is a float"):
        run(x, 0.3, 1.5)


def test_int_symbols() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["N"])
        p.input("int64", [], weak=True)
        return int(p.add("slice", [x], {"axis": 0, "start": 0, "stop": "k"}))

    run = compiled(build, int_symbols={1: "k"})
    x = torch.randn(9)
    for k in (0, 1, 5, 9, 20):
        assert torch.equal(run(x, k), x[:k])
    with pytest.raises(errors.ShapeError, match=r"input 1: k, must be at least 0, but is -2"):
        run(x, -2)


def test_size_errors() -> None:
    def build(p: Any) -> int:
        p.symbol("B", min=1, max=64, multiple_of=2)
        x = p.input("float32", ["B", 8])
        y = p.input("float32", ["B", "2*M"])
        z = p.input("float32", ["M"])
        p.output(one(p, y))
        p.output(one(p, z))
        return one(p, x)

    run = compiled(build, input_names=["x", "y", "z"], single=False)
    z = torch.zeros
    run(z(2, 8), z(2, 6), z(3))
    bad = {
        r"input 'x': dim 1 must be 8, but is 7": (z(2, 7), z(2, 6), z(3)),
        r"input 'y': dim 0 must be B = 2, but is 4": (z(2, 8), z(4, 6), z(3)),
        r"input 'y': dim 1 must be .*M.* = 6, but is 5": (z(2, 8), z(2, 5), z(3)),
        r"input 'x': dim 0, B, must be 2 to 64 and a multiple of 2, but is 3": (
            z(3, 8),
            z(3, 6),
            z(3),
        ),
        r"input 'z': must have 1 dim, but has shape \[3, 1\]": (z(2, 8), z(2, 6), z(3, 1)),
    }
    for message, args in bad.items():
        with pytest.raises(errors.ShapeError, match=message):
            run(*args)


def test_a_symbol_inside_an_expression_is_solved() -> None:
    run = compiled(
        lambda p: p.add("reshape", [p.input("float32", ["3*n + 3"])], {"shape": [3, "n+1"]})
    )
    x = torch.randn(12)
    assert torch.equal(run(x), x.reshape(3, 4))
    with pytest.raises(errors.ShapeError, match="dim 0 must be"):
        run(torch.randn(13))


def test_checks_of_the_typing_rules() -> None:
    def build(p: Any) -> int:
        return int(p.add("add", [p.input("float32", ["A"]), p.input("float32", ["B"])]))

    run = compiled(build)
    x = torch.randn(4)
    assert torch.equal(run(x, x), x + x)
    with pytest.raises(errors.ShapeError):
        run(x, torch.randn(5))


@pytest.mark.parametrize("n", [0, 1, 7, 64, 65, 1023])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_awkward_sizes(rows: int, n: int) -> None:
    def build(p: Any) -> tuple[int, int, int]:
        x = p.input("float32", ["R", "N"])
        total = p.add("sum", [x], {"axes": [1]})
        return p.add("softmax", [x], {"axis": 1}), total, p.add("concat", [x, x], {"axis": 1})

    x = torch.randn(rows, n)
    softmax, total, twice = compiled(build)(x)
    torch.testing.assert_close(softmax, x.softmax(1))
    torch.testing.assert_close(total, x.sum(1), rtol=1e-5, atol=1e-4)
    assert torch.equal(twice, torch.cat([x, x], 1))


# Call-outs --------------------------------------------------------------------------------------


def test_call_outs_take_tensors_views_and_numbers() -> None:
    seen: list[Any] = []

    def target(*args: Any) -> Any:
        seen.append(args)
        return args[1] @ args[0], args[0].sum(0)

    def build(p: Any) -> tuple[int, ...]:
        x = p.input("float32", ["A", "B"])
        y = one(p, x)
        t = p.add("permute", [y], {"axes": [1, 0]})
        n = p.add("size_value", [], {"size": "A"})
        c = p.add("scalar", [], {"value": 2.5})
        r = p.call(0, [y, t, n, c], [("float32", False, ["B", "B"]), ("float32", False, ["B"])])
        return one(p, r), p.add("mul", [r + 1, r + 1])

    run = compiled(build, (target,))
    _core.reset_stats()
    x = torch.randn(3, 5)
    for _ in range(3):
        a, b = run(x)
    y = x + 1
    torch.testing.assert_close(a, y.t() @ y + 1)
    torch.testing.assert_close(b, y.sum(0) ** 2)
    assert seen[0][2:] == (3, 2.5)
    assert seen[0][1]._base is seen[0][0]
    assert [name for name, _ in run.callouts()] == [target.__name__]
    assert _core.stats()["callouts"] == {target.__name__: 3}


def test_call_outs_may_bring_new_sizes() -> None:
    def build(p: Any) -> tuple[int, int]:
        x = p.input("float32", ["N"])
        r = p.call(0, [one(p, x)], [("int64", False, ["u0", 1])])
        flat = p.add("reshape", [r], {"shape": ["u0"]})
        t = p.add("take", [x, flat], {"axis": 0})
        return one(p, p.add("exp", [t])), p.add("size_value", [], {"size": "u0"})

    run = compiled(build, (lambda y: torch.nonzero(y > 1),))
    for n in (0, 1, 50, 3):
        x = torch.randn(n)
        got, count = run(x)
        want = x[x + 1 > 1]
        torch.testing.assert_close(got, want.exp() + 1)
        assert int(count) == len(want)


def test_steps_wait_for_the_sizes_of_call_outs() -> None:
    def build(p: Any) -> tuple[int, ...]:
        x = p.input("float32", ["2*n"])
        p.input("int64", [], weak=True)
        part = p.add("slice", [x], {"axis": 0, "start": "n", "stop": "n + k"})
        r = p.call(0, [part], [("float32", False, ["k"]), ("int64", False, ["u0"])])
        count = p.add("iota", [], {"size": "u0 + k"})
        both = p.add("concat", [p.add("iota", [], {"size": "k"}), r + 1], {"axis": 0})
        return one(p, r), p.add("mul", [count, count]), p.add("add", [both, count])

    def target(x: Any) -> tuple[Any, Any]:
        return x * 2, torch.nonzero(x > 0)[:, 0]

    run = compiled(build, (target,), int_symbols={1: "k"})
    for n, k in [(8, 5), (8, 0), (1, 1)]:
        x = torch.randn(2 * n)
        part = x[n : n + k]
        y, square, total = run(x, k)
        index = torch.nonzero(part > 0)[:, 0]
        count = torch.arange(k + len(index))
        assert torch.equal(y, part * 2 + 1)
        assert torch.equal(square, count * count)
        assert torch.equal(total, torch.cat([torch.arange(k), index]) + count)


def test_wrong_results_of_call_outs() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["N"])
        return one(p, p.call(0, [x], [("float32", False, ["N"])]))

    x = torch.randn(4)
    with pytest.raises(errors.ShapeError, match=r"result 0 .* dim 0 must be N = 4, but is 3"):
        compiled(build, (lambda x: x[1:],))(x)
    with pytest.raises(errors.DTypeError, match="result 0"):
        compiled(build, (lambda x: x.double(),))(x)
    with pytest.raises(errors.InternalError, match="should return 1 values, but returned 2"):
        compiled(build, (lambda x: (x, x),))(x)
    with pytest.raises(ZeroDivisionError):
        compiled(build, (lambda x: 1 / 0,))(x)


def test_matmul_is_the_frameworks() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["A", "K"])
        w = p.input("float32", ["N", "K"])
        return one(p, p.add("matmul", [x, p.add("permute", [w], {"axes": [1, 0]})]))

    x, w = torch.randn(3, 5), torch.randn(4, 5)
    torch.testing.assert_close(compiled(build)(x, w), x @ w.t() + 1)
    got = compiled(build, framework="numpy")(x.numpy(), w.numpy())
    np.testing.assert_allclose(got, x.numpy() @ w.numpy().T + 1, rtol=1e-5, atol=1e-6)


def test_re_entrant_and_concurrent() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["N"])
        total = p.add("sum", [x], {"axes": [0], "keepdims": True})
        y = p.add("sub", [x, total])
        return one(p, p.call(0, [y], [("float32", False, ["N"])]))

    depth = threading.local()

    def target(y: Any) -> Any:
        depth.n = getattr(depth, "n", 0) + 1
        result = run(y) if depth.n < 3 else y * 2
        depth.n -= 1
        return result

    run = compiled(build, (target,))

    def expected(x: Any, n: int = 1) -> Any:
        y = x - x.sum(0, keepdim=True)
        return (expected(y, n + 1) if n < 3 else y * 2) + 1

    failures: list[str] = []

    def work(seed: int) -> None:
        x = torch.randn(500 + seed, generator=torch.Generator().manual_seed(seed)) / 1e3
        for _ in range(50):
            if not torch.allclose(run(x), expected(x), rtol=1e-3, atol=1e-2):
                failures.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_nothing_leaks() -> None:
    def build(p: Any) -> tuple[int, int]:
        x = p.input("float32", ["N", "N"])
        y = one(p, x)
        r = p.call(
            0, [p.add("permute", [y], {"axes": [1, 0]}), y], [("float32", False, ["N", "N"])]
        )
        return one(p, r), p.add("permute", [r], {"axes": [1, 0]})

    fail = False

    def target(t: Any, y: Any) -> Any:
        if fail:
            raise KeyError
        return t @ y

    run = compiled(build, (target,))
    x = torch.randn(30, 30)
    before = sys.getrefcount(x), _core.memory()["used_bytes"]
    for _ in range(10):
        run(x)
    fail = True
    for _ in range(10):
        with pytest.raises(KeyError):
            run(x)
    with pytest.raises(errors.ShapeError):
        run(x[:3])
    assert (sys.getrefcount(x), _core.memory()["used_bytes"]) == before


# Inputs -----------------------------------------------------------------------------------------


def test_inputs_that_are_refused() -> None:
    run = compiled(lambda p: one(p, p.input("float32", ["N"])), input_names=["x"])
    x = torch.randn(4)
    with pytest.raises(errors.DTypeError, match=r"input 'x': must be float32, but is torch.int64"):
        run(x.long())
    with pytest.raises(errors.DTypeError, match=r"must be a torch.Tensor, but is a numpy.ndarray"):
        run(x.numpy())
    with pytest.raises(errors.DeviceError, match="meta"):
        run(x.to("meta"))
    with pytest.raises(errors.DeviceError, match="sparse"):
        run(x.to_sparse())
    with pytest.raises(errors.DeviceError, match="negative bit"):
        run(torch._neg_view(x))
    with pytest.raises(errors.TilevmError, match="requires gradients"):
        run(torch.nn.Parameter(x))
    with torch.no_grad():
        assert torch.equal(run(torch.nn.Parameter(x)), x + 1)
    with pytest.raises(TypeError, match="takes 1 arguments, but 2 were given"):
        run(x, x)
    allowed = compiled(lambda p: one(p, p.input("float32", ["N"])), allow_grad=True)
    assert not allowed(torch.nn.Parameter(x)).requires_grad


# Memory -----------------------------------------------------------------------------------------


def test_intermediates_share_the_arena() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["N", "M"])
        for _ in range(6):  # each sum over all needs the whole of what comes before
            x = p.add("sub", [x, p.add("sum", [x], {"axes": [0, 1], "keepdims": True})])
            x = p.add("permute", [x], {"axes": [1, 0]})
            x = p.add("reshape", [x], {"shape": ["N", "M"]})
        return int(x)

    run = compiled(build)
    n, m = 1024, 1000
    x = torch.randn(n, m) / 1e6
    want = x
    for _ in range(6):
        want = (want - want.sum()).t().reshape(n, m)
    torch.testing.assert_close(run(x), want, rtol=1e-3, atol=1e-3)
    _core.free_memory()
    _core.reset_stats()
    run(x)
    assert _core.stats()["peak_bytes"] < 5.5 * 4 * n * m
    _core.free_memory()
    assert _core.memory()["idle_bytes"] == 0


def test_memory_budget() -> None:
    run = compiled(lambda p: one(p, p.input("float32", ["N"])))
    try:
        _core.set_memory_budget(1 << 20)
        run(torch.zeros(1 << 20))
        assert _core.memory()["idle_bytes"] <= 1 << 20
    finally:
        _core.set_memory_budget(0)


# Seeing -----------------------------------------------------------------------------------------


def test_explain() -> None:
    def build(p: Any) -> int:
        x = p.input("float32", ["A", "B"])
        y = p.add("softmax", [x], {"axis": 1}, line="model.py:7")
        return one(p, p.call(0, [y], [("float32", False, ["A", "B"])], line="model.py:8"))

    run = compiled(build, (torch.ops.aten.cumsum.default,))
    assert run.callouts() == [("aten.cumsum.default", "model.py:8")]
    kinds = [step["kind"] for step in run.steps()]
    assert kinds.count("kernel") == 2
    assert kinds.count("call") == 1
    assert "softmax" in run.plan_text() or "exp" in run.plan_text()
    assert run.compile_us > 0
    plain = compiled(lambda p: one(p, p.input("float32", ["A"])))
    plain(torch.zeros(3))
    (kernel,) = plain.kernels()
    (variant,) = kernel["variants"]
    assert "add_f32" in variant["disassembly"]
    _core.bytecode.verify(variant["bytes"])


def test_parts_of_a_profile_do_not_overlap() -> None:
    run = compiled(lambda p: one(p, p.input("float32", ["N"])))
    x = torch.zeros(1 << 22)
    run(x)
    run.set_profiled(True)
    begin = time.perf_counter_ns()
    run(x)
    wall_ns = time.perf_counter_ns() - begin
    profile = run.profile()
    parts = profile["begin_ns"] + sum(step["ns"] for step in profile["steps"]) + profile["end_ns"]
    assert 0 < parts <= wall_ns
