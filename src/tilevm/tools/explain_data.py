"""An explanation as plain data. docs/explain.md has the keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from statistics import median
from typing import TYPE_CHECKING, Any

from tilevm.tools import assembly, roofline

if TYPE_CHECKING:
    from tilevm.tools.explanation import CallOut, Explanation

FORMAT = "tilevm.explain/1"
RECORDING = "tilevm.recording/1"
_UNBOUNDED = (1 << 63) - 1
_NOT_COMPUTED = "no kernel makes it: it is a view, or made by a step of the host"


def to_json(explanation: Explanation, *, limits: bool) -> dict[str, Any]:
    """Plain data. limits: with the machine's, which are measured where that was not done yet."""
    steps = _steps(explanation)
    machine = roofline.limits(steps) if limits and explanation.profiles else None
    products: dict[int, list[dict[str, Any]]] = {}
    for product, border in _products(explanation.operators, steps, explanation.decisions):
        rows = products.setdefault(product["step"], [])
        if border not in rows:
            rows.append(border)
    kernels = [
        _kernel(number, kernel, explanation, products)
        for number, kernel in enumerate(explanation.kernels)
    ]
    memory = _memory(explanation)
    timing = _timing(explanation, steps)
    interface = explanation.interface or {"inputs": (), "outputs": (), "checks": ()}
    return {
        "format": FORMAT,
        "title": explanation.title,
        "summary": _summary(explanation, steps, kernels, memory, timing),
        "symbols": _symbols(explanation),
        "guards": list(explanation.guards),
        "checks": list(interface["checks"]),
        "inputs": _inputs(explanation),
        "outputs": [{"value": v, "type": text} for v, text in interface["outputs"]],
        "operators": list(explanation.operators),
        "steps": steps,
        "kernels": kernels,
        "decisions": list(explanation.decisions),
        "memory": memory,
        "call_outs": callout_data(explanation.callouts),
        "compiling": [{"phase": phase, "us": us} for phase, us in explanation.compiling],
        "timing": timing,
        "machine": machine,
        "parts": [
            {"step": p.step, "does": p.does, **to_json(p.explanation, limits=limits)}
            for p in explanation.parts
        ],
    }


def callout_data(callouts: Sequence[CallOut]) -> list[dict[str, str]]:
    """What the framework ran, as plain data."""
    return [{"name": c.name, "reason": c.reason, "line": c.line} for c in callouts]


def input_rows(explanation: Explanation) -> list[str]:
    """A line for each input, if the name of one is known."""
    rows = _inputs(explanation)
    if not any(row["name"] for row in rows):
        return []
    return [f"%{row['value']}: {row['type']}  {row['name']}".rstrip() for row in rows]


def step_rows(explanation: Explanation, *, limits: bool) -> list[str]:
    """A line for each step of a call, with its time and its limit as far as they are known."""
    texts = [str(step["text"]) for step in explanation.steps]
    if not explanation.profiles:
        return texts
    steps = _steps(explanation)
    if limits:
        roofline.limits(steps)
    call_ns = _timing(explanation, steps)["call_ns"]
    columns = [[_us(step["ns"]) for step in steps]]
    if any(step["limit_ns"] is not None for step in steps):
        columns.append(
            [
                f"({_us(step['limit_ns'])} by {step['limited_by']})" if step["limited_by"] else ""
                for step in steps
            ]
        )
    wide = [max(map(len, column), default=0) for column in columns]
    below = "\n" + " " * (sum(wide) + 2 * len(wide))
    rows = [
        ("".join(f"{told:>{n}}  " for told, n in zip(row, wide, strict=True)) + text).replace(
            "\n", below
        )
        for row, text in zip(zip(*columns, strict=True), texts, strict=True)
    ]
    best = sum(step["limit_ns"] or 0 for step in steps)
    limit = f"; at best {_us(best)} for the steps, by the limits in brackets" if best else ""
    return [*rows, f"{_us(call_ns)} for all, with inputs and outputs{limit}"]


def _us(ns: float) -> str:
    return f"{ns / 1000:.1f} us"


def decision_rows(explanation: Explanation) -> list[str]:
    """A line for each decision: the value, from where to where, why, and the fact behind it."""
    rows = []
    for row in explanation.decisions:
        fact = f" [{row['fact']}]" if row["fact"] else ""
        ends = f"{_end(row['maker'], explanation)} -> {_end(row['reader'], explanation)}"
        rows.append(f"%{row['value']}: {row['type']}: {row['reason']}{fact}, {ends}")
    return rows


