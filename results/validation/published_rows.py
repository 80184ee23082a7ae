"""Published runs beside their predictions: what is known of a run, and the table predictions.csv that holds all of them."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from simulator.config import load
from simulator.config.step_constants import model_error
from simulator.errors import UserError
from simulator.files import atomic
from simulator.measurements.csv_tables import Row, number
from simulator.measurements.run_cluster import gpu_of
from simulator.measurements.run_words import facts_of
from simulator.measurements.training_rows import scenario_of
from simulator.units import TFLOP
from simulator.validate import training
from simulator.validate.report import ComparedRow, compare_rows

Scenario = Mapping[str, Any]
GENERATIONS = {"a": "Ampere", "h": "Hopper", "b": "Blackwell", "gb": "Blackwell"}
HEADLINE = ("A", "B")
"""Tiers whose runs need no guess that matters, or one or two."""
WHOLE_STATE = ("zero2", "zero3", "fsdp", "hsdp")
LENGTHS = (2048, 8192)
DIGITS = 6
"""Digits of a time in the table."""


@dataclass(frozen=True)
class PublishedRun:
    """A published run, its step as published, and its step as predicted."""

    id: str
    source: str
    of_rows: int
    """Rows of the source in the table, of which a sample may have been predicted."""
    tier: str
    derived: str
    """Sizes of the model that the source leaves blank and that were derived, such as layers."""
    gpu: str
    gpus: int
    dtype: str
    experts: str
    parallelism: str
    model: str
    """Layers and width of the model."""
    schedule: str
    tokens: int
    """Tokens of a sequence."""
    tflop: float
    """Model TFLOP of a step per GPU, attention counted in full."""
    recompute: str
    framework: str
    states: str
    """What the row says of the run, in short."""
    measured_s: float | None
    predicted_s: float | None
    sigma: float
    """Log-standard error of the step that the errors of its kernels and collectives make."""
    memory_gb: float | None
    measured_memory_gb: float | None
    skipped: str
    note: str
    variants: Mapping[str, float] = field(default_factory=dict)
    """Steps with one physics off, and what baselines need; of a sample of the runs only."""

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less one."""
        return self.predicted_s / self.measured_s - 1 if self.predicted_s and self.measured_s else None

    @property
    def log_error(self) -> float:
        return math.log(1 + (self.error or 0.0))

    @property
    def is_headline(self) -> bool:
        """Whether the run counts in the headline."""
        return self.tier in HEADLINE and self.error is not None

    @property
    def generation(self) -> str:
        return GENERATIONS.get(self.gpu.rstrip("0123456789").partition("-")[0].rstrip("0123456789"), "other")

    @property
    def length(self) -> str:
        """The sequence length as one of three classes."""
        short, usual = LENGTHS
        return f"to {short:,}" if self.tokens <= short else f"to {usual:,}" if self.tokens <= usual else f"beyond {usual:,}"


def parallelism_of(plan: Scenario) -> str:
    """The parallelism of a plan that shapes its step most."""
    is_whole = word(plan.get("sharding")) in WHOLE_STATE
    if plan["pp"] > 1:
        return "pipeline and FSDP" if is_whole else "pipeline"
    return "FSDP" if is_whole else "tensor parallel" if plan["tp"] > 1 else "data parallel"


def word(given: Any, key: str = "kind") -> str:
    """The word of a field that is a word or a mapping."""
    return str(given.get(key, "")) if isinstance(given, Mapping) else str(given or "")


def states(scenario: Scenario) -> str:
    """What a scenario says of its run, in short."""
    usual, job = (1, "none", "1f1b", True, False), {"microbatch_size": 1, **scenario["job"]}
    plan = ", ".join(f"{key} {value}" for key, value in scenario.get("plan", {}).items() if value not in usual)
    batch = f"{job['global_batch']} x {job['sequence_length']} tokens, {job['microbatch_size']} at a time, {job['dtype']}"
    return f"{word(scenario['model'], 'name') or 'GPT'}: {plan or 'dp'}; {batch}"


