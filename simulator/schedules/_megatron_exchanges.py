"""What Megatron-LM sends and receives at once where transfers do not overlap compute.

Written in our own words after snapshot d98e8a6 of NVIDIA/Megatron-LM: forward_backward_pipelining_without_interleaving and
forward_backward_pipelining_with_interleaving in megatron/core/pipeline_parallel/schedules.py, whose calls of
p2p_communication.py are the exchanges. Ends of the pipeline need no case of their own: what crosses no ranks is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..program.slot import Exchange, Shape, Slot


def without_interleaving(forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int) -> Iterator[Exchange]:
    """In warm-up and cool-down each tensor by itself; in between a send goes with the next receive from the same neighbour."""
    total = len(forward)
    done: Slot | None = None
    for slot in forward[:warm_up]:
        yield Exchange(done, receives=(slot,))
        yield Exchange(slot, sends=(slot,))
        done = slot
    yield Exchange(done, receives=tuple(forward[warm_up : warm_up + 1]))
    for i in range(total - warm_up):
        yield Exchange(forward[warm_up + i], sends=(forward[warm_up + i],), receives=(backward[i],))
        done = backward[i]
        yield Exchange(done, sends=(done,), receives=tuple(forward[warm_up + i + 1 : warm_up + i + 2]))
    for slot in backward[total - warm_up :]:
        yield Exchange(done, receives=(slot,))
        yield Exchange(slot, sends=(slot,))
        done = slot


def with_interleaving(
    rank: int, shape: Shape, forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int
) -> Iterator[Exchange]:
    """After every slot of warm-up and cool-down, and after every forward and backward slot in between, all that is due."""
    total = len(forward)
    inputs = [_received(forward, k, shape, leads=rank == 0) for k in range(total)]
    gradients = [_received(backward, k, shape, leads=rank == shape.ranks - 1) for k in range(total)]
    yield Exchange(None, receives=tuple(forward[:1]))
    for k in range(warm_up):
        first_backward = backward[:1] if k == warm_up - 1 < total - 1 else ()
        yield Exchange(forward[k], sends=(forward[k],), receives=(*inputs[k], *first_backward))
    for k in range(warm_up, total):
        sends = (forward[k], backward[k - warm_up])
        yield Exchange(backward[k - warm_up], sends=sends, receives=(*inputs[k], *gradients[k - warm_up]))
    if warm_up == total:
        yield Exchange(forward[-1], receives=tuple(backward[:1]))
    for k in range(total - warm_up, total):
        yield Exchange(backward[k], sends=(backward[k],), receives=gradients[k])


def _received(passes: Sequence[Slot], k: int, shape: Shape, *, leads: bool) -> tuple[Slot, ...]:
    """The slot whose input is received after a rank's k-th pass of one direction: that of the next pass.

    The rank that leads a direction receives what the other end of the pipeline sends after its pass k - (P - 1), which is
    for the chunk after.
    """
    if not leads or k + 1 == len(passes):
        return tuple(passes[k + 1 : k + 2])
    if k < shape.ranks - 1:
        return ()
    kind, stage, microbatch = passes[k - (shape.ranks - 1)]
    fed = stage + (shape.ranks if kind == "F" else -shape.ranks)
    return (Slot(kind, fed, microbatch),) if 0 <= fed < shape.stages else ()
