"""The memory of one rank at its peak, explained: every term with its formula, and whether the sum fits in the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from ..errors import UserError
from ..escape import Summarised
from ..hardware.gpu import Gpu
from ..memory.account import RankMemory
from ..memory.items import Item
from ..memory.ledger import words_of
from ..memory.peak import Peak, peak_of
from ..program.holdings import Holding
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from ..simulation.run import Run
from ..units import GIB, counted, show_bytes, show_s

PASSES = {
    FORWARD: "forward pass",
    BACKWARD: "backward pass",
    INPUT_GRADIENT: "input gradients",
    WEIGHT_GRADIENT: "weight gradients",
}
ORDER = {kind: number for number, kind in enumerate(Holding)}


@dataclass(frozen=True, repr=False)
class MemoryExplained(Summarised):
    """What a GPU of one pipeline rank holds at its peak."""

    run: Run
    memory: RankMemory
    peak: Peak

    @property
    def capacity_bytes(self) -> float:
        return self.run.scenario.cluster.gpu.memory_bytes

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Every term, class by class, the largest of a class first. Their bytes add up to the peak."""
        every = (*self.memory.items, *self.peak.items)
        return tuple(sorted(every, key=lambda item: (ORDER[item.kind], -item.size_bytes)))

    @property
    def classes(self) -> dict[Holding, tuple[Item, ...]]:
        """The terms by class."""
        return {kind: tuple(items) for kind, items in groupby(self.items, key=lambda item: item.kind)}

    @cached_property
    def at_s(self) -> float:
        """The first time of the peak, in seconds since the start of the measured step."""
        times, held = self.run.memory_over_time(self.memory.rank)
        return float(times[int(held.argmax())])

    @property
    def slot(self) -> str:
        """The slot of the peak in words, and the operation that takes the last bytes."""
        step, op = self.peak.step, self.peak.op
        if step.stage < 0:
            return step.phase
        stage = self.run.program.stages[step.stage]
        layer = f"layer {stage.first_layer + op.layer} " if op.layer >= 0 else ""
        slot = f"{PASSES.get(step.phase, step.phase)} of microbatch {step.microbatch} on stage {stage.number}"
        return f"{slot}, {layer}{words_of(op)}"

    @property
    def summary(self) -> list[tuple[str, str]]:
        held, share = self.memory.activations_bytes, self.memory.activations_bytes / self.memory.total_bytes
        stages = f" on {len(self.memory.stages)} stages" if len(self.memory.stages) > 1 else ""
        return [
            ("peak", f"{show_bytes(self.memory.total_bytes)} at {show_s(self.at_s)}"),
            ("reached in", self.slot),
            (
                "in flight",
                f"{counted(self.peak.microbatches, 'microbatch')}{stages} with {show_bytes(held)}, {share:.0%} of the peak",
            ),
            ("most of it", self._most),
            ("capacity", f"{show_bytes(self.capacity_bytes)}: {verdict(self.memory.total_bytes, self.run.scenario.cluster.gpu)}"),
        ]

    @property
    def _most(self) -> str:
        """The three largest classes."""
        sizes = {kind.value: sum(item.size_bytes for item in items) for kind, items in self.classes.items()}
        return ", ".join(f"{name} {show_bytes(sizes[name])}" for name in sorted(sizes, key=lambda name: -sizes[name])[:3])

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim memory --explain --json`."""
        step, total_bytes = self.peak.step, self.memory.total_bytes
        return {
            "rank": self.memory.rank,
            "stages": list(self.memory.stages),
            "peak_memory_bytes": total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": total_bytes <= self.capacity_bytes,
            "over_gib": max(0.0, (total_bytes - self.capacity_bytes) / GIB),
            "peak": {
                "time_s": self.at_s,
                "phase": step.phase,
                "stage": self.run.program.stages[step.stage].number if step.stage >= 0 else -1,
                "microbatch": step.microbatch,
                "operation": self.peak.op.name,
                "microbatches_alive": self.peak.microbatches,
            },
            "terms": [
                {
                    "class": item.kind.value,
                    "what": item.what,
                    "formula": item.formula,
                    "bytes": item.size_bytes,
                    "share": item.size_bytes / total_bytes,
                }
                for item in self.items
            ],
        }


def explained(run: Run, rank: int | None = None) -> MemoryExplained:
    """The memory of a pipeline rank of a run, by default of the fullest one."""
    fullest = max(run.memory, key=lambda one: one.total_bytes)
    if rank is not None and not 0 <= rank < len(run.memory):
        raise UserError(f"no pipeline rank {rank}", hint=f"pipeline ranks are 0 to {len(run.memory) - 1}")
    memory, job, plan = fullest if rank is None else run.memory[rank], run.scenario.job, run.scenario.plan
    tokens = job.microbatch_size * job.sequence_length // (plan.splits * plan.cp)
    return MemoryExplained(run, memory, peak_of(run.program, memory.rank, tokens))


def verdict(needed_bytes: float, gpu: Gpu) -> str:
    """Whether a GPU has enough memory, and by how much it has more, or less."""
    spare_bytes = gpu.memory_bytes - needed_bytes
    if spare_bytes >= 0:
        return f"fits with {show_bytes(spare_bytes)} to spare"
    return f"needs {show_bytes(-spare_bytes)} more than the {show_bytes(gpu.memory_bytes)} of {gpu.name}"
