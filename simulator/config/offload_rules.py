"""Rules of plans that keep data in the memory of the host: requirements of the copies, and unsupported combinations."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import Contradiction
from ..plan.offload import KEPT_LAYERS, Offload
from ..plan.plan import WITH_MASTER_COPY
from ..units import counted
from ..workload.optimizer import Optimizer
from .derived import data_parallel_degree
from .scenario import Scenario

Found = Iterator[Contradiction]


def faults_of_offload(scenario: Scenario) -> Found:
    """Faults of the offload of state (everything besides activations)."""
    plan, offload, cluster = scenario.plan, scenario.plan.offloading, scenario.cluster
    if not offload.copies:
        return
    if cluster.host is None:
        hint = "host: {link: pcie, bandwidth: 63 GB/s, memory: 2 TB, memory_bandwidth: 614 GB/s}"
        yield "cluster.host", f"{cluster.name} does not say how GPUs reach the memory of their host, which offload needs", hint
    elif hasattr(cluster.shape, "wire"):
        yield "cluster.shape", f"copies to hosts are not modelled in the shape {cluster.shape_name}", "another shape"
    if plan.vocabulary not in ("baseline", "redis"):
        yield "plan.vocabulary", f"offload is not modelled with a vocabulary as in {plan.vocabulary}", "baseline or redis"
    if plan.exchanges_beside_compute(scenario.framework.overlap):
        yield "plan.overlap.ep", "offload is not modelled where passes of two microbatches run side by side", "false"
    if scenario.job.learns_in_part:
        yield "plan.offload", "offload is not modelled where only a part of the model learns", "none"
    if not offload.optimizer:
        return
    if scenario.job.full_optimizer != Optimizer().full or scenario.job.gradient_clipping is True:
        wrong = "gradient clipping" if scenario.job.full_optimizer == Optimizer().full else "another optimizer than Adam"
        yield "plan.offload.optimizer", f"{wrong} is not modelled on the host", "false"
    kind = plan.full_sharding.kind
    if plan.optimizer != "synchronised":
        yield "plan.optimizer", f"{plan.optimizer} updates on the host are not modelled", "synchronised, or offload: activations"
    if (scenario.model.tied_embeddings or scenario.model.mtp_layers) and plan.pp > 1:
        message = f"the table that the first and the last stage of {scenario.model.name} share is not copied to the host"
        yield "plan.offload.optimizer", message, "false, or pp: 1"
    ranks = min(plan.full_sharding.group or data_parallel_degree(scenario), data_parallel_degree(scenario)) * plan.cp
    if offload.parameters and not (plan.full_sharding.gathers and ranks > 1):
        message = f"{kind} among {ranks} {'rank' if ranks == 1 else 'ranks'} gathers no parameters"
        yield "plan.offload.parameters", message, "false, or sharding: zero3 or fsdp among several ranks"
    elif offload.parameters and scenario.model.experts:
        yield "plan.offload.parameters", f"parameters of experts, as of {scenario.model.name}, stay on their GPUs so far", "false"
    elif kind in WITH_MASTER_COPY and not offload.parameters:
        message = f"the shares of parameters of {kind} are the master copy, which the host updates"
        yield "plan.offload.parameters", message, "parameters: true, or sharding: zero3"


def faults_of_offloaded_layers(chosen: Offload, most: int) -> Found:
    """Faults of the fraction of layers whose activations are copied, where the largest stage has `most` layers."""
    if chosen.activations and not chosen.layers(most):
        least = KEPT_LAYERS + 1
        of_stage = f"{chosen.activations:g} of {counted(most, 'layer')} of a stage"
        message = f"{of_stage}, of which the last {KEPT_LAYERS} are never copied, is none"
        hint = f"stages of {least} layers or more" if most < least else f"activations: {1 / most:.2g}"
        yield "plan.offload.activations", message, hint