def described(row: Row, made: ComparedRow, of_rows: int) -> PublishedRun:
    """A row of a table with its prediction."""
    scenario: Scenario = {}
    with suppress(UserError):
        scenario = scenario_of(row)[0]
    plan, job = {"pp": 1, "tp": 1, **scenario.get("plan", {})}, scenario.get("job", {})
    facts, gpus, length = facts_of({"facts": row.get("facts", "")}), int(number(row["gpus"])), int(number(row["seq_len"]))
    model, batch_tokens = load.model(scenario["model"]) if scenario else None, job.get("global_batch", 0) * length
    sigma = math.log(made.interval[1] / made.predicted) / 2 if made.interval and made.predicted else 0.0
    return PublishedRun(
        id=str(made.id),
        source=row["source_key"],
        of_rows=of_rows,
        tier=row["tier"],
        derived=" and ".join(name for name in ("layers", "heads") if facts.get(name) == "derived") or row.get("derived", ""),
        gpu=gpu_of(row),
        gpus=gpus,
        dtype=str(job.get("dtype", "")),
        experts="experts" if model and model.experts else "dense",
        model=f"{model.layers} x {model.hidden}" if model else "",
        schedule=" ".join(str(plan[key]) for key in ("schedule", "memory_limit") if key in plan) or "1f1b",
        parallelism=parallelism_of(plan),
        tokens=length,
        tflop=short(model.train_flop_per_token(length, causal=False) * batch_tokens / gpus / TFLOP) if model else 0.0,
        recompute=word(plan.get("recompute"), "scope") or "as the framework",
        framework=word(scenario.get("framework"), "name"),
        states=states(scenario) if scenario else "",
        measured_s=short(made.measured),
        predicted_s=short(made.predicted),
        sigma=short(math.sqrt(max(0.0, sigma**2 - model_error() ** 2))) or 0.0,
        memory_gb=short(made.memory_gb),
        measured_memory_gb=short(made.measured_memory_gb),
        skipped=made.skipped or "",
        note=made.note or "",
    )


def short(value: float | None) -> Any:
    """A number with the digits of the table."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def predicted(table: Sequence[Row], rows: Sequence[Row], saved: training.Saved | None = None) -> list[PublishedRun]:
    """Rows of a table, each with its prediction by `trainsim validate`."""
    of_rows = Counter(row["source_key"] for row in table)
    found = compare_rows(training, rows, "published runs", saved=saved).rows
    return [described(row, made, of_rows[row["source_key"]]) for row, made in zip(rows, found, strict=True)]


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """At most so many rows of each source, evenly spread over the source: every k-th from the first; all rows for 0."""
    found = []
    for source in dict.fromkeys(row["source_key"] for row in rows):
        own = [row for row in rows if row["source_key"] == source]
        found += own[:: -(-len(own) // most) if most else 1]
    return found


def by_source(runs: Iterable[PublishedRun]) -> dict[str, list[PublishedRun]]:
    """Runs by source, in the order of the sources' names."""
    runs = list(runs)
    return {name: [run for run in runs if run.source == name] for name in sorted({run.source for run in runs})}


PLAIN = [each.name for each in fields(PublishedRun) if each.name != "variants"]
NUMBERS = ("of_rows", "gpus", "tokens", "tflop", "measured_s", "predicted_s", "sigma", "memory_gb", "measured_memory_gb")


def write(runs: Sequence[PublishedRun], path: Path) -> None:
    """Writes runs as CSV: a column for each field, and for each variant."""
    names = list(dict.fromkeys(name for run in runs for name in run.variants))
    with atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*PLAIN, *names], lineterminator="\n")
        table.writeheader()
        for run in runs:
            table.writerow({**{key: value for key, value in asdict(run).items() if key in PLAIN}, **run.variants})


def read(path: Path) -> list[PublishedRun]:
    """The runs of such a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_run_of(cells) for cells in csv.DictReader(file)]


def _run_of(cells: Mapping[str, str]) -> PublishedRun:
    known: dict[str, Any] = {name: float(cells[name]) if cells[name] else None for name in NUMBERS}
    plain = {name: cells[name] for name in PLAIN if name not in NUMBERS}
    variants = {name: float(value) for name, value in cells.items() if name not in PLAIN and value}
    sizes = {name: int(known.pop(name) or 0) for name in ("of_rows", "gpus", "tokens")}
    return PublishedRun(**plain, **known, **sizes, variants=variants)
