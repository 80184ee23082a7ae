"""What-ifs: the same step on other hardware, or with another plan, each change by itself, beside the step as it is.

`nic=x2` scales a rate of the hardware; `plan.tp=4` sets a field of the scenario, as `--set` does. Each is a simulation of the
scenario that a user would write for it: NICs of twice the rate take the constants that NICs of this rate have. If another link
limits the effect of a change, the outcome names it. Where a disturbance begins or ends only with the change, or only without it,
both are the first step from a standing start, which is not as long as a step of a long run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import feasible
from ..config.document import Document
from ..config.load import document_of, document_with, list_of_settings
from ..config.named_parts import Trust
from ..config.scenario import Scenario, ScenarioFile, from_document
from ..config.suggestions import meant
from ..errors import Fault, Infeasible, UserError, cut, did_you_mean, must_be, shown
from ..escape import Summarised
from ..fields import keys
from ..frozen import replace
from ..hardware.cluster import Cluster
from ..simulation.run import Run
from ..simulation.simulate import simulate_scenario
from ..simulation.steady_state import has_transitions
from ..units import show_rate, show_s

if TYPE_CHECKING:
    import pandas as pd

SECTIONS = tuple(keys(ScenarioFile))
"""The sections of a scenario, of which a change may set what it names, as `--set` does."""
LEAST, MOST = 0.01, 100.0
"""Bounds of a factor."""
SCALED = {
    "gpu": "kernels",
    "nvlink": "links inside the nodes",
    "pcie": "links from GPUs to NICs",
    "nic": "links from NICs to their switches",
    "host": "launches of kernels and collectives",
}
"""The part of the hardware that each name makes faster."""
EXAMPLE = '["nic=x2", "plan.tp=4"]'


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of a change on the step; without a simulation only the reason."""

    change: str
    run: Run | None
    step_time_s: float | None
    fraction: float | None
    """The part of the step that is added, negative where it gets shorter."""
    mfu: float | None
    """For a faster GPU, relative to its higher peak."""
    peak_memory_bytes: int | None
    note: str
    """What limits the effect of the change, or why it cannot run; "" for neither."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "run"}


@dataclass(frozen=True, repr=False)
class WhatIf(Summarised):
    """A step as it is, and the outcome of each change."""

    run: Run
    outcomes: tuple[Outcome, ...]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The step as it is, and with each change."""
        made = [(one.change, "; ".join(filter(None, (_shown(one), one.note)))) for one in self.outcomes]
        return [("as it is", show_s(self.run.metrics.step_time_s)), *made]

    def as_list(self) -> list[dict[str, Any]]:
        """The outcomes as plain data."""
        return [one.as_dict() for one in self.outcomes]

    def to_pandas(self) -> pd.DataFrame:
        """A row for each change."""
        import pandas as pd

        return pd.DataFrame(self.as_list())


def _shown(one: Outcome) -> str:
    return "" if one.step_time_s is None or one.fraction is None else f"{show_s(one.step_time_s)}, {one.fraction:+z.2%}"


def what_if(
    scenario: str | Path | Mapping[str, Any],
    changes: Iterable[str],
    settings: Iterable[str] = (),
    *,
    run: Run | None = None,
    trust: bool = False,
    long: bool = False,
    allow_oom: bool = False,
) -> WhatIf:
    """Simulates a scenario with each of some changes by itself, such as "nic=x2" and "plan.tp=4".

    The scenario is a name, a file or a mapping; `run` is its run, where there is one.
    """
    must_be(run, (Run, type(None)), "run", "a run", "run=sim.load(scenario).simulate()")
    base, found = changed_scenarios(scenario, changes, settings, trust=trust)
    run = run or simulate_scenario(base, allow_oom=allow_oom, long=long)

    @cache
    def first_step() -> Run:
        return simulate_scenario(run.as_given, steps=1, allow_oom=allow_oom, long=long)

    def outcome(change: str, scenario: Scenario | Infeasible) -> Outcome:
        if isinstance(scenario, Infeasible) or run.steps or has_transitions(scenario.perturb) == has_transitions(base.perturb):
            return _outcome(change, scenario, run, allow_oom=allow_oom, long=long)
        made = _outcome(change, scenario, first_step(), allow_oom=allow_oom, long=long)
        note = f"of the first step from a standing start, {show_s(first_step().metrics.step_time_s)} without the change"
        return replace(made, note="; ".join(filter(None, (made.note, note))) if made.run else made.note)

    return WhatIf(run, tuple(outcome(change, one) for change, one in found.items()))


def changed_scenarios(
    scenario: str | Path | Mapping[str, Any], changes: Iterable[str], settings: Iterable[str] = (), *, trust: bool = False
) -> tuple[Scenario, dict[str, Scenario | Infeasible]]:
    """A scenario as it is, and that of each change, or why there is none. Nothing is simulated.

    Raises `UserError` with the faults of all changes at once.
    """
    changes = (changes,) if isinstance(changes, str) else tuple(must_be(changes, Iterable, "changes", "changes", EXAMPLE))
    settings = list_of_settings(settings)
    for change in changes:
        must_be(change, str, "a change", "a change", EXAMPLE)
    base = _scenario(scenario, settings, trust)
    feasible.check(base)
    found: dict[str, Scenario | Infeasible] = {}
    faults: list[Fault] = []
    for change in changes:
        name, _, value = (part.strip() for part in change.partition("="))
        try:
            if "." not in name and name not in SECTIONS:
                found[change] = scaled(base, name, factor_of(name, value))
                continue
            if "=" not in change:
                raise UserError(f"--what-if {shown(change)} sets nothing", hint=f"write it like --what-if {name}=...")
            found[change] = one = _scenario(scenario, (*settings, change), trust)
            feasible.check(one)
        except Infeasible as error:
            found[change] = error
        except UserError as error:
            faults += (_of_change(one, change) for one in error.faults)
    if faults:
        raise UserError(faults=faults)
    return base, found


