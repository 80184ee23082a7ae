"""Events of PyTorch's traces (Kineto, in the format of Chrome's trace viewer): operators nested by thread, kernels, launches.

A kernel of the GPU names the operator that launched it by `External id`, or by the `correlation` of its launch, which lies within
an operator on the same thread. Both numbers are unique within a process. In a trace of several processes a kernel has the number
of its device instead of its process, and belongs to the latest launch of its number before it. Times are microseconds, as in the
trace; some writers quote them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard, TypeVar

from ...errors import Fault, UserError, shown
from ...files import check_count, parsed_json, read_unzipped
from ...units import US_PER_S
from ..kernel_words import FORMAT_NAMES

MOST_VALUES, MOST_HOLDERS = 15_000_000, 8_000_000
"""Largest number of values of a trace, counted by commas, and of lists and objects, since an empty one takes 70 bytes."""
MOST_BYTES = 2**28
"""Most bytes of a trace; the parsed trace takes ten times as much memory."""
HOST = ("cpu_op", "operator")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "driver")
KINDS = (*HOST, *DEVICE, *RUNTIME)
E = TypeVar("E", bound="Event")
ByProcess = Mapping[str, Mapping[Any, E]]
"""Events by their number, then by their process."""
MOST_NESTED = 200
"""Largest depth of nested operators."""
LATEST_US = 2.0**62
"""Largest time in microseconds that a clock can have."""
LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|GraphLaunch")
MOST_DIMENSIONS, MOST_SIZE = 64, 2**62
"""Most dimensions of a tensor, and the largest size of a dimension or a stride."""
TRUTH = {"True": True, "False": False}
FIRST = -1
"""Place of a flag that is the first truth value among the arguments, since versions of flash-attn differ."""


@dataclass(slots=True)
class Event:
    """A kernel, a runtime call or an operator. Times are microseconds after the first event that the trace lists: a clock that
    counts from 1970 leaves no digits for a part of a microsecond."""

    name: str
    start_us: float
    end_us: float
    args: Mapping[str, Any]
    process: Any = None
    thread: Any = None


@dataclass(slots=True)
class Op(Event):
    """An operator of the host; `parent` is the operator that called it."""

    parent: Op | None = None
    inner: list[Op] = field(default_factory=list)
    depth: int = 0
    """Number of operators around this one."""

    def argument(self, kind: str, place: int) -> Any:
        """The entry of one argument in a list that the trace records for all arguments; None if not recorded."""
        found = self.args.get(kind)
        return found[place] if isinstance(found, Sequence) and place < len(found) else None

    def dims(self, place: int) -> list[int]:
        """The shape of an argument; empty if it is no tensor."""
        shape = self.argument("Input Dims", place)
        return [int(size) for size in shape] if is_shape(shape) else []

    def type_name(self, place: int) -> str:
        """The dtype of an argument, as the trace names it."""
        return str(self.argument("Input type", place) or "").removeprefix("c10::")

    def dtype(self, place: int) -> str:
        """The dtype of an argument, as tables name it."""
        name = self.type_name(place).lower()
        return FORMAT_NAMES.get(name, name)

    @property
    def values(self) -> list[str]:
        """The values of all arguments that are not tensors."""
        found = self.args.get("Concrete Inputs")
        return list(map(str, found)) if isinstance(found, Sequence) else []

    def flag(self, place: int) -> bool | None:
        """A truth value among the arguments; None if not recorded."""
        values = self.values if place == FIRST else self.values[place : place + 1]
        return next((TRUTH[value] for value in values if value in TRUTH), None)

    @property
    def chain(self) -> list[Op]:
        """The operator, its caller, the caller's caller, and so on."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found

    @property
    def is_backward(self) -> bool:
        return any("Backward" in op.name for op in self.chain)


