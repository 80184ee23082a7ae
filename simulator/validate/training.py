"""Predictions of the step times of training runs, and of the memory of their fullest GPU.

A row becomes a scenario (`training_rows`), which runs as `trainsim run --allow-oom` runs it. Rows of equal scenarios run once,
and processes share the work. With a file to save in, each outcome is written as it comes, and no scenario whose outcome the file
holds runs again. The measured time of a step is the published one, or follows from tokens per second and GPU, or
from samples per second, or else from TFLOP/s or MFU by the convention of the row: `full` counts 6N + 12Lhs flop per token
(N parameters of GEMMs with the head, L layers of width h, sequences of s tokens), `causal` counts half of the attention, and
`hardware` adds what full recomputation repeats: the forward pass of all layers, without the head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..config import catalog, feasible, load, shipped_fits
from ..config.document import Document
from ..config.named_parts import Trust
from ..config.scenario import from_document
from ..errors import SimulatorError, UserError, shown
from ..measurements import published_runs
from ..measurements.csv_tables import Row, count, described, number
from ..measurements.run_cluster import gpu_of
from ..measurements.run_words import facts_of
from ..measurements.training_rows import COLUMNS, dtype_of, model_of, recomputation_of, scenario_of
from ..memory.account import RankMemory
from ..simulation import choose_engine, estimated_effort
from ..simulation.memory_check import memory_of
from ..simulation.simulate import layout_of, simulate_scenario
from ..study.pool import cores
from ..study.process_session import of_this_thread
from ..units import GB, GIB, TFLOP
from .report import TIER_C, Predicted

UNIT, MEASURED_COLUMN = "s", "step_time_s"
NEEDS, SOURCE = ("gpu_model", "gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "tp", "pp"), ("source_key",)
READS = (*COLUMNS, "mem_kind")
EFFORT = estimated_effort.TRAINING_ROW
FEW = 8
"""Largest number of scenarios that are simulated without further processes."""


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """Definition of a published number of memory, and its unit in bytes."""

    of: Callable[[RankMemory], int]
    unit: float


MEMORY = {
    "reserved": MemoryKind(lambda rank: rank.total_bytes - rank.context_bytes - rank.nccl_bytes, GIB),
    "allocated_peak": MemoryKind(lambda rank: rank.total_bytes - rank.overhead_bytes, GIB),
    "node_max": MemoryKind(lambda rank: rank.total_bytes, GIB),
}
"""Kinds of memory by the word in `mem_kind`: what PyTorch reserves, what tensors take, and what a GPU shows as used."""
ANY_MEMORY = MemoryKind(lambda rank: rank.total_bytes, GB)
KINDS = ("", *MEMORY)
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu", "mfu", "mem_gb")
"""Columns of measurements."""
DERIVED = "derived layers or heads"
"""Group of the rows with sizes that their source leaves blank."""
published = published_runs.rows


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run in brief: the step time, the upper end of its interval, and the memory of the fullest GPU by kind."""

    step_s: float
    high_s: float
    memory: Mapping[str, float]


class Saved(Protocol):
    """Outcomes that outlast a validation, by the text of their scenarios."""

    def get(self, scenario: str) -> Any: ...
    def add(self, scenario: str, outcome: Any) -> None: ...


def predictions(
    rows: Sequence[Row], gpu: None, saved: Saved | None = None, expect: estimated_effort.Expect = estimated_effort.no_progress
) -> list[Predicted | UserError]:
    """The prediction of each row, or the error that prevents it. Saved outcomes are not simulated again, and new ones are
    added."""
    described = list(map(_described, rows))
    texts = list(dict.fromkeys(text for text, _ in described if isinstance(text, str)))
    outcomes = {text: known for text in texts if saved and (known := _read(saved.get(text))) is not None}
    left = [text for text in texts if text not in outcomes]
    expect(len(left) * EFFORT)
    for text, outcome in _simulated(left):
        outcomes[text] = outcome
        if saved:
            saved.add(text, outcome if isinstance(outcome, str) else asdict(outcome))
    return [
        _predicted(row, outcomes[text], notes) if isinstance(text, str) else text
        for row, (text, notes) in zip(rows, described, strict=True)
    ]


def _described(row: Row) -> tuple[str | UserError, str]:
    """The scenario of a row as JSON, or the error that prevents it; and the notes."""
    try:
        scenario, notes = scenario_of(row)
    except UserError as error:
        return error, ""
    return json.dumps(scenario), "; ".join(notes)


def _read(saved: Any) -> Outcome | str | None:
    """The saved outcome, or None if it is invalid: the scenario is then simulated again."""
    match saved:
        case str():
            return saved
        case {"step_s": float(step_s), "high_s": float(high_s), "memory": {**memory}} if set(memory) == set(KINDS):
            held = {str(kind): value for kind, value in memory.items() if isinstance(value, float)}
            return Outcome(step_s, high_s, held) if len(held) == len(memory) else None
    return None


