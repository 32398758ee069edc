"""The only file that imports `_core`: its interface with types, and nothing else."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, cast

import tilevm._core as _core  # noqa: PLR0402  # mypy finds no such name in the package
from tilevm import log
from tilevm.config import config
from tilevm.runtime import failure

CoreType = tuple[str, bool, tuple[int | str, ...]]  # dtype, weak, sizes
Check = tuple[int | str, int | str, str]  # two sizes that must be equal, the error's message


class Program(Protocol):
    """Operators with symbolic sizes, typed as they are appended. Values are ints, sizes text."""

    def symbol(self, name: str, min: int, max: int, multiple_of: int) -> None:
        """Declare a symbol and what is known of it."""

    def input(self, dtype: str, shape: Sequence[int | str], weak: bool = False) -> int:
        """Append an input; weak: a Python number."""

    def add(
        self, op: str, inputs: Sequence[int], params: Mapping[str, Any], line: str | None
    ) -> int:
        """Append an operator of the table. Raises: ShapeError, DTypeError."""

    def call(
        self,
        target: int,
        inputs: Sequence[int],
        result_types: Sequence[CoreType],
        line: str | None = None,
        ordered: bool = False,
    ) -> int:
        """Append a call-out; results are consecutive, the first is returned.

        Those that are `ordered` run one after the other, as they are appended.
        """

    def item(self, value: int, symbol: str | None, line: str | None = None) -> int:
        """Append a read of a tensor's only element: a Python number, and the size `symbol`."""

    def check(self, a: int | str, b: int | str, message: str) -> None:
        """Each call must check that two sizes are equal, once both are known."""

    def output(self, value: int) -> None:
        """Append an output."""

    def type(self, value: int) -> CoreType:
        """The type of a value."""

    def checks(self) -> list[Check]:
        """Equalities of sizes that typing assumed and each call must check."""

    def size_str(self, text: str) -> str:
        """The normal form of a size expression."""

    def size_value(self, text: str, env: Mapping[str, int]) -> int:
        """The size, for these values of its symbols."""

    def size_compare(self, a: str, b: str) -> bool | None:
        """Whether the two are equal: yes, no, None if it depends."""


class Bytecode(Protocol):
    """Bytes and text of programs: what `tilevm.bytecode` documents."""

    def assemble(self, text: str) -> bytes:
        """Text to bytes."""

    def disassemble(self, data: bytes) -> str:
        """Bytes to text."""

    def verify(self, data: bytes) -> None:
        """Raise where the bytes are not a program."""

    def run(self, data: bytes, inputs: Sequence[Any], outputs: Sequence[Any], *, tier: str) -> None:
        """Verify and run."""


class Variants(Protocol):
    """Calls that run without Python; at most 32, the latest first."""

    watch: Watch | None  # must hold for any of them to run
    reads: frozenset[int] | None  # ids that no container among the arguments may have

    def clear(self) -> None:
        """Drop all, and the watch."""

    def __len__(self) -> int: ...


# ("size", argument, axis), ("stride", argument, axis), ("constant", 3), ("==",), ("require",), ...
GuardStep = tuple[Any, ...]

if TYPE_CHECKING:

    class Watch:
        """Objects in dictionaries, lists and cells, to be compared with what they were.

        whole: dictionaries, lists and cells in which nothing may change. flags: pairs of a
        dictionary and a list of keys whose values may not. parameters: tensors.
        """

        def __init__(
            self,
            whole: list[Any],
            flags: list[tuple[dict[Any, Any], list[Any]]],
            parameters: list[Any],
        ) -> None: ...

        def same(self) -> bool:
            """Whether nothing was replaced, added or removed."""

        def update(self) -> list[Any]:
            """Take what there is now. Returns the owners in which something had changed."""

        def wanted(self) -> bytes:
            """A byte for each parameter: 1, if it requires gradients now."""

    class Dispatch:
        """A callable: a variant of `_ready` runs, or, if none is for the call, `_call`."""

        _ready: Variants

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """The result of a variant, or of `_call`."""

else:
    Watch = _core.Watch
    Dispatch = _core.Dispatch


