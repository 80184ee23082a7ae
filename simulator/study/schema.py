"""The boundary: what may stand in a YAML file. Pydantic checks it, names every fault at once, and is not used further in."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..errors import Fault, UserError, did_you_mean
from ..units import US_PER_S, Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts
from .source import Document, Place

Degree = Annotated[int, Field(ge=1, le=2**20)]
Size = Annotated[int, Field(ge=1, le=2**30)]
Name = Annotated[str, Field(min_length=1)]


Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Strict(BaseModel):
    """Unknown keys, wrong types and numbers in quotes are faults."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class ModelSchema(Strict):
    """A decoder model; inline, or a file in workloads/models."""

    name: Name = "inline"
    layers: Annotated[int, Field(ge=1, le=100_000)]
    hidden: Size
    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn_hidden: Size | None = None
    gated_mlp: bool = False
    vocab: Size
    tied_embeddings: bool = False
    norm: Literal["rmsnorm", "layernorm"] | None = None
    activation: Literal["silu", "gelu", "relu"] | None = None
    positions: Literal["rope", "learned", "none"] = "rope"
    bias: bool = False
    max_sequence_length: Size | None = None
    published_parameters: str | None = None
    source: str | None = None


class KernelSchema(Strict):
    """How far kernels stay below a GPU's peaks."""

    fixed: Seconds
    compute_fraction: Fraction
    memory_fraction: Fraction
    attention_forward_fraction: Fraction
    attention_backward_fraction: Fraction
    provenance: Literal["measured", "transferred"]
    source: str = ""


class GpuSchema(Strict):
    """A GPU; inline, or a file in topologies/gpus."""

    name: Name = "inline"
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    peak: dict[str, FlopPerSecond]
    sms: Size
    tdp: Watts
    kernels: KernelSchema
    sources: dict[str, str] = {}


class LatencySchema(Strict):
    """Latency of one hop over each kind of link."""

    nvlink: Seconds = 0.5 / US_PER_S
    pcie: Seconds = 1.0 / US_PER_S
    nic: Seconds = 1.5 / US_PER_S
    switch: Seconds = 0.3 / US_PER_S


class ClusterSchema(Strict):
    """A cluster; inline, or a file in topologies."""

    name: Name = "inline"
    gpu: GpuSchema
    gpus_per_node: Degree
    nodes: Degree = 1
    intra_node: Annotated[str, Field(description='"NVSwitch 450 GB/s": per GPU and direction')]
    inter_node: Annotated[str, Field(description='"8x400 Gbit/s": the NICs of a node')] | None = None
    shape: Name | None = None
    nodes_per_pod: Degree = 32
    oversubscription: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 1.0
    pcie: BytesPerSecond | None = None
    latency: LatencySchema = LatencySchema()
    sources: dict[str, str] = {}


class OverlapSchema(Strict):
    """Which communication may run beside compute."""

    dp: bool = True
    tp: bool = False
    pp: bool = True
    ep: bool = False


class PlanSchema(Strict):
    """How the job is spread over the cluster."""

    tp: Degree = 1
    pp: Degree = 1
    dp: Degree | None = None
    cp: Degree = 1
    ep: Degree = 1
    sequence_parallel: bool | None = None
    chunks: Degree = 1
    schedule: Name = "1f1b"
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"] = "none"
    recompute: Literal["none", "selective", "full"] = "none"
    rank_order: Name = "tp-cp-ep-dp-pp"
    overlap: OverlapSchema = OverlapSchema()


class JobSchema(Strict):
    """What is trained per step."""

    sequence_length: Annotated[int, Field(ge=1, le=2**27)] = 2048
    global_batch: Annotated[int, Field(ge=1, le=2**24)] = 64
    microbatch_size: Annotated[int, Field(ge=1, le=2**16)] = 1
    dtype: Name = "bf16"


class FidelitySchema(Strict):
    """The accuracy dial."""

    collectives: Literal["closed", "fluid", "stepwise"] = "fluid"
    granularity: Literal["op"] = "op"


class PerturbSchema(Strict):
    """A rank that computes slower or a link that carries less, from one time until another."""

    rank: Annotated[int, Field(ge=0)] | None = None
    speed: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    link: Name | None = None
    capacity: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    from_: Annotated[Seconds | None, Field(alias="from")] = None
    until: Seconds | None = None


