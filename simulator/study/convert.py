"""From validated schemas to the frozen values that the simulator works with."""

from __future__ import annotations

import re
from typing import Any

from ..binding.fidelity import Fidelity
from ..errors import Fault, UserError, did_you_mean
from ..hardware.cluster import Cluster, LinkSpec
from ..hardware.gpu import Gpu, KernelConstants
from ..plan.plan import Overlap, Plan
from ..units import BYTES_PER_SECOND, GB, parse
from ..workload.job import Job
from ..workload.model import Model
from . import catalog
from .scenario import Perturb, Scenario
from .schema import ClusterSchema, GpuSchema, ModelSchema, PerturbSchema, ScenarioSchema
from .source import Document

PCIE_BYTES_PER_S = 63.0 * GB
"""GPU to NIC where a cluster does not say: PCIe 5.0 x16."""


def scenario(schema: ScenarioSchema, document: Document) -> Scenario:
    """A scenario from its schema; faults of any section carry their place."""
    faults: list[Fault] = []

    def attempt(build: Any, *place: str) -> Any:
        try:
            return build()
        except UserError as error:
            dotted = ".".join(place)
            faults.extend(Fault(f"{dotted}: {f.message}", f.hint, f.where or document.where(place)) for f in error.faults)
            return None

    built_model = attempt(lambda: model(schema.model), "model")
    built_cluster = attempt(lambda: cluster(schema.cluster), "cluster")
    perturb = tuple(attempt(lambda p=p: _perturb(p), "perturb", str(i)) for i, p in enumerate(schema.perturb))
    if faults:
        raise UserError("", faults=faults)
    plan = Plan(**{**dict(schema.plan), "overlap": Overlap(**dict(schema.plan.overlap))})
    return Scenario(
        built_model, built_cluster, plan, Job(**dict(schema.job)), Fidelity(**dict(schema.fidelity)), perturb, document.marks
    )


def model(schema: ModelSchema) -> Model:
    """A model, with what its schema leaves out filled in from the rest."""
    if schema.head_dim is None and schema.hidden % schema.heads:
        raise UserError(f"hidden {schema.hidden} does not divide by {schema.heads} heads", hint="give head_dim")
    kv_heads = schema.kv_heads or schema.heads
    if schema.heads % kv_heads:
        raise UserError(f"{schema.heads} heads do not share {kv_heads} kv_heads evenly")
    if schema.ffn_hidden is None and schema.gated_mlp:
        raise UserError("a gated MLP needs ffn_hidden")
    if schema.positions == "learned" and schema.max_sequence_length is None:
        raise UserError("learned positions need max_sequence_length")
    return Model(
        name=schema.name,
        layers=schema.layers,
        hidden=schema.hidden,
        heads=schema.heads,
        kv_heads=kv_heads,
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
    """A cluster: link specifications parsed, the shape's module found."""
    nvlink = _intra_node(schema.intra_node)
    nics, nic = _inter_node(schema.inter_node) if schema.inter_node else (0, 0.0)
    if schema.nodes > 1 and not nics:
        raise UserError(f"{schema.nodes} nodes need inter_node", hint='write it like inter_node: "8x400 Gbit/s"')
    shape = schema.shape or ("rail-optimized" if schema.nodes > 1 else "nvswitch")
    latency = schema.latency
    return Cluster(
        name=schema.name,
        gpu=gpu(schema.gpu),
        gpus_per_node=schema.gpus_per_node,
        nodes=schema.nodes,
        shape_name=catalog.plain(shape),
        shape=catalog.module("shapes", shape),
        nvlink=LinkSpec(nvlink, latency.nvlink),
        pcie=LinkSpec(schema.pcie or PCIE_BYTES_PER_S, latency.pcie),
        nic=LinkSpec(nic, latency.nic),
        switch_latency_s=latency.switch,
        nics_per_node=nics,
        nodes_per_pod=schema.nodes_per_pod,
        oversubscription=schema.oversubscription,
    )


def _intra_node(text: str) -> float:
    """ "NVSwitch 450 GB/s": bytes/s per GPU and direction."""
    kind, _, rate = text.strip().partition(" ")
    if kind.lower() not in ("nvswitch", "nvlink"):
        hint = f'{did_you_mean(kind.lower(), ["nvswitch"]).split("?")[0]}; write it like "NVSwitch 450 GB/s"'
        raise UserError(f"intra_node {text!r} starts with no known kind of link", hint=hint)
    return _positive(rate, f"intra_node {text!r}", "NVSwitch 450 GB/s")


def _inter_node(text: str) -> tuple[int, float]:
    """ "8x400 Gbit/s": NICs of a node, and bytes/s of each per direction."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×]\s*)?(.+)", text)
    count = int(match[1] or 1) if match else 0
    if not match or not 1 <= count <= 1024:
        raise UserError(f"inter_node {text!r} is no number of NICs and their rate", hint='write it like "8x400 Gbit/s"')
    return count, _positive(match[2], f"inter_node {text!r}", "8x400 Gbit/s")


def _positive(text: str, what: str, example: str) -> float:
    try:
        value = parse(text, BYTES_PER_SECOND)
    except UserError as error:
        raise UserError(f"{what}: {error.faults[0].message}", hint=f'write it like "{example}"') from None
    if not value:
        raise UserError(f"{what} has no bandwidth", hint=f'write it like "{example}"')
    return value


def _perturb(schema: PerturbSchema) -> Perturb:
    of_rank, of_link = schema.rank is not None, schema.link is not None
    if of_rank == of_link:
        raise UserError("a perturbation is of a rank or of a link", hint="{rank: 13, speed: 0.8} or {link: a>b, capacity: 0.5}")
    if (schema.speed is not None) != of_rank or (schema.capacity is not None) != of_link:
        raise UserError("a rank has a speed and a link a capacity", hint="{rank: 13, speed: 0.8} or {link: a>b, capacity: 0.5}")
    if schema.until is not None and schema.until <= (schema.from_ or 0.0):
        raise UserError("a perturbation must end after it begins")
    if schema.capacity == 0 and schema.until is None:
        raise UserError("a link of no capacity for ever stops the step", hint="give until, or a small capacity")
    return Perturb(schema.rank, schema.speed, schema.link, schema.capacity, schema.from_ or 0.0, schema.until)
