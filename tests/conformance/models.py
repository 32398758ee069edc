"""Architectures of `transformers` through `torch.compile(backend="tilevm")`, against eager mode.

    python -m tests.conformance.models
    python -m tests.conformance.models --name Llama --print

Each runs in a process of its own: inference over sizes that change, generation with a cache, and a
training step. Errors are judged against the same model in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import transformers
from tests.conformance.architectures import ARCHITECTURES, Architecture
from tests.conformance.opinfo import RESULTS
from tests.eager.compare import tensors_in

import tilevm
from tilevm.frontends.torch_graph import backend

SIZES = ((2, 7), (1, 5), (3, 12), (2, 16), (2, 7))  # batch, length
NEW_TOKENS = 5
MODEL_S = 1500  # a model that takes longer is not judged: PyTorch alone traces Swin for 8 minutes
WORSE = 10.0  # times eager's error
FLOOR = 1e-5  # allowed error, of the largest element: eager's may be 0


@dataclass
class Row:
    """What became of a model. Each of the three: "ok", "-" where it has none, or what is wrong.

    captures: graphs, of inference. theirs: the same by an empty backend. callouts: by operator.
    eager: why graphs were not compiled.
    """

    name: str
    inference: str = "-"
    generation: str = "-"
    training: str = "-"
    compile: str = "-"
    captures: int = 0
    theirs: int = 0
    callouts: dict[str, int] = field(default_factory=dict)
    eager: dict[str, int] = field(default_factory=dict)


class Graphs:
    """A backend that counts its graphs. function: the backend, or None for an empty one."""

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function
        self.count = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = gm.forward if self.function is None else self.function(gm, inputs)
        self.count += 1  # after it: PyTorch may start over to make numbers constants
        return compiled


def compiled(model: Any, graphs: Graphs) -> Any:
    """The model through Dynamo; its parameters are the model's."""
    torch._dynamo.reset()
    return torch.compile(model, backend=graphs, dynamic=True)


def outputs(result: Any) -> list[torch.Tensor]:
    """Tensors of a model's result, but its cache."""
    kept = {k: v for k, v in result.items() if "key_values" not in k and "cache" not in k}
    return [x for x in tensors_in(list(kept.values())) if x.is_floating_point()]