def memory_rows(explanation: Explanation) -> list[str]:
    """A line for each buffer of the arena: its size, its life, and where it lies."""
    return [
        f"%{b['value']}: {b['size']} bytes, steps {b['first']} to {b['last']}: " + _placed(b)
        for b in _memory(explanation)["buffers"]
    ]


def _end(place: Mapping[str, Any] | None, explanation: Explanation) -> str:
    """Where a value comes from or goes to, in a few words."""
    if place is None:
        return "the caller"
    line = f" ({place['line']})" if place["line"] else ""
    kernel = place["kernel"]
    name = f" in kernel {kernel} {explanation.kernels[kernel]['name']}" if kernel >= 0 else ""
    return f"{place['op']}{name}{line}"


def operators(described: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The operators that the core describes, call-outs by the name of what they call."""
    return tuple(
        {"index": i, **row, "op": described["steps"][row["step"]]["name"]}
        if row["op"] == "call" and row["step"] >= 0
        else {"index": i, **row}
        for i, row in enumerate(described["operators"])
    )


def _inputs(explanation: Explanation) -> list[dict[str, Any]]:
    inputs = (explanation.interface or {"inputs": ()})["inputs"]
    names = explanation.names or ("",) * len(inputs)
    return [
        {"value": value, "type": text, "name": name}
        for (value, text), name in zip(inputs, names, strict=True)
    ]


def _summary(
    explanation: Explanation,
    steps: Sequence[Mapping[str, Any]],
    kernels: Sequence[Mapping[str, Any]],
    memory: Mapping[str, Any],
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    limits = [step["limit_ns"] for step in steps if step["limit_ns"] is not None]
    variants = [variant for kernel in kernels for variant in kernel["variants"]]
    launches = [step for step in steps if step["kind"] in ("kernel", "chain")]
    return {
        "operators": len(explanation.operators),
        "kernels": sum(len(step["kernels"]) for step in launches),
        "launches": len(launches),
        "call_outs": len(explanation.callouts),
        "interpreted": sum(variant["tier"] == "interp" for variant in variants),
        "compile_us": sum(us for _, us in explanation.compiling),
        "call_ns": timing["call_ns"],
        "limit_ns": sum(limits) if limits else None,
        "arena_bytes": memory["arena_bytes"],
    }


def _symbols(explanation: Explanation) -> list[dict[str, Any]]:
    sizes = explanation.profiles[0]["sizes"] if explanation.profiles else {}
    return [
        {
            "name": name,
            "min": low,
            "max": None if high == _UNBOUNDED else high,
            "multiple_of": multiple,
            "value": sizes.get(name),
        }
        for name, low, high, multiple in explanation.symbols
    ]


def _timing(explanation: Explanation, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians; of the call, their sum: what disturbs a run is in one of its parts."""
    profiles = explanation.profiles
    begin_ns = median(p["begin_ns"] for p in profiles) if profiles else None
    end_ns = median(p["end_ns"] for p in profiles) if profiles else None
    whole = begin_ns is not None and end_ns is not None
    return {
        "runs": len(profiles),
        "untimed": explanation.untimed,
        "call_ns": begin_ns + sum(step["ns"] for step in steps) + end_ns if whole else None,
        "begin_ns": begin_ns,
        "end_ns": end_ns,
    }


def _steps(explanation: Explanation) -> list[dict[str, Any]]:
    profiles = explanation.profiles
    lines: dict[int, list[str]] = defaultdict(list)
    for row in explanation.operators:
        lines[row["step"]] += [row["line"]] if row["line"] else []
    rows = []
    for index, step in enumerate(explanation.steps):
        last = profiles[-1]["steps"][index] if profiles else {}
        times = [p["steps"][index]["ns"] for p in profiles]
        rows.append(
            {
                "index": index,
                "kind": step["kind"],
                "name": step["name"],
                "text": step["text"],
                "kernels": list(step["kernels"]),
                "ways": list(step["ways"]),
                "module": _module(lines[index]),
                "ns": median(times) if times else None,
                "read_bytes": last.get("read_bytes"),
                "written_bytes": last.get("written_bytes"),
                "flops": last.get("flops"),
                "factors": last.get("factors", ""),
                "vector_ops": roofline.vector_ops(last["operations"]) if last else None,
                "limit_ns": None,
                "limited_by": "",
            }
        )
    return rows


def _module(lines: Iterable[str]) -> str:
    """The path of the module that all of these are in; empty: none, or that which was called."""
    paths = {line.partition(" in ")[2] for line in lines}
    names = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(name[0] for name in takewhile(lambda name: len({*name}) == 1, names))


def decisions(
    described: Mapping[str, Any], operators: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """The decisions that the core describes, with where values come from and go to.

    And what matrix products make for other steps, of which the core decides nothing.
    """

    def place(node: int) -> dict[str, Any] | None:
        return _place(operators[node]) if node >= 0 else None

    rows = [
        {
            "value": row["value"],
            "type": row["type"],
            "maker": place(row["maker"]),
            "reader": place(row["reader"]),
            "reason": row["reason"],
            "fact": row["fact"],
        }
        for row in described["decisions"]
    ]
    decided = {row["value"] for row in rows}
    for product, border in _products(operators, described["steps"], tuple(rows)):
        if border["does"] == "stores" and border["value"] not in decided:
            row = {key: border[key] for key in ("value", "type", "reason", "fact")}
            rows.append({**row, "maker": _place(product), "reader": border["other"]})
    return tuple(rows)


def _kernel(
    number: int,
    kernel: Mapping[str, Any],
    explanation: Explanation,
    products: Mapping[int, list[dict[str, Any]]],
) -> dict[str, Any]:
    operators = explanation.operators
    step = next((i for i, s in enumerate(explanation.steps) if number in s["kernels"]), None)
    lines = dict.fromkeys(operators[n]["line"] for n in kernel["operators"])
    return {
        "index": number,
        "name": kernel["name"],
        "step": step,
        "axes": list(kernel["axes"]),
        "operators": list(kernel["operators"]),
        "lines": [line for line in lines if line],
        "nodes": list(kernel["nodes"]),
        "why_separate": list(_borders(number, kernel, operators, explanation.decisions)),
        "products": products.get(step, []) if step is not None else [],
        "variants": [
            {
                "layout": v["layout"],
                "tier": v["tier"],
                "why_interp": v["why_interp"],
                "launches": v["launches"],
                "compile_us": v["compile_us"],
                "bytecode": [_instruction(line) for line in v["disassembly"].splitlines()],
                "assembly": list(assembly.rows(v)) if v.get("assembly") else [],
            }
            for v in kernel["variants"]
        ],
    }


def _borders(
    number: int,
    kernel: Mapping[str, Any],
    operators: Sequence[Mapping[str, Any]],
    decisions: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """What the kernel stores and reads, for whom and from whom, and why it is not the same one."""
    decided = set()
    for row in decisions:
        ends = {"stores": row["maker"], "reads": row["reader"]}
        for does, end in ends.items():
            other = row["reader"] if does == "stores" else row["maker"]
            if end is None or end["kernel"] != number or (other and other["kernel"] == number):
                continue
            decided.add(row["value"])
            yield {
                "does": does,
                "value": row["value"],
                "type": row["type"],
                "other": other,
                "reason": row["reason"],
                "fact": row["fact"],
            }
    made = {value: row for row in operators for value in row["values"]}
    step = next((operators[n]["step"] for n in kernel["operators"]), None)
    seen = set()
    for node in kernel["operators"]:
        for value in operators[node]["inputs"]:
            maker = made.get(value)
            if maker is None or maker["kernel"] >= 0 or maker["step"] in (-1, step):
                continue
            if value in decided or value in seen:
                continue
            seen.add(value)
            yield {
                "does": "reads",
                "value": value,
                "type": maker["types"][maker["values"].index(value)],
                "other": _place(maker),
                "reason": _NOT_COMPUTED,
                "fact": "",
            }


_LEFT = "it is a factor of a matrix product, which takes it from memory"
_RIGHT = "a right factor, of which each row of the product needs all"


def _products(
    operators: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    decided: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Matrix products of chains, each with what it reads from other steps or makes for others.

    And why. Views between are left out; so are operands of the call.
    """
    made = {value: row for row in operators for value in row["values"]}
    readers: dict[int, list[Mapping[str, Any]]] = {}
    for row in operators:
        for value in row["inputs"]:
            readers.setdefault(value, []).append(row)
    known = {(d["value"], d["reader"]["operator"] if d["reader"] else None): d for d in decided}

    def is_view(row: Mapping[str, Any]) -> bool:
        kind = steps[row["step"]]["kind"] if row["step"] >= 0 else "view"
        return row["kernel"] < 0 and len(row["inputs"]) == 1 and kind in ("view", "reshape")

    def border(does: str, value: int, other: Mapping[str, Any], why: Any) -> dict[str, Any]:
        maker = made[value]
        return {
            "does": does,
            "value": value,
            "type": maker["types"][maker["values"].index(value)],
            "other": _place(other),
            "reason": why if isinstance(why, str) else why["reason"],
            "fact": "" if isinstance(why, str) else why["fact"],
        }

    for product in operators:
        step = product["step"]
        if step < 0 or product["kernel"] >= 0 or steps[step]["kind"] != "chain":
            continue
        for place, factor in enumerate(product["inputs"]):
            value = factor
            while value in made and is_view(made[value]):
                value = made[value]["inputs"][0]
            if value in made and made[value]["step"] not in (-1, step):
                why = known.get((value, product["index"]), _RIGHT if place else _LEFT)
                yield product, border("reads", value, made[value], why)
        for value in product["values"]:
            behind = [(row, value) for row in readers.get(value, ())]
            while behind:
                row, read = behind.pop()
                if is_view(row):
                    behind += [(r, v) for v in row["values"] for r in readers.get(v, ())]
                elif row["step"] != step:
                    why = known.get((read, row["index"]), _LEFT)
                    yield product, border("stores", value, row, why)


def _place(operator: Mapping[str, Any]) -> dict[str, Any]:
    """Where an operator stands."""
    return {
        "operator": operator["index"],
        **{key: operator[key] for key in ("op", "line", "kernel", "step")},
    }


def _instruction(line: str) -> dict[str, str]:
    """A line of bytecode: its text, what it means, and where it comes from."""
    text, meaning, source = (*line.split(" ; ", 2), "", "")[:3]
    return {"text": text.rstrip(), "meaning": meaning.strip(), "line": source.strip()}


def _memory(explanation: Explanation) -> dict[str, Any]:
    """The arena: which buffer lies where and when, in bytes where the sizes of a call are known."""
    memory = explanation.memory or {"buffers": (), "places": (), "alignment": 1}
    profile = explanation.profiles[-1] if explanation.profiles else None
    offsets = _offsets(memory, profile["places"]) if profile else None
    lives: dict[int, list[Mapping[str, Any]]] = {}  # by place: what lies there, one after another
    for row in memory["buffers"]:
        lives.setdefault(row["place"], []).append(row)
    buffers = []
    for row in memory["buffers"]:
        place = row["place"]
        below = [
            {"value": other["value"], "until": other["last"]}
            for under in memory["places"][place]["below"]
            for other in lives[under]
            if other["last"] >= row["first"] and row["last"] >= other["first"]
        ]
        kept = {key: row[key] for key in ("value", "type", "size", "first", "last")}
        bytes_ = profile["places"][place] if profile else None
        over = row["over"] if row["over"] >= 0 else None
        offset = offsets[place] if offsets else None
        buffers.append({**kept, "bytes": bytes_, "offset": offset, "over": over, "below": below})
    changes = [0] * (len(explanation.steps) + 1)
    for place, rows in lives.items():  # what replaces another is no memory more
        changes[min(row["first"] for row in rows)] += profile["places"][place] if profile else 0
        changes[max(row["last"] for row in rows) + 1] -= profile["places"][place] if profile else 0
    live = list(accumulate(changes))[:-1]
    ends = [row["offset"] + row["bytes"] for row in buffers] if profile else []
    return {
        "buffers": buffers,
        "live_bytes": live,
        "most_live_bytes": max(live, default=0) if profile else None,
        "most_live_step": live.index(max(live)) if profile and buffers else None,
        "arena_bytes": max(ends, default=0) if profile else None,
        "without_reuse_bytes": sum(row["bytes"] for row in buffers) if profile else None,
    }


def _offsets(memory: Mapping[str, Any], sizes: Sequence[int]) -> list[int]:
    """Where each place begins, as the host computes it; stages one after the other."""
    unit = memory["alignment"]
    offsets: list[int] = []
    ends: list[int] = []
    tops: dict[int, int] = {}  # by stage
    for place, size in zip(memory["places"], sizes, strict=True):
        offsets.append(max((ends[under] for under in place["below"]), default=0))
        ends.append(offsets[-1] + -(-size // unit) * unit)
        tops[place["stage"]] = max(tops.get(place["stage"], 0), ends[-1])
    bases = {stage: sum(top for s, top in tops.items() if s < stage) for stage in tops}
    return [
        offset + bases[place["stage"]]
        for offset, place in zip(offsets, memory["places"], strict=True)
    ]


def _placed(row: Mapping[str, Any]) -> str:
    """Why a buffer lies where it does."""
    if row["over"] is not None:
        return f"where %{row['over']} was, which is read last for it"
    if not row["below"]:
        return "at the bottom"
    names = [f"%{other['value']} until step {other['until']}" for other in row["below"][:3]]
    more = len(row["below"]) - len(names)
    return "above what lives as well: " + ", ".join(names) + (f" and {more} more" if more else "")
