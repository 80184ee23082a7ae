"""The same runs with one physics off: variants of a scenario by its fields alone, and formulas on what a run reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from published_rows import PublishedRun, short

from simulator.config.document import Document
from simulator.config.named_parts import Trust
from simulator.config.scenario import from_document
from simulator.kernels import Attention
from simulator.measurements.csv_tables import Row
from simulator.measurements.training_rows import scenario_of
from simulator.simulation.kernels_of_ranks import kernels_of_ranks
from simulator.simulation.run import Run
from simulator.simulation.simulate import simulate_scenario
from simulator.validate import training
from simulator.validate.report import compare_rows
from simulator.validate.training import Saved
from simulator.workload.framework import Fusion

Fields = Mapping[str, Mapping[str, Any]]
SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class Variant:
    """Sections of a scenario that replace those of a row, field by field."""

    off: str
    """The physics that is off, as a line of a table."""
    fields: Fields


ONE_KERNEL = {name: True for name in asdict(Fusion()) if name not in ("bias_activation", "linear_cross_entropy")}
FUSED = {"fusion": ONE_KERNEL, "single_tensors": False, "fp32_norms": False}
NO_HOST = {
    "host": dict.fromkeys(("kernel", "compiled_kernel", "collective", "graph"), "0 us"),
    "cuda_graphs": False,
    "p2p_sync": False,
    "host_waits": [],
    "input_launches": 0,
    "launch_blocking": False,
}
VARIANTS: Mapping[str, Variant] = {
    "alone": Variant("the factor on arithmetic from steps of single GPUs", {"fidelity": {"calibration": "kernels"}}),
    "alike": Variant("boards that differ: every board as the measured one", {"fidelity": {"boards": "alike"}}),
    "burst": Variant("sustained clocks: kernels as in short bursts", {"fidelity": {"power": "burst"}}),
    "free": Variant("compute slowed by communication beside it", {"fidelity": {"overlap": "free"}}),
    "exposed": Variant("overlap of dp, tp and pp: all exposed", {"plan": {"overlap": dict.fromkeys(("dp", "tp", "pp"), False)}}),
    "fa2": Variant("attention libraries: FlashAttention 2 everywhere", {"framework": {"attention": "flash_attention"}}),
    "fused": Variant("kernels of eager frameworks: every operator fused", {"framework": FUSED}),
    "dropout": Variant("dropout", {"framework": {"dropout": False}}),
    "launches": Variant("launch overhead: launches are free", {"framework": NO_HOST}),
    "kept": Variant("recomputation", {"plan": {"recompute": "none"}}),
    "closed": Variant("contention on links", {"fidelity": {"collectives": "closed"}}),
    "ideal": Variant("measured collectives: latency 0, links at their nominal rate", {"cluster": {"fabric": "ideal"}}),
}
"""Scenarios with one physics off."""
FORMULAS: Mapping[str, str] = {
    "naive": "simulated pipeline: bubble (p - 1) / (m v) of the other time",
    "unexposed": "exposed communication: the step without it",
}
"""Formulas on the run of a scenario, in place of its step."""


def changed(scenario: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """A scenario with some fields of its sections replaced."""
    sections = {name: {"name": given} if isinstance(given, str) else given for name, given in scenario.items()}
    return {**sections, **{name: {**sections.get(name, {}), **values} for name, values in fields.items()}}


def with_variants(runs: Sequence[PublishedRun], rows: Sequence[Row], ids: set[str], saved: Saved | None) -> list[PublishedRun]:
    """Runs with their variants, where the id of a run is among `ids`. Variants are predicted as rows are."""
    chosen = [row for run, row in zip(runs, rows, strict=True) if run.id in ids and run.predicted_s]
    scenarios = [scenario_of(row)[0] for row in chosen]
    with ProcessPoolExecutor() as pool:
        found = dict(zip((row["id"] for row in chosen), map(dict, pool.map(formulas, map(json.dumps, scenarios))), strict=True))
    varied = [
        {**row, "scenario": json.dumps(changed(scenario, variant.fields))}
        for variant in VARIANTS.values()
        for row, scenario in zip(chosen, scenarios, strict=True)
    ]
    keys = [key for key in VARIANTS for _ in chosen]
    for key, made in zip(keys, compare_rows(training, varied, "ablations", saved=saved).rows if varied else (), strict=True):
        if made.predicted:
            found[str(made.id)][key] = made.predicted
        else:
            print(f"{made.id}, {key}: {made.skipped}")
    return [replace(run, variants={name: short(value) for name, value in found.get(run.id, {}).items()}) for run in runs]


def formulas(text: str) -> dict[str, float]:
    """What formulas make of the run of a scenario, and its MFU."""
    run = simulate_scenario(from_document(Document.of(json.loads(text)), Trust()), allow_oom=True, long=True)
    metrics, plan = run.metrics, run.scenario.plan
    step_s, job = metrics.step_time_s, run.scenario.job
    microbatches = job.global_batch / job.microbatch_size / max(1, run.gpus // (plan.tp * plan.cp * plan.pp))
    bubble = (plan.pp - 1) / (microbatches * plan.chunks)
    return {
        "naive": step_s * (1 - metrics.bubble_fraction) * (1 + bubble),
        "unexposed": step_s - sum(metrics.exposed_s.values()),
        "roofline": roofline_s(run),
        "mfu": metrics.mfu,
    }


def roofline_s(run: Run) -> float:
    """Seconds of a step's kernels at the peak of the GPU or at the full rate of its memory, whichever is longer, mean over
    pipeline ranks; nothing else."""
    gpu, job = run.scenario.cluster.gpu, run.scenario.job
    usual = job.dtype if job.dtype in SIXTEEN_BITS else SIXTEEN_BITS[0]

    def seconds(kernel: Any) -> float:
        dtype = usual if isinstance(kernel, Attention) else getattr(kernel, "dtype", "") or usual
        return max(kernel.flop / gpu.matmul_peak(dtype), kernel.traffic_bytes / gpu.memory_bytes_per_s)

    return sum(calls * seconds(kernel) for kernel, calls, _ in kernels_of_ranks(run))
