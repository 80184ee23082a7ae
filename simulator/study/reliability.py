"""Reliability of a job as a user describes it: failures, checkpoints, recovery, stragglers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ..config.document import Document
from ..config.reader import Grammar, validated
from ..errors import UserError, shown
from ..fields import BytesPerSecond, Contradiction, Declared, Degree, Limits, Text
from ..units import GB, HOUR_S, MINUTE_S, SPAN, parse

Span = Annotated[float, SPAN]
EXAMPLE = '50000 h", or a count such as "148 in 54 d of 16384'
COUNTED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s+(?:in|per)\s+([^o]+?)(?:\s+of\s+([0-9]+))?\s*")
Between = Annotated[float | None, Text("mtbf")]


@dataclass(frozen=True, slots=True)
class Mtbf(Declared):
    """Mean time between failures of one component of each kind, in seconds; None for a kind that never fails."""

    gpu: Annotated[Between, "mean time between failures of one GPU"] = None
    nic: Annotated[Between, "mean time between failures of one NIC"] = None
    switch: Annotated[Between, "mean time between failures of one switch outside the nodes"] = None
    job: Annotated[Between, "mean time between interruptions of the whole job, such as faults of software"] = None


@dataclass(frozen=True, slots=True)
class Checkpoints(Declared):
    """Interval, kind and storage of checkpoints."""

    interval_s: Annotated[Span | None, "time of training between two checkpoints; left out: the best interval"] = None
    kind: Annotated[Literal["sync", "async"], "sync: training waits for the storage; async: for the copy to the host only"] = (
        "sync"
    )
    node_bytes_per_s: Annotated[BytesPerSecond, "rate at which a node reads and writes the storage"] = 2.0 * GB
    storage_bytes_per_s: Annotated[BytesPerSecond | None, "rate of the storage in total; left out: no limit"] = None


@dataclass(frozen=True, slots=True)
class Recovery(Declared):
    """Detection of failures, restart, spare nodes and repair."""

    detection_s: Annotated[Span, "time until a failure is noticed"] = 5.0 * MINUTE_S
    restart_s: Annotated[Span, "time to restart the job, without reading the checkpoint"] = 10.0 * MINUTE_S
    spares: Annotated[int | None, Limits(ge=0, le=100_000), "spare nodes; left out: always enough"] = None
    repair_s: Annotated[Span, "mean time until a node whose GPU or NIC failed is back"] = 24.0 * HOUR_S


@dataclass(frozen=True, slots=True)
class Stragglers(Declared):
    """GPUs that are slow for a while; all others wait for them."""

    gpu: Annotated[Between, "mean time between two slow spells of one GPU; left out: none"] = None
    speed: Annotated[float, Limits(ge=0.001, le=1), "speed of a slow GPU"] = 0.8
    lasts_s: Annotated[Span, "time that a spell lasts"] = 1.0 * HOUR_S


@dataclass(frozen=True, slots=True)
class Reliability(Declared):
    """Everything besides the step time that a job's effective time depends on."""

    mtbf: Annotated[Mtbf, "failures"] = field(default_factory=Mtbf)
    checkpoint: Annotated[Checkpoints, "checkpoints"] = field(default_factory=Checkpoints)
    recovery: Annotated[Recovery, "recovery"] = field(default_factory=Recovery)
    stragglers: Annotated[Stragglers, "stragglers"] = field(default_factory=Stragglers)
    days: Annotated[Degree, "length of the report, in days"] = 30

    def contradictions(self) -> Iterator[Contradiction]:
        if self.checkpoint.interval_s == 0:
            yield "checkpoint.interval", ": no training between two checkpoints", "at least a step"


def time_between(value: Any) -> float:
    """Seconds between two failures of one component: a duration, or a count in a duration, of one component or of several."""
    counted = COUNTED.fullmatch(value) if isinstance(value, str) and len(value) <= 100 else None
    if not counted:
        seconds = parse(value, SPAN)
    elif not float(counted[1]):
        raise UserError(f"{shown(value)} counts nothing", hint="leave it out for what never fails")
    else:
        seconds = parse(counted[2], SPAN) * int(counted[3] or 1) / float(counted[1])
    if not seconds:
        raise UserError(f"{shown(value)}: no time between two failures", hint=f'write it like "{EXAMPLE}"')
    return seconds


def read(data: Mapping[str, Any] | Document) -> Reliability:
    """A reliability from plain data as in a file. Raises `UserError` with all its faults."""
    document = data if isinstance(data, Document) else Document.of(data)
    return validated(Reliability, document, grammars={"mtbf": Grammar(time_between, EXAMPLE)})