class ScenarioSchema(Strict):
    """A whole scenario."""

    model: ModelSchema
    cluster: ClusterSchema
    plan: PlanSchema = PlanSchema()
    job: JobSchema = JobSchema()
    fidelity: FidelitySchema = FidelitySchema()
    perturb: list[PerturbSchema] = []


NOT_YET: dict[str, str] = {
    "framework": "framework profiles are not modelled yet: leave it out",
    "jobs": "several jobs on one cluster are not modelled yet: run one scenario at a time",
    **dict.fromkeys(
        ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers"),
        "mixture-of-experts layers are not modelled yet: only dense decoder models are",
    ),
}
"""Keys of the contract whose time has not come: refused with a reason instead of a guess at a typo."""


def validated(schema: type[Strict], document: Document, at: Place = ()) -> Any:
    """The document's data as `schema`, or a `UserError` with every fault and its place."""
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        raise UserError("", faults=[_fault(e, schema, document, at) for e in error.errors(include_url=False)]) from None


def _fault(error: ErrorDetails, schema: type[Strict], document: Document, at: Place) -> Fault:
    place: Place = (*at, *(part for part in error["loc"] if isinstance(part, int) or not part.startswith("function-")))
    dotted = ".".join(str(part) for part in place)
    where, kind = document.where(place), error["type"]
    value = error.get("input")
    if kind == "extra_forbidden":
        key = str(place[-1])
        if key in NOT_YET:
            return Fault(f"{dotted}: {NOT_YET[key]}", "", where)
        return Fault(f"unknown key {dotted!r}", did_you_mean(key, _fields(schema, place[len(at) : -1])), where)
    if kind == "missing":
        return Fault(f"{dotted} is missing", "", where)
    if kind == "quantity":
        return Fault(f"{dotted}: {error['msg']}", str(error.get("ctx", {}).get("hint", "")), where)
    if kind == "literal_error":
        options = [str(option) for option in _options(schema, place[len(at) :])]
        return Fault(f"{dotted}: {value!r} is none of the choices", did_you_mean(str(value), options), where)
    if kind in ("model_type", "dict_type", "list_type"):
        wanted = "a list" if kind == "list_type" else "a mapping"
        return Fault(f"{dotted} should be {wanted}, not {_shown(value)}", "", where)
    message = error["msg"].replace("Input should be", "should be").replace("a valid ", "a whole " if "int" in kind else "a ")
    return Fault(f"{dotted} {message}, not {_shown(value)}", "", where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _annotation(schema: Any, place: Place) -> Any:
    """The annotation of the field at a place."""
    for part in place:
        if isinstance(part, int):
            schema = next(a for a in get_args(schema) if a is not type(None))
            continue
        by_name = {field.alias or name: field for name, field in _model(schema).model_fields.items()}
        schema = by_name[str(part)].annotation if str(part) in by_name else Any
    return schema


def _model(annotation: Any) -> type[BaseModel]:
    """The schema class in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model, get_args(annotation)) if m is not Strict), Strict)


def _fields(schema: type[Strict], place: Place) -> list[str]:
    model = _model(_annotation(schema, place))
    return [field.alias or name for name, field in model.model_fields.items()]


def _options(schema: type[Strict], place: Place) -> list[Any]:
    annotation = _annotation(schema, place)
    found = [o for a in (annotation, *get_args(annotation)) for o in get_args(a) if isinstance(o, str)]
    return found or [o for o in get_args(annotation) if isinstance(o, str)]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors: models, clusters and GPUs also by name."""
    schema = ScenarioSchema.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "trainsim scenario"
    named = {"type": "string", "description": "a name, or a path to a file"}
    for owner, key in ((schema, "model"), (schema, "cluster"), (schema["$defs"]["ClusterSchema"], "gpu")):
        owner["properties"][key] = {"anyOf": [named, owner["properties"][key]]}
    schema["properties"]["extends"] = {"type": "string", "description": "a scenario that this one changes"}
    for name in ("ModelSchema", "ClusterSchema", "GpuSchema"):
        schema["$defs"][name].pop("required", None)
    return schema
