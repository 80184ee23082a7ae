"""From validated schemas to the frozen values that the simulator works with. Nothing is refused here any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...binding.fidelity import Fidelity
from ...plan.plan import Overlap, Plan
from ...workload.framework import Framework, Fusion, HostTimes, LowPrecision, MemoryOverhead, Overlaps
from ...workload.job import Job
from ...workload.model import Model
from ..documents.document import Document
from .convert_cluster import cluster
from .scenario import Perturb, Scenario

if TYPE_CHECKING:
    from .schema import ModelSchema, PerturbSchema, ScenarioSchema
    from .software import FrameworkSchema, MemorySchema


def scenario(schema: ScenarioSchema, document: Document) -> Scenario:
    """A scenario from its schema; the document says where its values came from."""
    return Scenario(
        model(schema.model),
        cluster(schema.cluster),
        Plan(**{**dict(schema.plan), "overlap": Overlap(**dict(schema.plan.overlap))}),
        Job(**dict(schema.job)),
        Fidelity(**dict(schema.fidelity)),
        tuple(map(_perturb, schema.perturb)),
        framework(schema.framework),
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


def framework(schema: FrameworkSchema) -> Framework:
    """A framework, its host times in seconds."""
    return Framework(
        name=schema.name,
        attention=schema.attention,
        dropout=schema.dropout,
        compile=schema.compile,
        cuda_graphs=schema.cuda_graphs,
        p2p_sync=schema.p2p_sync,
        gradients=schema.gradients,
        fusion=Fusion(**dict(schema.fusion)),
        host=HostTimes(**{f"{name}_s": value for name, value in schema.host}),
        low_precision=LowPrecision(**dict(schema.low_precision)),
        overlap=Overlaps(**dict(schema.overlap)),
        memory=_overhead(schema.memory),
    )


def _overhead(schema: MemorySchema) -> MemoryOverhead:
    return MemoryOverhead(schema.context, schema.nccl_buffer, schema.nccl_channels, schema.fragmentation)


def _perturb(schema: PerturbSchema) -> Perturb:
    return Perturb(schema.rank, schema.speed, schema.link, schema.capacity, schema.from_, schema.until)
