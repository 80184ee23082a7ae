"""Values of a scenario that a user set and that have no effect on its run."""

from __future__ import annotations

from ..costs.collectives.curves import SAME_RATE
from ..fields import keys
from ..units import GB
from ..workload.framework import CommunicationSms
from .cluster_file import ClusterFile
from .power_rules import without_effect
from .scenario import Scenario


def unused(scenario: Scenario) -> list[str]:
    """A sentence for each value that a user set and that has no effect. Values from files of the catalog are not reported."""
    cluster, gpu = scenario.cluster, scenario.cluster.gpu
    found = []
    if gpu.tdp_w != gpu.reference_tdp_w and (why := without_effect(scenario)):
        found.append(f"cluster.gpu.tdp: {gpu.tdp_w:g} W has no effect, {why}")
    shapes = [cluster.shape, *(cluster.options.wan.shapes if cluster.options.wan else ())]
    has_pods = any("nodes_per_pod" in getattr(shape, "OPTIONS", ("nodes_per_pod",)) for shape in shapes)
    if not has_pods and cluster.nodes > 1 and cluster.nodes_per_pod != keys(ClusterFile)["nodes_per_pod"].default:
        message = f"{cluster.nodes_per_pod} has no effect, the shape {cluster.shape_name} has no pods"
        found.append(f"cluster.nodes_per_pod: {message}")
    gpus_per_nic = max(1.0, cluster.gpus_per_node / max(1, cluster.rails))
    over_pcie = cluster.pcie.bytes_per_s * gpus_per_nic  # several GPUs feed a NIC that they share
    if cluster.nodes > 1 and cluster.rails and cluster.rail_bytes_per_s > over_pcie * (1 + SAME_RATE):
        rate, usable = (f"{rate / GB:g} GB/s" for rate in (cluster.rail_bytes_per_s, over_pcie))
        of_pcie = "what the PCIe links of its GPUs carry (cluster.pcie)"
        found.append(f"cluster.inter_node: {rate} of a NIC have no effect beyond {usable}, {of_pcie}")
    if scenario.plan.sequence_parallel and scenario.plan.tp == 1:
        found.append("plan.sequence_parallel: it has no effect, with tp: 1 there are no GPUs to divide the tokens among")
    if scenario.fidelity.overlap == "free" and scenario.framework.sms != CommunicationSms():
        found.append("framework.sms: it has no effect, with fidelity.overlap: free communication takes nothing from compute")
    return found
