"""Goodput: how much of its time a long run makes progress, between failures, checkpoints, restarts and stragglers.

The step is simulated as planned, and with a slow GPU in one pipeline stage after another, since a slow GPU costs most where the
pipeline has least slack; the bytes of a checkpoint come from the account of memory; the rest is the renewal model. All bytes of a
checkpoint are written once, an equal part by every node, and read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp, inf
from pathlib import Path
from typing import Any

import numpy as np

from ..config import derived
from ..config.document import Document
from ..config.scenario import Perturb, Scenario
from ..errors import UserError, must_be
from ..escape import Summarised
from ..frozen import replace
from ..hardware import measure
from ..memory.saved_state import saved_bytes
from ..simulation.memory_check import terms_of
from ..simulation.run import Run
from ..simulation.runnable import load_one
from ..simulation.simulate import layout_of, simulate_scenario
from ..units import DAY_S, counted, show_bytes, show_count, show_rate, show_s, show_span
from .reliability import Reliability, read
from .renewal import Interruptions, Shares, best_interval_s, daly_s, failures_per_s, shares, waiting_fraction, young_s

WITHIN_NODES = ("gpu", "nic", "nvswitch", "pcie", "cpu", "memory")
"""Kinds of vertices of a cluster that are not switches of its network."""
NODE_PARTS = ("gpu", "nic")
"""Components whose failure takes a node out of service."""
MOST_SLOWED = 4
"""Largest number of ranks of the pipeline that are simulated with a slow GPU."""
WORDS = {
    "trained": "training that is kept",
    "checkpoints": "pauses for checkpoints",
    "lost": "training since the last checkpoint, lost",
    "detection": "failures not yet noticed",
    "restart": "restarts",
    "waiting": "waiting for a repair",
}


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint: its bytes, the seconds until it is written, and those for which training stops."""

    size_bytes: int
    write_s: float
    pause_s: float


