"""A discrete-event simulator of GPU-cluster training.

    import simulator as sim
    run = sim.simulate(sim.model("llama3-70b"), sim.cluster("dgx-h100", nodes=8), sim.Plan(tp=8, pp=8),
                       sim.Job(sequence_length=8192, global_batch=128))

Everything below is loaded when it is first used: importing the package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advise.explanation import explain as explain
    from .advise.serving_advice import advise_serving as advise_serving
    from .advise.training_advice import advise as advise
    from .config.load import cluster as cluster
    from .config.load import framework as framework
    from .config.load import model as model
    from .config.scenario import Perturb as Perturb
    from .errors import Deadlock as Deadlock
    from .errors import Infeasible as Infeasible
    from .errors import UserError as UserError
    from .figures.gantt import gantt as gantt
    from .figures.kineto import kineto as kineto
    from .figures.memory_plot import memory_plot as memory_plot
    from .figures.sweep_plot import sweep_plot as sweep_plot
    from .figures.topology_plot import topology_plot as topology_plot
    from .figures.tornado import tornado as tornado
    from .figures.trace import trace as trace
    from .plan.offload import Offload as Offload
    from .plan.plan import Fidelity as Fidelity
    from .plan.plan import Moe as Moe
    from .plan.plan import Overlap as Overlap
    from .plan.plan import Plan as Plan
    from .plan.plan import Sharding as Sharding
    from .plan.recomputation import Recompute as Recompute
    from .report.page import report as report
    from .search.search import search as search
    from .simulation.run import Run as Run
    from .simulation.runnable import load as load
    from .simulation.runnable import scenario as scenario
    from .simulation.session import Session as Session
    from .simulation.simulate import simulate as simulate
    from .study.cluster_facts import topology as topology
    from .study.collective import collective as collective
    from .study.compare import compare as compare
    from .study.flows import flows as flows
    from .study.goodput import goodput as goodput
    from .study.kernel_time import kernel as kernel
    from .study.schedule_verbs import compare_schedules as compare_schedules
    from .study.schedule_verbs import schedule as schedule
    from .study.step_views import memory as memory
    from .study.step_views import network as network
    from .study.sweep import sweep as sweep
    from .study.what_if import what_if as what_if
    from .validate.report import validate as validate
    from .workload.job import Job as Job
    from .workload.job import Lora as Lora
    from .workload.optimizer import Optimizer as Optimizer
    from .workload.packing import Packing as Packing

__version__ = "0.1.0"

_WHERE = {
    "Deadlock": "errors",
    "Fidelity": "plan.plan",
    "Infeasible": "errors",
    "Job": "workload.job",
    "Lora": "workload.job",
    "Moe": "plan.plan",
    "Offload": "plan.offload",
    "Optimizer": "workload.optimizer",
    "Overlap": "plan.plan",
    "Packing": "workload.packing",
    "Perturb": "config.scenario",
    "Plan": "plan.plan",
    "Recompute": "plan.recomputation",
    "Run": "simulation.run",
    "Sharding": "plan.plan",
    "UserError": "errors",
    "advise": "advise.training_advice",
    "advise_serving": "advise.serving_advice",
    "cluster": "config.load",
    "collective": "study.collective",
    "compare": "study.compare",
    "compare_schedules": "study.schedule_verbs",
    "explain": "advise.explanation",
    "flows": "study.flows",
    "framework": "config.load",
    "gantt": "figures.gantt",
    "goodput": "study.goodput",
    "kernel": "study.kernel_time",
    "kineto": "figures.kineto",
    "load": "simulation.runnable",
    "memory": "study.step_views",
    "memory_plot": "figures.memory_plot",
    "model": "config.load",
    "network": "study.step_views",
    "report": "report.page",
    "scenario": "simulation.runnable",
    "schedule": "study.schedule_verbs",
    "search": "search.search",
    "Session": "simulation.session",
    "simulate": "simulation.simulate",
    "sweep": "study.sweep",
    "sweep_plot": "figures.sweep_plot",
    "topology": "study.cluster_facts",
    "topology_plot": "figures.topology_plot",
    "tornado": "figures.tornado",
    "trace": "figures.trace",
    "validate": "validate.report",
    "waterfall_plot": "figures.waterfall_plot",
    "what_if": "study.what_if",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605


class _Face(ModuleType):
    """The package module as users see it. Importing `simulator.memory.account`, for example, makes Python store the subpackage
    `memory` here, which would replace the public function of that name: the function is kept."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
