"""Random programs of plain PyTorch, as Python text: what `random_eager` runs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from tests.eager.statements import KINDS

FLOATS = "float32 float64 bfloat16 float16".split()
INTEGERS = "int64 int32 uint8".split()
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 17, 31)
LAYOUTS = "dense dense dense turned stepped expanded offset special".split()
MOST_ELEMENTS = 4000
_KEPT_ERRORS = 0.15  # of statements that raise


@dataclass
class Block:
    """A compound statement: `head`, the body, and what follows it."""

    head: str
    body: list[Statement] = field(default_factory=list)
    tail: tuple[str, ...] = ()


Statement = str | Block


def text_of(statements: list[Statement], indent: str = "") -> str:
    """The program's text."""
    rows = []
    for s in statements:
        if isinstance(s, str):
            rows.append(f"{indent}{s}\n")
            continue
        body = text_of(s.body, indent + "    ") or f"{indent}    pass\n"
        rows.append(f"{indent}{s.head}\n{body}" + "".join(f"{indent}{t}\n" for t in s.tail))
    return "".join(rows)


def make(shape: tuple[int, ...], dtype: str, layout: str, seed: int) -> torch.Tensor:
    """An input; `special` has NaN, infinities and -0."""
    g = torch.Generator().manual_seed(seed)
    kind: torch.dtype = getattr(torch, dtype)

    def draw(*sizes: int) -> torch.Tensor:
        if kind == torch.bool:
            return torch.rand(sizes, generator=g) < 0.5
        if not kind.is_floating_point:
            low = 0 if kind == torch.uint8 else -9
            return torch.randint(low, 10, sizes, generator=g, dtype=kind)
        return torch.randn(sizes, generator=g).to(kind)

    rank = len(shape)
    if layout == "turned":
        return draw(*reversed(shape)).permute(*reversed(range(rank)))
    if layout == "stepped" and rank:
        return draw(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "expanded" and rank:
        return draw(*shape[1:]).expand(shape)
    if layout == "offset" and rank:
        return draw(shape[0] + 2, *shape[1:])[1:-1]
    x = draw(*shape)
    if layout == "special" and kind.is_floating_point and x.numel():
        for value in (float("nan"), float("inf"), -float("inf"), -0.0):
            x.view(-1)[int(torch.randint(x.numel(), (), generator=g))] = value
    return x


def namespace(fuse: Callable[[], Any]) -> dict[str, Any]:
    """What programs see: `look` notes what they look at, `told` the errors that they catch."""
    notes: list[Any] = []

    def look(x: Any) -> None:
        notes.append(torch.as_tensor(x).clone())

    def told(error: Exception) -> None:
        first = str(error).partition("\nException raised from")[0]
        notes.append(f"{type(error).__name__}: {first}")

    return {"torch": torch, "F": F, "make": make, "look": look, "told": told, "fuse": fuse,
            "notes": notes}  # fmt: skip


def random_program(seed: int) -> list[Statement]:
    """Of some 10 to 60 statements, which eager mode can run."""
    return Generator(random.Random(seed)).program()


class Generator:
    """Draws statements, and runs each in eager mode to see what comes of it."""

    whole = (torch.float32, torch.float64)  # of which there are complex numbers

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.env = namespace(contextlib.nullcontext)
        self.names: list[str] = []
        self.count = 0
        self.out: list[Statement] = []

    # The program

    def program(self) -> list[Statement]:
        rng = self.rng
        self.shape = tuple(rng.choice(SIZES) for _ in range(rng.choice([0, 1, 2, 2, 2, 3, 4])))
        for _ in range(rng.randint(2, 5)):
            self.parameter()
        self.run(f"torch.manual_seed({rng.randrange(1000)})")
        for _ in range(rng.choice([1, 1, 2, 3])):
            self.block("with fuse():", rng.randint(3, 20))
            self.body(rng.choice([0, 0, 1, 3]))
        return self.out

    def block(self, head: str, many: int, tail: tuple[str, ...] = ()) -> None:
        block = Block(head, tail=tail)
        outer, self.out = self.out, block.body
        no_grad = torch.no_grad() if "no_grad" in head else contextlib.nullcontext()
        with no_grad:
            self.body(many)
        self.out = outer
        if block.body:
            self.out.append(block)

    def body(self, many: int) -> None:
        for _ in range(many):
            kind = self.rng.random()
            if kind < 0.02:
                self.block("with fuse():", self.rng.randint(1, 5))
            elif kind < 0.05:
                self.block("with torch.no_grad():", self.rng.randint(1, 5))
            else:
                (draw,) = self.rng.choices([row[1] for row in KINDS], [row[0] for row in KINDS])
                with contextlib.suppress(
                    IndexError, RuntimeError
                ):  # no such operand, or a lost view
                    draw(self)

    def parameter(self) -> None:
        rng = self.rng
        dtype = rng.choice([*FLOATS, "float32", "float32", "float32", *INTEGERS, "bool"])
        shape = self.like(self.shape) if rng.random() < 0.8 else self.like(self.shape[::-1])
        text = f"make({shape}, {dtype!r}, {rng.choice(LAYOUTS)!r}, {rng.randrange(10**4)})"
        grad = dtype in FLOATS and rng.random() < 0.3
        self.assign(text + (".requires_grad_()" if grad else ""))

    def like(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with this one."""
        dims = tuple(1 if self.rng.random() < 0.15 else n for n in shape)
        return dims[self.rng.choice([0, 0, 0, 0, 1, len(dims)]) :]

    # Running

    def run(self, text: str) -> bool:
        """Whether eager mode takes it; some that it does not take stay, their errors caught."""
        try:
            exec(text, self.env)
        except Exception:
            if self.rng.random() < _KEPT_ERRORS:
                self.out.append(Block("try:", [text], ("except Exception as e:", "    told(e)")))
            return False
        self.out.append(text)
        return True

    def assign(self, text: str, results: int = 1) -> None:
        names = [f"x{self.count + i}" for i in range(results)]
        at = len(self.out)
        if not self.run(f"{', '.join(names)} = {text}"):
            return
        self.count += results
        if all(self.tame(self.env[name]) for name in names):
            self.names += names
            return
        del self.out[at:]
        for name in names:
            self.env.pop(name)

    def tame(self, x: Any) -> bool:
        """Small, and mostly numbers of which one can tell right from wrong."""
        if not isinstance(x, torch.Tensor) or x.numel() > MOST_ELEMENTS:
            return False
        if x.is_complex():
            x = torch.view_as_real(x.detach().resolve_conj())
        if not x.numel() or not x.is_floating_point():
            return True
        y = x.detach().double()
        finite = y.isfinite()
        largest = float(y.nan_to_num(0, 0, 0).abs().max())
        return float(finite.double().mean()) > 0.6 and largest < 1e3

    # Operands

    def get(self, name: str) -> Any:
        return self.env[name]

    def pick(self, accept: Callable[[Any], bool] = lambda x: True) -> str:
        """The name of a value, rather of a new one. Raises: IndexError, if there is none."""
        found = [name for name in self.names if accept(self.get(name))]
        if not found:
            raise IndexError
        return self.rng.choice(found[-5:] if self.rng.random() < 0.6 else found)

    def floats(self, rank: int = 0) -> str:
        return self.pick(lambda x: x.is_floating_point() and x.ndim >= rank)

    def partner(self, name: str) -> str:
        """A value that broadcasts with it."""
        shape = self.get(name).shape

        def fits(x: Any) -> bool:
            pairs = zip(reversed(x.shape), reversed(shape), strict=False)
            return all(a in (b, 1) or b == 1 for a, b in pairs)

        return self.pick(fits)

    def axis(self, x: Any) -> int:
        axis = self.rng.randrange(max(x.ndim, 1))
        return axis - max(x.ndim, 1) if self.rng.random() < 0.3 else axis

    def number(self) -> str:
        return self.rng.choice("2 0.5 -1 3 1 0.1 -0.25 0 True 1.5".split())

    def part(self, name: str) -> str:
        """The text of a view of the value."""
        x, rng = self.get(name), self.rng
        if not x.ndim:
            return rng.choice([f"{name}.view(())", f"{name}[...]", f"{name}.detach()"])
        axis = self.axis(x)
        n = x.shape[axis]
        first = rng.randint(0, n)
        pieces = [
            f"{name}.transpose(0, {axis})", f"{name}.mT" if x.ndim > 1 else f"{name}[None]",
            f"{name}.unsqueeze({axis})", f"{name}.squeeze({axis})", f"{name}.detach()",
            f"{name}[..., None]", f"{name}[{first}:]", f"{name}[..., ::{rng.choice([1, 2, 3])}]",
            f"{name}.narrow({axis}, {first}, {rng.randint(0, n - first)})",
            f"{name}.view(-1)", f"{name}.flatten()", f"{name}.expand(2, {'-1, ' * x.ndim})",
            f"{name}.select({axis}, {rng.randrange(max(n, 1))})", f"{name}.diagonal()",
            f"{name}.permute({list(rng.sample(range(x.ndim), x.ndim))})", f"{name}.data",
            f"{name}.reshape({list(reversed(x.shape))})", f"{name}.unflatten({axis}, (1, -1))",
            f"{name}.swapaxes(0, -1)", f"{name}.view_as({name})", f"{name}.T",
            f"{name}.as_strided({tuple(x.shape)}, {x.stride()}, {x.storage_offset()})",
        ]  # fmt: skip
        return rng.choice(pieces)

    def index(self, n: int, many: int) -> str:
        return f"torch.tensor({[self.rng.randrange(max(n, 1)) for _ in range(many)]})"