@dataclass(frozen=True, repr=False)
class Goodput(Summarised):
    """The effective time of a job."""

    run: Run
    reliability: Reliability
    components: Mapping[str, int]
    """Number of components of each kind that may fail."""
    saving: Saving
    slowed_step_s: float
    """Step time in seconds at the mean speed with one slow GPU, which is any of them; the normal step time without stragglers."""

    @cached_property
    def rates_per_s(self) -> dict[str, float]:
        """Failures per second of each kind, of all its components."""
        mtbf = asdict(self.reliability.mtbf)
        return {kind: number / mtbf[kind] for kind, number in self.components.items() if mtbf[kind] is not None}

    @cached_property
    def job(self) -> Interruptions:
        """The failures of the job, and the times of its checkpoints and restarts."""
        recovery, saving = self.reliability.recovery, self.saving
        beside_s = saving.write_s if self.reliability.checkpoint.kind == "async" else 0.0
        restart_s = recovery.restart_s + saving.write_s
        return Interruptions(sum(self.rates_per_s.values()), saving.pause_s, beside_s, recovery.detection_s, restart_s)

    @cached_property
    def best_s(self) -> float:
        """The interval between checkpoints with the highest ETTR, in seconds; at least a step."""
        return best_interval_s(self.job, self.run.metrics.step_time_s)

    @property
    def interval_s(self) -> float:
        given_s = self.reliability.checkpoint.interval_s
        return self.best_s if given_s is None else given_s

    @cached_property
    def waiting(self) -> float:
        """Fraction of the time in which the job waits for a node to be repaired."""
        recovery = self.reliability.recovery
        if recovery.spares is None:
            return 0.0
        of_nodes = sum(self.rates_per_s.get(kind, 0.0) for kind in NODE_PARTS)
        return waiting_fraction(of_nodes * recovery.repair_s / (1 + self.job.rate_per_s * recovery.detection_s), recovery.spares)

    @cached_property
    def time(self) -> Shares:
        """Fractions of the time."""
        return self._at(self.interval_s)

    def _at(self, interval_s: float) -> Shares:
        return shares(self.job, interval_s).delayed(self.waiting)

    @property
    def ettr(self) -> float:
        """Effective training time ratio: the fraction of the time spent on training that is kept."""
        return self.time.trained

    @cached_property
    def speed(self) -> float:
        """Mean speed of training with stragglers, as a fraction of the speed without them."""
        slow = self.reliability.stragglers
        if slow.gpu is None:
            return 1.0
        never_slow = exp(-self.run.gpus * slow.lasts_s / slow.gpu)
        return never_slow + (1 - never_slow) * self.run.metrics.step_time_s / self.slowed_step_s

    @property
    def goodput(self) -> float:
        """Kept steps, as a fraction of the steps that the same time would hold without interruptions and stragglers."""
        return self.ettr * self.speed

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Labels and values, the answer first."""
        days, metrics, job = self.reliability.days, self.run.metrics, self.job
        kept_s, failures = self.goodput * days * DAY_S, failures_per_s(job, self.waiting) * days * DAY_S
        each = ((kind, rate * DAY_S, self.components[kind]) for kind, rate in self.rates_per_s.items())
        kinds = ", ".join(f"{kind} {per_day:.3g} per day of {number:,}" for kind, per_day, number in each)
        recovery = self.reliability.recovery
        steps = f"{kept_s / metrics.step_time_s:,.0f} of {days * DAY_S / metrics.step_time_s:,.0f} steps"
        rate = f"{metrics.tokens_per_s * self.goodput:,.0f} tokens/s"
        slow = f"{show_s(self.slowed_step_s)} per step with one, which is on any stage, {self.speed:.2%} of the speed"
        restart = f"{show_span(recovery.detection_s)} to detect, {show_span(job.restart_s)} to restart and read"
        return [
            ("ETTR", f"{self.ettr:.2%} of the time is training that is kept"),
            ("goodput", f"{self.goodput:.2%} of the steps of an undisturbed run, {rate}"),
            (f"in {days} days", f"{failures:,.1f} failures; {steps}, {show_count(kept_s * metrics.tokens_per_s)} tokens"),
            ("step time", f"{show_s(metrics.step_time_s)} on {counted(self.run.gpus, 'GPU')}"),
            *([] if self.speed == 1 else [("stragglers", slow)]),
            ("failures", f"one in {show_span(job.mtbf_s)}: {kinds}" if job.rate_per_s else "none"),
            ("checkpoint", self._checkpoint()),
            ("interval", f"{show_span(self.interval_s)}, {self.interval_s / metrics.step_time_s:,.0f} steps{self._best()}"),
            ("recovery", f"{restart}{self._spares()}"),
            *((WORDS[name], f"{share:.2%}, {share * days:.2f} d") for name, share in asdict(self.time).items() if share),
        ]

    def _checkpoint(self) -> str:
        checkpoint, saving = self.reliability.checkpoint, self.saving
        total = checkpoint.storage_bytes_per_s
        rates = f"{show_rate(checkpoint.node_bytes_per_s)} per node" + (f", {show_rate(total)} in all" if total else "")
        pause = f"training stops for {show_s(saving.pause_s)}"
        return f"{show_bytes(saving.size_bytes)}, {checkpoint.kind}: {show_s(saving.write_s)} to write at {rates}; {pause}"

    def _best(self) -> str:
        if not self.job.rate_per_s:
            return ""
        young, daly = show_span(young_s(self.job)), show_span(daly_s(self.job))
        return f"; the best is {show_span(self.best_s)}, ETTR {self._at(self.best_s).trained:.2%} (Young {young}, Daly {daly})"

    def _spares(self) -> str:
        recovery = self.reliability.recovery
        if recovery.spares is None:
            return ""
        return f"; {counted(recovery.spares, 'spare node')}, {show_span(recovery.repair_s)} to repair one"

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim goodput --json` prints."""
        days, metrics, job = self.reliability.days, self.run.metrics, self.job
        kept_s = self.goodput * days * DAY_S
        finite = {"best_s": self.best_s, "young_s": young_s(job), "daly_s": daly_s(job)} if job.rate_per_s else {}
        return {
            "ettr": self.ettr,
            "goodput": self.goodput,
            "time": asdict(self.time),
            "speed": self.speed,
            "step_time_s": metrics.step_time_s,
            "slowed_step_time_s": self.slowed_step_s,
            "gpus": self.run.gpus,
            "components": dict(self.components),
            "failures_per_day": {kind: rate * DAY_S for kind, rate in self.rates_per_s.items()},
            "mtbf_s": job.mtbf_s if job.rate_per_s else None,
            "checkpoint": asdict(self.saving),
            "restart_s": job.restart_s,
            "interval_s": self.interval_s,
            "best": {**finite, "ettr": self._at(self.best_s).trained} if finite else None,
            "days": days,
            "failures": failures_per_s(job, self.waiting) * days * DAY_S,
            "steps": kept_s / metrics.step_time_s,
            "tokens": kept_s * metrics.tokens_per_s,
            "reliability": asdict(self.reliability),
            "scenario": self.run.scenario.as_dict(),
        }


def goodput(
    scenario: str | Path | Scenario | Run,
    mtbf: Mapping[str, str] | str,
    *,
    checkpoint: Mapping[str, Any] | None = None,
    recovery: Mapping[str, Any] | None = None,
    stragglers: Mapping[str, Any] | None = None,
    days: int = 30,
    long: bool = False,
) -> Goodput:
    """The effective time of a scenario or a run. `mtbf` is the mean time between failures of one GPU, or of one component of each
    kind: {"gpu": "50000 h", "switch": "35 in 54 d of 513"}.

    `checkpoint` may have the keys interval, kind, node and storage, `recovery` detection, restart, spares and repair, and
    `stragglers` gpu, speed and lasts; durations and rates are strings with units, as in files.
    """
    parts = {"checkpoint": checkpoint, "recovery": recovery, "stragglers": stragglers}
    given = {"mtbf": {"gpu": mtbf} if isinstance(mtbf, str) else _plain(mtbf), "days": days}
    given |= {name: _plain(part) for name, part in parts.items() if part is not None}
    return goodput_of(scenario, read(given), long=long)


