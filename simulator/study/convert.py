"""From validated schemas to the frozen values that the simulator works with. Nothing is refused here any more."""

from __future__ import annotations

from ..binding.fidelity import Fidelity
from ..hardware.cluster import Cluster, LinkSpec
from ..hardware.gpu import Gpu, KernelConstants
from ..plan.plan import Overlap, Plan
from ..units import GB
from ..workload.job import Job
from ..workload.model import Model
from . import catalog
from .document import Document
from .grammar import Nics
from .scenario import Perturb, Scenario
from .schema import ClusterSchema, GpuSchema, ModelSchema, PerturbSchema, ScenarioSchema

PCIE_BYTES_PER_S = 63.0 * GB
"""GPU to NIC where a cluster does not say: PCIe 5.0 x16."""


def scenario(schema: ScenarioSchema, document: Document) -> Scenario:
    """A scenario from its schema; the document says where its values came from."""
    return Scenario(
        model(schema.model),
        cluster(schema.cluster),
        Plan(**{**dict(schema.plan), "overlap": Overlap(**dict(schema.plan.overlap))}),
        Job(**dict(schema.job)),
        Fidelity(**dict(schema.fidelity)),
        tuple(map(_perturb, schema.perturb)),
        document.marks,
    )


def model(schema: ModelSchema) -> Model:
    """A model, with what its schema leaves out filled in from the rest."""
    return Model(
        name=schema.name,
        layers=schema.layers,
        hidden=schema.hidden,
        heads=schema.heads,
        kv_heads=schema.kv_heads or schema.heads,
        head_dim=schema.head_dim or schema.hidden // schema.heads,
        ffn_hidden=schema.ffn_hidden or 4 * schema.hidden,
        vocab=schema.vocab,
        gated_mlp=schema.gated_mlp,
        tied_embeddings=schema.tied_embeddings,
        norm=schema.norm or ("rmsnorm" if schema.gated_mlp else "layernorm"),
        activation=schema.activation or ("silu" if schema.gated_mlp else "gelu"),
        positions=schema.positions,
        bias=schema.bias,
        max_sequence_length=schema.max_sequence_length or 0,
    )


def gpu(schema: GpuSchema) -> Gpu:
    k = schema.kernels
    constants = KernelConstants(
        k.fixed, k.compute_fraction, k.memory_fraction, k.attention_forward_fraction, k.attention_backward_fraction, k.provenance
    )
    return Gpu(schema.name, schema.memory, schema.memory_bandwidth, schema.peak, schema.sms, schema.tdp, constants)


def cluster(schema: ClusterSchema) -> Cluster:
    """A cluster, its shape's module found."""
    nics = schema.inter_node or Nics(0, 0.0)
    shape = schema.shape or ("rail-optimized" if schema.nodes > 1 else "nvswitch")
    latency = schema.latency
    return Cluster(
        name=schema.name,
        gpu=gpu(schema.gpu),
        gpus_per_node=schema.gpus_per_node,
        nodes=schema.nodes,
        shape_name=catalog.plain(shape),
        shape=catalog.module("shapes", shape),
        nvlink=LinkSpec(schema.intra_node, latency.nvlink),
        pcie=LinkSpec(schema.pcie or PCIE_BYTES_PER_S, latency.pcie),
        nic=LinkSpec(nics.bytes_per_s, latency.nic),
        switch_latency_s=latency.switch,
        nics_per_node=nics.per_node,
        nodes_per_pod=schema.nodes_per_pod,
        oversubscription=schema.oversubscription,
    )


def _perturb(schema: PerturbSchema) -> Perturb:
    return Perturb(schema.rank, schema.speed, schema.link, schema.capacity, schema.from_, schema.until)