def _of_change(fault: Fault, change: str) -> Fault:
    """A fault of a changed scenario that names the option as the user typed it; a change is read as the last setting."""
    name = change.partition("=")[0].strip()
    if fault.message.startswith("--what-if"):
        return fault
    where = fault.where.replace(f"--set {name}=", f"--what-if {name}=")
    if "--what-if" not in where:
        option = f"--what-if {cut(change)}"
        where = f"{option}, {where}" if where else option
    return replace(fault, where=where)


def _scenario(scenario: str | Path | Mapping[str, Any], settings: tuple[str, ...], trust: bool) -> Scenario:
    document: Document = document_with(scenario, settings) if isinstance(scenario, Mapping) else document_of(scenario, settings)
    if "jobs" in document.data:
        raise UserError("several jobs on one cluster have no what-if", hint="give one job by itself")
    return from_document(document, Trust(trust))


def factor_of(name: str, text: str) -> float:
    """The factor that `x2` stands for, on the rate of a name of the hardware."""
    if (known := meant(name, SCALED)) is None:
        hint = f"{did_you_mean(name, SCALED)}, and fields such as plan.tp"
        raise UserError(f"--what-if {shown(name)}: nothing has this name", hint=hint)
    try:
        factor = float(text[1:]) if text[:1] in ("x", "X") else None
    except ValueError:
        factor = None
    if factor is None or not LEAST <= factor <= MOST:
        hint = f"write {known}=x2 for {SCALED[known]} of twice the rate, between x{LEAST:g} and x{MOST:g}"
        raise UserError(f"--what-if {name}: {shown(text)} is not a factor", hint=hint)
    return factor


def scaled(scenario: Scenario, name: str, factor: float) -> Scenario:
    """A scenario on hardware with one rate `factor` times as high."""
    cluster, name = scenario.cluster, meant(name, SCALED) or name
    if name == "host":
        times = {one: took_s / factor for one, took_s in asdict(scenario.framework.host).items()}
        if not any(times.values()):
            raise UserError("--what-if host: launches take no time in this scenario", hint="name a framework that has host times")
        return replace(scenario, framework=replace(scenario.framework, host=replace(scenario.framework.host, **times)))
    if name == "gpu":
        gpu = replace(cluster.gpu, site_scalar=cluster.gpu.site_scalar / factor)
        return replace(scenario, cluster=replace(cluster, gpu=gpu))
    link = getattr(cluster, name)
    if name in ("nic", "pcie") and cluster.nodes == 1 and cluster.host is None:
        used = {"nic": "NIC", "pcie": "PCIe"}[name]
        raise UserError(f"--what-if {name}: a cluster of one node uses no {used}", hint="leave it out")
    if not link.bytes_per_s:
        raise UserError(f"--what-if {name}: the links of {cluster.name} have rates of their own", hint="change them in its file")
    quicker = replace(cluster, **{name: replace(link, bytes_per_s=link.bytes_per_s * factor)})
    return replace(scenario, cluster=quicker)


def _outcome(change: str, scenario: Scenario | Infeasible, base: Run, *, allow_oom: bool, long: bool) -> Outcome:
    """A change, simulated. A plan that cannot run says why."""
    try:
        if isinstance(scenario, Infeasible):
            raise scenario
        run = simulate_scenario(scenario, steps=base.steps, allow_oom=allow_oom, long=long)
    except Infeasible as error:
        return Outcome(change, None, None, None, None, None, f"cannot run: {' '.join(str(error).split())}")
    before_s, after_s = base.metrics.step_time_s, run.metrics.step_time_s
    fraction = after_s / before_s - 1
    name, _, value = (part.strip() for part in change.partition("="))
    is_scaled, name = meant(name, SCALED) is not None, meant(name, SCALED) or name
    same = "no rank waits for it" if is_scaled else "the step takes as long"
    same = "nothing changes" if is_scaled and factor_of(name, value) == 1 else same
    cap = _cap(name, scenario.cluster, base.scenario.cluster) if after_s != before_s or _uses_nics(base) else ""
    note = cap or (same if after_s == before_s else "")
    faster = base.scenario.cluster.gpu.site_scalar / run.scenario.cluster.gpu.site_scalar if name == "gpu" else 1.0
    return Outcome(change, run, after_s, fraction, run.metrics.mfu / faster, run.peak_memory_bytes, note)


def _uses_nics(run: Run) -> bool:
    """Whether GPUs of several nodes take part in a step, so that a NIC or its PCIe link may carry what they send."""
    return run.gpus > run.scenario.cluster.gpus_per_node


def _cap(name: str, cluster: Cluster, before: Cluster) -> str:
    """The link that limits what a quicker NIC or PCIe link can carry; "" for none, and where the change makes nothing quicker."""
    if not cluster.rails:
        return ""
    pcie, nic = cluster.pcie.bytes_per_s, cluster.rail_bytes_per_s
    if name == "nic" and pcie < nic and nic > before.rail_bytes_per_s:
        return f"PCIe {show_rate(pcie)} limits the NIC of {show_rate(nic)}"
    if name == "pcie" and nic < pcie and pcie > before.pcie.bytes_per_s and cluster.host is None:
        return f"the NIC of {show_rate(nic)} limits PCIe {show_rate(pcie)}"
    return ""
