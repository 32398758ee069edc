"""PyTorch's symbolic sizes (sympy) as the core's text, and as Python source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils._sympy.functions import FloorDiv, Min

from tilevm.ir.types import Dim

MOST = 2**63 - 1
# Of ints that loops carry, which are no integers of Python's: calls with larger ones run eagerly.
# A turn multiplies them by less (`torch_data.check_number`), and so stays within 64 bits.
MOST_CARRIED = 2**31
MODULES: Mapping[str, Any] = {"math": math, "torch": torch}  # what Python source of sizes names


class Untranslatable(ValueError):
    """An expression that sizes of the core cannot express."""


def _text(expr: Any, name: Callable[[Any], str]) -> str:
    """The core's text of an integer expression."""
    if isinstance(expr, sympy.Symbol):
        return name(expr)
    if isinstance(expr, sympy.Integer | int):
        value = int(expr)
        return str(value) if value >= 0 else f"(0 - {-value})"
    if isinstance(expr, sympy.Add):
        out = ""
        terms = sorted(expr.args, key=lambda t: bool(t.could_extract_minus_sign()))
        for term in terms:
            negative = bool(term.could_extract_minus_sign())
            part = _text(-term if negative else term, name)
            if out:
                out += f" - {part}" if negative else f" + {part}"
            else:
                out = f"0 - {part}" if negative else part
        return f"({out})"
    if isinstance(expr, sympy.Mul):
        if any(isinstance(a, sympy.Rational) and not a.is_integer for a in expr.args):
            raise Untranslatable(str(expr))
        return "(" + "*".join(_text(a, name) for a in expr.args) + ")"
    if isinstance(expr, sympy.Pow):
        base, exponent = expr.args
        if not (isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 8):
            raise Untranslatable(str(expr))
        return "(" + "*".join([_text(base, name)] * int(exponent)) + ")"
    kind = type(expr).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        a, b = (_text(x, name) for x in expr.args)
        return f"({a}//{b})"
    if kind == "CeilDiv":
        a, b = (_text(x, name) for x in expr.args)
        return f"(({a} + {b} - 1)//{b})"
    if kind in ("Mod", "PythonMod"):
        a, b = (_text(x, name) for x in expr.args)
        return f"({a} % {b})"
    if kind in ("Max", "Min"):
        parts = [_text(x, name) for x in expr.args]
        out = parts[0]
        for part in parts[1:]:
            out = f"{kind.lower()}({out}, {part})"
        return out
    if kind == "Abs":
        (a,) = (_text(x, name) for x in expr.args)
        return f"max({a}, 0 - {a})"
    if kind == "Piecewise" and isinstance(equal := expr.args[0][1], sympy.Eq):
        if [value for value, _ in expr.args] == [1, 0] and expr.args[1][1] == sympy.true:
            a, b = (_text(x, name) for x in equal.args)  # the bool as an int
            return f"(1 - min(max({a} - {b}, {b} - {a}), 1))"
    if kind in ("Identity", "TruncToInt") and len(expr.args) == 1:
        return _text(expr.args[0], name)
    raise Untranslatable(str(expr))


