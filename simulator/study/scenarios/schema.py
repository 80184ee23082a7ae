"""The boundary: what may stand in a YAML file. What is not plainly right pydantic judges, and it names every fault at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from ...binding.fidelity import Collectives, Granularity
from ...units import show_s
from ..documents.fields import LEAST_FACTOR, Degree, Name, Seconds, Size
from ..documents.strict import Contradiction, Field, SoFar, Strict, Text
from . import grammar
from .clusters import ClusterSchema
from .software import FrameworkSchema

Factor = Annotated[float, Field(le=100, allow_inf_nan=False, description="a constant factor; random ones are not modelled yet")]


class ModelSchema(Strict):
    """A decoder model; inline, or a file in workloads/models."""

    not_yet: ClassVar[dict[str, str]] = dict.fromkeys(
        ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers"),
        "mixture-of-experts models cannot be simulated yet, only dense decoder models",
    )
    instead: ClassVar[str] = "take a dense model: without its experts this would be another model"

    name: Name = "inline"
    layers: Annotated[int, Field(ge=1, le=10_000, description="decoder layers, such as 32")]
    hidden: Annotated[Size, Field(description="width of the residual stream, such as 4096")]
    heads: Annotated[Size, Field(description="attention heads, such as 32")]
    kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn_hidden: Size | None = None
    gated_mlp: bool = False
    vocab: Annotated[Size, Field(description="rows of the embedding, such as 128256")]
    tied_embeddings: bool = False
    norm: Literal["rmsnorm", "layernorm"] | None = None
    activation: Literal["silu", "gelu", "relu"] | None = None
    positions: Literal["rope", "learned", "none"] = "rope"
    bias: bool = False
    max_sequence_length: Size | None = None
    published_parameters: str | None = None
    source: str | None = None

    def contradictions(self) -> Iterator[Contradiction]:
        kv_heads = self.kv_heads or self.heads
        if self.head_dim is None and self.hidden % self.heads:
            near = grammar.nearest_divisor(self.hidden, self.heads)
            yield "heads", f": hidden {self.hidden} does not divide by {self.heads} heads", f"heads: {near}, or give head_dim"
        if self.heads % kv_heads:
            near = grammar.nearest_divisor(self.heads, kv_heads)
            yield "kv_heads", f": {self.heads} heads do not share {kv_heads} kv_heads evenly", f"kv_heads: {near}"
        if self.ffn_hidden is None and self.gated_mlp:
            yield "ffn_hidden", " is missing: a gated MLP has no usual size", f"Llama 3 has 3.5 x hidden: {7 * self.hidden // 2}"
        if self.positions == "learned" and self.max_sequence_length is None:
            yield "max_sequence_length", " is missing: learned positions end somewhere", "max_sequence_length: 2048"


class OverlapSchema(Strict):
    """Which communication may run beside compute; what is left out is as the framework does it."""

    dp: bool | None = None
    tp: bool | None = None
    pp: bool | None = None
    ep: Annotated[bool, SoFar((False,), "expert parallelism")] = False


class PlanSchema(Strict):
    """How the job is spread over the cluster."""

    tp: Degree = 1
    pp: Degree = 1
    dp: Degree | None = None
    cp: Annotated[Degree, SoFar((1,), "context parallelism")] = 1
    ep: Annotated[Degree, SoFar((1,), "expert parallelism")] = 1
    sequence_parallel: bool | None = None
    chunks: Degree = 1
    schedule: Annotated[str, Text(grammar.schedule, "a name, file.py:function or file.csv", "1f1b")] = "1f1b"
    group: Degree | None = None
    splits: Degree = 1
    memory_limit: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] = 1.0
    optimizer: Literal["synchronised", "post-validated"] = "synchronised"
    sharding: Annotated[Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"], SoFar(("none", "zero1"))] = "none"
    recompute: Annotated[Literal["none", "selective", "full"], SoFar(("none",))] = "none"
    rank_order: Annotated[str, Text(grammar.rank_order, "axes, fastest first", "tp-cp-ep-dp-pp")] = "tp-cp-ep-dp-pp"
    overlap: OverlapSchema = OverlapSchema()


class JobSchema(Strict):
    """What is trained per step."""

    sequence_length: Annotated[int, Field(ge=1, le=2**27)] = 2048
    global_batch: Annotated[int, Field(ge=1, le=2**24)] = 64
    microbatch_size: Annotated[int, Field(ge=1, le=2**16)] = 1
    dtype: Annotated[str, Text(grammar.dtype, "number format of weights and activations", "bf16")] = "bf16"


class FidelitySchema(Strict):
    """The accuracy dial."""

    collectives: Collectives = "fluid"
    granularity: Granularity = "op"


class PerturbSchema(Strict):
    """A rank that computes slower or a link that carries less, from one time until another."""

    not_yet: ClassVar[dict[str, str]] = dict.fromkeys(
        ("random", "seed", "distribution", "probability", "jitter"), "random perturbations are not modelled yet"
    )

    rank: Annotated[int, Field(ge=0)] | None = None
    speed: Annotated[Factor, Field(ge=LEAST_FACTOR)] | None = None
    link: Name | None = None
    capacity: Annotated[Factor, Field(ge=0)] | None = None
    from_: Annotated[Seconds, Field(alias="from")] = 0.0
    until: Seconds | None = None

    def contradictions(self) -> Iterator[Contradiction]:
        example = '{rank: 13, speed: 0.8} or {link: "node0/nic3>leaf3", capacity: 0.5}'
        of_rank, of_link = self.rank is not None, self.link is not None
        if of_rank == of_link:
            yield "", f" names {'both a rank and a link' if of_rank else 'neither a rank nor a link'}", example
        elif (self.speed is not None, self.capacity is not None) != (of_rank, of_link):
            yield "", " gives a rank a speed, or a link a capacity, and nothing else", example
        if self.until is not None and self.until <= self.from_:
            yield "until", f": {show_s(self.until)} is not after {show_s(self.from_)}, where it starts", "leave it out for no end"
        if self.capacity == 0 and self.until is None:
            yield "capacity", ": a link that carries nothing for ever stops the step", "give until, or a small capacity"
        if self.capacity and self.capacity < LEAST_FACTOR:
            yield "capacity", f": {self.capacity} is too small", f"at least {LEAST_FACTOR}, or 0 with an until"


class SettingsSchema(Strict):
    """The part of a scenario that Python writes as dataclasses."""

    plan: PlanSchema = PlanSchema()
    job: JobSchema = JobSchema()
    framework: FrameworkSchema = FrameworkSchema()
    fidelity: FidelitySchema = FidelitySchema()
    perturb: Annotated[list[PerturbSchema], Field(default_factory=list)]


class ScenarioSchema(SettingsSchema):
    """A whole scenario."""

    before: ClassVar[tuple[str, ...]] = ("extends", "jobs")

    model: Annotated[ModelSchema, Field(description="a name such as llama3-70b, a path or a mapping")]
    cluster: Annotated[ClusterSchema, Field(description="a name such as dgx-h100, a path or a mapping")]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors: models, clusters, GPUs and frameworks also by name."""
    from ..documents.pydantic_twins import rebuilt

    schema = rebuilt(ScenarioSchema).model_json_schema(by_alias=True)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "trainsim scenario"}
    named = {"type": "string", "description": "a name, or a path to a file"}
    whole, cluster = schema, schema["$defs"]["ClusterSchema"]
    for owner, key in ((whole, "model"), (whole, "cluster"), (cluster, "gpu"), (whole, "framework")):
        owner["properties"][key] = {"anyOf": [named, owner["properties"][key]]}
    schema["properties"]["extends"] = {"type": "string", "description": "a scenario that this one changes"}
    for partial in (schema, *(schema["$defs"][name] for name in ("ModelSchema", "ClusterSchema", "GpuSchema"))):
        partial.pop("required", None)
    return schema
