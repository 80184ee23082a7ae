"""Framework of a run: fused kernels, host times of launches, treatment of gradients and of narrow number formats, overlaps,
sharding and recomputation where a plan leaves them open, memory overhead.

All values are configuration that is known before a run; no value is fitted to step times. The default, `none`, has launches of
zero time and runs every operator as one kernel. Files in workloads/frameworks describe existing software.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from ..fields import BytesOrNone, Contradiction, Declared, Degree, Key, Latency, Limits, Name, Noun, Text, documented
from ..units import GIB, MIB
from .job import ELEMENT_BYTES, Job
from .low_precision import LowPrecision

WholeParameters = Annotated[Literal["zero1", "zero2"], Noun("kind of sharding that leaves parameters whole")]
Sms = Limits(ge=0, le=64)
Metric = Literal["loss", "fused_loss", "accuracy", "perplexity"]
Projections = Annotated[Literal["attention", "mlp"], Noun("block that projects one input by several layers")]
HostWait = Literal["forward", "backward", "inputs", "loss", "counts"]


@documented
@dataclass(frozen=True, slots=True)
class Fusion(Declared):
    """Operators that run as one kernel. Other operators run as the kernels that PyTorch would launch, with their traffic."""

    norm: Annotated[bool, "whether a norm is one kernel, forward and backward; else several pointwise kernels and sums"] = True
    residual_norm: Annotated[bool, "whether a residual sum and the norm after it are one kernel"] = False
    rope: Annotated[bool, "whether the rotary position embedding is one kernel"] = True
    activation: Annotated[bool, "whether gate and activation of the MLP are one kernel"] = True
    bias: Annotated[bool, "whether GEMMs add their biases, and sum the gradients of the biases"] = True
    bias_activation: Annotated[bool, "whether a bias that no GEMM adds and the activation after it are one kernel"] = False
    bias_dropout_add: Annotated[bool, "whether bias, dropout and residual sum are one kernel"] = False
    softmax: Annotated[bool, "whether mask and softmax of unfused attention are one kernel"] = True
    cross_entropy: Annotated[bool, "whether the loss over the vocabulary is one kernel"] = True
    linear_cross_entropy: Annotated[
        bool,
        "whether projection to the vocabulary and loss run in chunks of tokens, so that the logits of all tokens never exist, as "
        "in Liger Kernel; where tensor-parallel ranks divide the vocabulary, they do not",
    ] = False
    permutation: Annotated[
        bool,
        "whether one kernel copies tokens into the order of their experts, and one adds them up again; else operators of "
        "PyTorch, which keep the rows that the router's weights multiply",
    ] = True
    accumulation: Annotated[bool, "whether GEMMs add weight gradients to those of earlier microbatches themselves"] = True
    embedding_gradient: Annotated[
        bool,
        "whether backward look-ups add rows to the accumulated gradient of the table; else the gradient of a microbatch has all "
        "rows of the table, which are zeroed before and added after",
    ] = True
    optimizer: Annotated[bool, "whether one kernel updates all parameters"] = True


@documented
@dataclass(frozen=True, slots=True)
class HostTimes(Declared):
    """Time that the host thread of a GPU takes for one launch; 0 for launches that take no time."""

    kernel_s: Annotated[Latency, "time to launch a kernel"] = 0.0
    compiled_kernel_s: Annotated[Latency, "time to launch a kernel from compiled code"] = 0.0
    collective_s: Annotated[Latency, "time to launch a collective"] = 0.0
    graph_s: Annotated[Latency, "time to launch a captured CUDA graph"] = 0.0


@documented
@dataclass(frozen=True, slots=True)
class HostWork(Declared):
    """Additional work of the host, besides the update, for a plan whose CPUs update parameters."""

    pinned: Annotated[
        bool,
        "whether gradients and parameters are copied to and from locked memory, beside compute; else a core copies them, and the "
        "host waits for it before further launches",
    ] = True
    scales: Annotated[bool, "whether CPUs scale gradients, to clip them or for the loss scale, in a pass before the update"] = (
        False
    )
    keeps_gradients: Annotated[
        bool,
        "whether with zero3 every backward pass copies its share of the gradients out in their own format and in again, before "
        "the last one copies their sum out in fp32, as DeepSpeed does",
    ] = False


@documented
@dataclass(frozen=True, slots=True)
class Overlaps(Declared):
    """Communication that runs beside compute unless the plan states otherwise."""

    dp: Annotated[bool, "whether gradients are reduced while the backward pass computes"] = True
    tp: Annotated[
        bool | Literal["decomposed"],
        "whether tensor-parallel collectives of the backward pass run beside its GEMMs; decomposed: with sequence parallelism "
        "also others, in pieces beside pieces of GEMMs",
    ] = False
    pp: Annotated[bool, "whether transfers between pipeline stages run beside compute"] = True
    ep: Annotated[bool, "whether exchanges of experts run beside compute of another microbatch"] = False
    parameter_gather: Annotated[
        bool,
        "whether, with a sharded optimizer, each layer waits for its own parameters only; else the first layer waits for all",
    ] = True


@documented
@dataclass(frozen=True, slots=True)
class CommunicationSms(Declared):
    """Multiprocessors (SMs) that communication holds while it runs; None: as its library chooses. Used by fidelity.overlap."""

    rings: Annotated[int | None, Sms, "SMs of a collective by rings or trees, such as NCCL_MAX_CTAS"] = None
    switches: Annotated[int | None, Sms, "SMs of a reduction by NVSwitches, such as NCCL_NVLS_NCHANNELS"] = None
    transfers: Annotated[int | None, Sms, "SMs of a message between two GPUs"] = None
    exchanges: Annotated[int | None, Sms, "SMs of an all-to-all, or of a dispatch or combine of DeepEP"] = None


@documented
@dataclass(frozen=True, slots=True)
class UsualPlan(Declared):
    """Parts of a plan that the framework chooses where a plan leaves them open."""

    sharding: Annotated[Literal["none", "zero1", "zero2", "zero3", "fsdp"], "state that data-parallel ranks divide"] = "none"
    group: Annotated[
        Degree | None,
        "data-parallel ranks that divide the optimizer with zero1, if the plan states no group and they divide into such groups; "
        "left out: all",
    ] = None
    recompute: Annotated[Literal["none", "selective", "per-op", "full"], "activations that the backward pass recomputes"] = "none"
    recompute_every: Annotated[int, Limits(ge=1, le=2**10), "only every n-th layer of a stage recomputes"] = 1
    selective: Annotated[
        tuple[Name, ...],
        "operators that recompute: selective repeats instead of attention, such as [mlp_norm]; a model may lack some",
    ] = ()
    always: Annotated[
        tuple[Name, ...],
        "operators that the backward pass repeats where recompute is none, as some software always does, such as [mlp_norm]",
    ] = ()
    early_stop: Annotated[bool, "whether recomputation of whole layers ends at the last tensor that is needed"] = False

    def contradictions(self) -> Iterator[Contradiction]:
        if self.recompute == "none" and self.recompute_every > 1:
            yield "recompute_every", ": nothing is recomputed", "leave it out, or recompute: full"


@documented
@dataclass(frozen=True, slots=True)
class MemoryOverhead(Declared):
    """GPU memory that software takes besides its tensors."""

    context_bytes: Annotated[BytesOrNone, "CUDA context: code of kernels, stacks, workspaces of libraries"] = 0.4 * GIB
    nccl_buffer_bytes: Annotated[BytesOrNone, "buffer per NCCL connection and channel (NCCL_BUFFSIZE), such as 4 MiB"] = 4.0 * MIB
    nccl_channels: Annotated[int, Limits(ge=1, le=64), "number of channels of each NCCL communicator"] = 16
    fragmentation_fraction: Annotated[
        float, Limits(ge=0, le=1), Key("fragmentation"), "memory that the allocator cannot use, over the peak of activations"
    ] = 0.0
    logit_bytes: Annotated[
        int, Limits(ge=2, le=32), "bytes per logit at the peak of the loss, with gradients and copies, such as 12 in PyTorch"
    ] = 6
    tp_logit_bytes: Annotated[
        int | None, Limits(ge=4, le=32), "the same where tensor-parallel ranks divide the vocabulary, if other copies are made"
    ] = None
    stage_results: Annotated[bool, "whether a stage keeps its result, once sent, until its backward pass"] = False
    whole_gradients: Annotated[
        bool, "whether gradients of a whole stage are copied at once, and reduced in the dtype of training, as in DeepSpeed"
    ] = False

    gradient_buckets: Annotated[
        bool,
        "whether without sharding several replicas hold all gradients a second time, in the buckets that they reduce, as in DDP "
        "of PyTorch with gradient_as_bucket_view=False",
    ] = False

    def bytes_of_logit(self, tp: int) -> int:
        """Bytes per logit at the peak of the loss, for a vocabulary that `tp` ranks divide."""
        return self.tp_logit_bytes if tp > 1 and self.tp_logit_bytes else self.logit_bytes


@documented
@dataclass(frozen=True, slots=True)
class Framework(Declared):
    """Software that trains the model."""

    name: Annotated[Name, "name of the framework in results"] = "none"
    attention: Annotated[str, Text("attention"), "library of attention kernels, or unfused; empty: the GPU's usual library"] = ""
    dropout: Annotated[bool, "whether hidden states and attention have dropout, as in the training of GPT"] = False
    compile: Annotated[bool, "whether a compiler fuses pointwise operators and reductions"] = False
    cuda_graphs: Annotated[bool, "whether the host launches captured CUDA graphs instead of kernels"] = False
    p2p_sync: Annotated[bool, "whether the host, too, waits for blocking transfers before further launches"] = False
    host_waits: Annotated[
        tuple[HostWait, ...],
        "where in every microbatch the host waits for all kernels that it has launched; forward, backward: before such a pass; "
        "inputs: before forward passes of the first and last stage; loss: after those of the last stage; counts: where dropless "
        "experts have exchanged the numbers of their rows",
    ] = ()
    input_launches: Annotated[
        int,
        Limits(ge=0, le=1000),
        "launches that copy the tokens of a microbatch and make its masks, before its forward passes on the first and last stage",
    ] = 0
    launch_blocking: Annotated[bool, "whether the host waits for every kernel, as with CUDA_LAUNCH_BLOCKING=1"] = False
    p2p_scatter_gather: Annotated[
        bool,
        "whether tensor-parallel ranks that hold the same activations send a share each to the next stage, which gathers them",
    ] = False
    gathered_inputs: Annotated[
        bool,
        "whether with sequence parallelism a layer that tensor-parallel ranks divide by columns keeps its input as gathered, as "
        "DTensor does; else the share of a rank, which the backward pass gathers again",
    ] = False
    repeated_keys: Annotated[
        bool,
        "whether keys and values are copied for every head that shares them, before attention, as by repeat_kv of Llama's code; "
        "ranks of a ring exchange the copies",
    ] = False
    separate_projections: Annotated[
        tuple[Projections, ...],
        "blocks that project one input by several layers, attention to queries, keys and values, or mlp to gate and value, whose "
        "gradients of that input are added up by kernels of their own; else these layers are one",
    ] = ()
    gradients: Annotated[
        Literal["fp32", "bf16", "fp16", "by-dtype"],
        "number format of accumulating and reducing gradients; by-dtype: fp16 for jobs in fp16, else fp32, as in Megatron-LM",
    ] = "fp32"
    gathered_gradients: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        "the same where ranks divide parameters too (zero3, fsdp, hsdp), if it is another format",
    ] = None
    all_reduced_gradients: Annotated[
        tuple[WholeParameters, ...],
        "kinds of sharding whose gradients are all-reduced, as in DeepSpeed, though a rank needs only its share, such as "
        "[zero1]; others are reduce-scattered",
    ] = ()
    whole_tensors: Annotated[
        bool,
        "whether zero1 deals out whole tensors, as InternEvo does: gradients are all-reduced, and one owner after the other "
        "broadcasts what it has updated; else ranks divide every tensor",
    ] = False
    single_tensors: Annotated[
        bool,
        "whether the optimizer updates one tensor after the other, with kernels of its own for each; else the kernels of an "
        "update take all tensors of a rank",
    ] = False
    weights_beside_master: Annotated[
        bool,
        "whether with fsdp and hsdp a rank keeps its share of the parameters in the training dtype beside the master copy in "
        "fp32, as Megatron-FSDP does; else the master copy only, as FSDP2 of PyTorch does",
    ] = False
    in_place_gathers: Annotated[
        bool,
        "whether with zero3, fsdp and hsdp passes use gathered parameters where the gather has written them, as Megatron-FSDP "
        "does; else a kernel copies them first, as in FSDP2 of PyTorch",
    ] = False
    fp32_rings: Annotated[
        bool,
        "whether rings of context parallelism add results and gradients up in fp32, operator by operator, and pass gradients of "
        "keys and values on in fp32, as PyTorch does; else in the training dtype and by one kernel, as Transformer Engine does",
    ] = False
    fp32_norms: Annotated[bool, "whether the input of every norm is cast to fp32 by a kernel of its own"] = False
    fp32_logits: Annotated[bool, "whether logits are cast to fp32 by a kernel of their own, before loss and metrics"] = False
    metrics: Annotated[
        tuple[Metric, ...],
        "what kernels of PyTorch compute from the logits of every microbatch in training, besides the loss and its gradient; "
        "loss: the loss again, by a log-softmax and a cast; fused_loss: the loss again, in one kernel; accuracy: how many tokens "
        "are predicted; perplexity: sums of exponentials",
    ] = ()
    fusion: Annotated[Fusion, "which operators run as one kernel"] = field(default_factory=Fusion)
    host: Annotated[HostTimes, "times of launches on the host"] = field(default_factory=HostTimes)
    offload: Annotated[HostWork, "copies of state that the plan offloads, and work of the CPUs"] = field(default_factory=HostWork)
    low_precision: Annotated[LowPrecision, "use of formats of eight or four bits"] = field(default_factory=LowPrecision)
    overlap: Annotated[Overlaps, "communication beside compute, if the plan says nothing"] = field(default_factory=Overlaps)
    sms: Annotated[CommunicationSms, "SMs that communication takes from compute beside it"] = field(
        default_factory=CommunicationSms
    )
    plan: Annotated[UsualPlan, "sharding and recomputation, if the plan says nothing"] = field(default_factory=UsualPlan)
    memory: Annotated[MemoryOverhead, "GPU memory besides tensors"] = field(default_factory=MemoryOverhead)

    comments: ClassVar[Mapping[str, Any]] = {"sources": dict[str, str]}

    def contradictions(self) -> Iterator[Contradiction]:
        fusion, host = self.fusion, self.host
        if fusion.residual_norm and not fusion.norm and not self.compile:
            yield "fusion", ".residual_norm: a norm of several kernels takes no residual sum in", "norm: true, or leave it out"
        if self.fp32_norms and (fusion.residual_norm or not fusion.norm or self.compile):
            how = (
                "a norm of several kernels casts anyway"
                if not fusion.norm
                else "no cast precedes a norm that is fused with others"
            )
            yield "fp32_norms", f": {how}", "false"
        if self.launch_blocking and self.cuda_graphs:
            yield "launch_blocking", ": the kernels of a CUDA graph do not wait for the host", "launch_blocking: false"
        if fusion.linear_cross_entropy and (self.metrics or self.fp32_logits):
            name, usual = ("metrics", "[]") if self.metrics else ("fp32_logits", "false")
            yield name, ": the logits of all tokens never exist", f"{usual}, or fusion: {{linear_cross_entropy: false}}"
        if self.single_tensors and self.fusion.optimizer:
            yield "single_tensors", ": one kernel updates all parameters", "false, or fusion: {optimizer: false}"
        if self.single_tensors and self.whole_tensors:
            yield "single_tensors", ": what an owner has of whole tensors is updated as one", "false, or whole_tensors: false"
        if self.whole_tensors and self.overlap.parameter_gather:
            yield "whole_tensors", ": broadcasts end before the next step begins", "overlap: {parameter_gather: false}"
        if not (host.kernel_s or host.compiled_kernel_s or host.collective_s):
            times = "give host times: {kernel: 10 us"
            if self.cuda_graphs:
                yield "cuda_graphs", ": launches take no time that a graph could save", f"{times}, graph: 20 us}}"
            if self.launch_blocking:
                yield "launch_blocking", ": launches take no time that kernels could wait for", f"{times}}}"
            if self.p2p_sync:
                yield "p2p_sync", ": launches take no time that could wait for transfers", f"{times}}}"
            if self.host_waits:
                yield "host_waits", ": launches take no time that could wait for the GPU", f"{times}}}"
            if self.input_launches:
                yield "input_launches", ": launches take no time", f"{times}}}"

    @property
    def kernel_s(self) -> float:
        """Host time for the launch of a kernel, in seconds."""
        return self.host.compiled_kernel_s if self.compile else self.host.kernel_s

    def gradients_of(self, job: Job) -> Literal["fp32", "bf16", "fp16"]:
        """The number format in which the gradients of a job are accumulated and reduced."""
        if self.gradients == "by-dtype":
            return "fp16" if job.dtype == "fp16" else "fp32"
        return self.gradients

    def gradient_bytes(self, job: Job) -> int:
        return ELEMENT_BYTES[self.gradients_of(job)]
