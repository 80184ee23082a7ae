"""A table of kernels from a PyTorch trace: their shapes, number of runs and times.

A kernel belongs to the operator that launched it, and the kernels of one call of an operator add up to one time. Elements, dtype
and group of a collective are arguments of its kernel or of `record_param_comms`. In a trace without a GPU the operators are the
kernels. Kernels that match no operator of a table are listed by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError, shown
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
"""Prefix of operators that access the memory of their peers."""
MOST_TENSORS = 4
UNMATCHED = "unmatched"
"""Role of rows that are no kernel of a workload: these rows are not fitted."""
COLLECTIVE, BYTES_AND_RANKS = "collective", "n = bytes, batch = ranks"
"""Role and variant of rows of collectives."""
UNKNOWN = "unknown"


@dataclass(slots=True)
class Entry:
    """One row of the table: all calls of an operator with the same shape, or all runs of a kernel that matches no operator."""

    name: str
    probe: Probe
    role: str
    times_us: list[float] = field(default_factory=list)
    operators: int = 0
    """Number of operators that launched the kernels of one call; 0 if unknown."""

    @property
    def total_s(self) -> float:
        return sum(self.times_us) / US_PER_S


@dataclass(frozen=True, slots=True)
class Trace:
    """The kernels of a trace, and the busy time of the device."""

    gpu: str
    device: str
    """The device of the kernels: `cuda` or `cpu`."""
    entries: tuple[Entry, ...]
    collectives: tuple[Entry, ...]
    span_s: float
    """Seconds from the start of the first kernel to the end of the last."""
    busy_s: float
    """Seconds within the span in which at least one kernel ran."""
    launches: Launches


def read(path: Path, gpu: str = "") -> Trace:
    """The kernels of a trace file, plain or gzipped."""
    events = trace_events.read(path)
    on_gpu = bool(events.device)
    if gpu and not on_gpu:
        message = f"no kernel of a GPU in the trace, whose times could be those of {shown(gpu)}"
        hint = "profile with ProfilerActivity.CUDA; without a GPU's name, the times are those of the host"
        raise UserError(message, where=str(path), hint=hint)
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

Timed = tuple[str, Probe, float, int, int]
"""Name and kernel of a row, microseconds, the number of the operator call that the time belongs to (-1 for a separate call), and
the operator within that call that launched the kernel."""


def _on_device(events: Events) -> Iterator[Timed]:
    """Every kernel of the GPU, with its row."""
    calls: dict[int, int] = {}
    for event in events.device:
        lasted_us, op = event.end_us - event.start_us, events.launcher(event)
        known = known_operator(op) if op else None
        if COLLECTIVE_KERNEL.search(event.name) or "Collective name" in event.args:
            recorded = next(filter(None, map(_recorded, op.chain if op else [])), {})
            probe = _collective(event.name, {**recorded, **event.args})
            yield probe.op, probe, lasted_us, -1, 0
        elif known is None:
            yield *_without_operator(event), lasted_us, -1, 0
        else:
            outer, probe = known
            yield outer.name, probe, lasted_us, calls.setdefault(id(outer), len(calls)), id(op)


def _on_host(ops: Sequence[Op]) -> Iterator[Timed]:
    """Operators of a trace without a GPU: operators that are kernels of a table, and other operators that call nothing."""
    for op in ops:
        probe, inner = probe_of(op), list(_on_host(op.inner))
        if probe is not None and (is_composite(op) or all(below.op == UNKNOWN for _, below, *_ in inner)):
            yield op.name, probe, op.end_us - op.start_us, -1, 0
        elif inner:
            yield from inner
        else:
            yield op.name, Probe(UNKNOWN, UNKNOWN, variant=op.name), op.end_us - op.start_us, -1, 0


def _without_operator(event: Event) -> tuple[str, Probe]:
    """Name and row of a kernel without a known operator: a copy, or an operator identified by the kernel's name."""
    name, moved = event.name, event.args.get("bytes")
    direction = next((ours for words, ours in COPIES if words in name), "")
    if direction and is_count(moved) and moved >= 2:
        return name.partition(" (")[0], Probe("copy", "bf16", 1, moved // 2, variant=direction)
    return name, Probe(operator_of(name) or UNKNOWN, UNKNOWN, variant=name)


def _recorded(op: Op) -> Mapping[str, Any]:
    """The recorded arguments of a collective that an operator launched. Operators of symmetric memory have their tensor first."""
    if "Collective name" in op.args:
        return op.args
    sizes = [math.prod(dims) for place in range(MOST_TENSORS) if (dims := op.dims(place))]
    if not op.name.startswith(SYMMETRIC) or not sizes:
        return {}
    # a sum has as many elements as its result, in a buffer that may be larger
    elements = min(sizes) if collective_of(op.name) == "all_reduce" else max(sizes)
    dtype = {name.lower(): name for name in ELEMENT_BYTES}.get(op.type_name(0).lower(), UNKNOWN)
    return {"Collective name": op.name, "In msg nelems": elements, "dtype": dtype}


def _collective(name: str, args: Mapping[str, Any]) -> Probe:
    """A collective as a row: its payload in bytes as nccl-tests counts it (`n`), and its ranks (`batch`)."""
    kind = collective_of(str(args.get("Collective name", ""))) or collective_of(name) or UNKNOWN
    elements = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    most = max((count for count in elements if is_count(count)), default=0)
    dtype, ranks = str(args.get("dtype") or UNKNOWN), args.get("Group size")
    payload_bytes = most * ELEMENT_BYTES.get(dtype, 0)
    size = ranks if is_count(ranks) else 0
    return Probe(kind, dtype, n=payload_bytes, batch=size, variant=BYTES_AND_RANKS)


def _gathered(timed: Iterable[Timed]) -> list[Entry]:
    """Rows with the times of their calls; the kernels of one call add up to one time."""
    entries: dict[Probe, Entry] = {}
    calls: dict[tuple[Probe, int], tuple[int, set[int]]] = {}
    for name, probe, time_us, call, operator in timed:
        if probe not in entries:
            role = FIT if kernel_of(probe) is not None else UNMATCHED
            entries[probe] = Entry(name, probe, COLLECTIVE if probe.variant == BYTES_AND_RANKS else role)
        entry = entries[probe]
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
    lines = [line([*COLUMNS, "total_us", "name"])]
    for entry in (*trace.entries, *trace.collectives):
        median_s, low_s, high_s = spread([time / US_PER_S for time in entry.times_us])
        times = (max(median_s, 1 / NS_PER_S), low_s, high_s, len(entry.times_us))
        row = Measured(trace.gpu, entry.probe, *times, source, entry.role, operators=entry.operators or None)
        lines.append(line([*row.cells(), f"{sum(entry.times_us):.6g}", entry.name]))
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
