"""Offload of the optimizer, and of parameters: the memory of the host holds their state, and CPUs update it.

When the gradients of a bucket are complete, and reduced, each rank copies its share to the host, in fp32, beside the rest of the
backward pass. The gradient norm waits for the copies. Then the CPU updates the rank's share; the parameters are copied back, and
gathered as without offload. CPUs may update a fraction of the parameters only, beside the kernels that update the rest.
References: DeepSpeed edaa7221, zero/stage_1_and_2.py (async_inplace_copy_grad_to_fp32_buffer_from_gpu, step), zero/stage3.py
(_offload_grad_partition_at_boundary) and csrc/includes/cpu_adam.h; Megatron-LM 0d41ecd8, hybrid_optimizer.py, which takes its
fraction in whole tensors, and copies gradients after the norm.

A framework may copy to pageable memory. The driver then moves pieces through a buffer of its own, a CPU core copies them, and the
call returns at the end: the host launches nothing meanwhile, so compute waits for copies of gradients. DeepSpeed does so
unless offload_optimizer.pin_memory is on, its default since v0.19.5 (zero/offload_config.py). Its ZeRO-3 also leaves the shares
of gradients on the host and fetches each again to cast it (partition_grads), scales the gradients on the CPU in a separate pass
(unscale_and_clip_grads: grad.mul_), and copies parameters back from pageable memory (_reassign_or_swap_out_partitioned_parameters
copies fp32 to a tensor of 16 bits of the GPU, which PyTorch casts on the CPU, to memory that it allocates for it).

Where the host keeps parameters, the copy of the rank's share precedes each gather, and nothing is copied back after the update:
in fp32 with FSDP, whose only copy is the master copy (PyTorch 010ae4a8, fsdp/_fully_shard/_fsdp_param.py, all_gather_inputs), in
the training format with ZeRO-3 (DeepSpeed, zero/partition_parameters.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...frozen import replace
from ...kernels import Part, Rowwise
from ...plan.offload import Offload
from ...plan.plan import WITH_MASTER_COPY
from ...program.holdings import Buffer, Holding
from ...program.operations import COMPUTE, OFFLOAD, UPDATE_ON_HOST, AnyOp, Collective, Communicator, Compute, Purpose, Wait
from ...program.program import Body, Bucket, Key, Program, Step, bucket_of
from ...workload.framework import HostWork
from .data_parallel import FP32_BYTES, NORM, OPTIMIZER, Replicas, final_backward, parameters_by_stage, replica_count
from .offload_activations import IN, IN_BY_CORE, OUT, OUT_BY_CORE, copied
from .shards import ShardedState

UPDATES = Communicator("updates on host", OFFLOAD, ())
HOST_ADAM_BYTES = 28
"""Bytes for each parameter: a CPU reads the gradient, and reads and writes the master copy and two moments, all in fp32."""
HOST_CAST_BYTES = 6
"""Bytes for each parameter that the CPU casts to 16 bits afterwards."""
HOST_SCALE_BYTES = 8
"""Bytes for each gradient that the CPU scales beforehand, read and written in fp32."""
UPDATE = "update on host"
"""Name of the operation in which CPUs update parameters."""


@dataclass(frozen=True, slots=True)
class OffloadedState:
    """The values of plan, job and framework that the pass needs."""

    chosen: Offload
    replicas: Replicas
    """Number of ranks that hold the same parameters."""
    sharded: ShardedState
    """How these ranks divide the state; without sharding, only its sizes in bytes."""
    work: HostWork
    """How the framework copies, and additional work of the CPUs."""

    def share(self, size: int, group: Communicator) -> int:
        """The share of a rank in a size that a group divides."""
        return -(-size // self.sharded.shards(group))

    @property
    def grouped(self) -> bool:
        """Whether several groups divide the state, so that an all-reduce across them follows each reduce-scatter."""
        return self.sharded.sharding.kind != "none" and self.sharded.ranks < self.sharded.dp

    @property
    def kept_bytes(self) -> int:
        """Bytes of a parameter as the host keeps it for gathers, or copies it back."""
        return FP32_BYTES if self.sharded.sharding.kind in WITH_MASTER_COPY else self.sharded.element_bytes

    @property
    def update_bytes(self) -> int:
        """Bytes that a CPU reads and writes to update a parameter."""
        cast_bytes = HOST_CAST_BYTES if self.kept_bytes < FP32_BYTES else 0
        return HOST_ADAM_BYTES + cast_bytes + (HOST_SCALE_BYTES if self.work.scales else 0)

    @property
    def ways(self) -> tuple[Communicator, Communicator]:
        """The copies of state out and in."""
        return (OUT, IN) if self.work.pinned else (OUT_BY_CORE, IN_BY_CORE)

    @property
    def keeps_gradients(self) -> bool:
        """Whether every backward pass leaves its share of the gradients on the host, and fetches it again."""
        return self.work.keeps_gradients and self.sharded.sharding.kind == "zero3"


def offload_state(program: Program, state: OffloadedState) -> Program:
    """The program in which CPUs update the parameters, and the host may keep them."""
    if not state.chosen.optimizer:
        return program
    bodies, orders = dict(program.bodies), []
    for rank, steps in enumerate(program.orders):
        copying = tuple(_copying_gradients(steps, rank, program, bodies, state))
        orders.append(tuple(_updating(step, bodies, state) for step in copying))
    program = replace(program, bodies=bodies, orders=tuple(orders)).with_communicators(*state.ways, UPDATES)
    return program.with_bodies(lambda body: _fetching(body, program, state)) if state.chosen.parameters else program


def _copying_gradients(
    steps: tuple[Step, ...], rank: int, program: Program, bodies: dict[str, Body], state: OffloadedState
) -> Iterator[Step]:
    """The steps of a rank, where those that complete gradients copy them out; the norm, or without one the update on the host,
    waits for the last copy."""
    buckets, final = parameters_by_stage(program, rank), final_backward(steps)
    has_norm = any(step.phase == NORM for step in steps)
    copied_out: tuple[Key, ...] = ()
    for i, step in enumerate(steps):
        if step.phase == NORM:
            step = step._replace(after=(*step.after, *copied_out))
        if step.phase == OPTIMIZER and not has_norm:
            step = step._replace(waits=(*step.waits, *((UPDATE, key) for key in copied_out)))
        is_final = i == final.get(step.stage)
        if is_final or step.phase not in ("F", "B", "I", "W"):
            complete = dict(_complete(step, program, buckets[step.stage] if is_final else {}, state))
            if complete:
                name = f"{step.body}, copying gradients"
                bodies[name] = Body(tuple(_with_copies(program.bodies[step.body], complete, state, sums=True)))
                *_, last = (op for op in bodies[name].ops if op.purpose is Purpose.OFFLOAD)
                copied_out = ((OFFLOAD, "gradients", i),)
                step = step._replace(body=name, outputs=(*step.outputs, (last.name, copied_out[0])))
        elif state.keeps_gradients and (complete := dict(_complete(step, program, {}, state))):
            name = f"{step.body}, keeping gradients"
            bodies[name] = Body(tuple(_with_copies(program.bodies[step.body], complete, state, sums=False)))
            step = step._replace(body=name)
        yield step


def _complete(step: Step, program: Program, buckets: Mapping[Bucket, int], state: OffloadedState) -> Iterator[tuple[str, int]]:
    """Operations of a step after which a rank's share of some gradients is complete, and the size of the share.

    A bucket of norms outside of layers, complete since the input gradients, follows the first kernel of the weight gradients.
    """
    ops = program.bodies[step.body].ops
    last = dict.fromkeys(buckets, next((op.name for op in ops if isinstance(op, Compute)), ""))
    for op in ops:
        if isinstance(op, Compute) and op.adds_gradient:
            last[bucket_of(op)] = op.name
        if isinstance(op, Collective) and op.purpose is Purpose.REDUCE_GRADIENTS:
            parameters = op.payload_bytes // state.sharded.reduced_bytes
            if op.kind == "all_reduce":
                yield op.name, parameters
            elif not state.grouped:
                yield op.name, state.share(parameters, program.communicators[op.communicator])
    for bucket, parameters in buckets.items():
        if replica_count(program, step.stage, state.replicas, bucket) == 1:
            yield last[bucket], parameters


def _with_copies(body: Body, complete: Mapping[str, int], state: OffloadedState, *, sums: bool) -> Iterator[AnyOp]:
    """A body in which the shares of gradients are copied to the host: their sums, where these are complete."""
    out, back = state.ways
    for op in body.ops:
        yield op
        if op.name in complete:
            updated = state.chosen.updated(complete[op.name])
            kept_bytes, sum_bytes = updated * state.sharded.reduced_bytes, updated * FP32_BYTES
            copies = [("keep", out, kept_bytes), ("fetch", back, kept_bytes)] if state.keeps_gradients else []
            copies += [("copy out", out, sum_bytes)] if sums else []
            before = op.name
            for what, way, size_bytes in copies:
                name = f"{op.name} {what}"
                yield copied(name, way, size_bytes, layer=op.layer, after=(before,), part=Part.OPTIMIZER)
                before = name
            if not state.work.pinned:
                yield Wait(name=f"{op.name} host waits", streams=(COMPUTE,), after=(before,), layer=op.layer, part=Part.OPTIMIZER)


def _updating(step: Step, bodies: dict[str, Body], state: OffloadedState) -> Step:
    """An optimizer step in which the CPU updates its parameters, beside the kernels for the others; other steps as they are."""
    if step.phase != OPTIMIZER:
        return step
    kernels = [(op, op.kernel) for op in bodies[step.body].ops if isinstance(op, Compute) and isinstance(op.kernel, Rowwise)]
    owned = kernels[0][1].rows
    on_host = state.chosen.updated(owned)
    update = Collective(
        name=UPDATE,
        streams=(UPDATES.name,),
        detached=True,
        purpose=Purpose.UPDATE,
        part=Part.OPTIMIZER,
        communicator=UPDATES.name,
        kind=UPDATE_ON_HOST,
        payload_bytes=on_host * state.update_bytes,
    )
    back = copied("copy parameters in", state.ways[1], on_host * state.kept_bytes, after=(update.name,), part=Part.OPTIMIZER)
    host: list[AnyOp] = [update] if state.chosen.parameters else [update, back]
    rest = [replace(op, kernel=replace(kernel, rows=owned - on_host)) for op, kernel in kernels] if on_host < owned else []
    after = (host[-1].name, *(op.name for op in rest[-1:]))
    wait = Wait(name="wait for host", streams=(COMPUTE,), after=after, part=Part.OPTIMIZER)
    bodies[step.body] = Body((*host, *rest, wait))
    return step._replace(waits=(*step.waits, *((op.name, key) for op in rest[:1] for key in step.after)))


def _fetching(body: Body, program: Program, state: OffloadedState) -> Iterator[AnyOp]:
    """A body in which the copy of a rank's share precedes each gather of parameters.

    The share is held until the gathered parameters are copied from the buffer of the gather.
    """
    held: dict[str, int] = {}
    for op in body.ops:
        if isinstance(op, Collective) and op.purpose is Purpose.GATHER_PARAMETERS:
            parameters = op.payload_bytes // state.sharded.element_bytes
            size = held[op.name] = state.share(parameters, program.communicators[op.communicator]) * state.kept_bytes
            fetch = copied(f"{op.name} copy in", state.ways[1], size, layer=op.layer, after=op.after, part=Part.OPTIMIZER)
            yield replace(fetch, detached=op.detached).holding(Buffer(Holding.GATHERED, size))
            op = replace(op, after=None if op.after is None else (*op.after, fetch.name))
        elif op.purpose is Purpose.COPY:
            op = op.holding(*(Buffer(Holding.GATHERED, freed_bytes=held[name]) for name in op.after or () if name in held))
        yield op
