"""Items of the memory account that a rank holds throughout: each a number of bytes of a class, with the formula of the number.

To count additional memory, yield one more item. Bytes that operations take and free are fields of the operations
(`Op.held_bytes`).

NCCL keeps buffers for every communicator: for each connection, channel and protocol. A ring or a chain of a tree connects a GPU
with two neighbours at any size of the group, a transfer with its other end. For each connection every channel holds two
allocations in pages of 2 MiB: one for receiving (a buffer for each of the three protocols), and one for sending. Source:
NVIDIA/nccl 2.30 (5067397c), computeBuffSizes in src/init.cc, p2pSendSetup and p2pRecvSetup in src/transport/p2p.cc; the resulting
allocations of 10 and of 2 MiB match NVIDIA/nccl#1685.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from ..kernels import Gemm
from ..plan.offload import Offload
from ..plan.plan import Shards
from ..program.holdings import Holding
from ..program.operations import AnyOp, Collective, Communicator, Compute, Transfer
from ..program.program import Program
from ..units import KIB, MIB, counted, show_bytes
from ..workload.framework import MemoryOverhead
from ..workload.optimizer import Optimizer

MASTER_BYTES = 4
FP32_BYTES = 4
LL_BYTES = 512 * KIB
"""Buffer of the low-latency protocol (LL): 8 lines of 16 bytes for each of 512 threads, in 8 steps."""
LL128_BYTES = 120 * 640 * 8 * 8
"""Buffer of the LL128 protocol (lines of 128 bytes): 120 words of 8 bytes for each of 640 threads, in 8 steps."""
BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's `reduce_bucket_size`."""
PAGE_BYTES = 2 * MIB
"""Page size for allocations that other processes map (CUDA_IPC_MIN)."""
MOST_NEIGHBOURS = 2
NOTHING_OFFLOADED = Offload()


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the account: the class of the bytes, their subject, and the formula of their number."""

    kind: Holding
    what: str
    formula: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The inputs of memory accounting besides the program."""

    parameter_bytes: int
    """Bytes of a parameter between the passes; four where the master copy is the only one."""
    gradient_bytes: int
    element_bytes: int
    """Bytes of an activation, and of a gradient that autograd makes."""
    shards: Shards
    expert_shards: Shards
    """The shards of the state of experts."""
    degrees: Mapping[str, int] = field(hash=False)
    """Degree of each axis of the mesh."""
    overhead: MemoryOverhead
    reserved_bytes: float = 0.0
    """Bytes of a GPU's memory that the driver reserves."""
    offload: Offload = field(default_factory=Offload)
    """The data that the host holds."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    frozen_parameter_bytes: int = 2
    """Bytes of a frozen parameter."""
    narrow_bytes: tuple[float, float] = (0.0, 0.0)
    """Bytes of the copies of a weight in a narrow format that are kept for a whole step: outside of experts, and of experts."""
    narrow_parameter_bytes: float = 0.0
    """Bytes of a weight that exists in a narrow format alone; 0 if weights exist in 16 bits."""
    in_buckets: tuple[bool, bool] = (False, False)
    """Whether buckets hold gradients a second time: of the parameters outside of experts, and of experts."""


def static_items(ops: Sequence[AnyOp], terms: Terms) -> Iterator[Item]:
    """The memory that a GPU holds throughout a step, except NCCL buffers; `ops` are the forward operations of its stages."""
    kernels = [op for op in ops if isinstance(op, Compute)]
    learning, frozen = ([op for op in kernels if op.frozen is frozen] for frozen in (False, True))
    shards, of_experts = terms.shards, terms.expert_shards
    narrow = [op for op in kernels if isinstance(op.kernel, Gemm) and op.kernel.dtype]
    alone = {op.operator for op in narrow} if terms.narrow_parameter_bytes else ()
    weights = "weights" if terms.parameter_bytes < FP32_BYTES else "fp32 weights"
    on_gpu = ((weights, terms.parameter_bytes, learning), ("frozen weights", terms.frozen_parameter_bytes, frozen))
    for words, each_bytes, of_kind in () if terms.offload.parameters else on_gpu:
        wide = [op for op in of_kind if op.operator not in alone]
        for of, parameters, ranks in _parts(wide, shards.parameters, of_experts.parameters):
            yield _per_parameter(Holding.PARAMETERS, f"{words}{of}", each_bytes, parameters, ranks)
    on_gpu_alone = alone and not terms.offload.parameters
    for of, parameters, ranks in _parts(narrow, shards.parameters, of_experts.parameters) if on_gpu_alone else ():
        what = f"weights in a narrow format{of}"
        yield _per_parameter(Holding.PARAMETERS, what, terms.narrow_parameter_bytes, parameters, ranks)
    for expert, of in ((False, ""), (True, " of experts")):
        parameters = sum(op.parameters for op in narrow if op.expert is expert)
        yield _per_parameter(Holding.PARAMETERS, f"narrow copies of weights{of}", terms.narrow_bytes[expert], parameters, 1)
    for size_bytes, units in Counter(op.kept_bytes for op in ops if op.kept_bytes).items():
        yield Item(Holding.GATHERED, "units that stay", f"{size_bytes:,} bytes x {counted(units, 'unit')}", size_bytes * units)
    for of, parameters, ranks in _parts(learning, shards.gradients, of_experts.gradients):
        yield _per_parameter(Holding.GRADIENTS, f"gradients{of}", terms.gradient_bytes, parameters, ranks)
        if terms.overhead.whole_gradients and terms.gradient_bytes > terms.element_bytes:
            yield _per_parameter(Holding.GRADIENTS, f"gradients of a microbatch{of}", terms.element_bytes, parameters, ranks)
    in_buckets = sum(op.parameters for op in learning if terms.in_buckets[op.expert])
    yield _per_parameter(Holding.GRADIENTS, "gradient buckets of DDP", terms.gradient_bytes, in_buckets, 1)
    yield from _optimizer_items(learning, terms)
    context = f"{show_bytes(terms.overhead.context_bytes)}, and {show_bytes(terms.reserved_bytes)} that the driver keeps"
    yield Item(Holding.CONTEXT, "CUDA and driver", context, ceil(terms.overhead.context_bytes + terms.reserved_bytes))


def _optimizer_items(kernels: Sequence[Compute], terms: Terms) -> Iterator[Item]:
    """The state of the optimizer, separately for experts and the rest of the model, and for matrices if they have another
    state."""
    optimizer, parameters = terms.optimizer, Counter[tuple[bool, bool]]()
    for op in kernels:
        parameters[op.expert, op.is_matrix and optimizer.kind == "muon"] += op.parameters
    for (expert, matrix), number in sorted(parameters.items()):
        of, ranks = (" of experts", terms.expert_shards.optimizer) if expert else ("", terms.shards.optimizer)
        if terms.parameter_bytes < FP32_BYTES and optimizer.full.master == "fp32":
            yield _per_parameter(Holding.MASTER, f"fp32 weights{of}", MASTER_BYTES, number, ranks, terms.offload)
        moments = optimizer.moments_of(matrix=matrix)
        what = f"{'two moments' if moments.number == 2 else 'moment'} of {moments.rule}{of}"
        yield _per_parameter(Holding.MOMENTS, what, moments.size_bytes, number, ranks, terms.offload)


def passing_items(activations: int, tensors: int, at_end: tuple[int, str], terms: Terms) -> Iterator[Item]:
    """Memory in use at the peak besides activations, and memory that the allocator reserves and cannot use.

    `tensors` is the peak of activations with working sets. The largest tensors of the end of a step (`at_end`) are allocated
    when activations are freed; for tensors of whole stages the allocator is assumed not to reuse the memory of activations.
    """
    end, formula = at_end
    yield Item(Holding.WORKSPACE, "kernels at the peak", f"{tensors - activations:,} bytes", tensors - activations)
    yield Item(Holding.WORKSPACE, "gradients at the end of a step", f"{formula} - {tensors:,} bytes", max(0, end - tensors))
    fraction = terms.overhead.fragmentation_fraction
    reserved = f"{fraction:.1%} of {show_bytes(tensors)} that come and go"
    yield Item(Holding.FRAGMENTATION, "allocator", reserved, ceil(tensors * fraction))
    if terms.overhead.whole_gradients:
        yield Item(Holding.FRAGMENTATION, "room of activations", f"{formula}, at most {tensors:,} bytes", min(end, tensors))


def end_of_step(ops: Sequence[AnyOp], terms: Terms) -> tuple[int, str]:
    """Bytes that reductions of gradients and the optimizer take at the end of a step, and their formula.

    An optimizer with an fp32 master copy reads gradients in fp32: of gradients in 16 bits it makes a copy of its share
    (Megatron-LM, megatron/optimizer/optimizer.py, `_copy_model_grads_to_main_grads`). DeepSpeed (56c52238, 2022-04) works on the
    gradients of a whole stage: its optimizer for bf16 keeps those of a microbatch beside the sum in fp32
    (runtime/bf16_optimizer.py), of which it reduces a copy in bf16 (runtime/engine.py, `allreduce_bucket`); its ZeRO-1 reduces
    gradients in 16 bits through a buffer of `reduce_bucket_size`, and flattens the share of a rank before the copy in fp32
    (runtime/zero/stage_1_and_2.py).
    """
    kernels = [op for op in ops if isinstance(op, Compute) and not op.frozen]
    whole, copied = terms.overhead.whole_gradients, FP32_BYTES * (terms.optimizer.full.master == "fp32")
    experts = sum(op.parameters for op in kernels if op.expert)
    others = sum(op.parameters for op in kernels) - experts
    one, other = terms.shards, terms.expert_shards
    if terms.gradient_bytes in (0, FP32_BYTES):  # 0: all of them are copied to the host
        each = terms.element_bytes if whole and terms.element_bytes < FP32_BYTES else 0
        share = ceil(others / one.gradients) + ceil(experts / other.gradients)
        return each * share, f"{each} bytes x {share:,} parameters"
    owned = (ceil(others / one.optimizer), ceil(experts / other.optimizer))
    share = sum(owned) - sum(map(terms.offload.updated, owned))
    each, bucket = (copied + terms.gradient_bytes, BUCKET_ELEMENTS * terms.gradient_bytes) if whole else (copied, 0)
    buffered = f"{bucket:,} bytes + " if bucket else ""
    return bucket + each * share, f"{buffered}{each} bytes x {share:,} parameters"


def host_bytes(ops: Sequence[AnyOp], terms: Terms) -> int:
    """Memory of the host that a GPU uses throughout a step: gradients in fp32, 16-bit parameters in the form that is copied to
    the GPU, and the state that the GPU would hold.
    """
    kernels, shards, offload = [op for op in ops if isinstance(op, Compute)], terms.shards, terms.offload
    whole, experts = sum(op.parameters for op in kernels), sum(op.parameters for op in kernels if op.expert)
    owned = -(-(whole - experts) // shards.optimizer), -(-experts // terms.expert_shards.optimizer)
    narrow, moments_bytes = terms.parameter_bytes < FP32_BYTES, ceil(terms.optimizer.moments_of(matrix=False).size_bytes)
    each_bytes = moments_bytes + FP32_BYTES + narrow * (MASTER_BYTES + (not offload.parameters) * terms.parameter_bytes)
    kept_bytes = -(-whole // shards.parameters) * terms.parameter_bytes if offload.parameters else 0
    return sum(map(offload.updated, owned)) * each_bytes + kept_bytes


def _per_parameter(
    kind: Holding, what: str, bytes_each: float, parameters: int, shards: int, offload: Offload = NOTHING_OFFLOADED
) -> Item:
    """Bytes for every parameter, divided among ranks, without those that CPUs update."""
    share = -(-parameters // shards)
    updated = offload.updated(share)
    formula = f"{bytes_each:g} bytes x {parameters:,} parameters" + (f" / {shards:,} shards" if shards > 1 else "")
    if updated:
        formula += f" - {updated:,} on the host"
    return Item(kind, what, formula, ceil((share - updated) * bytes_each))


def _parts(kernels: Sequence[Compute], shards: int, expert_shards: int) -> list[tuple[str, int, int]]:
    """All parameters, or experts and the others separately if different numbers of ranks divide them: words, number, shards."""
    whole, experts = sum(op.parameters for op in kernels), sum(op.parameters for op in kernels if op.expert)
    if not experts or shards == expert_shards:
        return [("", whole, shards)]
    return [("", whole - experts, shards), (" of experts", experts, expert_shards)]


def nccl_items(program: Program, rank: int, terms: Terms) -> Iterator[Item]:
    """NCCL buffers of a GPU: for its neighbours in the groups of its collectives, and for each other end of its transfers."""
    received = terms.overhead.nccl_buffer_bytes + LL_BYTES + LL128_BYTES
    allocated = (ceil(received / PAGE_BYTES) + 1) * PAGE_BYTES
    channels = terms.overhead.nccl_channels

    def item(what: str, ends: int) -> Item:
        formula = f"{allocated:,} bytes x {counted(channels, 'channel')} x {counted(ends, 'connection')}"
        return Item(Holding.NCCL, what, formula, ends * channels * allocated)

    used = dict.fromkeys(step.body for order in program.orders_of(rank) for step in order)
    calls = [call for name in used for call in program.bodies[name].calls]
    groups: dict[tuple[object, ...], Communicator] = {}
    for group in (program.communicators[name] for name, kind in calls if kind is Collective):
        # groups of the same ranks share a communicator of the library
        groups.setdefault((group.axes, group.pipeline and frozenset(group.pipeline), group.size, group.stride), group)
    for group in groups.values():
        degrees = terms.degrees if group.pipeline is None else {**terms.degrees, "pp": len(set(group.pipeline))}
        yield item(group.name, min(MOST_NEIGHBOURS, (group.size or prod(degrees[axis] for axis in group.axes)) - 1))
    transfers = {end for name, kind in calls if kind is Transfer for end in program.communicators[name].pipeline or ()}
    yield item("transfers between stages", len(transfers - {rank}))
