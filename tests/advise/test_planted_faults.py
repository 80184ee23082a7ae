"""Faults that are planted into a scenario: the first cause that is named is the fault, with its place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import simulator as sim
from simulator.advise.explanation import Explanation, explain
from simulator.study.critical_path import critical_path
from simulator.study.waterfall import BUBBLE, waterfall
from simulator.study.without import BELOW_PEAK, IMBALANCE, LAUNCHES, OPTIMIZER, RECOMPUTATION

from ..small_scenarios import HOST, scenario, small_cluster, small_model

ROOMY: dict[str, Any] = {"intra_node": "NVSwitch 10 TB/s"}
LARGE: dict[str, Any] = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336}
EXPERTS: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 4096}
JOB = sim.Job(sequence_length=2048, global_batch=32)
SLOW_NICS: dict[str, Any] = {"inter_node": "4x10 Gbit/s"}


@dataclass(frozen=True)
class Fault:
    """A planted fault: what is simulated, the cause that has to come first, and what its sentence has to say."""

    name: str
    cause: str
    plan: dict[str, Any]
    says: str
    healthy: dict[str, Any]
    """The fields without the fault."""
    model: dict[str, Any] = field(default_factory=lambda: LARGE)
    cluster: dict[str, Any] = field(default_factory=lambda: ROOMY)
    job: dict[str, Any] = field(default_factory=dict)
    framework: dict[str, Any] = field(default_factory=dict)
    perturb: sim.Perturb | None = None
    remedy: str = ""
    """What the best change has to set; "" where none of the plan can help."""

    def run(self) -> sim.Run:
        framework: Any = self.framework.get("name") or (self.framework or "none")
        given = scenario(
            small_model(**self.model), small_cluster(**{"nodes": 2, **self.cluster}), sim.Plan(**self.plan),
            replace(JOB, **self.job), perturb=(self.perturb,) if self.perturb else (), framework=sim.framework(framework),
        )  # fmt: skip
        return given.simulate(allow_oom=True)


QUICK: dict[str, Any] = {"inter_node": "4x10000 Gbit/s", **ROOMY}
WIDE: dict[str, Any] = {**LARGE, "hidden": 8192, "heads": 64, "ffn_hidden": 28672, "layers": 4}
SHORT: dict[str, Any] = {"sequence_length": 128, "global_batch": 512}
BLOCKING, FREE = sim.Overlap(pp=False, dp=False), sim.Overlap(pp=True, dp=True)
CHUNKS: dict[str, Any] = {"pp": 8, "schedule": "interleaved", "chunks": 2}
FAULTS = [
    Fault("a slow GPU", IMBALANCE, {"dp": 8}, "rank 3 runs at 0.4", {"perturb": None}, perturb=sim.Perturb(rank=3, speed=0.4)),
    Fault("a slow GPU of a pipeline", IMBALANCE, {"pp": 4, "dp": 2}, "rank 5 runs at 0.3", {"perturb": None},
          perturb=sim.Perturb(rank=5, speed=0.3)),
    Fault("few microbatches", BUBBLE, {"pp": 8}, "8 ranks fills and drains around 2", {"job": {"global_batch": 64}},
          job={"global_batch": 2}),
    Fault("a pipeline one microbatch at a time", BUBBLE, {"pp": 8, "schedule": "naive"}, "8 ranks", {"plan": {"pp": 8}},
          job={"global_batch": 64}, remedy="plan.schedule="),
    Fault("slow NICs", "dp", {"dp": 8}, "nic", {"cluster": QUICK}, cluster={"inter_node": "4x1 Gbit/s"}),
    Fault("one slow NIC", "dp", {"dp": 8}, "node1/nic2>leaf2 has 0.01 of its bandwidth", {"perturb": None},
          perturb=sim.Perturb(link="node1/nic2>leaf2", capacity=0.01)),
    Fault("slow NVLinks", "tp", {"tp": 4, "dp": 2}, "limited by gpu > nvswitch", {"cluster": ROOMY},
          cluster={"intra_node": "NVSwitch 10 GB/s"}),
    Fault("an oversubscribed uplink", "dp", {"dp": 16}, "leaf > spine", {"cluster": {"nodes": 4, "shape": "leaf-spine"}},
          cluster={"nodes": 4, "shape": "leaf-spine", "oversubscription": 64}, job={"global_batch": 128}),
    Fault("launches of small kernels", LAUNCHES, {"dp": 8}, "host", {"model": LARGE, "job": {}},
          {"hidden": 64, "heads": 4, "ffn_hidden": 128}, job={"sequence_length": 64}, framework={"name": "megatron-core-2025"}),
    Fault("a heavy head", IMBALANCE, {"pp": 4, "dp": 2}, "stage 3 (2 layers and the head)", {"model": LARGE},
          {**LARGE, "vocab": 128000}),
    Fault("an uneven split", IMBALANCE, {"pp": 4, "dp": 2, "layout": (1, 5, 1, 1)}, "stage 1 (5 layers)",
          {"plan": {"pp": 4, "dp": 2}}, remedy="plan.layout="),
    Fault("a hot expert", IMBALANCE, {"ep": 8, "dp": 8, "moe": sim.Moe(routing=(1, 1, 7, 1, 1, 1, 1, 1))}, "expert_up",
          {"plan": {"ep": 8, "dp": 8}}, {**LARGE, **EXPERTS}, QUICK),
    Fault("experts behind slow NICs", "ep", {"ep": 8, "dp": 8}, "nic", {"cluster": QUICK}, {**LARGE, **EXPERTS}, SLOW_NICS),
    Fault("blocking transfers", "pp", {**CHUNKS, "overlap": BLOCKING}, "nothing computes beside it",
          {"plan": {**CHUNKS, "overlap": FREE}}, {**LARGE, "layers": 16}, {"inter_node": "4x50 Gbit/s"}, {"global_batch": 64},
          remedy="plan.overlap.pp=true"),
    Fault("a bad order of ranks", "tp", {"tp": 4, "dp": 2, "rank_order": "dp-tp-pp"}, "spans 2 nodes",
          {"plan": {"tp": 4, "dp": 2}}, cluster={"inter_node": "4x100 Gbit/s", **ROOMY}, remedy="plan.rank_order="),
    Fault("tensor-parallel groups that nodes do not hold whole", "tp", {"tp": 4, "dp": 3},
          "1 of 3 tensor-parallel groups are on up to 2 nodes, as groups of 4 do not divide the 6 GPUs of a node",
          {"cluster": {**ROOMY, "nodes": 3}}, cluster={"gpus_per_node": 6, "inter_node": "6x100 Gbit/s", **ROOMY},
          job={"global_batch": 192}),
    Fault("groups of experts that nodes do not hold whole", "ep", {"ep": 4, "dp": 12},
          "1 of 3 expert-parallel groups are on up to 2 nodes, as groups of 4 do not divide the 6 GPUs of a node",
          {"cluster": {**ROOMY, "nodes": 3}}, {**LARGE, **EXPERTS}, {"gpus_per_node": 6, "inter_node": "6x100 Gbit/s", **ROOMY},
          {"global_batch": 192}),
    Fault("a microbatch too small", BELOW_PEAK, {"dp": 8}, "128 tokens are computed at a time",
          {"job": {**SHORT, "microbatch_size": 64}}, job=SHORT, remedy="job.microbatch_size=2"),
    Fault("attention that is not fused", BELOW_PEAK, {"dp": 8}, "attention is not fused", {"framework": {}},
          {"hidden": 512, "heads": 8, "kv_heads": 8}, job={"sequence_length": 4096}, framework={"attention": "unfused"},
          remedy="framework.attention="),
    Fault("an exposed gather", "dp", {"dp": 8, "sharding": sim.Sharding(kind="fsdp", prefetch=0)},
          "most in all_gather of parameters", {"plan": {"dp": 8, "sharding": "fsdp"}}, cluster={"inter_node": "4x200 Gbit/s"},
          job={"global_batch": 64, "microbatch_size": 4}),
    Fault("a reduction behind the backward pass", "dp", {"dp": 8, "overlap": BLOCKING}, "nothing computes beside it",
          {"plan": {"dp": 8, "overlap": FREE}}, cluster={"inter_node": "4x200 Gbit/s"},
          job={"global_batch": 8, "sequence_length": 8192}, remedy="plan.overlap.dp=true"),
    Fault("full recomputation", RECOMPUTATION, {"dp": 8, "recompute": "full"}, "forward passes are repeated",
          {"plan": {"dp": 8}}, WIDE, job={"sequence_length": 8192}, remedy="plan.recompute="),
    Fault("an optimizer that is not divided", OPTIMIZER, {"dp": 4}, "optimizer updates",
          {"plan": {"dp": 4, "sharding": "zero1"}}, {**LARGE, "layers": 4}, {**ROOMY, "nodes": 1},
          {"global_batch": 4, "sequence_length": 64}, remedy="plan.sharding="),
    Fault("activations over a slow host link", "offload", {"dp": 8, "offload": "activations"}, "host", {"plan": {"dp": 8}},
          cluster={"host": {**HOST, "bandwidth": "1 GB/s"}}),
    Fault("a ring of keys and values behind slow NICs", "cp", {"cp": 8}, "nic", {"cluster": QUICK}, cluster=SLOW_NICS,
          job={"sequence_length": 8192}),
]  # fmt: skip


def without_changes(run: sim.Run) -> Explanation:
    """The explanation of a run, without simulating changes of its plan."""
    return Explanation(run, waterfall(run), critical_path(run), ())


def test_the_table_has_twenty_faults() -> None:
    assert len({fault.name for fault in FAULTS}) >= 20


@pytest.mark.thinned(6)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_the_first_cause(fault: Fault) -> None:
    first = without_changes(fault.run()).losses[0]
    assert (first.cause, fault.says in first.text) == (fault.cause, True), first.text


@pytest.mark.thinned(6)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_without_the_fault_the_first_cause_is_another(fault: Fault) -> None:
    """Or, of kernels that were too small or too many, the same cause with a smaller share."""
    faulty, healthy = (without_changes(one.run()).losses[0] for one in (fault, replace(fault, **fault.healthy)))
    assert healthy.cause != fault.cause or (fault.cause == BELOW_PEAK and healthy.fraction < 0.75 * faulty.fraction), healthy.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.remedy], ids=[fault.name for fault in FAULTS if fault.remedy])
def test_one_of_the_changes_mends_the_fault(fault: Fault) -> None:
    found = explain(fault.run())
    assert any(fault.remedy in one.settings for one in found.best), [one.text for one in found.best]


def test_a_degraded_link_is_named_only_where_it_limits() -> None:
    """Tensor parallelism within nodes does not wait for a NIC, however slow it is."""
    slow = sim.Perturb(link="node1/nic2>leaf2", capacity=0.01)
    fault = Fault("a slow NIC beside NVLinks", "dp", {"tp": 4, "dp": 2}, "node1/nic2>leaf2", {}, perturb=slow)
    said = {loss.cause: "node1/nic2>leaf2" in loss.text for loss in without_changes(fault.run()).losses}
    assert said["dp"]
    assert not said["tp"]
