"""A table of kernels from a PyTorch trace: their shapes, how often they ran and for how long.

A kernel belongs to the operator that launched it, and the kernels of one call of an operator make one time. Elements, dtype and
group of a collective are arguments of its kernel or of `record_param_comms`. In a trace without a GPU the operators are the
kernels. Kernels that match no operator of a table are listed by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...units import NS_PER_S, US_PER_S
from ..kernel_table import COLUMNS, FIT, Measured, line, spread
from ..kernel_words import Probe, kernel_of
from . import events as trace_events
from .events import Event, Events, Launches, Op, is_count, launches, union
from .operators import COLLECTIVE_KERNEL, collective_of, is_composite, known_operator, operator_of, probe_of

COPIES = (("DtoD", "d2d"), ("HtoD", "h2d"), ("DtoH", "d2h"))
ELEMENT_BYTES = {
    "BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
SYMMETRIC = "symm_mem::"
"""Start of the names of operators that reach into the memory of their peers."""
MOST_TENSORS = 4
UNMATCHED = "unmatched"
"""The role of rows that are no kernel of a workload: they are not fitted."""
COLLECTIVE = "collective"
UNKNOWN = "unknown"
MORE_COLUMNS = ("total_us", "name")


@dataclass(slots=True)
class Entry:
    """One row of the table: all calls of an operator with the same shape, or of a kernel that matches none."""

    name: str
    probe: Probe
    role: str
    times_us: list[float] = field(default_factory=list)
    operators: int = 0
    """Operators that launched the kernels of a call; 0 where that is not known."""

    @property
    def total_s(self) -> float:
        return sum(self.times_us) / US_PER_S

    def measured(self, gpu: str, source: str) -> Measured:
        """The entry as a row."""
        median_s, low_s, high_s = spread([time / US_PER_S for time in self.times_us])
        times = (max(median_s, 1 / NS_PER_S), low_s, high_s, len(self.times_us))
        return Measured(gpu, self.probe, *times, source, self.role, operators=self.operators or None)


@dataclass(frozen=True, slots=True)
class Trace:
    """The kernels of a trace, and how busy the device was."""

    gpu: str
    device: str
    """`cuda` or `cpu`."""
    entries: tuple[Entry, ...]
    collectives: tuple[Entry, ...]
    span_s: float
    """From the first kernel to the end of the last."""
    busy_s: float
    """Of that, time while any kernel ran."""
    launches: Launches


def read(path: Path, gpu: str = "") -> Trace:
    """A trace, plain or gzipped."""
    events = trace_events.read(path)
    on_gpu = bool(events.device)
    roots = [op for ops in events.ops.values() for op in ops if op.parent is None]
    gathered = sorted(_gathered(_on_device(events) if on_gpu else _on_host(roots)), key=lambda entry: -entry.total_s)
    spans = [(event.start_us, event.end_us) for event in events.device or roots]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    return Trace(
        gpu or (events.gpu if on_gpu else "cpu"),
        "cuda" if on_gpu else "cpu",
        tuple(entry for entry in gathered if entry.role != COLLECTIVE),
        tuple(entry for entry in gathered if entry.role == COLLECTIVE),
        (last - first) / US_PER_S,
        union(spans) / US_PER_S,
        launches(events.runtime),
    )


# Kernels --------------------------------------------------------------------------------------------------------------------

Pair = tuple[tuple[str, Probe, str], float, int, int]
"""(name, kernel, role) of a row, microseconds, which call of an operator the time belongs to, -1 for a call of its own, and which
operator within that launched it."""


def _on_device(events: Events) -> Iterator[Pair]:
    """Every kernel of the GPU with its row."""
    calls: dict[int, int] = {}
    for event in events.device:
        lasted_us, op = event.end_us - event.start_us, events.launcher(event)
        whole = known_operator(op) if op else None
        if COLLECTIVE_KERNEL.search(event.name) or "Collective name" in event.args:
            recorded = next(filter(None, map(_recorded, op.chain if op else [])), {})
            yield _collective(event.name, {**recorded, **event.args}), lasted_us, -1, 0
        elif whole is None:
            yield _stray(event), lasted_us, -1, 0
        else:
            outer, probe = whole
            yield _row(outer.name, probe), lasted_us, calls.setdefault(id(outer), len(calls)), id(op)


def _on_host(ops: Sequence[Op]) -> Iterator[Pair]:
    """Operators of a trace without a GPU: those that are kernels of a table, and of the rest those that call nothing."""
    for op in ops:
        probe, inner = probe_of(op), list(_on_host(op.inner))
        if probe is not None and (is_composite(op) or all(below.op == UNKNOWN for (_, below, _), *_ in inner)):
            yield _row(op.name, probe), op.end_us - op.start_us, -1, 0
        elif inner:
            yield from inner
        else:
            yield (op.name, Probe(UNKNOWN, UNKNOWN, variant=op.name), UNMATCHED), op.end_us - op.start_us, -1, 0


def _row(name: str, probe: Probe) -> tuple[str, Probe, str]:
    return name, probe, FIT if kernel_of(probe) is not None else UNMATCHED


def _stray(event: Event) -> tuple[str, Probe, str]:
    """The row of a kernel without a known operator: a copy, or an operator by the name of the kernel."""
    name, moved = event.name, event.args.get("bytes")
    direction = next((ours for words, ours in COPIES if words in name), "")
    if direction and is_count(moved) and moved >= 2:
        return _row(name.partition(" (")[0], Probe("copy", "bf16", 1, moved // 2, variant=direction))
    return name, Probe(operator_of(name) or UNKNOWN, UNKNOWN, variant=name), UNMATCHED


def _recorded(op: Op) -> Mapping[str, Any]:
    """The arguments of a collective that an operator launched; those of symmetric memory have their tensor first."""
    if "Collective name" in op.args:
        return op.args
    sizes = [math.prod(dims) for place in range(MOST_TENSORS) if (dims := op.dims(place))]
    if not op.name.startswith(SYMMETRIC) or not sizes:
        return {}
    # a sum has as many elements as its result, in a buffer that may be larger
    elements = min(sizes) if collective_of(op.name) == "all_reduce" else max(sizes)
    dtype = {name.lower(): name for name in ELEMENT_BYTES}.get(op.type_name(0).lower(), UNKNOWN)
    return {"Collective name": op.name, "In msg nelems": elements, "dtype": dtype}


def _collective(name: str, args: Mapping[str, Any]) -> tuple[str, Probe, str]:
    """A collective: its payload in bytes as nccl-tests counts it (`n`), and its ranks (`batch`)."""
    kind = collective_of(str(args.get("Collective name", ""))) or collective_of(name) or UNKNOWN
    elements = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    most = max((count for count in elements if is_count(count)), default=0)
    dtype, ranks = str(args.get("dtype") or UNKNOWN), args.get("Group size")
    payload_bytes = most * ELEMENT_BYTES.get(dtype, 0)
    size = ranks if is_count(ranks) else 0
    return kind, Probe(kind, dtype, n=payload_bytes, batch=size, variant="n = bytes, batch = ranks"), COLLECTIVE


def _gathered(pairs: Iterable[Pair]) -> list[Entry]:
    """Rows with the times of their calls; the kernels of one call are one time."""
    entries: dict[tuple[Probe, str], Entry] = {}
    calls: dict[tuple[Probe, int], tuple[int, set[int]]] = {}
    for (name, probe, role), time_us, call, operator in pairs:
        entry = entries.setdefault((probe, role), Entry(name, probe, role))
        if call < 0:
            entry.times_us.append(time_us)
            continue
        if (probe, call) not in calls:
            calls[probe, call] = len(entry.times_us), set()
            entry.times_us.append(0.0)
        at, operators = calls[probe, call]
        entry.times_us[at] += time_us
        operators.add(operator)
        entry.operators = max(entry.operators, len(operators))
    return list(entries.values())


def text(trace: Trace, source: str) -> str:
    """The kernels of a trace as a table that `calibrate fit` reads."""
    lines = [line([*COLUMNS, *MORE_COLUMNS])]
    for entry in (*trace.entries, *trace.collectives):
        total_us = f"{sum(entry.times_us):.6g}"
        lines.append(line([*entry.measured(trace.gpu, source).cells(), total_us, entry.name]))
    return "".join(lines)


def record(trace: Trace) -> dict[str, Any]:
    """The JSON of a trace."""
    total_s = sum(entry.total_s for entry in (*trace.entries, *trace.collectives))
    strange_s = sum(entry.total_s for entry in trace.entries if entry.role == UNMATCHED)

    def described(e: Entry) -> dict[str, Any]:
        if e.role == COLLECTIVE:
            words = {"kind": e.probe.op, "dtype": e.probe.dtype, "bytes": e.probe.n, "ranks": e.probe.batch}
        else:
            words = {"name": e.name, "kernel": str(e.probe), "op": e.probe.op, "role": e.role}
        spread_us = dict(zip(("median_us", "p10_us", "p90_us"), spread(e.times_us), strict=True))
        return {**words, "calls": len(e.times_us), **spread_us, "total_us": sum(e.times_us)}

    return {
        "gpu": trace.gpu,
        "device": trace.device,
        "kernels": list(map(described, trace.entries)),
        "collectives": list(map(described, trace.collectives)),
        "span_s": trace.span_s,
        "busy_s": trace.busy_s,
        "busy_fraction": trace.busy_s / trace.span_s if trace.span_s else 0.0,
        "unmatched_fraction": strange_s / total_s if total_s else 0.0,
        "launches": asdict(trace.launches),
    }
