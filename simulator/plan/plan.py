"""The parallel plan: degrees along each axis, sharding, schedule, overlap; and the level of detail of a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ..errors import shown
from ..fields import Contradiction, Declared, Degree, Limits, Text, documented, specs, with_word
from .offload import Offload
from .recomputation import Recompute

if TYPE_CHECKING:
    from ..workload.framework import Overlaps

Collectives = Literal["closed", "fluid", "stepwise"]
EVEN = "even"
"""The layout with equal numbers of layers in all stages."""
Shares = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""Shares of the tokens by expert: the same in all layers, or a list for each layer with experts."""
Rank = Annotated[int, Limits(ge=0, le=2**20)]
Expert = Annotated[int, Limits(ge=0, le=2**24)]


def _with_changes(value: Declared) -> str:
    """A dataclass as Python code, with the fields that differ from their defaults."""
    kind = type(value)
    changed = ((spec.name, getattr(value, spec.name)) for spec in specs(kind) if getattr(value, spec.name) != spec.default)
    return f"{kind.__name__}({', '.join(f'{name}={item!r}' for name, item in changed)})"


@documented
@dataclass(frozen=True, slots=True)
class Overlap(Declared):
    """Communication that may run beside compute; other communication is exposed."""

    dp: Annotated[bool | None, "whether gradients are reduced during the backward pass; left out: as the framework does"] = None
    tp: Annotated[
        bool | Literal["decomposed"] | None,
        "whether tensor-parallel collectives run beside GEMMs of the backward pass; decomposed: also cuts GEMMs of layers into "
        "pieces, and exchanges the tokens of one piece beside another; left out: as the framework does",
    ] = None
    pp: Annotated[
        bool | None, "whether transfers between pipeline stages run beside compute; left out: as the framework does"
    ] = None
    ep: Annotated[
        bool | None,
        "whether exchanges of experts run beside compute of another microbatch, in pairs of a forward and a backward pass; "
        "left out: as the framework does",
    ] = None
    weight_gradients: Annotated[
        bool, "whether experts compute weight gradients while their input gradients are on the way back"
    ] = False
    cp: Annotated[bool, "whether ring attention exchanges keys and values beside compute"] = True

    def over(self, usual: Overlaps) -> Overlaps:
        """The overlaps of the framework, replaced where this plan states a value."""
        said: dict[str, Any] = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "ep": self.ep}
        return replace(usual, **{axis: beside for axis, beside in said.items() if beside is not None})


Kind = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
GATHERING = ("zero3", "fsdp", "hsdp")
"""Kinds of sharding that divide parameters too, and gather them in forward and backward passes."""
WITH_MASTER_COPY = ("fsdp", "hsdp")
"""Kinds of sharding whose shares of the parameters are the master copy in fp32."""
WITH_PIPELINE = ("none", "zero1", "fsdp", "hsdp")
"""Kinds of sharding that frameworks combine with a pipeline."""
NO_USE = {"none": ("group", "reduce_dtype", "reduce"), "zero1": ("reduce",), "zero2": ("reduce",), "zero3": ("reduce",)}
"""Fields of `Sharding` that have no effect for a kind, besides those of gathers."""
OF_GATHERS = ("reshard", "prefetch", "in_flight", "unit")


@dataclass(frozen=True, slots=True)
class Shards:
    """Number of ranks that divide each part of a model's state among them; 1 where every rank holds the whole part."""

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1


