"""A discrete-event simulator of GPU-cluster training.

    import simulator as sim
    run = sim.simulate(sim.model("llama3-70b"), sim.cluster("dgx-h100", nodes=8), sim.Plan(tp=8, pp=8),
                       sim.Job(sequence_length=8192, global_batch=128))

Everything below is loaded when it is first used: importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .binding.fidelity import Fidelity as Fidelity
    from .errors import Deadlock as Deadlock
    from .errors import Infeasible as Infeasible
    from .errors import UserError as UserError
    from .figures.gantt import gantt as gantt
    from .figures.trace import trace as trace
    from .plan.plan import Overlap as Overlap
    from .plan.plan import Plan as Plan
    from .study.runs.run import Run as Run
    from .study.scenarios.api import cluster as cluster
    from .study.scenarios.api import framework as framework
    from .study.scenarios.api import model as model
    from .study.scenarios.load import load as load
    from .study.scenarios.load import scenario as scenario
    from .study.scenarios.scenario import Perturb as Perturb
    from .study.simulate import simulate as simulate
    from .workload.job import Job as Job

__version__ = "0.1.0"

_WHERE = {
    "Deadlock": "errors",
    "Fidelity": "binding.fidelity",
    "Infeasible": "errors",
    "Job": "workload.job",
    "Overlap": "plan.plan",
    "Perturb": "study.scenarios.scenario",
    "Plan": "plan.plan",
    "Run": "study.runs.run",
    "UserError": "errors",
    "cluster": "study.scenarios.api",
    "framework": "study.scenarios.api",
    "gantt": "figures.gantt",
    "load": "study.scenarios.load",
    "model": "study.scenarios.api",
    "scenario": "study.scenarios.load",
    "simulate": "study.simulate",
    "trace": "figures.trace",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