def _plain(part: object) -> object:
    """A mapping in the form of a file. Anything else is returned as it is, for the reader to refuse."""
    return dict(part) if isinstance(part, Mapping) else part


def goodput_of(scenario: str | Path | Scenario | Run, given: Reliability, *, long: bool = False) -> Goodput:
    """The goodput of a scenario or a run, with values of reliability that were read before."""
    if isinstance(scenario, (str, Path)):
        scenario = load_one(scenario)
    must_be(scenario, (Scenario, Run), "scenario", "a scenario or a run", 'sim.goodput("llama3-70b-64xh100", "50000 h")')
    run = scenario if isinstance(scenario, Run) else simulate_scenario(scenario, long=long)
    slowed_s = run.metrics.step_time_s
    if given.stragglers.gpu is not None:
        slowed_s = _slowed_s(run, given.stragglers.speed, long=long)
    found = Goodput(run, given, _components(run), _saving(run, given), slowed_s)
    _check(found)
    return found


def _slowed_s(run: Run, speed: float, *, long: bool) -> float:
    """Seconds of a step at the mean speed with one slow GPU, over the ranks of the pipeline on which it may be.

    Of more than four of them, the first and the last are simulated, and two that stand for all between.
    """
    coordinates = derived.mesh_of(run.scenario).coordinate("pp")
    ranks = np.unique(coordinates, return_index=True)[1]
    last = len(ranks) - 1
    shares = dict.fromkeys(range(last + 1), 1.0)
    if last >= MOST_SLOWED:
        shares = {0: 1.0, last // 3: (last - 1) / 2, 2 * last // 3: (last - 1) / 2, last: 1.0}
    steps_per_s = 0.0
    for at, share in shares.items():
        slow = Perturb(rank=int(derived.gpus_of(run.scenario)[ranks[at]]), speed=speed)
        slowed = replace(run.as_given, perturb=(*run.as_given.perturb, slow))
        found = simulate_scenario(slowed, steps=run.steps, allow_oom=True, long=long)  # the run itself was allowed
        steps_per_s += share / found.metrics.step_time_s
    return sum(shares.values()) / steps_per_s


def _check(found: Goodput) -> None:
    """Raises `UserError` without failures and interval, or for checkpoints more often than steps or storage allow."""
    job, given_s, step_s = found.job, found.reliability.checkpoint.interval_s, found.run.metrics.step_time_s
    if given_s is None and not job.rate_per_s:
        message = "neither a failure rate nor an interval between checkpoints was given: without failures no interval is best"
        raise UserError(message, hint="add --mtbf gpu=50000h or --checkpoint-interval 30min")
    if given_s is not None and given_s < step_s:
        message = f"a checkpoint every {show_span(given_s)} is more than one in each step, which takes {show_s(step_s)}"
        raise UserError(message, hint="an interval of at least a step; by default the best is used")
    if given_s is not None and given_s + job.pause_s < job.write_s:
        least = show_span(job.write_s - job.pause_s)
        message = (
            f"a checkpoint every {show_span(given_s)} begins before the last one is written, which takes {show_span(job.write_s)}"
        )
        raise UserError(message, hint=f"an interval of at least {least}, or faster storage")


def _components(run: Run) -> dict[str, int]:
    """Number of components of each kind whose failure stops the job."""
    cluster = run.scenario.cluster
    nodes = -(-run.gpus // cluster.gpus_per_node)
    switches = sum(measure.switches(cluster).values())  # also those that the graph pools
    if cluster.shape_name == "explicit":
        switches = sum(part.count for part in cluster.wiring.vertices if part.kind not in WITHIN_NODES)
    return {"gpu": run.gpus, "nic": nodes * cluster.nics_per_node, "switch": switches, "job": 1}


def _saving(run: Run, given: Reliability) -> Saving:
    """The checkpoint of a run. A copy to the host crosses the PCIe link of every GPU."""
    scenario, cluster, checkpoint = run.scenario, run.scenario.cluster, given.checkpoint
    layout, plan = layout_of(scenario), derived.placed(scenario)
    experts = plan.ep * (plan.tp if plan.etp is None else plan.etp)
    size_bytes = saved_bytes(
        run.program, terms_of(scenario, layout), plan.tp, experts, len(layout.placements), tied=scenario.model.tied_embeddings
    )
    nodes = -(-run.gpus // cluster.gpus_per_node)
    total = checkpoint.storage_bytes_per_s or inf
    write_s = size_bytes / min(total, nodes * checkpoint.node_bytes_per_s)
    host = cluster.host
    to_host = host.bytes_per_s if host and host.bytes_per_s else cluster.pcie.bytes_per_s
    pause_s = size_bytes / run.gpus / to_host if checkpoint.kind == "async" else write_s
    return Saving(size_bytes, write_s, pause_s)


def written(options: Mapping[str, Any]) -> Reliability:
    """A reliability from the options of the command line: places with their values, and the options that set them."""
    document = Document.of({})
    for place, (value, mark) in options.items():
        document = document.changed(tuple(place.split(".")), value, mark)
    return read(document)