class Sizes:
    """Symbols of one graph: their names and ranges, and text of expressions over them.

    A symbol that no input's size or int shows as itself is solved for: if some input's size is
    `a*s + b`, then that size becomes the symbol and s is written in terms of it.
    """

    def __init__(
        self,
        inputs: Iterable[Any],
        shape_env: Any,
        unified: Mapping[sympy.Symbol, sympy.Symbol] | None = None,
        facts: Mapping[tuple[int, int], Dim] | None = None,
        inner: bool = False,
        least: Mapping[sympy.Symbol, int] | None = None,
    ) -> None:
        """least: of symbols, what an import before this has asked calls to check."""
        self.env = shape_env
        self._inner = inner  # of a graph inside another
        self._facts = facts or {}
        self._unified = dict(unified or {})
        self._least: dict[sympy.Symbol, int] = dict(least or {})
        self._texts: dict[Any, int | str] = {}
        self._names: dict[sympy.Symbol, str] = {}
        self._solved: dict[sympy.Symbol, sympy.Expr] = {}
        self._computed: dict[sympy.Expr, sympy.Symbol] = {}  # by floats, for the core's text
        self._maybe_one: set[sympy.Symbol] = set()  # of guards that were dropped
        self._most: dict[sympy.Symbol, int] = {}
        self._guards = list(self._read_guards())
        self.n_guards = len(shape_env.guards) if shape_env is not None else 0
        self.sources: list[tuple[sympy.Symbol, int, int]] = []  # symbol, input, dim (-1: an int)
        self.divides: list[tuple[sympy.Expr, int]] = []  # expression that must be a multiple
        derived: list[tuple[sympy.Expr, int, int]] = []
        for index, value in enumerate(inputs):
            for dim, given in _expressions(value):
                expr = given.xreplace(self._unified)
                if isinstance(expr, sympy.Symbol):
                    if expr not in self._names:
                        self._names[expr] = str(expr)
                        self.sources.append((expr, index, dim))
                elif expr.free_symbols:
                    derived.append((expr, index, dim))
        for expr, index, dim in derived:
            unknown = [s for s in expr.free_symbols if s not in self._names | self._solved]
            if not unknown:
                continue
            if len(unknown) > 1:
                raise Untranslatable(f"{expr}: more than one unknown")
            self._solve(expr, unknown[0], index, dim)

    def _solve(self, expr: sympy.Expr, symbol: sympy.Symbol, index: int, dim: int) -> None:
        rest = expr.subs(symbol, 0)
        factor = sympy.simplify((expr - rest) / symbol)
        if factor.free_symbols or not factor.is_integer:
            raise Untranslatable(f"{expr}: cannot be solved for {symbol}")
        fresh = sympy.Symbol(f"d{index}_{dim if dim >= 0 else 'n'}", integer=True)
        self._names[fresh] = str(fresh)
        self.sources.append((fresh, index, dim))
        self._solved[symbol] = FloorDiv(fresh - rest, factor)
        self.divides.append((fresh - rest, int(factor)))

    def _read_guards(self) -> Iterator[Any]:
        if self.env is None:
            return
        asserts = [a for many in self.env.deferred_runtime_asserts.values() for a in many]
        for guard in [*self.env.guards, *asserts]:
            expr = self.env.replace(guard.expr).xreplace(self._unified)
            if expr == sympy.true or free_unbacked_symbols(expr):
                continue  # of data: the graph has an operator that asserts it
            one = _not_one(expr)
            if one is not None and _is_metadata(guard):
                self._maybe_one.add(one)
                continue
            if isinstance(expr, sympy.Eq):
                self._learn(*expr.args)
                self._learn(*reversed(expr.args))
            yield from _factors_not_zero(expr)

    def _learn(self, a: Any, b: Any) -> None:
        """From Min(c, s) = s: s is at most c."""
        if isinstance(a, sympy.Symbol) and type(b).__name__ == "Min" and a in b.args:
            for arg in b.args:
                if isinstance(arg, sympy.Integer):
                    self._most[a] = min(int(arg), self._most.get(a, MOST))

    @property
    def are_old(self) -> bool:
        """Whether there are guards now that there were not when this was made."""
        return self.env is not None and len(self.env.guards) != self.n_guards

    def learn_least(self, expr: Any, least: int) -> None:
        """`expr` is at least that: a guard of the graph says so."""
        if isinstance(expr, sympy.Symbol):
            self._least[expr] = max(least, self._least.get(expr, 0))
            self._texts.clear()

    def least(self, symbol: sympy.Symbol) -> int | None:
        """The least value that tracing took for possible, if there is one."""
        bounds = self.env.var_to_range.get(symbol) if self.env is not None else None
        if bounds is None or not isinstance(bounds.lower, sympy.Integer):
            return None
        return int(bounds.lower)

    def guards(self) -> Sequence[Any]:
        """Conditions on sizes that tracing assumed; sympy expressions."""
        return self._guards

    def symbols(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, min, max, multiple_of of each symbol."""
        for symbol, name in self._names.items():
            bounds = self.env.var_to_range.get(symbol) if self.env is not None else None
            low, high = 0, MOST
            if bounds is not None:
                low, high = _bound(bounds.lower, -MOST), _bound(bounds.upper, MOST)
            others = [a for a, b in self._unified.items() if b == symbol]
            if self._maybe_one.intersection([symbol, *others]):
                low = min(low, 1)
            if self._inner and free_unbacked_symbols(symbol):
                # A loop may carry it, and make it larger each time.
                low, high = max(low, -MOST_CARRIED), min(high, MOST_CARRIED)
            high, multiple = min(high, self._most.get(symbol, MOST)), 1
            for known, place, axis in self.sources:
                if known == symbol and (fact := self._facts.get((place, axis))) is not None:
                    low, multiple = max(low, fact.min), fact.multiple_of
                    high = high if fact.max is None else min(high, fact.max)
            low = max(low, self._least.get(symbol, low))
            yield name, max(low, -MOST), high, multiple

    def learned(self) -> dict[sympy.Symbol, int]:
        """Of symbols, the least that guards of this import let them be."""
        return dict(self._least)

    def bring(self, symbol: sympy.Symbol) -> tuple[str, int, int]:
        """Let expressions have a symbol that data brings: its name, min and max."""
        self._names[symbol] = str(symbol)
        bounds = self.env.var_to_range.get(symbol)
        return str(symbol), _bound(bounds.lower, -MOST), _bound(bounds.upper, MOST)

    def compute(self, expr: Any) -> tuple[str, int, int]:
        """Let the core have a symbol for what floats make: its name, min and max."""
        made = sympy.Symbol(f"computed{len(self._computed)}", integer=True)
        self._computed[expr] = made
        self._names[made] = str(made)
        bounds = self.env.bound_sympy(expr)
        return str(made), _bound(bounds.lower, -MOST), _bound(bounds.upper, MOST)

    def is_new(self, size: torch.SymInt) -> bool:
        """Whether a size is a symbol that no input's size has and nothing has brought."""
        expr = self.expr(size)
        return isinstance(expr, sympy.Symbol) and expr not in self._names

    def define(self, symbol: sympy.Symbol, text: int | str) -> None:
        """Let a symbol stand for a size that the core has the text of."""
        self._names[symbol] = f"({text})"

    def knows_data(self, size: Any) -> bool:
        """Whether a size depends on data, all of whose sizes are known by then."""
        symbols = free_unbacked_symbols(size)
        return bool(symbols) and symbols <= self._names.keys()

    def depends_on_data(self, size: Any) -> bool:
        """Whether a size is known only when the graph runs."""
        return bool(free_unbacked_symbols(size))

    def expr(self, size: Any) -> Any:
        """The expression of a SymInt over the symbols of `sources`."""
        expr = (
            size.node.expr
            if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool)
            else size
        )
        return self.over_sources(expr)

    def over_sources(self, expr: Any) -> Any:
        """`expr` over the symbols of `sources`."""
        if self._unified and getattr(expr, "free_symbols", None):
            expr = expr.xreplace(self._unified)
        if self._solved and getattr(expr, "free_symbols", None):
            expr = expr.xreplace(self._solved)
        return expr

    def text(self, size: Any) -> int | str:
        """A Python int, SymInt or sympy expression as the core takes it."""
        if isinstance(size, int):
            return size
        expr = size.node.expr if isinstance(size, torch.SymInt) else size
        known = self._texts.get(expr)
        if known is None:
            full = self._without_min(self.over_sources(expr))
            full = full.xreplace(self._computed) if self._computed else full
            known = (
                int(full) if isinstance(full, sympy.Integer) else _strip(_text(full, self._name))
            )
            self._texts[expr] = known
        return known

    def _without_min(self, expr: Any) -> Any:
        """`expr` with Min(c, s) replaced by s where s is known to be at most c."""
        if not (self._most or self._least) or not hasattr(expr, "replace"):
            return expr

        minimum: Any = Min

        def smaller(*args: Any) -> Any:
            for arg in args:
                if isinstance(arg, sympy.Integer) and all(
                    b is arg or self._least.get(b, -1) >= arg for b in args
                ):
                    return arg
                if all(
                    b is arg or (isinstance(b, sympy.Integer) and self._most.get(arg, MOST) <= b)
                    for b in args
                ):
                    return arg
            return minimum(*args)

        return expr.replace(Min, smaller)

    def symbol_text(self, symbol: sympy.Symbol) -> int | str:
        """The core's text of a symbol."""
        return self.text(symbol)

    def _name(self, symbol: sympy.Symbol) -> str:
        name = self._names.get(symbol)
        if name is None:
            raise Untranslatable(f"{symbol} depends on data")
        return name

    def python(self, expr: Any, names: Mapping[Any, str]) -> str:
        """`expr` as Python source over `MODULES`; `names` says how each symbol is written."""
        from torch.utils._sympy.printers import PythonPrinter

        class Printer(PythonPrinter):
            def _print_Symbol(self, symbol: Any) -> str:
                return names[symbol]

            def _print_ToFloat(self, made: Any) -> str:
                return f"float({self._print(made.args[0])})"

        return str(Printer().doprint(expr))


