"""Comparison of runs: what differs in their scenarios, and what differs in their results, stage by stage, operator by operator.

Values that are equal in all runs are left out, so that a run compared with itself has no differences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import derived
from ..config.scenario import Perturb
from ..engine.task import Array
from ..errors import UserError, must_be
from ..escape import Summarised
from ..program.labels import plain_name
from ..simulation.run import Run
from ..simulation.steady_state import has_transitions
from ..units import GIB, seconds

if TYPE_CHECKING:
    import pandas as pd

Values = tuple[Any, ...]
OF_CLUSTER = (
    "gpus_per_node", "shape_name", "inside_name", "nvlink", "nvlinks", "pcie", "nic", "switch_latency_s", "nics_per_node",
    "nodes_per_pod", "oversubscription", "options", "sharp", "host",
)  # fmt: skip
"""The fields of a cluster that make its links."""
EXAMPLE = 'sim.compare({"one": run, "other": run})'


@dataclass(frozen=True, repr=False)
class Comparison(Summarised):
    """Several runs side by side. Every difference is a dotted name with a value for each run, None where a run has none."""

    runs: Mapping[str, Run]

    @cached_property
    def scenario(self) -> dict[str, Values]:
        """The fields of the scenarios that differ; a field that may be left open has the value that it then stands for."""
        given = [{**dict(_flat(_fields(run))), **dict(_hardware_and_model(run))} for run in self.runs.values()]
        resolved = self._differing([{**fields, **_resolved(run)} for fields, run in zip(given, self.runs.values(), strict=True)])
        return {name: resolved[name] for name in self._differing(given) if name in resolved}

    @cached_property
    def scenario_in_words(self) -> dict[str, Values]:
        """The fields of the scenarios that differ, with a sentence for each perturbation in place of the list of them."""
        found = dict(self.scenario)
        placements = [run.scenario.plan.placement for run in self.runs.values()]
        lists = zip_longest(*(one or () for one in found.pop("perturb", ())))
        texts = (tuple(map(_in_words, ones, placements)) for ones in lists)
        return {**found, **{f"perturb.{number}": values for number, values in enumerate(texts)}}

    @cached_property
    def result(self) -> dict[str, Values]:
        """The metrics, and the seconds of stages, operators and communication on a mean rank, that differ."""
        return self._differing([dict(_results(run)) for run in self.runs.values()])

    def _differing(self, records: list[dict[str, Any]]) -> dict[str, Values]:
        names = dict.fromkeys(name for record in records for name in record)
        columns = {name: tuple(record.get(name) for record in records) for name in names}
        return {name: values for name, values in columns.items() if any(value != values[0] for value in values)}

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The fields that differ, and the step times."""
        fields = [(name, " | ".join(map(str, values))) for name, values in self.scenario_in_words.items()]
        times = " | ".join(f"{run.metrics.step_time_s:.6g} s" for run in self.runs.values())
        return [("runs", " | ".join(self.runs)), *fields, ("step time", times)]

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim compare --json` prints."""
        return {"scenario": self._named(self.scenario), "result": self._named(self.result)}

    def _named(self, differing: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
        return {name: dict(zip(self.runs, values, strict=True)) for name, values in differing.items()}

    def to_pandas(self) -> pd.DataFrame:
        """A row for each difference of scenario and result, a column for each run."""
        import pandas as pd

        return pd.DataFrame.from_dict({**self.scenario, **self.result}, orient="index", columns=list(self.runs))


def compare(runs: Mapping[str, Run]) -> Comparison:
    """The comparison of named runs."""
    must_be(runs, Mapping, "runs", "runs by name", EXAMPLE)
    for name, run in runs.items():
        must_be(run, Run, f"runs[{name!r}]", "a run", EXAMPLE)
    if not runs:
        raise UserError("there is no run to compare", hint=EXAMPLE)
    return Comparison(dict(runs))


def _in_words(perturbation: Mapping[str, Any] | None, placement: Sequence[int] | None) -> str | None:
    """The sentence for a perturbation of a run with this placement."""
    return None if perturbation is None else Perturb(**perturbation).text_with(placement)


def _fields(run: Run) -> dict[str, Any]:
    """The fields of a scenario; where a field may be a word or a mapping, the word is replaced by its mapping."""
    record, plan = run.scenario.as_dict(), run.scenario.plan
    full: dict[str, Any] = {"sharding": plan.full_sharding, "recompute": plan.recomputation, "offload": plan.offloading}
    record["plan"] |= {name: _plain(value) for name, value in full.items()}
    record["job"]["optimizer"] = _plain(run.scenario.job.full_optimizer)
    return record


def _resolved(run: Run) -> dict[str, Any]:
    """The values of the fields of a plan that may be left open."""
    plan = run.scenario.plan
    return {
        "plan.dp": derived.data_parallel_degree(run.scenario),
        "plan.etp": plan.tensor_parallel_of_experts,
        "plan.sequence_parallel": plan.uses_sequence_parallel,
    }


def _hardware_and_model(run: Run) -> Iterator[tuple[str, Any]]:
    """The parts that a scenario names, field by field, since two files of one name may differ in content."""
    model, cluster = run.scenario.model, run.scenario.cluster
    parts: dict[str, Any] = {"model": model, "cluster.gpu": cluster.gpu}
    for name, part in parts.items():
        yield from _flat({field: value for field, value in _plain(part).items() if field != "name"}, name)
    for name in OF_CLUSTER:
        yield from _flat(_plain(getattr(cluster, name)), f"cluster.{name.removesuffix('_name')}")


def _plain(value: Any) -> Any:
    """A value with mappings in place of dataclasses, of which only the fields count by which two of them are equal."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.compare}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their dotted names. A list is one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _results(run: Run) -> Iterator[tuple[str, Any]]:
    """The results of a run that a comparison looks at, by name."""
    yield from _flat(_plain(run.metrics))
    first = run.steps or has_transitions(run.scenario.perturb)
    yield "measured", run.observation.window.text if first else "a step of a long run"
    yield "peak_memory_gib", run.peak_memory_bytes / GIB
    yield "gpus", run.gpus
    yield from ((f"stage {stage}.compute_s", took_s) for stage, took_s in sorted(stage_seconds(run).items()))
    yield from sorted(operator_seconds(run).items())


def stage_seconds(run: Run) -> dict[int, float]:
    """Seconds that the kernels of each stage take in a step, on a rank of its slowest class."""
    taken: dict[int, float] = defaultdict(float)
    for which, labels in enumerate(run.observation.labels):
        length_ns, counted = _lengths_ns(run, which), run.observation.counts(labels.iteration)
        rows = labels.is_compute & (labels.stage >= 0) & counted
        for stage in np.unique(labels.stage[rows]).tolist():
            took_ns = int(length_ns[rows & (labels.stage == stage)].sum())
            taken[stage] = max(taken[stage], seconds(took_ns / run.observation.window.steps))
    return taken


def operator_seconds(run: Run) -> dict[str, float]:
    """Seconds that each operator, and the operations of each axis, take in a step on a mean rank, whether it waits or not."""
    total_s: dict[str, float] = defaultdict(float)
    timeline, observed = run.engine_timeline, run.observation
    for which, labels in enumerate(observed.labels):
        length_ns, counted = _lengths_ns(run, which), observed.counts(labels.iteration)
        share = int(timeline.multiplicity[which]) / timeline.ranks / observed.window.steps
        of_op_ns = np.bincount(labels.op[counted], weights=length_ns[counted], minlength=len(labels.ops))
        for op in np.unique(labels.op[counted]).tolist():
            one, axis = labels.ops[op], labels.axes[op]
            total_s[f"axis {axis}.s" if axis else f"operator {plain_name(one)}.s"] += share * seconds(float(of_op_ns[op]))
    return total_s


def _lengths_ns(run: Run, which: int) -> Array:
    times = run.engine_timeline.class_times(which)
    length_ns: Array = times.end_ns - times.start_ns
    return length_ns