def off(
    found: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> str:
    """What is further from the exact result than eager mode explains."""
    if len(found) != len(eager):
        return f"{len(found)} tensors, eager has {len(eager)}"
    for i, (f, e, x) in enumerate(zip(found, eager, exact, strict=True)):
        if f.shape != e.shape or f.dtype != e.dtype:
            return f"number {i} is {f.dtype}{list(f.shape)}, eager's {e.dtype}{list(e.shape)}"
        if not e.numel():
            continue
        numbers = e.isfinite()
        rest = [y[~numbers].nan_to_num(1.0, 2.0, 3.0) for y in (f, e)]
        if not torch.equal(*rest) or not f[numbers].isfinite().all():
            return f"number {i} has other NaNs or infinities than eager's"
        if not numbers.any():
            return f"number {i} has no numbers in eager mode either"
        # Masks by the least number of float64 are -inf where a model casts them to float32.
        right = torch.where(x.isfinite(), x, e.double())
        largest = right[numbers].abs().max().item()
        ours, theirs = ((y.double() - right)[numbers].abs().max().item() for y in (f, e))
        if not ours <= WORSE * theirs + FLOOR * largest:
            return f"number {i} is off by {ours:.2g}, eager's by {theirs:.2g}"
    return ""


def _widened(model: Any) -> Any:
    """The model in float64. PyTorch's grouped products know no float64; other forms of them do."""
    exact = copy.deepcopy(model).double()
    if exact._can_set_experts_implementation():
        exact.set_experts_implementation("eager")
    return exact


def _wide(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def inference(architecture: Architecture, model: Any, function: Callable[..., Any]) -> str:
    """Sizes that change, one after the other."""
    exact = _widened(model)
    for batch, length in SIZES:
        torch.manual_seed(length)
        inputs = architecture.inputs(batch, length)
        with torch.no_grad():
            found = function(**inputs)
            wrong = off(outputs(found), outputs(model(**inputs)), outputs(exact(**_wide(inputs))))
        if wrong:
            return f"WRONG: {batch} x {length}: {wrong}"
    return "ok"


def captures(architecture: Architecture, model: Any) -> int:
    """Graphs that Dynamo makes for the same calls, whoever compiles them."""
    graphs = Graphs(None)
    function = compiled(model, graphs)
    for batch, length in SIZES:
        torch.manual_seed(length)
        with torch.no_grad():
            function(**architecture.inputs(batch, length))
    return graphs.count


def generation(architecture: Architecture, model: Any) -> str:
    """Tokens, chosen greedily with a cache."""
    ours = copy.deepcopy(model)
    torch._dynamo.reset()
    ours.forward = torch.compile(ours.forward, backend="tilevm", dynamic=True)
    for batch, length in SIZES[:2]:
        torch.manual_seed(length)
        inputs = architecture.inputs(batch, length)
        inputs.pop("decoder_input_ids", None)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "use_cache": True}
        with torch.no_grad():
            found, expected = (m.generate(**inputs, **options) for m in (ours, model))
        if not torch.equal(found, expected):
            return f"WRONG: {batch} x {length}: {found.tolist()}, eager's {expected.tolist()}"
    return "ok"


def training(architecture: Architecture, model: Any) -> str:
    """A loss over all results, and gradients of all parameters."""
    model = copy.deepcopy(model).train()
    exact = _widened(model)
    ours = copy.deepcopy(model)
    function = compiled(ours, Graphs(backend))
    for batch, length in SIZES[:2]:
        torch.manual_seed(length)
        inputs = architecture.inputs(batch, length)
        found, eager, wide = (
            _gradients(m, f, i)
            for m, f, i in (
                (ours, function, inputs),
                (model, model, inputs),
                (exact, exact, _wide(inputs)),
            )
        )
        wrong = off(found, eager, wide)
        if wrong:
            return f"WRONG: {batch} x {length}: {wrong}"
    return "ok"


def _gradients(model: Any, function: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The loss, and each parameter's gradient, in order."""
    model.zero_grad()
    results = outputs(function(**inputs))
    loss = sum(((x - 0.1) ** 2).mean() for x in results if x.requires_grad)
    assert isinstance(loss, torch.Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def examine(architecture: Architecture) -> Row:
    """All of a model."""
    row = Row(architecture.name)
    model = architecture.make()
    with _counted(row):
        graphs = Graphs(backend)
        row.inference = _tried(lambda: inference(architecture, model, compiled(model, graphs)))
        row.captures = graphs.count
        row.theirs = captures(architecture, model)
        row.compile = _tried(lambda: inference(architecture, model, tilevm.compile(model)))
        if architecture.generates:
            row.generation = _tried(lambda: generation(architecture, model))
        row.training = _tried(lambda: training(architecture, model))
    return row


@contextmanager
def _counted(row: Row) -> Iterator[None]:
    before = tilevm.stats()
    yield
    after = tilevm.stats()
    row.callouts = dict(Counter(after["callouts"]) - Counter(before["callouts"]))
    row.eager = dict(Counter(after["flushes"]) - Counter(before["flushes"]))


def _tried(part: Callable[[], str]) -> str:
    try:
        return part()
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        return f"raises {type(error).__name__}: {text}"[:300]


def main() -> None:
    """Examine each in a process of its own; rows to build/conformance/models.jsonl."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", action="append", default=[], help="names that contain this")
    parser.add_argument("--from", dest="first", type=int, default=0, help="skip so many")
    parser.add_argument("--print", action="store_true", help="the whole row")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    prepare()
    path = options.results / "models.jsonl" if not options.name else Path(os.devnull)
    options.results.mkdir(parents=True, exist_ok=True)
    with path.open("a" if options.first else "w") as file:
        for architecture in ARCHITECTURES[options.first :]:
            if options.name and not any(n in architecture.name for n in options.name):
                continue
            row = _in_child(architecture)
            file.write(json.dumps(row) + "\n")
            file.flush()
            parts = {k: row[k] for k in ("inference", "generation", "training", "compile")}
            print(row if options.print else f"{row['name']}: {parts}", flush=True)


def prepare() -> None:
    """One thread, quiet."""
    torch.set_num_threads(1)
    tilevm.config.failures = "off"
    quiet: Callable[[], None] = transformers.logging.set_verbosity_error
    quiet()
    warnings.simplefilter("ignore")


def _in_child(architecture: Architecture) -> dict[str, Any]:
    """The row, from a fork of this process, which has imported everything and run nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        signal.alarm(MODEL_S)  # ends this process
        sender.send(asdict(examine(architecture)))

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        late = process.exitcode == -signal.SIGALRM
        ended = f"not done in {MODEL_S} s" if late else f"CRASH: exit status {process.exitcode}"
        found = asdict(Row(architecture.name, inference=ended))
    process.join()
    return found


if __name__ == "__main__":
    main()