@documented
@dataclass(frozen=True, slots=True)
class Sharding(Declared):
    """Model state that data-parallel ranks divide among them, and its collectives."""

    def __repr__(self) -> str:
        return _with_changes(self)

    kind: Annotated[Kind, "zero1: divides the optimizer state; zero2: gradients too; zero3, fsdp, hsdp: parameters too"] = "none"
    group: Annotated[
        Degree | None,
        "number of data-parallel ranks that divide state; other groups hold replicas; left out: all, for hsdp those of a node, "
        "and for zero1 as many as the framework chooses",
    ] = None
    reshard: Annotated[bool | None, "whether a forward pass releases the parameters that it gathered; left out: if pp = 1"] = None
    prefetch: Annotated[int, Limits(ge=0, le=2**10), "number of units gathered ahead of the unit in use"] = 1
    in_flight: Annotated[Degree | None, "most units that are gathered at the same time; left out: as prefetch allows"] = None
    reduce: Annotated[
        Literal["each", "last"] | None,
        "each: every backward pass reduces gradients; last: only the last of a step; left out: each for zero2, zero3, and "
        "if pp = 1",
    ] = None
    reduce_dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, "number format in which gradients are reduced; left out: that of the framework"
    ] = None
    unit: Annotated[
        Degree | Literal["half-layer"],
        "number of consecutive layers of a stage that are gathered, and reduced, together; half-layer: attention and MLP apart",
    ] = 1

    @classmethod
    def prepared(cls, data: Any) -> Any:
        return with_word(data, lambda word: {"kind": word})

    @property
    def gathers(self) -> bool:
        """Whether ranks divide the parameters, and gather them in forward and backward passes."""
        return self.kind in GATHERING

    @property
    def regathers(self) -> bool:
        """Whether ranks release gathered parameters after each pass."""
        return self.gathers and self.reshard is not False

    def shards(self, ranks: int) -> Shards:
        """The shards of each part of the state among `ranks` ranks; for a sharding in full, as `Plan.full_sharding` gives it."""
        divided = self.kind != "none"
        return Shards(ranks if self.gathers else 1, ranks if divided and self.reduce == "each" else 1, ranks if divided else 1)

    def contradictions(self) -> Iterator[Contradiction]:
        usual = {spec.name: spec.default for spec in specs(Sharding)}
        for name in (*NO_USE.get(self.kind, ()), *(() if self.gathers else OF_GATHERS)):
            if getattr(self, name) != usual[name]:
                yield name, f": {self.kind} has no use for it", "leave it out, or use kind: fsdp"


@documented
@dataclass(frozen=True, slots=True)
class Moe(Declared):
    """Routing of tokens to experts, and the exchange that takes tokens to the ranks of their experts."""

    routing: Annotated[
        str | tuple[float, ...] | tuple[tuple[float, ...], ...],
        Text("routing"),
        "balanced: every expert has as many rows as any other; drawn: random unequal shares, different in every layer; "
        "a file (.csv, .json) or a list: shares of the tokens by expert, or a list for each layer with experts",
    ] = "balanced"
    seed: Annotated[int, Limits(ge=0, le=2**32), "of drawn routing: seed of the random numbers"] = 0
    concentration: Annotated[
        float, Limits(gt=0, le=2**20), "of drawn routing: how even the experts are (of a Dirichlet distribution); 1: very uneven"
    ] = 10.0
    capacity: Annotated[
        Annotated[float, Limits(gt=0, le=2**16)] | Literal["dropless"],
        "rows of an expert over its even share, such as 1.25: further rows are dropped, missing ones padded; dropless: neither",
    ] = "dropless"
    dispatcher: Annotated[
        Literal["alltoall", "deepep"],
        "alltoall: a copy of a token for each of its experts; deepep: one for each node and one for each GPU with its experts",
    ] = "alltoall"
    node: Annotated[
        Degree | None,
        "of deepep: ranks of a group that share a node; left out: as many as the cluster has, if they divide ep, else fewer",
    ] = None
    nodes_per_token: Annotated[
        Degree | None, "of deepep: number of nodes that the experts of a token are chosen from; left out: all nodes of the group"
    ] = None
    ranks: Annotated[
        Literal["each", "hottest"],
        "of uneven routing: each: every rank has its own rows; hottest: only one rank, with the most rows in every layer, the "
        "others share the rest evenly, which takes less time to simulate",
    ] = "each"
    placement: Annotated[
        Literal["contiguous", "cyclic"] | tuple[tuple[Expert, ...], ...],
        "of uneven routing: contiguous: a rank holds consecutive experts; cyclic: every ep-th; a list: experts of each rank",
    ] = "contiguous"

    @property
    def layers_differ(self) -> bool:
        """Whether every layer with experts has a load of its own."""
        return self.routing == "drawn" or (not isinstance(self.routing, str) and isinstance(self.routing[0], tuple))

    def given_shares(self, layers: int) -> tuple[tuple[float, ...], ...]:
        """The given shares of that many layers with experts."""
        first = self.routing[0]
        return self.routing if isinstance(first, tuple) else (self.routing,) * layers  # type: ignore[return-value]


