"""Ways to run a case: eager, the peers, and tilevm through each door."""

from __future__ import annotations

import logging
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from tilevm.tools.bench.case import Case, Function


@dataclass(frozen=True)
class Contestant:
    """`build(case, function)` gives what is timed; `takes(case)`: whether it can run the case.

    packages: without them, the contestant is not there. tensors: makes tensors of results, to be
    compared. What is built may have `compiled()`: how many programs it has compiled so far.
    """

    key: str
    label: str
    build: Callable[[Case, Function], Function]
    takes: Callable[[Case], bool] = lambda case: True
    quick: bool = True  # part of --quick
    packages: tuple[str, ...] = ()
    tensors: Callable[[Any], Any] = lambda results: results


def available() -> tuple[Contestant, ...]:
    """All that is installed; eager, the measure of the others, is first."""
    return tuple(c for c in CONTESTANTS if all(map(find_spec, c.packages)))


def twin(function: Function, name: str) -> types.FunctionType:
    """A function of the same meaning with code of its own: Dynamo keys all it knows on the code."""
    if not isinstance(function, types.FunctionType):
        module = function

        def call(*args: Any) -> Any:
            return module(*args)

        function = call
    code = function.__code__.replace(co_name=name, co_qualname=name) if _QUALIFIED else None
    code = code or function.__code__.replace(co_name=name)
    return types.FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )


_QUALIFIED = hasattr(twin.__code__, "co_qualname")


def _eager(case: Case, function: Function) -> Function:
    return function


def _dynamo(key: str, **options: Any) -> Callable[[Case, Function], Function]:
    def build(case: Case, function: Function) -> Function:
        compiled: Function = torch.compile(twin(function, f"{case.name}_{key}"), **options)
        return compiled

    return build


def _inductor_frozen(case: Case, function: Function) -> Function:
    """Dynamo looks at the setting too, whenever it traces: the first call of each shape may."""
    compiled = _dynamo("inductor_frozen", dynamic=True)(case, function)
    seen: set[tuple[torch.Size, ...]] = set()

    def call(*args: Any) -> Any:
        shapes = tuple([x.shape for x in args])
        if shapes in seen:
            return compiled(*args)
        with torch._inductor.config.patch(freezing=True):
            result = compiled(*args)
        seen.add(shapes)
        return result

    return call


def _kernel(case: Case, function: Function) -> Function:
    import tilevm
    from tilevm.tools.bench import kernels

    return tilevm.kernel(getattr(kernels, case.kernel))


def _compile(case: Case, function: Function) -> Function:
    import tilevm

    compiled: Function = tilevm.compile(function)
    return compiled


def _freeze(case: Case, function: Function) -> Function:
    import tilevm

    compiled: Function = tilevm.compile(function, freeze=True)
    return compiled


def _onnxruntime(case: Case, function: Function) -> Function:
    """The case exported with dynamic sizes; arrays go in and out without a copy."""
    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    module = function if isinstance(function, torch.nn.Module) else _Module(function).eval()
    sizes = case.sweep[len(case.sweep) // 2]
    dims = tuple(
        {i: torch.export.Dim.AUTO for i, d in enumerate(shape) if isinstance(d, str)}
        for _, shape in case.symbolic()
    )
    shapes = (dims,) if isinstance(module, _Module) else dims
    inputs = tuple(case.tensors(sizes))
    with warnings.catch_warnings():  # of what PyTorch's own exporter uses
        warnings.simplefilter("ignore", FutureWarning)
        exported = torch.onnx.export(
            module, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    if exported is None:
        raise RuntimeError("torch.onnx.export gave nothing")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    # Its threads must not spin while the next contestant runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        exported.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    run = session.run

    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, args, strict=True)}
        return [torch.from_numpy(y) for y in run(None, feed)]

    return call


def _jax(case: Case, function: Any) -> Function:
    """JAX's own arrays go in and come out, computed; they share memory with the tensors."""
    import jax

    from tilevm.tools.bench.jax_functions import FUNCTIONS

    jitted = jax.jit(FUNCTIONS[_plain(case)])
    wait: Any = jax.block_until_ready
    state = function.state_dict() if isinstance(function, torch.nn.Module) else None
    given = () if state is None else ({name: _to_jax(x) for name, x in state.items()},)
    arrays: dict[tuple[int, ...], tuple[Any, ...]] = {}  # of the same tensors, call by call

    def call(*args: torch.Tensor) -> Any:
        key = tuple(map(id, args))
        found = arrays.get(key)
        if found is None:
            found = arrays[key] = (*given, *map(_to_jax, args))
        return wait(jitted(*found))

    call.compiled = jitted._cache_size  # type: ignore[attr-defined]
    return call


def _plain(case: Case) -> str:
    return case.name.removesuffix("_bf16")


def _to_jax(x: torch.Tensor) -> Any:
    """An array of the same elements; int64 as int32, since that is what JAX has by default."""
    import jax

    return jax.dlpack.from_dlpack(x.detach().int() if x.dtype == torch.int64 else x.detach())


def _from_jax(results: Any) -> Any:
    from torch.utils.dlpack import from_dlpack

    several = isinstance(results, tuple | list)
    return [from_dlpack(x) for x in results] if several else from_dlpack(results)


def _written_in_jax(case: Case) -> bool:
    from tilevm.tools.bench.jax_functions import FUNCTIONS

    return _plain(case) in FUNCTIONS


class _Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self._function(*args)


def _has_parameters(case: Case) -> bool:
    return case.suite in ("subgraphs", "models", "images")


CONTESTANTS: tuple[Contestant, ...] = (
    Contestant("eager", "eager", _eager),
    Contestant("inductor", "Inductor dynamic", _dynamo("inductor", dynamic=True)),
    Contestant(
        "inductor_static",
        "Inductor static",
        _dynamo("inductor_static", dynamic=False),
        quick=False,
    ),
    Contestant(
        "inductor_frozen",
        "Inductor frozen",
        _inductor_frozen,
        _has_parameters,
        quick=False,
    ),
    Contestant(
        "onnxruntime",
        "ONNX Runtime",
        _onnxruntime,
        lambda case: case.dtype == "float32",
        quick=False,
        packages=("onnxruntime", "onnxscript"),
    ),
    Contestant(
        "jax",
        "JAX",
        _jax,
        _written_in_jax,
        quick=False,
        packages=("jax",),
        tensors=_from_jax,
    ),
    Contestant("kernel", "tilevm.kernel", _kernel, lambda case: bool(case.kernel)),
    Contestant("compile", "tilevm.compile", _compile),
    Contestant("freeze", "tilevm freeze", _freeze, _has_parameters),
    Contestant(
        "torch_compile",
        "torch.compile(tilevm)",
        _dynamo("torch_compile", dynamic=True, backend="tilevm"),
    ),
)
BY_KEY = {contestant.key: contestant for contestant in CONTESTANTS}
TILEVM = ("kernel", "compile", "freeze", "torch_compile")
