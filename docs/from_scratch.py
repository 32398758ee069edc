# %% [markdown]
# # From a Python function to running bytecode
#
# One small function on its way through the whole of tilevm, a stage at a time, with what each
# stage makes printed. Run it with `python docs/from_scratch.py`, or open it as a notebook; a test
# runs it, so nothing here is out of date. ARCHITECTURE.md says where each stage lives.

# %%
from __future__ import annotations

from typing import Any

import numpy as np

import tilevm
from tilevm import lang
from tilevm.errors import BytecodeError
from tilevm.ir.graph import GraphBuilder
from tilevm.ir.reference import evaluate
from tilevm.ir.text import from_text, to_text
from tilevm.ir.types import Size, Symbol, Type
from tilevm.runtime import program as runtime


def show(title: str, text: object) -> None:
    print(f"--- {title}\n{str(text).rstrip()}\n")


# %% [markdown]
# ## 1. The function
#
# RMS norm, a weight, and SiLU. `@tilevm.kernel` calls it once with symbolic arrays and keeps what
# it did as a graph; every later call runs what came of that graph, whatever the sizes.


# %%
@tilevm.kernel
def rms_silu(x: Any, weight: Any) -> Any:
    scale = lang.rsqrt(lang.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return lang.silu(x * scale * weight)


rng = np.random.default_rng(0)
x = rng.standard_normal((3, 70), dtype=np.float32)
weight = rng.standard_normal(70, dtype=np.float32)
y = rms_silu(x, weight)
show("the graph that tracing made", to_text(rms_silu.graph(x, weight)))

# %% [markdown]
# ## 2. The graph by hand
#
# Front ends build graphs with `GraphBuilder`. Sizes are symbols with what is known of them; each
# operator is a row of `ir/ops.py`, and its type is inferred as it is added, by the core.

# %%
builder = GraphBuilder()
rows = builder.symbol(Symbol("B"))
columns = builder.symbol(Symbol("N", min=1, max=4096))
x_in = builder.param("x", Type("float32", (rows, columns)))
weight_in = builder.param("weight", Type("float32", (columns,)))
normed = builder.add("rms_norm", [x_in], axes=[-1], eps=1e-6, name="normed")
scaled = builder.add("mul", [normed, weight_in], name="scaled")
builder.result(builder.add("silu", [scaled], name="y"))
graph = builder.build()

assert builder.type("y") == Type("float32", (Size("B"), Size("N")))

# %% [markdown]
# ## 3. Text
#
# A graph is data, and text is one of its forms: it prints, parses back, and compares equal.

# %%
text = to_text(graph)
assert from_text(text) == graph
show("the graph as text", text)

# %% [markdown]
# ## 4. Meaning
#
# `evaluate` says what a graph means: NumPy, operator after operator, in float64. Everything else
# in tilevm is measured against it.

# %%
(expected,) = evaluate(graph, x, weight)
np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 5. Sizes
#
# Sizes are polynomials in a normal form, so that equal sizes have equal text. A question about two
# sizes has three answers; `None` means that it depends on the call.

# %%
sizes = builder.program
assert sizes.size_str("(N + 1)*(N - 1) + 1") == sizes.size_str("N*N")
assert sizes.size_compare("N + 1", "N") is False
assert sizes.size_compare("B", "N") is None

# %% [markdown]
# ## 6. The program, kernels and steps
#
# Building the graph built the core's program too. Compiling first lowers it: composite operators
# are taken apart by the table's decompositions, type conversions become explicit, equal operators
# one. Then operators are grouped into kernels, and the steps of the host program are put in order.
# Here all is one kernel over the axes B and N, of which its fold reduces N, after an allocation
# for the result. That is all there is to compile: no size has been seen so far.

# %%
run: Any = runtime.compile_program(graph.to_program(), (), framework="numpy", single=True)
(kernel,) = run.kernels()
assert [step["kind"] for step in run.steps()] == ["alloc", "kernel"]
assert kernel["axes"] == ["B", "N (reduced)"]
assert not kernel["variants"]
show("the lowered program and the steps", run.plan_text())
show("the kernel's graph", "\n".join(kernel["nodes"]))

# %% [markdown]
# ## 7. Bytecode
#
# The first launch looks at the strides, says which axis is rows and which is columns, and encodes
# the kernel for that class of layouts. Registers have a class: `r` varies over rows and columns,
# `u` over rows, `c` over columns, `s` over neither. Each `pass` sweeps the row once more while it
# is in cache; what stands between the passes runs once per row.

# %%
np.testing.assert_allclose(run(x, weight), expected, rtol=1e-5, atol=1e-6)
(variant,) = run.kernels()[0]["variants"]
show(f"bytecode, {len(variant['bytes'])} bytes, run by {variant['tier']}", variant["disassembly"])

# %% [markdown]
# Another shape of the same class encodes nothing. Columns in place of rows, or no columns at all,
# are classes of their own.

# %%
for n in (2, 69, 1024):
    wide = rng.standard_normal((5, n), dtype=np.float32)
    run(wide, weight[:1].repeat(n))
assert len(run.kernels()[0]["variants"]) == 1
run(np.asfortranarray(x), weight)
assert len(run.kernels()[0]["variants"]) == 2
run(x[:, :1], weight[:1])
assert len(run.kernels()[0]["variants"]) == 3

# %% [markdown]
# ## 8. The machine
#
# Bytecode is bytes: they can be printed, edited, assembled, verified and run without any graph.
# Arrays are bound to the operand table in order.

# %%
code = variant["bytes"]
assert tilevm.bytecode.assemble(tilevm.bytecode.disassemble(code)) == code
for tier in ("interp", "auto"):
    result = np.full_like(x, np.nan)
    tilevm.bytecode.run(code, [x, weight], [result], tier=tier)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)

# %% [markdown]
# The verifier takes any bytes, and says what is wrong. The launch checks that what a program
# touches lies in the arrays that it got.

# %%
for broken in (code[:-16], code.replace(b"TVM1", b"TVM9"), bytes(len(code))):
    try:
        tilevm.bytecode.verify(broken)
    except BytecodeError as error:
        print(f"rejected: {error}")
    else:
        raise AssertionError("the verifier accepted a broken program")
try:
    tilevm.bytecode.run(code, [x, weight[:-1]], [np.empty_like(x)])
except BytecodeError as error:
    print(f"rejected: {error}\n")
else:
    raise AssertionError("a launch outside of an array was accepted")

# %% [markdown]
# And a program written by hand: the largest absolute value of each row.

# %%
largest = tilevm.bytecode.assemble(
    """
    kernel fold=columns
    m0 input f32 r contiguous
    m1 output f32 u
    pass
    load_f32 r0, m0
    abs_f32 r1, r0
    max_f32 u2, r1
    end
    store_f32 m1, u2
    halt
    """
)
found = np.empty(3, dtype=np.float32)
tilevm.bytecode.run(largest, [x], [found])
np.testing.assert_array_equal(found, np.abs(x).max(axis=1))
show("a program written by hand", tilevm.bytecode.disassemble(largest))
print("All results equal the reference.")