def is_shape(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of sizes, as shapes and strides are."""
    return (
        isinstance(value, list) and len(value) <= MOST_DIMENSIONS and all(type(n) is int and 0 <= n <= MOST_SIZE for n in value)
    )


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a number of elements, bytes or ranks."""
    return isinstance(value, int) and 0 <= value <= MOST_SIZE


@dataclass
class Events:
    """The events of a trace, grouped by kind."""

    gpu: str = ""
    ops: dict[tuple[Any, Any], list[Op]] = field(default_factory=dict)
    """Operators by thread, in order of their start times."""
    ops_by_id: ByProcess[Op] = field(default_factory=dict)
    device: list[Event] = field(default_factory=list)
    runtime: list[Event] = field(default_factory=list)
    calls_by_id: ByProcess[Event] = field(default_factory=dict)

    def launcher(self, kernel: Event) -> Op | None:
        """The innermost operator that launched a kernel; None if unknown."""
        # the process of a kernel is sometimes its device instead
        own = None if kernel.process == kernel.args.get("device", "") else kernel.process
        call = _last(self.calls_by_id.get(str(kernel.args.get("correlation")), {}), own, kernel.start_us)
        process = own if call is None else call.process
        for args in (kernel.args, call.args if call else {}):
            known = self.ops_by_id.get(str(args.get("External id")), {})
            if (process in known or call is None) and (found := _last(known, process, kernel.start_us)) is not None:
                return found
        if call is None:
            return None
        ops = self.ops.get((call.process, call.thread), [])
        at = bisect_right(ops, call.start_us, key=lambda op: op.start_us) - 1
        return next((op for op in (ops[at].chain if at >= 0 else []) if op.end_us >= call.start_us), None)


@dataclass(frozen=True, slots=True)
class Launches:
    """Statistics of kernel launches by the host; None with fewer than two launches."""

    count: int
    per_s: float | None
    call_us: float | None
    """Median duration of a launch call, in microseconds."""
    apart_us: float | None
    """Median microseconds from the end of one launch to the end of the next: the cost of a launch on a host that does little
    else."""


def read(path: Path) -> Events:
    """The events of a trace, plain or gzipped."""
    content = read_unzipped(path, MOST_BYTES, "a trace")
    check_count(content, b",", MOST_VALUES, path, "a trace")
    check_count(content, b"[{", MOST_HOLDERS, path, "a trace")
    data = parsed_json(content, str(path))
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise UserError("no list of traceEvents", where=str(path), hint="what torch.profiler's export_chrome_trace writes")
    about = data.get("deviceProperties") if isinstance(data, dict) else None
    named = about[0].get("name", "") if isinstance(about, list) and about and isinstance(about[0], dict) else ""
    found = _sorted_out(events, named if isinstance(named, str) else "", str(path))
    if not found.device and not found.ops:
        hint = "the profiler should have recorded ProfilerActivity.CPU, and CUDA where there is any"
        raise UserError(f"no operator and no kernel among {len(events)} events", where=str(path), hint=hint)
    return found


def _sorted_out(events: Iterable[Any], gpu: str, name: str) -> Events:
    """Events of a trace sorted into nested operators by thread, kernels, and runtime calls."""
    found = Events(gpu)
    faults: list[Fault] = []
    first_us: float | None = None
    for i, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        kind, start_us, lasted_us = _text(event.get("cat")).lower(), _number(event.get("ts")), _number(event.get("dur", 0))
        if kind not in KINDS or not (abs(start_us) <= LATEST_US and 0 <= lasted_us <= LATEST_US):
            continue
        first_us = start_us if first_us is None else first_us
        start_us -= first_us
        process, thread, args = event.get("pid"), event.get("tid"), event.get("args")
        whole = (_text(event.get("name")), start_us, start_us + lasted_us, args if isinstance(args, dict) else {})
        if wrong := [key for key in ("pid", "tid") if isinstance(event.get(key), (list, dict))]:
            faults += [Fault(f"traceEvents[{i}].{key} is {shown(event[key])}", "a number or a word", name) for key in wrong]
        elif kind in HOST:
            found.ops.setdefault((process, thread), []).append(Op(*whole, process, thread))
        else:
            (found.device if kind in DEVICE else found.runtime).append(Event(*whole, process, thread))
    if faults:
        raise UserError(faults=faults)
    for ops in found.ops.values():
        _nest(ops, name)
    found.ops_by_id = _by_number("External id", (op for ops in found.ops.values() for op in ops))
    found.calls_by_id = _by_number("correlation", found.runtime)
    return found


def _text(value: Any) -> str:
    """The text of an event; other values in the form used by messages."""
    return value if isinstance(value, str) else shown(value)


def _number(value: Any) -> float:
    """The number, or quoted number, of an event; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _nest(ops: list[Op], name: str) -> None:
    """Sorts the operators of a thread and sets the caller of each."""
    ops.sort(key=lambda op: (op.start_us, -op.end_us))
    open_: list[Op] = []
    for op in ops:
        while open_ and open_[-1].end_us <= op.start_us:
            open_.pop()
        if open_ and op.end_us <= open_[-1].end_us:
            op.parent, op.depth = open_[-1], open_[-1].depth + 1
            open_[-1].inner.append(op)
            if op.depth > MOST_NESTED:
                raise UserError(f"operators nested more than {MOST_NESTED} deep", where=name, hint="record fewer steps")
        open_.append(op)


def _by_number(key: str, events: Iterable[E]) -> ByProcess[E]:
    """Events by an argument that numbers them, then by process, without events that have no number."""
    found: dict[str, dict[Any, E]] = {}
    for event in events:
        if (number := event.args.get(key)) is not None:
            found.setdefault(str(number), {})[event.process] = event
    return found


def _last(held: Mapping[Any, E], process: Any, before_us: float) -> E | None:
    """The event of a process; otherwise the only event; otherwise the last event that began before a time."""
    if process in held or len(held) < 2:
        return held.get(process, next(iter(held.values()), None))
    return max((one for one in held.values() if one.start_us <= before_us), key=lambda one: one.start_us, default=None)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Total time covered by at least one of the spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def launches(runtime: Iterable[Event]) -> Launches:
    """Statistics of the kernel launches of the host."""
    ends: dict[tuple[Any, Any], list[float]] = {}
    calls = [event for event in runtime if LAUNCH.search(event.name)]
    for call in calls:
        ends.setdefault((call.process, call.thread), []).append(call.end_us)
    apart = [late - early for of_thread in ends.values() for early, late in pairwise(sorted(of_thread))]
    if not apart:
        return Launches(len(calls), None, None, None)
    whole_us = max(call.end_us for call in calls) - min(call.start_us for call in calls)
    per_s = len(calls) / whole_us * US_PER_S if whole_us else None
    return Launches(len(calls), per_s, median(call.end_us - call.start_us for call in calls), median(apart))