def add_variant(
    variants: Variants,
    args: tuple[Any, ...],
    run: Callable[..., Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    values: list[Any] | None = None,
    opened: Iterable[type] = (),
    checked: bool = True,
    guards: Sequence[GuardStep] = (),
    inputs: Sequence[int] | None = None,
    bound: tuple[Any, ...] = (),
    outputs: Sequence[int] = (0,),
    result: str = "single",
    rebuild: Callable[[tuple[Any, ...]], Any] | None = None,
    gradients: bool = False,
) -> bool:
    """Let `variants` have calls like this one, that ran with `args` and `kwargs`. False: they
    cannot.

    Arguments are counted as values: those in tuples, lists, dictionaries and objects of the classes
    `opened`, in order; `values`, if the caller says what they are. What is neither a tensor nor a
    number or a string is told by itself alone.
    checked: kinds, element types, ranks, layouts and gradients of the arguments, and modes of
    PyTorch, must be those of this call; otherwise all is left to the executable, and variants for
    earlier calls with arguments of this form are dropped. guards: conditions on sizes, strides and
    ints, in postfix order. inputs: of the executable `run`, indices of arguments, or `~i` for
    `bound[i]`; None: `run` is called with (leaves, args, kwargs). outputs: of the executable, in
    the order of the result, which is the `single` one, a `tuple`, a `list`, or `rebuilt`.
    gradients: results can be differentiated by what requires gradients now.
    """
    added: bool = _core.add_variant(
        variants,
        args,
        dict(kwargs or {}),
        run,
        values=values,
        opened=set(opened),
        checked=checked,
        guards=list(guards),
        inputs=None if inputs is None else list(inputs),
        bound=bound,
        outputs=list(outputs),
        result=result,
        rebuild=rebuild,
        gradients=gradients,
    )
    return added


bytecode: Bytecode = _core.bytecode


def new_program() -> Program:
    """An empty program."""
    program: Program = _core.Program()
    return program


def size_value(text: str, env: Mapping[str, int]) -> int:
    """The size expression `text`, for these values of its symbols."""
    return new_program().size_value(text, env)


def on_frozen(hook: Callable[[Any], int]) -> None:
    """Let `hook` say who owns the memory of a frozen tensor: a number of `new_owner`."""
    _core.on_frozen(hook)


def new_owner() -> int:
    """A number that stands for somebody's memory until `forget`."""
    owner: int = _core.new_owner()
    return owner


def forget(owner: int) -> None:
    """Free what was packed of the owner's memory, which is about to go."""
    _core.forget(owner)


def compile_program(
    program: Program, targets: Sequence[Callable[..., Any]], **options: Any
) -> Callable[..., Any]:
    """An executable: call it with the program's inputs, get a tuple of its outputs.

    It checks its inputs, and raises errors of tilevm.errors. `targets` are what the program's
    call-outs call, by index. The program is empty afterwards. Options are those of `_core.compile`:
    sources (of targets: what they call, as text, for `program_text`), framework, input_names,
    int_symbols, output_orders, follow_inputs, whole_outputs, memory_groups, frozen, written_to,
    apart, complex_inputs, complex_outputs, allow_grad, detached, single (no tuple), and the knobs
    tier, threads, verify, for this program alone.
    """
    run: Callable[..., Any] = _core.compile(cast(_core.Program, program), list(targets), **options)
    return run


def set_poison(on: bool) -> None:
    """For tests: that memory is filled with 0xff, NaN and -1, before kernels and results use it."""
    _core.set_poison(on)


def check_knobs(knobs: dict[str, Any], source: str) -> dict[str, Any]:
    """`knobs` of one program, if this machine has what they ask for. Raises: ValueError."""
    try:
        _core.check_tier(knobs.get("tier", "auto"))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return knobs


def _configure(knobs: Mapping[str, Any]) -> None:
    _core.set_threads(knobs["threads"])
    _core.set_tier(knobs["tier"])
    _core.set_memory_budget(knobs["memory_budget"])
    _core.set_verify(knobs["verify"])
    _core.set_perf(knobs["perf"])
    _core.set_gdb(knobs["gdb"])
    _core.set_packed_memory(knobs["packed_memory"])
    _core.set_library(knobs["library"])
    _core.set_code_memory(knobs["code_memory"])
    _core.set_most_variants(knobs["variants"])
    _core.set_most_segments(knobs["segments"])
    _core.set_template_calls(knobs["templates"])
    _core.set_log_level(knobs["debug"])


_core.on_line(log.tell)
config.watch(_configure)
_core.on_internal_error(failure.save)


class ProgramText(NamedTuple):
    """The program of an executable: text, (name, min, max, multiple_of) of symbols, call-outs.

    Call-outs are their sources.
    """

    text: str
    symbols: list[tuple[str, int, int, int]]
    targets: list[str]


def program_text(executable: Callable[..., Any]) -> ProgramText:
    """What an executable runs, lowered."""
    core: Any = executable
    return ProgramText(*core.program())


class CodeMemory(TypedDict):
    """Memory that holds machine code: bytes used, reserved, and allowed (0: no limit).

    target: what code is emitted for, "interp" if there is none, and then why_none says why.
    """

    used_bytes: int
    reserved_bytes: int
    limit_bytes: int
    target: str
    why_none: str


def code_memory() -> CodeMemory:
    """The state of the process's code memory."""
    state: CodeMemory = _core.code_memory()
    return state


class Memory(TypedDict):
    """Bytes of buffers: in use, kept for later calls, and the most that were ever in use."""

    used_bytes: int
    idle_bytes: int
    peak_bytes: int


def memory() -> Memory:
    """The state of the process's buffers."""
    state: Memory = _core.memory()
    return state


class Threads(TypedDict):
    """setting: threads asked for, 0: as many as there are. team: whether OpenMP is loaded."""

    setting: int
    processors: int
    team: bool


def threads() -> Threads:
    """What decides on how many threads kernels run."""
    state: Threads = _core.threads()
    return state


class TorchDirect(TypedDict):
    """usable: whether tensors can be looked at. asked_in_python: what has no C++ function."""

    usable: bool
    asked_in_python: list[str]


def torch_direct() -> TorchDirect:
    """How the core reads tensors of the torch that is installed. Raises: ImportError."""
    state: TorchDirect = _core.torch_direct()
    return state


def library_dtypes() -> list[str]:
    """Of what PyTorch's library makes products for us. Raises: ImportError."""
    return list(_core.library_dtypes())


def measure_product(m: int, n: int, k: int, dtype: str, lies: str) -> tuple[float, float]:
    """Processor time of a product, ours and the library's, which must have it, in seconds."""
    seconds: tuple[float, float] | None = _core.measure_product(m, n, k, dtype, lies)
    if seconds is None:
        raise ValueError(f"the library has no products of {dtype}")
    return seconds


def set_measured(
    sizes: tuple[list[int], list[int], list[int]], ratios: Mapping[tuple[str, str], list[float]]
) -> None:
    """Times of the library over ours, as `measured.Table`; empty: none. Raises: ValueError."""
    _core.set_measured(sizes, dict(ratios))


def widest_tier() -> str:
    """The tier that products run on where `config.tier` is auto."""
    try:
        _core.check_tier("amx")
    except ValueError:
        return str(_core.code_memory()["target"])
    return "amx"


def record_launches(path: str) -> None:
    """Write what the interpreter runs from now on into a file, until the path is empty."""
    _core.record_launches(path)


Span = tuple[str, str, int, int, int]  # kind, name, begin and end in ns, thread


def trace_start(most: int) -> bool:
    """Keep the spans of what happens from now on, at most so many. False: they are kept already."""
    started: bool = _core.trace_start(most)
    return started


def trace_stop() -> tuple[list[Span], int]:
    """The spans, in the order of their ends; how many there was no room for."""
    taken: tuple[list[Span], int] = _core.trace_stop()
    return taken


def trace_capture(name: str, begin_ns: int, end_ns: int) -> None:
    """Keep the span of a capture, in `time.monotonic_ns`, if spans are kept."""
    if _core.tracing():
        _core.trace_capture(name, begin_ns, end_ns)


os.register_at_fork(after_in_child=_core.trace_after_fork)
# Lines of the core come between two instructions of the main thread: there may be no more.
atexit.register(_core.hand_over_lines)


def eager_engine() -> object:
    """What runs the operators that the recorder of eager code noted."""
    return _core.eager_engine()


def add_template(
    program: Program,
    conditions: Sequence[tuple[int | str, str, int | str]],
    numbers: Sequence[int | str],
    orders: Sequence[Sequence[int]],
    complex_results: Sequence[bool],
    limits: Sequence[tuple[int, float]],
) -> int:
    """Keep a program that recorded segments may have in the place of an operator; its number.

    conditions: what must hold of sizes: (size, "<=", size). numbers: symbols that are arguments.
    orders: dims of each result, from outermost; complex_results: whether its last dim is the parts
    of complex numbers. limits: operands of which no element is above a number. Raises: ValueError,
    where neither inputs nor numbers show a size, or it has call-outs.
    """
    texts = [(str(a), relation, str(b)) for a, relation, b in conditions]
    number: int = _core.add_template(
        program,
        texts,
        [str(n) for n in numbers],
        [list(order) for order in orders],
        list(complex_results),
        list(limits),
    )
    return number


def eager_segments() -> list[str]:
    """Programs of recorded segments, the most recently used first."""
    texts: list[str] = _core.eager_segments()
    return texts


def watch_segments() -> None:
    """Note the segments of recorded operators that this thread runs from now on."""
    _core.watch_segments()


SegmentRun = tuple[str, dict[str, Any], dict[str, Any]]


def watched_segments(*, assembly: bool) -> tuple[list[SegmentRun], list[str]]:
    """What was noted: what made each segment run, what it is, and what it took.

    And the names of the operators on tensors that were not recorded.
    """
    noted: tuple[list[SegmentRun], list[str]] = _core.watched_segments(assembly)
    return noted


def watched_so_far() -> tuple[int, int]:
    """How many segments and operators that were not recorded are noted so far."""
    counts: tuple[int, int] = _core.watched_so_far()
    return counts


def counters() -> dict[str, Any]:
    """The core's counters, by the names of `tilevm.stats()`."""
    values: dict[str, Any] = _core.stats()
    return values


def reset_counters() -> None:
    """Set the core's counters to 0."""
    _core.reset_stats()