@documented
@dataclass(frozen=True, slots=True)
class Plan(Declared):
    """Distribution of a job over a cluster: degrees of parallelism, pipeline schedule, sharding and overlap."""

    def __repr__(self) -> str:
        """The fields that differ from their defaults, such as `Plan(tp=8, pp=8)`."""
        return _with_changes(self)

    tp: Annotated[Degree, "number of GPUs that divide every layer among them (tensor parallelism)"] = 1
    pp: Annotated[Degree, "number of pipeline ranks, each with its own layers (pipeline parallelism)"] = 1
    dp: Annotated[Degree | None, "number of replicas of the model (data parallelism); left out: as many as the GPUs allow"] = None
    cp: Annotated[Degree, "number of GPUs that divide every sequence among them (context parallelism)"] = 1
    cp_kind: Annotated[
        Literal["ring", "all-gather", "ulysses", "mixed"],
        "how attention sees all tokens: keys and values pass round a ring, or are gathered; ulysses: all-to-alls exchange tokens "
        "for heads; mixed: all-to-alls among neighbours, and a ring of such groups",
    ] = "ring"
    cp_ulysses: Annotated[
        Degree | None, "of cp_kind mixed, number of neighbours that exchange tokens for heads; left out: those of a node"
    ] = None
    cp_balance: Annotated[
        bool,
        "whether ranks of cp hold chunks from both ends of a sequence, for equal work; false: each rank of a ring holds one "
        "share, and later ranks have more work",
    ] = True
    ep: Annotated[
        Degree, "number of GPUs that divide the experts of a layer among them; these GPUs are among those of tp and dp"
    ] = 1
    etp: Annotated[Degree | None, "number of GPUs that divide every expert among them (tensor parallelism); left out: tp"] = None
    sequence_parallel: Annotated[
        bool | None, "whether tensor-parallel GPUs divide the tokens of norms and residuals among them; left out: if tp > 1"
    ] = None
    chunks: Annotated[Degree, "number of stages on each pipeline rank (virtual pipeline)"] = 1
    layout: Annotated[
        str | tuple[int, ...], Text("layout"), "layers of every stage: even, a list, first=7,last=7, or a layout of Megatron-LM"
    ] = EVEN
    vocabulary: Annotated[
        Literal["baseline", "redis", "vocab-1", "vocab-2", "interlaced"],
        "baseline: embedding and head move no layers; redis: layers are divided so that the largest stage has the fewest flop; "
        "others: pipeline ranks divide both, with 2 or 1 reductions that the last stage waits for, or (interlaced) no overlap",
    ] = "baseline"
    schedule: Annotated[str, Text("schedule"), "order of forward and backward passes on every pipeline rank"] = "1f1b"
    group: Annotated[
        Degree | None, "number of microbatches per round of an interleaved schedule; left out: chosen by the schedule"
    ] = None
    splits: Annotated[Degree, "number of parts of every sequence, for schedules that pipeline these parts"] = 1
    memory_limit: Annotated[
        float,
        Limits(gt=0, le=2**20),
        "most microbatches whose activations a rank may keep, divided by pp, for schedules with such a limit",
    ] = 1.0
    optimizer: Annotated[
        Literal["synchronised", "post-validated"],
        "synchronised: every rank waits for the global gradient norm; post-validated: it waits for its own gradients only",
    ] = "synchronised"
    sharding: Annotated[
        Sharding | Kind | None, "model state that data-parallel ranks divide among them; left out: as the framework does"
    ] = None
    recompute: Annotated[
        Recompute | Literal["none", "selective", "per-op", "full"] | None,
        "activations that the backward pass recomputes instead of keeping them; left out: as the framework does",
    ] = None
    offload: Annotated[
        Offload | Literal["none", "activations", "optimizer", "parameters"],
        "data that the host keeps; activations: of all layers that can be copied; parameters: the optimizer too",
    ] = "none"
    rank_order: Annotated[str, Text("rank_order"), "axes of parallelism, the fastest varying first"] = "tp-cp-ep-dp-pp"
    placement: Annotated[tuple[Rank, ...] | None, "GPU of every rank, in order of ranks; left out: rank r is GPU r"] = None
    overlap: Annotated[Overlap, "which communication may run beside compute"] = field(default_factory=Overlap)
    moe: Annotated[Moe, "routing of tokens to experts, and their exchange"] = field(default_factory=Moe)

    not_yet: ClassVar[Mapping[str, str]] = {"sp": "sequence parallelism has no degree, the ranks of tp divide the tokens"}
    instead: ClassVar[str] = "sequence_parallel: true, or cp for long sequences"

    @property
    def tensor_parallel_of_experts(self) -> int:
        """Number of GPUs that share every expert."""
        return self.tp if self.etp is None else self.etp

    def copies_of_experts(self, replicas: int) -> int:
        """Number of copies of every expert, where `replicas` ranks have the same other parameters."""
        return max(1, self.tp * replicas // (self.tensor_parallel_of_experts * self.ep))

    def exchanges_beside_compute(self, usual: Overlaps) -> bool:
        """Whether exchanges of experts run beside compute, by the plan or else by the framework."""
        return self.ep > 1 and self.overlap.over(usual).ep

    @property
    def uses_sequence_parallel(self) -> bool:
        return self.tp > 1 and self.sequence_parallel is not False

    def waits_for_norm(self, gradient_clipping: bool | None) -> bool:
        """Whether every rank waits for the gradient norm of all ranks, which a job without clipping does not need."""
        return self.optimizer == "synchronised" and gradient_clipping is not False

    @property
    def shares_vocabulary(self) -> bool:
        """Whether the pipeline ranks divide embedding and head among them."""
        return self.vocabulary in ("vocab-1", "vocab-2", "interlaced")

    @property
    def divides_heads_by(self) -> int:
        """Number of context-parallel ranks that exchange tokens for heads; 1 where all heads stay on their ranks."""
        return {"ulysses": self.cp, "mixed": self.cp_ulysses or 1}.get(self.cp_kind, 1)

    @property
    def full_sharding(self) -> Sharding:
        """The sharding with every field that the plan leaves open, except the group and the number format."""
        given = self.sharding if isinstance(self.sharding, Sharding) else Sharding(self.sharding or "none")
        each = given.kind in ("zero2", "zero3") or (given.gathers and self.pp == 1)
        reshard = self.pp == 1 if given.reshard is None else given.reshard
        return replace(given, reshard=reshard, reduce=given.reduce or ("each" if each else "last"))

    def contradictions(self) -> Iterator[Contradiction]:
        if self.vocabulary == "redis" and self.layout != EVEN:
            yield "vocabulary", ": redis moves layers, but plan.layout fixes them", f"baseline, or layout: {EVEN}"
        given = self.full_sharding
        if isinstance(self.sharding, str):
            yield from ((f"sharding.{name}", what, hint) for name, what, hint in Sharding(self.sharding).contradictions())
        if self.pp > 1 and given.kind not in WITH_PIPELINE:
            message = f": {given.kind} reduces gradients after every backward pass, which is not combined with a pipeline"
            yield "sharding", message, f"pp: 1, or one of {', '.join(WITH_PIPELINE[1:])}"
        for name in ("reshard", "reduce") if self.pp > 1 and given.kind in ("fsdp", "hsdp") else ():
            if getattr(given, name) in (True, "each"):
                message = f": {shown(getattr(given, name))} with a pipeline is not modelled yet"
                yield f"sharding.{name}", message, "leave it out: parameters are gathered, and gradients reduced, once per step"

    @property
    def recomputation(self) -> Recompute:
        """The field `recompute`, also where it is a word."""
        return self.recompute if isinstance(self.recompute, Recompute) else Recompute(self.recompute or "none")

    @property
    def offloading(self) -> Offload:
        """The field `offload`, also where it is a word."""
        return self.offload if isinstance(self.offload, Offload) else Offload.of(self.offload)


@documented
@dataclass(frozen=True, slots=True)
class Fidelity(Declared):
    """Level of detail at which a run is simulated."""

    collectives: Annotated[
        Collectives,
        "fluid: flows share links fairly; closed: fixed times without contention; stepwise: every message is simulated",
    ] = "fluid"
    overlap: Annotated[
        Literal["free", "slowed"] | None,
        "slowed: communication takes multiprocessors and memory bandwidth from compute beside it; free: compute takes as long as "
        "alone; left out: slowed, but free with collectives: stepwise, and where every rank has its own rows (moe.ranks: each)",
    ] = None
    granularity: Annotated[Literal["op"], "op: every kernel and every collective is simulated"] = "op"
    power: Annotated[
        Literal["sustained", "burst"],
        "sustained: kernels at the clock that their board sustains through a step; burst: as in a short loop of launches",
    ] = "sustained"
    calibration: Annotated[
        Literal["steps", "kernels"],
        "steps: arithmetic takes longer than in a loop of its kernel, by a factor from steps of single GPUs, and loses more than "
        "the multiprocessors of communication beside it, by one from published steps; kernels: without both",
    ] = "steps"
    boards: Annotated[
        Literal["slowest", "alike"],
        "slowest: sustained clocks are those of the slowest board of a job, which the others wait for; alike: every board is "
        "like the measured one",
    ] = "slowest"