# Where PyTorch computes metadata of an operator that the graph has as a whole.
_METADATA = (
    "/torch/_decomp/", "/torch/_refs/", "/torch/_prims", "/torch/_subclasses/",
    "/torch/_meta_registrations.py", "/torch/_export/non_strict_utils.py",
)  # fmt: skip


def _is_metadata(guard: Any) -> bool:
    """Whether a guard comes from computing metadata, and not from code that took a branch."""
    frame = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    name = str(getattr(frame, "filename", ""))
    return any(part in name for part in _METADATA)


def _factors_not_zero(expr: Any) -> Iterator[Any]:
    """`expr`, or, if it says that a product of sizes is not 0, that for each of its symbols."""
    if isinstance(expr, sympy.Ne | sympy.Gt) and expr.args[1] == 0:
        product = expr.args[0]
        factors = product.args if isinstance(product, sympy.Mul) else (product,)
        if all(f.is_nonnegative and (f.is_Symbol or f.is_Integer) for f in factors):
            yield from (sympy.Ne(f, 0) for f in factors if f.is_Symbol)
            return
    yield expr


def _not_one(expr: Any) -> sympy.Symbol | None:
    """s, if `expr` says that s is not 1: metadata is then computed as for any size."""
    if not isinstance(expr, sympy.Ne) or len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    difference = sympy.expand(expr.args[0] - expr.args[1])
    if not difference.is_polynomial(symbol) or difference.subs(symbol, 1) != 0:
        return None
    if sympy.degree(difference, symbol) != 1:
        return None
    found: sympy.Symbol = symbol
    return found


def _bound(value: Any, infinite: int) -> int:
    return int(value) if isinstance(value, sympy.Integer) else infinite


def _strip(text: str) -> str:
    """`text` without parentheses around all of it."""
    if text.startswith("("):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                return text[1:-1] if i == len(text) - 1 else text
    return text


def _expressions(value: Any) -> Iterator[tuple[int, Any]]:
    """(dim, expression) of each symbolic size of an input; dim -1 for a SymInt itself."""
    sizes: Any = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]
    for dim, size in sizes:
        if isinstance(size, torch.SymInt):
            yield dim, size.node.expr


def let_go(graph: torch.fx.Graph) -> None:
    """Let sizes of a traced graph be freed with it, when all questions about them are asked.

    A ShapeEnv lists FakeTensors, whose sizes are C++ objects that refer to it: a cycle that
    Python's collector does not see. Caches over all ShapeEnvs keep each of them as well.
    """
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for symbolic in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(symbolic, torch.SymInt | torch.SymFloat):
                environment = symbolic.node.shape_env
                environment.tracked_fakes = []
                environment.fake_tensor_cache.clear()
    for method in vars(ShapeEnv).values():
        if clear := getattr(method, "cache_clear", None):
            clear()
