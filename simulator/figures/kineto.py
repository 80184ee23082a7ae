"""The traces of a run in the format of PyTorch's profiler, one file per rank, for tools such as Holistic Trace Analysis (HTA).

Kernels of compute and of communication (names begin with `nccl`) and copies to the host are on streams of a device; each has a
launch on the host, with the same correlation. Times are whole microseconds, because HTA rounds fractions in a way that shifts
starts and ends. HTA leaves the last step of a trace out: the measured steps are `ProfilerStep#0`, and an empty one follows.
Reference: facebookresearch/HolisticTraceAnalysis, hta/common/trace_parser.py and hta/configs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, must_be
from ..files import atomic, make_folder
from ..program.labels import Labels, plain_name
from ..program.operations import COMPUTE, HOST, OFFLOAD, Transfer
from ..simulation.run import Run
from ..units import NS_PER_US
from .trace import MOST_EVENTS, first_ns

BEFORE_US = 10
"""Time before the measured steps, and before operations of theirs that precede them, for the first launches."""
FIRST_CORRELATION = 1 << 20
"""The first number of a kernel; HTA 0.6 reads smaller ones as numbers of 16 bits."""
FIRST_STREAM = 7
"""The number of the stream of compute, as PyTorch's default stream has it."""
PROCESS = 4096
"""The number of the process on the host; its thread has the same."""
COPIES = {"copy_out": "Memcpy DtoH (Device -> Pinned)", "copy_in": "Memcpy HtoD (Pinned -> Device)"}


def kineto(run: Run, folder: str | Path, *, ranks: Iterable[int] | None = None) -> list[Path]:
    """Writes a trace of each of `ranks` (by default of the first of every class) into a folder, and returns the files."""
    must_be(run, Run, "run", "a run", 'kineto(sim.simulate(model, cluster, plan, job), "traces")')
    must_be(folder, (str, Path), "folder", "the path of a folder", 'kineto(run, "traces")')
    first = np.unique(run.engine_timeline.class_of, return_index=True)[1]
    chosen = sorted(first.tolist()) if ranks is None else run.existing(ranks)
    for rank in chosen:
        if 2 * len(run.labels[run.coordinate(rank)].step) > MOST_EVENTS:
            raise UserError(f"the trace of rank {rank} has over a million events", hint="fewer microbatches, or fewer layers")
    zero_ns, files = first_ns(run, chosen, without=HOST), []
    for rank in chosen:
        files.append(make_folder(folder) / f"rank_{rank}.json.gz")
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": run.gpus},
            "deviceProperties": [{"id": 0, "name": run.scenario.cluster.gpu.name}],
            "traceEvents": list(events_of(run, rank, zero_ns)),
        }
        text = json.dumps(content)  # HTA finds the rank by a pattern with a space after the colon
        with atomic(files[-1]) as temporary, open(temporary, "wb") as raw, gzip.GzipFile("", "wb", 5, raw, mtime=0) as out:
            out.write(text.encode())
    return files


def of_other_runs(folder: str | Path, files: Iterable[Path]) -> list[str]:
    """The names of the traces of ranks in a folder that are not among the files of a run; tools read all of a folder."""
    written = {file.name for file in files}
    return sorted((file.name for file in Path(folder).glob("rank_*.json.gz") if file.name not in written), key=len)


def events_of(run: Run, rank: int, zero_ns: int) -> Iterator[dict[str, Any]]:
    """The events of a rank in the order of their starts: each kernel and its launch; `zero_ns` is time zero."""
    labels, timeline = run.labels[run.coordinate(rank)], run.engine_timeline
    times, observed = timeline.rank_times(rank), run.observation
    start, end = (
        BEFORE_US + np.rint((column - zero_ns) / NS_PER_US).astype(np.int64) for column in (times.start_ns, times.end_ns)
    )
    shown = np.flatnonzero(observed.counts(labels.iteration) & (labels.stream != HOST) & (times.end_ns > times.start_ns))
    shown = shown[np.argsort(start[shown], kind="stable")]
    lanes = [COMPUTE, *sorted(set(labels.stream[shown].tolist()) - {COMPUTE}, key=labels.lanes.index)]
    stream = {name: FIRST_STREAM + number for number, name in enumerate(lanes)}
    last = int(end[shown].max(initial=BEFORE_US))
    yield from _annotations(last)
    on, kinds = labels.stream[shown].tolist(), labels.kind[shown].tolist()
    payloads = labels.payload_bytes[shown].tolist()
    columns = zip(shown.tolist(), on, kinds, payloads, start[shown].tolist(), end[shown].tolist(), strict=True)
    for number, (row, lane, kind, payload, begins, ends) in enumerate(columns, FIRST_CORRELATION):
        launch = {"ts": begins - 1, "dur": 1, "args": {"correlation": number, "External id": number}}
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": PROCESS, "tid": PROCESS, **launch}
        category, name = _named(labels, row, lane, kind)
        where = {"device": 0, "stream": stream[lane], "correlation": number, "External id": number}
        args = {**where, **_about(run, labels, row, kind, payload)}
        yield {
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream[lane], "ts": begins, "dur": ends - begins,
            "args": args,
        }  # fmt: skip


def _annotations(last: int) -> Iterator[dict[str, Any]]:
    """The steps: the measured ones, and an empty one after them."""
    for number, (begins, ends) in enumerate(((0, last + 1), (last + 2, last + 3))):
        name = f"ProfilerStep#{number}"
        yield {
            "ph": "X", "cat": "user_annotation", "name": name, "pid": PROCESS, "tid": PROCESS, "ts": begins, "dur": ends - begins,
            "args": {"External id": number},
        }  # fmt: skip


def _named(labels: Labels, row: int, lane: str, kind: str) -> tuple[str, str]:
    """Category and name of an operation; operations of the same name in all layers are one kernel to a reader of traces."""
    op = labels.ops[int(labels.op[row])]
    if lane == COMPUTE and labels.is_compute[row]:
        return "kernel", f"{plain_name(op)} ({kind})"
    axis = labels.axes[int(labels.op[row])]
    if axis == OFFLOAD:
        return "gpu_memcpy", COPIES.get(kind.removeprefix("pageable_"), f"Memcpy {kind}")
    return "kernel", f"nccl:{'SendRecv' if isinstance(op, Transfer) else kind} {axis}"


def _about(run: Run, labels: Labels, row: int, kind: str, payload: int) -> dict[str, Any]:
    """The arguments that PyTorch records for a collective, and the place of an operation in the step."""
    step = labels.steps[int(labels.step[row])]
    where = {"phase": step.phase, "stage": step.stage, "microbatch": step.microbatch}
    if labels.is_compute[row]:
        return where
    elements = payload // run.scenario.job.element_bytes
    axis = labels.axes[int(labels.op[row])]
    return {
        **where, "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, "Process Group Name": axis,
        "dtype": run.scenario.job.activation_dtype, "payload_bytes": payload,
    }  # fmt: skip