def _simulated(texts: Sequence[str]) -> Iterator[tuple[str, Outcome | str]]:
    """Every scenario with its outcome, or the reason why it has none, as they come."""
    if len(texts) <= FEW:
        yield from ((text, _run(text)) for text in texts)
        return
    choose_engine.load()  # forked processes inherit it; others load it
    with ProcessPoolExecutor(cores(), initializer=choose_engine.prepare_for_many) as pool:
        runs = {pool.submit(_run, text): text for text in sorted(texts)}  # sorted, so that scenarios of one model share a session
        try:
            yield from ((runs[run], run.result()) for run in as_completed(runs))
        finally:
            pool.shutdown(cancel_futures=True)


def _run(text: str) -> Outcome | str:
    """The outcome of the scenario in a JSON text, or the reason of an error: errors do not pass between processes."""
    try:
        scenario = from_document(Document.of(json.loads(text)), Trust(typed=False))
        run = simulate_scenario(scenario, allow_oom=True, long=True, session=of_this_thread())
        return Outcome(run.metrics.step_time_s, run.step_time_interval_s[1], {kind: _fullest(kind, run.memory) for kind in KINDS})
    except SimulatorError as error:
        return error.faults[0].message if isinstance(error, UserError) else str(error).splitlines()[0]


def _predicted(row: Row, outcome: Outcome | str, note: str) -> Predicted | UserError:
    if isinstance(outcome, str):
        return UserError(outcome)
    error = math.log(outcome.high_s / outcome.step_s) / 2
    return Predicted(outcome.step_s, error, memory_gb=outcome.memory[_kind(row)], note=note or None)


def memory_gb(row: Row) -> float:
    """The predicted memory of a row in the unit of its kind, without its times. Raises `UserError` for what is not modelled."""
    scenario = from_document(Document.of(scenario_of(described(row, READS))[0]), Trust(typed=False))
    scenario = feasible.check(scenario)
    return _fullest(_kind(row), memory_of(scenario, layout_of(scenario)))


def _kind(row: Row) -> str:
    kind = catalog.plain(row["mem_kind"]).replace("-", "_")
    return kind if kind in MEMORY else ""


def _fullest(kind: str, memory: Sequence[RankMemory]) -> float:
    """The memory of the fullest GPU that a kind of memory counts, in its unit."""
    counts = MEMORY.get(kind, ANY_MEMORY)
    return max(map(counts.of, memory)) / counts.unit


def apart(row: Row) -> str:
    """The group in which a row is also scored separately; empty for most rows."""
    if row.get("tier") == "C":
        return TIER_C
    facts = facts_of({"facts": row.get("facts", "")})
    return DERIVED if row.get("derived") or "derived" in (facts.get("layers"), facts.get("heads")) else ""


def measured_memory_gb(row: Row) -> float | None:
    """The published memory, in the unit of its kind."""
    return _positive(row, "mem_gb")


def measured(row: Row) -> float | None:
    """Published seconds of a step, or seconds that follow from other published numbers; None without any."""
    if step_s := _positive(row, "step_time_s"):
        return step_s
    run = described(row, (*READS, "flop_convention", "tflops_kind"))
    try:
        sequences, gpus = count(run, "global_batch"), count(run, "gpus")
        tokens = sequences * count(run, "seq_len")
        if rate := _positive(row, "tokens_per_s_per_gpu"):
            return tokens / (rate * gpus)
        if rate := _positive(row, "samples_per_s"):
            return sequences / rate
        if rate := _positive(row, "tflops_per_gpu"):
            flop_per_s = rate * TFLOP
        elif (used := _positive(row, "mfu") or 0) and used <= 1:
            flop_per_s = used * shipped_fits.gpu(gpu_of(run)).matmul_peak(dtype_of(run))
        else:
            return None
        return tokens * _flop_per_token(run) / (flop_per_s * gpus)
    except UserError:
        return None


def notes_on_measured(row: Row) -> Iterator[str]:
    """A note on a utilisation in percent, where no other measurement is compared."""
    if (_positive(row, "mfu") or 0) > 1 and measured(row) is None:
        yield f"mfu: {shown(row['mfu'])} is no fraction of the peak, and is not compared"


def _flop_per_token(run: Row) -> float:
    """Flop of a token in the convention of the row."""
    model, tokens = load.model(model_of(run)), count(run, "seq_len")
    convention = catalog.plain(run["flop_convention"]) or catalog.plain(run["tflops_kind"])
    flop = model.train_flop_per_token(tokens, causal=convention == "causal")
    recompute = catalog.plain(run["recompute"]) if run["scenario"] or not run["recompute"].strip() else recomputation_of(run)
    if convention == "hardware" and recompute == "full":
        flop += (flop - 6 * model.hidden * model.vocab) // 3
    return flop


def _positive(row: Row, column: str) -> float | None:
    value = number(row.get(column, ""))
    return value if value > 0 else None
